"""Kafka Connect with Couchbase's source connector, and `dcpstream offsets`: each goes on where the other ended.

A broker and a stand-alone worker of Kafka Connect run in a directory of their own. The source connector copies the
bucket into a topic with one partition, and a file sink of Kafka writes that topic into a file, from which this program
reads what came. Each document is written once, so each of its seqnos comes once or is missing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import run

from dcpstream.client import KvClient

Place = tuple[int, int]
"""A vbucket and a seqno."""

COLLECTIONS = ("_default._default", "shop.orders", "shop.returns")
PATIENCE_S = 120
POLL_S = 0.1
TOPIC = "changes"
PARENT_DIES = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def with_parent() -> None:
    """Let a child end with this program, also when that is killed."""
    ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGKILL)


def until(what: str, holds: Callable[[], Any]) -> Any:
    """Wait for a condition; returns its first true value."""
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end, f"{what}: not in time"
        time.sleep(POLL_S)
    return found


class Worker:
    """A broker and Kafka Connect."""

    def __init__(self, java: list[str], plugins: Path, directory: Path) -> None:
        self._java, self._directory = java, directory
        self._programs: list[subprocess.Popen[bytes]] = []
        self.copied = directory / "copied"
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            for listener in (one, two, three):
                listener.bind(("127.0.0.1", 0))
            broker, controller, rest = (listener.getsockname()[1] for listener in (one, two, three))
        self._rest = f"http://127.0.0.1:{rest}/connectors"
        self._properties(
            "broker",
            {
                "process.roles": "broker,controller",
                "node.id": 1,
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": directory / "data",
                "offsets.topic.num.partitions": 1,
                "offsets.topic.replication.factor": 1,
                "group.initial.rebalance.delay.ms": 0,
            },
        )
        self._properties(
            "worker",
            {
                "bootstrap.servers": f"127.0.0.1:{broker}",
                "key.converter": "org.apache.kafka.connect.storage.StringConverter",
                "value.converter": "org.apache.kafka.connect.storage.StringConverter",
                "offset.storage.file.filename": directory / "offsets",
                "offset.flush.interval.ms": 500,
                "plugin.path": plugins,
                "plugin.discovery": "service_load",
                "listeners": f"http://127.0.0.1:{rest}",
            },
        )

    def _properties(self, name: str, settings: dict[str, object]) -> None:
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._directory / f"{name}.properties").write_text(text, encoding="utf-8")

    def _run(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*self._java, main, *arguments],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=with_parent,  # noqa: PLW1509 (this program has one thread)
            )

    def start(self) -> None:
        """Start both, and the file sink."""
        settings = str(self._directory / "broker.properties")
        formatted = self._run(
            "format", "kafka.tools.StorageTool", "format", "-t", "interop-cluster-of-16", "-c", settings
        )
        assert formatted.wait(PATIENCE_S) == 0, self._end_of("format")
        self._programs.append(self._run("broker", "kafka.Kafka", settings))
        until("the broker", lambda: self._says("broker", b"Kafka Server started"))
        worker = str(self._directory / "worker.properties")
        self._programs.append(self._run("worker", "org.apache.kafka.connect.cli.ConnectStandalone", worker))
        until("Kafka Connect", lambda: self._says("worker", b"Kafka Connect started"))
        self.ask(
            "POST",
            "",
            {
                "name": "file",
                "config": {
                    "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
                    "tasks.max": "1",
                    "topics": TOPIC,
                    "file": str(self.copied),
                    "consumer.override.metadata.max.age.ms": "500",
                },
            },
        )

    def _says(self, name: str, words: bytes) -> bool:
        assert all(program.poll() is None for program in self._programs), self._end_of(name)
        return words in (self._directory / f"{name}.log").read_bytes()

    def _end_of(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-400:]

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """A call of Kafka Connect's REST interface; a refusal raises its text."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self._rest + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error
        return json.loads(text) if text else None

    def stop_connector(self, name: str) -> dict[str, Any]:
        """Stop a connector; returns its positions. It saves the last ones before its task is gone."""
        self.ask("PUT", f"/{name}/stop")
        until(f"the end of {name}", lambda: self._is_stopped(name))
        found: dict[str, Any] = self.ask("GET", f"/{name}/offsets")
        return found

    def _is_stopped(self, name: str) -> bool:
        status = self.ask("GET", f"/{name}/status")
        return bool(status["connector"]["state"] == "STOPPED" and not status["tasks"])

    def resume(self, name: str, positions: object) -> None:
        """Start a connector that is stopped, at positions."""
        self.ask("PATCH", f"/{name}/offsets", positions)
        self.ask("PUT", f"/{name}/resume")

    def failure(self) -> str:
        """Why a task failed; empty if none did."""
        for name in self.ask("GET", ""):
            for task in self.ask("GET", f"/{name}/status")["tasks"]:
                if task["state"] == "FAILED":
                    return str(task["trace"])[:300]
        return ""

    def close(self) -> None:
        """End both."""
        for program in self._programs:
            program.kill()
            program.wait()


class Judge:
    """Writes documents, and knows which of their seqnos whom brought."""

    def __init__(self, options: argparse.Namespace, worker: Worker, directory: Path) -> None:
        self._options, self._worker, self._directory = options, worker, directory
        self._kv = {
            name: KvClient(options.connect, options.user, options.password, options.bucket, collection=name)
            for name in COLLECTIONS
        }
        self._count = 0
        self._seen = 0
        self._written: set[Place] = set()
        self._pending: set[Place] = set()
        self.first = directory / "first.offsets"

    def parts(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("the connector copies the bucket", self.copies),
            ("our client goes on where the connector ended", self.ours),
            ("the connector goes on where our client ended, within a snapshot", self.theirs),
            ("positions without bounds, and without a branch, as early releases save them", self.early),
            ("a connector that had its name in its positions begins at ours without it", self.named),
        ]

    # --------------------------------------------------------------------------------------------------------- writing

    def write(self, count: int) -> set[Place]:
        """Write documents that were not there; returns where they are."""
        places = set()
        for _ in range(count):
            self._count += 1
            written = self._kv[COLLECTIONS[self._count % 3]].set(f"doc::{self._count}", f'{{"n": {self._count}}}')
            places.add((written.vbid, written.seqno))
        self._written |= places
        return places

    # --------------------------------------------------------------------------------------------------- the connector

    def create(self, name: str, **more: str) -> dict[str, str]:
        """Start a connector; returns its configuration."""
        options = self._options
        config = {
            "connector.class": "com.couchbase.connect.kafka.CouchbaseSourceConnector",
            "tasks.max": "2",
            "couchbase.topic": TOPIC,
            "couchbase.seed.nodes": options.connect.partition("://")[2],
            "couchbase.bootstrap.timeout": f"{PATIENCE_S:.0f}s",
            "couchbase.bucket": options.bucket,
            "couchbase.username": options.user,
            "couchbase.password": options.password,
            "couchbase.source.handler": "com.couchbase.connect.kafka.handler.source.RawJsonWithMetadataSourceHandler",
            "couchbase.stream.from": "SAVED_OFFSET_OR_BEGINNING",
            "couchbase.persistence.polling.interval": "100ms",
            "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        }
        self._worker.ask("POST", "", {"name": name, "config": config | more})
        return config

    def arrived(self, expected: set[Place]) -> None:
        """Wait until the connector has copied all that is expected, and demand that nothing else came.

        Documents that are written last come last in their vbucket, so what came twice came before them.
        """
        expected = expected | self._last_of_each()
        lines: list[str] = []

        def came() -> bool:
            lines[:] = self._copied()[self._seen :]
            found = {_place(line) for line in lines}
            assert not (failure := self._worker.failure()), failure
            return expected <= found

        until(f"the copies of {len(expected)} changes", came)
        same_places(_places(lines), expected)
        self._seen += len(lines)

    def _last_of_each(self) -> set[Place]:
        places: set[Place] = set()
        while len({vbid for vbid, _ in places}) < self._options.vbuckets:
            places |= self.write(1)
        return places

    def _copied(self) -> list[str]:
        if not self._worker.copied.exists():
            return []
        return self._worker.copied.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()

    # ------------------------------------------------------------------------------------------------------ our client

    def command(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dcpstream.cli", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def at(self) -> list[str]:
        options = self._options
        return [
            "-c",
            options.connect,
            "--user",
            options.user,
            "--password",
            options.password,
            "--bucket",
            options.bucket,
        ]

    def take(self, positions: object, file: Path) -> None:
        """Turn positions of Kafka Connect into a file of ours."""
        theirs = self._directory / "theirs.json"
        theirs.write_text(json.dumps(positions), encoding="utf-8")
        self.command("offsets", "import", str(theirs), str(file), "--format", "kafka-connect", *self.at())

    def stream(self, file: Path, *more: str) -> set[Place]:
        lines = self.command("stream", "--offsets", str(file), *self.at(), *more).splitlines()
        rows = [json.loads(line) for line in lines]
        return _unique((row["vbucket"], int(row["seqno"])) for row in rows if row["op"] == "mutation")

    # ----------------------------------------------------------------------------------------------------------- parts

    def copies(self) -> None:
        written = self.write(400)
        self.create("source")
        self.arrived(written)

    def ours(self) -> None:
        positions = self._worker.stop_connector("source")
        same(len(positions["offsets"]), self._options.vbuckets)
        self._pending = self.write(100)
        self.take(positions, self.first)
        found = self.stream(self.first, "--limit", "60")
        same(len(found), 60)
        assert found < self._pending, f"what the connector had came again: {found - self._pending}"
        self._pending -= found

    def theirs(self) -> None:
        positions = json.loads(self.command("offsets", "export", str(self.first), "--format", "kafka-connect"))
        offsets = [row["offset"] for row in positions["offsets"]]
        assert any(offset["bySeqno"] < offset["snapshotEndSeqno"] for offset in offsets), offsets
        self._worker.resume("source", positions)
        self.arrived(self._pending)

    def early(self) -> None:
        positions = self._worker.stop_connector("source")
        expected = self.write(50)
        for names in (("bySeqno", "vbuuid"), ("bySeqno",)):
            rows = [{**row, "offset": {name: row["offset"][name] for name in names}} for row in positions["offsets"]]
            file = self._directory / f"early-{len(names)}.offsets"
            self.take({"offsets": rows}, file)
            same_places(self.stream(file), expected)

    def named(self) -> None:
        """Kafka Connect orders the members of such a key otherwise than the connector, and does not find it."""
        config = self.create("named", **{"couchbase.connector.name.in.offsets": "true"})
        self.arrived(set(self._written))
        positions = self._worker.stop_connector("named")
        same({row["partition"]["connector"] for row in positions["offsets"]}, {"named"})
        same({str(row["offset"]) for row in positions["offsets"]}, {"None"})
        expected, file = self.write(50), self._directory / "early-1.offsets"
        assert expected <= self.stream(file)
        self._worker.ask("PUT", "/named/config", config | {"couchbase.connector.name.in.offsets": "false"})
        positions = json.loads(self.command("offsets", "export", str(file), "--format", "kafka-connect"))
        self._worker.resume("named", positions)
        self.arrived(self.write(30))

    def close(self) -> None:
        for client in self._kv.values():
            client.close()


def _place(line: str) -> Place:
    row = json.loads(line)
    return row["partition"], row["bySeqno"]


def _places(lines: Iterable[str]) -> set[Place]:
    return _unique(map(_place, lines))


def _unique(places: Iterable[Place]) -> set[Place]:
    """A set of places, none of which may come twice."""
    found: set[Place] = set()
    for place in places:
        assert place not in found, f"vbucket {place[0]}: seqno {place[1]} came twice"
        found.add(place)
    return found


def same(found: object, expected: object) -> None:
    assert found == expected, f"expected {str(expected)[:200]}, found {str(found)[:200]}"


def same_places(found: set[Place], expected: set[Place]) -> None:
    """Demand that all that is expected came, and nothing else."""
    missing, too_much = sorted(expected - found), sorted(found - expected)
    assert not missing, f"{len(missing)} changes are missing, as {missing[:3]}"
    assert not too_much, f"{len(too_much)} changes too much came, as {too_much[:3]}"


def settings() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    for name in ("java", "archives", "plugins", "connect", "user", "password"):
        parser.add_argument(f"-{name}", required=True)
    parser.add_argument("-bucket", default="default")
    parser.add_argument("-vbuckets", type=int, required=True)
    return parser.parse_args()


def main() -> int:
    """Run the parts."""
    options = settings()
    with TemporaryDirectory(prefix="dcpstream-kafka-") as name:
        # Small heaps and no optimising compiler, because the programs run for a minute.
        java = [options.java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{options.archives}/*"]
        worker = Worker(java, Path(options.plugins), Path(name))
        try:
            worker.start()
            judge = Judge(options, worker, Path(name))
            try:
                return run(judge.parts())
            finally:
                judge.close()
        except Exception as error:
            print(f"FAIL to begin: {type(error).__name__}: {' '.join(str(error).split())[:500]}", flush=True)
            return 1
        finally:
            worker.close()


if __name__ == "__main__":
    sys.exit(main())
