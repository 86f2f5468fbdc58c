"""Kill a node with SIGKILL again and again while a client writes, and check its data after each restart.

    python lab/tools/kill_loop.py [--runs 200] [--seed N]

A writer sends sets and deletions of a few hundred keys without waiting for answers, so it knows the write of every
seqno. The node is killed after a number of answers that the seed decides. Segment files are small, and in most runs the
node is compacting them at that moment. In some runs it is killed once or twice more while it starts. Answered writes
(`persist=every`) or writes that were observed as persisted (`group`, `none`) must exist afterwards. Later writes may
exist, but without a gap: each vbucket must be exactly in the state after the write of its high seqno. The failover log
must have a new branch above the old one, and a client with a higher position must be rolled back to the start of that
branch or further. All runs use the same directory, so every recovery also reads the files of earlier ones.

The last line: `kill loop: <runs> runs, <n> writes checked, <m> persisted of them, <k> losses`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dcpstream.model import BucketSettings, Persist  # noqa: E402
from dcpstream.wire import Frame, FrameReader, Opcode, Status, encode_request  # noqa: E402
from dcpstream.wire.messages.dcp import StreamRequest  # noqa: E402
from dcpstream.wire.values import decode_failover_log  # noqa: E402
from dcpstream_node import Node  # noqa: E402
from dcpstream_node.tasks import compactor  # noqa: E402
from lab.tools.patience import patient  # noqa: E402

VBUCKETS = 4
KEYS = 150
"""Keys of each vbucket: few enough that most writes replace a document."""
MAX_WRITES = 4000
"""Most writes of one run."""
WINDOW = 400
COMPACTION_SHARE = 0.7
"""Share of the runs with constant compactions during the writes."""
SEGMENT_BYTES = 64 * 1024
"""Makes some tens of files per run, so that compactions rewrite sealed ones while new ones are written."""
START_KILLS_SHARE = 0.4
"""Share of the runs in which the node is killed up to twice while it starts."""
START_S = 1.2
"""Longest time from the start of the process to such a kill; most of it passes before the store is opened."""
TIMEOUT_S = patient(60.0)
PERSIST_LEVELS = ("every", "group", "none")
SNAPSHOT_OPCODES = {Opcode.DCP_MUTATION: True, Opcode.DCP_DELETION: False, Opcode.DCP_EXPIRATION: False}

Write = tuple[bytes, bytes | None]
"""Key and value; None deletes."""


class Loss(AssertionError):
    """Data is missing or wrong."""


class Link:
    """A connection to the node: frames out, frames in."""

    def __init__(self, port: int, *, dcp_name: bytes = b"") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._reader = FrameReader()
        features = struct.pack(">3H", 0x04, 0x07, 0x08)  # mutation tokens, XERROR, SELECT_BUCKET
        self.call(encode_request(Opcode.HELLO, value=features))
        self.call(encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0password"))
        self.call(encode_request(Opcode.SELECT_BUCKET, key=b"default"))
        if dcp_name:
            self.call(encode_request(Opcode.DCP_OPEN, key=dcp_name, extras=struct.pack(">II", 0, 1)))

    def send(self, data: bytes) -> None:
        """Send frames. Raises OSError: the node is gone."""
        self._socket.sendall(data)

    def read(self) -> Frame:
        """The next frame. Raises ConnectionError: the connection has ended."""
        while (frame := self._reader.next_frame()) is None:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("closed")
            self._reader.receive_data(data)
        return frame

    def call(self, request: bytes, *, status: int = Status.SUCCESS) -> Frame:
        """A request and its answer. Raises Loss: it has another status."""
        self.send(request)
        answer = self.read()
        if answer.status != status:
            raise Loss(f"{request[1]:#x} was answered {answer.status:#x}: {answer.value[:200]!r}")
        return answer

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class NodeProcess:
    """`dcpstream node` in a process of its own.

    Args:
        prefix: the command that runs it, and its options.
    """

    def __init__(self, folder: Path, persist: str, *, prefix: tuple[str, ...] = ()) -> None:
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        # A bucket keeps its settings, so each level has a data directory of its own.
        options = [__file__, "--serve", str(folder / "data"), "--persist", persist, "--ready-file", str(ready)]
        self.log = folder / "node.log"
        with self.log.open("ab") as log:
            self._child = subprocess.Popen([*prefix, sys.executable, *options], stdout=log, stderr=log)
        self._ready = ready
        self.port = self.pid = 0

    def wait(self) -> None:
        """Wait until it serves. Raises Loss: it does not."""
        ready = self._ready
        deadline = time.monotonic() + TIMEOUT_S
        while not ready.exists():
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise Loss(f"the node does not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.005)
        found = json.loads(ready.read_text())
        self.port, self.pid = int(found["kv"]), int(found["pid"])

    def kill(self) -> None:
        """SIGKILL."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(TIMEOUT_S)


@dataclass
class Vbucket:
    """The expected state of a vbucket.

    Attributes:
        writes: by seqno - 1; the sent ones, and after a check the existing ones.
        answered: the highest answered seqno.
        persisted: the highest that must survive.
        vbuuid: the branch.
    """

    writes: list[Write] = field(default_factory=list)
    answered: int = 0
    persisted: int = 0
    vbuuid: int = 0
    live: set[bytes] = field(default_factory=set)

    def state(self) -> dict[bytes, tuple[int, bytes | None]]:
        """Key → (seqno, value) of the newest write of each key."""
        return {key: (seqno, value) for seqno, (key, value) in enumerate(self.writes, 1)}


class KillLoop:
    """The loop on one directory.

    Args:
        folder: an empty directory.
        persist: the bucket's setting.

    Attributes:
        vbuckets: the expected state of each.
        checked, persisted: number of checked writes, and of those that had to survive.
        start_kills: number of kills during a start.
        compactions: number of compactions that ended before a kill.
        window: number of sent writes without an answer, which a kill can hit.
    """

    window = WINDOW

    def __init__(self, folder: Path, persist: str, seed: int) -> None:
        self._folder = folder
        self._persist = persist
        self._random = random.Random(seed)
        self.vbuckets = [Vbucket() for _ in range(VBUCKETS)]
        self.checked = 0
        self.persisted = 0
        self.start_kills = 0
        self.compactions = 0

    @property
    def leftovers(self) -> int:
        """Number of leftovers of interrupted steps that restarted nodes have logged."""
        return (self._folder / "node.log").read_text(errors="replace").count("an unfinished step left")

    def _started(self) -> NodeProcess:
        """A serving node; in some runs after nodes that were killed while they started."""
        if self._random.random() < START_KILLS_SHARE:
            for _ in range(self._random.randrange(1, 3)):
                node = NodeProcess(self._folder, self._persist)
                time.sleep(self._random.uniform(0, START_S))
                node.kill()
                self.start_kills += 1
        node = NodeProcess(self._folder, self._persist)
        try:
            node.wait()
        except BaseException:
            node.kill()
            raise
        return node

    def run(self) -> None:
        """Start, check, write, kill; the next run checks the result. Raises Loss."""
        node = self._started()
        try:
            self._check(node)
            self._write(node, self._random.randrange(1, MAX_WRITES))
        finally:
            node.kill()

    def finish(self) -> None:
        """Check the state after the last kill."""
        node = self._started()
        try:
            self._check(node)
        finally:
            node.kill()

    # ------------------------------------------------------------------------------------------------------- writing

    def _write(self, node: NodeProcess, stop_at: int) -> None:
        """Write until `stop_at` answers have arrived, and kill the node."""
        link, observer, compactor = (Link(node.port) for _ in range(3))
        in_flight = threading.Semaphore(self.window)
        is_over = threading.Event()
        compacts = self._random.random() < COMPACTION_SHARE

        def send() -> None:
            try:
                for request in self._plan():
                    in_flight.acquire()
                    if is_over.is_set():
                        return
                    link.send(request)
            except OSError:
                return  # killed

        def observe() -> None:
            try:
                while not is_over.is_set():
                    for vbid, vbucket in enumerate(self.vbuckets):
                        value = struct.pack(">Q", vbucket.vbuuid)
                        if self._persist == "none" and vbucket.answered:  # nothing else makes it persist
                            seqno = struct.pack(">Q", vbucket.answered)
                            observer.call(encode_request(Opcode.SEQNO_PERSISTENCE, vbid=vbid, extras=seqno))
                        seen = observer.call(encode_request(Opcode.OBSERVE_SEQNO, vbid=vbid, value=value)).value
                        vbucket.persisted = max(vbucket.persisted, struct.unpack_from(">Q", seen, 11)[0])
            except OSError:
                return  # killed

        def compact() -> None:
            try:
                while not is_over.is_set():
                    compactor.call(encode_request(Opcode.COMPACT_DB, extras=bytes(24)))
                    self.compactions += 1
            except OSError:
                return  # killed

        threads = [threading.Thread(target=send)]
        if compacts:
            threads.append(threading.Thread(target=compact))
        if self._persist != "every":
            threads.append(threading.Thread(target=observe))
        for thread in threads:
            thread.start()
        try:
            for _ in range(stop_at):
                self._take(link.read())
                in_flight.release()
        finally:
            is_over.set()
            node.kill()
            in_flight.release(self.window)
            for thread in threads:
                thread.join(TIMEOUT_S)
            for each in (link, observer, compactor):
                each.close()

    def _plan(self) -> Iterator[bytes]:
        """More writes than a run waits for; each one is recorded before it is sent."""
        for number in range(MAX_WRITES + 2 * self.window):
            vbid = self._random.randrange(VBUCKETS)
            vbucket = self.vbuckets[vbid]
            key = b"key-%d" % self._random.randrange(KEYS)
            opaque = len(vbucket.writes) + 1
            if key in vbucket.live and self._random.random() < 0.2:
                vbucket.live.discard(key)
                vbucket.writes.append((key, None))
                request = encode_request(Opcode.DELETE, key=key, vbid=vbid, opaque=opaque)
            else:
                vbucket.live.add(key)
                value = b"%d:%d:%d:" % (vbid, opaque, number) + bytes(self._random.randrange(600))
                vbucket.writes.append((key, value))
                request = encode_request(
                    Opcode.SET, key=key, value=value, vbid=vbid, opaque=opaque, extras=struct.pack(">II", 0, 0)
                )
            yield request

    def _take(self, answer: Frame) -> None:
        """Record an answer; its seqno must be the expected one of the write."""
        if answer.status:
            raise Loss(f"a write was answered {answer.status:#x}: {answer.value!r}")
        vbuuid, seqno = struct.unpack(">QQ", answer.extras)
        vbucket = next(item for item in self.vbuckets if item.vbuuid == vbuuid)
        if seqno != answer.opaque:
            raise Loss(f"the write {answer.opaque} became seqno {seqno}")
        vbucket.answered = seqno
        if self._persist == "every":
            vbucket.persisted = seqno

    # ------------------------------------------------------------------------------------------------------ checking

    def _check(self, node: NodeProcess) -> None:
        link, stream = Link(node.port), Link(node.port, dcp_name=b"kill-loop")
        try:
            for vbid, vbucket in enumerate(self.vbuckets):
                self._check_vbucket(link, stream, vbid, vbucket)
        finally:
            link.close()
            stream.close()

    def _check_vbucket(self, link: Link, stream: Link, vbid: int, vbucket: Vbucket) -> None:
        where = f"vbucket {vbid}"
        log = decode_failover_log(link.call(encode_request(Opcode.GET_FAILOVER_LOG, vbid=vbid)).value)
        value = struct.pack(">Q", log.newest.vbuuid)
        seen = link.call(encode_request(Opcode.OBSERVE_SEQNO, vbid=vbid, value=value)).value
        persisted, high = struct.unpack_from(">QQ", seen, 11)
        if not vbucket.persisted <= high <= len(vbucket.writes) or persisted != high:
            raise Loss(
                f"{where}: seqnos up to {vbucket.persisted} were persisted, {len(vbucket.writes)} sent; "
                f"there are {high}, {persisted} of them called persisted"
            )
        if vbucket.vbuuid:
            entries = log.entries
            # Each interrupted start may also have begun a branch.
            if log.newest.vbuuid == vbucket.vbuuid or vbucket.vbuuid not in {entry.vbuuid for entry in entries[1:4]}:
                raise Loss(f"{where}: no new branch on top of {vbucket.vbuuid:x}: {log}")
            if log.newest.seqno != high:
                raise Loss(f"{where}: the new branch begins at {log.newest.seqno}, the high seqno is {high}")
            self._check_resuming(stream, vbid, vbucket, high)
        self.checked += len(vbucket.writes)
        self.persisted += vbucket.persisted
        del vbucket.writes[high:]
        expected = vbucket.state()
        found = self._read(stream, vbid, high)
        if found != expected:
            missing = {key: expected[key] for key in expected.keys() - found.keys()}
            wrong = {
                key: (found[key][0], expected.get(key, (0,))[0]) for key in found if found[key] != expected.get(key)
            }
            raise Loss(f"{where}: missing {missing}; (seqno there, seqno expected) of wrong ones: {wrong}")
        vbucket.live = {key for key, (_, content) in expected.items() if content is not None}
        vbucket.answered = vbucket.persisted = high
        vbucket.vbuuid = log.newest.vbuuid

    @staticmethod
    def _request(vbid: int, vbuuid: int, start: int, end: int) -> bytes:
        return StreamRequest(
            vbid=vbid, start_seqno=start, end_seqno=end, vbuuid=vbuuid, snapshot_start=start, snapshot_end=start
        ).encode()

    def _check_resuming(self, stream: Link, vbid: int, vbucket: Vbucket, high: int) -> None:
        """Check that a client with all answered writes resumes if they all exist, and is rolled back otherwise."""
        answer = self._ask(stream, self._request(vbid, vbucket.vbuuid, vbucket.answered, vbucket.answered))
        if vbucket.answered <= high:
            if answer.status:
                raise Loss(f"vbucket {vbid}: a client at {vbucket.answered} of {high} may not go on: {answer}")
            while stream.read().opcode != Opcode.DCP_STREAM_END:
                pass
        elif answer.status != Status.ROLLBACK or int.from_bytes(answer.value, "big") > high:
            raise Loss(f"vbucket {vbid}: a client at {vbucket.answered} of {high} is not rolled back: {answer}")

    @staticmethod
    def _ask(stream: Link, request: bytes) -> Frame:
        stream.send(request)
        return stream.read()

    def _read(self, stream: Link, vbid: int, high: int) -> dict[bytes, tuple[int, bytes | None]]:
        """Read the whole vbucket by DCP. Its seqnos must rise."""
        if not high:
            return {}
        answer = self._ask(stream, self._request(vbid, 0, 0, high))
        if answer.status:
            raise Loss(f"vbucket {vbid}: no stream from 0: {answer}")
        found: dict[bytes, tuple[int, bytes | None]] = {}
        last = 0
        while (frame := stream.read()).opcode != Opcode.DCP_STREAM_END:
            if frame.opcode in SNAPSHOT_OPCODES:
                seqno = int.from_bytes(frame.extras[:8], "big")
                if seqno <= last or frame.key in found:
                    raise Loss(f"vbucket {vbid}: seqno {seqno} after {last}, key {frame.key!r}")
                last = seqno
                found[frame.key] = seqno, frame.value if SNAPSHOT_OPCODES[frame.opcode] else None  # type: ignore[index]
        return found


def serve(data: Path, persist: str, ready: Path) -> None:
    """Run the node to kill, in the child process."""
    logging.basicConfig(level=logging.INFO)
    compactor.REST_IF_AWAITED = 0.0  # more of it before each kill
    settings = BucketSettings(persist=Persist(persist), compact_at=0.05)
    node = Node(
        vbuckets=VBUCKETS,
        path=data,
        system_scope=False,
        settings=settings,
        flush_interval_s=0.002,
        segment_bytes=SEGMENT_BYTES,
    )
    with node:
        part = ready.with_suffix(".part")
        part.write_text(json.dumps({"kv": node.port, "pid": os.getpid()}))
        part.replace(ready)
        threading.Event().wait()


def run(runs: int, seed: int, *, shows_progress: bool) -> tuple[int, int]:
    """Runs, spread over the levels; returns the checked writes and the persisted ones of them. Raises Loss."""
    checked = persisted = 0
    for index, level in enumerate(PERSIST_LEVELS):
        count = (runs + len(PERSIST_LEVELS) - 1 - index) // len(PERSIST_LEVELS)
        with tempfile.TemporaryDirectory(prefix="dcpstream-kill-") as folder:
            loop = KillLoop(Path(folder), level, seed + index)
            for number in range(count):
                loop.run()
                if shows_progress and os.isatty(1):
                    print(f"\r{level}: {number + 1} of {count}", end="", flush=True)
            loop.finish()
            checked, persisted = checked + loop.checked, persisted + loop.persisted
            if shows_progress:
                kills = f"{count} kills, {loop.start_kills} more while it started, {loop.compactions} compactions"
                kills += f" and {loop.leftovers} files of others that were cut short"
                print(f"\r{level}: {kills}, {loop.checked} writes checked, {loop.persisted} persisted, 0 losses")
    return checked, persisted


def main() -> int:
    """Run the loop; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    for name in ("--serve", "--ready-file"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--persist", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.persist, options.ready_file)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}")
    started = time.monotonic()
    try:
        checked, persisted = run(options.runs, seed, shows_progress=True)
    except Loss as loss:
        print(f"\nLOSS: {loss}")
        return 1
    took = time.monotonic() - started
    figures = f"{options.runs} runs, {checked} writes checked, {persisted} persisted of them, 0 losses"
    print(f"kill loop: {figures} ({took:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
