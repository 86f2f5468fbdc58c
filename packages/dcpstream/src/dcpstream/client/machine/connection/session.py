"""One DCP connection after its handshake: many streams, their positions, flow control, liveness.

Sans-IO. `Rows` go in (see `rows`), events come out in an order that is safe to act on: answers and opened streams,
then the rows of one receive, then streams that are done or have ended.

Theory of operation:

- A stream is known by the opaque of its request, which is never used again on the connection. Messages that arrive
  after the stream is over are dropped: a node may have queued them before it knew. KEY_ENOENT to CLOSE_STREAM says
  that the node has ended the stream, not that its messages have all come: they come as the window opens.
- The node is not trusted. Seqnos of a stream rise and lie within its snapshots, and its rows are of its vbucket and
  come after the answer to its request. Anything else costs that stream alone: it is closed, what still comes for it is
  dropped, and StreamBroken says why. The message never becomes data, and the position stays before it.
- Every opcode is known, every opaque is that of a request, every answer was asked for, and no more arrives than the
  window and one frame. Anything else is a RemoteProtocolError: nothing on the connection can be trusted then.
- A stream with an end is done at the first seqno at or above it: rows above the end are dropped, and rows that still
  arrive are dropped too. CLOSE_STREAM is sent, unless the end is also that of the request and of the snapshot: then
  the node ends the stream itself, and CLOSE_STREAM goes out only if another stream of the vbucket is asked for first.
- Flow control: the message table says which messages count. The node stops when the window is full. Dropped rows are
  acknowledged at once, the others when the user has consumed them (`consumed`), so memory never exceeds the window.
- Liveness: the node sends a NOOP every interval, so a connection that is silent for two intervals and a grace is dead.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn, assert_never

from dcpstream.client.machine.connection.collection_events import event_in, follow
from dcpstream.client.machine.connection.events import (
    UNFILTERED,
    Answer,
    ConfigPushed,
    Event,
    EventNames,
    PurgeChecked,
    Purged,
    RequestedRows,
    RowsReceived,
    Stream,
    StreamBroken,
    StreamDone,
    StreamOpened,
    StreamRefused,
    StreamStopped,
)
from dcpstream.client.machine.connection.handshake import login_is_over
from dcpstream.client.machine.connection.purge_check import PurgeCheck
from dcpstream.client.machine.connection.rows import DATA_OPCODES, Rows
from dcpstream.client.machine.connection.stream_table import StreamTable
from dcpstream.client.machine.tracker import PositionTracker, Run, refuse
from dcpstream.client.machine.values import HistoryGap
from dcpstream.client.settings.options import DcpSettings
from dcpstream.dcp.liveness import ANSWER_TIMEOUT_S, PendingRequests, Silence, silence_limit_s
from dcpstream.dcp.snapshot import not_above
from dcpstream.dcp.window import ConsumerWindow, counted_bytes
from dcpstream.errors import DeadConnection, FieldError, RemoteProtocolError
from dcpstream.model import MAX_SEQNO, NodeAddress, StreamOffset
from dcpstream.wire import (
    Frame,
    Magic,
    MarkerFlag,
    Opcode,
    Status,
    StreamEndReason,
    StreamFlag,
)
from dcpstream.wire.by_message import ByMessage
from dcpstream.wire.codes import code_name
from dcpstream.wire.frames import with_opaque
from dcpstream.wire.layout import Request, Side
from dcpstream.wire.messages import REQUESTS
from dcpstream.wire.messages.dcp import (
    Abort,
    AddStream,
    BufferAck,
    CacheTransfer,
    CacheTransferEnd,
    CloseStream,
    Commit,
    DcpFlush,
    DcpNoop,
    DcpNoopResponse,
    OsoSnapshot,
    Prepare,
    RollbackResponse,
    SeqnoAdvanced,
    SetVbucketState,
    SnapshotMarker,
    SnapshotMarkerResponse,
    SnapshotMarkerV2,
    SnapshotMarkerV22,
    StreamEnd,
    StreamRequest,
    SystemEvent,
)
from dcpstream.wire.messages.kv import CLUSTERMAP_CHANGE, ClustermapVersion
from dcpstream.wire.system_events import CollectionEvent
from dcpstream.wire.values import decode_failover_log

MAX_OPAQUE = 0xFFFFFFFF

CLOSED_STREAMS_MAX = 64 * 1024
"""Streams that are over and are remembered, to distinguish their late messages from those of unknown streams: a
connection has at most 1,024 streams at a time, and one window of data on its way."""

FILTERS_CACHED = 16
"""Filters of stream requests whose texts are kept: the streams of a read have few, and their texts are equal."""


_SEQNO_IN = {layout.opcode: (layout.extras, layout.names.index(layout.seqno)) for layout in REQUESTS if layout.seqno}
"""Opcode → where the seqno of a message is to which it moves its stream: (struct of the extras, place in it)."""


_MARKER = SnapshotMarker.layout.extras
# Operators of flags make an object each time.
_ACK = int(MarkerFlag.ACK)
_ACTIVE_ONLY = int(StreamFlag.ACTIVE_ONLY)
_DISK_ONLY = int(StreamFlag.DISK_ONLY)
_IGNORE_PURGED = int(StreamFlag.IGNORE_PURGED_TOMBSTONES)
_FROM_DISK = int(MarkerFlag.DISK)
_HISTORY = int(MarkerFlag.HISTORY)
_KIND = int(MarkerFlag.DISK | MarkerFlag.HISTORY | MarkerFlag.MAY_DUPLICATE)
_V22 = bytes((2,))


@dataclass(slots=True)
class _Turn:
    """The events of one receive.

    Attributes:
        now: its time.
        first: events to report before the rows.
        last: events to report after the rows.
        runs: the rows, and positions that moved without a row.
        held: the same of streams whose rows are held.
        checked: streams whose rows are held no more.
        row: rows before the message that is being handled.
        uncounted: bytes of the frames that do not count in flow control; less what counts beyond a frame's length.
    """

    now: float
    first: list[Event] = field(default_factory=list)
    last: list[StreamDone | StreamStopped | StreamBroken] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    held: dict[Stream, list[Run]] = field(default_factory=dict)
    checked: list[PurgeChecked] = field(default_factory=list)
    row: int = 0
    uncounted: int = 0

    def moved(self, stream: Stream) -> None:
        """The stream's position moved without a row."""
        self.add(stream, stream.tracker.run(stream.vbid, self.row, self.row))

    def add(self, stream: Stream, run: Run) -> None:
        """Take a run of a stream."""
        if stream.held is None:
            self.runs.append(run)
        else:
            self.held.setdefault(stream, []).append(run)


_HANDLERS: ByMessage[Callable[[DcpSession, Frame, Stream, _Turn], None]] = ByMessage("the client")
"""A producer's messages on a stream other than rows."""


class DcpSession:
    """The streams of one connection.

    Args:
        address: the node, for messages.
        settings: what the connection was opened with.
        has_collections: whether keys carry collection ids, and stream requests may have a filter.
        is_8_0: whether the node is a server of release 8.0 or later, or a node like one.
        has_history: whether the node sends every version that it keeps, and marks the snapshots that have them.
        table: the streams that the kernel may follow; None without the kernel.
        now: seconds of a monotonic clock, as everywhere below.

    Attributes:
        forgotten: how many streams have been over.
    """

    def __init__(
        self,
        address: NodeAddress,
        settings: DcpSettings,
        has_collections: bool,
        now: float,
        *,
        is_8_0: bool = True,
        has_history: bool = False,
        table: StreamTable | None = None,
    ) -> None:
        self.forgotten = 0
        self._table = table
        if table is not None:
            table.wants_history = has_history
        self.address = address
        self.has_collections = has_collections
        self._is_8_0 = is_8_0
        self._has_history = has_history
        self._streams: dict[int, Stream] = {}
        self._requests = PendingRequests()
        self._closed: dict[int, int] = {}
        self._closings: dict[int, int] = {}
        self._ending: dict[int, int] = {}
        self._checks: dict[int, PurgeCheck] = {}
        self._allows_oso = settings.out_of_order
        self._next_opaque = 1
        self._out: list[bytes] = []
        self._events: deque[Event] = deque()
        self.window = ConsumerWindow(now, settings.buffer_bytes, ack_interval_s=None)
        self._silence = Silence(now, silence_limit_s(settings.noop_interval_s))

    @property
    def streams(self) -> Sequence[Stream]:
        """The streams that were asked for and have not ended."""
        return list(self._streams.values())

    def open_stream(
        self,
        vbid: int,
        offset: StreamOffset,
        end_seqno: int,
        now: float,
        *,
        wanted: RequestedRows = UNFILTERED,
        purged: Purged = Purged.REFUSE,
        held: StreamOffset | None = None,
        names: EventNames | None = None,
    ) -> Stream:
        """Ask for a vbucket's history after `offset`; answered by StreamOpened or StreamRefused.

        Args:
            vbid: the vbucket.
            offset: where to begin.
            end_seqno: where to stop; MAX_SEQNO = never.
            now: as everywhere.
            wanted: the rows to ask for.
            purged: what to do if deletions above the offset have been purged. With GUARD, a PurgeChecked follows.
            held: the position to report all the while: the rows fill a gap below it.
            names: resolves the names in events of scopes and collections; None to ignore these events.

        Only from the active copy, unless the wanted rows allow a replica: one that lags would ask for a rollback that
        is none.

        Servers before 8.0 may claim that the rest of a snapshot is for nobody when it is not (MB-65581, MB-66612). They
        do so to streams of some collections that begin inside a snapshot, from memory. So such a stream is asked for
        what is on disk, and ends there; the reader goes on with another one.

        A position with a purge limit is read on from disk, too: snapshots from memory may have several versions of a
        document up to the limit.

        A guarded stream brings one snapshot, because a node lets it ignore purged deletions as long as it lasts. At the
        marker of the second one it is closed, and the reader goes on with another stream.
        """
        if self._ending.pop(vbid, None) is not None:
            self._send_close(vbid)
        start, snapshot_start, snapshot_end = offset.request_bounds()
        is_guarded = purged is Purged.GUARD
        requested_end = MAX_SEQNO if is_guarded else max(end_seqno, start)
        tracker = PositionTracker(offset, held=held)
        stream = Stream(self._new_opaque(), vbid, end_seqno, tracker, requested_end, names=names)
        stream.is_filtered = self.has_collections and wanted.is_filtered
        stream.is_resumed = start > 0
        stream.ignores_purged, stream.is_guarded = purged is not Purged.REFUSE, is_guarded
        stream.is_of_replica = wanted.may_be_of_replica
        flags = 0 if stream.is_of_replica else _ACTIVE_ONLY
        if stream.ignores_purged:
            flags |= _IGNORE_PURGED
        is_hidden = stream.is_filtered and not self._is_8_0 and snapshot_start < start < snapshot_end
        is_limited = offset.purge_limit is not None and start < requested_end
        if (is_hidden or is_limited) and not is_guarded:
            flags |= _DISK_ONLY
            stream.is_of_disk = True
            stream.requested_end = MAX_SEQNO  # the node stops where its disk ends
        if self.has_collections and (stream.is_filtered or offset.manifest_uid):
            stream.value = _filter_text(wanted, offset.manifest_uid)
        self._send(
            StreamRequest.pack(
                flags,
                0,
                start,
                requested_end,
                offset.vbuuid if start else 0,
                snapshot_start,
                snapshot_end,
                vbid=vbid,
                opaque=stream.opaque,
                value=stream.value,
            )
        )
        self._streams[stream.opaque] = stream
        self._requests.sent(stream.opaque, Opcode.DCP_STREAM_REQ, now)
        return stream

    def close_stream(self, stream: Stream) -> None:
        """Close a stream; messages that still arrive for it are dropped. No event follows."""
        held, stream.held = stream.held or (), None
        for event in held:
            if isinstance(event, RowsReceived):
                self.consumed(event.flow_bytes)
        self._close(stream)

    def _close(self, stream: Stream) -> None:
        if self._streams.get(stream.opaque) is stream:
            self._forget(stream)
            self._send_close(stream.vbid)

    def _forget(self, stream: Stream) -> None:
        """The stream is over here; what still comes for it is dropped."""
        del self._streams[stream.opaque]
        self.forgotten += 1
        if self._table is not None:
            self._table.forget(stream)
        _remember(self._closed, stream.opaque, stream.vbid)

    def _send_close(self, vbid: int) -> None:
        opaque = self._new_opaque()
        self._send(CloseStream.pack(vbid=vbid, opaque=opaque))
        _remember(self._closings, opaque, vbid)

    def request(self, request: Request, now: float) -> int:
        """Send any other request; its answer comes as an Answer with the returned opaque."""
        opaque = self._new_opaque()
        self._send(with_opaque(request.encode(), opaque))
        self._requests.sent(opaque, request.layout.opcode, now)
        return opaque

    def consumed(self, flow_bytes: int) -> None:
        """The user has consumed rows of this many bytes: the node may send as much again."""
        window = self.window
        window.freed(flow_bytes)
        freed = window.take()
        if freed:
            self._send(BufferAck.pack(freed))

    def data_to_send(self) -> bytes:
        """The bytes to send now."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def events(self) -> Iterator[Event]:
        """The events so far, each once."""
        while self._events:
            yield self._events.popleft()

    def next_timeout(self) -> float:
        """The latest time to call `handle_timeout`."""
        silence, answer = self._silence.deadline, self._requests.deadline
        return silence if answer is None else min(silence, answer)

    def handle_timeout(self, now: float) -> None:
        """Check the clocks.

        Raises:
            DeadConnection: the node is silent, or an answer is overdue.
        """
        if self._silence.is_over(now):
            raise DeadConnection(f"{self.address} has been silent for {self._silence.limit_s:.0f} s, NOOPs included")
        overdue = self._requests.overdue(now)
        if overdue is not None:
            raise DeadConnection(
                f"{self.address} has not answered {code_name(Opcode, overdue)} within {ANSWER_TIMEOUT_S:.0f} s"
            )

    def receive_rows(self, rows: Rows, now: float) -> None:
        """Take the rows and control messages of one receive.

        Raises:
            RemoteProtocolError: the node breaks the protocol; close the connection and resume elsewhere.
            ConnectionLost: the login is over.
        """
        self._silence.received(now)
        turn = _Turn(now)
        try:
            self._walk(rows, turn)
        except struct.error as error:
            raise RemoteProtocolError(f"{self.address} sent a message that is cut short: {error}") from error
        finally:
            # Also when a message breaks the protocol: positions have moved past the rows before it.
            self._report(rows, turn)
        window = self.window
        if window.is_overrun:
            raise RemoteProtocolError(
                f"{self.address} has sent {window.outstanding_bytes} bytes without an acknowledgement, in spite of a "
                f"window of {window.buffer_bytes}"
            )

    def _walk(self, rows: Rows, turn: _Turn) -> None:
        controls = rows.controls
        next_control = 0
        unordered, strays = rows.disorder()
        runs = rows.runs()
        for (first, stop, opaque), (vbid, first_seqno, last_seqno) in zip(runs, rows.edges(runs), strict=True):
            while next_control < len(controls) and controls[next_control][0] <= first:
                turn.row = controls[next_control][0]
                self._control(controls[next_control][1], turn)
                next_control += 1
            stream = self._streams.get(opaque)
            if stream is None or stream.vbid != vbid or stream.log is None:
                stream = self._stream_of(opaque, vbid, turn)
                if stream is None:
                    continue
            else:
                self._handled(stream)
            try:
                if unordered or strays:
                    self._run_with_fault(rows, first, stop, stream, unordered, strays, turn)
                else:
                    self._run(rows, first, stop, first_seqno, last_seqno, stream, turn)
            except RemoteProtocolError as error:
                self._break(stream, str(error), turn)
        for turn.row, frame in controls[next_control:]:
            self._control(frame, turn)

    def _stream_of(self, opaque: int, vbid: int, turn: _Turn) -> Stream | None:
        """The open stream that a message belongs to; None if it is dropped.

        It is dropped if the stream is over, or ends with it: it is of another vbucket, or comes before the answer.

        Raises:
            RemoteProtocolError: there was never such a stream.
        """
        stream = self._streams.get(opaque)
        if stream is None:
            if opaque in self._closed:
                return None
            self._refuse(f"vbucket {vbid}: a message for opaque 0x{opaque:x}, which is that of no stream")
        if stream.vbid != vbid:
            self._break(stream, f"a message of vbucket {vbid} in its stream", turn)
            return None
        if stream.log is None:
            self._break(stream, "a message before the answer to the stream request", turn)
            return None
        self._handled(stream)
        return stream

    def _handled(self, stream: Stream) -> None:
        """A message of a stream is handled here: the kernel may follow the next ones."""
        if self._table is not None:
            self._table.changed(stream)

    def _break(self, stream: Stream, what: str, turn: _Turn) -> None:
        """End a stream on which the node broke the protocol: close it, unless the node has ended it."""
        self._close(stream)
        error = RemoteProtocolError(f"{self.address} broke the protocol: vbucket {stream.vbid}: {what}")
        turn.last.append(StreamBroken(stream, error))

    def _run_with_fault(
        self,
        rows: Rows,
        first: int,
        stop: int,
        stream: Stream,
        unordered: Sequence[int],
        strays: Sequence[int],
        turn: _Turn,
    ) -> None:
        """A run that may have a row of another vbucket, or one that does not follow the row before: take those before.

        If those before reach the end of the stream, none is taken: rows may be missing, and no later one would show it.

        Raises:
            RemoteProtocolError: it has.
        """
        stray = _first_within(strays, first, stop)
        late = None if stream.tracker.is_out_of_order else _first_within(unordered, first, stop)
        end = min(stop if stray is None else stray, stop if late is None else late)
        if end == stop or (end > first and rows.seqno(end - 1) < stream.end_seqno):
            self._run(rows, first, end, rows.seqno(first), rows.seqno(end - 1), stream, turn)
        if end == stop:
            return
        if end == stray:
            raise RemoteProtocolError(f"a message of vbucket {rows.vbid(end)} in its stream")
        refuse(not_above(rows.seqno(end - 1), rows.seqno(end)))

    def _refuse(self, what: str) -> NoReturn:
        raise RemoteProtocolError(f"{self.address} broke the protocol: {what}")

    def _report(self, rows: Rows, turn: _Turn) -> None:
        flow_bytes = rows.wire_bytes - turn.uncounted
        self.window.received(flow_bytes)
        self._events.extend(turn.first)
        for stream, runs in turn.held.items():
            if stream.held is not None:
                stream.held.append(RowsReceived(rows, runs, flow_bytes))
                flow_bytes = 0  # they are consumed with these rows
        moves = rows.moves if rows.moves is not None and rows.moves.runs else None
        if turn.runs or moves is not None:
            self._events.append(RowsReceived(rows, turn.runs, flow_bytes, moves, self.forgotten))
        else:
            self.consumed(flow_bytes)
        for event in turn.last:
            (self._events if event.stream.held is None else event.stream.held).append(event)
        for checked in turn.checked:
            held, checked.stream.held = checked.stream.held, None
            if held is not None:
                self._events += (checked, *held)

    def _new_opaque(self) -> int:
        """An opaque that the connection has not used before."""
        opaque = self._next_opaque
        if opaque > MAX_OPAQUE:
            raise DeadConnection(f"{self.address}: all opaques of the connection are used up; connect again")
        self._next_opaque += 1
        return opaque

    def _send(self, data: bytes) -> None:
        self._out.append(data)

    def _run(
        self, rows: Rows, first: int, stop: int, first_seqno: int, last_seqno: int, stream: Stream, turn: _Turn
    ) -> None:
        """Rows first..stop of one stream, all under the same marker, with the seqnos of the first and the last one."""
        tracker = stream.tracker
        if tracker.is_out_of_order:
            # All of them count: nothing is known to be read up to a seqno before the end of such a snapshot. But what
            # fills a gap ends where the gap does.
            tracker.item(rows.highest(first, stop))
            if not tracker.is_held:
                turn.add(stream, tracker.run(stream.vbid, first, stop))
                return
            for row in range(first, stop):
                if rows.seqno(row) <= stream.end_seqno:
                    turn.add(stream, tracker.run(stream.vbid, row, row + 1))
            return
        cut = self._cut(rows, first, stop, first_seqno, last_seqno, tracker)
        if cut < stop:
            self._run(rows, first, cut, first_seqno, rows.seqno(cut - 1), stream, turn)
            if self._streams.get(stream.opaque) is stream:
                self._run(rows, cut, stop, rows.seqno(cut), last_seqno, stream, turn)
            return
        if last_seqno < stream.end_seqno:
            tracker.items(first_seqno, last_seqno)
            end = stop
        else:
            tracker.check(first_seqno, last_seqno)
            end = rows.first_above(first, stop, stream.end_seqno)
            if end > first:
                tracker.items(first_seqno, rows.seqno(end - 1))
        if end > first:
            turn.add(stream, tracker.run(stream.vbid, first, end))
        if last_seqno >= stream.end_seqno:
            turn.row = end
            self._done(stream, turn)

    @staticmethod
    def _cut(rows: Rows, first: int, stop: int, first_seqno: int, last_seqno: int, tracker: PositionTracker) -> int:
        """The row from which on other bounds hold: those of the newest marker, or none, so that it breaks the protocol.

        Between, not at, the first and the last row; `stop` if there is none.
        """
        snapshots = tracker.snapshots
        limit, requested = snapshots.limit, snapshots.requested_end
        cut = stop
        if requested is not None and requested <= last_seqno:
            cut = min(stop, rows.first_above(first, stop, requested - 1) + 1)
        if limit is not None and first_seqno <= limit < last_seqno:
            cut = min(cut, rows.first_above(first, stop, limit))
        return cut

    def _done(self, stream: Stream, turn: _Turn) -> None:
        snapshots = stream.tracker.snapshots
        if snapshots.finish_at(stream.end_seqno):
            turn.moved(stream)
        if stream.end_seqno == stream.requested_end == snapshots.seqno and snapshots.is_complete:
            # The node has nothing left to send, and its STREAM_END follows.
            self._forget(stream)
            self._ending[stream.vbid] = stream.opaque
        else:
            self._close(stream)
        turn.last.append(StreamDone(stream))

    def _control(self, frame: Frame, turn: _Turn) -> None:
        """A message that is no row."""
        opcode = frame.opcode
        if frame.is_response:
            turn.uncounted += frame.size
            self._answer(frame, turn)
            return
        if frame.magic == Magic.SERVER_REQUEST:
            turn.uncounted += frame.size
            if opcode != CLUSTERMAP_CHANGE:
                self._refuse(f"a request with opcode 0x{opcode:02x} that was not asked for")
            turn.first.append(ConfigPushed(frame.key.decode(errors="replace"), _version_in(frame.extras), frame.value))
            return  # such requests are never answered
        turn.uncounted += frame.size - counted_bytes(opcode, frame.size)
        handler = _HANDLERS.get(opcode)
        if handler is None:
            if opcode == Opcode.DCP_NOOP:
                self._send(DcpNoopResponse.pack(opaque=frame.opaque))
                return
            self._refuse(f"a request {code_name(Opcode, opcode)}, which a producer does not send")
        stream = self._stream_of(frame.opaque, frame.vbid, turn)
        if stream is None:
            if opcode == Opcode.DCP_STREAM_END and self._ending.get(frame.vbid) == frame.opaque:
                del self._ending[frame.vbid]
            return
        try:
            handler(self, frame, stream, turn)
        except RemoteProtocolError as error:
            self._break(stream, str(error), turn)
        except (FieldError, struct.error) as error:
            self._break(stream, f"a message {code_name(Opcode, opcode)} that is cut short: {error}", turn)

    @_HANDLERS.of(Prepare, SeqnoAdvanced, Commit, Abort)
    def _moved(self, frame: Frame, stream: Stream, turn: _Turn) -> None:
        extras, place = _SEQNO_IN[frame.opcode]
        self._advance(stream, extras.unpack_from(frame.extras)[place], turn)

    @_HANDLERS.of(OsoSnapshot)
    def _out_of_order(self, frame: Frame, stream: Stream, turn: _Turn) -> None:
        """The start or the end of an out-of-order snapshot."""
        if not self._allows_oso:
            raise RemoteProtocolError("an out-of-order snapshot that was not asked for")
        stream.tracker.oso(OsoSnapshot.layout.extras.unpack_from(frame.extras)[0] == 1)
        turn.moved(stream)
        if not stream.tracker.is_out_of_order and stream.tracker.seqno >= stream.end_seqno:
            self._done(stream, turn)

    @_HANDLERS.of(StreamEnd)
    def _ended(self, frame: Frame, stream: Stream, turn: _Turn) -> None:
        """STREAM_END. Whether a node that says OK has sent everything is for the reader to decide."""
        (reason,) = StreamEnd.layout.extras.unpack(frame.extras)
        self._forget(stream)
        if stream.is_of_disk and reason == StreamEndReason.OK and stream.tracker.seqno < stream.end_seqno:
            # What is in memory follows: at once, or a little later if the disk does not have the whole snapshot yet.
            reason = StreamEndReason.ROLLBACK if stream.tracker.snapshots.is_complete else StreamEndReason.TOO_SLOW
        if reason == StreamEndReason.FILTER_EMPTY and not stream.is_filtered:
            self._break(stream, "the stream ends for its filter, but it has none", turn)
        else:
            turn.last.append(StreamStopped(stream, reason))

    def _advance(self, stream: Stream, seqno: int, turn: _Turn, event: CollectionEvent | None = None) -> None:
        """A seqno without a row: it moves the position like one."""
        is_unordered = stream.tracker.is_out_of_order
        stream.tracker.check(seqno, seqno)
        if seqno <= stream.end_seqno or (is_unordered and not stream.tracker.is_held):
            stream.tracker.item(seqno)
            reports = [] if event is None else follow(stream, event, seqno)
            for report in reports:
                turn.add(stream, stream.tracker.run(stream.vbid, turn.row, turn.row)._replace(event=report))
            if not reports:
                turn.moved(stream)
        if seqno >= stream.end_seqno and not is_unordered:
            self._done(stream, turn)

    @_HANDLERS.of(SnapshotMarker)
    def _marker(self, frame: Frame, stream: Stream, turn: _Turn) -> None:
        if len(frame.extras) == _MARKER.size:
            body = frame.extras
        elif len(frame.extras) == SnapshotMarkerV2.layout.extras_bytes and len(frame.value) >= _MARKER.size:
            body = frame.value  # later versions have the fields of the first one, and then others, in the value
        else:
            raise RemoteProtocolError("a snapshot marker of unknown layout", event=repr(frame))
        start, end, flags = _MARKER.unpack_from(body)
        is_first = stream.tracker.snapshots.announced is None
        is_unique = flags & _KIND == _FROM_DISK
        if stream.is_guarded and not is_first:
            self._stop(stream, StreamEndReason.ROLLBACK, turn)
            return
        if end < (stream.tracker.purge_limit or 0):
            # The node has less on disk than the reader's first snapshot had: rows may be deleted up to the limit.
            self._stop(stream, StreamEndReason.TOO_SLOW, turn)
            return
        stream.tracker.marker(start, end, is_unique=is_unique)
        if self._has_history and not flags & _HISTORY and end > stream.tracker.seqno:
            at = stream.tracker.run(stream.vbid, turn.row, turn.row)
            gap = HistoryGap(stream.vbid, stream.tracker.vbuuid, stream.tracker.seqno, end, at.offset())
            turn.add(stream, at._replace(event=gap))
        if stream.is_guarded:
            self._check_purged(frame, stream, turn, is_unique=is_unique)
        if flags & _ACK:
            self._send(SnapshotMarkerResponse.pack(opaque=frame.opaque))

    def _stop(self, stream: Stream, reason: StreamEndReason, turn: _Turn) -> None:
        """Close a stream before the snapshot that begins; the reader goes on with another one."""
        self._close(stream)
        turn.last.append(StreamStopped(stream, reason))

    def _check_purged(self, frame: Frame, stream: Stream, turn: _Turn, *, is_unique: bool) -> None:
        """The first marker of a guarded stream has come: find out which deletions its snapshot may lack."""
        if frame.extras == _V22:
            turn.first.append(PurgeChecked(stream, SnapshotMarkerV22.decode(frame).purge_seqno))
            return
        if not is_unique:
            turn.first.append(PurgeChecked(stream, None))
            return
        stream.held = []
        check = PurgeCheck(stream)
        self._checks[self.request(check.question(), turn.now)] = check
        start, snapshot_start, snapshot_end = stream.tracker.offset.request_bounds()
        again = StreamRequest(
            vbid=stream.vbid,
            flags=_ACTIVE_ONLY,
            start_seqno=start,
            end_seqno=start,
            vbuuid=stream.tracker.vbuuid,
            snapshot_start=snapshot_start,
            snapshot_end=snapshot_end,
            value=stream.value,
        )
        opaque = self.request(again, turn.now)
        self._checks[opaque] = check
        _remember(self._closed, opaque, stream.vbid)  # if the node opens it after all, it is empty

    @_HANDLERS.of(SystemEvent)
    def _system_event(self, frame: Frame, stream: Stream, turn: _Turn) -> None:
        """A scope or collection was created, dropped, flushed or modified; reported between the rows around it."""
        seqno = SystemEvent.layout.extras.unpack(frame.extras)[0]
        stream.tracker.check(seqno, seqno)
        event = event_in(frame)
        if event is not None:
            stream.tracker.manifest(event.manifest_uid)
        self._advance(stream, seqno, turn, event)

    def _answer(self, frame: Frame, turn: _Turn) -> None:
        if frame.status == Status.AUTH_STALE:
            # Also to BUFFER_ACK, which is not answered otherwise. The node goes on sending, up to the window.
            raise login_is_over(self.address)
        check = self._checks.get(frame.opaque)
        if check is not None and check.takes_item(frame):
            return
        asked = self._requests.answered(frame.opaque)
        if asked is None:
            self._unasked(frame)
            return
        if asked != frame.opcode:
            raise RemoteProtocolError(
                f"{self.address} answered {code_name(Opcode, asked)} with {code_name(Opcode, frame.opcode)}"
            )
        if check is not None:
            del self._checks[frame.opaque]
            match check.take(frame):
                case PurgeChecked() as checked:
                    turn.checked.append(checked)
                case StreamStopped() as stopped if stopped.stream.held is not None:
                    self.close_stream(stopped.stream)
                    turn.held.pop(stopped.stream, None)
                    turn.last.append(stopped)
                case None | StreamStopped():
                    pass  # the second answer is still to come, or the reader has closed the stream
                case answer:
                    assert_never(answer)
            return
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            turn.first.append(Answer(frame.opaque, frame))
            return
        stream = self._streams.get(frame.opaque)
        if stream is None:
            return  # it was closed before it was answered
        if frame.status == Status.SUCCESS:
            stream.log = decode_failover_log(frame.value)
            stream.tracker.opened(stream.log)
            self._handled(stream)
            turn.first.append(StreamOpened(stream, stream.log, stream.tracker.offset))
            return
        self._forget(stream)
        if frame.status == Status.ROLLBACK:
            if len(frame.value) != RollbackResponse.layout.value_bytes:
                self._break(stream, "a rollback without the seqno to go back to", turn)
                return
            turn.first.append(StreamRefused(stream, frame.status, RollbackResponse.unpack(frame)[0]))
        elif frame.status == Status.ERANGE and stream.is_of_disk:
            turn.first.append(StreamStopped(stream, StreamEndReason.TOO_SLOW))  # the disk does not reach the position
        else:
            turn.first.append(StreamRefused(stream, frame.status, value=frame.value))

    def _unasked(self, frame: Frame) -> None:
        """An answer that belongs to no pending request: to CLOSE_STREAM, or the success of a BUFFER_ACK.

        Raises:
            RemoteProtocolError: to anything else.
        """
        is_closing = frame.opcode == Opcode.DCP_CLOSE_STREAM and self._closings.pop(frame.opaque, None) is not None
        if not is_closing and (frame.opcode != Opcode.DCP_BUFFER_ACK or frame.status != Status.SUCCESS):
            self._refuse(
                f"an answer {code_name(Opcode, frame.opcode)} ({code_name(Status, frame.status)}) with opaque "
                f"0x{frame.opaque:x}, which no request has"
            )


_HANDLERS.require(
    (layout for layout in REQUESTS if Side.PRODUCER in layout.sent_by and layout.opcode not in DATA_OPCODES),
    # A NOOP belongs to no stream. A node sends the others to replicas alone, or to clients that ask for them.
    but=(DcpNoop, AddStream, CloseStream, SetVbucketState, DcpFlush, CacheTransfer, CacheTransferEnd),
)


def _remember(known: dict[int, int], opaque: int, of: int) -> None:
    """Add to a dict of bounded size."""
    known[opaque] = of
    if len(known) > CLOSED_STREAMS_MAX:
        del known[next(iter(known))]


@lru_cache(FILTERS_CACHED)
def _filter_text(wanted: RequestedRows, manifest_uid: int) -> bytes:
    """The value of a stream request: which scope or collections, and the manifest of the position, 0 for none."""
    value: dict[str, object] = {}
    if wanted.scope_id is not None:
        value["scope"] = f"{wanted.scope_id:x}"
    elif wanted.collection_ids is not None:
        value["collections"] = [f"{number:x}" for number in wanted.collection_ids]
    if manifest_uid:
        value["uid"] = f"{manifest_uid:x}"
    return json.dumps(value).encode()


def _version_in(extras: bytes) -> tuple[int, int] | None:
    """The map's version in the extras of a pushed cluster map; None if there is none."""
    if len(extras) != ClustermapVersion.size:
        return None
    version = ClustermapVersion.unpack_from(extras)
    return version.epoch, version.revision


def _first_within(rows: Sequence[int], first: int, stop: int) -> int | None:
    """The first of some rows, ascending, that lies within first..stop and is not the first there."""
    if not rows:
        return None
    index = bisect_right(rows, first)
    return rows[index] if index < len(rows) and rows[index] < stop else None
