"""The program of the Kubernetes example, run as its pod runs it: it serves its state, and ends well at SIGTERM."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.tools.patience import patient
from tests.kit.pages import ROOT, environment
from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.spark import Bucket

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_the_pod_serves_its_state_and_ends_at_sigterm(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.set(a="1", b="2")
    port = free_port()
    access = {"COUCHBASE": bucket.node.connection_string, "COUCHBASE_BUCKET": "default"}
    login = {"COUCHBASE_USERNAME": "Administrator", "COUCHBASE_PASSWORD": "password"}
    place = {"TABLES": str(tmp_path / "tables"), "MONITOR_PORT": str(port), "TRIGGER": "1 second"}
    log = tmp_path / "log"
    with log.open("wb") as output:
        pod = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "kubernetes" / "job.py")],
            cwd=tmp_path,
            env={**environment(), **access, **login, **place, "DRIVER_MEMORY": "1g"},
            stderr=output,
        )

    def page(path: str) -> str:
        assert pod.poll() is None, log.read_text(encoding="utf-8")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    try:
        wait_until(lambda: "dcpstream_pipeline_rows_total" in page("/metrics"))
        wait_until(lambda: json.loads(page("/progress") or '[{"rows": 0}]')[0]["rows"] == 2)
        assert page("/health")
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(patient(60)) == 0, log.read_text(encoding="utf-8")
    finally:
        pod.kill()
        pod.wait()
    current = spark.read.format("delta").load(str(tmp_path / "tables" / "current"))
    assert {row["key"] for row in current.collect()} == {"a", "b"}
    ours = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith('{"time"')]
    assert all(json.loads(line)["logger"] for line in ours)
