"""Failover logs."""

from __future__ import annotations

import pytest

from dcpstream.model import FailoverLog

LOG = FailoverLog.of((0xC, 900), (0xB, 500), (0xA, 0))


def test_rollback_removes_branches_that_began_above() -> None:
    assert LOG.pruned(899) == FailoverLog.of((0xB, 500), (0xA, 0))
    assert LOG.pruned(900) == LOG
    assert FailoverLog.of((5, 10)).pruned(9) is None


def test_a_log_is_never_empty() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FailoverLog(())
