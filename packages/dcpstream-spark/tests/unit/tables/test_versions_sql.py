"""Every version of a document, once, from its write to what ends it: equal to the log that a bucket has in the end.

The world: vbuckets that keep their whole log, writers that set, delete, drop and create, failovers that cut a log, and
a reader that takes any number of rows into each batch, learns of a failover a while later, and leaves a collection out
for some batches. `changes` is what it wrote; void rows stay in it.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from dcpstream.model import Op
from dcpstream_spark.tables.delta_rs import DeltaRsEngine, _answer
from dcpstream_spark.tables.rows import BATCH_ID, changes_schema, with_batch_id
from dcpstream_spark.tables.versions_sql import VERSION_COLUMNS, versions
from tests.kit.cases import each_case
from tests.kit.tables import Row, change, created, dropped, event, rollback, table_of

VBUCKETS, KEYS, COLLECTIONS = 2, "abc", ("x", "y")
LEFT_OUT = "y"
USED = frozenset(("key", "scope", "collection", "vbucket", "seqno", "op", BATCH_ID))
ENDS = (Op.COLLECTION_DROPPED, Op.COLLECTION_CREATED)
Version = tuple[int, str, str, int, int | None]
"""Vbucket, collection, key, seqno, seqno of what ended it."""


class Entry(NamedTuple):
    """One item of a vbucket's log; `key` is empty for an event of a collection, `value` None for a deletion."""

    seqno: int
    op: Op
    collection: str
    key: str = ""
    value: str | None = None

    def row(self, vbucket: int) -> Row:
        if self.op is Op.COLLECTION_DROPPED:
            return {**dropped(self.collection, self.seqno, vbucket)}
        if self.op is Op.COLLECTION_CREATED:
            return {**created(self.collection, self.seqno, vbucket)}
        return {**change(self.key, self.seqno, self.value, vbucket=vbucket, collection=self.collection), "scope": "s"}


class World:
    """A bucket and its reader, by a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.logs: dict[int, list[Entry]] = {vbid: [] for vbid in range(VBUCKETS)}
        self.position = dict.fromkeys(self.logs, 0)
        self.cut: dict[int, int] = {}
        self.is_left_out = False
        self.batches: list[list[Row]] = []

    def write(self, vbid: int) -> None:
        log, chance = self.logs[vbid], self.chance
        seqno = (log[-1].seqno if log else 0) + 1
        collection, dice = chance.choice(COLLECTIONS), chance.random()
        if dice < 0.08:
            log.append(Entry(seqno, chance.choice(ENDS), collection))
        else:
            value = None if dice < 0.25 else str(seqno)
            op = Op.DELETION if value is None else Op.MUTATION
            log.append(Entry(seqno, op, collection, chance.choice(KEYS), value))

    def fail_over(self, vbid: int) -> None:
        log = self.logs[vbid]
        if log:
            common = self.chance.randrange(log[-1].seqno)
            del log[common:]
            self.cut[vbid] = min(common, self.cut.get(vbid, common))

    def batch(self, *, is_last: bool = False) -> None:
        """One batch of the reader: what a failover made void, then rows, and perhaps another selection."""
        rows: list[Row] = []
        changes_selection = self.is_left_out if is_last else self.chance.random() < 0.15
        for vbid, log in self.logs.items():
            common = self.cut.pop(vbid, None)
            if common is not None and common < self.position[vbid]:
                self.position[vbid] = self.chance.choice((0, common))
                rows.append(rollback(vbid, self.position[vbid]))
            if changes_selection:
                if self.is_left_out:
                    rows += self._rows(vbid, 0, self.position[vbid], only=LEFT_OUT)
                else:
                    rows.append(event(Op.COLLECTION_EXCLUDED, LEFT_OUT, self.position[vbid] or 1, vbid))
            end = log[-1].seqno if log else 0
            upto = end if is_last else self.chance.randint(min(self.position[vbid], end), end)
            is_left_out = self.is_left_out != changes_selection
            rows += self._rows(vbid, self.position[vbid], upto, without=LEFT_OUT if is_left_out else "")
            self.position[vbid] = max(upto, self.position[vbid])
        self.is_left_out = self.is_left_out != changes_selection
        self.batches.append(rows)

    def _rows(self, vbid: int, after: int, upto: int, *, only: str = "", without: str = "") -> Iterator[Row]:
        for one in self.logs[vbid]:
            if after < one.seqno <= upto and only in {"", one.collection} and one.collection != without:
                yield one.row(vbid)

    def expected(self) -> list[Version]:
        """The versions of the logs as they are in the end."""
        found: list[Version] = []
        for vbid, log in self.logs.items():
            for place, one in enumerate(log):
                if one.op is Op.MUTATION:
                    ends = (
                        other.seqno
                        for other in log[place + 1 :]
                        if other.collection == one.collection and (other.key == one.key or other.op in ENDS)
                    )
                    found.append((vbid, one.collection, one.key, one.seqno, next(ends, None)))
        return sorted(found, key=lambda version: version[:4])


def played(seed: int) -> tuple[pa.Table, list[Version]]:
    """The rows of `changes` after a life, and the versions that they must give."""
    world = World(seed)
    for _ in range(world.chance.randrange(2, 12)):
        for _ in range(world.chance.randrange(12)):
            world.write(world.chance.randrange(VBUCKETS))
        if world.chance.random() < 0.3:
            world.fail_over(world.chance.randrange(VBUCKETS))
        world.batch()
    world.batch(is_last=True)
    schema = changes_schema("binary")
    tables = [with_batch_id(table_of(rows), number, schema) for number, rows in enumerate(world.batches) if rows]
    return pa.concat_tables([schema.empty_table(), *tables]), world.expected()


def found_in(rows: Sequence[Row]) -> list[Version]:
    versions = [(row["vbucket"], row["collection"], row["key"], row["seqno"], row["valid_to_seqno"]) for row in rows]
    return sorted(versions, key=lambda version: version[:4])


def by_sqlite(changes: pa.Table, sql: str) -> list[Version]:
    names = changes.schema.names
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute(f"CREATE TABLE changes ({', '.join(names)})")
        rows = [[row[name] if name in USED else None for name in names] for row in changes.to_pylist()]
        connection.executemany(f"INSERT INTO changes VALUES ({', '.join('?' * len(names))})", rows)
        return found_in([dict(row) for row in connection.execute(sql)])


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(50, 400, 50))])
def test_every_version_of_the_log_is_there_once_with_its_end(first: int) -> None:
    for seed in range(first, first + 50):
        changes, expected = played(seed)
        assert by_sqlite(changes, versions("changes")) == expected, f"seed {seed}"


@pytest.mark.parametrize("seed", range(4))
def test_delta_rs_answers_alike(seed: int, tmp_path: Path) -> None:
    from deltalake import write_deltalake

    changes, expected = played(seed)
    engine = DeltaRsEngine(tmp_path)
    engine.create()
    write_deltalake(str(engine.changes.path), changes, mode="append")
    answer = _answer(engine.changes.version(), None, versions("changes"))
    assert tuple(answer.schema.names) == VERSION_COLUMNS
    rows = answer.to_pylist()
    assert found_in(rows) == expected
    assert all(row["is_current"] == (row["valid_to_seqno"] is None) for row in rows)


BUGS = {
    "void rows count": ("v = r.vbucket AND", "false AND"),
    "rollbacks of any vbucket": ("v = r.vbucket AND", ""),
    "rollbacks of earlier batches": (f"b > r.{BATCH_ID} AND", ""),
    "rows at the seqno of a rollback are void": ("s < r.seqno", "s <= r.seqno"),
    "copies count": ("WHERE _copy = 1", ""),
    "the oldest copy counts": (f"seqno ORDER BY {BATCH_ID} DESC", f"seqno ORDER BY {BATCH_ID}"),
    "a deletion ends nothing": (" WHERE _copy = 1", " WHERE _copy = 1 AND op = 'mutation'"),
    "a deletion is a version": ("WHERE f.op = 'mutation'", ""),
    "events end later batches": (f"AND f.{BATCH_ID} <= e.{BATCH_ID}", ""),
    "events end later rows": ("AND f.seqno <= e.seqno", ""),
    "events end what has ended": ("AND (f._next_seqno IS NULL OR e.seqno < f._next_seqno)", ""),
    "the last event ends it": ("f.seqno ORDER BY e.seqno", "f.seqno ORDER BY e.seqno DESC"),
}


@each_case("bug", BUGS)
def test_the_model_finds(bug: str) -> None:
    right, wrong = BUGS[bug]
    sql = versions("changes")
    assert right in sql
    broken = sql.replace(right, wrong)
    lives = (played(seed) for seed in range(400))
    assert any(by_sqlite(changes, broken) != expected for changes, expected in lives)
