"""The Delta tables: each batch once, deletions, and rollbacks in one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dcpstream.columnar import CHANGE_SCHEMA, ControlRow, change_schema, control_rows, rollback_row
from dcpstream.model import Op
from dcpstream.pipelines.rows import BATCH_ID, batch_rows, changes_schema, newest_rows, with_batch_id
from dcpstream.pipelines.tables import ChangesTable, CurrentTable

APP = "test"


def change(key: str, seqno: int, value: str | None, vbucket: int = 0, collection: str = "_default") -> dict[str, Any]:
    """A row; value None is a deletion."""
    return {
        "key": key,
        "value": value,
        "_change_type": "delete" if value is None else "update_postimage",
        "_commit_version": seqno,
        "op": "deletion" if value is None else "mutation",
        "scope": "_default",
        "collection": collection,
        "vbucket": vbucket,
        "vbuuid": "7",
        "seqno": seqno,
        "xattrs": [("a", "1")] if seqno % 2 else None,
    }


def event(op: Op, collection: str, seqno: int, vbucket: int = 0, scope: str = "_default") -> pa.Table:
    """A control row about a collection."""
    row = ControlRow(op, vbucket, seqno, 7, {}, scope, collection)
    return pa.Table.from_batches([control_rows([row], time=1.0, value_format="string")])


def batch(number: int, *parts: dict[str, Any] | tuple[int, int, int] | pa.Table) -> pa.Table:
    """Rows of a batch; a tuple (vbucket, from, to) is a control row."""
    schema = change_schema("string")
    tables = []
    for part in parts:
        if isinstance(part, tuple):
            vbid, from_seqno, to_seqno = part
            row = rollback_row(vbid, from_seqno, to_seqno, 7, 8, time=1.0, value_format="string")
            tables.append(pa.Table.from_batches([row]))
        elif isinstance(part, pa.Table):
            tables.append(part)
        else:
            tables.append(pa.Table.from_pylist([part], schema=schema))
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    return with_batch_id(table, number, changes_schema("string"))


def contents(table: CurrentTable | ChangesTable) -> dict[tuple[str, str], tuple[int, str]]:
    """What the table holds: (collection, key) → (seqno, value); data rows only."""
    rows = table.open().to_pyarrow_table().to_pylist()
    return {(row["collection"], row["key"]): (row["seqno"], row["value"]) for row in rows if row["key"] is not None}


@pytest.fixture
def tables(tmp_path: Path) -> tuple[ChangesTable, CurrentTable]:
    changes, current = ChangesTable(tmp_path / "changes", "string"), CurrentTable(tmp_path / "current", "string")
    changes.create()
    current.create()
    return changes, current


def apply(tables: tuple[ChangesTable, CurrentTable], number: int, *parts: Any) -> None:
    rows = batch_rows(batch(number, *parts))
    for table in tables:
        table.apply(APP, number, rows)


def test_current_follows_inserts_updates_and_deletions(tables: tuple[ChangesTable, CurrentTable]) -> None:
    changes, current = tables
    apply(tables, 0, change("a", 1, "1"), change("b", 2, "1"), change("a", 3, "2"), change("c", 4, "1"))
    apply(tables, 1, change("b", 5, None), change("a", 6, "3"), change("d", 7, None))
    assert contents(current) == {("_default", "a"): (6, "3"), ("_default", "c"): (4, "1")}
    assert changes.open().count() == 7
    assert (changes.last_batch(APP), current.last_batch(APP), current.last_batch("other")) == (1, 1, None)


def test_the_same_key_in_two_collections_is_two_documents(tables: tuple[ChangesTable, CurrentTable]) -> None:
    apply(tables, 0, change("a", 1, "1"), change("a", 2, "2", collection="other"))
    apply(tables, 1, change("a", 3, None, collection="other"))
    assert contents(tables[1]) == {("_default", "a"): (1, "1")}


def test_an_older_row_does_not_replace_a_newer_one(tables: tuple[ChangesTable, CurrentTable]) -> None:
    apply(tables, 0, change("a", 5, "new"))
    apply(tables, 1, change("a", 4, "old"))
    assert contents(tables[1]) == {("_default", "a"): (5, "new")}


def test_a_rollback_takes_back_its_vbucket_only(tables: tuple[ChangesTable, CurrentTable]) -> None:
    changes, current = tables
    apply(tables, 0, change("a", 1, "1"), change("b", 2, "1"), change("x", 1, "1", vbucket=3))
    apply(tables, 1, (0, 2, 0), change("a", 1, "0"), change("y", 2, "1", vbucket=3))
    assert contents(current) == {("_default", "a"): (1, "0"), ("_default", "x"): (1, "1"), ("_default", "y"): (2, "1")}
    assert contents(changes) == contents(current)
    assert changes.open().version() == 2, "create, append, and one commit for the rollback"
    # A second rollback of the vbucket keeps the story of the first.
    apply(tables, 2, (0, 1, 0))
    assert contents(current) == {("_default", "x"): (1, "1"), ("_default", "y"): (2, "1")}
    ops = [row["op"] for row in changes.open().to_pyarrow_table().to_pylist()]
    assert ops.count("rollback") == 2


def test_a_dropped_collection_takes_its_documents_with_it(tables: tuple[ChangesTable, CurrentTable]) -> None:
    changes, current = tables
    apply(tables, 0, change("a", 1, "1", collection="old"), change("a", 2, "1"), change("a", 1, "1", 3, "old"))
    apply(tables, 1, change("b", 3, "1", collection="old"), event(Op.COLLECTION_DROPPED, "old", 4), change("c", 5, "1"))
    assert contents(current) == {("_default", "a"): (2, "1"), ("_default", "c"): (5, "1"), ("old", "a"): (1, "1")}
    assert changes.open().count() == 6, "changes keep the history, with the row that tells of the end"
    apply(tables, 2, event(Op.COLLECTION_DROPPED, "old", 2, vbucket=3))
    assert contents(current) == {("_default", "a"): (2, "1"), ("_default", "c"): (5, "1")}


def test_a_collection_of_the_same_name_begins_empty(tables: tuple[ChangesTable, CurrentTable]) -> None:
    apply(tables, 0, change("a", 1, "1", collection="it's"), change("b", 2, "1", collection="it's"))
    apply(tables, 1, event(Op.COLLECTION_CREATED, "it's", 4), change("b", 5, "2", collection="it's"))
    assert contents(tables[1]) == {("it's", "b"): (5, "2")}


def test_other_events_leave_documents_alone(tables: tuple[ChangesTable, CurrentTable]) -> None:
    apply(tables, 0, change("a", 1, "1", collection="x"))
    rows = batch_rows(
        batch(1, event(Op.COLLECTION_MODIFIED, "x", 2), event(Op.SCOPE_CREATED, "", 3), event(Op.SCOPE_DROPPED, "", 4))
    )
    assert (rows.events, rows.emptied, rows.newest.num_rows) == (3, {}, 0)
    for table in tables:
        table.apply(APP, 1, rows)
    assert contents(tables[1]) == {("x", "a"): (1, "1")}


def test_the_rows_of_a_batch_can_be_read_again(tables: tuple[ChangesTable, CurrentTable]) -> None:
    changes, _ = tables
    apply(tables, 0, change("a", 1, "1"))
    apply(tables, 1, (0, 1, 0), change("a", 1, "2"), change("b", 2, None))
    again = batch_rows(changes.read_batch(1))
    assert [rollback.vbucket for rollback in again.rollbacks] == [0]
    removed = dict(zip(again.newest.column("key").to_pylist(), again.is_removed.to_pylist(), strict=True))
    assert removed == {"a": False, "b": True}
    assert again.changes.schema.names == [*CHANGE_SCHEMA.names, BATCH_ID]


def test_the_newest_row_of_a_document_wins() -> None:
    table = batch(
        0, change("a", 3, "3"), change("b", 1, "1"), change("a", 2, "2"), change("a", 9, None, collection="c")
    )
    assert newest_rows(table).tolist() == [0, 1, 3]
    assert newest_rows(table.slice(0, 0)).tolist() == []


def test_compaction_and_clean_up_keep_the_rows(tables: tuple[ChangesTable, CurrentTable]) -> None:
    changes, current = tables
    for number in range(3):
        apply(tables, number, change(f"k{number}", number + 1, "v"))
    before = contents(changes)
    changes.compact()
    assert changes.vacuum(0) > 0
    current.vacuum(0)
    assert contents(changes) == before
    assert batch_rows(changes.read_batch(1)).newest.num_rows == 1
