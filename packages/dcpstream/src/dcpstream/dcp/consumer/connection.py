"""A consumer connection: the node's end of a DCP connection that receives history.

Theory of operation. A manager opens the connection, sends ADD_STREAM for a vbucket, and passes the frames of a producer
on. So requests go both ways: the manager's ADD_STREAM and CLOSE_STREAM and the producer's messages come in; controls,
STREAM_REQs and BUFFER_ACKs go out. The first ADD_STREAM starts the controls (`Negotiation`); STREAM_REQs wait until
these are done. An ADD_STREAM is answered when its STREAM_REQ was answered. Rows and markers are answered only if they
are refused; a refused message does not end its stream. `close_reason` is set when a server would drop the connection.

The node's opaques come from one counter. In headers a server writes the counter in its own byte order, in the answer to
ADD_STREAM in network order. This follows the recordings.

It refuses to know: sockets, time (an argument), authentication, how rows are stored (`ReplicaBucket`).

Source: kv_engine engines/ep/src/dcp/consumer.cc, checked against recordings of a server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from dcpstream.dcp.bucket import ReplicaBucket
from dcpstream.dcp.consumer.controls import Negotiation
from dcpstream.dcp.consumer.messages import (
    Dialect,
    read_change,
    read_decision,
    read_marker,
    read_prepare,
    read_system_event,
)
from dcpstream.dcp.consumer.requests import StreamRequests
from dcpstream.dcp.consumer.stream import ConsumerStream, StreamEvent
from dcpstream.dcp.controls import FLATBUFFERS, SYNC_WRITES, V7_STATUS_CODES
from dcpstream.dcp.liveness import DEFAULT_IDLE_TIMEOUT_S, Silence, earliest, opaque_of
from dcpstream.dcp.opening import Opening
from dcpstream.dcp.refusals import (
    ALREADY_OPEN,
    Refusal,
    check_shape,
    check_stream_flags,
    refuse,
    unknown_place,
    without_map,
)
from dcpstream.dcp.window import CONSUMER_BUFFER_BYTES, ConsumerWindow, Pause, counted_bytes
from dcpstream.errors import FieldError, RemoteProtocolError
from dcpstream.model import VbucketState
from dcpstream.wire import Datatype, Feature, Frame, Opcode, OpenFlag, Status, StreamEndReason
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.by_message import ByMessage
from dcpstream.wire.cached_items import cached_items
from dcpstream.wire.layout import Group, Side
from dcpstream.wire.messages import opcodes_of, sent_by
from dcpstream.wire.messages.dcp import (
    Abort,
    AddStream,
    BufferAck,
    CacheTransfer,
    CacheTransferEnd,
    CloseStream,
    Commit,
    DcpNoop,
    Deletion,
    Expiration,
    Mutation,
    Open,
    Prepare,
    SeqnoAcknowledged,
    SeqnoAdvanced,
    SetVbucketState,
    SnapshotMarker,
    SnapshotMarkerResponse,
    StreamEnd,
    SystemEvent,
)
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule

Row = TypeVar("Row")

QUESTIONS = opcodes_of(Group.QUESTION)
"""The requests of a consumer before its first STREAM_REQ."""

_SWALLOWED = frozenset(layout.opcode for layout in sent_by(Side.CONSUMER) if not layout.needs_answer)
"""Our requests that need no answer; an answer to them is ignored."""


def check_add_stream(frame: Frame, release: Release = DEFAULT_RELEASE) -> Refusal | None:
    """Refuse an ADD_STREAM for its shape or flags; None if they are legal. A stream id in it means nothing."""
    return check_shape(frame, release=release) or check_stream_flags(AddStream.decode(frame).flags, release)


_REASONS = frozenset(map(int, StreamEndReason))

ROOM_CHECK_S = 1.0
"""A replica without room holds its acknowledgement back. It looks for room again after this time, because a
bucket reports no event when room comes."""

_HANDLERS: ByMessage[Callable[[ConsumerConnection, Frame], None]] = ByMessage("a consumer")
"""The requests that a consumer handles; any other well-formed DCP request ends the connection."""


class ConsumerConnection:
    """One consumer connection.

    Args:
        opening: of the connection.
        replicas: the bucket.
        now: seconds of a monotonic clock.
        release: that of the node.
        idle_timeout_s: seconds without a request, after which a producer that was asked for NOOPs is given up. Answers
            to our requests do not count.
        cluster_map: the map that NOT_MY_VBUCKET gives to the peer, JSON; empty for none.

    Attributes:
        close_reason: why the connection must be closed now, or None.
        streams: by vbucket; a dead one stays until STREAM_END comes or another one replaces it.
        window: the bytes to acknowledge.
        release: as given.
        negotiation: the controls.
        opened_at: seconds of the monotonic clock.
        pause: the times in which nothing was sent.
    """

    def __init__(
        self,
        opening: Opening,
        replicas: ReplicaBucket,
        now: float,
        *,
        release: Release = DEFAULT_RELEASE,
        idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S,
        cluster_map: Callable[[], bytes] = without_map,
    ) -> None:
        self.name, features = opening.name, opening.features
        self._cluster_map = cluster_map
        self.release = release
        self.replicas = replicas
        self.close_reason: str | None = None
        self.streams: dict[int, ConsumerStream] = {}
        self.window = ConsumerWindow(now, self._buffer_bytes)
        self.opened_at = now
        self.pause = Pause(now)
        self._silence = Silence(now, idle_timeout_s)
        self._room_check_at = now
        self._last_opaque = 0
        self._out: deque[bytes] = deque()
        self._changing: ConsumerStream | None = None
        self.negotiation = Negotiation(
            opening.consumer_name, lambda: opaque_of(self._next_number()), release, self.window.buffer_bytes
        )
        self._has_collections = Feature.COLLECTIONS in features
        self._knows_unknown = self._has_collections or Feature.XERROR in features
        self._requests = StreamRequests(replicas, self._out, has_collections=self._has_collections)
        datatypes = Datatype.JSON
        if Feature.XATTR in features:
            datatypes |= Datatype.XATTR
        if Feature.SNAPPY in features:
            datatypes |= Datatype.SNAPPY
        self._dialect = Dialect(
            has_collections=self._has_collections,
            has_delete_times=bool(opening.flags & OpenFlag.INCLUDE_DELETE_TIMES),
            datatypes=int(datatypes),
        )

    def _next_number(self) -> int:
        self._last_opaque = self._last_opaque % 0xFFFFFFFF + 1
        return self._last_opaque

    # ----------------------------------------------------------------------------------------------- what comes in

    def handle(self, frame: Frame, now: float) -> None:
        """Take one frame with a DCP opcode, or the answer to a request of ours."""
        if self.close_reason is not None:
            return
        try:
            if frame.is_response:
                self._handle_response(frame)
            else:
                self._handle_request(frame, now)
        except RemoteProtocolError as error:
            self._drop(str(error))

    def _handle_request(self, frame: Frame, now: float) -> None:
        self.window.handled(counted_bytes(frame.opcode, frame.size))
        refusal = check_shape(frame, release=self.release, has_collections=self._has_collections)
        if refusal is not None and not self._is_advance(frame):
            self._refuse(frame, refusal)
            return
        self._silence.received(now)
        handler = _HANDLERS.get(frame.opcode)
        if handler is None:
            self._drop(f"the peer sent {Opcode(frame.opcode).name} to a consumer")
        else:
            handler(self, frame)

    def _is_advance(self, frame: Frame) -> bool:
        """Whether this is the SEQNO_ADVANCED of a stream that has no sync writes.

        A server knows the message at its clients only and answers UNKNOWN_COMMAND, although its own producer sends it
        to a copy without sync writes, in the place of durable writes, and drops the connection on that answer.
        """
        if frame.opcode != Opcode.DCP_SEQNO_ADVANCED or self.is_sync_replication:
            return False
        stream = self.streams.get(frame.vbid)
        is_of_stream = stream is not None and stream.opaque == frame.opaque
        return is_of_stream and SeqnoAdvanced.layout.mismatch(frame) is None

    @_HANDLERS.of(SeqnoAdvanced)
    def _handle_advance(self, frame: Frame) -> None:
        """SEQNO_ADVANCED has no answer, not even if it lies outside the snapshot."""
        stream = self.streams[frame.vbid]
        (seqno,) = SeqnoAdvanced.unpack(frame)
        stream.advance(seqno)
        self._after_row(stream)

    @_HANDLERS.of(Open)
    def _handle_open(self, frame: Frame) -> None:
        self._refuse(frame, ALREADY_OPEN)

    @_HANDLERS.of(DcpNoop)
    def _handle_noop(self, frame: Frame) -> None:
        self._answer(frame, Status.SUCCESS)

    # ---------------------------------------------------------------------------------------- streams come and go

    @_HANDLERS.of(AddStream)
    def _handle_add_stream(self, frame: Frame) -> None:
        refusal = check_add_stream(frame, self.release)
        if refusal is not None:
            self._refuse(frame, refusal)
            return
        view = self.replicas.vbucket(frame.vbid)
        if self.replicas.is_streamed_into(frame.vbid):
            self._answer(frame, Status.KEY_EEXISTS)
        elif view is None or view.state is VbucketState.ACTIVE:
            self._answer(frame, Status.NOT_MY_VBUCKET)
        else:
            number = self._next_number()
            flags = AddStream.decode(frame).flags
            stream = ConsumerStream(view, self.replicas, number, opaque_of(number), frame.opaque, flags)
            self.streams[frame.vbid] = stream
            self._requests.add(stream)
            if not self.negotiation.has_begun:
                self._out.extend(self.negotiation.begin())
            if self.negotiation.is_done:
                self._requests.send_waiting()

    @_HANDLERS.of(CloseStream)
    def _handle_close_stream(self, frame: Frame) -> None:
        stream = self.streams.get(frame.vbid)
        if stream is None:
            self._answer(frame, self._no_stream)
        else:
            stream.go(StreamEvent.CLOSED)
            self._answer(frame, Status.SUCCESS)

    @_HANDLERS.of(StreamEnd)
    def _handle_stream_end(self, frame: Frame) -> None:
        stream = self.streams.get(frame.vbid)
        if stream is None:
            self._answer(frame, self._no_stream)
        elif stream.opaque == frame.opaque:
            (reason,) = StreamEnd.unpack(frame)
            if reason not in _REASONS and self.release.has(Rule.UNKNOWN_REASON_CLOSES):
                self._drop(f"the peer ended the stream of vb {frame.vbid} with the unknown reason {reason}")
                return
            stream.go(StreamEvent.ENDED)
            del self.streams[frame.vbid]

    @property
    def _no_stream(self) -> Status:
        return Status.DCP_STREAM_NOT_FOUND if V7_STATUS_CODES in self.negotiation.accepted else Status.KEY_ENOENT

    @property
    def _other_opaque(self) -> Status:
        return Status.OPAQUE_NO_MATCH if V7_STATUS_CODES in self.negotiation.accepted else Status.KEY_EEXISTS

    # ------------------------------------------------------------------------------------------ messages of a stream

    def _stream_for(self, frame: Frame) -> ConsumerStream | None:
        """The stream that a message is for; None if there is none, and then the message was answered."""
        stream = self.streams.get(frame.vbid)
        if stream is None:
            self._answer(frame, self._no_stream)
        elif stream.opaque != frame.opaque:
            self._answer(frame, self._other_opaque)
        elif self.replicas.vbucket(frame.vbid) is not stream.view:  # it was deleted, and perhaps created again
            if stream.is_living:
                stream.go(StreamEvent.LOST)
            del self.streams[frame.vbid]
            self._answer(frame, self._no_stream)
        else:
            return stream
        return None

    @_HANDLERS.of(SnapshotMarker)
    def _handle_marker(self, frame: Frame) -> None:
        stream = self._stream_for(frame)
        if stream is not None:
            status = stream.marker(
                read_marker(frame),
                is_sync_replication=self.is_sync_replication,
                may_be_inside=not self.release.has(Rule.UNFINISHED_SNAPSHOT_CLOSES),
                is_visible_checked=self.release.has(Rule.VISIBLE_SEQNO_IS_CHECKED),
            )
            self._answer_status(frame, stream, status)

    @_HANDLERS.of(Mutation, Deletion, Expiration)
    def _handle_change(self, frame: Frame) -> None:
        self._store(frame, read_change(frame, self._dialect, self.replicas.unix_s), ConsumerStream.change)

    @_HANDLERS.of(CacheTransfer)
    def _handle_cache_transfer(self, frame: Frame) -> None:
        """Documents from the source's memory. The copy has them in its history, and no other memory to fill."""
        try:
            items = list(cached_items(frame.value))
        except FieldError as error:
            raise RemoteProtocolError(f"a transfer of cached documents: {error}") from error
        stream = self._stream_for(frame)
        if stream is not None:
            self._answer_status(frame, stream, stream.cached(item.key for item in items))

    @_HANDLERS.of(CacheTransferEnd)
    def _handle_cache_transfer_end(self, frame: Frame) -> None:
        stream = self._stream_for(frame)
        if stream is not None:
            stream.go(StreamEvent.MESSAGE)

    @_HANDLERS.of(SystemEvent)
    def _handle_system_event(self, frame: Frame) -> None:
        has_flatbuffers = FLATBUFFERS in self.negotiation.accepted
        event = read_system_event(frame, has_flatbuffers=has_flatbuffers)
        self._store(frame, event, ConsumerStream.system_event)

    @_HANDLERS.of(Prepare)
    def _handle_prepare(self, frame: Frame) -> None:
        self._store(frame, read_prepare(frame, self._dialect), ConsumerStream.prepare)

    @_HANDLERS.of(Commit, Abort)
    def _handle_decision(self, frame: Frame) -> None:
        self._store(frame, read_decision(frame, self._dialect), ConsumerStream.decide)

    def _store(self, frame: Frame, row: Row | Refusal, store: Callable[[ConsumerStream, Row], Status]) -> None:
        """Give a row to its stream, and answer the frame if either refuses it."""
        if isinstance(row, Refusal):
            self._refuse(frame, row)
            return
        stream = self._stream_for(frame)
        if stream is not None:
            self._answer_status(frame, stream, store(stream, row))
            self._after_row(stream)

    def _after_row(self, stream: ConsumerStream) -> None:
        """Answer the marker and acknowledge prepares, if the row was the last of its snapshot."""
        if stream.snapshot_done():
            self._out.append(SnapshotMarkerResponse.pack(opaque=stream.opaque))
        self._acknowledge_prepares(stream)

    def _acknowledge_prepares(self, stream: ConsumerStream) -> None:
        seqno = stream.acknowledged_prepare()
        if self.is_sync_replication:
            self._acknowledge(stream, seqno)

    def _acknowledge(self, stream: ConsumerStream, seqno: int) -> None:
        if seqno:
            self._out.append(SeqnoAcknowledged.pack(seqno, vbid=stream.vbid, opaque=stream.opaque))

    @_HANDLERS.of(SetVbucketState)
    def _handle_set_state(self, frame: Frame) -> None:
        number = frame.extras[0]
        if number not in tuple(VbucketState):
            self._refuse(frame, Refusal(Status.EINVAL, "Request body state invalid"))
            return
        stream = self._stream_for(frame)
        if stream is None:
            return
        self._changing = stream
        try:
            stream.set_state(VbucketState(number))
        finally:
            self._changing = None
        if stream.is_living:
            self._answer(frame, Status.SUCCESS)

    def _answer_status(self, frame: Frame, stream: ConsumerStream, status: Status) -> None:
        if status is Status.UNKNOWN_COLLECTION:
            uid = self.replicas.collections_uid(stream.view)
            code = status if self._knows_unknown else Status.EINVAL
            self._refuse(frame, unknown_place(code, uid))
        elif status is not Status.SUCCESS:
            self._answer(frame, status)

    @property
    def is_sync_replication(self) -> bool:
        """Whether the producer sends prepares and waits for this copy's acknowledgements."""
        return SYNC_WRITES in self.negotiation.accepted

    # ---------------------------------------------------------------------------------------------- answers to us

    def _handle_response(self, frame: Frame) -> None:
        if frame.opcode in QUESTIONS:
            self._out.extend(self.negotiation.answered(frame))
            if self.negotiation.is_done:
                self._requests.send_waiting()
        elif frame.opcode == Opcode.DCP_STREAM_REQ:
            stream = self._requests.answered(frame, self.streams.get)
            if stream is not None and self.is_sync_replication:
                self._acknowledge(stream, self.replicas.high_prepared_seqno(stream.view))
        elif frame.opcode not in _SWALLOWED:
            self._drop(f"the peer answered opcode 0x{frame.opcode:02x}, which was not asked")

    # ------------------------------------------------------------------------------------ what happens in the bucket

    def is_streaming_into(self, vbid: int) -> bool:
        """Whether the vbucket has a living stream."""
        stream = self.streams.get(vbid)
        return stream is not None and stream.is_living

    def vbucket_changed(self, vbid: int, now: float) -> bool:
        """Rows were written or persisted, so prepares may be durable now.

        Returns: True: there may also be room again; `data_to_send` looks for that.
        """
        stream = self.streams.get(vbid)
        if stream is not None and stream.is_reading:
            self._acknowledge_prepares(stream)
        return True

    def vbucket_state_changed(self, vbid: int, now: float) -> None:
        """The vbucket's role changed, or it was deleted: the stream into an active or deleted vbucket is lost."""
        stream = self.streams.get(vbid)
        if stream is None or stream is self._changing:
            return
        view = self.replicas.vbucket(vbid)
        if view is None or view.state is VbucketState.ACTIVE:
            stream.go(StreamEvent.LOST)
            del self.streams[vbid]

    @property
    def _buffer_bytes(self) -> int:
        has_share = self.release.has(Rule.REPLICAS_SHARE_QUOTA)
        return self.replicas.buffer_bytes if has_share else CONSUMER_BUFFER_BYTES

    def buffer_changed(self) -> bool:
        """The bucket's quota or its number of consumers changed; returns whether there may be something to send."""
        size = self._buffer_bytes
        if size == self.window.buffer_bytes or self.close_reason is not None:
            return False
        self.window.buffer_bytes = size
        self._out.extend(self.negotiation.resize(size))
        return True

    def vbucket_rolled_back(self, vbid: int, now: float) -> None:
        """Only the stream into a vbucket rolls it back, and that stream goes on."""

    # ----------------------------------------------------------------------------------------------- what goes out

    @property
    def has_output(self) -> bool:
        """Whether there are answers or questions to send."""
        return bool(self._out) and self.close_reason is None

    def take_answers(self, now: float) -> list[bytes]:
        """The messages to send, without acknowledgements of bytes, in the order of the requests."""
        out = [*self._out]
        self._out.clear()
        self.pause.passed(now, is_over=bool(out))
        return out

    def data_to_send(self, max_bytes: int, now: float) -> list[Buffer]:
        """The messages to send; empty if there are none. All of them are small, so `max_bytes` does not matter."""
        if self.close_reason is not None:
            return []
        if self.negotiation.has_begun:
            if not self.replicas.has_room:
                self._room_check_at = now + ROOM_CHECK_S
            elif freed := self.window.take(now):
                opaque = opaque_of(self._next_number())
                self._out.append(BufferAck.pack(freed, opaque=opaque))
        out: list[Buffer] = list(self._out)
        self._out.clear()
        self.pause.passed(now, is_over=bool(out))
        return out

    @property
    def wake_at(self) -> float | None:
        """The time at which `handle_timeout` must be called, for an acknowledgement or to give the producer up."""
        if self.close_reason is not None or not self.negotiation.has_begun:
            return None
        ack = self.window.next_timeout
        given_up_at = self._silence.deadline if self.negotiation.asked_for_noops else None
        return earliest(None if ack is None else max(ack, self._room_check_at), given_up_at)

    def set_idle_timeout(self, seconds: float) -> None:
        """Change how long the producer may be silent."""
        self._silence.limit_s = seconds

    def handle_timeout(self, now: float) -> None:
        """Give up a silent producer; an acknowledgement that is due is sent by `data_to_send`."""
        if self.negotiation.asked_for_noops and self._silence.is_over(now):
            self._drop(f"nothing was received for {self._silence.limit_s:g} s")

    def close(self, reason: str) -> None:
        """End the connection for an outside reason."""
        self._drop(reason)

    def _drop(self, reason: str) -> None:
        if self.close_reason is None:
            self.close_reason = reason
            self._out.clear()
            self._requests.clear()
            for stream in self.streams.values():
                stream.go(StreamEvent.LOST)
            self.streams.clear()

    def _answer(self, frame: Frame, status: Status) -> None:
        self._refuse(frame, Refusal(status))

    def _refuse(self, frame: Frame, refusal: Refusal) -> None:
        self._out.append(refuse(frame, refusal, self._cluster_map))

    # ------------------------------------------------------------------------------------------------------- stats

    @property
    def has_pending_streams(self) -> bool:
        """Whether an ADD_STREAM is not answered yet."""
        return not self._requests.is_idle

    def cursors(self, vbid: int) -> Iterator[tuple[str, int]]:
        """None: a consumer reads no history."""
        return iter(())


_HANDLERS.require(sent_by(Side.PRODUCER))
