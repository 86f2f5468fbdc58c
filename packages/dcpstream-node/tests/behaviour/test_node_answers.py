"""Answers come in the order of the requests, whichever machine behind a connection makes them."""

from __future__ import annotations

import struct

from dcpstream.wire import Opcode, encode_request
from dcpstream_node import Node
from tests.kit.peer import SocketPeer

VBUCKETS = 16
END = (1 << 64) - 1


def test_requests_for_streams_and_others_in_one_write_are_answered_in_order() -> None:
    with Node(vbuckets=VBUCKETS) as node, SocketPeer(node.port).open() as peer:
        for vbid in range(VBUCKETS):
            peer.set("k", b"x" * 5000, vbid)
        assert peer.call(Opcode.DCP_OPEN, key=b"order", extras=struct.pack(">II", 0, 1)).status == 0
        assert peer.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true").status == 0
        requests = []
        for vbid in range(VBUCKETS):
            extras = struct.pack(">IIQQQQQ", 0, 0, 0, END, 0, 0, 0)
            requests.append(encode_request(Opcode.GET_COLLECTIONS_MANIFEST, opaque=len(requests)))
            requests.append(encode_request(Opcode.DCP_STREAM_REQ, opaque=len(requests), vbid=vbid, extras=extras))
            requests.append(encode_request(Opcode.NOOP, opaque=len(requests)))
            requests.append(encode_request(Opcode.DCP_GET_FAILOVER_LOG, opaque=len(requests), vbid=vbid))
        peer.socket.sendall(b"".join(requests))
        answered: list[int] = []
        streamed: dict[int, int] = {}
        while len(answered) < len(requests) or len(streamed) < VBUCKETS:
            frame = peer.read()
            assert frame is not None
            if frame.is_response:
                assert frame.status == 0
                answered.append(frame.opaque)
            else:
                # A stream's data follows its answer, and carries the number of its request.
                streamed.setdefault(frame.opaque, len(answered))
        assert answered == list(range(len(requests)))
        assert all(opaque < count for opaque, count in streamed.items())
