"""`dcpstream lake` without Spark."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dcpstream.cli.app import run
from dcpstream.runtime.stopping import StopSign
from dcpstream_spark.commands.lake import as_line, as_object
from dcpstream_spark.tables import Monitor
from dcpstream_spark.tables.lake import LakeEvent
from dcpstream_spark.tables.progress import PipelineProgress
from lab.tools.patience import patient
from tests.kit.pretended_pipeline import PretendedPipeline
from tests.unit.tables.test_lake_config import GOOD


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SECRET", "hidden")
    file = tmp_path / "lake.toml"
    file.write_text(GOOD)
    return file


def test_check_only_checks(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lake", "--config", str(file), "--check"]) == 0
    assert "2 pipelines, no mistake found" in capsys.readouterr().out


def test_mistakes_are_listed_and_nothing_starts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD.replace('"10 seconds"', '"soon"'))
    assert run(["lake", "--config", str(file)]) == 2
    assert f"{file}: pipelines.orders.trigger: 'soon'" in capsys.readouterr().err


@pytest.mark.parametrize(("outcome", "more"), [(True, []), (False, []), (True, ["--monitor-port", "0"])])
def test_a_run(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: bool, more: list[str]
) -> None:
    seen: dict[str, Any] = {}

    class Session:
        def stop(self) -> None:
            seen["stopped"] = True

    class FakeLake:
        @classmethod
        def of_session(cls, spark: Any, configs: Any, on_event: Any, *, watch: Any) -> FakeLake:
            seen["watch"] = watch
            seen["names"] = [config.name for config in configs]
            on_event(LakeEvent("orders", "started"))
            on_event(LakeEvent("orders", "failed", message="away", pause_s=2.0))
            return cls()

        def run(self, stopping: StopSign, *, once: bool) -> bool:
            seen["once"] = once
            if seen["watch"] is not None:
                seen["watch"](PretendedPipeline("dcpstream /data/orders"))
                (url,) = re.findall(r"status page (http://127\.0\.0\.1:\d+/)\n", capsys.readouterr().err)
                with urllib.request.urlopen(url, timeout=patient(30)) as answer:
                    seen["page"] = answer.read().decode()
                seen["url"] = url
            signal.raise_signal(signal.SIGTERM)
            assert stopping.is_set()
            return outcome

    def build_session(name: str, **settings: Any) -> Session:
        seen["session"] = settings
        return Session()

    monkeypatch.setattr("dcpstream_spark.session.build_session", build_session)
    monkeypatch.setattr("dcpstream_spark.tables.lake.Lake", FakeLake)
    before = signal.getsignal(signal.SIGTERM)
    assert run(["lake", "--config", str(file), "--once", *more]) == (0 if outcome else 1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert seen["names"] == ["orders", "flights"]
    assert seen["stopped"]
    assert seen["once"]
    assert seen["session"]["tables"] is None
    assert seen["session"]["driver_memory"] == "4g"
    assert seen["session"]["checkpoint"] == "s3://lake/flights", "no fast manager of local files"
    if more:
        assert "dcpstream /data/orders" in seen["page"]
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(seen["url"], timeout=patient(30))
    else:
        shown = capsys.readouterr()
        assert shown.out == "orders: started\n"
        assert shown.err == "orders: failed, starts again in 2 s, away\n"


def test_a_port_that_is_taken_is_reported_before_spark_starts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Monitor() as other:
        assert run(["lake", "--config", str(file), "--monitor-port", str(other.port)]) == 2
    assert str(other.port) in capsys.readouterr().err


def test_progress_in_one_line() -> None:
    progress = PipelineProgress(
        batch_id=5, rows=12_345, rollbacks=1, rows_per_second=500.4, total_lag=1000, share_read=0.659, seconds_left=61.0
    )
    assert as_line(LakeEvent("a", "progress", progress)) == (
        "a: progress, batch 5, 12,345 rows, 500 rows/s, lag 1,000, 65 % read, about 1 min 1 s left, 1 rollbacks"
    )


def test_events_in_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lake", "--config", str(file), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(file), "pipelines": 2}
    event = LakeEvent(
        "orders", "progress", PipelineProgress(batch_id=7, rows=100, rollbacks=1, rows_per_second=5.0, total_lag=3)
    )
    assert as_object(event) == {
        "name": "orders",
        "kind": "progress",
        "batch_id": 7,
        "rows": 100,
        "rows_per_second": 5.0,
        "total_lag": 3,
        "share_read": None,
        "seconds_left": None,
        "lag_s": None,
        "rollbacks": 1,
        "pause_s": 0.0,
        "message": "",
    }
