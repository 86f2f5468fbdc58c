"""Python's collector of reference cycles, held back while many objects are made that stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def spare_what_is_loaded() -> None:
    """Collect none of the objects that there are now. For a process of ours whose start is over.

    A node of 1,024 vbuckets has 105,000 objects that refer to others. Looking at all of them takes 60 ms of CPU, in
    which the node answers nobody, and happens when many connections or streams begin.
    """
    gc.freeze()


class _Hold:
    """Counts the parts of this process that hold the collector back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if not self._holders:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._holders += 1

    def end(self) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders and self._was_enabled:
                gc.enable()


_hold = _Hold()


@contextmanager
def held_collector() -> Iterator[None]:
    """Collect no cycles in this process meanwhile; for a second at most, because the garbage of all threads waits.

    The collector runs after every few hundred new objects and looks at those that it has not seen often. While a
    cluster is built, nearly all of them stay, and looking at them takes half of the processor time. If the program has
    switched the collector off it stays off. May be used by several threads at a time, and within itself.
    """
    _hold.begin()
    try:
        yield
    finally:
        _hold.end()
