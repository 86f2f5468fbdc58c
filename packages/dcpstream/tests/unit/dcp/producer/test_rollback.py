"""The decision on STREAM_REQ: every worked example, and the order of the checks."""

from dataclasses import dataclass

from dcpstream.dcp.producer.rollback import Accept, Refuse, Rollback, StreamFacts, decide
from dcpstream.model import MAX_SEQNO, FailoverLog, VbucketState
from dcpstream.wire import Status, StreamFlag
from dcpstream.wire.messages.dcp import StreamRequest
from tests.kit.cases import each_case

A, B, C, Z = 0xA, 0xB, 0xC, 0x99


@dataclass(frozen=True)
class Facts:
    failover_log: FailoverLog
    high_seqno: int
    purge_seqno: int
    state: VbucketState
    persisted_seqno: int


def facts(log, high, purge=0, state=VbucketState.ACTIVE, persisted=None):
    return Facts(FailoverLog.of(*log), high, purge, state, high if persisted is None else persisted)


VBUCKETS = {
    "V1": facts([(A, 0)], 100),
    "V2": facts([(C, 900), (B, 500), (A, 0)], 1200),
    "V3": facts([(B, 3), (A, 0)], 10),
    "V4": facts([(B, 50), (A, 0)], 200, purge=80),
    "V5": facts([(A, 0)], 300, state=VbucketState.REPLICA),
    "V6": facts([(A, 0)], 0),
    "V7": facts([(A, 0)], 500, persisted=450),
}


def request(start=0, end=MAX_SEQNO, vbuuid=0, snapshot=None, flags=0):
    low, high = snapshot or (start, start)
    return StreamRequest(
        flags=flags, start_seqno=start, end_seqno=end, vbuuid=vbuuid, snapshot_start=low, snapshot_end=high
    )


def test_a_snapshot_end_that_cannot_be_reached_is_forgotten_where_the_position_can_be_advanced():
    asked = request(start=90, vbuuid=A, snapshot=(90, 120))
    assert decide(asked, VBUCKETS["V1"]).snapshot_end == 120
    assert decide(asked, VBUCKETS["V1"], StreamFacts(drops_end_above_high=True)).snapshot_end == 90


def test_the_purge_seqno_comes_before_the_branch():
    # The branch of A ended at 50, but below the purge seqno nothing else is looked at.
    assert decide(request(start=60, vbuuid=A), VBUCKETS["V4"]) == Rollback(0)
    assert decide(request(start=90, vbuuid=A), VBUCKETS["V4"]) == Rollback(50)
    assert decide(request(start=0, vbuuid=Z), VBUCKETS["V4"]) == Accept(0, MAX_SEQNO, Z, 0, 0)


@each_case("vbucket", VBUCKETS.values(), ids=VBUCKETS)
def test_a_rollback_asked_for_at_its_own_seqno_is_accepted_or_goes_to_zero(vbucket):
    for start in range(0, 1300, 7):
        for uuid in (A, B, C):
            for low, high in ((0, 9), (3, 0), (0, 0), (2, 30)):
                asked = request(start, MAX_SEQNO, uuid, (max(0, start - low), start + high))
                decision = decide(asked, vbucket)
                if isinstance(decision, Rollback):
                    again = decide(request(decision.seqno, vbuuid=uuid), vbucket)
                    assert decision.seqno <= start
                    assert isinstance(again, Accept) or again == Rollback(0)


FROM_LATEST = StreamFlag.FROM_LATEST


def test_a_stream_from_latest_is_of_our_history_and_does_not_end_before_it_begins():
    vbucket = VBUCKETS["V2"]
    assert decide(request(flags=FROM_LATEST, vbuuid=Z), vbucket) == Rollback(0)
    assert decide(request(flags=FROM_LATEST, vbuuid=B), vbucket) == Rollback(900)
    assert decide(request(flags=FROM_LATEST | StreamFlag.STRICT_VBUUID, vbuuid=Z), VBUCKETS["V6"]) == Rollback(0)
    assert decide(request(flags=FROM_LATEST, end=1199), vbucket) == Refuse(Status.ERANGE)
    assert decide(request(flags=FROM_LATEST | StreamFlag.TO_LATEST), vbucket).end_seqno == 1200


def test_a_client_that_knows_the_purge_seqno_is_not_rolled_back():
    asked = request(start=60, vbuuid=B)
    assert decide(asked, VBUCKETS["V4"], StreamFacts(purge_seqno_known=80)) == Accept(60, MAX_SEQNO, B, 60, 60)
    for other in (None, 79, 81, 0):
        assert decide(asked, VBUCKETS["V4"], StreamFacts(purge_seqno_known=other)) == Rollback(0)
