"""The file system as the store sees it: few calls, each of which a fault-injecting version can make fail."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

WRITEV_MAX = 1024
"""Buffers per writev call: IOV_MAX of Linux."""


class File(Protocol):
    """An open file that is appended to and read at positions."""

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all buffers at the end; returns how many bytes. Raises OSError; then part may have been written."""
        ...

    def sync(self) -> None:
        """Return once what was written survives a power cut (fdatasync)."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def size(self) -> int:
        """Its size in bytes."""
        ...

    def fileno(self) -> int:
        """The descriptor, for mmap and pread."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class FileSystem(Protocol):
    """Opening files and making names durable."""

    def open(self, path: Path) -> File:
        """Open for append and read, created if missing."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make created and removed names in a directory durable."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file."""
        ...


class SystemFile:
    """A file of the operating system."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o644)

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all buffers at the end, in as few calls as the system allows."""
        written = 0
        for first in range(0, len(buffers), WRITEV_MAX):
            group = [memoryview(buffer).cast("B") for buffer in buffers[first : first + WRITEV_MAX]]
            while group:
                count = os.writev(self._descriptor, group)
                written += count
                while group and count >= len(group[0]):
                    count -= len(group.pop(0))
                if count:
                    group[0] = group[0][count:]
        return written

    def sync(self) -> None:
        """Fdatasync."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._descriptor)
        else:  # pragma: no cover - macOS
            os.fsync(self._descriptor)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """Its size in bytes."""
        return os.fstat(self._descriptor).st_size

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def close(self) -> None:
        """Close it; a second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SystemFileSystem:
    """The operating system's files."""

    def open(self, path: Path) -> File:
        """Open for append and read, created if missing."""
        return SystemFile(path)

    def sync_directory(self, path: Path) -> None:
        """Fsync of the directory."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Unlink."""
        path.unlink()
