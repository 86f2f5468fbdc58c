"""The disk store: opening, memory of the index, writing, reading by seqno.

Documents have 18-byte keys (and one byte of collection prefix) and 256-byte values. The store is loaded in commits of
5,000 documents. With 1,024 vbuckets that makes blocks of 5 documents, as in a node with 100,000 sets per second and a
commit every 50 ms: the hardest case for opening and reading. The other case is a single vbucket.
"""

from __future__ import annotations

import ctypes
import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dcpstream.model import FailoverLog, VbucketState
from dcpstream.wire.stored.block import FrameBlock, Version, encode_stored_mutation
from dcpstream_node.store import DiskBucketStore, MemoryBucketStore
from lab.bench.common import MEMCPY_BYTES, Figure, measure_in_turns, median, median_of_ratios, memcpy_call, report

DOCUMENTS = 1_000_000
QUICK_DOCUMENTS = 100_000
COMMIT_DOCUMENTS = 5_000
VBUCKETS = (1, 1024)
REOPENS = 5
QUICK_REOPENS = 2
APPENDS = 100_000
"""Frames of the append figures; with more, page faults of a growing process would dominate."""
VALUE = b"v" * 256

Frames = list[tuple[int, bytes, int, bytes]]
"""(vbid, key, seqno, frame) of each document."""


def documents(count: int, vbuckets: int, first: int = 0) -> Frames:
    """Documents spread evenly over the vbuckets."""
    made = []
    for number in range(first, first + count):
        vbid, seqno = number % vbuckets, number // vbuckets + 1
        key = b"\0flight-2013-%06d" % number
        frame = encode_stored_mutation(Version(key, VALUE, 1), vbid=vbid, by_seqno=seqno, cas=number + 1)
        made.append((vbid, key, seqno, frame))
    assert len(made[0][1]) == 19
    return made


def load(path: Path, vbuckets: int, count: int) -> tuple[list[float], list[float]]:
    """Fill a new store and close it like a crash; CPU seconds of each commit's appends and of the commit itself."""
    store = DiskBucketStore(path, vbuckets)
    with store.metadata_batch():
        for vbid in range(vbuckets):
            store.create_vbucket(vbid, VbucketState.ACTIVE, FailoverLog.of((1, 0)))
    appending, committing = [], []
    for first in range(0, count, COMMIT_DOCUMENTS):
        batch = documents(COMMIT_DOCUMENTS, vbuckets, first)
        started = time.process_time()
        for vbid, key, seqno, frame in batch:
            store.vbuckets[vbid].append(frame, key, seqno)
        appended = time.process_time()
        store.commit()
        committing.append(time.process_time() - appended)
        appending.append(appended - started)
    store.close(clean=False)
    return appending, committing


def reopen_cpu(path: Path, vbuckets: int, count: int, repeats: int) -> list[float]:
    """CPU seconds of each opening."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        store = DiskBucketStore(path, vbuckets)
        seconds.append(time.process_time() - started)
        assert sum(vbucket.item_count for vbucket in store.vbuckets.values()) == count
        store.close(clean=False)
        del store
        gc.collect()
    return seconds


def resident_of_index(path: Path, vbuckets: int, count: int) -> float:
    """Growth of a fresh process when it opens the store, in bytes per document, with the allocator's overhead."""
    code = "import sys; from lab.bench.store import _grow; _grow(sys.argv[1], int(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(vbuckets)], check=True, capture_output=True, text=True
    )
    return float(json.loads(done.stdout)) / count


def _grow(path: str, vbuckets: int) -> None:
    """In the child: open the store, and print the growth of resident memory."""
    from lab.bench.common import resident_bytes

    with tempfile.TemporaryDirectory() as other:
        load(Path(other), vbuckets, COMMIT_DOCUMENTS)
        DiskBucketStore(other, vbuckets).close()
    release_free_memory()
    before = resident_bytes()
    store = DiskBucketStore(path, vbuckets)
    release_free_memory()
    print(resident_bytes() - before)
    store.close(clean=False)


def release_free_memory() -> None:
    """Return the allocator's free memory to the system, so that it is not counted."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def all_blocks(store: DiskBucketStore | MemoryBucketStore) -> Iterator[FrameBlock]:
    """Every vbucket from end to end, like a backfill."""
    for vbucket in store.vbuckets.values():
        after = 0
        while (block := vbucket.read(after, vbucket.high_seqno)).count:
            yield block
            after = block.last_seqno


def scan_call(store: DiskBucketStore | MemoryBucketStore) -> Callable[[], int]:
    """A call that reads every vbucket from end to end and returns the bytes."""
    return lambda: sum(block.size for block in all_blocks(store))


def append_calls(count: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Calls that append the same documents to a new memory store: one by one, and in batches of 250."""
    made = documents(count, 1)

    def fresh() -> Any:
        store = MemoryBucketStore(1)
        return store.create_vbucket(0, VbucketState.ACTIVE, FailoverLog.of((1, 0)))

    def singly() -> None:
        vbucket = fresh()
        for _, key, seqno, frame in made:
            vbucket.append(frame, key, seqno)

    batches = [made[first : first + 250] for first in range(0, count, 250)]
    columns = [([row[3] for row in batch], [row[1] for row in batch], [row[2] for row in batch]) for batch in batches]

    def in_batches() -> None:
        vbucket = fresh()
        for frames, keys, seqnos in columns:
            vbucket.append_many(frames, keys, seqnos)

    return singly, in_batches


def run(quick: bool) -> dict[str, Any]:
    """Measure."""
    count = QUICK_DOCUMENTS if quick else DOCUMENTS
    repeats = QUICK_REOPENS if quick else REOPENS
    scale = DOCUMENTS / count
    figures: list[Figure] = []
    reopened: dict[int, float] = {}
    index_bytes: dict[int, float] = {}
    scans: dict[int, float] = {}
    note = "" if count == DOCUMENTS else f"{count} documents, scaled to {DOCUMENTS}"
    for vbuckets in VBUCKETS:
        directory = Path(tempfile.mkdtemp(prefix="dcpstream-bench-"))
        try:
            _, committing = load(directory, vbuckets, count)
            figures.append(
                Figure(
                    name=f"store.commit.{vbuckets}vb.cpu_us_per_document",
                    value=median(committing) / COMMIT_DOCUMENTS * 1e6,
                    unit="µs",
                    repeats=len(committing),
                    note=f"commits of {COMMIT_DOCUMENTS}, checksums, one write, one fdatasync",
                )
            )
            seconds = [value * scale for value in reopen_cpu(directory, vbuckets, count, repeats)]
            reopened[vbuckets] = median(seconds)
            figures.append(
                Figure(
                    name=f"store.reopen_1m.{vbuckets}vb",
                    value=reopened[vbuckets],
                    unit="CPU s",
                    repeats=repeats,
                    samples=tuple(seconds),
                    note=note,
                )
            )
            index_bytes[vbuckets] = resident_of_index(directory, vbuckets, count)
            figures.append(
                Figure(
                    name=f"store.index_bytes_per_document.{vbuckets}vb",
                    value=index_bytes[vbuckets],
                    unit="B",
                    note="growth of resident memory of a fresh process",
                )
            )
            with DiskBucketStore(directory, vbuckets) as store:
                scan = scan_call(store)
                size = scan()
                scanned, copied = measure_in_turns(scan, memcpy_call(), repeats=3 if quick else 5)
            rates, baseline = scanned.cpu_rates(size / 1e9), copied.cpu_rates(MEMCPY_BYTES / 1e9)
            scans[vbuckets] = median_of_ratios(rates, baseline)
            figures.append(
                Figure(
                    name=f"store.scan.{vbuckets}vb",
                    value=median(rates),
                    unit="GB/s",
                    baseline="memcpy of 64 MiB",
                    baseline_value=median(baseline),
                    repeats=scanned.repeats,
                    samples=rates,
                    note="read by seqno from files in the page cache",
                )
            )
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    singly, in_batches = append_calls(APPENDS)
    for name, timing in zip(
        ("append", "append_many"), measure_in_turns(singly, in_batches, repeats=3 if quick else 5), strict=True
    ):
        rates = timing.cpu_rates(APPENDS / 1e6)
        figures.append(
            Figure(
                name=f"store.{name}",
                value=median(rates),
                unit="M msg/s",
                repeats=timing.repeats,
                samples=rates,
                note="to memory, 256 B values, new keys",
            )
        )
    return report(
        figures,
        {
            "reopen_1m_cpu_s": max(reopened.values()),
            "index_bytes_per_document": max(index_bytes.values()),
            "store.scan.1vb.of_memcpy": scans[1],
            "store.scan.1024vb.of_memcpy": scans[1024],
        },
    )
