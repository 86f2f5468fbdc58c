"""The decisions about a position that a node refuses for purged deletions."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.client.machine.connection.events import Stream, StreamRefused
from dcpstream.client.machine.reader import next_step
from dcpstream.client.machine.reader.next_step import Confirm, GoBack, Probe
from dcpstream.client.machine.reader.read_rules import ReadRules
from dcpstream.client.machine.reader.vbucket import Given, State, Vbucket
from dcpstream.client.machine.rollback_policy import PurgeGap, RollbackPolicy
from dcpstream.client.machine.tracker import PositionTracker, Run
from dcpstream.client.machine.values import VbucketRange
from dcpstream.errors import RollbackRequired
from dcpstream.model import MAX_SEQNO, StreamOffset
from dcpstream.wire import Status
from tests.kit.cases import each_case

LIMITED = StreamOffset(0xA, 4, 0, 9, purge_limit=8)
PLAIN = StreamOffset(0xA, 4, 0, 9)
RECORDED = StreamOffset(0xB, 3, 0, 9)


def vbucket(at: StreamOffset = LIMITED, state: State = State.OPENING, end: int = MAX_SEQNO) -> Vbucket:
    return Vbucket(VbucketRange(0, at, end), at, (RECORDED,), Given(Run.standing(0, at)), state=state)


def rules(gap: PurgeGap = PurgeGap.RECONCILE, policy: RollbackPolicy = RollbackPolicy.REWIND) -> ReadRules:
    return ReadRules(policy=policy, collections=None, patience_s=1.0, purge_gap=gap)


def refuse(one: Vbucket, rollback_seqno: int, **options: Any) -> next_step.AfterRefused:
    stream = Stream(1, 0, MAX_SEQNO, PositionTracker(one.offset), MAX_SEQNO)
    answer = StreamRefused(stream, Status.ROLLBACK, rollback_seqno)
    return next_step.refused(one, answer, rules(**options), names_collections=False)


@each_case("policy", [RollbackPolicy.FAIL, RollbackPolicy.REWIND_UNREAD])
def test_so_it_is_where_the_user_allows_no_rollback(policy: RollbackPolicy) -> None:
    assert refuse(vbucket(), 0, policy=policy) == Probe(is_guarded=True)


def test_a_rollback_to_a_seqno_has_another_reason() -> None:
    assert refuse(vbucket(), 3) == GoBack(RECORDED, ())


@each_case("purge_seqno", [0, 4, 7, 8])
def test_purged_deletions_up_to_the_limit_do_no_harm(purge_seqno: int) -> None:
    assert next_step.checked(vbucket(state=State.CONFIRMING), purge_seqno, rules()) == Confirm()


@each_case("purge_seqno", [9, None])
def test_others_may(purge_seqno: int | None) -> None:
    one = vbucket(state=State.CONFIRMING)
    assert next_step.checked(one, purge_seqno, rules()) == GoBack(RECORDED, ())
    for gap in (PurgeGap.FAIL, PurgeGap.IGNORE):
        assert next_step.checked(one, purge_seqno, rules(gap)) == Probe(is_guarded=False)
    one.given.has_rows = True
    with pytest.raises(RollbackRequired):
        next_step.checked(one, purge_seqno, rules(policy=RollbackPolicy.REWIND_UNREAD))


def test_a_position_that_has_lost_its_limit_is_not_confirmed() -> None:
    assert next_step.checked(vbucket(PLAIN, State.CONFIRMING), 0, rules()) == GoBack(RECORDED, ())


def of_replica(one: Vbucket) -> Vbucket:
    one.stream = Stream(1, 0, MAX_SEQNO, PositionTracker(one.offset), MAX_SEQNO, is_of_replica=True)
    return one


def test_a_replica_is_believed_on_the_branch_of_the_position_alone() -> None:
    one = of_replica(vbucket(PLAIN))
    one.given.branch = PLAIN.vbuuid
    assert next_step.opened(one, PLAIN.vbuuid, PLAIN, rules()) == next_step.ReadOn()
    assert isinstance(next_step.opened(one, PLAIN.vbuuid + 1, PLAIN, rules()), next_step.AskActive)
    recorded = of_replica(vbucket(StreamOffset.ZERO))
    assert next_step.opened(recorded, 77, StreamOffset.ZERO, rules()) == next_step.ReadOn()
    recorded.given.branch = 5
    assert isinstance(next_step.opened(recorded, 77, StreamOffset.ZERO, rules()), next_step.AskActive)
