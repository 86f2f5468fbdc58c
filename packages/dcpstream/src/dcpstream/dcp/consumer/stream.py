"""One stream of a consumer: a vbucket that follows its source, snapshot by snapshot.

Theory of operation. ADD_STREAM makes a stream PENDING: it asks the source for everything that the vbucket lacks
(STREAM_REQ) and waits. If the source asks for a rollback, the stream cuts the vbucket back, or tries an older branch of
its failover log, and asks again with the same opaque. An accepted stream is READING: markers announce snapshots, rows
fill them, and each row is stored as it comes. The copy remembers the snapshot of its rows: if it becomes active in the
middle of one, it knows the last seqno at which it was equal to its source. A stream is DEAD when it was closed, ended
or refused, or when its vbucket became active or was deleted. A dead stream ignores whatever still comes for it.

`TRANSITIONS` lists what may happen in which state. Anything else is a fault of the peer, and the connection ends.

Source: kv_engine engines/ep/src/dcp/passive_stream.cc; statuses as in recordings of a server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum

from dcpstream.dcp.bucket import Change, ReplicaBucket, VBucketView
from dcpstream.dcp.consumer.checkpoint import ReceivedCheckpoint
from dcpstream.dcp.consumer.messages import (
    PERSIST_TO_MAJORITY,
    Decision,
    Marker,
    PreparedChange,
    abort_of,
    commit_of,
)
from dcpstream.dcp.snapshot import REPLICA, ReceivedSnapshots, SnapshotFault, Violation, claim_violation
from dcpstream.dcp.transitions import Transitions
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import MAX_SEQNO, FailoverLog, SnapshotRange, VbucketState
from dcpstream.wire import MarkerFlag, Status
from dcpstream.wire.messages.dcp import StreamRequest

_CAN_BE_CUT = (VbucketState.REPLICA, VbucketState.PENDING)
"""Roles of copies whose history may be cut. A rollback of any other copy is ignored."""

Bounds = tuple[int, int, int]


class ConsumerState(Enum):
    """The states of a stream; the values are those of the server's stats."""

    PENDING = "pending"
    READING = "reading"
    DEAD = "dead"


class StreamEvent(Enum):
    """The events of a stream."""

    ACCEPTED = "STREAM_REQ accepted"
    ROLLBACK = "STREAM_REQ answered with a rollback"
    REFUSED = "STREAM_REQ refused"
    MESSAGE = "marker, row or state"
    CLOSED = "CLOSE_STREAM"
    ENDED = "STREAM_END"
    LOST = "the vbucket became active or is gone"


TRANSITIONS = Transitions(
    "consumer stream of vb {}",
    ConsumerState.PENDING,
    {
        ConsumerState.PENDING: {
            StreamEvent.ACCEPTED: ConsumerState.READING,
            StreamEvent.ROLLBACK: ConsumerState.PENDING,
            StreamEvent.REFUSED: ConsumerState.DEAD,
            StreamEvent.CLOSED: ConsumerState.DEAD,
            StreamEvent.ENDED: ConsumerState.DEAD,
            StreamEvent.LOST: ConsumerState.DEAD,
        },
        ConsumerState.READING: {
            StreamEvent.MESSAGE: ConsumerState.READING,
            StreamEvent.CLOSED: ConsumerState.DEAD,
            StreamEvent.ENDED: ConsumerState.DEAD,
            StreamEvent.LOST: ConsumerState.DEAD,
        },
        # A stream that was closed while it waited may still be answered, and messages may still be on their way.
        ConsumerState.DEAD: dict.fromkeys(StreamEvent, ConsumerState.DEAD),
    },
    peer_events=StreamEvent,
)

_RECEIVING = frozenset((VbucketState.REPLICA, VbucketState.PENDING))


class ConsumerStream:
    """A stream that ADD_STREAM asked for.

    Args:
        view: the vbucket.
        replicas: its bucket.
        number: the stream's number on its connection; its opaque follows from it.
        opaque: u32 as it stands in headers.
        add_opaque: of the ADD_STREAM.
        flags: of the ADD_STREAM, sent on unchanged.

    Attributes:
        state: see `TRANSITIONS`.
        snapshots: which message fits, and what is complete; its seqno is that of the last stored row, of this stream or
            of an earlier one.
        asked, asked_vbuuid, asked_value: seqnos, branch and JSON value of the last STREAM_REQ.
    """

    def __init__(
        self, view: VBucketView, replicas: ReplicaBucket, number: int, opaque: int, add_opaque: int, flags: int
    ) -> None:
        self.view = view
        self.vbid = view.vbid
        self.number = number
        self.opaque = opaque
        self.add_opaque = add_opaque
        self.flags = flags
        self.state = TRANSITIONS.start
        high_seqno = view.high_seqno
        self.snapshots = ReceivedSnapshots(REPLICA, high_seqno, (high_seqno, high_seqno))
        self.asked: Bounds = 0, 0, 0
        self.asked_vbuuid = view.failover_log.newest.vbuuid
        self.asked_value = ""
        self._replicas = replicas
        self._from_disk = False
        self._checkpoint = ReceivedCheckpoint(self.vbid, high_seqno + 1)
        self._replaceable_seqno = 0
        self._ack: bool = False
        self._consistent_seqno = 0
        self._prepared: deque[tuple[int, int]] = deque()
        self._disk_prepared: int | None = None
        self._last_prepared = 0
        self._sound_seqno = high_seqno

    @property
    def last_seqno(self) -> int:
        """The seqno of the last stored row, or the last seqno without one that the source has passed."""
        return self.snapshots.seqno

    @property
    def is_living(self) -> bool:
        """Whether it may still receive something."""
        return self.state is not ConsumerState.DEAD

    @property
    def is_reading(self) -> bool:
        """Whether the source accepted it and it has not ended."""
        return self.state is ConsumerState.READING

    @property
    def snapshot_type(self) -> str:
        """The origin of the snapshot under way, as in the server's stats."""
        origin = "disk" if self._from_disk else "memory"
        return "none" if self.snapshots.pending_end is None else origin

    @property
    def has_prepares(self) -> bool:
        """Whether prepares are not acknowledged yet."""
        return bool(self._prepared)

    def go(self, event: StreamEvent) -> None:
        """Change the state.

        Raises:
            RemoteProtocolError: the event cannot happen in this state.
        """
        self.state = TRANSITIONS.after(self.state, event, self.vbid)

    # ------------------------------------------------------------------------------------------------- the handshake

    def request(self, value: bytes) -> bytes:
        """STREAM_REQ for everything that the vbucket lacks now."""
        start, low, high = self.asked = self.bounds()
        self.snapshots.restart(start, (low, high))
        self.asked_vbuuid = self.view.failover_log.newest.vbuuid
        self.asked_value = value.decode()
        return StreamRequest(
            vbid=self.vbid,
            opaque=self.opaque,
            flags=self.flags,
            reserved=0,
            start_seqno=start,
            end_seqno=MAX_SEQNO,
            vbuuid=self.asked_vbuuid if start else 0,
            snapshot_start=low,
            snapshot_end=high,
            value=value,
        ).encode()

    def bounds(self) -> Bounds:
        """(start, snapshot start, snapshot end) of a request; for a complete snapshot all three are its end."""
        start = self.view.high_seqno
        received = self._replicas.received_snapshot(self.view)
        if received.start_seqno <= start < received.end_seqno:
            return start, received.start_seqno, received.end_seqno
        return start, start, start

    def accepted(self, log: FailoverLog) -> None:
        """The source accepted the stream: the vbucket takes over its failover log."""
        was_waiting = self.state is ConsumerState.PENDING
        self.go(StreamEvent.ACCEPTED)
        if was_waiting:
            self._replicas.adopt_failover_log(self.view, log)

    def rolled_back(self, seqno: int) -> bool:
        """The source asks for a rollback to `seqno`.

        Returns: whether to send the request again.
        """
        was_waiting = self.state is ConsumerState.PENDING
        self.go(StreamEvent.ROLLBACK)
        if not was_waiting or self.view.state not in _CAN_BE_CUT:
            return False
        log = self.view.failover_log
        if not seqno and len(log) > 1 and log.newest.seqno == self.last_seqno:
            # Our newest branch is empty: the source may know the one before it.
            self._replicas.adopt_failover_log(self.view, FailoverLog(log.entries[1:]))
        else:
            left = self._replicas.roll_back(self.view, min(seqno, self.last_seqno))
            self.snapshots.restart(left, (left, left))
        self._sound_seqno = self.last_seqno
        return True

    # ---------------------------------------------------------------------------------------------------------- data

    def marker(
        self, marker: Marker, *, is_sync_replication: bool, may_be_inside: bool = True, is_visible_checked: bool = True
    ) -> Status:
        """A snapshot begins.

        Args:
            is_sync_replication: a marker from disk must have the high completed seqno.
            may_be_inside: whether it may lie in the snapshot under way. One from disk with history always may, if it
                has the same end.
            is_visible_checked: whether its max visible seqno may not be above its end.

        Raises:
            RemoteProtocolError: the marker contradicts itself.
        """
        self.go(StreamEvent.MESSAGE)
        if not self.is_living:
            return Status.SUCCESS
        snapshots = self.snapshots
        violation = snapshots.marker_violation(marker.start_seqno, marker.end_seqno)
        if violation is not None:
            return Status.EINVAL if violation.fault is SnapshotFault.BACKWARDS else Status.ERANGE
        if self.view.state not in _RECEIVING:
            return Status.SUCCESS  # a dead copy ignores markers
        self._check_claims(marker, is_sync_replication=is_sync_replication, is_visible_checked=is_visible_checked)
        from_disk = bool(marker.flags & MarkerFlag.DISK)
        end = snapshots.announced[1] if snapshots.announced is not None else 0
        is_inside = self.last_seqno < end >= marker.end_seqno
        kind = marker.flags & (MarkerFlag.MEMORY | MarkerFlag.HISTORY)
        if is_inside and not may_be_inside and not (kind == MarkerFlag.HISTORY and marker.end_seqno == end):
            raise RemoteProtocolError(f"vb {self.vbid}: a marker inside a snapshot does not end behind it")
        if from_disk:
            self._replaceable_seqno = self._replicas.last_undecided_seqno(self.view)
        is_continued = not (
            snapshots.announced is None or from_disk or self._from_disk or marker.flags & MarkerFlag.CHECKPOINT
        )
        if not is_continued:
            self._checkpoint = ReceivedCheckpoint(self.vbid, self.last_seqno + 1)
        self._begin(marker, from_disk=from_disk, is_continued=is_continued)
        if from_disk and marker.purge_seqno is not None:
            self._replicas.learn_purge_seqno(self.view, marker.purge_seqno)
        self._disk_prepared = marker.high_prepared_seqno
        self._ack = bool(marker.flags & MarkerFlag.ACK)
        return Status.SUCCESS

    def _check_claims(self, marker: Marker, *, is_sync_replication: bool, is_visible_checked: bool) -> None:
        from_disk = bool(marker.flags & MarkerFlag.DISK)
        violation = claim_violation(
            marker.end_seqno,
            max_visible=marker.max_visible_seqno if is_visible_checked else None,
            purged=marker.purge_seqno if from_disk else None,
            high_prepared=marker.high_prepared_seqno if from_disk else None,
        )
        if violation is not None:
            raise RemoteProtocolError(f"vb {self.vbid}: {violation.text}")
        if from_disk and is_sync_replication and marker.high_completed_seqno is None:
            raise RemoteProtocolError(f"vb {self.vbid}: a disk marker lacks the high completed seqno")

    def _begin(self, marker: Marker, *, from_disk: bool, is_continued: bool) -> None:
        snapshots = self.snapshots
        is_first = snapshots.announced is None
        before = self._replicas.received_snapshot(self.view).end_seqno if is_first else snapshots.bounds[1]
        if self.last_seqno >= before:
            self._consistent_seqno = min(self.last_seqno, self.view.high_seqno)  # a position may be beyond the last row
        elif is_first:
            self._consistent_seqno = min(self.view.snapshot.start_seqno, self.last_seqno)
        snapshots.begin(marker.start_seqno, marker.end_seqno, is_continued=is_continued)
        self._from_disk = from_disk
        is_initial = from_disk and not self.view.high_seqno
        self._replicas.begin_snapshot(
            self.view, SnapshotRange(*snapshots.bounds), self._consistent_seqno, is_initial_from_disk=is_initial
        )

    def change(self, change: Change) -> Status:
        """Store a row. SUCCESS if it was stored, or if the stream is dead.

        Raises:
            RemoteProtocolError: the row may not be in its checkpoint.
        """
        status = self.fits(change)
        if status is Status.SUCCESS and self.is_living:
            if not self._from_disk:
                if self._replicas.prepare_of(self.view, change.key) is not None:
                    return Status.SYNC_WRITE_IN_PROGRESS  # a document decides its prepare in snapshots from disk only
                self._checkpoint.plain_write(change.key, change.seqno)
            self._store(change)
        return status

    def cached(self, keys: Iterable[bytes]) -> Status:
        """Documents from the source's memory, by keys; the position does not move."""
        self.go(StreamEvent.MESSAGE)
        if not self.is_living:
            return Status.SUCCESS
        if self.view.state not in _RECEIVING:
            return Status.NOT_MY_VBUCKET
        known = all(self._replicas.has_collection_of(self.view, key) for key in keys)
        return Status.SUCCESS if known else Status.UNKNOWN_COLLECTION

    def _store(self, change: Change) -> None:
        self._replicas.store(self.view, change)
        self.snapshots.move(change.seqno)

    def fits(self, change: Change) -> Status:
        """Whether a document, or its prepare, is legal now."""
        seqno = change.seqno
        self.go(StreamEvent.MESSAGE)
        if not self.is_living:
            return Status.SUCCESS
        if self.snapshots.item_violation(seqno, seqno) is not None:
            return Status.ERANGE
        if self.view.state not in _RECEIVING:
            return Status.NOT_MY_VBUCKET
        if not self._replicas.has_collection_of(self.view, change.key):
            return Status.UNKNOWN_COLLECTION
        return Status.SUCCESS

    def _follows(self, seqno: int) -> tuple[Status, Violation | None]:
        """Whether a message other than a document is legal now.

        Returns: a status, and the violation of the snapshot's bounds. A server checks the bounds of these messages
            last, and answers in another way.
        """
        self.go(StreamEvent.MESSAGE)
        if not self.is_living:
            return Status.SUCCESS, None
        violation = self.snapshots.item_violation(seqno, seqno)
        if violation is not None and violation.fault is SnapshotFault.NOT_ABOVE:
            return Status.ERANGE, violation
        return Status.SUCCESS if self.view.state in _RECEIVING else Status.NOT_MY_VBUCKET, violation

    def system_event(self, change: Change) -> Status:
        """A collection or scope was created, changed or dropped."""
        status, violation = self._follows(change.seqno)
        if status is Status.SUCCESS and self.is_living:
            if violation is not None or not self._replicas.has_place_for(self.view, change):
                return Status.EINVAL
            self._store(change)
        return status

    def prepare(self, prepare: PreparedChange) -> Status:
        """Store a prepare; it is acknowledged when its level allows.

        A snapshot from disk leaves out decided prepares, so its prepare may replace an older one of the document.

        Raises:
            RemoteProtocolError: a snapshot from disk, or a checkpoint, has two prepares of one document.
        """
        status = self.fits(prepare.change)
        if status is not Status.SUCCESS or not self.is_living:
            return status
        before = self._replicas.prepare_of(self.view, prepare.change.key)
        if before is not None and before.seqno > self._replaceable_seqno:
            if self._from_disk:
                raise RemoteProtocolError(f"vb {self.vbid}: a snapshot from disk has two prepares of a document")
            return Status.SYNC_WRITE_IN_PROGRESS
        if not self._from_disk:
            self._checkpoint.prepare_or_abort(prepare.change.key, prepare.change.seqno)
        self._last_prepared = prepare.change.seqno
        self._prepared.append((prepare.change.seqno, prepare.level))
        self._store(prepare.change)
        return status

    def decide(self, decision: Decision) -> Status:
        """Commit or abort a prepare.

        Raises:
            RemoteProtocolError: the decision lies outside its snapshot, or may not be in its checkpoint.
        """
        status, violation = self._follows(decision.seqno)
        if status is not Status.SUCCESS or not self.is_living:
            return status
        prepare = self._replicas.prepare_of(self.view, decision.key)
        if prepare is not None and prepare.seqno != decision.prepared_seqno:
            prepare = None
        # A snapshot from disk leaves out the prepare of an abort.
        if prepare is None and not (decision.is_abort and self._from_disk):
            return Status.EINVAL if decision.is_abort else Status.KEY_ENOENT
        if violation is not None:
            raise RemoteProtocolError(f"vb {self.vbid}: a decision at {decision.seqno}: {violation.text}")
        if decision.is_abort:
            if not self._from_disk:
                self._checkpoint.prepare_or_abort(decision.key, decision.seqno)
            self._store(abort_of(decision, self.vbid))
        elif prepare is not None:
            if not self._from_disk:
                present = self._replicas.version_seqno(self.view, decision.key)
                self._checkpoint.commit(decision.key, decision.seqno, present)
            self._store(commit_of(decision, prepare, self.vbid))
        return status

    def advance(self, seqno: int) -> None:
        """The source has nothing more for this copy up to `seqno`, because it keeps its durable writes back.

        The position in the snapshot moves; the copy's history keeps the seqno of its last row, so that a stream that
        begins again asks from there.
        """
        self.go(StreamEvent.MESSAGE)
        if self.is_living and self.snapshots.item_violation(seqno, seqno) is None:
            self.snapshots.move(seqno)

    def acknowledged_prepare(self) -> int:
        """The seqno up to which prepares must be acknowledged now, returned once; 0 if there is none.

        Prepares count when their snapshot is whole. A prepare of level persist-to-majority also waits until it is on
        this node's disk.
        """
        found, persisted = 0, self.view.persisted_seqno
        while self._prepared and self._prepared[0][0] <= self._sound_seqno:
            seqno, level = self._prepared[0]
            if level == PERSIST_TO_MAJORITY and persisted < seqno:
                break
            found = seqno
            self._prepared.popleft()
        return found

    def snapshot_done(self) -> bool:
        """End the snapshot if the last row was its last; whether the source waits for an answer to its marker."""
        if not self.snapshots.is_whole or not self.is_living:
            return False
        self._replicas.end_snapshot(self.view)
        self._sound_seqno = self.last_seqno
        if self._from_disk:
            self._prepared_on_disk()
        ack, self._ack = self._ack, False
        return ack

    def _prepared_on_disk(self) -> None:
        """Prepares that are no longer in a snapshot from disk count, once it is on this node's disk, too."""
        seqno = self.last_seqno if self._disk_prepared is None else self._disk_prepared
        if seqno > self._last_prepared:
            self._last_prepared = seqno
            self._prepared.append((seqno, PERSIST_TO_MAJORITY))

    def set_state(self, state: VbucketState) -> None:
        """The source hands the vbucket over."""
        self.go(StreamEvent.MESSAGE)
        if self.is_living:
            self._replicas.set_state(self.view, state)
