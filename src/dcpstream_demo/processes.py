"""Child processes that never outlive the demo.

Each child leads a session of its own: Ctrl-C in the terminal reaches only the demo, and all that a child starts (a JVM,
Python workers, which make process groups of their own) can be found and ended by that session. A child also reads its
standard input, which nobody writes to: when the demo is gone, however it went, the child meets its end and stops.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from dcpstream.errors import DcpstreamError

STOP_TIMEOUT_S = 20.0
"""A child that was asked to stop is killed after so long: a Spark query ends its batch first."""

KILL_TIMEOUT_S = 10.0
"""How long the system may take to end killed processes."""

LOG_TAIL_LINES = 15
"""Lines of a child's log that are shown when it failed."""


class ChildFailed(DcpstreamError):
    """A child process ended, or does not start; the message carries the end of its log."""


class Child:
    """A child process with its own session and a log file.

    Args:
        name: for messages.
        command: what to run.
        log: where its standard error goes (appended), and its standard output unless `on_line` takes it.
        on_line: called in a thread of ours with each line of its standard output.
        first_input: written to its standard input, which stays open: what `ps` must not show.
        environment: added to ours.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        on_line: Callable[[str], None] | None = None,
        first_input: bytes = b"",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own commands
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if on_line else output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        if first_input:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(first_input)
                self._process.stdin.flush()
        self._is_over = False  # then its number may belong to another process
        self._reader: threading.Thread | None = None
        if on_line is not None:
            self._reader = threading.Thread(
                target=self._read_lines, args=(on_line,), name=f"{name} output", daemon=True
            )
            self._reader.start()

    @property
    def pid(self) -> int:
        """Process id, also that of its session."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """As in subprocess: negative for a signal, None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill -9 to it and all it started; returns when they are gone. A second time does nothing."""
        if not self._is_over:
            end_session(self.pid)
            self._finish()
            self._is_over = True

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Ask it to stop (SIGTERM), kill what is left; returns its exit code."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()
        code = self._process.returncode
        assert code is not None
        return code

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; None if it has not come."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def failure(self, what: str) -> ChildFailed:
        """An exception with the end of the log."""
        code = self.exit_code
        state = "is still running" if code is None else f"ended with exit status {code}"
        return ChildFailed(f"{self.name} {what}: it {state}. The end of its log, {self.log}:\n{tail(self.log)}")

    def _read_lines(self, on_line: Callable[[str], None]) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                on_line(line.decode("utf-8", errors="replace").rstrip("\n"))

    def _finish(self) -> None:
        self._process.wait(KILL_TIMEOUT_S)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._reader is not None:
            self._reader.join(KILL_TIMEOUT_S)


class Children:
    """All children of the demo; at its end, none is left."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def add(self, child: Child) -> Child:
        """Remember a child."""
        self._children.append(child)
        return child

    def __enter__(self) -> Children:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kill what is left; a second Ctrl-C does not get in between."""
        previous = None
        if threading.current_thread() is threading.main_thread():
            previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for child in self._children:
                child.kill()
        finally:
            if previous is not None:
                signal.signal(signal.SIGINT, previous)


def end_session(session: int) -> None:
    """Kill -9 to every process of a session, until there is none left.

    Raises:
        ChildFailed: the system does not end them.
    """
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while members := session_members(session):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ChildFailed(f"processes {members} do not end, although they were killed")
        time.sleep(0.01)


def session_members(session: int) -> list[int]:
    """Processes of a session that still run (zombies do not). Without /proc: the leader and its group."""
    proc = Path("/proc")
    if not (proc / "self" / "stat").exists():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
        return []
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError):
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in {"Z", "X"}:
                found.append(int(entry.name))
    return found


def tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(empty)"
