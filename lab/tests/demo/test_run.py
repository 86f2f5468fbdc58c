from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from rich.console import Console

from dcpstream.errors import ConfigError
from dcpstream_demo.display import Display
from dcpstream_demo.run import NODE_KILLS_MAX, WAITING_SAID_S, Stalled, Wait, kill_points
from dcpstream_demo.settings import STALL_TIMEOUT_S, Settings


@pytest.mark.parametrize("total", [30, 300, 1_001_615])
def test_kill_points_rise_and_leave_changes_for_the_end(total: int) -> None:
    for seed in range(50):
        points = kill_points(total, random.Random(seed))
        assert points == sorted(set(points))
        assert 2 <= len(points) <= 1 + NODE_KILLS_MAX
        assert 0 < points[0] < points[-1] < total


def test_same_seed_same_kills() -> None:
    assert kill_points(1000, random.Random(1)) == kill_points(1000, random.Random(1))
    assert kill_points(1000, random.Random(1)) != kill_points(1000, random.Random(2))


def test_directory_of_an_earlier_run_is_emptied_and_another_one_is_not(tmp_path: Path) -> None:
    settings = Settings(directory=tmp_path / "out")
    settings.prepare()
    (settings.directory / "tables").mkdir()
    settings.log("node").write_text("old", encoding="utf-8")
    settings.prepare()
    assert not settings.tables.exists()
    assert not settings.log("node").exists()
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigError, match="--directory"):
        Settings(directory=other).prepare()
    assert (other / "thesis.txt").exists()


def test_tables_and_picture_stay_after_a_good_run(tmp_path: Path) -> None:
    settings = Settings(directory=tmp_path / "out")
    settings.prepare()
    for path in (settings.tables, settings.node_data):
        path.mkdir(parents=True)
    settings.picture.write_bytes(b"png")
    settings.report.write_text("page", encoding="utf-8")
    settings.clean_up()
    assert settings.tables.is_dir()
    assert settings.picture.exists()
    assert settings.report.exists()
    assert not settings.node_data.exists()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_bars_are_lines_now_and_then() -> None:
    output, clock = io.StringIO(), Clock()
    display = Display(Console(file=output, width=80), clock)
    with display.bars():
        for step in range(100):
            clock.now = step / 10
            display.bar("written", step, 99)
    display.say("a line with [brackets] that is longer than the console is wide " + "x" * 60)
    lines = output.getvalue().splitlines()
    assert [line.split()[-2] for line in lines[:-1]] == ["0", "51", "100"]
    assert "[brackets]" in lines[-1]


def test_on_a_terminal_bars_are_drawn() -> None:
    output = io.StringIO()
    display = Display(Console(file=output, width=120, force_terminal=True))
    with display.bars():
        display.bar("written", 5, 10, "half")
        display.say("a line in between")
    assert "written" in output.getvalue()
    assert "half" in output.getvalue()
    assert "a line in between" in output.getvalue()


def test_a_wait_reports_itself_and_gives_up_only_if_nothing_moves() -> None:
    wait = Wait("the query", 0.0)
    assert wait.look("a", 0.0) == ""
    assert wait.look("a", WAITING_SAID_S - 1) == ""
    assert wait.look("a", WAITING_SAID_S) == "still waiting for the query: nothing has moved for 30 s"
    assert wait.look("a", WAITING_SAID_S + 1) == ""
    assert wait.look("a", 2 * WAITING_SAID_S) == "still waiting for the query: nothing has moved for 60 s"
    assert wait.look("b", STALL_TIMEOUT_S) == "", "something moved"
    wait.look("b", 2 * STALL_TIMEOUT_S)
    with pytest.raises(Stalled, match="waited 600 s for the query"):
        wait.look("b", 2 * STALL_TIMEOUT_S + 1)
