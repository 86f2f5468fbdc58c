"""Which collection is in which table."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dcpstream.errors import ConfigError
from dcpstream_spark.tables.engines import TableTarget, choose_parts
from dcpstream_spark.tables.table_names import Rule, TableNames, in_catalog
from tests.kit.cases import each_case


def test_a_name_with_placeholders() -> None:
    names = TableNames("{scope}.{collection}")
    assert names.of(("_default", "_default")) == "_default._default"
    assert names.of(("a-b", "c%d")) == "a-b.c%d"
    assert names.collections is None
    assert TableNames("{scope}").of(("s", "c")) == "s"


def test_a_mapping() -> None:
    names = TableNames({"shop.orders": "orders", "shop.*": "other", "archive.*": "archive_{collection}"})
    assert [names.of(("shop", "orders")), names.of(("shop", "x"))] == ["orders", "other"]
    assert names.of(("archive", "2024")) == "archive_2024"
    assert names.of(("another", "orders")) is None
    assert names.collections == "archive.*,shop.*,shop.orders"


@each_case(
    "rule",
    [
        "",
        "orders",
        "{bucket}",
        "{scope!r}",
        "{scope:3}",
        "{",
        "{}",
        {},
        {"orders": "o"},
        {"a.b.c": "o"},
        {"s.": "o"},
        {"s.c": 3},
    ],
)
def test_what_is_no_rule(rule: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        TableNames(rule)
    assert raised.value.option == "tables"


@each_case("name", ["changes", "Current", "live", "checkpoint", "a/b", "..", ".hidden"])
def test_what_is_no_name_of_a_table(name: str) -> None:
    with pytest.raises(ConfigError, match=r"s\.c"):
        TableNames({"s.c": name}).of(("s", "c"))


class Session:
    """As much of a session as the choice of an engine looks at. It knows Delta's statements."""

    def sql(self, statement: str) -> Session:
        return self

    def collect(self) -> list[object]:
        return []


@each_case("rule", ["{scope}.{collection}", {"s.a": "plain", "s.b": "v1.b"}])
@each_case("option", ["current", "live", "rejects"])
def test_a_rule_whose_names_have_dots_is_refused_before_anything_is_read(rule: Rule, option: str) -> None:
    target = TableTarget("/tables", "binary", **cast(Any, {option: "many.{table}"}))
    with pytest.raises(ConfigError, match="has a dot"):
        choose_parts("delta", cast(Any, Session()), target, TableNames(rule))
    assert choose_parts("delta", cast(Any, Session()), target, TableNames("{scope}_{collection}")).has_views() == (
        option != "current"
    )


def test_names_in_a_catalog() -> None:
    assert in_catalog(None, "orders", "live") is None
    assert in_catalog("lake.shop.{table}", "orders", "current") == "lake.shop.orders"
    assert in_catalog("{table}_live", "a-b", "live") == "`a-b_live`"
    assert in_catalog("lake.shop.v_{table}", "a%", "live") == "lake.shop.`v_a%`"
    with pytest.raises(ConfigError, match=r"\{table\}"):
        in_catalog("lake.shop.current", "orders", "current")
    with pytest.raises(ConfigError, match="has a dot"):
        in_catalog("lake.shop.{table}", "s.c", "current")
