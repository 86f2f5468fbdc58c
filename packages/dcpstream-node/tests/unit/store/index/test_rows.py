"""The index of one vbucket."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.wire.stored.block import BlockKind
from dcpstream_node.store.index.rows import LIVE, RowTable

BATCHES = st.lists(st.lists(st.sampled_from([b"\0a", b"\0b", b"\0c", b"\0d"]), max_size=6), max_size=6)


@given(BATCHES)
def test_rows_in_bulk_are_rows_one_by_one(batches: list[list[bytes]]) -> None:
    in_bulk(batches)


LARGE_BATCHES = st.lists(st.lists(st.integers(0, 120), min_size=20, max_size=90), max_size=4)


@given(LARGE_BATCHES, st.booleans())
def test_many_rows_in_bulk_are_rows_one_by_one(batches: list[list[int]], is_unique: bool) -> None:
    chosen = [list(dict.fromkeys(numbers)) if is_unique else numbers for numbers in batches]
    in_bulk([[b"\0%d" % number for number in numbers] for numbers in chosen])


def in_bulk(batches: list[list[bytes]]) -> None:
    bulk, single = RowTable(), RowTable()
    bulk.journal, single.journal = [], []
    for number in range(0, 120, 7):  # tombstones, whose documents come anew
        for table in (bulk, single):
            table.append(b"\0%d" % number, number + 1, int(BlockKind.DELETION), 20, 0, 9, 9)
    seqno = 120
    for keys in batches:
        seqnos = range(seqno + 1, seqno + 1 + len(keys))
        begins, fields = np.arange(len(keys), dtype=np.int64) * 10, np.full(len(keys), 5, dtype=np.uint32)
        bulk.append_documents(keys, seqnos, begins, 10 * len(keys), fields, fields)
        for key in keys:
            seqno += 1
            single.append(key, seqno, 0, 10, 0, 5, 5)
    assert (bulk.keys, bulk.columns) == (single.keys, single.columns)
    assert sorted(bulk.journal) == sorted(single.journal)
    counts = (single.item_count, single.stale_bytes, single.end)
    assert (bulk.item_count, bulk.stale_bytes, bulk.end) == counts
    bulk.recount()
    assert (bulk.item_count, bulk.stale_bytes, bulk.end) == counts


def test_a_row_knows_which_row_superseded_it() -> None:
    table = RowTable()
    for seqno, key in enumerate([b"\0a", b"\0b", b"\0a"], 1):
        table.append(key, seqno, 0, 10, 0)
    assert list(table.successors) == [3, LIVE, LIVE]
    assert table.stale_bytes == 10
    assert table.superseded_from(2) == [0]
    assert table.superseded_from(3) == []
    assert table.extent(1) == (10, 20)
    assert table.row_after(2) == 2
