"""The demo as a user runs it: real processes, real kills, the verdict, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream_demo.run import PLAN
from lab.tools.patience import patient

pytestmark = pytest.mark.spark

TIMEOUT_S = patient(240.0)
VERDICT = re.compile(r"verdict: exact, (\d+) documents, (\d+) changes, (\d+) rollbacks, 0 differences")


class Demo:
    """`dcpstream demo` as a process; its lines as they come."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.lines: list[str] = []
        self._came = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dcpstream.cli", "demo", "--directory", str(directory), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, words: str) -> None:
        with self._came:
            assert self._came.wait_for(
                lambda: any(words in line for line in self.lines) or self.process.poll() is not None, TIMEOUT_S
            )
        assert any(words in line for line in self.lines), "\n".join(self.lines)

    def end(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code

    def descendants(self) -> set[int]:
        """Every process below it, whatever session or group it has made for itself."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry.name)] = int(fields[1])
        found: set[int] = set()
        new = {self.process.pid}
        while new:
            found |= new
            new = {pid for pid, parent in parents.items() if parent in new} - found
        return found - {self.process.pid}

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                with self._came:
                    self.lines.append(line.rstrip("\n"))
                    self._came.notify_all()
        with self._came:
            self._came.notify_all()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    """Demos that are ended with the test, whatever happens in it."""
    running: list[Demo] = []
    yield running
    for demo in running:
        left = demo.descendants()
        if demo.process.poll() is None:
            demo.process.kill()
        for pid in left:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        demo.end()


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """Some hundred flights in the form of the real file, so that the test needs no package."""
    import zipfile

    header = (
        "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
        "origin,dest,air_time,distance,hour,minute,time_hour"
    )
    rows = []
    for number in range(400):
        day, hour, minute = 1 + number % 28, 6 + number % 12, number % 60
        when = f"2013-03-{day:02}T{hour + 5:02}:00:00Z"
        base = f"2013,3,{day}"
        tail = f"{'ABC'[number % 3]}A,{number},N{number},EWR,BOS"
        if number % 17 == 0:
            rows.append(
                f"{base},NA,{hour}{minute:02},NA,NA,{hour + 2}{minute:02},NA,{tail},NA,200,{hour},{minute},{when}"
            )
        else:
            rows.append(
                f"{base},{hour}{minute:02},{hour}{minute:02},0,{hour + 2}{minute:02},{hour + 2}{minute:02},3,{tail},40,"
                f"200,{hour},{minute},{when}"
            )
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_kills_in_the_middle_and_still_exact(demos: list[Demo], tmp_path: Path, flights: Path) -> None:
    directory = tmp_path / "out"
    demo = Demo(directory, "--flights", str(flights), "--flush-interval", "8", "--rate", "0", "--keep")
    demos.append(demo)
    code = demo.end()
    output = "\n".join(demo.lines)
    assert code == 0, output
    verdict = VERDICT.fullmatch(demo.lines[-1])
    assert verdict, output
    documents, changes, rollbacks = map(int, verdict.groups())
    assert documents == 376
    assert changes >= documents
    assert rollbacks > 0
    assert "kill -9 the query" in output
    assert "kill -9 the node" in output
    assert "ROLLBACK of" in output
    picture, report = directory / "demo.png", directory / "report.html"
    assert str(picture) in output
    assert str(report) in output
    assert "<h1>verdict: exact" in report.read_text(encoding="utf-8")
    assert demo.lines[:3] == list(PLAN)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in (directory / "node.log").read_text(encoding="utf-8")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_ctrl_c_leaves_no_process(demos: list[Demo], tmp_path: Path, flights: Path, number: signal.Signals) -> None:
    demo = Demo(tmp_path / "out", "--flights", str(flights), "--no-kills")
    demos.append(demo)
    demo.wait_for("Spark 4")  # the JVM is up, as the node is
    below = demo.descendants()
    assert len(below) >= 3, "node, query and JVM"
    demo.process.send_signal(number)
    assert demo.end() == 130, demo.lines
    assert "interrupted" in demo.lines[-1]
    assert not any("Traceback" in line for line in demo.lines)
    assert [pid for pid in below if is_alive(pid)] == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")
def test_a_demo_that_is_killed_takes_its_node_with_it(demos: list[Demo], tmp_path: Path, flights: Path) -> None:
    directory = tmp_path / "out"
    demo = Demo(directory, "--flights", str(flights), "--no-kills")
    demos.append(demo)
    demo.wait_for("node up in ")
    pid = int(json.loads((directory / "node.ready").read_text(encoding="utf-8"))["pid"])
    node = os.pidfd_open(pid)
    try:
        demo.process.kill()
        demo.end()
        poll = select.poll()
        poll.register(node, select.POLLIN)
        assert poll.poll(20_000), "the node has not ended"
    finally:
        os.close(node)


def test_a_directory_with_other_files_is_refused(tmp_path: Path, flights: Path) -> None:
    demo = Demo(tmp_path, "--flights", str(flights))
    assert demo.end() == 2
    assert "it is emptied" in demo.lines[-1]
    assert flights.exists()
