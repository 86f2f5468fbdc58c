"""Values: inflated, and without their xattr section."""

from __future__ import annotations

import cramjam
import numpy as np
import pyarrow as pa
import pytest

from dcpstream.arrow.values import MAX_VALUE_BYTES, NULLS_KEPT, inflate, nulls, split_sections, with_nulls
from dcpstream.errors import FieldError
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
