"""File systems that fail as disks do.

`StoppingDisk` stops at a chosen operation and then shows what a kill or a power cut may have left of those before it;
`FaultyFileSystem` fails single calls and loses pages in a power cut.

What no sync covered may be there or not: each name that was made, changed or removed, and each byte that was written.
SQLite does not write through here: what it did counts as written and synced, as it sees to itself.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcpstream.runtime import File, SystemFileSystem

_TAKES_NO_ROOM = ("remove", "rename", "sync directory")


@dataclass
class NameChange:
    """A name that was made, changed or removed in a directory, and how to take that back."""

    directory: Path
    undo: Callable[[], None]


class ReadableFile:
    """The parts of a file that do not fail here."""

    def __init__(self, path: Path, file: File) -> None:
        self.path = path
        self._file = file

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)

    def is_at_hand(self, offset: int) -> bool:
        return self._file.is_at_hand(offset)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class StoppedFile(ReadableFile):
    """A file of a `StoppingDisk`."""

    def __init__(self, path: Path, file: File, disk: StoppingDisk) -> None:
        super().__init__(path, file)
        self._disk = disk

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        self._disk.step(f"append {self.path.name}")
        self._disk.unsynced.setdefault(self.path, self._file.size())
        return self._file.append(buffers)

    def sync(self) -> None:
        self._disk.step(f"sync {self.path.name}")
        self._disk.unsynced.pop(self.path, None)

    def truncate(self, size: int) -> None:
        if size != self._file.size():
            self._disk.step(f"truncate {self.path.name}")
        self._file.truncate(size)


class StoppingDisk(SystemFileSystem):
    """The system's files until operation `stop_at`; it and all later ones fail.

    Attributes:
        stop_at: the number of the first operation that fails, from 1; 0: none.
        is_full: whether names can still be changed and removed then.
        steps: what was done so far, and what failed first.
        unsynced: files with bytes that no sync covered, and how many bytes before those are safe.
    """

    def __init__(self, stop_at: int = 0) -> None:
        self.stop_at = stop_at
        self.is_full = False
        self.steps: list[str] = []
        self.unsynced: dict[Path, int] = {}
        self._changes: list[NameChange] = []
        self._is_stopped = False

    def step(self, what: str) -> None:
        """One operation that changes something."""
        if self.is_full and what.startswith(_TAKES_NO_ROOM):
            return
        error = errno.ENOSPC if self.is_full else errno.EIO
        if self._is_stopped:
            raise OSError(error, os.strerror(error))
        self.steps.append(what)
        if self.stop_at and len(self.steps) >= self.stop_at:
            self._is_stopped = True
            raise OSError(error, os.strerror(error))

    def stop_after(self, steps: int) -> None:
        """Do so many operations from now on, and then no more."""
        self._is_stopped, self.stop_at = False, len(self.steps) + steps + 1

    def go_on(self) -> None:
        """Fail no more."""
        self._is_stopped, self.stop_at = False, 0

    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            self.step(f"make directory {path.name}")
            self._changes.append(NameChange(path.parent, lambda: shutil.rmtree(path, ignore_errors=True)))
        super().make_directory(path)

    def open(self, path: Path) -> File:
        if not path.exists():
            self.step(f"create {path.name}")
            self._changes.append(NameChange(path.parent, lambda: path.unlink(missing_ok=True)))
        return StoppedFile(path, super().open(path), self)

    def rename(self, old: Path, new: Path) -> None:
        if not old.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        self.step(f"rename {old.name} to {new.name}")
        before = new.read_bytes() if new.is_file() else None

        def undo() -> None:
            if new.exists():
                new.rename(old)
            if before is not None:
                new.write_bytes(before)

        self._changes.append(NameChange(new.parent, undo))
        super().rename(old, new)
        moved = {path: size for path, size in self.unsynced.items() if path.is_relative_to(old)}
        for path, size in moved.items():
            del self.unsynced[path]
            self.unsynced[new / path.relative_to(old)] = size

    def sync_directory(self, path: Path) -> None:
        self.step(f"sync directory {path.name}")
        self._changes = [change for change in self._changes if change.directory != path]

    def remove(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.step(f"remove {path.name}")
        before = path.read_bytes()
        self._changes.append(NameChange(path.parent, lambda: None if path.exists() else _put_back(path, before)))
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            self.step(f"remove tree {path.name}")
            super().remove_tree(path)

    def cut_power(self, seed: int) -> None:
        """Leave of what no sync covered what the seed says: 0 nothing, 1 all names without their bytes, else some."""
        chance = random.Random(seed)
        for path, size in self.unsynced.items():
            if path.exists():
                written = path.stat().st_size
                kept = size if seed < 2 else chance.randint(size, max(size, written))
                os.truncate(path, kept)
                if seed % 2:
                    os.truncate(path, written)  # the length was written and the bytes were not
        for change in reversed(self._changes):
            if not seed or (seed > 1 and chance.random() < 0.5):
                change.undo()


def _put_back(path: Path, content: bytes) -> None:
    if path.parent.is_dir():
        path.write_bytes(content)


PAGE = 64
"""Bytes that the disk writes at once: few, so that small files have many pages."""


class FaultyFile(ReadableFile):
    """A file of a `FaultyFileSystem`."""

    def __init__(self, path: Path, file: File, system: FaultyFileSystem) -> None:
        super().__init__(path, file)
        self._system = system

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        data = b"".join(buffers)
        if self._system.fails("append"):
            self._file.append([data[: self._system.chance.randrange(len(data) + 1)]])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.append([data])

    def sync(self) -> None:
        if self._system.fails("sync"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if not self._system.loses_syncs:
            self._system.durable[self.path] = self.path.read_bytes() if self.path.exists() else b""
        self._file.sync()

    def truncate(self, size: int) -> None:
        if self._system.fails("truncate"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._file.truncate(size)


class FaultyFileSystem(SystemFileSystem):
    """The system's files, with faults.

    Attributes:
        fail_at: the number of the call that fails, counted over all that change something; None for never.
        stays_broken: whether every call after that one fails too.
        calls: how many such calls there were.
        durable: what each file holds for certain.
        loses_syncs: a disk that says it wrote and did not.
    """

    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.fail_at: int | None = None
        self.stays_broken = False
        self.calls = 0
        self.failed: list[str] = []
        self.durable: dict[Path, bytes] = {}
        self.names_on_disk: set[Path] = set()
        self.loses_syncs = False

    def fails(self, what: str) -> bool:
        self.calls += 1
        is_now = self.fail_at is not None and (
            self.calls == self.fail_at or (self.stays_broken and self.calls > self.fail_at)
        )
        if is_now:
            self.failed.append(what)
        return is_now

    def open(self, path: Path) -> File:
        if not path.exists() and self.fails("open"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return FaultyFile(path, super().open(path), self)

    def sync_directory(self, path: Path) -> None:
        if self.fails("sync directory"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if not self.loses_syncs:
            self.names_on_disk = {entry for entry in path.iterdir() if entry.name.startswith("segment-")}
        super().sync_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        if self.fails("rename"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().rename(old, new)

    def cut_power(self, directory: Path) -> None:
        """Leave on the disk what a power cut may: of what no sync covered any pages, and any length."""
        for path in directory.glob("segment-*.log"):
            if path not in self.names_on_disk and self.chance.random() < 0.5:
                path.unlink()
                continue
            written, durable = path.read_bytes(), self.durable.get(path, b"")
            pairs = enumerate(zip(written, durable, strict=False))
            same = next((at for at, (now, then) in pairs if now != then), min(len(written), len(durable)))
            if len(durable) > len(written):
                written = durable  # a cut that no sync followed
            size = self.chance.randint(max(same, len(durable)), max(len(written), same))
            left = bytearray(written[:size])
            for start in range(same, size, PAGE):
                if self.chance.random() < 0.4:
                    end = min(start + PAGE, size)
                    left[start:end] = bytes(end - start)
            left[: len(durable)] = durable[: len(left)]
            path.write_bytes(left)
