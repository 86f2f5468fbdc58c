"""The rule of typed columns: its SQL does as `dcpstream_spark.typed_columns.fitting` does."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dcpstream_spark.tables.document_sql import IS_UNFIT, judged, reason
from dcpstream_spark.tables.document_types import DocumentTypes
from dcpstream_spark.tables.evolution import fields_of
from dcpstream_spark.tables.fold_sql import FoldQuery
from dcpstream_spark.tables.rows import IS_REMOVED, current_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DDL = (
    "name STRING, age INT, born DATE, tags ARRAY<STRING>, nums ARRAY<INT>, "
    "more STRUCT<x: DECIMAL(6,2), y: INT, z: STRUCT<q: BIGINT>>, at TIMESTAMP, ntz TIMESTAMP_NTZ, ok BOOLEAN, "
    "map MAP<STRING, STRUCT<x: INT>>, ratio DOUBLE, f FLOAT, data BINARY, s SMALLINT, big BIGINT, d20 DECIMAL(20,0), "
    "objs ARRAY<STRUCT<a: INT, b: STRING>>"
)

ALIKE = [
    *rb"""
{}|{broken|[1,2]|[]|[{"age":1}]|[{"age":1},{"age":2}]|null|1|"x"|| |{"age":1} x|{"age":1}{"age":2}|{"age":1}}
{"age":1},"e":2|{'age':1}|{age:1}|{"age":01}|{"age":1,}|{"age":NaN}|{"ratio":NaN,"age":1}|{"ratio":-Infinity}
{"ratio":1e400}|{"ratio":-1e400}|{"f":1e39}|{"f":0.1}|{"f":16777217}|{"age":2147483648}|{"age":-2147483648}|{"age":1.0}
{"age":1e2}|{"age":"1"}|{"age":true}|{"age":null}|{"age":[1]}|{"age":{"a":1}}|{"age":1,"age":2}|{"age":1,"age":null}
{"s":32768,"age":3}|{"big":9223372036854775807}|{"big":9223372036854775808}|{"d20":18446744073709551615}
{"d20":123456789012345678901}|{"d20":1.5}|{"d20":"1,000"}|{"d20":"x"}|{"d20":1e5}|{"name":1}|{"name":true}
{"name":{"a" : 1 , "b":[1, 2]}}|{"name":[1,  "x\u00e9"]}|{"name":"\u00e9"}|{"name":"\ud800"}|{"name":""}|{"age":""}
{"ratio":""}|{"born":""}|{"name":"\/"}|{"name":{"a":"\/\u00e9"}}|{"born":"2024-05-01"}|{"born":"2024-5-1"}
{"born":"2024-13-01"}|{"born":"2024-02-30"}|{"born":"2024"}|{"born":5}|{"born":"2024-05-01T10:00:00"}
{"born":"0001-01-01"}|{"born":"epoch"}|{"born":" 2024-05-01 "}|{"at":"2024-05-01T10:00:00Z"}
{"at":"2024-05-01T10:00:00.123456789+02:00"}|{"at":"2024-05-01 10:00:00"}|{"at":"2024-05-01"}|{"at":1714557600}
{"at":1.5}|{"at":"x"}|{"at":"2024-05-01T24:00:00Z"}|{"at":"2024-05-01T10:00:60Z"}|{"at":""}
{"ntz":"2024-05-01T10:00:00"}|{"ntz":"2024-05-01T10:00:00Z"}|{"ntz":5}|{"tags":[1,null,{"a":1}]}|{"tags":"x"}
{"tags":{}}|{"nums":[1,"x",3]}|{"nums":[1,null]}|{"nums":[[1]]}|{"objs":[{"a":1,"b":2},{"a":"x","b":"y"},null]}
{"objs":{"a":1}}|{"objs":[1]}|{"objs":[[{"a":1}]]}|{"more":{"x":1.005,"y":"n","z":{"q":"no"}},"age":4}|{"more":[]}
{"more":[{"y":1}]}|{"more":{"x":12345.6}}|{"more":"{}"}|{"more":{"z":{"q":5}}}|{"more":{}}
{"map":{"a":{"x":1},"b":{"x":"n"}}}|{"map":{"a":1}}|{"map":{"a":null}}|{"map":{}}|{"ok":"true"}|{"ok":1}
{"data":"AAH/"}|{"data":"!!"}|{"data":""}|{"data":5}|{"ratio":"1.5"}|{"ratio":"NaN"}|{"ratio":5}
{"ratio":12345678901234567890123}|{"Age":1,"AGE":2}|{"age":1 /* c */}
""".strip()
    .replace(b"\n", b"|")
    .split(b"|"),
    b' \n\t{"age": 1}\r\n ',
    b'{"name":"a\nb"}',
    b'{"name":"\xff"}',
    b"\xff\xfe",
    b'{"name":"\xed\xa0\x80"}',
    b'\xef\xbb\xbf{"age":1}',
    b'{"age":1}\x00',
    b'{"a\x01":1}',
]

OTHER = {
    # of a name that occurs twice, the parser takes the last; from_json keeps what fits, and notes the other
    b'{"age":"x","age":2}': ((2, False), (2, True)),
    b'{"age":2,"age":"x"}': ((None, True), (2, True)),
    # from_json writes numbers in a text in Java's way
    b'{"name":1.50}': (("1.50", False), ("1.5", False)),
    b'{"name":1e3}': (("1e3", False), ("1000.0", False)),
    # from_json knows names of zones
    b'{"at":"2024-05-01T10:00:00 Europe/Paris"}': ((None, True), (datetime(2024, 5, 1, 8), False)),  # noqa: DTZ001
    b'{"ratio":+Infinity}': ((None, True), (float("inf"), False)),
    # from_json reads numbers of at most 1000 digits, and nesting up to 1000 levels; the parser 500 levels
    b'{"ratio":1' + b"0" * 1200 + b"}": ((float("inf"), False), (None, True)),
    b'{"x":' + b"[" * 600 + b"]" * 600 + b"}": ((None, True), (None, False)),
}
"""Documents on which the two differ: (first field, whether it does not fit) of delta-rs, and of Spark."""


def both(spark: SparkSession, types: DocumentTypes, documents: list[bytes]) -> tuple[list[Any], list[Any]]:
    """(as Python does, as the SQL does): typed columns, whether the row is left out, why the document does not fit."""
    schema = current_schema("binary")
    rows = pa.Table.from_pylist(
        [{"key": str(number), "value": value} for number, value in enumerate(documents)], schema=schema
    )
    ours, is_unfit = types.with_columns(rows, rows.column("value"))
    names = ["value", *types.columns.names]
    mine = [
        {**row, "left_out": bool(not stays), "reason": types.documents.reason(row["value"]) if unfit else None}
        for row, stays, unfit in zip(
            ours.select(names).to_pylist(), types.documents.stay(is_unfit), is_unfit, strict=True
        )
    ]
    spark.createDataFrame(rows).createOrReplaceTempView("dcp_documents")
    spark.sql(FoldQuery("none", "dcp_documents", types, 0).retyped()).createOrReplaceTempView("dcp_typed")
    spark.sql(
        f"SELECT key, {reason(types)} AS reason FROM ({judged('dcp_documents', types, 'false')}) WHERE {IS_UNFIT}"
    ).createOrReplaceTempView("dcp_reasons")
    theirs = spark.sql(f"""
        SELECT {", ".join(f"`{name}`" for name in names)}, {IS_REMOVED} AS left_out, reason
        FROM dcp_typed LEFT JOIN dcp_reasons USING (key) ORDER BY CAST(key AS INT)
    """)
    return mine, theirs.toArrow().to_pylist()


def plain(value: Any) -> Any:
    """A value that can be compared: NaN equals itself, and zones are UTC."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return value if isinstance(value, Decimal | date) else repr(value)


@pytest.mark.slow
def test_the_engines_judge_hard_documents_alike(spark: SparkSession) -> None:
    types = DocumentTypes(fields_of(DDL), "DROPMALFORMED")
    documents = [*ALIKE, *OTHER]
    mine, theirs = both(spark, types, documents)
    differing = [value for value, one, other in zip(documents, mine, theirs, strict=True) if plain(one) != plain(other)]
    assert differing == list(OTHER)
    for value, one, other in zip(documents, mine, theirs, strict=True):
        if value in OTHER:
            first = next((name for name in types.fields.names if f'"{name}"'.encode() in value), "name")
            found = tuple((plain(row[first]), row["left_out"]) for row in (one, other))
            assert found == tuple((plain(wanted), unfit) for wanted, unfit in OTHER[value]), value
