"""Steady load: whether memory of a node and of its clients grows while documents change at a steady rate for an hour.

`python -m lab.bench.steady --minutes 60 --rate 500` starts processes of their own: a node with a data directory, a
writer, a client that reads Arrow batches and acknowledges them now and then, and a client that reads `changes()` and
saves its positions now and then. `--spark` adds a streaming query of Spark into the noop sink. The writer changes a
fixed set of documents; some changes delete, and some write a document that expires. So the node's index, the tombstones
and the live bytes in its files soon stay the same, and the rest of the hour shows growth.

Each minute prints a line. The table at the end has the growth of each process in an hour: the slope of a line through
the second half of the minutes, by least squares. It is more than noise if it exceeds three standard errors of the
slope. The peak is that of the kernel (VmHWM), which starts again each minute. `--output` keeps the numbers as JSON, and
`--plot` draws them. Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lab.bench.common import cpu_seconds_of, median
from lab.bench.first_load import descendants
from lab.bench.run import columns, machine, versions

DOCUMENTS = 200_000
VALUE_BYTES = 256
VBUCKETS = 1024
BURST_S = 0.2
"""Time between two calls of the writer."""

DELETE_SHARE = 0.05
EXPIRE_SHARE = 0.05
EXPIRY_S = 300
"""Life of a document that expires. Half of them are changed again before; the node's pager finds the rest."""

SAVE_S = 5.0
"""Time between two saves of a client's positions."""

TRIGGER = "30 seconds"
"""Trigger of the Spark query. A micro-batch asks all vbuckets, which costs as much as thousands of changes."""

FORGOTTEN_S = 120.0
"""Age at which a burst that a client has not seen counts as lost."""

SAMPLES = 12
"""Samples of a run at least: half of them give the growth."""

ANSWER_TIMEOUT_S = 60.0
START_TIMEOUT_S = 300.0
WRITES_PER_CALL = 20_000
HEAD = '{"burst":"'
STAMP = slice(len(HEAD), len(HEAD) + 8)
"""Place of the burst's number in a value."""

ERRORS = 3.0
"""Growth of more standard errors than this is more than noise."""

STATISTICS = ("curr_items", "mem_used", "ep_kv_size", "ep_cache_size", "ep_pending_bytes", "ep_db_data_size")

Ask = Callable[[], Any]


# ------------------------------------------------------------------------------------------------------ a line, growth


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through samples, by least squares.

    Attributes:
        slope: change of the value in one unit of x.
        error: standard error of the slope. Neighbouring samples that are alike count as fewer samples.
        middle: value of the line at the middle of the samples.
    """

    slope: float
    error: float
    middle: float

    @property
    def is_growth(self) -> bool:
        """Whether the value rises by more than noise."""
        return self.slope > ERRORS * self.error


def line_through(xs: Sequence[float], ys: Sequence[float]) -> Line | None:
    """The line; None for fewer than four samples.

    Source: Santer et al. 2000, doi:10.1029/1999JD901105, for the number of independent samples.
    """
    count = len(xs)
    if count < 4:
        return None
    if min(ys) == max(ys):
        return Line(0.0, 0.0, ys[0])
    slope, start = statistics.linear_regression(xs, ys)
    rest = [y - start - slope * x for x, y in zip(xs, ys, strict=True)]
    squares = math.fsum(one * one for one in rest)
    alike = math.fsum(a * b for a, b in pairwise(rest)) / squares if squares else 0.0
    independent = count * (1 - alike) / (1 + alike) if alike > 0 else count
    middle = statistics.fmean(xs)
    spread = math.fsum((x - middle) ** 2 for x in xs)
    return Line(slope, math.sqrt(squares / max(independent - 2, 1) / spread), start + slope * middle)


def growth(series: Sequence[tuple[float, float]]) -> Line | None:
    """Growth in an hour of a value, from the second half of its (minute, value)."""
    last = series[-1][0] if series else 0.0
    later = [(minute / 60, value) for minute, value in series if minute > last / 2]
    return line_through([x for x, _ in later], [y for _, y in later])


# -------------------------------------------------------------------------------------------------------- the processes


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory and the CPU time of a process."""

    rss_kb: int
    peak_kb: int
    anonymous_kb: int
    threads: int
    descriptors: int
    cpu_s: float


def usage_of(pid: int) -> Usage:
    """From /proc."""
    status = status_numbers(Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace"))
    return Usage(
        rss_kb=status["VmRSS"],
        peak_kb=status["VmHWM"],
        anonymous_kb=status["RssAnon"],
        threads=status["Threads"],
        descriptors=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        cpu_s=cpu_seconds_of(pid),
    )


def parent_of(pid: int) -> int:
    """The id of a process's parent."""
    return status_numbers(Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace"))["PPid"]


def status_numbers(text: str) -> dict[str, int]:
    """The fields of a /proc/…/status that begin with a number: memory in kB, threads."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        first = rest.split()[:1]
        if first and first[0].isdecimal():
            found[name] = int(first[0])
    return found


def usages_of(pids: Mapping[str, int]) -> dict[int, Usage]:
    """The usage of each process, without those that have ended. Lets VmHWM start again from VmRSS."""
    found = {}
    for pid in pids.values():
        with contextlib.suppress(OSError, KeyError):  # a process that ends has no memory, then no files
            found[pid] = usage_of(pid)
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    return found


def directory_bytes(path: Path) -> dict[str, int]:
    """Bytes of the files below a directory, by the suffix of their names."""
    found: dict[str, int] = {}
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):  # compaction deletes files meanwhile
            if file.is_file():
                suffix = file.suffix or file.name
                found[suffix] = found.get(suffix, 0) + file.stat().st_size
    return found


def value_of(document: int, burst: int) -> bytes:
    """JSON of `VALUE_BYTES` that has the burst at `STAMP`."""
    head = f'{HEAD}{burst:08d}","document":{document},"rest":"'
    return (head + "x" * (VALUE_BYTES - len(head) - 2) + '"}').encode()


def changes_of(
    dice: random.Random, documents: int, burst: int, count: int
) -> tuple[list[tuple[str, bytes | None]], list[tuple[str, bytes | None]]]:
    """The changes of a burst: updates and deletions, and those that expire."""
    lasting: list[tuple[str, bytes | None]] = []
    expiring: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        document, kind = dice.randrange(documents), dice.random()
        key = f"document-{document:08d}"
        if kind < DELETE_SHARE:
            lasting.append((key, None))
        elif kind < DELETE_SHARE + EXPIRE_SHARE:
            expiring.append((key, value_of(document, burst)))
        else:
            lasting.append((key, value_of(document, burst)))
    return lasting, expiring


def write(connection_string: str, control: Connection, documents: int, rate: float) -> None:
    """The writer's process: loads the documents, waits for an order, and changes them until it is ended.

    Answers: burst → time of its acknowledgement, since the last answer.
    """
    from dcpstream.client.kv.client import KvClient

    dice, pause = random.Random(1), threading.Event()
    with KvClient(connection_string, "Administrator", "password", "default") as kv:
        for first in range(0, documents, WRITES_PER_CALL):
            numbers = range(first, min(first + WRITES_PER_CALL, documents))
            kv.set_many((f"document-{number:08d}", value_of(number, 0)) for number in numbers)
        control.send("ready")
        control.recv()
        acknowledged: dict[int, float] = {}
        begin, done, burst = time.monotonic(), 0, 0
        while True:
            due = int((time.monotonic() - begin) * rate) - done
            if due > 0:
                burst += 1
                lasting, expiring = changes_of(dice, documents, burst, due)
                kv.mutate_many(lasting)
                kv.mutate_many(expiring, expiry=EXPIRY_S)
                acknowledged[burst] = time.monotonic()
                done += due
            if control.poll():
                control.recv()
                control.send({"bursts": acknowledged, "changes": done})
                acknowledged = {}
            pause.wait(BURST_S)


@dataclass(slots=True)
class Seen:
    """The bursts that a client has read since its last answer."""

    bursts: dict[int, float] = field(default_factory=dict)
    """Burst → time of its last change."""
    changes: dict[str, int] = field(default_factory=dict)
    """Operation → rows, since the start."""

    def note(self, op: str, stamps: Iterable[bytes], rows: int) -> None:
        """Some rows of one operation have come."""
        now = time.monotonic()
        for stamp in set(stamps):
            self.bursts[int(stamp)] = now
        self.changes[op] = self.changes.get(op, 0) + rows

    def answer(self, control: Connection) -> None:
        """Answer an order, if there is one."""
        if control.poll():
            control.recv()
            control.send({"bursts": self.bursts, "changes": self.changes})
            self.bursts = {}


def read_batches(connection_string: str, control: Connection, directory: Path) -> None:
    """The process of a client with Arrow batches."""
    from dcpstream import Client, FileOffsetStore, StreamOptions

    seen, saved = Seen(), time.monotonic()
    with Client(connection_string, username="Administrator", password="password", bucket="default") as client:
        for batch in client.stream(StreamOptions(store=FileOffsetStore(directory / "positions.json"))):
            rows = batch.record_batch
            for op, value in zip(rows["op"].to_pylist(), rows["value"].to_pylist(), strict=True):
                seen.note(op, [value[STAMP]] if value else [], 1)
            if time.monotonic() - saved >= SAVE_S:
                saved = time.monotonic()
                batch.ack()
            seen.answer(control)


def read_changes(connection_string: str, control: Connection, directory: Path) -> None:
    """The process of a client with `changes()`."""
    from dcpstream import Client, SqliteOffsetStore
    from dcpstream.client import SavedOffset
    from dcpstream.model import StreamOffset

    store, unsaved = SqliteOffsetStore(directory / "positions.sqlite"), dict[int, StreamOffset]()
    seen, saved = Seen(), time.monotonic()
    with Client(connection_string, username="Administrator", password="password", bucket="default") as client:
        for change in client.changes():
            seen.note(change.op, [change.value[STAMP]] if change.value else [], 1)
            unsaved[change.vbid] = change.offset
            if time.monotonic() - saved >= SAVE_S:
                saved = time.monotonic()
                store.save({vbid: SavedOffset(offset) for vbid, offset in unsaved.items()})
                unsaved.clear()
            seen.answer(control)


def read_spark(connection_string: str, control: Connection, directory: Path) -> None:
    """The process of a Spark query. It answers with the rows so far and the live bytes of the JVM's heap."""
    from dcpstream_spark import build_session

    spark = build_session("bench steady", master="local[1]", driver_memory="512m")
    query = (
        spark.readStream.format("dcp")
        .options(connectionString=connection_string, username="Administrator", password="password", bucket="default")
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime=TRIGGER)
        .start()
    )
    jvm: Any = spark._jvm
    java = jvm.java.lang
    control.send("ready")
    try:
        while True:
            control.recv()
            if (error := query.exception()) is not None:
                raise error
            java.System.gc()
            heap = java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
            last = query.lastProgress
            control.send({"bursts": {}, "changes": {"batches": last.batchId if last else 0}, "heap_bytes": heap})
    finally:
        query.stop()
        spark.stop()


CLIENTS = {"batches": read_batches, "changes": read_changes}


def until_closed(target: Callable[..., None], *arguments: Any) -> None:
    """Run a process's function until its pipe is closed."""
    with contextlib.suppress(EOFError):
        target(*arguments)


class Child:
    """A process that this one started, and the pipe to it."""

    def __init__(self, name: str, target: Callable[..., None], connection_string: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._control, theirs = context.Pipe()
        given = (target, connection_string, theirs, *arguments)
        self.process = context.Process(target=until_closed, args=given, name=name, daemon=True)
        self.process.start()
        theirs.close()

    def wait(self, timeout_s: float) -> Any:
        """The next object that the process sends."""
        if not self._control.poll(timeout_s):
            raise TimeoutError(f"{self._name} does not answer within {timeout_s:g} s")
        try:
            return self._control.recv()
        except EOFError as error:
            raise RuntimeError(f"{self._name} has ended; its error is above") from error

    def ask(self) -> Any:
        """Its answer."""
        self.order()
        return self.wait(ANSWER_TIMEOUT_S)

    def order(self) -> None:
        """Have it go on, or answer."""
        self._control.send("answer")

    def stop(self) -> None:
        """Have it end: it does so when its pipe is closed."""
        self._control.close()
        self.process.join(ANSWER_TIMEOUT_S)
        self.process.kill()


def processes_of(node: int, children: Mapping[str, Child]) -> dict[str, int]:
    """Name → process id; Spark's query has several."""
    found = {"node": node}
    for name, child in children.items():
        assert child.process.pid is not None
        if not child.process.is_alive():
            raise RuntimeError(f"{name} has ended; its error is above")
        if name != "Spark":
            found[name] = child.process.pid
            continue
        daemons: set[int] = set()
        for pid, command in descendants(child.process.pid):
            if pid == child.process.pid:
                found["Spark's driver"] = pid
            elif "SparkSubmit" in command:
                found["Spark's JVM"] = pid
            elif "python_streaming_source_runner" in command:
                found["Spark's source"] = pid
            elif "pyspark.daemon" in command:
                with contextlib.suppress(OSError):
                    if parent_of(pid) in daemons:
                        found["Spark's worker"] = pid
                daemons.add(pid)
    return found


# -------------------------------------------------------------------------------------------------------------- samples


class Ages:
    """The times from the acknowledgement of a burst until a client has its last change."""

    def __init__(self) -> None:
        self._waiting: dict[int, float] = {}
        self._early: dict[int, float] = {}
        """Bursts that were seen before the writer reported their acknowledgement: those on their way when it was
        asked."""
        self.lost = 0

    def between(self, acknowledged: Mapping[int, float], seen: Mapping[int, float], now: float) -> list[float]:
        """Seconds, rising; 0 for a client that was earlier than the acknowledgement. Each burst counts once."""
        self._waiting |= acknowledged
        known = self._early | dict(seen)
        found = [max(known[burst] - self._waiting.pop(burst), 0.0) for burst in known if burst in self._waiting]
        newest = max(acknowledged, default=0)
        self._early = {burst: at for burst, at in known.items() if burst > newest}
        old = [burst for burst, at in self._waiting.items() if now - at > FORGOTTEN_S]
        for burst in old:
            del self._waiting[burst]
        self.lost += len(old)
        return sorted(found)


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The percentile of rising values by nearest rank; None without values."""
    return values[min(len(values) - 1, len(values) * percent // 100)] if values else None


def follow(
    node_pid: int,
    data: Path,
    statistics_of_node: Ask,
    writer: Child,
    clients: Mapping[str, Child],
    minutes: float,
    interval_s: float,
) -> Iterator[dict[str, Any]]:
    """A sample at the end of each interval."""
    pause, begin = threading.Event(), time.monotonic()
    ages = {name: Ages() for name in clients if name != "Spark"}
    pids = processes_of(node_pid, {"writer": writer, **clients})
    used = {pid: usage.cpu_s for pid, usage in usages_of(pids).items()}
    number = 0
    while number * interval_s < minutes * 60:
        number += 1
        pause.wait(max(0.0, begin + number * interval_s - time.monotonic()))
        pids = processes_of(node_pid, {"writer": writer, **clients})
        usages = usages_of(pids)
        found = statistics_of_node()
        written = writer.ask()
        sample: dict[str, Any] = {
            "minute": round((time.monotonic() - begin) / 60, 3),
            "load": round(os.getloadavg()[0], 2),
            "changes": written["changes"],
            "processes": {},
            "clients": {},
            "node": {name: int(found[name]) for name in STATISTICS},
            "directory": directory_bytes(data),
        }
        for name, pid in pids.items():
            if pid in usages:
                spent = round(usages[pid].cpu_s - used.get(pid, 0.0), 3)
                sample["processes"][name] = asdict(usages[pid]) | {"cpu_s": spent}
                used[pid] = usages[pid].cpu_s
        for name, client in clients.items():
            read = client.ask()
            facts = {"rows": read["changes"]} | ({"heap_bytes": read["heap_bytes"]} if "heap_bytes" in read else {})
            if name in ages:
                times = ages[name].between(written["bursts"], read["bursts"], time.monotonic())
                for percent in (50, 99):
                    at = percentile(times, percent)
                    facts[f"p{percent}_ms"] = None if at is None else round(at * 1000, 2)
                facts["lost"] = ages[name].lost
            sample["clients"][name] = facts
        yield sample


# -------------------------------------------------------------------------------------------------------------- results


def minute_line(sample: Mapping[str, Any]) -> str:
    """A sample for people."""
    memory = " ".join(
        f"{name} {one['rss_kb'] / 1024:.1f}/{one['peak_kb'] / 1024:.1f}" for name, one in sample["processes"].items()
    )
    cpu = sum(one["cpu_s"] for one in sample["processes"].values())
    files = sum(one["descriptors"] for one in sample["processes"].values())
    threads = sum(one["threads"] for one in sample["processes"].values())
    late = " ".join(
        f"{name} {one['p50_ms']}/{one['p99_ms']}" for name, one in sample["clients"].items() if "p50_ms" in one
    )
    heap = "".join(
        f"; live heap {one['heap_bytes'] / 2**20:.1f} MiB" for one in sample["clients"].values() if "heap_bytes" in one
    )
    return (
        f"{sample['minute']:6.1f} min {sample['changes']:>10,} changes; RSS/peak MiB: {memory}; {files} files, "
        f"{threads} threads, {cpu:.1f} CPU s; {sum(sample['directory'].values()) / 2**20:.1f} MiB of data, "
        f"{sample['node']['curr_items']:,} items; p50/p99 ms: {late}{heap}; load {sample['load']}"
    )


def series_of(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """(minute, value) of everything that must not grow; memory and files in MiB."""
    found: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        values: dict[str, float] = {}
        for name, one in sample["processes"].items():
            values[name] = one["rss_kb"] / 1024
            values[f"{name}, peak"] = one["peak_kb"] / 1024
            values[f"{name}, descriptors"] = one["descriptors"]
            values[f"{name}, threads"] = one["threads"]
        values["node's index and buffers"] = (sample["node"]["mem_used"] - sample["node"]["ep_cache_size"]) / 2**20
        values["node's directory"] = sum(sample["directory"].values()) / 2**20
        values["items"] = sample["node"]["curr_items"]
        for name, facts in sample["clients"].items():
            if "heap_bytes" in facts:
                values[f"{name}, live heap"] = facts["heap_bytes"] / 2**20
        for name, value in values.items():
            found.setdefault(name, []).append((sample["minute"], value))
    return found


def summary(samples: Sequence[Mapping[str, Any]]) -> str:
    """The table of growth, and the CPU time."""
    rows: list[tuple[str, ...]] = [("MiB or number", "middle", "most", "growth in an hour", "error", "")]
    for name, series in series_of(samples).items():
        line, most = growth(series), f"{max(value for _, value in series):,.1f}"
        if line is None:
            rows.append((name, "", most, "", "", "too few samples"))
            continue
        verdict = "grows" if line.is_growth else "within noise" if line.error else "constant"
        rows.append((name, f"{line.middle:,.1f}", most, f"{line.slope:+,.2f}", f"{line.error:,.2f}", verdict))
    seconds = (samples[-1]["minute"] - samples[0]["minute"]) * 60 if len(samples) > 1 else 0.0
    shares = {
        name: sum(one["processes"].get(name, {}).get("cpu_s", 0.0) for one in samples[1:]) / seconds
        for name in (samples[-1]["processes"] if seconds else ())
    }
    lines = columns(rows)
    lines.append("share of a core: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    for name, facts in (samples[-1]["clients"] if samples else {}).items():
        if "lost" in facts:
            p50, p99 = (median([one["clients"][name][kind] or 0.0 for one in samples]) for kind in ("p50_ms", "p99_ms"))
            lines.append(
                f"{name}: medians of the minutes' p50 {p50:.1f} ms and p99 {p99:.1f} ms, {facts['lost']} bursts lost; "
                f"rows {facts['rows']}"
            )
    return "\n".join(lines)


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Draw memory, files and times."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    samples = found["samples"]
    minutes = [one["minute"] for one in samples]
    figure, (memory, disk, late) = plt.subplots(3, 1, sharex=True, figsize=(8, 8), height_ratios=(3, 1, 1))
    for name in samples[-1]["processes"]:
        if name == "Spark's JVM":  # its heap grows to its limit; what lives in it is of interest
            continue
        mine = [one for one in samples if name in one["processes"]]
        at = [one["minute"] for one in mine]
        line = memory.plot(at, [one["processes"][name]["rss_kb"] / 1024 for one in mine], label=name)[0]
        memory.plot(
            at,
            [one["processes"][name]["peak_kb"] / 1024 for one in mine],
            color=line.get_color(),
            linestyle=":",
            linewidth=1,
        )
    for name, facts in samples[-1]["clients"].items():
        if "heap_bytes" in facts:
            live = [one["clients"][name]["heap_bytes"] / 2**20 for one in samples]
            memory.plot(minutes, live, label="Spark's live heap")
    memory.set_ylabel("MiB, dotted: peak")
    disk.plot(minutes, [sum(one["directory"].values()) / 2**20 for one in samples], color="tab:brown")
    disk.set_ylabel("data, MiB")
    for name in (name for name, facts in samples[-1]["clients"].items() if "p50_ms" in facts):
        line = late.plot(minutes, [one["clients"][name]["p50_ms"] for one in samples], label=f"{name}, p50")[0]
        late.plot(
            minutes,
            [one["clients"][name]["p99_ms"] for one in samples],
            color=line.get_color(),
            linestyle=":",
            label=f"{name}, p99",
        )
    late.set_ylabel("ms to the client")
    late.set_xlabel("minutes")
    memory.legend(ncols=4, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.19), fontsize="small")
    late.legend(ncols=4, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.35), fontsize="small")
    late.set_yscale("log")
    for axes in (memory, disk, late):
        axes.grid(alpha=0.3)
    for axes in (memory, disk):
        axes.set_ylim(bottom=0)
    figure.suptitle(f"{found['rate']:,} changes a second of {found['documents']:,} documents")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def measure(given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run everything, with a line for each sample."""
    from dcpstream.client.kv.client import KvClient
    from dcpstream_node import Node

    load, samples = os.getloadavg()[0], list[dict[str, Any]]()
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Node(vbuckets=VBUCKETS, system_scope=False, path=directory / "node", process=True))
        at = node.connection_string

        def start(name: str, target: Callable[..., None], *arguments: Any) -> Child:
            child = Child(name, target, at, *arguments)
            stack.callback(child.stop)
            return child

        begin = time.monotonic()
        writer = start("writer", write, given.documents, given.rate)
        writer.wait(START_TIMEOUT_S)
        print(f"{given.documents:,} documents written in {time.monotonic() - begin:.0f} s", flush=True)
        clients = {}
        for name, target in {**CLIENTS, **({"Spark": read_spark} if given.spark else {})}.items():
            (directory / name).mkdir()
            clients[name] = start(name, target, directory / name)
        if given.spark:
            clients["Spark"].wait(START_TIMEOUT_S)
        writer.order()
        kv = stack.enter_context(KvClient(at, "Administrator", "password", "default"))
        interval_s = min(60.0, given.minutes * 60 / SAMPLES)
        for sample in follow(node.pid, directory / "node", kv.stats, writer, clients, given.minutes, interval_s):
            samples.append(sample)
            print(minute_line(sample), flush=True)
            if given.output is not None:  # what there is, should the run be cut
                given.output.write_text(json.dumps({"samples": samples}) + "\n", encoding="utf-8")
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine() | {"load_at_start": round(load, 2)},
        "versions": versions(),
        "rate": given.rate,
        "documents": given.documents,
        "value_bytes": VALUE_BYTES,
        "samples": samples,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.steady")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=500, help="changes a second")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--spark", action="store_true", help="a streaming query of Spark, too")
    parser.add_argument("--directory", type=Path, default=None, help="where data is kept; temporary by default")
    parser.add_argument("--output", type=Path, default=None, help="a file for the numbers, as JSON")
    parser.add_argument("--plot", type=Path, default=None, help="a file for a picture of memory, files and times")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        found = measure(given, Path(name))
    print(summary(found["samples"]))
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.plot is not None:
        plot(found, given.plot)


if __name__ == "__main__":
    main()
