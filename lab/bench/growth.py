"""The disk store as it grows: load, reopen, backfill and compaction at 0.1, 1 and 10 million documents of 256 bytes.

The figures are the CPU time per document at each size; the ratio compares the largest size with a tenth of it. Each
size has its own directory and fresh processes. The documents are spread over 1,024 vbuckets, with 100,000 per commit.
Making the frames is not measured. Before the compaction, half of the documents are written once more; its cost is per
live document.
"""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dcpstream.model import BucketSettings, FailoverLog, VbucketState
from dcpstream.wire.stored.block import Version, encode_stored_mutation
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.compact.compaction import CompactionOrder
from lab.bench.common import Figure, report, resident_bytes
from lab.bench.store import all_blocks, release_free_memory

SIZES = (100_000, 1_000_000, 10_000_000)
QUICK_SIZES = (20_000, 200_000)
VBUCKETS = 1024
COMMIT_DOCUMENTS = 100_000
VALUE = b"\x80" * 256
SETTINGS = BucketSettings(ram_quota_bytes=16 << 30, compact_at=1)
"""Compaction only on request, because it is measured separately."""
STEPS = ("load", "reopen", "backfill", "compact")
REPEATS = 3
"""Repetitions of opening and reading; the figure is the median."""
CHILD_TIMEOUT_S = 600


def write(store: DiskBucketStore, first: int, stop: int, seqnos: list[int]) -> float:
    """Write the documents with these numbers and commit; CPU seconds without making the frames."""
    rows: list[tuple[list[bytes], list[bytes], list[int]]] = [([], [], []) for _ in range(VBUCKETS)]
    for number in range(first, stop):
        vbid = number % VBUCKETS
        seqno = seqnos[vbid] = seqnos[vbid] + 1
        key = b"\0flight-2013-%08d" % number
        frames, keys, own = rows[vbid]
        frames.append(encode_stored_mutation(Version(key, VALUE, 1), vbid=vbid, by_seqno=seqno, cas=number + 1))
        keys.append(key)
        own.append(seqno)
    started = time.process_time()
    for vbid, (frames, keys, own) in enumerate(rows):
        if keys:
            store.vbuckets[vbid].append_many(frames, keys, own)
    store.commit()
    return time.process_time() - started


def read(store: DiskBucketStore) -> int:
    """Read every vbucket from end to end like a backfill; returns the number of rows."""
    return sum(block.count for block in all_blocks(store))


def measure_load(path: Path, documents: int) -> dict[str, float]:
    """CPU seconds of writing a new store."""
    store = DiskBucketStore(path, VBUCKETS, SETTINGS)
    with store.metadata_batch():
        for vbid in range(VBUCKETS):
            store.create_vbucket(vbid, VbucketState.ACTIVE, FailoverLog.of((1, 0)))
    seqnos = [0] * VBUCKETS
    steps = range(0, documents, COMMIT_DOCUMENTS)
    found = {"load": sum(write(store, at, min(at + COMMIT_DOCUMENTS, documents), seqnos) for at in steps)}
    store.close(clean=False)
    return found


def measure_rest(path: Path, documents: int) -> dict[str, float]:
    """CPU seconds of opening, reading and compacting an existing store, and resident and file bytes."""
    found: dict[str, float] = {}
    before = resident_bytes()
    opened: list[float] = []
    while True:
        started = time.process_time()
        store = DiskBucketStore(path, VBUCKETS)
        opened.append(time.process_time() - started)
        if "resident" not in found:
            release_free_memory()
            found["resident"] = resident_bytes() - before
        if len(opened) == REPEATS:
            break
        store.close(clean=False)
        del store
        gc.collect()
    found["reopen"] = sorted(opened)[REPEATS // 2]
    seqnos = [store.vbuckets[vbid].high_seqno for vbid in range(VBUCKETS)]
    reads: list[float] = []
    for _ in range(REPEATS):
        started = time.process_time()
        assert read(store) == documents
        reads.append(time.process_time() - started)
    found["backfill"] = sorted(reads)[REPEATS // 2]
    for at in range(0, documents // 2, COMMIT_DOCUMENTS):
        write(store, at, min(at + COMMIT_DOCUMENTS, documents // 2), seqnos)
    found["bytes_before"] = store.file_bytes
    started = time.process_time()
    store.compact(CompactionOrder(is_full=True))
    found["compact"] = time.process_time() - started
    found["bytes_after"] = store.file_bytes
    assert read(store) == documents
    store.close()
    return found


def measure_in_child(documents: int) -> dict[str, float]:
    """All figures of one size, in its own directory; loading and the rest run in fresh processes."""
    directory = Path(tempfile.mkdtemp(prefix="dcpstream-bench-"))
    found: dict[str, float] = {}
    try:
        for part in ("measure_load", "measure_rest"):
            code = (
                f"import json, sys; from pathlib import Path; from lab.bench.growth import {part}; "
                f"print(json.dumps({part}(Path(sys.argv[1]), int(sys.argv[2]))))"
            )
            done = subprocess.run(
                [sys.executable, "-c", code, str(directory), str(documents)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                timeout=CHILD_TIMEOUT_S,
            )
            found |= json.loads(done.stdout)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return found


def run(quick: bool) -> dict[str, Any]:
    """Measure."""
    sizes = QUICK_SIZES if quick else SIZES
    found = {size: measure_in_child(size) for size in sizes}
    figures: list[Figure] = []
    smaller, largest = sizes[-2], sizes[-1]
    for step in STEPS:
        for size in sizes:
            base = found[smaller][step] / smaller * 1e6
            figures.append(
                Figure(
                    name=f"growth.{step}.{size}",
                    value=found[size][step] / size * 1e6,
                    unit="µs",
                    baseline=f"at {smaller:,} documents",
                    baseline_value=base,
                    note="CPU time a document",
                )
            )
    for size in sizes:
        figures.append(
            Figure(
                name=f"growth.resident.{size}",
                value=found[size]["resident"] / size,
                unit="B",
                note="growth of resident memory a document by opening, in a fresh process, allocator and all",
            )
        )
        figures.append(
            Figure(
                name=f"growth.compact_space.{size}",
                value=found[size]["bytes_after"] / found[size]["bytes_before"],
                unit="ratio",
                note="files after compaction of those before, a third being superseded",
            )
        )
    return report(
        figures,
        {
            f"growth.{step}.of_tenth": (found[largest][step] / largest) / (found[smaller][step] / smaller)
            for step in STEPS
        }
        | {"growth.largest": float(largest)},
    )
