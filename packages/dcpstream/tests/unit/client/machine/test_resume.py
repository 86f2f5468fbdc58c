"""The resume rule, case by case; `tests/simulation` shows that the whole loses nothing."""

from __future__ import annotations

from itertools import pairwise

from dcpstream.client.machine.resume import (
    RECORDED_POSITIONS,
    BranchState,
    complete,
    plan_end,
    remember,
    spaced,
    step_back,
)
from dcpstream.model import MAX_SEQNO, FailoverLog, StreamOffset
from tests.kit.client_machines import at
from tests.kit.rules import rule

LOG = FailoverLog.of((0xA, 0))


def test_planned_end_has_conservative_bounds() -> None:
    assert plan_end(at(10), 25, 0xB) == StreamOffset(0xB, 25, 10, None)


def test_planned_end_of_a_vbucket_that_does_not_move_is_its_start() -> None:
    start = at(10, 5, 20)
    assert plan_end(start, 10, 0xB) is start


def test_a_known_end_is_kept() -> None:
    offset = at(25, 10, 30)
    assert complete(offset, BranchState(0xA, 99, LOG)) is offset


def test_remember_keeps_the_newest_and_drops_what_was_rolled_back() -> None:
    earlier: tuple[StreamOffset, ...] = ()
    for seqno in (10, 20, 30, 40, 50):
        earlier = remember(earlier, at(seqno))
    assert [old.seqno for old in earlier] == [50, 40, 30, 20, 10]
    assert [old.seqno for old in remember(earlier, at(35, vbuuid=0xB))] == [35, 30, 20, 10]
    assert remember(earlier, StreamOffset.ZERO) == ()


def test_six_recorded_positions_reach_far_back() -> None:
    """A rollback costs a small multiple of what was lost, whatever the number of batches."""
    earlier: tuple[StreamOffset, ...] = ()
    costs: dict[int, list[float]] = {1: [], 3: [], 10: [], 100: []}
    for batch in range(1, 5_000):
        seqno = 1_000_000 + 10 * batch
        earlier = remember(earlier, at(seqno))
        assert len(earlier) <= RECORDED_POSITIONS
        assert earlier[0] == at(seqno)
        if batch > 2_000:
            for lost, cost in costs.items():
                landing = step_back(at(seqno + 10), seqno + 10 - 10 * lost, earlier).seqno
                cost.append((seqno + 10 - landing) / 10)
    for lost, cost in costs.items():
        print(f"{lost} lost batches: {sum(cost) / len(cost):.1f} are read again on average, {max(cost):.0f} at worst")
    assert max(costs[1]) == 1
    for lost in (3, 10, 100):
        assert sum(costs[lost]) / len(costs[lost]) <= 3 * lost
        assert max(costs[lost]) <= 12 * lost


def test_the_bounds_of_older_positions_are_only_widened() -> None:
    earlier: tuple[StreamOffset, ...] = ()
    made: dict[int, StreamOffset] = {}
    seqno = 0
    for batch in range(1, 60):
        start, seqno = seqno, seqno + batch % 7 + 1
        made[seqno] = StreamOffset(0xA, seqno, start, seqno + batch % 5)
        earlier = remember(earlier, made[seqno])
        assert earlier[0] is made[seqno]
        for newer, old in pairwise((*earlier, StreamOffset.ZERO)):
            if newer is not earlier[0]:
                exact = made[newer.seqno]
                assert newer.snapshot_start == old.seqno <= exact.snapshot_start
                assert newer.snapshot_end is not None
                assert exact.snapshot_end is not None
                assert exact.snapshot_end <= newer.snapshot_end <= newer.seqno + 2 * (exact.snapshot_end - newer.seqno)
    assert remember((StreamOffset(0xA, 5, 3, None),), at(9))[1] == StreamOffset(0xA, 5, 0, None)
    untouched = StreamOffset(0xA, 5, 5, 12)
    assert remember((untouched,), at(9))[1] is untouched, "nothing of the snapshot was read"
    assert remember((StreamOffset(0xA, 5, 3, 10),), at(9))[1].snapshot_end == 13, "beyond the newer position"
    assert remember((StreamOffset(0xA, 5, 3, 10),), at(12))[1].snapshot_end == 12, "up to the newer position"
    top = StreamOffset(0xA, MAX_SEQNO - 4, 0, MAX_SEQNO - 1)
    assert remember((top,), at(MAX_SEQNO - 3))[1].snapshot_end == MAX_SEQNO


def test_spaced_positions_grow_with_the_logarithm() -> None:
    earlier: tuple[StreamOffset, ...] = ()
    for seqno in range(1, 10_001):
        earlier = spaced(earlier, at(seqno))
    assert len(earlier) < 30
    for rolled_back_to in (9_990, 9_000, 5_000):
        lost = 10_000 - rolled_back_to
        assert step_back(at(10_000), rolled_back_to, earlier).seqno >= 10_000 - 4 * lost


def test_step_back_takes_a_recorded_position_with_its_own_bounds() -> None:
    older, newer = at(10, 5, 30, vbuuid=0x1), at(20, 15, 30, vbuuid=0x2)
    assert step_back(at(50), 25, (older, newer)) is newer
    assert step_back(at(50), 20, (older, newer)) is newer
    assert step_back(at(50), 19, (older, newer)) is older
    assert step_back(at(50), 9, (older, newer)) == StreamOffset.ZERO


@rule("CLI-09", "CLI-11")
def test_step_back_always_lies_lower() -> None:
    refused = at(20)
    assert step_back(refused, 20, (refused,)) == StreamOffset.ZERO
    assert step_back(refused, 30, (at(19), refused)) == at(19)
