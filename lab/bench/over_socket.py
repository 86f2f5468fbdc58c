"""Ingest over a socket: the node's cost of a SET, by the number of requests that a client sends at once.

`ingest` measures only the session; here kernel, event loop and the work per read are included. The node is a process of
its own (memory store, 1,024 vbuckets), and the figure is its CPU time per request, user and system. The baseline is a
bare server of the same shape (asyncio, one parse loop, one write per read) that only finds the end of each request and
sends an answer of the same size, in the same run and with the same client.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dcpstream.wire import HEADER_BYTES, Opcode
from lab.bench.bare_server import ANSWER_BYTES
from lab.bench.common import Figure, cpu_seconds_of, repeats_for, report
from lab.bench.ingest import requests
from lab.bench.load import TIMEOUT_S, Victim, connect

WINDOWS = {1: 20_000, 50: 100_000, 1000: 200_000}
"""Requests that are sent before their answers are read → requests of a round: about a second of the node's CPU time."""
VARIANTS: dict[str, tuple[str, ...]] = {
    "insert": (),
    "get": (),
    "overwrite": (),
    "overwrite_uncompacted": ("--set", "compact_at=1"),
}
"""Variant → options of the node. Overwriting leaves superseded versions, which the node compacts on a thread meanwhile;
the last variant runs without compaction."""
GET_ANSWER_BYTES = HEADER_BYTES + 4
COMPARED_WINDOW = 50
OVERWRITES = 3
"""Times that each document is overwritten; with fewer, compaction has hardly begun."""
QUICK_DIVISOR = 5
VALUE = b"\x80" + b"v" * 255
READ_BYTES = 256 * 1024


class BareServer:
    """The baseline's process."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "lab.bench.bare_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.child.stdout is not None
        self.port = int(self.child.stdout.readline())

    def stop(self) -> None:
        """End it."""
        self.child.communicate(timeout=TIMEOUT_S)


def run(quick: bool) -> dict[str, Any]:
    """Measure."""
    figures: list[Figure] = []
    ratios: dict[str, float | None] = {}
    with ExitStack() as stack:
        bare = BareServer()
        stack.callback(bare.stop)
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", bare.port), TIMEOUT_S))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for window, count in WINDOWS.items():
            rounds = windows(count // QUICK_DIVISOR if quick else count, window)
            for name, options in VARIANTS.items():
                if name == "overwrite_uncompacted" and window != COMPARED_WINDOW:
                    continue
                spent = [
                    (one_round(name, options, rounds, window), cpu_of(plain, bare.child.pid, rounds, window))
                    for _ in range(repeats_for(quick))
                ]
                figure, ratio = judged(f"over_socket.{name}.{window}", spent, len(rounds) * window, window)
                figures.append(figure)
                ratios[f"{figure.name}.of_bare"] = ratio
                ratios[f"{figure.name}.us"] = figure.value
    return report(figures, ratios)


def one_round(name: str, options: Sequence[str], rounds: Sequence[bytes], window: int) -> float:
    """CPU seconds of a fresh node for the requests: for new keys, or for the second requests of the same keys."""
    with ExitStack() as stack:
        node = Victim(Path(stack.enter_context(tempfile.TemporaryDirectory())), options)
        stack.callback(node.stop)
        writer = stack.enter_context(connect(node.port))
        writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        inserted = cpu_of(writer, node.child.pid, rounds, window)
        if name == "insert":
            return inserted
        if name == "get":
            count = len(rounds) * window
            return cpu_of(writer, node.child.pid, gets(count, window), window, GET_ANSWER_BYTES + len(VALUE))
        return sum(cpu_of(writer, node.child.pid, rounds, window) for _ in range(OVERWRITES)) / OVERWRITES


def judged(name: str, spent: Sequence[tuple[float, float]], total: int, window: int) -> tuple[Figure, float]:
    """The figure and its ratio to the bare server, from the CPU seconds (node, bare server) of each round."""
    micros = [own / total * 1e6 for own, _ in spent]
    bare_micros = [bare / total * 1e6 for _, bare in spent]
    figure = Figure(
        name=name,
        value=statistics.median(micros),
        unit="us CPU/op",
        baseline="bare server that only finds where requests end",
        baseline_value=statistics.median(bare_micros),
        repeats=len(micros),
        samples=tuple(micros),
        note=f"{'GET' if '.get.' in name else 'SET'}, {len(VALUE)} B, {window} at a time, CPU of the node's process",
    )
    return figure, statistics.median(own / other for own, other in spent)


def windows(count: int, window: int) -> Sequence[bytes]:
    """The requests of a round, in pieces to send at once."""
    return pieces(requests(count - count % window, VALUE), window)


def gets(count: int, window: int) -> Sequence[bytes]:
    """GETs of the same documents."""
    return pieces(requests(count, b"", Opcode.GET), window)


def pieces(data: bytes, window: int) -> Sequence[bytes]:
    """Requests of equal size, so many in each piece."""
    size = HEADER_BYTES + int.from_bytes(data[8:12], "big")
    return [data[at : at + size * window] for at in range(0, len(data), size * window)]


def cpu_of(
    connection: socket.socket, pid: int, rounds: Sequence[bytes], window: int, answer_bytes: int = ANSWER_BYTES
) -> float:
    """CPU seconds of the process while it answers."""
    before = cpu_seconds_of(pid)
    exchange(connection, rounds, window * answer_bytes)
    return cpu_seconds_of(pid) - before


def exchange(connection: socket.socket, rounds: Sequence[bytes], answers_bytes: int) -> None:
    """Send each piece of requests when the one before is answered, with so many bytes."""
    for data in rounds:
        connection.sendall(data)
        missing = answers_bytes
        while missing:
            answer = connection.recv(min(missing, READ_BYTES))
            if not answer:
                raise ConnectionError("the server closed the connection")
            missing -= len(answer)
