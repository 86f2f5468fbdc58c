"""Turns of the KV server's loop, and its end."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest

from dcpstream.node.shell.limits import Limits
from dcpstream.node.shell.listeners import listen
from dcpstream.node.shell.server import KvServer
from dcpstream.node.shell.tls import Tls, TlsSettings
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


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_stop_closes_connections_of_every_age(turns: int, encrypted: bool) -> None:
    """However far a new connection has come, its socket is closed when `stop` returns."""

    async def run() -> None:
        tls = Tls.open(TlsSettings(), "127.0.0.1", None) if encrypted else None
        server = KvServer(engine_of(), SystemClock(), Limits(), tls)
        listeners = [listen("127.0.0.1", 0, "port") for _ in range(2)]
        await server.start(listeners[0], listeners[1])
        port = listeners[1 if encrypted else 0].getsockname()[1]
        for _ in range(turns + 1):
            clients.append(socket.create_connection(("127.0.0.1", port)))
            await asyncio.sleep(0)
        await server.stop()
        for listener in listeners:
            listener.close()

    clients: list[socket.socket] = []
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    for client in clients:
        client.close()
    assert [str(warning.message) for warning in left] == []
