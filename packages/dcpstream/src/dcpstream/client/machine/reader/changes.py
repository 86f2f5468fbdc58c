"""Single changes: what users of `changes()` get instead of Arrow batches. Needs no extra."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dcpstream.client.machine.connection.events import RowsReceived
from dcpstream.client.machine.connection.rows import FrameRows, NativeRows
from dcpstream.client.machine.reader.output_queue import Branches, Names
from dcpstream.client.machine.tracker import Run
from dcpstream.client.machine.values import RollbackEvent, RowsRead, VbucketEvent
from dcpstream.errors import FieldError
from dcpstream.model import Op, StreamOffset
from dcpstream.wire import Datatype, Frame
from dcpstream.wire.keys import split_collection_key
from dcpstream.wire.messages.dcp import Deletion, DeletionV2, Expiration, Mutation
from dcpstream.wire.values import decode_xattrs, snappy_uncompress


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one document.

    Attributes:
        op: "mutation", "deletion" or "expiration"; for a control row another value of `dcpstream.model.Op`.
        key: the document's key; empty for a control row.
        value: the body, inflated and without xattrs; None for a deletion without one. JSON for a control row.
        scope, collection: names; the id in hexadecimal if the name is not known. Empty where there is none.
        vbid, vbuuid, seqno: where in which branch of history.
        rev: how many times the document was changed, as the node counts.
        cas: its version; nanoseconds since 1970 of the node's hybrid clock.
        flags, datatype: as stored, also if the value is not sent.
        expiry: seconds since 1970 at which it expires, or was deleted; 0 for none.
        xattrs: name → JSON text.
        offset: where to go on after this change; see `Client.changes`.
    """

    op: str
    key: bytes
    value: bytes | None
    scope: str
    collection: str
    vbid: int
    vbuuid: int
    seqno: int
    rev: int
    cas: int
    flags: int
    datatype: int
    expiry: int
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    _run: Run | None = field(default=None, repr=False, compare=False)

    @property
    def offset(self) -> StreamOffset:
        """The position after this change, with the bounds of its snapshot: `start={change.vbid: change.offset}`.

        Inside an out-of-order snapshot it is the position before that snapshot.
        """
        if self._run is None:
            return StreamOffset(self.vbuuid, self.seqno, 0, None)  # the snapshot is not known: bounds that always hold
        return self._run.offset(self.seqno)


class _Shape(NamedTuple):
    """The places of a `Change`'s fields in the extras of a message. The first two are the seqno and the revision."""

    op: str
    extras: struct.Struct
    flags_at: int | None
    expiry_at: int | None


def _shapes() -> dict[tuple[int, int], _Shape]:
    shapes = {}
    for message, op in (
        (Mutation, Op.MUTATION),
        (Deletion, Op.DELETION),
        (DeletionV2, Op.DELETION),
        (Expiration, Op.EXPIRATION),
    ):
        layout = message.layout
        places = {item.name: place for place, item in enumerate(layout.extras_fields)}
        expiry_at = places.get("expiration", places.get("delete_time"))
        shapes[layout.opcode, layout.extras_bytes] = _Shape(op.value, layout.extras, places.get("flags"), expiry_at)
    return shapes


_SHAPES = _shapes()
"""(opcode, length of the extras) → shape."""


_SNAPPY, _XATTR = int(Datatype.SNAPPY), int(Datatype.XATTR)
_PACKED = _SNAPPY | _XATTR
_MUTATION = Op.MUTATION.value


def _body_of(value: bytes, datatype: int, op: str) -> tuple[bytes | None, dict[str, bytes]]:
    """(the body, attributes) in the value of a message."""
    xattrs: dict[str, bytes] = {}
    if datatype & _PACKED and value:
        if datatype & _SNAPPY:
            value = snappy_uncompress(value)
        if datatype & _XATTR and value:
            xattrs, value = decode_xattrs(value)
    return value if value or op == _MUTATION else None, xattrs


def change_of(frame: Frame, has_collections: bool, names: Names, vbuuid: int, run: Run | None = None) -> Change:
    """The change in a mutation, deletion or expiration.

    Args:
        frame: the message.
        has_collections: whether its key begins with a collection id.
        names: collection id → (scope name, collection name).
        vbuuid: the branch of its stream.
        run: the source of its position.

    Raises:
        FieldError: key, value or extras are malformed.
    """
    shape = _SHAPES.get((frame.opcode, len(frame.extras)))
    if shape is None:
        raise FieldError(f"extras of {len(frame.extras)} bytes in a message with opcode 0x{frame.opcode:02x}")
    numbers = shape.extras.unpack(frame.extras)
    collection_id, key = split_collection_key(frame.key) if has_collections else (0, frame.key)
    scope, collection = names.get(collection_id) or ("", f"0x{collection_id:x}")
    value, xattrs = _body_of(frame.value, frame.datatype, shape.op)
    return Change(
        op=shape.op,
        key=key,
        value=value,
        scope=scope,
        collection=collection,
        vbid=frame.vbid,
        vbuuid=vbuuid,
        seqno=numbers[0],
        rev=numbers[1],
        cas=frame.cas,
        flags=0 if shape.flags_at is None else numbers[shape.flags_at],
        datatype=frame.datatype,
        expiry=0 if shape.expiry_at is None else numbers[shape.expiry_at],
        xattrs=xattrs,
        _run=run,
    )


class ChangeConverter:
    """Makes tuples of `Change`, one for each receive."""

    uses_names = True
    keeps_frames = False

    def convert(
        self, event: RowsReceived, has_collections: bool, names: Names, vbuuids: Branches
    ) -> Iterator[RowsRead[tuple[Change, ...]]]:
        """One tuple; see `output_queue.Converter`."""
        rows = event.rows
        if isinstance(rows, NativeRows):
            owned = event.owned
            if owned is None:
                changes = native_changes(rows, event.handled, names, vbuuids)
            else:
                changes = native_changes(rows, owned.runs, names, vbuuids, owned.owners)
        else:
            assert isinstance(rows, FrameRows)
            changes = changes_of(rows.frames, event.runs, has_collections, names, vbuuids)
        yield RowsRead(changes, event.offsets)


def changes_of(
    frames: Sequence[Frame], runs: Iterable[Run], has_collections: bool, names: Names, vbuuids: Branches
) -> tuple[Change, ...]:
    """The changes in those data messages that lie in runs, in their order."""
    return tuple(
        change_of(frame, has_collections, names, vbuuids.get(frame.vbid, 0), run)
        for run in runs
        for frame in frames[run.first : run.stop]
    )


_OPS = {opcode: shape.op for (opcode, _), shape in _SHAPES.items()}
_OPS_IN_ORDER = tuple(_OPS[opcode] for opcode in sorted(_OPS))
"""Operations of three adjacent opcodes."""


def native_changes(
    rows: NativeRows, runs: Iterable[Run], names: Names, vbuuids: Branches, owners: bytes | None = None
) -> tuple[Change, ...]:
    """The changes in those rows that lie in runs, in their order; as `changes_of` makes them of frames.

    Args:
        rows: the rows.
        runs: those that count, with their positions.
        names: collection id → (scope name, collection name).
        vbuuids: vbucket → branch.
        owners: the number of each row's run as u32, if the runs do not say which rows they have; a larger number for a
            row that does not count.

    Raises:
        FieldError: a value is malformed.

    Cost: about 0.4 µs a change.
    """
    opcode, datatype, vbucket, cas, seqno, rev, flags, expiry, _, collection = rows.columns.numbers
    changes: tuple[Change, ...] = rows.native.changes(
        Change,
        rows.count,
        (opcode, collection, vbucket, seqno, rev, cas, flags, datatype, expiry),
        *rows.columns[1:5],
        tuple(runs),
        _OPS_IN_ORDER,
        dict(names),
        dict(vbuuids),
        _body_of,
        owners,
    )
    return changes


def positions_after(changes: Iterable[Change]) -> dict[int, StreamOffset]:
    """The position of each vbucket after these changes, which stand in the order of their delivery."""
    last = {change.vbid: change for change in changes}
    return {vbid: change.offset for vbid, change in last.items()}


def event_change(event: VbucketEvent) -> Change:
    """The control change for an event: the op says what happened, the value is JSON."""
    return _control_change(
        event.op,
        event.details(),
        event.offset,
        vbid=event.vbid,
        vbuuid=event.vbuuid,
        seqno=event.seqno,
        scope=event.scope,
        collection=event.collection,
    )


def rollback_change(event: RollbackEvent) -> Change:
    """The control change for a rollback: the op is "rollback", the value JSON."""
    return _control_change(
        Op.ROLLBACK, event.details(), event.resumed_at, vbid=event.vbid, vbuuid=event.new_vbuuid, seqno=event.to_seqno
    )


def _control_change(
    op: Op,
    value: Mapping[str, Any],
    offset: StreamOffset,
    *,
    vbid: int,
    vbuuid: int,
    seqno: int,
    scope: str = "",
    collection: str = "",
) -> Change:
    """A change of no document: its value is JSON about the event, and `offset` is the position after it."""
    return Change(
        op=op.value,
        key=b"",
        value=json.dumps(value).encode(),
        scope=scope,
        collection=collection,
        vbid=vbid,
        vbuuid=vbuuid,
        seqno=seqno,
        rev=0,
        cas=0,
        flags=0,
        datatype=0,
        expiry=0,
        _run=Run.standing(vbid, offset),
    )
