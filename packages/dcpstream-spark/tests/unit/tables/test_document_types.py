"""Typed columns of `current`: which fields can be columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dcpstream.errors import ConfigError
from dcpstream_spark.tables.document_types import DocumentTypes
from dcpstream_spark.typed_columns.fitting import CORRUPT
from tests.kit.cases import each_case

NAMES = pa.schema([("name", pa.string()), ("age", pa.int32())])


def test_columns_have_the_prefix() -> None:
    types = DocumentTypes(NAMES, prefix="doc_")
    assert types.columns.names == ["doc_name", "doc_age", CORRUPT]
    rows, is_unfit = types.with_columns(pa.table({"key": ["a", "b"]}), pa.chunked_array([[b'{"age": 1}', None]]))
    assert rows.to_pylist() == [
        {"key": "a", "doc_name": None, "doc_age": 1, CORRUPT: None},
        {"key": "b", "doc_name": None, "doc_age": None, CORRUPT: None},
    ]
    assert not is_unfit.any()


def test_text_is_parsed_as_its_utf8() -> None:
    rows, is_unfit = DocumentTypes(NAMES).with_columns(
        pa.table({"n": [1, 2]}), pa.chunked_array([['{"name": "é"}', "x"]])
    )
    assert rows.column("name").to_pylist() == ["é", None]
    assert is_unfit.tolist() == [False, True]


@each_case(
    ("fields", "prefix", "message"),
    [
        ([("Value", pa.string())], "", "a prefix like doc_, because current has columns Value of its own"),
        ([("_is_removed", pa.string())], "", "a prefix like doc_"),
        ([("value", pa.string())], "my ", "field_prefix cannot be 'my '"),
        ([("a", pa.string()), ("A", pa.string())], "", "differ in more than upper and lower case"),
        ([("a b", pa.string())], "", "field names without spaces"),
        ([("a", pa.list_(pa.struct([("b.c", pa.int32())])))], "", "schema cannot be 'b.c'"),
        ([("a", pa.map_(pa.string(), pa.struct([("", pa.int32())])))], "", "field names without spaces"),
        ([], "", "at least one field"),
    ],
)
def test_fields_that_cannot_be_columns(fields: list[tuple[str, pa.DataType]], prefix: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DocumentTypes(pa.schema(fields), prefix=prefix)


def test_a_prefix_lets_any_field_be_a_column() -> None:
    fields = pa.schema([("value", pa.string()), ("key", pa.int64())])
    assert DocumentTypes(fields, prefix="doc_").columns.names == ["doc_value", "doc_key", CORRUPT]
