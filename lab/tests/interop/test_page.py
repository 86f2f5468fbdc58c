"""The table, its last lines, and what is remembered of clients that cannot be run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from lab.interop import __main__ as program
from lab.interop import clients, page
from lab.interop.building import BuildError, Missing
from lab.interop.clients import CHECKS, Check, Client
from lab.interop.running import Outcome, judged

OK = Outcome(passed=["a", "b"], seconds=1.0)
FAILED = Outcome(passed=["a"], failed={"b": "why"})
TWO = [next(check for check in CHECKS if check.client == name) for name in ("gocbcore", "java")]


def rows(*outcomes: Outcome | None) -> list[program.Row]:
    return [
        program.Row(check, outcome, "" if outcome else "no tools") for check, outcome in zip(TWO, outcomes, strict=True)
    ]


@pytest.mark.parametrize(
    ("outcomes", "is_strict", "code", "last"),
    [
        ((OK, OK), False, 0, "interop: 2 of 2 clients ok"),
        ((OK, None), False, 0, "interop: 1 of 2 clients ok"),
        ((OK, None), True, 1, "interop: 1 of 2 clients ok"),
        ((OK, FAILED), False, 1, "interop: 1 of 2 clients ok"),
        ((None, None), False, 0, "interop: 0 of 2 clients ok"),
    ],
)
def test_the_last_line_counts_clients(outcomes, is_strict, code, last, capsys) -> None:
    assert program.summary(rows(*outcomes), is_strict=is_strict) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == last
    assert lines[-2] == f"skipped in all: {outcomes.count(None)}"
    assert sum(line.endswith(": no tools") for line in lines) == outcomes.count(None)


def test_what_failed_is_shown_with_its_reason() -> None:
    console = Console(width=160, record=True, quiet=False, file=None)
    with console.capture() as shown:
        program.show(rows(FAILED, None), console)
    text = shown.get()
    assert "FAILED" in text
    assert "b: why" in text
    assert "skipped" in text
    assert "| **1 of 2** |" in page.table([(TWO[0], FAILED, ""), (TWO[1], None, "no tools")])


def test_a_client_is_prepared_once_also_when_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def missing(_: object) -> list[str]:
        asked.append("missing")
        raise Missing("no network")

    def broken(_: object) -> list[str]:
        asked.append("broken")
        raise BuildError("line 1")

    monkeypatch.setattr(clients, "_PREPARED", {})
    monkeypatch.setattr(clients, "CLIENTS", {"m": Client("m", "1", missing), "b": Client("b", "1", broken)})
    for _ in range(2):
        with pytest.raises(Missing, match="no network"):
            clients.prepare("m", print)
        with pytest.raises(BuildError, match="line 1"):
            clients.prepare("b", print)
    assert asked == ["missing", "broken"]


def test_a_build_error_is_a_failure_and_what_is_missing_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> list[str]:
        raise BuildError("line 1")

    monkeypatch.setattr(clients, "_PREPARED", {})
    monkeypatch.setitem(clients.CLIENTS, "gocbcore", Client("gocbcore", "1", broken))
    (row,) = program.run_all([Check("gocbcore", "x", "y", ())], Console(quiet=True))
    assert row.result == "FAILED"


def test_a_page_keeps_the_cells_of_checks_that_did_not_run(tmp_path, monkeypatch) -> None:
    path = tmp_path / "interop.md"
    path.write_text(f"before\n{page.BEGIN}\n{page.END}\nafter\n")
    monkeypatch.setattr(page, "PAGE", path)
    older = replace(TWO[0], release="7.2")
    page.write([(older, OK, ""), (TWO[0], FAILED, ""), (TWO[1], OK, "")])
    all_cells = path.read_text()
    assert "| 2 of 2 | not run | **1 of 2** | not run |" in all_cells
    page.write([(TWO[0], OK, "")])
    assert path.read_text() == all_cells.replace("**1 of 2**", "2 of 2")
    assert path.read_text().startswith("before\n")
    assert path.read_text().endswith("after\n")


def sorted_out(lines: list[str], release: str) -> Outcome:
    outcome = judged(lines, 0)
    replace(TWO[0], release=release).sort_out(outcome)
    return outcome


def test_a_part_of_a_later_release_must_fail() -> None:
    refused = sorted_out(["ok get", "FAIL range scan: no such feature", "OK"], "7.2")
    assert (refused.is_fine, refused.passed, refused.later) == (True, ["get"], ["range scan"])
    given = sorted_out(["ok get", "ok range scan", "OK"], "7.2")
    assert not given.is_fine
    assert "later release" in given.failed["range scan"]
    assert sorted_out(["ok range scan", "OK"], "8.0").is_fine
    assert not sorted_out(["ok get", "FAIL range scan: no such feature", "OK"], "8.0").is_fine


def test_a_part_may_fail_by_a_known_bug_of_its_release() -> None:
    lines = ["ok get", "FAIL keys without values: 3500 keys", "OK"]
    known = sorted_out(lines, "7.6")
    assert (known.is_fine, known.bugs) == (True, {"keys without values": "MB-23898-keys-only"})
    assert not sorted_out(lines, "7.2").is_fine
