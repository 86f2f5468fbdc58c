"""Values: inflated, and without their xattr section."""

from __future__ import annotations

import cramjam
import numpy as np
import pyarrow as pa
import pytest

from dcpstream.arrow.values import MAX_VALUE_BYTES, NULLS_KEPT, inflate, nulls, split_sections, with_nulls
from dcpstream.errors import FieldError
from dcpstream.wire.values import encode_xattrs
from tests.kit.cases import each_case
from tests.kit.raw_frames import JSON, SNAPPY, XATTR


def blame(row: int, what: str) -> FieldError:
    return FieldError(f"row {row}: {what}")


def packed(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def binary(*values: bytes) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def datatypes(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.array(values, np.uint8)


def varint(number: int) -> bytes:
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


class TestInflate:
    def test_nothing_to_do_returns_the_same(self) -> None:
        values = binary(b"a", b"")
        assert inflate(values, datatypes(JSON, XATTR), blame) is values

    @each_case("size", [0, 1, 127, 128, 300, 20_000, 3_000_000])
    def test_all_and_some(self, size: int) -> None:
        data = b"abc" * (size // 3) + b"x" * (size % 3)
        assert inflate(binary(packed(data)), datatypes(SNAPPY), blame).to_pylist() == [data]
        mixed = inflate(binary(b"a", packed(data), b"b", packed(b"z")), datatypes(0, 2, 1, 7), blame)
        assert mixed.to_pylist() == [b"a", data, b"b", b"z"]
        mixed.validate(full=True)

    def test_slices(self) -> None:
        values = binary(b"skipped", packed(b"one"), b"two", packed(b"three"), b"skipped").slice(1, 3)
        assert inflate(values, datatypes(2, 0, 2), blame).to_pylist() == [b"one", b"two", b"three"]
        assert inflate(values.slice(0, 1), datatypes(2), blame).to_pylist() == [b"one"]

    def test_an_empty_value_is_not_a_block(self) -> None:
        """Streams without values that keep the datatypes (open flag 0x40)."""
        assert inflate(binary(b"", packed(b"x")), datatypes(SNAPPY | XATTR, SNAPPY), blame).to_pylist() == [b"", b"x"]

    @each_case(
        "block",
        [
            b"\xff\xff\xff\xff\xff\x01",
            b"\x80",
            b"\xff\xff",
            b"\x05",
            varint(MAX_VALUE_BYTES + 1) + bytes(2_000_000),
            varint(1000) + b"\0x",
            packed(b"hello world, hello world, hello world")[:-2],
            packed(b"hello")[:-1],
            b"\x05" + packed(b"hello!")[1:],
            b'{"json": true}',
        ],
        ids=[
            "size above 32 bit",
            "no size",
            "no size 2",
            "nothing",
            "above 30 MiB",
            "claims 1000",
            "cut",
            "cut 2",
            "size wrong",
            "not snappy",
        ],
    )
    def test_what_is_no_block(self, block: bytes) -> None:
        with pytest.raises(FieldError, match=r"row 2: .*snappy block"):
            inflate(binary(b"a", packed(b"b"), block), datatypes(0, 2, 2), blame)

    def test_claims_do_not_take_memory(self) -> None:
        claim = varint(MAX_VALUE_BYTES) + b"\0x"
        with pytest.raises(FieldError, match="claims to hold"):
            inflate(binary(*[claim] * 10_000), datatypes(*[SNAPPY] * 10_000), blame)


class TestSections:
    def test_nothing_to_do_returns_the_same(self) -> None:
        values = binary(b"a", b"")
        bodies, sections, rows = split_sections(values, datatypes(JSON, 0), blame)
        assert bodies is values
        assert sections is None
        assert rows.tolist() == []

    def test_bodies_and_sections(self) -> None:
        first, second, third = {"_sync": b'{"rev":1}', "meta": b"2"}, {"only": b"null"}, {}
        values = binary(
            b"plain",
            encode_xattrs(first, b'{"body":true}'),
            encode_xattrs(second),
            encode_xattrs(third, b"body"),
            b"",
        )
        bodies, sections, rows = split_sections(values, datatypes(0, 5, 4, 4, 4), blame)
        assert bodies.to_pylist() == [b"plain", b'{"body":true}', b"", b"body", b""]
        assert rows.tolist() == [1, 2, 3]
        assert sections is not None
        expected = [b"", encode_xattrs(first), encode_xattrs(second), encode_xattrs(third), b""]
        assert sections.to_pylist() == expected

    def test_slices(self) -> None:
        values = binary(b"skipped", b"one", encode_xattrs({"a": b"1"}, b"two"), b"skipped").slice(1, 2)
        bodies, sections, _ = split_sections(values, datatypes(0, 4), blame)
        assert bodies.to_pylist() == [b"one", b"two"]
        assert sections is not None
        assert sections.to_pylist() == [b"", encode_xattrs({"a": b"1"})]

    @each_case("value", [b"\0\0\0", b"\0\0\0\x09body", b"\xff\xff\xff\xffbody"])
    def test_a_section_longer_than_its_value(self, value: bytes) -> None:
        with pytest.raises(FieldError, match="row 1: an xattr section longer"):
            split_sections(binary(b"a", value, encode_xattrs({"a": b"1"})), datatypes(0, 4, 4), blame)


def test_with_nulls() -> None:
    values = binary(*(b"%d" % number for number in range(20)))
    null = np.arange(20) % 3 == 0
    expected = [None if number % 3 == 0 else b"%d" % number for number in range(20)]
    assert with_nulls(values, null).to_pylist() == expected
    assert with_nulls(values.slice(3, 9), null[3:12]).to_pylist() == expected[3:12]
    assert with_nulls(values, np.zeros(20, np.bool_)) is values
    with_nulls(values.slice(3, 9), null[3:12]).validate(full=True)


@each_case("kind", [pa.string(), pa.timestamp("us", "UTC"), pa.map_(pa.string(), pa.string())], ids=str)
@each_case("count", [0, 1, NULLS_KEPT, NULLS_KEPT + 1])
def test_columns_of_nulls(kind: pa.DataType, count: int) -> None:
    column = nulls(count, kind)
    column.validate(full=True)
    assert (column.type, len(column), column.null_count) == (kind, count, count)
