"""Single changes, for those who prefer objects to Arrow batches. Needs nothing but Python."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dcpstream.client.machine.tracker import Run
from dcpstream.errors import FieldError
from dcpstream.model import Op, StreamOffset
from dcpstream.wire import Datatype, Frame, Opcode
from dcpstream.wire.keys import split_collection_key
from dcpstream.wire.values import decode_xattrs, snappy_uncompress

_SEQNOS = struct.Struct(">QQ")
_TWO = struct.Struct(">II")
_ONE = struct.Struct(">I")
_OPS = {
    Opcode.DCP_MUTATION: Op.MUTATION.value,
    Opcode.DCP_DELETION: Op.DELETION.value,
    Opcode.DCP_EXPIRATION: Op.EXPIRATION.value,
}
_DELETE_TIME_AT = 16


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
        flags, datatype: as stored.
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
            return StreamOffset(self.vbuuid, self.seqno, 0, None)  # nobody knows its snapshot: bounds that always hold
        return self._run.offset(self.seqno)


def change_of(
    frame: Frame, has_collections: bool, names: Mapping[int, tuple[str, str]], vbuuid: int, run: Run | None = None
) -> Change:
    """The change in a mutation, deletion or expiration.

    Args:
        frame: the message.
        has_collections: whether its key begins with a collection id.
        names: collection id → (scope name, collection name).
        vbuuid: the branch of its stream.
        run: what its position is taken from.

    Raises:
        FieldError: key, value or extras are not what they should be.
    """
    collection_id, key = split_collection_key(frame.key) if has_collections else (0, frame.key)
    scope, collection = names.get(collection_id) or ("", f"0x{collection_id:x}")
    extras = frame.extras
    flags = expiry = 0
    try:
        seqno, rev = _SEQNOS.unpack_from(extras)
        if frame.opcode == Opcode.DCP_MUTATION:
            flags, expiry = _TWO.unpack_from(extras, 16)
        elif len(extras) >= _DELETE_TIME_AT + _ONE.size:
            (expiry,) = _ONE.unpack_from(extras, _DELETE_TIME_AT)
    except struct.error as error:
        raise FieldError(f"extras of {len(extras)} bytes: {error}") from error
    value: bytes | None = frame.value
    xattrs: dict[str, bytes] = {}
    if frame.datatype & Datatype.SNAPPY and value:
        value = snappy_uncompress(value)
    if frame.datatype & Datatype.XATTR and value:
        xattrs, value = decode_xattrs(value)
    if not value and frame.opcode != Opcode.DCP_MUTATION:
        value = None
    return Change(
        op=_OPS[Opcode(frame.opcode)],
        key=key,
        value=value,
        scope=scope,
        collection=collection,
        vbid=frame.vbid,
        vbuuid=vbuuid,
        seqno=seqno,
        rev=rev,
        cas=frame.cas,
        flags=flags,
        datatype=frame.datatype,
        expiry=expiry,
        xattrs=xattrs,
        _run=run,
    )


def changes_of(
    frames: Sequence[Frame],
    runs: Iterable[Run],
    has_collections: bool,
    names: Mapping[int, tuple[str, str]],
    vbuuids: Mapping[int, int],
) -> tuple[Change, ...]:
    """The changes in those data messages that lie in runs, in their order."""
    return tuple(
        change_of(frame, has_collections, names, vbuuids.get(frame.vbid, 0), run)
        for run in runs
        for frame in frames[run.first : run.stop]
    )


def positions_after(changes: Iterable[Change]) -> dict[int, StreamOffset]:
    """Where the readers stand after these changes, which are in the order in which they were given out."""
    last = {change.vbid: change for change in changes}
    return {vbid: change.offset for vbid, change in last.items()}
