"""The rules of `dcpstream_spark.tables.engine` as SQL: which rows of `changes` decide about `current`, and how.

Pure functions from names to text, in the SQL that Spark and the query engine of delta-rs (DataFusion) have in common.
With Spark the statements work on any table format, and run on the executors.
"""

# ruff: noqa: S608 - tables are named as their owner wrote them; all other parts are ours
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dcpstream.model import Op
from dcpstream_spark.tables.document_sql import IS_UNFIT, is_left_out, judged, reason, typed_columns
from dcpstream_spark.tables.document_types import REASON, REJECT_COLUMNS, DocumentTypes
from dcpstream_spark.tables.rows import (
    BATCH_ID,
    CURRENT_COLUMNS,
    DOCUMENT_KEY,
    IS_FORCED,
    IS_REMOVED,
    IS_RESTORED,
    MERGE_MARKS,
    PLACE_COLUMNS,
    Place,
)

NO_BATCH = -1
"""Below every batch id."""

NARROW_COLUMNS = (*DOCUMENT_KEY, *PLACE_COLUMNS)
"""Columns that name a document and its deciding row of `changes`."""

WINS = f"(s.{IS_FORCED} OR s.seqno > t.seqno)"
"""The condition for a row s to merge that replaces or removes a row t of `current`."""

IS_DATA = "op IN (" + ", ".join(f"'{op.value}'" for op in Op if not op.is_control) + ")"
IS_EMPTYING = "op IN (" + ", ".join(f"'{op.value}'" for op in Op if op.empties_collection) + ")"
_IS_DROP = f"op = '{Op.COLLECTION_DROPPED.value}'"


@dataclass(frozen=True, slots=True)
class FoldQuery:
    """Queries over the tail of `changes` and `current`.

    Attributes:
        changes, current: the tables, as SQL writes them; `changes` may be a query in brackets.
        types: of the typed columns of `current`; None for none.
        after: the batches above it are the tail; `NO_BATCH` for all.
        upto: the newest batch of the tail; None for no bound.
        bounds: vbucket → seqno of its rollback in the batch `upto`.
        is_open: whether the batches above `upto` belong to the tail, too. None of them has a rollback.
        carried: the columns of both tables that answers have, in front of the typed ones. `NARROW_COLUMNS` are enough
            for an engine that reads the rows themselves, and cost no memory for values.
        keeps_dropped: whether documents of a dropped collection stay, until one of its name is created again.
    """

    changes: str
    current: str
    types: DocumentTypes | None
    after: int
    upto: int | None = None
    bounds: Mapping[int, int] = field(default_factory=dict)
    is_open: bool = False
    carried: Sequence[str] = CURRENT_COLUMNS
    keeps_dropped: bool = False

    @property
    def columns(self) -> Sequence[str]:
        """The columns of `current`."""
        return self.carried if self.types is None else (*self.carried, *self.types.columns.names)

    def facts(self) -> str:
        """One row: the rows of the tail, as `total`, and those that empty a collection, as `emptying`."""
        emptying = f"count(CASE WHEN {self._is_emptying} THEN 1 END) AS emptying"
        return f"SELECT count(*) AS total, {emptying} FROM {self.changes} WHERE {self._tail}"

    def tail(self) -> str:
        """The rows of the tail."""
        return f"SELECT * FROM {self.changes} WHERE {self._tail}"

    def collections(self) -> str:
        """One row for each collection that the tail decides about, or that has void rows.

        Columns: scope, collection, total: its rows, documents: changes of documents among them, emptying: those that
        empty it, created: those that say that it was created. Void rows count, too. A collection without a name of its
        scope was gone before its rows were read, and is none of them.
        """
        looked_at = self._tail
        if self.bounds:
            assert self.upto is not None
            looked_at = f"(({looked_at}) OR ({void_rows(self.bounds, self.upto)}))"
        counts = ", ".join(
            f"count(CASE WHEN {condition} THEN 1 END) AS {name}"
            for condition, name in (
                (IS_DATA, "documents"),
                (self._is_emptying, "emptying"),
                (f"op = '{Op.COLLECTION_CREATED.value}'", "created"),
            )
        )
        return (
            f"SELECT scope, collection, count(*) AS total, {counts} FROM {self.changes} "
            f"WHERE {looked_at} AND scope IS NOT NULL AND collection IS NOT NULL GROUP BY scope, collection"
        )

    def live(self) -> str:
        """The documents as of the newest batch."""
        return f"{self.kept(self.columns)} UNION ALL SELECT {_names(self.columns)} FROM newest WHERE NOT {IS_REMOVED}"

    def all_of_current(self) -> str:
        """The documents as of the newest batch if the tail is empty."""
        return f"SELECT {_names(self.columns)} FROM {self.current}"

    def kept(self, columns: Sequence[str]) -> str:
        """These columns of the rows of `current` that are in `live`.

        A document of the tail hides its row of `current`: within a vbucket the rows of later batches are newer, and a
        collection that is read again comes in its newest state.
        """
        return f"""
            WITH {self._common()}
            SELECT {_names(columns, "c")} FROM {self.current} AS c
            WHERE NOT EXISTS (SELECT 1 FROM effective AS e WHERE {same_document("c", "e")})
            AND NOT {self._is_ended("c")}
        """

    def newest(self, *, has_ended: bool = False) -> str:
        """The documents that the tail decides about: `columns`, IS_REMOVED, IS_FORCED, IS_RESTORED; IS_UNFIT.

        These are the rows to merge into `current`.

        Args:
            has_ended: include the documents of `current` whose collection the tail has emptied.
        """
        return f"WITH {self._common(has_ended=has_ended)} SELECT {_names(self._deciding)} FROM newest"

    def rejects(self) -> str:
        """The documents that do not fit the types: REJECT_COLUMNS. Meant for the tail of all batches."""
        assert self.types is not None
        names = ", ".join(f"{reason(self.types)} AS {REASON}" if name == REASON else name for name in REJECT_COLUMNS)
        return f"WITH {self._common()} SELECT {names} FROM judged WHERE {IS_UNFIT}"

    def retyped(self) -> str:
        """The rows of `current` with the typed columns computed again, as `newest` has them."""
        marks = ", ".join(f"false AS {name}" for name in MERGE_MARKS)
        rows = f"SELECT {_names(self.carried)}, {marks} FROM {self.current}"
        return f"WITH decided AS ({rows}), {self._typed()} SELECT {_names(self._deciding)} FROM newest"

    def merge(self, source: str) -> str:
        """The statement that brings the rows of `source`, a view of `newest`, into `current`."""
        assignments = ", ".join(f"t.`{name}` = s.`{name}`" for name in self.columns)
        return f"""
            MERGE INTO {self.current} AS t USING {source} AS s ON {same_document("t", "s")}
            WHEN MATCHED AND s.{IS_REMOVED} AND {WINS} THEN DELETE
            WHEN MATCHED AND NOT s.{IS_REMOVED} AND {WINS} THEN UPDATE SET {assignments}
            WHEN NOT MATCHED AND NOT s.{IS_REMOVED}
            THEN INSERT ({_names(self.columns)}) VALUES ({_names(self.columns, "s")})
        """

    @property
    def _deciding(self) -> Sequence[str]:
        return [*self.columns, *MERGE_MARKS, *([] if self.types is None else [IS_UNFIT])]

    @property
    def _is_emptying(self) -> str:
        return f"({IS_EMPTYING} AND NOT {_IS_DROP})" if self.keeps_dropped else IS_EMPTYING

    @property
    def _tail(self) -> str:
        return f"{BATCH_ID} > {self.after}{self._and_upto()}"

    def _and_upto(self) -> str:
        return "" if self.upto is None or self.is_open else f" AND {BATCH_ID} <= {self.upto}"

    def _is_ended(self, table: str) -> str:
        """Whether the tail has emptied the collection of a row of `current` after it."""
        return f"""EXISTS (
            SELECT 1 FROM ends AS e
            WHERE {same_place(table, "e")} AND {table}.seqno <= e.seqno AND e.{BATCH_ID} > {self.after}
        )"""

    def _common(self, *, has_ended: bool = False) -> str:
        """Common table expressions: `ends`, `effective`, `newest`."""
        carried = [name for name in self.carried if name != BATCH_ID]
        # Below every row of the document: it counts if there is no other.
        gone = ", ".join(map(_nothing, (*carried, BATCH_ID))) + f", true AS {IS_REMOVED}"
        absent = f"UNION ALL SELECT {gone}, true AS {IS_RESTORED}, true AS {IS_FORCED} FROM touched"
        ended = f"""
            UNION ALL
            SELECT {gone}, false AS {IS_RESTORED}, true AS {IS_FORCED} FROM {self.current} AS c
            WHERE {self._is_ended("c")}
        """
        # A row that follows the end of its collection counts even if the row in `current` has a higher seqno.
        forced = f"max(CASE WHEN {IS_FORCED} THEN 1 ELSE 0 END) OVER (PARTITION BY scope, collection, key) = 1"
        is_forced = forced if has_ended else IS_FORCED
        # An emptying row ends rows of its own batch and of earlier ones. Those of later batches were read again.
        return f"""
            {self._candidates()},
            ends AS (SELECT scope, collection, vbucket, seqno, {BATCH_ID} FROM valid WHERE {self._is_emptying}),
            effective AS (
                SELECT {_names(carried)}, {BATCH_ID},
                coalesce(_change_type = 'delete', false) AS {IS_REMOVED}, {IS_RESTORED}, {IS_RESTORED} AS {IS_FORCED}
                FROM candidates AS d WHERE NOT EXISTS (
                    SELECT 1 FROM ends AS e
                    WHERE {same_place("d", "e")} AND d.seqno <= e.seqno AND d.{BATCH_ID} <= e.{BATCH_ID}
                )
                {absent if self.bounds else ""}
            ),
            ranked AS (
                SELECT {_names(carried)}, {BATCH_ID}, {IS_REMOVED}, {IS_RESTORED}, {is_forced} AS {IS_FORCED},
                row_number() OVER (
                    PARTITION BY scope, collection, key ORDER BY seqno DESC, {BATCH_ID} DESC, vbucket DESC
                ) AS _rank
                FROM (SELECT * FROM effective {ended if has_ended else ""}) AS r
            ),
            decided AS (SELECT * FROM ranked WHERE _rank = 1),
            {self._typed()}
        """

    def _typed(self) -> str:
        """Common table expressions: `newest`, and with types `judged`."""
        if self.types is None:
            return "newest AS (SELECT * FROM decided)"
        return f"""
            judged AS ({judged("decided", self.types, IS_REMOVED)}),
            newest AS (
                SELECT {_names(self.carried)}, {typed_columns(self.types)},
                {is_left_out(self.types, IS_REMOVED)} AS {IS_REMOVED},
                {IS_FORCED}, {IS_RESTORED}, {IS_UNFIT} FROM judged
            )
        """

    def _candidates(self) -> str:
        """Common table expressions: `valid` rows of `changes`, and those of documents that the tail decides about."""
        if not self.bounds:
            return f"""
                valid AS (SELECT * FROM {self.changes} WHERE {self._tail}),
                candidates AS (SELECT *, false AS {IS_RESTORED} FROM valid WHERE {IS_DATA})
            """
        bounds = ", ".join(f"({vbucket}, CAST({seqno} AS BIGINT))" for vbucket, seqno in self.bounds.items())
        assert self.upto is not None
        is_void = _is_void(self.upto)
        return f"""
            bounds(vbucket, seqno) AS (VALUES {bounds}),
            void AS (
                SELECT r.scope, r.collection, r.key, r.vbucket, r.op
                FROM {self.changes} AS r JOIN bounds AS b ON r.vbucket = b.vbucket
                WHERE {is_void} AND r.seqno > {min(self.bounds.values())}
            ),
            lost AS (SELECT scope, collection, vbucket FROM void WHERE {self._is_emptying}),
            touched AS (
                SELECT scope, collection, key FROM void WHERE {IS_DATA}
                UNION
                SELECT scope, collection, key FROM {self.changes} AS r
                WHERE {IS_DATA}{self._and_upto()}
                AND EXISTS (SELECT 1 FROM lost AS l WHERE {same_place("r", "l")})
            ),
            valid AS (
                SELECT r.* FROM {self.changes} AS r LEFT JOIN bounds AS b ON r.vbucket = b.vbucket
                WHERE (r.{BATCH_ID} > {self.after} OR r.vbucket IN ({", ".join(map(str, self.bounds))}))
                {self._and_upto()} AND NOT coalesce({is_void}, false)
            ),
            candidates AS (
                SELECT r.*, t.key IS NOT NULL AS {IS_RESTORED}
                FROM valid AS r LEFT JOIN touched AS t ON {same_document("r", "t")}
                WHERE {IS_DATA} AND (r.{BATCH_ID} > {self.after} OR t.key IS NOT NULL)
            )
        """


def _is_void(upto: int) -> str:
    """The condition for a row r that a rollback b in the batch `upto` has made void."""
    return f"r.{BATCH_ID} < {upto} AND r.op <> '{Op.ROLLBACK.value}' AND r.seqno > b.seqno"


def void_rows(bounds: Mapping[int, int], before_batch: int) -> str:
    """The condition for rows of `changes` that rollbacks in a batch have made void.

    Args:
        bounds: vbucket → seqno.
        before_batch: the batch.
    """
    vbuckets = ", ".join(map(str, bounds))
    cases = " ".join(f"WHEN {vbucket} THEN CAST({seqno} AS BIGINT)" for vbucket, seqno in bounds.items())
    return (
        f"{BATCH_ID} < {before_batch} AND op <> '{Op.ROLLBACK.value}' AND vbucket IN ({vbuckets}) "
        f"AND seqno > {min(bounds.values())} AND seqno > CASE vbucket {cases} END"
    )


def rows_of_collections(changes: str, places: Iterable[Place]) -> str:
    """The rows of `changes` of some collections, as a query in brackets."""
    return f"(SELECT * FROM {changes} WHERE {in_collections(places)})"


def in_collections(places: Iterable[Place]) -> str:
    """The condition for rows of some collections."""
    by_scope: dict[str, list[str]] = {}
    for scope, collection in sorted(places):
        by_scope.setdefault(scope, []).append(_text(collection))
    conditions = [
        f"(scope = {_text(scope)} AND collection IN ({', '.join(names)}))" for scope, names in by_scope.items()
    ]
    return f"({' OR '.join(conditions) or 'false'})"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def same_document(left: str, right: str) -> str:
    """A scope may be null: of a collection that had no name yet when its rows were read."""
    return f"{left}.key = {right}.key AND {left}.collection = {right}.collection AND {_same('scope', left, right)}"


def same_place(left: str, right: str) -> str:
    """The condition for rows of one collection in one vbucket."""
    return (
        f"{left}.vbucket = {right}.vbucket AND {left}.collection = {right}.collection AND {_same('scope', left, right)}"
    )


def _same(name: str, left: str, right: str) -> str:
    # Without the brackets DataFusion takes a following AND for a part of the right side.
    return f"({left}.{name} IS NOT DISTINCT FROM {right}.{name})"


def _names(names: Iterable[str], table: str | None = None) -> str:
    return ", ".join(f"`{name}`" if table is None else f"{table}.`{name}`" for name in names)


def _nothing(name: str) -> str:
    """A column of a row that names a document and has nothing else."""
    if name in DOCUMENT_KEY:
        return f"`{name}`"
    return f"-1 AS `{name}`" if name in PLACE_COLUMNS else f"NULL AS `{name}`"
