"""Xattr sections as maps: many rows together, and one by one."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.arrow.xattrs import ROUNDS_MAX, TOGETHER_MIN, xattr_maps
from dcpstream.errors import FieldError
from dcpstream.wire.values import encode_xattrs

Attributes = dict[str, bytes] | None
FEW_AND_MANY = pytest.mark.parametrize("before", [0, 2 * TOGETHER_MIN], ids=["few", "many"])


def blame(row: int, what: str) -> FieldError:
    return FieldError(f"row {row}: {what}")


def maps_of(*sections: bytes | None) -> pa.MapArray:
    rows = np.array([row for row, section in enumerate(sections) if section is not None], np.int64)
    array = pa.array([section or b"" for section in sections], pa.binary())
    maps = xattr_maps(array, rows, len(sections), blame)
    maps.validate(full=True)
    assert maps.type == pa.map_(pa.string(), pa.string())
    return maps


def section(pairs: list[bytes]) -> bytes:
    """A section whose pairs may be anything."""
    body = b"".join(struct.pack(">I", len(pair)) + pair for pair in pairs)
    return struct.pack(">I", len(body)) + body


@FEW_AND_MANY
def test_null_without_section_and_empty_without_attributes(before: int) -> None:
    one = encode_xattrs({"_sync": b'{"rev":1}', "meta": b""})
    sections = [one] * before + [None, one, encode_xattrs({}), None, encode_xattrs({"x": b"1"})]
    pairs = [("_sync", '{"rev":1}'), ("meta", "")]
    assert maps_of(*sections).to_pylist() == [pairs] * before + [None, pairs, [], None, [("x", "1")]]


def test_many_without_any_attribute() -> None:
    assert maps_of(*[encode_xattrs({})] * 50).to_pylist() == [[]] * 50


@FEW_AND_MANY
def test_more_attributes_than_are_read_together(before: int) -> None:
    large = {f"name{number}": b"%d" % number for number in range(ROUNDS_MAX + 5)}
    maps = maps_of(*[encode_xattrs({"a": b"1"})] * before, encode_xattrs(large))
    assert maps.to_pylist()[-1] == [(name, text.decode()) for name, text in large.items()]


@FEW_AND_MANY
def test_a_name_twice_far_apart(before: int) -> None:
    pairs = [b"name%d\0%d\0" % (number % (ROUNDS_MAX + 8), number) for number in range(ROUNDS_MAX + 9)]
    (last,) = maps_of(*[section(pairs)] * (before + 1)).to_pylist()[-1:]
    assert len(last) == ROUNDS_MAX + 8
    assert last[0] == ("name0", str(ROUNDS_MAX + 8))


@FEW_AND_MANY
def test_names_that_are_no_utf_8_are_visible(before: int) -> None:
    assert maps_of(*[section([b"\xff\0text\0"])] * (before + 1)).to_pylist()[-1] == [(r"\xff", "text")]


@FEW_AND_MANY
def test_a_name_twice_is_one_key(before: int) -> None:
    twice = section([b"a\x001\0", b"b\x002\0", b"a\x003\0"])
    assert maps_of(*[twice] * (before + 1)).to_pylist()[-1] == [("a", "3"), ("b", "2")]


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=4)
texts = st.binary(max_size=6).filter(lambda text: b"\0" not in text)
attributes = st.one_of(st.none(), st.dictionaries(names, texts, max_size=4))


@given(st.lists(attributes, min_size=1, max_size=20), st.sampled_from([1, TOGETHER_MIN]))
def test_what_went_in_comes_out(made: list[Attributes], copies: int) -> None:
    from dcpstream.arrow import escape

    sections = [None if pairs is None else encode_xattrs(pairs) for pairs in made]
    expected = [None if pairs is None else [(name, escape(text)) for name, text in pairs.items()] for pairs in made]
    assert maps_of(*sections * copies).to_pylist() == expected * copies


@given(st.binary(max_size=40), st.integers(0, 3))
def test_any_bytes_are_read_alike_or_refused_alike(garbage: bytes, zeros: int) -> None:
    broken = struct.pack(">I", len(garbage) + zeros) + garbage + bytes(zeros)
    results = []
    for copies in (1, TOGETHER_MIN):
        try:
            results.append(maps_of(*[broken] * copies).to_pylist()[0])
        except FieldError as error:
            results.append(str(error))
    assert results[0] == results[1]
