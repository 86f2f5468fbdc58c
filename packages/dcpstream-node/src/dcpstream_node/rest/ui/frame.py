"""The node's pages in the frame that all pages share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus

from aiohttp import web

from dcpstream.pages.frame import HEADERS, Frame, Link, static_file
from dcpstream.pages.markup import text
from dcpstream_node.engine import Engine
from dcpstream_node.rest.authorization import allows
from dcpstream_node.rest.site import NOT_FOUND, USER

HOME, CLUSTER, FAULTS_PAGE = "/ui", "/ui/cluster", "/ui/faults"
STATIC = "/ui/static"
_PLACES = ((Link("Node", HOME), ""), (Link("Cluster", CLUSTER), ""), (Link("Faults", FAULTS_PAGE), "cluster.write"))


def page(
    request: web.Request, engine: Engine, title: str, content: str, *, trail: Sequence[Link] = (), status: int = 200,
    is_live: bool = True,
) -> web.Response:  # fmt: skip
    """A whole page.

    Args:
        title: plain text.
        content: HTML.
        trail: links to the pages above.
        is_live: whether the script loads the page again and again.
    """
    user = request[USER]
    version = text(engine.release.version.partition("-")[0])
    frame = Frame(
        server="The node",
        static=STATIC,
        ping="/versions",
        footer=f"The node follows the protocol of Couchbase Server {version}. "
        'For machines: <a href="/metrics">metrics</a>, <a href="/health">health</a>.',
    )
    html = frame.page(
        title,
        content,
        host=request.host,
        links=[link for link, needs in _PLACES if not needs or allows(user, needs, {})],
        here=request.path.rstrip("/"),
        trail=trail,
        is_live=is_live,
    )
    return web.Response(text=html, content_type="text/html", headers=HEADERS, status=status)


def is_page(path: str) -> bool:
    """Whether a path is that of a page for people."""
    return (path == HOME or path.startswith(f"{HOME}/")) and not path.startswith(f"{STATIC}/")


def error_page(request: web.Request, engine: Engine, status: int, said: str) -> web.Response:
    """A page instead of one that cannot be shown.

    Args:
        said: what the REST API would answer.
    """
    title, reason = _explained(status, said)
    shown = f'<p class="problem">{text(reason)}</p>'
    # What is missing may come back. Other errors are shown once, and then only whether the node lives.
    trail = [Link("Node", HOME)]
    return page(request, engine, title, shown, trail=trail, status=status, is_live=status == HTTPStatus.NOT_FOUND)


def _explained(status: int, said: str) -> tuple[str, str]:
    """A title and a reason for people."""
    if status == HTTPStatus.NOT_FOUND:
        return "Not found", "The node has nothing at this address. It may have been removed."
    try:
        content = json.loads(said)
    except ValueError:
        content = {}
    if isinstance(content, dict) and "permissions" in content:
        return "Not allowed", f"You lack the permission {', '.join(content['permissions'])}."
    errors = content.get("errors") if isinstance(content, dict) else None
    reason = " ".join(errors.values()) if errors else said.strip()
    return "The page cannot be shown", reason or f"The node answers with the status {status}."


async def answer_static(request: web.Request) -> web.Response:
    """A file that pages load."""
    found = static_file(request.match_info["file"])
    if found is None:
        return web.Response(status=404, text=NOT_FOUND)
    kind, content = found
    return web.Response(text=content, content_type=kind, headers=HEADERS)
