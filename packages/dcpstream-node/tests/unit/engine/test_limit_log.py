"""The log of what clients can cause: its rates, its counts, and how errors are described."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from dcpstream_node.engine.limit_log import LOG_PAUSE_S, LimitLog, described
from dcpstream_node.shell.server import handler_of


def test_a_kind_has_its_lines_in_a_period(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitLog()
    for second in range(5):
        log.say("closings", f"closing {second}", float(second), lines=2)
    log.say("closings", "closing 5", LOG_PAUSE_S, lines=2)
    assert [record.getMessage() for record in caplog.records] == [
        "closing 0",
        "closing 1",
        "closing 5 (3 more since the last line)",
    ]


def test_counts_are_reported_when_their_period_is_over(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitLog()
    for kind in ("one", "two", "two", "two"):
        log.say(kind, kind, 1.0, level=logging.ERROR)
    log.sweep(LOG_PAUSE_S)
    assert len(caplog.records) == 2, "not before"
    log.sweep(1.0 + LOG_PAUSE_S)
    log.sweep(1.0 + LOG_PAUSE_S)
    assert [record.getMessage() for record in caplog.records] == ["one", "two", "two: 2 more since the last line"]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_counts_are_reported_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitLog()
    for _ in range(3):
        log.say("one", "one", 1.0)
    log.close()
    log.close()
    assert caplog.records[-1].getMessage() == "one: 2 more since the last line"
    assert len(caplog.records) == 2


def _failing() -> BaseException:
    try:
        json.loads("{secret")
    except ValueError as error:
        return error
    raise AssertionError


def test_an_error_is_described_by_its_place_alone() -> None:
    text = described(_failing())
    assert text.startswith("JSONDecodeError in raw_decode (decoder.py:")
    assert "_failing (test_limit_log.py:" in text
    assert "secret" not in text
    assert "\n" not in text
    assert described(ValueError("secret")) == "ValueError"


def test_what_nobody_caught_is_one_line_without_the_message(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.set_exception_handler(handler_of(LimitLog()))
        loop.call_soon(json.loads, "{secret")
        loop.call_soon(loop.stop)
        loop.run_forever()
    finally:
        loop.close()
    (record,) = caplog.records
    assert "JSONDecodeError in raw_decode" in record.getMessage()
    assert "secret" not in caplog.text
