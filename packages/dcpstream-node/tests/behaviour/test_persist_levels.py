"""Acknowledged writes and their time: the three `persist` levels, over a socket and through a crash."""

from __future__ import annotations

import struct
import threading

import pytest

from dcpstream.errors import StoreError
from dcpstream.model import BucketSettings, Persist
from dcpstream.wire import FrameInfoId, Opcode, Status, encode_request
from dcpstream.wire.keys import encode_frame_info
from dcpstream_node import Node
from tests.kit.peer import SocketPeer
from tests.kit.waiting import TIMEOUT_S

NEVER_S = 3600.0
KEY = b"\0k"


def open_on(path, persist: Persist, flush_interval_s: float = NEVER_S) -> Node:
    return Node(
        vbuckets=2,
        path=path,
        flush_interval_s=flush_interval_s,
        settings=BucketSettings(persist=persist),
        system_scope=False,
    ).start()


class Gate:
    """Stands before the commits of a node's store: they wait until it is opened."""

    def __init__(self, node: Node) -> None:
        assert node.engine is not None
        self.store = node.engine.buckets["default"].store
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.commits = 0
        self.error: StoreError | None = None
        self._commit = self.store.commit
        self.store.commit = self._wait

    def _wait(self):
        self.commits += 1
        self.reached.set()
        assert self.opened.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        return self._commit()


def set_request(key: bytes = KEY, value: bytes = b"v", **fields) -> bytes:
    return encode_request(Opcode.SET, key=key, value=value, extras=bytes(8), **fields)


def has_answer(peer: SocketPeer) -> bool:
    """Whether anything has come; what was sent before on this machine has."""
    peer.socket.setblocking(False)
    try:
        return bool(peer.socket.recv(1, 2))  # MSG_PEEK
    except BlockingIOError:
        return False
    finally:
        peer.socket.settimeout(TIMEOUT_S)


def persisted_seqno(peer: SocketPeer) -> int:
    vbuuid = peer.call(Opcode.GET_FAILOVER_LOG).value[:8]
    answer = peer.call(Opcode.OBSERVE_SEQNO, value=vbuuid)
    assert answer.status == 0
    return struct.unpack_from(">Q", answer.value, 11)[0]


WRITES = {
    "plain SET": set_request(),
    "SET with framing": set_request(framing=encode_frame_info(FrameInfoId.PRESERVE_TTL, b"")),
    "ADD": encode_request(Opcode.ADD, key=KEY, value=b"v", extras=bytes(8)),
    "INCREMENT": encode_request(Opcode.INCREMENT, key=KEY, extras=struct.pack(">QQI", 1, 1, 0)),
    "300 SETs": b"".join(set_request(b"\0k%d" % number, opaque=number) for number in range(300)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_every_answers_only_what_is_durable(tmp_path, write):
    node = open_on(tmp_path, Persist.EVERY)
    gate = Gate(node)
    with SocketPeer(node.port).open() as peer, SocketPeer(node.port).open() as other:
        peer.socket.sendall(write)
        assert gate.reached.wait(TIMEOUT_S)
        assert not has_answer(peer)
        assert other.call(Opcode.NOOP).status == 0  # others go on
        gate.opened.set()
        first = peer.read()
        assert first is not None
        assert first.status == 0
        assert persisted_seqno(other) > 0
    node.crash()
    with open_on(tmp_path, Persist.EVERY) as node, SocketPeer(node.port).open() as peer:
        key = "k0" if write is WRITES["300 SETs"] else "k"
        assert peer.get(key).status == 0


def test_every_makes_durable_together_what_came_in_together(tmp_path):
    node = open_on(tmp_path, Persist.EVERY)
    gate = Gate(node)
    count = 5000
    with SocketPeer(node.port).open() as peer:
        peer.socket.sendall(b"".join(set_request(b"\0k%d" % number, opaque=number, cas=0) for number in range(count)))
        gate.opened.set()
        answers = [peer.read() for _ in range(count)]
    assert [answer.opaque for answer in answers] == list(range(count))
    assert gate.commits < count / 20
    node.stop()


def test_every_keeps_answers_in_order_also_those_of_reads(tmp_path):
    node = open_on(tmp_path, Persist.EVERY)
    gate = Gate(node)
    with SocketPeer(node.port).open() as peer:
        get = encode_request(Opcode.GET, key=KEY, opaque=2)
        peer.socket.sendall(set_request(opaque=1) + get + encode_request(Opcode.NOOP, opaque=3))
        assert gate.reached.wait(TIMEOUT_S)
        assert not has_answer(peer)
        gate.opened.set()
        assert [peer.read().opaque for _ in range(3)] == [1, 2, 3]
    node.stop()


def test_every_with_a_disk_that_fails_says_neither_yes_nor_no_and_then_refuses(tmp_path):
    node = open_on(tmp_path, Persist.EVERY)
    gate = Gate(node)
    gate.error = StoreError("No space left on device")
    gate.opened.set()
    with SocketPeer(node.port).open() as peer:
        peer.socket.sendall(set_request())
        assert peer.is_closed()
    with SocketPeer(node.port).open() as peer:
        refused = peer.call(Opcode.SET, key=b"\0other", value=b"v", extras=bytes(8))
        assert refused.status == Status.TMPFAIL
        assert b"disk is full or broken" in refused.value
        gate.error = None
        peer.persisted(1)
        assert peer.call(Opcode.SET, key=b"\0other", value=b"v", extras=bytes(8)).status == 0
    node.stop()


def test_every_answers_writes_that_change_nothing(tmp_path):
    with open_on(tmp_path, Persist.EVERY) as node, SocketPeer(node.port).open() as peer:
        assert peer.call(Opcode.REPLACE, key=KEY, value=b"v", extras=bytes(8)).status == Status.KEY_ENOENT
        assert peer.call(Opcode.DELETE, key=KEY).status == Status.KEY_ENOENT


def test_group_answers_at_once_and_makes_durable_within_the_interval(tmp_path):
    node = open_on(tmp_path, Persist.GROUP, flush_interval_s=0.001)
    gate = Gate(node)
    with SocketPeer(node.port).open() as peer:
        assert peer.set("k", b"v").status == 0
        assert persisted_seqno(peer) == 0
        gate.opened.set()
        peer.persisted(1)
        assert persisted_seqno(peer) == 1
    node.stop()


def test_none_makes_durable_when_asked_and_a_crash_loses_the_rest(tmp_path):
    node = open_on(tmp_path, Persist.NONE, flush_interval_s=0.001)
    with SocketPeer(node.port).open() as peer:
        assert peer.set("kept", b"v").status == 0
        assert persisted_seqno(peer) == 0
        peer.persisted(1)
        assert persisted_seqno(peer) == 1
        assert peer.set("lost", b"v").status == 0
    node.crash()
    with open_on(tmp_path, Persist.NONE) as node, SocketPeer(node.port).open() as peer:
        assert peer.get("kept").status == 0
        assert peer.get("lost").status == Status.KEY_ENOENT


def test_none_makes_everything_durable_at_a_clean_stop(tmp_path):
    node = open_on(tmp_path, Persist.NONE)
    with SocketPeer(node.port).open() as peer:
        assert peer.set("k", b"v").status == 0
    node.stop()
    with open_on(tmp_path, Persist.NONE) as node, SocketPeer(node.port).open() as peer:
        assert peer.get("k").value == b"v"


def test_none_commits_by_itself_when_much_waits(tmp_path, monkeypatch):
    monkeypatch.setattr("dcpstream_node.tasks.flusher.LAZY_BYTES", 1000)
    node = open_on(tmp_path, Persist.NONE, flush_interval_s=0.001)
    gate = Gate(node)
    gate.opened.set()
    with SocketPeer(node.port).open() as peer:
        assert peer.set("k", bytes(2000)).status == 0
        assert gate.reached.wait(TIMEOUT_S)
    node.stop()


@pytest.mark.parametrize("persist", Persist)
def test_many_pipelining_writers_go_on_with_one_commit_at_a_time(tmp_path, persist):
    """Each connection keeps a window of writes under way, of which one waits for the disk at every level."""
    node = open_on(tmp_path, persist)
    assert node.engine is not None
    bucket = node.engine.buckets["default"]
    under_way: list[int] = []
    commit = bucket.store.commit

    def watched():
        under_way.append(bucket.commits_begun - bucket.commits_done)
        return commit()

    bucket.store.commit = watched
    peers = [SocketPeer(node.port).open() for _ in range(3)]
    rounds, window = 30, 8
    durable = encode_frame_info(FrameInfoId.DURABILITY, bytes([2]))
    for _ in range(rounds):
        for number, peer in enumerate(peers):
            keys = [b"\0%d-%d" % (number, place) for place in range(window)]
            peer.socket.sendall(set_request(keys[0], framing=durable) + b"".join(map(set_request, keys[1:])))
        for peer in peers:
            assert [peer.next().status for _ in range(window)] == [0] * window
    for peer in peers:
        peer.close()
    node.stop()
    assert set(under_way) <= {0, 1}  # 0: the stop
    # A durable write is on disk after the commit that it finds under way and the next one; with `every` its answer
    # waits for the commits after these.
    assert len(under_way) <= 4 * len(peers) * rounds
