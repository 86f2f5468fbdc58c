"""Our node compared with other nodes for tests, with the same official SDK: CPU time of the node, and its memory.

python -m lab.bench.peer_nodes [--rounds N] [--page FILE.md]

Each node is a process of its own with 1,024 vbuckets in memory, and has a process of the Python SDK that writes to it
and reads from it. The first round is not counted, because a Java machine compiles in it. The others alternate between
the nodes. CPU time is that of the node's process, user and system; the time by the clock includes the SDK.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from lab.bench.common import cpu_seconds_of, resident_bytes
from lab.bench.load import PASSWORD, VBUCKETS, Victim
from lab.bench.peers import written
from lab.bench.run import machine, versions
from lab.interop import building
from lab.layout import ROOT

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "explanation" / "peers.md"
RESULTS = HERE / "peer_nodes.json"
FIRST, LAST = "<!-- nodes: make bench-peers -->", "<!-- end of the nodes -->"
MOCK = "1.5.25"
"""The newest CouchbaseMock on Maven Central."""
FETCH_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
START_TIMEOUT_S = 60.0
POLL_S = 0.02
WORK: Sequence[tuple[str, int, int]] = (
    ("upsert", 2_000, 1),
    ("get", 2_000, 1),
    ("upsert", 20_000, 200),
    ("get", 20_000, 200),
)
"""Operation, how many in a round, how many on their way together."""


class Ours:
    """Our node."""

    name, user, password = "dcpstream", "Administrator", PASSWORD

    def __init__(self, folder: Path) -> None:
        self.version = versions()["dcpstream"]
        began = time.perf_counter()
        self._victim = Victim(folder)
        self.started_s = time.perf_counter() - began
        self.pid, self.port = self._victim.child.pid, self._victim.port

    def stop(self) -> None:
        """End it."""
        self._victim.stop()


class CouchbaseMock:
    """The mock of Couchbase's older Java and C clients.

    Raises:
        Missing: the machine lacks Java, Maven or the archive.
    """

    name, version, user, password = "CouchbaseMock", MOCK, "default", "password"

    def __init__(self, folder: Path) -> None:
        archive = fetched()
        rest = free_port()
        options = ("--nodes", "1", "--replicas", "0", "--vbuckets", str(VBUCKETS), "--cccp", "--port", str(rest))
        command = [building.tool("java"), "-Xmx512m", "-jar", str(archive), *options, "--buckets", "default::couchbase"]
        began = time.perf_counter()
        with (folder / "mock.log").open("w") as log:
            self._child = subprocess.Popen(command, stdout=log, stderr=log)
        self.pid = self._child.pid
        try:
            self.port = self._kv_port(rest, began + START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        self.started_s = time.perf_counter() - began

    def _kv_port(self, rest: int, until: float) -> int:
        """The port that the bucket's configuration names, as soon as the node shows it."""
        request = urllib.request.Request(f"http://127.0.0.1:{rest}/pools/default/buckets/default")
        request.add_header("Authorization", "Basic " + b64encode(b"Administrator:password").decode())
        while True:
            try:
                with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as answer:
                    return int(json.load(answer)["nodesExt"][0]["services"]["kv"])
            except (urllib.error.URLError, ConnectionError) as error:
                if time.perf_counter() > until or self._child.poll() is not None:
                    raise RuntimeError(f"CouchbaseMock does not start: {error}") from error
                time.sleep(POLL_S)

    def stop(self) -> None:
        """End it."""
        self._child.terminate()
        self._child.wait(START_TIMEOUT_S)


def fetched() -> Path:
    """The archive of CouchbaseMock.

    Raises:
        Missing: no Java, no Maven, or the archive cannot be had.
    """
    folder = ROOT / ".cache" / "peers"
    archive = folder / f"CouchbaseMock-{MOCK}.jar"
    building.tool("java")
    if not archive.exists():
        artefact = f"-Dartifact=com.couchbase.mock:CouchbaseMock:{MOCK}"
        command = [building.tool("mvn"), "-q", "-B", FETCH_GOAL, artefact, f"-DoutputDirectory={folder}"]
        if subprocess.run(command, check=False, timeout=building.FETCH_TIMEOUT_S).returncode or not archive.exists():
            raise building.Missing("its archive cannot be had")
    return archive


def free_port() -> int:
    """A port that nobody listens on at present."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Sdk:
    """A process of the official Python SDK that is connected to a node."""

    def __init__(self, node: Any) -> None:
        building.python_sdk(print)
        where = f"couchbase://127.0.0.1:{node.port}"
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "drains" / "sdk_load.py"), where, node.user, node.password],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError("the SDK's process ended")
        return line

    def order(self, name: str, count: int, window: int) -> float:
        """Have something done; the seconds that it took."""
        assert self._child.stdin is not None
        print(name, count, window, file=self._child.stdin, flush=True)
        return float(self._answer())

    def stop(self) -> None:
        """End it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(START_TIMEOUT_S)


@dataclass(slots=True)
class Cost:
    """Microseconds for an operation, of each round: CPU time of the node, and by the clock."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


def measured(pairs: Sequence[tuple[Any, Sdk]], rounds: int) -> dict[str, dict[str, Cost]]:
    """Node → operation → its cost; one round more is not counted."""
    found = {node.name: {f"{name} {window}": Cost() for name, _, window in WORK} for node, _ in pairs}
    for turn in range(rounds + 1):
        for node, sdk in pairs:
            for name, count, window in WORK:
                before = cpu_seconds_of(node.pid)
                wall = sdk.order(name, count, window)
                cpu = cpu_seconds_of(node.pid) - before
                if turn:
                    cost = found[node.name][f"{name} {window}"]
                    cost.cpu.append(cpu / count * 1e6)
                    cost.wall.append(wall / count * 1e6)
    return found


def table(nodes: Sequence[Any], found: dict[str, dict[str, Cost]], left_out: Sequence[str]) -> list[str]:
    """The figures as Markdown."""
    titles = [f"{name}, {window} at a time" for name, _, window in WORK]
    lines = [
        "| node | version | start, s | memory, MB | " + " | ".join(f"{title}, µs" for title in titles) + " |",
        "| --- | --- | --- | --- |" + " --- |" * len(WORK),
    ]
    for node in nodes:
        cells = [
            f"{statistics.median(cost.cpu):.1f} ({statistics.median(cost.wall):.0f})"
            for cost in found[node.name].values()
        ]
        start = f"| {node.name} | {node.version} | {node.started_s:.1f} | {resident_bytes(node.pid) / 1e6:.0f} | "
        lines.append(start + " | ".join(cells) + " |")
    return [*lines, *[line for why in left_out for line in ("", f"Left out: {why}.")]]


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, show_default="docs/explanation/peers.md")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default="lab/bench/peer_nodes.json")
def main(rounds: int, page: Path, output: Path) -> None:
    """Measure our node and others for tests, and write the table into the documentation."""
    left_out: list[str] = []
    load_at_start = os.getloadavg()[0]
    with ExitStack() as stack:
        pairs = []
        for family in (Ours, CouchbaseMock):
            try:
                node = family(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            except building.Missing as why:
                left_out.append(f"{family.name} ({why})")
                continue
            stack.callback(node.stop)
            sdk = Sdk(node)
            stack.callback(sdk.stop)
            pairs.append((node, sdk))
        found = measured(pairs, rounds)
        nodes = [node for node, _ in pairs]
        facts = machine()
        conditions = (
            f"Python SDK {building.python_sdk_version()}, documents of 256 bytes of JSON, {VBUCKETS:,} vbuckets in "
            f"memory, medians of {rounds} alternating rounds. {facts['cpu']}, {facts['cores']} cores; load average "
            f"{load_at_start:.1f} at the start and {os.getloadavg()[0]:.1f} at the end."
        )
        lines = [conditions, "", *table(nodes, found, left_out)]
    costs = {
        name: {what: {"cpu_us": cost.cpu, "wall_us": cost.wall} for what, cost in of_node.items()}
        for name, of_node in found.items()
    }
    output.write_text(json.dumps({"conditions": conditions, "nodes": costs}, indent=2) + "\n", encoding="utf-8")
    page.write_text(written(page.read_text(encoding="utf-8"), lines, FIRST, LAST), encoding="utf-8")
    click.echo("\n".join(lines))


if __name__ == "__main__":
    main()
