"""Rebalance a cluster and fail its nodes over, again and again, while clients write durably and follow its changes.

    python lab/tools/cluster_loop.py [--runs 60] [--seed N] [--no-tables]

Each node is a process with its data on disk. A round gives the cluster trouble of one kind: a node is killed (SIGKILL)
or hangs (SIGSTOP), or is killed in the middle of a rebalance, and is failed over; a node is failed over gracefully; it
comes back by delta or full recovery, or is replaced; nodes come and go; a node is killed and restarted.

Meanwhile one thread writes durably (level majority), one plainly, and a client follows the changes: it is cut from time
to time, and resumes from its last position. At the end of every round

- each durable document has the value of its last acknowledged write, or of a later one;
- each vbucket's replica has everything that its active copy has;
- what the client holds equals the bucket, key by key.

Unless `--no-tables` is given, a pipeline on Spark follows the bucket, too, in a process of its own. It is stopped and
started again after some rounds, with the nodes that there are then. At the end, when it has everything, the checker of
the chaos suite, which shares no code with the product, looks at its tables: `current` equals the bucket; `changes` has
each row once, in order, and replayed it gives the bucket.

The last line: `cluster loop: <n> rebalances, <m> failovers, <k> losses`.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dcpstream import Client, StreamOptions  # noqa: E402
from dcpstream.client import RollbackEvent  # noqa: E402
from dcpstream.errors import DcpstreamError  # noqa: E402
from dcpstream.model import AutoFailover, StreamOffset, vbucket_of_key  # noqa: E402
from dcpstream.wire import Frame, FrameReader, Opcode, Status, encode_request  # noqa: E402
from dcpstream_node import Cluster  # noqa: E402
from dcpstream_node.cluster import ClusterNode  # noqa: E402
from lab.chaos.checker import check_changes, compare, documents_of, state_of  # noqa: E402
from lab.chaos.history import History  # noqa: E402
from lab.chaos.host import Order, RemoteHost  # noqa: E402
from lab.chaos.kv import Document  # noqa: E402
from lab.chaos.tables import documents, read_delta, rows_of_changes  # noqa: E402
from lab.tools.patience import patient  # noqa: E402

logger = logging.getLogger(__name__)

VBUCKETS = 16
KEYS = 400
"""Documents of each writer: each is written again and again."""
NODES_MIN, NODES_MAX = 3, 5
ATTEMPTS = 10
"""Attempts at a rebalance: one that a hung or killed node ended is begun again when that is failed over."""
REPLY_TIMEOUT_S = patient(5.0)
"""After that, a writer asks again; a durable write may have been carried out all the same."""
TIMEOUT_S = patient(120.0)
RETRY_PAUSE_S = 0.02
RENEWED_AFTER = 3
"""Rounds that a run of the pipeline lasts: its first batch takes some seconds, and nodes that it knows leave."""
TABLES_PAUSE_S = 0.2
"""Pause between two looks whether the last run of the pipeline is over."""
MAJORITY = b"\x11\x01"
"""The framing extra of a durable write."""


class Loss(AssertionError):
    """Data is missing or wrong."""


class Connections:
    """One connection to each node, for a writer: requests go where the map says that the vbucket is active."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[int, tuple[socket.socket, FrameReader]] = {}

    def call(self, opcode: int, key: bytes, value: bytes = b"", framing: bytes = b"") -> int | None:
        """The status of the answer; None if there is none in time, or no node to ask."""
        vbid = vbucket_of_key(key, VBUCKETS)
        name = self._cluster.chains()[vbid][0]
        node = next((each for each in list(self._cluster.nodes) if each.name == name), None)
        if node is None:
            return None
        port = node.port
        try:
            extras = bytes(8) if opcode == Opcode.SET else b""
            request = encode_request(
                opcode, vbid=vbid, key=b"\0" + key, value=value, extras=extras, framing=framing, opaque=1
            )
            return self._answer(port, request).status
        except (OSError, EOFError):
            with suppress(KeyError):
                self._open.pop(port)[0].close()
            return None

    def _answer(self, port: int, request: bytes) -> Frame:
        if port not in self._open:
            end = socket.create_connection(("127.0.0.1", port), REPLY_TIMEOUT_S)
            self._open[port] = end, FrameReader()
            features = b"\x00\x12\x00\x07\x00\x08\x00\x11\x00\x10"
            for step in (
                encode_request(Opcode.HELLO, value=features),
                encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0password"),
                encode_request(Opcode.SELECT_BUCKET, key=b"default"),
            ):
                self._read(port, step)
        return self._read(port, request)

    def _read(self, port: int, request: bytes) -> Frame:
        end, reader = self._open[port]
        end.sendall(request)
        while True:
            for frame in reader.frames():
                return frame
            data = end.recv(65536)
            if not data:
                raise EOFError
            reader.receive_data(data)

    def close(self) -> None:
        """Close them all."""
        for end, _ in self._open.values():
            end.close()


@dataclass
class Load:
    """The writers.

    Attributes:
        acknowledged: durable key → the number in its last acknowledged write.
        writes: number of acknowledged writes, durable and plain.
        errors: of a writer that ended.
    """

    cluster: Cluster
    seed: int
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=lambda: {"durable": 0, "plain": 0})
    errors: list[BaseException] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _may_write: threading.Event = field(default_factory=threading.Event)
    _idle: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin to write."""
        self._may_write.set()
        for what in (self._write_durably, self._write_plainly):
            thread = threading.Thread(target=self._guard, args=(what,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def pause(self) -> None:
        """Returns when no write is under way."""
        self._may_write.clear()
        for _ in self._threads:
            if not self._idle.acquire(timeout=TIMEOUT_S):
                raise self.errors[0] if self.errors else Loss("a writer hangs")

    def resume(self) -> None:
        """Write on."""
        self._may_write.set()

    def stop(self) -> None:
        """End."""
        self._is_over.set()
        self._may_write.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _guard(self, what: Callable[[Connections, random.Random], None]) -> None:
        connections, chance = Connections(self.cluster), random.Random(self.seed)
        try:
            while not self._is_over.is_set():
                if not self._may_write.is_set():
                    self._idle.release()
                    self._may_write.wait()
                    continue
                what(connections, chance)
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            connections.close()

    def _write_durably(self, connections: Connections, chance: random.Random) -> None:
        key, number = b"durable %d" % chance.randrange(KEYS), next(self._numbers)
        status = connections.call(Opcode.SET, key, b"%d" % number, MAJORITY)
        if status == Status.SUCCESS:
            self.acknowledged[key] = number
            self.writes["durable"] += 1
        else:
            time.sleep(RETRY_PAUSE_S)

    def _write_plainly(self, connections: Connections, chance: random.Random) -> None:
        key = b"plain %d" % chance.randrange(KEYS)
        if chance.random() < 0.1:
            status = connections.call(Opcode.DELETE, key)
        else:
            status = connections.call(Opcode.SET, key, b"%d" % self.writes["plain"])
        if status == Status.SUCCESS:
            self.writes["plain"] += 1
        elif status != Status.KEY_ENOENT:
            time.sleep(RETRY_PAUSE_S)


class Follower:
    """A client that follows the changes and resumes by the rule; it keeps every version that it got."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._versions: dict[bytes, list[tuple[int, int, bytes | None]]] = {}
        self._positions: dict[int, StreamOffset] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._cut = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rollbacks = self.cuts = 0
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._is_over.set()

    def cut(self) -> None:
        """Have it read on by a new client, from its last position."""
        self._cut.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with Client(
                    self._cluster.connection_string, username="Administrator", password="password", bucket="default"
                ) as client:
                    self._cut.clear()
                    for change in client.changes(
                        StreamOptions(start=dict(self._positions), on_rollback=self._take_back)
                    ):
                        if change.op in ("mutation", "deletion", "expiration"):
                            value = change.value if change.op == "mutation" else None
                            with self._lock:
                                self._versions.setdefault(change.key, []).append((change.vbid, change.seqno, value))
                        self._positions[change.vbid] = change.offset
                        if self._cut.is_set() or self._is_over.is_set():
                            break
            except (DcpstreamError, OSError) as error:  # a node is down: a new client asks the others
                logger.info("the client begins again: %s", error)
                time.sleep(RETRY_PAUSE_S)
            except BaseException as error:
                self.error = error
                raise
            self.cuts += 1

    def _take_back(self, event: RollbackEvent) -> None:
        with self._lock:
            self.rollbacks += 1
            self._positions[event.vbid] = event.resumed_at
            for key, versions in list(self._versions.items()):
                kept = [each for each in versions if each[0] != event.vbid or each[1] <= event.to_seqno]
                self._versions[key] = kept

    def documents(self) -> dict[bytes, bytes]:
        """The documents that the reader holds."""
        with self._lock:
            newest = {key: versions[-1][2] for key, versions in self._versions.items() if versions}
        return {key: value for key, value in newest.items() if value is not None}


@dataclass
class Loop:
    """The rounds."""

    cluster: Cluster
    load: Load
    follower: Follower
    chance: random.Random
    rebalances: int = 0
    failovers: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def round(self, number: int) -> None:
        """Trouble of one kind, then the checks."""
        others = (self.comes_and_goes, self.restarted)
        kinds: list[Callable[[], None]] = [
            self.killed,
            self.killed_in_a_rebalance,
            self.graceful,
            self.killed,
            self.hung,
            self.killed_in_a_rebalance,
            others[number // 7 % 2],
        ]
        kind = kinds[number % len(kinds)]
        self.kinds[kind.__name__] = self.kinds.get(kind.__name__, 0) + 1
        if self.chance.random() < 0.5:
            self.follower.cut()
        kind()
        self.check()

    # -------------------------------------------------------------------------------------------------------- trouble

    def victim(self) -> ClusterNode:
        """A node by chance."""
        return self.chance.choice(self.cluster.nodes)

    def rebalance(self, remove: tuple[ClusterNode, ...] = ()) -> None:
        """A rebalance that goes through."""
        for attempt in range(ATTEMPTS):
            try:
                self.cluster.rebalance([node for node in remove if node in self.cluster.nodes], TIMEOUT_S)
            except (DcpstreamError, TimeoutError) as error:
                logger.warning("attempt %d at a rebalance: %s", attempt + 1, error)
                time.sleep(RETRY_PAUSE_S)
            else:
                self.rebalances += 1
                return
        raise Loss(f"no rebalance in {ATTEMPTS} attempts")

    def fail_over(self, node: ClusterNode) -> None:
        """A hard failover: every vbucket has a replica, because the round before ended with a rebalance."""
        report = self.cluster.fail_over(node)
        self.failovers += 1
        if any(report.lost.values()):
            raise Loss(f"vbuckets without a copy after the failover of {node}: {report.lost}")

    def come_back(self, node: ClusterNode) -> None:
        """Add a failed node back, or replace it; then a rebalance."""
        way = self.chance.choice(["delta", "full", "another"])
        if way == "another":
            self.cluster.add_node()
        else:
            if not node.is_running:
                self.cluster.restart_node(node)
            self.cluster.add_back(node, way)
        self.rebalance()

    def killed(self) -> None:
        """SIGKILL, failover."""
        node = self.victim()
        node.crash()
        self.fail_over(node)
        self.come_back(node)

    def hung(self) -> None:
        """SIGSTOP, failover, and the node goes on."""
        node = self.victim()
        node.pause()
        self.fail_over(node)
        node.resume()
        self.come_back(node)

    def killed_in_a_rebalance(self) -> None:
        """SIGKILL and failover while vbuckets move."""
        remove: tuple[ClusterNode, ...] = ()
        if len(self.cluster.nodes) < NODES_MAX:
            self.cluster.add_node()
        else:
            remove = (self.cluster.nodes[0],)
        node = self.chance.choice([each for each in self.cluster.nodes[:NODES_MIN] if each not in remove])
        running = self.cluster.begin_rebalance(remove)
        goal = self.chance.random() * 0.8
        while not running.is_done and running.progress < goal:
            time.sleep(0.001)
        node.crash()
        self.fail_over(node)
        with suppress(DcpstreamError, TimeoutError):
            running.wait(TIMEOUT_S)
        self.rebalance()

    def graceful(self) -> None:
        """A graceful failover."""
        node = self.victim()
        self.cluster.fail_over_gracefully(node, timeout_s=TIMEOUT_S)
        self.failovers += 1
        self.come_back(node)

    def comes_and_goes(self) -> None:
        """A node is added, and one is removed."""
        if len(self.cluster.nodes) < NODES_MAX:
            self.cluster.add_node()
            self.rebalance()
        if len(self.cluster.nodes) > NODES_MIN:
            self.rebalance((self.victim(),))

    def restarted(self) -> None:
        """SIGKILL, and the node is started again before anybody fails it over."""
        node = self.victim()
        node.crash()
        report = self.cluster.restart_node(node)
        if any(report.lost.values()):
            raise Loss(f"vbuckets without a copy after the restart of {node}: {report.lost}")
        self.rebalance()

    # --------------------------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        """Compare acknowledged writes, copies, client and bucket while nobody writes."""
        self.load.pause()
        try:
            self.cluster.wait_until_drained(timeout_s=TIMEOUT_S)
            held = dict(self.bucket())
            for key, number in self.load.acknowledged.items():
                if key not in held or int(held[key]) < number:
                    raise Loss(f"{key!r} has {held.get(key)!r}, and write {number} was acknowledged")
            end = time.monotonic() + TIMEOUT_S
            while (found := self.follower.documents()) != held:
                if self.follower.error is not None:
                    raise self.follower.error
                if time.monotonic() > end:
                    differing = sorted(key for key in found.keys() | held.keys() if found.get(key) != held.get(key))
                    raise Loss(f"the client differs from the bucket in {len(differing)} keys: {differing[:5]}")
                time.sleep(RETRY_PAUSE_S)
        finally:
            self.load.resume()

    def bucket(self) -> Iterator[tuple[bytes, bytes]]:
        """Every document, as a new client reads it from the beginning."""
        found: dict[bytes, bytes] = {}
        with Client(
            self.cluster.connection_string, username="Administrator", password="password", bucket="default"
        ) as client:
            for change in client.changes(StreamOptions(end="latest", on_rollback="rewind")):
                if change.op == "mutation":
                    found[change.key] = change.value or b""
                elif change.op in ("deletion", "expiration"):
                    found.pop(change.key, None)
        yield from found.items()


class Tables:
    """A pipeline on Spark that follows the bucket.

    Args:
        folder: for its checkpoint, its tables and its log.

    Attributes:
        failures: runs that an error ended: Spark gives up when a node is gone for long. The next one goes on.
        summary: what the check looked at.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._path = folder / "tables"
        self._host = RemoteHost(
            folder / "spark.log", environment={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        )
        self.failures = 0
        self.summary = ""

    def _start(self, until: str) -> None:
        options = {
            "connectionString": self._cluster.connection_string,
            "username": "Administrator",
            "password": "password",
            "bucket": "default",
            "startingOffsets": "earliest",
            "onRollback": "rewindAndMark",
            "valueFormat": "binary",
            "numPartitions": "2",
        }
        self._host.start(Order("delta-rs", str(self._path), options, until))

    def follow(self, number: int) -> None:
        """Begin, or go on with the nodes that there are now if the run is over or old."""
        if number % RENEWED_AFTER == 0 or not self._host.state()[0]:
            self._stop()
            self._start("stopped")

    def _stop(self) -> None:
        _, error = self._host.state()
        try:
            self._host.stop()
        except RuntimeError as failure:
            error = error or str(failure)
        if error:
            self.failures += 1
            logger.warning("the pipeline has ended: %s", error)

    def check(self, bucket: Mapping[bytes, bytes]) -> None:
        """Have the pipeline read the rest, and compare its tables with the bucket, while nobody writes.

        Raises: Loss: they differ.
        """
        self._stop()
        self._start("available")
        end = time.monotonic() + TIMEOUT_S
        while (state := self._host.state())[0]:
            if time.monotonic() > end:
                raise Loss("the pipeline does not come to its end")
            time.sleep(TABLES_PAUSE_S)
        if state[1]:
            raise Loss(f"the pipeline has failed: {state[1]}")
        expected = {("_default", "_default", key.decode()): Document(value) for key, value in bucket.items()}
        rows = rows_of_changes(read_delta(self._path / "changes"))
        newest = max((row.batch for row in rows), default=-1)
        problems = check_changes("changes", rows, History([]), None, done=newest)
        problems += compare("changes, replayed", state_of(rows), expected)
        found, twice = documents_of("current", documents(read_delta(self._path / "current")))
        problems += twice + compare("current", found, expected)
        rollbacks = sum(row.op == "rollback" for row in rows)
        self.summary = (
            f"{newest + 1} batches, {len(rows)} rows in changes, {rollbacks} rollbacks, "
            f"{len(found)} documents in current"
        )
        if problems:
            raise Loss("; ".join(problems))

    def close(self) -> None:
        """End Spark."""
        self._host.close()


def main() -> int:
    """Run the rounds; the exit status is 1 after a loss."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=60, help="rounds; six of seven have a failover")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--tables", action=argparse.BooleanOptionalAction, default=True, help="a pipeline on Spark, too"
    )
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    print(f"seed {seed}", flush=True)
    losses = 0
    with (
        tempfile.TemporaryDirectory(prefix="dcpstream-") as folder,
        Cluster(
            NODES_MIN, 1, vbuckets=VBUCKETS, processes=True, path=Path(folder) / "data", auto_failover=AutoFailover()
        ) as cluster,
    ):
        load, follower = Load(cluster, seed), Follower(cluster)
        loop = Loop(cluster, load, follower, random.Random(seed))
        tables = Tables(cluster, Path(folder)) if arguments.tables else None
        if tables is not None:
            tables.follow(0)  # before the writers, so that it sees how documents change
        load.start()
        follower.start()
        try:
            for number in range(arguments.runs):
                if tables is not None and number:
                    tables.follow(number)
                loop.round(number)
                print(
                    f"round {number + 1}: {loop.rebalances} rebalances, {loop.failovers} failovers, "
                    f"{load.writes['durable']} durable writes, {load.writes['plain']} plain ones, "
                    f"{follower.rollbacks} rollbacks of the client",
                    flush=True,
                )
            if tables is not None:
                load.pause()
                tables.check(dict(loop.bucket()))
                print(f"tables: {tables.summary}; {tables.failures} runs of the pipeline were ended by an error")
        except Loss as loss:
            losses += 1
            print(f"round {number + 1}, {loop.kinds}: {loss}; again with --seed {seed}", flush=True)
        finally:
            load.stop()
            follower.stop()
            if tables is not None:
                tables.close()
    print(f"cluster loop: {loop.rebalances} rebalances, {loop.failovers} failovers, {losses} losses")
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
