"""The right content of typed columns, from the documents alone: JSON is read by Python's `json` module.

Rules, all from the documentation: a document fits if it is one JSON object in UTF-8 and every field of the schema in it
is missing, null or of its type. A field that does not fit is null, and so are all fields of what is no object. The
column `_corrupt_record` holds the text of a document that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.chaos.history import Name
from lab.chaos.kv import Document

CORRUPT = "_corrupt_record"
SHOWN = 3

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "INT": lambda found: type(found) is int and -(2**31) <= found < 2**31,
    "BIGINT": lambda found: type(found) is int and -(2**63) <= found < 2**63,
    "STRING": lambda found: type(found) is str,
}
"""The types that rounds use, and what fits. Their documents have no other value that Spark would take for one."""


def columns_of(schema: str) -> dict[str, str]:
    """Field → type, of DDL text such as `n INT, text STRING`."""
    return dict(part.split() for part in schema.split(",") if part)


def typed(value: bytes, schema: str) -> tuple[dict[str, Any], bool]:
    """The fields of a document, and whether it fits."""
    names = columns_of(schema)
    try:
        found = json.loads(value.decode())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return dict.fromkeys(names), False
    fits = {name: found.get(name) is None or _TYPES[kind](found[name]) for name, kind in names.items()}
    return {name: found.get(name) if fits[name] else None for name in names}, all(fits.values())


def fitting(state: Mapping[Name, Document], schema: str, mode: str) -> dict[Name, Document]:
    """The documents that `current` shows."""
    return {name: one for name, one in state.items() if mode != "DROPMALFORMED" or typed(one.value, schema)[1]}


def check_columns(title: str, rows: Sequence[Mapping[str, Any]], schema: str) -> list[str]:
    """The errors in the typed columns of `current` or `live`, by the values of the same rows."""
    wrong = []
    for row in rows:
        expected, fits = typed(row["value"], schema)
        found = {name: row.get(name, "no column") for name in expected}
        corrupt = row.get(CORRUPT, "no column")
        try:
            text = None if fits else row["value"].decode()
        except UnicodeDecodeError:
            # Its text is not defined by its bytes.
            text = corrupt if corrupt is not None else "a text"
        if found != expected or corrupt != text:
            wrong.append((row["scope"], row["collection"], row["key"], row["value"], found, corrupt))
    return [f"{title}: {len(wrong)} documents have other typed columns: {wrong[:SHOWN]}"] if wrong else []


def check_rejects(rows: Sequence[Mapping[str, Any]], state: Mapping[Name, Document], schema: str) -> list[str]:
    """The errors in the rejects of documents as they are."""
    expected = {name: one.value for name, one in state.items() if not typed(one.value, schema)[1]}
    found = {(row["scope"], row["collection"], row["key"]): row["value"] for row in rows}
    problems = []
    if len(found) != len(rows):
        problems.append(f"rejects: {len(rows) - len(found)} documents are there twice")
    other = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if other:
        shown = "; ".join(
            f"{'.'.join(name)}: found {found.get(name)!r}, expected {expected.get(name)!r}" for name in other[:SHOWN]
        )
        problems.append(f"rejects: {len(other)} documents differ: {shown}")
    if any(not row["reason"] for row in rows):
        problems.append("rejects: a row has no reason")
    return problems
