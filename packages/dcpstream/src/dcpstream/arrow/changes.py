"""The rows of a table of changes, with the columns that Spark sees.

`to_changes` converts a `WireChunk`. `control_rows` makes rows that are not changes of documents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dcpstream.arrow.chunk import WireChunk, arrow_of
from dcpstream.arrow.native_table import Texts, build, kinds_of, packed
from dcpstream.arrow.schema import COLUMNS, TIMESTAMP, VALUE_TEXT, change_schema
from dcpstream.arrow.text import chosen, exact_strings_of, repeated, strings_of
from dcpstream.arrow.values import inflate, nulls, split_sections, with_nulls
from dcpstream.arrow.xattrs import xattr_maps
from dcpstream.errors import FieldError
from dcpstream.model import Op
from dcpstream.model.collections import is_system_name
from dcpstream.runtime import kernel
from dcpstream.wire.codes import Opcode

_OPS: list[str | None] = [Op.MUTATION.value, Op.DELETION.value, Op.EXPIRATION.value]
"""By opcode - DCP_MUTATION."""
_CHANGE_TYPES: list[str | None] = ["insert", "update_postimage", "delete"]
_INSERT, _UPDATE, _DELETE = range(3)
_MUTATION = int(Opcode.DCP_MUTATION)
_CAS_LOGICAL_BITS = 16
"""A CAS is a hybrid logical clock: nanoseconds since the epoch with a counter in the low 16 bits."""
_MICROS = 1_000_000
_VBUCKETS = 1 << 16

_NameTable = tuple[npt.NDArray[np.int64], list[str | None], list[str | None]]


@dataclass(frozen=True)
class ChangeContext:
    """Facts about rows that are not in their frames.

    Make a new context when a mapping changes; it caches tables derived from the mappings.

    Attributes:
        collection_names: collection id → (scope name, collection name).
        vbuuids: vbucket → the branch that its rows belong to.
    """

    collection_names: Mapping[int, tuple[str, str]] = field(default_factory=lambda: {0: ("_default", "_default")})
    vbuuids: Mapping[int, int] = field(default_factory=dict)
    _names: _NameTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the lookup tables for columns."""
        ids = sorted(self.collection_names)
        pairs = [self.collection_names[number] for number in ids]
        names = (np.array(ids, np.int64), [scope for scope, _ in pairs], [collection for _, collection in pairs])
        object.__setattr__(self, "_names", names)

    @cached_property
    def _branches(self) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """(texts, the number of each vbucket's text)."""
        texts: list[str | None] = [None]
        choice = np.zeros(_VBUCKETS, np.int64)
        for vbid, vbuuid in self.vbuuids.items():
            choice[vbid] = len(texts)
            texts.append(str(vbuuid))
        return pa.array(texts, pa.string()), choice

    @cached_property
    def system_ids(self) -> tuple[int, ...]:
        """The ids of the system's collections."""
        places = self.collection_names.items()
        return tuple(number for number, place in places if any(map(is_system_name, place)))

    @cached_property
    def texts(self) -> Texts:
        """The texts of columns, for the kernel."""
        ids, scopes, collections = self._names
        known = [self.vbuuids.get(vbid) for vbid in range(max(self.vbuuids, default=-1) + 1)]
        branches = [None if vbuuid is None else str(vbuuid) for vbuuid in known]
        lists = packed(_CHANGE_TYPES), packed(_OPS), packed(branches), packed(scopes), packed(collections)
        return Texts(lists, ids.astype(np.uint32).tobytes())

    def name_columns(self, ids: npt.NDArray[np.uint32]) -> tuple[pa.StringArray, pa.StringArray]:
        """(scope, collection) columns of collection ids.

        An id without a name (a collection created after the manifest was read) has a null scope, and the collection is
        named `_0x` and the id in hexadecimal, because no name of a user's collection begins with an underscore.
        """
        if len(ids) and ids.min() == ids.max():
            scope, collection = self.collection_names.get(int(ids[0]), (None, f"_0x{ids[0]:x}"))
            return repeated(scope, len(ids)), repeated(collection, len(ids))
        known, scopes, collections = self._names
        position = np.searchsorted(known, ids).astype(np.int64)
        found = position < len(known)
        found[found] = known[position[found]] == ids[found]
        if not found.all():
            others, order = np.unique(ids[~found], return_inverse=True)
            position[~found] = len(known) + order
            scopes = scopes + [None] * len(others)
            collections = [*collections, *(f"_0x{number:x}" for number in others.tolist())]
        return chosen(scopes, position), chosen(collections, position)

    def vbuuid_column(self, vbuckets: npt.NDArray[np.uint16]) -> pa.StringArray:
        """The vbuuids as decimal text, because unsigned 64-bit numbers fit neither a BIGINT nor JSON."""
        if len(vbuckets) and vbuckets.min() == vbuckets.max():
            vbuuid = self.vbuuids.get(int(vbuckets[0]))
            if vbuuid is None:
                return nulls(len(vbuckets), pa.string())
            return pa.repeat(pa.scalar(str(vbuuid)), len(vbuckets))  # not `repeated`: one text for each vbucket
        texts, choice = self._branches
        return texts.take(pa.array(choice[vbuckets]))


def to_changes(
    chunk: WireChunk,
    *,
    context: ChangeContext,
    value_format: str = "binary",
    columns: Iterable[str] | None = None,
    missing: str = "null",
) -> pa.RecordBatch:
    """The rows of a chunk as changes.

    Columns, all nullable:

    - `key`: string. Bytes that are not UTF-8 are escaped, see `dcpstream.arrow.text`.
    - `value`: the document, inflated and without xattrs. Null for a deletion or expiration that left no body; empty for
      an empty document. As "string", a value that is not UTF-8 is escaped like a key, so that every reader can use
      the text column and nothing is lost. Use "binary" for binary documents.
    - `value_text`: the value as text, null where its bytes are not UTF-8; only if it is named in `columns`.
    - `_change_type`: insert (revision 1), update_postimage, delete.
    - `_commit_version`: long, the seqno. `_commit_timestamp`: time of the write, from the CAS; null for CAS 0.
    - `op`: mutation, deletion, expiration.
    - `scope`, `collection`: names; see `ChangeContext.name_columns` for an id without a name.
    - `vbucket` int, `vbuuid` decimal text, `seqno`, `rev`, `cas` long with the bits of the u64, `flags` int
      with the bits of the u32, `datatype` int as sent.
    - `expiry`: expiration time of the document; for a deletion or expiration the time of deletion. Null for 0.
    - `xattrs`: map of name → JSON text, null without xattrs.

    Args:
        chunk: the rows.
        context: names and branches.
        value_format: "binary" or "string".
        columns: the columns to build; those of CHANGE_SCHEMA if None.
        missing: the other columns: "null" fills them with nulls, "drop" leaves them out.

    Raises:
        FieldError: a value that contradicts its datatype (not a snappy block, an xattr section with wrong lengths); the
            message has vbucket and seqno.
        ConfigError: an unknown format or column.

    Cost: 10 to 25 ns per row for all columns with the kernel, and about 70 ns without, if no value is compressed; 0.4
        µs per compressed value, and 0.2 µs per attribute if that column is built.
    """
    chosen_columns = _choose(value_format, None if columns is None else tuple(columns), missing)
    built = _Columns(chunk, context, value_format)
    if kernel.native is not None:
        return _build_natively(kernel.native, chunk, context, chosen_columns, built)
    schema, wanted, _ = chosen_columns
    count = len(chunk)
    arrays = [built.column(item.name) if item.name in wanted else nulls(count, item.type) for item in schema]
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Choice(NamedTuple):
    """The columns to build for a batch.

    Attributes:
        schema: the batch's schema.
        wanted: names of the columns that are not null.
        kinds: of all columns, for the kernel.
    """

    schema: pa.Schema
    wanted: frozenset[str]
    kinds: bytes


@lru_cache(maxsize=16)
def _choose(value_format: str, columns: tuple[str, ...] | None, missing: str) -> _Choice:
    """The same for all batches of a stream."""
    schema = change_schema(value_format, columns, missing)
    wanted = frozenset(COLUMNS if columns is None else columns)
    return _Choice(schema, wanted, kinds_of(schema, wanted))


def _build_natively(
    native: ModuleType, chunk: WireChunk, context: ChangeContext, choice: _Choice, plain: _Columns
) -> pa.RecordBatch:
    """The rows as changes, by the kernel; the columns that it leaves come from plain Python."""
    batch = build(native, chunk.memory, choice.schema, choice.kinds, context.texts)
    if isinstance(batch, pa.RecordBatch):
        return batch
    left = batch & choice.wanted
    batch = build(native, chunk.memory, choice.schema, kinds_of(choice.schema, choice.wanted - left), context.texts)
    assert isinstance(batch, pa.RecordBatch), "the kernel has left a column that it was not asked for"
    arrays = [plain.column(name) if name in left else batch.column(name) for name in choice.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=choice.schema)


def change_column(chunk: WireChunk, name: str, context: ChangeContext) -> pa.Array:
    """One column of the rows of a chunk as changes; as in `to_changes` with the value format "binary"."""
    return to_changes(chunk, context=context, columns=(name,), missing="drop").column(0)


class _Columns:
    """Builds the columns of one chunk; shared parts are computed once."""

    def __init__(self, chunk: WireChunk, context: ChangeContext, value_format: str) -> None:
        self._chunk = chunk
        self._context = context
        self._value_format = value_format
        self._parts: tuple[pa.BinaryArray, pa.BinaryArray | None, npt.NDArray[np.int64]] | None = None
        self._names: tuple[pa.StringArray, pa.StringArray] | None = None

    @cached_property
    def _any_gone(self) -> bool:
        # Mutations have the lowest opcode of the three.
        return bool(len(self._chunk)) and int(self._chunk.opcode.max()) != _MUTATION

    @cached_property
    def _gone(self) -> npt.NDArray[np.bool_]:
        gone: npt.NDArray[np.bool_] = self._chunk.opcode != _MUTATION
        return gone

    def column(self, name: str) -> pa.Array:
        return _BUILDERS[name](self)

    def key(self) -> pa.StringArray:
        return strings_of(self._chunk.key)

    def value(self) -> pa.Array:
        return strings_of(self._bodies()) if self._value_format == "string" else self._bodies()

    def value_text(self) -> pa.StringArray:
        return exact_strings_of(self._bodies())

    def _bodies(self) -> pa.BinaryArray:
        bodies, _, _ = self._split()
        if self._any_gone:
            lengths = np.diff(np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset :][: len(bodies) + 1])
            bodies = with_nulls(bodies, self._gone & (lengths == 0))
        return bodies

    def xattrs(self) -> pa.MapArray:
        _, sections, rows = self._split()
        return xattr_maps(sections, rows, len(self._chunk), self._blame)

    def change_type(self) -> pa.StringArray:
        first = self._chunk.rev == 1
        if not self._any_gone:
            if not first.any():
                return repeated(_CHANGE_TYPES[_UPDATE], len(first))
            if first.all():
                return repeated(_CHANGE_TYPES[_INSERT], len(first))
        choice = np.where(first, np.uint8(_INSERT), np.uint8(_UPDATE))
        choice[self._gone] = _DELETE
        return chosen(_CHANGE_TYPES, choice)

    def op(self) -> pa.StringArray:
        if not self._any_gone:
            return repeated(_OPS[0], len(self._chunk))
        return chosen(_OPS, self._chunk.opcode - np.uint8(_MUTATION))

    def scope(self) -> pa.StringArray:
        return self._name_columns()[0]

    def collection(self) -> pa.StringArray:
        return self._name_columns()[1]

    def seqno(self) -> pa.Int64Array:
        return arrow_of(self._chunk.seqno, pa.int64())

    def commit_timestamp(self) -> pa.TimestampArray:
        cas = self._chunk.cas
        micros = (cas >> np.uint64(_CAS_LOGICAL_BITS) << np.uint64(_CAS_LOGICAL_BITS)) // np.uint64(1000)
        return with_nulls(arrow_of(micros, TIMESTAMP), cas == 0)

    def expiry(self) -> pa.TimestampArray:
        seconds = self._chunk.expiry
        if not seconds.any():
            return nulls(len(seconds), TIMESTAMP)
        return with_nulls(arrow_of(seconds.astype(np.int64) * _MICROS, TIMESTAMP), seconds == 0)

    def vbuuid(self) -> pa.StringArray:
        return self._context.vbuuid_column(self._chunk.vbucket)

    def vbucket(self) -> pa.Int32Array:
        return arrow_of(self._chunk.vbucket.astype(np.int32), pa.int32())

    def rev(self) -> pa.Int64Array:
        return arrow_of(self._chunk.rev, pa.int64())

    def cas(self) -> pa.Int64Array:
        return arrow_of(self._chunk.cas, pa.int64())

    def flags(self) -> pa.Int32Array:
        return arrow_of(self._chunk.flags, pa.int32())

    def datatype(self) -> pa.Int32Array:
        return arrow_of(self._chunk.datatype.astype(np.int32), pa.int32())

    def _split(self) -> tuple[pa.BinaryArray, pa.BinaryArray | None, npt.NDArray[np.int64]]:
        if self._parts is None:
            chunk = self._chunk
            plain = inflate(chunk.value, chunk.datatype, self._blame)
            self._parts = split_sections(plain, chunk.datatype, self._blame)
        return self._parts

    def _name_columns(self) -> tuple[pa.StringArray, pa.StringArray]:
        if self._names is None:
            self._names = self._context.name_columns(self._chunk.collection_ids)
        return self._names

    def _blame(self, row: int, what: str) -> FieldError:
        chunk = self._chunk
        return FieldError(
            f"the value of seqno {chunk.seqno[row]} in vbucket {chunk.vbucket[row]} "
            f"(datatype 0x{chunk.datatype[row]:02x}) cannot be read: {what}"
        )


_BUILDERS: dict[str, Callable[[_Columns], pa.Array]] = {
    "key": _Columns.key,
    "value": _Columns.value,
    VALUE_TEXT: _Columns.value_text,
    "_change_type": _Columns.change_type,
    "_commit_version": _Columns.seqno,
    "_commit_timestamp": _Columns.commit_timestamp,
    "op": _Columns.op,
    "scope": _Columns.scope,
    "collection": _Columns.collection,
    "vbucket": _Columns.vbucket,
    "vbuuid": _Columns.vbuuid,
    "seqno": _Columns.seqno,
    "rev": _Columns.rev,
    "cas": _Columns.cas,
    "flags": _Columns.flags,
    "datatype": _Columns.datatype,
    "expiry": _Columns.expiry,
    "xattrs": _Columns.xattrs,
}


class ControlRow(NamedTuple):
    """A row that is not a change of a document: it has neither key nor `_change_type`, and `value` is JSON.

    Attributes:
        op: its kind, see `dcpstream.model.Op`.
        vbid, seqno, vbuuid: its place in the history; `_commit_version` is the seqno, too.
        details: the JSON's fields.
        scope, collection: names; None for null.
    """

    op: Op
    vbid: int
    seqno: int
    vbuuid: int
    details: Mapping[str, object]
    scope: str | None = None
    collection: str | None = None


def control_rows(
    rows: Iterable[ControlRow],
    *,
    time: float,
    value_format: str = "binary",
    columns: Iterable[str] | None = None,
    missing: str = "null",
) -> pa.RecordBatch:
    """Control rows as a batch.

    Args:
        rows: in their order.
        time: seconds since the epoch, for `_commit_timestamp`.
        value_format, columns, missing: as in `to_changes`.
    """
    schema = change_schema(value_format, columns, missing)
    wanted = set(COLUMNS) if columns is None else set(columns)
    built = []
    for row in rows:
        text = json.dumps(row.details, separators=(",", ":"))
        signed = int(np.uint64(row.seqno).astype(np.int64))
        fields: dict[str, Any] = {
            "value": text.encode() if value_format == "binary" else text,
            VALUE_TEXT: text,
            "_commit_version": signed,
            "_commit_timestamp": int(time * _MICROS),
            "op": row.op.value,
            "scope": row.scope,
            "collection": row.collection,
            "vbucket": row.vbid,
            "vbuuid": str(row.vbuuid),
            "seqno": signed,
        }
        built.append(fields)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([fields.get(item.name) if item.name in wanted else None for fields in built], item.type)
            for item in schema
        ],
        schema=schema,
    )
