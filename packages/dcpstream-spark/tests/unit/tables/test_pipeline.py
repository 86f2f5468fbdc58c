"""The pipeline without Spark: options, fold policy, refusals. `tests/spark/test_engines.py` has the rest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import ConfigError, OffsetError
from dcpstream_spark.tables import FoldReport, Pipeline, PipelineProgress
from dcpstream_spark.tables.delta_rs import FOLD_ROWS_MIN, DeltaRsEngine
from tests.kit.tables import APP, NEEDED, QUERY, ArrowFrame, DeltaRsBench, Row, change, pipeline_of, rollback, table_of


def frame(rows: Sequence[Row]) -> Any:
    return ArrowFrame(table_of(rows))


class EndedQuery:
    """A query of Spark that has ended without an error."""

    id = QUERY
    isActive = False  # noqa: N815 - Spark's name

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        """It has."""

    def exception(self) -> None:
        """None."""


@pytest.fixture
def bench(tmp_path: Path) -> DeltaRsBench:
    path = tmp_path / "tables"
    path.mkdir()
    return DeltaRsBench(path)


def test_a_batch_counts_once(bench: DeltaRsBench) -> None:
    folds: list[FoldReport] = []
    pipeline = pipeline_of(bench, fold_rows_min=0, on_fold=folds.append)
    rows = [change("a", 1, "1"), change("b", 2, "1"), change("b", 3, None), change("c", 4, "1")]
    report = pipeline.apply_batch(APP, 0, frame(rows))
    assert report is not None
    assert report.rows == 4
    assert [(fold.upto, fold.documents, fold.removed) for fold in folds] == [(0, 2, 0)]
    assert not report.is_recovered
    assert pipeline.apply_batch(APP, 0, frame([change("no", 9, "")])) is None
    assert len(bench.rows("changes")) == 4
    assert pipeline.progress().rows == 4


def test_an_empty_batch_is_not_reported(bench: DeltaRsBench) -> None:
    assert pipeline_of(bench).apply_batch(APP, 0, frame([])) is None
    assert bench.engine().last_batch(APP) == 0


def test_a_tail_is_folded_when_it_exceeds_a_share_of_the_table(bench: DeltaRsBench) -> None:
    reports: list[FoldReport] = []
    pipeline = pipeline_of(bench, fold_rows_min=3, on_fold=reports.append)
    for batch_id in range(40):
        rows = [change(f"k{2 * batch_id + n}", 2 * batch_id + n + 1, "1") for n in range(2)]
        pipeline.apply_batch(APP, batch_id, frame(rows))
    folds = [report.upto for report in reports]
    sizes = [right - left for left, right in itertools.pairwise(folds)]
    assert sizes[0] == 2, "a tail of 4 rows exceeds the least size"
    assert sizes == sorted(sizes)
    assert sizes[-1] == 4, "a tail of 8 rows exceeds a tenth of 70"
    assert bench.engine().folded(APP) == folds[-1]


def test_a_restart_knows_the_tail(bench: DeltaRsBench) -> None:
    assert pipeline_of(bench, fold_rows_min=2).apply_batch(APP, 0, frame([change("a", 1, "1"), change("b", 2, "1")]))
    folds: list[FoldReport] = []
    again = pipeline_of(bench, fold_rows_min=2, on_fold=folds.append)
    assert again.apply_batch(APP, 1, frame([change("c", 3, "1")]))
    assert [(fold.upto, fold.documents) for fold in folds] == [(1, 3)]


def test_the_rest_is_folded_once(bench: DeltaRsBench) -> None:
    pipeline = pipeline_of(bench)
    pipeline.apply_batch(APP, 0, frame([change("a", 1, "1")]))
    assert bench.rows("current") == []
    report = pipeline.fold()
    assert report is not None
    assert (report.upto, report.documents, report.removed, report.current_rows) == (0, 1, 0, 1)
    assert pipeline.fold() is None
    assert pipeline_of(bench).fold() is None


def test_a_fold_reports_what_a_rollback_restored(bench: DeltaRsBench) -> None:
    folds: list[FoldReport] = []
    pipeline = pipeline_of(bench, on_fold=folds.append)
    pipeline.apply_batch(APP, 0, frame([change("a", 1, "1"), change("b", 2, "1")]))
    pipeline.apply_batch(APP, 1, frame([change("a", 3, "2"), change("c", 4, "1")]))
    pipeline.fold()
    report = pipeline.apply_batch(APP, 2, frame([rollback(0, 2)]))
    assert report is not None
    assert report.rows == 0
    assert [(fold.upto, fold.documents, fold.removed, fold.restored) for fold in folds[1:]] == [(2, 1, 1, 2)]
    assert [item.to_seqno for item in report.rollbacks] == [2]
    assert pipeline.progress().rollbacks == 1


def test_the_first_attempt_of_a_batch_counts(bench: DeltaRsBench) -> None:
    pipeline_of(bench).apply_batch(APP, 0, frame([change("a", 1, "1")]))
    report = pipeline_of(bench).apply_batch(APP, 0, frame([change("no", 9, "")]))
    assert report is not None
    assert report.is_recovered
    assert [row["key"] for row in bench.rows("changes")] == ["a"]


def test_tables_without_their_checkpoint_are_refused(bench: DeltaRsBench) -> None:
    pipeline = pipeline_of(bench)
    pipeline.apply_batch(APP, 0, frame([change("a", 1, "1")]))
    (bench.path / "checkpoint" / "metadata").unlink()
    with pytest.raises(OffsetError, match="checkpoint is missing"):
        pipeline.start()
    assert Pipeline(None, bench.path, NEEDED, engine="delta-rs").fold() is None  # type: ignore[arg-type]


def test_a_last_fold_that_fails_is_a_failure_until_the_next_start(
    bench: DeltaRsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_of(bench)
    pipeline.apply_batch(APP, 0, frame([change("a", 1, "1")]))
    pipeline._query = EndedQuery()  # type: ignore[assignment]

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaRsEngine, "fold", fail)
        with pytest.raises(OSError, match="the disk is full"):
            pipeline.await_end()
    assert "the disk is full" in str(pipeline.failure)
    (bench.path / "checkpoint" / "metadata").unlink()
    with pytest.raises(OffsetError):
        pipeline.start()
    assert "checkpoint is missing" in str(pipeline.failure)


def test_values_are_bytes_unless_text_is_asked_for(tmp_path: Path) -> None:
    for options, name in ((NEEDED, "binary"), ({**NEEDED, "valueformat": "string"}, "string")):
        engine = Pipeline(None, tmp_path, options, engine="delta-rs").engine  # type: ignore[arg-type]
        assert isinstance(engine, DeltaRsEngine)
        assert [str(table.schema.field("value").type) for table in (engine.changes, engine.current)] == [name] * 2


def test_it_checks_its_options_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bucket"):
        Pipeline(None, tmp_path, {name: NEEDED[name] for name in NEEDED if name != "bucket"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("valueFormat", "variant", "binary or string"),
        ("inferSchema", "true", "whole documents"),
        ("metaPrefix", "_dcp_", "the source's names"),
        (
            "where",
            "op = 'mutation' and startswith(key, 'a')",
            "where cannot be 'op'.*key, scope, vbucket: the tables need all",
        ),
    ],
)
def test_it_refuses_to_leave_out_what_tables_need(tmp_path: Path, option: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pipeline(None, tmp_path, {**NEEDED, option: value}, engine="delta-rs")  # type: ignore[arg-type]
    Pipeline(None, tmp_path, {**NEEDED, "where": "startswith(key, 'a')"}, engine="delta-rs")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["s3://bucket/tables", "s3a:/bucket/tables", "hdfs://host/x", "abfss://c@a/x"])
def test_delta_rs_refuses_what_is_not_local(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="local directories only"):
        Pipeline(None, path, NEEDED, engine="delta-rs")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_delta_rs_knows_no_catalog(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not know Spark's catalogs"):
        Pipeline(None, tmp_path, NEEDED, engine="delta-rs", current="a.b.c")  # type: ignore[arg-type]


def test_an_unknown_engine_or_end_is_refused(bench: DeltaRsBench) -> None:
    with pytest.raises(ConfigError, match="delta-rs"):
        Pipeline(None, bench.path, NEEDED, engine="parquet")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'stopped', 'available' or 'now'"):
        pipeline_of(bench).start(until="forever")  # type: ignore[arg-type]


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    assert Pipeline(None, tmp_path.as_uri(), NEEDED, engine="delta-rs").path == str(tmp_path)  # type: ignore[arg-type]


def test_two_pipelines_whose_directories_have_one_name_have_two_names(tmp_path: Path) -> None:
    one, other = (Pipeline(None, tmp_path / part / "tables", NEEDED, engine="delta-rs") for part in "ab")  # type: ignore[arg-type]
    assert one.name != other.name


def test_before_it_is_started(bench: DeltaRsBench) -> None:
    pipeline = pipeline_of(bench)
    assert not pipeline.is_running
    assert pipeline.await_end()
    assert pipeline.failure is None
    assert pipeline.progress() == PipelineProgress()
    assert pipeline.engine.fold_rows_min == FOLD_ROWS_MIN
    pipeline.stop()


@pytest.mark.parametrize("path", ["s3a://bucket/tables", "dbfs:/tables", "hdfsx://host/tables"])
def test_a_checkpoint_without_notes_is_reported_once(bench: DeltaRsBench, path: str, caplog: Any) -> None:
    """Tasks write there through Arrow, which does not open every file system that Spark opens."""
    pipeline = Pipeline(None, path, NEEDED, engine=bench.engine())  # type: ignore[arg-type]
    assert pipeline._checkpoint_hint() == pipeline._checkpoint_hint() == {}
    (record,) = caplog.records
    assert f"{path}/checkpoint: tasks leave no notes" in record.getMessage()
    assert "documents that were deleted may stay" in record.getMessage()
    local = pipeline_of(bench)
    assert local._checkpoint_hint() == {"checkpointLocation": local.checkpoint}
    assert len(caplog.records) == 1
