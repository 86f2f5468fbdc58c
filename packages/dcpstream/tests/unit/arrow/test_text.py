r"""Text: UTF-8 as it is, anything else visible and different."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.arrow import escape, unescape
from dcpstream.arrow.text import CONSTANT_LENGTH_MAX, CONSTANT_ROWS, repeated, strings_of
from tests.kit.cases import each_case


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.binary(max_size=20))
def test_nothing_is_lost(data: bytes) -> None:
    text = escape(data)
    assert text.encode().decode() == text
    if not is_text(data):
        assert unescape(text) == data


@given(st.lists(st.binary(max_size=6).filter(lambda data: not is_text(data)), unique=True))
def test_different_bytes_stay_different(keys: list[bytes]) -> None:
    assert len(set(map(escape, keys))) == len(keys)


def test_nulls_stay_nulls_and_slices_stay_slices() -> None:
    values = pa.array([b"x", None, b"\xff", b"y"], pa.binary())
    assert strings_of(values).to_pylist() == ["x", None, r"\xff", "y"]
    assert strings_of(values.slice(1, 2)).to_pylist() == [None, r"\xff"]


@each_case("text", ["x", "y" * CONSTANT_LENGTH_MAX, "z" * (CONSTANT_LENGTH_MAX + 1), "é" * 20])
@each_case("count", [1, CONSTANT_ROWS, CONSTANT_ROWS + 1])
def test_repeated_at_the_bounds_of_what_is_kept(text: str, count: int) -> None:
    for _ in range(2):
        column = repeated(text, count)
        column.validate(full=True)
        assert len(column) == count
        assert set(column.to_pylist()) == {text}
