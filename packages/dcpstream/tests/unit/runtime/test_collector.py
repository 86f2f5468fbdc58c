"""The collector of cycles, held back for a while."""

from __future__ import annotations

import gc
import threading

import pytest

from dcpstream.runtime import held_collector


def test_it_collects_again_afterwards_also_after_an_error() -> None:
    with pytest.raises(ValueError, match="was: False"), held_collector():
        raise ValueError(f"was: {gc.isenabled()}")
    assert gc.isenabled()


def test_the_last_of_several_lets_it_go_on() -> None:
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with held_collector():
            is_held.set()
            may_end.wait()

    other = threading.Thread(target=hold)
    with held_collector(), held_collector():
        other.start()
        is_held.wait()
    assert not gc.isenabled()
    may_end.set()
    other.join()
    assert gc.isenabled()


def test_a_program_that_switched_it_off_keeps_it_so() -> None:
    gc.disable()
    try:
        with held_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
