"""The official Python SDK as a load for a node, given as CONNECTION_STRING USER PASSWORD.

Each line of standard input is an order, `upsert` or `get`, how many, and how many at a time. The answer is a line with
the seconds by the clock. It first connects, and says `ready`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions, ClusterTimeoutOptions

PATIENCE = timedelta(seconds=20)
VALUE = {"text": "v" * 244}
"""256 bytes of JSON."""


def pieces(count: int, window: int) -> Iterator[list[str]]:
    """The keys, as many as are on their way together."""
    for first in range(0, count, window):
        yield [f"doc-{number:010}" for number in range(first, min(first + window, count))]


def carry_out(collection: Any, order: str, count: int, window: int) -> None:
    """Do as ordered; an error of the SDK is raised."""
    for keys in pieces(count, window):
        if window == 1 and order == "upsert":
            collection.upsert(keys[0], VALUE)
        elif window == 1:
            collection.get(keys[0])
        else:
            answer = (
                collection.upsert_multi(dict.fromkeys(keys, VALUE)) if order == "upsert" else collection.get_multi(keys)
            )
            if not answer.all_ok:
                raise RuntimeError(str(answer.exceptions)[:300])


def main() -> None:
    """Connect, and carry out orders until the input ends."""
    connection_string, user, password = sys.argv[1:]
    timeouts = ClusterTimeoutOptions(bootstrap_timeout=PATIENCE, kv_timeout=PATIENCE)
    cluster = Cluster(
        connection_string, ClusterOptions(PasswordAuthenticator(user, password), timeout_options=timeouts)
    )
    collection = cluster.bucket("default").default_collection()
    collection.upsert("first", VALUE)
    print("ready", flush=True)
    for line in sys.stdin:
        order, count, window = line.split()
        began = time.perf_counter()
        carry_out(collection, order, int(count), int(window))
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
