"""`dcpstream lake` without Spark."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from dcpstream.cli.app import run
from dcpstream.cli.lake import as_line
from dcpstream.pipelines.lake import LakeEvent
from dcpstream.pipelines.progress import PipelineProgress
from tests.unit.pipelines.test_lake_config import GOOD


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
    assert f"{file}:17: pipelines.orders.trigger: 'soon'" in capsys.readouterr().err


@pytest.mark.parametrize("outcome", [True, False])
def test_a_run(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: bool) -> None:
    seen: dict[str, Any] = {}

    class Session:
        def stop(self) -> None:
            seen["stopped"] = True

    class FakeLake:
        @classmethod
        def of_session(cls, spark: Any, configs: Any, on_event: Any) -> FakeLake:
            seen["names"] = [config.name for config in configs]
            on_event(LakeEvent("orders", "started"))
            on_event(LakeEvent("orders", "failed", message="away", pause_s=2.0))
            return cls()

        def run(self, stopping: threading.Event, *, once: bool) -> bool:
            seen["once"] = once
            signal.raise_signal(signal.SIGTERM)
            assert stopping.is_set()
            return outcome

    def build_session(name: str, **more: Any) -> Session:
        seen["session"] = more
        return Session()

    monkeypatch.setattr("dcpstream.spark.session.build_session", build_session)
    monkeypatch.setattr("dcpstream.pipelines.lake.Lake", FakeLake)
    before = signal.getsignal(signal.SIGTERM)
    assert run(["lake", "--config", str(file), "--once"]) == (0 if outcome else 1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert seen["names"] == ["orders", "flights"]
    assert seen["stopped"]
    assert seen["once"]
    assert seen["session"]["tables"] is None
    assert seen["session"]["driver_memory"] == "4g"
    shown = capsys.readouterr()
    assert shown.out == "orders: started\n"
    assert shown.err == "orders: failed, starts again in 2 s, away\n"


def test_progress_in_one_line() -> None:
    progress = PipelineProgress(batch_id=5, rows=12_345, rollbacks=1, rows_per_second=500.4, total_lag=1000)
    assert as_line(LakeEvent("a", "progress", progress)) == (
        "a: progress, batch 5, 12,345 rows, 500 rows/s, lag 1,000, 1 rollbacks"
    )
