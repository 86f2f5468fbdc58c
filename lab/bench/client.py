"""The client end to end, compared with a loop that only receives the same bytes.

Another process sends a whole bucket, and the batches are dropped. It is our node, which sends long runs of one stream,
and then a sender that goes round over all streams as a server does, see `server_turns`. Both figures are CPU time of
this process: handshake, stream requests, receiving, and for the client also decoding, positions, the full table schema
and acknowledgements. The receive-only loop requests the same streams with a window that is never full, reads portions
of 1 MiB (larger ones are slower), and evaluates nothing.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from lab.bench.common import Figure, measure_in_turns, median, median_of_ratios, repeats_for, report

CORPUS_BYTES = 96 * 1024 * 1024
QUICK_CORPUS_BYTES = 16 * 1024 * 1024
VBUCKETS = 16
TURNS_VBUCKETS = 64
VALUE_SIZES = (256, 1024)
OVERHEAD_BYTES = 24 + 31 + 12
LOGIN: dict[str, Any] = {"username": "Administrator", "password": "password", "bucket": "default"}
NODE = """
import sys
from dcpstream_node import Node
with Node(vbuckets=%d, system_scope=False) as node:
    print(node.connection_string, flush=True)
    sys.stdin.read()
"""


def node_process(vbuckets: int = VBUCKETS) -> AbstractContextManager[str]:
    """A memory node in a process of its own; its connection string."""
    return sender_process("-c", NODE % vbuckets)


@contextmanager
def loaded_node(count: int, value_bytes: int) -> Iterator[str]:
    """A node with documents."""
    with node_process() as connection_string:
        load(connection_string, count, value_bytes)
        yield connection_string


def turns_process(count: int, value_bytes: int, vbuckets: int = TURNS_VBUCKETS) -> AbstractContextManager[str]:
    """A sender that behaves as a server does, with documents."""
    return sender_process("-m", "lab.bench.server_turns", str(vbuckets), str(count), str(value_bytes))


@contextmanager
def sender_process(*arguments: str) -> Iterator[str]:
    """A Python program that prints its connection string and serves until its standard input ends."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(30)


def load(connection_string: str, count: int, value_bytes: int) -> None:
    """Documents of incompressible text."""
    import numpy as np

    from dcpstream.client import KvClient

    chance = np.random.default_rng(20131130)
    with KvClient(connection_string, **LOGIN) as kv:
        kv.set_many((f"flight-{number:06d}", chance.bytes(value_bytes)) for number in range(count))


def receive_only(connection_string: str, ends: dict[int, int], total_bytes: int | None) -> int:
    """Read the streams of all vbuckets without evaluating them; returns the bytes.

    Args:
        total_bytes: the bytes to read; None to read until all streams have ended, for the first time.
    """
    from dcpstream.client.blocking.sockets import addresses_of, open_socket
    from dcpstream.client.machine.connection.connection import NodeConnection
    from dcpstream.client.machine.connection.events import StreamStopped
    from dcpstream.client.settings.connection_string import parse
    from dcpstream.client.settings.options import DcpSettings, Login
    from dcpstream.model import StreamOffset

    address = parse(connection_string).seeds[0]
    settings = DcpSettings(name="bench:receive-only", buffer_bytes=1 << 30)
    machine = NodeConnection(address, Login(**LOGIN), settings, bytes(24), 0.0, connect_timeout_s=10.0)
    stream = open_socket(addresses_of(address)[0])
    stream.setblocking(True)
    try:
        while machine.session is None:
            stream.sendall(machine.data_to_send())
            machine.buffer_updated(stream.recv_into(machine.get_buffer()))
            machine.process(0.0)
        for vbid, end in ends.items():
            machine.session.open_stream(vbid, StreamOffset.ZERO, end, 0.0)
        stream.sendall(machine.data_to_send())
        if total_bytes is None:
            return count_bytes(stream, machine, len(ends), StreamStopped)
        return drain(stream, total_bytes)
    finally:
        stream.close()


def count_bytes(stream: socket.socket, machine: Any, streams: int, stopped: type) -> int:
    """Bytes until all streams have ended."""
    machine.session._done = lambda *_: None  # the receive-only loop closes nothing
    total, left = 0, streams
    while left:
        count = stream.recv_into(machine.get_buffer())
        total += count
        machine.buffer_updated(count)
        machine.process(0.0)
        left -= sum(isinstance(event, stopped) for event in machine.events())
    return total


def drain(stream: socket.socket, total_bytes: int) -> int:
    """Receive like the client: the available bytes, into one buffer."""
    buffer = memoryview(bytearray(1024 * 1024))
    stream.setblocking(False)
    received = 0
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while received < total_bytes:
            selector.select(10.0)
            at = 0
            try:
                while at < len(buffer):
                    count = stream.recv_into(buffer[at:])
                    if not count:
                        raise ConnectionError("the node closed the connection")
                    at += count
            except BlockingIOError:
                pass
            received += at
    return received


def read_all(connection_string: str, ends: dict[int, int], columns: list[str] | None = None) -> int:
    """Read all rows through the client and drop the batches; returns their number."""
    from dcpstream.client import BucketReader, RowsRead, StreamOptions, VbucketRange
    from dcpstream.model import StreamOffset

    ranges = [VbucketRange(vbid, StreamOffset.ZERO, end) for vbid, end in ends.items()]
    rows = 0
    with BucketReader(connection_string, **LOGIN) as cluster:
        for batch in cluster.read_ranges(ranges, StreamOptions(on_rollback="rewind", columns=columns)):
            assert isinstance(batch, RowsRead)
            rows += batch.rows.num_rows
    return rows


SENDERS: dict[str, Callable[[int, int], AbstractContextManager[str]]] = {"": loaded_node, ".turns": turns_process}
"""Part of the name of a figure → who sends."""


def run(quick: bool) -> dict[str, Any]:
    """Measure both sizes with both senders."""
    figures: list[Figure] = []
    ratios: dict[str, float | None] = {}
    for value_bytes in VALUE_SIZES:
        count = (QUICK_CORPUS_BYTES if quick else CORPUS_BYTES) // (value_bytes + OVERHEAD_BYTES)
        for kind, sender in SENDERS.items():
            name = f"client.{value_bytes}{kind}"
            with sender(count, value_bytes) as connection_string:
                figure, ratios[f"{name}.of_receive"] = measure(name, connection_string, count, quick)
            figures.append(figure)
    return report(figures, ratios)


def measure(name: str, connection_string: str, count: int, quick: bool) -> tuple[Figure, float]:
    """(client and receive-only loop in turns, ratio of the two)."""
    from dcpstream.client import BucketReader

    with BucketReader(connection_string, **LOGIN) as cluster:
        ends = cluster.high_seqnos()
    total = receive_only(connection_string, ends, None)
    assert read_all(connection_string, ends) == count
    client, receive = measure_in_turns(
        partial(read_all, connection_string, ends),
        partial(receive_only, connection_string, ends, total),
        repeats=repeats_for(quick),
    )
    rates = client.cpu_rates(total / 1e9)
    base = receive.cpu_rates(total / 1e9)
    figure = Figure(
        name=name,
        value=median(rates),
        unit="GB/s",
        baseline="receive only",
        baseline_value=median(base),
        repeats=client.repeats,
        samples=rates,
        note=f"{count} documents; {count / client.cpu / 1e6:.2f} M msg/s of CPU time, all table columns",
    )
    return figure, median_of_ratios(rates, base)
