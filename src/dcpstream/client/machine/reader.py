"""Reading parts of many vbuckets from many nodes at once: resume, rollback, moved vbuckets.

Sans-IO, over `Nodes`. What the user gets comes from `next_event()`; the shell only moves bytes and waits.

Theory of operation: each vbucket is *waiting* (for a time, a node, or a map), *opening* (a stream was asked for),
*open*, or *done*. Whatever goes wrong with a stream brings the vbucket back to waiting, with the position it reached;
only the reasons of the resume rule end it: its end was reached, or the node said so. A refused position goes back along
the recorded ones (`resume.step_back`); what that means to the user depends on whether rows of the vbucket were given
out already, and on the policy.

A position covers all rows that this run has given out, but not those that an earlier run gave out after its last
record, nor those of an out-of-order snapshot that was cut. `Work.given_seqno` bounds them. While the position lies
below that bound, and the stream opens on another branch than `Work.branch`, those rows may be void: a RollbackEvent
tells that, although the node accepted the position. The bound for rows of an earlier run is the high seqno that the
vbucket has on the same branch in this run; until it is known, every change of the branch is told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dcpstream.client.machine.asides import RETRY, Asides
from dcpstream.client.machine.connection import NodeConnection
from dcpstream.client.machine.convert import Converter
from dcpstream.client.machine.events import (
    Answer,
    EventGroup,
    RowsReceived,
    Stream,
    StreamDone,
    StreamOpened,
    StreamRefused,
    StreamStopped,
)
from dcpstream.client.machine.labels import Labels
from dcpstream.client.machine.moved import MovedStreams
from dcpstream.client.machine.nodes import STABLE_S, Nodes, pause_s
from dcpstream.client.machine.openings import Openings
from dcpstream.client.machine.outlet import Outlet
from dcpstream.client.machine.policies import PurgeGap, RollbackPolicy, branch_message, purged_message
from dcpstream.client.machine.ranges import UNKNOWN_BRANCH, ManifestEvent, RollbackEvent, VbucketRange
from dcpstream.client.machine.resume import BranchState, reachable_end, spaced, step_back
from dcpstream.client.machine.selection import FixedSelection, Selection
from dcpstream.client.machine.stability import StableGate
from dcpstream.client.machine.work import CatchUp, Received, State, Work
from dcpstream.errors import (
    ConnectTimeout,
    DcpstreamError,
    HistoryPurged,
    RemoteProtocolError,
    RollbackRequired,
    StreamEnded,
)
from dcpstream.model import MAX_SEQNO, CollectionName, Op, StreamOffset
from dcpstream.runtime import Random
from dcpstream.wire import Opcode, Status, StreamEndReason
from dcpstream.wire.codes import code_name
from dcpstream.wire.status import status_error

GONE = frozenset((Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE))
"""Statuses of a stream request that names what the node does not have, or not yet."""

UNKNOWN_COLLECTION_RETRIES = 12
"""Times in a row that a vbucket's stream is asked for with a manifest that does not fit the node's, with pauses up to
30 s in all: nodes learn of a new manifest one after the other."""

RECREATION_WAIT_S = 10.0
"""How long a stream without end waits, when all that it wants was dropped, for something to be made under that name."""

RECREATION_CHECK_S = 0.5
"""Seconds between two looks for it."""

logger = logging.getLogger(__name__)

ABSENCE_S = 2.0
"""A user who comes back after longer than this was away: that time does not count as waiting for a node. While the
user waits, the clocks are looked at every second."""


class StreamReader:
    """Reads ranges of vbuckets until all are done.

    Args:
        ranges: at most one per vbucket; MAX_SEQNO as end means for ever.
        nodes: the connections; may be used again after the reader is done.
        random: for pauses.
        converter: makes of rows what the user gets.
        policy: what a rollback means.
        purge_gap: what to do about purged deletions.
        is_stable: whether rows are held back until all copies have them on disk.
        to_zero: whether a rollback always begins the vbucket anew: for users who cannot restore older versions.
        collections: names to read (see `selection`), None for all.
        idle_timeout_s: without progress for so long it raises; None = wait for ever (but for lost nodes).
        patience_s: how long a node that is needed may stay away, or refuse a vbucket, or end its stream at once, after
            a map was found; until then it is the limit for connecting.
        now: seconds of a monotonic clock, as everywhere below.
    """

    def __init__(
        self,
        ranges: Iterable[VbucketRange],
        nodes: Nodes,
        random: Random,
        converter: Converter,
        *,
        policy: RollbackPolicy,
        collections: Sequence[str] | Selection | FixedSelection | None,
        idle_timeout_s: float | None,
        patience_s: float,
        now: float,
        purge_gap: PurgeGap = PurgeGap.RECONCILE,
        is_stable: bool = False,
        to_zero: bool = False,
    ) -> None:
        self._purge_gap = purge_gap
        self._to_zero = to_zero
        self._gate = StableGate(nodes) if is_stable else None
        self._moved = MovedStreams(nodes.map)
        self._patience_s = patience_s
        self._nodes = nodes
        self._random = random
        self._policy = policy
        ranges = list(ranges)
        is_resumed = any(part.start.collections is not None for part in ranges)
        self._labels = Labels(collections, is_resumed=is_resumed)
        self._asides = Asides(self._labels)
        self._nothing_since: float | None = None
        self._idle_timeout_s = idle_timeout_s
        self._last_progress = now
        self._seen_at = now
        self._vbuckets: dict[int, Work] = {}
        self._waiting = Openings(
            self._vbuckets, nodes, random, self._labels, self._asides, self._tell_dropped, self._nothing_left
        )
        self._outlet = Outlet(converter)
        self._left = 0
        self._error: BaseException | None = None
        for part in ranges:
            work = Work(part, part.start, part.earlier, part.start, stuck_since=now)
            work.branch = part.start.vbuuid if part.given_vbuuid is None else part.given_vbuuid
            if work.branch:
                # Rows above a planned end are never given out; without a plan, nobody knows how far a run went.
                work.given_seqno = part.end_seqno if policy is RollbackPolicy.REWIND_UNREAD else MAX_SEQNO
            if part.vbid in self._vbuckets:
                raise ValueError(f"two ranges for vbucket {part.vbid}")
            self._vbuckets[part.vbid] = work
            # A start beyond the end, or at an end that was seen on another branch, is put to the node all the same:
            # that history may have been rolled back.
            if (
                part.start.seqno == part.end_seqno
                and work.branch in {0, part.planned_vbuuid}
                and (not part.end_seqno or part.planned_vbuuid == part.start.vbuuid)
            ):
                # Which collections there are decides whether there is something to tell.
                work.is_at_end = part.start.collections is not None
                work.state = State.WAITING if work.is_at_end else State.DONE
            if work.state is State.WAITING:
                self._left += 1
                self._waiting.vbids.add(part.vbid)

    @property
    def is_done(self) -> bool:
        """Whether every vbucket is done and everything was given out."""
        is_all_given = self._outlet.is_empty and (self._gate is None or self._gate.is_empty)
        return not self._left and is_all_given and self._error is None

    def branches(self) -> dict[int, int]:
        """Vbucket → branch of those that were opened."""
        return {
            vbid: work.branch for vbid, work in self._vbuckets.items() if work.stream is not None and work.branch > 0
        }

    def resumed(self, now: float) -> None:
        """The user comes back after a time that must not count as waiting."""
        self._last_progress = now
        absence_s = now - self._seen_at
        self._seen_at = now
        if absence_s > ABSENCE_S:
            for work in self._vbuckets.values():
                if work.stuck_since is not None:
                    work.stuck_since += absence_s

    def next_event(self) -> tuple[object, Mapping[int, StreamOffset]] | RollbackEvent | EventGroup | None:
        """The next thing for the user: (what the converter made, offsets after it), rollback, events; None for now.

        Asking for the next one says that the user is through with the one before: its bytes are acknowledged.

        Raises:
            DcpstreamError: the read failed; everything before was given out.
        """
        item = self._outlet.take()
        if item is None and self._error is not None:
            raise self._error
        return item

    def step(self, now: float) -> None:
        """Do what can be done now: ask for streams of waiting vbuckets on nodes that are ready."""
        if self._gate is not None:
            self._gate.poll(now)
        if self._error is not None:
            return
        try:
            self._waiting.open_due(now)
            self._asides.refresh_names(self._nodes.any_ready(), now)
        except DcpstreamError as error:
            self._error = error

    def received(self, connection: NodeConnection, now: float) -> None:
        """Bytes were read into a connection's buffer; of one that was given up they do not count any more."""
        if not self._nodes.has(connection):
            return  # its vbuckets are read again from where they stood
        was_ready = connection.is_ready
        try:
            self._nodes.received(connection, now)
            if connection.is_ready and not was_ready:
                self._waiting.wake_all(now)
            for event in self._nodes.events(connection, now):
                self._handle(connection, event, now)
        except DcpstreamError as error:
            self._fail(error)
        self._recover_from(connection, now)

    def lost(self, connection: NodeConnection, error: BaseException, now: float) -> None:
        """A connection failed, or could not be made."""
        try:
            self._nodes.lost(connection, error, now)
        except DcpstreamError as final:
            self._fail(final)
        self._recover_from(connection, now)

    def next_timeout(self) -> float:
        """When `handle_timeout` and `step` should be called at the latest."""
        idle = float("inf") if self._idle_timeout_s is None else self._last_progress + self._idle_timeout_s
        stable = self._gate.next_timeout() if self._gate is not None else float("inf")
        return min(
            self._waiting.next_due,
            idle,
            self._moved.next_timeout(),
            stable,
            self._asides.next_timeout(),
            self._nodes.next_timeout(),
        )

    def handle_timeout(self, now: float) -> None:
        """Check the clocks."""
        self._seen_at = now
        try:
            for connection in self._nodes.handle_timeout(now):
                self._recover_from(connection, now)
            for work in self._moved.overdue(self._nodes.map, self._vbuckets, now):
                self._leave(work, now)
            complaint = self._complaint(now) if self._waiting.vbids or self._gate is not None else None
            if complaint is not None:
                raise complaint
        except DcpstreamError as error:
            self._fail(error)
        if self._idle_timeout_s is not None and self._left and now >= self._last_progress + self._idle_timeout_s:
            self._fail(self._idle_error())

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error

    def _complaint(self, now: float) -> DcpstreamError | None:
        """The error to raise if a node that is needed has stayed away, or kept a vbucket away, for too long."""
        found = self._nodes.map
        if found is None:
            return self._nodes.complaint(now, self._nodes.options.connect_timeout_s)
        active = (found.active_node(vbid) for vbid in self._waiting.vbids if vbid < found.vbucket_count)
        needed = {str(node) for node in active if node is not None}
        if self._gate is not None:
            needed |= self._gate.needed_nodes
        return self._nodes.complaint(now, self._patience_s, needed) or self._stuck_error(now)

    def _stuck_error(self, now: float) -> ConnectTimeout | None:
        for vbid in self._waiting.vbids:
            work = self._vbuckets[vbid]
            if work.trouble and work.stuck_since is not None and now - work.stuck_since >= self._patience_s:
                return ConnectTimeout(
                    f"vbucket {vbid} could not be read for {self._patience_s:g} s: {work.trouble}, "
                    f"{max(work.failures, 1)} times in a row"
                )
        return None

    def _idle_error(self) -> DcpstreamError:
        left = [work for work in self._vbuckets.values() if work.state is not State.DONE]
        waits = ", ".join(
            f"vbucket {work.range.vbid} at {self._offset(work).seqno} of {work.range.end_seqno} ({work.state.value})"
            for work in left[:5]
        )
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        return ConnectTimeout(
            f"no progress for {self._idle_timeout_s:g} s: {waits}{more}; connections: {self._nodes.tried()}"
        )

    def _offset(self, work: Work) -> StreamOffset:
        return work.offset if work.stream is None else work.stream.tracker.offset

    def _handle(self, connection: NodeConnection, event: object, now: float) -> None:
        match event:
            case RowsReceived():
                self._rows(connection, event, now)
            case StreamOpened():
                self._opened(connection, event, now)
            case StreamRefused():
                self._refused(event, now)
            case StreamDone():
                self._finish(self._vbuckets[event.stream.vbid], event.stream, now)
            case StreamStopped():
                self._stopped(event, now)
            case Answer():
                self._answered(connection, event, now)

    def _rows(self, connection: NodeConnection, event: RowsReceived, now: float) -> None:
        # A stream that was left by an answer in the same piece of data: its rows will come again.
        left = {vbid for vbid in event.offsets if self._vbuckets[vbid].state in {State.WAITING, State.OPENING}}
        if left:
            event = event.without(left)
        if self._is_progress(event):
            self._nodes.worked(connection)
            for vbid in event.offsets:
                work = self._vbuckets[vbid]
                work.failures, work.stuck_since, work.trouble = 0, None, ""
        received = Received(event, connection, *self._labels.lend())
        if self._gate is not None:
            self._gate.hold(received)
            self._gate.poll(now)
        elif event.runs:
            self._release(received, now)
        elif connection.session is not None:
            connection.session.consumed(event.flow_bytes)

    def _is_progress(self, event: RowsReceived) -> bool:
        """Whether it brings a row or moves a position: the begin of a snapshot alone does neither."""
        return bool(event.keep) or any(
            offset.seqno > self._vbuckets[vbid].released.seqno for vbid, offset in event.offsets.items()
        )

    def _release(self, received: Received, now: float) -> None:
        """Rows go to the user."""
        event = received.event
        if self._is_progress(event):
            self._last_progress = now
        for vbid, offset in event.offsets.items():
            self._vbuckets[vbid].released = offset
        for run in event.runs:
            work = self._vbuckets[run.vbid]
            work.has_rows = work.has_rows or run.first < run.stop or run.event is not None
            work.given_seqno = max(work.given_seqno, run.unordered_high)
            work.unordered_seqno = run.unordered_high
        self._outlet.put(received)

    def _release_stable(self, now: float) -> None:
        """Give out what all copies have on disk by now."""
        assert self._gate is not None
        for received in list(self._gate.released()):
            if received.event.offsets:
                self._release(received, now)
            elif received.connection.session is not None:
                received.connection.session.consumed(received.event.flow_bytes)  # all of it was dropped
            for vbid in received.event.offsets:
                work = self._vbuckets[vbid]
                if work.state is State.SETTLING and not self._gate.holds(vbid):
                    self._set_done(work, now)

    def _take_back(self, work: Work) -> None:
        """A stream was interrupted: go on after what was given out; rows that are held back will come again."""
        work.probes_purge = False
        if work.catch_up is not None and work.unordered_seqno:
            # Rows of new collections were given out, in no order: where they end nobody can say.
            work.catch_up, work.stream = None, None
            work.rolled_back_from, work.offset, work.earlier = work.offset, StreamOffset.ZERO, ()
            work.unordered_seqno = 0
        if work.catch_up is not None:
            if work.catch_up.is_allowed and work.stream is not None and self._gate is None:
                work.catch_up.offset = work.stream.tracker.reached_offset
            else:
                work.catch_up.offset = StreamOffset.ZERO
            work.catch_up.is_allowed = False
        if self._gate is not None:
            self._gate.drop(work.range.vbid)
            work.offset = work.released
        elif work.stream is not None:
            work.offset = work.stream.tracker.offset

    def _opened(self, connection: NodeConnection, event: StreamOpened, now: float) -> None:
        vbid = event.stream.vbid
        work = self._vbuckets[vbid]
        if event.offset != work.opened_from:
            self._last_progress = now  # opened again where it was, a stream is no progress
        work.state = State.OPEN
        work.opened_at, work.opened_from = now, event.offset
        newest = event.log.newest.vbuuid
        if work.probes_purge:
            work.probes_purge = False
            if newest != work.offset.vbuuid:
                # On another branch than the one asked for: the refusal may have come from before a failover. Now that
                # the position is known to be valid there, ask once more with nothing left out of account.
                self._leave(work, now)
                work.offset = event.offset
                return
            if self._purge_gap is PurgeGap.FAIL:
                raise HistoryPurged(purged_message(vbid, event.offset.seqno))
            logger.warning("%s They are left out, as purge_gap is 'ignore'.", purged_message(vbid, event.offset.seqno))
        self._labels.take_branch(vbid, newest)
        if work.catch_up is not None and work.catch_up.is_allowed:
            return  # the position was accepted before, by the stream that asked only for that
        refused = work.rolled_back_from
        if refused is not None:
            work.rolled_back_from = None
            # Not the tracker's: rows that came in the same piece of data have moved it already.
            self._tell_rollback(work, refused, event.offset)
        elif work.unordered_seqno and work.branch == newest:
            # The snapshot that was cut has no position within it: its rows come again.
            given = StreamOffset(newest, max(work.unordered_seqno, event.offset.seqno), event.offset.seqno, None)
            self._tell_rollback(work, given, event.offset)
        elif work.branch != newest and work.given_seqno > event.offset.seqno:
            if self._policy is RollbackPolicy.FAIL:
                raise RollbackRequired(vbid, event.offset.seqno, branch_message(vbid, event.offset.seqno))
            before = replace(event.offset, vbuuid=work.offset.vbuuid if work.branch == UNKNOWN_BRANCH else work.branch)
            if self._to_zero and before.seqno:
                if self._policy is RollbackPolicy.REWIND_UNREAD and work.has_rows:
                    raise RollbackRequired(vbid, 0, branch_message(vbid, before.seqno))
                self._leave(work, now)
                work.rolled_back_from, work.offset, work.earlier = before, StreamOffset.ZERO, ()
                return
            self._tell_rollback(work, before, event.offset)
        work.branch = newest
        is_limited = self._is_limited(work)
        if is_limited or work.given_seqno == MAX_SEQNO:
            self._asides.want_high_seqno(connection, work, now, is_needed=is_limited)

    @staticmethod
    def _is_limited(work: Work) -> bool:
        """Whether the planned branch is no longer the newest: how far this one goes decides where to stop."""
        return (
            work.catch_up is None
            and work.range.end_seqno != MAX_SEQNO
            and work.range.planned_vbuuid not in {0, work.branch}
        )

    def _tell_rollback(self, work: Work, before: StreamOffset, at: StreamOffset) -> None:
        """Rows above `at` are void from here on; `before` is where the reader stood."""
        work.released = at
        work.given_seqno = work.unordered_seqno = 0
        self._outlet.put(RollbackEvent(work.range.vbid, before.seqno, at.seqno, before.vbuuid, at.vbuuid, at))

    def _refused(self, event: StreamRefused, now: float) -> None:
        work = self._vbuckets[event.stream.vbid]
        vbid = work.range.vbid
        work.offset = event.stream.tracker.offset
        if event.rollback_seqno is not None and work.catch_up is not None and work.catch_up.is_allowed:
            self._roll_back(work, 0, now)  # what was read of the new collections may be void, too
            return
        if event.rollback_seqno is not None:
            # To 0, although there is a position: an unknown branch, or deletions after it were purged. A request that
            # leaves those out of account tells which.
            if not (event.rollback_seqno or work.probes_purge) and self._purge_gap is not PurgeGap.RECONCILE:
                work.probes_purge = bool(work.offset.seqno)
            else:
                work.probes_purge = False
            if work.probes_purge:
                self._waiting.add(work, now, 0.0)
            else:
                self._roll_back(work, event.rollback_seqno, now)
            return
        is_gone = event.status in GONE and self._labels.wanted.collections is not None
        if is_gone and work.failures < UNKNOWN_COLLECTION_RETRIES:
            self._labels.outdate()
        elif event.status not in RETRY:
            raise status_error(
                event.status,
                opcode=Opcode.DCP_STREAM_REQ,
                vbid=vbid,
                context=f"asking for the changes after seqno {work.offset.seqno}",
            )
        if event.status == Status.NOT_MY_VBUCKET:
            version = self._nodes.map.version if self._nodes.map is not None else None
            if event.value and work.connection is not None:
                self._nodes.update_map(event.value, work.connection.address)
            if self._nodes.map is None or self._nodes.map.version == version:
                self._nodes.find_map(now, refresh=True)
        work.failures += 1
        work.trouble = f"the node answers {code_name(Status, event.status)}"
        self._waiting.add(work, now, pause_s(work.failures, self._random))

    def _roll_back(self, work: Work, rollback_seqno: int, now: float) -> None:
        vbid = work.range.vbid
        refused = work.offset
        if not refused.seqno:
            raise RemoteProtocolError(f"vbucket {vbid}: the node asks for a rollback of a reader that has nothing")
        if self._policy is RollbackPolicy.FAIL or (self._policy is RollbackPolicy.REWIND_UNREAD and work.has_rows):
            raise RollbackRequired(vbid, rollback_seqno)
        self._last_progress = now
        work.rolled_back_from = work.rolled_back_from or refused
        work.offset = step_back(refused, rollback_seqno, () if self._to_zero else work.earlier)
        work.earlier = tuple(old for old in work.earlier if old.seqno < work.offset.seqno)
        work.catch_up = None
        self._waiting.add(work, now, 0.0)

    def _stopped(self, event: StreamStopped, now: float) -> None:
        work = self._vbuckets[event.stream.vbid]
        stream, reason = event.stream, event.reason
        if work.stream is not stream:
            return
        is_endless = work.range.end_seqno == MAX_SEQNO
        is_filtered = self._labels.wanted.collections is not None
        if reason == StreamEndReason.OK and (not is_endless or work.catch_up is not None):
            self._finish(work, stream, now)
            return
        if reason == StreamEndReason.FILTER_EMPTY:
            if not is_filtered:
                self._finish(work, stream, now)
                return
            # What it wanted is gone. There may be others of the same names by now.
            work.emptied = self._labels.wanted
            self._labels.outdate()
            self._take_back(work)
            self._waiting.add(work, now, 0.0)
            return
        self._take_back(work)
        if reason == StreamEndReason.LOST_PRIVILEGES:
            raise StreamEnded(
                f"vbucket {work.range.vbid}: the user lost the right to read it", reason=reason, offset=work.offset
            )
        if reason == StreamEndReason.STATE_CHANGED:
            self._nodes.find_map(now, refresh=True)
        if now - work.opened_at >= STABLE_S:
            work.failures, work.stuck_since = 0, None
        work.failures += 1
        work.trouble = f"the node ends its stream with {code_name(StreamEndReason, reason)}"
        pause = 0.0 if reason == StreamEndReason.ROLLBACK else pause_s(work.failures, self._random)
        self._waiting.add(work, now, pause)

    def _finish(self, work: Work, stream: Stream, now: float) -> None:
        if work.stream is not stream:
            return  # done, or left, by an answer in the same piece of data
        work.offset = stream.tracker.offset
        if work.catch_up is not None:
            self._caught_up(work, work.catch_up, now)
            return
        work.stream, work.connection = None, None
        if self._gate is not None and self._gate.holds(work.range.vbid):
            work.state = State.SETTLING
        else:
            self._set_done(work, now)

    def _caught_up(self, work: Work, catch_up: CatchUp, now: float) -> None:
        """The node accepted the position, or all was read up to it that the reader lacked of new collections."""
        if catch_up.is_allowed:
            work.offset = work.offset.with_collections((*(work.offset.collections or ()), *catch_up.collections))
            work.catch_up = None
            work.released = work.offset
            self._outlet.put(EventGroup((), {work.range.vbid: work.offset}))
        else:
            catch_up.is_allowed = True
        self._last_progress = now
        self._waiting.add(work, now, 0.0)

    def _tell_dropped(self, work: Work, gone: CollectionName, seqno: int) -> None:
        """A collection that the reader had is gone, and the history may not tell it."""
        offset = work.released = work.offset
        self._outlet.put(
            EventGroup(
                (
                    ManifestEvent(
                        op=Op.COLLECTION_DROPPED,
                        vbid=work.range.vbid,
                        vbuuid=offset.vbuuid,
                        seqno=seqno,
                        scope=gone.scope,
                        collection=gone.collection,
                        scope_id=None,
                        collection_id=gone.collection_id,
                        manifest_uid=self._labels.manifest_uid,
                        offset=offset,
                    ),
                )
            )
        )

    def _nothing_left(self, work: Work, now: float) -> None:
        """All that was wanted of a vbucket is gone: a bounded read is done, an endless one waits for a while."""
        if work.range.end_seqno != MAX_SEQNO:
            self._waiting.vbids.discard(work.range.vbid)
            self._set_done(work, now)
            return
        if self._nothing_since is None:
            self._nothing_since = now
        if now >= self._nothing_since + RECREATION_WAIT_S:
            raise StreamEnded(
                "nothing is left to read: all collections that were asked for are gone "
                f"({', '.join(self._labels.wanted.missing)}), and none was made again within {RECREATION_WAIT_S:g} s",
                reason=StreamEndReason.FILTER_EMPTY,
                offset=work.offset,
            )
        self._waiting.add(work, now, RECREATION_CHECK_S)

    def _refilter(self, now: float) -> None:
        """The manifest is known anew: leave the streams that lack a collection which is wanted now."""
        wanted = self._labels.wanted
        if wanted.collections is None:
            return
        if not wanted.is_nothing:
            self._nothing_since = None
        if wanted.scope_id is not None:
            return  # the node adds what is made in the scope
        for work in self._vbuckets.values():
            if work.state is State.OPEN and work.stream is not None and work.catch_up is None:
                had = work.stream.tracker.offset.collections or ()
                if wanted.collections.keys() - {item.collection_id for item in had}:
                    self._leave(work, now)

    def _set_done(self, work: Work, now: float) -> None:
        work.state = State.DONE
        self._last_progress = now
        self._left -= 1

    def _answered(self, connection: NodeConnection, event: Answer, now: float) -> None:
        if self._gate is not None:
            is_ours, changed = self._gate.answered(connection, event, now)
            if changed is not None:
                # The active copy is on another branch than the rows that are held: they may be void.
                self._leave(self._vbuckets[changed], now)
            if is_ours:
                self._release_stable(now)
                return
        if self._asides.takes_names(connection, event):
            self._refilter(now)
            self._waiting.wake_all(now)
            return
        if self._asides.takes_bounds(connection, event):
            self._waiting.wake_all(now)
            return
        found = self._asides.high_seqno(connection, event)
        if found is not None:
            work, high_seqno = found
            work.given_seqno = min(work.given_seqno, high_seqno)
            if work.stream is not None and self._is_limited(work):
                self._limit(work, work.stream, high_seqno, now)

    def _leave(self, work: Work, now: float) -> None:
        """Close a stream that must not go on; its vbucket is read again from where it stands."""
        if work.stream is not None and work.connection is not None and work.connection.session is not None:
            work.connection.session.close_stream(work.stream)
        self._left += work.state is State.DONE
        self._take_back(work)
        self._waiting.add(work, now, 0.0)

    def _limit(self, work: Work, stream: Stream, high_seqno: int, now: float) -> None:
        """Stop at what the new branch holds, if the planned end lies on a branch that has ended below it."""
        if stream.log is None or work.state is not State.OPEN:
            return
        state = BranchState(stream.log.newest.vbuuid, high_seqno, stream.log)
        end = reachable_end(work.range.end_seqno, work.range.planned_vbuuid, state)
        stream.end_seqno = end
        if stream.tracker.seqno >= end and work.connection is not None and work.connection.session is not None:
            work.connection.session.close_stream(stream)
            self._finish(work, stream, now)

    def _recover_from(self, connection: NodeConnection, now: float) -> None:
        """Bring back the vbuckets of a connection that is gone."""
        if connection in self._nodes.connections:
            if connection.is_ready and self._waiting.vbids:
                self.step(now)
            return
        if self._gate is not None:
            self._gate.forget(connection)
        self._asides.forget(connection)
        for work in self._vbuckets.values():
            if work.connection is connection and work.state is not State.DONE:
                self._take_back(work)
                self._waiting.add(work, now, 0.0)
        self._waiting.wake_all(now)

    def record(self, offsets: Mapping[int, StreamOffset]) -> None:
        """The user has recorded these positions: a rollback can go back to them."""
        for vbid, offset in offsets.items():
            work = self._vbuckets[vbid]
            work.earlier = spaced(work.earlier, offset)
