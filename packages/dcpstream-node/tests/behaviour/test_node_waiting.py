"""Requests that wait, and answers of many packets, over real sockets: nobody else is held up by them."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.wire import Feature, Opcode, Status, encode_request
from dcpstream_node import Node
from tests.kit.peer import SocketPeer

ALL = json.dumps({"range": {"start": "", "end": "/////w=="}}).encode()
DOCUMENTS = 6000
VALUE = b"\x80" * 2000
FEATURES = (Feature.XERROR, Feature.JSON, Feature.COLLECTIONS)


@pytest.fixture(scope="module")
def node():
    with Node(vbuckets=1024, release="7.6") as running, SocketPeer(running.port).open() as peer:
        sets = (
            encode_request(Opcode.SETQ, key=b"\0k%05d" % number, value=VALUE, extras=bytes(8))
            for number in range(DOCUMENTS)
        )
        peer.socket.sendall(b"".join(sets))
        assert peer.call(Opcode.NOOP).status == 0
        yield running


def negotiated(node: Node) -> SocketPeer:
    peer = SocketPeer(node.port).open()
    peer.call(Opcode.HELLO, value=b"".join(struct.pack(">H", feature) for feature in FEATURES))
    return peer


def role(peer: SocketPeer, vbid: int, state: int) -> None:
    assert peer.call(Opcode.SET_VBUCKET, vbid=vbid, extras=bytes((state,))).status == 0


@pytest.mark.slow
def test_a_scan_that_is_read_slowly(node):
    with negotiated(node) as reader, negotiated(node) as other:
        scan = reader.call(Opcode.RANGE_SCAN_CREATE, value=ALL, datatype=1)
        assert scan.status == 0
        noop = encode_request(Opcode.NOOP, opaque=99)
        reader.socket.sendall(
            encode_request(Opcode.RANGE_SCAN_CONTINUE, extras=scan.value + bytes(12), opaque=7) + noop
        )
        # Nobody reads: what the node makes of 12 MB meanwhile is bounded, and others are served.
        for _ in range(50):
            assert other.call(Opcode.GET, key=b"\0k00001").value == VALUE
        (session,) = [item for item in node.engine.sessions if item.pending.steps is not None]
        assert session.output.nbytes < 1_000_000
        size = packets = 0
        while True:
            frame = reader.read()
            if frame.opaque == 99:
                break
            assert frame.opaque == 7
            last = frame
            size += len(frame.value)
            packets += 1
        assert last.status == Status.RANGE_SCAN_COMPLETE
        assert size > DOCUMENTS * len(VALUE)
        assert packets > 1000


@pytest.mark.slow
def test_a_client_that_leaves_in_the_middle_of_a_scan(node):
    with negotiated(node) as other:
        with negotiated(node) as reader:
            scan = reader.call(Opcode.RANGE_SCAN_CREATE, value=ALL, datatype=1)
            reader.socket.sendall(encode_request(Opcode.RANGE_SCAN_CONTINUE, extras=scan.value + bytes(12)))
            reader.read()
        for _ in range(1000):
            answer = other.call(Opcode.RANGE_SCAN_CANCEL, extras=scan.value)
            if answer.status == Status.KEY_ENOENT:
                break
        else:
            raise AssertionError("the scan is still there")


@pytest.mark.slow
def test_statistics_of_a_thousand_vbuckets(node):
    with negotiated(node) as peer:
        peer.socket.sendall(
            encode_request(Opcode.STAT, key=b"vbucket-details", opaque=3) + encode_request(Opcode.NOOP, opaque=4)
        )
        names = set()
        while (frame := peer.read()).opaque == 3:
            names.add(frame.key)
        assert len(names) % 1024 == 1
        assert {b"vb_0:num_items", b"vb_1023:high_seqno", b""} <= names


def test_a_request_waits_for_a_pending_vbucket(node):
    with negotiated(node) as admin, negotiated(node) as peer:
        role(admin, 5, 3)
        peer.socket.sendall(encode_request(Opcode.SET, key=b"\0k", vbid=5, extras=bytes(8), opaque=1))
        peer.socket.sendall(encode_request(Opcode.GET, key=b"\0k", vbid=5, opaque=2))
        assert admin.call(Opcode.GET_VBUCKET, vbid=5).value == b"\0\0\0\3"
        role(admin, 5, 1)
        assert [(frame.opaque, frame.status) for frame in (peer.read(), peer.read())] == [(1, 0), (2, 0)]


def test_waiting_for_the_disk_ends(tmp_path):
    with Node(vbuckets=4, path=tmp_path / "node") as node, negotiated(node) as peer:
        extras = struct.pack(">I", 1)
        parameter = peer.call(Opcode.SET_PARAM, key=b"seqno_persistence_timeout", value=b"0", extras=extras)
        assert parameter.status == 0
        answer = peer.call(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", 99))
        assert answer.status == Status.TMPFAIL
        peer.set("k", b"v")
        assert peer.call(Opcode.SET_PARAM, key=b"seqno_persistence_timeout", value=b"30", extras=extras).status == 0
        assert peer.call(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", 1)).status == 0
