"""The rules of a fold as SQL: SQLite and the query engine of delta-rs answer alike. For Spark: `test_spark_engine`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest

from dcpstream_spark.tables.delta_rs import DeltaRsEngine, _answer
from tests.kit.tables import APP, DeltaRsBench, answered, change, questions, random_tables, rows_of, state_of, table_of


@pytest.mark.parametrize("seed", range(8))
def test_both_engines_answer_alike(seed: int, tmp_path: Path) -> None:
    from deltalake import write_deltalake

    changes, current, query = random_tables(random.Random(seed))
    engine = DeltaRsEngine(tmp_path)
    for table, rows in ((engine.changes, changes), (engine.current, current)):
        table.create()
        write_deltalake(str(table.path), rows, mode="append")
    versions = engine.changes.version(), engine.current.version()
    for sql in questions(query):
        assert rows_of(_answer(*versions, sql)) == rows_of(answered(changes, current, sql)), sql


def test_a_document_of_a_scope_without_a_name_is_replaced(tmp_path: Path) -> None:
    bench = DeltaRsBench(tmp_path)
    engine = cast("DeltaRsEngine", bench.engine())
    engine.create()
    for batch, value in enumerate(("1", "2", None)):
        row = {**change("a", batch + 1, value), "scope": None}
        engine.append(APP, batch, bench.frame(table_of([row])))
        engine.fold(APP, batch - 1 if batch else None, batch, ())
        expected = {} if value is None else {(None, "_default", "a"): (batch + 1, value.encode())}
        assert state_of(bench.rows("current")) == expected
