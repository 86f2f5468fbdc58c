"""The rules of `dcpstream_spark.tables.engine` as SQL: which rows of `changes` decide about `current`, and how.

Pure functions from names to text. The statements work on any table format of Spark, and Spark runs them on its
executors.
"""

# ruff: noqa: S608 - tables are named as their owner wrote them; all other parts are ours
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dcpstream.model import Op
from dcpstream_spark.tables.document_sql import IS_UNFIT, judged, reason, typed_columns
from dcpstream_spark.tables.document_types import REASON, REJECT_COLUMNS, DocumentTypes
from dcpstream_spark.tables.rows import BATCH_ID, CURRENT_COLUMNS, DOCUMENT_KEY

IS_REMOVED = "_is_removed"
"""Column of the rows to merge: the document is removed."""

IS_FORCED = "_is_forced"
"""Column of the rows to merge: the row counts even if `current` has one with a higher seqno, which is void."""

ENDED_AT = "_ended_at"
"""Column of the rows to merge: rows of `current` up to this seqno have no effect any more; null: no bound."""

NO_BATCH = -1
"""Below every batch id."""

_IS_DATA = "op IN (" + ", ".join(f"'{op.value}'" for op in Op if not op.is_control) + ")"
_IS_EMPTYING = "op IN (" + ", ".join(f"'{op.value}'" for op in Op if op.empties_collection) + ")"


@dataclass(frozen=True, slots=True)
class FoldQuery:
    """Queries over the tail of `changes` and `current`.

    Attributes:
        changes, current: the tables, as SQL writes them.
        types: of the typed columns of `current`; None for none.
        after: the batches above it are the tail; `NO_BATCH` for all.
        upto: the newest batch of the tail; None for no bound.
        bounds: vbucket → seqno of its rollback in the batch `upto`.
        is_open: whether the batches above `upto` belong to the tail, too. None of them has a rollback.
    """

    changes: str
    current: str
    types: DocumentTypes | None
    after: int
    upto: int | None = None
    bounds: Mapping[int, int] = field(default_factory=dict)
    is_open: bool = False

    @property
    def columns(self) -> Sequence[str]:
        """The columns of `current`."""
        return CURRENT_COLUMNS if self.types is None else (*CURRENT_COLUMNS, *self.types.columns.names)

    def facts(self) -> str:
        """One row: the rows of the tail, as `total`, and those that empty a collection, as `emptying`."""
        emptying = f"count_if({_IS_EMPTYING}) AS emptying"
        return f"SELECT count(*) AS total, {emptying} FROM {self.changes} WHERE {self._tail}"

    def live(self) -> str:
        """The documents as of the newest batch.

        A document of the tail hides its row of `current`: within a vbucket the rows of later batches are newer, and a
        collection that is read again comes in its newest state.
        """
        columns = _names(self.columns)
        return f"""
            WITH {self._common()}
            SELECT {columns} FROM {self.current} AS c
            LEFT ANTI JOIN effective AS e ON {_same_document("c", "e")}
            LEFT ANTI JOIN ends AS e
            ON {_same_place("c", "e")} AND c.seqno <= e.seqno AND e.{BATCH_ID} > {self.after} {self._untouched("c")}
            UNION ALL
            SELECT {columns} FROM newest WHERE NOT {IS_REMOVED}
        """

    def newest(self) -> str:
        """The documents that the tail decides about: the columns of `current`, IS_REMOVED, IS_FORCED; IS_UNFIT."""
        return f"WITH {self._common()} SELECT {_names(self._deciding)} FROM newest"

    def rejects(self) -> str:
        """The documents that do not fit the types: REJECT_COLUMNS. Meant for the tail of all batches."""
        assert self.types is not None
        names = ", ".join(f"{reason(self.types)} AS {REASON}" if name == REASON else name for name in REJECT_COLUMNS)
        return f"WITH {self._common()} SELECT {names} FROM judged WHERE {IS_UNFIT}"

    def retyped(self) -> str:
        """The rows of `current` with the typed columns computed anew, as `newest` has them."""
        rows = f"SELECT {_names(CURRENT_COLUMNS)}, false AS {IS_REMOVED}, false AS {IS_FORCED} FROM {self.current}"
        return f"WITH decided AS ({rows}), {self._typed()} SELECT {_names(self._deciding)} FROM newest"

    def touched(self) -> str:
        """The documents that a void row has touched: scope, collection, key."""
        return f"WITH {self._common()} SELECT * FROM touched"

    def floors(self) -> str:
        """The places that the tail empties: scope, collection, vbucket, and the highest seqno that has no effect."""
        return f"""
            WITH {self._common()}
            SELECT scope, collection, vbucket, max(seqno) AS seqno FROM ends
            WHERE {BATCH_ID} > {self.after} GROUP BY scope, collection, vbucket
        """

    def source(self, newest: str, floors: str | None = None, touched: str | None = None) -> str:
        """The rows to merge: the columns of `current`, and IS_REMOVED, IS_FORCED, ENDED_AT.

        Args:
            newest, floors, touched: views of the queries of these names; None for a query without rows.
        """
        without_row = f"true AS {IS_REMOVED}, true AS {IS_FORCED}, CAST(NULL AS BIGINT) AS {ENDED_AT}"
        names = _names([*self.columns, IS_REMOVED, IS_FORCED], "n")
        if floors is None:
            query = f"SELECT {names}, CAST(NULL AS BIGINT) AS {ENDED_AT} FROM {newest} AS n"
        else:
            untouched = f"LEFT ANTI JOIN {touched} AS t ON {_same_document('c', 't')}" if touched is not None else ""
            query = f"""
                SELECT {names}, f.seqno AS {ENDED_AT}
                FROM {newest} AS n LEFT JOIN {floors} AS f ON {_same_place("n", "f")}
                UNION ALL
                SELECT {_names(self.columns, "c")}, {without_row} FROM {self.current} AS c
                LEFT SEMI JOIN {floors} AS f ON {_same_place("c", "f")} AND c.seqno <= f.seqno
                LEFT ANTI JOIN {newest} AS n ON {_same_document("c", "n")} {untouched}
            """
        if touched is not None:
            # All rows of these documents are void: only their names are left.
            keys = ", ".join(f"t.`{name}`" if name in DOCUMENT_KEY else "NULL" for name in self.columns)
            query += f"""
                UNION ALL
                SELECT {keys}, {without_row} FROM {touched} AS t
                LEFT ANTI JOIN {newest} AS n ON {_same_document("t", "n")}
            """
        return query

    def merge(self, source: str) -> str:
        """The statement that brings the rows of `source`, a view, into `current`."""
        wins = f"(s.{IS_FORCED} OR s.seqno > t.seqno OR t.seqno <= s.{ENDED_AT})"
        assignments = ", ".join(f"t.`{name}` = s.`{name}`" for name in self.columns)
        return f"""
            MERGE INTO {self.current} AS t USING {source} AS s ON {_same_document("t", "s")}
            WHEN MATCHED AND s.{IS_REMOVED} AND {wins} THEN DELETE
            WHEN MATCHED AND NOT s.{IS_REMOVED} AND {wins} THEN UPDATE SET {assignments}
            WHEN NOT MATCHED AND NOT s.{IS_REMOVED}
            THEN INSERT ({_names(self.columns)}) VALUES ({_names(self.columns, "s")})
        """

    @property
    def _deciding(self) -> Sequence[str]:
        return [*self.columns, IS_REMOVED, IS_FORCED, *([] if self.types is None else [IS_UNFIT])]

    def _untouched(self, table: str) -> str:
        return f"LEFT ANTI JOIN touched AS t ON {_same_document(table, 't')}" if self.bounds else ""

    @property
    def _tail(self) -> str:
        return f"{BATCH_ID} > {self.after}{self._and_upto()}"

    def _and_upto(self) -> str:
        return "" if self.upto is None or self.is_open else f" AND {BATCH_ID} <= {self.upto}"

    def _common(self) -> str:
        """Common table expressions: `ends`, `effective`, `newest`, and with rollbacks `touched`."""
        # An emptying row ends rows of its own batch and of earlier ones. Those of later batches were read again.
        return f"""
            {self._candidates()},
            ends AS (
                SELECT scope, collection, vbucket, seqno, {BATCH_ID} FROM rows WHERE {_IS_EMPTYING} AND NOT _is_void
            ),
            effective AS (
                SELECT d.* FROM candidates AS d
                LEFT ANTI JOIN ends AS e
                ON {_same_place("d", "e")} AND d.seqno <= e.seqno AND d.{BATCH_ID} <= e.{BATCH_ID}
            ),
            ranked AS (
                SELECT *, row_number() OVER (
                    PARTITION BY scope, collection, key ORDER BY seqno DESC, {BATCH_ID} DESC, vbucket DESC
                ) AS _rank FROM effective
            ),
            decided AS (
                SELECT *, coalesce(_change_type = 'delete', false) AS {IS_REMOVED} FROM ranked WHERE _rank = 1
            ),
            {self._typed()}
        """

    def _typed(self) -> str:
        """Common table expressions: `newest`, and with types `judged`."""
        if self.types is None:
            return "newest AS (SELECT * FROM decided)"
        removed = f"{IS_REMOVED} OR {IS_UNFIT}" if self.types.mode == "DROPMALFORMED" else IS_REMOVED
        return f"""
            judged AS ({judged("decided", self.types, IS_REMOVED)}),
            newest AS (
                SELECT {_names(CURRENT_COLUMNS)}, {typed_columns(self.types)},
                {removed} AS {IS_REMOVED}, {IS_FORCED}, {IS_UNFIT} FROM judged
            )
        """

    def _candidates(self) -> str:
        """Common table expressions: `rows` of `changes` that play a part, and its data rows that are not void."""
        if not self.bounds:
            return f"""
                rows AS (SELECT *, false AS {IS_FORCED}, false AS _is_void FROM {self.changes} WHERE {self._tail}),
                candidates AS (SELECT * FROM rows WHERE {_IS_DATA})
            """
        bounds = ", ".join(f"({vbucket}, {seqno}L)" for vbucket, seqno in self.bounds.items())
        return f"""
            bounds AS (SELECT * FROM VALUES {bounds} AS b(vbucket, seqno)),
            rows AS (
                SELECT r.*, coalesce(
                    r.{BATCH_ID} < {self.upto} AND r.op <> '{Op.ROLLBACK.value}' AND r.seqno > b.seqno, false
                ) AS _is_void
                FROM {self.changes} AS r LEFT JOIN bounds AS b ON r.vbucket = b.vbucket
                WHERE (r.{BATCH_ID} > {self.after} OR r.vbucket IN ({", ".join(map(str, self.bounds))}))
                {self._and_upto()}
            ),
            lost AS (SELECT DISTINCT scope, collection, vbucket FROM rows WHERE _is_void AND {_IS_EMPTYING}),
            touched AS (
                SELECT scope, collection, key FROM rows WHERE _is_void AND {_IS_DATA}
                UNION
                SELECT r.scope, r.collection, r.key FROM rows AS r
                LEFT SEMI JOIN lost AS l ON {_same_place("r", "l")} WHERE {_IS_DATA}
            ),
            candidates AS (
                SELECT r.*, t.key IS NOT NULL AS {IS_FORCED}
                FROM rows AS r LEFT JOIN touched AS t ON {_same_document("r", "t")}
                WHERE {_IS_DATA} AND NOT _is_void AND (r.{BATCH_ID} > {self.after} OR t.key IS NOT NULL)
            )
        """


def void_rows(bounds: Mapping[int, int], before_batch: int) -> str:
    """The condition for rows of `changes` that rollbacks in a batch have made void.

    Args:
        bounds: vbucket → seqno.
        before_batch: the batch.
    """
    vbuckets = ", ".join(map(str, bounds))
    seqnos = ", ".join(f"{seqno}L" for seqno in bounds.values())
    return (
        f"{BATCH_ID} < {before_batch} AND op <> '{Op.ROLLBACK.value}' AND vbucket IN ({vbuckets}) "
        f"AND seqno > element_at(array({seqnos}), CAST(array_position(array({vbuckets}), vbucket) AS INT))"
    )


def _same_document(left: str, right: str) -> str:
    """A scope may be null: of a collection that had no name yet when its rows were read."""
    return f"{left}.key = {right}.key AND {left}.collection = {right}.collection AND {left}.scope <=> {right}.scope"


def _same_place(left: str, right: str) -> str:
    return (
        f"{left}.vbucket = {right}.vbucket AND {left}.collection = {right}.collection "
        f"AND {left}.scope <=> {right}.scope"
    )


def _names(names: Iterable[str], table: str | None = None) -> str:
    return ", ".join(f"`{name}`" if table is None else f"{table}.`{name}`" for name in names)
