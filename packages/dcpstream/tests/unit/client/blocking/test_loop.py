"""The thread that looks after sockets while the user is away."""

from __future__ import annotations

import threading

import pytest

from dcpstream.client.blocking import loop
from dcpstream.client.blocking.loop import KeepAlive
from lab.tools.patience import patient

TIMEOUT_S = patient(10.0)


def threads() -> set[threading.Thread]:
    """Those of the class. A stream that another test has forgotten has one, too."""
    return {thread for thread in threading.enumerate() if thread.name == "dcpstream-keepalive"}


def test_it_beats_only_while_the_user_is_away() -> None:
    before = threads()
    beaten = threading.Semaphore(0)
    user = threading.Event()
    user.set()
    wrong = []

    def beat() -> None:
        wrong.extend([1] if user.is_set() else [])
        beaten.release()

    one = KeepAlive(beat, 0.001)
    for _ in range(3):
        user.clear()
        one.leave()
        assert len(threads() - before) == 1
        assert beaten.acquire(timeout=TIMEOUT_S)
        one.enter()
        user.set()
    one.stop()
    assert not wrong
    assert threads() <= before


def test_without_a_pause_there_is_no_thread() -> None:
    before = threads()
    one = KeepAlive(lambda: None)
    assert threads() <= before
    one.stop()


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
