from __future__ import annotations

import json
import pickle
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from dcpstream.arrow import CHANGE_SCHEMA, FULL_SCHEMA, ControlRow, change_schema, control_rows
from dcpstream.errors import ConfigError, FieldError
from dcpstream.model import Op
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.source.schema import Layout, default_schema, spark_schema
from tests.kit.cases import each_case

STRING, LONG, BINARY = t.StringType(), t.LongType(), t.BinaryType()


def options_of(**options: str) -> SourceOptions:
    needed = {"connectionString": "couchbase://localhost", "username": "u", "password": "p", "bucket": "b"}
    return SourceOptions.parse({**needed, **options})


def struct(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


def changes(*rows: tuple[str, bytes | None]) -> pa.RecordBatch:
    """Rows with these ops and values."""
    data = [
        {"key": f"k{number}", "op": op, "value": value, "vbucket": 3, "seqno": number}
        for number, (op, value) in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(data, FULL_SCHEMA)


@each_case("value_format", ["binary", "string"])
def test_both_schemas_are_the_one_that_spark_derives(value_format: Literal["binary", "string"]) -> None:
    names = FULL_SCHEMA.names
    built = change_schema(value_format, names)
    demanded = to_arrow_schema(spark_schema(names, value_format), timezone="UTC")
    assert demanded == pa.schema([built.field(name) for name in names])
    assert all(field.nullable for field in spark_schema(names, value_format))


def test_the_order_is_the_users() -> None:
    assert spark_schema(("seqno", "key"), "binary").names == ["seqno", "key"]


class TestColumnsOfTheSource:
    def test_the_default_is_all_but_the_text(self) -> None:
        layout = Layout(default_schema(options_of()), options_of())
        assert layout.columns == tuple(CHANGE_SCHEMA.names)
        assert layout.arrow == CHANGE_SCHEMA

    def test_rows_in_the_schema_are_passed_on(self) -> None:
        layout = Layout(default_schema(options_of()), options_of())
        rows = changes(("mutation", b"x")).select(layout.columns)
        assert layout.batch(rows) is rows
        with pytest.raises(TypeError, match="column seqno is string"):
            layout.batch(rows.set_column(rows.schema.get_field_index("seqno"), "seqno", pa.array(["1"])))

    def test_a_subset_in_any_order_is_built_alone(self) -> None:
        layout = Layout(struct(seqno=LONG, value_text=STRING, key=STRING), options_of())
        assert layout.columns == ("key", "value_text", "seqno")
        batch = layout.batch(changes(("mutation", b"x")).select(layout.columns))
        assert batch.schema.names == ["seqno", "value_text", "key"]
        assert batch.to_pylist() == [{"seqno": 0, "value_text": None, "key": "k0"}]

    def test_value_as_text(self) -> None:
        options = options_of(valueFormat="string")
        layout = Layout(struct(value=STRING), options)
        assert (layout.columns, layout.value_format) == (("value",), "string")
        assert Layout(default_schema(options), options).arrow.field("value").type == pa.string()

    def test_a_prefix(self) -> None:
        options = options_of(metaPrefix="_dcp_", columns="key,seqno")
        assert default_schema(options).names == ["_dcp_key", "_dcp_seqno"]
        layout = Layout(struct(_dcp_seqno=LONG, key=LONG), options)
        assert layout.sources == {"_dcp_seqno": "seqno"}
        (row,) = layout.batch(changes(("mutation", b'{"key": 5}'))).to_pylist()
        assert row == {"_dcp_seqno": 0, "key": 5}

    @each_case(
        ("schema", "options", "message"),
        [
            (
                struct(key=LONG),
                {},
                "schema cannot be 'key BIGINT'. Allowed: key STRING, a column of the source; to read a field key",
            ),
            (struct(value=STRING), {}, "value BINARY, a column of the source; valueFormat chooses its type"),
            (struct(value=BINARY), {"valueFormat": "string"}, "value STRING, a column of the source; valueFormat"),
            (t.StructType([]), {}, "one or more columns"),
            (t.StructType([t.StructField("key", STRING), t.StructField("key", STRING)]), {}, "different names"),
            (t.StructType([t.StructField("key", STRING, nullable=False)]), {}, "NOT NULL.*nullable columns"),
            (struct(name=t.DayTimeIntervalType()), {}, "makes no INTERVAL DAY TO SECOND of JSON"),
            (struct(name=t.VariantType()), {}, "from_json makes a VARIANT, this source does not; use parse_json"),
            (struct(name=t.MapType(LONG, LONG)), {}, "keys of a map are STRING, not BIGINT"),
            (struct(name=t.ArrayType(LONG, containsNull=False)), {}, "element is NOT NULL"),
            (struct(name=t.StructType()), {}, "a struct without fields"),
            (struct(_corrupt_record=LONG), {}, "_corrupt_record STRING, or _corrupt_record BINARY"),
            (struct(_dcp_key=LONG), {"metaPrefix": "_dcp_"}, "_dcp_key STRING"),
        ],
    )
    def test_what_cannot_be_made_is_refused(self, schema: t.StructType, options: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Layout(schema, options_of(**options))


class TestFields:
    SCHEMA = struct(
        key=STRING, name=STRING, age=t.IntegerType(), tags=t.ArrayType(STRING), more=struct(x=t.DecimalType(5, 2))
    )

    def test_types_are_those_that_spark_demands(self) -> None:
        schema = struct(
            a=t.BooleanType(), b=t.ByteType(), c=t.ShortType(), d=t.FloatType(), e=t.DoubleType(), f=t.DateType(),
            g=t.TimestampType(), h=t.TimestampNTZType(), i=t.MapType(STRING, t.ArrayType(BINARY)), j=self.SCHEMA,
        )  # fmt: skip
        assert Layout(schema, options_of()).arrow == to_arrow_schema(schema, timezone="UTC")

    def test_documents_and_columns_of_the_source(self) -> None:
        layout = Layout(self.SCHEMA, options_of())
        assert layout.columns == ("key", "value", "op")
        text = b'{"name": "Ada", "age": 36, "tags": ["a", null], "more": {"x": 1.5}, "key": "of the document"}'
        batch = layout.batch(changes(("mutation", text), ("deletion", None), ("deletion", text)))
        assert batch.schema == layout.arrow
        first, *others = batch.to_pylist()
        assert (first["key"], first["name"], first["age"], first["tags"]) == ("k0", "Ada", 36, ["a", None])
        assert str(first["more"]["x"]) == "1.50"
        assert [set(row.values()) for row in others] == [{"k1", None}, {"k2", None}]

    BAD = (("mutation", b'{"name": "a", "age": "x"}'), ("mutation", b"\xff"), ("mutation", b'{"age": 1}'))

    @each_case("kind", [STRING, BINARY])
    def test_permissive(self, kind: t.DataType) -> None:
        schema = t.StructType([*self.SCHEMA.fields, t.StructField("_corrupt_record", kind)])
        rows = Layout(schema, options_of()).batch(changes(*self.BAD, ("deletion", b"no JSON"))).to_pylist()
        bad = [row["_corrupt_record"] for row in rows]
        text = '{"name": "a", "age": "x"}'
        assert bad == ([text, "\ufffd", None, None] if kind == STRING else [text.encode(), b"\xff", None, None])
        assert [row["name"] for row in rows] == ["a", None, None, None]
        assert [row["age"] for row in rows] == [None, None, 1, None]

    def test_the_corrupt_column_may_have_another_name_and_be_alone(self) -> None:
        options = options_of(columnNameOfCorruptRecord="bad")
        rows = Layout(struct(key=STRING, bad=STRING), options).batch(changes(*self.BAD)).to_pylist()
        assert [row["bad"] for row in rows] == [None, "\ufffd", None]

    def test_dropmalformed(self) -> None:
        layout = Layout(self.SCHEMA, options_of(mode="dropMalformed"))
        rows = layout.batch(changes(*self.BAD, ("deletion", b"no JSON"))).to_pylist()
        assert [row["key"] for row in rows] == ["k2", "k3"]

    def test_failfast(self) -> None:
        layout = Layout(self.SCHEMA, options_of(mode="FAILFAST"))
        assert layout.batch(changes(("mutation", b"{}"), ("deletion", b"x"))).num_rows == 2
        with pytest.raises(
            FieldError, match=r"document 'k1' \(vbucket 3, seqno 1\) does not fit.*: no JSON object.*FAILFAST.*: nope"
        ):
            layout.batch(changes(("mutation", b"{}"), ("mutation", b"nope")))

    @each_case("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
    def test_control_rows_have_no_fields(self, mode: str) -> None:
        schema = t.StructType([*self.SCHEMA.fields, t.StructField("op", STRING), t.StructField("value", BINARY)])
        layout = Layout(schema, options_of(mode=mode))
        row = ControlRow(Op.ROLLBACK, 1, 10, 5, {"name": "x"})
        (found,) = layout.batch(control_rows([row], time=0, columns=layout.columns)).to_pylist()
        assert (found["op"], found["value"], found["name"]) == ("rollback", b'{"name":"x"}', None)

    def test_a_string_value_together_with_fields(self) -> None:
        layout = Layout(struct(value=STRING, name=STRING), options_of(valueFormat="string"))
        rows = layout.batch(changes(("mutation", b'{"name": "a"}'), ("mutation", b"\xff\\"))).to_pylist()
        assert rows == [{"value": '{"name": "a"}', "name": "a"}, {"value": "\\xff\\\\", "name": None}]

    def test_it_can_be_sent_to_a_worker(self) -> None:
        layout = pickle.loads(pickle.dumps(Layout(self.SCHEMA, options_of())))
        assert layout.batch(changes(("mutation", b'{"name": "a"}'))).to_pylist()[0]["name"] == "a"


class TestVariant:
    def python_of(self, cell: dict[str, bytes]) -> Any:
        from pyspark.sql.variant_utils import VariantUtils

        return json.loads(VariantUtils.to_json(cell["value"], cell["metadata"]))

    def test_type_and_values(self) -> None:
        options = options_of(valueFormat="variant", columns="key,value,op")
        schema = default_schema(options)
        layout = Layout(schema, options)
        demanded = to_arrow_schema(schema, timezone="UTC")
        assert layout.arrow.equals(demanded, check_metadata=True)
        texts = [b'{"b": [1, 2.5, null, true], "a": {"x": "\xc3\xa9"}}', b"5", b'"x"', b"null"]
        batch = layout.batch(changes(*(("mutation", text) for text in texts)))
        batch.validate(full=True)
        assert batch.schema.equals(demanded, check_metadata=True)
        assert [self.python_of(row["value"]) for row in batch.to_pylist()] == [json.loads(text) for text in texts]

    def test_what_is_no_json(self) -> None:
        options = options_of(valueFormat="variant")
        schema = t.StructType([*struct(key=STRING, _corrupt_record=BINARY).fields, *spark_schema(["value"], "variant")])
        texts = [b"\xff", b"", b"NaN", b"{", b'"\\ud800"', b"[" * 501 + b"]" * 501]
        rows = Layout(schema, options).batch(changes(*(("mutation", text) for text in texts))).to_pylist()
        assert [(row["_corrupt_record"], row["value"]) for row in rows] == [(text, None) for text in texts]

    def test_a_control_row_keeps_its_details(self) -> None:
        options = options_of(valueFormat="variant", columns="value")
        layout = Layout(default_schema(options), options)
        batch = control_rows([ControlRow(Op.ROLLBACK, 1, 10, 5, {"to": "7"})], time=0, columns=layout.columns)
        assert self.python_of(layout.batch(batch).to_pylist()[0]["value"]) == {"to": "7"}


def test_binary_and_text_documents_differ() -> None:
    """The escaped text cannot; the bytes, and the text that is null for bytes that are none, can."""
    both = (("mutation", b"\xff\x00\x01"), ("mutation", rb"\xff\x00\x01"))
    text = Layout(struct(value=STRING), options_of(valueFormat="string"))
    assert text.value_format == "string"
    exact = Layout(struct(value=BINARY), options_of())
    first, second = (row["value"] for row in exact.batch(changes(*both)).to_pylist())
    assert (first, second) == (b"\xff\x00\x01", rb"\xff\x00\x01")
