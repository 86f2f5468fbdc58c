"""The decision about a STREAM_REQ: accept, roll back, or refuse.

A pure function of the request and the vbucket's present facts. The steps are numbered as in the decision table of
docs/explanation/history-branches.md. Their order is part of the protocol: a request may break several rules at once,
and the first one decides.

Source: kv_engine engines/ep/src/dcp/producer.cc (streamRequest), engines/ep/src/failover-table.cc (needsRollback).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dcpstream.dcp.bucket import VbucketFacts, disk_seqno
from dcpstream.model import MAX_SEQNO, VbucketState
from dcpstream.wire import Status, StreamFlag
from dcpstream.wire.messages.dcp import StreamRequest


class StreamFields(NamedTuple):
    """The fields of a `StreamRequest`, in its order: a producer reads nothing else of the many that it gets."""

    flags: int
    reserved: int
    start_seqno: int
    end_seqno: int
    vbuuid: int
    snapshot_start: int
    snapshot_end: int


@dataclass(frozen=True, slots=True)
class Accept:
    """The stream may begin, with these values, which may differ from the requested ones."""

    start_seqno: int
    end_seqno: int
    vbuuid: int
    snapshot_start: int
    snapshot_end: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """The client must drop everything above `seqno` and ask again."""

    seqno: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is refused; no stream is made.

    Attributes:
        status: the reason.
        is_late: the request passed all checks up to the existing stream of its id; an ended one must be discarded.
    """

    status: Status
    is_late: bool = field(default=False, compare=False)


Decision = Accept | Rollback | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """The facts other than the vbucket's that an answer to STREAM_REQ needs.

    Attributes:
        is_noop_missing: the connection's features need NOOPs, and they are not enabled.
        filter_refusal: the status that refuses the request's JSON value or stream id, if any.
        has_stream: a living stream for this vbucket and stream id exists on the connection.
        filter_high_seqno: for a filtered stream the highest seqno of its collections; None for all collections.
        purge_seqno_known: the purge seqno that the client names; None if it names none.
        drops_end_above_high: at the start of a snapshot whose end the vbucket does not have, that end does not count.
            A producer does so if the stream may send SEQNO_ADVANCED.
        latest_is_of_filter: the flag TO_LATEST means the high seqno of the stream's collections.
        is_short_of_memory: nothing may be read into memory now.
        is_receiving_initial_snapshot: this copy was empty and is still being filled from its source's disk.
        is_point_in_time: DCP_OPEN asked for point-in-time recovery, which no stream supports.
    """

    is_noop_missing: bool = False
    filter_refusal: Status | None = None
    has_stream: bool = False
    filter_high_seqno: int | None = None
    purge_seqno_known: int | None = None
    drops_end_above_high: bool = False
    latest_is_of_filter: bool = False
    is_short_of_memory: bool = False
    is_receiving_initial_snapshot: bool = False
    is_point_in_time: bool = False


USUAL_FACTS = StreamFacts()


def decide(
    request: StreamRequest | StreamFields, vbucket: VbucketFacts | None, facts: StreamFacts = USUAL_FACTS
) -> Decision:
    """Answer one STREAM_REQ.

    Args:
        request: the request.
        vbucket: the vbucket, or None if this node does not have it.
        facts: about the connection, the request's filter, and the node.
    """
    flags = request.flags
    if vbucket is None or not _is_served(vbucket.state, flags):
        return Refuse(Status.NOT_MY_VBUCKET)
    wanted = _from_latest(request, vbucket) if flags & StreamFlag.FROM_LATEST else _as_asked(request)
    if facts.is_noop_missing:
        return Refuse(Status.NOT_SUPPORTED)
    if not (
        wanted.start_seqno <= wanted.end_seqno and wanted.snapshot_start <= wanted.start_seqno <= wanted.snapshot_end
    ):
        return Refuse(Status.ERANGE)
    if facts.filter_refusal is not None:
        return Refuse(facts.filter_refusal)
    if facts.has_stream:
        return Refuse(Status.KEY_EEXISTS)
    rollback_seqno = _rollback_seqno(wanted, flags, vbucket, facts)
    if rollback_seqno is not None:
        return Rollback(rollback_seqno)
    if facts.is_point_in_time:
        return Refuse(Status.EINVAL, is_late=True)
    accepted = _adjusted(wanted, flags, vbucket, facts)
    if accepted.start_seqno > accepted.end_seqno or accepted.start_seqno > vbucket.high_seqno:
        return Refuse(Status.ERANGE, is_late=True)
    if facts.is_short_of_memory or facts.is_receiving_initial_snapshot:
        return Refuse(Status.TMPFAIL, is_late=True)
    # A takeover goes on until the vbucket is handed over, whatever end was requested.
    return replace(accepted, end_seqno=MAX_SEQNO) if flags & StreamFlag.TAKEOVER else accepted


def _as_asked(request: StreamRequest | StreamFields) -> Accept:
    return Accept(request.start_seqno, request.end_seqno, request.vbuuid, request.snapshot_start, request.snapshot_end)


def _from_latest(request: StreamRequest | StreamFields, vbucket: VbucketFacts) -> Accept:
    """The values of a request from the latest seqno on: whatever it says of start and snapshot does not count.

    A vbuuid of 0 is the newest one; any other is checked as in other requests.
    """
    high = vbucket.high_seqno
    vbuuid = request.vbuuid or vbucket.failover_log.newest.vbuuid
    return Accept(high, request.end_seqno, vbuuid, high, high)


def _is_served(state: VbucketState, flags: int) -> bool:
    """Step 0: active vbuckets are streamed, and replicas unless the client asks for active ones only."""
    return state is VbucketState.ACTIVE or (state is VbucketState.REPLICA and not flags & StreamFlag.ACTIVE_ONLY)


def _rollback_seqno(wanted: Accept, flags: int, vbucket: VbucketFacts, facts: StreamFacts) -> int | None:
    """Steps 7 to 13: the seqno to roll back to, or None if the client's history is ours."""
    start = wanted.start_seqno
    if start == 0 and not (flags & StreamFlag.STRICT_VBUUID and wanted.vbuuid):
        return None
    purge = 0 if flags & StreamFlag.IGNORE_PURGED_TOMBSTONES else vbucket.purge_seqno
    if 0 < start < purge:
        # A filtered client has missed no deletion if its collections have nothing above its position, and one that
        # knows the purge seqno has received what was purged.
        high = facts.filter_high_seqno
        is_excused = high is not None and high <= min(start, purge)
        if not is_excused and facts.purge_seqno_known != purge:
            return 0
    upper = vbucket.failover_log.upper(wanted.vbuuid, vbucket.high_seqno)
    if upper is None:
        return 0
    snapshot_start, snapshot_end = wanted.snapshot_start, wanted.snapshot_end
    if start == snapshot_start:
        snapshot_end = start  # nothing of the snapshot was received
    if snapshot_end <= upper:
        return None
    if start == snapshot_end:
        snapshot_start = start  # the snapshot is complete
    return min(upper, snapshot_start)


def _adjusted(wanted: Accept, flags: int, vbucket: VbucketFacts, facts: StreamFacts) -> Accept:
    """Steps 14 and 16: the end that the flags ask for, and a snapshot end that the stream can reach."""
    high, end, snapshot_end = vbucket.high_seqno, wanted.end_seqno, wanted.snapshot_end
    if flags & StreamFlag.TO_LATEST:
        of_filter = facts.filter_high_seqno if facts.latest_is_of_filter else None
        end = high if of_filter is None else of_filter
    if flags & StreamFlag.DISK_ONLY:
        end = disk_seqno(vbucket)
    if wanted.start_seqno == wanted.snapshot_start and snapshot_end > high and facts.drops_end_above_high:
        snapshot_end = wanted.snapshot_start
    return Accept(wanted.start_seqno, end, wanted.vbuuid, wanted.snapshot_start, snapshot_end)
