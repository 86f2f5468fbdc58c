"""Several pipelines in one session, kept running.

Theory of operation: one loop looks at all pipelines. It starts those that are due, finds out which of them have ended
and why, and reports progress. A pipeline that failed starts again after a pause that doubles from failure to
failure, and begins again with the first pause once a batch was written. A failure that comes again in any case
(`failures`), as a mistake in the configuration or tables that do not belong to their checkpoint, is not tried again.
The other pipelines go on in every case.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from dcpstream.runtime import Clock, SystemClock
from dcpstream.runtime.stopping import StopSign
from dcpstream_spark.tables.failures import failure_of
from dcpstream_spark.tables.pipeline import Pipeline, Until, name_of
from dcpstream_spark.tables.progress import PipelineProgress, VbucketProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dcpstream_spark.tables.engine import FoldReport
    from dcpstream_spark.tables.lake_config import PipelineConfig
    from dcpstream_spark.tables.monitor import Watched
    from dcpstream_spark.tables.progress import BatchReport

LOOK_INTERVAL_S = 0.5
"""Seconds between two looks at the pipelines."""

PROGRESS_INTERVAL_S = 10.0
"""Seconds between two reports of a pipeline's progress."""

FIRST_PAUSE_S = 1.0
"""Pause before a pipeline that failed starts again; it doubles."""

MAX_PAUSE_S = 60.0
"""Longest pause: a cluster that comes back is noticed within a minute."""

FAILURES_MAX_ONCE = 5
"""Failures in a row after which a pipeline of a run that is to end is given up."""

MESSAGE_CHARACTERS = 500
"""Length of the reason in an event; the log of Spark has the rest."""

EventKind: TypeAlias = Literal["started", "progress", "failed", "finished", "given up", "stopped"]


class Runnable(Protocol):
    """The methods of a `Pipeline` that the loop calls."""

    @property
    def is_running(self) -> bool:
        """Whether its query is active."""
        ...

    @property
    def failure(self) -> Exception | None:
        """The error that ended its query."""
        ...

    def start(self, *, until: Until, trigger: str | None) -> None:
        """Start its query."""
        ...

    def await_end(self) -> bool:
        """Finish after the end of its query."""
        ...

    def stop(self) -> None:
        """Stop its query."""
        ...

    def progress(self) -> PipelineProgress:
        """The current progress."""
        ...


@dataclass(frozen=True, slots=True)
class Unmade:
    """A pipeline that could not be made, for example because of its options, as a monitor shows it.

    Attributes:
        name: the pipeline's.
        failure: why.
    """

    name: str
    failure: Exception
    is_running: bool = False
    is_busy: bool = False
    rejects_place: str | None = None

    def progress(self) -> PipelineProgress:
        """None."""
        return PipelineProgress()

    def vbuckets(self) -> list[VbucketProgress]:
        """None."""
        return []

    def add_listener(
        self,
        on_batch: Callable[[BatchReport], None] | None = None,
        on_fold: Callable[[FoldReport], None] | None = None,
    ) -> None:
        """Nothing will ever be reported."""


@dataclass(frozen=True, slots=True)
class LakeEvent:
    """Something happened to a pipeline.

    Attributes:
        name: of the pipeline.
        kind: what.
        progress: of the pipeline, for the kinds "progress" and "finished".
        message: the reason of a failure.
        pause_s: seconds until it starts again.
    """

    name: str
    kind: EventKind
    progress: PipelineProgress | None = None
    message: str = ""
    pause_s: float = 0.0


@dataclass
class _Member:
    """A pipeline of the loop.

    Attributes:
        pipeline: None before the first start, and after a failed one.
        is_done: nothing more will happen.
        is_failed: it was given up.
        failures: in a row, without a batch in between.
        due: the time of the next start.
        reported_at: the time of the last report.
        batch: the newest batch that was seen.
    """

    config: PipelineConfig
    pipeline: Runnable | None = None
    is_done: bool = False
    is_failed: bool = False
    failures: int = 0
    due: float = 0.0
    reported_at: float = 0.0
    batch: int | None = None


class Lake:
    """Runs pipelines until they are done, or until it is stopped.

    Args:
        make: makes a pipeline of its configuration; called again for each start.
        configs: of the pipelines.
        on_event: called with every event, from the thread of `run`.
        clock: for pauses.
    """

    def __init__(
        self,
        make: Callable[[PipelineConfig], Runnable],
        configs: Iterable[PipelineConfig],
        on_event: Callable[[LakeEvent], None],
        clock: Clock | None = None,
    ) -> None:
        self._make = make
        self._members = [_Member(config) for config in configs]
        self._on_event = on_event
        self._clock = clock or SystemClock()

    @classmethod
    def of_session(
        cls,
        spark: SparkSession,
        configs: Iterable[PipelineConfig],
        on_event: Callable[[LakeEvent], None],
        *,
        watch: Callable[[Watched], None] | None = None,
    ) -> Lake:
        """The lake of a session.

        Args:
            watch: called with each pipeline before it starts, also when it was made again after a failure. If it could
                not be made, called with what stands for it.
        """

        def make(config: PipelineConfig) -> Pipeline:
            try:
                pipeline = pipeline_of(spark, config)
            except Exception as error:
                if watch is not None:
                    watch(Unmade(name_of(config.path), error))
                raise
            if watch is not None:
                watch(pipeline)
            return pipeline

        return cls(make, configs, on_event)

    def run(self, stopping: StopSign, *, once: bool = False) -> bool:
        """Run until `stopping` is set, or with `once` until every pipeline has read what the buckets hold now.

        Returns: whether no pipeline was given up, and all could be stopped without an error.
        """
        try:
            while not stopping.is_set():
                for member in self._members:
                    if not member.is_done:
                        self._look(member, once=once)
                if all(member.is_done for member in self._members):
                    break
                stopping.wait(LOOK_INTERVAL_S)
        finally:
            self._stop()
        return not any(member.is_failed for member in self._members)

    def _look(self, member: _Member, *, once: bool) -> None:
        now = self._clock.monotonic()
        pipeline = member.pipeline
        if pipeline is None:
            if now >= member.due:
                self._start(member, now, once=once)
            return
        progress = pipeline.progress()
        if progress.batch_id is not None and progress.batch_id != member.batch:
            member.batch = progress.batch_id
            member.failures = 0
        if pipeline.is_running:
            if now - member.reported_at >= PROGRESS_INTERVAL_S:
                member.reported_at = now
                self._report(member, "progress", progress)
            return
        failure = pipeline.failure
        if failure is None and once:
            try:
                pipeline.await_end()
            except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
                failure = error
        if failure is not None:
            self._failed(member, failure, now, once=once)
        else:
            member.is_done = True
            self._report(member, "finished", pipeline.progress())

    def _start(self, member: _Member, now: float, *, once: bool) -> None:
        try:
            pipeline = self._make(member.config)
            pipeline.start(until="available" if once else "stopped", trigger=member.config.trigger)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            self._failed(member, error, now, once=once)
            return
        member.pipeline = pipeline
        member.reported_at = now
        self._report(member, "started")

    def _failed(self, member: _Member, error: Exception, now: float, *, once: bool) -> None:
        if member.pipeline is not None:
            # A fold that still runs would meet that of the next start.
            with contextlib.suppress(Exception):
                member.pipeline.stop()
        member.pipeline = None
        member.failures += 1
        failure = failure_of(error, member.config.options)
        message = failure.message[:MESSAGE_CHARACTERS]
        if failure.is_final or (once and member.failures >= FAILURES_MAX_ONCE):
            member.is_done = member.is_failed = True
            self._on_event(LakeEvent(member.config.name, "given up", message=message))
            return
        pause_s = min(FIRST_PAUSE_S * 2 ** (member.failures - 1), MAX_PAUSE_S)
        member.due = now + pause_s
        self._on_event(LakeEvent(member.config.name, "failed", message=message, pause_s=pause_s))

    def _stop(self) -> None:
        for member in self._members:
            if member.pipeline is None or member.is_done:
                continue
            try:
                member.pipeline.stop()
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are stopped, too
                member.is_failed = True
                failure = failure_of(error, member.config.options)
                self._on_event(LakeEvent(member.config.name, "failed", message=failure.message[:MESSAGE_CHARACTERS]))
            else:
                self._report(member, "stopped", member.pipeline.progress())

    def _report(self, member: _Member, kind: EventKind, progress: PipelineProgress | None = None) -> None:
        self._on_event(LakeEvent(member.config.name, kind, progress))


def pipeline_of(spark: SparkSession, config: PipelineConfig) -> Pipeline:
    """The pipeline of a configuration."""
    return Pipeline(spark, config.path, config.options, **config.arguments)
