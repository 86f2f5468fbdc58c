"""A TCP proxy in front of a node, to cut connections at any byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.kit.listener import Listener, close_sockets

CHUNK_BYTES = 16 * 1024


class Proxy:
    """Forwards to a port of the loopback interface.

    Args:
        port: the node's.
        changes_maps: whether the node's port in cluster maps becomes the proxy's.

    Attributes:
        port: where it listens.
        connections: how many connections it has passed on.
    """

    def __init__(self, port: int, *, changes_maps: bool = True) -> None:
        self._target = port
        self._changes_maps = changes_maps
        self.connections = 0
        self._lock = threading.Lock()
        self._budget: list[int] = []
        self._carried = 0
        self._alarm: tuple[int, Callable[[], None]] | None = None
        self._listener = Listener(self._serve)
        self.port = self._listener.port
        if changes_maps:
            assert len(str(self.port)) == len(str(port)), "ports of one length, so that frames keep theirs"

    @property
    def connection_string(self) -> str:
        return f"couchbase://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close every connection."""
        self._listener.cut()

    def cut_after(self, *sizes: int) -> None:
        """Cut each of the next connections after so many bytes from the node."""
        with self._lock:
            self._budget = list(sizes)

    def call_after(self, size: int, action: Callable[[], None]) -> None:
        """Call a function once when so many more bytes of the node have been passed on."""
        with self._lock:
            self._alarm = (self._carried + size, action)

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, client: socket.socket) -> None:
        node = self._listener.connect(self._target, client)
        if node is None:
            return
        with self._lock:
            self.connections += 1
            budget = self._budget.pop(0) if self._budget else -1
        self._listener.spawn(self._carry, client, node, -1, False)
        self._carry(node, client, budget, True)

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
                if self._changes_maps and b"vBucketServerMap" in data:
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
            close_sockets(source, target)
