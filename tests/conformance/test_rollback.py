"""Rules of rollback: when a producer asks for one, where to, and how a copy carries it out."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from dcpstream.dcp.producer.rollback import Accept, Refuse, Rollback, StreamFacts, decide
from dcpstream.model import MAX_SEQNO, FailoverLog, VbucketState
from dcpstream.wire import Opcode, Status, StreamEndReason, StreamFlag, decode_message
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream_node.testing.simulation import ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import DEAD, PENDING, REPLICA, answer, branched, drain, end, purge, purged

A, B, C, Z = 0xA, 0xB, 0xC, 0x99


@dataclass(frozen=True)
class Facts:
    """A vbucket as the decision sees it."""

    failover_log: FailoverLog
    high_seqno: int
    purge_seqno: int = 0
    persisted_seqno: int = 0
    state: VbucketState = VbucketState.ACTIVE
    memory_start_seqno: int = 1


V1 = Facts(FailoverLog.of((A, 0)), 100, 0, 100)
V2 = Facts(FailoverLog.of((C, 900), (B, 500), (A, 0)), 1200, 0, 1200)
V3 = Facts(FailoverLog.of((B, 3), (A, 0)), 10, 0, 10)
V4 = Facts(FailoverLog.of((B, 50), (A, 0)), 200, 80, 200)
STRICT = int(StreamFlag.STRICT_VBUUID)


def decided(facts: Facts, start: int, vbuuid: int, low: int, high: int, flags: int = 0, **more: int) -> int | None:
    """The seqno to roll back to; None if the request is accepted."""
    request = StreamRequest(
        vbid=0, opaque=0, flags=flags, start_seqno=start, end_seqno=MAX_SEQNO, vbuuid=vbuuid,
        snapshot_start=low, snapshot_end=high,
    )  # fmt: skip
    found = decide(request, facts, StreamFacts(**more))  # type: ignore[arg-type]
    assert not isinstance(found, Refuse), found
    if isinstance(found, Rollback):
        return found.seqno
    assert isinstance(found, Accept)
    assert found.start_seqno == start
    return None


def asked(node: SimulatedNode, start: int, **fields: object) -> int | None:
    """The same of a node."""
    status, value = answer(node.producer().stream(1, start, **fields))  # type: ignore[arg-type]
    if status == 0:
        return None
    assert status == Status.ROLLBACK
    assert len(value) == 8
    return int.from_bytes(value, "big")


@rule("RBK-01")
@each_case("snapshot", [(0, 0), (0, 50), (0, MAX_SEQNO)])
@each_case("facts", [V1, V2, V4])
def test_nothing_is_rolled_back_at_0(facts: Facts, snapshot: tuple[int, int]) -> None:
    for vbuuid in (0, A, Z):
        assert decided(facts, 0, vbuuid, *snapshot) is None
    assert decided(facts, 0, 0, *snapshot, flags=STRICT) is None


@rule("RBK-02")
def test_at_0_only_a_strict_client_with_an_unknown_branch_is_rolled_back() -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    known = node.vbucket(1).vbuuid
    assert asked(node, 0, vbuuid=Z, flags=STRICT) == 0
    assert asked(node, 0, vbuuid=Z) is None
    assert asked(node, 0, vbuuid=known, flags=STRICT) is None
    assert asked(node, 0, vbuuid=0, flags=STRICT) is None


@rule("RBK-03", "RBK-05")
def test_below_the_purge_seqno() -> None:
    node = purged()
    assert node.vbucket(1).purge_seqno == 10
    assert [asked(node, start) for start in (1, 3, 9)] == [0, 0, 0]
    assert [asked(node, start) for start in (0, 10, 11)] == [None, None, None]
    assert asked(node, 3, flags=StreamFlag.IGNORE_PURGED_TOMBSTONES) is None


@rule("RBK-04")
def test_the_start_is_compared_and_not_the_snapshot() -> None:
    assert decided(V4, 85, B, 70, 90) is None
    assert decided(V4, 79, B, 79, 90) == 0
    node = purged()
    assert asked(node, 10, snapshot=(2, 10)) is None


@rule("RBK-06")
def test_the_purge_comes_before_the_branch() -> None:
    assert decided(V4, 60, A, 60, 60) == 0, "the branch alone would give 50"
    assert decided(V4, 60, A, 60, 60, flags=StreamFlag.IGNORE_PURGED_TOMBSTONES) == 50


@rule("RBK-07", "RBK-08")
@each_case("start", [1, 5, 10])
def test_unknown_branches(start: int) -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    assert asked(node, start, vbuuid=Z) == 0
    assert asked(node, start, vbuuid=0) == 0
    assert asked(node, start) is None


@rule("RBK-09")
def test_a_branch_ends_where_the_next_begins() -> None:
    for start, vbuuid, expected in (
        (1000, A, 500), (500, A, None), (501, A, 500), (901, B, 900), (900, B, None), (600, C, None),
        (1200, C, None), (1201, C, 1200),
    ):  # fmt: skip
        assert decided(V2, start, vbuuid, start, start) == expected
    node = SimulatedNode()
    old, new = branched(node)
    assert [asked(node, start, vbuuid=old) for start in (8, 10, 12)] == [None, None, 10]
    assert [asked(node, start, vbuuid=new) for start in (8, 13, 15, 16)] == [None, None, None, 15]


@rule("RBK-10", "RBK-11")
def test_a_snapshot_of_which_nothing_was_received_does_not_count() -> None:
    assert decided(V1, 90, A, 90, 120) is None
    assert decided(V1, 91, A, 90, 120) == 90
    assert decided(V1, 95, A, 90, 100) is None, "it ends where the history does"
    assert decided(V1, 95, A, 90, 101) == 90
    node = SimulatedNode()
    old, _ = branched(node)
    assert asked(node, 10, vbuuid=old, snapshot=(10, 12)) is None
    assert asked(node, 9, vbuuid=old, snapshot=(8, 12)) == 8


@rule("RBK-12", "RBK-13")
def test_a_complete_snapshot_is_kept_up_to_the_branch() -> None:
    assert decided(V1, 120, A, 90, 120) == 100
    assert decided(V1, 119, A, 90, 120) == 90
    assert decided(V1, 130, A, 110, 140) == 100
    assert decided(V2, 700, A, 450, 800) == 450
    assert decided(V2, 700, A, 550, 800) == 500
    assert decided(V2, 900, B, 880, 920) == 880
    assert decided(V2, 1000, A, 450, 1000) == 500


@rule("RBK-14")
def test_the_published_example() -> None:
    assert decided(V3, 3, A, 1, 4) == 1
    assert decided(V3, 3, A, 3, 3) is None


@rule("RBK-15")
@each_case("facts", [V1, V2, V3, V4])
def test_never_forward(facts: Facts) -> None:
    numbers = (0, 1, 3, 50, 80, 90, 100, 500, 899, 900, 1200, 5000)
    bounds = [(start, low, high) for start in numbers for low in numbers for high in numbers if low <= start <= high]
    found = 0
    for vbuuid in (0, A, B, C, Z):
        for start, low, high in bounds:
            request = StreamRequest(
                vbid=0, opaque=0, flags=STRICT, start_seqno=start, end_seqno=MAX_SEQNO, vbuuid=vbuuid,
                snapshot_start=low, snapshot_end=high,
            )  # fmt: skip
            decision = decide(request, facts)
            if isinstance(decision, Rollback):
                found += 1
                assert decision.seqno <= start
    assert found > 500


@rule("RBK-16")
def test_who_went_back_is_accepted() -> None:
    node = SimulatedNode()
    old, _ = branched(node)
    assert asked(node, 12, vbuuid=old, snapshot=(9, 12)) == 10
    assert asked(node, 10, vbuuid=old) is None
    for number in range(10):
        node.delete_doc(1, f"k{number}")
    node.set_doc(1, "last")
    purge(node)
    assert node.vbucket(1).purge_seqno == 25
    assert asked(node, 10, vbuuid=old) == 0, "a purge ran in between"


# ------------------------------------------------------------------------------------------------ carried out by a copy


def copy_of(
    log: FailoverLog, rows: int = 10, path: Path | None = None, *, below: int = 0
) -> tuple[SimulatedNode, ScriptedProducer]:
    """A replica with some rows that has lost its source, and a new source that asked nothing yet.

    Args:
        below: rows of a snapshot that comes before. A server whose store is couchstore goes back to 0 where half of the
            rows or more would go.
    """
    node = SimulatedNode(path=path)
    node.set_vbucket(1, REPLICA)
    first = ScriptedProducer(node, b"first")
    first.accept(1, log=log)
    if below:
        first.snapshot(*[b"k%d" % number for number in range(1, below + 1)], start=1)
    for number in range(below + 1, below + rows + 1):
        first.snapshot(b"k%d" % number, start=number)
        node.flush()
    first.end(int(StreamEndReason.STATE_CHANGED))
    first.peer.disconnect()
    return node, ScriptedProducer(node, b"second")


def rolled_back(source: ScriptedProducer, request: object, seqno: bytes) -> list:
    """The source answers ROLLBACK."""
    return source.peer.answer(request, status=Status.ROLLBACK, value=seqno)  # type: ignore[arg-type]


def u64(number: int) -> bytes:
    return struct.pack(">Q", number)


@rule("RBK-17")
@each_case("value", [b"", bytes(7), bytes(9), bytes(16)])
def test_a_rollback_without_a_seqno_ends_the_connection(value: bytes) -> None:
    _, source = copy_of(FailoverLog.of((A, 0)))
    rolled_back(source, source.request(1), value)
    assert source.closed


@rule("RBK-18")
def test_an_empty_branch_is_given_up_instead_of_the_data() -> None:
    node, source = copy_of(FailoverLog.of((B, 10), (A, 0)))
    request = source.request(1)
    assert decode_message(request).vbuuid == B  # type: ignore[attr-defined]
    (again,) = rolled_back(source, request, u64(0))
    message = decode_message(again)
    assert isinstance(message, StreamRequest)
    assert (message.start_seqno, message.vbuuid, message.opaque) == (10, A, request.opaque)
    assert node.vbucket(1).high_seqno == 10, "nothing was removed"
    (third,) = rolled_back(source, again, u64(0))
    assert decode_message(third).start_seqno == 0  # type: ignore[attr-defined]
    assert node.vbucket(1).high_seqno == 0, "there is no other branch to try"


@rule("RBK-18")
def test_a_branch_with_data_is_not_given_up() -> None:
    node, source = copy_of(FailoverLog.of((B, 9), (A, 0)))
    (again,) = rolled_back(source, source.request(1), u64(0))
    assert decode_message(again).start_seqno == 0  # type: ignore[attr-defined]
    assert node.vbucket(1).high_seqno == 0


@rule("RBK-19")
def test_it_asks_again_from_where_it_is() -> None:
    node, source = copy_of(FailoverLog.of((B, 23), (A, 0)), below=20)
    request = source.request(1)
    (again,) = rolled_back(source, request, u64(24))
    message = decode_message(again)
    assert isinstance(message, StreamRequest)
    assert (message.start_seqno, message.snapshot_start, message.snapshot_end) == (24, 24, 24)
    assert (message.vbuuid, again.opaque) == (B, request.opaque)
    assert node.vbucket(1).high_seqno == 24
    (third,) = rolled_back(source, again, u64(22))
    message = decode_message(third)
    assert isinstance(message, StreamRequest)
    assert (message.start_seqno, message.vbuuid) == (22, A), "the branch that began at 23 is forgotten"
    (fourth,) = rolled_back(source, third, u64(0))
    message = decode_message(fourth)
    assert isinstance(message, StreamRequest)
    assert (message.start_seqno, message.vbuuid, fourth.opaque) == (0, 0, request.opaque)


@rule("RBK-20")
def test_it_may_go_further_back_and_its_own_readers_are_reported(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_vbucket(1, REPLICA)
    first = ScriptedProducer(node, b"first")
    first.accept(1, log=FailoverLog.of((A, 0)))
    first.snapshot(*[b"k%d" % number for number in range(12)], start=1)
    node.flush()
    first.snapshot(b"c", b"d", b"e", b"f", start=13, flags=6)
    node.flush()
    first.peer.disconnect()
    reader = node.producer()
    reader.stream(1)
    source = ScriptedProducer(node, b"second")
    (again,) = rolled_back(source, source.request(1), u64(14))
    assert decode_message(again).start_seqno == 12, "the middle of a snapshot is no state"  # type: ignore[attr-defined]
    assert node.vbucket(1).high_seqno == 12
    assert drain(reader)[-1] == end(StreamEndReason.STATE_CHANGED)


@rule("RBK-21")
@each_case("state", [REPLICA, PENDING, DEAD])
def test_only_copies_are_cut(state: int) -> None:
    node, source = copy_of(FailoverLog.of((A, 0)), below=20)
    node.set_vbucket(1, state)
    frames = rolled_back(source, source.request(1), u64(24))
    if state == DEAD:
        assert frames == []
        assert node.vbucket(1).high_seqno == 30
    else:
        assert [frame.opcode for frame in frames] == [Opcode.DCP_STREAM_REQ]
        assert node.vbucket(1).high_seqno == 24
    assert not source.closed
