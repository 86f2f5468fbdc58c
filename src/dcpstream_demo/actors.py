"""The node and the query of the demo: how they are started, killed and started again."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from typing import Any

from dcpstream_demo.bucket import Access
from dcpstream_demo.processes import Child, ChildFailed, Children
from dcpstream_demo.settings import BUCKET, USERNAME, Settings

NODE_START_TIMEOUT_S = 60.0
"""Start-up of a Python process and of a store with a million changes, on a busy machine."""

QUERY_STARTS_MAX = 4
"""Processes of the query, the first and those after kills; one that ends so often by itself is broken."""

MAX_EVENTS = 10_000
"""Unread messages of the query's process; it writes a few a second."""

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
        """How to reach it."""
        return Access(f"couchbase://127.0.0.1:{self._ports[0]}", USERNAME, self._password, BUCKET)

    def start(self) -> float:
        """Start it, wait until it serves; returns how long that took, in seconds."""
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
            if time.monotonic() - began > NODE_START_TIMEOUT_S:
                raise child.failure(f"was not ready within {NODE_START_TIMEOUT_S:.0f} s")
        ready = json.loads(settings.ready_file.read_text(encoding="utf-8"))
        self._ports = (ready["kv"], ready["mgmt"])
        return time.monotonic() - began

    def kill(self) -> None:
        """Kill -9."""
        assert self._child is not None
        self._child.kill()

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self._child is not None and not self._child.is_running:
            raise self._child.failure("has gone")


class QueryProcess:
    """The streaming query, with its Spark. Its messages are taken with `events`."""

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
        """Whether the process runs; the query in it may be starting."""
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
        """What it has told since the last call."""
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
        """Let it finish its batch and end.

        Raises:
            ChildFailed: it ended with an error.
        """
        assert self._child is not None
        if self._child.stop(timeout_s=60.0) != 0:
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
