"""Logs as JSON lines."""

from __future__ import annotations

import json
import logging
import sys

from dcpstream.runtime.logs import JsonFormatter


def record(message: str, *arguments: object) -> logging.LogRecord:
    made = logging.LogRecord("dcpstream_spark", logging.WARNING, "file.py", 1, message, arguments, None)
    made.created = 1_700_000_000.25
    return made


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
