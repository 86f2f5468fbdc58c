"""The fast decoder and the plain one agree on any frames, and on any bytes."""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.arrow import ChangeContext, WireChunk, to_changes
from dcpstream.errors import FieldError, FrameError, WireError
from dcpstream.wire.keys import leb128_encode
from dcpstream.wire.values import encode_xattrs
from tests.kit import raw_frames
from tests.kit.wire_columns import decode_messages, decode_wire

pytestmark = pytest.mark.usefixtures("each_decoder")

u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
collection_ids = st.one_of(st.just(0), st.integers(0, 200), u32)
keys = st.builds(lambda number, key: leb128_encode(number) + key, collection_ids, st.binary(max_size=20))
bodies = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"{}", b"", raw_frames.mutation() * 3, raw_frames.marker()])
)
xattrs = st.dictionaries(
    st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=5),
    st.binary(max_size=10).filter(lambda text: b"\0" not in text),
    max_size=3,
)


@st.composite
def values(draw: Any) -> tuple[bytes, int]:
    """(value, datatype that describes it)."""
    datatype = draw(st.integers(0, 7))
    value = draw(bodies)
    if datatype & raw_frames.XATTR:
        value = encode_xattrs(draw(xattrs), value)
    if datatype & raw_frames.SNAPPY:
        value = bytes(cramjam.snappy.compress_raw(value))
    return value, datatype


@st.composite
def rows(draw: Any) -> bytes:
    value, datatype = draw(values())
    fields = {"seqno": draw(u64), "rev": draw(u64), "vbucket": draw(u16), "opaque": draw(u32), "cas": draw(u64)}
    fields |= {"datatype": datatype, "stream_id": draw(st.one_of(st.none(), u16))}
    kind = draw(st.sampled_from([raw_frames.mutation, raw_frames.mutation, raw_frames.deletion, raw_frames.expiration]))
    if kind is raw_frames.mutation:
        fields |= {"flags": draw(u32), "expiry": draw(u32)}
    elif kind is raw_frames.expiration:
        fields["delete_time"] = draw(u32)
    else:
        fields["delete_time"] = draw(st.one_of(st.none(), u32))
    row: bytes = kind(draw(keys), value, **fields)
    return row


frames = st.one_of(rows(), rows(), rows(), st.sampled_from(raw_frames.controls()))
with_or_without = st.booleans()


@st.composite
def buffers(draw: Any) -> bytes:
    """Frames, few or repeated until the fast path is taken."""
    some = draw(st.lists(frames, min_size=1, max_size=12))
    return b"".join(some * draw(st.sampled_from([1, 10, 120])))


def outcome(decode: Any) -> WireChunk | tuple[type, int | None]:
    try:
        result: WireChunk = decode()
    except WireError as error:
        return type(error), error.offset
    return result


def compare(buffer: bytes, collections: bool) -> None:
    fast = outcome(lambda: decode_wire(buffer, collections))
    plain = outcome(lambda: decode_messages(buffer, collections))
    if isinstance(fast, WireChunk) and isinstance(plain, WireChunk):
        raw_frames.same(fast, plain)
    elif isinstance(fast, tuple) and fast[0] is FrameError:
        # The kernel looks at all headers first; the plain decoder may meet a wrong field before, or the end.
        assert isinstance(plain, WireChunk) or plain == fast or plain[0] is FieldError
    else:
        assert fast == plain


@given(buffers(), with_or_without, st.integers(0, 60))
def test_any_frames_cut_anywhere(buffer: bytes, collections: bool, cut: int) -> None:
    compare(buffer[: len(buffer) - cut], collections)


@given(buffers(), with_or_without, st.data())
def test_bytes_changed_anywhere(buffer: bytes, collections: bool, data: Any) -> None:
    changed = bytearray(buffer)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    compare(bytes(changed), collections)


@given(st.binary(max_size=300), st.sampled_from([0, 60, 600]), with_or_without)
def test_any_bytes(garbage: bytes, before: int, collections: bool) -> None:
    compare(raw_frames.mutation() * before + garbage, collections)


@given(st.lists(rows(), min_size=1, max_size=10), st.sampled_from([1, 60]), st.sampled_from(["binary", "string"]))
def test_changes_of_few_and_many(some: list[bytes], copies: int, value_format: str) -> None:
    context = ChangeContext(collection_names={0: ("_default", "_default"), 9: ("s", "c")}, vbuuids={1: 5})
    buffer = b"".join(some)
    one_by_one = [to_changes(decode_messages(frame), context=context, value_format=value_format) for frame in some]
    many = to_changes(decode_wire(buffer * copies), context=context, value_format=value_format)
    many.validate(full=True)
    assert [many] == pa.Table.from_batches(one_by_one * copies).combine_chunks().to_batches()


@given(st.lists(st.tuples(values(), st.booleans()), min_size=1, max_size=8))
def test_values_come_out_as_they_went_in(made: list[tuple[tuple[bytes, int], bool]]) -> None:
    """Judged without the product's own code for values."""
    buffer = b"".join(
        (raw_frames.deletion if gone else raw_frames.mutation)(value=value, datatype=datatype)
        for (value, datatype), gone in made
    )
    batch = to_changes(decode_messages(buffer), context=ChangeContext())
    for ((value, datatype), gone), found in zip(made, batch["value"].to_pylist(), strict=True):
        plain = bytes(cramjam.snappy.decompress_raw(value)) if datatype & raw_frames.SNAPPY else value
        if datatype & raw_frames.XATTR and plain:
            plain = plain[4 + struct.unpack_from(">I", plain)[0] :]
        assert found == (None if gone and not plain else plain)


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=60)), min_size=40, max_size=200), st.integers(0, 3000))
def test_values_that_hold_frames_never_fool_the_scan(parts: list[tuple[int, bytes]], cut: int) -> None:
    """Values are frames, parts of frames and chains of them, nested."""
    inner = [
        raw_frames.mutation(b"\0in", data)
        if kind == 0
        else raw_frames.mutation(b"\0in", data)[:40]
        if kind == 1
        else (raw_frames.frame(0x57) + raw_frames.deletion(b"\0in", data)) * 3
        if kind == 2
        else data
        for kind, data in parts
    ]
    buffer = b"".join(raw_frames.mutation(b"\0%d" % n, b"".join(inner[n % 40 : n % 40 + 5])) for n in range(900))
    buffer = buffer[: len(buffer) - cut]
    chunk = decode_wire(buffer)
    assert chunk.key.to_pylist() == [b"%d" % n for n in range(len(chunk))]
    raw_frames.same(chunk, decode_messages(buffer))
