"""The rule of typed columns: which documents fit, and what becomes of the others."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from dcpstream.errors import ConfigError, FieldError
from dcpstream_spark.typed_columns.fitting import DocumentColumns, Mode, corrupt_records
from tests.kit.cases import each_case

NAMES = pa.schema([("name", pa.string()), ("age", pa.int32())])
ROWS = pa.table(
    {
        "key": ["late", "early", "good", "gone"],
        "vbucket": [7, 3, 1, 1],
        "seqno": [1, 9, 5, 6],
        "value": pa.array([b"[]", b'{"age": 1.5}', b'{"age": 1}', None], pa.binary()),
    }
)


@each_case(
    ("value", "reason"),
    [
        (b'{"name": 1}', ""),
        (b'{"name": "x", "age": null}', ""),
        ('{"name": "é"}', ""),
        (b'{"age": 1.5, "name": {}}', "not of the schema's type: age"),
        (b"\xff{}", "not UTF-8"),
        (b"[{}]", "no JSON object"),
        (b'{"age": 1', "no JSON object"),
        (b"", "no JSON object"),
    ],
)
def test_a_document_that_does_not_fit_has_a_reason(value: str | bytes, reason: str) -> None:
    columns = DocumentColumns(NAMES, "PERMISSIVE")
    assert columns.reason(value) == reason
    data = value.encode() if isinstance(value, str) else value
    assert columns.parse(pa.array([data], pa.binary())).is_malformed.tolist() == [reason != ""]


@each_case(("mode", "stay"), [("PERMISSIVE", [True] * 4), ("DROPMALFORMED", [False, False, True, True])])
def test_rows_that_stay(mode: str, stay: list[bool]) -> None:
    columns = DocumentColumns(NAMES, cast("Mode", mode))
    is_unfit = columns.parse(ROWS.column("value").combine_chunks()).is_malformed
    columns.check(ROWS, is_unfit)
    assert columns.stay(is_unfit).tolist() == stay


@each_case(("scope", "place"), [(None, ""), ("s", " of s.c")])
def test_failfast_names_the_first_by_vbucket_and_seqno(scope: str | None, place: str) -> None:
    columns = DocumentColumns(NAMES, "FAILFAST")
    rows = ROWS.append_column("scope", pa.array([scope] * 4, pa.string()))
    rows = rows.append_column("collection", pa.array(["c"] * 4))
    columns.check(rows, np.zeros(4, np.bool_))
    with pytest.raises(FieldError) as caught:
        columns.check(rows, columns.parse(ROWS.column("value").combine_chunks()).is_malformed)
    assert str(caught.value) == (
        f"document 'early'{place} (vbucket 3, seqno 9) does not fit the schema: not of the schema's type: age. Mode is "
        "FAILFAST. Correct the document or the schema, or choose mode=PERMISSIVE: such a document then has nulls, and "
        '_corrupt_record holds it. The document is: {"age": 1.5}'
    )


def test_corrupt_records_as_text_and_as_bytes() -> None:
    values, is_unfit = pa.array([b"a\xff", b"{", b"{}", None], pa.binary()), np.array([True, True, False, False])
    assert corrupt_records(values, is_unfit, pa.binary()).to_pylist() == [b"a\xff", b"{", None, None]
    assert corrupt_records(values, is_unfit, pa.string()).to_pylist() == ["a\ufffd", "{", None, None]


def test_an_unknown_mode() -> None:
    with pytest.raises(ConfigError, match="PERMISSIVE, DROPMALFORMED or FAILFAST"):
        DocumentColumns(NAMES, cast("Mode", "IGNORE"))
