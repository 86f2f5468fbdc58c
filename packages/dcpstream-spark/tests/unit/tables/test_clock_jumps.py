"""The time of day jumps by hours while a pipeline writes: folds, maintenance and the lease do not follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream_spark.tables import FoldReport
from dcpstream_spark.tables.progress import BatchReport
from tests.kit.clocks import JumpingClock
from tests.kit.tables import APP, DeltaRsBench, Expected, assert_exact, change, pipeline_of, rollback, table_of

HOUR = 3600
JUMPS = [5 * HOUR, -9 * HOUR, 0, 30 * HOUR, -26 * HOUR]


def run(path: Path, jumps: list[int]) -> tuple[list[int], list[BatchReport], list[FoldReport]]:
    """Batches, one of them with a rollback. Returns the folded batches, and the reports."""
    path.mkdir()
    bench, clock, expected = DeltaRsBench(path), JumpingClock(), Expected()
    batches: list[BatchReport] = []
    folds: list[FoldReport] = []
    pipeline = pipeline_of(
        bench, fold_rows_min=5, maintenance_batches=4, on_fold=folds.append, on_batch=batches.append, clock=clock
    )
    pipeline._lease.acquire(lambda: True)
    for batch_id in range(10):
        clock.jump(jumps[batch_id % len(jumps)])
        clock.now += 1
        rows = [change(f"k{n}", 10 * batch_id + n, f"{batch_id}") for n in range(1, 4)]
        if batch_id == 6:
            rows.insert(0, rollback(0, 45))
        expected.apply(batch_id, rows)
        pipeline._lease.verify()
        report = pipeline.apply_batch(APP, batch_id, bench.frame(table_of(rows)))
        assert report is not None
        batches.append(report)
    pipeline.fold()
    assert pipeline._lease.is_held
    assert_exact(bench, pipeline, expected, is_folded=True)
    pipeline.stop()
    return [fold.upto for fold in folds], batches, folds


@pytest.mark.slow
def test_a_pipeline_does_not_follow_the_time_of_day(tmp_path: Path) -> None:
    steady, jumping = run(tmp_path / "steady", [0]), run(tmp_path / "jumping", JUMPS)
    assert jumping[0] == steady[0], "the same batches are folded"
    assert all(report.append_s == report.wait_s == 0 for report in jumping[1]), "durations are of the monotonic clock"
    assert all(fold.fold_s == 0 for fold in jumping[2])
