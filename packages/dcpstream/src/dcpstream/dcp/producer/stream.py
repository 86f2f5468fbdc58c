"""One stream of a producer: a vbucket's history after a seqno, in whole snapshots.

Theory of operation. A stream reads its vbucket's log forward, in snapshots: it looks where the history ends now,
announces everything up to there with a marker, and sends the messages that are the newest of their keys at that seqno.
Then it looks again. It follows that a stream whose end seqno falls inside a snapshot still sends the whole snapshot,
that a key appears once in a snapshot, and that writes during a snapshot belong to the next one.

The first snapshot is "from disk" if the stream begins below what the vbucket keeps in memory, and "from memory"
otherwise (see `protocol.bucket` for that line). All later ones are from memory. The first snapshot from memory
and the first one in a new checkpoint carry the checkpoint flag.

A stream that is closed in the middle of a snapshot from memory still sends the rest of it before its STREAM_END,
because a server has already put the rest into the stream's queue. The rest of a snapshot from disk is not sent. If the
queue holds everything up to the end seqno, the server has ended the stream already (`is_dead`): it answers KEY_ENOENT,
and the rest and a STREAM_END with OK follow.

The stream buffers no messages: `produce` makes what may be sent now, at most a given number of bytes, and remembers
only seqnos. A message may start while fewer bytes than the given credit were made, so a stream overshoots its credit by
at most one message.

A takeover stream hands its vbucket over. When it has sent everything and every marker from memory was answered, it asks
the other end to make its copy pending. On the answer the vbucket here becomes dead, and the writes until then follow.
Then the stream asks the other end to make its copy active; on that answer the stream ends.

Source: kv_engine engines/ep/src/dcp/active_stream.cc; markers, flags and ends as in recordings of a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from dcpstream.dcp.bucket import DurableWrites, HistorySource, VBucketView
from dcpstream.dcp.controls import ProducerSettings
from dcpstream.dcp.producer.change_history import ChangeHistory
from dcpstream.dcp.producer.messages import StreamMessages, count_of, last_seqno_of
from dcpstream.dcp.producer.privilege import StreamAccess, everything, refusal_of
from dcpstream.dcp.producer.rollback import Accept
from dcpstream.dcp.producer.states import STREAM, TAKEOVER, StreamEvent, StreamState, TakeoverEvent, TakeoverState
from dcpstream.dcp.producer.stream_filter import LiveFilter, StreamFilter
from dcpstream.dcp.window import PREPARE_EXTRA_BYTES
from dcpstream.errors import StoreError
from dcpstream.model import VbucketState
from dcpstream.wire import Opcode, StreamEndReason, StreamFlag
from dcpstream.wire.buffers import Buffer, BufferPool
from dcpstream.wire.messages.dcp import SeqnoAdvanced, SetVbucketState, StreamEnd
from dcpstream.wire.stored.block import BlockKind, FrameBlock, events_of, seqnos_of
from dcpstream.wire.stored.durable import DurableForm
from dcpstream.wire.stored.form import StreamForm
from dcpstream.wire.stored.rendering import render

__all__ = ["ProducerStream"]

_NO_COMMITS: Mapping[int, int] = MappingProxyType({})
# Looked up once: the members of an enumeration are slow to reach in Python 3.11, and every block needs some.
_BACKFILLING = StreamState.BACKFILLING
_IN_MEMORY = StreamState.IN_MEMORY
_COUNTED = int(BlockKind.SYSTEM_EVENT | BlockKind.PREPARE)
_SYSTEM_EVENT, _PREPARE = int(BlockKind.SYSTEM_EVENT), int(BlockKind.PREPARE)

OUT_OF_ORDER_WITH_END = "true_with_seqno_advanced"
"""A value of `enable_out_of_order_snapshots`: the client wants a SEQNO_ADVANCED to the snapshot's end."""

LOOKAHEAD_BYTES = 256 * 1024
"""Bytes that a filtered stream reads to find the first and last message of its snapshot from memory."""

SKIPPED_MESSAGES_MAX = 10_000
"""Messages that a filter may leave out in a row before a SEQNO_ADVANCED: the server's dcp_backfill_antilag_interval."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A snapshot that was announced and is being sent.

    Attributes:
        base: the position at which it began.
        end: its last seqno, as announced.
        limit: the seqno up to which the stream has read the history when it is over.
        held: keeps the history at `end` from being compacted.
        is_out_of_order: its messages come in any order, between two messages that say so.
    """

    base: int
    end: int
    limit: int
    held: object
    is_out_of_order: bool = False


class StreamTerms(NamedTuple):
    """The terms of an accepted stream.

    Attributes:
        opaque: u32, of the STREAM_REQ.
        flags: of the STREAM_REQ.
        accepted: the result of `rollback.decide`.
        wanted: its collections and stream id.
        form: the form of its messages.
        settings: the values of the client's controls; they do not change.
    """

    opaque: int
    flags: int
    accepted: Accept
    wanted: StreamFilter
    form: StreamForm
    settings: ProducerSettings


class ProducerStream:
    """One accepted stream.

    Args:
        view: the vbucket.
        source: its bucket, for the manifest.
        terms: the request, and the answer to it.
        access: what the user may stream; asked again before a marker, if it may have changed since.
        buffers: memory that blocks are copied to; fresh memory by default.

    Attributes:
        state: see `states.STREAM`.
        is_queued: whether the connection has it in its ready queue.
        is_waiting: whether the last `produce` found nothing more to send until the vbucket changes or an answer comes.
        is_finished: its STREAM_END was sent; nothing more will come.
        takeover: see `states.TAKEOVER`; None if the stream is no takeover.
        end_reason: the reason of its STREAM_END, as soon as that is known.
        last_read_seqno: everything up to here was sent or left out.
        last_sent_seqno: seqno of the last message or SEQNO_ADVANCED.
        last_advance_seqno: seqno of the last SEQNO_ADVANCED; 0 before the first.
        messages_sent: without markers and the end.
        events_sent: those of them about scopes and collections.
        prepares_sent: those of them that are prepares.
    """

    __slots__ = (
        "_access",
        "_access_basis",
        "_buffers",
        "_filter",
        "_history",
        "_ignores_purge",
        "_is_disk_only",
        "_kept",
        "_messages",
        "_purge_seqno",
        "_settings",
        "_skipped",
        "_snapshot",
        "_source",
        "accepted",
        "end_reason",
        "events_sent",
        "flags",
        "form",
        "is_finished",
        "is_queued",
        "is_waiting",
        "last_advance_seqno",
        "last_read_seqno",
        "last_sent_seqno",
        "messages_backfilled",
        "messages_sent",
        "opaque",
        "prepares_sent",
        "state",
        "takeover",
        "vbid",
        "view",
        "wanted",
    )

    def __init__(
        self,
        view: VBucketView,
        source: HistorySource,
        terms: StreamTerms,
        *,
        access: StreamAccess = everything,
        buffers: BufferPool | None = None,
    ) -> None:
        opaque, flags, accepted, wanted, form, settings = terms
        self._buffers = buffers
        self.view = view
        self.vbid = view.vbid
        self.opaque = opaque
        self.flags = flags
        self.accepted = accepted
        self.wanted = wanted
        self.form = form
        self.state = STREAM.start
        self.is_queued = False
        self.is_waiting = False
        self.is_finished = False
        self.takeover = TAKEOVER.start if flags & StreamFlag.TAKEOVER else None
        self.end_reason: int | None = None
        self.last_read_seqno = accepted.start_seqno
        self.last_sent_seqno = accepted.start_seqno
        self.last_advance_seqno = 0
        self.messages_sent = 0
        self.events_sent = 0
        self.prepares_sent = 0
        self.messages_backfilled = 0
        self._source = source
        self._settings = settings
        self._history = ChangeHistory(view) if settings.change_streams else None
        self._messages = StreamMessages(
            view,
            opaque,
            wanted.stream_id,
            accepted.snapshot_start,
            self._history,
            is_takeover=self.is_takeover,
            settings=settings,
        )
        self._filter = None if wanted.collection_ids is None else LiveFilter(wanted, source.manifest)
        self._access = access
        self._access_basis: object = None
        self._is_disk_only = bool(flags & StreamFlag.DISK_ONLY)
        self._ignores_purge = bool(flags & StreamFlag.IGNORE_PURGED_TOMBSTONES)
        self._purge_seqno = view.purge_seqno
        self._skipped = 0
        self._snapshot: _Snapshot | None = None
        self._kept: Buffer = b""

    @property
    def stream_id(self) -> int | None:
        """The stream's id, if it has one."""
        return self.wanted.stream_id

    @property
    def last_snapshot_end(self) -> int:
        """End of the last announced snapshot."""
        return self._messages.last_snapshot_end

    @property
    def has_change_streams(self) -> bool:
        """Whether it sends every kept version."""
        return self._history is not None

    @property
    def is_backfilling(self) -> bool:
        """Whether it reads a disk snapshot."""
        return self.state is _BACKFILLING

    @property
    def is_takeover(self) -> bool:
        """Whether it hands the vbucket over."""
        return self.takeover is not None

    @property
    def is_handing_over(self) -> bool:
        """Whether the stream itself makes the vbucket dead now; that change of state does not end the stream."""
        return self.takeover is TakeoverState.HANDING_OVER

    @property
    def is_before_handover(self) -> bool:
        """Whether it has sent everything that was old, and the vbucket is still served here."""
        is_served = self.takeover in (TakeoverState.SERVED, TakeoverState.PENDING_ASKED)
        return is_served and self.state in (StreamState.TAKEOVER_SEND, StreamState.TAKEOVER_WAIT)

    @property
    def is_dead(self) -> bool:
        """Whether the stream has ended for a server, which may still send what it has queued."""
        if self.end_reason is not None:
            return True
        snapshot, is_from_memory = self._snapshot, self.state is _IN_MEMORY
        return snapshot is not None and is_from_memory and snapshot.limit >= self.accepted.end_seqno

    def marker_answered(self) -> None:
        """The other end has received the whole of a snapshot."""
        self._messages.marker_answered()

    def state_answered(self) -> bool:
        """The other end changed its copy's state; as on the server, the status of the answer does not matter.

        Returns: whether the caller must make the vbucket here dead now, and then call `made_dead`.
        """
        if self.state is not StreamState.TAKEOVER_WAIT:
            return False
        self._take_over(TakeoverEvent.ANSWERED)
        if self.takeover is TakeoverState.OVER:
            self.end(StreamEndReason.OK)
        return self.is_handing_over

    def made_dead(self) -> None:
        """The vbucket here is dead: what was written until now follows."""
        self._take_over(TakeoverEvent.MADE_DEAD)
        self._messages.role_changed()
        self._go(StreamEvent.STATE_ANSWERED)

    def end(self, reason: int) -> None:
        """End the stream: its next and last message is a STREAM_END with this reason, or with an earlier one."""
        self._snapshot, self._kept = None, b""
        if self.end_reason is None:
            self.end_reason = reason
            self._go(StreamEvent.ENDED)
            if self.takeover not in (None, TakeoverState.OVER):
                self._take_over(TakeoverEvent.ENDED)

    def close(self, reason: int) -> None:
        """As `end`, but a snapshot from memory is sent whole before; the vbucket's history must be intact."""
        if self.end_reason is not None:
            return
        snapshot, kept = self._snapshot, self._kept
        is_from_memory = self.state in (_IN_MEMORY, StreamState.TAKEOVER_SEND)
        self.end(reason)
        if is_from_memory:
            self._snapshot, self._kept = snapshot, kept

    def choose_first_snapshot(self) -> None:
        """Choose the first snapshot now if it is from memory, as a server does even while nothing may be sent."""
        is_from_memory = not self._is_disk_only and not self._is_out_of_memory(self.last_read_seqno)
        if self.state is StreamState.PENDING and is_from_memory:
            self._kept = self._next_piece(0, None) or b""

    def _go(self, event: StreamEvent) -> None:
        self.state = STREAM.after(self.state, event, self.vbid)

    def _take_over(self, event: TakeoverEvent) -> None:
        assert self.takeover is not None, "the stream is a takeover"
        self.takeover = TAKEOVER.after(self.takeover, event, self.vbid)

    # ------------------------------------------------------------------------------------------------- what to send

    def produce(self, credit: int | None, max_bytes: int, enough: int) -> list[Buffer]:
        """The messages that may be sent now; empty if there are none until the vbucket changes.

        Args:
            credit: messages may start within this many bytes; None without flow control. Not 0.
            max_bytes: a soft limit: the result may exceed it by one message.
            enough: no further message is made once there are this many bytes.
        """
        out: list[Buffer] = []
        made = 0
        self.is_waiting = False
        last = None if credit is None else credit + PREPARE_EXTRA_BYTES * self.prepares_sent
        rest = credit
        while made < enough and not self.is_finished:
            if last is not None:
                rest = last - made - PREPARE_EXTRA_BYTES * self.prepares_sent
                if rest <= 0:
                    break
            piece = self._next_piece(max_bytes - made, rest)
            if piece is None:
                self.is_waiting = True
                break
            if piece:
                out.append(piece)
                made += len(piece)
        return out

    def _next_piece(self, room: int, credit: int | None) -> Buffer | None:
        """A marker, messages, or an end; empty if only the position moved, None if there is nothing to send now."""
        if self._kept:
            piece, self._kept = self._kept, b""
            return piece
        try:
            if self._snapshot is not None:
                return self._read_on(self._snapshot, room, credit)
            if self.end_reason is not None:
                self.is_finished = True
                return self._messages.pack(StreamEnd, self.end_reason)
            if self.state is StreamState.TAKEOVER_WAIT:
                return None
            return self._open_snapshot()
        except StoreError:  # of a read
            self.end(StreamEndReason.BACKFILL_FAILED)
            return b""

    def _lacks(self, purge_seqno: int, base_seqno: int) -> bool:
        """Whether the client has not seen deletions that were purged since the stream was accepted.

        A client that had nothing when its present snapshot began cannot miss a deletion.
        """
        return base_seqno > 0 and self.last_read_seqno < purge_seqno and not self._ignores_purge

    def _open_snapshot(self) -> Buffer | None:
        """Announce the part of the log that lies above the position."""
        view, position = self.view, self.last_read_seqno
        if position >= self.accepted.end_seqno:
            self.end(StreamEndReason.OK)
            return b""
        if view.purge_seqno > self._purge_seqno and self._lacks(view.purge_seqno, position):
            self.end(StreamEndReason.ROLLBACK)
            return b""
        is_disk_only = self._is_disk_only
        limit = view.persisted_seqno if is_disk_only else view.high_seqno
        if limit <= position or (is_disk_only and self.is_takeover):
            return self._wait(limit)
        if self._access is not everything and not self._has_access():
            self.end(StreamEndReason.LOST_PRIVILEGES if self.form.collections else StreamEndReason.OK)
            return b""
        is_disk = is_disk_only or self.state is _BACKFILLING or self._is_out_of_memory(position)
        limit = self._reach(position, limit, is_disk=is_disk)
        end = limit
        if not self.form.collections and limit <= view.high_seqno:
            if not self._has_default_collection:
                self.end(StreamEndReason.OK)  # the other reasons mean nothing to a client without collections
                return b""
            visible = view.high_seqno_of((0,))
            if visible <= position:
                self.last_read_seqno = limit
                self._go_sending()
                return b""
            end = min(limit, visible)  # this client gets no SEQNO_ADVANCED: the end must be the seqno of a message
        if is_disk:
            self._go(StreamEvent.DISK)
        else:
            self._go_sending()
            if self._is_plainly_filtered(limit):
                return self._open_filtered(position, limit)
            if self._is_passed_over(position, limit):
                self.last_read_seqno = limit
                return b""
        if view.durability is not None and self._settings.sync_writes:
            self._form_durable_writes(view.durability, is_disk=is_disk)
        packs_deletions = is_disk and self.form.snappy != "none" and self.form.user_xattrs_on_delete
        only_keys = is_disk and self._settings.sends_only_keys_from_disk
        if (packs_deletions, only_keys) != (self.form.packs_deletions, self.form.only_keys):
            self.form = replace(self.form, packs_deletions=packs_deletions, only_keys=only_keys)
        is_out_of_order = is_disk and self._may_come_out_of_order()
        self._snapshot = _Snapshot(position, end, limit, view.hold(end), is_out_of_order)
        if is_out_of_order:
            return self._messages.out_of_order_start(end)
        return self._messages.marker(position, end, is_disk=is_disk)

    def _has_access(self) -> bool:
        """Whether the user may still have the stream."""
        basis = self._access.basis()
        if basis == self._access_basis:
            return True
        if refusal_of(self.wanted, self._access, 0) is not None:
            return False
        self._access_basis = basis
        return True

    def _wait(self, limit: int) -> Buffer | None:
        """There is nothing to announce now."""
        if self._is_disk_only:
            # A takeover from disk only waits for the highest of all seqnos, which never comes.
            if self.is_takeover:
                self._go(StreamEvent.DISK)
            return None
        if self.is_takeover:
            return self._hand_over()
        self._go(StreamEvent.MEMORY)
        if self._filter is not None and self._filter.is_empty and self.view.memory_start_seqno > limit:
            self.end(StreamEndReason.FILTER_EMPTY)  # the server notices this at the beginning of a checkpoint
            return b""
        return None

    def _reach(self, position: int, limit: int, *, is_disk: bool) -> int:
        """End of the snapshot that begins after `position`, if the history ends at `limit`."""
        view, durable = self.view, self.view.durability
        if not is_disk and self.form.collections:
            boundary = view.checkpoint_after(position + 1)
            if boundary is not None and boundary <= limit:
                limit = boundary - 1  # each checkpoint is sent in a snapshot of its own
        if durable is not None and self._settings.is_sync_replication and not is_disk and self.state is _IN_MEMORY:
            # A prepare is sent to a replica at once, because a client waits for its acknowledgement.
            limit = min(limit, durable.first_hidden_after(position) or limit)
        if view.state is VbucketState.REPLICA and not self._is_disk_only:
            limit = max(limit, view.snapshot.end_seqno)  # a replica's snapshot is consistent at its end only
        return limit if self._history is None else self._history.reach(position, limit, is_disk=is_disk)

    def _form_durable_writes(self, durable: DurableWrites, *, is_disk: bool) -> None:
        """Choose the durable writes that this snapshot shows to a stream with sync writes: from disk undecided ones."""
        completed_seqno = durable.high_completed_seqno if is_disk else 0
        commits = _NO_COMMITS if is_disk else durable.commits
        self.form = replace(self.form, durable=DurableForm(commits, completed_seqno))

    def _is_out_of_memory(self, position: int) -> bool:
        """Whether the messages after `position` have left memory.

        A stream that reads from memory keeps its messages there, unless it is slow and the server drops its cursor.
        """
        if self.state is StreamState.PENDING:
            return position + 1 < self.view.memory_start_seqno
        return self.state is _IN_MEMORY and self._settings.cursor_dropping and position < self.view.evicted_seqno

    def _is_passed_over(self, position: int, limit: int) -> bool:
        """Whether a snapshot from memory has nothing for this stream and is not announced.

        The first snapshot after a resume is announced: the client may wait for the end of its own snapshot.
        """
        numbers = self._wanted_numbers()
        durable = None if self._settings.sync_writes else self.view.durability
        if (numbers is None and durable is None) or not self.form.collections or limit > self.view.high_seqno:
            return False
        is_resumed = self._messages.is_first_marker and self.accepted.start_seqno > 0
        if is_resumed:
            return False
        if durable is not None and durable.visible_seqno(limit) <= position:
            return True
        return numbers is not None and self.view.high_seqno_of(numbers) <= position

    def _is_plainly_filtered(self, limit: int) -> bool:
        """Whether the filter alone decides which messages of a snapshot from memory up to `limit` are sent."""
        if self._filter is None:
            return False
        if self._filter.is_empty:
            return True
        has_filter = self.form.collections or self._source.manifest.uid > 0
        return has_filter and self.view.durability is None and self._history is None and limit <= self.view.high_seqno

    def _open_filtered(self, position: int, limit: int) -> Buffer | None:
        """Announce the messages of (position, limit] that pass the filter, from the first to the last one."""
        view, numbers = self.view, self._wanted_numbers()
        assert self._filter is not None, "the stream is filtered"
        assert numbers is not None, "the stream is filtered"
        if self._filter.is_empty:
            self.end(StreamEndReason.FILTER_EMPTY)
            return b""
        last = view.high_seqno_of(numbers)
        if last <= position:
            return self._pass_over_all(position, limit)
        found = view.read(position, limit, snapshot_end=limit, max_bytes=LOOKAHEAD_BYTES)
        if found is None:
            return None
        seqnos = list(seqnos_of(found, numbers))
        is_whole = not found.count or found.last_seqno >= limit
        if not seqnos:
            self.last_read_seqno = limit if is_whole else found.last_seqno
            return b""
        if last > limit:  # it is in another checkpoint; a range that was not read to its end is announced whole
            last = seqnos[-1] if is_whole else limit
        self._snapshot = _Snapshot(position, last, limit, view.hold(last))
        return self._messages.marker(position, last, is_disk=False, first=seqnos[0])

    def _pass_over_all(self, position: int, limit: int) -> Buffer:
        """Pass over the rest of the history, which has nothing for this stream.

        Only a client that resumed inside a snapshot gets a marker, because it waits for that snapshot's end.
        """
        self.last_read_seqno = limit
        end = self.accepted.snapshot_end
        if not self._messages.is_first_marker or position >= end:
            return b""
        return self._messages.marker(position, end, is_disk=False) + self._advanced(end)

    def _may_come_out_of_order(self) -> bool:
        """Whether the next snapshot may be out of order: the first one, from 0, of a single collection."""
        ids = None if self._filter is None else self._filter.collection_ids
        return (
            bool(self._settings.out_of_order)
            and self._messages.is_first_marker
            and self.accepted.start_seqno == 0
            and ids is not None
            and len(ids) == 1
        )

    @property
    def _has_default_collection(self) -> bool:
        return any(item.collection_id == 0 for _, item in self._source.manifest.collections())

    def _go_sending(self) -> None:
        """Go on from memory."""
        if self.state is not _IN_MEMORY:
            self._go(StreamEvent.HANDOVER if self.is_takeover else StreamEvent.MEMORY)

    def _hand_over(self) -> bytes | None:
        """Everything was sent: ask for the other copy's next state as soon as everything was received."""
        self._go(StreamEvent.HANDOVER)
        if self._messages.unanswered_markers:
            return None
        self._go(StreamEvent.STATE_SENT)
        self._take_over(TakeoverEvent.ASKED)
        is_first = self.takeover is TakeoverState.PENDING_ASKED
        return self._messages.pack(SetVbucketState, VbucketState.PENDING if is_first else VbucketState.ACTIVE)

    def _read_on(self, snapshot: _Snapshot, room: int, credit: int | None) -> Buffer | None:
        """The next messages of the snapshot under way."""
        view, end = self.view, snapshot.end
        if view.purge_seqno > self._purge_seqno and self._lacks(view.purge_seqno, snapshot.base):
            self.end(StreamEndReason.ROLLBACK)
            return b""
        max_bytes = room if credit is None else min(room, credit)
        after = self.last_read_seqno
        if after >= end or (self._filter is not None and self._nothing_wanted_until(end)):
            return self._close_snapshot(snapshot)
        if self._history is None:
            found = view.read(after, end, snapshot_end=end, max_bytes=max_bytes)
        else:
            found = self._history.read(after, end, end, max_bytes, self._source.collections_without_history)
        if found is None:
            return None
        if view.purge_seqno > self._purge_seqno and self._lacks(view.purge_seqno, snapshot.base):  # while it was read
            self.end(StreamEndReason.ROLLBACK)
            return b""
        return self._send(snapshot, found, credit) if len(found.starts) else self._nothing_left(snapshot)

    def _send(self, snapshot: _Snapshot, block: FrameBlock, credit: int | None) -> Buffer:
        """The messages of a block that was read, as far as the credit reaches."""
        wanted, end = self._filter, snapshot.end
        count, kinds = len(block.starts), block.kinds
        if wanted is not None and kinds & _SYSTEM_EVENT:
            wanted.coming(events_of(block, 0, count))
            if wanted.collection_ids != self.form.collection_ids:
                self.form = replace(self.form, collection_ids=wanted.collection_ids)
        if credit is not None and kinds & _PREPARE:
            credit = max(1, credit - PREPARE_EXTRA_BYTES * count)
        data, next_index, messages = render(block, self.opaque, self.form, 0, credit, self._buffers)
        self.last_read_seqno = int(block.seqnos[next_index - 1])
        self.messages_sent += messages
        if self.state is _BACKFILLING:
            self.messages_backfilled += messages
        if kinds & _COUNTED:
            self._count(data, kinds)
        if messages == next_index:
            self.last_sent_seqno = self.last_read_seqno
        elif messages:
            self.last_sent_seqno = last_seqno_of(data)
        self._skipped = 0 if messages else self._skipped + next_index
        if wanted is not None:
            wanted.passed(events_of(block, 0, next_index))
        if wanted is not None and wanted.is_over:
            self.end(StreamEndReason.FILTER_EMPTY if self.form.collections else StreamEndReason.OK)
        elif snapshot.is_out_of_order:
            pass  # a message of its own ends it
        elif self.last_read_seqno >= end and self.last_sent_seqno >= end:
            self._snapshot_done(snapshot)
        elif self._skipped >= SKIPPED_MESSAGES_MAX and self.last_read_seqno < end and self.form.collections:
            return self._advanced(self.last_read_seqno)
        return data

    def _count(self, data: Buffer, kinds: int) -> None:
        """Count the events and prepares that are sent, of a block with these kinds."""
        if kinds & _SYSTEM_EVENT:
            self.events_sent += count_of(data, Opcode.DCP_SYSTEM_EVENT)
        if kinds & _PREPARE:
            self.prepares_sent += count_of(data, Opcode.DCP_PREPARE)

    def _nothing_left(self, snapshot: _Snapshot) -> Buffer | None:
        """End the snapshot: the log has no more of it. On a replica the rest may still come."""
        if self.view.high_seqno >= snapshot.end:
            return self._close_snapshot(snapshot)
        if self.end_reason is None:
            return None
        self.end(self.end_reason)
        return b""

    def _wanted_numbers(self) -> frozenset[int] | None:
        """The numbers of the wanted collections in the history; None for everything. See `LiveFilter.numbers`."""
        return None if self._filter is None else self._filter.numbers(self._source.manifest)

    def _nothing_wanted_until(self, end: int) -> bool:
        """Whether the log has nothing more for this stream up to `end`, so that it need not be read."""
        numbers, view = self._wanted_numbers(), self.view
        if numbers is None or end > view.high_seqno:
            return False
        return view.high_seqno_of(numbers) <= self.last_read_seqno

    def _close_snapshot(self, snapshot: _Snapshot) -> Buffer:
        """End a snapshot that was read whole; send SEQNO_ADVANCED if its last message was left out."""
        end, settings = snapshot.end, self._settings
        has_gap = self.last_sent_seqno < end and self.form.collections and not settings.is_everything_visible
        if snapshot.is_out_of_order:
            has_gap &= settings.out_of_order == OUT_OF_ORDER_WITH_END
        piece = self._advanced(end) if has_gap else b""
        if snapshot.is_out_of_order:
            piece += self._messages.out_of_order_end()
        self._snapshot_done(snapshot)
        return piece

    def _snapshot_done(self, snapshot: _Snapshot) -> None:
        self.last_read_seqno = snapshot.limit
        self._snapshot = None
        has_more = self._history is not None and self._history.is_prologue
        if self.state is _BACKFILLING and not self._is_disk_only and not has_more:
            self._go_sending()

    def _advanced(self, seqno: int) -> bytes:
        self._skipped = 0
        self.last_sent_seqno = self.last_advance_seqno = seqno
        return self._messages.pack(SeqnoAdvanced, seqno)
