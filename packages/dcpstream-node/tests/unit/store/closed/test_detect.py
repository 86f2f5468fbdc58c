"""Directories that are stores, and others that a creation left."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.closed.detect import is_store, is_unfinished, vbuckets_of
from dcpstream_node.store.metadata import FILE_NAME
from tests.kit.stores import fill, key_of, put


def test_a_store_with_and_without_documents(tmp_path: Path) -> None:
    with DiskBucketStore(tmp_path, 3) as store:
        assert (is_store(tmp_path), is_unfinished(tmp_path), vbuckets_of(tmp_path)) == (True, False, 3)
        fill(store)
        put(store.vbuckets[0], key_of("a"), b"")
    assert (is_store(tmp_path), is_unfinished(tmp_path), vbuckets_of(tmp_path)) == (True, False, 3)
    (tmp_path / FILE_NAME).unlink()
    assert (is_store(tmp_path), is_unfinished(tmp_path), vbuckets_of(tmp_path)) == (True, False, None)
    (tmp_path / FILE_NAME).touch()
    assert (is_store(tmp_path), is_unfinished(tmp_path), vbuckets_of(tmp_path)) == (True, False, None)


@pytest.mark.parametrize(
    "names", [["lock"], ["lock", FILE_NAME], [f"{FILE_NAME}.new"], [FILE_NAME, f"{FILE_NAME}-journal"]]
)
def test_what_a_creation_left(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert is_unfinished(tmp_path)
    assert is_store(tmp_path) is (FILE_NAME in names)
    (tmp_path / "notes.txt").touch()
    assert not is_unfinished(tmp_path), "somebody keeps something else here"


def test_tables_that_were_cut_short_in_their_transaction(tmp_path: Path) -> None:
    """A journal is there, so the tables are to be taken back."""
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size=1")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE store (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        for number in range(50):
            connection.execute("INSERT INTO store VALUES (?, ?)", (str(number), "v" * 900))
        assert (tmp_path / f"{FILE_NAME}-journal").stat().st_size
        found = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for name, content in found.items():
        (tmp_path / name).write_bytes(content)
    assert is_unfinished(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == found, "nothing is changed by a look"


@pytest.mark.parametrize("content", [b"no database" * 100, b"x"])
def test_what_cannot_be_read_may_have_held_something(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert (is_store(tmp_path), is_unfinished(tmp_path)) == (True, False)


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file", tmp_path / "missing"):
        assert not is_store(path)
        assert not is_unfinished(path)
