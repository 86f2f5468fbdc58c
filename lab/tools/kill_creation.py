"""Kill a node with SIGKILL while it creates and deletes buckets, and while it starts for the first time.

    python lab/tools/kill_creation.py [--runs 40] [--seed N]

Buckets: all runs use one data directory. A client creates and deletes buckets over REST, one after the other, and the
node is killed at a moment that the seed decides. Afterwards it must start and be healthy. It must serve every bucket
whose creation was answered and none whose deletion was, and the first bucket must hold its document. `store check` must
find no damage. The bucket of the unanswered request may exist completely or not at all.

First starts: each run uses an empty directory. The node is killed a moment after it began to start. The next start must
succeed, and the store must be sound.

The last line: `kill creation: <n> kills while buckets were made, <m> during a first start, 0 faults`.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from dcpstream.cli.app import run as run_command
from dcpstream_node import Node
from lab.tools.patience import patient

TIMEOUT_S = patient(60.0)
VBUCKETS = 16
NAMES = tuple(f"bucket-{number}" for number in range(6))
"""Few names, so that most buckets are created again after a deletion."""
MAKING_S = 0.4
"""Longest time from the first request to the kill: some tens of creations and deletions."""
STARTING_S = 0.08
"""Longest time from the begin of a first start to the kill."""
KEY, VALUE = b"key", b"value"


class Fault(AssertionError):
    """A condition is violated after a kill."""


class NodeProcess:
    """A node in a process of its own.

    Attributes:
        mgmt_port: known when it serves.
    """

    def __init__(self, folder: Path, data: Path) -> None:
        self._begun, self._ready = folder / "begun", folder / "ready.json"
        self.log = folder / "node.log"
        for file in (self._begun, self._ready):
            file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "lab.tools.kill_creation", "--serve", str(data), "--folder", str(folder)]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parents[2])
        self.mgmt_port = 0

    def wait_until_begun(self) -> None:
        """Wait until the process is about to start the node. Raises Fault: it ended before."""
        self._wait_for(self._begun)

    def wait(self) -> None:
        """Wait until it serves. Raises Fault: it does not."""
        self._wait_for(self._ready)
        self.mgmt_port = int(json.loads(self._ready.read_text())["mgmt"])

    def _wait_for(self, file: Path) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not file.exists():
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise Fault(f"the node does not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.002)

    def kill(self) -> None:
        """SIGKILL."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(TIMEOUT_S)

    def ask(self, method: str, path: str, form: dict[str, str] | None = None) -> tuple[int, bytes]:
        """One request over REST. Raises OSError, HTTPException: the node is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self.mgmt_port, timeout=TIMEOUT_S)
        headers = {"Authorization": "Basic " + base64.b64encode(b"Administrator:password").decode()}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, None if form is None else urlencode(form), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@dataclass
class Buckets:
    """The expected buckets.

    Attributes:
        certain: those that must exist.
        in_doubt: the bucket of the request without an answer; empty if none.
        answered: number of answered creations and deletions.
    """

    certain: set[str] = field(default_factory=set)
    in_doubt: str = ""
    answered: int = 0


class CreationLoop:
    """Creations and deletions of buckets under kills, in one data directory.

    Args:
        folder: an empty directory.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._random = random.Random(seed)
        self.buckets = Buckets()

    def run(self) -> None:
        """Start, check, create and delete, kill. Raises Fault."""
        node = self._started()
        pause = self._random.uniform(0, MAKING_S)
        worker = threading.Thread(target=self._work, args=(node, random.Random(self._random.random())))
        worker.start()
        time.sleep(pause)
        node.kill()
        worker.join(TIMEOUT_S)
        _check_files(self._data)

    def finish(self) -> None:
        """Check the state after the last kill."""
        self._started().kill()

    def _started(self) -> NodeProcess:
        node = NodeProcess(self._folder, self._data)
        try:
            node.wait()
            self._check(node)
        except BaseException:
            node.kill()
            raise
        return node

    def _check(self, node: NodeProcess) -> None:
        status, body = node.ask("GET", "/health")
        if status != 200:
            raise Fault(f"the node is not well: {body!r}")
        found = {bucket["name"] for bucket in json.loads(node.ask("GET", "/pools/default/buckets")[1])}
        expected = self.buckets.certain | {"default"}
        if found - {self.buckets.in_doubt} != expected - {self.buckets.in_doubt}:
            raise Fault(f"{sorted(found)} are there instead of {sorted(expected)}; in doubt: {self.buckets.in_doubt}")
        self.buckets.certain = found - {"default"}
        self.buckets.in_doubt = ""

    def _work(self, node: NodeProcess, chance: random.Random) -> None:
        buckets = self.buckets
        try:
            while True:
                name = buckets.in_doubt = chance.choice(NAMES)
                if name in buckets.certain:
                    status, body = node.ask("DELETE", f"/pools/default/buckets/{name}")
                    buckets.certain.discard(name)
                else:
                    form = {"name": name, "ramQuota": "100", "numVBuckets": str(VBUCKETS)}
                    status, body = node.ask("POST", "/pools/default/buckets", form)
                    buckets.certain.add(name)
                if status not in (200, 202):
                    raise Fault(f"{name} was answered {status}: {body!r}")
                buckets.in_doubt = ""
                buckets.answered += 1
        except (OSError, http.client.HTTPException):
            return  # killed


def _check_files(data: Path) -> None:
    """Check that no kill has damaged a store. Raises Fault."""
    if run_command(["store", "check", str(data)]):
        raise Fault(f"store check finds damage in {data}")


def kill_first_start(folder: Path, chance: random.Random) -> None:
    """One killed first start, and the next start, which must succeed. Raises Fault."""
    data = folder / "data"
    node = NodeProcess(folder, data)
    try:
        node.wait_until_begun()
        time.sleep(chance.uniform(0, STARTING_S))
    finally:
        node.kill()
    if data.exists() and any(data.iterdir()):
        _check_files(data)
    node = NodeProcess(folder, data)
    try:
        node.wait()
        status, body = node.ask("GET", "/health")
        if status != 200:
            raise Fault(f"the node is not well: {body!r}")
    finally:
        node.kill()
    left = {entry.name for entry in data.iterdir()} - {"default", ".node.json"}
    if left:
        raise Fault(f"{sorted(left)} are left in {data}")
    _check_files(data)


def serve(data: Path, folder: Path) -> None:
    """Run the node to kill, in the child process."""
    from dcpstream_node.rest import Management  # noqa: F401 - loaded before the start begins, so that it is short

    node = Node(vbuckets=VBUCKETS, path=data, flush_interval_s=0.002)
    (folder / "begun").touch()
    with node:
        part = folder / "ready.part"
        part.write_text(json.dumps({"mgmt": node.mgmt_port}))
        part.replace(folder / "ready.json")
        threading.Event().wait()


def run(runs: int, seed: int) -> tuple[int, int]:
    """Kills of each kind; returns the answered requests, and the first starts that had created files."""
    with tempfile.TemporaryDirectory(prefix="dcpstream-kill-") as folder:
        loop = CreationLoop(Path(folder), seed)
        for _ in range(runs):
            loop.run()
        loop.finish()
    chance, begun = random.Random(seed), 0
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="dcpstream-kill-") as folder:
            kill_first_start(Path(folder), chance)
            begun += 1
    return loop.buckets.answered, begun


def main() -> int:
    """Run the loop; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=None)
    for name in ("--serve", "--folder"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.folder)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}")
    try:
        answered, begun = run(options.runs, seed)
    except Fault as fault:
        print(f"\nFAULT: {fault}")
        return 1
    print(f"{answered} creations and deletions were answered")
    print(f"kill creation: {options.runs} kills while buckets were made, {begun} during a first start, 0 faults")
    return 0


if __name__ == "__main__":
    sys.exit(main())
