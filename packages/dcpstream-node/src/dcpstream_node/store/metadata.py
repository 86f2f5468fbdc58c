"""The metadata of a disk store in one SQLite file: vbucket states, failover logs, manifest, list of segments, closing.

A deleted vbucket keeps its line, because its incarnation must rise: blocks of an older incarnation in the segments are
void.

SQLite does not notice a flipped bit in its file. So one line holds a checksum of all others: the XOR of the XXH3-64 of
each line, which can be updated without reading the other lines. SQLite uses a rollback journal, not a write-ahead log,
because it silently drops the commits after a damaged page of a write-ahead log.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.model import BucketSettings, FailoverLog, Manifest, VbucketState
from dcpstream.runtime import FileSystem, write_whole
from dcpstream_node.store.log.blocks import FORMAT_VERSION, RESTORE_HINT, checksum, other_format

T = TypeVar("T")

FILE_NAME = "meta.sqlite"
JOURNAL_NAME = f"{FILE_NAME}-journal"
BUSY_TIMEOUT_S = 5.0
"""Longest wait for another process that reads the file, such as the sqlite3 tool."""
FORMAT = str(FORMAT_VERSION)
FORMATS_BEFORE_CHECKSUMS = frozenset({"1"})
CHECKSUM_NAME = "checksum"
"""The line of `store` that holds the checksum of all others, in 16 hexadecimal digits."""
METADATA_HINT = f"Nothing is served, because states and failover logs may be wrong. {RESTORE_HINT}"
MISSING_HINT = (
    "The states of the vbuckets, their failover logs and the order of the segments are in this file alone. Restore the "
    "whole directory from a copy; or move the directory away and start with an empty bucket."
)
UNREADABLE_HINT = f"Nothing in it can be read. {MISSING_HINT}"

_TABLES = """
CREATE TABLE store (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE vbuckets (
    vbid INTEGER PRIMARY KEY,
    incarnation INTEGER NOT NULL,
    state INTEGER,              -- NULL: deleted
    failover_log TEXT NOT NULL, -- JSON, [[vbuuid, seqno], ...] in decimal text, newest first
    purge_seqno TEXT NOT NULL,  -- decimal text: u64 does not fit SQLite's integers
    horizon_seqno TEXT NOT NULL,  -- likewise; states before it are not kept
    max_deleted_rev TEXT NOT NULL -- likewise; the highest revision among deletions that are gone
);
"""
_UNREADABLE = (sqlite3.DatabaseError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""Errors when damaged lines are read: wrong types, text that is no JSON or no UTF-8."""

_OF_SYSTEM = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)


def _is_of_system(error: BaseException) -> bool:
    """Whether an error comes from the system or the caller, and not from the file's content."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, sqlite3.ProgrammingError)  # a closed connection
    return code & 0xFF in _OF_SYSTEM and code != sqlite3.SQLITE_IOERR_SHORT_READ


def is_of_disk(error: StoreError) -> bool:
    """Whether a change of the metadata failed because the disk is full, read-only or failing."""
    code = getattr(error.__cause__, "sqlite_errorcode", 0)
    return code & 0xFF in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


class InDoubtError(StoreError):
    """A change of the metadata failed during COMMIT: it may be durable or not."""


@dataclass(frozen=True, slots=True)
class VbucketMetadata:
    """One line of the table; `state` is None for a deleted vbucket."""

    vbid: int
    incarnation: int
    state: VbucketState | None
    failover_log: FailoverLog | None
    purge_seqno: int
    horizon_seqno: int = 0
    max_deleted_rev: int = 0


@dataclass(frozen=True, slots=True)
class MetadataContents:
    """Everything in the file that an opening reads; see the methods of `Metadata`."""

    order: list[tuple[int, int | None]] | None
    retired: list[int]
    lines: dict[int, VbucketMetadata]
    closed_at: tuple[int, int] | None
    vbucket_count: int
    manifest: Manifest
    settings: BucketSettings | None

    def counts(self, vbid: int, incarnation: int) -> bool:
        """Whether blocks of this incarnation of a vbucket count; all others are void."""
        line = self.lines.get(vbid)
        return line is not None and line.state is not None and line.incarnation == incarnation


def digest_of(table: str, row: Iterable[object]) -> int:
    """A line's part of the checksum: XXH3-64 of the table's name and the values, as text, each with a zero byte."""
    text = "".join(f"{'' if value is None else value}\0" for value in (table, *row))
    return checksum(text.encode("utf-8", "surrogatepass"), 0)


def make_metadata(directory: Path, values: dict[str, str], file_system: FileSystem) -> None:
    """Make the file of a new store, with these values and no vbucket. A crash leaves the whole file or none.

    Raises: OSError: it cannot be written.
    """
    total = 0
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(_TABLES)
        for line in values.items():
            total ^= digest_of("store", line)
            connection.execute("INSERT INTO store VALUES (?, ?)", line)
        if values:
            connection.execute("INSERT INTO store VALUES (?, ?)", (CHECKSUM_NAME, f"{total:016x}"))
        content = connection.serialize()
    # A journal of an earlier file of that name; SQLite would apply it to the new file.
    journal = directory / JOURNAL_NAME
    if journal.exists():
        file_system.remove(journal)
    write_whole(file_system, directory / FILE_NAME, content)


class Metadata:
    """The SQLite file of a store. A method that writes is durable when it returns.

    Args:
        directory: of the store; the file must exist, see `make_metadata`.
        verify: whether to refuse lines whose checksum does not match; a check reads them.

    Raises:
        CorruptLog: at the opening: the file is missing, or its checksum does not match.
        StoreError: from every method: the file cannot be read or written, or is of another format.
    """

    def __init__(self, directory: Path, *, verify: bool = True) -> None:
        self._path = directory / FILE_NAME
        self._lock = Lock()
        self._is_in_doubt = False  # after an InDoubtError: read the lines again before the next change
        if not self._path.exists():
            raise self._damaged("a file", "no file", MISSING_HINT)
        try:
            # Commits come from the flusher's thread, everything else from the node's; the lock keeps them apart.
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} cannot be opened: {error}") from error
        try:
            # SQLite syncs a truncated journal, but not a removed one, which a power cut could bring back.
            self._connection.execute("PRAGMA journal_mode=TRUNCATE")
            self._connection.execute("PRAGMA synchronous=FULL")
            has_tables = self._connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
            found = self.get("format") if has_tables else None
        except (*_UNREADABLE, StoreError) as error:
            self._connection.close()
            cause = error.__cause__ or error
            if _is_of_system(cause):
                raise StoreError(f"{self._path} cannot be opened: {cause}") from error
            raise self._damaged("a database of SQLite", str(cause), UNREADABLE_HINT) from error
        if not has_tables:
            self._connection.close()
            raise self._damaged("tables", "none", UNREADABLE_HINT)
        try:
            if found in FORMATS_BEFORE_CHECKSUMS:
                raise StoreError(other_format(str(self._path), found))
            self._digests, self._total = self._verify(verify)
            if found not in {None, FORMAT}:
                raise StoreError(other_format(str(self._path), found))
        except StoreError:
            self._connection.close()
            raise

    def _verify(self, is_strict: bool) -> tuple[dict[tuple[str, object], int], int]:
        """The digest of each line, and the checksum of all; raises if the file holds another checksum."""
        digests: dict[tuple[str, object], int] = {}
        total, expected = 0, ""
        try:
            for table in ("store", "vbuckets"):
                for row in self._connection.execute(f"SELECT * FROM {table}"):  # noqa: S608 - two names of ours
                    if (table, row[0]) == ("store", CHECKSUM_NAME):
                        expected = str(row[1])
                        continue
                    digests[table, row[0]] = digest = digest_of(table, row)
                    total ^= digest
        except _UNREADABLE as error:
            raise self._unreadable("lines", error) from error
        actual = f"{total:016x}" if digests else ""
        if actual != expected and is_strict:
            wanted = f"lines whose checksum is {expected or 'missing'}"
            raise self._damaged(wanted, actual or "no lines", METADATA_HINT)
        return digests, total

    def _damaged(self, expected: str, actual: str, hint: str = METADATA_HINT) -> CorruptLog:
        return CorruptLog(str(self._path), 0, expected, actual, hint)

    def get(self, name: str) -> str | None:
        """A value of the store, None if it was never set."""
        with self._lock:
            try:
                row = self._connection.execute("SELECT value FROM store WHERE name = ?", (name,)).fetchone()
            except _UNREADABLE as error:
                raise self._unreadable(f"a line named {name}", error) from error
        return None if row is None else str(row[0])

    def _unreadable(self, what: str, error: BaseException) -> StoreError:
        if _is_of_system(error):
            return StoreError(f"{self._path} cannot be read: {error}")
        return self._damaged(what, f"{what} that cannot be read ({str(error) or type(error).__name__})")

    def put(self, values: dict[str, str], vbuckets: Iterable[VbucketMetadata] = ()) -> None:
        """Set values and vbuckets' lines in one transaction.

        Raises:
            StoreError: nothing was kept.
            InDoubtError: the change may have been kept.
        """
        lines = [
            (
                line.vbid,
                line.incarnation,
                None if line.state is None else int(line.state),
                "[]" if line.failover_log is None else json.dumps(line.failover_log.to_json()),
                str(line.purge_seqno),
                str(line.horizon_seqno),
                str(line.max_deleted_rev),
            )
            for line in vbuckets
        ]
        with self._lock:
            if self._is_in_doubt:
                self._digests, self._total = self._verify(is_strict=False)
                self._is_in_doubt = False
            total = self._total
            changed: dict[tuple[str, object], int] = {}
            for table, rows in (("store", list(values.items())), ("vbuckets", lines)):
                for row in rows:
                    key = (table, row[0])
                    total ^= changed.get(key, self._digests.get(key, 0))
                    changed[key] = digest = digest_of(table, row)
                    total ^= digest
            is_in_doubt = False
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    self._connection.executemany("INSERT OR REPLACE INTO store VALUES (?, ?)", list(values.items()))
                    self._connection.executemany("INSERT OR REPLACE INTO vbuckets VALUES (?, ?, ?, ?, ?, ?, ?)", lines)
                    self._connection.execute(
                        "INSERT OR REPLACE INTO store VALUES (?, ?)", (CHECKSUM_NAME, f"{total:016x}")
                    )
                    is_in_doubt = True
                    self._connection.execute("COMMIT")
                except sqlite3.Error:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                        is_in_doubt = False
                    raise
            except sqlite3.Error as error:
                if is_in_doubt:
                    self._is_in_doubt = True
                    raise InDoubtError(
                        f"{self._path} cannot be written: {error}. Whether this was kept shows when it is read again."
                    ) from error
                raise StoreError(
                    f"{self._path} cannot be written: {error}. Nothing of this change was kept."
                ) from error
            self._total = total
            self._digests |= changed

    def vbuckets(self) -> list[VbucketMetadata]:
        """Every line of the table, deleted vbuckets included."""
        with self._lock:
            try:
                rows = self._connection.execute(
                    "SELECT vbid, incarnation, state, failover_log, purge_seqno, horizon_seqno, max_deleted_rev "
                    "FROM vbuckets ORDER BY vbid"
                ).fetchall()
                return [
                    VbucketMetadata(
                        vbid,
                        incarnation,
                        None if state is None else VbucketState(state),
                        None if state is None else FailoverLog.from_json(json.loads(log)),
                        int(purge_seqno),
                        int(horizon_seqno),
                        int(max_deleted_rev),
                    )
                    for vbid, incarnation, state, log, purge_seqno, horizon_seqno, max_deleted_rev in rows
                ]
            except _UNREADABLE as error:
                raise self._unreadable("vbuckets", error) from error

    def contents(self) -> MetadataContents:
        """Everything that an opening reads."""
        closed_at = self.closed_at()
        order, retired = self.segments()
        lines = {line.vbid: line for line in self.vbuckets()}
        return MetadataContents(
            order, retired, lines, closed_at, self.vbucket_count(), self.manifest(), self.settings()
        )

    def _parsed(self, name: str, what: str, parse: Callable[[str | None], T]) -> T:
        """A value of the store, parsed; `parse` gets None if it was never set."""
        text = self.get(name)
        try:
            return parse(text)
        except _UNREADABLE as error:
            raise self._unreadable(what, error) from error

    def vbucket_count(self) -> int:
        """The number of vbuckets for which the store was made."""
        return self._parsed("vbucket_count", "the number of vbuckets", lambda text: int(text or ""))

    def closed_at(self) -> tuple[int, int] | None:
        """(number, committed bytes) of the last segment when the store was closed cleanly; None if it was not."""
        return self._parsed("closed_at", "a line about the closing of the store", _segment_end)

    def integrity(self) -> list[str]:
        """The problems that SQLite's own check finds in the file."""
        with self._lock:
            try:
                rows = self._connection.execute("PRAGMA integrity_check(20)").fetchall()
            except _UNREADABLE as error:
                return [str(error)]
        return [str(row[0]) for row in rows if row[0] != "ok"]

    def segments(self) -> tuple[list[tuple[int, int | None]] | None, list[int]]:
        """(number, committed bytes) of each segment in order, None before the first is listed; and retired numbers."""
        listed = self._parsed("segments", "a list of segments", _segment_list)
        return listed, self._parsed("retired", "a list of segments", lambda text: [*map(int, json.loads(text or "[]"))])

    def manifest(self) -> Manifest:
        """The bucket's manifest."""
        return self._parsed(
            "manifest",
            "a manifest",
            lambda text: Manifest.DEFAULT if text is None else Manifest.from_json(json.loads(text)),
        )

    def settings(self) -> BucketSettings | None:
        """The bucket's settings, None if there are none yet."""
        return self._parsed(
            "settings", "settings", lambda text: None if text is None else BucketSettings.from_json(json.loads(text))
        )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


def _segment_end(text: str | None) -> tuple[int, int] | None:
    if not text:
        return None
    number, size = json.loads(text)
    return int(number), int(size)


def _segment_list(text: str | None) -> list[tuple[int, int | None]] | None:
    return None if text is None else [(int(number), size) for number, size in json.loads(text)]
