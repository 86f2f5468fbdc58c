"""The management port as a whole: routes, login, and answers where there is no page."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import web

from dcpstream.errors import ConfigError, StoreError
from dcpstream.pages.hosts import is_own_host
from dcpstream_node.engine import Engine, User
from dcpstream_node.rest import buckets, collections, fault_pages, health, pools, statistics, topology, users
from dcpstream_node.rest.authorization import Access, login_needed
from dcpstream_node.rest.cluster_map import MapPages
from dcpstream_node.rest.connection_limits import HttpConnectionLimits
from dcpstream_node.rest.documents import DocumentPages
from dcpstream_node.rest.site import (
    ANYBODY,
    MAX_REQUEST_BYTES,
    NOT_FOUND,
    USER,
    Handler,
    Manager,
    Route,
    Site,
    check_head,
    fault,
)
from dcpstream_node.rest.ui import UiPages, error_page, is_page
from dcpstream_node.shell.limits import Limits

if TYPE_CHECKING:
    from dcpstream_node.bucket_host import RunningBuckets
    from dcpstream_node.fault_host import FaultHost
    from dcpstream_node.shell.tls import Tls

logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 0.5
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
"""They change nothing."""
OWN_SITES = frozenset(("same-origin", "none"))
"""Allowed values of Sec-Fetch-Site: a page of this node, or no page. Another port of the same host is another site."""


class Management:
    """The HTTP side of a node.

    Args:
        engine: the node, on the same loop.
        running: makes and deletes buckets.
        changed: called after changes that DCP streams must report.
        limits: the limits of clients.
        manager: of the cluster that the node belongs to; see `Site`.
        is_development: see `Site`.

    Attributes:
        routes: every page.
        faults: carries out faults on demand; set before `start`.
    """

    def __init__(
        self,
        engine: Engine,
        running: RunningBuckets,
        changed: Callable[[], None],
        limits: Limits | None = None,
        manager: Manager | None = None,
        *,
        is_development: bool = False,
    ) -> None:
        self._engine = engine
        self._access = Access(engine)
        self._guard = HttpConnectionLimits(limits or Limits(), engine.log)
        self._tls: Tls | None = None
        self.faults: FaultHost | None = None
        site = Site(engine, running, changed, manager, is_development=is_development)
        documents = DocumentPages(site)
        self._maps = MapPages(site)
        self.routes: list[Route] = [
            *pools.PoolPages(site, self._maps).routes(),
            *self._maps.routes(),
            *topology.TopologyPages(site).routes(),
            *buckets.BucketPages(site).routes(),
            *collections.CollectionPages(site).routes(),
            *documents.routes(),
            *UiPages(site, documents.documents, lambda: self.faults).routes(),
            *statistics.StatsPages(site).routes(),
            *users.UserPages(site).routes(),
            *health.HealthPages(site).routes(),
            *fault_pages.FaultPages(lambda: self.faults).routes(),
        ]
        self._open = {route.path for route in self.routes if route.needs == ANYBODY}
        self._runner: web.AppRunner | None = None

    async def start(self, listener: socket.socket, tls: Tls | None = None) -> None:
        """Serve on a bound socket; may be called again for another one.

        Args:
            tls: encryption, and logins by certificate.
        """
        self._tls = tls or self._tls
        if self._runner is None:
            app = web.Application(middlewares=[self._answer], client_max_size=MAX_REQUEST_BYTES)
            for route in self.routes:
                handler = self._access.guarded(route)
                paths = (route.path,) if route.path == "/" else (route.path, f"{route.path}/")
                for path in paths:
                    app.router.add_route(route.method, path, handler)
                    if route.method == "GET":
                        app.router.add_route("HEAD", path, handler)
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
            await self._runner.setup()
        assert self._runner.server is not None, "it was set up"
        await self._guard.listen(self._runner.server, listener, tls.context if tls is not None else None)

    async def stop(self) -> None:
        """Close the port and the streaming answers."""
        self._maps.stop()
        await self._guard.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse forged requests, log in the user, and answer within the time limits."""
        check_head(request)
        if self._is_forged(request):
            text = f"{request.remote}: refused a change that a page of another site sent"
            self._engine.log.say("requests of other sites", text, asyncio.get_running_loop().time())
            return fault(403, "A page of another site must not change anything here.")
        is_open = (request.path.rstrip("/") or "/") in self._open
        # Pages without a login check a given password, too: guessing must not be faster there.
        user = await self._login(request) if not is_open or "Authorization" in request.headers else None
        if user is None and not is_open:
            return login_needed()
        if user is not None:
            request[USER] = user
        page = self._page_for_people if is_page(request.path) else self._page
        return await self._guard.answer(request, partial(page, handler))

    def _is_forged(self, request: web.Request) -> bool:
        """Whether a browser sent a change on behalf of a page from elsewhere, with a password that it remembers.

        Browsers name the page's origin, or how it is related to this one, or both. Neither comes from other clients.
        A page that had its own name point to this node is of the same origin; without TLS only the name shows that.
        """
        if request.method in SAFE_METHODS:
            return False
        headers = request.headers
        sites, origins = headers.getall("Sec-Fetch-Site", ()), headers.getall("Origin", ())
        if not OWN_SITES.issuperset(site.strip().lower() for site in sites):
            return True
        if any(origin.partition("://")[2].lower() != request.host.lower() for origin in origins):
            return True
        return bool(sites or origins) and not request.secure and not is_own_host(request.host, self._names())

    def _names(self) -> set[str]:
        """The names of this node: of the machine, in the cluster, and in other networks."""
        config = self._engine.config
        alternates = {each.hostname for each in config.alternates.values()}
        return {socket.gethostname()} | {node.host for node in config.nodes} | alternates

    async def _login(self, request: web.Request) -> User | None:
        """The user of the request's header, or of the connection's certificate. Refusals are delayed."""
        authorization = request.headers.get("Authorization", "")
        if not authorization and self._tls is not None:
            certificate = request.get_extra_info("peercert")
            name = self._tls.user_name(certificate)
            return self._engine.users.find(name) if name is not None else None
        address, logins = request.remote or "", self._engine.logins
        user = self._access.user_of(authorization, address, is_secure=request.secure)
        if user is None and authorization:
            if logins.is_full(address):
                raise web.HTTPTooManyRequests(text="Too many failed logins from your address wait.\n")
            delay = logins.failed(address, asyncio.get_running_loop().time())
            logins.begin_wait(address)
            try:
                await asyncio.sleep(delay)
            finally:
                logins.end_wait(address)
        return user

    async def _page_for_people(self, handler: Handler, request: web.Request) -> web.StreamResponse:
        try:
            found = await self._page(handler, request)
        except web.HTTPError as error:
            return error_page(request, self._engine, error.status, error.text or "")
        is_error = found.status >= HTTPStatus.BAD_REQUEST and found.content_type != "text/html"
        if not is_error or not isinstance(found, web.Response):
            return found
        return error_page(request, self._engine, found.status, found.text or "")

    @staticmethod
    async def _page(handler: Handler, request: web.Request) -> web.StreamResponse:
        """A page's answer; errors are answered in the server's words."""
        try:
            return await handler(request)
        except web.HTTPNotFound as missing:
            if missing.text != "404: Not Found":
                raise
            return web.Response(status=404, text=NOT_FOUND)
        except web.HTTPMethodNotAllowed as refused:
            headers = {"Allow": ",".join(sorted(refused.allowed_methods))}
            return web.Response(status=405, text="Method Not Allowed", headers=headers)
        except ConfigError as error:
            return fault(400, str(error))
        except StoreError as error:
            route = request.match_info.route.resource
            logger.error("%s %s: %s", request.method, route.canonical if route is not None else "", error)
            return fault(500, "The change could not be made durable. The node's log says why.")
