"""Small files of a local directory; those that Spark reads and writes are in `tests/spark/test_lease.py`."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest

from dcpstream_spark.tables.small_files import LocalFiles


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
    assert files.contents() == {}
    assert files.create("1", b"content")
