"""Spark's masters on one machine, and whether they run a failed task again."""

from __future__ import annotations

import re

TASK_FAILURES = 4
"""Failures of a task until its query fails, as on a cluster. With the master `local[N]` it would be one, and a task
that must go back because a node lost changes could not be repeated."""

_SINGLE_ATTEMPT = re.compile(r"local(?:\[(\d+|\*)\])?")


def local_master(cores: int) -> str:
    """The master of a session on one machine that runs failed tasks again."""
    return f"local[{cores},{TASK_FAILURES}]"


def runs_tasks_once(master: str) -> bool:
    """Whether a session with this master runs no failed task again."""
    return _SINGLE_ATTEMPT.fullmatch(master) is not None


def repeating(master: str) -> str:
    """The master; with `TASK_FAILURES` if it is a local one that says nothing about failures."""
    found = _SINGLE_ATTEMPT.fullmatch(master)
    return master if found is None else f"local[{found[1] or 1},{TASK_FAILURES}]"
