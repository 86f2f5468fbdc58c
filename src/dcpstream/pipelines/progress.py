"""Reports of a pipeline: its progress, its batches, their rollbacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dcpstream.spark.lag import Lag


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """A rollback of one vbucket.

    Attributes:
        vbucket: the vbucket.
        from_seqno: the position that was refused, or is now on another branch.
        to_seqno: the position at which reading continued.
        old_vbuuid, new_vbuuid: the branches.
    """

    vbucket: int
    from_seqno: int
    to_seqno: int
    old_vbuuid: int
    new_vbuuid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """A micro-batch that is now in both tables.

    Attributes:
        batch_id: Spark's number, the same for a replayed batch.
        rows: data rows of the batch, without control rows.
        documents: documents that the batch changed.
        removed: documents that it removed.
        rollbacks: control rows.
        collect_s, changes_s, current_s: seconds to get the rows, and to write each table.
        is_recovered: an earlier run had written the batch to `changes` and ended before it wrote `current`.
    """

    batch_id: int
    rows: int
    documents: int
    removed: int
    rollbacks: tuple[RollbackReport, ...] = ()
    collect_s: float = 0.0
    changes_s: float = 0.0
    current_s: float = 0.0
    is_recovered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgress:
    """Where a pipeline stands.

    Attributes:
        batch_id: of the last micro-batch that Spark finished, or None before the first.
        rows: data rows written by this object.
        rollbacks: control rows written by this object.
        rows_per_second: of the last micro-batch.
        total_lag: seqnos between the high seqnos and what the tables hold, of all vbuckets; as of the last micro-batch.
            None if it is not known.
        lag: vbucket → its share of that, of the ten vbuckets that are furthest behind.
        vbuckets_inside_snapshot: vbuckets whose position lies within a snapshot: there a document may still show an
            older state, until the batch that holds its newest change.
    """

    batch_id: int | None = None
    rows: int = 0
    rollbacks: int = 0
    rows_per_second: float = 0.0
    total_lag: int | None = None
    lag: Mapping[int, int] = field(default_factory=dict)
    vbuckets_inside_snapshot: int = 0


def lag_of(query_progress: Mapping[str, Any]) -> Lag | None:
    """The lag, from Spark's progress of a query; None if the cluster did not answer, or before the first batch.

    Raises:
        OffsetError: the query does not read from this source.
    """
    sources = query_progress.get("sources") or [{}]
    latest = sources[0].get("latestOffset")
    if isinstance(latest, str):
        latest = json.loads(latest)
    return None if latest is None else Lag.from_json(latest)
