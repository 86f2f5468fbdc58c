from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dcpstream.errors import ConfigError
from dcpstream_spark import catalog

OPTIONS = {"connectionString": "couchbase://h", "bucket": "b", "username": "u", "password": "s3cret", "columns": "key"}
SCHEMA = StructType([StructField("key", StringType()), StructField("seqno", LongType())])
LOWER = {name.lower(): value for name, value in OPTIONS.items()}


def test_what_spark_adds_to_a_definition_is_left_out() -> None:
    added = {f"option.{name}": value for name, value in OPTIONS.items()}
    given = {**OPTIONS, **added, "owner": "root", "provider": "dcp", "comment": "x", "p": "a property"}
    assert catalog.is_definition(given)
    assert catalog.given_options(given) == OPTIONS


def test_other_options_are_the_users() -> None:
    given = {**OPTIONS, "path": "/x", "owner": "me"}
    assert not catalog.is_definition(given)
    assert catalog.given_options(given) == given
    assert catalog.has_access({"CONNECTIONSTRING": "x"})
    assert not catalog.has_access({"where": "x"})


def test_a_table_keeps_its_options_and_only_the_user_can_read_its_password(tmp_path: Path) -> None:
    marked = catalog.with_options(SCHEMA, OPTIONS, cache_dir=tmp_path)
    assert marked.names == SCHEMA.names
    assert "s3cret" not in json.dumps(marked.jsonValue())
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.stat().st_mode & 0o077 == 0
    assert catalog.options_of_table(marked, {}, cache_dir=tmp_path) == LOWER


def test_options_of_a_query_win(tmp_path: Path) -> None:
    marked = catalog.with_options(SCHEMA, OPTIONS, cache_dir=tmp_path)
    found = catalog.options_of_table(marked, {"Password": "new", "where": "vbucket = 1"}, cache_dir=tmp_path)
    assert found == {**LOWER, "password": "new", "where": "vbucket = 1"}


def test_a_table_of_another_machine_needs_its_password(tmp_path: Path) -> None:
    marked = catalog.with_options(SCHEMA, OPTIONS, cache_dir=tmp_path / "here")
    there = tmp_path / "there"
    with pytest.raises(ConfigError, match="another machine"):
        catalog.options_of_table(marked, {}, cache_dir=there)
    assert catalog.options_of_table(marked, {"password": "x"}, cache_dir=there)["password"] == "x"


def test_another_user_of_the_bucket_is_another_entry(tmp_path: Path) -> None:
    one = catalog.with_options(SCHEMA, OPTIONS, cache_dir=tmp_path)
    other = catalog.with_options(SCHEMA, {**OPTIONS, "username": "v", "password": "w"}, cache_dir=tmp_path)
    assert catalog.options_of_table(one, {}, cache_dir=tmp_path)["password"] == "s3cret"
    assert catalog.options_of_table(other, {}, cache_dir=tmp_path)["password"] == "w"


def test_a_table_with_a_list_of_columns_has_no_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no list of columns: leave it out"):
        catalog.options_of_table(SCHEMA, {}, cache_dir=tmp_path)


def test_a_place_of_the_password_wins_over_the_one_that_another_table_kept(tmp_path: Path) -> None:
    catalog.with_options(SCHEMA, OPTIONS, cache_dir=tmp_path)
    by_file = {name: value for name, value in OPTIONS.items() if name != "password"} | {"passwordFile": "/secret"}
    marked = catalog.with_options(SCHEMA, by_file, cache_dir=tmp_path)
    found = catalog.options_of_table(marked, {}, cache_dir=tmp_path)
    assert (found["passwordfile"], "password" in found) == ("/secret", False)
