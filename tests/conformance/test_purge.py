"""Rules of purged deletions: who may have missed one, and what is told of it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from dcpstream.wire import Opcode, Status, StreamEndReason, StreamFlag
from dcpstream_node.testing.simulation import Peer, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import (
    DISK,
    FRUIT_KEY,
    REPLICA,
    answer,
    drain,
    end,
    garden,
    new_checkpoint,
    purge,
    purged,
    read,
    sent,
)


@rule("PRG-01")
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_what_was_purged_is_never_sent(is_on_disk: bool, tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path) if is_on_disk else SimulatedNode()
    node.fill(1, 6)
    for index in range(4):
        node.delete_doc(1, f"k{index}")
    node.set_doc(1, "last")
    node.flush()
    assert sent(node.producer().stream(1))[1:] == [5, 6, 7, 8, 9, 10, 11]
    assert node.vbucket(1).purge_seqno == 0
    purge(node, before_seqno=8)
    assert node.vbucket(1).purge_seqno == 8
    new_checkpoint(node)
    assert sent(node.producer().stream(1))[1:] == [5, 6, 9, 10, 11]
    purge(node)
    assert node.vbucket(1).purge_seqno == 10
    new_checkpoint(node)
    assert sent(node.producer().stream(1)) == [(0, 11, DISK), 5, 6, 11]
    if is_on_disk:
        node.restart()
        assert node.vbucket(1).purge_seqno == 10
        assert sent(node.producer().stream(1)) == [(0, 11, DISK), 5, 6, 11]


@rule("PRG-01")
def test_the_last_seqno_stays() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    node.delete_doc(1, "k0")
    node.delete_doc(1, "k1")
    purge(node)
    assert node.vbucket(1).purge_seqno == 3
    assert sent(node.producer().stream(1))[-1] == 4


@rule("PRG-01")
def test_all_deletions_are_purged_whatever_the_seqno() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    for index in range(3):
        node.delete_doc(1, f"k{index}")
    node.set_doc(1, "last")
    node.flush()
    extras = struct.pack(">QQBBHI", 0, 4, 1, 0, 0, 0)
    assert node.admin.call(Opcode.COMPACT_DB, vbid=1, extras=extras).status == 0
    assert node.vbucket(1).purge_seqno == 6


@rule("PRG-02")
@each_case("flags", [0, StreamFlag.DISK_ONLY, StreamFlag.STRICT_VBUUID])
def test_a_request_from_0_is_not_affected(flags: int) -> None:
    node = purged()
    assert sent(node.producer().stream(1, 0, flags=flags))[1:4] == [5, 6, 11]


@rule("PRG-03")
@each_case("told", ["10", "9", "11"])
@of_release("7.2")
def test_a_client_that_knows_of_the_purge_is_not_excused(told: str) -> None:
    node = purged()
    value = b'{"uid":"0","purge_seqno":"%s"}' % told.encode()
    assert answer(node.producer().stream(1, 3, value=value))[0] == Status.ROLLBACK


@rule("PRG-04")
def test_a_filtered_client_that_has_all_of_its_collections() -> None:
    node = garden()  # fruit has 3, 4, 6, 8; the default collection 10
    for index in range(3):
        node.set_doc(1, f"d{index}")
    for index in range(3):
        node.delete_doc(1, f"d{index}")
    node.set_doc(1, "last")
    purge(node)
    assert node.vbucket(1).purge_seqno == 16
    peer = node.producer()
    fruit = b'{"collections":["8"]}'
    assert answer(peer.stream(1, 7, value=fruit))[0] == Status.ROLLBACK
    assert answer(peer.stream(1, 8))[0] == Status.ROLLBACK, "without a filter"
    assert answer(peer.stream(1, 8, value=b'{"collections":["8","0"]}'))[0] == Status.ROLLBACK
    assert answer(peer.stream(1, 8, value=fruit))[0] == 0
    node.set_doc(1, "apx", collection=FRUIT_KEY)
    node.delete_doc(1, "apx", collection=FRUIT_KEY)
    assert answer(node.producer().stream(1, 9, value=fruit))[0] == Status.ROLLBACK, "something of it lies above"


@rule("PRG-05")
def test_a_client_that_does_not_mind() -> None:
    node = purged()
    flags = StreamFlag.IGNORE_PURGED_TOMBSTONES
    assert sent(node.producer().stream(1, 3, flags=flags)) == [(3, 11, DISK), 5, 6, 11]
    assert answer(node.producer().stream(1, 3, vbuuid=0x99, flags=flags))[0] == Status.ROLLBACK
    # Also what is purged while the stream waits for its turn does not end it.
    blocked = blocked_reader(node, 11, flags=int(flags))
    write_and_purge(node)
    unblock(blocked)
    assert drain_all(blocked)[-1] != end(StreamEndReason.STATE_CHANGED)
    assert not any(item == end(StreamEndReason.STATE_CHANGED) for item in read(blocked.received))


def blocked_reader(node: SimulatedNode, start: int, *, flags: int = 0) -> Peer:
    """A stream that cannot send: another one has filled the window."""
    peer = node.producer(b"blocked", controls=[(b"connection_buffer_size", b"1")])
    node.set_doc(2, "filler")
    peer.stream(2)
    assert answer(peer.stream(1, start, flags=flags))[0] == 0
    return peer


def write_and_purge(node: SimulatedNode) -> None:
    for index in range(3):
        node.set_doc(1, f"n{index}")
    for index in range(3):
        node.delete_doc(1, f"n{index}")
    node.set_doc(1, "n-last")
    node.flush()
    purge(node)


def unblock(peer: Peer) -> None:
    assert peer.control(b"connection_buffer_size", b"0").status == 0
    peer.node.pump()


def drain_all(peer: Peer) -> list[object]:
    drain(peer)
    return read(peer.received)


@rule("PRG-06")
@each_case(("start", "is_ended"), [(11, True), (0, False)])
def test_a_purge_that_overtakes_a_stream_ends_it(start: int, is_ended: bool) -> None:
    node = purged()
    assert node.engine is not None, "a server would read ahead, and a cursor would keep the rows in its memory"
    peer = blocked_reader(node, start)
    write_and_purge(node)
    assert node.vbucket(1).purge_seqno == 17
    unblock(peer)
    ends = [item for item in drain_all(peer) if item == end(StreamEndReason.STATE_CHANGED)]
    assert len(ends) == is_ended
    if is_ended:
        assert answer(peer.stream(1, 11))[0] == Status.ROLLBACK


@rule("PRG-07")
def test_a_slow_stream_that_lost_its_place_in_memory_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcpstream_node.engine.bucket.vbucket.MEMORY_ITEMS", 4)
    node = SimulatedNode()
    node.set_doc(1, "first")
    peer = node.producer()
    assert sent(peer.stream(1)) == [(0, 1, 5), 1]
    peer.is_reading = False
    node.fill(1, 12)
    node.engine.persisted("default", [1])
    assert node.vbucket(1).evicted_seqno > 1
    peer.is_reading = True
    assert drain(peer)[0] == (2, 13, DISK), "it is read from disk"
    peer.is_reading = False
    for index in range(12):
        node.delete_doc(1, f"k{index}")
    node.set_doc(1, "last")
    node.engine.persisted("default", [1])
    purge(node)
    peer.is_reading = True
    assert drain(peer) == [end(StreamEndReason.STATE_CHANGED)]


@rule("PRG-08")
@of_release("8.0")
def test_markers_have_the_purge_seqno() -> None:
    node = purged()
    new_checkpoint(node)
    peer = node.producer(controls=[(b"max_marker_version", b"2.2")])
    marker = peer.stream(1)[1]
    assert struct.unpack_from(">Q", marker.value, 36) == (10,)


@rule("PRG-08")
@of_release("8.0")
def test_a_copy_keeps_the_largest_purge_seqno() -> None:
    copy = SimulatedNode()
    copy.set_vbucket(1, REPLICA)
    source = ScriptedProducer(copy)
    source.accept(1)
    for start, purge_seqno, known in ((1, 3, 3), (11, 2, 3), (21, 22, 22)):
        assert source.marker_v2(start, start + 9, DISK, more=struct.pack(">QQ", purge_seqno, 0)) == []
        assert source.mutation(b"k%d" % start, start + 9) == []
        copy.flush()
        assert copy.vbucket(1).purge_seqno == known, "the largest is kept"


@rule("PRG-09")
@of_release("8.0")
def test_a_copy_stores_the_purge_seqno_of_the_disk(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    assert source.marker_v2(1, 5, DISK, more=struct.pack(">QQ", 4, 0)) == []
    assert source.mutation(b"k", 5) == []
    assert source.marker_v2(6, 9, 1, more=struct.pack(">QQ", 8, 0)) == []
    assert source.mutation(b"k", 9) == []
    node.flush()
    assert node.vbucket(1).purge_seqno == 4, "only disk markers tell it"


@rule("PRG-09")
@of_release("8.0")
def test_a_copy_remembers_the_purge_seqno(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    assert source.marker_v2(1, 5, DISK, more=struct.pack(">QQ", 4, 0)) == []
    assert source.mutation(b"k", 5) == []
    node.flush()
    node.restart()
    node.set_vbucket(1, 1)
    assert answer(node.producer().stream(1, 3)) == (Status.ROLLBACK, bytes(8))
