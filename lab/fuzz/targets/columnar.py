"""Received bytes as columns: the kernel and plain Python give the same rows or the same error.

Input: options and where the bytes are cut, and frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dcpstream.arrow import ChangeContext, WireChunk, to_changes
from dcpstream.errors import FieldError, FrameError, WireError
from dcpstream.runtime import kernel
from dcpstream.wire.values import encode_xattrs, snappy_compress
from lab.fuzz import seeds as shared
from tests.kit import raw_frames
from tests.kit.wire_columns import decode_messages, decode_wire

FRAMES_AT = 2
MAX_BYTES = 2000
MANY = 60
"""Frames before those of the input, in half of the inputs."""
CONTEXT = ChangeContext(collection_names={0: ("_default", "_default"), 9: ("s", "c")}, vbuuids={1: 5})
_ROW = raw_frames.mutation()


def seeds() -> Iterator[bytes]:
    value = encode_xattrs({"_sync": b"1", "x": b'{"a":2}'}, b'{"n":1}')
    rows = [
        raw_frames.mutation(value=b'{"n":1}', datatype=raw_frames.JSON),
        raw_frames.mutation(value=value, datatype=raw_frames.XATTR),
        raw_frames.mutation(b"\x09k", snappy_compress(value), datatype=raw_frames.XATTR | raw_frames.SNAPPY),
        raw_frames.mutation(value=snappy_compress(b"body" * 20), datatype=raw_frames.SNAPPY, stream_id=3),
        raw_frames.deletion(delete_time=5),
        raw_frames.deletion(delete_time=None),
        raw_frames.expiration(delete_time=5),
    ]
    for options in range(8):
        yield bytes((options, 0)) + b"".join(rows)
        yield bytes((options, 40)) + b"".join((*rows, *raw_frames.controls()))[: MAX_BYTES - 2]
    sent = [
        frame for direction, frame in shared.recorded_frames() if direction == "s2c" and frame[1] in range(0x50, 0x66)
    ]
    for at in range(0, len(sent), 8):
        yield b"\x01\x00" + b"".join(sent[at : at + 8])[: MAX_BYTES - 2]


def check(data: bytes) -> None:
    if len(data) < FRAMES_AT:
        return
    collections = bool(data[0] & 1)
    buffer = _ROW * (MANY if data[0] & 4 else 0) + data[2 : len(data) - data[1] if data[1] else None]
    plain = outcome(lambda: decode_messages(buffer, collections))
    native = outcome(lambda: decode_wire(buffer, collections))
    if isinstance(native, tuple) and native[0] is FrameError:
        # The kernel looks at all headers first; the plain decoder may meet a wrong field before, or the end.
        assert isinstance(plain, WireChunk) or plain == native or plain[0] is FieldError
    else:
        same(native, plain)
    if isinstance(native, WireChunk) and isinstance(plain, WireChunk):
        for form in ("binary", "string"):
            same_changes(native, plain, form)


def with_kernel(native: Any, call: Callable[[], Any]) -> Any:
    """A call with another kernel, or with none."""
    present = kernel.native
    kernel.native = native
    try:
        return call()
    finally:
        kernel.native = present


def outcome(decode: Callable[[], WireChunk]) -> WireChunk | tuple[type, int | None]:
    """The rows, or kind and offset of the error."""
    try:
        return decode()
    except WireError as error:
        return type(error), error.offset


def same(left: WireChunk | tuple[Any, ...], right: WireChunk | tuple[Any, ...]) -> None:
    if isinstance(left, WireChunk) and isinstance(right, WireChunk):
        raw_frames.same(left, right)
    else:
        assert left == right


def same_changes(left: WireChunk, right: WireChunk, form: str) -> None:
    """All columns of a table of changes, with and without the kernel; one row at a time as all together."""
    first, second = changes(left, form), with_kernel(None, lambda: changes(right, form))
    assert first == second
    if isinstance(first, pa.RecordBatch):
        first.validate(full=True)
        last = len(left) - 1
        if last >= 0:
            assert changes(left.slice(last, last + 1), form) == first.slice(last)


def changes(chunk: WireChunk, form: str) -> pa.RecordBatch | str:
    try:
        return to_changes(chunk, context=CONTEXT, value_format=form)
    except FieldError as error:
        return str(error)
