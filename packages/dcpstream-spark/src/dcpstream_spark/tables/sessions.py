"""The differences between the kinds of Spark sessions: classic ones, and those of Spark Connect.

A session of Spark Connect is a client. It has no SparkContext, its paths are those of the server, and a function of
each batch runs in a process of the server, which shares the session. The server keeps plans of a session by their
numbers, which begin again in each process. So two processes that read files in one session may get each other's list of
files: each reads in a session of its own. All else of this package works by DataFrames and SQL, which are the same in
both; nobody else asks for the kind of a session.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from dcpstream.errors import ConfigError
from dcpstream.runtime import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLD_POOL = "dcpstream-fold"
"""Scheduler pool of folds and maintenance. Spark makes it, with the same weight as the pool of everything else."""

REST_S = 600.0
"""Seconds without use after which a session is made again: a server of Spark Connect forgets one after an hour."""

PROGRESS_INTERVAL_S = 0.5
"""Seconds between two reports of running tasks."""


def is_connect(spark: SparkSession | None) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def own_session(spark: SparkSession) -> SparkSession:
    """Another session with the settings of this one; later changes of either do not reach the other.

    Raises:
        ConfigError: the session cannot make another one.
    """
    if is_connect(spark):
        clone: Callable[[], SparkSession] | None = getattr(spark, "cloneSession", None)
        if clone is None:
            message = (
                "a pipeline needs sessions of its own, and Spark Connect makes them since Spark 4.1. Install PySpark "
                "4.1 or newer here and on the server, or use a session without Spark Connect"
            )
            raise ConfigError("spark", spark.version, "Spark 4.1 or newer, over Spark Connect", message=message)
        # The server makes a session at its first use, and copies none before.
        _ = spark.version
        copy: Any = clone()
        # At the latest at the exit of the process: Spark would close it when Python's threads are gone, and wait for
        # one of them for ever.
        weakref.finalize(copy, copy.client.close)
        return cast("SparkSession", copy)
    from pyspark.errors import AnalysisException

    made = spark.newSession()
    known = made.conf.getAll
    for name, value in spark.conf.getAll.items():
        # Others are those of the process.
        if known.get(name) != value:
            # A builder that finds a session writes settings of the process into it, such as spark.driver.memory. They
            # change nothing there, and another session does not take them.
            with suppress(AnalysisException):
                made.conf.set(name, value)
    catalog, database = spark.catalog.currentCatalog(), spark.catalog.currentDatabase()
    if made.catalog.currentCatalog() != catalog:
        made.catalog.setCurrentCatalog(catalog)
    if made.catalog.currentDatabase() != database:
        made.catalog.setCurrentDatabase(database)
    return made


class OwnSession:
    """A session of one's own, made when it is first used, and again after a rest over Spark Connect.

    Args:
        spark: the session that it is made of.
        settings: of it alone.
        clock: for the rest.
    """

    def __init__(
        self, spark: SparkSession, settings: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> None:
        self._spark = spark
        self._settings = dict(settings or {})
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._made: SparkSession | None = None
        self._used = 0.0

    def get(self) -> SparkSession:
        """The session."""
        with self._lock:
            now = self._clock.monotonic()
            if self._made is None or (is_connect(self._spark) and now - self._used > REST_S):
                self._made = own_session(self._spark)
                for name, value in self._settings.items():
                    self._made.conf.set(name, value)
            self._used = now
            return self._made


@contextmanager
def in_fold_pool(spark: SparkSession) -> Iterator[None]:
    """Jobs of this thread are in `FOLD_POOL`. Over Spark Connect no fold runs beside a batch, so there is no pool."""
    if is_connect(spark):
        yield
        return
    name = "spark.scheduler.pool"
    context = spark.sparkContext
    before = context.getLocalProperty(name)
    context.setLocalProperty(name, FOLD_POOL)
    try:
        yield
    finally:
        context.setLocalProperty(name, before)  # type: ignore[arg-type]  # None removes it


@contextmanager
def watched_tasks(spark: SparkSession, callback: Callable[[int, int], None] | None) -> Iterator[None]:
    """Meanwhile call back with (tasks done, tasks) of the stages that run, from a thread of its own."""
    if callback is None:
        yield
    elif is_connect(spark):
        with _reported_by_server(spark, callback):
            yield
    else:
        ended = threading.Event()
        thread = threading.Thread(target=_watch, args=[spark, callback, ended], name="dcpstream-tasks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def _reported_by_server(spark: Any, callback: Callable[[int, int], None]) -> Iterator[None]:
    def report(stages: Any = None, **_: Any) -> None:
        found = list(stages or ())
        callback(sum(one.num_completed_tasks for one in found), sum(one.num_tasks for one in found))

    spark.registerProgressHandler(report)
    try:
        yield
    finally:
        spark.removeProgressHandler(report)


def _watch(spark: SparkSession, callback: Callable[[int, int], None], ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}
    while not ended.wait(PROGRESS_INTERVAL_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = (info.numCompletedTasks, info.numTasks)
        # A stage that is no longer active is done.
        active = set(tracker.getActiveStageIds())
        done = sum(count if stage in active else total for stage, (count, total) in seen.items())
        callback(done, sum(total for _, total in seen.values()))
