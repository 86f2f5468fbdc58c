"""The thread that looks after sockets while the user is away."""

from __future__ import annotations

import threading

import pytest

from dcpstream.client.blocking import loop
from dcpstream.client.blocking.loop import KeepAlive
from lab.tools.patience import patient

TIMEOUT_S = patient(10.0)


def test_what_goes_wrong_is_the_users_to_know() -> None:
    failed = threading.Event()

    def beat() -> None:
        failed.set()
        raise LookupError("gone")

    one = KeepAlive(beat, 0.001)
    one.leave()
    assert failed.wait(TIMEOUT_S)
    with pytest.raises(LookupError, match="gone"):
        one.enter()
    one.leave()
    one.enter()
    one.stop()


def test_a_stream_that_was_forgotten_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "BEATS_MAX", 3)
    beaten = threading.Semaphore(0)
    one = KeepAlive(beaten.release, 0.001)
    one.leave()
    for _ in range(3):
        assert beaten.acquire(timeout=TIMEOUT_S)
    assert not beaten.acquire(timeout=0.05)
    one.enter()
    one.stop()
