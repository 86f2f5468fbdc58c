"""Frames made by hand, so that the decoders are judged by bytes that no code of the product wrote."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dcpstream.arrow import WireChunk

MUTATION, DELETION, EXPIRATION, MARKER, STREAM_END = 0x57, 0x58, 0x59, 0x56, 0x55
JSON, SNAPPY, XATTR = 1, 2, 4


def frame(
    opcode: int,
    *,
    magic: int = 0x80,
    extras: bytes = b"",
    key: bytes = b"",
    value: bytes = b"",
    datatype: int = 0,
    vbucket: int = 0,
    opaque: int = 0,
    cas: int = 0,
    framing: bytes = b"",
) -> bytes:
    lengths = struct.pack(">BB", len(framing), len(key)) if magic in (0x08, 0x18) else struct.pack(">H", len(key))
    body = framing + extras + key + value
    head = struct.pack(">BB", magic, opcode) + lengths
    return head + struct.pack(">BBHIIQ", len(extras), datatype, vbucket, len(body), opaque, cas) + body


def data(opcode: int, extras: bytes, key: bytes, value: bytes, stream_id: int | None, fields: dict[str, Any]) -> bytes:
    if stream_id is not None:
        fields = {**fields, "magic": 0x08, "framing": b"\x22" + struct.pack(">H", stream_id)}
    return frame(opcode, extras=extras, key=key, value=value, **fields)


def mutation(
    key: bytes = b"\0k",
    value: bytes = b"v",
    *,
    seqno: int = 1,
    rev: int = 1,
    flags: int = 0,
    expiry: int = 0,
    stream_id: int | None = None,
    **fields: Any,
) -> bytes:
    extras = struct.pack(">QQIIIHB", seqno, rev, flags, expiry, 0, 0, 0)
    return data(MUTATION, extras, key, value, stream_id, fields)


def deletion(
    key: bytes = b"\0k",
    value: bytes = b"",
    *,
    seqno: int = 1,
    rev: int = 2,
    delete_time: int | None = None,
    stream_id: int | None = None,
    **fields: Any,
) -> bytes:
    """A deletion, version 2 if it has a delete time."""
    extras = struct.pack(">QQ", seqno, rev)
    extras += b"\0\0" if delete_time is None else struct.pack(">IB", delete_time, 0)
    return data(DELETION, extras, key, value, stream_id, fields)


def expiration(
    key: bytes = b"\0k",
    value: bytes = b"",
    *,
    seqno: int = 1,
    rev: int = 2,
    delete_time: int = 0,
    stream_id: int | None = None,
    **fields: Any,
) -> bytes:
    return data(EXPIRATION, struct.pack(">QQI", seqno, rev, delete_time), key, value, stream_id, fields)


def marker(**fields: Any) -> bytes:
    return frame(MARKER, extras=struct.pack(">QQI", 0, 9, 1), **fields)


def marker_v2(**fields: Any) -> bytes:
    return frame(MARKER, extras=b"\0", value=struct.pack(">QQIQQ", 0, 9, 1, 9, 0), **fields)


def stream_end(**fields: Any) -> bytes:
    return frame(STREAM_END, extras=struct.pack(">I", 0), **fields)


def controls() -> list[bytes]:
    """One of each frame that is no row."""
    return [
        marker(opaque=7),
        marker_v2(opaque=7),
        stream_end(opaque=7),
        frame(0x5F, extras=struct.pack(">QIB", 5, 0, 0), key=b"name", value=bytes(16)),
        frame(0x64, extras=struct.pack(">Q", 99)),
        frame(0x65, extras=struct.pack(">I", 1)),
        frame(0x5C, opaque=10_000_001),
        frame(0x60, extras=bytes(31), key=b"\0prepared", cas=1),
        frame(0x62, extras=bytes(16), key=b"\0prepared"),
        frame(0x63, extras=bytes(16), key=b"\0prepared"),
        frame(0x53, magic=0x81, value=struct.pack(">QQ", 0xABCDEF, 0)),
        frame(0x54, magic=0x81, value=struct.pack(">QQ", 0xABCDEF, 0)),
        frame(0x48, magic=0x81, value=struct.pack(">HQ", 1, 2)),
        frame(0x53, magic=0x18, framing=b"\x02\0\x01", value=struct.pack(">QQ", 1, 0)),
        frame(0x57, magic=0x81, vbucket=4),  # the answer to a mutation is no row
        frame(0x01, magic=0x82, extras=bytes(4), value=b"{}"),
        frame(0x01, magic=0x83),
        frame(0x55, magic=0x08, framing=b"\x22\0\x05", extras=bytes(4)),
        frame(0xEE, extras=b"?", key=b"unknown", value=b"opcode"),
    ]


def same(left: WireChunk, right: WireChunk) -> None:
    """Both chunks hold the same, in the same types."""
    from dcpstream.arrow.chunk import NUMBERS

    assert len(left) == len(right)
    for name in ("key", "value"):
        mine, theirs = getattr(left, name), getattr(right, name)
        mine.validate(full=True)
        assert mine.equals(theirs), name
    for name, kind in NUMBERS:
        mine, theirs = getattr(left, name), getattr(right, name)
        assert mine.dtype == theirs.dtype == kind
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
