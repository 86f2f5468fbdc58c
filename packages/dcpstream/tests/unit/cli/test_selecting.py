"""The selection of changes that are shown."""

from __future__ import annotations

import pytest

from dcpstream.cli.selecting import JsonPath, key_selector, selector
from dcpstream.client import Change
from dcpstream.errors import ConfigError
from tests.kit.cases import each_case

DOCUMENT = {"order": {"items": [{"sku": "x"}, {"n": 2}]}, "city": "Bonn"}


@each_case(
    ("path", "matches"),
    [
        ("city", True),
        ("$.city=Bonn", True),
        ('city="Bonn"', True),
        ("city=Köln", False),
        ("order.items[1].n=2", True),
        ("order.items[1].n=3", False),
        ("order.items[2]", False),
        ("city.name", False),
        ("order.items.n", False),
        ("town", False),
    ],
)
def test_paths_into_documents(path: str, matches: bool) -> None:
    assert JsonPath.parse(path).matches(DOCUMENT) is matches


@each_case("path", ["", "=3", "a..b", "a[x]", "$"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(ConfigError, match="is no path"):
        JsonPath.parse(path)


def change(op: str = "mutation", key: bytes = b"order::1", value: bytes | None = b'{"n": 1}', cas: int = 10) -> Change:
    return Change(op, key, value, "_default", "_default", 0, 1, 5, 1, cas, 0, 1, 0)


@each_case(
    ("given", "is_shown"),
    [
        (change(), True),
        (change(key=b"item::1"), False),
        (change(key=b"order::x"), False),
        (change(value=b"no json"), False),
        (change(value=None), False),
        (change(value=b'{"n": 2}'), False),
        (change(cas=4), False),
        (change(op="rollback", key=b"", value=None, cas=0), True),
    ],
)
def test_all_conditions_must_hold_but_control_rows_are_always_shown(given: Change, is_shown: bool) -> None:
    wanted = selector(key_selector("order", r"\d$"), paths=[JsonPath.parse("n=1")], since_ns=5)
    assert wanted(given) is is_shown
