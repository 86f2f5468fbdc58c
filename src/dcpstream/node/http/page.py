"""What pages are made of: a route, the node that they look at, and the shapes of answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from dcpstream.node.engine import Bucket, Engine, User

if TYPE_CHECKING:
    from dcpstream.node.buckets import RunningBuckets

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

USER = web.RequestKey("user", User)
"""Who asks, once they have logged in."""
ANYBODY = ""
"""In place of a right: also without login."""
LOGIN = "login"
"""In place of a right: everybody who can log in."""

logger = logging.getLogger(__name__)

NOT_FOUND = "Requested resource not found.\r\n"
"""The server's words."""
MAX_FIELDS = 1000
"""Fields of one form."""


@dataclass(frozen=True, slots=True)
class Route:
    """One page.

    Attributes:
        method: GET (which also answers HEAD), POST, PUT, PATCH or DELETE.
        path: with the names of its variable parts in braces; a trailing slash makes no difference.
        handler: answers.
        needs: the right that is asked for, at the place that the path names; or `ANYBODY`, or `LOGIN`.
        does: for the reference, in a line.
    """

    method: str
    path: str
    handler: Handler
    needs: str
    does: str


@dataclass(frozen=True, slots=True)
class Site:
    """What pages look at and work on.

    Attributes:
        engine: the node, on the same loop.
        buckets: makes, empties and deletes buckets.
        changed: to be called when something was changed that DCP streams must be told of.
    """

    engine: Engine
    buckets: RunningBuckets
    changed: Callable[[], None]

    def bucket(self, request: web.Request) -> Bucket:
        """The bucket that the path names.

        Raises: HTTPNotFound: there is none.
        """
        bucket = self.engine.buckets.get(request.match_info["bucket"])
        if bucket is None:
            raise web.HTTPNotFound(text=NOT_FOUND)
        return bucket


def note(request: web.Request, what: str, *names: str) -> None:
    """Log who changed what, for whoever looks after the node; never what was sent, which may hold a password."""
    logger.info("%s %s, by %s", what, " ".join(map(repr, names)), request[USER].name)


def map_host(request: web.Request, engine: Engine) -> str:
    """The host for a cluster map: the one that was asked for; with several networks the one that was reached."""
    return local_host(request) if engine.config.alternates else reached_host(request)


def local_host(request: web.Request) -> str:
    """The address of this machine at which the request came in."""
    local = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return str(local[0]) if isinstance(local, tuple) else "127.0.0.1"


def reached_host(request: web.Request) -> str:
    """The address at which the client reached the node: the one it asked for, if it can be one."""
    return request.url.host or local_host(request)


def done(status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer without content."""
    return web.Response(status=status, headers=headers)


def answer(content: Any, status: int = 200) -> web.Response:
    """JSON, as short as it can be written."""
    return web.json_response(content, status=status, dumps=_dumps)


def _dumps(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))


def fault(status: int, text: str) -> web.Response:
    """Why something about the whole request cannot be: `{"errors": {"_": text}}`."""
    return answer({"errors": {"_": text}}, status)


def faults(errors: Mapping[str, str], status: int = 400, **more: Any) -> web.Response:
    """What is wrong with which field: `{"errors": {field: text}}`."""
    return answer({"errors": dict(errors), **more}, status)


async def form_of(request: web.Request) -> dict[str, str]:
    """The fields of a form, the last one of each name; files are none.

    Raises: HTTPBadRequest: too many.
    """
    fields = await request.post()
    if len(fields) > MAX_FIELDS:
        raise web.HTTPBadRequest(text=f"A form has at most {MAX_FIELDS} fields.\r\n")
    return {name: value for name, value in fields.items() if isinstance(value, str)}


async def json_of(request: web.Request) -> Any:
    """The JSON that was sent.

    Raises: HTTPBadRequest: it is none.
    """
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError):
        text = _dumps({"errors": {"_": "Unexpected Json"}})
        raise web.HTTPBadRequest(text=text, content_type="application/json") from None
