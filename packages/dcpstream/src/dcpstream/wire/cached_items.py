"""The records in the value of DCP_CACHE_TRANSFER: documents from the producer's memory, one after the other."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from dcpstream.errors import FieldError
from dcpstream.wire.keys import MAX_PREFIXED_KEY_BYTES, key_fault

_RECORD = struct.Struct(">QQQIIIHBB")

MIN_KEY_BYTES = 2
"""The shortest key: one byte of collection, and one of name."""

MIN_RECORD_BYTES = _RECORD.size + MIN_KEY_BYTES


class CachedItem(NamedTuple):
    """One document.

    Attributes:
        key: with collection prefix.
        value: as stored, compressed if the datatype says so; empty if only the key was sent.
        flags: the writer's.
        hint: how often the document is used, in the producer's terms.
    """

    key: bytes
    value: bytes
    cas: int
    seqno: int
    rev_seqno: int
    flags: int
    expiration: int
    datatype: int
    hint: int


def encode_cached_item(item: CachedItem) -> bytes:
    """The record of a document."""
    numbers = item.cas, item.seqno, item.rev_seqno, len(item.value), item.flags, item.expiration, len(item.key)
    return _RECORD.pack(*numbers, item.datatype, item.hint) + item.key + item.value


def cached_items(value: bytes) -> Iterator[CachedItem]:
    """The documents in a value.

    Raises:
        FieldError: a record is longer than the rest of the value, or its key cannot be one.
    """
    at = 0
    while at < len(value):
        if len(value) - at < MIN_RECORD_BYTES:
            raise FieldError(f"{len(value) - at} bytes are left for a record of {MIN_RECORD_BYTES} or more")
        cas, seqno, rev_seqno, length, flags, expiration, key_length, datatype, hint = _RECORD.unpack_from(value, at)
        key_at = at + _RECORD.size
        value_at = key_at + key_length
        at = value_at + length
        if not MIN_KEY_BYTES <= key_length <= MAX_PREFIXED_KEY_BYTES:
            raise FieldError(f"a record has a key of {key_length} bytes")
        if at > len(value):
            raise FieldError(f"a record ends {at - len(value)} bytes behind the value")
        key = value[key_at:value_at]
        fault = key_fault(key)
        if fault is not None:
            raise FieldError(f"a record has a wrong key: {fault}")
        yield CachedItem(key, value[value_at:at], cas, seqno, rev_seqno, flags, expiration, datatype, hint)
