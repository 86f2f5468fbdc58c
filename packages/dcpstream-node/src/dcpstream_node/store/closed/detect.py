"""Detecting stores: a directory's state, read without opening the store."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dcpstream.errors import StoreError
from dcpstream.runtime.files import LOCK_NAME, NEW_SUFFIX
from dcpstream_node.store.log.blocks import segment_number
from dcpstream_node.store.metadata import FILE_NAME, JOURNAL_NAME, Metadata

_MAGIC = b"SQLite format 3\0"
_OF_CREATION = frozenset({LOCK_NAME, FILE_NAME, JOURNAL_NAME, FILE_NAME + NEW_SUFFIX})

MAX_COPIES = 50
"""Attempts to copy the metadata between two transactions of a busy node. Each takes a millisecond."""


def is_store(directory: Path) -> bool:
    """Whether a directory holds files of a store, even damaged or incomplete ones."""
    try:
        return any(entry.name == FILE_NAME or segment_number(entry.name) is not None for entry in directory.iterdir())
    except OSError:  # a file, or a directory without permission
        return False


def is_unfinished(directory: Path) -> bool:
    """Whether a directory holds only the rest of a store creation that was cut short.

    Such a store never had a document. Its metadata file may exist, without lines.
    """
    try:
        names = {entry.name for entry in directory.iterdir()}
    except OSError:
        return False
    return bool(names) and names <= _OF_CREATION and (FILE_NAME not in names or _is_blank(directory / FILE_NAME))


def _is_blank(file: Path) -> bool:
    """Whether a metadata file is empty, or has only empty tables."""
    try:
        if not file.stat().st_size:
            return True
        with copy_of_metadata(file.parent) as copy, closing(sqlite3.connect(copy / FILE_NAME)) as connection:
            # The first read rolls back an unfinished transaction. SQLite takes a file of a few bytes for an empty one.
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            if (copy / FILE_NAME).read_bytes()[: len(_MAGIC)] not in (b"", _MAGIC):
                return False
            tables = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            return tables <= {"store", "vbuckets"} and not any(
                connection.execute(f"SELECT 1 FROM {table}").fetchone()  # noqa: S608 - two names of ours
                for table in tables
            )
    except (OSError, sqlite3.Error, ValueError, UnicodeDecodeError):
        return False


@contextmanager
def copy_of_metadata(directory: Path) -> Iterator[Path]:
    """A temporary directory with a copy of the metadata, in which SQLite may roll back an unfinished transaction.

    A node may write the metadata meanwhile. The copy is of one moment if the file is the same before and after the
    journal is read: every transaction changes its first page, before the others.
    """
    with tempfile.TemporaryDirectory(prefix="dcpstream-check-") as scratch:
        content = _bytes_of(directory / FILE_NAME)
        for _ in range(MAX_COPIES):
            journal = _bytes_of(directory / JOURNAL_NAME)
            before, content = content, _bytes_of(directory / FILE_NAME)
            if content == before:
                break
        for name, copied in ((FILE_NAME, content), (JOURNAL_NAME, journal)):
            if copied is not None:
                (Path(scratch) / name).write_bytes(copied)
        yield Path(scratch)


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def vbuckets_of(directory: Path) -> int | None:
    """The number of vbuckets for which a store was made; None if unreadable. The caller holds the store's lock."""
    try:
        with closing(Metadata(directory, verify=False)) as metadata:
            return metadata.vbucket_count()
    except StoreError:
        return None
