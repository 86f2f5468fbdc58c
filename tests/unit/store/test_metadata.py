"""The SQLite file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dcpstream.errors import StoreError
from dcpstream.model import FailoverLog, Manifest, VbucketState
from dcpstream.store.metadata import FILE_NAME, Metadata, VbucketMetadata


def test_lines_come_back(tmp_path: Path) -> None:
    metadata = Metadata(tmp_path)
    lines = [
        VbucketMetadata(0, 3, None, None, 0),
        VbucketMetadata(5, 1, VbucketState.PENDING, FailoverLog.of((2**64 - 1, 2**63)), 2**64 - 1),
    ]
    metadata.put({"a": "1"}, lines)
    metadata.put({"a": "2", "b": ""})
    metadata.close()
    metadata = Metadata(tmp_path)
    assert metadata.vbuckets() == lines
    assert (metadata.get("a"), metadata.get("b"), metadata.get("c")) == ("2", "", None)
    assert metadata.manifest() == Manifest.DEFAULT
    metadata.close()


def test_another_format_is_refused(tmp_path: Path) -> None:
    metadata = Metadata(tmp_path)
    metadata.put({"format": "1", "manifest": "[]"})
    with pytest.raises(StoreError, match="a manifest that cannot be read"):
        metadata.manifest()
    metadata.close()
    with pytest.raises(StoreError, match="in store format 1; this version of dcpstream reads format 2"):
        Metadata(tmp_path)


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    metadata = Metadata(tmp_path)
    with sqlite3.connect(tmp_path / FILE_NAME) as other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON vbuckets BEGIN SELECT RAISE(ABORT, 'full'); END")
    other.close()
    with pytest.raises(StoreError, match="cannot be written: full"):
        metadata.put({"a": "1"}, [VbucketMetadata(0, 1, None, None, 0)])
    assert metadata.get("a") is None
    metadata.put({"a": "2"})
    metadata.close()
    for call in (lambda: metadata.get("a"), metadata.vbuckets, lambda: metadata.put({})):
        with pytest.raises(StoreError, match="closed database"):
            call()


def test_the_list_of_segments(tmp_path: Path) -> None:
    metadata = Metadata(tmp_path)
    assert metadata.segments() == (None, [])
    metadata.put({"segments": "[[3, 77], [2, null]]", "retired": "[1]"})
    assert metadata.segments() == ([(3, 77), (2, None)], [1])
    metadata.put({"segments": "[3]"})
    with pytest.raises(StoreError, match="a list of segments that cannot be read"):
        metadata.segments()
    metadata.close()
