"""Offset stores: the positions of readers between runs.

A vbucket's record is written and read whole: position, branch, snapshot bounds, manifest uid, collections, and the
positions recorded before, to which a rollback can go back. Its text is an entry of `dcpstream.model.position_text`,
with `!` at its end in a rollback. Positions are saved when the user says that the changes before them are processed,
never earlier. The start of a vbucket, and the target of a rollback, are saved before they are delivered (see
`positions.Positions`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

from dcpstream.errors import ConfigError, OffsetError
from dcpstream.model import StreamOffset
from dcpstream.model.position_text import (
    CollectionSet,
    CollectionSets,
    chain,
    chain_text,
    joined_entries,
    sets_of,
    split_entries,
)

FORMAT = "dcpstream offsets"
VERSION = 3

_ROLLING_BACK = "!"

_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors when damaged records are read. A number like 1e999 overflows; many brackets end the stack."""


@dataclass(frozen=True, slots=True)
class SavedOffset:
    """One vbucket's record.

    Attributes:
        offset: where to resume.
        earlier: positions recorded before, newest first.
        is_rolling_back: whether a rollback to `offset` was delivered and is not acknowledged yet. The user may or may
            not have taken back the rows above it, so the next run reports it again.
    """

    offset: StreamOffset
    earlier: tuple[StreamOffset, ...] = ()
    is_rolling_back: bool = False

    def to_json(self) -> dict[str, Any]:
        """The record with plain numbers, for people."""
        mark = {"rolling_back": True} if self.is_rolling_back else {}
        return {**self.offset.to_json(), **mark, "earlier": [old.to_json() for old in self.earlier]}

    def entry(self, sets: CollectionSets) -> str:
        """The record as stores have it."""
        return chain_text((self.offset, *self.earlier), sets.number) + _ROLLING_BACK * self.is_rolling_back

    @classmethod
    def of_entry(cls, entry: str, sets: Sequence[CollectionSet]) -> SavedOffset:
        """The inverse of `entry`; raises ValueError or IndexError."""
        offset, *earlier = chain(entry.removesuffix(_ROLLING_BACK), sets)
        return cls(offset, tuple(earlier), entry.endswith(_ROLLING_BACK))


class _Entries:
    """The entries of a file, kept from save to save: most vbuckets stay as they were between two saves."""

    def __init__(self) -> None:
        self._sets = CollectionSets()
        self._kept: dict[int, tuple[SavedOffset, str]] = {}

    def to_json(self, records: Mapping[int, SavedOffset]) -> dict[str, Any]:
        """The records with their sets of collections."""
        known = len(self._sets)
        entries = self._entries(records)
        if len(self._sets) > known:
            # Begin again, without the sets that no record has any more.
            self._sets, self._kept = CollectionSets(), {}
            entries = self._entries(records)
        return {**self._sets.to_json(), "vbuckets": joined_entries(entries)}

    def _entries(self, records: Mapping[int, SavedOffset]) -> dict[int, str]:
        before = self._kept
        self._kept = {
            vbid: kept if (kept := before.get(vbid)) and kept[0] is record else (record, record.entry(self._sets))
            for vbid, record in sorted(records.items())
        }
        return {vbid: entry for vbid, (_, entry) in self._kept.items()}


@runtime_checkable
class OffsetStore(Protocol):
    """The interface of a store; `save` must be durable when it returns."""

    def load(self) -> dict[int, SavedOffset]:
        """Everything saved: vbucket → record; empty if nothing was saved yet."""
        ...

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        """Replace the records of these vbuckets; the others stay."""
        ...


class FileOffsetStore:
    """Positions in one text file, replaced as a whole at each save.

    The first line is a header with a checksum of the second, which has the records. A save writes a new file in the
    same directory, makes it durable and renames it, so a crash leaves the old or the new one.

    Args:
        path: the file; its directory must exist.

    Raises:
        ConfigError: `path` is a directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            message = f"{self.path} is a directory: give the name of a file in it, such as {self.path / 'offsets'}"
            raise ConfigError("path", str(self.path), "a file, not a directory", message=message)
        self._records: dict[int, SavedOffset] | None = None
        self._entries = _Entries()

    def load(self) -> dict[int, SavedOffset]:
        """Everything saved.

        Raises:
            OffsetError: the file is damaged or of another kind; says what to do.
        """
        if self._records is None:
            self._records = self._read()
        return dict(self._records)

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        """Replace the records of these vbuckets and make that durable.

        Raises:
            OffsetError: the existing file is damaged; nothing is written then.
            OSError: the file cannot be written; the old one is still there.
        """
        records = self.load() | dict(offsets)
        body = json.dumps(self._entries.to_json(records)).encode() + b"\n"
        header = {"format": FORMAT, "version": VERSION, "vbuckets": len(records), "crc32": f"{crc32(body):08x}"}
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        try:
            with fresh.open("wb") as file:
                file.write(json.dumps(header).encode() + b"\n" + body)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._records = records

    def _read(self) -> dict[int, SavedOffset]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        first, _, body = content.partition(b"\n")
        try:
            header = json.loads(first)
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise ValueError("it is not a file of offsets")
            if header.get("version") != VERSION:
                raise ValueError(f"its version is {header.get('version')}, this release reads version {VERSION}")
            if header.get("crc32") != f"{crc32(body):08x}":
                raise ValueError("its checksum is wrong: it was cut or changed")
            data = json.loads(body)
            sets = sets_of(data)
            return {vbid: SavedOffset.of_entry(entry, sets) for vbid, entry in split_entries(data["vbuckets"]).items()}
        except _UNREADABLE as error:
            raise _damaged(str(self.path), error) from error


class SqliteOffsetStore:
    """Positions in an SQLite database, one row a vbucket.

    SQLite does not notice a flipped bit in a value. So each row has a checksum of the reader's name, the vbucket and
    the record. A load also has SQLite compare its table with its index, because a flipped bit can hide a row.

    Args:
        path: the database; made if it is missing.
        name: of the reader, if several share the database.
    """

    def __init__(self, path: str | os.PathLike[str], name: str = "default") -> None:
        self.path = Path(path)
        self.name = name

    def load(self) -> dict[int, SavedOffset]:
        """Everything saved.

        Raises:
            OffsetError: the database or a record is damaged; says what to do.
        """
        if not self.path.exists():
            return {}
        try:
            with contextlib.closing(self._connect()) as connection:
                (fault,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
                if fault != "ok":
                    raise ValueError(str(fault))
                rows = connection.execute(
                    "SELECT vbucket, record, crc32 FROM offsets WHERE name = ?", (self.name,)
                ).fetchall()
            return {int(vbid): self._record(int(vbid), text, checksum) for vbid, text, checksum in rows}
        except (sqlite3.DatabaseError, *_UNREADABLE) as error:
            raise _damaged(str(self.path), error) from error

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        """Replace the records of these vbuckets in one transaction.

        Raises:
            OffsetError: the database is damaged.
        """
        rows = [self._row(vbid, record) for vbid, record in sorted(offsets.items())]
        try:
            with contextlib.closing(self._connect()) as connection, connection:
                connection.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?)", rows)
        except sqlite3.DatabaseError as error:
            raise _damaged(str(self.path), error) from error

    def _row(self, vbid: int, record: SavedOffset) -> tuple[str, int, str, int]:
        sets = CollectionSets()
        entry = record.entry(sets)
        text = json.dumps({**sets.to_json(), "entry": entry})
        return self.name, vbid, text, self._checksum(vbid, text)

    def _record(self, vbid: int, text: str, checksum: int) -> SavedOffset:
        if checksum != self._checksum(vbid, text):
            raise ValueError(f"the checksum of vbucket {vbid} is wrong: its record was changed")
        data = json.loads(text)
        return SavedOffset.of_entry(data["entry"], sets_of(data))

    def _checksum(self, vbid: int, text: str) -> int:
        return crc32(f"{self.name} {vbid} {text}".encode("utf-8", "surrogatepass"))

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS offsets ("
                "name TEXT NOT NULL, vbucket INTEGER NOT NULL, record TEXT NOT NULL, crc32 INTEGER NOT NULL, "
                "PRIMARY KEY (name, vbucket))"
            )
        except BaseException:
            connection.close()
            raise
        return connection


def _damaged(path: str, error: BaseException) -> OffsetError:
    return OffsetError(
        f"{path}: saved offsets cannot be read: {error}. Nothing was changed. Restore the file from a copy, or move it "
        "away to read all changes again from the beginning."
    )
