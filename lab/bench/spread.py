"""Spread: what one node, and two node processes that share its vbuckets, take from the machine's cores.

Two clients, each a process of its own, first write documents in pipelines of 50, and then read all vbuckets into Arrow
batches; each has half of the vbuckets. They ask one node, or each a node of its own: a cluster of two nodes without
replicas, whose nodes are processes. Rates are by the clock, because more processor time is what a second process is
for. On a machine with two cores the clients want them, too.
"""

from __future__ import annotations

import socket
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

from dcpstream.wire import Opcode, encode_request
from lab.bench.bare_server import ANSWER_BYTES
from lab.bench.client import LOGIN
from lab.bench.common import Figure, report
from lab.bench.ingest import VALUE_BYTES
from lab.bench.load import PASSWORD, connect
from lab.bench.over_socket import exchange, pieces
from lab.bench.steady import Child

VBUCKETS = 1024
CLIENTS = 2
WINDOW = 50
DOCUMENTS, QUICK_DOCUMENTS = 200_000, 40_000
"""Documents of each client."""
ROUNDS, QUICK_ROUNDS = 5, 3
TIMEOUT_S = 120.0


def client(connection_string: str, control: Connection, port: int, vbids: list[int], documents: int) -> None:
    """A client's process: writes and reads on demand; sends when each began and ended."""
    value = b"\x80" + bytes(VALUE_BYTES - 1)
    data = b"".join(
        encode_request(
            Opcode.SET, vbid=vbids[number % len(vbids)], key=b"\0doc-%010d" % number, extras=bytes(8), value=value
        )
        for number in range(documents)
    )
    windows = pieces(data, WINDOW)
    with connect(port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        control.send("ready")
        control.recv()
        begin = time.monotonic()
        exchange(connection, windows, WINDOW * ANSWER_BYTES)
        control.send((begin, time.monotonic()))
    control.recv()
    control.send(read(connection_string, vbids, documents))


def read(connection_string: str, vbids: list[int], documents: int) -> tuple[float, float]:
    """Read the vbuckets; when that began and ended."""
    from dcpstream.client import BucketReader, RowsRead, VbucketRange
    from dcpstream.model import StreamOffset

    with BucketReader(connection_string, **LOGIN | {"password": PASSWORD}) as cluster:
        ends = cluster.high_seqnos()
        begin, rows = time.monotonic(), 0
        for batch in cluster.read_ranges([VbucketRange(vbid, StreamOffset.ZERO, ends[vbid]) for vbid in vbids]):
            assert isinstance(batch, RowsRead)
            rows += batch.rows.num_rows
        assert rows == documents, f"{rows} of {documents} documents came"
        return begin, time.monotonic()


def one_round(nodes: int, documents: int) -> tuple[float, float]:
    """Documents a second that were written and read."""
    import dcpstream_node

    with dcpstream_node.Cluster(
        nodes=nodes, replicas=0, vbuckets=VBUCKETS, processes=True, password=PASSWORD, system_scope=False
    ) as cluster:
        ports = [node.port for node in cluster.nodes]
        names: list[str | None] = [node.name for node in cluster.nodes]
        owned: list[list[int]] = [[] for _ in range(CLIENTS)]
        for vbid, chain in enumerate(cluster.chains()):
            owned[names.index(chain[0]) if nodes > 1 else vbid % CLIENTS].append(vbid)
        clients = [
            Child(f"client {number}", client, cluster.connection_string, ports[number % nodes], vbids, documents)
            for number, vbids in enumerate(owned)
        ]
        rates = []
        try:
            for one in clients:
                one.wait(TIMEOUT_S)
            for _ in ("written", "read"):
                for one in clients:
                    one.order()
                times = [one.wait(TIMEOUT_S) for one in clients]
                took = max(end for _, end in times) - min(begin for begin, _ in times)
                rates.append(CLIENTS * documents / took)
        finally:
            for one in clients:
                one.stop()
    return rates[0], rates[1]


def run(quick: bool) -> dict[str, Any]:
    """Measure."""
    documents, rounds = (QUICK_DOCUMENTS, QUICK_ROUNDS) if quick else (DOCUMENTS, ROUNDS)
    found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for _ in range(rounds):
        for nodes, rates in found.items():
            rates.append(one_round(nodes, documents))
    figures, ratios = [], dict[str, float | None]()
    for place, name in enumerate(("write", "read")):
        one, two = ([rates[place] for rates in found[nodes]] for nodes in (1, 2))
        figure = Figure(
            name=f"spread.{name}",
            value=statistics.median(two) / 1e6,
            unit="M docs/s",
            baseline="one node, the same two clients",
            baseline_value=statistics.median(one) / 1e6,
            repeats=rounds,
            samples=tuple(rate / 1e6 for rate in two),
            note="two node processes that share the vbuckets, by the clock",
        )
        figures.append(figure)
        ratios[f"{figure.name}.of_one"] = statistics.median(b / a for a, b in zip(one, two, strict=True))
    return report(figures, ratios)
