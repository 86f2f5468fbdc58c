"""One stream of a producer: a vbucket's history after a seqno, in whole snapshots.

The functions of `next_step` decide what comes next. This module does it: it encodes the messages, renders the rows and
moves the stream's `Progress`.

A stream that is closed in the middle of a snapshot from memory still sends the rest of it before its STREAM_END,
because a server has already put the rest into the stream's queue. The rest of a snapshot from disk is not sent. If the
queue holds everything up to the end seqno, the server has ended the stream already (`is_dead`): it answers KEY_ENOENT,
and the rest and a STREAM_END with OK follow.

The stream buffers no messages: `produce` makes what may be sent now, at most a given number of bytes, and remembers
only seqnos. A message may start while fewer bytes than the given credit were made, so a stream overshoots its credit by
at most one message.

Source: kv_engine engines/ep/src/dcp/active_stream.cc; markers, flags and ends as in recordings of a server.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from dcpstream.dcp.producer.cache_transfer import CachedDocuments
from dcpstream.dcp.producer.next_step import (
    Advance,
    AskState,
    End,
    FailAsServer,
    Finish,
    PassOver,
    SendEnd,
    Step,
    StreamTerms,
    Wait,
    after_rows,
    begins_in_memory,
    between,
    within,
)
from dcpstream.dcp.producer.states import OVER, STREAM, Marker, Phase, Progress, Snapshot, StreamEvent
from dcpstream.dcp.producer.stream_filter import LiveFilter
from dcpstream.dcp.window import PREPARE_EXTRA_BYTES
from dcpstream.errors import StoreError
from dcpstream.wire import HEADER, HEADER_BYTES, FrameInfoId, Magic, MarkerFlag, Opcode, StreamEndReason, StreamFlag
from dcpstream.wire.buffers import Buffer, BufferPool
from dcpstream.wire.keys import encode_frame_info
from dcpstream.wire.layout import Request
from dcpstream.wire.messages import REQUESTS
from dcpstream.wire.messages.dcp import (
    CacheTransfer,
    CacheTransferEnd,
    OsoSnapshot,
    SeqnoAdvanced,
    SetVbucketState,
    SnapshotMarker,
    SnapshotMarkerV2,
    SnapshotMarkerV22,
    StreamEnd,
)
from dcpstream.wire.server_bugs import ServerBug
from dcpstream.wire.stored.block import BlockKind, FrameBlock, events_of
from dcpstream.wire.stored.rendering import render

# Looked up once: the members of an enumeration are slow to reach in Python 3.11, and every block needs some.
_BACKFILLING, _LAST_SNAPSHOT, _FINISHED = Phase.BACKFILLING, Phase.LAST_SNAPSHOT, Phase.FINISHED
_ROWS = STREAM.rows
_OSO_START, _OSO_END = 1, 2
_ACK, _DISK = int(MarkerFlag.ACK), int(MarkerFlag.DISK)
_SYSTEM_EVENT, _PREPARE = int(BlockKind.SYSTEM_EVENT), int(BlockKind.PREPARE)
_SEQNO_SECOND = frozenset(
    layout.opcode for layout in REQUESTS if layout.seqno and layout.extras_fields[0].name != layout.seqno
)
"""Opcodes of messages that have the prepare's seqno first."""
_SEQNO_BYTES = 8


class ServerFailure(Exception):
    """A bug of servers that the producer has ends the connection, as it does in a server."""


class ProducerStream:
    """One accepted stream.

    Args:
        terms: the request, and the answer to it.
        buffers: memory that blocks are copied to; fresh memory by default.

    Attributes:
        terms: as given.
        at: its progress.
        is_queued: whether the connection has it in its ready queue.
    """

    __slots__ = ("_buffers", "_cache", "_framing", "_kept", "at", "is_queued", "terms")

    def __init__(self, terms: StreamTerms, *, buffers: BufferPool | None = None) -> None:
        wanted, start = terms.wanted, terms.accepted.start_seqno
        live = None if wanted.collection_ids is None else LiveFilter(wanted, terms.source.manifest)
        self.terms = terms
        self.at = Progress(start, start, terms.form, live)
        self.is_queued = False
        self._buffers = buffers
        self._cache: CachedDocuments | None = None
        if terms.flags & StreamFlag.CACHE_TRANSFER and terms.source.has_cache_transfer:
            self._cache = CachedDocuments(wanted.cache_transfer, terms.view, terms.source, start, wanted.collection_ids)
        self._framing = b""
        if wanted.stream_id is not None:
            self._framing = encode_frame_info(FrameInfoId.DCP_STREAM_ID, wanted.stream_id.to_bytes(2, "big"))
        self._kept: Buffer = b""

    @property
    def vbid(self) -> int:
        """The vbucket's number."""
        return self.terms.view.vbid

    @property
    def stream_id(self) -> int | None:
        """The stream's id, if it has one."""
        return self.terms.wanted.stream_id

    @property
    def is_dead(self) -> bool:
        """Whether the stream has ended for a server, which may still send what it has queued."""
        return self.at.phase in OVER or self.at.phase is _LAST_SNAPSHOT

    @property
    def is_transferring_cache(self) -> bool:
        """Whether cached documents come before the history."""
        return self._cache is not None

    def stop_cache_transfer(self) -> None:
        """The other end has no memory for more cached documents: the stream goes on as if all were sent."""
        if self._cache is not None:
            self._cache.stop()

    def marker_answered(self) -> None:
        """The other end has received the whole of a snapshot."""
        self.at.unanswered_markers = max(0, self.at.unanswered_markers - 1)

    def state_answered(self) -> bool:
        """The other end changed its copy's state; as on the server, the status of the answer does not matter.

        Returns: whether the caller must make the vbucket here dead now, and then call `made_dead`.
        """
        if self.at.phase is Phase.PENDING_ASKED:
            self._go(StreamEvent.STATE_ANSWERED)
            return True
        if self.at.phase is Phase.ACTIVE_ASKED:
            self.end(StreamEndReason.OK)
        return False

    def made_dead(self) -> None:
        """The vbucket here is dead: what was written until now follows."""
        self._go(StreamEvent.MADE_DEAD)
        self.at.checkpoint_seqno = None  # a change of the vbucket's role closes the checkpoint

    def end(self, reason: int) -> None:
        """End the stream: its next and last message is a STREAM_END with this reason, or with an earlier one."""
        self._over(StreamEvent.ENDED, reason)

    def close(self, reason: int) -> None:
        """As `end`, but a snapshot from memory is sent whole before; the vbucket's history must be intact."""
        if self.at.end_reason is None:
            self._over(StreamEvent.CLOSED, reason)

    def _over(self, event: StreamEvent, reason: int) -> None:
        at = self.at
        self._go(event)
        if at.phase is Phase.DEAD:
            at.snapshot, self._kept = None, b""
        if at.end_reason is None:
            at.end_reason = reason

    def choose_first_snapshot(self) -> None:
        """Choose the first snapshot now if it is from memory, as a server does even while nothing may be sent."""
        if self._cache is None and begins_in_memory(self.terms, self.at):
            self._kept = self._next_piece(0, None) or b""

    def _go(self, event: StreamEvent) -> None:
        after = _ROWS[self.at.phase].get(event)
        self.at.phase = STREAM.after(self.at.phase, event, self.vbid) if after is None else after

    # ------------------------------------------------------------------------------------------------- what to send

    def produce(self, credit: int | None, max_bytes: int, enough: int) -> tuple[list[Buffer], int, int, bool]:
        """The messages that may be sent now.

        Args:
            credit: messages may start within this many bytes; None without flow control. Not 0.
            max_bytes: a soft limit: the result may exceed it by one message.
            enough: no further message is made once there are this many bytes.

        Returns: (pieces, their bytes, the bytes that count for flow control, whether nothing more is to be sent until
            the vbucket changes or an answer comes).

        Raises:
            ServerFailure: the connection ends.
        """
        at = self.at
        out: list[Buffer] = []
        made, rest, prepares, is_waiting = 0, credit, at.prepares_sent, False
        while made < enough and at.phase is not _FINISHED:
            if credit is not None:
                rest = credit - made - PREPARE_EXTRA_BYTES * (at.prepares_sent - prepares)
                if rest <= 0:
                    break
            try:
                piece = self._next_piece(max_bytes - made, rest)
            except ServerFailure:
                if not out:
                    raise
                break  # what came before is sent first
            if piece is None:
                is_waiting = True
                break
            if piece:
                out.append(piece)
                made += len(piece)
        return out, made, made + PREPARE_EXTRA_BYTES * (at.prepares_sent - prepares), is_waiting

    def _next_piece(self, room: int, credit: int | None) -> Buffer | None:
        """A marker, messages, or an end; empty if only the position moved, None if there is nothing to send now."""
        if self._kept:
            piece, self._kept = self._kept, b""
            return piece
        try:
            if self._cache is not None and self.at.phase not in OVER:
                return self._transfer(self._cache, room if credit is None else min(room, credit))
            snapshot = self.at.snapshot
            if snapshot is None:
                return self._take(between(self.terms, self.at))
            step = within(self.terms, self.at, snapshot, room if credit is None else min(room, credit))
            return self._send(step, snapshot, credit) if isinstance(step, FrameBlock) else self._take(step)
        except StoreError:  # of a read
            self.end(StreamEndReason.BACKFILL_FAILED)
            return b""

    def _transfer(self, cache: CachedDocuments, room: int) -> bytes | None:
        """The next message of the transfer of cached documents; its result is that of `_next_piece`."""
        if cache.is_over:
            self._cache = None
            has_more = self.terms.accepted.end_seqno > self.terms.accepted.start_seqno
            return self._pack(CacheTransferEnd) if has_more else b""
        records = cache.next_batch(room)
        return self._pack(CacheTransfer, value=records) if records else records

    def _take(self, step: Step) -> bytes | None:
        """Take a step without rows; the result is that of `_next_piece`."""
        match step:
            case Snapshot():
                return self._announce(step)
            case Wait():
                if step.event is not None:
                    self._go(step.event)
                return None
            case Finish():
                return self._finish(step)
            case Advance(seqno):
                return self._advance(seqno)
            case PassOver(seqno, event, marker):
                if event is not None:
                    self._go(event)
                piece = b"" if marker is None else self._mark(marker) + self._advance(marker.end)
                self.at.read_seqno = seqno
                return piece
            case FailAsServer(why):
                raise ServerFailure(why)
            case AskState(state):
                self._go(StreamEvent.HANDOVER)
                self._go(StreamEvent.STATE_SENT)
                return self._pack(SetVbucketState, state)
            case End(reason):
                self.end(reason)
                return b""
            case SendEnd(reason):
                self._go(StreamEvent.END_SENT)
                return self._pack(StreamEnd, reason)
            case _:
                assert_never(step)

    def _announce(self, snapshot: Snapshot) -> bytes:
        at = self.at
        if snapshot.event is not None:
            self._go(snapshot.event)
        at.snapshot, at.form = snapshot, snapshot.form
        if snapshot.marker is not None:
            return self._mark(snapshot.marker)
        at.has_announced, at.snapshot_end = True, snapshot.end
        return self._pack(OsoSnapshot, _OSO_START)

    def _mark(self, marker: Marker) -> bytes:
        """A snapshot marker, in the version that the client negotiated."""
        at, view, settings = self.at, self.terms.view, self.terms.settings
        start, end, flags, at.checkpoint_seqno = marker
        at.has_announced, at.snapshot_end = True, end
        if flags & _ACK:
            at.unanswered_markers += 1
        is_disk = flags & _DISK
        has_v22 = is_disk and settings.has_marker_v22
        if not (has_v22 or settings.is_sync_replication):
            return self._pack(SnapshotMarker, start, end, flags)
        if not settings.is_sync_replication:
            return self._pack(SnapshotMarkerV22, start, end, flags, 0, 0, view.purge_seqno, 0)
        durable = view.durability
        visible = end if durable is None else durable.visible_seqno(end)
        completed = 0 if durable is None or not is_disk else durable.high_completed_seqno
        if has_v22:
            prepared = 0 if durable is None else durable.high_prepared_seqno
            return self._pack(SnapshotMarkerV22, start, end, flags, visible, completed, view.purge_seqno, prepared)
        return self._pack(SnapshotMarkerV2, start, end, flags, visible, completed)

    def _send(self, block: FrameBlock, snapshot: Snapshot, credit: int | None) -> Buffer:
        """The messages of a block that was read, as far as the credit reaches."""
        at, wanted = self.at, self.at.filter
        count, kinds = len(block.starts), block.kinds
        if wanted is not None and kinds & _SYSTEM_EVENT:
            wanted.coming(events_of(block, 0, count))
            if wanted.collection_ids != at.form.collection_ids:
                at.form = replace(at.form, collection_ids=wanted.collection_ids)
        if credit is not None and kinds & _PREPARE:
            credit = max(1, credit - PREPARE_EXTRA_BYTES * count)
        data, next_index, messages = render(block, self.terms.opaque, at.form, 0, credit, self._buffers)
        at.read_seqno = int(block.seqnos[next_index - 1])
        at.messages_sent += messages
        if at.phase is _BACKFILLING:
            at.messages_backfilled += messages
        if kinds & _SYSTEM_EVENT:
            at.events_sent += _count_of(data, Opcode.DCP_SYSTEM_EVENT)
        if kinds & _PREPARE:
            at.prepares_sent += _count_of(data, Opcode.DCP_PREPARE)
        if messages == next_index:
            at.sent_seqno = at.read_seqno
        elif messages:
            at.sent_seqno = _last_seqno_of(data)
        at.skipped = 0 if messages else at.skipped + next_index
        if wanted is not None:
            wanted.passed(events_of(block, 0, next_index))
        step = after_rows(self.terms, at, snapshot)
        return data if step is None else self._take(step) or data

    def _finish(self, step: Finish) -> bytes:
        """The end of the snapshot."""
        at, snapshot = self.at, self.at.snapshot
        assert snapshot is not None, "a snapshot is under way"
        piece = self._advance(snapshot.end) if step.advances else b""
        if snapshot.marker is None:
            piece += self._pack(OsoSnapshot, _OSO_END)
            at.has_announced = not self.terms.has_bug(ServerBug.OSO_MARKER)
        at.read_seqno, at.snapshot = snapshot.limit, None
        if at.phase is _LAST_SNAPSHOT:
            self._go(StreamEvent.MEMORY)
        elif at.phase is _BACKFILLING and not self.terms.is_disk_only and not snapshot.is_prologue:
            self._go(StreamEvent.HANDOVER if self.terms.is_takeover else StreamEvent.MEMORY)
        return piece

    def _advance(self, seqno: int) -> bytes:
        self.at.skipped = 0
        self.at.sent_seqno = self.at.advanced_seqno = seqno
        return self._pack(SeqnoAdvanced, seqno)

    def _pack(self, message: type[Request], *fields: int, value: bytes = b"") -> bytes:
        """Any message of this stream: with its vbucket and opaque, and with its stream id if it has one."""
        terms = self.terms
        return message.pack(*fields, vbid=terms.view.vbid, opaque=terms.opaque, framing=self._framing, value=value)


def _last_seqno_of(data: Buffer) -> int:
    """The seqno of the last message in rendered bytes; most have it first in their extras."""
    at = last = 0
    while at < len(data):
        last = at
        at += HEADER_BYTES + HEADER.unpack_from(data, at)[6]
    seqno_at = last + HEADER_BYTES + (data[last + 2] if data[last] == Magic.FLEX_REQUEST else 0)
    if data[last + 1] in _SEQNO_SECOND:
        seqno_at += _SEQNO_BYTES
    return int.from_bytes(data[seqno_at : seqno_at + _SEQNO_BYTES], "big")


def _count_of(data: Buffer, wanted: Opcode) -> int:
    """The number of messages with an opcode among whole messages."""
    count = at = 0
    while at < len(data):
        _, opcode, _, _, _, _, body, _, _ = HEADER.unpack_from(data, at)
        count += opcode == wanted
        at += HEADER_BYTES + body
    return count
