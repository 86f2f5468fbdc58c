"""The duties of every table engine, as stories of batches.

All stories are played at the same time, each in its own scope and vbuckets, with and without deaths, with a fold after
every batch and with as few folds as possible; slow runs play each story alone. After every batch `changes` and `live`
must be what `tests.kit.tables.Expected` says, and `current` too where it was folded.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from dcpstream.errors import OffsetError
from dcpstream.model import Op
from dcpstream_spark import Pipeline
from dcpstream_spark.tables.engine import TableEngine
from tests.kit.tables import (
    APP,
    Bench,
    DeltaRsBench,
    Died,
    DyingEngine,
    Expected,
    OverlappingEngine,
    Row,
    assert_exact,
    change,
    created,
    dropped,
    event,
    live_of,
    pipeline_of,
    rollback,
    state_of,
    table_of,
)
from tests.spark.typed_stories import TypedPlay, play_evolution, play_failfast, play_interrupted, play_story

ENGINES = ["delta-rs"]


@pytest.fixture(params=ENGINES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    path = tmp_path / "tables"
    path.mkdir()
    return DeltaRsBench(path)


STORIES: dict[str, list[list[Row]]] = {
    "a life of documents": [
        [change("a", 1, "1"), change("b", 2, "1"), change("a", 3, "2"), change("c", 4, "1")],
        [change("b", 5, None), change("a", 6, "3"), change("d", 7, None)],
        [change("b", 8, "2"), change("x", 1, "1", vbucket=3)],
    ],
    "batches without rows": [[], [change("a", 1, "1")], [], [change("a", 2, None)], []],
    "values that are no text": [
        [
            change("a", 1, b"\xff\x00\x01"),
            change("b", 2, b"\\xff\x00\x01"),
            change("c", 3, b""),
            change("e", 4, b"\xed\xa0\x80"),
        ],
        [change("a", 5, b"\xff\x00\x02"), change("b", 6, bytes(range(256)))],
    ],
    "the same key in two collections": [
        [
            change("a", 1, "1"),
            change("a", 2, "2", collection="other"),
            change("a", 3, "3", collection="other", scope="t"),
        ],
        [change("a", 4, None, collection="other")],
        [dropped("other", 5)],
    ],
    "an older row comes later": [
        [change("a", 5, "new"), change("b", 6, None), change("c", 7, "new")],
        [change("a", 4, "old"), change("c", 3, None)],
    ],
    "a rollback of an insert, an update and a deletion": [
        [
            change("updated", 1, "old"),
            change("deleted", 2, "old"),
            change("kept", 3, "old"),
            change("x", 9, "1", vbucket=3),
        ],
        [change("updated", 4, "void"), change("deleted", 5, None), change("inserted", 6, "void")],
        [rollback(0, 3), change("kept", 4, "new")],
        [change("x", 10, "2", vbucket=3), change("deleted", 5, "new")],
    ],
    "a rollback without rows": [
        [change("a", 1, "1"), change("b", 2, "1")],
        [change("a", 3, "2"), change("b", 4, None)],
        [rollback(0, 2)],
    ],
    "a rollback inside a batch": [
        [change(key, seqno, "1") for seqno, key in enumerate("abcdef", start=1)],
        [change("a", 7, "2"), change("b", 8, "2"), change("c", 9, None), change("d", 10, "2"), change("e", 11, "2")],
        [rollback(0, 8), change("f", 9, "3")],
    ],
    "a rollback of a rollback's rows": [
        [change("a", 1, "1"), change("b", 2, "1")],
        [change("a", 3, "void"), change("c", 4, "void")],
        [rollback(0, 2), change("a", 3, "void too"), change("b", 4, None)],
        [rollback(0, 1), change("c", 2, "3")],
        [rollback(0, 0)],
        [change("a", 1, "4")],
    ],
    "two rollbacks in a row": [
        [change("a", 1, "1"), change("b", 2, "1"), change("a", 3, "2"), change("b", 4, "2")],
        [rollback(0, 3)],
        [rollback(0, 1)],
    ],
    "two rollbacks of one vbucket in a batch": [
        [change("a", 1, "1"), change("a", 2, "2"), change("b", 3, "1")],
        [rollback(0, 2), rollback(0, 1), change("b", 2, "2")],
    ],
    "a rollback to zero reads all again": [
        [change("a", 1, "1"), change("b", 2, "1"), change("x", 3, "1", vbucket=3)],
        [rollback(0, 0), change("a", 1, "1"), change("c", 3, "1")],
        [rollback(3, 0), change("x", 3, "1", vbucket=3)],
    ],
    "a rollback that makes nothing void": [
        [change("a", 1, "1"), change("b", 2, None)],
        [rollback(0, 2), change("a", 3, "2")],
    ],
    "rollbacks of two vbuckets at different seqnos": [
        [change("a", 1, "1"), change("b", 9, "1"), change("x", 1, "1", vbucket=3), change("y", 9, "1", vbucket=3)],
        [change("a", 10, "2"), change("x", 10, "2", vbucket=3), change("y", 11, None, vbucket=3)],
        [rollback(0, 9), rollback(3, 10), change("y", 11, "3", vbucket=3)],
    ],
    "a row of an older batch is the restored one": [
        [change("a", 1, "1"), change("b", 2, "1")],
        [change("a", 3, "2")],
        [change("c", 4, "1")],
        [change("a", 5, "3"), change("b", 6, None)],
        [rollback(0, 4)],
    ],
    "a restored document is absent": [
        [change("a", 1, "1")],
        [change("a", 2, None)],
        [change("a", 3, "void")],
        [rollback(0, 2)],
        [change("a", 3, "4")],
    ],
    "a dropped collection": [
        [change("a", 1, "1", collection="old"), change("a", 2, "1"), change("a", 1, "1", 3, "old")],
        [change("b", 3, "1", collection="old"), dropped("old", 4), change("c", 5, "1")],
        [dropped("old", 2, vbucket=3)],
    ],
    "a collection that is dropped and created again": [
        [change(f"k{n}", n, "1", collection="it's") for n in range(1, 6)],
        [dropped("it's", 6), created("it's", 7), change("k1", 8, "2", collection="it's")],
        [change("k2", 9, "2", collection="it's")],
        [created("it's", 10)],
        [change("k3", 11, "3", collection="it's"), event(Op.COLLECTION_FLUSHED, "it's", 12)],
    ],
    "a drop is rolled back": [
        [change("a", 1, "1", collection="old"), change("b", 2, "1", collection="old"), change("a", 3, "1")],
        [change("b", 4, "2", collection="old"), dropped("old", 5)],
        [rollback(0, 4), change("c", 5, "1", collection="old")],
        [dropped("old", 6)],
        [created("old", 7), change("a", 8, "2", collection="old")],
        [rollback(0, 5), change("a", 6, "3")],
    ],
    "a drop and a rollback in one batch": [
        [change("a", 1, "1", collection="old"), change("b", 2, "1", collection="old")],
        [change("a", 3, "void", collection="old"), change("b", 4, None, collection="old")],
        [rollback(0, 2), dropped("old", 3), created("old", 4), change("c", 5, "1", collection="old")],
    ],
    "a rollback between a drop and a creation": [
        [change("a", 1, "1", collection="old"), change("b", 2, "1", collection="old")],
        [dropped("old", 3), created("old", 4), change("a", 5, "2", collection="old")],
        [rollback(0, 3), change("z", 4, "1")],
    ],
    "a document is rolled back to before its collection ended": [
        [change("a", 1, "1", collection="c"), change("b", 2, "1", collection="c")],
        [dropped("c", 3), created("c", 4), change("b", 5, "2", collection="c")],
        [change("a", 6, "void", collection="c"), change("b", 7, None, collection="c")],
        [rollback(0, 5)],
    ],
    "a collection is left out and read again from its beginning": [
        [change("a", 1, "1", collection="c"), change("b", 2, "1", collection="c"), change("x", 3, "1")],
        [event(Op.COLLECTION_EXCLUDED, "c", 3), change("x", 7, "2")],
        [
            change("a", 1, "1", collection="c"),
            change("b", 5, None, collection="c"),
            change("d", 6, "1", collection="c"),
        ],
        [event(Op.COLLECTION_EXCLUDED, "c", 7), change("x", 8, "3")],
        [change("d", 6, "1", collection="c")],
        [rollback(0, 5), change("d", 6, "2", collection="c")],
    ],
    "a bucket with other vbuckets": [
        [change("a", 5, "1"), change("b", 6, "1"), change("x", 9, "1", vbucket=3), change("y", 8, "1", vbucket=3)],
        [rollback(0, 0), rollback(3, 0), change("b", 1, "2"), change("x", 2, "2")],
    ],
    "other events leave documents alone": [
        [change("a", 1, "1", collection="x")],
        [event(Op.COLLECTION_MODIFIED, "x", 2), event(Op.SCOPE_CREATED, "", 3), event(Op.SCOPE_DROPPED, "", 4)],
    ],
}


STORY_VBUCKETS = 10
"""More than a story uses."""

DEATHS_MAX = 60
"""More than any story has writes: a batch has three, and a process that dies does at least one."""


class Play:
    """A pipeline that applies batches, and what must come of it.

    Args:
        bench: the tables.
        fold_rows_min: of the pipeline.
        writes: writes that a process does before it dies; None for a process that lives.
    """

    def __init__(self, bench: Bench, *, fold_rows_min: int, writes: int | None) -> None:
        self.bench = bench
        self.expected = Expected()
        self.deaths = 0
        self._fold_rows_min = fold_rows_min
        self._writes = writes
        self.pipeline = self._start()

    def _start(self) -> Pipeline:
        engine = self.bench.engine()
        dying: Any = engine if self._writes is None else DyingEngine(engine, self._writes)
        return pipeline_of(self.bench, fold_rows_min=self._fold_rows_min, engine=dying)

    def apply(self, batch_id: int, rows: list[Row]) -> None:
        """Apply a batch as Spark does, again after each death until it is done."""
        held = self.bench.engine()
        while True:
            last = held.last_batch(APP)
            is_held = last is not None and last >= batch_id
            # A replay may hold other rows. It must not count once the first attempt is in `changes`.
            frame = self.bench.frame(table_of([change("wrong", 1 << 30, "wrong")] if is_held else rows))
            try:
                self.pipeline.apply_batch(APP, batch_id, frame)
                break
            except Died:
                self._die()
        self.expected.apply(batch_id, rows)

    def fold(self) -> None:
        while True:
            try:
                self.pipeline.fold()
                return
            except Died:
                self._die()

    def _die(self) -> None:
        self.deaths += 1
        assert self.deaths <= DEATHS_MAX, "every process begins with the same write"
        self.pipeline = self._start()


def play_to_the_end(bench: Bench, batches: Sequence[list[Row]], fold_rows_min: int, writes: int | None) -> None:
    """Apply batches and fold; the tables must be exact after each of them."""
    play = Play(bench, fold_rows_min=fold_rows_min, writes=writes)
    for batch_id, rows in enumerate(batches):
        play.apply(batch_id, rows)
        is_folded = any(row["op"] == "rollback" for row in rows) or (fold_rows_min == 0 and bool(rows))
        assert_exact(bench, play.pipeline, play.expected, is_folded=is_folded)
    play.fold()
    assert_exact(bench, play.pipeline, play.expected, is_folded=True)
    engine = bench.engine()
    assert engine.folded(APP) == engine.last_batch(APP) == len(batches) - 1
    assert engine.tail_rows(engine.folded(APP)) == 0
    assert engine.current_rows() == len(play.expected.current)
    assert (play.deaths > 0) == (writes is not None)


def played_together(stories: Sequence[str]) -> list[list[Row]]:
    """The batches of several stories, each in its own scope and vbuckets."""
    batches: list[list[Row]] = [[] for _ in range(max(len(STORIES[name]) for name in stories))]
    for number, name in enumerate(stories):
        for batch, rows in zip(batches, STORIES[name], strict=False):
            for row in rows:
                place: dict[str, Any] = {"vbucket": row["vbucket"] + number * STORY_VBUCKETS}
                if row["scope"] is not None:
                    place["scope"] = f"{name}: {row['scope']}"
                batch.append({**row, **place})
    return batches


FOLDS_AND_DEATHS = [
    pytest.param(0, 1, id="folding, dying"),
    pytest.param(1000, None, id="lazy, alive", marks=pytest.mark.slow),
    pytest.param(0, None, id="folding, alive", marks=pytest.mark.slow),
    pytest.param(1000, 1, id="lazy, dying", marks=pytest.mark.slow),
]
"""Least rows of a fold, and writes of a process before it dies."""


@pytest.mark.parametrize(("fold_rows_min", "writes"), FOLDS_AND_DEATHS)
def test_the_tables_are_exact_after_every_batch(bench: Bench, fold_rows_min: int, writes: int | None) -> None:
    play_to_the_end(bench, played_together(tuple(STORIES)), fold_rows_min, writes)


@pytest.mark.slow
@pytest.mark.parametrize(("fold_rows_min", "writes"), FOLDS_AND_DEATHS)
@pytest.mark.parametrize("story", STORIES)
def test_a_story_alone(bench: Bench, story: str, fold_rows_min: int, writes: int | None) -> None:
    play_to_the_end(bench, STORIES[story], fold_rows_min, writes)


@pytest.mark.parametrize(("fold_rows_min", "writes"), FOLDS_AND_DEATHS)
def test_batches_without_rows(bench: Bench, fold_rows_min: int, writes: int | None) -> None:
    play_to_the_end(bench, STORIES["batches without rows"], fold_rows_min, writes)


def play_during_folds(bench: Bench, batches: Sequence[list[Row]]) -> int:
    """Play batches, and plain ones between them, while folds run; returns how many folds ran during an append."""
    expected, engine = Expected(), OverlappingEngine(bench.engine())
    pipeline = pipeline_of(bench, fold_rows_min=0, engine=cast("Any", engine), folds_in_background=True)
    begun = None
    # The plain ones have no rollback, so that a fold may run beside the batch that follows.
    seqnos = itertools.count(1)
    plain = ([change(f"k{n}", next(seqnos), "1", vbucket=1000) for n in range(30)] for _ in itertools.count())
    played = itertools.chain.from_iterable((batch, next(plain), next(plain)) for batch in batches)
    for batch_id, rows in enumerate(played):
        pipeline.apply_batch(APP, batch_id, bench.frame(table_of(rows)))
        expected.apply(batch_id, rows)
        job = pipeline._folder._fold
        if job is not begun:
            engine.await_fold()
            begun = job
        assert live_of(pipeline) == expected.current
    engine.let_end()
    pipeline.fold()
    assert_exact(bench, pipeline, expected, is_folded=True)
    pipeline.stop()
    return engine.overlaps


@pytest.mark.slow
def test_the_tables_are_exact_when_batches_come_while_a_fold_runs(bench: Bench) -> None:
    assert play_during_folds(bench, played_together(tuple(STORIES))) > 2


def test_the_tables_are_exact_when_batches_come_during_maintenance(bench: Bench) -> None:
    expected, pipeline = Expected(), pipeline_of(bench, fold_rows_min=4, folds_in_background=True)
    for batch_id in range(8):
        rows = [change(f"k{batch_id % 3}", batch_id + 1, str(batch_id))]
        maintaining = threading.Thread(target=pipeline.maintain)
        maintaining.start()
        pipeline.apply_batch(APP, batch_id, bench.frame(table_of(rows)))
        expected.apply(batch_id, rows)
        assert live_of(pipeline) == expected.current
        maintaining.join()
    pipeline.fold()
    assert_exact(bench, pipeline, expected, is_folded=True)
    pipeline.stop()


def test_live_is_exact_between_append_and_fold(bench: Bench) -> None:
    """A process that died after it appended a rollback leaves tables that readers see."""
    story = STORIES["a rollback of an insert, an update and a deletion"]
    play = Play(bench, fold_rows_min=0, writes=None)
    for batch_id, rows in enumerate(story[:2]):
        play.apply(batch_id, rows)
    dying: Any = DyingEngine(bench.engine(), 1)
    play.expected.apply(2, story[2])
    with pytest.raises(Died):
        pipeline_of(bench, fold_rows_min=0, engine=dying).apply_batch(APP, 2, bench.frame(table_of(story[2])))
    assert state_of(bench.rows("current")) != play.expected.current
    play.pipeline = pipeline_of(bench)
    assert live_of(play.pipeline) == play.expected.current


COMMITS_BETWEEN: dict[str, list[Row]] = {
    "a fold": [change("a", 9, "2"), change("b", 10, None)],
    "the fold of a rollback": [rollback(0, 1), change("c", 2, "2")],
}
"""Append and fold after a reader has looked at one table, and before it looks at the other one."""


def assert_live_between(bench: Bench, engine: TableEngine, between: list[Row], hook: Callable[[Any], Any]) -> None:
    """`live` is exact although commits come between its looks at the two tables.

    Args:
        bench: the tables, which hold nothing yet.
        engine: of the reader.
        between: the batch that comes between.
        hook: has `engine` call a function once, between its looks at the tables.
    """
    play = Play(bench, fold_rows_min=1000, writes=None)
    play.apply(0, [change("a", 1, "1"), change("b", 2, "1")])
    play.fold()
    play.apply(1, [change("a", 5, "1")])

    def happen() -> None:
        play.apply(2, between)
        play.fold()

    hook(happen)
    assert live_of(pipeline_of(bench, engine=engine)) == play.expected.current
    assert bench.engine().folded(APP) == 2, "the hook was not called"


@pytest.mark.parametrize("between", COMMITS_BETWEEN)
def test_live_is_exact_although_a_fold_commits_while_it_looks(
    bench: Bench, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = bench.engine()
    table, looks = type(engine.changes), itertools.count(1)
    look = table.version

    def hook(happen: Callable[[], None]) -> None:
        def version(self: Any) -> Any:
            if next(looks) == 2:
                monkeypatch.undo()
                happen()
            return look(self)

        monkeypatch.setattr(table, "version", version)

    assert_live_between(bench, engine, COMMITS_BETWEEN[between], hook)


def test_maintenance_keeps_the_rows(bench: Bench) -> None:
    play = Play(bench, fold_rows_min=2, writes=None)
    for batch_id in range(5):
        play.apply(batch_id, [change(f"k{batch_id}", 2 * batch_id + 1, "1"), change("k0", 2 * batch_id + 2, "2")])
    play.pipeline.maintain()
    assert_exact(bench, play.pipeline, play.expected)
    play.apply(5, [rollback(0, 4), change("k1", 5, "3")])
    assert_exact(bench, play.pipeline, play.expected, is_folded=True)


def test_tables_of_another_checkpoint_are_refused(bench: Bench) -> None:
    play = Play(bench, fold_rows_min=0, writes=None)
    play.apply(0, [change("a", 1, "1")])
    with pytest.raises(OffsetError, match="batches up to 0 of this checkpoint, but batch 2 follows"):
        play.pipeline.apply_batch(APP, 2, bench.frame(table_of([change("a", 2, "2")])))
    with pytest.raises(OffsetError, match="no batch of this checkpoint, but batch 1 follows"):
        play.pipeline.apply_batch("another", 1, bench.frame(table_of([])))
    assert_exact(bench, play.pipeline, play.expected, is_folded=True)


@pytest.mark.parametrize(
    ("play", "mode", "fold_rows_min", "writes"),
    [
        pytest.param(play, mode, rows, writes, marks=() if (mode, rows, writes) in chosen else pytest.mark.slow)
        for play, chosen in (
            (play_story, {("PERMISSIVE", 0, 1)}),
            (play_evolution, {("DROPMALFORMED", 1000, 1)}),
        )
        for mode in ("PERMISSIVE", "DROPMALFORMED")
        for rows in (0, 1000)
        for writes in (None, 1, 2)
    ],
)
def test_typed_tables_are_exact(
    bench: Bench, play: Callable[..., TypedPlay], mode: str, fold_rows_min: int, writes: int | None
) -> None:
    played = play(bench, mode, fold_rows_min=fold_rows_min, writes=writes)
    assert (played.deaths > 0) == (writes is not None)


def test_a_document_that_does_not_fit_ends_a_fold(bench: Bench) -> None:
    play_failfast(bench)


@pytest.mark.parametrize("writes", [1, 2])
def test_rejects_and_another_schema_are_exact_while_a_rollback_waits(bench: Bench, writes: int) -> None:
    play_interrupted(bench, writes)
