"""The kernel and plain Python yield the same, or fail with the same error."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import cramjam
import pytest

from dcpstream.arrow import ChangeContext, WireChunk, to_changes
from dcpstream.errors import WireError
from dcpstream.runtime import kernel
from dcpstream.wire.keys import leb128_encode
from dcpstream.wire.values import encode_xattrs
from tests.kit import raw_frames
from tests.kit.cases import each_case
from tests.kit.wire_columns import decode_wire

CONTEXT = ChangeContext(vbuuids={3: 99})
FRAMINGS = [b"", b"\x22\x00\x09", b"\x11\x01\x22\x00\x09", b"\xf0\x01", b"\x2f\x00", b"\x22\x00", b"\x21\x00", b"\xf2"]


@pytest.fixture(scope="module")
def native() -> ModuleType:
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    return kernel.native


def random_row(chance: random.Random) -> bytes:
    """A data message with any fields: every datatype, compressed values and attributes, any framing."""
    datatype = chance.randrange(8)
    value = chance.choice([b"", b"{}", chance.randbytes(chance.randrange(300)), raw_frames.mutation() * 3])
    if datatype & raw_frames.XATTR:
        value = encode_xattrs({f"meta{n}": b"%d" % n for n in range(chance.randrange(3))}, value)
    if datatype & raw_frames.SNAPPY:
        value = bytes(cramjam.snappy.compress_raw(value))
    key = leb128_encode(chance.choice([0, 0, 8, 300, 2**32 - 1])) + chance.randbytes(chance.randrange(70))
    fields: dict[str, Any] = {
        "vbucket": chance.randrange(1024),
        "opaque": chance.getrandbits(32),
        "cas": chance.getrandbits(64),
        "datatype": datatype,
    }
    if chance.random() < 0.1:
        framing = chance.choice(FRAMINGS)
        return raw_frames.frame(
            0x57, magic=0x08, framing=framing, extras=chance.randbytes(31), key=key, value=value, **fields
        )
    fields |= {
        "seqno": chance.getrandbits(64),
        "rev": chance.getrandbits(64),
        "stream_id": chance.choice([None, None, 1, 65535]),
    }
    kind = chance.randrange(4)
    if kind < 2:
        return raw_frames.mutation(key, value, flags=chance.getrandbits(32), expiry=chance.getrandbits(32), **fields)
    if kind == 2:
        return raw_frames.deletion(key, value, delete_time=chance.choice([None, chance.getrandbits(32)]), **fields)
    return raw_frames.expiration(key, value, delete_time=chance.getrandbits(32), **fields)


def random_stream(seed: int) -> bytearray:
    """Rows and other frames; in half of the streams some bytes are changed."""
    chance = random.Random(seed)
    controls = raw_frames.controls()
    frames = [
        random_row(chance) if chance.random() < 0.8 else chance.choice(controls)
        for _ in range(chance.choice([1, 5, 60, 600]))
    ]
    stream = bytearray(b"".join(frames))
    if seed % 2:
        for _ in range(chance.randrange(1, 4)):
            stream[chance.randrange(len(stream))] = chance.randrange(256)
    return stream


def outcome(buffer: Any, collections: bool) -> WireChunk | tuple[object, ...]:
    """The chunk, or what the error says."""
    try:
        return decode_wire(buffer, collections)
    except WireError as error:
        return type(error), str(error), error.offset, error.header


def compare(buffer: Any, collections: bool) -> WireChunk | None:
    fast = outcome(buffer, collections)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "native", None)
        plain = outcome(buffer, collections)
    if not isinstance(fast, WireChunk) or not isinstance(plain, WireChunk):
        assert fast == plain
        return None
    raw_frames.same(fast, plain)
    return fast


@each_case("collections", [True, False])
def test_random_streams(collections: bool, native: ModuleType) -> None:
    for seed in range(60):
        compare(random_stream(seed), collections)


def test_random_streams_are_rows_and_errors() -> None:
    """The corpus above has both."""
    found = {type(outcome(random_stream(seed), True)) for seed in range(60)}
    assert found == {WireChunk, tuple}


def test_a_stream_that_is_cut_at_every_byte(native: ModuleType) -> None:
    chance = random.Random(1)
    stream = b"".join(random_row(chance) for _ in range(4)) + b"".join(raw_frames.controls())
    for cut in range(len(stream)):
        compare(stream[:cut], True)


def test_each_byte_of_each_kind_of_frame_changed(native: ModuleType) -> None:
    frames = [raw_frames.mutation(stream_id=5), raw_frames.deletion(delete_time=7), raw_frames.expiration()]
    frames += [raw_frames.mutation(leb128_encode(300) + b"k"), raw_frames.marker()]
    stream = bytearray(b"".join(frames))
    for place in range(len(stream)):
        before = stream[place]
        for change in (0, 0x08, 0x57, 0x80, 0xFF):
            stream[place] = change
            compare(stream, True)
        stream[place] = before


@each_case("length", [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 4096])
def test_keys_and_values_of_every_length(length: int, native: ModuleType) -> None:
    """Short ones are copied in blocks, which must not reach over what comes next."""
    text = bytes(range(1, 256)) * 17
    rows = [raw_frames.mutation(b"\0" + text[:length], text[length : 2 * length]), raw_frames.mutation(b"\0a", b"b")]
    chunk = compare(b"".join(rows * 40), True)
    assert chunk is not None
    assert chunk.key.to_pylist() == [text[:length], b"a"] * 40
    assert chunk.value.to_pylist() == [text[length : 2 * length], b"b"] * 40


@each_case("seed", range(0, 20, 2))
def test_the_changes_are_the_same(seed: int, native: ModuleType) -> None:
    stream = random_stream(seed)
    chunk = compare(stream, True)
    if chunk is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "native", None)
        plain = decode_wire(stream)
    for value_format in ("binary", "string"):
        built = to_changes(chunk, context=CONTEXT, value_format=value_format)
        built.validate(full=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "native", None)
            expected = to_changes(plain, context=CONTEXT, value_format=value_format)
        assert built.equals(expected)
