"""Reading ranges of many vbuckets from many nodes at once: resume, rollback, moved vbuckets.

Sans-IO, over `Nodes`. The user takes rows and events by `next_event()`; the shell only moves bytes and waits.

Theory of operation: each vbucket is *waiting* (for a time, a node, or a map), *opening* (a stream was requested),
*open*, *settling* (its last rows are held back), *done*, or *void* (it ended without rows); `vbucket.TRANSITIONS` is
the table. Any failure of a stream brings the vbucket back to waiting, with the position that it reached; only the
reasons of the resume rule end it: its end was reached, or the node said so. A refused position goes back along the
recorded ones (`resume.step_back`). Whether the user then gets an event or an error depends on the policy, and on
whether rows of the vbucket were given out. A range that `keeps_start` goes back only to learn which branch is served:
if it is another one, the range ends.

A node that breaks the protocol on a stream costs the reader that stream, not the connection: the vbucket is read again
from the position before the fault. STREAM_END with OK says that everything was sent. It ends a range at the wanted end,
and below it at a snapshot's end if the stream is filtered. In any other case the vbucket is read on from its position:
a server may end a filtered stream inside a snapshot whose last changes are for nobody (MB-73354), and the next stream
brings the end of that snapshot. A stream without a filter may end below the wanted end because the user may not see the
rest, such as documents of system collections: that is taken as true if the next stream says so at once. Each of these
counts as a fault; `PROTOCOL_ERRORS_MAX` of them without progress in between end the read.

A position covers all rows that this run has given out, but not those that an earlier run gave out after its last
record, nor those of an out-of-order snapshot that was cut. `Given.seqno` bounds them. While the position lies
below that bound, and the stream opens on another branch than `Given.branch`, those rows may be void: the reader
reports a RollbackEvent, although the node accepted the position. The bound for rows of an earlier run is the high seqno
that the vbucket has on the same branch in this run; until it is known, the reader reports every change of the branch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Generic, assert_never

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import (
    Answer,
    ConfigPushed,
    PurgeChecked,
    RowsReceived,
    Stream,
    StreamBroken,
    StreamDone,
    StreamOpened,
    StreamRefused,
    StreamStopped,
)
from dcpstream.client.machine.connection.events import (
    Event as ConnectionEvent,
)
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.nodes.retry import (
    PROTOCOL_ERRORS_MAX,
    PROTOCOL_PAUSE_S,
    STABLE_S,
    pause_s,
)
from dcpstream.client.machine.reader import next_step
from dcpstream.client.machine.reader.catalog import Catalog, SharedMapping
from dcpstream.client.machine.reader.gathering import BOUNDED_WAIT_S, FOLLOWING_WAIT_S, Gathering
from dcpstream.client.machine.reader.open_queue import OpenQueue
from dcpstream.client.machine.reader.output_queue import Converter, OutputQueue, Received
from dcpstream.client.machine.reader.read_rules import ReadRules
from dcpstream.client.machine.reader.recorded import Recorded
from dcpstream.client.machine.reader.side_requests import SideRequests
from dcpstream.client.machine.reader.stability import StableGate
from dcpstream.client.machine.reader.vbucket import (
    NOT_OPEN,
    TRANSITIONS,
    Attempts,
    Event,
    Given,
    Part,
    PartEvent,
    State,
    Vbucket,
)
from dcpstream.client.machine.resume import BranchState, reachable_end
from dcpstream.client.machine.rollback_policy import RollbackPolicy
from dcpstream.client.machine.tracker import Moves, Run
from dcpstream.client.machine.values import (
    CollectionEvents,
    ManifestEvent,
    R,
    ReaderOutput,
    RollbackEvent,
    VbucketRange,
)
from dcpstream.errors import (
    ConnectTimeout,
    DcpstreamError,
    RemoteProtocolError,
    StreamEnded,
)
from dcpstream.model import MAX_SEQNO, CollectionName, FailoverLog, Op, StreamOffset, VbucketMap
from dcpstream.runtime import Random
from dcpstream.wire import StreamEndReason

logger = logging.getLogger(__name__)

RECREATION_WAIT_S = 10.0
"""Seconds that a stream without end waits, when all that it wants was dropped, for a new collection of that name."""

RECREATION_CHECK_S = 0.5
"""Seconds between two checks for such a collection."""

ABSENCE_S = 2.0
"""Seconds between two checks of the clocks from which on the user was away: that time does not count as waiting for a
node. While the user waits, the clocks are checked every second."""

ACTIVE_CHECK_S = 1.0
"""Seconds between two attempts to reach the active nodes of vbuckets that are read from replicas."""

MOVED_GRACE_S = 5.0
"""Seconds that a stream may go on at a node that the map no longer names as active for the vbucket. A healthy node ends
the stream itself; without this limit, a node that is cut off would be noticed only by its silence."""


class StreamReader(Generic[R]):
    """Reads ranges of vbuckets until all are done.

    Args:
        ranges: at most one per vbucket; MAX_SEQNO as end means for ever.
        nodes: the connections; may be used again after the reader is done.
        random: for pauses.
        converter: makes the user's rows.
        rules: the user's choices.
        now: seconds of a monotonic clock, as everywhere below.

    Attributes:
        failover_logs: vbucket → the log that its last opened stream was answered with.
    """

    def __init__(
        self,
        ranges: Iterable[VbucketRange],
        nodes: Nodes,
        random: Random,
        converter: Converter[R],
        rules: ReadRules,
        now: float,
    ) -> None:
        self._nodes = nodes
        self._random = random
        self._rules = rules
        ranges = list(ranges)
        is_bounded = all(part.end_seqno != MAX_SEQNO for part in ranges)
        self._gathering = Gathering(BOUNDED_WAIT_S if is_bounded else FOLLOWING_WAIT_S)
        self._catalog = Catalog(
            rules.collections, is_resumed=any(part.start.collections is not None for part in ranges)
        )
        self._branches: SharedMapping[int] = SharedMapping()
        self.failover_logs: dict[int, FailoverLog] = {}
        self._side_requests = SideRequests(self._catalog)
        self._gate = StableGate(nodes) if rules.is_stable else None
        self._moved = _MovedStreams(nodes.map)
        for named in {id(part.start.collections): part.start.collections for part in ranges}.values():
            self._catalog.learn(named or ())
        self._output = OutputQueue(converter, self._catalog)
        self._vbuckets: dict[int, Vbucket] = {}
        self._open_queue = OpenQueue(
            self._vbuckets, nodes, random, self._catalog, self._side_requests, rules.replicas_after_s
        )
        self._active_asked_at = now
        self._recorded = Recorded()
        self._untried: set[int] = set()
        """Vbuckets whose streams were opened and have brought nothing yet."""
        self._without_rows: set[int] = set()
        """Vbuckets of which the user may have no row in this run; others never are here."""
        self._unordered: set[int] = set()
        """Vbuckets of which the user may have rows of an out-of-order snapshot that has not ended; likewise."""
        self._left = 0
        self._settling: set[int] = set()
        self._has_noted_hidden = False
        self._nothing_since: float | None = None
        self._last_progress = now
        self._seen_at = now
        self._error: BaseException | None = None
        for part in ranges:
            if part.vbid in self._vbuckets:
                raise ValueError(f"two ranges for vbucket {part.vbid}")
            self._vbuckets[part.vbid] = self._begin(part, now)
            self._without_rows.add(part.vbid)

    def _begin(self, part: VbucketRange, now: float) -> Vbucket:
        given = Given(Run.standing(part.vbid, part.start))
        given.branch = part.start.vbuuid if part.given_vbuuid is None else part.given_vbuuid
        if given.branch:
            # Rows above a planned end are never given out; without a plan, the end of the earlier run is not known.
            given.seqno = part.end_seqno if self._rules.policy is RollbackPolicy.REWIND_UNREAD else MAX_SEQNO
        attempts = Attempts(stuck_since=now)
        vbucket = Vbucket(part, part.start, part.earlier, given, attempts=attempts, recorded=self._recorded)
        # A start beyond the end, or at an end that was seen on another branch or not at all, is put to the node all the
        # same: that history may have been rolled back.
        end_vbuuid = part.planned_vbuuid if self._rules.policy is RollbackPolicy.REWIND_UNREAD else part.end_vbuuid
        vbucket.is_at_end = (
            part.start.seqno == part.end_seqno
            and given.branch in {0, part.planned_vbuuid}
            and (not part.end_seqno or end_vbuuid == part.start.vbuuid)
        )
        if vbucket.is_at_end and part.start.collections is None:
            vbucket.happen(Event.NOTHING_WANTED)
        else:
            # At an end with collections, the manifest decides whether there is something to report.
            self._left += 1
            self._open_queue.vbids.add(part.vbid)
        return vbucket

    @property
    def is_read(self) -> bool:
        """Whether every vbucket is done; the user may not have taken everything yet."""
        return not self._left

    @property
    def is_done(self) -> bool:
        """Whether every vbucket is done and everything was taken."""
        is_all_given = self._output.is_empty and (self._gate is None or self._gate.is_empty)
        return not self._left and is_all_given and self._error is None

    def branches(self) -> dict[int, int]:
        """Vbucket → branch of the vbuckets with a stream."""
        return {
            vbid: vbucket.given.branch
            for vbid, vbucket in self._vbuckets.items()
            if vbucket.stream is not None and vbucket.given.branch > 0
        }

    def resumed(self, now: float) -> None:
        """The user comes back after a time that must not count as waiting."""
        self._last_progress = now
        absence_s = now - self._seen_at
        self._seen_at = now
        if absence_s > ABSENCE_S:
            for vbucket in self._vbuckets.values():
                if vbucket.attempts.stuck_since is not None:
                    vbucket.attempts.stuck_since += absence_s

    def next_event(self) -> ReaderOutput[R] | None:
        """The next rows, rollback or events for the user; None if there is nothing now.

        Taking the next one means that the user is finished with the one before: its bytes are acknowledged.

        Raises:
            DcpstreamError: the read failed; everything before was taken.
        """
        item = self._output.take()
        if item is None and self._error is not None:
            self._nodes.releases.explain(self._error)
            raise self._error
        return item

    def close(self) -> None:
        """Drop what was not taken: nobody will take it. Nothing else may be called after this."""
        self._output.clear()

    def record(self, offsets: Mapping[int, StreamOffset]) -> None:
        """The user has recorded these positions: a rollback can go back to them."""
        self._recorded.add(offsets)

    def step(self, now: float) -> None:
        """Do what can be done now, before a wait: request streams of waiting vbuckets on nodes that are ready."""
        self._gathering.idle(now)
        if self._gate is not None:
            self._gate.poll(now)
        if self._error is not None:
            return
        try:
            if self._rules.replicas_after_s is not None and now >= self._active_asked_at + ACTIVE_CHECK_S:
                self._active_asked_at = now
                self._return_to_active(now)
            self._open_queue.open_due(now, self._report_ended, self._nothing_wanted)
            self._side_requests.refresh_names(self._nodes.connections, now)
            if self._settling:
                self._settle(now)
        except DcpstreamError as error:
            self._error = error

    def _return_to_active(self, now: float) -> None:
        """Leave the streams of replicas whose vbuckets' active nodes are back; try those that are away."""
        found = self._nodes.map
        for vbid, vbucket in self._vbuckets.items():
            if found is None or vbucket.stream is None or not vbucket.stream.is_of_replica:
                continue
            active = found.active_node(vbid)
            if vbucket.state is State.OPEN and active is not None and self._nodes.ready(active, now) is not None:
                self._leave(vbucket, now)

    def received(self, connection: NodeConnection, now: float) -> None:
        """Bytes were read into a connection's buffer; those of a connection that was given up are ignored."""
        if not self._nodes.has(connection):
            return  # its vbuckets are read again from where they stood
        was_ready = connection.is_ready
        self._gathering.idle(now)  # with asyncio, bytes are received while the user works, too
        try:
            self._nodes.received(connection, now)
            if connection.is_ready and not was_ready:
                self._open_queue.wake_all(now)
            for event in self._nodes.events(connection, now):
                self._handle(connection, event, now)
            if self._settling:
                self._settle(now)
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

    def gather_s(self, now: float) -> float:
        """Seconds that bytes which have just come should wait for more."""
        return self._gathering.wait_s(now)

    def next_timeout(self) -> float:
        """The latest time to call `handle_timeout` and `step`."""
        idle = float("inf") if self._rules.idle_timeout_s is None else self._last_progress + self._rules.idle_timeout_s
        stable = self._gate.next_timeout() if self._gate is not None else float("inf")
        active = float("inf") if self._rules.replicas_after_s is None else self._active_asked_at + ACTIVE_CHECK_S
        return min(
            active,
            self._open_queue.next_due,
            idle,
            self._moved.next_timeout(),
            stable,
            self._side_requests.next_timeout(),
            self._nodes.next_timeout(),
        )

    def handle_timeout(self, now: float) -> None:
        """Check the clocks."""
        self._seen_at = now
        try:
            for connection in self._nodes.handle_timeout(now):
                self._recover_from(connection, now)
            for vbucket in self._moved.overdue(self._nodes.map, self._vbuckets, now):
                self._leave(vbucket, now)
            waits = self._open_queue.vbids or self._gate is not None or self._catalog.unnamed
            complaint = self._complaint(now) if waits else None
            if complaint is not None:
                raise complaint
        except DcpstreamError as error:
            self._fail(error)
        if (
            self._rules.idle_timeout_s is not None
            and self._left
            and now >= self._last_progress + self._rules.idle_timeout_s
        ):
            self._fail(self._idle_error())

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error

    def _complaint(self, now: float) -> DcpstreamError | None:
        """The error to raise if a node that is needed has stayed away, or kept a vbucket away, for too long."""
        found = self._nodes.map
        if found is None:
            return self._nodes.complaint(now, self._nodes.options.connect_timeout_s)
        active = (found.active_node(vbid) for vbid in self._open_queue.vbids if vbid < found.vbucket_count)
        needed = {str(node) for node in {id(node): node for node in active}.values() if node is not None}
        if self._gate is not None:
            needed |= self._gate.needed_nodes
        patience_s = self._rules.patience_s
        return (
            self._nodes.complaint(now, patience_s, needed)
            or self._stuck_error(now)
            or self._side_requests.complaint(now, patience_s)
        )

    def _stuck_error(self, now: float) -> ConnectTimeout | None:
        for vbid in self._open_queue.vbids:
            tried = self._vbuckets[vbid].attempts
            if tried.trouble and tried.stuck_since is not None and now - tried.stuck_since >= self._rules.patience_s:
                times = f", {tried.failures} times in a row" if tried.failures else ""
                return ConnectTimeout(
                    f"vbucket {vbid} could not be read for {self._rules.patience_s:g} s: {tried.trouble}{times}"
                )
        return None

    def _idle_error(self) -> DcpstreamError:
        left = [vbucket for vbucket in self._vbuckets.values() if vbucket.state not in TRANSITIONS.final]
        waits = ", ".join(
            f"vbucket {one.range.vbid} at {one.position.seqno} of {one.range.end_seqno} ({one.state.value})"
            for one in left[:5]
        )
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        return ConnectTimeout(
            f"no progress for {self._rules.idle_timeout_s:g} s: {waits}{more}; connections: {self._nodes.tried()}"
        )

    def _handle(self, connection: NodeConnection, event: ConnectionEvent, now: float) -> None:
        match event:
            case RowsReceived():
                self._rows(connection, event, now)
            case StreamOpened():
                self._opened(connection, event, now)
            case StreamRefused():
                self._refused(connection, event, now)
            case PurgeChecked():
                self._checked(connection, event, now)
            case StreamDone():
                self._finish(self._vbuckets[event.stream.vbid], event.stream, now)
            case StreamStopped():
                self._stopped(event, now)
            case StreamBroken():
                self._broken(event.stream, event.error, now)
            case Answer():
                self._answered(connection, event, now)
            case ConfigPushed():
                pass  # `Nodes` takes maps and gives none on
            case _:
                assert_never(event)

    def _rows(self, connection: NodeConnection, event: RowsReceived, now: float) -> None:
        self._gathering.rows_came(now)
        # Rows of a stream that was left because of an answer in the same piece of data will come again.
        session = connection.session
        is_left = session is None or session.forgotten != event.forgotten
        suspects = event.offsets if is_left else {run.vbid for run in event.handled}
        left = {vbid for vbid in suspects if self._vbuckets[vbid].state in NOT_OPEN}
        if left:
            event = event.without(left)
        if self._is_progress(event):
            self._nodes.progressed(connection, event)
            self._succeeded(event)
        received = Received(event, connection, self._catalog.names.share(), self._branches.share())
        if self._gate is not None:
            self._gate.hold(received)
            self._gate.poll(now)
        elif event.handled or event.moves is not None:
            self._release(received, now)
        elif session is not None:
            session.consumed(event.flow_bytes)

    def _is_progress(self, event: RowsReceived) -> bool:
        """Whether it brings a row or moves a position: the begin of a snapshot alone does neither."""
        if event.keep or event.moves is not None:
            return True
        for vbid, offset in event.offsets.items():
            vbucket = self._vbuckets[vbid]
            followed = 0 if vbucket.stream is None else vbucket.stream.tracker.followed_seqno
            if offset.seqno > max(followed, vbucket.given.last.offset().seqno):
                return True
        return False

    def _succeeded(self, event: RowsReceived) -> None:
        """The streams of these rows are of use."""
        for vbid in [vbid for vbid in self._untried if vbid in event.offsets]:
            self._untried.discard(vbid)
            self._vbuckets[vbid].attempts.succeeded()

    def _release(self, received: Received, now: float) -> None:
        """Give rows to the user."""
        event = received.event
        if self._is_progress(event):
            self._last_progress = now
        moves = event.moves
        if moves is not None and self._gate is not None:
            runs: Iterable[Run] = event.runs
        else:
            runs = event.handled
            if moves is not None:
                self._give(moves)
        for run in runs:
            given = self._vbuckets[run.vbid].given
            given.add(run)
            if given.unordered_seqno:
                self._unordered.add(run.vbid)
        self._output.put(received)

    def _give(self, moves: Moves) -> None:
        """Rows that the kernel has handled are given to the user. Their positions are those of the trackers."""
        if self._unordered or moves.has_unordered:
            for move, run in enumerate(moves.runs):
                if run.unordered_high or run.vbid in self._unordered:
                    given = self._vbuckets[run.vbid].given
                    given.add(moves.run(move))
                    (self._unordered.add if given.unordered_seqno else self._unordered.discard)(run.vbid)
        if self._without_rows:
            for vbid in self._without_rows & moves.vbids(with_rows=True):
                self._without_rows.discard(vbid)
                self._vbuckets[vbid].given.has_rows = True

    def _release_stable(self, now: float) -> None:
        """Give out the rows that all copies have on disk by now."""
        assert self._gate is not None
        for received in list(self._gate.released()):
            if received.event.offsets:
                self._release(received, now)
            elif received.connection.session is not None:
                received.connection.session.consumed(received.event.flow_bytes)  # all of it was dropped

    def _take_back(self, vbucket: Vbucket) -> None:
        """A stream was interrupted: go on after the rows that were given out; held rows will come again."""
        if vbucket.part is not Part.RANGE and vbucket.given.unordered_seqno:
            # Rows of new collections were given out in no order, so there is no position after them.
            vbucket.stream = None
            vbucket.rewind(vbucket.offset, StreamOffset.ZERO)
            vbucket.given.unordered_seqno = 0
        if vbucket.part is Part.NEW_COLLECTIONS and vbucket.stream is not None and self._gate is None:
            vbucket.new_offset = vbucket.stream.tracker.reached_offset
        else:
            vbucket.new_offset = StreamOffset.ZERO
        vbucket.turn(PartEvent.INTERRUPTED)
        if vbucket.opened is not None:
            return  # nothing of the stream counts, and its rows may be held
        if self._gate is not None:
            self._gate.drop(vbucket.range.vbid)
            vbucket.offset = vbucket.given.last.offset()
        else:
            vbucket.offset = vbucket.position

    def _opened(self, connection: NodeConnection, event: StreamOpened, now: float) -> None:
        vbid, newest = event.stream.vbid, event.log.newest.vbuuid
        vbucket = self._vbuckets[vbid]
        if event.offset != vbucket.attempts.opened_from:
            self._last_progress = now  # opening a stream again at the same position is no progress
        self._untried.add(vbid)
        vbucket.attempts.opened_at, vbucket.attempts.opened_from = now, event.offset
        if event.stream.is_guarded and vbucket.state is State.PROBING:
            vbucket.happen(Event.ACCEPTED_PURGED)
            vbucket.opened = event
            return
        if event.stream.ignores_purged and vbucket.state is State.PROBING and newest == vbucket.offset.vbuuid:
            self._rules.purge_gap.accept_purged(vbid, event.offset.seqno)
        step = next_step.opened(vbucket, newest, event.offset, self._rules)
        vbucket.happen(Event.CONFIRMED if vbucket.state is State.CONFIRMING else Event.ACCEPTED)
        if isinstance(step, next_step.AskActive):
            self._leave(vbucket, now)
            vbucket.attempts.failed(step.trouble)
            vbucket.attempts.due = now + pause_s(vbucket.attempts.failures, self._random)
            return
        if isinstance(step, next_step.AskAgain):
            self._leave(vbucket, now)
            vbucket.offset = event.offset
            return
        self._branches.put(vbid, newest)
        self.failover_logs[vbid] = event.log
        match step:
            case next_step.ReadOn(void_after):
                # Not the tracker's position: rows that came in the same piece of data have moved it already.
                self._read_on(connection, vbucket, void_after, event.offset, now)
            case next_step.ReadPart():
                pass
            case next_step.StartOver(void_after):
                self._leave(vbucket, now)
                vbucket.rewind(void_after, StreamOffset.ZERO)
            case next_step.GiveUp():
                self._give_up(connection, vbucket, event.stream, newest, now)
            case _:
                assert_never(step)

    def _checked(self, connection: NodeConnection, event: PurgeChecked, now: float) -> None:
        """The first snapshot of a guarded stream has begun."""
        vbucket = self._vbuckets[event.stream.vbid]
        if vbucket.stream is not event.stream or vbucket.opened is None:
            return
        opened, vbucket.opened = vbucket.opened, None
        step = next_step.checked(vbucket, event.purge_seqno, self._rules)
        if not isinstance(step, next_step.Confirm):
            assert connection.session is not None
            connection.session.close_stream(event.stream)
        match step:
            case next_step.Confirm():
                self._opened(connection, opened, now)
            case next_step.Probe(is_guarded):
                vbucket.is_guarded = is_guarded
                self._open_queue.add(vbucket, Event.SUSPECTED, now)
            case next_step.GoBack(to, earlier):
                self._go_back(vbucket, to, earlier, now)
            case _:
                assert_never(step)

    def _go_back(self, vbucket: Vbucket, to: StreamOffset, earlier: tuple[StreamOffset, ...], now: float) -> None:
        self._last_progress = now
        vbucket.rewind(vbucket.rewound_from or vbucket.offset, to, earlier)
        vbucket.is_at_end = False  # what lies between the position and the end is to be read now
        self._open_queue.add(vbucket, Event.ROLLED_BACK, now)

    def _read_on(
        self,
        connection: NodeConnection,
        vbucket: Vbucket,
        void_after: StreamOffset | None,
        at: StreamOffset,
        now: float,
    ) -> None:
        """Read the range of a stream that is open; report rows that are void."""
        vbucket.rewound_from = None
        if void_after is not None:
            vbucket.release_at(at)
            vbucket.given.seqno = vbucket.given.unordered_seqno = 0
            vbid = vbucket.range.vbid
            self._output.put(RollbackEvent(vbid, void_after.seqno, at.seqno, void_after.vbuuid, at.vbuuid, at))
        vbucket.given.branch = at.vbuuid
        if vbucket.stream is not None and vbucket.stream.is_of_replica:
            return  # its high seqno is not that of the history
        is_limited = self._is_limited(vbucket)
        if is_limited or vbucket.given.seqno == MAX_SEQNO:
            self._side_requests.want_high_seqno(connection, vbucket, now, is_needed=is_limited)

    def _give_up(self, connection: NodeConnection, vbucket: Vbucket, stream: Stream, newest: int, now: float) -> None:
        """End a range whose start the newest branch does not have: the user plans again from the start, or lower."""
        assert connection.session is not None
        assert not vbucket.given.has_rows
        connection.session.close_stream(stream)
        start = vbucket.range.start
        vbucket.rewound_from = None
        vbucket.offset = start
        vbucket.release_at(start)
        vbucket.stream = vbucket.connection = None
        if self._gate is not None:
            self._gate.drop(vbucket.range.vbid)  # rows of the lost branch
        self._output.put(RollbackEvent(vbucket.range.vbid, start.seqno, start.seqno, start.vbuuid, newest, start))
        self._set_done(vbucket, Event.GIVEN_UP, now)

    @staticmethod
    def _is_limited(vbucket: Vbucket) -> bool:
        """Whether the planned branch is no longer the newest: the high seqno of the new one then decides the end."""
        return (
            vbucket.part is Part.RANGE
            and vbucket.range.end_seqno != MAX_SEQNO
            and vbucket.range.planned_vbuuid not in {0, vbucket.given.branch}
        )

    def _refused(self, connection: NodeConnection, event: StreamRefused, now: float) -> None:
        vbucket = self._vbuckets[event.stream.vbid]
        vbucket.offset = event.stream.tracker.offset
        step = next_step.refused(
            vbucket, event, self._rules, names_collections=self._catalog.wanted.collections is not None
        )
        match step:
            case next_step.Probe(is_guarded):
                vbucket.is_guarded = is_guarded
                self._open_queue.add(vbucket, Event.SUSPECTED, now)
            case next_step.GoBack(to, earlier):
                self._go_back(vbucket, to, earlier, now)
            case next_step.Retry(trouble, outdates, is_elsewhere):
                if outdates:
                    self._catalog.outdate()
                if is_elsewhere:
                    self._look_elsewhere(connection, event.value, now)
                vbucket.attempts.failed(trouble)
                pause = pause_s(vbucket.attempts.failures, self._random)
                self._open_queue.add(vbucket, Event.REFUSED, now, pause)
            case _:
                assert_never(step)

    def _look_elsewhere(self, connection: NodeConnection, config: bytes, now: float) -> None:
        """Take the map of a node that does not have a vbucket, or look for a newer one."""
        version = self._nodes.map.version if self._nodes.map is not None else None
        if config:
            self._nodes.update_map(config, connection.address)
        if self._nodes.map is None or self._nodes.map.version == version:
            self._nodes.find_map(now, refresh=True)

    def _stopped(self, event: StreamStopped, now: float) -> None:
        vbucket, stream = self._vbuckets[event.stream.vbid], event.stream
        if vbucket.stream is not stream:
            return
        step = next_step.stopped(
            vbucket, stream, event.reason, names_collections=self._catalog.wanted.collections is not None
        )
        match step:
            case next_step.Finish():
                if event.reason == StreamEndReason.OK:
                    self._note_hidden(stream)
                self._finish(vbucket, stream, now)
            case next_step.ReadRest(fault, ended_at):
                vbucket.attempts.ended_at = ended_at
                error = RemoteProtocolError(f"vbucket {stream.vbid}: {fault}")
                self._broken(stream, error, now, is_usual=True)
            case next_step.Refilter():
                vbucket.emptied = self._catalog.wanted
                self._catalog.outdate()
                self._take_back(vbucket)
                self._open_queue.add(vbucket, Event.INTERRUPTED, now)
            case next_step.Forbidden():
                self._take_back(vbucket)
                text = f"vbucket {stream.vbid}: the user lost the right to read it"
                raise StreamEnded(text, reason=event.reason, offset=vbucket.offset)
            case next_step.Reopen(trouble, is_elsewhere, at_once):
                self._take_back(vbucket)
                if is_elsewhere:
                    self._nodes.find_map(now, refresh=True)
                attempts = vbucket.attempts
                if now - attempts.opened_at >= STABLE_S:
                    attempts.failures, attempts.stuck_since = 0, None
                attempts.failed(trouble)
                pause = 0.0 if at_once else pause_s(attempts.failures, self._random)
                self._open_queue.add(vbucket, Event.INTERRUPTED, now, pause)
            case _:
                assert_never(step)

    def _note_hidden(self, stream: Stream) -> None:
        """Log, once for each reader, that changes up to the wanted end are not for this user."""
        if stream.is_filtered or stream.tracker.seqno >= stream.end_seqno or self._has_noted_hidden:
            return
        self._has_noted_hidden = True
        logger.info(
            "vbucket %d: the node sends nothing of the seqnos %d..%d: the user may not see these changes. Documents of "
            "system collections need the privilege SystemCollectionLookup.",
            stream.vbid,
            stream.tracker.seqno + 1,
            stream.end_seqno,
        )

    def _broken(self, stream: Stream, error: RemoteProtocolError, now: float, *, is_usual: bool = False) -> None:
        """A stream is over by a fault of the node: read on from its position, unless that happens again and again.

        Args:
            is_usual: sound servers do that, too, once at a position.
        """
        vbucket = self._vbuckets[stream.vbid]
        if vbucket.stream is not stream:
            return
        assert vbucket.connection is not None
        address = vbucket.connection.address
        count = vbucket.attempts.count_fault(stream.tracker.reached_offset)
        if count >= PROTOCOL_ERRORS_MAX:
            raise RemoteProtocolError(
                f"{address} broke the protocol on {count} streams of vbucket {stream.vbid}, without progress in "
                f"between, and is given up. The last time: {error}"
            ) from error
        pause = pause_s(count, self._random, PROTOCOL_PAUSE_S)
        if is_usual and count == 1:
            pause = 0.0
        else:
            self._nodes.retry_log.retrying(str(address), error, count, pause, now)
        vbucket.attempts.trouble = str(error)
        if is_usual and self._gate is not None and vbucket.part is Part.RANGE:
            vbucket.offset = vbucket.position  # rows that are held are sound, and the next stream goes on behind them
        else:
            self._take_back(vbucket)
        self._open_queue.add(vbucket, Event.INTERRUPTED, now, pause)

    def _finish(self, vbucket: Vbucket, stream: Stream, now: float) -> None:
        if vbucket.stream is not stream:
            return  # done, or left, because of an answer in the same piece of data
        vbucket.offset = stream.tracker.offset
        if vbucket.part is not Part.RANGE:
            self._caught_up(vbucket, now)
            return
        vbucket.stream, vbucket.connection = None, None
        self._end(vbucket, Event.REACHED, now)

    def _caught_up(self, vbucket: Vbucket, now: float) -> None:
        """The node accepted the position, or the missing part of the new collections was read up to it."""
        if vbucket.part is Part.NEW_COLLECTIONS:
            assert vbucket.stream is not None
            at, reached = vbucket.offset, vbucket.stream.tracker.reached_offset
            # The rows of the new collections are deduplicated up to the end of their snapshot. If that is lost, what it
            # superseded comes only from 0.
            end = None if at.snapshot_end is None else max(at.snapshot_end, reached.request_bounds()[2])
            at = replace(at, snapshot_start=0, snapshot_end=end, purge_limit=None)
            known = (*(at.collections or ()), *vbucket.new_collections)
            vbucket.offset = at.with_collections(known, self._catalog.manifest_uid)
            vbucket.turn(PartEvent.READ)
            vbucket.release_at(vbucket.offset)
            self._output.put(CollectionEvents((), {vbucket.range.vbid: vbucket.offset}))
        else:
            vbucket.turn(PartEvent.ACCEPTED)
        self._last_progress = now
        self._open_queue.add(vbucket, Event.CAUGHT_UP, now)

    def _report_ended(self, vbucket: Vbucket, op: Op, gone: CollectionName, seqno: int) -> None:
        """A collection that the position covered is gone, and the history may lack the event, or is read no more."""
        offset = vbucket.offset
        vbucket.release_at(offset)
        event = ManifestEvent(
            op=op,
            vbid=vbucket.range.vbid,
            vbuuid=offset.vbuuid,
            seqno=seqno,
            scope=gone.scope,
            collection=gone.collection,
            scope_id=None,
            collection_id=gone.collection_id,
            manifest_uid=self._catalog.manifest_uid,
            offset=offset,
        )
        self._output.put(CollectionEvents((event,)))

    def _nothing_wanted(self, vbucket: Vbucket, now: float) -> None:
        """All that was wanted of a vbucket is gone: a bounded read is done, an endless one waits for a while."""
        if vbucket.range.end_seqno != MAX_SEQNO:
            self._open_queue.vbids.discard(vbucket.range.vbid)
            self._end(vbucket, Event.NOTHING_WANTED, now)
            return
        if self._nothing_since is None:
            self._nothing_since = now
        if now >= self._nothing_since + RECREATION_WAIT_S:
            raise StreamEnded(
                "nothing is left to read: all collections that were asked for are gone "
                f"({', '.join(self._catalog.wanted.missing)}), and none was made again within {RECREATION_WAIT_S:g} s",
                reason=StreamEndReason.FILTER_EMPTY,
                offset=vbucket.offset,
            )
        self._open_queue.add(vbucket, Event.POSTPONED, now, RECREATION_CHECK_S)

    def _refilter(self, now: float) -> None:
        """A new manifest is known: leave the streams that lack a collection which is wanted now."""
        wanted = self._catalog.wanted
        if wanted.collections is None:
            return
        if not wanted.is_nothing:
            self._nothing_since = None
        if wanted.scope_id is not None:
            return  # the node itself adds new collections of the scope
        for vbucket in self._vbuckets.values():
            if vbucket.state is State.OPEN and vbucket.stream is not None and vbucket.part is Part.RANGE:
                had = vbucket.stream.tracker.offset.collections or ()
                if wanted.collections.keys() - {item.collection_id for item in had}:
                    self._leave(vbucket, now)

    def _end(self, vbucket: Vbucket, event: Event, now: float) -> None:
        """No stream is needed any more: the vbucket is done, or settles while the gate may hold rows of it."""
        if self._gate is not None:
            vbucket.happen(Event.REACHED_HELD)
            self._settling.add(vbucket.range.vbid)
        else:
            self._set_done(vbucket, event, now)

    def _set_done(self, vbucket: Vbucket, event: Event, now: float) -> None:
        vbucket.happen(event)
        self._last_progress = now
        self._left -= 1

    def _settle(self, now: float) -> None:
        """End the settling vbuckets whose rows were all given out."""
        assert self._gate is not None
        for vbid in [vbid for vbid in self._settling if not self._gate.holds(vbid)]:
            self._settling.remove(vbid)
            self._set_done(self._vbuckets[vbid], Event.SETTLED, now)

    def _answered(self, connection: NodeConnection, event: Answer, now: float) -> None:
        if self._gate is not None:
            is_ours, changed = self._gate.answered(connection, event, now)
            if changed is not None:
                # The active copy is on another branch than the rows that are held: they may be void.
                self._leave(self._vbuckets[changed], now)
            if is_ours:
                self._release_stable(now)
                return
        if self._side_requests.takes_names(connection, event):
            self._refilter(now)
            self._open_queue.wake_all(now)
            return
        if self._side_requests.takes_bounds(connection, event):
            self._open_queue.wake_all(now)
            return
        found = self._side_requests.high_seqno(connection, event)
        if found is not None:
            vbucket, high_seqno = found
            vbucket.given.seqno = min(vbucket.given.seqno, high_seqno)
            if vbucket.stream is not None and self._is_limited(vbucket):
                self._limit(vbucket, vbucket.stream, high_seqno, now)

    def _leave(self, vbucket: Vbucket, now: float) -> None:
        """Close a stream that must not go on; its vbucket is read again from where it stands."""
        if vbucket.stream is not None and vbucket.connection is not None and vbucket.connection.session is not None:
            vbucket.connection.session.close_stream(vbucket.stream)
        self._settling.discard(vbucket.range.vbid)
        self._take_back(vbucket)
        self._open_queue.add(vbucket, Event.LEFT, now)

    def _limit(self, vbucket: Vbucket, stream: Stream, high_seqno: int, now: float) -> None:
        """Stop at the high seqno of the new branch, if the branch of the planned end has ended below that end."""
        if stream.log is None or vbucket.state is not State.OPEN:
            return
        state = BranchState(stream.log.newest.vbuuid, high_seqno, stream.log)
        end = reachable_end(vbucket.range.end_seqno, vbucket.range.planned_vbuuid, state)
        stream.stop_at(end)
        if stream.tracker.seqno >= end and vbucket.connection is not None and vbucket.connection.session is not None:
            vbucket.connection.session.close_stream(stream)
            self._finish(vbucket, stream, now)

    def _recover_from(self, connection: NodeConnection, now: float) -> None:
        """Bring back the vbuckets of a connection that is gone."""
        if connection in self._nodes.connections:
            if connection.is_ready and self._open_queue.vbids:
                self.step(now)
            return
        if self._gate is not None:
            self._gate.forget(connection)
        self._side_requests.forget(connection)
        for vbucket in self._vbuckets.values():
            if vbucket.connection is connection:
                self._take_back(vbucket)
                self._open_queue.add(vbucket, Event.INTERRUPTED, now)
        self._open_queue.wake_all(now)


class _MovedStreams:
    """Streams at nodes that the cluster map no longer names as active for their vbuckets, and when to leave them.

    Args:
        found: the map at the beginning of the read.
    """

    def __init__(self, found: VbucketMap | None) -> None:
        self._seen = found
        self._deadlines: dict[int, float] = {}

    def overdue(self, found: VbucketMap | None, vbuckets: Mapping[int, Vbucket], now: float) -> list[Vbucket]:
        """The vbuckets whose streams have stayed at such a node for too long."""
        if found is not None and found is not self._seen:
            self._seen = found
            for vbid, vbucket in vbuckets.items():
                if vbucket.connection is None or vbid >= found.vbucket_count:
                    continue
                is_of_replica = vbucket.stream is not None and vbucket.stream.is_of_replica
                if is_of_replica or str(found.active_node(vbid)) == str(vbucket.connection.address):
                    self._deadlines.pop(vbid, None)
                else:
                    self._deadlines.setdefault(vbid, now + MOVED_GRACE_S)
        result = []
        for vbid, deadline in list(self._deadlines.items()):
            if vbuckets[vbid].stream is None or now >= deadline:
                del self._deadlines[vbid]
                if vbuckets[vbid].stream is not None:
                    result.append(vbuckets[vbid])
        return result

    def next_timeout(self) -> float:
        """The next time to call `overdue`; infinity if no stream has moved."""
        return min(self._deadlines.values(), default=float("inf"))
