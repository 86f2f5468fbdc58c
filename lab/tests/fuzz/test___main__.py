"""The command line: what is handed on, counted and refused. No search runs here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TextIO

import pytest

from lab.fuzz import __main__ as command
from lab.fuzz import corpus


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "FOLDER", tmp_path / "cache")
    monkeypatch.setattr(corpus, "FOLDER", tmp_path / "corpus")
    monkeypatch.setattr(command, "has_atheris", lambda: True)
    return tmp_path


def test_the_last_line_counts(folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    corpus.save("forms", {b"\x00kept": ""})

    def child(name: str, options: list[str], timeout_s: float) -> str:
        assert options[0] == "-max_total_time=7"
        assert timeout_s > 7
        inputs = {path.read_bytes() for path in (folders / "cache" / name / "corpus").iterdir()}
        assert len(inputs) > 5
        if name == "forms":
            assert b"\x00kept" in inputs
            (folders / "cache" / name / "findings" / "ValueError-1.input").write_bytes(b"x")
        return "#9\tNEW cov: 3\nDone 12 runs in 7 second(s)\nstat::number_of_executed_units: 12\n"

    monkeypatch.setattr(command, "child", child)
    assert command.main(["forms", "values", "--seconds", "7"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "forms: 12 inputs, 1 findings",
        "   cache/forms/findings/ValueError-1",
        "values: 12 inputs, 0 findings",
        "fuzz: 2 targets, 24 inputs, 1 findings",
    ]
    assert command.main(["values", "--seconds", "7"]) == 0


def test_a_search_that_ends_without_a_count_is_no_success(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "child", lambda *_: "ImportError: no module")
    with pytest.raises(SystemExit, match="the search for forms ended without a count"):
        command.main(["forms"])


def test_a_search_that_does_not_end_is_ended_and_counted(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def run(command_line: list[str], *, stdout: TextIO, timeout: float, **_: object) -> None:
        stdout.write("#12\tINITED cov: 3\n#40\tpulse\n")
        raise subprocess.TimeoutExpired(command_line, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert command.main(["forms", "--seconds", "1"]) == 0
    said = capsys.readouterr().out
    assert "forms: ended after 301 s" in said
    assert "fuzz: 1 targets, 40 inputs, 0 findings" in said


def test_to_keep_chooses_few_and_forgets_no_finding(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus.save("forms", {b"\x00old": "", b"\x00found": "it once broke"})

    def child(name: str, options: list[str], _timeout_s: float) -> str:
        if options[0] == "-merge=1":
            (folders / "cache" / name / "merged" / "1").write_bytes(b"\x01chosen")
        return "#1\tDONE"

    monkeypatch.setattr(command, "child", child)
    assert command.main(["forms", "--keep"]) == 0
    assert corpus.load("forms") == {b"\x00found": "it once broke", b"\x01chosen": ""}


def test_one_input_is_shown_without_atheris(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\x00name=b")
    assert command.main(["forms", "--input", str(path)]) == 0
    assert "nothing was raised" in capsys.readouterr().out


def test_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        command.main(["nothing"])
    assert "no target is named nothing" in capsys.readouterr().err
    monkeypatch.setattr(command, "has_atheris", lambda: False)
    with pytest.raises(SystemExit):
        command.main(["forms"])
    assert "atheris is missing; `make fuzz` installs it" in capsys.readouterr().err
