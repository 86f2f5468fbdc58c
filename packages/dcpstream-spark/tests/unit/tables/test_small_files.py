"""Small files on file systems of Hadoop, with a file system of Python in the place of Hadoop's."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest

from dcpstream_spark.tables.small_files import HadoopFiles, LocalFiles
from tests.kit.cases import each_case


class Racing:
    """A file system on which a file is not there before the creation, and the creation fails with a Java exception."""

    def __init__(self, exception: str) -> None:
        self._exception = exception
        self._is_there = False

    def exists(self, _path: str) -> bool:
        return self._is_there

    def create(self, path: str, _overwrites: bool) -> Any:
        self._is_there = True
        raise OSError(f"{self._exception}: {path}")


def files_of(system: Racing) -> HadoopFiles:
    files = HadoopFiles.__new__(HadoopFiles)
    files._system = system
    files._path = lambda name: name
    return files


@each_case(
    "exception",
    [
        "org.apache.hadoop.fs.FileAlreadyExistsException",
        "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException",
    ],
)
def test_a_file_that_another_process_made_first_is_there_already(exception: str) -> None:
    assert files_of(Racing(exception)).create("1", b"") is False


def test_a_file_that_cannot_be_written_is_an_error_even_if_it_was_begun() -> None:
    with pytest.raises(OSError, match="DiskOutOfSpace"):
        files_of(Racing("org.apache.hadoop.util.DiskChecker$DiskOutOfSpaceException")).create("1", b"")


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
