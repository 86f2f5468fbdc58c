"""One `BucketReader` per bucket and user in each worker process, kept between tasks and between plans of batch reads.

Spark keeps Python workers for a minute after their last task and gives them further tasks, so connections made for one
micro-batch serve the next. The worker that plans keeps its cluster in the same way. A worker runs one task at a time;
still, a borrowed cluster is taken out of the pool, because a task that was killed may leave it in the middle of a
stream.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar

from dcpstream.client.blocking.bucket_reader import BucketReader
from dcpstream_spark.options import SourceOptions

MAX_IDLE_CLUSTERS = 4
"""Largest number of clusters and writers that a worker keeps open, for different buckets or users."""

Key: TypeAlias = tuple[object, ...]


class Closable(Protocol):
    """Something with connections."""

    def close(self) -> None:
        """Close them."""
        ...


_T = TypeVar("_T", bound=Closable)

_idle: dict[Key, Any] = {}


@contextlib.contextmanager
def borrowed(options: SourceOptions, connect: Callable[[SourceOptions], BucketReader]) -> Iterator[BucketReader]:
    """A cluster for one task; it returns to the pool if the task succeeds, and is closed otherwise."""
    with kept(key_of(options), lambda: connect(options)) as cluster:
        yield cluster


@contextlib.contextmanager
def borrowed_for_plan(
    options: SourceOptions, connect: Callable[[SourceOptions], BucketReader]
) -> Iterator[BucketReader]:
    """A cluster for the plan of one batch read, with the newest cluster map; else as `borrowed`.

    A kept one knows the failover logs of the last plan, which spares half of the questions. It is closed if its
    connection is dead or its bucket was deleted, so that the plan begins as in a new process.
    """
    key = key_of(options)
    found: BucketReader | None = _idle.pop(key, None)
    if found is not None:
        if found.refresh():
            _idle[key] = found
        else:
            found.close()
    with borrowed(options, connect) as cluster:
        yield cluster


@contextlib.contextmanager
def kept(key: Key, connect: Callable[[], _T]) -> Iterator[_T]:
    """A connection for one task; it returns to the pool if the task succeeds, and is closed otherwise.

    Args:
        key: equal for tasks that may share it; see `key_of`.
        connect: makes a new one.
    """
    found: _T | None = _idle.pop(key, None)
    if found is None:
        found = connect()
    try:
        yield found
    except BaseException:
        found.close()
        raise
    if key in _idle:
        found.close()
        return
    while len(_idle) >= MAX_IDLE_CLUSTERS:
        _idle.pop(next(iter(_idle))).close()
    _idle[key] = found


def close_all() -> None:
    """Close the idle clusters."""
    while _idle:
        _idle.popitem()[1].close()


def key_of(options: SourceOptions) -> Key:
    """The properties that distinguish connections: process, cluster, user, bucket."""
    # With the process id, because a forked worker must not use its parent's sockets.
    return (
        os.getpid(),
        options.connection_string,
        options.username,
        options.password,
        options.bucket,
        options.collections,
        options.client_options,
    )
