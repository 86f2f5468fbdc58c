"""Conversations between real servers and a node over the bridge: each side is played again to a node of today.

`lab/interop/bridge.py` recorded them beside servers of releases 7.2 and 8.0: `producer-…` are streams of a server into
a node, `consumer-…` streams of a node into a server; each as a replication and as a takeover of two vbuckets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

import dcpstream_node
from dcpstream.model import VbucketState
from dcpstream.wire import Frame, Opcode, OpenFlag
from lab.interop.bridge import FEATURES, NAME, recorded
from tests.kit.peer import SocketPeer
from tests.kit.recorded import RECORDED
from tests.kit.waiting import wait_until

CONVERSATIONS = RECORDED / "bridge"
VBIDS = (0, 1)
UNTIMED = frozenset((Opcode.DCP_NOOP, Opcode.DCP_BUFFER_ACK))
"""Messages that come by the clock or by amounts, and so not at the same place again."""
DATA = frozenset((Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION))
KINDS = pytest.mark.parametrize("kind", ["replication", "takeover"])
SERVERS = pytest.mark.parametrize("server", ["7.2", "8.0"])


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=2, release="8.0") as running:
        yield running


def conversation(name: str) -> list[tuple[str, Frame]]:
    with (CONVERSATIONS / f"{name}.jsonl").open() as lines:
        return [(sender, frame) for sender, frame in recorded(lines) if frame.opcode not in UNTIMED]


def play(peer: SocketPeer, frames: list[tuple[str, Frame]], side: str) -> list[tuple[Frame, Frame]]:
    """Send what one side sent, and wait for what the other side sent at that place.

    Opaques that the node chooses stand for those of the recording. Returns pairs of a recorded frame and the node's.
    """
    came: list[Frame] = []
    opaques: dict[int, int] = {}
    pairs: list[tuple[Frame, Frame]] = []
    for sender, frame in frames:
        if sender in (side, "bridge"):
            if side == "source" or frame.opcode != Opcode.DCP_ADD_STREAM:  # a producer sees no ADD_STREAM
                peer.socket.sendall(replace(frame, opaque=opaques.get(frame.opaque, frame.opaque)).encode())
            continue
        while (found := next((item for item in came if what(item) == what(frame)), None)) is None:
            came.append(peer.next())
        came.remove(found)
        pairs.append((frame, found))
        if found.is_request:
            opaques[frame.opaque] = found.opaque
    return pairs


def what(frame: Frame) -> tuple[object, ...]:
    """The part of a message by which it is found: its kind, vbucket or status, and key."""
    by_opaque = frame.opaque if frame.opcode == Opcode.DCP_ADD_STREAM else 0
    return frame.opcode, frame.is_request, frame.vbid, frame.key, by_opaque


@contextmanager
def opened(node: dcpstream_node.Node, flags: int) -> Iterator[SocketPeer]:
    with SocketPeer(node.port).open(features=FEATURES) as peer:
        peer.succeed(Opcode.DCP_OPEN, key=NAME, extras=struct.pack(">II", 0, flags))
        yield peer


@pytest.fixture
def with_documents(node: dcpstream_node.Node) -> Iterator[SocketPeer]:
    """A connection for reads, writes and states."""
    with SocketPeer(node.port).open() as peer:
        yield peer


def state_of(peer: SocketPeer, vbid: int) -> int:
    return int.from_bytes(peer.succeed(Opcode.GET_VBUCKET, vbid=vbid).value, "big")


@SERVERS
@KINDS
def test_a_node_receives_what_a_server_sends(
    node: dcpstream_node.Node, with_documents: SocketPeer, server: str, kind: str
) -> None:
    frames = conversation(f"producer-{server}-{kind}")
    state = VbucketState.PENDING if kind == "takeover" else VbucketState.REPLICA
    for vbid in VBIDS:
        with_documents.succeed(Opcode.DEL_VBUCKET, vbid=vbid)  # without the events of the system's collections
        with_documents.succeed(Opcode.SET_VBUCKET, extras=bytes([state]), vbid=vbid)
    with opened(node, 0) as peer:
        play(peer, frames, "source")
    sent = {(item.vbid, item.key): item for sender, item in frames if sender == "source" and item.opcode in DATA}
    last = {item.vbid: int.from_bytes(item.extras[:8], "big") for item in sent.values()}
    # A vbucket that becomes active adds the events of the system's collections.
    wait_until(lambda: all(seqno >= last[vbid] for vbid, seqno in high_seqnos(with_documents).items()))
    for vbid in VBIDS:
        if kind == "takeover":
            assert state_of(with_documents, vbid) == VbucketState.ACTIVE
        with_documents.succeed(Opcode.SET_VBUCKET, extras=bytes([VbucketState.ACTIVE]), vbid=vbid)
    for (vbid, key), item in sent.items():
        found = with_documents.call(Opcode.GET, key=key, vbid=vbid)
        if item.opcode == Opcode.DCP_MUTATION:
            assert (found.cas, found.extras) == (item.cas, item.extras[16:20]), (vbid, key)
            assert found.value == item.value, (vbid, key)
        else:
            assert found.status != 0, (vbid, key)


@SERVERS
@KINDS
def test_a_node_sends_what_a_server_received(
    node: dcpstream_node.Node, with_documents: SocketPeer, server: str, kind: str
) -> None:
    load(with_documents)
    flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
    with opened(node, int(flags)) as peer:
        pairs = play(peer, conversation(f"consumer-{server}-{kind}"), "target")
    data = [(item, found) for item, found in pairs if item.opcode in DATA]
    assert len(data) == 2 * 15, "fifteen documents in each vbucket"
    for item, found in data:
        assert (found.extras[:16], found.value, found.datatype) == (item.extras[:16], item.value, item.datatype)
    ends = [state_of(with_documents, vbid) for vbid in VBIDS]
    assert ends == [VbucketState.DEAD if kind == "takeover" else VbucketState.ACTIVE] * len(VBIDS)


def load(peer: SocketPeer) -> None:
    """The documents of the recordings `consumer-…`, of both vbuckets."""
    for vbid in VBIDS:

        def put(key: str, value: bytes, flags: int = 0, expiry: int = 0, vbid: int = vbid) -> None:
            extras = struct.pack(">II", flags, expiry)
            peer.succeed(Opcode.SET, key=b"\0" + key.encode(), value=value, extras=extras, vbid=vbid)

        for number in range(8):
            put(f"doc {number}", b'{"n": %d}' % number, flags=number)
        put("long", b'{"text": "' + b"lorem " * 200 + b'"}')
        put("binary", bytes(range(64)))
        put("expires", b"{}", expiry=2_000_000_000)
        peer.succeed(Opcode.DELETE, key=b"\0doc 1", vbid=vbid)
        put("doc 2", b'{"n": "again"}')
        for number in range(8, 12):
            put(f"doc {number}", b"text %d" % number)


def high_seqnos(peer: SocketPeer) -> dict[int, int]:
    return dict(struct.iter_unpack(">HQ", peer.succeed(Opcode.GET_ALL_VB_SEQNOS).value))
