"""The collector of cycles, held back for a while."""

from __future__ import annotations

import gc

from dcpstream.runtime import held_collector


def test_a_program_that_switched_it_off_keeps_it_so() -> None:
    gc.disable()
    try:
        with held_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
