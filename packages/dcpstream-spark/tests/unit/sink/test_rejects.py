"""Refused rows: their description and their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dcpstream_spark.sink.documents import Reject
from dcpstream_spark.sink.rejects import RejectsFile, describe, to_json

REJECT = Reject(b"a", "insert", "_default._default", "KEY_EEXISTS", "the document exists with another value", b"{}")


def test_a_description_marks_the_key() -> None:
    assert describe(REJECT) == (
        "insert of <ud>b'a'</ud> in _default._default: KEY_EEXISTS, the document exists with another value"
    )
    assert describe(REJECT._replace(key=None, reason="")).startswith(
        "insert of no key in _default._default: KEY_EEXISTS"
    )


def test_bytes_that_are_not_text_are_in_base64() -> None:
    line = json.loads(to_json(REJECT._replace(key=b"\xff", value=None)))
    assert line == {
        "key_base64": "/w==",
        "value": None,
        "op": "insert",
        "collection": "_default._default",
        "status": "KEY_EEXISTS",
        "reason": "the document exists with another value",
    }


@pytest.mark.parametrize("as_url", [False, True])
def test_a_file_appears_when_it_is_complete(tmp_path: Path, as_url: bool) -> None:
    place = tmp_path / "deep" / "rejects"
    file = RejectsFile(place.as_uri() if as_url else str(place), "task.jsonl", "1")
    file.add([REJECT])
    file.add([REJECT, REJECT])
    assert [path.name for path in place.iterdir()] == ["_task.jsonl.1"]
    file.finish()
    assert [path.name for path in place.iterdir()] == ["task.jsonl"]
    assert len((place / "task.jsonl").read_text().splitlines()) == 3


def test_a_repetition_replaces_the_file_of_its_first_attempt(tmp_path: Path) -> None:
    for attempt, count in (("1", 3), ("2", 1)):
        file = RejectsFile(str(tmp_path), "task.jsonl", attempt)
        file.add([REJECT] * count)
        file.finish()
    assert len((tmp_path / "task.jsonl").read_text().splitlines()) == 1
    RejectsFile(str(tmp_path), "task.jsonl", "3").finish()
    assert list(tmp_path.iterdir()) == [], "the last attempt refused nothing"


def test_an_attempt_that_fails_leaves_nothing(tmp_path: Path) -> None:
    file = RejectsFile(str(tmp_path), "task.jsonl", "1")
    file.add([REJECT])
    file.abandon()
    assert list(tmp_path.iterdir()) == []
    RejectsFile(str(tmp_path), "task.jsonl", "2").abandon()
