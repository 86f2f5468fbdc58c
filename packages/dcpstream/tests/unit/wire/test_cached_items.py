"""The records of DCP_CACHE_TRANSFER."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.errors import FieldError
from dcpstream.wire.cached_items import MIN_RECORD_BYTES, CachedItem, cached_items, encode_cached_item

U64, U32, U8 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 255)
KEYS = st.builds(bytes.__add__, st.sampled_from([b"\0", b"\x88\x01"]), st.binary(min_size=1, max_size=240))
ITEMS = st.builds(CachedItem, KEYS, st.binary(), U64, U64, U64, U32, U32, U8, U8)


@given(st.lists(ITEMS, max_size=5))
def test_what_is_written_is_read(items: list[CachedItem]) -> None:
    assert list(cached_items(b"".join(map(encode_cached_item, items)))) == items


def test_the_shortest_record_is_read() -> None:
    item = CachedItem(b"\0k", b"", 1, 2, 3, 0, 0, 0, 0)
    value = encode_cached_item(item)
    assert len(value) == MIN_RECORD_BYTES
    assert list(cached_items(value)) == [item]


@given(ITEMS, st.data())
def test_a_cut_record_is_refused(item: CachedItem, data: st.DataObject) -> None:
    whole = encode_cached_item(item)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(FieldError):
        list(cached_items(whole[:cut]))


@pytest.mark.parametrize("length", [0, 1, 252])
def test_a_key_that_cannot_be(length: int) -> None:
    record = bytearray(encode_cached_item(CachedItem(b"\0" * 300, b"", 1, 1, 1, 0, 0, 0, 0)))
    record[36:38] = length.to_bytes(2, "big")
    with pytest.raises(FieldError, match="key"):
        list(cached_items(bytes(record)))
    assert MIN_RECORD_BYTES == 42


@pytest.mark.parametrize("key", [b"\x80\x80", b"\x80\0k", b"\x01k", b"\xff\xff\xff\xff\xff\xff"])
def test_a_prefix_that_cannot_be(key: bytes) -> None:
    with pytest.raises(FieldError, match="wrong key"):
        list(cached_items(encode_cached_item(CachedItem(key, b"", 1, 1, 1, 0, 0, 0, 0))))
