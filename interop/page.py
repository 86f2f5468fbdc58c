"""The table of docs/reference/interop.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from interop.clients import CLIENTS, Check
from interop.running import Outcome

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "interop.md"
BEGIN, END = "<!-- table: make interop -->", "<!-- end of the table -->"


def write(rows: Sequence[tuple[Check, Outcome | None, str]]) -> None:
    """Replace the table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}{END}{after}", encoding="utf-8")


def table(rows: Sequence[tuple[Check, Outcome | None, str]]) -> str:
    """The table in Markdown, and below it the known gaps."""
    lines = ["", "| client | what it did | parts | result |", "| --- | --- | --- | --- |"]
    for check, outcome, why in rows:
        client = CLIENTS[check.client]
        if outcome is None:
            parts, result = "", f"skipped: {why}"
        else:
            tried = len(outcome.passed) + len(outcome.failed) + len(outcome.gaps)
            parts = f"{len(outcome.passed)} of {tried}"
            result = "ok" if outcome.is_fine and not outcome.gaps else "known gaps" if outcome.is_fine else "failed"
        label = f"{client.name} {client.version}".rstrip()
        lines.append(f"| {label} | {check.what} | {parts} | {result} |")
    gaps = [
        f"| {check.name} | {part} | {check.known[part]} |"
        for check, outcome, _ in rows
        for part in (outcome.gaps if outcome else ())
    ]
    if gaps:
        lines += ["", "Known gaps:", "", "| check | part | why |", "| --- | --- | --- |", *gaps]
    return "\n".join(lines) + "\n\n"
