"""The monitor tells states apart, counts batches, and answers over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from dcpstream.errors import ConfigError
from dcpstream.pipelines import Monitor
from dcpstream.pipelines.engine import FoldReport
from dcpstream.pipelines.progress import BatchReport, PipelineProgress
from dcpstream.testing.simulation.clock import VirtualClock
from tools.patience import patient


class Pretended:
    """A pipeline whose state the test sets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_running = True
        self.is_busy = False
        self.failure: Exception | None = None
        self.lag: int | None = 0
        self.listeners: list[Callable[[BatchReport], None]] = []
        self.fold_listeners: list[Callable[[FoldReport], None]] = []

    def progress(self) -> PipelineProgress:
        return PipelineProgress(
            batch_id=4, rows=1234, rollbacks=2, total_lag=self.lag, tail_rows=77, lag={7: self.lag or 0}
        )

    def add_listener(
        self,
        on_batch: Callable[[BatchReport], None] | None = None,
        on_fold: Callable[[FoldReport], None] | None = None,
    ) -> None:
        assert on_batch is not None
        assert on_fold is not None
        self.listeners.append(on_batch)
        self.fold_listeners.append(on_fold)

    def write(self, batch_id: int) -> None:
        for listener in self.listeners:
            listener(BatchReport(batch_id=batch_id, rows=10, append_s=0.5, wait_s=0.25))

    def fold(self, upto: int) -> None:
        for listener in self.fold_listeners:
            listener(FoldReport(upto, documents=8, removed=1, restored=0, current_rows=9, rejected=3, fold_s=2.5))


@pytest.fixture
def pipeline() -> Pretended:
    return Pretended("dcpstream /data/<flights>")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def stalls() -> list[str]:
    return []


@pytest.fixture
def monitor(pipeline: Pretended, clock: VirtualClock, stalls: list[str]) -> Iterator[Monitor]:
    # The watchdog's thread waits in real time, so only the calls of `check` in a test matter.
    with Monitor([pipeline], stall_s=300, on_stall=stalls.append, clock=clock) as monitor:
        yield monitor


def get(monitor: Monitor, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}{path}", timeout=patient(30)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def state(monitor: Monitor) -> str:
    (report,) = monitor.report()
    found: str = report["state"]
    return found


def test_work_without_batches_is_a_stall(
    monitor: Monitor, pipeline: Pretended, clock: VirtualClock, stalls: list[str]
) -> None:
    clock.now += 1000
    assert monitor.check() == [], "an idle pipeline has nothing to write"
    pipeline.lag = 5
    assert monitor.check() == [pipeline.name]
    assert monitor.check() == [pipeline.name]
    assert stalls == [pipeline.name], "told once"
    assert get(monitor, "/health") == (503, json.dumps({pipeline.name: "stalled"}))
    pipeline.write(5)
    assert monitor.check() == []
    assert get(monitor, "/health")[0] == 200
    clock.now += 299
    assert monitor.check() == []
    clock.now += 1
    assert monitor.check() == [pipeline.name]
    assert stalls == [pipeline.name] * 2, "a new stall is told again"


def test_a_batch_that_hangs_is_a_stall_although_the_last_progress_had_no_lag(
    monitor: Monitor, pipeline: Pretended, clock: VirtualClock
) -> None:
    pipeline.is_busy = True
    clock.now += 299
    assert state(monitor) == "running"
    clock.now += 1
    assert state(monitor) == "stalled"


def test_a_fold_is_work_although_its_batch_waits(monitor: Monitor, pipeline: Pretended, clock: VirtualClock) -> None:
    pipeline.is_busy = True
    clock.now += 299
    pipeline.fold(4)
    clock.now += 299
    assert state(monitor) == "running"
    clock.now += 1
    assert state(monitor) == "stalled"
    assert monitor.report()[0]["seconds_since_batch"] == 599


def test_failed_and_stopped_pipelines(monitor: Monitor, pipeline: Pretended, clock: VirtualClock) -> None:
    pipeline.is_running = False
    pipeline.lag = 5
    clock.now += 1000
    assert state(monitor) == "stopped"
    pipeline.failure = RuntimeError("the cluster is away\nlong trace")
    (report,) = monitor.report()
    assert (report["state"], report["error"]) == ("failed", "the cluster is away")
    assert get(monitor, "/health")[0] == 503


def test_metrics_count_batches(monitor: Monitor, pipeline: Pretended) -> None:
    pipeline.write(3)
    pipeline.write(4)
    pipeline.fold(3)
    pipeline.lag = 17
    status, text = get(monitor, "/metrics")
    label = '{pipeline="dcpstream /data/<flights>"}'
    lines = set(text.splitlines())
    assert status == 200
    assert f"dcpstream_pipeline_batches_total{label} 2.0" in lines
    assert f"dcpstream_pipeline_folds_total{label} 1.0" in lines
    assert f"dcpstream_pipeline_rejected_documents_total{label} 3.0" in lines
    assert f"dcpstream_pipeline_append_seconds_total{label} 1.0" in lines
    assert f"dcpstream_pipeline_wait_seconds_total{label} 0.5" in lines
    assert f"dcpstream_pipeline_fold_seconds_total{label} 2.5" in lines
    assert f"dcpstream_pipeline_tail_rows{label} 77.0" in lines
    assert f"dcpstream_pipeline_lag_seqnos{label} 17.0" in lines
    assert f"dcpstream_pipeline_rows_total{label} 1234.0" in lines
    assert 'dcpstream_pipeline_state{pipeline="dcpstream /data/<flights>",state="running"} 1.0' in lines


def test_an_unknown_lag_is_no_zero(monitor: Monitor, pipeline: Pretended) -> None:
    pipeline.lag = None
    assert "dcpstream_pipeline_lag_seqnos{" not in get(monitor, "/metrics")[1]


def test_the_page_shows_the_figures_and_escapes_names(monitor: Monitor, pipeline: Pretended) -> None:
    pipeline.write(4)
    pipeline.fold(3)
    pipeline.lag = 12_345
    pipeline.failure = RuntimeError("<script>alert(1)</script>")
    status, text = get(monitor, "/")
    assert status == 200
    assert "dcpstream /data/&lt;flights&gt;" in text
    assert "<script>" not in text
    assert "12,345" in text
    assert "batch 4: 10 rows, 0.50 s to append, 0.25 s waiting for a fold" in text
    assert "Last fold: up to batch 3, 8 documents written, 1 removed, 2.50 s" in text


def test_other_paths_say_which_there_are(monitor: Monitor) -> None:
    status, text = get(monitor, "/nothing")
    assert status == 404
    assert "/metrics" in text


def test_a_taken_port_is_named(monitor: Monitor) -> None:
    with pytest.raises(ConfigError, match=str(monitor.port)):
        Monitor(port=monitor.port)
