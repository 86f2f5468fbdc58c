"""What the pipeline does with a batch, without Spark: it is handed the rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dcpstream.columnar import change_schema, rollback_row
from dcpstream.errors import ConfigError, OffsetError
from dcpstream.pipelines import Pipeline, PipelineProgress
from dcpstream.pipelines.tables import CurrentTable

NEEDED = {"connectionString": "couchbase://localhost", "username": "u", "password": "p", "bucket": "b"}
APP = "query"


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline(None, tmp_path / "tables", NEEDED)  # type: ignore[arg-type]
    pipeline.changes.create()
    pipeline.current.create()
    return pipeline


def rows(*changes: tuple[str, int, str | None], rolled_back: bool = False) -> Callable[[], pa.Table]:
    """(key, seqno, value or None for a deletion), all of vbucket 0."""
    schema = change_schema("string")
    parts = [
        pa.Table.from_pylist(
            [
                {
                    "key": key,
                    "seqno": seqno,
                    "value": value,
                    "_change_type": "delete" if value is None else "insert",
                    "op": "deletion" if value is None else "mutation",
                    "scope": "_default",
                    "collection": "_default",
                    "vbucket": 0,
                }
                for key, seqno, value in changes
            ],
            schema=schema,
        )
    ]
    if rolled_back:
        parts.insert(0, pa.Table.from_batches([rollback_row(0, 9, 0, 1, 2, time=0.0, value_format="string")]))
    return lambda: pa.concat_tables(parts)


def refuse() -> pa.Table:
    raise AssertionError("nobody needs the rows")


def current(pipeline: Pipeline) -> dict[str, str]:
    return {row["key"]: row["value"] for row in pipeline.current.open().to_pyarrow_table().to_pylist()}


def seqnos(pipeline: Pipeline) -> list[int]:
    table = pipeline.changes.open().to_pyarrow_table().to_pylist()
    return sorted(row["seqno"] for row in table if row["op"] != "rollback")


def test_a_batch_counts_once(pipeline: Pipeline) -> None:
    report = pipeline.apply_batch(APP, 0, rows(("a", 1, "1"), ("b", 2, "1"), ("b", 3, None)))
    assert report is not None
    assert (report.rows, report.documents, report.removed, report.is_recovered) == (3, 2, 1, False)
    assert pipeline.apply_batch(APP, 0, refuse) is None
    assert (current(pipeline), seqnos(pipeline)) == ({"a": "1"}, [1, 2, 3])


def test_an_empty_batch_writes_nothing(pipeline: Pipeline) -> None:
    assert pipeline.apply_batch(APP, 0, rows()) is None
    assert pipeline.changes.open().version() == 0


def fail(*_: Any) -> None:
    raise RuntimeError("died")


def test_after_a_death_in_between_the_first_attempt_counts(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(CurrentTable, "apply", fail)
        with pytest.raises(RuntimeError, match="died"):
            pipeline.apply_batch(APP, 0, rows(("a", 1, "1"), ("b", 2, "1")))
    # The replay holds fewer rows, or those of another history: nobody asks for them.
    report = pipeline.apply_batch(APP, 0, refuse)
    assert report is not None
    assert report.is_recovered
    assert (current(pipeline), seqnos(pipeline)) == ({"a": "1", "b": "1"}, [1, 2])
    pipeline.apply_batch(APP, 1, rows(("b", 3, "2")))
    assert (current(pipeline), seqnos(pipeline)) == ({"a": "1", "b": "2"}, [1, 2, 3])


def test_after_a_death_in_a_rollback_the_first_attempt_counts(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.apply_batch(APP, 0, rows(("a", 1, "old"), ("void", 2, "old")))
    with monkeypatch.context() as patch:
        patch.setattr(CurrentTable, "apply", fail)
        with pytest.raises(RuntimeError, match="died"):
            pipeline.apply_batch(APP, 1, rows(("a", 1, "new"), rolled_back=True))
    assert seqnos(pipeline) == [1]
    report = pipeline.apply_batch(APP, 1, refuse)
    assert report is not None
    assert [rollback.to_seqno for rollback in report.rollbacks] == [0]
    assert current(pipeline) == {"a": "new"}


def test_a_new_query_starts_with_batch_0_again(pipeline: Pipeline) -> None:
    pipeline.apply_batch(APP, 7, rows(("a", 1, "1")))
    assert pipeline.apply_batch("another", 0, rows(("b", 2, "1"))) is not None
    assert current(pipeline) == {"a": "1", "b": "1"}


def test_tables_without_their_checkpoint_are_refused(pipeline: Pipeline) -> None:
    pipeline.apply_batch(APP, 0, rows(("a", 1, "1")))
    with pytest.raises(OffsetError, match="checkpoint is missing"):
        pipeline.start()


def test_values_may_be_bytes(tmp_path: Path) -> None:
    pipeline = Pipeline(None, tmp_path, {**NEEDED, "valueformat": "binary"})  # type: ignore[arg-type]
    assert pipeline.changes.schema.field("value").type == pa.binary()
    assert pipeline.current.schema.field("value").type == pa.binary()


def test_it_checks_its_options_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bucket"):
        Pipeline(None, tmp_path, {name: NEEDED[name] for name in NEEDED if name != "bucket"})  # type: ignore[arg-type]


def test_before_it_is_started(pipeline: Pipeline) -> None:
    assert not pipeline.is_running
    assert pipeline.await_end()
    assert pipeline.failure is None
    assert pipeline.progress() == PipelineProgress()
    pipeline.stop()
