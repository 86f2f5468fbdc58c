"""Memory for decoded columns that is used again when the batch before it is gone.

A stream needs some megabytes for each receive and frees them when the user drops the batch. Allocators keep such memory
in ways of their own: a process that held 11 MiB at a time grew by 45 MiB with Arrow's pool, and more the longer the
stream was. Slabs bound what is kept. Their pages are in the process already, so the system has nothing to map and zero
for the next batch.

Every user of a slab's memory, an Arrow buffer or a numpy array, refers to the slab as a Python object. So a slab to
which only its owner refers is free. A batch that the user keeps keeps its slab, which is then used by nobody else.
"""

from __future__ import annotations

import mmap
import sys
from threading import Lock

SLAB_BYTES_MIN = 256 * 1024
"""Less memory is not kept: a slab would waste more than it saves."""

SLAB_BYTES_MAX = 8 * 1024 * 1024
"""More memory is not kept. The columns of a full receive buffer (4 MiB) take a little more than the buffer."""

SLABS_MAX = 8
"""Slabs that are kept. A batch has two, one with its decoded rows and one with its table, and up to four batches are
under way: one that is filled, one with the user, and one or two between them in the queue. With the bound above they
have 64 MiB, of which a stream touches a small part."""

FIT_MAX = 4
"""A free slab is used for a piece of memory down to a fourth of it. Receives differ in size, so with slabs of exactly
the right size most would be new memory; with any size, a small batch that the user keeps would hold far too much."""

_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}
"""A forked process must not see what is written here afterwards."""


class Slabs:
    """Slabs that are kept, free or in use. Safe for threads."""

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []
        self._lock = Lock()

    @property
    def kept_bytes(self) -> int:
        """Bytes of all slabs that are kept."""
        return sum(map(len, self._kept))

    def take(self, size: int) -> mmap.mmap | bytearray:
        """Writable memory of at least `size` bytes; its content is undefined. A slab is aligned to 64, less to 8.

        It belongs to the caller until nothing refers to the returned object any more. Views must refer to the object
        itself, as those of `numpy.frombuffer` do.
        """
        if not SLAB_BYTES_MIN <= size <= SLAB_BYTES_MAX:
            return bytearray(size)
        # One size for up to twice the bytes, so that receives of about the same size use the same slabs.
        size = 1 << (size - 1).bit_length()
        with self._lock:
            free = [place for place in range(len(self._kept)) if _references(self._kept, place) == _FREE]
            fitting = [place for place in free if size <= len(self._kept[place]) <= FIT_MAX * size]
            if fitting:
                return self._kept[min(fitting, key=lambda place: len(self._kept[place]))]
            # The system gets its pages back at once when a slab is given up.
            slab = mmap.mmap(-1, size, **_PRIVATE)
            if len(self._kept) == SLABS_MAX:
                del self._kept[free[0] if free else 0]
            self._kept.append(slab)
        return slab


def _references(slabs: list[mmap.mmap], place: int) -> int:
    return sys.getrefcount(slabs[place])


_FREE = _references([mmap.mmap(-1, mmap.PAGESIZE)], 0)
"""Count of `_references` for a slab to which only its list refers."""

slabs = Slabs()
"""Those of this process: the bound holds for all its streams together."""
