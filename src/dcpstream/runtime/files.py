"""The file system as the store sees it: few calls, each of which a fault-injecting version can make fail."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

LOCK_NAME = "lock"
"""The file that a directory's lock is on; it stays, empty."""

WRITEV_MAX = 1024
"""Buffers per writev call: IOV_MAX of Linux."""


_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


class File(Protocol):
    """An open file that is appended to and read at positions."""

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all buffers at the end; returns how many bytes. Raises OSError; then part may have been written."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on; fewer only at the end of the file. Any thread may call it."""
        ...

    def is_at_hand(self, offset: int) -> bool:
        """Whether the byte can be read without waiting for the disk; True if the system does not tell."""
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

    def close(self) -> None:
        """Close it."""
        ...


class DirectoryLock(Protocol):
    """Held while a process uses a directory."""

    def release(self) -> None:
        """Let others in."""
        ...


class FileSystem(Protocol):
    """Opening files and making names durable."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, if missing."""
        ...

    def lock_directory(self, path: Path) -> DirectoryLock:
        """Keep other processes out until released or until this process ends, however it ends.

        Raises: BlockingIOError: another process, or another part of this one, is in.
        """
        ...

    def names(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        ...

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

    def read(self, offset: int, length: int) -> bytes:
        """Pread until there is enough or the file ends."""
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        have = len(data)
        while have < length and (data := os.pread(self._descriptor, length - have, offset + have)):
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def is_at_hand(self, offset: int) -> bool:
        """Try to read it without waiting (preadv2 with RWF_NOWAIT)."""
        if _NOWAIT is None:
            return True
        try:
            os.preadv(self._descriptor, [bytearray(1)], offset, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the file system does not support the question
        return True

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

    def close(self) -> None:
        """Close it; a second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        """Close it: a file that was taken out of use is closed by the last of those who still read it."""
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)


class SystemDirectoryLock:
    """An flock on a file in the directory: the system lets go of it when the process ends."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Close the file and so let go; a second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SystemFileSystem:
    """The operating system's files."""

    def make_directory(self, path: Path) -> None:
        """Mkdir with parents."""
        path.mkdir(parents=True, exist_ok=True)

    def lock_directory(self, path: Path) -> DirectoryLock:
        """Flock."""
        return SystemDirectoryLock(path)

    def names(self, path: Path) -> list[str]:
        """Listdir."""
        return sorted(entry.name for entry in path.iterdir())

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
