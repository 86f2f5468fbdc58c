"""Over sockets: who asks for all keys of a large vbucket gets them, however many turns of the loop that takes."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator

import pytest

from dcpstream.wire import Datatype, Feature, Opcode, Status, encode_request
from dcpstream_node import Node
from tests.kit.peer import SocketPeer

KEYS = 25_000


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(vbuckets=1, release="7.6") as running:
        running.set_collections("default", {"_default": ["other"]})
        with SocketPeer(running.port).open() as wire:
            for start in range(0, KEYS, 5_000):
                keys = [b"\0k%06d" % number for number in range(start, start + 5_000)]
                wire.socket.sendall(
                    b"".join(encode_request(Opcode.SETQ, key=key, value=b"v", extras=bytes(8)) for key in keys)
                )
            assert wire.call(Opcode.NOOP).status == Status.SUCCESS
        yield running


@pytest.mark.slow
def test_all_keys_come(node: Node) -> None:
    with SocketPeer(node.port).open() as wire:
        found = wire.call(Opcode.GET_KEYS, key=b"\0k", extras=struct.pack(">I", 100_000)).value
    assert found == b"".join(b"\0\x08\0k%06d" % number for number in range(KEYS))


@pytest.mark.slow
def test_a_scan_of_all_keys_is_made(node: Node) -> None:
    value = json.dumps({"range": {"start": "", "end": base64.b64encode(b"z").decode()}, "key_only": True}).encode()
    with SocketPeer(node.port).open() as wire:
        features = struct.pack(">4H", Feature.XERROR, Feature.COLLECTIONS, Feature.SELECT_BUCKET, Feature.JSON)
        assert wire.call(Opcode.HELLO, value=features).status == Status.SUCCESS
        made = wire.call(Opcode.RANGE_SCAN_CREATE, value=value, datatype=Datatype.JSON)
        assert made.status == Status.SUCCESS
        wire.send(Opcode.RANGE_SCAN_CONTINUE, extras=made.value + bytes(12))
        keys = 0
        status = int(Status.SUCCESS)
        while status == Status.SUCCESS:
            frame = wire.read()
            assert frame is not None
            keys += len(frame.value) // 8
            status = frame.status
    assert (status, keys) == (Status.RANGE_SCAN_COMPLETE, KEYS)


def test_all_documents_are_counted(node: Node) -> None:
    with SocketPeer(node.port).open() as wire:
        wire.send(Opcode.STAT, key=b"collections")
        found = {}
        while (frame := wire.read()) is not None and frame.key:
            found[frame.key.decode()] = frame.value.decode()
    assert found["0x0:0x0:items"] == str(KEYS)
