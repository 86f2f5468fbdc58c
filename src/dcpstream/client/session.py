"""One DCP connection after its handshake: many streams, their positions, flow control, liveness.

Sans-IO. Rows go in as `Rows` (see `rows`), out come events in an order that is safe to act on: answers and opened
streams, then the rows of one receive, then streams that are done or have ended.

Theory of operation (what comes once per item or snapshot is read by plain structs, the rest by the message classes):

- A stream is known by the opaque of its request, which is never used again on the connection. Whatever arrives for
  another opaque (a stream that was closed and still had data under way) is dropped.
- A stream with an end is done at the first seqno at or above it: rows above the end are dropped, CLOSE_STREAM goes
  out, and what is still under way is dropped too.
- Flow control: the node stops when the window is full. What was dropped is acknowledged at once, the rest when the
  user has consumed it (`consumed`), so that what waits in memory never exceeds the window.
- Liveness: the node sends a NOOP every interval, so a connection that is silent for two intervals and a grace is dead.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dcpstream.client.events import (
    Answer,
    CollectionEvent,
    ConfigPushed,
    Event,
    RowsReceived,
    Stream,
    StreamDone,
    StreamOpened,
    StreamRefused,
    StreamStopped,
)
from dcpstream.client.handshake import DcpSettings
from dcpstream.client.resume import PositionTracker, Run
from dcpstream.client.rows import Rows
from dcpstream.errors import DeadConnection, RemoteProtocolError
from dcpstream.model import NodeAddress, StreamOffset
from dcpstream.wire import (
    BufferAck,
    CloseStream,
    Frame,
    Magic,
    MarkerFlag,
    Opcode,
    Status,
    StreamFlag,
    StreamRequest,
    SystemEvent,
    decode_message,
    encode_request,
    encode_response,
)
from dcpstream.wire.codes import code_name
from dcpstream.wire.values import decode_failover_log

SILENCE_GRACE_S = 10.0
"""Seconds beyond two NOOP intervals before a silent connection counts as dead."""

ANSWER_TIMEOUT_S = 60.0
"""Seconds a node may take to answer a request. A stream request may wait for a vbucket that is warming up."""

ACK_FRACTION = 5
"""BUFFER_ACK goes out when 1/5 of the window was consumed: often enough that the node never waits for us."""

PREPARE_EXTRA_BYTES = 2
"""What a server counts for a PREPARE in flow control beyond its length."""

MAX_OPAQUE = 0xFFFFFFFF

CLUSTERMAP_CHANGE = 0x01
"""Opcode of the one request that comes with the magic of server requests."""

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_RANGE = struct.Struct(">QQ")
_VERSION = struct.Struct(">qq")

_WITH_SEQNO = frozenset((Opcode.DCP_SYSTEM_EVENT, Opcode.DCP_PREPARE, Opcode.DCP_SEQNO_ADVANCED))
_WITH_SECOND_SEQNO = frozenset((Opcode.DCP_COMMIT, Opcode.DCP_ABORT))


@dataclass(slots=True)
class _Turn:
    """What one receive brings, collected in the order in which it is told.

    Attributes:
        row: how many rows stand before what is looked at.
    """

    first: list[Event] = field(default_factory=list)
    last: list[Event] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    row: int = 0
    uncounted: int = 0

    def moved(self, stream: Stream) -> None:
        """The stream's position moved without a row."""
        self.runs.append(stream.tracker.run(stream.vbid, self.row, self.row))


class DcpSession:
    """The streams of one connection.

    Args:
        address: the node, for messages.
        settings: what the connection was opened with.
        has_collections: whether keys carry collection ids, and stream requests may have a filter.
        now: seconds of a monotonic clock, as everywhere below.
    """

    def __init__(self, address: NodeAddress, settings: DcpSettings, has_collections: bool, now: float) -> None:
        self.address = address
        self.has_collections = has_collections
        self._settings = settings
        self._streams: dict[int, Stream] = {}
        self._requests: dict[int, tuple[int, float]] = {}
        self._next_opaque = 1
        self._out: list[bytes] = []
        self._events: deque[Event] = deque()
        self._consumed_bytes = 0
        self._last_received = now
        self._silence_s = 2 * settings.noop_interval_s + SILENCE_GRACE_S

    @property
    def streams(self) -> Sequence[Stream]:
        """The streams that were asked for and have not ended."""
        return list(self._streams.values())

    @property
    def has_requests(self) -> bool:
        """Whether answers are outstanding."""
        return bool(self._requests)

    def open_stream(
        self,
        vbid: int,
        offset: StreamOffset,
        end_seqno: int,
        now: float,
        *,
        collection_ids: Sequence[int] | None = None,
        ignore_purged: bool = False,
    ) -> Stream:
        """Ask for a vbucket's history after `offset`; answered by StreamOpened or StreamRefused.

        With `ignore_purged` also if deletions above the offset have been purged.

        Only from the active copy: a replica that lags would ask for a rollback that is none.
        """
        stream = Stream(self._new_opaque(), vbid, end_seqno, PositionTracker(offset))
        start, snapshot_start, snapshot_end = offset.request_bounds()
        value = b""
        if collection_ids is not None and self.has_collections:
            value = json.dumps({"collections": [f"{number:x}" for number in collection_ids]}).encode()
        request = StreamRequest(
            vbid=vbid,
            opaque=stream.opaque,
            flags=StreamFlag.ACTIVE_ONLY | (StreamFlag.IGNORE_PURGED_TOMBSTONES if ignore_purged else 0),
            reserved=0,
            start_seqno=start,
            end_seqno=max(end_seqno, start),
            vbuuid=offset.vbuuid if start else 0,
            snapshot_start=snapshot_start,
            snapshot_end=snapshot_end,
            value=value,
        )
        self._send(request.encode())
        self._streams[stream.opaque] = stream
        self._requests[stream.opaque] = (Opcode.DCP_STREAM_REQ, now)
        return stream

    def close_stream(self, stream: Stream) -> None:
        """Say that nothing more is wanted of a stream; what is under way is dropped. No event follows."""
        if self._streams.pop(stream.opaque, None) is not None:
            self._send(CloseStream(vbid=stream.vbid, opaque=self._new_opaque()).encode())

    def request(
        self, opcode: Opcode, now: float, *, vbid: int = 0, extras: bytes = b"", key: bytes = b"", value: bytes = b""
    ) -> int:
        """Send any other request; its answer comes as an Answer with the returned opaque."""
        opaque = self._new_opaque()
        self._send(encode_request(opcode, vbid=vbid, opaque=opaque, extras=extras, key=key, value=value))
        self._requests[opaque] = (opcode, now)
        return opaque

    def consumed(self, flow_bytes: int) -> None:
        """The user is through with rows of so many bytes: the node may send as much again."""
        self._consumed_bytes += flow_bytes
        if self._consumed_bytes * ACK_FRACTION >= self._settings.buffer_bytes:
            self._send(BufferAck(freed_bytes=self._consumed_bytes).encode())
            self._consumed_bytes = 0

    def data_to_send(self) -> bytes:
        """What the transport should send now."""
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
        """When `handle_timeout` should be called, if nothing else happens."""
        oldest = next(iter(self._requests.values()), None)
        silence = self._last_received + self._silence_s
        return silence if oldest is None else min(silence, oldest[1] + ANSWER_TIMEOUT_S)

    def handle_timeout(self, now: float) -> None:
        """Check the clocks.

        Raises:
            DeadConnection: the node is silent, or owes an answer for too long.
        """
        if now >= self._last_received + self._silence_s:
            raise DeadConnection(f"{self.address} has been silent for {self._silence_s:.0f} s, NOOPs included")
        oldest = next(iter(self._requests.values()), None)
        if oldest is not None and now >= oldest[1] + ANSWER_TIMEOUT_S:
            raise DeadConnection(
                f"{self.address} has not answered {code_name(Opcode, oldest[0])} within {ANSWER_TIMEOUT_S:.0f} s"
            )

    def receive_rows(self, rows: Rows, now: float) -> None:
        """Take the rows and control messages of one receive.

        Raises:
            RemoteProtocolError: the node breaks the protocol; close the connection and resume elsewhere.
        """
        self._last_received = now
        turn = _Turn()
        try:
            self._walk(rows, turn)
        except struct.error as error:
            raise RemoteProtocolError(f"{self.address} sent a message that is cut short: {error}") from error
        finally:
            # Also when a message breaks the protocol: positions have moved past the rows before it.
            self._tell(rows, turn)

    def _walk(self, rows: Rows, turn: _Turn) -> None:
        controls = rows.controls
        next_control = 0
        for first, stop, opaque in rows.runs():
            while next_control < len(controls) and controls[next_control][0] <= first:
                turn.row = controls[next_control][0]
                self._control(controls[next_control][1], turn)
                next_control += 1
            stream = self._streams.get(opaque)
            if stream is not None:
                self._run(rows, first, stop, stream, turn)
        for turn.row, frame in controls[next_control:]:
            self._control(frame, turn)

    def _tell(self, rows: Rows, turn: _Turn) -> None:
        flow_bytes = rows.wire_bytes - turn.uncounted
        self._events.extend(turn.first)
        if turn.runs:
            self._events.append(RowsReceived(rows, turn.runs, flow_bytes))
        else:
            self.consumed(flow_bytes)
        self._events.extend(turn.last)

    def _new_opaque(self) -> int:
        """Never used twice on a connection: 2^32 requests are more than a connection lives to see."""
        opaque = self._next_opaque
        if opaque > MAX_OPAQUE:
            raise DeadConnection(f"{self.address}: all opaques of the connection are used up; connect again")
        self._next_opaque += 1
        return opaque

    def _send(self, data: bytes) -> None:
        self._out.append(data)

    def _run(self, rows: Rows, first: int, stop: int, stream: Stream, turn: _Turn) -> None:
        """Rows first..stop of one stream, all under the same marker."""
        tracker = stream.tracker
        if tracker.is_out_of_order:
            # All of them count: nothing is known to be read up to a seqno before the end of such a snapshot.
            tracker.item(rows.highest(first, stop))
            turn.runs.append(tracker.run(stream.vbid, first, stop))
            return
        last_seqno = rows.seqno(stop - 1)
        if last_seqno < stream.end_seqno:
            tracker.item(last_seqno)
            end = stop
        else:
            end = rows.first_above(first, stop, stream.end_seqno)
            if end > first:
                tracker.item(rows.seqno(end - 1))
        if end > first:
            turn.runs.append(tracker.run(stream.vbid, first, end))
        if last_seqno >= stream.end_seqno:
            turn.row = end
            self._done(stream, turn)

    def _done(self, stream: Stream, turn: _Turn) -> None:
        if stream.tracker.reached(stream.end_seqno):
            turn.moved(stream)
        self.close_stream(stream)
        turn.last.append(StreamDone(stream))

    def _control(self, frame: Frame, turn: _Turn) -> None:
        if frame.is_response:
            turn.uncounted += frame.size
            self._answer(frame, turn)
            return
        if frame.magic == Magic.SERVER_REQUEST:
            turn.uncounted += frame.size
            if frame.opcode == CLUSTERMAP_CHANGE:
                version = _VERSION.unpack(frame.extras) if len(frame.extras) == _VERSION.size else None
                turn.first.append(ConfigPushed(frame.key.decode(errors="replace"), version, frame.value))
            return  # such requests want no answer
        opcode = frame.opcode
        if opcode == Opcode.DCP_NOOP:
            turn.uncounted += frame.size
            self._send(encode_response(Opcode.DCP_NOOP, opaque=frame.opaque))
            return
        if opcode == Opcode.DCP_PREPARE:
            turn.uncounted -= PREPARE_EXTRA_BYTES
        stream = self._streams.get(frame.opaque)
        if stream is None:
            return
        if opcode == Opcode.DCP_SNAPSHOT_MARKER:
            self._marker(frame, stream)
        elif opcode == Opcode.DCP_STREAM_END:
            del self._streams[stream.opaque]
            reason = _U32.unpack(frame.extras)[0] if len(frame.extras) == _U32.size else -1
            turn.last.append(StreamStopped(stream, reason))
        elif opcode in _WITH_SEQNO:
            if opcode == Opcode.DCP_SYSTEM_EVENT:
                self._system_event(frame, stream, turn)
            self._advance(stream, _U64.unpack_from(frame.extras)[0], turn)
        elif opcode in _WITH_SECOND_SEQNO:
            self._advance(stream, _U64.unpack_from(frame.extras, 8)[0], turn)
        elif opcode == Opcode.DCP_OSO_SNAPSHOT:
            stream.tracker.oso(_U32.unpack_from(frame.extras)[0] == 1)
            turn.moved(stream)
            if not stream.tracker.is_out_of_order and stream.tracker.seqno >= stream.end_seqno:
                self._done(stream, turn)

    def _advance(self, stream: Stream, seqno: int, turn: _Turn) -> None:
        """A seqno without a row: it moves the position like one."""
        is_unordered = stream.tracker.is_out_of_order
        if seqno <= stream.end_seqno or is_unordered:
            stream.tracker.item(seqno)
            turn.moved(stream)
        if seqno >= stream.end_seqno and not is_unordered:
            self._done(stream, turn)

    def _marker(self, frame: Frame, stream: Stream) -> None:
        if len(frame.extras) == 20:
            body = frame.extras
        elif len(frame.extras) == 1 and len(frame.value) >= 20:
            body = frame.value
        else:
            raise RemoteProtocolError("a snapshot marker of unknown layout", event=repr(frame))
        start, end = _RANGE.unpack_from(body)
        stream.tracker.marker(start, end)
        if _U32.unpack_from(body, 16)[0] & MarkerFlag.ACK:
            self._send(encode_response(Opcode.DCP_SNAPSHOT_MARKER, opaque=frame.opaque))

    def _system_event(self, frame: Frame, stream: Stream, turn: _Turn) -> None:
        message = decode_message(frame)
        if not isinstance(message, SystemEvent) or message.version > 1 or len(frame.value) < 12:
            return  # a layout that says more than names; rows then show the collection's id
        uid = _U64.unpack_from(frame.value)[0]
        stream.tracker.manifest(uid)
        has_collection = len(frame.value) >= 16
        turn.first.append(
            CollectionEvent(
                vbid=stream.vbid,
                event=message.event,
                manifest_uid=uid,
                scope_id=_U32.unpack_from(frame.value, 8)[0],
                collection_id=_U32.unpack_from(frame.value, 12)[0] if has_collection else None,
                name=frame.key.decode("utf-8", "backslashreplace"),
            )
        )

    def _answer(self, frame: Frame, turn: _Turn) -> None:
        asked = self._requests.pop(frame.opaque, None)
        if asked is None:
            return
        if asked[0] != frame.opcode:
            raise RemoteProtocolError(
                f"{self.address} answered {code_name(Opcode, asked[0])} with {code_name(Opcode, frame.opcode)}"
            )
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            turn.first.append(Answer(frame.opaque, frame))
            return
        stream = self._streams.get(frame.opaque)
        if stream is None:
            return
        if frame.status == Status.SUCCESS:
            stream.log = decode_failover_log(frame.value)
            stream.tracker.opened(stream.log)
            turn.first.append(StreamOpened(stream, stream.log, stream.tracker.offset))
            return
        del self._streams[stream.opaque]
        if frame.status == Status.ROLLBACK:
            if len(frame.value) != _U64.size:
                raise RemoteProtocolError(f"{self.address} asks for a rollback without saying to where")
            turn.first.append(StreamRefused(stream, frame.status, _U64.unpack(frame.value)[0]))
        else:
            turn.first.append(StreamRefused(stream, frame.status, value=frame.value))
