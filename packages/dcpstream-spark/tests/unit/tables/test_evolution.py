"""The columns of a table and those that the user asks for, brought together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from dcpstream.errors import ConfigError, LocalProtocolError
from dcpstream_spark.tables import Pipeline
from dcpstream_spark.tables.delta_rs import DeltaRsEngine
from dcpstream_spark.tables.evolution import columns_of, fields_of
from tests.kit.tables import APP, NEEDED, ArrowFrame, DeltaRsBench, Row, change, pipeline_of, table_of


def struct(**kinds: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


INT, LONG, TEXT, DOUBLE = t.IntegerType(), t.LongType(), t.StringType(), t.DoubleType()


@pytest.fixture
def bench(tmp_path: Path) -> DeltaRsBench:
    path = tmp_path / "tables"
    path.mkdir()
    return DeltaRsBench(path)


def frame(rows: list[Row]) -> Any:
    return ArrowFrame(table_of(rows))


def typed_columns(bench: DeltaRsBench) -> dict[str, str]:
    columns = bench.engine().typed_columns()
    assert columns is not None
    return {column.name: str(column.type) for column in columns}


def version_of(bench: DeltaRsBench) -> int:
    engine = bench.engine()
    assert isinstance(engine, DeltaRsEngine)
    return int(engine.current.open().version())


def written(bench: DeltaRsBench, schema: Any, value: str = '{"a": 1}', **options: Any) -> Pipeline:
    pipeline = pipeline_of(bench, schema=schema, **options)
    pipeline.apply_batch(APP, 0, frame([change("k", 1, value)]))
    pipeline.fold()
    return pipeline


TOGETHER = [
    (INT, LONG, "int64"),
    (LONG, INT, "int64"),
    (t.ByteType(), t.ShortType(), "int16"),
    (INT, DOUBLE, "double"),
    (t.FloatType(), DOUBLE, "double"),
    (t.DecimalType(10, 2), t.DecimalType(12, 4), "decimal128(12, 4)"),
    (t.DecimalType(10, 0), t.DecimalType(10, 2), "decimal128(12, 2)"),
    (t.ArrayType(INT), t.ArrayType(LONG), "list<element: int64>"),
    (t.MapType(TEXT, INT), t.MapType(TEXT, LONG), "map<string, int64>"),
    (struct(x=INT, y=TEXT), struct(z=INT, x=LONG), "struct<x: int64, y: string, z: int32>"),
]
"""The type that a column has, another that is asked for, and what it becomes."""
APART = [
    (LONG, DOUBLE),
    (INT, TEXT),
    (TEXT, INT),
    (struct(x=INT), struct(x=TEXT)),
    (t.ArrayType(INT), INT),
    (t.DateType(), t.TimestampType()),
    (t.DecimalType(38, 0), t.DecimalType(38, 10)),
]


def test_types_that_go_together(bench: DeltaRsBench) -> None:
    written(bench, struct(**{f"a{n}": old for n, (old, _, _) in enumerate(TOGETHER)}), "{}")
    pipeline_of(bench, schema=struct(**{f"a{n}": new for n, (_, new, _) in enumerate(TOGETHER)}, b=INT)).fold()
    found = typed_columns(bench)
    assert {name: found[name] for name in list(found)[:-2]} == {
        f"a{n}": together for n, (_, _, together) in enumerate(TOGETHER)
    }
    assert list(found)[-2:] == ["b", "_corrupt_record"]


def test_types_that_do_not_go_together(bench: DeltaRsBench) -> None:
    old = {f"a{n}": one for n, (one, _) in enumerate(APART)}
    written(bench, struct(**old), "{}")
    for n, (_, new) in enumerate(APART):
        again = pipeline_of(bench, schema=struct(**{**old, f"a{n}": new}, b=INT))
        with pytest.raises(ConfigError, match=r"the type that current has, or a wider one. Pipeline.rebuild writes"):
            again.fold()
        assert list(typed_columns(bench)) == [*old, "_corrupt_record"], n
    pipeline_of(bench, schema=struct(**{f"a{n}": new for n, (_, new) in enumerate(APART)}, b=INT)).rebuild()
    assert list(typed_columns(bench)) == [*old, "b", "_corrupt_record"]


def test_the_same_schema_writes_nothing(bench: DeltaRsBench) -> None:
    written(bench, struct(a=INT, b=TEXT, c=t.ArrayType(struct(d=t.DecimalType(5, 1)))))
    version = version_of(bench)
    for schema in (struct(b=TEXT, a=INT), struct(a=t.ByteType()), "infer"):
        pipeline_of(bench, schema=schema).fold()
    assert version_of(bench) == version


def test_fields_of_another_prefix(bench: DeltaRsBench) -> None:
    written(bench, struct(key=INT), '{"key": 4}', field_prefix="doc_")
    assert [(row["key"], row["doc_key"]) for row in bench.rows("current")] == [("k", 4)]
    with pytest.raises(ConfigError, match="the prefix that current was made with: it has a column doc_key"):
        pipeline_of(bench, schema=struct(a=INT), field_prefix="my_").fold()


def test_tables_without_types_get_them(bench: DeltaRsBench) -> None:
    pipeline = pipeline_of(bench)
    pipeline.apply_batch(APP, 0, frame([change("k", 1, '{"a": 1}')]))
    pipeline.fold()
    pipeline_of(bench, schema=struct(a=INT)).fold()
    assert [row["a"] for row in bench.rows("current")] == [1]
    with pytest.raises(ConfigError, match="a schema, because current has typed columns; 'infer' keeps them"):
        pipeline_of(bench).fold()
    assert bench.engine().folded(APP) == 0


def test_documents_that_did_not_fit_come_with_a_schema_that_they_fit(bench: DeltaRsBench) -> None:
    written(bench, struct(a=INT), '{"a": 3000000000}', mode="DROPMALFORMED")
    assert bench.rows("current") == []
    pipeline_of(bench, schema=struct(a=LONG), mode="DROPMALFORMED").fold()
    assert [row["a"] for row in bench.rows("current")] == [3_000_000_000]


def test_readers_see_the_columns_that_the_table_has(bench: DeltaRsBench) -> None:
    written(bench, struct(a=INT))
    version = version_of(bench)
    table: Any = pipeline_of(bench, schema=struct(a=LONG, b=INT)).live()
    assert table.schema.names[-2:] == ["a", "_corrupt_record"]
    assert version_of(bench) == version


def test_a_change_of_columns_is_no_batch(bench: DeltaRsBench) -> None:
    """Tables with columns but without a batch may be used by a new checkpoint."""
    for schema in (struct(a=INT), struct(a=INT, b=INT)):
        pipeline = Pipeline(None, bench.path, NEEDED, engine="delta-rs", schema=schema)  # type: ignore[arg-type]
        pipeline._typing.prepare(pipeline.engine, lambda: None)
    assert version_of(bench) == 1
    assert not bench.engine().state().is_written
    written(bench, struct(a=INT))
    assert bench.engine().state().is_written


def test_a_rebuild_is_of_changes(bench: DeltaRsBench) -> None:
    pipeline = written(bench, struct(a=INT))
    pipeline.apply_batch(APP, 1, frame([change("k", 2, '{"a": 2}'), change("gone", 3, None)]))
    engine = bench.engine()
    assert isinstance(engine, DeltaRsEngine)
    engine.current.open().delete("key = 'k'")
    report = pipeline.rebuild()
    assert report is not None
    assert report.upto == 1
    assert [(row["key"], row["a"]) for row in bench.rows("current")] == [("k", 2)]


def test_a_running_pipeline_is_not_rebuilt(bench: DeltaRsBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pipeline, "is_running", True)
    with pytest.raises(LocalProtocolError, match="the pipeline is running"):
        pipeline_of(bench, schema=struct(a=INT)).rebuild()


def test_rejects_and_modes_need_a_schema(bench: DeltaRsBench) -> None:
    with pytest.raises(ConfigError, match=r"^mode is given without a schema, and every document fits then"):
        pipeline_of(bench, mode="FAILFAST")
    with pytest.raises(ConfigError, match=r"^rejects is given without a schema, and every document fits then"):
        pipeline_of(bench, rejects="a.b.c")
    with pytest.raises(ConfigError, match="without a schema every document fits"):
        pipeline_of(bench).rejects()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (t.StructType([t.StructField("a", INT, nullable=False)]), "a document may lack one"),
        (struct(a=t.MapType(INT, INT)), "keys of a map are STRING"),
        (struct(a=t.VariantType()), "from_json makes a VARIANT, this source does not; use parse_json"),
        (struct(_corrupt_record=TEXT), "at least one field"),
    ],
)
def test_schemas_that_cannot_be(bench: DeltaRsBench, schema: t.StructType, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pipeline_of(bench, schema=schema)


def test_the_column_for_malformed_documents_may_be_named(bench: DeltaRsBench) -> None:
    written(bench, struct(a=INT, _corrupt_record=TEXT))
    assert list(typed_columns(bench)) == ["a", "_corrupt_record"]


def test_a_sample_leaves_out_names_that_cannot_be_columns() -> None:
    schema = struct(a=INT, **{"b c": INT, "d": struct(**{"e.f": INT}), "g": t.ArrayType(struct(h=INT, **{"i,": INT}))})
    assert json.dumps(columns_of(fields_of(schema)).names) == '["a", "g"]'
    assert columns_of(fields_of(schema)).field("g").type == pa.list_(
        pa.field("element", pa.struct([("h", pa.int32())]))
    )
