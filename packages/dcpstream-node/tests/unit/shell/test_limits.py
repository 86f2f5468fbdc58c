"""Limits: their ranges, their texts, and how often it is said that one was reached."""

from __future__ import annotations

import logging
from dataclasses import fields

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node.engine.limit_log import LOG_PAUSE_S, LimitLog
from dcpstream_node.shell.limits import Limits
from tests.kit.cases import each_case


def test_limits_from_texts() -> None:
    limits = Limits.parse(["connections=10", "login_s=0.5"])
    assert limits == Limits(connections=10, login_s=0.5)
    assert Limits.parse({}) == Limits()


@each_case("text", ["fly=1", "connections", "connections=many", "connections=0", "login_s=-1", "idle_s=nan"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="limit"):
        Limits.parse([text])


def test_every_limit_is_described() -> None:
    assert Limits.__doc__ is not None
    for field in fields(Limits):
        assert f"{field.name}: " in Limits.__doc__


def test_connections_are_looked_at_often_enough_for_the_shortest_time() -> None:
    assert Limits().sweep_s == 1.0
    assert Limits(login_s=0.4).sweep_s == pytest.approx(0.1)
    assert Limits(login_s=0, frame_s=0, idle_s=0, stalled_s=0, stalled_dcp_s=0, http_header_s=0).sweep_s == 1.0


def test_a_limit_is_reported_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitLog()
    with caplog.at_level(logging.WARNING):
        for now in (100.0, 101.0, 102.0, 100.0 + LOG_PAUSE_S):
            log.reached("connections", "10.0.0.1:5", "refused", now)
        log.reached("login_s", "10.0.0.1:5", "closed", 103.0)
    assert [record.getMessage() for record in caplog.records] == [
        "10.0.0.1:5: refused: limit connections",
        "10.0.0.1:5: refused: limit connections (2 more since the last line)",
        "10.0.0.1:5: closed: limit login_s",
    ]
