"""Accepted sockets: the protocols that get them, and an accept that fails."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from dcpstream_node.engine.limit_log import LimitLog
from dcpstream_node.shell import acceptor
from dcpstream_node.shell.limits import Limits

BACKLOG = 16


class Told(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self, told: asyncio.Queue[str]) -> None:
        self.told = told

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.put_nowait("made")
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.put_nowait("lost")


class Listener(socket.socket):
    """Its first accept fails, as without descriptors."""

    fails = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.fails:
            self.fails = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.fixture
def listener():
    with Listener() as made:
        made.bind(("127.0.0.1", 0))
        made.setblocking(False)
        yield made


async def test_protocols_of_all_accepted_sockets_lose_their_connection_before_stop_returns(listener: Listener) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    made: list[Told] = []

    def make() -> Told:
        made.append(Told(told))
        return made[-1]

    listener.fails = False
    accepting = acceptor.Acceptor(listener, make, Limits(), LimitLog())
    accepting.start(BACKLOG)
    with socket.create_connection(listener.getsockname()), socket.create_connection(listener.getsockname()):
        await asyncio.sleep(0)  # the loop sees the connections
        await asyncio.sleep(0)  # it accepts them
        assert told.empty()
        await accepting.stop()
        assert [told.get_nowait(), told.get_nowait()] == ["made", "made"]
        assert listener.fileno() == -1
        for protocol in made:
            protocol.transport.close()
        assert [await told.get(), await told.get()] == ["lost", "lost"]


async def test_after_a_failed_accept_the_next_one_waits(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "ACCEPT_PAUSE_S", 0.01)
    told: asyncio.Queue[str] = asyncio.Queue()
    accepting = acceptor.Acceptor(listener, lambda: Told(told), Limits(), LimitLog())
    accepting.start(BACKLOG)
    with socket.create_connection(listener.getsockname()):
        assert await told.get() == "made"
        assert "Too many open files" in caplog.text
    assert await told.get() == "lost"
    await accepting.stop()
