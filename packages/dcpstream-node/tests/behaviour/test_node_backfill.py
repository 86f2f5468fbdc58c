"""History that goes out to several clients at once, at different speeds: nobody gets another one's bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from dcpstream.wire import Opcode
from dcpstream.wire.stored.block import Version, encode_stored_mutation
from dcpstream_node import Node
from tests.kit.peer import SocketPeer

DOCUMENTS = 300
VALUE_BYTES = 40_000
"""12 MB in all: more than two sockets hold, so that a client that does not read leaves part of a block behind."""


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vbuckets=1, system_scope=False) as node:
        assert node.engine is not None
        vbucket = node.engine.buckets["default"].vbucket(0)
        assert vbucket is not None
        keys = [b"\0key-%d" % seqno for seqno in range(1, DOCUMENTS + 1)]
        frames = [
            encode_stored_mutation(Version(key, value_of(seqno), 1, flags=seqno), vbid=0, by_seqno=seqno, cas=seqno)
            for seqno, key in enumerate(keys, 1)
        ]
        vbucket.log.append_many(frames, keys, range(1, DOCUMENTS + 1))
        yield node


def value_of(seqno: int) -> bytes:
    return seqno.to_bytes(4, "big") * (VALUE_BYTES // 4)


def connect(node: Node, name: bytes) -> SocketPeer:
    peer = SocketPeer(node.port).open()
    peer.succeed(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", 0, 1))
    peer.succeed(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
    return peer


def begin(peer: SocketPeer, opaque: int) -> None:
    extras = struct.pack(">IIQQQQQ", 0, 0, 0, DOCUMENTS, 0, 0, 0)
    peer.send(Opcode.DCP_STREAM_REQ, opaque=opaque, extras=extras)


def check_all(peer: SocketPeer, opaque: int) -> None:
    expected = 1
    while (frame := peer.next()).opcode != Opcode.DCP_STREAM_END:
        assert frame.opaque == opaque
        assert frame.is_request or frame.status == 0
        if frame.opcode == Opcode.DCP_MUTATION:
            assert int.from_bytes(frame.extras[:8], "big") == expected
            assert frame.value == value_of(expected)
            expected += 1
    assert expected == DOCUMENTS + 1


def test_a_client_that_does_not_read_gets_its_own_bytes_later(node: Node) -> None:
    clients = [connect(node, b"client-%d" % number) for number in range(3)]
    slow, fast, other = clients
    try:
        begin(slow, 101)
        begin(other, 102)
        assert other.next().opaque == 102
        begin(fast, 103)
        check_all(fast, 103)
        check_all(slow, 101)
        begin(fast, 104)
        check_all(other, 102)
        check_all(fast, 104)
    finally:
        for client in clients:
            client.close()
