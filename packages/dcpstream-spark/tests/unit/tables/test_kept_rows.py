from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream.errors import ConfigError
from dcpstream_spark.tables.kept_rows import keep_rows
from dcpstream_spark.tables.small_files import LocalFiles

NEEDED = {"connectionString": "couchbase://localhost", "username": "u", "password": "p", "bucket": "b"}


class Checkpoint:
    """The file of one pipeline."""

    def __init__(self, path: Path) -> None:
        self._files = LocalFiles(path / "rows")

    def start(self, options: dict[str, str], *, is_new: bool = False) -> None:
        keep_rows(self._files, {**NEEDED, **options}, "/tables", is_new=is_new)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({"where": "key like 'a%'"}, {}, r"/tables: .* where = key like 'a%', and nothing is given: .* some rows of b"),
        ({}, {"where": "key like 'a%'"}, r"where = nothing, and key like 'a%' is given"),
        ({"where": "key = 'a'"}, {"where": "key = 'b'"}, r"where = key = 'a', and key = 'b' is given"),
        ({"where": "vbucket < 8 or key = 'a'"}, {"where": "vbucket < 9 or key = 'a'"}, "where"),
        ({"where": "collection != 'a'"}, {}, "where"),
        ({"where": "scope = 's' and collection = 'c'", "collections": "s"}, {"collections": "s"}, "where"),
        ({}, {"systemDocuments": "true"}, "systemDocuments = false, and true is given"),
        ({"valueFormat": "string"}, {}, "valueFormat = string, and binary is given"),
    ],
)
def test_another_choice_of_rows_is_refused(
    checkpoint: Checkpoint, before: dict[str, str], now: dict[str, str], message: str
) -> None:
    checkpoint.start(before, is_new=True)
    checkpoint.start(before)
    for _ in range(2):
        with pytest.raises(ConfigError, match=message):
            checkpoint.start(now)
    checkpoint.start(before)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"where": "vbucket < 8"}, {"where": "vbucket < 16"}),
        ({"where": "vbucket < 8"}, {}),
        ({"WHERE": "key = 'a' AND vbucket = 1"}, {"where": "vbucket in (1, 2) and key = 'a'"}),
        ({"where": "scope = 's' and collection = 'c'"}, {"where": "scope = 's' and collection in ('c', 'd')"}),
        ({"where": "scope = 's' and collection = 'c'"}, {"collections": "s.c"}),
        ({}, {"maxOffsetsPerTrigger": "5", "valueFormat": "binary", "systemDocuments": "false"}),
    ],
)
def test_what_the_source_brings_again_may_change(
    checkpoint: Checkpoint, before: dict[str, str], now: dict[str, str]
) -> None:
    checkpoint.start(before, is_new=True)
    checkpoint.start(now)


def test_before_the_first_batch_everything_may_change(checkpoint: Checkpoint) -> None:
    checkpoint.start({"where": "key = 'a'"}, is_new=True)
    checkpoint.start({"where": "key = 'b'"}, is_new=True)
    with pytest.raises(ConfigError, match="key = 'b', and key = 'a' is given"):
        checkpoint.start({"where": "key = 'a'"})
