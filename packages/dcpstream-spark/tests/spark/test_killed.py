"""A pipeline in a process of its own, killed at any moment, while the node loses its tail now and then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.chaos.tables import read_delta
from tests.kit.spark import Bucket

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_CHILD = """
import sys
from dcpstream_spark import Pipeline
from dcpstream_spark import build_session

connection_string, path, engine, until = sys.argv[1:]
access = {"connectionString": connection_string, "username": "Administrator", "password": "password"}
options = {**access, "bucket": "default", "maxOffsetsPerTrigger": "3000"}
spark = build_session("killed", driver_memory="1g")
pipeline = Pipeline(
    spark, path, options, engine=engine, on_batch=lambda report: print(report.batch_id, flush=True)
)
pipeline.start(until=until, trigger=None)
pipeline.await_end()
spark.stop()
"""

KEYS = [f"k{n}" for n in range(3000)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("engine", "seed", "kills"), [("delta-rs", 1, 4), ("delta-rs", 2, 4), ("delta", 3, 4)])
def test_tables_are_exact_after_kills(bucket: Bucket, tmp_path: Path, engine: str, seed: int, kills: int) -> None:
    dice = random.Random(seed)
    tables = tmp_path / "tables"
    errors = tmp_path / "errors"
    bucket.flush_every(1.0)

    def write(count: int) -> None:
        bucket.set(**{dice.choice(KEYS): str(dice.random()) for _ in range(count)})
        bucket.delete(*{dice.choice(KEYS) for _ in range(count // 10)})

    def start(until: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _CHILD, bucket.node.connection_string, str(tables), engine, until]
        with errors.open("wb") as file:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True)

    for _ in range(kills):
        write(2000)
        child = start("stopped")
        assert child.stdout is not None
        crash_at, kill_at = dice.choice([0, 2, 3]), dice.randint(2, 6)
        try:
            for batches, _line in enumerate(child.stdout, start=1):
                write(300)
                if batches == crash_at:
                    bucket.crash()
                    write(100)
                if batches >= kill_at:
                    break
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()
    child = start("available")
    out, _ = child.communicate()
    assert child.returncode == 0, f"{out}{errors.read_text('utf-8', 'replace')[-10_000:]}"

    expected = bucket.documents(KEYS)
    rows = read_delta(tables / "current").select(["key", "value"]).to_pylist()
    assert len(rows) == len(expected)
    assert {row["key"]: row["value"].decode() for row in rows} == expected
    changes = [row for row in read_delta(tables / "changes").to_pylist() if row["op"] != "rollback"]
    assert len({(row["vbucket"], row["seqno"]) for row in changes}) == len(changes)
    newest = {row["key"]: row["value"] for row in sorted(changes, key=lambda row: row["seqno"])}
    assert {key: value.decode() for key, value in newest.items() if value is not None} == expected
