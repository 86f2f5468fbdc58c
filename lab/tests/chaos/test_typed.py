"""The judge's own idea of typed columns."""

from __future__ import annotations

from typing import Any

import pytest

from lab.chaos.kv import Document
from lab.chaos.typed import check_columns, check_rejects, fitting, typed

SCHEMA = "n INT, text STRING"


@pytest.mark.parametrize(
    ("value", "fields", "fits"),
    [
        (b'{"n":1,"text":"a"}', (1, "a"), True),
        (b'{"n":null,"more":[1]}', (None, None), True),
        (b'{"n":2147483648,"text":"a"}', (None, "a"), False),
        (b'{"n":"1","text":"a"}', (None, "a"), False),
        (b'{"n":true,"text":"a"}', (None, "a"), False),
        (b'[{"n":1}]', (None, None), False),
        (b"", (None, None), False),
        (b"\xff\x001", (None, None), False),
    ],
)
def test_a_document(value: bytes, fields: tuple[Any, Any], fits: bool) -> None:
    assert typed(value, SCHEMA) == (dict(zip(("n", "text"), fields, strict=True)), fits)


def row(value: bytes, **columns: Any) -> dict[str, Any]:
    return {"scope": "s", "collection": "c", "key": "k", "value": value, **columns}


def test_what_is_wrong_with_columns() -> None:
    good = row(b'{"n":1,"text":"a"}', n=1, text="a", _corrupt_record=None)
    large = b'{"n":2147483648}'
    bad = row(large, n=None, text=None, _corrupt_record=large.decode())
    assert check_columns("current", [good, bad], SCHEMA) == []
    for wrong in (
        {**good, "n": 2},
        {**good, "_corrupt_record": "x"},
        {**bad, "_corrupt_record": None},
        {name: value for name, value in good.items() if name != "text"},
    ):
        assert check_columns("current", [wrong], SCHEMA)


def test_rejects() -> None:
    state = {("s", "c", "k"): Document(b"[]"), ("s", "c", "l"): Document(b"{}")}
    reject = row(b"[]", reason="no JSON object")
    assert check_rejects([reject], state, SCHEMA) == []
    assert "1 documents differ" in check_rejects([], state, SCHEMA)[0]
    assert "twice" in check_rejects([reject, reject], state, SCHEMA)[0]
    assert "no reason" in check_rejects([{**reject, "reason": ""}], state, SCHEMA)[0]
    assert list(fitting(state, SCHEMA, "DROPMALFORMED")) == [("s", "c", "l")]
    assert fitting(state, SCHEMA, "PERMISSIVE") == state
