"""When the tail of `changes` is folded into `current`, and in which thread.

Theory of operation. A fold takes seconds to minutes, an append less than one. The batches go on while a fold runs:
`changes` only grows at its end, and the fold of the batches up to n reads nothing above n. Both tables record what they
hold in the commits themselves, so a process may die between any two commits of either thread.

- A `Folder` counts the rows of the tail. When they exceed the due size, it gives a fold of all batches so far to its
  thread. The thread does one job at a time, a fold or maintenance, in the order in which they were given.
- A batch with a rollback makes older rows void. It waits until no job runs or waits, and is folded in the thread of the
  batch. So no fold has a rollback before its newest batch, and void rows are deleted while nothing else uses them.
- If batches come faster than folds, the tail grows. Above `TAIL_LIMIT` times the due size a batch waits for the fold
  that runs.
- A job that fails is logged at once. Its error is raised in the next batch, which ends the query: as it is if it is one
  of ours, else as FoldFailed. What the tables hold is then asked of the tables.

With `is_parallel=False` every job runs at once in the thread that asks for it, and its errors are raised there.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dcpstream.errors import DcpstreamError, FoldFailed, LeaseRefused
from dcpstream.runtime import Clock
from dcpstream_spark.tables.engine import BatchSummary, FoldReport, TableEngine
from dcpstream_spark.tables.failures import disk_full
from dcpstream_spark.tables.progress import RollbackReport

FOLD_SHARE = 0.1
"""Share of `current` that the tail may reach before it is folded. A fold costs about one pass over `current`, so each
change costs a pass over ten rows at most, however large the table is."""

TAIL_LIMIT = 4
"""Due sizes that the tail may reach while a fold runs; then the batch waits. Readers of `live` process the tail, and
the next fold reads it. With less, a fold that is slow once would stop the stream."""

RETAIN_HOURS_PARALLEL = 1.0
"""Retention from which maintenance runs while batches are written. It removes files that no version uses, and the files
of a batch that is being appended are such files: none of them may be that old. With a shorter retention the batch
waits."""

REASON_CHARACTERS = 300
"""Length of a failure's reason; the log has all of it."""

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


@dataclass
class Held:
    """The content of the tables, as far as one writer knows.

    Attributes:
        app: the writer.
        last: the newest batch in `changes`.
        folded: the newest batch in `current`.
        tail_rows: rows of the batches between them.
        current_rows: documents in `current`.
    """

    app: str
    last: int | None
    folded: int | None
    tail_rows: int
    current_rows: int


class Folder:
    """Folds the tables of one pipeline, and maintains them.

    One thread at a time calls the methods, apart from `wait` and `result`.

    Args:
        engine: of the tables.
        share: see `FOLD_SHARE`.
        rows_min: rows of the tail that are not folded yet, however small `current` is.
        is_parallel: whether jobs run in a thread of the folder's own.
        on_fold: called after each fold, in the thread that folded.
        verify: called before each job; raises if the tables are another process's now.
        clock: for the times in reports.
    """

    def __init__(
        self,
        engine: TableEngine,
        *,
        share: float,
        rows_min: int,
        is_parallel: bool,
        on_fold: Callable[[FoldReport], None],
        verify: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._share = share
        self._rows_min = rows_min
        self._is_parallel = is_parallel
        self._on_fold = on_fold
        self._verify = verify
        self._clock = clock
        # Guards the fields of `_held`, and `_failure`. Nobody waits while holding it.
        self._lock = threading.Lock()
        self._held: Held | None = None
        self._failure: DcpstreamError | None = None
        self._executor: ThreadPoolExecutor | None = None
        # The newest job of each kind.
        self._fold: Future[FoldReport] | None = None
        self._maintenance: Future[None] | None = None

    @property
    def failure(self) -> DcpstreamError | None:
        """The error of a job that no call has raised yet."""
        return self._failure

    @property
    def tail_rows(self) -> int | None:
        """Rows of `changes` that `current` does not hold; None if it is not known."""
        held = self._held
        return None if held is None else held.tail_rows

    @property
    def is_busy(self) -> bool:
        """Whether a job runs or waits."""
        return _runs(self._fold) or _runs(self._maintenance)

    def held(self, app: str) -> Held:
        """The content of the tables; read from them at the start and after an error.

        Raises:
            FoldFailed: a job has failed.
        """
        # A job that has failed has forgotten it, too.
        if self._held is None or self._held.app != app:
            if self._fold is not None:
                wait((self._fold,))
            self._raise_failure()
            last, folded = self._engine.last_batch(app), self._engine.folded(app)
            self._held = Held(app, last, folded, self._engine.tail_rows(folded), self._engine.current_rows())
        return self._held

    def forget(self) -> None:
        """Ask the tables again: after an error only they know what they hold."""
        self._held = None

    def note(self, held: Held, summary: BatchSummary) -> None:
        """Count a batch that `changes` holds now."""
        with self._lock:
            held.last = summary.batch_id
            held.tail_rows += summary.rows + summary.events + len(summary.rollbacks)

    def fold_if_due(self, held: Held) -> None:
        """Begin a fold if the tail exceeds the due size. Wait for the fold that runs if the tail is too long.

        Raises:
            FoldFailed: a job has failed.
        """
        if _runs(self._fold) and held.tail_rows > TAIL_LIMIT * self._due_rows(held):
            assert self._fold is not None
            wait((self._fold,))
        self._raise_failure()
        if not _runs(self._fold) and held.tail_rows > self._due_rows(held):
            self.fold(held)

    def fold(self, held: Held) -> Future[FoldReport]:
        """Fold all batches that `changes` holds when the fold begins. None of them may have a rollback."""
        self._fold = self._given(lambda: self._folded(held, ()), "the fold of changes into current")
        return self._fold

    def fold_rollbacks(self, held: Held, rollbacks: Sequence[RollbackReport]) -> FoldReport:
        """Fold everything in this thread, then delete the rows that rollbacks of the newest batch made void.

        Raises:
            FoldFailed: a job that ran before has failed.
        """
        self.settle()
        return self._folded(held, rollbacks)

    def maintain(self, retain_hours: float) -> Future[None]:
        """Join small files, and remove files that only versions older than `retain_hours` use.

        Does not begin again while an earlier maintenance runs or waits.

        Raises:
            FoldFailed: a job that this one had to wait for has failed.
        """
        if self._maintenance is None or not _runs(self._maintenance):
            job = functools.partial(self._maintain, retain_hours)
            if retain_hours < RETAIN_HOURS_PARALLEL:
                self.settle()
                self._maintenance = _at_once(job)
            else:
                self._maintenance = self._given(job, "the maintenance of the tables")
        return self._maintenance

    def _maintain(self, retain_hours: float) -> None:
        self._verify()
        self._engine.maintain(retain_hours)

    def result(self, job: Future[_T]) -> _T:
        """The result of a job, once it has ended.

        Raises:
            FoldFailed: it has failed.
        """
        wait((job,))
        error = job.exception()
        with self._lock:
            if error is self._failure:
                self._failure = None
        return job.result()

    def settle(self) -> None:
        """Wait until no job runs or waits.

        Raises:
            FoldFailed: one of them has failed.
        """
        self.wait()
        self._raise_failure()

    def wait(self) -> None:
        """Wait until no job runs or waits. An error is raised by the next call."""
        jobs: list[Future[Any]] = [job for job in (self._fold, self._maintenance) if job is not None]
        wait(jobs)

    def reset(self) -> None:
        """Reset: wait for the jobs, and forget what is known and what has failed."""
        self.wait()
        self._held = self._failure = None

    def close(self) -> None:
        """Wait for the jobs, and end the thread. A later job starts another one."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)

    def _due_rows(self, held: Held) -> float:
        return max(self._rows_min, self._share * held.current_rows)

    def _folded(self, held: Held, rollbacks: Sequence[RollbackReport]) -> FoldReport:
        """Fold, then delete what the newest batch made void: in this order both can be repeated."""
        begin = self._clock.monotonic()
        self._verify()
        with self._lock:
            after, upto, rows = held.folded, held.last, held.tail_rows
        assert upto is not None
        if self._engine.folded(held.app) != after:
            raise LeaseRefused(
                "the table current holds other batches than those that this process has folded: another process keeps "
                "the tables of this pipeline, too. Stop one of them. Nothing was folded."
            )
        report = self._engine.fold(held.app, after, upto, rollbacks)
        if rollbacks:
            self._engine.take_back(rollbacks, upto)
        with self._lock:
            held.folded, held.current_rows = upto, report.current_rows
            held.tail_rows -= rows
        report = replace(report, fold_s=self._clock.monotonic() - begin)
        self._on_fold(report)
        return report

    def _given(self, job: Callable[[], _T], what: str) -> Future[_T]:
        """Have the thread do a job after those that it was given before; or do it at once."""
        if not self._is_parallel:
            return _at_once(job)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dcpstream-fold")
        return self._executor.submit(self._in_thread, job, what)

    def _in_thread(self, job: Callable[[], _T], what: str) -> _T:
        """Do a job in the folder's thread, unless one has failed before."""
        if self._failure is not None:
            raise self._failure
        try:
            return job()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next batch raises it
            _log.exception("%s failed. The next batch ends the query", what)
            failure = error if isinstance(error, DcpstreamError) else disk_full(error) or _failed(what, error)
            with self._lock:
                self._failure, self._held = failure, None
            raise failure from failure.__cause__

    def _raise_failure(self) -> None:
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _failed(what: str, error: Exception) -> FoldFailed:
    reason = (str(error).strip().splitlines() or [""])[0][:REASON_CHARACTERS]
    failure = FoldFailed(
        f"{what} failed: {type(error).__name__}: {reason}. No row is lost: changes holds every batch, and the next "
        "start goes on from there"
    )
    failure.__cause__ = error
    return failure


def _runs(job: Future[Any] | None) -> bool:
    """Whether a job runs or waits."""
    return job is not None and not job.done()


def _at_once(job: Callable[[], _T]) -> Future[_T]:
    """Do a job in this thread; its errors are raised here."""
    done: Future[_T] = Future()
    done.set_result(job())
    return done
