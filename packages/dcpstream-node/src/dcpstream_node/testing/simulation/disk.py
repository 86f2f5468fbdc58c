"""The disk of a simulated node: it loses what was not synced with the power, and it may refuse writes and syncs.

The files of documents go through here. Metadata is SQLite's, which sees to itself: what it has committed is there.
"""

from __future__ import annotations

import errno
import os
import random  # noqa: TID251 - seeded on purpose
from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path

from dcpstream.runtime import File, SystemFileSystem


class Trouble(Enum):
    """The operations that a disk refuses."""

    POWER = auto()
    """The power goes at this moment: a write ends anywhere, and nothing is synced."""
    SYNC = auto()
    """Writes are taken, and no sync succeeds."""
    FULL = auto()
    """A write ends anywhere, because there is no space left."""


ERRORS = {Trouble.POWER: errno.EIO, Trouble.SYNC: errno.EIO, Trouble.FULL: errno.ENOSPC}


class SimulatedDisk(SystemFileSystem):
    """The system's files, until the power goes.

    Args:
        chance: says how much of a torn write is there, and of what was not synced.

    Attributes:
        trouble: what it refuses now; None: nothing.
        refused: how many writes and syncs it has refused.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.trouble: Trouble | None = None
        self.refused = 0
        self._files: dict[Path, _File] = {}

    def open(self, path: Path) -> File:
        """Open for append and read, created if missing."""
        file = self._files[path] = _File(self, super().open(path))
        return file

    def lose_unsynced(self) -> None:
        """The power is gone, and with it any part of the end of each file that no sync has made durable."""
        for path, file in self._files.items():
            size = path.stat().st_size if path.exists() else 0
            if size > file.synced_bytes:
                os.truncate(path, self.chance.randrange(file.synced_bytes, size + 1))
        self._files.clear()

    def refuse(self) -> OSError:
        """The error of a write or a sync that is refused."""
        assert self.trouble is not None, "something is refused"
        self.refused += 1
        number = ERRORS[self.trouble]
        return OSError(number, os.strerror(number))


class _File:
    """A file on a simulated disk.

    Attributes:
        synced_bytes: how much of it survives the power.
    """

    def __init__(self, disk: SimulatedDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.synced_bytes = file.size()
        self.read = file.read
        self.is_at_hand = file.is_at_hand
        self.size = file.size
        self.close = file.close

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all buffers at the end, or a part of them."""
        if self._disk.trouble in {Trouble.POWER, Trouble.FULL}:
            data = b"".join(buffers)
            self._file.append([data[: self._disk.chance.randrange(len(data) + 1)]])
            raise self._disk.refuse()
        return self._file.append(buffers)

    def truncate(self, size: int) -> None:
        """Cut the end off."""
        self._file.truncate(size)
        self.synced_bytes = min(self.synced_bytes, size)

    def sync(self) -> None:
        """Make the written bytes survive a loss of power. The system needs not to sync for that."""
        if self._disk.trouble in {Trouble.POWER, Trouble.SYNC}:
            raise self._disk.refuse()
        self.synced_bytes = self._file.size()
