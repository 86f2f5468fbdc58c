"""The cluster map over HTTP: once, or as a stream with every change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from dcpstream_node.engine import Bucket
from dcpstream_node.rest.site import LOGIN, Route, Site, map_host

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
"""A streaming answer repeats the configuration this often, so that dead listeners are noticed."""
MAX_STREAMS = 1000
"""Largest number of open streaming answers."""
CHUNK_END = b"\n\n\n\n"
"""Follows each configuration of a streaming answer."""


class MapPages:
    """The pages of the map.

    Args:
        site: the node.

    Attributes:
        is_stopping: whether streams must end.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._engine = site.engine
        self.is_stopping = False
        self._streams: set[asyncio.Event] = set()

    def routes(self) -> list[Route]:
        """The pages."""
        stream = "the same as a stream: again after every change, and as a sign of life"
        return [
            Route("GET", "/pools/default/b/{bucket}", self._once, "bucket.read", "the bucket's cluster map"),
            Route("GET", "/pools/default/bs/{bucket}", self._stream, "bucket.read", stream),
            Route("GET", "/pools/default/bucketsStreaming/{bucket}", self._stream, "bucket.read", stream),
            Route("GET", "/pools/default/nodeServices", self._node, LOGIN, "the cluster map without a bucket"),
        ]

    def stop(self) -> None:
        """End the streams."""
        self.is_stopping = True
        for news in self._streams:
            news.set()

    async def _once(self, request: web.Request) -> web.Response:
        return self._answer(self._site.bucket(request), request)

    async def _node(self, request: web.Request) -> web.Response:
        return self._answer(None, request)

    def _answer(self, bucket: Bucket | None, request: web.Request) -> web.Response:
        body = self._engine.config_json(bucket, map_host(request, self._engine))
        return web.Response(body=body, content_type="application/json")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        bucket, host = self._site.bucket(request), map_host(request, self._engine)

        def version() -> tuple[int, int] | None:
            is_there = self._engine.buckets.get(bucket.name) is bucket
            return self._engine.config_version(bucket) if is_there and not self.is_stopping else None

        async def content() -> bytes:
            return self._engine.config_json(bucket, host)

        return await self.stream(request, version, content)

    async def stream(
        self, request: web.Request, version: Callable[[], object | None], content: Callable[[], Awaitable[bytes]]
    ) -> web.StreamResponse:
        """Write the content now, after each change of its version, and at each heartbeat; end at the version None."""
        if len(self._streams) >= MAX_STREAMS:
            raise web.HTTPServiceUnavailable(text="Too many streaming answers are open.\r\n")
        answer = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        answer.enable_chunked_encoding()
        news = asyncio.Event()
        self._streams.add(news)
        self._engine.config_listeners.add(news.set)
        try:
            await answer.prepare(request)
            while (sent := version()) is not None and request.method != "HEAD":
                await answer.write(await content() + CHUNK_END)
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        while version() == sent:
                            news.clear()
                            await news.wait()
            await answer.write_eof()
        except ConnectionError:
            logger.debug("a listener of the configuration went away")
        finally:
            self._engine.config_listeners.discard(news.set)
            self._streams.discard(news)
        return answer
