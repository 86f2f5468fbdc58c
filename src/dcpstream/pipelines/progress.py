"""Reports of a pipeline: its progress, its batches, their rollbacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dcpstream.errors import OffsetError
from dcpstream.model import StreamOffset
from dcpstream.spark.offsets import position


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
        lag: vbucket → seqnos between the high seqno and what the tables hold; as of the last micro-batch. Those whose
            high seqno is not known are missing.
        vbuckets_inside_snapshot: vbuckets whose position lies within a snapshot: there a document may still show an
            older state, until the batch that holds its newest change.
    """

    batch_id: int | None = None
    rows: int = 0
    rollbacks: int = 0
    rows_per_second: float = 0.0
    lag: Mapping[int, int] = field(default_factory=dict)
    vbuckets_inside_snapshot: int = 0

    @property
    def total_lag(self) -> int:
        """Seqnos that are still to come, of all vbuckets."""
        return sum(self.lag.values())


def lag_of(query_progress: Mapping[str, Any]) -> tuple[dict[int, int], int]:
    """Lag per vbucket and the number of vbuckets inside a snapshot, from Spark's progress of a query.

    Raises:
        OffsetError: the query does not read from this source.
    """
    sources = query_progress.get("sources") or [{}]
    end = _vbuckets(sources[0].get("endOffset"))
    latest = _vbuckets(sources[0].get("latestOffset"))
    lag = {}
    inside = 0
    for vbid, at in end.items():
        high = latest[vbid].seqno if vbid in latest else None
        if high is not None:
            lag[vbid] = max(0, high - at.seqno)
        inside += at.is_inside_snapshot if at.snapshot_end is not None else high is None or at.seqno < high
    return lag, inside


def _vbuckets(offset: Any) -> dict[int, StreamOffset]:
    if isinstance(offset, str):
        offset = json.loads(offset)
    if not isinstance(offset, Mapping) or "vbuckets" not in offset:
        return {}
    try:
        return {int(vbid): position(entry["at"]) for vbid, entry in offset["vbuckets"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise OffsetError(f"the progress holds an offset of another source: {error}") from error
