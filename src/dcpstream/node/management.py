"""The management port: the few HTTP paths that client libraries ask to bootstrap, to ping and to look around.

All of it is read-only but for scopes and collections. Basic authentication with the node's users; a trailing slash
makes no difference.
Source: Couchbase Server REST API; which client asks for what was observed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from dcpstream.node.collection_pages import CollectionPages
from dcpstream.node.engine import IMPLEMENTATION_VERSION, Bucket, Engine, User

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
"""A streaming answer repeats the configuration this often, so that dead listeners are noticed."""
MAX_STREAMS = 1000
"""Streaming answers that may be open at a time."""
SHUTDOWN_TIMEOUT_S = 0.5
MAX_REQUEST_BYTES = 64 * 1024
CHUNK_END = b"\n\n\n\n"
"""Follows each configuration of a streaming answer."""
QUOTA_BYTES = 100 * 1024 * 1024
"""Clients want to see a bucket quota; none is enforced."""

_OPEN = frozenset(("/health",))
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Management:
    """The HTTP side of a node.

    Args:
        engine: what the answers are read from; lives on the same loop.
        changed: called when something was changed that streams must be told of.
    """

    def __init__(self, engine: Engine, changed: Callable[[], None]) -> None:
        self._engine = engine
        self._collections = CollectionPages(engine, self._find, self._user_of, changed)
        self._runner: web.AppRunner | None = None
        self._streams = 0
        self._stopping = asyncio.Event()

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket."""
        app = web.Application(middlewares=[self._authenticate], client_max_size=MAX_REQUEST_BYTES)
        for path, handler in (
            ("/", self._root),
            ("/health", self._health),
            ("/pools", self._pools),
            ("/pools/default", self._pool),
            ("/pools/default/b/{bucket}", self._config),
            ("/pools/default/bs/{bucket}", self._config_stream),
            ("/pools/default/bucketsStreaming/{bucket}", self._config_stream),
            ("/pools/default/nodeServices", self._node_services),
            ("/pools/default/buckets", self._buckets),
            ("/pools/default/buckets/{bucket}", self._bucket),
            ("/pools/default/buckets/{bucket}/scopes", self._scopes),
            ("/whoami", self._whoami),
            ("/nodes/self", self._node),
        ):
            app.router.add_get(path, handler)
            if path != "/":
                app.router.add_get(f"{path}/", handler)
        self._collections.add_to(app.router)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def stop(self) -> None:
        """Close the port and the streaming answers."""
        self._stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()

    # ---------------------------------------------------------------------------------------------------- who asks

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.path.rstrip("/") in _OPEN:
            return await handler(request)
        user = self._user(request.headers.get("Authorization", ""))
        if user is None:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="dcpstream"'})
        return await handler(request)

    def _user(self, authorization: str) -> User | None:
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, separator, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return self._engine.users.authenticate(name, password.encode()) if separator else None

    def _user_of(self, request: web.Request) -> User:
        user = self._user(request.headers.get("Authorization", ""))
        assert user is not None, "who is not let in does not come here"
        return user

    def _find(self, request: web.Request) -> Bucket:
        bucket = self._engine.buckets.get(request.match_info["bucket"])
        if bucket is None:
            raise web.HTTPNotFound(text="Requested resource not found.\n")
        return bucket

    # ------------------------------------------------------------------------------------------------------ answers

    async def _root(self, _: web.Request) -> web.Response:
        return web.Response(text="dcpstream node\n")

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "healthy", "buckets": list(self._engine.buckets)})

    async def _pools(self, _: web.Request) -> web.Response:
        pool = {"name": "default", "uri": "/pools/default", "streamingUri": "/poolsStreaming/default"}
        return web.json_response(
            {
                "isAdminCreds": True,
                "isEnterprise": True,
                "implementationVersion": IMPLEMENTATION_VERSION,
                "uuid": self._engine.config.cluster_uuid,
                "pools": [pool],
            }
        )

    async def _pool(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "name": "default",
                "clusterName": "dcpstream",
                "balanced": True,
                "rebalanceStatus": "none",
                "nodes": self._nodes(request),
                "buckets": {"uri": "/pools/default/buckets"},
            }
        )

    async def _config(self, request: web.Request) -> web.Response:
        body = self._engine.config_json(self._find(request))
        return web.Response(body=body, content_type="application/json")

    async def _node_services(self, _: web.Request) -> web.Response:
        return web.Response(body=self._engine.config_json(None), content_type="application/json")

    async def _config_stream(self, request: web.Request) -> web.StreamResponse:
        bucket = self._find(request)
        if self._streams >= MAX_STREAMS:
            raise web.HTTPServiceUnavailable(text="Too many streaming answers are open.\n")
        answer = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        answer.enable_chunked_encoding()
        self._streams += 1
        try:
            await answer.prepare(request)
            while not self._stopping.is_set() and self._engine.buckets.get(bucket.name) is bucket:
                await answer.write(self._engine.config_json(bucket) + CHUNK_END)
                await self._wait_for_change()
            await answer.write_eof()
        except ConnectionError:
            logger.debug("a listener of the configuration went away")
        finally:
            self._streams -= 1
        return answer

    async def _wait_for_change(self) -> None:
        """Until the configuration is a newer one, the node stops, or it is time for a heartbeat."""
        version = self._engine.config.version
        for _ in range(int(HEARTBEAT_S)):
            try:
                await asyncio.wait_for(self._stopping.wait(), 1.0)
            except TimeoutError:
                if self._engine.config.version != version:
                    return
            else:
                return

    async def _buckets(self, request: web.Request) -> web.Response:
        return web.json_response([self._describe(bucket, request) for bucket in self._engine.buckets.values()])

    async def _bucket(self, request: web.Request) -> web.Response:
        return web.json_response(self._describe(self._find(request), request))

    async def _scopes(self, request: web.Request) -> web.Response:
        return web.json_response(self._find(request).manifest.to_json())

    async def _whoami(self, request: web.Request) -> web.Response:
        user = self._user_of(request)
        return web.json_response({"id": user.name, "domain": "local", "roles": [{"role": "admin"}]})

    async def _node(self, request: web.Request) -> web.Response:
        return web.json_response(self._nodes(request)[self._engine.config.this_node])

    def _nodes(self, request: web.Request) -> list[dict[str, Any]]:
        config = self._engine.config
        return [
            {
                "hostname": f"{node.host or request.url.host or '127.0.0.1'}:{node.mgmt_port}",
                "status": "healthy",
                "clusterMembership": "active",
                "version": IMPLEMENTATION_VERSION,
                "services": ["kv"],
                "ports": {"direct": node.kv_port},
                "thisNode": index == config.this_node,
            }
            for index, node in enumerate(config.nodes)
        ]

    def _describe(self, bucket: Bucket, request: web.Request) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._engine.config_json(bucket))
        return content | {
            "nodes": self._nodes(request),
            "controllers": {},
            "storageBackend": "couchstore" if bucket.storage == "disk" else "",
            "evictionPolicy": "fullEviction" if bucket.storage == "disk" else "noEviction",
            "replicaNumber": 0,
            "replicaIndex": False,
            "flushEnabled": False,
            "compressionMode": "off",
            "conflictResolutionType": "seqno",
            "durabilityMinLevel": "none",
            "maxTTL": 0,
            "quota": {"ram": QUOTA_BYTES, "rawRAM": QUOTA_BYTES},
            "basicStats": {"itemCount": bucket.item_count()},
        }
