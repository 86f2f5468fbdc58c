"""The file system seam: the few calls that the store uses, so that a version for tests can make each of them fail.

Everything created here is for its owner alone, whatever the umask: directories 0700, files 0600.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

LOCK_NAME = "lock"
"""The lock file in a locked directory; it stays there, empty."""
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
LOCK_ATTEMPTS = 20
LOCK_PAUSE_S = 0.005
"""A lock that another process holds is tried for a tenth of a second, because `is_locked` holds it for a moment."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors of creating a file on a disk that is full or read-only."""

WRITEV_MAX = 1024
"""Buffers per writev call: IOV_MAX of Linux."""


_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


class File(Protocol):
    """An open file that is appended to and read at positions."""

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all buffers at the end; returns the number of bytes. On OSError, part may have been written."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on; fewer only at the end of the file. Any thread may call it."""
        ...

    def is_at_hand(self, offset: int) -> bool:
        """Whether the byte can be read without waiting for the disk; True if unknown."""
        ...

    def sync(self) -> None:
        """Return once the written bytes survive a power cut (fdatasync)."""
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
        """Release the lock."""
        ...


class FileSystem(Protocol):
    """Opening files and making names durable."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, if missing."""
        ...

    def lock_directory(self, path: Path, name: str = LOCK_NAME, *, always_makes_file: bool = True) -> DirectoryLock:
        """Lock a directory until the lock is released or this process ends.

        Args:
            name: a file in the directory that is locked too.
            always_makes_file: if false, use the file only where the directory itself cannot be locked.

        Raises: BlockingIOError: another process, or another part of this one, holds the lock.
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

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or directory another name; a file of that name is replaced."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with everything in it; does nothing if it does not exist."""
        ...


class SystemFile:
    """A file of the operating system."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(path, flags, FILE_MODE)
        _keep_to_owner(self._descriptor, FILE_MODE)

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
        """Pread until all bytes are read or the file ends."""
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
        """Close it: the last reader of a retired file closes it."""
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)


class SystemDirectoryLock:
    """An flock on a directory and on a file in it; the system releases both when the process ends.

    The lock on the file alone is not safe: if the file is removed, a second process creates and locks a new one. Some
    network file systems can lock only files; there the file has to do.
    """

    def __init__(self, path: Path, name: str, *, always_makes_file: bool) -> None:
        self._descriptors: list[int] = []
        try:
            is_locked = self._lock(os.open(path, _DIRECTORY_FLAGS), is_optional=True)
            if is_locked and not always_makes_file:
                return
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            try:
                descriptor = os.open(path / name, flags, FILE_MODE)
            except OSError as error:
                if not is_locked or error.errno not in NO_ROOM:
                    raise
            else:
                _keep_to_owner(descriptor, FILE_MODE)
                self._lock(descriptor)
        except BaseException:
            self.release()
            raise

    def _lock(self, descriptor: int, *, is_optional: bool = False) -> bool:
        self._descriptors.append(descriptor)
        for attempt in range(LOCK_ATTEMPTS):
            if attempt:
                time.sleep(LOCK_PAUSE_S)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:
                if not is_optional:
                    raise
                return False
            return True
        raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))

    def release(self) -> None:
        """Close both, which releases the locks; a second time does nothing."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


_DIRECTORY_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


def is_locked(path: Path, name: str = LOCK_NAME) -> bool:
    """Whether a process holds the lock of a directory. Takes and releases the lock within microseconds."""
    for place, flags in ((path, _DIRECTORY_FLAGS), (path / name, os.O_RDONLY)):
        try:
            descriptor = os.open(place, flags)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue  # the file system locks no directories
        finally:
            os.close(descriptor)
    return False


def _keep_to_owner(descriptor: int, mode: int) -> None:
    """Give a file exactly this mode, whatever the umask."""
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        with suppress(OSError):  # another user's file, which the caller may use all the same
            os.fchmod(descriptor, mode)


def make_private(path: Path) -> None:
    """Take others' permissions to a file, or to a directory and everything in it. Links are not followed.

    Files of other users stay as they are.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return
    is_directory = stat.S_ISDIR(found.st_mode)
    if (is_directory or stat.S_ISREG(found.st_mode)) and found.st_mode & 0o077:
        with suppress(OSError):
            path.chmod(DIRECTORY_MODE if is_directory else FILE_MODE)
    if is_directory:
        with suppress(OSError):  # files that a compaction removes meanwhile, directories of others
            for entry in list(path.iterdir()):
                with suppress(OSError):
                    make_private(entry)


def make_durable_directory(file_system: FileSystem, path: Path) -> None:
    """Make a directory and its parents, if missing, so that a power cut leaves them there.

    Raises: OSError: it cannot be made.
    """
    if not path.is_dir():
        parent = path.absolute().parent
        if parent != path:
            make_durable_directory(file_system, parent)
        file_system.make_directory(path)
        file_system.sync_directory(parent)


def write_whole(file_system: FileSystem, path: Path, content: bytes) -> None:
    """Write or replace a file so that a crash leaves the whole new content or the old one; durable on return.

    Raises: OSError: it cannot be written; the old content is still there.
    """
    temporary = path.with_name(path.name + NEW_SUFFIX)
    try:
        file = file_system.open(temporary)
        try:
            file.truncate(0)
            file.append([content])
            file.sync()
        finally:
            file.close()
        file_system.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            file_system.remove(temporary)
        raise
    file_system.sync_directory(path.parent)


def replace_shared(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write or replace a file as `write_whole` does, where several processes may write it at the same time.

    Each writer has a temporary name of its own, and the last one wins.

    Args:
        path: of the file.
        content: all of it.
        mode: its permissions; by default only its owner may read it.

    Raises: OSError: it cannot be written; the old content is still there.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, FILE_MODE if mode is None else mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    SystemFileSystem().sync_directory(path.parent)


NEW_SUFFIX = ".new"
"""Suffix of a file that `write_whole` is writing; a crash may leave it."""


class SystemFileSystem:
    """The operating system's files."""

    def make_directory(self, path: Path) -> None:
        """Mkdir with parents. An existing directory keeps its permissions; see `make_private`."""
        if not path.is_dir():
            if path.parent != path:
                self.make_directory(path.parent)
            path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            path.chmod(DIRECTORY_MODE)

    def lock_directory(self, path: Path, name: str = LOCK_NAME, *, always_makes_file: bool = True) -> DirectoryLock:
        """Flock."""
        return SystemDirectoryLock(path, name, always_makes_file=always_makes_file)

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

    def rename(self, old: Path, new: Path) -> None:
        """Rename."""
        old.replace(new)

    def remove_tree(self, path: Path) -> None:
        """Rmtree."""
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
