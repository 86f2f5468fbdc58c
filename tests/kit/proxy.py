"""A TCP proxy in front of a node, to cut connections at any byte.

The node's port in cluster maps becomes the proxy's.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from tools.patience import patient

CHUNK_BYTES = 16 * 1024


class Proxy:
    """Forwards to `port`.

    Attributes:
        port: where it listens.
        connections: how many were made so far.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        assert len(str(self.port)) == len(str(port)), "ports of one length, so that frames keep theirs"
        self.connections = 0
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._budget: list[int] = []
        self._carried = 0
        self._alarm: tuple[int, Callable[[], None]] | None = None
        self._start(self._accept)

    @property
    def connection_string(self) -> str:
        return f"couchbase://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def cut_after(self, *sizes: int) -> None:
        """Cut each of the next connections after so many bytes from the node."""
        with self._lock:
            self._budget = list(sizes)

    def call_after(self, size: int, action: Callable[[], None]) -> None:
        """Do something once when so many more bytes have come from the node; they are passed on before."""
        with self._lock:
            self._alarm = (self._carried + size, action)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(patient(10))

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                node = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                _close(client)
                continue
            with self._lock:
                self.connections += 1
                budget = self._budget.pop(0) if self._budget else -1
                self._pairs.append((client, node))
            self._start(self._carry, client, node, -1, False)
            self._start(self._carry, node, client, budget, True)

    def _count(self, size: int) -> None:
        action = None
        with self._lock:
            self._carried += size
            if self._alarm is not None and self._carried >= self._alarm[0]:
                action, self._alarm = self._alarm[1], None
        if action is not None:
            action()

    def _carry(self, source: socket.socket, target: socket.socket, budget: int, is_from_node: bool) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                if b"vBucketServerMap" in data:
                    data = data.replace(str(self._target).encode(), str(self.port).encode())
                if budget >= 0:
                    data, budget = data[:budget], budget - len(data)
                target.sendall(data)
                if is_from_node:
                    self._count(len(data))
                if -1 < budget <= 0 or budget < -1:
                    break
        except OSError:
            pass
        finally:
            _close(source, target)


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
