"""Run a `dcpstream` command that ends when its standard input ends: `python -m dcpstream_demo.guarded node …`.

The demo holds the other end of that pipe, so the command ends with the demo, even if the demo is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from dcpstream.cli import main

STANDARD_INPUT = 0


def wait_for_end_of_input() -> None:
    """Return when the other end of standard input is closed; bytes that arrive are dropped.

    Reads the descriptor itself: a thread that waits inside `sys.stdin` makes the interpreter abort at its exit.
    """
    while os.read(STANDARD_INPUT, 4096):
        pass


def _guard() -> None:
    wait_for_end_of_input()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_guard, name="watch the demo", daemon=True).start()
    main(sys.argv[1:])
