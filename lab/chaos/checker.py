"""The errors in tables, as sentences; nothing if they are exact.

Rules, all from the documentation and none from the code that keeps them:

- A control row `rollback` of a vbucket makes the rows of earlier batches above its `to_seqno` void.
- A control row that empties a collection makes the rows of that collection in its vbucket void that have no higher
  seqno and come in no later batch.
- The state is the newest row of each document that is not void, without deletions.
- Each row is delivered once, and a vbucket's rows are delivered in the order of their seqnos.
- Every row is a write that happened on the branch of history that the cluster is on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.chaos.history import History, Name
from lab.chaos.kv import XATTR, Document

DOCUMENT_OPS = frozenset({"mutation", "deletion", "expiration"})
EMPTYING_OPS = frozenset({"collection_created", "collection_dropped", "collection_flushed"})
SHOWN = 3
"""Examples of a difference that are printed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of `changes` or of a sink of changes.

    Attributes:
        batch: the micro-batch that brought it.
        op: the kind of row.
        vbucket, seqno: its place.
        name: its document; of a control row, its collection and an empty key.
        value: the value's bytes, None for a deletion.
        xattr: JSON text of the extended attribute, or None.
        to_seqno: of a rollback.
    """

    batch: int
    op: str
    vbucket: int
    seqno: int
    name: Name
    value: bytes | None
    xattr: str | None = None
    to_seqno: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """(vbucket, seqno)."""
        return self.vbucket, self.seqno


def row_of(data: Mapping[str, Any], batch: int) -> Row:
    """A row from its columns."""
    op = data["op"]
    value = data["value"]
    value = value.encode() if isinstance(value, str) else value
    to_seqno = int(json.loads(value)["to_seqno"]) if op == "rollback" else 0
    return Row(
        batch,
        op,
        data["vbucket"],
        data["seqno"],
        (data["scope"] or "", data["collection"] or "", data["key"] or ""),
        value,
        xattr_of(data),
        to_seqno,
    )


def xattr_of(data: Mapping[str, Any]) -> str | None:
    """The extended attribute of the writer, from the column of all attributes."""
    found = dict(data["xattrs"] or ())
    return found.get(XATTR)


def effective(rows: Iterable[Row]) -> list[Row]:
    """The rows of documents that are not void, in the order of their batches."""
    ordered = sorted(rows, key=lambda row: row.batch)
    rollbacks: dict[int, list[Row]] = {}
    emptied: dict[tuple[str, str, int], list[Row]] = {}
    for row in ordered:
        if row.op == "rollback":
            rollbacks.setdefault(row.vbucket, []).append(row)
    kept = [row for row in ordered if not is_taken_back(row, rollbacks.get(row.vbucket, ()))]
    for row in kept:
        if row.op in EMPTYING_OPS:
            emptied.setdefault((*row.name[:2], row.vbucket), []).append(row)
    return [
        row
        for row in kept
        if row.op in DOCUMENT_OPS
        and not any(
            event.seqno >= row.seqno and event.batch >= row.batch
            for event in emptied.get((*row.name[:2], row.vbucket), ())
        )
    ]


def is_taken_back(row: Row, rollbacks: Iterable[Row]) -> bool:
    """Whether a later batch has rolled a row back."""
    return row.op != "rollback" and any(
        rollback.batch > row.batch and row.seqno > rollback.to_seqno for rollback in rollbacks
    )


def state_of(rows: Iterable[Row]) -> dict[Name, Document]:
    """The documents that follow from changes."""
    newest: dict[Name, Row] = {}
    for row in effective(rows):
        before = newest.get(row.name)
        if before is None or row.seqno >= before.seqno:
            newest[row.name] = row
    return {name: Document(row.value or b"", row.xattr) for name, row in newest.items() if row.op == "mutation"}


def compare(title: str, found: Mapping[Name, Document], expected: Mapping[Name, Document]) -> list[str]:
    """The differences of two states."""
    result: list[str] = []
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    other = sorted(name for name in expected.keys() & found.keys() if found[name] != expected[name])
    for what, names in (("missing", missing), ("too many", extra), ("different", other)):
        if names:
            shown = "; ".join(
                f"{'.'.join(name)}: found {found.get(name)}, expected {expected.get(name)}" for name in names[:SHOWN]
            )
            result.append(f"{title}: {len(names)} documents {what}: {shown}")
    return result


def documents_of(title: str, rows: Sequence[Mapping[str, Any]]) -> tuple[dict[Name, Document], list[str]]:
    """A table of documents as a state, and what is wrong with it in itself."""
    found: dict[Name, Document] = {}
    twice: list[Name] = []
    for data in rows:
        name = (data["scope"] or "", data["collection"] or "", data["key"])
        value = data["value"]
        if name in found:
            twice.append(name)
        found[name] = Document(value.encode() if isinstance(value, str) else value, xattr_of(data))
    problems = [f"{title}: {len(twice)} documents are there twice: {twice[:SHOWN]}"] if twice else []
    return found, problems


def check_changes(
    title: str, rows: Sequence[Row], history: History, bucket: Mapping[Name, Document] | None, *, done: int | None
) -> list[str]:
    """The errors in changes.

    Args:
        title: names the table.
        rows: all rows.
        history: what was written. None of the bucket is compared if it still has rows to come.
        bucket: its documents; None if the reader is not at the end.
        done: the newest batch that is done, -1 for none. Until a batch with a rollback is done, the rows that it makes
            void may still be there. None for a sink that cannot delete them.
    """
    problems: list[str] = []
    rollbacks: dict[int, list[Row]] = {}
    for row in rows:
        if row.op == "rollback":
            rollbacks.setdefault(row.vbucket, []).append(row)
    void = [row for row in rows if is_taken_back(row, rollbacks.get(row.vbucket, ()))]
    if done is not None:
        left = [
            row
            for row in void
            if is_taken_back(row, (rollback for rollback in rollbacks[row.vbucket] if rollback.batch <= done))
        ]
        if left:
            problems.append(f"{title}: {len(left)} rows were rolled back and are still there: {left[:SHOWN]}")
    gone = set(map(id, void))
    data = [row for row in rows if row.op in DOCUMENT_OPS and id(row) not in gone]
    problems += _check_once(title, data)
    problems += _check_order(title, data)
    if bucket is not None:
        problems += _check_writes(title, data, history)
        problems += compare(f"{title}, replayed", state_of(rows), bucket)
    return problems


def _check_once(title: str, rows: Sequence[Row]) -> list[str]:
    seen: dict[tuple[int, int], Row] = {}
    twice = []
    for row in rows:
        if row.place in seen:
            twice.append((seen[row.place], row))
        seen[row.place] = row
    return [f"{title}: {len(twice)} rows are there twice: {twice[:SHOWN]}"] if twice else []


def _check_order(title: str, rows: Sequence[Row]) -> list[str]:
    wrong = []
    last: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: row.place):
        before = last.get(row.vbucket)
        if before is not None and before.batch > row.batch:
            wrong.append((before, row))
        last[row.vbucket] = row
    return (
        [f"{title}: {len(wrong)} rows came in an earlier batch than the row before: {wrong[:SHOWN]}"] if wrong else []
    )


def _check_writes(title: str, rows: Sequence[Row], history: History) -> list[str]:
    wrong = []
    for row in rows:
        write = history.writes(row.vbucket).get(row.seqno)
        is_right = (
            write is not None
            and write.name == row.name
            and (write.value is None) == (row.op != "mutation")
            and (write.is_xattr or write.value is None or write.value == row.value)
        )
        if not is_right:
            wrong.append((row, write))
    return [f"{title}: {len(wrong)} rows are not what was written: {wrong[:SHOWN]}"] if wrong else []


def check_kept(title: str, before: Sequence[Row], now: Sequence[Row]) -> list[str]:
    """The rows that were there and are missing: a row leaves `changes` only if a later batch rolls it back."""
    rollbacks: dict[int, list[Row]] = {}
    for row in now:
        if row.op == "rollback":
            rollbacks.setdefault(row.vbucket, []).append(row)
    there = {(row.batch, row.place, row.op) for row in now}
    lost = [
        row
        for row in before
        if (row.batch, row.place, row.op) not in there and not is_taken_back(row, rollbacks.get(row.vbucket, ()))
    ]
    return [f"{title}: {len(lost)} delivered rows are gone: {lost[:SHOWN]}"] if lost else []
