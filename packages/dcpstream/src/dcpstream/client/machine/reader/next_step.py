"""The decision of a reader about one vbucket's stream: the step that follows an answer or an end, without taking it.

The functions read the vbucket and change nothing. `StreamReader` takes the step. Errors that end the read are raised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeAlias

from dcpstream.client.machine.connection.events import Stream, StreamRefused
from dcpstream.client.machine.nodes.retry import ELSEWHERE_STATUSES, RETRY_STATUSES
from dcpstream.client.machine.reader.read_rules import ReadRules
from dcpstream.client.machine.reader.vbucket import Part, State, Vbucket
from dcpstream.client.machine.resume import step_back
from dcpstream.client.machine.rollback_policy import RollbackPolicy, branch_message
from dcpstream.client.machine.values import UNKNOWN_BRANCH
from dcpstream.dcp.snapshot import SnapshotFault
from dcpstream.errors import RemoteProtocolError, RollbackRequired
from dcpstream.model import MAX_SEQNO, StreamOffset
from dcpstream.wire import Opcode, Status, StreamEndReason
from dcpstream.wire.codes import code_name
from dcpstream.wire.status import status_error

GONE = frozenset((Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE))
"""Statuses of a stream request that names a collection which the node does not have, or not yet."""

UNKNOWN_COLLECTION_RETRIES = 12
"""Times in a row that a stream is requested with a manifest that does not fit the node's, with pauses up to 30 s in
all: nodes learn of a new manifest one after the other."""


# -------------------------------------------------------------------------------------------------- an accepted request


class ReadOn(NamedTuple):
    """Read the range; with `void_after`, the user's rows above the stream's start, up to that position, are void."""

    void_after: StreamOffset | None = None


class ReadPart(NamedTuple):
    """Read new collections up to the position, which was accepted before by the stream that asked only for that."""


class AskAgain(NamedTuple):
    """Close the stream, and ask for the position that was accepted without ignoring purged deletions."""


class StartOver(NamedTuple):
    """Close the stream, and read the vbucket from its beginning: the user's rows up to `void_after` are void."""

    void_after: StreamOffset


class AskActive(NamedTuple):
    """Close the stream of a replica that is on another branch than the position, and wait for the active node.

    Attributes:
        trouble: the reason, for messages.
    """

    trouble: str


class GiveUp(NamedTuple):
    """End the range without rows: the newest branch does not have its start."""


AfterOpened: TypeAlias = ReadOn | ReadPart | AskAgain | AskActive | StartOver | GiveUp


def opened(vbucket: Vbucket, branch: int, at: StreamOffset, rules: ReadRules) -> AfterOpened:
    """The step after the node has accepted a stream request.

    Args:
        vbucket: as it was when the request was sent.
        branch: the newest branch of the node's failover log.
        at: the position that was accepted, on that branch.
        rules: the user's choices.

    Raises:
        RollbackRequired: rows that the user has may be void, and the policy does not allow to go back.
    """
    known = vbucket.offset.vbuuid or vbucket.given.branch
    if vbucket.stream is not None and vbucket.stream.is_of_replica and known not in {0, branch}:
        # A replica may not have heard of the newest branch, or be the only copy that has it: the active node decides.
        return AskActive("a replica is on another branch")
    if vbucket.state is State.PROBING and branch != vbucket.offset.vbuuid:
        # On another branch than the requested one, the refusal may have come from before a failover. Now that the
        # position is known to be valid there, ask once more without ignoring purged deletions.
        return AskAgain()
    if vbucket.part is Part.NEW_COLLECTIONS:
        return ReadPart()
    if vbucket.rewound_from is not None:
        is_lost = vbucket.range.keeps_start and branch != vbucket.range.planned_vbuuid
        return GiveUp() if is_lost else ReadOn(vbucket.rewound_from)
    given = vbucket.given
    if given.unordered_seqno and given.branch == branch:
        # The snapshot that was cut has no position within it: its rows come again.
        return ReadOn(StreamOffset(branch, max(given.unordered_seqno, at.seqno), at.seqno, None))
    if given.branch == branch or given.seqno <= at.seqno:
        return ReadOn()
    vbid = vbucket.range.vbid
    if rules.policy is RollbackPolicy.FAIL:
        raise RollbackRequired(vbid, at.seqno, branch_message(vbid, at.seqno))
    is_unknown = given.branch == UNKNOWN_BRANCH
    before = replace(at, vbuuid=vbucket.offset.vbuuid if is_unknown else given.branch)
    if not rules.to_zero or not before.seqno:
        return ReadOn(before)
    if rules.policy is RollbackPolicy.REWIND_UNREAD and given.has_rows:
        raise RollbackRequired(vbid, 0, branch_message(vbid, before.seqno))
    return StartOver(before)


# --------------------------------------------------------------------------------------------------- a guarded stream


class Confirm(NamedTuple):
    """Read the stream: no deletion that it lacks is one of a document that the reader has."""


def checked(vbucket: Vbucket, purge_seqno: int | None, rules: ReadRules) -> Confirm | Probe | GoBack:
    """The step after the first snapshot of a guarded stream has begun.

    The reader has only rows of one snapshot, which showed the whole history up to the position's purge limit. A
    deletion of a document that the reader has therefore lies above the limit. If nothing above the limit was purged,
    all these deletions are in the stream.

    Args:
        vbucket: it.
        purge_seqno: no deletion above it was purged from the copy when its snapshot was taken; None if it is not known.
        rules: the user's choices.

    Raises:
        RollbackRequired: deletions may be missing, and the policy does not allow to go back.
    """
    limit = vbucket.offset.purge_limit
    if limit is not None and purge_seqno is not None and purge_seqno <= limit:
        return Confirm()
    if rules.purge_gap.needs_probe(0, vbucket.offset.seqno):
        return Probe()
    return _gone_back(vbucket, 0, rules)


# --------------------------------------------------------------------------------------------------- a refused request


class Probe(NamedTuple):
    """Ask again with purged deletions ignored, to learn why the position was refused.

    Attributes:
        is_guarded: by a guarded stream, which also shows whether a deletion is missing.
    """

    is_guarded: bool = False


class GoBack(NamedTuple):
    """Ask for a recorded position, with the ones recorded before it, or for the beginning."""

    to: StreamOffset
    earlier: tuple[StreamOffset, ...]


class Retry(NamedTuple):
    """Ask again later.

    Attributes:
        trouble: the reason, for messages.
        outdates: whether to ask for the manifest first.
        is_elsewhere: whether the vbucket may be at another node.
    """

    trouble: str
    outdates: bool
    is_elsewhere: bool


AfterRefused: TypeAlias = Probe | GoBack | Retry


def refused(vbucket: Vbucket, answer: StreamRefused, rules: ReadRules, *, names_collections: bool) -> AfterRefused:
    """The step after the node has refused a stream request at the vbucket's position.

    Args:
        vbucket: as it was when the request was sent.
        answer: of the node.
        rules: the user's choices.
        names_collections: whether the user chose collections.

    Raises:
        RollbackRequired: the node asks for a rollback, and the policy does not allow to go back.
        RemoteProtocolError: it asks for a rollback of a reader that has nothing.
        StatusError: to ask again is of no use.
    """
    if answer.stream.is_of_replica:
        return Retry(f"a replica answers {code_name(Status, answer.status)}", outdates=False, is_elsewhere=False)
    if answer.rollback_seqno is not None:
        if vbucket.part is Part.NEW_COLLECTIONS:
            return _gone_back(vbucket, 0, rules)  # rows of the new collections may be void, too
        if vbucket.state is not State.PROBING:
            if answer.rollback_seqno == 0 and vbucket.can_be_guarded:
                return Probe(is_guarded=True)
            if rules.purge_gap.needs_probe(answer.rollback_seqno, vbucket.offset.seqno):
                return Probe()
        return _gone_back(vbucket, answer.rollback_seqno, rules)
    # A reader of the whole bucket names collections too, while it reads those that are new.
    is_gone = answer.status in GONE and (names_collections or vbucket.part is Part.NEW_COLLECTIONS)
    outdates = is_gone and vbucket.attempts.failures < UNKNOWN_COLLECTION_RETRIES
    if not outdates and answer.status not in RETRY_STATUSES:
        start, snapshot_start, snapshot_end = vbucket.offset.request_bounds()
        context = f"asking for the changes after seqno {start}"
        if answer.status == Status.ERANGE:
            context += (
                f" of the snapshot {snapshot_start}..{snapshot_end} up to {answer.stream.requested_end}: the node "
                "refuses these numbers, whatever it holds. A stored position is damaged or not of this bucket; "
                "remove it and read the vbucket again"
            )
        raise status_error(answer.status, opcode=Opcode.DCP_STREAM_REQ, vbid=vbucket.range.vbid, context=context)
    trouble = f"the node answers {code_name(Status, answer.status)}"
    return Retry(trouble, outdates, answer.status in ELSEWHERE_STATUSES)


def _gone_back(vbucket: Vbucket, rollback_seqno: int, rules: ReadRules) -> GoBack:
    vbid, position = vbucket.range.vbid, vbucket.offset
    if not position.seqno:
        raise RemoteProtocolError(f"vbucket {vbid}: the node asks for a rollback of a reader that has nothing")
    if rules.policy is RollbackPolicy.FAIL or (rules.policy is RollbackPolicy.REWIND_UNREAD and vbucket.given.has_rows):
        raise RollbackRequired(vbid, rollback_seqno)
    to = step_back(position, rollback_seqno, () if rules.to_zero else vbucket.earlier)
    return GoBack(to, tuple(old for old in vbucket.earlier if old.seqno < to.seqno))


# ---------------------------------------------------------------------------------------------------- an ended stream


class Finish(NamedTuple):
    """Everything up to the wanted end was sent."""


class ReadRest(NamedTuple):
    """Read on: the node said OK too early, which counts as a fault.

    Attributes:
        fault: what is wrong.
        ended_at: the position, if it is below the end and not inside a snapshot; else -1.
    """

    fault: str
    ended_at: int


class Refilter(NamedTuple):
    """The wanted collections are gone: see whether there are others of the same names by now."""


class Forbidden(NamedTuple):
    """End the read: the user lost the right to it."""


class Reopen(NamedTuple):
    """Read on.

    Attributes:
        trouble: the reason of the end, for messages.
        is_elsewhere: whether the vbucket may be at another node.
        at_once: whether no pause is needed.
    """

    trouble: str
    is_elsewhere: bool
    at_once: bool


AfterStopped: TypeAlias = Finish | ReadRest | Refilter | Forbidden | Reopen


def stopped(vbucket: Vbucket, stream: Stream, reason: int, *, names_collections: bool) -> AfterStopped:
    """The step after the node has ended the vbucket's stream.

    Args:
        vbucket: it.
        stream: its stream.
        reason: of STREAM_END.
        names_collections: whether the user chose collections.
    """
    is_endless = vbucket.range.end_seqno == MAX_SEQNO and vbucket.part is Part.RANGE
    is_elsewhere = reason == StreamEndReason.STATE_CHANGED
    trouble = f"the node ends its stream with {code_name(StreamEndReason, reason)}"
    if vbucket.state is State.CONFIRMING and reason != StreamEndReason.LOST_PRIVILEGES:
        return Reopen(trouble, is_elsewhere, at_once=False)  # before its first snapshot, so that it shows nothing
    if reason == StreamEndReason.OK and not is_endless:
        violation = stream.tracker.snapshots.end_violation(
            stream.end_seqno, is_filtered=stream.is_filtered, ended_at=vbucket.attempts.ended_at
        )
        if violation is None:
            return Finish()
        return ReadRest(violation.text, -1 if violation.fault is SnapshotFault.ENDS_INSIDE else stream.tracker.seqno)
    if reason == StreamEndReason.FILTER_EMPTY:
        return Refilter() if names_collections else Finish()
    if reason == StreamEndReason.LOST_PRIVILEGES:
        return Forbidden()
    return Reopen(trouble, is_elsewhere, reason == StreamEndReason.ROLLBACK)
