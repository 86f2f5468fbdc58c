"""Delivery: the time from the acknowledgement of a write until a client has it, at 5,000 writes a second.

A node, a writer and a client are processes of their own. The writer sends bursts of 50 documents every 10 ms to 1,024
vbuckets and notes when each burst is acknowledged. The client reads Arrow batches, notes when it has the last change of
each burst, and saves its positions every few seconds, as a program does that resumes after a crash. A change may reach
the client before its writer has the acknowledgement; that counts as 0.

The baseline is the time for which a process sleeps too long: what the machine's other work adds to any wake-up.
"""

from __future__ import annotations

import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lab.bench.client import LOGIN, node_process
from lab.bench.common import Figure, report
from lab.bench.latency import percentile
from lab.bench.steady import Child

VBUCKETS = 1024
RATE = 5_000
BURST = 50
BURST_S = BURST / RATE
SECONDS, QUICK_SECONDS = 20.0, 8.0
KEYS = 50_000
SAVE_S = 5.0
"""Between two saves, each of which writes the positions of all vbuckets."""
TIMEOUT_S = 120.0
STAMP_BYTES = 8


def write(connection_string: str, control: Connection, seconds: float) -> None:
    """The writer's process: bursts at the rate, if it can; sends burst → time of its acknowledgement."""
    from dcpstream.client import KvClient

    acknowledged: list[float] = []
    late: list[float] = []
    with KvClient(connection_string, **LOGIN) as kv:
        kv.set_many((f"document-{number:06d}", bytes(256)) for number in range(KEYS))
        control.send("ready")
        control.recv()
        begin = time.monotonic()
        for burst in range(int(seconds / BURST_S)):
            due = begin + burst * BURST_S
            ahead = due - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
                late.append(time.monotonic() - due)
            value = burst.to_bytes(STAMP_BYTES, "big") + bytes(256 - STAMP_BYTES)
            first = burst * BURST
            kv.set_many((f"document-{number % KEYS:06d}", value) for number in range(first, first + BURST))
            acknowledged.append(time.monotonic())
        control.send((acknowledged, late, time.monotonic() - begin))


def read(connection_string: str, control: Connection, seconds: float, directory: str) -> None:
    """The client's process: says when it has all documents.

    Sends: burst → time of its last change, and how long each save took.
    """
    from dcpstream import Client, FileOffsetStore, StreamOptions

    seen: dict[int, float] = {}
    loading, left = KEYS, int(seconds / BURST_S) * BURST
    saves: list[float] = []
    saved = time.monotonic()
    with Client(connection_string, username="Administrator", password="password", bucket="default") as client:
        for batch in client.stream(StreamOptions(store=FileOffsetStore(Path(directory) / "positions"))):
            now = time.monotonic()
            values = batch.record_batch["value"].to_pylist()
            if loading:
                loading -= len(values)
                if not loading:
                    control.send("ready")
                continue
            for stamp in {value[:STAMP_BYTES] for value in values}:
                seen[int.from_bytes(stamp, "big")] = now
            left -= len(values)
            if now - saved >= SAVE_S or left <= 0:
                begin = time.monotonic()
                batch.ack()
                saved = time.monotonic()
                saves.append(saved - begin)
            if left <= 0:
                break
    control.send((seen, saves))


def run(quick: bool) -> dict[str, Any]:
    """Measure."""
    seconds = QUICK_SECONDS if quick else SECONDS
    with tempfile.TemporaryDirectory(prefix="dcpstream-bench-") as directory, node_process(VBUCKETS) as address:
        writer = Child("writer", write, address, seconds)
        writer.wait(TIMEOUT_S)
        reader = Child("client", read, address, seconds, directory)
        reader.wait(TIMEOUT_S)
        writer.order()
        acknowledged, late, took = writer.wait(TIMEOUT_S)
        seen, saves = reader.wait(TIMEOUT_S)
        for one in (writer, reader):
            one.stop()
    times = [max(0.0, seen[burst] - when) * 1e3 for burst, when in enumerate(acknowledged)]
    late = [one * 1e3 for one in late] or [0.0]
    rate = len(times) * BURST / took
    figures = [
        Figure(
            name=f"delivery.p{percent}",
            value=percentile(times, percent),
            unit="ms",
            baseline="sleeping too long",
            baseline_value=percentile(late, percent),
            repeats=len(times),
            note=f"{rate:,.0f} writes a second; {len(saves)} saves of positions took up to {max(saves) * 1e3:.0f} ms",
        )
        for percent in (50, 99)
    ]
    return report(figures, {"delivery.p99_ms": figures[1].value})
