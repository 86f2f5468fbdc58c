"""Reports of a pipeline: its progress, its batches, their rollbacks, its vbuckets."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from dcpstream_spark.source.lag import Lag
from dcpstream_spark.source.offsets import is_start_marker, positions_of


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

    @classmethod
    def from_row(cls, vbucket: int, value: str | bytes | bytearray) -> RollbackReport:
        """The rollback of a control row of `changes`.

        Args:
            vbucket: of the row.
            value: its JSON, see `RollbackEvent.details`.
        """
        detail = json.loads(value)
        return cls(
            vbucket=vbucket,
            from_seqno=int(detail["from_seqno"]),
            to_seqno=int(detail["to_seqno"]),
            old_vbuuid=int(detail["old_vbuuid"]),
            new_vbuuid=int(detail["new_vbuuid"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """A micro-batch that is now in the tables: in `changes`, and visible in `live`.

    Attributes:
        batch_id: Spark's number, the same for a replayed batch.
        rows: data rows of the batch, without control rows.
        rollbacks: control rows about rollbacks.
        append_s: seconds to read the batch and append it to `changes`.
        wait_s: seconds that the query then waited for a fold, because the batch had a rollback, because the tail was
            too long, or because the pipeline does not fold in the background.
        is_recovered: an earlier run had appended the batch and ended before Spark knew.
    """

    batch_id: int
    rows: int
    rollbacks: tuple[RollbackReport, ...] = ()
    append_s: float = 0.0
    wait_s: float = 0.0
    is_recovered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgress:
    """The progress of a pipeline.

    Attributes:
        batch_id: of the last micro-batch that Spark finished, or None before the first.
        rows: data rows written by this object.
        rollbacks: control rows written by this object.
        tail_rows: rows of `changes` that `current` does not hold yet; None if that is not known.
        rows_per_second: of the last micro-batch.
        total_lag: seqnos between the high seqnos and what the tables hold, of all vbuckets; as of the last micro-batch.
            None if it is not known.
        lag: vbucket → its share of that, of the ten vbuckets that are furthest behind.
        share_read: of the seqnos of the bucket, from 0 to 1; None if it is not known.
        seconds_left: until everything that the bucket holds now is read, at the speed of the last micro-batches; None
            if that is not known.
        lag_s: about how many seconds before the last micro-batch the newest change that it read was written; None if
            that is not known, as in a first load, which reads changes from before its start.
        vbuckets_inside_snapshot: vbuckets whose position lies within a snapshot: there a document may still show an
            older state, until the batch that holds its newest change.
    """

    batch_id: int | None = None
    rows: int = 0
    rollbacks: int = 0
    tail_rows: int | None = None
    rows_per_second: float = 0.0
    total_lag: int | None = None
    lag: Mapping[int, int] = field(default_factory=dict)
    share_read: float | None = None
    seconds_left: float | None = None
    lag_s: float | None = None
    vbuckets_inside_snapshot: int = 0


@dataclass(frozen=True, slots=True)
class VbucketProgress:
    """The progress of a pipeline with one vbucket, as of its last micro-batch.

    Attributes:
        vbucket: its number.
        seqno: up to which it is read.
        snapshot_end: end of the snapshot that `seqno` lies in; None while that is not known.
        lag: seqnos between `seqno` and the high seqno. None if it is not known: Spark's progress has those that are
            furthest behind.
        lag_max: what the lag is at most; None if that is not known either.
    """

    vbucket: int
    seqno: int
    snapshot_end: int | None
    lag: int | None
    lag_max: int | None

    @property
    def high_seqno(self) -> int | None:
        """The newest seqno of the vbucket; None if it is not known."""
        return None if self.lag is None else self.seqno + self.lag

    @property
    def is_inside_snapshot(self) -> bool | None:
        """Whether documents may show an older state until the next batch; None if that is not known."""
        if self.snapshot_end is None:
            return None if self.lag is None else self.lag > 0
        return self.seqno < self.snapshot_end


def vbuckets_of(query_progress: Mapping[str, Any], wanted: Container[int] | None) -> list[VbucketProgress]:
    """The vbuckets, from Spark's progress of a query, by number. Empty before the first batch.

    Args:
        wanted: those that the query reads; None for all.

    Raises:
        OffsetError: the query does not read from this source.
    """
    sources = query_progress.get("sources") or [{}]
    end = offset_in(sources[0].get("endOffset"))
    if end is None or is_start_marker(end):
        return []
    positions = {vbid: at for vbid, at in positions_of(end).items() if wanted is None or vbid in wanted}
    lag = lag_of(query_progress)
    rest, most = _others(lag, len(positions))
    found = []
    for vbid, at in sorted(positions.items()):
        own = rest if lag is None else lag.worst.get(vbid, rest)
        found.append(VbucketProgress(vbid, at.seqno, at.snapshot_end, own, most if own is None else own))
    return found


def _others(lag: Lag | None, vbuckets: int) -> tuple[int | None, int | None]:
    """The lag of those that the report does not name, and what it is at most; None: not known."""
    if lag is None or lag.vbuckets < vbuckets:
        return None, None
    if sum(lag.worst.values()) == lag.total:
        return 0, 0
    return None, min(lag.worst.values(), default=None)


class _Sample(NamedTuple):
    """Sums of seqnos when a micro-batch was planned."""

    unix_s: float
    read: int
    high: int


class Pace:
    """The speed of a query, from the reports of its last micro-batches."""

    SAMPLES_MAX = 100
    """Micro-batches that are remembered: a lag in time is known as far back as these reach."""

    SPEED_SAMPLES = 10
    """Micro-batches whose mean is the speed: one alone depends on its size."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=self.SAMPLES_MAX)

    def add(self, timestamp: str, lag: Lag) -> None:
        """Note the report of a micro-batch; one that is noted already changes nothing.

        Args:
            timestamp: of its start, as Spark writes it.
        """
        sample = _Sample(datetime.fromisoformat(timestamp).timestamp(), lag.read, lag.read + lag.total)
        if not self._samples or sample.unix_s > self._samples[-1].unix_s:
            self._samples.append(sample)

    @property
    def share_read(self) -> float | None:
        """The share of the bucket's seqnos that is read; None before the first report."""
        if not self._samples:
            return None
        last = self._samples[-1]
        return last.read / last.high if last.high else 1.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the rest is read, at the speed of the last micro-batches; None if that is not known."""
        if not self._samples:
            return None
        last = self._samples[-1]
        if last.read >= last.high:
            return 0.0
        first = self._samples[-min(len(self._samples), self.SPEED_SAMPLES)]
        read = last.read - first.read
        return (last.high - last.read) * (last.unix_s - first.unix_s) / read if read > 0 else None

    @property
    def lag_s(self) -> float | None:
        """Seconds between the last micro-batch and the time when the bucket held what that has read.

        None if the bucket held that before the first report. Between two reports the bucket is taken to have grown
        evenly.
        """
        if not self._samples:
            return None
        last = self._samples[-1]
        following = None
        for sample in reversed(self._samples):
            if sample.high <= last.read:
                since = sample.unix_s
                if following is not None:
                    grown = following.high - sample.high
                    since += (following.unix_s - sample.unix_s) * (last.read - sample.high) / grown
                return last.unix_s - since
            following = sample
        return None


def offset_in(value: Any) -> Any:
    """The value that a source has written into Spark's progress, parsed; it may stand there as JSON or as a text."""
    return json.loads(value) if isinstance(value, str) else value


def lag_of(query_progress: Mapping[str, Any]) -> Lag | None:
    """The lag, from Spark's progress of a query.

    None if the cluster did not answer, before the first batch, and before Spark 4.2, which shows a planned end there.

    Raises:
        OffsetError: the query does not read from this source.
    """
    sources = query_progress.get("sources") or [{}]
    latest = offset_in(sources[0].get("latestOffset"))
    is_offset = isinstance(latest, Mapping) and "bucket" in latest
    return None if latest is None or is_offset else Lag.from_json(latest)
