"""`make interop`: every client against a fresh node or cluster, as a table.

The last line is `interop: <n> of <m> clients ok`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from dcpstream.wire.release import DEFAULT_RELEASE, RELEASES
from lab.interop import page
from lab.interop.building import BuildError, Missing
from lab.interop.clients import CHECKS, CLIENTS, Check, judge, prepare
from lab.interop.running import Outcome
from lab.layout import PACKAGES

MAX_SHOWN = 200
"""Limit of printed characters of a reason: the error text of a library can be a page long."""


@dataclass(frozen=True, slots=True)
class Row:
    """A check and its outcome; None if its client could not be run."""

    check: Check
    outcome: Outcome | None
    why: str = ""

    @property
    def result(self) -> str:
        """In a word or two."""
        if self.outcome is None:
            return "skipped"
        if not self.outcome.is_fine:
            return "FAILED"
        notes = [f"{len(self.outcome.later)} later"] * bool(self.outcome.later)
        return ", ".join(("ok", *notes, *sorted(set(self.outcome.bugs.values()))))


def main() -> int:
    """Run the checks of the command line; the exit code is 1 if a client failed, or was skipped with --strict."""
    parser = argparse.ArgumentParser(prog="interop", description=__doc__)
    parser.add_argument("names", nargs="*", help="clients or checks; all by default")
    parser.add_argument("--page", action="store_true", help="write the rows into docs/reference/interop.md")
    parser.add_argument("--strict", action="store_true", help="a client that was skipped is one that failed")
    parser.add_argument(
        "--release", default=DEFAULT_RELEASE.name, help="of the nodes: one or several, 7.2,8.0; all: each there is"
    )
    parser.add_argument("--list", action="store_true", help="print the checks and do nothing")
    options = parser.parse_args()
    known = set(CLIENTS) | {check.name for check in CHECKS}
    if not set(options.names) <= known:
        parser.error(f"{', '.join(sorted(set(options.names) - known))}: there is {', '.join(sorted(known))}")
    releases = list(RELEASES) if options.release == "all" else options.release.split(",")
    if not set(releases) <= set(RELEASES):
        parser.error(f"no release {options.release}: there is {', '.join(RELEASES)}")
    checks = [
        replace(check, release=release)
        for release in releases
        for check in CHECKS
        if not options.names or {check.client, check.name} & set(options.names)
    ]
    if options.list:
        print(*(f"{check.name}\t{check.release}\t{check.what}" for check in checks), sep="\n")
        return 0
    # The warnings of the nodes (logins with a wrong password) are intended.
    for name in PACKAGES.values():
        logging.getLogger(name).addHandler(logging.NullHandler())
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    rows = run_all(checks, console)
    show(rows, console)
    if options.page:
        page.write([(row.check, row.outcome, row.why) for row in rows])
    return summary(rows, is_strict=options.strict)


def run_all(checks: list[Check], console: Console) -> list[Row]:
    """Prepare each client once, and run its checks."""
    begins: dict[str, list[str]] = {}
    reasons: dict[str, tuple[str, bool]] = {}
    for name in dict.fromkeys(check.client for check in checks):
        started = time.monotonic()
        try:
            begins[name] = prepare(name, lambda text: console.print(f"[dim]{text} …[/]"))
        except Missing as error:
            reasons[name] = str(error), False
        except BuildError as error:
            reasons[name] = str(error), True
        if time.monotonic() - started > 1:
            console.print(f"[dim]{CLIENTS[name].name} prepared in {time.monotonic() - started:.0f} s[/]")
    rows = []
    for check in checks:
        if check.client in reasons:
            why, is_ours = reasons[check.client]
            rows.append(Row(check, Outcome(trouble=why) if is_ours else None, why))
        else:
            with console.status(f"{CLIENTS[check.client].name}, {check.release}: {check.what}"):
                try:
                    rows.append(Row(check, judge(check, begins[check.client])))
                except Missing as error:
                    rows.append(Row(check, None, str(error)))
    return rows


def show(rows: list[Row], console: Console) -> None:
    """The table, and below it the failures."""
    table = Table(title="clients that are not ours", title_justify="left", show_lines=False)
    for heading in ("client", "what it did", "release", "parts", "s", "result"):
        table.add_column(heading, justify="right" if heading in ("parts", "s") else "left", overflow="fold")
    for row in rows:
        client = CLIENTS[row.check.client]
        colour = {"ok": "green", "skipped": "yellow", "FAILED": "red"}[row.result.partition(",")[0]]
        done = row.outcome
        counts = f"{len(done.passed)}/{len(done.passed) + len(done.failed) + len(done.bugs)}" if done else ""
        seconds = f"{done.seconds:.1f}" if done else ""
        label = f"{client.name} {client.version}".rstrip()
        table.add_row(label, row.check.what, row.check.release, counts, seconds, f"[{colour}]{row.result}[/]")
    console.print(table)
    for row in rows:
        if row.outcome is not None:
            name = f"FAILED {row.check.name}, {row.check.release}"
            reasons = [f", {part}: {why[:MAX_SHOWN]}" for part, why in row.outcome.failed.items()]
            reasons += [f": {row.outcome.trouble}"] if row.outcome.trouble else []
            for reason in reasons:
                console.print(name + reason, markup=False, style="red")


def summary(rows: list[Row], *, is_strict: bool) -> int:
    """Print the skipped clients, and last the line with the counts that other programs read."""
    clients = list(dict.fromkeys(row.check.client for row in rows))
    skipped = {row.check.client: row.why for row in rows if row.outcome is None}
    ok = {row.check.client for row in rows if row.outcome is not None} - set(skipped)
    failed = {row.check.client for row in rows if row.outcome is not None and not row.outcome.is_fine}
    for name, why in skipped.items():
        print(f"skipped {CLIENTS[name].name}: {why}")
    print(f"skipped in all: {len(skipped)}")
    print(f"interop: {len(ok - failed)} of {len(clients)} clients ok", flush=True)
    return 1 if failed or (is_strict and skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
