"""Limits of the management port: the number of connections, and the time that a request may take.

A connection without a request in progress must send the whole header of one in time, whether it is new, kept alive, or
has sent half of a header. A request's body is read here, within its time limit, before the page is called. Streaming
answers have no time limit.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from dcpstream_node.engine.limit_log import LimitLog
from dcpstream_node.rest.request_handler import HttpConnection
from dcpstream_node.rest.site import fault
from dcpstream_node.shell.acceptor import Acceptor
from dcpstream_node.shell.limits import Limits

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

    from dcpstream_node.rest.site import Handler

BACKLOG = 256
_WITHOUT_BODY = frozenset(("GET", "HEAD", "OPTIONS"))


class _Refused(asyncio.Protocol):
    """The protocol of a connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        if isinstance(transport, asyncio.Transport):
            transport.abort()


class HttpConnectionLimits:
    """Stands between the sockets of the management port and its pages, and enforces the limits `http_…`."""

    def __init__(self, limits: Limits, log: LimitLog) -> None:
        self._limits = limits
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._server: web.Server | None = None
        self._busy: dict[RequestHandler, int] = {}
        self._idle_since: dict[RequestHandler, float] = {}
        self._acceptors: list[Acceptor] = []
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, server: web.Server, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket, which `stop` closes."""
        self._server = server
        acceptor = Acceptor(listener, self._make, self._limits, self._log, tls, lambda: len(server.connections))
        acceptor.start(BACKLOG)
        self._acceptors.append(acceptor)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._limits.sweep_s, self._sweep)

    async def stop(self) -> None:
        """Accept no more connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for acceptor in self._acceptors:
            await acceptor.stop()
        self._log.close()

    def _make(self) -> asyncio.BaseProtocol:
        server = self._server
        assert server is not None, "it listens"
        if len(server.connections) >= self._limits.http_connections:
            idle = next((item for item in server.connections if item not in self._busy), None)
            what = "a connection was refused" if idle is None else "the oldest without a request was closed"
            self._log.reached("http_connections", "management", what, self._loop.time())
            if idle is None:
                return _Refused()
            self._close(idle)
        return HttpConnection(server, self._loop, self._log)

    @staticmethod
    def _close(connection: RequestHandler) -> None:
        transport = connection.transport
        connection.force_close()  # forgets it
        if transport is not None:
            transport.abort()

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Read a request's body, and call its page."""
        connection = request.protocol
        self._busy[connection] = self._busy.get(connection, 0) + 1
        try:
            if request.method not in _WITHOUT_BODY and request.can_read_body:
                try:
                    async with asyncio.timeout(self._limits.http_body_s or None):
                        await request.read()
                except TimeoutError:
                    peer = request.remote or "client"
                    self._log.reached("http_body_s", peer, "its request's body came too slowly", self._loop.time())
                    answer = web.Response(status=408, text="The request's body took too long.\n")
                    answer.force_close()
                    return answer
                except (web.RequestPayloadError, HttpProcessingError):
                    return fault(400, "The request's body is not framed as its header says.")
            return await handler(request)
        finally:
            self._busy[connection] -= 1
            if not self._busy[connection]:
                del self._busy[connection]

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(self._limits.sweep_s, self._sweep)
        now, limit = self._loop.time(), self._limits.http_header_s
        self._log.sweep(now)
        there = self._server.connections if self._server is not None else ()
        waiting = [item for item in there if item not in self._busy and item.transport is not None]
        self._idle_since = {item: self._idle_since.get(item, now) for item in waiting}
        for connection, since in self._idle_since.items():
            if limit and now - since > limit:
                self._log.reached("http_header_s", "management", "a connection without a request was closed", now)
                self._close(connection)
