"""Reads a bucket through dcpstream's client until its present end, and drops what comes.

python lab/bench/drains/dcpstream_drain.py CONNECTION-STRING COUNT batches|changes
"""

from __future__ import annotations

import importlib
import sys

from dcpstream.client import BucketReader, Client, RowsRead, StreamOptions, VbucketRange
from dcpstream.model import StreamOffset

LOGIN = {"username": "Administrator", "password": "password", "bucket": "default"}


def main(connection_string: str, count: int, way: str) -> None:
    """Read everything, or only connect if `count` is 0; print the number of rows."""
    if way == "batches":
        importlib.import_module("dcpstream.arrow")  # the start has the import of pyarrow, which batches need
    found = 0
    if way == "changes":
        with Client(connection_string, **LOGIN) as client:
            for _ in client.changes(StreamOptions(end="latest")) if count else ():
                found += 1
    else:
        with BucketReader(connection_string, **LOGIN) as cluster:
            ends = cluster.high_seqnos()
            ranges = [VbucketRange(vbid, StreamOffset.ZERO, end) for vbid, end in ends.items()]
            for batch in cluster.read_ranges(ranges) if count else ():
                assert isinstance(batch, RowsRead)
                found += batch.rows.num_rows
    print(found)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
