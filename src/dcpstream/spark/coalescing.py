"""Joining of small RecordBatches before they go to Spark.

A client decodes what one receive brought, about 2,000 rows of 250 bytes. Spark's worker and JVM have a fixed cost for
each batch: joined to up to `maxBatchRows` rows, the same rows cost a quarter less CPU time in Python (1.9 to 1.45 µs a
row) and less in the JVM, although the join copies them once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

JOINED_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of batches that wait to be joined: enough for 10,000 rows of 800 bytes, and little beside a task's window."""


def coalesced(batches: Iterable[pa.RecordBatch], max_rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in fewer batches.

    Args:
        batches: of one schema. An error that they raise is raised here before the rows that wait are given out: a task
            that fails is repeated as a whole.
        max_rows: rows of a joined batch at most. A batch that has as many rows is passed on as it is.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        nbytes = batch.nbytes  # adds up the buffers of all columns each time
        if held and (rows + batch.num_rows > max_rows or size + nbytes > JOINED_BYTES_MAX):
            yield _joined(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += nbytes
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
