"""The common parts of pages: routes, the node, reading of requests, shapes of answers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import AddressValueError, IPv6Address
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from aiohttp import web

from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import AutoFailover, ClusterState, NodeState
from dcpstream_node.engine import Bucket, Engine, User
from dcpstream_node.engine.cluster_config import in_url
from dcpstream_node.flow import Flow, traffic_of

if TYPE_CHECKING:
    from dcpstream_node.bucket_host import RunningBuckets

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Manager = Callable[[str, Mapping[str, Any]], Any]
"""A call of the cluster's manager: an order and its arguments. It blocks, so it is called in a thread."""

AUTO_FAILOVER = "autoFailover"
"""Key of the settings of a node that is alone."""

USER = web.RequestKey("user", User)
"""Key of the request's user, after the login."""
ANYBODY = ""
"""In place of a right: no login is needed."""
LOGIN = "login"
"""In place of a right: every user has it."""

logger = logging.getLogger(__name__)

NOT_FOUND = "Requested resource not found.\r\n"
"""The server's words."""
MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Largest body of a request: more than a manifest with the most collections."""
COMPRESSIONS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""Content-Encoding of a body → the form's number in zlib."""
MAX_FIELDS = 1000
"""Largest number of fields in a form."""
FORM_TYPE = "application/x-www-form-urlencoded"
MAX_DIGITS = 20
"""Largest number of digits: more than any accepted number has."""
MAX_PORT = (1 << 16) - 1
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Za-z:.%]{2,100})\]|(?P<name>[0-9A-Za-z._~-]{0,255}))(?::(?P<port>[0-9]{0,5}))?")


@dataclass(frozen=True, slots=True)
class Route:
    """One page.

    Attributes:
        method: GET (which also answers HEAD), POST, PUT, PATCH or DELETE.
        path: with the names of its variable parts in braces; a trailing slash makes no difference.
        handler: answers.
        needs: the right that the user needs at the place that the path names; or `ANYBODY`, or `LOGIN`.
        does: the line in the reference.
    """

    method: str
    path: str
    handler: Handler
    needs: str
    does: str


@dataclass(frozen=True, slots=True)
class Site:
    """The node that pages read and change.

    Attributes:
        engine: the node, on the same loop.
        buckets: makes, empties and deletes buckets.
        changed: called after changes that DCP streams must report.
        manager: carries out changes of the cluster that the node belongs to; None for a node that is alone.
        alone: what an administrator set of a cluster that this node alone is.
        is_development: whether documents may be changed over HTTP.
    """

    engine: Engine
    buckets: RunningBuckets
    changed: Callable[[], None]
    manager: Manager | None = None
    alone: dict[str, AutoFailover] = field(default_factory=dict)
    is_development: bool = False

    async def order(self, verb: str, **arguments: Any) -> Any:
        """Have the cluster's manager carry out a change, or report its state.

        Raises:
            ConfigError: it cannot be. HTTPServiceUnavailable: not now. HTTPGatewayTimeout: a node does not answer.
        """
        assert self.manager is not None, "the caller looks first"
        try:
            return await asyncio.get_running_loop().run_in_executor(None, partial(self.manager, verb, arguments))
        except ConfigError:
            raise
        except DcpstreamError as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\r\n") from error
        except TimeoutError as error:
            raise web.HTTPGatewayTimeout(text=f"The cluster's manager was not done in time: {error}\r\n") from error

    async def state(self, request: web.Request) -> ClusterState:
        """The cluster; of a node that is alone, that node."""
        if self.manager is not None:
            state = await self.order("state")
            assert isinstance(state, ClusterState), "what a manager answers"
            return state
        reached = reached_host(request)
        nodes = tuple(NodeState(f"ns_1@{in_url(node.host or reached)}", node) for node in self.engine.config.nodes)
        return ClusterState(nodes, auto_failover=self.alone.get(AUTO_FAILOVER, AutoFailover()))

    async def flow(self) -> Flow:
        """The feeds of the cluster; of a node that is alone, those to its clients."""
        if self.manager is None:
            return Flow(traffic={"": traffic_of(self.engine)})
        flow = await self.order("flow")
        assert isinstance(flow, Flow), "what a manager answers"
        return flow

    def bucket(self, request: web.Request) -> Bucket:
        """The bucket that the path names.

        Raises: HTTPNotFound: there is none. HTTPServiceUnavailable: its files are damaged or cannot be used.
        """
        name = request.match_info["bucket"]
        bucket = self.engine.buckets.get(name)
        if bucket is None and name in self.engine.damaged:
            raise web.HTTPServiceUnavailable(text=f"The bucket is not served: {self.engine.damaged[name]}")
        if bucket is None:
            raise web.HTTPNotFound(text=NOT_FOUND)
        return bucket


def note(request: web.Request, what: str, *names: str) -> None:
    """Log a change and its user; never the request's content, which may hold a password."""
    logger.info("%s %s, by %s", what, " ".join(map(repr, names)), request[USER].name)


def map_host(request: web.Request, engine: Engine) -> str:
    """The host for a cluster map: the requested one; with alternate addresses the one that was reached."""
    return local_host(request) if engine.config.alternates else reached_host(request)


def local_host(request: web.Request) -> str:
    """The address of this machine at which the request came in."""
    local = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return str(local[0]) if isinstance(local, tuple) else "127.0.0.1"


def reached_host(request: web.Request) -> str:
    """The address at which the client reached the node: the requested one if the header names it."""
    return asked_host(request) or local_host(request)


def asked_host(request: web.Request) -> str:
    """The host that a request's header names, without the port and the brackets of IPv6; empty if it names none.

    Raises: HTTPBadRequest: the header is not a host.
    """
    found = _HOST.fullmatch(request.headers.get("Host", "").strip())
    if found is None or int(found["port"] or 0) > MAX_PORT:
        raise web.HTTPBadRequest(text="The header Host is no host with a port.\r\n")
    if found["v6"] is None:
        return str(found["name"])
    try:
        return str(IPv6Address(found["v6"]))
    except AddressValueError:
        raise web.HTTPBadRequest(text="The header Host is no address.\r\n") from None


def check_head(request: web.Request) -> None:
    """Refuse an unusable head.

    Raises: HTTPBadRequest: its Host is not a host, or its path is not UTF-8.
    """
    asked_host(request)
    if not _is_text(request.path_qs) or not _is_text(request.path):
        raise web.HTTPBadRequest(text="The path is not UTF-8.\r\n")


def _is_text(text: str) -> bool:
    """Whether text can be written as UTF-8: bytes and escapes of JSON can stand for halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def done(status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer without content."""
    return web.Response(status=status, headers=headers)


def answer(content: Any, status: int = 200) -> web.Response:
    """JSON without blanks."""
    return web.json_response(content, status=status, dumps=_dumps)


def _dumps(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))


def fault(status: int, text: str) -> web.Response:
    """An error of the whole request: `{"errors": {"_": text}}`."""
    return answer({"errors": {"_": text}}, status)


def faults(errors: Mapping[str, str], status: int = 400, **more: Any) -> web.Response:
    """An error for each field: `{"errors": {field: text}}`."""
    return answer({"errors": dict(errors), **more}, status)


async def body_of(request: web.Request) -> bytes:
    """The body, decompressed.

    Raises:
        HTTPBadRequest: it is not compressed as its header says, or incomplete.
        HTTPRequestEntityTooLarge: it is larger than `MAX_REQUEST_BYTES`.
        HTTPUnsupportedMediaType: an unknown compression.
    """
    body, encoding = await request.read(), request.headers.get("Content-Encoding", "identity").strip().lower()
    if not body or encoding == "identity":
        return body
    if encoding not in COMPRESSIONS:
        text = f"A body is not compressed, or with {' or '.join(COMPRESSIONS)}.\r\n"
        raise web.HTTPUnsupportedMediaType(text=text)
    reader = zlib.decompressobj(COMPRESSIONS[encoding])
    try:
        content = reader.decompress(body, MAX_REQUEST_BYTES + 1)
    except zlib.error:
        raise web.HTTPBadRequest(text="The body is not compressed as its header says.\r\n") from None
    if len(content) > MAX_REQUEST_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_REQUEST_BYTES)
    if not reader.eof or reader.unused_data:
        raise web.HTTPBadRequest(text="The compressed body has another end than its own.\r\n")
    return content


async def text_of(request: web.Request) -> str:
    """The body as text.

    Raises: HTTPBadRequest: it is not UTF-8.
    """
    try:
        return (await body_of(request)).decode()
    except UnicodeDecodeError:
        raise web.HTTPBadRequest(text="The request's body is not UTF-8.\r\n") from None


async def form_of(request: web.Request) -> dict[str, str]:
    """The fields of a form, the last one of each name. As on the server, bodies of another type count as empty.

    Raises: HTTPBadRequest: too many fields, or one that is not UTF-8.
    """
    return dict(await fields_of(request))


async def fields_of(request: web.Request) -> list[tuple[str, str]]:
    """The fields of a form in their order, a name perhaps several times.

    Raises: as `form_of`.
    """
    if request.content_type != FORM_TYPE:
        return []
    text = await text_of(request)
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise web.HTTPBadRequest(text="A field of the form is not UTF-8.\r\n") from None
    except ValueError:
        raise web.HTTPBadRequest(text=f"A form has at most {MAX_FIELDS} fields.\r\n") from None


def whole_number(text: str, low: int, high: int) -> int | None:
    """A number in decimal digits and within bounds, or None."""
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        return None
    return int(text) if low <= int(text) <= high else None


async def json_of(request: web.Request) -> Any:
    """The body as JSON.

    Raises: HTTPBadRequest: it is not JSON.
    """
    try:
        content = json.loads(await body_of(request))
        json.dumps(content, ensure_ascii=False).encode()  # half a character in an escape is no text
    except (ValueError, RecursionError):
        text = _dumps({"errors": {"_": "Unexpected Json"}})
        raise web.HTTPBadRequest(text=text, content_type="application/json") from None
    return content
