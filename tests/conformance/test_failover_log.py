"""Rules of failover logs: how they are asked for, and what they hold."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from dcpstream.model import FailoverEntry, FailoverLog, SnapshotRange
from dcpstream.runtime import new_vbuuid
from dcpstream.wire import Datatype, Opcode, Status
from dcpstream.wire.stored.block import Version, encode_stored_mutation
from dcpstream.wire.values import decode_failover_log, encode_failover_log
from dcpstream_node.testing.simulation import ScriptedProducer, SeededRandom, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import ACTIVE, DEAD, PENDING, REPLICA

EXAMPLE = bytes.fromhex(
    "00000000feeddeca 0000000000005432 0000000000decafe 0000000001343214"
    "00000000feedface 0000000000000004 00000000deadbeef 0000000000006524"
)


def entries(node: SimulatedNode, vbid: int = 1) -> list[tuple[int, int]]:
    return [(entry.vbuuid, entry.seqno) for entry in node.failover_log(vbid)]


def seqnos(node: SimulatedNode, vbid: int = 1) -> list[int]:
    return [seqno for _, seqno in entries(node, vbid)]


@rule("FOL-01")
@each_case("fields", [{"extras": b"\0"}, {"key": b"k"}, {"value": b"v"}, {"datatype": 1}])
def test_the_request_is_a_bare_header(fields: dict[str, Any]) -> None:
    peer = SimulatedNode().producer()
    answer = peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1, **fields)
    assert answer.status == Status.EINVAL
    assert not peer.closed
    assert peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1).status == Status.SUCCESS


@rule("FOL-02")
def test_entries_of_16_bytes_newest_first_as_in_a_stream_request() -> None:
    node = SimulatedNode()
    for _ in range(3):
        node.fill(1, 2, prefix=f"round{_}-")
        node.set_vbucket(1, REPLICA)
        node.set_vbucket(1, ACTIVE)
    peer = node.producer()
    answer = peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1)
    pairs = list(struct.iter_unpack(">QQ", answer.value))
    assert len(answer.value) == 16 * 4
    assert [seqno for _, seqno in pairs] == [6, 4, 2, 0]
    assert pairs[0][0] == node.vbucket(1).vbuuid
    assert len({vbuuid for vbuuid, _ in pairs}) == 4
    assert peer.stream(1)[0].value == answer.value
    assert (answer.extras, answer.key, answer.datatype) == (b"", b"", 0)


@rule("FOL-03")
def test_the_vbuckets_state_does_not_matter_but_it_must_be_here() -> None:
    node = SimulatedNode()
    peer = node.producer()
    for vbid in (4, 1024, 65535):
        answer = peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=vbid)
        assert (answer.status, answer.datatype) == (Status.NOT_MY_VBUCKET, Datatype.JSON)
        assert b"vBucketServerMap" in answer.value
    for state in (ACTIVE, REPLICA, PENDING, DEAD):
        node.set_vbucket(2, state)
        assert peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=2).status == Status.SUCCESS
    node.delete_vbucket(2)
    assert peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=2).status == Status.NOT_MY_VBUCKET


@rule("FOL-04")
def test_a_consumer_drops_who_asks_it() -> None:
    peer = SimulatedNode().consumer()
    assert peer.send(Opcode.DCP_GET_FAILOVER_LOG, vbid=1) == []
    assert peer.closed


@rule("FOL-05")
def test_without_open_the_plain_twin_answers_the_same() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    node.set_vbucket(1, REPLICA)
    node.set_vbucket(1, ACTIVE)
    plain = node.connect()
    assert plain.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1).status == Status.EINVAL
    assert not plain.closed
    twin = plain.call(Opcode.GET_FAILOVER_LOG, vbid=1)
    assert twin.opcode == 0x96
    assert twin.status == 0
    assert twin.value == node.producer().call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1).value
    assert len(twin.value) == 32


@rule("FOL-06")
def test_a_new_vbucket_has_one_branch_that_begins_at_0() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    old = entries(node)
    node.delete_vbucket(1)
    for state in (ACTIVE, REPLICA):
        node.set_vbucket(1, state)
        ((vbuuid, seqno),) = entries(node)
        assert seqno == 0
        assert vbuuid != 0
        assert vbuuid != old[0][0]
        node.delete_vbucket(1)


@rule("FOL-07")
def test_25_entries_and_the_oldest_goes() -> None:
    node = SimulatedNode()
    known = entries(node)
    for round_ in range(30):
        node.set_doc(1, f"k{round_}")
        node.set_vbucket(1, REPLICA)
        node.set_vbucket(1, ACTIVE)
        now = entries(node)
        assert len(now) == min(25, round_ + 2)
        assert now[1:] == known[: len(now) - 1]
        known = now


@rule("FOL-08")
@each_case("state", [REPLICA, PENDING, DEAD])
def test_a_promotion_in_memory_begins_at_the_high_seqno(state: int) -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    before = entries(node)
    node.set_vbucket(1, state)
    assert entries(node) == before
    node.set_vbucket(1, ACTIVE)
    after = entries(node)
    assert after[1:] == before
    assert after[0][1] == 5
    assert after[0][0] != before[0][0]


def store_row(node: SimulatedNode, seqno: int) -> None:
    """A row as replication stores it."""
    frame = encode_stored_mutation(Version(b"\0k%d" % seqno, b"v", 1), vbid=1, by_seqno=seqno, cas=seqno)
    node.vbucket(1).log.append(frame, b"\0k%d" % seqno, seqno)


@rule("FOL-08")
@pytest.mark.parametrize(("last", "begins"), [(10, 10), (7, 5), (6, 5), (5, 5)])
def test_a_promotion_on_disk_begins_where_a_whole_snapshot_is_persisted(tmp_path: Path, last: int, begins: int) -> None:
    # The snapshot [0, 5] is persisted, of [5, 10] only what comes up to `last`.
    node = SimulatedNode(path=tmp_path)
    node.set_vbucket(1, REPLICA)
    log = node.vbucket(1).log
    log.set_snapshot(SnapshotRange(0, 5))
    for seqno in range(1, 6):
        store_row(node, seqno)
    log.set_snapshot(SnapshotRange(5, 10))
    for seqno in range(6, last + 1):
        store_row(node, seqno)
    node.flush()
    node.set_vbucket(1, ACTIVE)
    assert seqnos(node) == [begins, 0]


@rule("FOL-08")
def test_what_is_not_persisted_does_not_count(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 3)
    node.flush()
    node.fill(1, 3, prefix="later")
    node.set_vbucket(1, REPLICA)
    node.set_vbucket(1, ACTIVE)
    assert seqnos(node) == [3, 0]


@rule("FOL-09")
def test_a_takeover_goes_on_with_the_branch() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    before = entries(node)
    node.set_vbucket(1, PENDING)
    node.vbucket(1).set_state(ACTIVE, SeededRandom(), is_takeover=True)
    assert entries(node) == before
    node.set_vbucket(1, PENDING)
    node.vbucket(1).set_state(ACTIVE, SeededRandom(), is_takeover=False)
    assert entries(node)[1:] == before


@rule("FOL-10")
def test_active_stays_active() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    before = entries(node)
    for _ in range(3):
        node.set_vbucket(1, ACTIVE)
        assert entries(node) == before


@rule("FOL-11")
@each_case(("seqno", "kept"), [(0, [0]), (9, [0]), (10, [10, 0]), (15, [10, 0]), (20, [20, 10, 0]), (99, [20, 10, 0])])
def test_a_new_branch_voids_those_that_began_above_it(seqno: int, kept: list[int]) -> None:
    log = FailoverLog.of((3, 20), (2, 10), (1, 0)).pushed(FailoverEntry(9, seqno))
    assert [entry.seqno for entry in log] == [seqno, *kept]
    assert log.newest == FailoverEntry(9, seqno)


@rule("FOL-11")
def test_a_promotion_below_a_branch_voids_it(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 3)
    node.vbucket(1).log.failover_log = FailoverLog.of((0xB, 3), (0xA, 0))
    node.set_vbucket(1, REPLICA)
    node.set_vbucket(1, ACTIVE)  # nothing is persisted: it begins at 0
    assert [(vbuuid == 0xB, seqno) for vbuuid, seqno in entries(node)] == [(False, 0), (False, 0)]


@rule("FOL-12")
def test_only_an_unclean_end_begins_a_branch(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 3)
    node.flush()
    before = entries(node)
    node.restart(clean=True)
    assert entries(node) == before
    node.restart(clean=False)
    after = entries(node)
    assert after[1:] == before
    assert after[0][1] == 3
    node.restart(clean=True)
    assert entries(node) == after


@rule("FOL-13")
def test_names_of_branches_have_48_bits_and_are_never_0() -> None:
    class Bits:
        def __init__(self, *values: int) -> None:
            self.values = list(values)

        def getrandbits(self, count: int) -> int:
            value = self.values.pop(0)
            return value & (1 << count) - 1

    assert 0 < new_vbuuid(Bits(0, 0, (1 << 64) - 1)) < 1 << 48
    chance = random.Random(7)
    assert all(0 < new_vbuuid(chance) < 1 << 48 for _ in range(1000))
    node = SimulatedNode(vbuckets=64)
    assert all(0 < node.vbucket(vbid).vbuuid < 1 << 48 for vbid in range(64))


@rule("FOL-14")
@pytest.mark.parametrize(
    ("stored", "loaded"),
    [
        ([(3, 20), (2, 10), (1, 0)], [(3, 20), (2, 10), (1, 0)]),
        ([(3, 20), (2, 20), (1, 20)], [(3, 20), (2, 20), (1, 20)]),
        ([(3, 20), (2, 30), (1, 0)], [(3, 20), (1, 0)]),
        ([(3, 20), (0, 10), (1, 0)], [(3, 20), (1, 0)]),
        ([(0, 20), (2, 10), (1, 0)], [(2, 10), (1, 0)]),
        ([(3, 5), (2, 9), (1, 7)], [(3, 5)]),
    ],
)
def test_a_loaded_log_is_put_right(
    tmp_path: Path, stored: list[tuple[int, int]], loaded: list[tuple[int, int]]
) -> None:
    assert FailoverLog.from_json([[str(a), str(b)] for a, b in stored]) == FailoverLog.of(*loaded)
    node = SimulatedNode(path=tmp_path)
    node.vbucket(1).log.failover_log = FailoverLog.of(*stored)
    node.restart(clean=True)
    assert entries(node) == loaded


@rule("FOL-14")
def test_seqnos_never_increase_from_newest_to_oldest() -> None:
    node = SimulatedNode()
    for number in range(6):
        node.fill(1, number % 3, prefix=f"{number}-")
        node.set_vbucket(1, REPLICA)
        node.set_vbucket(1, ACTIVE)
        found = seqnos(node)
        assert found == sorted(found, reverse=True)


@rule("FOL-17")
def test_the_documented_example_is_not_sorted() -> None:
    log = decode_failover_log(EXAMPLE)
    pairs = [(entry.vbuuid, entry.seqno) for entry in log]
    assert pairs == [(0xFEEDDECA, 0x5432), (0xDECAFE, 0x1343214), (0xFEEDFACE, 4), (0xDEADBEEF, 0x6524)]
    assert log.newest == FailoverEntry(0xFEEDDECA, 0x5432)
    assert encode_failover_log(log) == EXAMPLE


@rule("FOL-17")
def test_the_node_gives_entries_as_they_are_stored() -> None:
    node = SimulatedNode()
    node.vbucket(1).log.failover_log = decode_failover_log(EXAMPLE)
    assert node.producer().call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1).value == EXAMPLE


@rule("FOL-15")
def test_a_copy_takes_over_the_whole_log_of_its_source_durably(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_vbucket(1, REPLICA)
    own = entries(node)
    log = FailoverLog.of((0xB, 0), (0xA, 0))
    ScriptedProducer(node).accept(log=log)
    assert entries(node) == [(0xB, 0), (0xA, 0)]
    assert own[0] not in entries(node)
    node.flush()
    node.restart(clean=True)
    assert entries(node) == [(0xB, 0), (0xA, 0)]


@rule("FOL-15")
def test_a_refused_stream_leaves_the_log() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    own = entries(node)
    source = ScriptedProducer(node)
    source.peer.answer(source.request(), status=Status.KEY_EEXISTS)
    assert entries(node) == own


def copy_with(log: FailoverLog) -> SimulatedNode:
    """A node whose vbucket 1 is a copy with this failover log: 20 items in a snapshot, then 12 in one each.

    A server whose store is couchstore goes back to 0 where half of the items or more would go.
    """
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept(log=log)
    source.snapshot(*[b"k%d" % seqno for seqno in range(1, 21)], start=1)
    for seqno in range(21, 33):
        source.snapshot(b"k%d" % seqno, start=seqno)
        node.flush()
    source.peer.disconnect()
    return node


def roll_back(node: SimulatedNode, seqno: int) -> None:
    """The source asks for a rollback."""
    source = ScriptedProducer(node)
    source.peer.answer(source.request(), status=Status.ROLLBACK, value=seqno.to_bytes(8, "big"))
    assert node.vbucket(1).high_seqno == seqno


@rule("FOL-16")
@each_case(("seqno", "kept"), [(30, [(0xC, 30), (0xB, 25), (0xA, 0)]), (27, [(0xB, 25), (0xA, 0)]), (24, [(0xA, 0)])])
def test_a_rollback_voids_branches_above_it(seqno: int, kept: list[tuple[int, int]]) -> None:
    node = copy_with(FailoverLog.of((0xC, 30), (0xB, 25), (0xA, 0)))
    roll_back(node, seqno)
    assert entries(node) == kept
    assert FailoverLog.of((0xC, 30), (0xB, 25), (0xA, 0)).pruned(seqno) == FailoverLog.of(*kept)


@rule("FOL-16")
def test_a_rollback_below_every_branch_begins_one() -> None:
    node = copy_with(FailoverLog.of((0xC, 30), (0xB, 25)))
    roll_back(node, 23)
    ((vbuuid, seqno),) = entries(node)
    assert seqno == 23
    assert vbuuid not in (0, 0xB, 0xC)
    assert FailoverLog.of((0xC, 30), (0xB, 25)).pruned(23) is None


@rule("FOL-03", "FOL-05")
@each_case(
    ("opcode", "fields"),
    [
        (Opcode.GET_FAILOVER_LOG, {}),
        (Opcode.GET_VBUCKET, {}),
        (Opcode.DEL_VBUCKET, {}),
        (Opcode.OBSERVE_SEQNO, {"value": bytes(8)}),
        (Opcode.SEQNO_PERSISTENCE, {"extras": bytes(8)}),
        (Opcode.CREATE_CHECKPOINT, {}),
    ],
)
@of_release("7.2")
def test_what_is_asked_of_a_vbucket_that_is_not_here(opcode: int, fields: dict[str, Any]) -> None:
    node = SimulatedNode()
    if opcode != Opcode.DEL_VBUCKET:
        assert node.admin.call(opcode, vbid=4, **fields).status == Status.NOT_MY_VBUCKET
        assert node.admin.call(opcode, vbid=3, **fields).status in (Status.SUCCESS, Status.KEY_ENOENT)
    node.delete_vbucket(3)
    assert node.admin.call(opcode, vbid=3, **fields).status == Status.NOT_MY_VBUCKET


@rule("FOL-06", "FOL-10")
@of_release("7.2")
def test_set_vbucket_knows_four_states_and_the_number_of_vbuckets() -> None:
    node = SimulatedNode()
    before = entries(node, 3)

    def status(vbid: int, state: int, value: bytes = b"") -> int:
        return node.admin.call(
            Opcode.SET_VBUCKET, vbid=vbid, extras=bytes([state]), value=value, datatype=1 if value else 0
        ).status

    assert status(3, 0) == Status.EINVAL
    assert status(3, 5) == Status.EINVAL
    assert status(4, 1) == Status.ERANGE
    assert status(65535, 1) == Status.ERANGE
    for value in (b"x", b"[", b"{"):
        assert status(3, 1, value) == Status.EINVAL
    for value in (b'{"topology":"a"}', b'{"topology":[]}', b'{"topology":[[]]}', b'{"topology":[[1]]}'):
        peer = node.connect()
        assert peer.send(Opcode.SET_VBUCKET, vbid=3, extras=b"\1", value=value, datatype=1) == []
        assert peer.closed
    assert status(3, 2, b'{"topology":[["a"]]}') == Status.EINVAL
    assert entries(node, 3) == before
    assert status(3, 1, b'{"topology":[["a",null]]}') == 0
    assert status(3, 1, b"{}") == 0
    assert entries(node, 3) == before


@rule("FOL-08")
def test_what_is_not_written_cannot_be_waited_for(tmp_path: Path) -> None:
    # A manager waits for persistence before it changes a role; a seqno that does not exist would never come.
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 3)
    extras = (4).to_bytes(8, "big")
    assert node.admin.send(Opcode.SEQNO_PERSISTENCE, vbid=1, extras=extras) == []
    node.advance(30)
    assert [frame.status for frame in node.admin.take()] == [Status.TMPFAIL]
    waiter = node.connect(user="@admin")
    assert waiter.send(Opcode.SEQNO_PERSISTENCE, vbid=1, extras=(3).to_bytes(8, "big")) == []
    node.flush()
    assert [frame.status for frame in waiter.take()] == [Status.SUCCESS]
