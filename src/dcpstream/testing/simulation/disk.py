"""The disk of a simulated node: what a commit has not synced is lost with the power, and the last write may be torn.

The files of documents go through here. Metadata is SQLite's, which sees to itself: what it has committed is there.
"""

from __future__ import annotations

import errno
import os
import random  # noqa: TID251 - seeded on purpose
from collections.abc import Sequence
from pathlib import Path

from dcpstream.runtime import File, SystemFileSystem


class SimulatedDisk(SystemFileSystem):
    """The system's files, until the power goes.

    Args:
        chance: says how much of a torn write is there.

    Attributes:
        is_failing: whether the power goes at this moment: a write ends anywhere, and nothing is synced.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.is_failing = False

    def open(self, path: Path) -> File:
        """Open for append and read, created if missing."""
        return _File(self, super().open(path))


class _File:
    """A file on a simulated disk."""

    def __init__(self, disk: SimulatedDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.read = file.read
        self.is_at_hand = file.is_at_hand
        self.truncate = file.truncate
        self.size = file.size
        self.close = file.close

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all buffers at the end, or a part of them."""
        if self._disk.is_failing:
            data = b"".join(buffers)
            self._file.append([data[: self._disk.chance.randrange(len(data) + 1)]])
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.append(buffers)

    def sync(self) -> None:
        """Nothing is lost here but by a torn write, so that the system needs not to sync."""
        if self._disk.is_failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
