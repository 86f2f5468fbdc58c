"""Latency: the duration of a durable write while eight backfills run, compared with the disk's own fdatasync.

A node in its own process keeps its bucket on disk with `persist=every`, so it answers a write when it is durable. One
client writes documents one after the other and waits for each answer. Eight connections of another process stream the
whole bucket from its beginning, again and again. The same writes are also timed without the backfills. The baseline is
a file in the same directory that is appended to and synced in turns with them. All processes share the machine's cores,
which is part of the measurement.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dcpstream.client.kv.client import KvClient
from dcpstream.wire import Opcode, encode_request
from lab.bench.common import Figure, report
from lab.bench.send import ask

VBUCKETS = 64
DOCUMENTS = 400_000
QUICK_DOCUMENTS = 50_000
VALUE = b"\x80" * 512
BACKFILLS = 8
WRITES = 1500
QUICK_WRITES = 200
SYNCS = 300
RECEIVE_BYTES = 1024 * 1024
TIMEOUT_S = 120.0
GROUP = 1000
HEADER_BYTES = 24


def start_node(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The node and its KV port."""
    ready = folder / "ready.json"
    options = f"--no-system-scope --port 0 --mgmt-port 0 --persist every --vbuckets {VBUCKETS}".split()
    places = ["--data", str(folder / "data"), "--ready-file", str(ready)]
    command = [sys.executable, "-m", "dcpstream.cli", "node", *options, *places]
    child = subprocess.Popen(command)
    deadline = time.monotonic() + TIMEOUT_S
    while not ready.exists():
        assert child.poll() is None, "the node does not start"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return child, int(json.loads(ready.read_text())["kv"])


def fill(port: int, documents: int) -> None:
    """Write the documents that the backfills read."""
    with KvClient(f"couchbase://127.0.0.1:{port}", "Administrator", "password", "default") as client:
        for first in range(0, documents, GROUP):
            client.set_many([(b"doc-%08d" % number, VALUE) for number in range(first, first + GROUP)])


def drain(port: int, stopping: threading.Event, received: list[int], slot: int) -> None:
    """Run backfills, one after the other, until `stop`."""
    buffer = bytearray(RECEIVE_BYTES)
    while not stopping.is_set():
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            ask(connection, b"bench-%d" % slot)
            to_latest = 0x04
            for vbid in range(VBUCKETS):
                extras = struct.pack(">IIQQQQQ", to_latest, 0, 0, (1 << 64) - 1, 0, 0, 0)
                connection.sendall(encode_request(Opcode.DCP_STREAM_REQ, vbid=vbid, opaque=vbid, extras=extras))
            connection.settimeout(0.2)
            while not stopping.is_set():
                try:
                    count = connection.recv_into(buffer)
                except TimeoutError:
                    break  # everything has arrived
                if not count:
                    break
                received[slot] += count


def run_backfills(port: int, control: Connection) -> None:
    """In a child process: run eight backfills at a time until the order to stop, and report the received bytes."""
    stopping = threading.Event()
    received = [0] * BACKFILLS
    threads = [threading.Thread(target=drain, args=(port, stopping, received, slot)) for slot in range(BACKFILLS)]
    for thread in threads:
        thread.start()
    control.send("running")
    control.recv()
    stopping.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    control.send(sum(received))


def write(port: int, count: int) -> list[float]:
    """Durations of durable writes in seconds."""
    took = []
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        login = encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0password")
        for request in (login, encode_request(Opcode.SELECT_BUCKET, key=b"default")):
            connection.sendall(request)
            answer(stream)
        for number in range(count):
            request = encode_request(
                Opcode.SET, key=b"write-%d" % number, value=VALUE, extras=bytes(8), vbid=number % VBUCKETS
            )
            started = time.perf_counter()
            connection.sendall(request)
            answer(stream)
            took.append(time.perf_counter() - started)
    return took


def answer(stream: Any) -> None:
    """Read one answer, which must be a success."""
    header = stream.read(HEADER_BYTES)
    stream.read(int.from_bytes(header[8:12], "big"))
    assert header[6:8] == b"\0\0", f"status {header[6:8].hex()}"


def sync(folder: Path) -> list[float]:
    """Durations of appends of a document with fdatasync, in seconds."""
    took = []
    descriptor = os.open(folder / "synced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for _ in range(SYNCS):
            started = time.perf_counter()
            os.write(descriptor, VALUE)
            os.fdatasync(descriptor)
            took.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
    return took


def percentile(values: list[float], percent: int) -> float:
    """The percentile by nearest rank."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def run(quick: bool) -> dict[str, Any]:
    """Measure."""
    documents, writes = (QUICK_DOCUMENTS, QUICK_WRITES) if quick else (DOCUMENTS, WRITES)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="dcpstream-bench-") as name:
        folder = Path(name)
        child, port = start_node(folder)
        try:
            fill(port, documents)
            synced = sync(folder)
            quiet = write(port, writes)
            control, other = context.Pipe()
            backfills = context.Process(target=run_backfills, args=(port, other), daemon=True)
            backfills.start()
            assert control.poll(TIMEOUT_S)
            control.recv()
            started = time.perf_counter()
            busy = write(port, writes)
            took = time.perf_counter() - started
            control.send("stop")
            assert control.poll(TIMEOUT_S)
            received = control.recv()
            backfills.join(TIMEOUT_S)
            synced += sync(folder)
        finally:
            child.terminate()
            child.wait(TIMEOUT_S)
    disk_ms = percentile(synced, 99) * 1e3
    figures = [
        Figure(
            name=f"latency.{state}.{name}",
            value=value * 1e3,
            unit="ms",
            baseline="fdatasync of the same bytes, alone",
            baseline_value=base * 1e3,
            repeats=len(values),
            note=note,
        )
        for state, values, note in (
            ("quiet", quiet, "durable write, nothing else runs"),
            ("backfills", busy, f"durable write, {BACKFILLS} backfills at {received / took / 1e6:.0f} MB/s in all"),
        )
        for name, value, base in (
            ("p50", statistics.median(values), statistics.median(synced)),
            ("p99", percentile(values, 99), percentile(synced, 99)),
        )
    ]
    return report(figures, {"write_p99_above_fdatasync_ms": percentile(busy, 99) * 1e3 - disk_ms})
