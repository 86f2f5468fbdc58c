"""The schema of changes."""

from __future__ import annotations

import pytest

from dcpstream.arrow import CHANGE_SCHEMA, change_schema
from dcpstream.errors import ConfigError
from tests.kit.cases import each_case


def test_chosen_columns_keep_the_order() -> None:
    assert change_schema(columns=["seqno", "key"]).names == ["key", "seqno"]
    assert change_schema(columns=["seqno"], missing="null") == CHANGE_SCHEMA
    assert change_schema(columns=[]).names == []


@each_case(
    ("arguments", "option", "value"),
    [
        ({"value_format": "json"}, "value_format", "json"),
        ({"columns": ["key", "kex", "another"]}, "columns", "another, kex"),
        ({"missing": "zero"}, "missing", "zero"),
    ],
)
def test_wrong_options_are_named(arguments: dict[str, str], option: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        change_schema(**arguments)
    assert (caught.value.option, caught.value.value) == (option, value)
    assert "key" in str(caught.value.allowed) or " or " in str(caught.value.allowed)
