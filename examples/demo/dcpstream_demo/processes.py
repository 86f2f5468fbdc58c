"""Child processes that never outlive the demo; among them the node and the query.

Each child leads a session of its own. Ctrl-C in the terminal therefore reaches only the demo, and everything that a
child starts (a JVM, Python workers, which make process groups of their own) can be found by that session and killed.
A child also reads its standard input, to which nothing more is written: when the demo ends for any reason, the child
reads the end of its input and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dcpstream.errors import DcpstreamError
from dcpstream_demo.bucket import Access
from dcpstream_demo.settings import BUCKET, STALL_TIMEOUT_S, USERNAME, Settings

STOP_TIMEOUT_S = 20.0
"""Time that a child has to stop before it is killed: a Spark query ends its batch first."""

KILL_TIMEOUT_S = 10.0
"""Time that the system has to end killed processes."""

LOG_TAIL_LINES = 15
"""Lines of a child's log that are shown when it failed."""


class ChildFailed(DcpstreamError):
    """A child process ended or did not start; the message carries the end of its log."""


class Child:
    """A child process with its own session and a log file.

    Args:
        name: for messages.
        command: what to run.
        log: where its standard error goes (appended), and its standard output unless `on_line` takes it.
        on_line: called in a thread of ours with each line of its standard output.
        first_input: written to its standard input, which stays open; for secrets, which `ps` must not show.
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
            self._process = subprocess.Popen(
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
        self._is_over = False  # once it is over, its pid may belong to another process
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
        """Kill it and all that it started (SIGKILL), and wait for their end. A second call does nothing."""
        if not self._is_over:
            end_session(self.pid)
            self._finish()
            self._is_over = True

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Ask it to stop (SIGTERM), kill what is left, and return its exit code."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()
        code = self._process.returncode
        assert code is not None
        return code

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; None if it still runs after `timeout_s`."""
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
    """All children of the demo; a context manager that leaves none behind."""

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
        """Kill the children that still run; Ctrl-C is ignored meanwhile."""
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
    """Kill every process of a session (SIGKILL), until none is left.

    Raises:
        ChildFailed: some still run after KILL_TIMEOUT_S.
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


QUERY_STARTS_MAX = 4
"""Limit of starts of the query: the first, and those after kills. More starts mean that it fails by itself."""

MAX_EVENTS = 10_000
"""Limit of unread events of the query, which writes a few per second."""

TRIGGER = "1 second"
MAX_OFFSETS_PER_TRIGGER = 200_000


class NodeProcess:
    """The node, on disk, always on the same ports."""

    def __init__(self, settings: Settings, children: Children, password: str) -> None:
        self._settings = settings
        self._children = children
        self._password = password
        self._child: Child | None = None
        self._ports = (0, 0)

    @property
    def access(self) -> Access:
        """Its address and login."""
        return Access(f"couchbase://127.0.0.1:{self._ports[0]}", USERNAME, self._password, BUCKET)

    def start(self) -> float:
        """Start it, wait until it serves, and return the seconds that took."""
        settings = self._settings
        settings.ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "dcpstream_demo.guarded", "node"]
        command += ["--host", "127.0.0.1", "--port", str(self._ports[0]), "--mgmt-port", str(self._ports[1])]
        command += ["--vbuckets", str(settings.vbuckets), "--bucket", BUCKET, "--user", USERNAME]
        command += ["--data", str(settings.node_data), "--ready-file", str(settings.ready_file)]
        command += ["--flush-interval", str(settings.flush_interval_s)]
        began = time.monotonic()
        environment = {"DCPSTREAM_PASSWORD": self._password}
        child = self._children.add(Child("the node", command, settings.log("node"), environment=environment))
        self._child = child
        while not settings.ready_file.exists():
            if child.wait(0.02) is not None:
                raise child.failure("did not start")
            if time.monotonic() - began > STALL_TIMEOUT_S:
                raise child.failure(f"was not ready within {STALL_TIMEOUT_S:.0f} s")
        ready = json.loads(settings.ready_file.read_text(encoding="utf-8"))
        self._ports = (ready["kv"], ready["mgmt"])
        return time.monotonic() - began

    def kill(self) -> None:
        """Kill -9."""
        assert self._child is not None
        self._child.kill()

    def check(self) -> None:
        """Raise ChildFailed if it has ended by itself."""
        if self._child is not None and not self._child.is_running:
            raise self._child.failure("has gone")


class QueryProcess:
    """The streaming query and its Spark. `events` returns its messages."""

    def __init__(self, settings: Settings, children: Children, access: Access) -> None:
        self._settings = settings
        self._children = children
        self._access = access
        self._child: Child | None = None
        self._starts = 0
        self._events: queue.Queue[dict[str, Any]] = queue.Queue(MAX_EVENTS)
        self.is_started = threading.Event()

    @property
    def is_running(self) -> bool:
        """Whether the process runs; its query may not have started yet."""
        return self._child is not None and self._child.is_running

    def start(self) -> None:
        """Start the process; the query runs some seconds later.

        Raises:
            ChildFailed: it was started too often.
        """
        if self._starts >= QUERY_STARTS_MAX:
            assert self._child is not None
            raise self._child.failure(f"was started {self._starts} times and does not stay")
        self._starts += 1
        self.is_started.clear()
        access, settings = self._access, self._settings
        message = {
            "path": str(settings.tables),
            "trigger": TRIGGER,
            "master": None,
            "temp": str(settings.spark_temp),
            "options": {
                "connectionString": access.connection_string,
                "username": access.username,
                "password": access.password,
                "bucket": access.bucket,
                "maxOffsetsPerTrigger": str(MAX_OFFSETS_PER_TRIGGER),
            },
        }
        self._child = self._children.add(
            Child(
                "the query",
                [sys.executable, "-m", "dcpstream_demo.query"],
                settings.log("query"),
                on_line=self._take,
                first_input=json.dumps(message).encode() + b"\n",
            )
        )

    def events(self) -> list[dict[str, Any]]:
        """Its messages since the last call."""
        found = []
        while True:
            try:
                found.append(self._events.get_nowait())
            except queue.Empty:
                return found

    def kill(self) -> None:
        """Kill -9, with the JVM and the Python workers."""
        assert self._child is not None
        self._child.kill()

    def stop(self) -> None:
        """Wait until it has finished its batch and ended.

        Raises:
            ChildFailed: it ended with an error.
        """
        assert self._child is not None
        if self._child.stop(timeout_s=STALL_TIMEOUT_S) != 0:
            raise self._child.failure("did not stop cleanly")

    def failure(self, what: str) -> ChildFailed:
        """An exception with the end of its log."""
        assert self._child is not None
        return self._child.failure(what)

    def _take(self, line: str) -> None:
        # Java libraries write to standard output as well.
        if not line.startswith('{"event"'):
            return
        event = json.loads(line)
        if event["event"] == "started":
            self.is_started.set()
        self._events.put(event, timeout=10.0)
