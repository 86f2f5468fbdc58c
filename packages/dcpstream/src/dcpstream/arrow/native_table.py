"""The columns of a table of changes from the native kernel: one call, and one batch in Arrow's C data interface.

A column by itself costs little, but seventeen of them are a hundred steps of Python, numpy and Arrow for each receive.
Here the kernel builds all of them in memory that was used before, see `dcpstream.runtime.slabs`. It leaves some columns
to plain Python: those of values that are compressed or have attributes, and texts that are not UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dcpstream.arrow.chunk import RowMemory
from dcpstream.arrow.schema import VALUE_TEXT
from dcpstream.runtime.slabs import slabs

_NULL_NUMBERS, _NULL_TEXTS, _NULL_MAPS, _VALUE_AS_TEXT = 0, 1, 2, 5
_KINDS = {
    "key": 3,
    "value": 4,
    VALUE_TEXT: _VALUE_AS_TEXT,
    "xattrs": 6,
    "_change_type": 7,
    "op": 8,
    "scope": 9,
    "collection": 10,
    "vbuuid": 11,
    "vbucket": 12,
    "datatype": 13,
    "_commit_version": 14,
    "seqno": 14,
    "rev": 15,
    "cas": 16,
    "flags": 17,
    "_commit_timestamp": 18,
    "expiry": 19,
}
"""Column → its number in the kernel; `native/table.c` has the same numbers."""

_LEFT = (
    (1, frozenset(("value", VALUE_TEXT, "xattrs"))),
    (2, frozenset(("key",))),
    (4, frozenset(("value", VALUE_TEXT))),
    (8, frozenset(("scope", "collection"))),
)
"""The columns that the kernel leaves to plain Python, by the bits of its answer."""

_BLOCK_BYTES = 32
"""The kernel copies short texts in blocks of this size, also the last one."""

Packed = tuple[bytes, bytes]
"""Texts for the kernel: n + 1 bounds as int32, and the bytes of all."""


class Texts(NamedTuple):
    """The texts of columns.

    Attributes:
        lists: those of insert, update and delete; of mutation, deletion and expiration; of vbuuids by vbucket; of
            scopes and of collections.
        collection_ids: u32[n] in bytes, rising, the collections that have names.
    """

    lists: tuple[Packed, Packed, Packed, Packed, Packed]
    collection_ids: bytes


def packed(texts: Sequence[str | None]) -> Packed:
    """Texts for the kernel; None is an empty one."""
    parts = [b"" if text is None else text.encode() for text in texts]
    bounds: npt.NDArray[np.int32] = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([*map(len, parts)], out=bounds[1:])
    return bounds.tobytes(), b"".join(parts) + bytes(_BLOCK_BYTES)


def kinds_of(schema: pa.Schema, wanted: frozenset[str]) -> bytes:
    """The kinds of a schema's columns for the kernel: those that are not wanted are null."""
    return bytes(_kind(field, wanted) for field in schema)


def _kind(field: pa.Field, wanted: frozenset[str]) -> int:
    is_text = pa.types.is_string(field.type)
    if field.name in wanted:
        return _VALUE_AS_TEXT if field.name == "value" and is_text else _KINDS[field.name]
    if pa.types.is_map(field.type):
        return _NULL_MAPS
    return _NULL_TEXTS if is_text or pa.types.is_binary(field.type) else _NULL_NUMBERS


def build(
    native: ModuleType, memory: RowMemory, schema: pa.Schema, kinds: bytes, texts: Texts
) -> pa.RecordBatch | frozenset[str]:
    """The rows as a batch; or the names of columns that the kernel cannot build for these rows.

    Args:
        native: the kernel.
        memory: the rows.
        schema: of the batch.
        kinds: what `kinds_of` returned for the schema.
        texts: of columns.
    """
    found = native.table(
        memory.columns, memory.first, memory.stop, kinds, *texts, slabs.take, pa.RecordBatch._import_from_c, schema
    )
    if isinstance(found, int):
        return frozenset[str]().union(*(names for bit, names in _LEFT if found & bit))
    batch: pa.RecordBatch = found
    return batch
