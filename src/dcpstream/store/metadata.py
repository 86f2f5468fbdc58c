"""What a disk store knows beside the history: vbucket states, failover logs, the manifest, how it was closed.

One SQLite file. A vbucket that was deleted keeps its line, because its incarnation must rise: blocks of an older
incarnation in the segments are void.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from dcpstream.errors import StoreError
from dcpstream.model import BucketSettings, FailoverLog, Manifest, VbucketState
from dcpstream.store.blocks import FORMAT_VERSION, other_format

FILE_NAME = "meta.sqlite"
BUSY_TIMEOUT_S = 5.0
"""How long to wait for somebody who looks into the file with the sqlite3 tool."""
FORMAT = str(FORMAT_VERSION)

_TABLES = """
CREATE TABLE IF NOT EXISTS store (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS vbuckets (
    vbid INTEGER PRIMARY KEY,
    incarnation INTEGER NOT NULL,
    state INTEGER,              -- NULL: deleted
    failover_log TEXT NOT NULL, -- JSON, [[vbuuid, seqno], ...] in decimal text, newest first
    purge_seqno TEXT NOT NULL   -- decimal text: u64 does not fit SQLite's integers
);
"""


@dataclass(frozen=True, slots=True)
class VbucketMetadata:
    """One line of the table; `state` is None for a deleted vbucket."""

    vbid: int
    incarnation: int
    state: VbucketState | None
    failover_log: FailoverLog | None
    purge_seqno: int


class Metadata:
    """The SQLite file of a store. Every method that writes is durable when it returns.

    Raises:
        StoreError: from every method: the file cannot be read or written, or belongs to another format.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._lock = Lock()
        try:
            # Commits come from the flusher's thread, everything else from the node's; the lock keeps them apart.
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} cannot be opened: {error}") from error
        try:
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.executescript(_TABLES)
            found = self.get("format")
        except (sqlite3.Error, StoreError) as error:
            self._connection.close()
            raise StoreError(
                f"{self._path} is not usable: {error}. Without it the vbuckets' states and failover logs are unknown; "
                "restore it from a copy, or move the directory away and start empty."
            ) from error
        if found not in {None, FORMAT}:
            self._connection.close()
            raise StoreError(other_format(str(self._path), found))

    def get(self, name: str) -> str | None:
        """A value of the store, None if it was never set."""
        with self._lock:
            try:
                row = self._connection.execute("SELECT value FROM store WHERE name = ?", (name,)).fetchone()
            except sqlite3.Error as error:
                raise StoreError(f"{self._path} cannot be read: {error}") from error
        return None if row is None else str(row[0])

    def put(self, values: dict[str, str], vbuckets: Iterable[VbucketMetadata] = ()) -> None:
        """Set values and vbuckets' lines in one transaction."""
        lines = [
            (
                line.vbid,
                line.incarnation,
                None if line.state is None else int(line.state),
                "[]" if line.failover_log is None else json.dumps(line.failover_log.to_json()),
                str(line.purge_seqno),
            )
            for line in vbuckets
        ]
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    self._connection.executemany("INSERT OR REPLACE INTO store VALUES (?, ?)", list(values.items()))
                    self._connection.executemany("INSERT OR REPLACE INTO vbuckets VALUES (?, ?, ?, ?, ?)", lines)
                    self._connection.execute("COMMIT")
                except sqlite3.Error:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StoreError(
                    f"{self._path} cannot be written: {error}. Nothing of this change was kept."
                ) from error

    def vbuckets(self) -> list[VbucketMetadata]:
        """Every line of the table, deleted vbuckets included."""
        with self._lock:
            try:
                rows = self._connection.execute(
                    "SELECT vbid, incarnation, state, failover_log, purge_seqno FROM vbuckets ORDER BY vbid"
                ).fetchall()
                return [
                    VbucketMetadata(
                        vbid,
                        incarnation,
                        None if state is None else VbucketState(state),
                        None if state is None else FailoverLog.from_json(json.loads(log)),
                        int(purge_seqno),
                    )
                    for vbid, incarnation, state, log, purge_seqno in rows
                ]
            except (sqlite3.Error, ValueError) as error:
                raise StoreError(f"{self._path} cannot be read: {error}") from error

    def segments(self) -> tuple[list[tuple[int, int | None]] | None, list[int]]:
        """(number, committed bytes) of each segment in order, None before the first is listed; and retired numbers."""
        order, retired = self.get("segments"), self.get("retired")
        try:
            listed = None if order is None else [(int(number), size) for number, size in json.loads(order)]
            return listed, [int(number) for number in json.loads(retired or "[]")]
        except (ValueError, TypeError) as error:
            raise StoreError(f"{self._path} holds a list of segments that cannot be read: {error}") from error

    def manifest(self) -> Manifest:
        """The bucket's manifest."""
        text = self.get("manifest")
        try:
            return Manifest.DEFAULT if text is None else Manifest.from_json(json.loads(text))
        except ValueError as error:
            raise StoreError(f"{self._path} holds a manifest that cannot be read: {error}") from error

    def settings(self) -> BucketSettings | None:
        """The bucket's settings, None if there are none yet."""
        text = self.get("settings")
        try:
            return None if text is None else BucketSettings.from_json(json.loads(text))
        except ValueError as error:
            raise StoreError(f"{self._path} holds settings that cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
