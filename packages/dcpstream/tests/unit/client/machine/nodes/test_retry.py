"""Nodes that break the protocol again and again, and the lines in the log about them."""

from __future__ import annotations

import logging

import pytest

from dcpstream.client.machine.nodes.retry import (
    FORGIVEN_AFTER_S,
    PROGRESS_ROWS,
    PROTOCOL_ERRORS_MAX,
    RETRY_LOG_S,
    Faults,
    RetryLog,
)
from dcpstream.errors import ConnectionLost, RemoteProtocolError
from tests.kit.cases import each_case


def test_old_faults_are_forgiven() -> None:
    faults = Faults()
    for number in range(3 * PROTOCOL_ERRORS_MAX):
        faults.add("a:1", RemoteProtocolError("rare"), number * FORGIVEN_AFTER_S)
    assert faults.verdict(["a:1"]) is None


@each_case(
    ("rows", "is_complete", "is_forgiven"),
    [(PROGRESS_ROWS // 2, False, True), (0, True, True), (PROGRESS_ROWS // 10, False, False)],
)
def test_progress_forgives(rows: int, is_complete: bool, is_forgiven: bool) -> None:
    faults = Faults()
    for _ in range(3 * PROTOCOL_ERRORS_MAX):
        faults.add("a:1", RemoteProtocolError("again"), 0.0)
        faults.progressed("a:1", rows, is_complete=is_complete)
        faults.progressed("a:1", rows, is_complete=False)
    assert (faults.verdict(["a:1"]) is None) is is_forgiven


def test_one_line_for_each_node_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    log = RetryLog()
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            log.retrying("a:1", ConnectionLost("gone"), number + 1, 0.5, number * RETRY_LOG_S / 50)
            log.retrying("b:1", ConnectionLost("gone"), number + 1, 0.5, number * RETRY_LOG_S / 50)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert lines[0] == "a:1: attempt 1 failed, trying again in 0.5 s: gone"
    assert lines[2] == "a:1: attempt 51 failed, trying again in 0.5 s: gone (49 more since the last line)"
