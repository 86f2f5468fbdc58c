"""Time limits of tests and tools that wait for a condition.

A wait ends as soon as its condition holds, so a long limit costs nothing as long as tests pass. The limit only shows a
busy machine from a hanging program. PATIENCE in the environment scales every limit: `make test PATIENCE=20` on a busy
machine, `PATIENCE=1` to see a hang sooner.
"""

from __future__ import annotations

import os

DEFAULT_PATIENCE = 4.0
"""Default factor: the limits are those of a quiet machine, and a step takes up to four times as long on a busy one."""


def patient(seconds: float) -> float:
    """`seconds`, the limit for a quiet machine, scaled for this one.

    Raises:
        ValueError: PATIENCE is not a positive number.
    """
    return seconds * _PATIENCE


def _patience(text: str | None) -> float:
    if not text:
        return DEFAULT_PATIENCE
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise ValueError(f"PATIENCE={text!r}: give a positive number, for example PATIENCE=10.")
    return factor


_PATIENCE = _patience(os.environ.get("PATIENCE"))
