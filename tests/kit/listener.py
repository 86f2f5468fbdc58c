"""A port that accepts connections and serves each of them in a thread: the base of the servers and proxies of tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from lab.tools.patience import patient


class Listener:
    """Listens on a free port of the loopback interface.

    Args:
        serve: called in a thread of its own with each connection.

    Attributes:
        port: the port that the system gave.
        connections: how many connections were accepted.
    """

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0
        self._lock = threading.Lock()
        self._kept: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.spawn(self._accept)

    def spawn(self, target: Callable[..., None], *arguments: object) -> None:
        """Run a function in a thread that `close` waits for."""
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def keep(self, *sockets: socket.socket) -> None:
        """Close these sockets, too, in `cut` and `close`."""
        with self._lock:
            self._kept += sockets

    def connect(self, port: int, client: socket.socket) -> socket.socket | None:
        """A connection to a node for a client; if there is no node, closes the client and returns None."""
        try:
            node = socket.create_connection(("127.0.0.1", port))
        except OSError:
            close_sockets(client)
            return None
        self.keep(node)
        return node

    def cut(self) -> None:
        """Close every connection; new ones are accepted."""
        with self._lock:
            kept, self._kept = self._kept, []
        close_sockets(*kept)

    def close(self) -> None:
        """Accept no more, close every connection and wait for the threads."""
        close_sockets(self._socket)
        with self._lock:
            kept = list(self._kept)
        for each in kept:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(patient(10))
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self.keep(connection)
            self.spawn(self._serve, connection)


def close_sockets(*sockets: socket.socket) -> None:
    """Close sockets so that threads that wait for their data go on."""
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
