"""Decoding: receive buffers full of frames into Arrow columns, compared with copying memory.

The figures decode the columns of the wire: key, value and the eight fixed ones (`batch_of`). The whole schema of
a table of changes has figures of its own. Rates count wire bytes. As in a client, one receive buffer is filled again
and again with the next part of 64 MiB of different frames; only decoding is timed, not filling. Rounds take turns with
the copy of 64 MiB, which empties the caches. A few decodes without timing follow the copy, so that the figure is that
of a running stream.
"""

from __future__ import annotations

import gc
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from lab.bench.common import (
    MEMCPY_BYTES,
    Figure,
    measure,
    median,
    median_of_ratios,
    memcpy_call,
    repeats_for,
    report,
)

RECEIVE_BYTES = 4 * 1024 * 1024
"""Bytes decoded at once, as much as a busy client receives."""
SMALL_RECEIVE_BYTES = 1024 * 1024
"""The least that a busy client receives at once; the fixed cost of a batch is the largest share here."""
CORPUS_BYTES = MEMCPY_BYTES
QUICK_CORPUS_BYTES = 16 * 1024 * 1024
ROWS_PER_SNAPSHOT = 1000
VALUE_SIZES = (64, 256, 1024)
TAIL_CALLS = 2000
SETTLING_CALLS = 4
"""Decodes until the time of one no longer falls."""

_EXTRAS = struct.Struct(">QQIIIHB")
_HEADER = struct.Struct(">BBHBBHIIQ")
_MARKER = struct.Struct(">BBHBBHIIQQQI")


def corpus(value_bytes: int, total_bytes: int, receive_bytes: int) -> list[bytes]:
    """Receive buffers as in a backfill: runs of one vbucket after a marker, whole frames only."""
    import numpy as np

    key_bytes = 18
    body = _EXTRAS.size + key_bytes + value_bytes
    chance = np.random.default_rng(20131130)
    buffers: list[bytes] = []
    number = 0
    while sum(map(len, buffers)) < total_bytes:
        rows = receive_bytes // (24 + body)
        values = chance.bytes(rows * value_bytes)
        parts: list[bytes] = []
        for row in range(rows):
            vbucket, seqno = divmod(number, ROWS_PER_SNAPSHOT)
            vbucket %= 1024
            if seqno == 0:
                parts.append(_MARKER.pack(0x80, 0x56, 0, 20, 0, vbucket, 20, vbucket, 0, 0, ROWS_PER_SNAPSHOT, 2))
            cas = 1_700_000_000_000_000_000 + (number << 16)
            parts.append(_HEADER.pack(0x80, 0x57, key_bytes, 31, 1, vbucket, body, vbucket, cas))
            parts.append(_EXTRAS.pack(seqno + 1, 1 + number % 3, 0x02000006, 0, 0, 0, 0))
            parts.append(b"\0user::%011d" % number)
            parts.append(values[row * value_bytes : (row + 1) * value_bytes])
            number += 1
        buffers.append(b"".join(parts))
    return buffers


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call, including the release of its result's memory."""
    gc.collect(0)
    gc.disable()
    try:
        start = time.process_time()
        call()
        return time.process_time() - start
    finally:
        gc.enable()


def run(quick: bool) -> dict[str, Any]:
    """Measure decoding of 64, 256 and 1,024 byte values."""
    from dcpstream.arrow import ChangeContext, to_changes
    from tests.kit.wire_columns import batch_of, decode_messages, decode_wire
    from tests.kit.wire_columns import received as rows_of

    context = ChangeContext(vbuuids={vbid: 0x1234_5678_9ABC + vbid for vbid in range(1024)})
    total_bytes = QUICK_CORPUS_BYTES if quick else CORPUS_BYTES
    repeats = repeats_for(quick)
    figures: list[Figure] = []
    ratios: dict[str, float | None] = {}

    def wire_columns(buffer: bytearray, stop: int) -> object:
        return batch_of(decode_wire(memoryview(buffer)[:stop]))

    def changes(buffer: bytearray, stop: int) -> object:
        return to_changes(decode_wire(memoryview(buffer)[:stop]), context=context)

    def one_by_one(buffer: bytearray, stop: int) -> object:
        return batch_of(decode_messages(memoryview(buffer)[:stop]))

    def compare(name: str, note: str, buffers: list[bytes], decode: Callable[[bytearray, int], object]) -> None:
        """Decode all buffers in turns with the copy; a figure and a ratio in bytes."""
        copy = memcpy_call()
        received = bytearray(max(map(len, buffers)))
        rates: list[float] = []
        copies: list[float] = []
        for turn in range(repeats + 1):
            seconds = cpu_seconds(copy)
            for buffer in buffers[-SETTLING_CALLS:]:
                received[: len(buffer)] = buffer
                decode(received, len(buffer))
            decoding = 0.0
            for buffer in buffers:
                received[: len(buffer)] = buffer
                decoding += cpu_seconds(partial(decode, received, len(buffer)))
            if turn:  # the first one warms up
                rates.append(sum(map(len, buffers)) / 1e9 / decoding)
                copies.append(MEMCPY_BYTES / 1e9 / seconds)
        frames = sum(rows.count + len(rows.controls) for rows, _ in map(rows_of, buffers)) / sum(map(len, buffers))
        figures.append(
            Figure(
                name=f"decode.{name}",
                value=median(rates),
                unit="GB/s",
                baseline="memcpy of 64 MiB",
                baseline_value=median(copies),
                repeats=repeats,
                samples=tuple(rates),
                note=f"{note}; {median(rates) * 1e3 * frames:.2f} M messages a CPU second",
            )
        )
        ratios[f"decode.{name}.of_memcpy"] = median_of_ratios(rates, copies)

    for value_bytes in VALUE_SIZES:
        buffers = corpus(value_bytes, total_bytes, RECEIVE_BYTES)
        compare(f"{value_bytes}", "key, value and 8 fixed columns, 4 MiB at once", buffers, wire_columns)
        compare(f"{value_bytes}.schema", "all 17 columns of a change, 4 MiB at once", buffers, changes)
        small = corpus(value_bytes, total_bytes, SMALL_RECEIVE_BYTES)
        compare(f"{value_bytes}.1mib", "key, value and 8 fixed columns, 1 MiB at once", small, wire_columns)
    plain = corpus(256, 1, RECEIVE_BYTES)
    compare("256.one_by_one", "the plain decoder, message by message", plain, one_by_one)

    one = bytearray(corpus(256, 1, 24 + 31 + 18 + 256)[0])
    tail = measure(lambda: [wire_columns(one, len(one)) for _ in range(TAIL_CALLS)], repeats=repeats)
    figures.append(
        Figure(
            name="decode.256.single_message_us",
            value=tail.cpu / TAIL_CALLS * 1e6,
            unit="CPU us",
            repeats=tail.repeats,
            samples=tuple(seconds / TAIL_CALLS * 1e6 for seconds in tail.cpu_s),
            note="a buffer with one mutation (and its marker): the cost for a quiet stream",
        )
    )
    return report(figures, ratios)
