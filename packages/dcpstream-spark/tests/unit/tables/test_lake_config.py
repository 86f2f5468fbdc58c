"""The file of a lake: what it means, and how its mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream_spark.tables.lake_config import LakeConfig, LakeConfigError, read_lake_config

GOOD = """\
path = "lake"

[session]
driver_memory = "4g"
tables = "none"
[session.settings]
"spark.sql.shuffle.partitions" = 4

[source]
connectionString = "couchbase://127.0.0.1"
username = "reader"
passwordVariable = "SECRET"

[pipelines.orders]
bucket = "shop"
collections = ["sales.orders", "sales.returns"]
trigger = "10 seconds"
fold_share = 0.5

[pipelines.flights]
bucket = "travel"
path = "s3://lake/flights"
changes = "lake.travel.changes"
schema = "name STRING, age INT"
mode = "DROPMALFORMED"
field_prefix = "doc_"
rejects = "lake.travel.rejects"
[pipelines.flights.source]
maxOffsetsPerTrigger = 1000
readStable = true
"""


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hidden")


def read(tmp_path: Path, text: str) -> LakeConfig:
    file = tmp_path / "lake.toml"
    file.write_text(text)
    return read_lake_config(file)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(LakeConfigError) as raised:
        read(tmp_path, text)
    assert "hidden" not in str(raised.value)
    assert str(raised.value).splitlines() == raised.value.problems
    return [problem.removeprefix(str(tmp_path / "lake.toml")) for problem in raised.value.problems]


def test_a_good_file(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD)
    assert config.session.driver_memory == "4g"
    assert config.session.settings == {"spark.sql.shuffle.partitions": "4"}
    orders, flights = config.pipelines
    assert orders.path == str(tmp_path / "lake" / "orders")
    assert orders.options == {
        "connectionString": "couchbase://127.0.0.1",
        "username": "reader",
        "passwordVariable": "SECRET",
        "bucket": "shop",
        "collections": "sales.orders,sales.returns",
    }
    assert (orders.trigger, orders.fold_share) == ("10 seconds", 0.5)
    assert (flights.path, flights.changes) == ("s3://lake/flights", "lake.travel.changes")
    assert (flights.schema, flights.mode, flights.field_prefix, flights.rejects) == (
        "name STRING, age INT",
        "DROPMALFORMED",
        "doc_",
        "lake.travel.rejects",
    )
    assert (orders.schema, orders.mode, orders.rejects) == (None, "PERMISSIVE", None)
    assert (flights.options["maxOffsetsPerTrigger"], flights.options["readStable"]) == ("1000", "true")
    assert "hidden" not in repr(config)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('bucket = "shop"', 'bukket = "shop"', "pipelines.orders.bukket: there is no such key"),
        ("fold_share = 0.5", "fold_share = 5", "fold_share: 5 is not above 0"),
        ("fold_share = 0.5", 'fold_share = "5"', "'5' is not a number or a whole number"),
        ('trigger = "10 seconds"', 'trigger = "soon"', "'soon' is not a time like"),
        ("maxOffsetsPerTrigger = 1000", "maxOffsetsPerTrigger = 0", "maxOffsetsPerTrigger cannot be '0'. Allowed"),
        ("maxOffsetsPerTrigger = 1000", "maxOffset = 0", "pipelines.flights.source.maxOffset"),
        ('"couchbase://127.0.0.1"', '"http://127.0.0.1"', "source.connectionString"),
        ('passwordVariable = "SECRET"', 'passwordVariable = "NONE"', "no variable NONE"),
        ('tables = "none"', 'tables = "hudi"', "'hudi' is not one of"),
        ('path = "s3://lake/flights"', 'path = "lake/orders"', "belongs to the pipeline orders already"),
        ("[pipelines.orders]", '[pipelines."or/ders"]', "a name has letters"),
        ('"DROPMALFORMED"', '"IGNORE"', "'IGNORE' is not one of PERMISSIVE, DROPMALFORMED, FAILFAST"),
        ('schema = "name STRING, age INT"', "", "pipelines.flights.mode: it needs the key schema"),
        ("[session]", "[sessions]", "sessions: there is no such key"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert GOOD.count(old) == 1
    found = problems(tmp_path, GOOD.replace(old, new))
    assert any(words in problem for problem in found), found


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    text = GOOD.replace('"10 seconds"', '"soon"').replace("fold_share = 0.5", "fold_share = 0").replace("1000", "-1")
    assert len(problems(tmp_path, text)) == 3


def test_a_missing_option_points_to_its_pipeline(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD.replace('bucket = "shop"\n', ""))
    assert found[0].startswith(": pipelines.orders: bucket is missing")


def test_a_file_without_pipelines(tmp_path: Path) -> None:
    assert "at least one section" in problems(tmp_path, 'path = "x"')[0]


def test_a_pipeline_without_a_path(tmp_path: Path) -> None:
    assert "a path is needed" in problems(tmp_path, GOOD.replace('path = "lake"\n', ""))[0]


def test_broken_toml(tmp_path: Path) -> None:
    assert "line 2" in problems(tmp_path, "path = 1\npath = 2\n")[0]


MANY = """
[pipelines.many]
bucket = "shop"
tables = "{scope}_{collection}"
current = "lake.shop.{table}"
on_collection_dropped = "keep"
[pipelines.many.schema]
shop_orders = "total INT"

[pipelines.named]
bucket = "shop"
[pipelines.named.tables]
"shop.orders" = "orders"
"archive.*" = "archive_{collection}"
"""


def test_a_pipeline_with_several_tables(tmp_path: Path) -> None:
    *_, many, named = read(tmp_path, GOOD + MANY).pipelines
    assert (many.tables, many.current, many.on_collection_dropped) == (
        "{scope}_{collection}",
        "lake.shop.{table}",
        "keep",
    )
    assert many.schema == {"shop_orders": "total INT"}
    assert named.tables == {"shop.orders": "orders", "archive.*": "archive_{collection}"}
    assert named.on_collection_dropped == "empty"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"{scope}_{collection}"', '"orders"', "pipelines.many.tables: tables cannot be 'orders'"),
        ('"lake.shop.{table}"', '"lake.shop.t"', "pipelines.many.current: 'lake.shop.t' has no {table}"),
        ('"keep"', '"forget"', "'forget' is not one of empty, keep"),
        ('tables = "{scope}_{collection}"', "", "a table of schemas needs the key tables"),
        ('"total INT"', "3", "pipelines.many.schema.shop_orders: 3 is not a text"),
        (
            "[pipelines.named.tables]",
            'collections = ["a.b"]\n[pipelines.named.tables]',
            "key collections must be left out",
        ),
    ],
)
def test_a_mistake_about_several_tables(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert MANY.count(old) == 1
    found = problems(tmp_path, GOOD + MANY.replace(old, new))
    assert any(words in problem for problem in found), found
