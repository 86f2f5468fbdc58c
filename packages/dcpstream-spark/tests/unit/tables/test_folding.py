"""Folds beside the batches: what goes on, what waits, and what becomes of errors. The engine folds when it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import FieldError, FoldFailed
from dcpstream_spark.tables import FoldReport, Pipeline, folding
from dcpstream_spark.tables.engine import TailFacts
from dcpstream_spark.tables.progress import BatchReport, RollbackReport
from lab.tools.patience import patient
from tests.kit.tables import (
    APP,
    NEEDED,
    Died,
    Expected,
    MemoryBench,
    MemoryEngine,
    Row,
    assert_exact,
    change,
    live_of,
    pipeline_of,
    rollback,
    state_of,
    table_of,
)

PATIENCE_S = patient(30.0)


class Gate:
    """A point in another thread where a test stops it."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_reached = threading.Event()

    def open(self) -> None:
        self.is_open.set()

    def close(self) -> None:
        """Stop the next one that comes."""
        self.is_open.clear()
        self.is_reached.clear()

    def pass_(self) -> None:
        self.is_reached.set()
        assert self.is_open.wait(PATIENCE_S), "the test never opened the gate"

    def await_(self) -> None:
        assert self.is_reached.wait(PATIENCE_S), "nobody came to the gate"


class GatedEngine(MemoryEngine):
    """An engine whose folds and maintenance wait for the test.

    Attributes:
        before, after: gates before and after the commit of a fold; open at first.
        maintaining: the gate of maintenance.
        calls: what was done, in order.
        dies: calls that fail once, by name.
    """

    fold_rows_min = 0

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.maintaining = Gate(), Gate(), Gate()
        for gate in (self.before, self.after, self.maintaining):
            gate.open()
        self.calls: list[str] = []
        self.busy = 0
        self.dies: set[str] = set()

    def append(self, app: str, batch_id: int, frame: Any) -> Any:
        self.calls.append(f"append {batch_id}")
        return super().append(app, batch_id, frame)

    def fold(
        self,
        app: str,
        after: int | None,
        upto: int,
        rollbacks: Sequence[RollbackReport],
        facts: TailFacts | None = None,
    ) -> FoldReport:
        with self._alone():
            self.before.pass_()
            self._die("fold before")
            report = super().fold(app, after, upto, rollbacks, facts)
            self.after.pass_()
            self._die("fold after")
        self.calls.append(f"fold {after} {upto}")
        return report

    def take_back(self, rollbacks: Sequence[RollbackReport], before_batch: int) -> None:
        with self._alone():
            super().take_back(rollbacks, before_batch)
        self.calls.append(f"take_back {before_batch}")

    def maintain(self, retain_hours: float) -> None:
        with self._alone():
            self.maintaining.pass_()
            self._die("maintain")
        self.calls.append("maintain")

    def _alone(self) -> Any:
        return _Alone(self)

    def _die(self, name: str) -> None:
        if name in self.dies:
            self.dies.remove(name)
            raise Died(f"at {name}\nand a long trace")


class _Alone:
    """Jobs of an engine that must not run at the same time."""

    def __init__(self, engine: GatedEngine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        self._engine.busy += 1
        assert self._engine.busy == 1, "two jobs at once"

    def __exit__(self, *exc_info: object) -> None:
        self._engine.busy -= 1


class World:
    """A pipeline that folds beside its batches, on an engine with gates."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.bench = MemoryBench(path)
        self.engine = GatedEngine()
        self.bench._engine = self.engine
        self.expected = Expected()
        self.folds: list[FoldReport] = []
        self.options = options
        self.threads: list[threading.Thread] = []
        self.pipeline = self.started()

    def started(self) -> Pipeline:
        """A pipeline of a new process."""
        pipeline_of(self.bench)
        return Pipeline(
            None,  # type: ignore[arg-type]
            self.bench.path,
            NEEDED,
            engine=self.engine,
            on_fold=self.folds.append,
            **{"fold_rows_min": 1, **self.options},
        )

    def apply(self, batch_id: int, *rows: Row) -> BatchReport | None:
        self.expected.apply(batch_id, rows)
        return self.pipeline.apply_batch(APP, batch_id, self.bench.frame(table_of(rows)))

    def beside(self, work: Callable[[], Any]) -> Outcome:
        """Work in another thread."""
        outcome = Outcome(work)
        self.threads.append(outcome.thread)
        return outcome

    def close(self) -> None:
        for gate in (self.engine.before, self.engine.after, self.engine.maintaining):
            gate.open()
        for thread in self.threads:
            thread.join(PATIENCE_S)
        self.pipeline._folder.close()


class Outcome:
    """The results of work in another thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.value = work()
            except Exception as error:  # noqa: BLE001 - the test raises it
                self.error = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def await_(self) -> Any:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "it still waits"
        if self.error is not None:
            raise self.error
        return self.value


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def two(seqno: int) -> tuple[Row, Row]:
    """Two rows, which exceed the least tail."""
    return change("a", seqno, f"{seqno}"), change(f"k{seqno}", seqno + 1, "1")


def test_batches_and_readers_go_on_while_a_fold_runs(world: World) -> None:
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    report = world.apply(1, change("a", 10, "new"))
    assert report is not None
    assert live_of(world.pipeline) == world.expected.current
    assert world.engine.calls == ["append 0", "append 1"]
    assert world.pipeline.progress().tail_rows == 3
    world.engine.after.close()
    world.engine.before.open()
    # The fold is in `current`, but nobody knows yet.
    world.engine.after.await_()
    assert live_of(world.pipeline) == world.expected.current
    world.apply(2, change("a", 40, None))
    assert live_of(world.pipeline) == world.expected.current
    world.engine.after.open()
    world.pipeline._folder.wait()
    assert [(fold.upto, fold.documents) for fold in world.folds] == [(0, 2)]
    assert world.pipeline.progress().tail_rows == 2
    assert_exact(world.bench, world.pipeline, world.expected)
    world.pipeline.fold()
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)
    assert world.engine.calls[-1] == "fold 0 2"


def test_the_next_fold_takes_what_has_gathered(world: World) -> None:
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    world.apply(1, *two(3))
    world.engine.before.open()
    world.pipeline._folder.wait()
    assert world.engine.folded(APP) == 0
    world.apply(2, change("a", 9, "1"))
    world.pipeline._folder.wait()
    assert world.engine.calls == ["append 0", "append 1", "fold None 0", "append 2", "fold 0 2"]
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)


def test_a_rollback_waits_for_the_fold(world: World) -> None:
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    world.apply(1, change("a", 5, "void"), change("b", 6, "void"))
    rewound = world.beside(lambda: world.apply(2, rollback(0, 2), change("c", 3, "1")))
    while "append 2" not in world.engine.calls:
        assert rewound.thread.is_alive()
    world.engine.before.open()
    report = rewound.await_()
    assert report.rollbacks[0].to_seqno == 2
    assert world.engine.calls[2:] == ["append 2", "fold None 0", "fold 0 2", "take_back 2"]
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)
    assert [fold.upto for fold in world.folds] == [0, 2]


def test_a_rollback_waits_for_a_fold_that_a_user_asked_for(world: World) -> None:
    """That fold was given while another one ran; it must not take the rollback for a batch without one."""
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    world.apply(1, change("a", 5, "void"))
    running = world.pipeline._folder._fold
    asked = world.beside(world.pipeline.fold)
    while world.pipeline._folder._fold is running:
        assert asked.thread.is_alive()
    rewound = world.beside(lambda: world.apply(2, rollback(0, 2)))
    while "append 2" not in world.engine.calls:
        assert rewound.thread.is_alive()
    world.engine.before.open()
    rewound.await_()
    asked.await_()
    assert world.engine.calls[-2:] == ["fold 1 2", "take_back 2"]
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)


def test_a_tail_that_is_too_long_waits_for_the_fold(world: World) -> None:
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    # Due are more than one row: the tail may reach four of them.
    for batch_id in (1, 2):
        world.apply(batch_id, change("b", 10 + batch_id, "1"))
    assert world.pipeline.progress().tail_rows == folding.TAIL_LIMIT
    waiting = world.beside(lambda: world.apply(3, change("b", 20, "1")))
    while "append 3" not in world.engine.calls:
        assert waiting.thread.is_alive()
    waiting.thread.join(0.05)
    assert waiting.thread.is_alive(), "the batch did not wait"
    world.engine.before.open()
    assert waiting.await_().rows == 1
    world.pipeline._folder.wait()
    assert world.engine.folded(APP) == 3, "what has gathered is folded next"
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)


@pytest.mark.parametrize("moment", ["fold before", "fold after"])
def test_a_fold_that_fails_ends_the_next_batch(world: World, moment: str, caplog: pytest.LogCaptureFixture) -> None:
    world.engine.dies = {moment}
    world.apply(0, *two(1))
    world.pipeline._folder.wait()
    failure = world.pipeline.failure
    assert isinstance(failure, FoldFailed)
    assert "the fold of changes into current failed" in caplog.text
    with pytest.raises(FoldFailed, match=r"current failed: Died: at fold \w+\. No row is lost.*next start") as raised:
        world.apply(1, change("a", 9, "1"))
    assert isinstance(raised.value.__cause__, Died)
    assert "append 1" not in world.engine.calls
    assert world.pipeline.failure is None, "Spark's query has it now"
    # The same batch again, in this process or another one.
    world.expected = Expected(world.expected.log[:2])
    world.apply(1, change("a", 9, "2"))
    world.pipeline.fold()
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)


def test_an_error_of_ours_is_raised_as_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lake tells by its class whether another start may help."""

    def refuse(*_: object) -> None:
        raise FieldError("a document does not fit")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryEngine, "fold", refuse)
        world.apply(0, *two(1))
        world.pipeline._folder.wait()
    with pytest.raises(FieldError, match="does not fit"):
        world.apply(1, change("a", 9, "1"))


def test_a_batch_that_was_being_appended_when_the_fold_failed_fails_too(world: World) -> None:
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    world.engine.dies = {"fold before"}
    append = world.engine.append

    def slow(app: str, batch_id: int, frame: Any) -> Any:
        summary = append(app, batch_id, frame)
        world.engine.before.open()
        world.pipeline._folder.wait()
        return summary

    world.engine.append = slow
    with pytest.raises(FoldFailed):
        world.apply(1, *two(10))
    # Spark replays the batch, because it has ended with an error. It is in `changes` already.
    report = world.pipeline.apply_batch(APP, 1, world.bench.frame(table_of([change("wrong", 99, "")])))
    assert report is not None
    assert report.is_recovered
    world.pipeline.fold()
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)


def test_jobs_after_a_failed_one_do_not_run(world: World) -> None:
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    job = world.pipeline._folder.fold(world.pipeline._folder.held(APP))
    world.engine.dies = {"fold after"}
    world.engine.before.open()
    with pytest.raises(FoldFailed):
        world.pipeline._folder.result(job)
    assert world.engine.folded(APP) == 0
    assert world.engine.calls == ["append 0"]
    world.apply(1, change("b", 5, "1"))
    world.pipeline.fold()
    assert world.engine.calls[1:] == ["append 1", "fold 0 1"], "the tables were not asked"
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)


def test_a_batch_that_died_while_a_fold_runs_is_replayed_after_the_fold(world: World) -> None:
    """The content of `current` is known only when the fold has ended."""
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    append = world.engine.append

    def dying(app: str, batch_id: int, frame: Any) -> Any:
        append(app, batch_id, frame)
        raise Died

    world.engine.append = dying
    with pytest.raises(Died):
        world.apply(1, change("a", 9, "1"))
    frame = world.bench.frame(table_of([change("wrong", 99, "")]))
    replayed = world.beside(lambda: world.pipeline.apply_batch(APP, 1, frame))
    replayed.thread.join(0.05)
    assert replayed.thread.is_alive(), "the replay did not wait for the fold"
    world.engine.before.open()
    assert replayed.await_().is_recovered
    assert world.engine.calls == ["append 0", "append 1", "fold None 0"]
    assert world.pipeline.progress().tail_rows == 1
    world.pipeline.fold()
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)


def test_a_rollback_that_was_left_open_is_folded_after_maintenance(world: World) -> None:
    world.engine.append(APP, 0, world.bench.frame(table_of([change("a", 1, "1")])))
    world.engine.append(APP, 1, world.bench.frame(table_of([rollback(0, 0)])))
    world.engine.maintaining.close()
    world.beside(world.pipeline.maintain)
    world.engine.maintaining.await_()
    folded = world.beside(world.pipeline.fold)
    folded.thread.join(0.05)
    world.engine.maintaining.open()
    assert folded.await_().upto == 1
    assert world.engine.calls[2:] == ["maintain", "fold None 1", "take_back 1"]
    assert world.bench.rows("current") == []


def test_who_asks_for_a_fold_gets_its_error(world: World) -> None:
    world.apply(0, change("a", 1, "1"))
    world.engine.dies = {"fold before"}
    with pytest.raises(FoldFailed, match="at fold before"):
        world.pipeline.fold()
    report = world.pipeline.fold()
    assert report is not None
    assert report.upto == 0
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)


def test_a_process_that_dies_while_a_fold_runs_loses_nothing(world: World) -> None:
    """The fold ends before or after the next process has looked; both must be right, with the same batch repeated."""
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    world.apply(1, *two(10))
    old = world.pipeline
    world.pipeline = world.started()
    # The new process finds no fold, and batch 1 in `changes`.
    assert live_of(world.pipeline) == world.expected.current
    world.engine.before.open()
    old.stop()
    world.apply(2, rollback(0, 2), change("a", 3, "after"))
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)


def fold_threads() -> set[threading.Thread]:
    """Threads of folders, also of those that other tests left to the garbage collector."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("dcpstream-fold")}


def test_stop_waits_for_the_fold_and_ends_the_thread(world: World) -> None:
    others = fold_threads()
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    assert fold_threads() - others
    stopped = world.beside(world.pipeline.stop)
    stopped.thread.join(0.05)
    assert stopped.thread.is_alive(), "stop did not wait"
    world.engine.before.open()
    stopped.await_()
    assert world.engine.folded(APP) == 0
    assert not fold_threads() - others


def test_a_new_start_waits_for_the_fold_and_forgets_its_error(world: World) -> None:
    world.engine.before.close()
    world.apply(0, *two(1))
    world.engine.before.await_()
    world.engine.dies = {"fold after"}
    again = world.beside(world.pipeline._folder.reset)
    again.thread.join(0.05)
    assert again.thread.is_alive(), "the start did not wait"
    world.engine.before.open()
    again.await_()
    assert world.pipeline.failure is None
    world.apply(1, change("a", 9, "1"))
    assert_exact(world.bench, world.pipeline, world.expected)


def test_maintenance_runs_during_batches_and_never_during_a_fold(world: World) -> None:
    world.engine.maintaining.close()
    asked = world.beside(world.pipeline.maintain)
    world.engine.maintaining.await_()
    world.apply(0, *two(1))
    world.apply(1, change("a", 7, "1"))
    assert world.engine.calls == ["append 0", "append 1"], "the fold waits for the maintenance"
    world.engine.maintaining.open()
    asked.await_()
    world.pipeline._folder.wait()
    assert world.engine.calls[2:] == ["maintain", "fold None 1"]
    world.engine.dies = {"maintain"}
    with pytest.raises(FoldFailed, match="the maintenance of the tables failed: Died"):
        world.pipeline.maintain()


def test_a_rollback_waits_for_maintenance(world: World) -> None:
    world.apply(0, change("a", 1, "1"))
    world.engine.maintaining.close()
    world.beside(world.pipeline.maintain)
    world.engine.maintaining.await_()
    rewound = world.beside(lambda: world.apply(1, rollback(0, 0)))
    while "append 1" not in world.engine.calls:
        assert rewound.thread.is_alive()
    world.engine.maintaining.open()
    rewound.await_()
    assert world.engine.calls == ["append 0", "append 1", "maintain", "fold None 1", "take_back 1"]


def test_maintenance_that_removes_new_files_stops_the_batches(tmp_path: Path) -> None:
    world = World(tmp_path, retain_hours=0.5)
    try:
        world.engine.maintaining.close()
        asked = world.beside(world.pipeline.maintain)
        world.engine.maintaining.await_()
        batch = world.beside(lambda: world.apply(0, *two(1)))
        batch.thread.join(0.05)
        assert world.engine.calls == []
        world.engine.maintaining.open()
        asked.await_()
        batch.await_()
        assert world.engine.calls[:2] == ["maintain", "append 0"]
    finally:
        world.close()


def test_maintenance_that_is_due_does_not_pile_up(tmp_path: Path) -> None:
    world = World(tmp_path, maintenance_batches=1, fold_rows_min=1000)
    try:
        world.engine.maintaining.close()
        world.apply(0, *two(1))
        world.engine.maintaining.await_()
        for batch_id in (1, 2, 3):
            world.apply(batch_id, change("a", 10 + batch_id, "1"))
        world.engine.maintaining.open()
        world.pipeline._folder.wait()
        assert world.engine.calls.count("maintain") == 1
        world.apply(4, change("a", 20, "1"))
        world.pipeline._folder.wait()
        assert world.engine.calls.count("maintain") == 2
    finally:
        world.close()


def test_without_a_thread_everything_happens_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, folds_in_background=False, maintenance_batches=1)
    world.apply(0, *two(1))
    assert world.engine.calls == ["append 0", "fold None 0", "maintain"]
    assert state_of(world.bench.rows("current")) == world.expected.current
    world.engine.dies = {"fold before"}
    with pytest.raises(Died):
        world.apply(1, *two(10))
    assert world.pipeline.failure is None
    world.pipeline.fold()
    assert_exact(world.bench, world.pipeline, world.expected, is_folded=True)
