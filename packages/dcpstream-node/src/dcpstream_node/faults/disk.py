"""The disk of a node, which can be slow or full."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from dcpstream.runtime import File, SystemFileSystem


class FaultyDisk(SystemFileSystem):
    """The system's files, with faults of those that hold documents. The metadata of a bucket is not held here.

    Attributes:
        is_full: whether nothing can be written (ENOSPC).
    """

    def __init__(self) -> None:
        self.is_full = False
        self._delay_s = 0.0
        self._news = threading.Event()

    def set_delay(self, seconds: float) -> None:
        """Have each sync take this much longer; those that wait begin again."""
        self._delay_s = seconds
        news, self._news = self._news, threading.Event()
        news.set()

    def wait(self) -> None:
        """Called before a sync, in the thread that commits."""
        if self._delay_s:
            self._news.wait(self._delay_s)

    def open(self, path: Path) -> File:
        """Open for append and read, created if missing."""
        if self.is_full and not path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return _FaultyFile(self, super().open(path))


class _FaultyFile:
    """A file of the system on a faulty disk."""

    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.read = file.read
        self.is_at_hand = file.is_at_hand
        self.truncate = file.truncate
        self.size = file.size
        self.close = file.close

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all buffers at the end, if there is room."""
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.append(buffers)

    def sync(self) -> None:
        """Fdatasync, later."""
        self._disk.wait()
        self._file.sync()
