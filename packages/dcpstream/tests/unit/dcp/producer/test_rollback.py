"""The decision on STREAM_REQ: every worked example, and the order of the checks."""

from dataclasses import dataclass
from typing import Any

from dcpstream.dcp.producer.rollback import Accept, Refuse, Rollback, StreamFacts, decide
from dcpstream.model import MAX_SEQNO, FailoverLog, VbucketState
from dcpstream.wire import Status, StreamFlag
from dcpstream.wire.messages.dcp import StreamRequest
from tests.kit.cases import each_case

A, B, C, Z = 0xA, 0xB, 0xC, 0x99
UUIDS = {"A": A, "B": B, "C": C, "Z": Z, "0": 0}


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

EXAMPLES = [
    (1, "V1", 0, "max", "0", "0..0", "-", "OK, streams from 1"),  # first contact
    (2, "V1", 0, "max", "Z", "0..0", "-", "OK, streams from 1"),  # unknown uuid is harmless at 0
    (3, "V1", 0, "max", "Z", "0..0", "flags 0x20", "ROLLBACK 0"),  # strict: unknown uuid at 0
    (4, "V1", 0, "max", "A", "0..0", "flags 0x20", "OK, streams from 1"),  # strict: known uuid at 0
    (5, "V1", 0, "max", "0", "0..0", "flags 0x20", "OK, streams from 1"),  # strict: uuid 0 is always accepted at 0
    (6, "V1", 0, "max", "0", "0..50", "-", "OK, streams from 1"),  # snapshot end ignored: nothing received
    (7, "V1", 40, "max", "0", "40..40", "-", "ROLLBACK 0"),  # uuid 0 above seqno 0 is an unknown uuid
    (8, "V1", 40, "max", "Z", "40..40", "-", "ROLLBACK 0"),  # no common history
    (9, "V1", 40, "max", "A", "40..40", "-", "OK, streams from 41"),  # complete snapshot, clean resume
    (10, "V1", 40, "max", "A", "20..60", "-", "OK, streams from 41"),  # mid snapshot, same history
    (11, "V1", 100, "max", "A", "100..100", "-", "OK, streams from 101"),  # exactly up to date
    (12, "V1", 100, "max", "A", "90..100", "-", "OK, streams from 101"),  # snapshot complete, bounds not collapsed
    (13, "V1", 101, "max", "A", "101..101", "-", "ROLLBACK 100"),  # client ahead by one
    (14, "V1", 120, "max", "A", "90..120", "-", "ROLLBACK 100"),  # complete snapshot ahead of the producer
    (15, "V1", 110, "max", "A", "90..120", "-", "ROLLBACK 90"),  # mid snapshot, producer ends inside it
    (16, "V1", 95, "max", "A", "90..120", "-", "ROLLBACK 90"),  # mid snapshot whose end was lost
    (17, "V1", 90, "max", "A", "90..120", "-", "OK, streams from 91"),  # marker seen, no item: virtual snapshot ignored
    (18, "V1", 130, "max", "A", "110..140", "-", "ROLLBACK 100"),  # snapshot lies wholly above upper
    (19, "V1", 40, "max", "A", "50..60", "-", "ERANGE"),  # start below snapshot start
    (20, "V1", 40, "max", "A", "10..30", "-", "ERANGE"),  # start above snapshot end
    (21, "V1", 40, "30", "A", "40..40", "-", "ERANGE"),  # start above end
    (22, "V1", 40, "40", "A", "40..40", "-", "OK, then STREAM_END 0"),  # empty range
    (23, "V2", 1000, "max", "A", "1000..1000", "-", "ROLLBACK 500"),  # old branch: upper of A is 500
    (24, "V2", 500, "max", "A", "500..500", "-", "OK, streams from 501"),  # old branch, exactly at the fork
    (25, "V2", 700, "max", "A", "450..800", "-", "ROLLBACK 450"),  # old branch, snapshot crosses the fork
    (26, "V2", 480, "max", "A", "450..500", "-", "OK, streams from 481"),  # old branch, snapshot ends at the fork
    (27, "V2", 901, "max", "B", "901..901", "-", "ROLLBACK 900"),  # middle branch one past its fork
    (28, "V2", 900, "max", "B", "880..920", "-", "ROLLBACK 880"),  # not complete (900<920), crosses the fork of B
    (
        29,
        "V2",
        600,
        "max",
        "C",
        "600..600",
        "-",
        "OK, streams from 601",
    ),  # newest uuid with a seqno older than its entry is fine
    (30, "V2", 1200, "max", "C", "1100..1300", "-", "ROLLBACK 1100"),  # newest branch, unfinished snapshot
    (31, "V3", 3, "max", "A", "1..4", "-", "ROLLBACK 1"),  # published example: must go back to 1
    (32, "V3", 3, "max", "A", "3..3", "-", "OK, streams from 4"),  # same client lying about its bounds
    (33, "V4", 60, "max", "B", "60..60", "-", "ROLLBACK 0"),  # below purge seqno 80
    (34, "V4", 80, "max", "B", "80..80", "-", "OK, streams from 81"),  # equal to the purge seqno
    (
        35,
        "V4",
        85,
        "max",
        "B",
        "70..90",
        "-",
        "OK, streams from 86",
    ),  # snapshot start below purge, start above: accepted by the code
    (36, "V4", 60, "max", "B", "60..60", "flags 0x80", "OK, streams from 61"),  # ignore purged tombstones
    (37, "V4", 60, "max", "Z", "60..60", "flags 0x80", "ROLLBACK 0"),  # 0x80 does not excuse an unknown uuid
    (
        40,
        "V4",
        60,
        "max",
        "B",
        "60..60",
        "filter high 55",
        "OK, streams from 61",
    ),  # filter whose collections end at 55: nothing missed
    (
        41,
        "V4",
        60,
        "max",
        "B",
        "60..60",
        "filter high 75",
        "ROLLBACK 0",
    ),  # filter whose collections reach 75: may have missed a delete
    (42, "V5", 10, "max", "A", "10..10", "flags 0x10", "NOT_MY_VBUCKET"),  # active-only flag on a replica
    (43, "V5", 10, "max", "A", "10..10", "-", "OK, streams from 11"),  # replica without the flag
    (44, "V6", 5, "max", "A", "5..5", "-", "ROLLBACK 0"),  # empty vbucket, client has data
    (45, "V6", 0, "max", "0", "0..0", "flags 0x04", "OK, then STREAM_END 0"),  # to-latest on an empty vbucket
    (47, "V7", 460, "max", "A", "460..460", "flags 0x02", "ERANGE"),  # disk only, start above persisted 450
    (48, "V7", 450, "max", "A", "450..450", "flags 0x02", "OK, then STREAM_END 0"),  # disk only, nothing left
    (49, "V7", 10, "0", "A", "10..10", "flags 0x04", "ERANGE"),  # to-latest does not excuse a low end
]


def request(start=0, end=MAX_SEQNO, vbuuid=0, snapshot=None, flags=0):
    low, high = snapshot or (start, start)
    return StreamRequest(
        flags=flags, start_seqno=start, end_seqno=end, vbuuid=vbuuid, snapshot_start=low, snapshot_end=high
    )


@each_case(("number", "vbucket", "start", "end", "uuid", "bounds", "extra", "expected"), EXAMPLES)
def test_worked_example(number, vbucket, start, end, uuid, bounds, extra, expected):
    name, _, value = extra.rpartition(" ")
    low, _, high = bounds.partition("..")
    end_seqno = MAX_SEQNO if end == "max" else int(end)
    flags = int(value, 16) if name == "flags" else 0
    decision = decide(
        request(start, end_seqno, UUIDS[uuid], (int(low), int(high)), flags),
        VBUCKETS[vbucket],
        StreamFacts(filter_high_seqno=int(value) if name == "filter high" else None),
    )
    verdict, _, argument = expected.partition(" ")
    if verdict == "OK,":
        assert isinstance(decision, Accept)
        if argument.startswith("streams from"):
            assert decision.start_seqno + 1 == int(argument.split()[-1])
            assert decision.end_seqno > decision.start_seqno
        else:
            assert decision.start_seqno >= decision.end_seqno
    elif verdict == "ROLLBACK":
        assert decision == Rollback(int(argument))
        assert decision.seqno <= start
    else:
        assert decision == Refuse(Status[verdict])


def test_missing_pending_and_dead_vbuckets_are_not_mine():
    assert decide(request(), None) == Refuse(Status.NOT_MY_VBUCKET)
    for state in (VbucketState.PENDING, VbucketState.DEAD):
        assert decide(request(), facts([(A, 0)], 5, state=state)) == Refuse(Status.NOT_MY_VBUCKET)


def test_the_first_broken_rule_decides():
    bad = request(start=50, end=10, vbuuid=Z, snapshot=(60, 70))
    refusals: dict[str, Any] = {"filter_refusal": Status.UNKNOWN_COLLECTION, "has_stream": True}
    assert decide(bad, None, StreamFacts(is_noop_missing=True, **refusals)) == Refuse(Status.NOT_MY_VBUCKET)
    assert decide(bad, VBUCKETS["V1"], StreamFacts(is_noop_missing=True, **refusals)) == Refuse(Status.NOT_SUPPORTED)
    assert decide(bad, VBUCKETS["V1"], StreamFacts(**refusals)) == Refuse(Status.ERANGE)
    ahead = request(start=500, vbuuid=Z)
    assert decide(ahead, VBUCKETS["V1"], StreamFacts(**refusals)) == Refuse(Status.UNKNOWN_COLLECTION)
    assert decide(ahead, VBUCKETS["V1"], StreamFacts(has_stream=True)) == Refuse(Status.KEY_EEXISTS)
    assert decide(ahead, VBUCKETS["V1"], StreamFacts(is_short_of_memory=True)) == Rollback(0)
    assert decide(request(), VBUCKETS["V1"], StreamFacts(is_short_of_memory=True)) == Refuse(Status.TMPFAIL)
    assert decide(request(), VBUCKETS["V1"], StreamFacts(is_receiving_initial_snapshot=True)) == Refuse(Status.TMPFAIL)


def test_to_latest_and_disk_only_set_the_end():
    vbucket = VBUCKETS["V7"]
    assert decide(request(end=7, flags=StreamFlag.TO_LATEST), vbucket).end_seqno == 500
    assert (
        decide(request(end=7, flags=StreamFlag.TO_LATEST), vbucket, StreamFacts(filter_high_seqno=30)).end_seqno == 500
    )
    assert decide(request(end=7, flags=StreamFlag.DISK_ONLY), vbucket).end_seqno == 450
    assert decide(request(flags=StreamFlag.DISK_ONLY | StreamFlag.TO_LATEST), vbucket).end_seqno == 450


def test_takeover_ignores_the_end_once_it_was_checked():
    asked = request(start=40, end=50, vbuuid=A, flags=StreamFlag.TAKEOVER)
    assert decide(asked, VBUCKETS["V1"]).end_seqno == MAX_SEQNO
    early = request(start=40, end=3, vbuuid=A, flags=StreamFlag.TAKEOVER)
    assert decide(early, VBUCKETS["V1"]) == Refuse(Status.ERANGE)
    both = request(flags=StreamFlag.TAKEOVER | StreamFlag.DISK_ONLY | StreamFlag.TO_LATEST)
    assert decide(both, VBUCKETS["V7"]).end_seqno == MAX_SEQNO


def test_point_in_time_recovery_is_refused_after_all_that_is_checked_before():
    asked = request(start=40, vbuuid=A)
    assert decide(asked, VBUCKETS["V1"], StreamFacts(is_point_in_time=True)) == Refuse(Status.EINVAL)
    assert decide(request(start=40, vbuuid=Z), VBUCKETS["V1"], StreamFacts(is_point_in_time=True)) == Rollback(0)
    assert decide(asked, VBUCKETS["V1"], StreamFacts(is_point_in_time=True, has_stream=True)) == Refuse(
        Status.KEY_EEXISTS
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


def test_failover_story():
    # W wrote 1..1000; a copy that had 900 became active as X.
    copy = facts([(0xF, 900), (0xE, 0)], 950)
    assert decide(request(start=1000, vbuuid=0xE), copy) == Rollback(900)
    assert isinstance(decide(request(start=900, vbuuid=0xE), copy), Accept)
    assert decide(request(start=950, vbuuid=0xE, snapshot=(850, 1000)), copy) == Rollback(850)


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


@each_case(
    "asked",
    [{}, {"start": 3}, {"start": 900, "snapshot": (900, 900)}, {"start": 3, "snapshot": (4, 2)}, {"vbuuid": C}],
)
def test_a_stream_from_latest_begins_at_the_high_seqno_whatever_is_asked(asked):
    assert decide(request(flags=FROM_LATEST, **asked), VBUCKETS["V2"]) == Accept(1200, MAX_SEQNO, C, 1200, 1200)


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
