"""Rows of Arrow batches as writes of documents.

`DocumentColumns.check` compares the options with the columns of the rows once, on the driver. `writes_of` turns a batch
into writes. A row that cannot be a write, for example because it has no key, is refused here with a reason and goes the
way of the rows that the bucket refuses.

A row of the source `dcp` can be written as it is, with `opColumn=op` and `valueColumn=value`. Control rows that change
no document are skipped. Those that make rows void (a rollback, a dropped collection) are refused, because the rows that
they mean may be written already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.arrow.json_rows import check_type, json_rows
from dcpstream.arrow.text import escape, unescape
from dcpstream.client.kv.writes import Write, WriteOp
from dcpstream.errors import ConfigError
from dcpstream.model import Op
from dcpstream.model.json_text import is_json
from dcpstream_spark.sink.write_options import MAX_U32, WriteOptions

JSON_FLAGS = 0x02000000
"""The SDKs' flags of a JSON document. Nodes look at the bytes, but an SDK chooses its decoder by the flags."""
BINARY_FLAGS = 0x03000000
STRING_FLAGS = 0x04000000

OPS: dict[str, WriteOp | None] = {
    "upsert": WriteOp.UPSERT,
    "insert": WriteOp.INSERT,
    "replace": WriteOp.REPLACE,
    "delete": WriteOp.DELETE,
    Op.MUTATION: WriteOp.UPSERT,
    Op.DELETION: WriteOp.DELETE,
    Op.EXPIRATION: WriteOp.DELETE,
    Op.COLLECTION_CREATED: None,
    Op.COLLECTION_MODIFIED: None,
    Op.SCOPE_CREATED: None,
    Op.HISTORY_GAP: None,
}
"""Texts in the column of operations; None for control rows without a meaning for documents."""

_VOIDING = frozenset((Op.ROLLBACK, Op.COLLECTION_DROPPED, Op.COLLECTION_FLUSHED, Op.SCOPE_DROPPED))
_U64 = 1 << 64


class Reject(NamedTuple):
    """A row that was refused for good.

    Attributes:
        key: None if the row has none.
        op: name of the operation, or the row's text if there is no such operation.
        collection: "scope.collection".
        status: name of the node's status, or "ROW" if the row was never sent.
        reason: a sentence for the user.
        value: the document.
    """

    key: bytes | None
    op: str
    collection: str
    status: str
    reason: str
    value: bytes | None = None


class Documents(NamedTuple):
    """The writes of a batch, the rows that cannot be one, and the number of control rows."""

    writes: list[Write]
    rejects: list[Reject]
    controls: int


@dataclass(frozen=True, slots=True)
class DocumentColumns:
    """The roles of the columns of the rows.

    Attributes:
        options: the writer's.
        body: the columns that become a JSON object; empty with a value column.
        is_text: whether the value column is text.
    """

    options: WriteOptions
    body: tuple[str, ...]
    is_text: bool

    @classmethod
    def check(cls, options: WriteOptions, schema: pa.Schema) -> DocumentColumns:
        """Compare the options with the columns.

        Raises:
            ConfigError: a column is missing, is there twice, or has a type that cannot be used.
        """
        names = schema.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError("columns", ", ".join(twice), "columns with different names")
        special: set[str] = set()
        for name, column, fits, allowed in (
            ("keyColumn", options.key_column, _is_bytes, "string or binary"),
            ("opColumn", options.op_column, _is_text, "string"),
            ("scopeColumn", options.scope_column, _is_text, "string"),
            ("collectionColumn", options.collection_column, _is_text, "string"),
            ("casColumn", options.cas_column, _is_cas, "bigint, decimal(20, 0) or string"),
            ("expiryColumn", options.expiry_column, _is_time, "timestamp or a whole number"),
            ("flagsColumn", options.flags_column, pa.types.is_integer, "a whole number"),
        ):
            if column is None:
                continue
            kind = _type_of(schema, name, column)
            if not fits(kind):
                raise ConfigError(name, column, f"a column of type {allowed}; this one is {kind}")
            special.add(column)
        if options.value_column is not None:
            kind = _type_of(schema, "valueColumn", options.value_column)
            if not _is_bytes(kind):
                check_type(options.value_column, kind)
            return cls(options, (), _is_text(kind))
        body = tuple(name for name in names if name not in special)
        if options.operation is not WriteOp.DELETE or options.op_column is not None:
            for name in body:
                check_type(name, schema.field(name).type)
        return cls(options, body, is_text=False)

    def writes_of(self, batch: pa.RecordBatch) -> Documents:
        """The writes of a batch, in the order of its rows."""
        options, count = self.options, batch.num_rows
        keys = self._keys(batch)
        values = self._values(batch)
        operation = int(options.operation)
        ops = [operation] * count if options.op_column is None else _texts(batch, options.op_column)
        paths = self._collections(batch)
        expiries = _expiries(batch, options)
        casses = [0] * count if options.cas_column is None else _casses(batch.column(options.cas_column))
        flags = self._flags(batch, values)
        writes: list[Write] = []
        rejects: list[Reject] = []
        controls = 0
        rows = zip(ops, keys, values, paths, flags, expiries, casses, strict=True)
        if options.op_column is None and None not in keys and None not in expiries and None not in casses:
            if operation == WriteOp.DELETE:
                return Documents(
                    [Write(operation, key, b"", path, 0, 0, cas) for _, key, _, path, *_, cas in rows], [], 0
                )
            if None not in values:
                return Documents(list(map(Write._make, rows)), [], 0)
        for text, key, value, path, flag, expiry, cas in rows:
            op = text if isinstance(text, int) else _operation(text)
            if op is None:
                controls += 1
                continue
            reason = ""
            if isinstance(op, str):
                reason = op
            elif key is None:
                reason = "the key is null"
            elif op != WriteOp.DELETE and value is None:
                reason = "the value is null; to delete the document, use the operation delete"
            elif expiry is None:
                reason = f"the time of expiration does not fit {MAX_U32}"
            elif cas is None:
                reason = "the CAS is not an unsigned 64-bit number"
            elif cas and op == WriteOp.INSERT:
                reason = "a new document has no CAS"
            if reason:
                shown = op_name(op) if isinstance(op, int) else str(text)
                rejects.append(Reject(key, shown, path, "ROW", reason, value))
            elif op == WriteOp.DELETE:
                writes.append(Write(int(op), key, b"", path, 0, 0, cas))
            else:
                writes.append(Write(int(op), key, value, path, flag, expiry, cas))
        return Documents(writes, rejects, controls)

    def _keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        column = batch.column(self.options.key_column)
        if self.options.key_encoding == "escaped" and _is_text(column.type):
            return [None if text is None else unescaped(text) for text in column.to_pylist()]
        return _bytes(column)

    def _values(self, batch: pa.RecordBatch) -> list[bytes | None]:
        name = self.options.value_column
        if name is None:
            if self.options.operation is WriteOp.DELETE and self.options.op_column is None:
                return [None] * batch.num_rows
            found: list[bytes | None] = []
            found += json_rows(batch, self.body, keeps_nulls=not self.options.ignore_null_fields)
            return found
        column = batch.column(name)
        if _is_bytes(column.type):
            return _bytes(column)
        # `{"name":value}` without the outer braces and the name.
        head = len(json.dumps(name, ensure_ascii=False).encode()) + 2
        rows = json_rows(pa.RecordBatch.from_arrays([column], [name]), [name])
        return [None if row == b"{}" else row[head:-1] for row in rows]

    def _collections(self, batch: pa.RecordBatch) -> list[str]:
        options, count = self.options, batch.num_rows
        if options.collection_column is None and options.scope_column is None:
            return [f"{options.scope}.{options.collection}"] * count
        scopes = _texts(batch, options.scope_column) if options.scope_column else [None] * count
        names = _texts(batch, options.collection_column) if options.collection_column else [None] * count
        return [
            f"{scope or options.scope}.{name or options.collection}" for scope, name in zip(scopes, names, strict=True)
        ]

    def _flags(self, batch: pa.RecordBatch, values: Sequence[bytes | None]) -> list[int]:
        options = self.options
        if options.flags_column is not None:
            return [(number or 0) & MAX_U32 for number in batch.column(options.flags_column).to_pylist()]
        if options.flags is not None:
            return [options.flags] * batch.num_rows
        if options.value_column is None or not _is_bytes(batch.column(options.value_column).type):
            return [JSON_FLAGS] * batch.num_rows
        other = STRING_FLAGS if self.is_text else BINARY_FLAGS
        return [JSON_FLAGS if value is not None and is_json(value) else other for value in values]


def op_name(op: int) -> str:
    """The name of an operation, as the option writes it."""
    return WriteOp(op).name.lower()


def unescaped(text: str) -> bytes:
    """The bytes of a key as the source wrote it, see `dcpstream.arrow.text`."""
    if "\\" not in text:
        return text.encode()
    data = unescape(text)
    try:
        data.decode()
    except UnicodeDecodeError:
        return data if escape(data) == text else text.encode()
    return text.encode()


def _operation(text: str | None) -> WriteOp | str | None:
    """The operation; None for a control row without a meaning for documents; the reason if the row is refused."""
    lower = "" if text is None else text.lower()
    if lower in OPS:
        return OPS[lower]
    if lower in _VOIDING:
        return (
            f"the control row {lower} makes rows void that may be written already; bring the target up to date by hand"
        )
    return f"there is no operation {text!r}; known are {', '.join(OPS)}"


def _type_of(schema: pa.Schema, option: str, column: str) -> pa.DataType:
    index = schema.get_field_index(column)
    if index < 0:
        raise ConfigError(option, column, f"one of the columns of the rows: {', '.join(schema.names)}")
    return schema.field(index).type


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_cas(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)) or _is_text(kind)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_integer(kind))


def _bytes(column: pa.Array) -> list[bytes | None]:
    kind = column.type
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _texts(batch: pa.RecordBatch, name: str) -> list[Any]:
    found: list[Any] = batch.column(name).to_pylist()
    return found


def _expiries(batch: pa.RecordBatch, options: WriteOptions) -> list[int | None]:
    """Times of expiration as the protocol writes them; None for one that does not fit."""
    if options.expiry_column is None:
        return [options.expiry_s] * batch.num_rows
    column = batch.column(options.expiry_column)
    if pa.types.is_timestamp(column.type):
        column = pc.floor_temporal(column, unit="second").cast(pa.timestamp("s", tz=column.type.tz)).cast(pa.int64())
    return [0 if number is None else number if 0 <= number <= MAX_U32 else None for number in column.to_pylist()]


def _casses(column: pa.Array) -> list[int | None]:
    """CAS values; None for one that is no unsigned 64-bit number. A bigint holds the bits."""
    read: Callable[[Any], int | None]
    if pa.types.is_integer(column.type):
        return [0 if number is None else number % _U64 for number in column.to_pylist()]
    read = _cas_of_text if _is_text(column.type) else _cas_of_decimal
    return [0 if value is None else read(value) for value in column.to_pylist()]


def _cas_of_text(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) < _U64 else None


def _cas_of_decimal(value: Decimal) -> int | None:
    number = int(value)
    return number if 0 <= number < _U64 else None
