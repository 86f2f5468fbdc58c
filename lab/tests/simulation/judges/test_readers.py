"""A client's table against the history."""

from __future__ import annotations

import pytest

from lab.simulation.judges.history import Branch, Histories, Item, Violation
from lab.simulation.judges.readers import TableJudge

A, B = (0, b"a"), (0, b"b")


@pytest.fixture
def judge() -> TableJudge:
    histories = Histories()
    items = [Item(1, A, b"1"), Item(2, B, b"2"), Item(3, A, b"3"), Item(4, B, None)]
    histories.newest[0] = histories.branches[0, 7] = Branch(0, 7, None, 0, 0, items)
    return TableJudge("reader", histories)


def test_a_state_of_the_branch_is_accepted(judge: TableJudge) -> None:
    judge.add(0, 2, (B, b"2"))
    judge.add(0, 3, (A, b"3"))
    judge.snapshot_ended(0, 7, 3)
    judge.add(0, 4, (B, None))
    judge.finish()
    assert judge.compared == 1


def test_a_missing_row_is_seen(judge: TableJudge) -> None:
    judge.add(0, 3, (A, b"3"))
    with pytest.raises(Violation, match="at the end of a snapshot"):
        judge.snapshot_ended(0, 7, 3)


def test_a_void_row_is_seen(judge: TableJudge) -> None:
    judge.add(0, 3, (A, b"3"))
    judge.add(0, 5, (B, b"void"))
    with pytest.raises(Violation, match="in the end"):
        judge.finish()
    judge.roll_back(0, 3)
    judge.finish()


def test_a_branch_that_never_was_is_seen(judge: TableJudge) -> None:
    with pytest.raises(Violation, match="never was"):
        judge.snapshot_ended(0, 8, 3)
