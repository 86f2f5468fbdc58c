"""A file system that fails as disks do: full or broken at any call, and cut off from power at any moment."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

from dcpstream.runtime import File, SystemFileSystem

PAGE = 64
"""What a disk writes in one go here: small, so that few bytes make many pages."""


class FaultyFile:
    """A file of a `FaultyFileSystem`."""

    def __init__(self, path: Path, file: File, system: FaultyFileSystem) -> None:
        self._path = path
        self._file = file
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
            self._system.durable[self._path] = self._path.read_bytes() if self._path.exists() else b""
        self._file.sync()

    def truncate(self, size: int) -> None:
        if self._system.fails("truncate"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._file.truncate(size)

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


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
