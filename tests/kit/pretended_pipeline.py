"""A pipeline without Spark, for tests of what watches pipelines."""

from __future__ import annotations

from collections.abc import Callable

from dcpstream_spark.tables.engine import FoldReport
from dcpstream_spark.tables.progress import BatchReport, PipelineProgress, RollbackReport, VbucketProgress


class PretendedPipeline:
    """A pipeline whose state the test sets.

    Attributes:
        lag: of the one vbucket that `progress` names; None: not known.
        vbucket_count: how many `vbuckets` has.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_running = True
        self.is_busy = False
        self.failure: Exception | None = None
        self.rejects_place: str | None = None
        self.lag: int | None = 0
        self.vbucket_count = 1
        self.rows = 1234
        self.listeners: list[Callable[[BatchReport], None]] = []
        self.fold_listeners: list[Callable[[FoldReport], None]] = []

    def progress(self) -> PipelineProgress:
        """The progress that the attributes give."""
        return PipelineProgress(
            batch_id=4, rows=self.rows, rollbacks=2, total_lag=self.lag, tail_rows=77, lag={7: self.lag or 0}
        )

    def vbuckets(self) -> list[VbucketProgress]:
        """All with the same lag."""
        return [VbucketProgress(vbid, 100 + vbid, None, self.lag, self.lag) for vbid in range(self.vbucket_count)]

    def add_listener(
        self,
        on_batch: Callable[[BatchReport], None] | None = None,
        on_fold: Callable[[FoldReport], None] | None = None,
    ) -> None:
        """Note the listeners."""
        assert on_batch is not None
        assert on_fold is not None
        self.listeners.append(on_batch)
        self.fold_listeners.append(on_fold)

    def write(self, batch_id: int, rollbacks: tuple[RollbackReport, ...] = ()) -> None:
        """Tell the listeners of a batch of 10 rows."""
        for listener in self.listeners:
            listener(BatchReport(batch_id=batch_id, rows=10, append_s=0.5, wait_s=0.25, rollbacks=rollbacks))

    def fold(self, upto: int) -> None:
        """Tell the listeners of a fold."""
        for listener in self.fold_listeners:
            listener(FoldReport(upto, documents=8, removed=1, restored=0, current_rows=9, rejected=3, fold_s=2.5))
