"""The table of docs/reference/interop.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dcpstream.wire.release import RELEASES
from lab.interop.clients import BUGS, CHECKS, CLIENTS, SINCE, Check
from lab.interop.running import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "interop.md"
BEGIN, END = "<!-- table: make interop -->", "<!-- end of the table -->"
FIRST_CELLS = ("client", "what it did")


def write(rows: Sequence[tuple[Check, Outcome | None, str]]) -> None:
    """Replace the table of the page; the cells of checks that did not run now stay."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows, kept(old))}{END}{after}", encoding="utf-8")


def kept(old: str) -> dict[tuple[str, str, str], str]:
    """The cells of a table: by the client's name and version, what it did, and the release."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in old.splitlines() if "|" in line]
    found: dict[tuple[str, str, str], str] = {}
    for cells in lines[2:]:
        label, what, *results = cells
        found |= {(label, what, release): cell for release, cell in zip(lines[0][2:], results, strict=False)}
    return found


def _label(check: Check) -> str:
    client = CLIENTS[check.client]
    return f"{client.name} {client.version}".rstrip()


def _cell(outcome: Outcome) -> str:
    count = len(outcome.passed) + len(outcome.failed) + len(outcome.bugs)
    text = ", ".join((f"{len(outcome.passed)} of {count}", *sorted(set(outcome.bugs.values()))))
    return text if outcome.is_fine else f"**{text}**"


def table(
    rows: Sequence[tuple[Check, Outcome | None, str]], old: Mapping[tuple[str, str, str], str] | None = None
) -> str:
    """The table in Markdown: the parts that passed, by release.

    Args:
        rows: each check, its outcome, and why it has none.
        old: cells of an earlier table, for what did not run now.
    """
    ran = {(check.name, check.release): _cell(outcome) for check, outcome, _ in rows if outcome is not None}
    lines = ["", f"| {' | '.join((*FIRST_CELLS, *RELEASES))} |", f"|{' --- |' * (len(FIRST_CELLS) + len(RELEASES))}"]
    for check in CHECKS:
        first = _label(check), check.what
        cells = [ran.get((check.name, name)) or (old or {}).get((*first, name), "not run") for name in RELEASES]
        lines.append(f"| {' | '.join((*first, *cells))} |")
    later = ", ".join(f"{name} ({release})" for name, release in SINCE.items())
    bugs = ", ".join(f"{part} ({bug})" for part, bug in BUGS.items())
    lines += ["", f"Parts are counted where the release has what they use. Later ones have: {later}."]
    lines += [f"Parts that fail by a [known bug](server-bugs.md) of the release: {bugs}."]
    return "\n".join(lines) + "\n\n"
