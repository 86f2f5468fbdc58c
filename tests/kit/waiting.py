"""Waiting for something that another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

from lab.tools.patience import patient

TIMEOUT_S = patient(20.0)
"""The longest wait of a test; a busy machine needs less."""
INTERVAL_S = 0.005


def wait_until(is_true: Callable[[], bool], why: str = "it never came true") -> None:
    """Return when the condition holds.

    Raises:
        AssertionError: the time-out passed; `why` is the message.
    """
    end = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < end, why
        time.sleep(INTERVAL_S)
