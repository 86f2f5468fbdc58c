"""Messages of a producer's stream that are not stored: markers, and the bounds of out-of-order snapshots.

Source: kv_engine engines/ep/src/dcp/active_stream.cc; markers and flags as in recordings of a server.
"""

from __future__ import annotations

from dcpstream.dcp.bucket import VBucketView
from dcpstream.dcp.controls import ProducerSettings
from dcpstream.dcp.producer.change_history import ChangeHistory
from dcpstream.wire import HEADER, HEADER_BYTES, FrameInfoId, Magic, MarkerFlag, Opcode
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.keys import encode_frame_info
from dcpstream.wire.layout import Request
from dcpstream.wire.messages import REQUESTS
from dcpstream.wire.messages.dcp import (
    OsoSnapshot,
    SnapshotMarker,
    SnapshotMarkerV2,
    SnapshotMarkerV22,
)

__all__ = ["StreamMessages", "count_of", "last_seqno_of"]

# Plain ints: flags are combined for each snapshot of each stream, and enum arithmetic is slow.
_FROM_DISK = int(MarkerFlag.DISK | MarkerFlag.CHECKPOINT)
_FROM_MEMORY = int(MarkerFlag.MEMORY)
_ACK = int(MarkerFlag.ACK)
_NEW_CHECKPOINT = int(MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT)

_OSO_START, _OSO_END = 1, 2
_SEQNO_SECOND = frozenset(
    layout.opcode for layout in REQUESTS if layout.seqno and layout.extras_fields[0].name != layout.seqno
)
"""Opcodes of messages that have the prepare's seqno first."""
_SEQNO_BYTES = 8


class StreamMessages:
    """The maker of these messages for one stream.

    Args:
        view: the vbucket.
        opaque: u32, of the STREAM_REQ.
        stream_id: u16, or None.
        first_start: start of the snapshot that the client is in when it requests the stream.
        history: the history of a stream of changes; None for any other stream.
        is_takeover: markers of snapshots from memory ask for an answer.
        settings: the values of the client's controls.

    Attributes:
        is_first_marker: no snapshot was announced yet.
        last_snapshot_end: end of the last announced snapshot.
        unanswered_markers: markers that asked for an answer and have none yet.
    """

    __slots__ = (
        "_checkpoint_seqno",
        "_first_start",
        "_framing",
        "_has_marker_v22",
        "_history",
        "_is_sync_replication",
        "_is_takeover",
        "_opaque",
        "_shows_prepares",
        "_view",
        "is_first_marker",
        "last_snapshot_end",
        "unanswered_markers",
    )

    def __init__(
        self,
        view: VBucketView,
        opaque: int,
        stream_id: int | None,
        first_start: int,
        history: ChangeHistory | None,
        *,
        is_takeover: bool,
        settings: ProducerSettings,
    ) -> None:
        self._view = view
        self._opaque = opaque
        self._framing = b""
        if stream_id is not None:
            self._framing = encode_frame_info(FrameInfoId.DCP_STREAM_ID, stream_id.to_bytes(2, "big"))
        self._first_start = first_start
        self._history = history
        self._is_takeover = is_takeover
        self._shows_prepares = settings.sync_writes
        self._has_marker_v22 = settings.has_marker_v22
        self._is_sync_replication = settings.is_sync_replication
        self._checkpoint_seqno: int | None = None
        self.is_first_marker = True
        self.last_snapshot_end = 0
        self.unanswered_markers = 0

    def marker_answered(self) -> None:
        """The other end has received the whole of a snapshot."""
        self.unanswered_markers = max(0, self.unanswered_markers - 1)

    def role_changed(self) -> None:
        """A change of the vbucket's role closes the checkpoint."""
        self._checkpoint_seqno = None

    def marker(self, position: int, end: int, *, is_disk: bool, first: int | None = None) -> bytes:
        """The marker of the snapshot (position, end].

        The first one from memory and the first one in a new checkpoint carry the checkpoint flag.

        Args:
            position: everything up to here was sent or left out.
            end: seqno of the last message.
            is_disk: the snapshot is read from disk.
            first: seqno of the first message, if messages before it may be left out.
        """
        view = self._view
        start, flags = position + 1, _FROM_DISK
        if not is_disk:
            flags = _FROM_MEMORY
            checkpoint = view.checkpoint_at(start)
            if self._checkpoint_seqno is None or self._checkpoint_seqno < checkpoint:
                flags = _NEW_CHECKPOINT
                self._checkpoint_seqno = checkpoint
                if first is not None and checkpoint <= self.last_snapshot_end:
                    start = first
                elif checkpoint:  # the messages left out of a checkpoint belong to its first snapshot
                    start = max(checkpoint, self.last_snapshot_end + 1)
            elif first is not None:
                start = first
            if self._is_takeover:
                flags |= _ACK
                self.unanswered_markers += 1
        is_plain = flags == _FROM_MEMORY
        if self._history is not None:
            flags |= self._history.flags(is_disk=is_disk)
        durable = view.durability
        if durable is not None and is_plain and not self._shows_prepares:
            start = durable.first_visible_after(position) or start
        if self.is_first_marker:
            start = self._first_start
            self.is_first_marker = False
        self.last_snapshot_end = end
        has_v22 = is_disk and self._has_marker_v22
        if not (has_v22 or self._is_sync_replication):
            return self.pack(SnapshotMarker, start, end, flags)
        visible = end if durable is None else durable.visible_seqno(end)
        if has_v22 and not self._is_sync_replication:
            return self.pack(SnapshotMarkerV22, start, end, flags, 0, 0, view.purge_seqno, 0)
        completed = 0 if durable is None or not is_disk else durable.high_completed_seqno
        if has_v22:
            prepared = 0 if durable is None else durable.high_prepared_seqno
            purged = view.purge_seqno
            return self.pack(SnapshotMarkerV22, start, end, flags, visible, completed, purged, prepared)
        return self.pack(SnapshotMarkerV2, start, end, flags, visible, completed)

    def out_of_order_start(self, end: int) -> bytes:
        """Begin an out-of-order snapshot up to `end`; it has no marker."""
        self.is_first_marker, self.last_snapshot_end = False, end
        return self.pack(OsoSnapshot, _OSO_START)

    def out_of_order_end(self) -> bytes:
        """End the out-of-order snapshot."""
        return self.pack(OsoSnapshot, _OSO_END)

    def pack(self, message: type[Request], *fields: int) -> bytes:
        """Any message of this stream: with its vbucket and opaque, and with its stream id if it has one."""
        return message.pack(*fields, vbid=self._view.vbid, opaque=self._opaque, framing=self._framing)


def last_seqno_of(data: Buffer) -> int:
    """The seqno of the last message in rendered bytes; most have it first in their extras."""
    at = last = 0
    while at < len(data):
        last = at
        at += HEADER_BYTES + HEADER.unpack_from(data, at)[6]
    seqno_at = last + HEADER_BYTES + (data[last + 2] if data[last] == Magic.FLEX_REQUEST else 0)
    if data[last + 1] in _SEQNO_SECOND:
        seqno_at += _SEQNO_BYTES
    return int.from_bytes(data[seqno_at : seqno_at + _SEQNO_BYTES], "big")


def count_of(data: Buffer, wanted: Opcode) -> int:
    """The number of messages with an opcode among whole messages."""
    count = at = 0
    while at < len(data):
        _, opcode, _, _, _, _, body, _, _ = HEADER.unpack_from(data, at)
        count += opcode == wanted
        at += HEADER_BYTES + body
    return count
