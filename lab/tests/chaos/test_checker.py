"""The checker of the chaos suite notices what it is for: each rule is broken once."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import chaos
from lab.chaos.checker import Row, check_changes, check_kept, compare, documents_of, row_of, state_of
from lab.chaos.history import History, Write
from lab.chaos.kv import Document

DEFAULT = ("_default", "_default")


def row(batch: int, seqno: int, key: str, value: bytes | None, *, op: str = "", vbucket: int = 1) -> Row:
    return Row(batch, op or ("deletion" if value is None else "mutation"), vbucket, seqno, (*DEFAULT, key), value)


def rollback(batch: int, to_seqno: int) -> Row:
    return Row(batch, "rollback", 1, to_seqno, ("", "", ""), b"", to_seqno=to_seqno)


def written(*rows: Row) -> History:
    history = History([0, 0])
    for one in rows:
        history.add(one.vbucket, one.seqno, Write(one.name, one.value))
    return history


ROWS = (row(0, 1, "a", b"1"), row(0, 2, "b", b"1"), row(1, 3, "a", b"2"), row(1, 4, "b", None))
BUCKET = {(*DEFAULT, "a"): Document(b"2")}


def problems(rows: list[Row], *, done: int | None = 9) -> str:
    return "\n".join(check_changes("changes", rows, written(*ROWS), BUCKET, done=done))


def test_exact_changes() -> None:
    assert problems(list(ROWS)) == ""
    assert problems(list(ROWS[2:])) == "", "a snapshot may leave out older versions"


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (ROWS[:2] + ROWS[3:], "1 documents different"),
        (ROWS[:3], "1 documents too many"),
        (ROWS[1:2] + ROWS[3:], "1 documents missing"),
        ((*ROWS, ROWS[2]), "1 rows are there twice"),
        ((*ROWS, replace(ROWS[2], batch=2)), "1 rows are there twice"),
        ((ROWS[0], ROWS[1], ROWS[2], replace(ROWS[3], batch=0)), "1 rows came in an earlier batch"),
        ((*ROWS, row(2, 5, "c", b"void"), row(3, 6, "c", None)), "2 rows are not what was written"),
        ((*ROWS[:2], replace(ROWS[2], value=b"\\xff"), ROWS[3]), "1 rows are not what was written"),
        ((*ROWS[:3], replace(ROWS[3], op="mutation", value=b"")), "1 rows are not what was written"),
        ((ROWS[0], ROWS[1], rollback(1, 0), *ROWS[2:]), "2 rows were rolled back and are still there"),
    ],
)
def test_what_is_wrong_with_changes(rows: tuple[Row, ...], what: str) -> None:
    assert what in problems(list(rows))


def test_a_sink_that_keeps_void_rows() -> None:
    void = [row(0, 1, "a", b"1"), row(0, 2, "b", b"void"), row(1, 3, "c", b"void")]
    again = [row(2, 2, "b", b"1"), row(2, 3, "a", b"2"), row(2, 4, "b", None)]
    assert problems([*void, rollback(2, 1), *again], done=None) == ""
    assert "documents too many" in problems([*void, rollback(2, 3), *again], done=None)


def test_a_rollback_leaves_rows_of_its_own_batch_and_of_later_ones() -> None:
    rows = [row(0, 5, "a", b"void"), rollback(1, 2), row(1, 5, "a", b"1"), row(2, 6, "b", b"1")]
    assert {name[2]: document.value for name, document in state_of(rows).items()} == {"a": b"1", "b": b"1"}
    other = [replace(one, vbucket=2) for one in rows if one.op != "rollback"]
    assert len(state_of([rows[1], *other])) == 2, "a rollback of one vbucket says nothing about another"


@pytest.mark.parametrize("op", ["collection_created", "collection_dropped", "collection_flushed"])
def test_a_collection_that_was_emptied(op: str) -> None:
    event = row(1, 5, "", None, op=op)
    rows = [row(0, 4, "old", b"1"), event, row(1, 6, "new", b"1"), row(2, 3, "caught up", b"1")]
    assert {name[2] for name in state_of(rows)} == {"new", "caught up"}
    elsewhere = replace(event, vbucket=2)
    assert len(state_of([rows[0], elsewhere, *rows[2:]])) == 3


def test_an_emptying_that_was_rolled_back() -> None:
    rows = [row(0, 4, "old", b"1"), row(0, 5, "", None, op="collection_dropped"), rollback(1, 4)]
    assert {name[2] for name in state_of(rows)} == {"old"}


def test_rows_that_are_gone() -> None:
    before = [row(0, 1, "a", b"1"), row(0, 2, "b", b"1")]
    assert check_kept("changes", before, before) == []
    assert "1 delivered rows are gone" in check_kept("changes", before, before[:1])[0]
    assert check_kept("changes", before, [before[0], rollback(1, 1)]) == []
    assert check_kept("changes", before, [rollback(1, 1)]) != []


def test_documents() -> None:
    data: dict[str, Any] = {"scope": "s", "collection": "c", "key": "k", "value": b"\xff", "xattrs": [("mark", "1")]}
    found, wrong = documents_of("current", [data])
    assert (found, wrong) == ({("s", "c", "k"): Document(b"\xff", "1")}, [])
    assert "twice" in documents_of("current", [data, data])[1][0]
    assert compare("current", found, {("s", "c", "k"): Document(b"\\xff", "1")})
    assert compare("current", found, {("s", "c", "k"): Document(b"\xff", "2")})
    assert not compare("current", found, {("s", "c", "k"): Document(b"\xff", "1")})


def test_rows_of_columns() -> None:
    data = {"op": "rollback", "value": '{"to_seqno": "7"}', "vbucket": 3, "seqno": 7, "xattrs": None}
    found = row_of({**data, "scope": None, "collection": None, "key": None}, 4)
    assert (found.to_seqno, found.batch, found.vbucket) == (7, 4, 3)


@pytest.mark.parametrize("name", ["kv", "history", "checker", "tables"])
def test_the_judge_shares_no_code_with_the_judged(name: str) -> None:
    allowed = {"lab.chaos.kv", "lab.chaos.history", "lab.chaos.checker"}
    tree = ast.parse(Path(chaos.__file__).with_name(f"{name}.py").read_text(encoding="utf-8"))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [item.name for node in ast.walk(tree) if isinstance(node, ast.Import) for item in node.names]
    assert imported
    for module in imported:
        assert not module.startswith("dcpstream")
        assert module in allowed or not module.startswith(("chaos", "tests", "tools"))


def test_void_rows_leave_before_their_rollback_is_done() -> None:
    rows = [ROWS[0], row(0, 2, "b", b"void"), rollback(1, 1), row(2, 2, "b", b"1"), *ROWS[2:]]
    rows = [replace(one, batch=2) if one in ROWS[2:] else one for one in rows]
    assert problems(rows, done=0) == "", "the query died after it had appended the rollback"
    assert "1 rows were rolled back and are still there" in problems(rows, done=1)
