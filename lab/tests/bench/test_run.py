from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.bench import run
from lab.bench.common import Figure, report
from lab.bench.goals import GOALS
from tests.kit.waiting import wait_until

DECODE = report(
    [Figure(name="decode.256", value=1.5, unit="GB/s", baseline="memcpy", baseline_value=10.0, repeats=7)],
    {"decode.256.of_memcpy": 0.65, "decode.1024.of_memcpy": 0.1},
)


def test_names_that_nobody_measured_are_missing_with_a_reason() -> None:
    results = run.assemble({"decode": DECODE, "store": {"error": "it broke"}}, quick=False, seconds=1.0)
    assert results["ratios"] == {"decode.256.of_memcpy": 0.65, "decode.1024.of_memcpy": 0.1}
    assert results["missing"]["decode.64.of_memcpy"] == "lab/bench/decode.py does not measure it"
    assert results["missing"]["reopen_1m_cpu_s"] == "it broke"
    assert not any(name.startswith("spark_read") for name in results["missing"]), "a part that was not asked for"


def test_table_shows_figures_goals_and_what_is_short() -> None:
    text = run.table(run.assemble({"decode": DECODE, "store": {"error": "it broke"}}, quick=True, seconds=1.0))
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "memcpy: 10" in lines["decode.256"]
    assert "reached" in lines["decode.256.of_memcpy"]
    assert "short" in lines["decode.1024.of_memcpy"]
    assert "missing" in lines["reopen_1m_cpu_s"]
    assert "not for quoting" in text


def test_part_that_does_not_exist_says_so() -> None:
    assert run.run_part("no_such_part", quick=True) == {"error": "lab/bench/no_such_part.py does not exist"}


def test_part_that_raises_is_an_error_of_that_part(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def run(quick: bool) -> dict[str, object]:
            raise ValueError(f"quick={quick}")

    monkeypatch.setattr("importlib.import_module", lambda name: Broken)
    assert run.run_part("decode", quick=True) == {"error": "ValueError: quick=True"}


def test_command_writes_results_and_prints_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "run_part_in_child", lambda name, quick: DECODE)
    output = tmp_path / "results.json"
    outcome = CliRunner().invoke(run.main, ["--only", "decode", "--quick", "--output", str(output)])
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(output.read_text(encoding="utf-8"))
    assert document["quick"] is True
    assert document["machine"]["cores"] >= 1
    assert document["versions"]["python"]
    assert "decode.256.of_memcpy" in outcome.output


def test_parts_run_again_next_to_busy_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    programs: list[int] = []
    rounds: list[tuple[str, bool, int]] = []

    @contextmanager
    def busy(count: int) -> Iterator[None]:
        programs.extend([count] * count)
        yield
        programs.clear()

    def part(name: str, quick: bool) -> dict[str, object]:
        rounds.append((name, quick, len(programs)))
        assert output.exists() == bool(programs), "the quiet results are written before the busy half begins"
        return report([], {"decode.256.of_memcpy": 0.3 if programs else 0.7})

    monkeypatch.setattr(run, "busy_programs", busy)
    monkeypatch.setattr(run, "run_part_in_child", part)
    outcome = CliRunner().invoke(run.main, ["--only", "decode", "--under-load", "3", "--output", str(output)])
    assert outcome.exit_code == 0, outcome.output
    assert rounds == [("decode", False, 0), ("decode", True, 3)]
    document = json.loads(output.read_text(encoding="utf-8"))
    assert document["ratios"]["decode.256.of_memcpy"] == 0.7
    assert document["under_load"]["programs"] == 3
    assert document["under_load"]["ratios"] == {"decode.256.of_memcpy": 0.3}
    line = next(line for line in outcome.output.splitlines() if line.startswith("decode.256.of_memcpy"))
    assert line.split()[1:3] == ["0.7", "0.3"]


def test_busy_programs_end_with_the_measurement() -> None:
    before = children_of(os.getpid())
    with run.busy_programs(2):
        started = children_of(os.getpid()) - before
    assert len(started) == 2
    assert not started & children_of(os.getpid())


def test_busy_programs_end_with_a_killed_runner() -> None:
    code = "import sys; from lab.bench import run\nwith run.busy_programs(1): print(flush=True); sys.stdin.read()"
    runner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert runner.stdout is not None
    runner.stdout.readline()
    (program,) = children_of(runner.pid)
    stat = Path(f"/proc/{program}/stat")
    runner.kill()
    runner.communicate()
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def children_of(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.add(int(entry.name))
    return found


def test_goal_names_are_unique_and_limits_go_the_right_way() -> None:
    assert len({goal.name for goal in GOALS}) == len(GOALS)
    named = {goal.name: goal for goal in GOALS}
    assert named["node_start_s"].is_reached(0.3)
    assert not named["decode.256.of_memcpy"].is_reached(0.1)
    assert named["decode.64.of_memcpy"].is_reached(0.1) is None
