"""Which masters run a failed task again."""

from __future__ import annotations

from dcpstream_spark.masters import repeating, runs_tasks_once
from tests.kit.cases import each_case


@each_case(
    ("master", "better"),
    [("local", "local[1,4]"), ("local[3]", "local[3,4]"), ("local[*]", "local[*,4]")],
)
def test_local_masters_that_run_a_task_once(master: str, better: str) -> None:
    assert runs_tasks_once(master)
    assert repeating(master) == better
    assert not runs_tasks_once(better)


@each_case("master", ["local[3,4]", "local-cluster[2,1,1024]", "spark://host:7077", "yarn", ""])
def test_masters_that_run_it_again(master: str) -> None:
    assert not runs_tasks_once(master)
    assert repeating(master) == master
