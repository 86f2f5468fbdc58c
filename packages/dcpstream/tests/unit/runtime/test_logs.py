"""Logs as JSON lines."""

from __future__ import annotations

import json
import logging
import sys

from dcpstream.runtime.logs import JsonFormatter, redacted


def record(message: str, *arguments: object) -> logging.LogRecord:
    made = logging.LogRecord("dcpstream_spark", logging.WARNING, "file.py", 1, message, arguments, None)
    made.created = 1_700_000_000.25
    return made


def test_a_record_is_one_line_of_json() -> None:
    line = JsonFormatter().format(record("two\nlines of %s", "<ud>key</ud>"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "logger": "dcpstream_spark",
        "message": "two\nlines of <ud>key</ud>",
    }


def test_an_exception_brings_its_traceback_redacted() -> None:
    failed = record("failed")
    try:
        raise ValueError("bad <ud>key</ud>")
    except ValueError:
        failed.exc_info = sys.exc_info()
    line = JsonFormatter(redact=True).format(failed)
    assert "Traceback" in json.loads(line)["error"]
    assert "key<" not in line
    assert "key<" in JsonFormatter().format(failed)


def test_equal_values_have_equal_hashes_and_a_salt_changes_them() -> None:
    first = redacted("<ud>a</ud> <ud>b</ud> <ud>a</ud>")
    one, other, again = first.split(" ")
    assert one == again != other
    assert redacted("<ud>a</ud>", "salt") != one == redacted("<ud>a</ud>")
    assert redacted("no marks") == "no marks"
