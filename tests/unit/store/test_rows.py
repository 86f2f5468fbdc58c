"""The index of one vbucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dcpstream.store.rows import LIVE, RowTable

BATCHES = st.lists(st.lists(st.sampled_from([b"\0a", b"\0b", b"\0c", b"\0d"]), max_size=6), max_size=6)


@given(BATCHES)
def test_rows_in_bulk_are_rows_one_by_one(batches: list[list[bytes]]) -> None:
    bulk, single = RowTable(), RowTable()
    seqno = 0
    for keys in batches:
        seqnos = range(seqno + 1, seqno + 1 + len(keys))
        bulk.append_documents(keys, seqnos, 4, [10] * len(keys))
        for key in keys:
            seqno += 1
            single.append(key, seqno, 4, 10, 0)
    assert (bulk.keys, bulk.successors, bulk.positions, bulk.seqnos) == (
        single.keys,
        single.successors,
        single.positions,
        single.seqnos,
    )
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
