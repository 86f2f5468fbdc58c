"""A producer connection: the node's end of a DCP connection that sends history.

Theory of operation. The shell passes each frame with a DCP opcode to `handle`, reports changes in the bucket
(`vbucket_changed`, `vbucket_state_changed`, `vbucket_rolled_back`), and sends what `data_to_send` returns. Answers and
NOOPs are sent first and do not count for flow control. Then the streams in the ready queue take turns, one block each,
while the consumer's buffer has room. A change of a vbucket puts its streams into the ready queue; an idle stream costs
nothing. `close_reason` is set when a server would drop the connection; the shell then closes it and sends nothing more.

Each handled request leaves one answer until the next call of `data_to_send`. The shell bounds the answers by that call
after each read.

It refuses to know: sockets, time (an argument), authentication, commands other than DCP's.

Source: kv_engine engines/ep/src/dcp/producer.cc; answers and drops as in recordings of a server.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from dcpstream.dcp.bucket import HistorySource, VBucketView
from dcpstream.dcp.controls import (
    BUFFER_SIZE,
    CONTROLS,
    ProducerSettings,
    apply_control,
    control_of,
)
from dcpstream.dcp.liveness import DEFAULT_IDLE_TIMEOUT_S, NoopTimer, earliest
from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer.privilege import StreamAccess, everything
from dcpstream.dcp.producer.requests import StreamMaker
from dcpstream.dcp.producer.responses import is_tolerated
from dcpstream.dcp.producer.rollback import Rollback
from dcpstream.dcp.producer.states import OVER, ROLLED_BACK, Phase
from dcpstream.dcp.producer.stream import ProducerStream, ServerFailure
from dcpstream.dcp.producer.takeover import TakeoverHost, Takeovers
from dcpstream.dcp.refusals import (
    ALREADY_OPEN,
    Refusal,
    answer,
    check_shape,
    refuse,
    stream_id_of,
    without_map,
)
from dcpstream.dcp.window import (
    BUFFER_FULL,
    INITIALIZING,
    NOTHING_TO_SAY,
    Pause,
    ProducerWindow,
)
from dcpstream.errors import RemoteProtocolError
from dcpstream.wire import Feature, Frame, Opcode, Status, StreamEndReason
from dcpstream.wire.buffers import Buffer, BufferPool
from dcpstream.wire.by_message import ByMessage
from dcpstream.wire.layout import Side
from dcpstream.wire.messages import ANSWERS, sent_by
from dcpstream.wire.messages.dcp import (
    BufferAck,
    CloseStream,
    Control,
    DcpNoop,
    GetFailoverLog,
    Open,
    RollbackResponse,
    SeqnoAcknowledged,
    StreamRequest,
)
from dcpstream.wire.release import DEFAULT_RELEASE, Release
from dcpstream.wire.server_bugs import ServerBug
from dcpstream.wire.values import encode_failover_log

_NEEDS_XERROR = frozenset((Status.EACCESS, Status.NO_BUCKET, Status.AUTH_STALE, Status.DCP_STREAMID_INVALID))
_NOT_MY_VBUCKET = Refusal(Status.NOT_MY_VBUCKET)
_BACKFILLING, _FINISHED = Phase.BACKFILLING, Phase.FINISHED
_NO_STREAMS: Mapping[int | None, ProducerStream] = MappingProxyType({})

SMALL_REST_BYTES = 32 * 1024
"""The last bytes of a much larger room stay empty: to read a few messages from the store would cost too much."""


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """Bounds of one producer connection.

    Attributes:
        turn_bytes: bytes that a stream may send in one turn: large enough to copy a block at memory speed, small enough
            that 1,024 streams share a connection.
        streams_max: streams of all vbuckets and stream ids: 64 stream ids for each of 1,024 vbuckets.
        idle_timeout_s: seconds of silence after which a peer with NOOPs enabled is given up.
        takeover_s: seconds that a takeover may follow a vbucket under writes; then writes are put off until the
            takeover has ended: the server's dcp_takeover_max_time.
        stuck_timeout_s: seconds that a window may stay full without an acknowledgement, see `stuck_names`.
        stuck_names: a regular expression: connections whose names contain a match are dropped after `stuck_timeout_s`.
            The default matches index projectors, which answer NOOPs in one thread while their reader hangs.
    """

    turn_bytes: int = 1024 * 1024
    streams_max: int = 64 * 1024
    idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S
    takeover_s: float = 60.0
    stuck_timeout_s: float = 720.0
    stuck_names: str = "^secidx"


DEFAULT_LIMITS = ProducerLimits()

TURN_FACTORS: Mapping[str, float] = MappingProxyType({"high": 10.0, "medium": 1.0, "low": 0.2})
"""`set_priority` → factor of a stream's turn. The server counts messages instead: 50, 5 and 1."""


_HANDLERS: ByMessage[Callable[[ProducerConnection, Frame], None]] = ByMessage("a producer")
"""The requests that a producer handles; any other well-formed DCP request ends the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerHost:
    """The part of a node that serves one producer connection.

    Attributes:
        takeovers: carries out takeovers in the bucket; without it they are refused.
        access: what the user may stream; everything by default.
        buffers: memory that blocks are copied to; the sender returns it. Fresh memory by default.
    """

    takeovers: TakeoverHost | None = None
    access: StreamAccess = everything
    buffers: BufferPool | None = None


USUAL_HOST = ProducerHost()


class ProducerConnection:
    """One producer connection.

    Args:
        opening: of the connection.
        source: the bucket.
        now: seconds of a monotonic clock.
        limits: bounds.
        release: the release that the producer is of, with its bugs.
        host: what the node does for the connection.
        cluster_map: the map that NOT_MY_VBUCKET gives to this client, JSON; empty for none.

    Attributes:
        close_reason: why the connection must be closed now, or None.
        is_internal: the client is the cluster manager, whose streams begin even when memory is short.
        settings: the values of the client's controls.
        window: the consumer's buffer.
        drops_when_stuck: whether a buffer that stays full ends the connection.
        bytes_sent: all messages of streams; neither answers nor NOOPs.
        wake_at: when `handle_timeout` must be called at the latest, as of the last event that made it earlier; or None.
        opened_at, last_sent_at, last_received_at: seconds of the monotonic clock.
        pause: the times in which nothing was sent.
    """

    def __init__(
        self,
        opening: Opening,
        source: HistorySource,
        now: float,
        limits: ProducerLimits = DEFAULT_LIMITS,
        *,
        release: Release = DEFAULT_RELEASE,
        host: ProducerHost = USUAL_HOST,
        cluster_map: Callable[[], bytes] = without_map,
    ) -> None:
        self.name = name = opening.name
        self._cluster_map = cluster_map
        self.open_flags = open_flags = opening.flags
        features = opening.features
        self.source = source
        self.limits = limits
        self.close_reason: str | None = None
        self.is_internal = False
        self.settings = ProducerSettings(
            open_flags=open_flags,
            release=release,
            has_snappy=Feature.SNAPPY in features or Feature.SNAPPY_EVERYWHERE in features,
            has_collections=Feature.COLLECTIONS in features,
            has_history=source.keeps_history,
            has_cache_transfer=source.has_cache_transfer,
            cursor_dropping="replication" not in name,
        )
        self.window = ProducerWindow()
        self.wake_at: float | None = None
        self.drops_when_stuck = re.search(limits.stuck_names, name) is not None
        self.noop = NoopTimer(now, limits.idle_timeout_s)
        self.has_collections = Feature.COLLECTIONS in features
        self._has_xerror = Feature.XERROR in features
        self.opened_at = now
        self.last_sent_at = now
        self.last_received_at = now
        self.pause = Pause(now, INITIALIZING)
        self._answers: deque[bytes] = deque()
        self._streams: dict[int, dict[int | None, ProducerStream]] = {}
        self._stream_count = 0
        self._streamed: set[int] = set()
        self._ready: deque[ProducerStream] = deque()
        self._unseen: list[ProducerStream] = []
        self._takeovers = Takeovers(host.takeovers, limits.takeover_s)
        self._maker = StreamMaker(
            self.settings,
            source,
            has_collections=self.has_collections,
            has_takeovers=host.takeovers is not None,
            streams_max=limits.streams_max,
            access=host.access,
            buffers=host.buffers,
        )
        self.bytes_sent = 0
        self._items_sent = 0
        self._events_sent = 0

    # ----------------------------------------------------------------------------------------------- what comes in

    def negotiated(self, features: Collection[int]) -> None:
        """HELLO came again: keys carry collection ids from now on, or no longer, as do those of streams under way."""
        self.has_collections = self._maker.has_collections = Feature.COLLECTIONS in features
        self._has_xerror = Feature.XERROR in features
        for streams in self._streams.values():
            for stream in streams.values():
                stream.at.form = replace(stream.at.form, collections=self.has_collections)

    def handle(self, frame: Frame, now: float) -> None:
        """Take one frame with a DCP opcode (or the answer to one)."""
        if self.close_reason is not None:
            return
        self.noop.silence.received(now)
        self.last_received_at = now
        if frame.is_response:
            self._handle_response(frame)
            return
        refusal = check_shape(frame, release=self.settings.release, has_collections=self.has_collections)
        if refusal is not None:
            self._refuse(frame, refusal)
            return
        handler = _HANDLERS.get(frame.opcode)
        if handler is None:
            self._drop(f"the client sent {Opcode(frame.opcode).name} to a producer")
            return
        handler(self, frame)

    @_HANDLERS.of(Open)
    def _handle_open(self, frame: Frame) -> None:
        self._refuse(frame, ALREADY_OPEN)

    @_HANDLERS.of(Control)
    def _handle_control(self, frame: Frame) -> None:
        settings = self.settings
        status, context = apply_control(settings, frame.key, frame.value)
        if status is not Status.SUCCESS:
            self._refuse(frame, Refusal(status, context))
            return
        self.noop.is_enabled = settings.noop_enabled
        self.noop.interval_s = settings.noop_interval_s
        if control_of(frame.key, settings.release) is CONTROLS[BUFFER_SIZE.encode()]:
            self.window.set_buffer(settings.buffer_bytes)
        self._answer(frame)
        self._set_wake_time()

    @_HANDLERS.of(BufferAck)
    def _handle_buffer_ack(self, frame: Frame) -> None:
        (count_bytes,) = BufferAck.unpack(frame)
        self.window.acknowledged(count_bytes, self.last_received_at)

    @_HANDLERS.of(GetFailoverLog)
    def _handle_failover_log(self, frame: Frame) -> None:
        view = self.source.vbucket(frame.vbid)
        if view is None:
            self._refuse(frame, _NOT_MY_VBUCKET)
        else:
            self._answer(frame, value=encode_failover_log(view.failover_log))

    @_HANDLERS.of(SeqnoAcknowledged)
    def _handle_seqno_acknowledged(self, frame: Frame) -> None:
        view = self.source.vbucket(frame.vbid)
        if not self.settings.is_sync_replication:
            self._answer(frame, Status.EINVAL)
        elif view is None:
            self._refuse(frame, _NOT_MY_VBUCKET)
        elif frame.vbid not in self._streamed:
            self._drop(f"an acknowledgement for vb {frame.vbid}, which was never streamed here")
        else:
            streams = self._streams.get(frame.vbid, _NO_STREAMS).values()
            living = (item for item in streams if item.at.end_reason is None)
            stream = next((item for item in living if item.terms.opaque == frame.opaque), None)
            (seqno,) = SeqnoAcknowledged.unpack(frame)
            if stream is not None and seqno > stream.at.sent_seqno:
                self._drop(f"an acknowledgement of seqno {seqno} in vb {frame.vbid}, which was not sent yet")
            elif stream is not None and view.durability is not None:
                view.durability.acknowledged(self.settings.consumer_name, seqno)

    @_HANDLERS.of(CloseStream)
    def _handle_close_stream(self, frame: Frame) -> None:
        stream_id = stream_id_of(frame)
        streams = self._streams.get(frame.vbid, {})
        if (stream_id is not None) != self.settings.stream_ids:
            self._refuse(frame, Refusal(Status.DCP_STREAMID_INVALID))
            return
        stream = streams.get(stream_id)
        is_over = stream is not None and stream.is_dead
        if is_over and stream is not None and not self.settings.release.has_bug(ServerBug.CLOSE_QUEUED):
            is_over = stream.at.phase in OVER
        if stream is None or is_over:
            if stream is not None and not self.settings.stream_end_on_client_close:
                self._discard(stream)  # as the server does, although the STREAM_END was not sent
            is_other_id = stream is None and bool(streams) and stream_id is not None
            self._refuse(frame, Refusal(Status.DCP_STREAMID_INVALID if is_other_id else Status.KEY_ENOENT))
            return
        self._answer(frame)
        stream.close(StreamEndReason.CLOSED)
        if self.settings.stream_end_on_client_close:
            self._queue(stream)
        else:
            self._discard(stream)

    @_HANDLERS.of(StreamRequest)
    def _handle_stream_request(self, frame: Frame) -> None:
        streams = self._streams.get(frame.vbid, _NO_STREAMS)
        try:
            made = self._maker.make(
                frame,
                streams,
                stream_count=self._stream_count,
                is_internal=self.is_internal,
                discard=self._discard,
            )
        except RemoteProtocolError as error:
            self._drop(str(error))
            return
        if isinstance(made, Refusal):
            self._refuse(frame, made)
        elif isinstance(made, Rollback):
            self._answers.append(RollbackResponse.pack(made.seqno, status=Status.ROLLBACK, opaque=frame.opaque))
        else:
            self._add(made)
            self._answer(frame, value=encode_failover_log(made.terms.view.failover_log))
            self._queue(made)

    def _handle_response(self, frame: Frame) -> None:
        """Take an answer of the client. A takeover waits for some; the others are tolerated or end the connection."""
        if frame.opcode == Opcode.DCP_NOOP and self.noop.answered(frame.opaque):
            self._set_wake_time()
            return
        answers = ANSWERS.get(frame.opcode)
        if answers is not None and answers.are_awaited:
            stream = self._takeovers.answered(frame)
            if stream is not None:
                self._queue(stream)
        elif not is_tolerated(
            frame.opcode,
            frame.status,
            has_v7_codes=self.settings.v7_status_codes,
            release=self.settings.release,
        ):
            self._drop(f"the client answered opcode 0x{frame.opcode:02x} with status 0x{frame.status:02x}")
        elif frame.opcode == Opcode.DCP_CACHE_TRANSFER and frame.status == Status.ENOMEM:
            for stream in self.streams():
                if stream.terms.opaque == frame.opaque:
                    stream.stop_cache_transfer()

    # ------------------------------------------------------------------------------------ what happens in the bucket

    def is_streaming_into(self, vbid: int) -> bool:
        """False: a producer receives no stream."""
        return False

    def vbucket_changed(self, vbid: int, now: float) -> bool:
        """Rows were written or persisted: queue the streams that have not read them.

        Returns: whether a stream is queued.
        """
        for stream in self._streams.get(vbid, _NO_STREAMS).values():
            # After a commit it usually has read all.
            if stream.at.read_seqno < stream.terms.view.high_seqno or stream.is_transferring_cache:
                self._queue(stream)
        return bool(self._ready)

    def vbucket_state_changed(self, vbid: int, now: float) -> None:
        """The vbucket's role changed, or it was deleted: its streams end."""
        view = self.source.vbucket(vbid)
        self._end_streams(vbid, StreamEndReason.STATE_CHANGED, view)

    def vbucket_rolled_back(self, vbid: int, now: float) -> None:
        """The vbucket's history was cut: its streams end."""
        self._end_streams(vbid, ROLLED_BACK, None)

    def _end_streams(self, vbid: int, reason: StreamEndReason, intact: VBucketView | None) -> None:
        """End a vbucket's streams.

        Args:
            intact: the vbucket, if its history was neither cut nor replaced.
        """
        for stream in self._streams.get(vbid, _NO_STREAMS).values():
            if stream.terms.view is intact:
                stream.close(reason)
            else:
                stream.end(reason)
            self._queue(stream)

    # ----------------------------------------------------------------------------------------------- what goes out

    @property
    def has_output(self) -> bool:
        """Whether `data_to_send` would return something now."""
        if self.close_reason is not None:
            return False
        return bool(self._answers) or (bool(self._ready) and not self.window.is_full)

    def take_answers(self, now: float) -> list[bytes]:
        """The waiting answers, in the order of the requests, for a shell that sends other answers in between."""
        out = [*self._answers]
        self._answers.clear()
        if out:
            self.last_sent_at = now
        return out

    def data_to_send(self, max_bytes: int, now: float) -> list[Buffer]:
        """Bytes to send now, in order; empty if there are none until a frame comes in or the bucket changes.

        Args:
            max_bytes: a soft limit: answers are sent whole, and a stream's turn is not cut short, so the result may be
                twice as large, plus one message.
            now: seconds of a monotonic clock.
        """
        if self.close_reason is not None:
            return []
        out: list[Buffer] = [*self._answers]
        self._answers.clear()
        made = sum(map(len, out))
        ready, window = self._ready, self.window
        is_sequential = self.settings.backfill_order == "sequential"
        turn_bytes = min(int(self.limits.turn_bytes * TURN_FACTORS[self.settings.priority]), max_bytes)
        enough, enough_of_turn = _enough_of(max_bytes), _enough_of(turn_bytes)
        while ready and made < enough:
            credit = window.credit_bytes
            if credit == 0:
                for fresh in self._unseen:
                    fresh.choose_first_snapshot()
                break
            stream = ready.popleft()
            try:
                pieces, size, counted, is_waiting = stream.produce(credit, turn_bytes, enough_of_turn)
            except ServerFailure as failure:
                if out:
                    ready.appendleft(stream)  # what came before is sent first
                    break
                self._drop(f"a bug of servers: {failure}")
                return []
            window.sent(counted)
            made += size
            self.bytes_sent += size
            out += pieces
            phase = stream.at.phase
            if phase is _FINISHED:
                self._remove(stream)
            elif is_waiting or not pieces:
                stream.is_queued = False
            elif window.is_full or (is_sequential and phase is _BACKFILLING):
                ready.appendleft(stream)  # its turn goes on
            else:
                ready.append(stream)
        self._unseen.clear()
        window.watch(now)
        is_stopped = bool(ready) and window.is_full
        self.pause.passed(now, is_over=bool(out), reason=BUFFER_FULL if is_stopped else NOTHING_TO_SAY)
        if out:
            self.last_sent_at = now
        if self.drops_when_stuck:
            self._set_wake_time()
        return out

    def buffer_changed(self) -> bool:
        """The window of a producer is its client's: it does not change with the bucket."""
        return False

    def set_idle_timeout(self, seconds: float) -> None:
        """Change how long the client may be silent."""
        self.noop.silence.limit_s = seconds
        self._set_wake_time()

    def _set_wake_time(self) -> None:
        """Something may be due earlier than before, or was carried out."""
        self.wake_at = earliest(self.noop.next_timeout, self._takeovers.next_timeout, self._stuck_deadline)

    @property
    def _stuck_deadline(self) -> float | None:
        since = self.window.stuck_since
        return since + self.limits.stuck_timeout_s if self.drops_when_stuck and since is not None else None

    def handle_timeout(self, now: float) -> None:
        """Send a NOOP that is due; drop a dead or stuck peer; put off the writes to a slow takeover."""
        if self.close_reason is not None:
            return
        if self.noop.is_dead(now):
            self._drop(f"nothing was received for {self.noop.silence.limit_s:g} s")
            return
        self._takeovers.handle_timeout(now)
        stuck = self._stuck_deadline
        if stuck is not None and now >= stuck:
            self._drop(f"nothing was acknowledged for {self.limits.stuck_timeout_s:g} s while the buffer was full")
            return
        opaque = self.noop.poll(now)
        if opaque is not None:
            self._answers.append(DcpNoop.pack(opaque=opaque))
        self._set_wake_time()

    # ----------------------------------------------------------------------------------------------------- helpers

    @property
    def stream_count(self) -> int:
        """The number of streams that are open or whose end was not sent yet."""
        return self._stream_count

    def stream(self, vbid: int, stream_id: int | None = None) -> ProducerStream | None:
        """A stream by vbucket and stream id."""
        return self._streams.get(vbid, {}).get(stream_id)

    def close(self, reason: str) -> None:
        """End the connection for an outside reason: another one took its name, or the bucket was deleted."""
        self._drop(reason)

    def _queue(self, stream: ProducerStream) -> None:
        if not stream.is_queued:
            stream.is_queued = True
            self._ready.append(stream)

    def _add(self, stream: ProducerStream) -> None:
        """Add a new stream; its vbucket and stream id are free."""
        self._streams.setdefault(stream.vbid, {})[stream.stream_id] = stream
        self._streamed.add(stream.vbid)
        self._unseen.append(stream)
        self._stream_count += 1
        if stream.terms.is_takeover:
            self._takeovers.begin(stream, self.last_received_at)
            self._set_wake_time()

    def _discard(self, stream: ProducerStream) -> None:
        """Remove a stream without sending anything more of it."""
        if stream.is_queued:
            self._ready.remove(stream)
        self._remove(stream)

    def _remove(self, stream: ProducerStream) -> None:
        streams = self._streams.get(stream.vbid, {})
        if streams.get(stream.stream_id) is stream:
            del streams[stream.stream_id]
            if stream.terms.is_takeover:
                self._takeovers.remove(stream)
            self._stream_count -= 1
            self._items_sent += stream.at.messages_sent
            self._events_sent += stream.at.events_sent
            if not streams:
                del self._streams[stream.vbid]

    def _answer(self, frame: Frame, status: Status = Status.SUCCESS, *, value: bytes = b"") -> None:
        self._answers.append(answer(frame, status, value=value))

    def _refuse(self, frame: Frame, refusal: Refusal) -> None:
        if refusal.status in _NEEDS_XERROR and not self._has_xerror:
            self._drop(f"{refusal.status.name}, which a client without extended errors does not know")
            return
        if refusal.status is Status.UNKNOWN_COLLECTION and not (self._has_xerror or self.has_collections):
            refusal = refusal._replace(status=Status.EINVAL)  # such a client does not know what a collection is
        self._answers.append(refuse(frame, refusal, self._cluster_map))

    def _drop(self, reason: str) -> None:
        if self.close_reason is None:
            self.close_reason = reason
            self.wake_at = None
            self.closed()
            self._answers.clear()
            self._ready.clear()
            self._unseen.clear()
            self._streams.clear()
            self._stream_count = 0

    def closed(self) -> None:
        """The connection was closed: writes that a takeover put off are accepted again."""
        self._takeovers.clear()

    # ------------------------------------------------------------------------------------------------------- stats

    @property
    def items_sent(self) -> int:
        """Mutations, deletions and the like sent so far."""
        return self._items_sent + sum(stream.at.messages_sent for stream in self.streams())

    @property
    def documents_sent(self) -> int:
        """Messages about documents sent so far: `items_sent` without the events of scopes and collections."""
        return self.items_sent - self._events_sent - sum(stream.at.events_sent for stream in self.streams())

    @property
    def items_remaining(self) -> int:
        """Seqnos that the living streams have not read; an upper bound of the messages to send."""
        living = (stream for stream in self.streams() if stream.at.end_reason is None)
        return sum(max(0, stream.terms.view.high_seqno - stream.at.read_seqno) for stream in living)

    @property
    def has_streamed(self) -> bool:
        """Whether there ever was a stream."""
        return bool(self._streamed)

    @property
    def ready_count(self) -> int:
        """The number of streams in the ready queue."""
        return len(self._ready)

    def streams(self) -> Iterator[ProducerStream]:
        """The streams that are open or whose end was not sent yet."""
        for streams in self._streams.values():
            yield from streams.values()

    def cursors(self, vbid: int) -> Iterator[tuple[str, int]]:
        """Name and position of each stream of a vbucket that reads from memory, now or later."""
        for stream in self._streams.get(vbid, _NO_STREAMS).values():
            if stream.at.end_reason is None and not stream.terms.is_disk_only:
                number = "" if stream.stream_id is None else f"sid:{stream.stream_id}"
                yield f"eq_dcpq:{self.name}{number}", stream.at.read_seqno


def _enough_of(max_bytes: int) -> int:
    """The number of bytes that fill a room of `max_bytes`; see `SMALL_REST_BYTES`."""
    return max_bytes - SMALL_REST_BYTES if max_bytes > 4 * SMALL_REST_BYTES else max_bytes


_HANDLERS.require(sent_by(Side.CONSUMER))
