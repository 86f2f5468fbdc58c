"""The comparison of bucket and tables, and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dcpstream_demo import picture, verdict
from dcpstream_demo.verdict import check_history, compare, content_hash
from dcpstream_demo.watch import History, Sample

DOCUMENTS = {
    b"k%d" % number: json.dumps({"carrier": "AB"[number % 2], "arrival_delay": number}).encode() for number in range(6)
}


def write_tables(directory: Path, current: dict[bytes, bytes], *, repeat: bool = False) -> None:
    write_deltalake(
        str(directory / "current"),
        pa.table({"key": [key.decode() for key in current], "value": [value.decode() for value in current.values()]}),
    )
    rows = [
        {
            "key": key.decode(),
            "value": value.decode(),
            "_change_type": "insert",
            "op": "mutation",
            "vbucket": 0,
            "seqno": seqno,
        }
        for seqno, (key, value) in enumerate(DOCUMENTS.items(), 1)
    ]
    rows.append({"key": "gone", "value": None, "_change_type": "delete", "op": "deletion", "vbucket": 1, "seqno": 1})
    rows.append({"key": None, "value": "{}", "_change_type": None, "op": "rollback", "vbucket": 1, "seqno": 0})
    write_deltalake(str(directory / "changes"), pa.Table.from_pylist(rows + (rows[:1] if repeat else [])))


def test_equal_tables_are_exact(tmp_path: Path) -> None:
    write_tables(tmp_path, DOCUMENTS)
    found = verdict.judge(DOCUMENTS, DOCUMENTS, tmp_path)
    assert found.is_exact
    assert found.verdict == "verdict: exact, 6 documents, 7 changes, 1 rollbacks, 0 differences"


def test_a_document_that_differs_is_named(tmp_path: Path) -> None:
    write_tables(tmp_path, DOCUMENTS | {b"k3": b"{}"})
    found = verdict.judge(DOCUMENTS, DOCUMENTS, tmp_path)
    assert not found.is_exact
    assert found.verdict.startswith("verdict: DIFFERENT, ")
    assert found.verdict.endswith(" 1 differences")
    assert any("k3: bucket" in line for line in found.lines())


def test_rows_that_are_there_twice_are_differences(tmp_path: Path) -> None:
    write_tables(tmp_path, DOCUMENTS, repeat=True)
    found = verdict.judge(DOCUMENTS, DOCUMENTS, tmp_path)
    assert found.repeated_count == 1
    assert not found.is_exact


def test_what_the_node_lost_is_a_difference_even_if_the_tables_follow_it(tmp_path: Path) -> None:
    write_tables(tmp_path, DOCUMENTS)
    written = DOCUMENTS | {b"lost": b"{}"}
    assert not verdict.judge(written, DOCUMENTS, tmp_path).is_exact


def test_carriers_with_their_mean_delay() -> None:
    values = [*DOCUMENTS.values(), b'{"carrier":"C"}']
    rows = picture.carrier_rows(values)
    assert [(row.carrier, row.flights, row.delay_min) for row in rows] == [("A", 3, 2.0), ("B", 3, 3.0), ("C", 1, None)]


@pytest.mark.parametrize("count", [0, 1, 50])
def test_picture_is_drawn_from_much_or_little(tmp_path: Path, count: int) -> None:
    history = History()
    for number in range(count):
        history.add(Sample(number / 2, number * 10, None if number == 20 else number * 10, number * 8))
    if count:
        history.mark(3.0, "kill -9 the node")
    carriers = picture.carrier_rows([*DOCUMENTS.values(), b'{"carrier":"C"}'] if count else [])
    path = picture.draw(tmp_path / "a" / "demo.png", history, carriers, "title")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_equal_sets_have_no_difference_and_one_hash() -> None:
    left = {b"a": b"1", b"b": b"2"}
    result = compare(left, dict(reversed(left.items())))
    assert result.is_equal
    assert result.left_hash == result.right_hash == content_hash(left)
    assert (result.left_count, result.right_count, result.difference_count) == (2, 2, 0)


def test_every_difference_is_counted_and_the_first_are_described_in_order() -> None:
    left = {b"k%03d" % number: b"x" for number in range(40)}
    right = dict(left)
    right[b"k007"] = b"y"
    del right[b"k003"]
    right[b"k999"] = b"z"
    result = compare(left, right, limit=2)
    assert not result.is_equal
    assert result.difference_count == 3
    lines = [item.describe("bucket", "table") for item in result.first_differences]
    assert lines == ["k003: bucket x, table has no such document", "k007: bucket x, table y"]


def test_hash_depends_on_where_keys_end() -> None:
    assert content_hash({b"ab": b"c"}) != content_hash({b"a": b"bc"})


def test_replaying_changes_gives_the_state_whatever_order_they_lie_in() -> None:
    batches: list[Any] = [
        ([b"a", b"b"], [b"2", b"1"], [0, 1], [5, 1]),
        ([b"a", b"b", b"c"], [b"1", None, b"1"], [0, 1, 1], [4, 2, 3]),
    ]
    history = check_history(iter(batches))
    assert history.documents == {b"a": b"2", b"c": b"1"}
    assert history.row_count == 5
    assert history.repeated_count == 0


def test_repeated_rows_are_found() -> None:
    batch = ([b"a", b"b"], [b"1", b"1"], [0, 1], [5, 5])
    assert check_history(iter([batch, batch])).repeated_count == 2
