"""Tasks that Spark runs only once, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dcpstream.errors import RollbackRequired
from dcpstream_spark.source.single_attempt import ATTEMPTS_MAX, held, runs_once
from dcpstream_spark.source.spool import SpoolFile
from tests.kit.cases import each_case


def batch(*keys: str) -> pa.RecordBatch:
    return pa.record_batch({"key": [*keys]})


class LosingTask:
    """A task whose node loses changes after the first batch, some times."""

    def __init__(self, losses: int) -> None:
        self.losses = losses

    def read(self) -> Iterator[pa.RecordBatch]:
        if self.losses:
            self.losses -= 1
            yield batch("void")
            raise RollbackRequired(3, 7, "vbucket 3: a node lost changes")
        yield batch("a", "b")
        yield batch("c")


def keys(rows: Iterator[pa.RecordBatch]) -> list[str]:
    return [key for one in rows for key in one["key"].to_pylist()]


@each_case("losses", [0, 1, ATTEMPTS_MAX - 1])
def test_void_rows_are_never_given(losses: int) -> None:
    assert keys(held(LosingTask(losses).read)) == ["a", "b", "c"]


def test_a_task_that_is_lost_each_time_fails() -> None:
    rows = held(LosingTask(ATTEMPTS_MAX).read)
    with pytest.raises(RollbackRequired, match="vbucket 3"):
        next(rows)


def test_a_task_larger_than_the_bound_gives_its_rows_in_order_and_may_fail() -> None:
    assert keys(held(LosingTask(0).read, most=1)) == ["a", "b", "c"]
    rows = held(LosingTask(1).read, most=1)
    assert next(rows)["key"].to_pylist() == ["void"]
    with pytest.raises(RollbackRequired, match="vbucket 3"):
        next(rows)


def test_a_task_with_a_spool_is_read_again_though_only_its_first_batch_is_held(tmp_path: Path) -> None:
    task, file = LosingTask(1), SpoolFile(str(tmp_path), "task.arrow")
    assert keys(held(lambda: file.replayed(task.read()), most=0)) == ["a", "b", "c"]


def test_a_task_without_rows() -> None:
    assert keys(held(list)) == []


def test_a_process_that_is_no_task() -> None:
    assert not runs_once()
