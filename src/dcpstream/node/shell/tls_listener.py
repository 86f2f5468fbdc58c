"""A listener for encrypted connections; handshakes count as connections, and have a time limit."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from dcpstream.node.engine.limit_log import LimitLog
from dcpstream.node.shell.limits import Limits

ACCEPT_PAUSE_S = 0.5
"""Pause after a failed accept, which usually lacks descriptors."""
SHUTDOWN_S = 1.0
"""Time limit of the TLS shutdown of a connection."""


class TlsListener:
    """Accepts connections on a bound socket and hands them over once they are encrypted.

    Args:
        listener: bound and non-blocking.
        context: certificate, versions, ciphers.
        make: the protocol of a connection; its `connection_made` is called after the handshake.
        limits: `tls_connections`, and `login_s` for the handshake.
        established: gives the number of open connections after their handshakes.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        limits: Limits,
        log: LimitLog,
        established: Callable[[], int],
    ) -> None:
        self._listener = listener
        self._context = context
        self._make = make
        self._limits = limits
        self._log = log
        self._established = established
        self._loop = asyncio.get_running_loop()
        self._shaking: dict[asyncio.Task[None], None] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self, backlog: int) -> None:
        """Begin to accept."""
        self._listener.listen(backlog)
        self._task = self._loop.create_task(self._accept(), name="accept TLS connections")

    async def stop(self) -> None:
        """Accept no more connections, and drop those in their handshake."""
        tasks = [task for task in (self._task, *self._shaking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(self._listener)
            except OSError as error:
                self._log.reached("of the system", "a TLS connection", f"not accepted ({error})", self._loop.time())
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "client"
            if len(self._shaking) + self._established() >= self._limits.tls_connections:
                self._log.reached("tls_connections", peer, "refused, or in place of an older one", self._loop.time())
                if not self._shaking:
                    connection.close()
                    continue
                oldest = next(iter(self._shaking))  # stalled handshakes keep no new client out
                del self._shaking[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._shake(connection, peer), name=f"handshake with {peer}")
            self._shaking[task] = None
            task.add_done_callback(partial(self._shaken, connection))

    def _shaken(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """A handshake ended, or was cancelled, perhaps before it began."""
        self._shaking.pop(task, None)
        if task.cancelled():
            connection.close()

    async def _shake(self, connection: socket.socket, peer: str) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.login_s or None,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            connection.close()
            why = str(error) or type(error).__name__
            text = f"{peer}: no TLS connection: {why}"
            self._log.say("connections without a TLS handshake", text, self._loop.time(), level=logging.INFO)
