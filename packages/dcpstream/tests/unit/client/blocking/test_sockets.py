"""Reads of busy connections: bytes that come in drops are read together."""

from __future__ import annotations

import fcntl
import selectors
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from dcpstream.client.blocking import sockets as module
from dcpstream.client.blocking.sockets import BUSY_BYTES, GATHER_BYTES, GATHER_PAUSE_S, GATHER_SHARE, Sockets
from dcpstream.client.settings.options import DcpSettings
from dcpstream.model import NodeAddress
from tests.kit.waiting import TIMEOUT_S

PAUSE_S = TIMEOUT_S - 1
"""A pause that only bytes can end."""


class Connection:
    """Takes bytes, and counts them."""

    def __init__(self, port: int, window: int) -> None:
        self.address = NodeAddress("127.0.0.1", port)
        self.settings = DcpSettings("test", buffer_bytes=window)
        self.received = 0

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(GATHER_BYTES))

    def buffer_updated(self, count: int) -> None:
        self.received += count

    def data_to_send(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


class Nodes:
    """Wants one connection."""

    def __init__(self, wanted: Connection) -> None:
        self._wanted = [wanted]

    def to_disconnect(self) -> list[Connection]:
        return []

    def to_connect(self) -> list[Connection]:
        wanted, self._wanted = self._wanted, []
        return wanted


class Stream:
    """A connection, and the node's end of its socket."""

    def __init__(self, listener: socket.socket, sockets: Sockets, window: int) -> None:
        self.connection = Connection(listener.getsockname()[1], window)
        self._sockets = sockets
        nodes: Any = Nodes(self.connection)
        assert not sockets.sync(nodes)
        self.node, _ = listener.accept()
        list(sockets.poll(TIMEOUT_S))  # connected
        self.link = next(iter(sockets._links.values()))

    def arrive(self, size: int) -> None:
        """Send, and wait until that much can be read."""
        before = waiting_bytes(self.link.socket)
        self.node.sendall(bytes(size))
        deadline = time.monotonic() + TIMEOUT_S
        while waiting_bytes(self.link.socket) < before + size:
            assert time.monotonic() < deadline

    def read(self, timeout_s: float = TIMEOUT_S) -> int:
        """Bytes of one poll."""
        before = self.connection.received
        assert all(error is None for _, error in self._sockets.poll(timeout_s))
        return self.connection.received - before


@contextmanager
def stream(window: int = 16 * 1024 * 1024) -> Iterator[Stream]:
    with closing(Sockets()) as sockets, socket.create_server(("127.0.0.1", 0)) as listener:
        found = Stream(listener, sockets, window)
        with found.node:
            yield found


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The events in each pause; a pause without an entry is an error."""
    planned: list[Any] = []
    select = selectors.DefaultSelector.select

    def pause(self: selectors.DefaultSelector, timeout: float | None = None) -> list[Any]:
        if timeout != GATHER_PAUSE_S:
            return select(self, timeout)
        planned.pop(0)()
        return select(self, 0.0)

    monkeypatch.setattr(selectors.DefaultSelector, "select", pause)
    return planned


def test_a_busy_connection_is_read_after_a_pause(pauses: list[Any]) -> None:
    with stream() as one:
        one.arrive(BUSY_BYTES)
        assert one.read() == BUSY_BYTES  # nothing was known of it: no pause
        one.arrive(1000)
        pauses.append(lambda: one.arrive(2000))
        assert one.read() == 3000
        assert not pauses
        one.arrive(500)  # no longer busy
        assert one.read() == 500


def test_a_read_that_must_not_wait_has_no_pause(pauses: list[Any]) -> None:
    with stream() as one:
        one.arrive(BUSY_BYTES)
        one.read()
        one.arrive(1000)
        assert one.read(0.0) == 1000


@pytest.mark.parametrize(("window", "size"), [(64 * 1024, 20 * 1024), (16 * 1024 * 1024, GATHER_BYTES)])
def test_enough_bytes_end_the_pause(monkeypatch: pytest.MonkeyPatch, window: int, size: int) -> None:
    """A quarter of the window, or as many as are worth a read; then a single byte is read at once again."""
    monkeypatch.setattr(module, "GATHER_PAUSE_S", PAUSE_S)
    select, woken = selectors.DefaultSelector.select, []

    def pause(self: selectors.DefaultSelector, timeout: float | None = None) -> list[Any]:
        found = select(self, timeout)
        if timeout == PAUSE_S:
            woken.append(bool(found))
        return found

    monkeypatch.setattr(selectors.DefaultSelector, "select", pause)
    with stream(window) as one:
        one.arrive(BUSY_BYTES)
        one.read()
        one.node.setblocking(True)
        one.arrive(1000)
        sender = threading.Thread(target=one.node.sendall, args=(bytes(size),))
        sender.start()
        # A system that is short of memory for sockets wakes the reader earlier.
        assert one.read() >= min(size, window // GATHER_SHARE, 64 * 1024)
        assert woken == [True]
        sender.join(TIMEOUT_S)
        one.link.last_read = 0
        while waiting_bytes(one.link.socket):
            one.read()
        one.arrive(1)
        assert one.read() == 1


def waiting_bytes(source: socket.socket) -> int:
    """Bytes that have come and were not read."""
    return struct.unpack("@i", fcntl.ioctl(source, termios.FIONREAD, bytes(4)))[0]
