"""The SQLite file."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dcpstream.errors import StoreError
from dcpstream.runtime import SystemFileSystem
from dcpstream_node.store.metadata import FILE_NAME, Metadata, VbucketMetadata, make_metadata


def made(path: Path) -> Metadata:
    """The file of a new store without a line, opened."""
    make_metadata(path, {}, SystemFileSystem())
    return Metadata(path)


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    metadata = made(tmp_path)
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
    metadata = made(tmp_path)
    assert metadata.segments() == (None, [])
    metadata.put({"segments": "[[3, 77], [2, null]]", "retired": "[1]"})
    assert metadata.segments() == ([(3, 77), (2, None)], [1])
    metadata.put({"segments": "[3]"})
    with pytest.raises(StoreError, match="a list of segments that cannot be read"):
        metadata.segments()
    metadata.close()


def test_what_a_process_left_that_was_killed_within_a_transaction_is_undone(tmp_path: Path) -> None:
    metadata = made(tmp_path)
    metadata.put({"a": "1"})
    metadata.close()
    code = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA cache_size=1')\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "connection.execute(\"UPDATE store SET value = '2' WHERE name = 'a'\")\n"
        "connection.executemany('INSERT INTO store VALUES (?, ?)', [(f'n{n}', 'v' * 900) for n in range(200)])\n"
        "os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / FILE_NAME)], check=False)
    assert (tmp_path / f"{FILE_NAME}-journal").stat().st_size
    metadata = Metadata(tmp_path)
    assert (metadata.get("a"), metadata.get("n0")) == ("1", None)
    metadata.close()
