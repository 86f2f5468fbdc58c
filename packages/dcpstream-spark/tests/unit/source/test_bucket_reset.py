from __future__ import annotations

from dcpstream.client.machine.resume import BranchState
from dcpstream.model import FailoverLog, StreamOffset
from dcpstream_spark.source import planner
from dcpstream_spark.source.bucket_reset import another_bucket, flushed, may_be_flushed, reset_message
from dcpstream_spark.source.offsets import SourceOffset, VbucketOffset


def offset(*positions: StreamOffset, uuid: str | None = "one", is_reset: bool = False) -> SourceOffset:
    vbuckets = {vbid: VbucketOffset(at) for vbid, at in enumerate(positions)}
    return SourceOffset("b", None, vbuckets, bucket_uuid=uuid, is_reset=is_reset)


def state(*vbuuids: int) -> BranchState:
    return BranchState(vbuuids[0], 9, FailoverLog.of(*((vbuuid, 0) for vbuuid in vbuuids)))


AT, ZERO = StreamOffset(7, 5, 5, 5), StreamOffset.ZERO


def test_another_uuid_or_number_of_vbuckets_is_another_bucket() -> None:
    assert another_bucket(offset(AT), "one", 1) is None
    assert "its uuid was one, now two" in (another_bucket(offset(AT), "two", 1) or "")
    assert "had 1 vbuckets and has 2 now" in (another_bucket(offset(AT, uuid=None), "two", 2) or "")
    assert another_bucket(offset(AT, uuid=None), "two", 1) is None, "an old checkpoint does not know it"
    assert another_bucket(offset(AT), "", 1) is None, "a server that does not tell it"


def test_a_bucket_is_flushed_if_no_vbucket_knows_its_position() -> None:
    start = offset(AT, AT, ZERO)
    assert "was flushed" in (flushed(start, {0: state(8), 1: state(9), 2: state(7)}) or "")
    assert flushed(start, {0: state(8), 1: state(9, 7)}) is None
    assert flushed(start, {0: state(8)}) is None, "the other may still have it"
    assert flushed(offset(AT, ZERO), {0: state(8), 1: state(9)}) is None, "one vbucket is no bucket"
    assert may_be_flushed(start, {0: state(8)})
    assert not may_be_flushed(start, {2: state(8)})
    assert not may_be_flushed(start, {0: state(8), 1: state(7)})


def test_the_message_says_what_to_do() -> None:
    assert reset_message("bucket 'b' was flushed").startswith("Bucket 'b' was flushed. Every row")


def test_a_batch_that_starts_over_takes_back_every_vbucket() -> None:
    start = offset(AT, ZERO, AT)
    end = offset(StreamOffset(8, 4, 0, None), StreamOffset(9, 2, 0, None), uuid="two", is_reset=True)
    ranges = planner.planned_ranges(start, end, keeps_start=True)
    assert [(one.range.vbid, one.range.start, one.range.end_seqno, one.rolled_back_from) for one in ranges] == [
        (0, ZERO, 4, AT),
        (1, ZERO, 2, None),
        (2, ZERO, 0, AT),
    ]
    assert planner.planned_ranges(end, end, keeps_start=True) == [], "an offset and itself"
