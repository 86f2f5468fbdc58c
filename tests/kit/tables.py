"""Batches for the tables of a pipeline, the state that they must lead to, and engines that die between two writes."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.arrow import ControlRow, change_schema, control_rows
from dcpstream.model import Op
from dcpstream_spark import Pipeline
from dcpstream_spark.tables.delta_rs import DeltaRsEngine, decided_rows, later_than
from dcpstream_spark.tables.document_types import DocumentTypes
from dcpstream_spark.tables.engine import (
    BatchSummary,
    CollectionTail,
    FoldReport,
    LogEngine,
    Parts,
    TableEngine,
    TableState,
    Tail,
    TailFacts,
    later,
    summary_of,
    void_bounds,
)
from dcpstream_spark.tables.fold_sql import NARROW_COLUMNS, NO_BATCH, FoldQuery, rows_of_collections, void_rows
from dcpstream_spark.tables.progress import RollbackReport
from dcpstream_spark.tables.rows import (
    BATCH_ID,
    DOCUMENT_KEY,
    MERGE_MARKS,
    Place,
    changes_schema,
    current_schema,
    is_control,
    with_batch_id,
    with_tables,
)
from lab.tools.patience import patient
from tests.kit.control_rows import rollback_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NEEDED = {"connectionString": "couchbase://localhost", "username": "u", "password": "p", "bucket": "b"}
QUERY = "query"
APP = f"dcpstream:{QUERY}"
OLD, NEW = 7, 8
"""Two branches of history; the rows' branch has no effect."""

Row = dict[str, Any]
Document = tuple[str, str, str]
"""Scope, collection, key."""


def change(
    key: str, seqno: int, value: bytes | str | None, vbucket: int = 0, collection: str = "_default", scope: str = "s"
) -> Row:
    """A row of a document; value None is a deletion."""
    return {
        "key": key,
        "value": value.encode() if isinstance(value, str) else value,
        "_change_type": "delete" if value is None else "update_postimage",
        "_commit_version": seqno,
        "op": "deletion" if value is None else "mutation",
        "scope": scope,
        "collection": collection,
        "vbucket": vbucket,
        "vbuuid": str(OLD),
        "seqno": seqno,
        "xattrs": [("a", "1")] if seqno % 2 else None,
    }


def rollback(vbucket: int, to_seqno: int, from_seqno: int = 1 << 40) -> Row:
    """A control row: what lies above `to_seqno` is void."""
    return _only(control_rows([rollback_row(vbucket, from_seqno, to_seqno, OLD, NEW)], time=1.0))


def event(op: Op, collection: str, seqno: int, vbucket: int = 0, scope: str = "s") -> Row:
    """A control row about a collection."""
    return _only(control_rows([ControlRow(op, vbucket, seqno, OLD, {}, scope, collection)], time=1.0))


def dropped(collection: str, seqno: int, vbucket: int = 0) -> Row:
    return event(Op.COLLECTION_DROPPED, collection, seqno, vbucket)


def created(collection: str, seqno: int, vbucket: int = 0) -> Row:
    return event(Op.COLLECTION_CREATED, collection, seqno, vbucket)


def _only(batch: pa.RecordBatch) -> Row:
    row: Row = batch.to_pylist()[0]
    return row


def table_of(rows: Sequence[Row]) -> pa.Table:
    """The rows of a batch as the source gives them."""
    return pa.Table.from_pylist(list(rows), schema=change_schema("binary"))


@dataclass
class Expected:
    """The tables as they must be: the rules of a pipeline in plain words, without the pipeline's code.

    Attributes:
        log: (batch, row) of `changes`.
    """

    log: list[tuple[int, Row]] = field(default_factory=list)

    def apply(self, batch_id: int, rows: Sequence[Row]) -> None:
        for row in rows:
            if row["op"] == "rollback":
                self.log = [entry for entry in self.log if not self._is_void(entry[1], row)]
        self.log += [(batch_id, row) for row in rows]

    def _is_void(self, row: Row, control: Row) -> bool:
        bound = int(json.loads(control["value"])["to_seqno"])
        return row["op"] != "rollback" and row["vbucket"] == control["vbucket"] and row["seqno"] > bound

    @property
    def current(self) -> dict[Document, tuple[int, bytes]]:
        """Document → (seqno, value)."""
        ends = [
            (_place(row), row["seqno"], batch)
            for batch, row in self.log
            if row["op"] in {"collection_created", "collection_dropped", "collection_flushed", "collection_excluded"}
        ]
        state: dict[Document, tuple[int, int, Row]] = {}
        for batch, row in self.log:
            is_ended = any(
                place == _place(row) and row["seqno"] <= seqno and batch <= last for place, seqno, last in ends
            )
            if row["key"] is not None and not is_ended:
                name = (row["scope"], row["collection"], row["key"])
                state[name] = max(
                    state.get(name, (-1, -1, row)), (row["seqno"], batch, row), key=lambda entry: entry[:2]
                )
        return {
            name: (seqno, row["value"]) for name, (seqno, _, row) in state.items() if row["_change_type"] != "delete"
        }


def _place(row: Row) -> tuple[str, str, int]:
    return row["scope"], row["collection"], row["vbucket"]


class Bench(Protocol):
    """An engine's tables in a place of their own."""

    path: Path

    def engine(self) -> TableEngine:
        """An engine on the tables, as a new process would make it."""
        ...

    def frame(self, table: pa.Table) -> DataFrame:
        """The rows as the engine gets them."""
        ...

    def rows(self, table: str) -> list[Row]:
        """All rows of `changes` or `current`."""
        ...


class ArrowFrame:
    """As much of a DataFrame as delta-rs needs."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self._table


class DeltaRsBench:
    """Tables of delta-rs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def engine(self) -> TableEngine:
        return DeltaRsEngine(self.path)

    def frame(self, table: pa.Table) -> DataFrame:
        return cast("DataFrame", ArrowFrame(table))

    def rows(self, table: str) -> list[Row]:
        engine = DeltaRsEngine(self.path)
        rows: list[Row] = (
            {"changes": engine.changes, "current": engine.current}[table].open().to_pyarrow_table().to_pylist()
        )
        return rows


def pipeline_of(
    bench: Bench,
    *,
    fold_rows_min: int | None = None,
    engine: TableEngine | None = None,
    folds_in_background: bool = False,
    on_fold: Callable[[FoldReport], None] | None = None,
    **typed: Any,
) -> Pipeline:
    """A pipeline of a new process; the tables exist, unless they are to be typed, and so does the checkpoint.

    Unless told otherwise it folds in the thread of the batch, so that it writes in the same order each time.
    """
    more = {**getattr(bench, "options", {}), **typed}
    engine = engine or bench.engine()
    if not more:
        engine.create()
    metadata = bench.path / "checkpoint" / "metadata"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(json.dumps({"id": QUERY}))
    return Pipeline(
        None,  # type: ignore[arg-type]
        bench.path,
        NEEDED,
        engine=engine,
        fold_rows_min=fold_rows_min,
        folds_in_background=folds_in_background,
        on_fold=on_fold,
        **more,
    )


def state_of(rows: Sequence[Row]) -> dict[Document, tuple[int, bytes]]:
    """Document → (seqno, value) of rows of `current` or `live`; each document must be there once."""
    state = {(row["scope"], row["collection"], row["key"]): (row["seqno"], _bytes(row["value"])) for row in rows}
    assert len(state) == len(rows), "a document is there twice"
    return state


def live_of(pipeline: Pipeline) -> dict[Document, tuple[int, bytes]]:
    """The rows that a reader of `live` sees."""
    live: Any = pipeline.live()
    table = live if isinstance(live, pa.Table) else live.toArrow()
    return state_of(table.to_pylist())


def story_of(entries: Sequence[tuple[int, Row]]) -> list[tuple[Any, ...]]:
    """Rows of `changes` in a form that can be compared: all that the engine must not change."""
    return sorted(
        (
            batch,
            row["vbucket"],
            row["seqno"],
            row["op"],
            str(row["collection"]),
            str(row["key"]),
            str(_bytes(row["value"])),
        )
        for batch, row in entries
    )


def assert_exact(bench: Bench, pipeline: Pipeline, expected: Expected, *, is_folded: bool = False) -> None:
    """The tables hold what they must hold; `current` only after a fold."""
    assert story_of([(row["_batch_id"], row) for row in bench.rows("changes")]) == story_of(expected.log)
    assert live_of(pipeline) == expected.current
    if is_folded:
        assert state_of(bench.rows("current")) == expected.current


def _bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


class Died(Exception):
    """The process was killed."""


class Life:
    """The writes of a process until its death: it dies before write `left` + 1, or right after the one before, which is
    the same for the tables."""

    def __init__(self, writes: int) -> None:
        self.left = writes

    def counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                raise Died
            self.left -= 1
            return write(*args, **kwargs)

        return call


class DyingEngine:
    """An engine whose process dies between two writes.

    Args:
        engine: does the work.
        writes: until death, or the life of the process.
    """

    def __init__(self, engine: TableEngine, writes: int | Life) -> None:
        self._engine = engine
        self._life = Life(writes) if isinstance(writes, int) else writes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        is_write = name in {"append", "fold", "take_back", "maintain", "retype"}
        return self._life.counted(found) if is_write else found


class DyingParts:
    """Parts whose process dies between two writes, also to different tables."""

    name = "dying"

    def __init__(self, parts: Parts, life: Life) -> None:
        self._parts = parts
        self._life = life

    def log(self) -> LogEngine:
        return cast("LogEngine", DyingEngine(self._parts.log(), self._life))

    @contextlib.contextmanager
    def table(self, name: str, places: Collection[Place]) -> Iterator[TableEngine]:
        with self._parts.table(name, places) as table:
            yield cast("TableEngine", DyingEngine(table, self._life))

    def has_views(self) -> bool:
        return self._parts.has_views()


class OverlappingEngine:
    """An engine whose folds begin before the next append and end after it, apart from those of rollbacks.

    Attributes:
        overlaps: folds that ran beside an append.
    """

    def __init__(self, engine: TableEngine) -> None:
        self.overlaps = 0
        self._engine = engine
        self._is_folding = threading.Event()
        self._is_appended = threading.Event()
        self._is_last = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def append(self, app: str, batch_id: int, frame: DataFrame) -> BatchSummary:
        summary = self._engine.append(app, batch_id, frame)
        self._is_appended.set()
        return summary

    def fold(self, app: str, after: int | None, upto: int, rollbacks: Sequence[RollbackReport]) -> FoldReport:
        if rollbacks or self._is_last:
            return self._engine.fold(app, after, upto, rollbacks)
        self._is_appended.clear()
        self._is_folding.set()
        report = self._engine.fold(app, after, upto, rollbacks)
        assert self._is_appended.wait(patient(60)), "no batch came while the fold ran"
        self.overlaps += not self._is_last
        return report

    def await_fold(self) -> None:
        """Return when the newest fold has begun."""
        assert self._is_folding.wait(patient(60)), "no fold began"
        self._is_folding.clear()

    def let_end(self) -> None:
        """No further batch comes."""
        self._is_last = True
        self._is_appended.set()


class _MemoryTable:
    """A table as a value."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.table = schema.empty_table()
        self.batch: dict[str, int] = {}

    def rows(self, columns: Sequence[str], condition: pc.Expression | None = None) -> pa.Table:
        table = self.table if condition is None else self.table.filter(condition)
        return table.select(list(columns))


def answered(changes: pa.Table, current: pa.Table, sql: str) -> pa.Table:
    """The answer of SQLite to a query of `FoldQuery` with NARROW_COLUMNS."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for name, table, columns in (
            ("changes", changes, (*NARROW_COLUMNS, "op", "_change_type")),
            ("current", current, NARROW_COLUMNS[:-1]),
        ):
            connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            rows = zip(*(table.column(one).to_pylist() for one in columns), strict=True)
            connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description]
        found = list(zip(*cursor.fetchall(), strict=True)) or [() for _ in names]
    return pa.table(
        [
            pa.array([bool(value) for value in values] if name in MERGE_MARKS else values, _kind(name))
            for name, values in zip(names, found, strict=True)
        ],
        names=names,
    )


def _kind(name: str) -> pa.DataType:
    return pa.bool_() if name in MERGE_MARKS else pa.string() if name in DOCUMENT_KEY else pa.int64()


def merged(current: pa.Table, source: pa.Table) -> pa.Table:
    """`current` after the merge of the rows of `decided_rows`."""
    held = {tuple(row[name] for name in DOCUMENT_KEY): row for row in current.to_pylist()}
    for row in source.to_pylist():
        document = tuple(row[name] for name in DOCUMENT_KEY)
        if document not in held or row["_is_forced"] or row["seqno"] > held[document]["seqno"]:
            held.pop(document, None)
            if not row["_is_removed"]:
                held[document] = row
    return pa.Table.from_pylist(list(held.values()), schema=current.schema)


class MemoryEngine:
    """The engine for random tests: the rules of a pipeline without files.

    A commit replaces a table, so that a process that dies loses nothing of it.
    """

    name = "memory"
    fold_rows_min = 0

    def __init__(self, changes: _MemoryTable | None = None, places: Collection[Place] | None = None) -> None:
        self.changes = changes or _MemoryTable(changes_schema("binary"))
        self.current = _MemoryTable(current_schema("binary"))
        self.places = places

    def state(self) -> TableState:
        return TableState(has_changes=True, has_current=True, is_written=bool(self.changes.batch))

    def versions(self, places: Iterable[Place] | None = None) -> pa.Table:
        raise NotImplementedError

    def publish(self, app: str, least: int | None = None) -> None:
        pass

    def changes_of(self, places: Iterable[Place]) -> pa.Table:
        wanted = {*places}
        rows = [row for row in self.changes.table.to_pylist() if (row["scope"], row["collection"]) in wanted]
        return pa.Table.from_pylist(rows, schema=self.changes.schema)

    @contextlib.contextmanager
    def tail(self, after: int | None, upto: int, rollbacks: Sequence[RollbackReport]) -> Iterator[Tail]:
        found = self._answer(self._query(after, upto, rollbacks).collections()).to_pylist()
        yield Tail(tuple(CollectionTail(**row) for row in found))

    def _query(self, after: int | None, upto: int, rollbacks: Sequence[RollbackReport]) -> FoldQuery:
        changes = "changes" if self.places is None else rows_of_collections("changes", self.places)
        start = NO_BATCH if after is None else after
        return FoldQuery(changes, "current", None, start, upto, void_bounds(rollbacks), carried=NARROW_COLUMNS)

    def create(self) -> None:
        pass

    def typed_columns(self) -> pa.Schema | None:
        return pa.schema([])

    def use(self, types: DocumentTypes | None) -> None:
        assert types is None

    def retype(self, app: str | None, *, from_changes: bool) -> None:
        raise NotImplementedError

    def rejects(self) -> pa.Table:
        raise NotImplementedError

    def last_batch(self, app: str) -> int | None:
        return self.changes.batch.get(app)

    def folded(self, app: str) -> int | None:
        return self.current.batch.get(app)

    def append(self, app: str, batch_id: int, frame: DataFrame) -> BatchSummary:
        rows = with_batch_id(frame.toArrow(), batch_id, self.changes.schema)
        self.changes.table = pa.concat_tables([self.changes.table, rows])
        self.changes.batch = {app: batch_id}
        return replace(self.summary(batch_id), collections=with_tables(rows))

    def summary(self, batch_id: int) -> BatchSummary:
        rows = self.changes.rows(["op", "vbucket", "value"], pc.field(BATCH_ID) == batch_id)
        return summary_of(batch_id, rows.filter(is_control(rows)), rows.num_rows)

    def tail_rows(self, after: int | None) -> int:
        return int(self.changes.rows([BATCH_ID], later_than(after)).num_rows)

    def current_rows(self) -> int:
        return int(self.current.table.num_rows)

    def fold(
        self,
        app: str,
        after: int | None,
        upto: int,
        rollbacks: Sequence[RollbackReport],
        facts: TailFacts | None = None,
    ) -> FoldReport:
        source = self._decided(self._query(after, upto, rollbacks), is_merged=True)
        self.current.table = merged(self.current.table, source)
        self.current.batch = {app: upto}
        restored = sum(source.column("_is_restored").to_pylist())
        return FoldReport(upto, source.num_rows, 0, restored, self.current_rows())

    def _answer(self, sql: str) -> pa.Table:
        return answered(self.changes.table, self.current.table, sql)

    def _decided(self, query: FoldQuery, *, is_merged: bool) -> pa.Table:
        return decided_rows(self._answer, self.changes.rows, self.current.schema, query, is_merged=is_merged)

    def take_back(self, rollbacks: Sequence[RollbackReport], before_batch: int) -> None:
        bounds = void_bounds(rollbacks)
        if bounds:
            void = self._answer(f"SELECT rowid - 1 AS row FROM changes WHERE {void_rows(bounds, before_batch)}")
            kept = set(range(self.changes.table.num_rows)) - set(void.column("row").to_pylist())
            self.changes.table = self.changes.table.take(pa.array(sorted(kept), pa.int64()))

    def live(self, app: str | None, least: int | None = None) -> pa.Table:
        after = later(None if app is None else self.folded(app), least)
        upto = pc.max(self.changes.rows([BATCH_ID], later_than(after)).column(BATCH_ID)).as_py()
        if upto is None:
            return self.current.table
        query = self._query(after, upto, self.summary(upto).rollbacks)
        kept = self._answer(query.kept(DOCUMENT_KEY)).to_pylist()
        rows = [row for row in self.current.table.to_pylist() if {name: row[name] for name in DOCUMENT_KEY} in kept]
        table = pa.Table.from_pylist(rows, schema=self.current.schema)
        return merged(table, self._decided(query, is_merged=False))

    def maintain(self, retain_hours: float) -> None:
        pass


def random_tables(dice: random.Random) -> tuple[pa.Table, pa.Table, FoldQuery]:
    """`changes` and `current` with rows at random, and a query over them."""
    rows: list[Row] = []
    upto = dice.randint(1, 4)
    for batch in range(upto + 1):
        for vbucket in range(2):
            for seqno in sorted(dice.sample(range(1, 30), dice.randint(0, 8))):
                collection, scope = dice.choice("cd"), dice.choice(("s", None))
                if dice.random() < 0.15:
                    op = dice.choice((Op.COLLECTION_DROPPED, Op.COLLECTION_CREATED, Op.SCOPE_CREATED))
                    row = event(op, collection, seqno, vbucket)
                else:
                    value = None if dice.random() < 0.3 else str(seqno)
                    row = change(dice.choice("xyz"), seqno, value, vbucket, collection)
                rows.append({**row, "scope": scope, BATCH_ID: batch})
    changes = pa.Table.from_pylist(rows, schema=changes_schema("binary"))
    held = [
        {**change(key, dice.randint(1, 30), "held", dice.randrange(2), collection), "scope": scope}
        for key in "xyz"
        for collection in "cd"
        for scope in ("s", None)
        if dice.random() < 0.5
    ]
    bounds = {vbucket: dice.randint(0, 20) for vbucket in range(2) if dice.random() < 0.4}
    query = FoldQuery("changes", "current", None, dice.randint(-1, upto - 1), upto, bounds, carried=NARROW_COLUMNS)
    return changes, pa.Table.from_pylist(held, schema=current_schema("binary")), query


def questions(query: FoldQuery) -> list[str]:
    """All that an engine asks of the two tables."""
    asked = [
        query.facts(),
        query.collections(),
        query.newest(),
        query.newest(has_ended=True),
        query.kept(NARROW_COLUMNS[:-1]),
    ]
    if query.bounds:
        asked.append(f"SELECT vbucket, seqno FROM changes WHERE {void_rows(query.bounds, query.upto or 0)}")
    return asked


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows in an order that does not depend on the engine."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


class MemoryBench:
    """Tables of a `MemoryEngine`, which outlive the processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine = MemoryEngine()

    def engine(self) -> TableEngine:
        return self._engine

    def frame(self, table: pa.Table) -> DataFrame:
        return cast("DataFrame", ArrowFrame(table))

    def rows(self, table: str) -> list[Row]:
        rows: list[Row] = {"changes": self._engine.changes, "current": self._engine.current}[table].table.to_pylist()
        return rows

    def log(self) -> TableEngine:
        return self._engine

    def dying(self, writes: int) -> Any:
        return DyingEngine(self._engine, writes)


class MemoryTable(MemoryEngine):
    """The engine of one of several tables of `MemoryParts`."""

    def __init__(self, parts: MemoryParts, name: str, places: Collection[Place]) -> None:
        super().__init__(parts.shared.changes, places)
        self._tables = parts.tables
        self._table = name
        self.current = parts.tables.get(name, self.current)

    def state(self) -> TableState:
        has_current = self._table in self._tables
        return TableState(has_changes=True, has_current=has_current, is_written=bool(self.current.batch))

    def create(self) -> None:
        self.current = self._tables.setdefault(self._table, self.current)

    def typed_columns(self) -> pa.Schema | None:
        return pa.schema([]) if self._table in self._tables else None


class MemoryParts:
    """Several tables and one log as values."""

    name = "memory"

    def __init__(self) -> None:
        self.shared = MemoryEngine()
        self.tables: dict[str, _MemoryTable] = {}

    def log(self) -> LogEngine:
        return self.shared

    @contextlib.contextmanager
    def table(self, name: str, places: Collection[Place]) -> Iterator[TableEngine]:
        yield MemoryTable(self, name, places)

    def has_views(self) -> bool:
        return False


class ManyBench:
    """A table in memory for each collection; what `MemoryBench` is for one."""

    options: ClassVar[dict[str, Any]] = {"tables": "{scope}.{collection}", "tables_at_once": 1}

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = MemoryParts()

    def engine(self) -> Any:
        return self.parts

    def log(self) -> TableEngine:
        return self.parts.shared

    def dying(self, writes: int) -> Any:
        return DyingParts(self.parts, Life(writes))

    def frame(self, table: pa.Table) -> DataFrame:
        return cast("DataFrame", ArrowFrame(table))

    def rows(self, table: str) -> list[Row]:
        """All rows of `changes`, or of all tables; each of them has rows of its own collection alone."""
        if table == "changes":
            rows: list[Row] = self.parts.shared.changes.table.to_pylist()
            return rows
        found = []
        for name, one in self.parts.tables.items():
            some = one.table.to_pylist()
            assert {f"{row['scope']}.{row['collection']}" for row in some} <= {name}
            found += some
        return found
