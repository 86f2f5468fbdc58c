"""Turns of the KV server's loop, and its end."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from dcpstream.runtime import SystemClock
from dcpstream_node.shell.connection import KvProtocol
from dcpstream_node.shell.limits import Limits
from dcpstream_node.shell.listeners import listen
from dcpstream_node.shell.server import PULL_BYTES, SHORT_TURN_PULL_BYTES, SHORT_TURN_S, SHORT_TURNS_S, TURN_S, KvServer
from dcpstream_node.shell.tls import Tls, TlsSettings
from dcpstream_node.tasks.flusher import Flusher
from tests.kit.cases import each_case
from tests.kit.engine import engine_of

OUT_OF_TURN = 10
PULL_S = 0.000_1
ROUNDS = 50


def test_turns_out_of_turn_do_not_multiply():
    """A commit that ends takes a turn at once; were each to leave a scheduled one behind, the loop would slow down."""

    async def run() -> int:
        engine = engine_of()
        server = KvServer(engine, SystemClock(), Limits())
        taken = 0
        session = engine.new_session("test")
        assert session is not None

        def always_busy():
            nonlocal taken
            taken += 1
            engine.ready.add(session)  # as while something streams
            return []

        engine.end_turn = always_busy
        server.schedule_turn()
        for _ in range(OUT_OF_TURN):
            server.turn()
        taken = 0
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        return taken

    assert ROUNDS - 1 <= asyncio.run(run()) <= ROUNDS + 1


class Always:
    """A DCP machine that always has more, and a transport that takes it; each look at its data takes its time."""

    name, close_reason, has_output, wake_at = "always", None, True, None

    def __init__(self, spend: Callable[[float], None]) -> None:
        self.asked: list[int] = []
        self._spend = spend

    def data_to_send(self, max_bytes: int, now: float) -> list[bytes]:
        self.asked.append(max_bytes)
        self._spend(PULL_S)
        return [b"more"]


class Taking(asyncio.Transport):
    """A transport that takes everything."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...

    def write(self, data: object) -> None: ...


def test_turns_are_short_while_a_client_waits_for_a_commit() -> None:
    """The writer's request, the end of the commit and its answer wait for a turn each."""
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def run() -> list[list[int]]:
        engine = engine_of()
        server = KvServer(engine, SystemClock(), Limits())
        server.loop = Mock(time=lambda: now)
        protocol = KvProtocol(server)
        protocol.connection_made(Taking())
        session = protocol.session
        assert session is not None
        machine = Always(spend)
        session.dcp, protocol._has_dcp = machine, True  # type: ignore[assignment]
        found = []
        for begins_to_wait, passed in ((False, 0.0), (True, 0.0), (False, SHORT_TURNS_S / 2), (False, SHORT_TURNS_S)):
            spend(passed)
            if begins_to_wait:
                flusher = Flusher(server, engine, engine.buckets["default"], 1.0)
                flusher.start()
                engine.buckets["default"].commit_soon()
                await flusher.stop()
            engine.ready.add(session)
            server.turn()
            found.append(machine.asked)
            machine.asked = []
        session.dcp = None
        protocol.connection_lost(None)
        return found

    calm, hurried, still_short, calm_again = asyncio.run(run())
    assert set(calm) == set(calm_again) == {PULL_BYTES}
    assert set(hurried) == set(still_short) == {SHORT_TURN_PULL_BYTES}
    assert len(calm) * PULL_S == pytest.approx(TURN_S, rel=0.3)
    assert len(hurried) * PULL_S == pytest.approx(SHORT_TURN_S, rel=0.3)


@each_case("encrypted", [False, True])
def test_a_stop_closes_connections_of_every_age(encrypted: bool) -> None:
    """However far a new connection has come, its socket is closed when `stop` returns."""

    async def run(turns: int) -> None:
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
        for turns in range(5):
            asyncio.run(run(turns))
        gc.collect()
    for client in clients:
        client.close()
    assert [str(warning.message) for warning in left] == []
