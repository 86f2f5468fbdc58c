"""The decision of a stream: the step that comes next, without taking it.

The functions read the vbucket and the stream's `Progress`, and change neither. `ProducerStream` takes the step.

Theory of operation. A stream reads its vbucket's log forward, in snapshots: it looks where the history ends now,
announces everything up to there with a marker, and sends the messages that are the newest of their keys at that seqno.
Then it looks again. It follows that a stream whose end seqno falls inside a snapshot still sends the whole snapshot,
that a key appears once in a snapshot, and that writes during a snapshot belong to the next one.

The first snapshot is "from disk" if the stream begins below what the vbucket keeps in memory, and "from memory"
otherwise (see `dcp.bucket` for that line). All later ones are from memory. The first snapshot from memory and the first
one in a new checkpoint carry the checkpoint flag.

A takeover stream hands its vbucket over. When it has sent everything and every marker from memory was answered, it asks
the other end to make its copy pending. On the answer the vbucket here becomes dead, and the writes until then follow.
Then the stream asks the other end to make its copy active; on that answer the stream ends.

Source: kv_engine engines/ep/src/dcp/active_stream.cc; markers, flags and ends as in recordings of a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from dcpstream.dcp.bucket import HistorySource, VBucketView, disk_seqno
from dcpstream.dcp.controls import ProducerSettings
from dcpstream.dcp.producer.change_history import reach, read_versions
from dcpstream.dcp.producer.privilege import StandingAccess
from dcpstream.dcp.producer.rollback import Accept
from dcpstream.dcp.producer.states import ROLLED_BACK, Marker, Phase, Progress, Snapshot, StreamEvent
from dcpstream.dcp.producer.stream_filter import StreamFilter
from dcpstream.model import VbucketState
from dcpstream.wire import MarkerFlag, StreamEndReason, StreamFlag
from dcpstream.wire.server_bugs import ServerBug
from dcpstream.wire.stored.block import FrameBlock, seqnos_of
from dcpstream.wire.stored.durable import DurableForm
from dcpstream.wire.stored.form import StreamForm

# Plain ints: flags are combined for each snapshot of each stream, and enum arithmetic is slow.
_TAKEOVER, _DISK_ONLY = int(StreamFlag.TAKEOVER), int(StreamFlag.DISK_ONLY)
_IGNORES_PURGE = int(StreamFlag.IGNORE_PURGED_TOMBSTONES)
_FROM_DISK = int(MarkerFlag.DISK | MarkerFlag.CHECKPOINT)
_FROM_MEMORY = int(MarkerFlag.MEMORY)
_NEW_CHECKPOINT = int(MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT)
_ACK = int(MarkerFlag.ACK)
# Looked up once: the members of an enumeration are slow to reach in Python 3.11.
_PENDING, _BACKFILLING, _IN_MEMORY = Phase.PENDING, Phase.BACKFILLING, Phase.IN_MEMORY
_REPLICA = VbucketState.REPLICA
_ASKED = frozenset((Phase.PENDING_ASKED, Phase.HANDING_OVER, Phase.ACTIVE_ASKED))
_NO_COMMITS: Mapping[int, int] = MappingProxyType({})

OUT_OF_ORDER_WITH_END = "true_with_seqno_advanced"
"""A value of `enable_out_of_order_snapshots`: the client wants a SEQNO_ADVANCED to the snapshot's end."""

LOOKAHEAD_BYTES = 256 * 1024
"""Bytes that a filtered stream reads to find the first and last message of its snapshot from memory."""

SKIPPED_MESSAGES_MAX = 10_000
"""Messages that a filter may leave out in a row before a SEQNO_ADVANCED: the server's dcp_backfill_antilag_interval."""


@dataclass(frozen=True, slots=True)
class StreamTerms:
    """The terms of an accepted stream.

    Attributes:
        view: the vbucket.
        source: its bucket, for the manifest.
        opaque: u32, of the STREAM_REQ.
        flags: of the STREAM_REQ.
        accepted: the result of `rollback.decide`.
        wanted: its collections and stream id.
        form: the form of its messages.
        settings: the values of the client's controls; they do not change.
        purge_seqno: of the vbucket when the stream was accepted.
        access: asked before a marker; None if the user may stream everything.
    """

    view: VBucketView
    source: HistorySource
    opaque: int
    flags: int
    accepted: Accept
    wanted: StreamFilter
    form: StreamForm
    settings: ProducerSettings
    purge_seqno: int
    access: StandingAccess | None = None

    @property
    def is_takeover(self) -> bool:
        """Whether the stream hands the vbucket over."""
        return bool(self.flags & _TAKEOVER)

    @property
    def is_disk_only(self) -> bool:
        """Whether the stream never reads from memory."""
        return bool(self.flags & _DISK_ONLY)

    @property
    def can_advance(self) -> bool:
        """Whether the stream may send SEQNO_ADVANCED."""
        return self.form.collections and not self.settings.is_everything_visible

    def has_bug(self, bug: ServerBug) -> bool:
        """Whether the producer has a bug of servers."""
        return self.settings.release.has_bug(bug)


class Wait(NamedTuple):
    """Nothing is to be sent until the vbucket changes or an answer comes."""

    event: StreamEvent | None = None


class Advance(NamedTuple):
    """Send SEQNO_ADVANCED."""

    seqno: int


class Finish(NamedTuple):
    """End the snapshot, with SEQNO_ADVANCED if its last message was left out."""

    advances: bool


class PassOver(NamedTuple):
    """Everything up to a seqno is left out; with a marker, a snapshot that a SEQNO_ADVANCED fills is sent."""

    seqno: int
    event: StreamEvent | None
    marker: Marker | None = None


class FailAsServer(NamedTuple):
    """The bug of a server has its consequence: the connection ends."""

    why: str


class AskState(NamedTuple):
    """Send SET_VBUCKET_STATE."""

    state: VbucketState


class End(NamedTuple):
    """The stream ends for a reason."""

    reason: int


class SendEnd(NamedTuple):
    """Send STREAM_END, the last message."""

    reason: int


Step: TypeAlias = Snapshot | Wait | Advance | Finish | PassOver | FailAsServer | AskState | End | SendEnd
"""A step without rows; with a snapshot, that snapshot begins."""

_NOTHING = Wait()
_FINISH, _FINISH_AND_ADVANCE = Finish(advances=False), Finish(advances=True)


# ----------------------------------------------------------------------------------------------- within a snapshot


def within(terms: StreamTerms, at: Progress, snapshot: Snapshot, max_bytes: int) -> FrameBlock | Step:
    """The next step within a snapshot: usually a block, whose messages come next.

    Args:
        terms: of the stream.
        at: its progress.
        snapshot: the one of the progress.
        max_bytes: a soft limit of the block.

    Raises:
        StoreError: the history cannot be read.
    """
    view, end, after = terms.view, snapshot.end, at.read_seqno
    if view.purge_seqno > terms.purge_seqno and _lacks_deletions(terms, at, snapshot.base):
        return End(ROLLED_BACK)
    if after >= end or (at.filter is not None and _nothing_wanted_until(terms, at, end)):
        return _finish(terms, at, snapshot)
    start = snapshot.versions_from
    if start is None:
        found = view.read(after, end, snapshot_end=end, max_bytes=max_bytes)
    else:
        without = terms.source.collections_without_history
        found = read_versions(view, max(after, start - 1), end, max_bytes, without)
    if found is None:
        return _NOTHING
    if view.purge_seqno > terms.purge_seqno and _lacks_deletions(terms, at, snapshot.base):  # while it was read
        return End(ROLLED_BACK)
    if len(found.starts):
        return found
    # The log has no more of the snapshot. On a replica the rest may still come.
    if view.high_seqno >= end:
        return _finish(terms, at, snapshot)
    return _NOTHING if at.end_reason is None else End(at.end_reason)


def after_rows(terms: StreamTerms, at: Progress, snapshot: Snapshot) -> End | Finish | Advance | None:
    """The step that follows at once on rows that were sent; None if there is none."""
    has_collections, is_read = terms.form.collections, at.read_seqno >= snapshot.end
    if at.filter is not None and at.filter.is_over:
        return End(StreamEndReason.FILTER_EMPTY if has_collections else StreamEndReason.OK)
    if snapshot.marker is None:
        return None  # a message of its own ends it
    if at.sent_seqno >= snapshot.end:
        return _FINISH
    if at.skipped >= SKIPPED_MESSAGES_MAX and not is_read and has_collections:
        return Advance(at.read_seqno)
    return None


def _finish(terms: StreamTerms, at: Progress, snapshot: Snapshot) -> Finish:
    """The end of a snapshot that was read whole."""
    has_gap = at.sent_seqno < snapshot.end and terms.can_advance
    if snapshot.marker is None:
        has_gap = has_gap and terms.settings.out_of_order == OUT_OF_ORDER_WITH_END
    elif has_gap and snapshot.limit > snapshot.end:
        has_gap = not terms.has_bug(ServerBug.LOST_ADVANCE)
    return _FINISH_AND_ADVANCE if has_gap else _FINISH


def _lacks_deletions(terms: StreamTerms, at: Progress, base_seqno: int) -> bool:
    """Whether the client has not seen deletions that were purged since the stream was accepted.

    A client that had nothing when its present snapshot began cannot miss a deletion.
    """
    return base_seqno > 0 and at.read_seqno < terms.view.purge_seqno and not terms.flags & _IGNORES_PURGE


def _wanted_numbers(terms: StreamTerms, at: Progress) -> frozenset[int] | None:
    """The numbers of the wanted collections in the history; None for everything. See `LiveFilter.numbers`."""
    if terms.wanted.hides_system:
        return terms.view.numbers_without_system()
    return None if at.filter is None else at.filter.numbers(terms.source.manifest)


def _nothing_wanted_until(terms: StreamTerms, at: Progress, end: int) -> bool:
    """Whether the log has nothing more for this stream up to `end`, so that it need not be read."""
    numbers, view = _wanted_numbers(terms, at), terms.view
    if numbers is None or end > view.high_seqno:
        return False
    return view.high_seqno_of(numbers) <= at.read_seqno


# --------------------------------------------------------------------------------------------- between two snapshots


def between(terms: StreamTerms, at: Progress) -> Step:
    """The next step while there is no snapshot: usually one of the part of the log that lies above the position.

    Raises:
        StoreError: the history cannot be read.
    """
    if at.end_reason is not None or at.phase in _ASKED:
        return _NOTHING if at.end_reason is None else SendEnd(at.end_reason)
    view, position, form = terms.view, at.read_seqno, at.form
    if position >= terms.accepted.end_seqno:
        return End(StreamEndReason.OK)
    if view.purge_seqno > terms.purge_seqno and _lacks_deletions(terms, at, position):
        return End(ROLLED_BACK)
    is_disk_only = terms.flags & _DISK_ONLY
    limit = disk_seqno(view) if is_disk_only else view.high_seqno
    if limit <= position or (is_disk_only and terms.flags & _TAKEOVER):
        return _idle(terms, at, limit)
    if terms.access is not None and not terms.access.is_granted():
        return End(StreamEndReason.LOST_PRIVILEGES if form.collections else StreamEndReason.OK)
    is_disk = bool(is_disk_only) or at.phase is _BACKFILLING or _is_out_of_memory(terms, at)
    limit = end = _limit(terms, at, limit, is_disk=is_disk)
    history = None
    if terms.settings.change_streams:
        history = reach(view, position, limit, is_disk=is_disk)
        limit = end = history.limit
    if not form.collections and limit <= view.high_seqno:
        if not any(item.collection_id == 0 for _, item in terms.source.manifest.collections()):
            return End(StreamEndReason.OK)  # the other reasons mean nothing to a client without collections
        visible = view.high_seqno_of((0,))
        if visible <= position:
            return PassOver(limit, _from_memory(terms, at))
        end = min(limit, visible)  # this client gets no SEQNO_ADVANCED: the end must be the seqno of a message
    if at.filter is not None or view.durability is not None or at.advanced_seqno > position:
        step = _future_advance(terms, at, limit) if is_disk else _step_without_rows(terms, at, limit)
        if step is not None:
            return step
    marker = None
    is_unordered = is_disk and _may_come_out_of_order(terms, at)
    if not is_unordered:
        flags = 0 if history is None else history.flags(is_disk=is_disk)
        marker = _marker(terms, at, end, is_disk=is_disk, history_flags=flags)
    event = StreamEvent.DISK if is_disk else _from_memory(terms, at, limit)
    form = _form(terms, at, form, is_disk=is_disk, is_unordered=is_unordered)
    more = () if history is None else history[1:]
    return Snapshot(marker, position, end, limit, view.hold(end), form, event, *more)


def _from_memory(terms: StreamTerms, at: Progress, limit: int = -1) -> StreamEvent | None:
    """The event of a stream that goes on from memory, if it changes the phase; `limit` is that of its snapshot."""
    if terms.flags & _TAKEOVER:
        return StreamEvent.HANDOVER
    if limit >= terms.accepted.end_seqno:
        return StreamEvent.LAST
    return None if at.phase is _IN_MEMORY else StreamEvent.MEMORY


def _idle(terms: StreamTerms, at: Progress, limit: int) -> Wait | AskState | End:
    """There is nothing to announce now; the history ends at `limit`."""
    is_takeover = terms.flags & _TAKEOVER
    if terms.flags & _DISK_ONLY:
        # A takeover from disk only waits for the highest of all seqnos, which never comes.
        return Wait(StreamEvent.DISK) if is_takeover else _NOTHING
    if is_takeover:
        if at.unanswered_markers:
            return Wait(StreamEvent.HANDOVER)
        return AskState(VbucketState.ACTIVE if at.phase is Phase.LAST_WRITES else VbucketState.PENDING)
    if at.filter is not None and at.filter.is_empty and terms.view.memory_start_seqno > limit:
        return End(StreamEndReason.FILTER_EMPTY)  # the server notices this at the beginning of a checkpoint
    return _NOTHING if at.phase is _IN_MEMORY else Wait(_from_memory(terms, at))


def _limit(terms: StreamTerms, at: Progress, limit: int, *, is_disk: bool) -> int:
    """The end of the snapshot that begins at the position, if the history ends at `limit`."""
    view, position = terms.view, at.read_seqno
    durable = view.durability
    if is_disk:
        limit = min(limit, disk_seqno(view))  # the rest follows from memory
    elif terms.form.collections:
        boundary = view.checkpoint_after(position + 1)
        if boundary is not None and boundary <= limit:
            limit = boundary - 1  # each checkpoint is sent in a snapshot of its own
    if durable is not None and terms.settings.is_sync_replication and not is_disk and at.phase is _IN_MEMORY:
        # A prepare is sent to a replica at once, because a client waits for its acknowledgement.
        limit = min(limit, durable.first_hidden_after(position) or limit)
    if view.state is _REPLICA and not terms.is_disk_only:
        limit = max(limit, view.snapshot.end_seqno)  # a replica's snapshot is consistent at its end only
    return limit


def _is_out_of_memory(terms: StreamTerms, at: Progress) -> bool:
    """Whether the messages after the position have left memory.

    A stream that reads from memory keeps its messages there, unless it is slow and the server drops its cursor.
    """
    if at.phase is _PENDING:
        return at.read_seqno + 1 < terms.view.memory_start_seqno
    return at.phase is _IN_MEMORY and terms.settings.cursor_dropping and at.read_seqno < terms.view.evicted_seqno


def begins_in_memory(terms: StreamTerms, at: Progress) -> bool:
    """Whether the first snapshot has not begun, and comes from memory."""
    return at.phase is _PENDING and not terms.is_disk_only and not _is_out_of_memory(terms, at)


def _form(
    terms: StreamTerms, at: Progress, form: StreamForm, *, is_disk: bool, is_unordered: bool = False
) -> StreamForm:
    """The form of a snapshot's messages."""
    settings, durable = terms.settings, terms.view.durability
    if durable is not None and settings.sync_writes:
        # From disk come the undecided ones of the durable writes.
        shown = DurableForm(_NO_COMMITS, durable.high_completed_seqno) if is_disk else DurableForm(durable.commits, 0)
        form = replace(form, durable=shown)
    packs_deletions = is_disk and form.snappy != "none" and form.user_xattrs_on_delete
    only_keys = is_disk and settings.sends_only_keys_from_disk
    skips = is_disk and not at.has_announced and not terms.accepted.start_seqno and settings.skips_deletions
    lacks_high_keys = is_unordered and terms.has_bug(ServerBug.OSO_HIGH_KEYS)
    was = form.packs_deletions, form.only_keys, form.skips_deletions, form.lacks_high_keys
    if (packs_deletions, only_keys, skips, lacks_high_keys) == was:
        return form
    return replace(
        form,
        packs_deletions=packs_deletions,
        only_keys=only_keys,
        skips_deletions=skips,
        lacks_high_keys=lacks_high_keys,
    )


def _may_come_out_of_order(terms: StreamTerms, at: Progress) -> bool:
    """Whether the next snapshot may be out of order: the first one, from 0, of few collections (one by default)."""
    ids = None if at.filter is None else at.filter.collection_ids
    is_first = not at.has_announced and at.read_seqno == 0
    most = terms.source.out_of_order_collections_max
    has_few = ids is not None and 0 < len(ids) <= most and not terms.wanted.hides_system
    return bool(terms.settings.out_of_order) and is_first and has_few


def _is_passed_over(terms: StreamTerms, at: Progress, limit: int) -> bool:
    """Whether a snapshot from memory has nothing for this stream and is not announced.

    The first snapshot after a resume is announced: the client may wait for the end of its own snapshot.
    """
    view, position = terms.view, at.read_seqno
    durable = None if terms.settings.sync_writes else view.durability
    if (at.filter is None and durable is None) or not terms.form.collections or limit > view.high_seqno:
        return False
    if not at.has_announced and terms.accepted.start_seqno > 0:
        return False
    if durable is not None and durable.visible_seqno(limit) <= position:
        return True
    numbers = _wanted_numbers(terms, at)
    return numbers is not None and view.high_seqno_of(numbers) <= position


def _step_without_rows(terms: StreamTerms, at: Progress, limit: int) -> Step | None:
    """The step if a snapshot from memory up to `limit` is filtered, or has nothing for this stream; else None."""
    if at.advanced_seqno > at.read_seqno and _sends_up_to(terms, at, at.advanced_seqno):
        return FailAsServer(f"vb {terms.view.vbid} has a message up to {at.advanced_seqno}, which was passed over")
    if _is_plainly_filtered(terms, at, limit):
        return _filtered(terms, at, limit)
    return PassOver(limit, _from_memory(terms, at)) if _is_passed_over(terms, at, limit) else None


def _sends_up_to(terms: StreamTerms, at: Progress, seqno: int) -> bool:
    """Whether there is a message for the stream above its position and at or below a seqno."""
    view, position, numbers = terms.view, at.read_seqno, _wanted_numbers(terms, at)
    end = min(seqno, view.high_seqno)
    if numbers is None or end <= position:
        return end > position
    found = view.read(position, end, snapshot_end=view.high_seqno, max_bytes=LOOKAHEAD_BYTES)
    return found is not None and any(True for _ in seqnos_of(found, numbers))


def _future_advance(terms: StreamTerms, at: Progress, limit: int) -> PassOver | None:
    """The step of `ServerBug.FUTURE_ADVANCE`; None if the stream does not meet it."""
    numbers, view, position = _wanted_numbers(terms, at), terms.view, at.read_seqno
    if numbers is None or at.has_announced or not 0 < position < terms.accepted.snapshot_end:
        return None
    if view.high_seqno_of(numbers) > position or not terms.has_bug(ServerBug.FUTURE_ADVANCE):
        return None
    return PassOver(limit, _from_memory(terms, at), _marker(terms, at, view.high_seqno + 1, is_disk=False))


def _resumed_snapshot(terms: StreamTerms, at: Progress, limit: int) -> Marker | None:
    """The marker of the snapshot in which the stream was resumed, if nothing up to `limit` is for it.

    The client waits for the end of that snapshot, so a SEQNO_ADVANCED completes it.
    """
    accepted = terms.accepted
    end = accepted.snapshot_end
    if at.has_announced or at.read_seqno >= end:
        return None
    is_early = terms.has_bug(ServerBug.EARLY_ADVANCE) or (
        accepted.start_seqno == accepted.snapshot_start and terms.has_bug(ServerBug.END_ABOVE_HIGH)
    )
    return _marker(terms, at, end if is_early else limit, is_disk=False) if is_early or limit >= end else None


def _is_plainly_filtered(terms: StreamTerms, at: Progress, limit: int) -> bool:
    """Whether the filter alone decides which messages of a snapshot from memory up to `limit` are sent."""
    if at.filter is None:
        return False
    if at.filter.is_empty:
        return True
    has_filter = terms.form.collections or terms.source.manifest.uid > 0
    return has_filter and not terms.settings.change_streams and limit <= terms.view.high_seqno


def _filtered(terms: StreamTerms, at: Progress, limit: int) -> Step:
    """Announce the messages up to `limit` that pass the filter, from the first to the last one."""
    view, position, numbers = terms.view, at.read_seqno, _wanted_numbers(terms, at)
    assert at.filter is not None, "the stream is filtered"
    assert numbers is not None, "the stream is filtered"
    if at.filter.is_empty:
        return End(StreamEndReason.FILTER_EMPTY)
    last, durable, event = view.high_seqno_of(numbers), view.durability, _from_memory(terms, at)
    if last <= position and durable is None:
        return PassOver(limit, event, _resumed_snapshot(terms, at, limit))
    found = view.read(position, limit, snapshot_end=limit, max_bytes=LOOKAHEAD_BYTES)
    if found is None:
        return Wait(event)
    seqnos = list(seqnos_of(found, numbers))
    is_whole = not found.count or found.last_seqno >= limit
    reached = limit if is_whole else found.last_seqno
    first = next((seqno for seqno in seqnos if durable is None or durable.visible_seqno(seqno) == seqno), None)
    if first is None:
        marker = _resumed_snapshot(terms, at, reached)
        if marker is None and seqnos:  # a snapshot of its own for the last prepare or abort
            marker = _marker(terms, at, seqnos[-1], is_disk=False, first=seqnos[-1])
        return PassOver(reached, event, marker)
    # The end may be that of a prepare or abort. A range that was not read to its end is announced whole.
    last = seqnos[-1] if is_whole else min(last, limit)
    marker = _marker(terms, at, last, is_disk=False, first=first)
    form = _form(terms, at, at.form, is_disk=False)
    return Snapshot(marker, position, last, limit, view.hold(last), form, _from_memory(terms, at, limit))


def _marker(
    terms: StreamTerms, at: Progress, end: int, *, is_disk: bool, first: int | None = None, history_flags: int = 0
) -> Marker:
    """The marker of the snapshot from the position to `end`.

    Args:
        terms: of the stream.
        at: its progress.
        end: seqno of the last message.
        is_disk: the snapshot is read from disk.
        first: seqno of the first message, if messages before it may be left out.
        history_flags: of a snapshot with all versions.
    """
    view, durable, known = terms.view, terms.view.durability, at.checkpoint_seqno
    start, flags = at.read_seqno + 1, _FROM_DISK
    if not is_disk:
        flags, checkpoint = _FROM_MEMORY, view.checkpoint_at(start)
        if known is None or known < checkpoint:
            flags, known = _NEW_CHECKPOINT, checkpoint
            if first is not None and checkpoint <= at.snapshot_end:
                start = first
            elif checkpoint:  # the messages left out of a checkpoint belong to its first snapshot
                start = max(checkpoint, at.snapshot_end + 1)
        elif first is not None:
            start = first
        if terms.flags & _TAKEOVER:
            flags |= _ACK
    if durable is not None and flags == _FROM_MEMORY and first is None and not terms.settings.sync_writes:
        start = durable.first_visible_after(at.read_seqno) or start
    if not at.has_announced:
        start = terms.accepted.snapshot_start
    return Marker(start, end, flags | history_flags, known)
