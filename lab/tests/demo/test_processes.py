from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from dcpstream_demo.processes import Child, ChildFailed, Children, session_members, tail

SPAWNS = """
import os, subprocess, sys, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, sys; os.setpgid(0, 0); print(os.getpid(), flush=True); sys.stdin.read()"
helper = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print("helper", helper.stdout.readline().decode().strip(), flush=True)
signal.pause()
"""
POLITE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
signal.pause()
"""


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._came = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._came:
            self.lines.append(line)
            self._came.notify_all()

    def first(self) -> str:
        with self._came:
            assert self._came.wait_for(lambda: self.lines, 30.0)
            return self.lines[0]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")


@needs_proc
def test_kill_reaches_what_the_child_started_even_in_another_process_group(tmp_path: Path) -> None:
    lines = Lines()
    with Children() as children:
        child = children.add(Child("spawner", [sys.executable, "-c", SPAWNS], tmp_path / "log", on_line=lines))
        helper = int(lines.first().split()[1])
        assert is_alive(helper)
        assert sorted(session_members(child.pid)) == sorted([child.pid, helper])
        child.kill()
        assert not is_alive(helper)
        assert child.exit_code == -9


@needs_proc
def test_no_child_is_left_when_the_block_is_left_by_an_exception(tmp_path: Path) -> None:
    lines = Lines()
    pids = []

    def fail() -> None:
        with Children() as children:
            child = children.add(Child("spawner", [sys.executable, "-c", SPAWNS], tmp_path / "log", on_line=lines))
            pids.extend([child.pid, int(lines.first().split()[1])])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not any(is_alive(pid) for pid in pids)


def test_stop_is_polite_first(tmp_path: Path) -> None:
    lines = Lines()
    with Children() as children:
        child = children.add(Child("polite", [sys.executable, "-c", POLITE], tmp_path / "log", on_line=lines))
        lines.first()
        assert child.is_running
        assert child.stop() == 7
        assert not child.is_running


def test_child_sees_its_standard_input_end_when_we_are_gone(tmp_path: Path) -> None:
    with Children() as children:
        code = "import sys; sys.stdin.read(); sys.exit(3)"
        child = children.add(Child("reader", [sys.executable, "-c", code], tmp_path / "log"))
        assert child._process.stdin is not None
        child._process.stdin.close()
        assert child.wait(30.0) == 3


def test_failure_shows_the_end_of_the_log(tmp_path: Path) -> None:
    with Children() as children:
        code = "import sys; print('line', file=sys.stderr); sys.exit('the port is taken')"
        child = children.add(Child("node", [sys.executable, "-c", code], tmp_path / "log"))
        child.wait(30.0)
        error = child.failure("did not start")
    assert isinstance(error, ChildFailed)
    assert "exit status 1" in str(error)
    assert "the port is taken" in str(error)


def test_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert "no log" in tail(log)
    log.write_text("\n".join(str(number) for number in range(50)), encoding="utf-8")
    assert tail(log, 2) == "48\n49"
    assert os.linesep not in tail(log, 1)
