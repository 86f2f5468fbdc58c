"""The command that plays seeds."""

from __future__ import annotations

import pytest

from lab.simulation.__main__ import main
from lab.simulation.scenario import Scenario


def test_the_last_line_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--counts"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "sim: 2 seeds, 0 failures"
    assert any(line.endswith(" exchanges") for line in out)


def test_a_failure_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: Scenario, number: int) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(Scenario, "_operate", fail)
    assert main(["--seeds", "9", "--first", "4", "--stop"]) == 1
    out = capsys.readouterr().out
    assert "seed 4 failed: ValueError: broken" in out
    assert "replay: python -m lab.simulation --seed 4\n" in out
    assert out.endswith("sim: 1 seeds, 1 failures\n")


def test_a_trace_names_what_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "2", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "the reader of default begins" in out
    assert "DCP_STREAM_REQ vb 0 at 0" in out


def test_seeds_are_the_same_in_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.endswith("sim: 2 seeds, 0 failures\n")
