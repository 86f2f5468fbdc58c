"""The meaning of a recording's frames, and the position of each vbucket after them.

A recording is a DCP stream of all vbuckets in one: whole frames in the order of their arrival, each with its vbucket
as opaque. Per vbucket they are

- STREAM_REQ and its answer: the position from which the recorder read, and the failover log there. They come at the
  beginning, after a rollback, and when another branch is read.
- SNAPSHOT_MARKER: the bounds of the snapshot that the following messages lie in.
- MUTATION, DELETION, EXPIRATION as the node sent them, keys with their collection id; SYSTEM_EVENT in stored form.
- SEQNO_ADVANCED: the position moved without a message.
- an answer to STREAM_REQ with the status ROLLBACK: everything of the vbucket above its seqno is void.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dcpstream.client.machine.resume import spaced
from dcpstream.client.machine.values import ManifestEvent
from dcpstream.model import MAX_SEQNO, FailoverLog, Op, StreamOffset
from dcpstream.wire import Frame, Magic, Opcode, Status, SystemEventId, decode_frame
from dcpstream.wire.frames import HEADER, HEADER_BYTES, with_opaque
from dcpstream.wire.messages.dcp import (
    DATA_EXTRAS_BYTES,
    RollbackResponse,
    SeqnoAdvanced,
    SnapshotMarker,
    StreamRequest,
    StreamResponse,
)
from dcpstream.wire.system_events import CollectionEvent, encode_stored_event, read_event
from dcpstream.wire.values import decode_failover_log, encode_failover_log

DATA_OPCODES = frozenset(DATA_EXTRAS_BYTES)
"""Messages that change a document."""

_EVENTS = {
    Op.COLLECTION_CREATED: SystemEventId.CREATE_COLLECTION,
    Op.COLLECTION_FLUSHED: SystemEventId.CREATE_COLLECTION,
    Op.COLLECTION_DROPPED: SystemEventId.DROP_COLLECTION,
    Op.COLLECTION_MODIFIED: SystemEventId.MODIFY_COLLECTION,
    Op.SCOPE_CREATED: SystemEventId.CREATE_SCOPE,
    Op.SCOPE_DROPPED: SystemEventId.DROP_SCOPE,
}
_NAMELESS = frozenset((SystemEventId.DROP_COLLECTION, SystemEventId.DROP_SCOPE))
_MEMORY = 1
"""The flags of a marker; a recording does not keep where a snapshot came from."""


def opened(vbid: int, at: StreamOffset, log: FailoverLog) -> bytes:
    """The vbucket is read from a position on, on the newest branch of a log."""
    start, snapshot_start, snapshot_end = at.request_bounds()
    request = StreamRequest(
        vbid=vbid,
        opaque=vbid,
        start_seqno=start,
        end_seqno=MAX_SEQNO,
        vbuuid=at.vbuuid,
        snapshot_start=snapshot_start,
        snapshot_end=snapshot_end,
    )
    return request.encode() + StreamResponse.pack(opaque=vbid, value=encode_failover_log(log))


def rolled_back(vbid: int, seqno: int) -> bytes:
    """Everything of the vbucket above a seqno is void."""
    return RollbackResponse(opaque=vbid, status=Status.ROLLBACK, rollback_seqno=seqno).encode()


def marker(vbid: int, start_seqno: int, end_seqno: int) -> bytes:
    """Begin a snapshot, in which the following messages lie."""
    return SnapshotMarker.pack(start_seqno, end_seqno, _MEMORY, vbid=vbid, opaque=vbid)


def advanced(vbid: int, seqno: int) -> bytes:
    """The position moves to a seqno without a message."""
    return SeqnoAdvanced.pack(seqno, vbid=vbid, opaque=vbid)


def message(frame: Frame, *, has_collections: bool) -> bytes:
    """A mutation, deletion or expiration that a node sent."""
    key = frame.key if has_collections else b"\0" + frame.key
    return Frame(
        Magic.REQUEST,
        frame.opcode,
        frame.datatype,
        frame.vbid,
        frame.vbid,
        frame.cas,
        b"",
        frame.extras,
        key,
        frame.value,
    ).encode()


def system_event(event: ManifestEvent) -> bytes:
    """A scope or collection was made, changed or dropped. A flushed collection is recorded as one that is made."""
    kind = _EVENTS[event.op]
    stored = CollectionEvent(
        event=kind,
        manifest_uid=event.manifest_uid,
        scope_id=event.scope_id or 0,
        collection_id=event.collection_id or 0,
        name="" if kind in _NAMELESS else event.collection or event.scope,
        max_ttl=event.max_ttl or 0,
    )
    return with_opaque(encode_stored_event(stored, vbid=event.vbid, by_seqno=event.seqno), event.vbid)


@dataclass(slots=True)
class VbucketHistory:
    """The state of one vbucket of a recording.

    Attributes:
        vbid: the vbucket.
        log: the failover log of the branch that is read; None before the first answer.
        start: the position where the recording of it began.
        seqno: the last one that is recorded.
        snapshot: the bounds of the snapshot that it lies in.
        manifest_uid: of the last event of scopes and collections.
        earlier: positions to which a rollback can go back, newest first, their distances growing.
        changes: mutations, deletions and expirations, void ones among them.
    """

    vbid: int
    log: FailoverLog | None = None
    start: StreamOffset = StreamOffset.ZERO
    seqno: int = 0
    snapshot: tuple[int, int] = (0, 0)
    manifest_uid: int = 0
    earlier: tuple[StreamOffset, ...] = field(default=())
    changes: int = 0

    @property
    def offset(self) -> StreamOffset:
        """The position to go on from."""
        if self.log is None or not self.seqno:
            return StreamOffset.ZERO
        start, end = self.snapshot
        return StreamOffset(
            self.log.newest.vbuuid, self.seqno, min(start, self.seqno), max(end, self.seqno), self.manifest_uid
        )

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether the last snapshot is incomplete: the documents are in a state that never was."""
        return self.seqno < self.snapshot[1]

    def begin_snapshot(self, start_seqno: int, end_seqno: int) -> None:
        """Begin a snapshot, in which the following messages lie."""
        if self.seqno > self.start.seqno:
            self.earlier = spaced(self.earlier, self.offset)
        self.snapshot = start_seqno, end_seqno

    def roll_back(self, seqno: int) -> None:
        """Void everything above a seqno."""
        self.seqno = min(self.seqno, seqno)
        self.snapshot = self.seqno, self.seqno
        self.earlier = tuple(old for old in self.earlier if old.seqno < seqno)

    def open(self, at: StreamOffset, log: FailoverLog) -> None:
        """It is read from a position on."""
        if self.log is None:
            self.start = at
        self.seqno, self.log = at.seqno, log
        self.snapshot = at.snapshot_start, at.request_bounds()[2] if at.is_inside_snapshot else at.seqno


class Histories:
    """All vbuckets of a recording, as its frames are read or written."""

    def __init__(self) -> None:
        self.vbuckets: dict[int, VbucketHistory] = {}
        self._asked: dict[int, StreamOffset] = {}

    def of(self, vbid: int) -> VbucketHistory:
        """The vbucket; made if there is none."""
        found = self.vbuckets.get(vbid)
        if found is None:
            found = self.vbuckets[vbid] = VbucketHistory(vbid)
        return found

    @property
    def changes(self) -> int:
        """Mutations, deletions and expirations."""
        return sum(one.changes for one in self.vbuckets.values())

    @property
    def high_seqnos(self) -> int:
        """The sum of the last seqnos."""
        return sum(one.seqno for one in self.vbuckets.values())

    @property
    def incomplete(self) -> int:
        """Vbuckets whose last snapshot is incomplete."""
        return sum(one.is_inside_snapshot for one in self.vbuckets.values())

    def take(self, data: bytes) -> None:
        """Follow the frames of a block. Rows are not decoded.

        Raises: FrameError: bytes that are no frame, or an incomplete last one.
        """
        at = 0
        unpack, size = HEADER.unpack_from, len(data)
        while at < size:
            if size - at < HEADER_BYTES:
                decode_frame(data, at)  # raises
            _, opcode, _, _, _, _, body, vbid, _ = unpack(data, at)
            end = at + HEADER_BYTES + body
            if opcode in DATA_OPCODES and end <= size:
                one = self.of(vbid)
                one.seqno = int.from_bytes(data[at + HEADER_BYTES : at + HEADER_BYTES + 8], "big")
                one.changes += 1
            else:
                self._control(decode_frame(data, at))
            at = end

    def _control(self, frame: Frame) -> None:
        one = self.of(frame.opaque)
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            start, end, _ = SnapshotMarker.unpack(frame)
            one.begin_snapshot(start, end)
        elif frame.opcode == Opcode.DCP_SEQNO_ADVANCED:
            (one.seqno,) = SeqnoAdvanced.unpack(frame)
        elif frame.opcode == Opcode.DCP_SYSTEM_EVENT:
            one.seqno = int.from_bytes(frame.extras[:8], "big")
            event = read_event(frame.extras, frame.key, frame.value)
            one.manifest_uid = max(one.manifest_uid, event.manifest_uid)
        elif frame.opcode == Opcode.DCP_STREAM_REQ:
            self._stream_request(one, frame)

    def _stream_request(self, one: VbucketHistory, frame: Frame) -> None:
        if frame.is_request:
            self._asked[one.vbid] = position_in(frame)
        elif frame.status == Status.ROLLBACK:
            one.roll_back(RollbackResponse.unpack(frame)[0])
        else:
            one.open(self._asked.pop(one.vbid, one.offset), decode_failover_log(frame.value))


def position_in(frame: Frame) -> StreamOffset:
    """The position in a recorded STREAM_REQ."""
    request = StreamRequest.decode(frame)
    return StreamOffset(request.vbuuid, request.start_seqno, request.snapshot_start, request.snapshot_end)
