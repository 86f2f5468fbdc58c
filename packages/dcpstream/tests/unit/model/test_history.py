"""Failover logs."""

from __future__ import annotations

import pytest

from dcpstream.model import FailoverEntry, FailoverLog

LOG = FailoverLog.of((0xC, 900), (0xB, 500), (0xA, 0))


def test_a_new_branch_voids_what_began_above_it() -> None:
    assert LOG.pushed(FailoverEntry(0xD, 700)) == FailoverLog.of((0xD, 700), (0xB, 500), (0xA, 0))
    assert LOG.pushed(FailoverEntry(0xD, 900)).newest == FailoverEntry(0xD, 900)
    assert len(LOG.pushed(FailoverEntry(0xD, 900))) == 4


def test_rollback_removes_branches_that_began_above() -> None:
    assert LOG.pruned(899) == FailoverLog.of((0xB, 500), (0xA, 0))
    assert LOG.pruned(900) == LOG
    assert FailoverLog.of((5, 10)).pruned(9) is None


def test_a_log_is_never_empty() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FailoverLog(())


def test_json_keeps_all_bits() -> None:
    log = FailoverLog.of((2**64 - 1, 2**63 + 1), (1, 0))
    assert log.to_json()[0] == ["18446744073709551615", "9223372036854775809"]
    assert FailoverLog.from_json(log.to_json()) == log
