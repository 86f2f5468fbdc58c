"""The monitor tells states apart, counts batches, and answers over HTTP."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node.testing.simulation.clock import VirtualClock
from dcpstream_spark.tables import Monitor
from dcpstream_spark.tables.monitor_page import LISTED_BATCHES, SHOWN_ROLLBACKS
from dcpstream_spark.tables.progress import PipelineProgress, RollbackReport
from lab.tools.patience import patient
from tests.kit.pretended_pipeline import PretendedPipeline


@pytest.fixture
def pipeline() -> PretendedPipeline:
    return PretendedPipeline("dcpstream /data/<flights>")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def stalls() -> list[str]:
    return []


@pytest.fixture
def monitor(pipeline: PretendedPipeline, clock: VirtualClock, stalls: list[str]) -> Iterator[Monitor]:
    # The watchdog's thread waits in real time, so only the calls of `check` in a test matter.
    with Monitor([pipeline], stall_s=300, on_stall=stalls.append, clock=clock) as monitor:
        yield monitor


def get(monitor: Monitor, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{monitor.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=patient(30)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def state(monitor: Monitor) -> str:
    (report,) = monitor.report()
    found: str = report["state"]
    return found


def test_work_without_batches_is_a_stall(
    monitor: Monitor, pipeline: PretendedPipeline, clock: VirtualClock, stalls: list[str]
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
    monitor: Monitor, pipeline: PretendedPipeline, clock: VirtualClock
) -> None:
    pipeline.is_busy = True
    clock.now += 299
    assert state(monitor) == "running"
    clock.now += 1
    assert state(monitor) == "stalled"


def test_a_fold_is_work_although_its_batch_waits(
    monitor: Monitor, pipeline: PretendedPipeline, clock: VirtualClock
) -> None:
    pipeline.is_busy = True
    clock.now += 299
    pipeline.fold(4)
    clock.now += 299
    assert state(monitor) == "running"
    clock.now += 1
    assert state(monitor) == "stalled"
    assert monitor.report()[0]["seconds_since_batch"] == 599


def test_failed_and_stopped_pipelines(monitor: Monitor, pipeline: PretendedPipeline, clock: VirtualClock) -> None:
    pipeline.is_running = False
    pipeline.lag = 5
    clock.now += 1000
    assert state(monitor) == "stopped"
    pipeline.failure = RuntimeError("the cluster is away\nlong trace")
    (report,) = monitor.report()
    assert (report["state"], report["error"]) == ("failed", "the cluster is away")
    assert get(monitor, "/health")[0] == 503


def test_a_pipeline_that_is_recreated_keeps_the_time_of_its_last_batch(
    monitor: Monitor, pipeline: PretendedPipeline, clock: VirtualClock
) -> None:
    clock.now += 1000
    monitor.add(PretendedPipeline(pipeline.name))
    clock.now += 10
    assert monitor.report()[0]["seconds_since_batch"] == 1010
    monitor.check()
    assert state(monitor) == "running", "its first batch has only begun"


def test_metrics_count_batches(monitor: Monitor, pipeline: PretendedPipeline) -> None:
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
    assert any(line.startswith(f"dcpstream_pipeline_last_batch_age_seconds{label} ") for line in lines)
    # A rate is for Prometheus to compute: rate(dcpstream_pipeline_rows_total[1m]).
    assert not any("per_second" in line or "seconds_since" in line for line in lines)
    assert f"dcpstream_pipeline_lag_seqnos{label} 17.0" in lines
    assert f"dcpstream_pipeline_rows_total{label} 1234.0" in lines
    assert 'dcpstream_pipeline_state{pipeline="dcpstream /data/<flights>",state="running"} 1.0' in lines


def test_an_unknown_lag_is_no_zero(monitor: Monitor, pipeline: PretendedPipeline) -> None:
    pipeline.lag = None
    assert "dcpstream_pipeline_lag_seqnos{" not in get(monitor, "/metrics")[1]


def test_the_page_shows_the_figures_and_escapes_names(monitor: Monitor, pipeline: PretendedPipeline) -> None:
    pipeline.write(4)
    pipeline.fold(3)
    pipeline.lag = 12_345
    pipeline.failure = RuntimeError("<script>alert(1)</script>")
    status, text = get(monitor, "/")
    assert status == 200
    assert "dcpstream /data/&lt;flights&gt;" in text
    assert "<flights>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>" not in text
    assert "12,345" in text
    assert "batch 4: 10 rows, 0.50 s to append, 0.25 s waiting for a fold" in text
    (fold,) = re.findall(r'id="folds".*?<tbody[^>]*>(.*?)</tbody>', text, re.DOTALL)
    assert [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<div>(.*?)</div>", fold)] == [
        "3", "2023-11-14 22:13:20 UTC", "8", "1", "3", "9", "2.50 s"
    ]  # fmt: skip


def test_several_pipelines_have_a_page_each(monitor: Monitor, pipeline: PretendedPipeline) -> None:
    other = PretendedPipeline("dcpstream /data/other")
    monitor.add(other)
    pipeline.write(4)
    status, text = get(monitor, "/")
    assert status == 200
    for one in (pipeline, other):
        path = f"/pipelines/{quote(one.name, safe='')}"
        assert f'href="{path}"' in text
        found, html = get(monitor, path)
        assert found == 200
        assert ("batch 4: 10 rows" in html) == (one is pipeline)


def test_a_pipeline_that_is_recreated_takes_the_place_of_the_old_one(
    monitor: Monitor, pipeline: PretendedPipeline
) -> None:
    monitor.add(PretendedPipeline("another"))
    pipeline.failure = RuntimeError("away")
    pipeline.write(1)
    again = PretendedPipeline(pipeline.name)
    monitor.add(again)
    again.write(2)
    reports = monitor.report()
    assert [(one["name"], one["state"]) for one in reports] == [(pipeline.name, "running"), ("another", "running")]
    assert [one["batch_id"] for one in reports[0]["last_batches"]] == [2]
    assert get(monitor, "/metrics")[1].count(f'dcpstream_pipeline_batches_total{{pipeline="{pipeline.name}"}}') == 1


def test_all_vbuckets_are_shown_to_those_who_ask(monitor: Monitor, pipeline: PretendedPipeline) -> None:
    pipeline.vbucket_count = 40
    for path, shown in (("/", 16), ("/?vbuckets=all", 40), ("/?x=1&vbuckets=all", 40), ("/?vbuckets=allow", 16)):
        (table,) = re.findall(r'id="vbuckets".*?</section>', get(monitor, path)[1], re.DOTALL)
        assert table.count("data-key=") == shown, path


def test_a_pipeline_that_is_not_there_is_reported(monitor: Monitor) -> None:
    status, text = get(monitor, "/pipelines/%3Cb%3E")
    assert status == 404
    assert "No pipeline of this name is watched: <code>&lt;b&gt;</code>" in text


def test_pages_load_only_what_the_monitor_has(monitor: Monitor) -> None:
    loads = re.findall(r'<(?:link|script) [^>]*(?:href|src)="([^"]+)"', get(monitor, "/")[1])
    assert set(loads) == {"/static/icon.svg", "/static/style.css", "/static/main.js"}
    files = {
        *loads,
        *(f"/static/{name}" for name in re.findall(r'from "\./(.+?)"', get(monitor, "/static/main.js")[1])),
    }
    assert len(files) > len(loads)
    for path in files:
        assert get(monitor, path)[0] == 200, path
    assert get(monitor, "/static/..%2Fframe.py")[0] == 404
    assert get(monitor, "/static/../frame.py")[0] == 404
    with urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/", timeout=patient(30)) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_only_the_newest_reports_are_kept(monitor: Monitor, pipeline: PretendedPipeline) -> None:
    back = tuple(RollbackReport(vbid, 50, 40, 1, 2) for vbid in range(SHOWN_ROLLBACKS + 5))
    for batch_id in range(LISTED_BATCHES + 3):
        pipeline.write(batch_id, back if batch_id == 1 else ())
    _, text = get(monitor, "/")
    assert [text.count(f'data-key="{vbid}-1-50"') for vbid in (0, 4, 5, SHOWN_ROLLBACKS + 4)] == [0, 0, 1, 1]
    assert len(re.findall(r'data-key="\d+-\d+"', text)) == LISTED_BATCHES


def test_a_page_that_cannot_be_made_is_an_error_and_the_next_one_is_served(
    monitor: Monitor, pipeline: PretendedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> PipelineProgress:
        raise RuntimeError("the session has ended")

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "progress", broken)
        status, text = get(monitor, "/")
        assert status == 500
        assert "log" in text
    assert get(monitor, "/")[0] == 200


def test_a_closed_monitor_serves_no_connection_that_is_open(monitor: Monitor) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", monitor.port, timeout=patient(30))
    connection.request("GET", "/health")
    connection.getresponse().read()
    monitor.close()
    connection.request("GET", "/health")
    with pytest.raises(http.client.RemoteDisconnected):
        connection.getresponse()
    connection.close()


def test_other_paths_say_which_there_are(monitor: Monitor) -> None:
    status, text = get(monitor, "/nothing")
    assert status == 404
    assert "/metrics" in text


@pytest.mark.parametrize("path", ["/", "/metrics", "/progress", "/health"])
def test_a_page_whose_name_points_here_reads_nothing(monitor: Monitor, pipeline: PretendedPipeline, path: str) -> None:
    """DNS rebinding: the browser takes the monitor for the page's own site; the header Host has the page's name."""
    status, text = get(monitor, path, Host=f"evil.example:{monitor.port}")
    assert status == 421
    assert pipeline.name not in text
    assert get(monitor, path, Host=f"localhost:{monitor.port}")[0] == 200


def test_a_monitor_is_reached_by_the_names_that_it_was_given() -> None:
    with Monitor(names=["pipelines.example"]) as monitor:
        assert get(monitor, "/metrics", Host="Pipelines.example:80")[0] == 200
        assert get(monitor, "/metrics", Host="other.example")[0] == 421


def test_a_taken_port_is_named(monitor: Monitor) -> None:
    with pytest.raises(ConfigError, match=str(monitor.port)):
        Monitor(port=monitor.port)
