"""Small files on file systems of Hadoop, with a file system of Python in the place of Hadoop's."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.pipelines.small_files import HadoopFiles


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
