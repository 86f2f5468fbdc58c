"""A node under too many or hostile clients: its memory, and the latency of a well-behaved client.

The node is a process of its own. Its memory is sampled every few milliseconds, and the figure is the largest growth.
Meanwhile a well-behaved client in a third process reads a document in a loop. Latencies are those of this machine under
this load, including the work of the clients; compare them within one run only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dcpstream.wire import Feature, Opcode, encode_request
from lab.bench.common import Figure, report, resident_bytes

MIB = 1024 * 1024
CONNECTIONS = 2_000
STREAM_CONNECTIONS = 10
VBUCKETS = 1024
DOCUMENTS = 20_000
GARBAGE_BYTES = 200 * MIB
GARBAGE_CONNECTIONS = 50
STALLED_CLIENTS = 500
STALLED_VALUE_BYTES = 256 * 1024
STALLED_REQUESTS = 64
HOLD_S = 2.0
"""Time that all connections stay open, so that most samples of the good client fall into it."""
SAMPLE_S = 0.01
TIMEOUT_S = 120.0
START_TIMEOUT_S = 30.0
PASSWORD = "bench-password"
QUICK_DIVISOR = 10


class Victim:
    """A node in a process of its own, and its memory."""

    def __init__(self, folder: Path, more_options: Sequence[str] = ()) -> None:
        ready = folder / "ready.json"
        options = ["--port", "0", "--mgmt-port", "0", "--vbuckets", str(VBUCKETS), "--ready-file", str(ready)]
        self._log = (folder / "node.log").open("w")
        self.child = subprocess.Popen(
            [sys.executable, "-m", "dcpstream.cli", "node", "--no-system-scope", *options, *more_options],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"DCPSTREAM_PASSWORD": PASSWORD},
        )
        end = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            if self.child.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the node did not start: {(folder / 'node.log').read_text()[-500:]}")
            time.sleep(0.01)
        self.port = int(json.loads(ready.read_text())["kv"])

    def stop(self) -> None:
        """End it."""
        self.child.terminate()
        self.child.wait(START_TIMEOUT_S)
        self._log.close()


class GoodClient:
    """The well-behaved client's process."""

    def __init__(self, port: int) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "lab.bench.load_client", str(port), PASSWORD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdout is not None
        if self._child.stdout.readline().strip() != "ready":
            raise RuntimeError("the good client did not start")

    def order(self, word: str) -> None:
        """Send it an order."""
        assert self._child.stdin is not None
        self._child.stdin.write(word + "\n")
        self._child.stdin.flush()

    def figures(self) -> dict[str, float]:
        """Stop it and return its measurements."""
        self.order("stop")
        assert self._child.stdout is not None
        found: dict[str, float] = json.loads(self._child.stdout.readline())
        return found

    def stop(self) -> None:
        """End it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(START_TIMEOUT_S)
        if self._child.stdout is not None:
            self._child.stdout.close()


class Watcher:
    """Samples the memory of a process on a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.before = self.most = resident_bytes(pid)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            with contextlib.suppress(OSError):
                self.most = max(self.most, resident_bytes(self._pid))

    def stop(self) -> int:
        """The largest growth since the start, in bytes."""
        self._is_over.set()
        self._thread.join()
        return self.most - self.before


class Scene:
    """The measurements of one attack.

    Attributes:
        memory: largest growth of the node's memory, in bytes.
        good: measurements of the good client.
        seconds: duration of the attack.
    """

    def __init__(self) -> None:
        self.memory = 0
        self.good: dict[str, float] = {}
        self.seconds = 0.0


@contextmanager
def scene(victim: Victim, good: GoodClient) -> Iterator[Scene]:
    """Measure while the body of the context attacks."""
    found, watcher = Scene(), Watcher(victim.child.pid)
    good.order("start")
    started = time.monotonic()
    try:
        yield found
    finally:
        found.seconds = time.monotonic() - started
        found.good = good.figures()
        found.memory = watcher.stop()


def login() -> bytes:
    """The first requests of a client, in one piece."""
    features = struct.pack(">3H", Feature.XERROR, Feature.COLLECTIONS, Feature.MUTATION_SEQNO)
    return (
        encode_request(Opcode.HELLO, value=features)
        + encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0" + PASSWORD.encode())
        + encode_request(Opcode.SELECT_BUCKET, key=b"default")
    )


LOGIN_ANSWERS = 3


def connect(port: int, receive_bytes: int = 0) -> socket.socket:
    """A socket that is logged in."""
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(TIMEOUT_S)
    connection.connect(("127.0.0.1", port))
    connection.sendall(login())
    _read_answers(connection, LOGIN_ANSWERS)
    return connection


def _read_answers(connection: socket.socket, count: int) -> None:
    """Read whole answers of any status; a refused login raises."""
    data = b""
    while count:
        while len(data) < 24 or len(data) < 24 + int.from_bytes(data[8:12]):
            more = connection.recv(65536)
            if not more:
                raise ConnectionError("closed by the node")
            data += more
        if data[1] in (Opcode.SASL_AUTH, Opcode.SELECT_BUCKET, Opcode.SET) and data[6:8] != b"\0\0":
            raise ConnectionError(f"opcode {data[1]:#x} was answered with status {data[6:8].hex()}")
        data = data[24 + int.from_bytes(data[8:12]) :]
        count -= 1


def fill(port: int) -> None:
    """Write documents for the streams and the good client, and large ones for the clients that do not read."""
    with connect(port) as connection:
        good = encode_request(Opcode.SET, key=b"\0good", value=b"g" * 256, extras=bytes(8))
        large = encode_request(Opcode.SET, key=b"\0large", value=b"v" * STALLED_VALUE_BYTES, extras=bytes(8))
        connection.sendall(good + large)
        _read_answers(connection, 2)
        for start in range(0, DOCUMENTS, 1000):
            numbers = range(start, start + 1000)
            connection.sendall(
                b"".join(
                    encode_request(Opcode.SET, vbid=n % VBUCKETS, key=b"\0%d" % n, value=b"s" * 200, extras=bytes(8))
                    for n in numbers
                )
            )
            _read_answers(connection, len(numbers))


async def _many(port: int, count: int) -> float:
    """Connect, log in and read a document on many connections at once; seconds until the last had its answer."""
    request = login() + encode_request(Opcode.GET, key=b"\0good")
    answered: list[asyncio.StreamWriter] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        for _ in range(LOGIN_ANSWERS + 1):
            header = await reader.readexactly(24)
            await reader.readexactly(int.from_bytes(header[8:12]))
            if header[6:8] != b"\0\0":
                raise ConnectionError(f"status {header[6:8].hex()}")
        answered.append(writer)

    started = time.monotonic()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(one() for _ in range(count)))
        seconds = time.monotonic() - started
        await asyncio.sleep(HOLD_S)
        return seconds
    finally:
        for writer in answered:
            writer.close()


def streams(port: int, connections: int) -> float:
    """All vbuckets streamed on each of several connections; seconds until the last stream was through."""
    started = time.monotonic()
    with ExitStack() as stack:
        sockets = []
        for number in range(connections):
            connection = stack.enter_context(connect(port))
            name = b"load-%d" % number
            connection.sendall(encode_request(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", 0, 1)))
            connection.sendall(encode_request(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true"))
            _read_answers(connection, 2)
            sockets.append(connection)
        threads = [threading.Thread(target=_drain, args=(connection,)) for connection in sockets]
        for thread in threads:
            thread.start()
        for connection in sockets:
            # DCP_ADD_STREAM_FLAG_TO_LATEST (0x04): each stream ends at the current high seqno.
            connection.sendall(
                b"".join(
                    encode_request(
                        Opcode.DCP_STREAM_REQ,
                        vbid=vbid,
                        opaque=vbid,
                        extras=struct.pack(">IIQQQQQ", 4, 0, 0, 2**64 - 1, 0, 0, 0),
                    )
                    for vbid in range(VBUCKETS)
                )
            )
        for thread in threads:
            thread.join(TIMEOUT_S)
            if thread.is_alive():
                raise TimeoutError("streams did not end")
    return time.monotonic() - started


def _drain(connection: socket.socket) -> None:
    """Read until all streams have ended."""
    ended, data = 0, bytearray()
    while ended < VBUCKETS:
        more = connection.recv(1 << 20)
        if not more:
            return
        data += more
        at = 0
        while len(data) - at >= 24:
            size = 24 + int.from_bytes(data[at + 8 : at + 12])
            if len(data) - at < size:
                break
            ended += data[at + 1] == Opcode.DCP_STREAM_END
            at += size
        del data[:at]


def garbage(port: int, total: int) -> int:
    """Send invalid requests, pipelined on many connections that do not read; returns the bytes that the node took."""
    bad = b"".join(
        encode_request(opcode, key=b"\0k", value=b"x" * 500, extras=bytes(3))
        for opcode in (Opcode.SET, Opcode.GET, 0x6F, Opcode.INCREMENT, Opcode.DCP_STREAM_REQ)
    )
    piece = bad * (256 * 1024 // len(bad))
    rounds = max(1, total // GARBAGE_CONNECTIONS // len(piece))
    sent = 0
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(port, 4096)) for _ in range(GARBAGE_CONNECTIONS)]
        unfinished = encode_request(Opcode.SET, key=b"\0k", value=bytes(8), extras=bytes(8))[:8] + struct.pack(
            ">I", 20_000_000
        )
        for _ in range(rounds):
            for index, connection in enumerate(sockets):
                if index % 5 == 0 and connection.gettimeout():
                    # Every fifth connection begins a frame of 20 MB and never completes it.
                    with contextlib.suppress(OSError):
                        connection.sendall(unfinished + bytes(12))
                connection.setblocking(False)
                with contextlib.suppress(OSError):
                    view = memoryview(piece)
                    while view:
                        count = connection.send(view)
                        sent += count
                        view = view[count:]
            time.sleep(0.02)
    return sent


def stalled(port: int, clients: int) -> None:
    """Request large documents without reading the answers."""
    requests = encode_request(Opcode.GET, key=b"\0large") * STALLED_REQUESTS
    with ExitStack() as stack:
        for _ in range(clients):
            connection = stack.enter_context(connect(port, 4096))
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(requests)
        time.sleep(HOLD_S)


def run(quick: bool = False) -> dict[str, Any]:
    """Run all scenes, one after the other, on one node."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 500
    if soft < wanted <= hard or hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    divisor = QUICK_DIVISOR if quick else 1
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim(Path(folder))
        try:
            return _run(victim, divisor)
        finally:
            victim.stop()


def _run(victim: Victim, divisor: int) -> dict[str, Any]:
    fill(victim.port)
    good = GoodClient(victim.port)
    try:
        count, clients = CONNECTIONS // divisor, STALLED_CLIENTS // divisor
        with scene(victim, good) as quiet:
            time.sleep(HOLD_S)
        with scene(victim, good) as many:
            login_s = asyncio.run(_many(victim.port, count))
        with scene(victim, good) as streaming:
            stream_s = streams(victim.port, max(1, STREAM_CONNECTIONS // divisor))
        with scene(victim, good) as dirty:
            sent = garbage(victim.port, GARBAGE_BYTES // divisor)
        with scene(victim, good) as stuck:
            stalled(victim.port, clients)
        with scene(victim, good) as after:
            time.sleep(1.0)
    finally:
        good.stop()
    base = quiet.good["p99_ms"]
    figures = [
        Figure(
            name="load.login_s", value=login_s, unit="s", note=f"{count} connections at once, logged in and answered"
        ),
        Figure(
            name="load.streams_s", value=stream_s, unit="s", note=f"{VBUCKETS} streams on each of several connections"
        ),
        Figure(
            name="load.garbage_sent", value=sent / MIB, unit="MiB", note="taken by the node before it stopped reading"
        ),
        Figure(name="load.connection_bytes", value=many.memory / count, unit="B"),
    ]
    scenes = {
        "quiet": quiet,
        "connections": many,
        "streams": streaming,
        "garbage": dirty,
        "stalled": stuck,
        "after": after,
    }
    for name, found in scenes.items():
        figures.append(Figure(name=f"load.{name}.memory", value=found.memory / MIB, unit="MiB", note="above before"))
        figures += [
            Figure(
                name=f"load.{name}.{kind}",
                value=found.good[kind],
                unit="ms",
                baseline="quiet" if kind == "p99_ms" else "",
                baseline_value=base if kind == "p99_ms" else None,
            )
            for kind in ("p50_ms", "p99_ms", "max_ms")
        ]
    return report(
        figures,
        {
            "load.connection_bytes": many.memory / count,
            "load.memory_mib": max(found.memory for found in scenes.values()) / MIB,
            "load.streams.p99_ms": streaming.good["p99_ms"],
            "load.stalled.p99_ms": stuck.good["p99_ms"],
            "load.garbage.p99_ms": dirty.good["p99_ms"],
            "load.login_s": login_s,
        },
    )
