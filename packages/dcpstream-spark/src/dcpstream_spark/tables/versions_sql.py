"""Every version of a document with the time in which it was valid, from `changes` alone: SCD type 2 as a query.

The SQL is what Spark and the query engine of delta-rs (DataFusion) have in common, see `fold_sql`. The rules:

- A rollback in a later batch makes rows of its vbucket above its seqno void, also while they are still in `changes`.
- A row that was read again, after its collection had been left out for a while, is one version.
- A version ends with the next change of its document, or with what empties its collection: a drop, a flush, a creation,
  or that it is read no more. Such a row ends rows of its own batch and of earlier ones.
- A deletion or expiration ends a version, and is none.

A document stays in one vbucket, so the seqno orders its versions.
"""

# ruff: noqa: S608 - tables are named as their owner wrote them; all other parts are ours
from __future__ import annotations

from collections.abc import Iterable

from dcpstream.model import Op
from dcpstream_spark.tables.fold_sql import IS_DATA, IS_EMPTYING, in_collections, same_place
from dcpstream_spark.tables.rows import BATCH_ID, CURRENT_COLUMNS, Place

VALID_FROM, VALID_TO, VALID_TO_SEQNO, IS_CURRENT = "valid_from", "valid_to", "valid_to_seqno", "is_current"

VERSION_COLUMNS = (
    *(name for name in CURRENT_COLUMNS if name != "_commit_timestamp"),
    VALID_FROM,
    VALID_TO,
    VALID_TO_SEQNO,
    IS_CURRENT,
)
"""Columns of a version: those of the document, and

- `valid_from`: when it was written. `seqno` is its place.
- `valid_to`: when the next version was written, the document was deleted, or the end of its collection was read; null
  for the version that is valid now.
- `valid_to_seqno`: the place of what ended it. A version is valid from its seqno on, and before this one.
- `is_current`: whether nothing has ended it.
"""


def versions(changes: str, places: Iterable[Place] | None = None) -> str:
    """The query for all versions.

    Args:
        changes: the table, as SQL writes it.
        places: the collections whose versions are wanted; None for all.
    """
    is_wanted = "true" if places is None else in_collections(places)
    document = "PARTITION BY vbucket, scope, collection, key"
    names = ", ".join(f"`{name}`" for name in VERSION_COLUMNS)
    return f"""
        WITH rollbacks AS (
            SELECT vbucket AS v, seqno AS s, {BATCH_ID} AS b FROM {changes} WHERE op = '{Op.ROLLBACK.value}'
        ),
        valid AS (
            SELECT r.* FROM {changes} AS r WHERE r.op <> '{Op.ROLLBACK.value}' AND {is_wanted} AND NOT EXISTS (
                SELECT 1 FROM rollbacks WHERE v = r.vbucket AND b > r.{BATCH_ID} AND s < r.seqno
            )
        ),
        ends AS (
            SELECT vbucket, scope, collection, seqno, {BATCH_ID}, _commit_timestamp FROM valid WHERE {IS_EMPTYING}
        ),
        copies AS (
            SELECT *, row_number() OVER ({document}, seqno ORDER BY {BATCH_ID} DESC) AS _copy
            FROM valid WHERE {IS_DATA}
        ),
        followed AS (
            SELECT *, lead(seqno) OVER ({document} ORDER BY seqno) AS _next_seqno,
            lead(_commit_timestamp) OVER ({document} ORDER BY seqno) AS _next_time
            FROM copies WHERE _copy = 1
        ),
        ended AS (
            SELECT f.*, e.seqno AS _end_seqno, e._commit_timestamp AS _end_time,
            row_number() OVER (PARTITION BY f.vbucket, f.seqno ORDER BY e.seqno) AS _end
            FROM followed AS f LEFT JOIN ends AS e ON {same_place("f", "e")} AND f.seqno <= e.seqno
            AND f.{BATCH_ID} <= e.{BATCH_ID} AND (f._next_seqno IS NULL OR e.seqno < f._next_seqno)
            WHERE f.op = '{Op.MUTATION.value}'
        ),
        found AS (
            SELECT *, _commit_timestamp AS {VALID_FROM},
            CASE WHEN _end_seqno IS NULL THEN _next_time ELSE _end_time END AS {VALID_TO},
            coalesce(_end_seqno, _next_seqno) AS {VALID_TO_SEQNO},
            coalesce(_end_seqno, _next_seqno) IS NULL AS {IS_CURRENT}
            FROM ended WHERE _end = 1
        )
        SELECT {names} FROM found
    """
