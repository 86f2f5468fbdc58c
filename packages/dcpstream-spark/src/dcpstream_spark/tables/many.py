"""Several tables `current` of one query, which share one log.

Theory of operation. A batch is one append to `changes`, however many collections it has rows of. So a batch is in all
tables or in none, and costs the same for one table and for a thousand. A fold brings the tail into the tables that it
has rows of, each in one commit that carries the newest batch. Tables without rows in the tail are not touched.

A process may be killed between the commits of two tables. The next fold finds out by the numbers of the tables which of
them have the batches already, and folds the others. The `ledger` says that tables without a commit have nothing to
fold, so that a fold reads the tail and not the whole log.

A rollback makes rows of the log void. The fold of its batch brings each table with void rows to the state of the rows
that are left; only then are they deleted. A table that is missing is made again from the log, which has all rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dcpstream.errors import ConfigError, OffsetError
from dcpstream_spark.tables.document_types import REJECT_COLUMNS, DocumentTypes
from dcpstream_spark.tables.engine import (
    BatchSummary,
    CollectionTail,
    FoldReport,
    Parts,
    TableEngine,
    TableState,
    TailFacts,
    later,
)
from dcpstream_spark.tables.evolution import Typing
from dcpstream_spark.tables.ledger import Entries, Entry, Ledger
from dcpstream_spark.tables.progress import RollbackReport
from dcpstream_spark.tables.rows import CURRENT_COLUMNS, Place
from dcpstream_spark.tables.table_names import TableNames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLES_AT_ONCE = 4
"""Tables that are made or folded at the same time. While one waits for its commit, another can compute. Each needs a
thread and two sessions of Spark, and memory for its fold."""

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class ManyTables:
    """The log and the tables of one pipeline; a `TableEngine` for them together.

    Args:
        parts: makes the engines of the log and of the tables.
        names: the rule by which collections have tables.
        ledger: of the tables.
        typing_of: makes the typed columns of a table, by its name and its collections.
        at_once: see `TABLES_AT_ONCE`.
    """

    def __init__(
        self,
        parts: Parts,
        names: TableNames,
        ledger: Ledger,
        typing_of: Callable[[str, Collection[Place]], Typing],
        *,
        at_once: int = TABLES_AT_ONCE,
    ) -> None:
        if at_once < 1:
            raise ConfigError("tables_at_once", at_once, "at least 1")
        self.name = parts.name
        self._parts = parts
        self._names = names
        self._ledger = ledger
        self._typing_of = typing_of
        self._at_once = at_once
        self._log = parts.log()
        self.fold_rows_min = self._log.fold_rows_min
        # Guards the ledger: a batch and a fold may add to it at the same time.
        self._lock = threading.Lock()
        self._typings: dict[str, Typing] = {}
        # The newest batch of each table and its number of rows, as far as this process knows. None: it has no batch.
        self._numbers: dict[str, int | None] = {}
        self._rows: dict[str, int] = {}
        self._is_prepared = False
        self._touched: set[str] = set()

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The tables that exist: name → paths of the collections in it."""
        return {name: tuple(map(".".join, one.places)) for name, one in sorted(self._ledger.read().tables.items())}

    def reset(self) -> None:
        """Look at the tables again: somebody may have removed some since the last run."""
        self._is_prepared = False
        self._forget()

    def prepare(self, app: str | None) -> None:
        """Create the log, and make missing tables again.

        Raises:
            ConfigError: the rule gives a collection another table than the one that has its rows.
        """
        if self._is_prepared:
            return
        self._log.create()
        entries = self._ledger.read()
        for name, entry in entries.tables.items():
            for place in entry.places:
                now = self._names.of(place)
                if now not in {None, name}:
                    message = (
                        f"tables makes {now!r} the table of the collection {'.'.join(place)}, whose rows are in the "
                        f"table {name!r}. Choose that name, or remove tables and checkpoint to read the bucket again"
                    )
                    raise ConfigError("tables", now, name, message=message)
        if app is not None and entries.app == app:
            self._restore(app, entries)
        self._is_prepared = True

    def _restore(self, app: str, entries: Entries) -> None:
        """Make missing tables again."""
        folded = [name for name, one in entries.tables.items() if one.folded is not None]
        missing = [name for name in self._each(folded, partial(self._missing, entries)) if name is not None]
        for name in missing:
            _log.warning("the table %s is missing: it is made again from changes", name)
        if missing and entries.folded is not None:
            # Void rows of the newest batch may still be there.
            rollbacks = self._log.summary(entries.folded).rollbacks
            self._fold_tables(app, dict.fromkeys(missing), None, entries.folded, rollbacks)

    def _missing(self, entries: Entries, name: str) -> str | None:
        with self._parts.table(name, entries.tables[name].places) as table:
            return None if table.state().has_current else name

    def state(self) -> TableState:
        """The log that exists; tables can be made from it."""
        found = self._log.state()
        return replace(found, has_current=found.has_changes)

    def typed_columns(self) -> pa.Schema | None:
        """None of the log."""
        return None

    def use(self, types: DocumentTypes | None) -> None:
        """Each table has types of its own."""
        assert types is None

    def create(self) -> None:
        """Create the log."""
        self._log.create()

    def last_batch(self, app: str) -> int | None:
        """The newest batch of this writer in `changes`, or None."""
        return self._log.last_batch(app)

    def folded(self, app: str) -> int | None:
        """The newest batch of this writer that all tables hold, or None."""
        entries = self._ledger.read()
        return entries.folded if entries.app == app else None

    def append(self, app: str, batch_id: int, frame: DataFrame) -> BatchSummary:
        """Append a batch to `changes` in one commit, and make the tables of new collections."""
        summary = self._log.append(app, batch_id, frame)
        before = self._ledger.read().tables
        entries = self._with(app, summary.collections)
        self._each([name for name in entries.tables if name not in before], partial(self._make, app, entries))
        if summary.rollbacks and self._parts.has_views():
            # Until the fold, readers of the views would see void rows.
            self._publish_all(app, entries)
        return summary

    def _make(self, app: str, entries: Entries, name: str) -> None:
        with self._parts.table(name, entries.tables[name].places) as table:
            self._open(table, app, name, entries.tables[name])

    def _publish_all(self, app: str, entries: Entries) -> None:
        def published(name: str) -> None:
            with self._parts.table(name, entries.tables[name].places) as table:
                self._typing(name, entries.tables[name].places).look(table)
                table.publish(app, entries.folded)

        self._each(entries.tables, published)

    def summary(self, batch_id: int) -> BatchSummary:
        """The content of a batch of `changes`."""
        return self._log.summary(batch_id)

    def tail_rows(self, after: int | None) -> int:
        """Rows of `changes` in batches above `after`; all of them for None."""
        return self._log.tail_rows(after)

    def current_rows(self) -> int:
        """Documents in all tables, as of the last fold."""
        return sum(one.rows for one in self._ledger.read().tables.values())

    def fold(
        self,
        app: str,
        after: int | None,
        upto: int,
        rollbacks: Sequence[RollbackReport],
        facts: TailFacts | None = None,
    ) -> FoldReport:
        """Bring the batches above `after` up to `upto` into the tables that they concern, each in one commit."""
        with self._log.tail(after, upto, rollbacks) as tail:
            entries = self._with(app, [(one.scope, one.collection) for one in tail.collections if _has_table(one)])
            table_of = {place: name for name, one in entries.tables.items() for place in one.places}
            concerned: dict[str, list[CollectionTail]] = {}
            for one in tail.collections:
                name = table_of.get((one.scope, one.collection))
                if name is not None:
                    concerned.setdefault(name, []).append(one)
            facts_of = {
                name: TailFacts(sum(one.total for one in some), sum(one.emptying for one in some), 0, tail.relation)
                for name, some in concerned.items()
            }
            return self._fold_tables(app, facts_of, after, upto, rollbacks)

    def _fold_tables(
        self,
        app: str,
        facts_of: Mapping[str, TailFacts | None],
        after: int | None,
        upto: int,
        rollbacks: Sequence[RollbackReport],
    ) -> FoldReport:
        """Fold these tables, and note in the ledger that all tables hold the batches up to `upto`."""
        entries = self._ledger.read()
        try:
            reports = self._each(
                sorted(facts_of),
                lambda name: self._fold_one(app, name, entries.tables[name], facts_of[name], after, upto, rollbacks),
            )
        except BaseException:
            # Some of them may have been folded.
            self._forget()
            raise
        if rollbacks and self._parts.has_views():
            # Views of tables that were not folded end with the rollback.
            self._publish_all(app, replace(entries, folded=upto))
        found = dict(zip(sorted(facts_of), reports, strict=True))
        with self._lock:
            entries = self._ledger.read()
            tables = dict(entries.tables)
            for name, report in found.items():
                tables[name] = replace(tables[name], folded=report.upto, rows=report.current_rows)
            self._ledger.save(replace(entries, app=app, folded=upto, tables=tables))
        return FoldReport(
            upto=upto,
            documents=sum(one.documents for one in reports),
            removed=sum(one.removed for one in reports),
            restored=sum(one.restored for one in reports),
            current_rows=sum(one.rows for one in tables.values()),
            rejected=sum(one.rejected for one in reports),
        )

    def _fold_one(
        self,
        app: str,
        name: str,
        entry: Entry,
        facts: TailFacts | None,
        after: int | None,
        upto: int,
        rollbacks: Sequence[RollbackReport],
    ) -> FoldReport:
        with self._parts.table(name, entry.places) as table:
            held = self._open(table, app, name, entry)
            if held is not None and held >= upto:
                # An earlier fold has ended in between.
                return FoldReport(held, 0, 0, 0, table.current_rows())
            is_remade = held is None and entry.folded is not None
            start = None if is_remade else later(held, after)
            if facts is not None and start == after:
                rows = self._rows[name] if name in self._rows else table.current_rows()
                facts = replace(facts, current_rows=rows)
            else:
                facts = None
            report = table.fold(app, start, upto, rollbacks, facts)
            self._numbers[name], self._rows[name] = upto, report.current_rows
            self._touched.add(name)
            return report

    def _open(self, table: TableEngine, app: str, name: str, entry: Entry) -> int | None:
        """Create a table if there is none. Returns the newest batch that it holds, or None.

        Raises:
            OffsetError: it does not belong to this pipeline, or is an older copy.
        """
        if name in self._numbers:
            self._typing(name, entry.places).prepare(table, lambda: app)
            return self._numbers[name]
        state = table.state()
        held = table.folded(app) if state.has_current else None
        if held is None and state.is_written:
            raise OffsetError(
                f"the table {name} has rows of another pipeline, or of one whose checkpoint was removed. Remove it: it "
                "is then made again from changes."
            )
        if held is not None and entry.folded is not None and held < entry.folded:
            raise OffsetError(
                f"the table {name} holds the batches up to {held}, and this pipeline has folded up to {entry.folded} "
                "into it: it was replaced by an older copy. Restore the newer one, or remove the table: it is then "
                "made again from changes."
            )
        if not state.has_current:
            # The columns of a table that was there are not those of the next one.
            self._typings.pop(name, None)
        self._typing(name, entry.places).prepare(table, lambda: app)
        self._numbers[name] = held
        if not state.has_current:
            self._rows[name] = 0
        return held

    def _forget(self) -> None:
        """Ask the tables again what they hold."""
        self._numbers.clear()
        self._rows.clear()

    def _typing(self, name: str, places: Collection[Place]) -> Typing:
        if name not in self._typings:
            self._typings[name] = self._typing_of(name, places)
        return self._typings[name]

    def _with(self, app: str, places: Iterable[Place]) -> Entries:
        """The ledger with the tables of these collections; saved if one is new."""
        with self._lock:
            entries = self._ledger.read()
            if entries.app != app:
                entries = Entries(app)
            known = {place for one in entries.tables.values() for place in one.places}
            named = {place: name for place in places if place not in known and (name := self._names.of(place))}
            if named:
                entries = entries.with_places(named)
                self._refuse_twins(entries)
                self._ledger.save(entries)
            return entries

    def _refuse_twins(self, entries: Entries) -> None:
        """Refuse two names that are one on file systems and in catalogs that do not distinguish case."""
        seen: dict[str, str] = {}
        for name in entries.tables:
            other = seen.setdefault(name.casefold(), name)
            if other != name:
                message = (
                    f"tables makes {other!r} and {name!r} names of two tables, and many catalogs and file systems do "
                    "not distinguish them. Choose other names with a mapping"
                )
                raise ConfigError("tables", name, "names that differ in more than case", message=message)

    def _each(self, names: Collection[str], work: Callable[[str], _T]) -> list[_T]:
        """The results of a function of each table, some at a time. After an error nothing else begins."""
        if min(self._at_once, len(names)) <= 1:
            return [work(name) for name in names]
        with ThreadPoolExecutor(min(self._at_once, len(names)), "dcpstream-table") as pool:
            jobs: list[Future[_T]] = [pool.submit(work, name) for name in names]
            wait(jobs, return_when=FIRST_EXCEPTION)
            for job in jobs:
                job.cancel()
            wait(jobs)
            for job in jobs:
                if not job.cancelled() and (error := job.exception()) is not None:
                    raise error
            return [job.result() for job in jobs]

    def take_back(self, rollbacks: Sequence[RollbackReport], before_batch: int) -> None:
        """Delete void rows from `changes`. A second call changes nothing."""
        self._log.take_back(rollbacks, before_batch)

    def live(self, app: str | None, least: int | None = None) -> DataFrame | pa.Table:
        """The documents of all tables as of now, without typed columns."""
        return self._joined([self.live_of(app, name) for name in self.tables], CURRENT_COLUMNS)

    def live_of(self, app: str | None, name: str) -> DataFrame | pa.Table:
        """The documents of one table as of the newest batch; see `TableEngine.live`.

        Raises:
            ConfigError: there is no such table.
        """
        # Before the tables are looked at, so that they hold at least what it says.
        entries = self._ledger.read()
        entry = self._entry(entries, name)
        with self._parts.table(name, entry.places) as table:
            self._typing(name, entry.places).look(table)
            held = None if app is None else table.folded(app)
            is_newest = entry.folded is None or (held is not None and held >= entry.folded)
            return table.live(app, entries.folded if is_newest and entries.app == app else None)

    def changes_of(self, name: str) -> DataFrame | pa.Table:
        """The rows of `changes` of the collections of one table, and the control rows about rollbacks."""
        return self._log.changes_of(self._entry(self._ledger.read(), name).places)

    def versions(self, places: Iterable[Place] | None = None) -> DataFrame | pa.Table:
        """Every version of the documents of all tables."""
        return self._log.versions(places)

    def versions_of(self, name: str) -> DataFrame | pa.Table:
        """Every version of the documents of one table."""
        return self._log.versions(self._entry(self._ledger.read(), name).places)

    def rejects(self) -> DataFrame | pa.Table:
        """The documents of all tables that do not fit their types."""
        return self._joined([self.rejects_of(name) for name in self.tables], REJECT_COLUMNS)

    def rejects_of(self, name: str) -> DataFrame | pa.Table:
        """The documents of one table as of the newest batch that do not fit its types."""
        entry = self._entry(self._ledger.read(), name)
        with self._parts.table(name, entry.places) as table:
            self._typing(name, entry.places).look(table)
            return table.rejects()

    def _entry(self, entries: Entries, name: str) -> Entry:
        if name not in entries.tables:
            known = ", ".join(sorted(entries.tables)) or "none yet"
            raise ConfigError("table", name, f"one of the pipeline's tables: {known}")
        return entries.tables[name]

    def _joined(self, frames: Sequence[Any], columns: Sequence[str]) -> Any:
        """The rows of several frames."""
        if not frames:
            nothing: Any = self._log.changes_of(())
            names = [name for name in columns if name in CURRENT_COLUMNS]
            return (
                nothing.slice(0, 0).select(names) if isinstance(nothing, pa.Table) else nothing.select(names).limit(0)
            )
        if isinstance(frames[0], pa.Table):
            return pa.concat_tables([one.select(columns) for one in frames])
        joined = frames[0].select(*columns)
        for one in frames[1:]:
            joined = joined.unionAll(one.select(*columns))
        return joined

    def retype(self, app: str | None, *, from_changes: bool) -> None:
        """Write each table again from `changes`, with exactly the columns that are asked for."""
        entries = self._ledger.read()

        def rebuilt(name: str) -> None:
            places = entries.tables[name].places
            with self._parts.table(name, places) as table:
                self._typing(name, places).rebuild(table, lambda: app)

        self._forget()
        self._each(entries.tables, rebuilt)

    def maintain(self, retain_hours: float) -> None:
        """Join small files of `changes`, and remove old files of it and of the tables that were folded since."""
        self._log.maintain(retain_hours)
        entries = self._ledger.read()
        touched, self._touched = self._touched, set()

        def maintained(name: str) -> None:
            with self._parts.table(name, entries.tables[name].places) as table:
                table.maintain(retain_hours)

        self._each(sorted(touched & entries.tables.keys()), maintained)

    def publish(self, app: str, least: int | None = None) -> None:
        """Nothing to do: each table has its views."""


class TablesTyping:
    """The typed columns of all tables together; what a `Typing` is for one table.

    Args:
        is_typed: whether a table has typed columns.
    """

    def __init__(self, *, is_typed: bool) -> None:
        self.is_typed = is_typed

    def prepare(self, engine: TableEngine, app: Callable[[], str | None]) -> None:
        """Create the log; each table is made when it has rows."""
        assert isinstance(engine, ManyTables)
        engine.prepare(app())

    def look(self, engine: TableEngine) -> None:
        """Nothing to do: each table is looked at when it is read."""

    def rebuild(self, engine: TableEngine, app: Callable[[], str | None]) -> None:
        """Write all tables again from `changes`."""
        engine.create()
        engine.retype(app(), from_changes=True)


def _has_table(one: CollectionTail) -> bool:
    return one.documents > 0 or one.created > 0
