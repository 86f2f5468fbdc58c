"""Scans over all keys of a vbucket as generators, so that the event loop can serve others between the steps.

A scan works on a copy of the index, which takes some nanoseconds a key. So its result is the state of one moment,
whatever is written meanwhile. Each `yield` ends a step; the result is the generator's return value.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Generator, Set
from itertools import islice
from typing import TypeVar

from dcpstream_node.store.index.rows import collection_of

KEYS_A_STEP = 10_000
"""Keys that one step looks at: about 2 ms."""
SORTED_A_STEP = 2_000
"""Keys that one step puts in order: about 2 ms, too."""
MULTIBYTE = 0x80
"""A collection prefix that begins with this byte or a higher one has several bytes."""

T = TypeVar("T")

KeySeqnos = tuple[list[bytes], list[int]]
"""The keys of an index, and the seqno of the newest row of each."""


def walk_range(
    newest: KeySeqnos, hidden: Set[int], first: bytes, last: bytes, limit: int | None
) -> Generator[None, None, tuple[list[bytes], array[int]]]:
    """The keys from `first` to `last`, ascending, `limit` at most; and the seqno of each.

    Args:
        newest: all keys.
        hidden: seqnos of rows that are no documents.
    """
    keys, seqnos = newest
    runs: list[tuple[list[bytes], list[int]]] = []
    for at in range(0, len(keys), KEYS_A_STEP):
        pairs = zip(keys[at : at + KEYS_A_STEP], seqnos[at : at + KEYS_A_STEP], strict=True)
        part = {key: seqno for key, seqno in pairs if first <= key <= last and seqno not in hidden}
        run = sorted(part)[:limit]
        if run:
            runs.append((run, [part[key] for key in run]))
        yield
    if len(runs) == 1:
        return runs[0][0], array("Q", runs[0][1])
    merged = heapq.merge(*(zip(*run, strict=True) for run in runs))
    found: list[bytes] = []
    found_seqnos = array("Q")
    while limit is None or len(found) < limit:
        wanted = SORTED_A_STEP if limit is None else min(SORTED_A_STEP, limit - len(found))
        before = len(found)
        for key, seqno in islice(merged, wanted):
            found.append(key)
            found_seqnos.append(seqno)
        if len(found) == before:
            break
        yield
    return found, found_seqnos


def walk_collections(newest: KeySeqnos, hidden: Set[int]) -> Generator[None, None, dict[int, int]]:
    """The number of keys in each collection."""
    keys, seqnos = newest
    counts: Counter[int] = Counter()
    for at in range(0, len(keys), KEYS_A_STEP):
        pairs = zip(keys[at : at + KEYS_A_STEP], seqnos[at : at + KEYS_A_STEP], strict=True)
        counts.update(
            key[0] if key[0] < MULTIBYTE else collection_of(key) for key, seqno in pairs if seqno not in hidden
        )
        yield
    return dict(counts)


def finish(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end at once, and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
