"""Offset stores: the positions of readers between runs.

A vbucket's record is written and read whole: position, branch, snapshot bounds, manifest uid, and the positions
recorded before, to which a rollback can go back. All 64-bit numbers are text. Positions are saved when the user says
that the changes before them are processed, never earlier. The start of a vbucket, and the target of a rollback, are
saved before they are delivered (see `positions.Positions`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable
from zlib import crc32

from dcpstream.errors import ConfigError, OffsetError
from dcpstream.model import CollectionName, StreamOffset
from dcpstream.model.position import collections_of_json

FORMAT = "dcpstream offsets"
VERSION = 2
"""1 had no collections."""

Collections: TypeAlias = tuple[CollectionName, ...] | None
PositionText: TypeAlias = Callable[[StreamOffset], str]
CollectionsText: TypeAlias = Callable[[Collections], str]

_encode = json.JSONEncoder(sort_keys=True).encode

CHECKSUM_AT = ', "crc32": "'
"""The text before the checksum in a record of a database."""
_RECORD_NAMES = frozenset(
    {"vbuuid", "seqno", "snapshot_start", "snapshot_end", "manifest_uid", "collections", "rolling_back", "earlier"}
    | {"crc32"}
)
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
        """The record as JSON values."""
        data: dict[str, Any] = json.loads(self.to_text(_position_text, _collections_text))
        return data

    def to_text(self, position_text: PositionText, collections_text: CollectionsText) -> str:
        """The record as JSON.

        An earlier position leaves out collections that are those of the newest.

        Args:
            position_text: makes the text of a position without its collections, and without brackets.
            collections_text: makes that of the newest position's collections.
        """
        own = self.offset.collections
        earlier = []
        for old in self.earlier:
            text = position_text(old)
            if old.collections is not own and old.collections != own:
                text += f', "collections": {_collections_text(old.collections)}'
            earlier.append(f"{{{text}}}")
        named = "" if own is None else f', "collections": {collections_text(own)}'
        mark = ', "rolling_back": true' if self.is_rolling_back else ""
        return f'{{{position_text(self.offset)}{named}{mark}, "earlier": [{", ".join(earlier)}]}}'

    @classmethod
    def from_json(cls, data: Mapping[str, Any], names: _Names | None = None) -> SavedOffset:
        """The inverse of `to_json`; raises ValueError.

        Args:
            names: of other records that may have the same collections.
        """
        names = names or _Names()
        earlier = data.get("earlier", ())
        if not isinstance(earlier, list | tuple):
            raise ValueError("earlier positions are not a list")
        is_rolling_back = data.get("rolling_back", False)
        if not isinstance(is_rolling_back, bool):
            raise ValueError("rolling_back is neither true nor false")
        same = {"collections": data.get("collections")}
        positions = tuple(StreamOffset.from_json({**same, **old}, names) for old in earlier)
        return cls(StreamOffset.from_json(data, names), positions, is_rolling_back)


class _Names:
    """Makes each set of collections once for all positions that have the same JSON object."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Mapping[str, str], tuple[CollectionName, ...]]] = {}

    def __call__(self, named: Mapping[str, str]) -> tuple[CollectionName, ...]:
        """The collections."""
        if id(named) not in self._made:
            self._made[id(named)] = named, collections_of_json(named)
        return self._made[id(named)][1]


def _position_text(offset: StreamOffset) -> str:
    return _encode(offset.numbers_to_json())[1:-1]


def _collections_text(collections: Collections) -> str:
    return _encode(StreamOffset(0, 0, 0, 0, collections=collections).to_json().get("collections"))


@dataclass(frozen=True, slots=True)
class _Line:
    """The text of a record, the texts of its positions by their identity, and the place of its collections if any."""

    record: SavedOffset
    text: str
    positions: dict[int, tuple[StreamOffset, str]]
    place: int | None


class _Lines:
    """The lines of a file of records, kept from save to save.

    Most vbuckets stay as they were between two saves, and most earlier positions of the others were in their lines
    before. Both are known by their identity, which costs less than a look at their values.
    """

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._listed: dict[str, int] = {}
        self._last: tuple[Collections, int] = (None, 0)

    def of(self, records: Mapping[int, SavedOffset]) -> list[str]:
        """A line for each record, in order of the vbuckets, behind one with the sets of collections."""
        before, self._lines = self._lines, {}
        for vbid in sorted(records):
            line = before.get(vbid)
            self._lines[vbid] = (
                line if line is not None and line.record is records[vbid] else self._made(vbid, records[vbid], line)
            )
        if len(self._listed) > len({line.place for line in self._lines.values()} - {None}):
            # Nothing has the oldest collections any more: begin anew.
            self._lines, self._listed, self._last = {}, {}, (None, 0)
            return self.of(records)
        lines = [line.text for line in self._lines.values()]
        if self._listed:
            lines.insert(0, f'{{"collections": [{", ".join(self._listed)}]}}\n')
        return lines

    def _made(self, vbid: int, record: SavedOffset, before: _Line | None) -> _Line:
        known = {} if before is None else before.positions
        positions: dict[int, tuple[StreamOffset, str]] = {}

        def position_text(offset: StreamOffset) -> str:
            found = known.get(id(offset)) or (offset, _position_text(offset))
            positions[id(offset)] = found
            return found[1]

        text = record.to_text(position_text, lambda collections: str(self._place_of(collections)))
        place = None if record.offset.collections is None else self._place_of(record.offset.collections)
        return _Line(record, f'{{"vbucket": {vbid}, {text[1:]}\n', positions, place)

    def _place_of(self, collections: Collections) -> int:
        """The place of a set of collections in the list."""
        last, place = self._last
        if collections is not last and collections != last:
            place = self._listed.setdefault(_collections_text(collections), len(self._listed))
            self._last = collections, place
        return place


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

    The first line is a header with a checksum of the rest; each further line is one vbucket. A vbucket refers to its
    collections by their place in a line before the vbuckets, as most of them have the same ones. A save writes a new
    file beside the old one, makes it durable and renames it, so a crash leaves the old or the new one.

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
        self._lines = _Lines()

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
        body = "".join(self._lines.of(records)).encode()
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
            if header.get("version") not in {1, VERSION}:
                raise ValueError(f"its version is {header.get('version')}, this program knows {VERSION}")
            if header.get("crc32") != f"{crc32(body):08x}":
                raise ValueError("its checksum is wrong: it was cut or changed")
            records: dict[int, SavedOffset] = {}
            listed: list[Any] = []
            names = _Names()
            for line in body.splitlines():
                data = json.loads(line)
                if "vbucket" not in data:
                    listed = data["collections"]
                    continue
                if "collections" in data:
                    data["collections"] = listed[data["collections"]]
                records[int(data["vbucket"])] = SavedOffset.from_json(data, names)
        except _UNREADABLE as error:
            raise _damaged(str(self.path), error) from error
        return records


class SqliteOffsetStore:
    """Positions in an SQLite database, one row a vbucket.

    SQLite does not notice a flipped bit in a value. So each record carries a checksum of the reader's name, the vbucket
    and the record. A load also has SQLite compare its table with its index, because a flipped bit can hide a row. A
    record without a checksum was written by an older version and is taken as it is.

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
                rows = connection.execute("SELECT vbucket, record FROM offsets WHERE name = ?", (self.name,)).fetchall()
            return {int(vbid): SavedOffset.from_json(self._checked(int(vbid), record)) for vbid, record in rows}
        except (sqlite3.DatabaseError, *_UNREADABLE) as error:
            raise _damaged(str(self.path), error) from error

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        """Replace the records of these vbuckets in one transaction.

        Raises:
            OffsetError: the database is damaged.
        """
        rows = [
            (self.name, vbid, self._with_checksum(vbid, record.to_text(_position_text, _collections_text)))
            for vbid, record in sorted(offsets.items())
        ]
        try:
            with contextlib.closing(self._connect()) as connection, connection:
                connection.executemany("INSERT OR REPLACE INTO offsets (name, vbucket, record) VALUES (?, ?, ?)", rows)
        except sqlite3.DatabaseError as error:
            raise _damaged(str(self.path), error) from error

    def _checksum(self, vbid: int, text: str) -> str:
        return f"{crc32(f'{self.name} {vbid} {text}'.encode('utf-8', 'surrogatepass')):08x}"

    def _with_checksum(self, vbid: int, text: str) -> str:
        """A record's JSON with its checksum as the last value."""
        return f'{text[:-1]}{CHECKSUM_AT}{self._checksum(vbid, text)}"}}'

    def _checked(self, vbid: int, record: str) -> dict[str, Any]:
        """The values of a record. Raises ValueError: its checksum is wrong."""
        text, mark, checksum = record.rpartition(CHECKSUM_AT)
        if mark and checksum != f'{self._checksum(vbid, f"{text}}}")}"}}':
            raise ValueError(f"the checksum of vbucket {vbid} is wrong: its record was changed")
        data = json.loads(record)
        if not isinstance(data, dict) or not data.keys() <= _RECORD_NAMES:
            # An unknown name may be that of the checksum with a flipped bit.
            raise ValueError(f"the record of vbucket {vbid} has other values than {', '.join(sorted(_RECORD_NAMES))}")
        return data

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS offsets ("
                "name TEXT NOT NULL, vbucket INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (name, vbucket))"
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
