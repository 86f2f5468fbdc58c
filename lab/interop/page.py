"""The table of docs/reference/interop.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.interop.clients import CHECKS, CLIENTS, Check
from lab.interop.running import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "interop.md"
BEGIN, END = "<!-- table: make interop -->", "<!-- end of the table -->"
COLUMNS = 4


def write(rows: Sequence[tuple[Check, Outcome | None, str]]) -> None:
    """Replace the table of the page; the rows of checks that did not run now stay."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows, _kept(old))}{END}{after}", encoding="utf-8")


def _kept(old: str) -> dict[tuple[str, str], str]:
    """The rows of a table, by the client's name and version and by what it did."""
    cells = {line: [cell.strip() for cell in line.strip("|").split("|")] for line in old.splitlines()}
    return {(found[0], found[1]): line for line, found in cells.items() if len(found) == COLUMNS}


def _label(check: Check) -> str:
    client = CLIENTS[check.client]
    return f"{client.name} {client.version}".rstrip()


def table(rows: Sequence[tuple[Check, Outcome | None, str]], kept: Mapping[tuple[str, str], str] | None = None) -> str:
    """The table in Markdown, and below it the known gaps.

    Args:
        kept: lines of an earlier table for the checks that did not run now, as they are.
    """
    lines = ["", "| client | what it did | parts | result |", "| --- | --- | --- | --- |"]
    ran = {check.name: (check, outcome, why) for check, outcome, why in rows}
    for each in CHECKS:
        if each.name not in ran:
            lines += [line] if (line := (kept or {}).get((_label(each), each.what))) else []
            continue
        check, outcome, why = ran[each.name]
        if outcome is None:
            parts, result = "", f"skipped: {why}"
        else:
            tried = len(outcome.passed) + len(outcome.failed) + len(outcome.gaps)
            parts = f"{len(outcome.passed)} of {tried}"
            result = "ok" if outcome.is_fine and not outcome.gaps else "known gaps" if outcome.is_fine else "failed"
        lines.append(f"| {_label(check)} | {check.what} | {parts} | {result} |")
    gaps = [
        f"| {check.name} | {part} | {check.known[part]} |"
        for check, outcome, _ in rows
        for part in (outcome.gaps if outcome else ())
    ]
    if gaps:
        lines += ["", "Known gaps:", "", "| check | part | why |", "| --- | --- | --- |", *gaps]
    return "\n".join(lines) + "\n\n"
