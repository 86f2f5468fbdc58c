"""One HTTP connection: answers to malformed requests, and to faults of pages.

The library would quote the request, which may hold a password, in the log and in the answer. Here both get a line
without any part of the request.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from dcpstream_node.engine.limit_log import LimitLog, described

_TEXTS = {
    400: "The request is not well-formed.\n",
    500: "The node failed to answer. Its log says where.\n",
    504: "The node took too long to answer.\n",
}


class HttpConnection(web.RequestHandler):
    """A connection; `log` gets a line about each fault."""

    __slots__ = ("_log",)

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop, log: LimitLog) -> None:
        # None: no access log, which would contain every path.
        super().__init__(server, loop=loop, access_log=None, auto_decompress=False)  # type: ignore[arg-type]
        self._log = log

    async def start(self) -> None:
        """Answer requests until the connection is closed; an unreadable request closes it."""
        try:
            await super().start()
        except Exception as error:  # noqa: BLE001 - logged; only this connection is lost
            self._failed("a connection to the management port failed", error)
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to an unreadable request, or to one whose page failed."""
        peer = request.remote or "client"
        if isinstance(exc, HttpProcessingError):
            text = f"{peer}: refused a request that is not well-formed HTTP ({type(exc).__name__})"
            self._log.say("malformed HTTP requests", text, self._loop.time())
        elif exc is not None:
            self._failed(f"{peer}: a page failed", exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer was begun already")
        answer = web.Response(status=status, text=_TEXTS.get(status, f"{status}\n"))
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; the library's answer to a bad header Expect would repeat the header."""
        if isinstance(resp, web.HTTPExpectationFailed):
            resp.text = "Only 100-continue is a known expectation.\n"
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a fault outside of the pages, usually while the rest of a refused request was read."""
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            self._log.say("malformed HTTP requests", "the rest of a request is not well-formed HTTP", self._loop.time())
        elif isinstance(error, BaseException):
            self._failed("a connection to the management port failed", error)

    def log_debug(self, *args: Any, **kw: Any) -> None:
        """Not logged."""

    def _failed(self, what: str, error: BaseException) -> None:
        text = f"{what}: {described(error)}"
        self._log.say("faults of the management port", text, self._loop.time(), level=logging.ERROR)
