"""The loop over pipelines, with pipelines that do as they are told and a clock that only moves in it."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from dcpstream.errors import ConfigError, ConnectionLost, FoldFailed
from dcpstream_node.testing.simulation.clock import VirtualClock
from dcpstream_spark.tables import Monitor
from dcpstream_spark.tables import lake as module
from dcpstream_spark.tables.lake import FAILURES_MAX_ONCE, MAX_PAUSE_S, Lake, LakeEvent
from dcpstream_spark.tables.lake_config import PipelineConfig
from dcpstream_spark.tables.pipeline import Until
from dcpstream_spark.tables.progress import PipelineProgress
from lab.tools.patience import patient
from tests.kit.cases import each_case
from tests.kit.tables import NEEDED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Stopping(threading.Event):
    """Never waits, and is set after a number of looks."""

    def __init__(self, clock: VirtualClock, looks: int) -> None:
        super().__init__()
        self._clock, self.left = clock, looks

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        self.left -= 1
        if self.left <= 0:
            self.set()
        return self.is_set()


@dataclass
class FakePipeline:
    """Runs for some looks, then ends with a failure or without."""

    looks: int = 1
    ends_with: Exception | None = None
    refuses: Exception | None = None
    batch: int | None = None
    calls: list[str] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    @property
    def failure(self) -> Exception | None:
        return self.ends_with

    def start(self, *, until: Until, trigger: str | None) -> None:
        self.calls.append(f"start {until} {trigger}")
        if self.refuses is not None:
            raise self.refuses

    def await_end(self) -> bool:
        self.calls.append("await_end")
        return True

    def stop(self) -> None:
        self.calls.append("stop")

    def progress(self) -> PipelineProgress:
        return PipelineProgress(batch_id=self.batch)


class World:
    """A lake of one or two pipelines."""

    def __init__(self, *makers: Callable[[], FakePipeline], looks: int = 10_000) -> None:
        self.events: list[LakeEvent] = []
        self.made: list[FakePipeline] = []
        self.clock = VirtualClock()
        self.stopping = Stopping(self.clock, looks)
        by_name = {f"p{number}": maker for number, maker in enumerate(makers)}

        def make(config: PipelineConfig) -> FakePipeline:
            pipeline = by_name[config.name]()
            self.made.append(pipeline)
            return pipeline

        configs = [PipelineConfig(name=name, path="/x", options={}) for name in by_name]
        self.lake = Lake(make, configs, self.events.append, self.clock)

    def kinds(self, name: str) -> list[str]:
        return [event.kind for event in self.events if event.name == name]


def test_once_ends_when_all_have_finished() -> None:
    world = World(lambda: FakePipeline(looks=3), lambda: FakePipeline(looks=5))
    assert world.lake.run(world.stopping, once=True)
    assert world.kinds("p0") == world.kinds("p1") == ["started", "finished"]
    assert [pipeline.calls for pipeline in world.made] == [["start available 1 second", "await_end"]] * 2


def test_a_failed_pipeline_starts_again_and_the_other_goes_on() -> None:
    failures = iter([ConnectionLost("the node is away"), None])
    world = World(lambda: FakePipeline(looks=2, ends_with=next(failures)), lambda: FakePipeline(looks=10))
    assert world.lake.run(world.stopping, once=True)
    assert world.kinds("p0") == ["started", "failed", "started", "finished"]
    assert world.kinds("p1") == ["started", "finished"]
    assert [event.message for event in world.events if event.kind == "failed"] == ["the node is away"]


def test_the_pause_doubles_up_to_a_bound() -> None:
    world = World(lambda: FakePipeline(refuses=ConnectionLost("away")), looks=1000)
    world.lake.run(world.stopping)
    pauses = [event.pause_s for event in world.events]
    assert pauses[:7] == [1, 2, 4, 8, 16, 32, MAX_PAUSE_S]
    assert set(pauses[7:]) == {MAX_PAUSE_S}
    assert world.clock.now - 100 >= sum(pauses[:-1]), "it really waits"


def test_a_batch_ends_a_row_of_failures() -> None:
    world = World(lambda: FakePipeline(looks=1, ends_with=ConnectionLost("away"), batch=len(world.made)), looks=60)
    world.lake.run(world.stopping)
    assert {event.pause_s for event in world.events if event.kind == "failed"} == {1.0}


@each_case("once", [False, True])
def test_a_mistake_is_not_tried_again(once: bool) -> None:
    world = World(lambda: FakePipeline(refuses=ConfigError("engine", "x", "y")), lambda: FakePipeline(looks=3))
    assert not world.lake.run(world.stopping, once=once)
    assert world.kinds("p0") == ["given up"]
    assert world.kinds("p1")[0] == "started"


def test_a_run_that_is_to_end_gives_up() -> None:
    world = World(lambda: FakePipeline(looks=0, ends_with=ConnectionLost("away")))
    assert not world.lake.run(world.stopping, once=True)
    assert len(world.made) == FAILURES_MAX_ONCE


def test_a_stop_stops_all() -> None:
    world = World(lambda: FakePipeline(looks=10**6), lambda: FakePipeline(looks=10**6), looks=100)
    assert world.lake.run(world.stopping)
    assert [pipeline.calls for pipeline in world.made] == [["start stopped 1 second", "stop"]] * 2
    assert world.kinds("p0")[-1] == "stopped"
    told = world.kinds("p0").count("progress")
    assert told == int(100 * module.LOOK_INTERVAL_S / module.PROGRESS_INTERVAL_S) - 1


def health_of(monitor: Monitor) -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/health", timeout=patient(30)) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize(
    ("options", "reason"),
    [(NEEDED, "a table is missing"), ({**NEEDED, "rewindTo": "zero"}, "a pipeline chooses rewindTo itself")],
)
def test_a_pipeline_that_was_given_up_is_seen(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    """A restart that fails leaves a new object without a query, or none at all."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "query"}')
    configs = [PipelineConfig(name="flights", path=str(tmp_path), options=options, engine="delta-rs")]
    events: list[LakeEvent] = []
    spark = cast("SparkSession", None)
    with Monitor() as monitor:
        lake = Lake.of_session(spark, configs, events.append, watch=monitor.add)
        assert not lake.run(threading.Event())
        assert [event.kind for event in events] == ["given up"]
        (report,) = monitor.report()
        name = f"dcpstream {tmp_path}"
        assert (report["name"], report["state"]) == (name, "failed")
        assert reason in report["error"]
        assert health_of(monitor) == (503, {name: f"failed: {report['error']}"})
        assert f'dcpstream_pipeline_state{{pipeline="{name}",state="failed"}} 1.0' in monitor.metrics().decode()
        assert reason in str(monitor.page())


def test_a_pipeline_that_cannot_be_stopped_keeps_no_other_from_it() -> None:
    class Stubborn(FakePipeline):
        def stop(self) -> None:
            raise FoldFailed("the fold of changes into current failed")

    world = World(lambda: Stubborn(looks=10**6), lambda: FakePipeline(looks=10**6), looks=3)
    assert not world.lake.run(world.stopping)
    assert (world.kinds("p0")[-1], world.kinds("p1")[-1]) == ("failed", "stopped")
