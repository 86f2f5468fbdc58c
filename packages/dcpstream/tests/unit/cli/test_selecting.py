"""The selection of changes that are shown."""

from __future__ import annotations

import pytest

from dcpstream.cli.selecting import JsonPath
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
