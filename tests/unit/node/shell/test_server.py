"""Turns of the KV server's loop: however many are taken out of turn, one is scheduled at a time."""

from __future__ import annotations

import asyncio

from dcpstream.node.shell.limits import Limits
from dcpstream.node.shell.server import KvServer
from dcpstream.runtime import SystemClock
from tests.kit.engine import engine_of

OUT_OF_TURN = 10
ROUNDS = 50


def test_turns_out_of_turn_do_not_multiply():
    """A commit that ends takes a turn at once; were each to leave a scheduled one behind, the loop would slow down."""

    async def run() -> int:
        engine = engine_of()
        server = KvServer(engine, SystemClock(), Limits())
        taken = 0

        def always_busy():
            nonlocal taken
            taken += 1
            server.schedule_turn()  # as while something streams
            return []

        engine.end_turn = always_busy
        server.schedule_turn()
        for _ in range(OUT_OF_TURN):
            server.turn()
        taken = 0
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        return taken

    assert asyncio.run(run()) <= ROUNDS + 1
