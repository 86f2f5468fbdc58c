"""Small files on file systems of Hadoop, with a file system of Python in the place of Hadoop's."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest

from dcpstream_spark.tables.small_files import HadoopFiles, LocalFiles


class Racing:
    """A file system on which another process makes a file between the question and the creation."""

    def __init__(self, *, is_made_by_another: bool) -> None:
        self._is_made_by_another = is_made_by_another
        self._is_there = False

    def exists(self, _path: str) -> bool:
        return self._is_there

    def create(self, path: str, _overwrites: bool) -> Any:
        self._is_there = self._is_made_by_another
        raise OSError(f"{path} cannot be made")


def files_of(system: Racing) -> HadoopFiles:
    files = HadoopFiles.__new__(HadoopFiles)
    files._system = system
    files._path = lambda name: name
    return files


def test_a_file_that_another_process_made_first_is_there_already() -> None:
    assert files_of(Racing(is_made_by_another=True)).create("1", b"") is False


def test_a_file_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(OSError, match="cannot be made"):
        files_of(Racing(is_made_by_another=False)).create("1", b"")


def test_a_file_that_cannot_be_written_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file would count as the lease of an unknown holder, for which the next start waits."""
    files = LocalFiles(tmp_path)

    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def open_full(path: Path, _mode: str) -> Full:
        path.touch(exist_ok=False)
        return Full()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_full)
        with pytest.raises(OSError, match="No space left"):
            files.create("1", b"content")
    assert files.names() == []
    assert files.create("1", b"content")
