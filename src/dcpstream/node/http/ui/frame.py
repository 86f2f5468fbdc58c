"""The frame that all pages share, and the files that they load.

A page may load nothing from elsewhere, run no script but those here, and be shown in no other page.
"""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

from dcpstream.node.engine import Engine
from dcpstream.node.http.authorization import allows
from dcpstream.node.http.site import NOT_FOUND, USER
from dcpstream.node.http.ui.markup import text

HOME, CLUSTER, FAULTS_PAGE = "/ui", "/ui/cluster", "/ui/faults"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_STATIC = files("dcpstream.node.http.ui") / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PLACES = (("Node", HOME, ""), ("Cluster", CLUSTER, ""), ("Faults", FAULTS_PAGE, "cluster.write"))


def page(
    request: web.Request, engine: Engine, title: str, content: str, *, trail: str = "", status: int = 200,
    is_live: bool = True,
) -> web.Response:  # fmt: skip
    """A whole page.

    Args:
        title: plain text.
        content: HTML.
        trail: HTML between the name of the product and the title: links to the pages above.
        is_live: whether the script loads the page again and again.
    """
    user, here = request[USER], request.path.rstrip("/")
    links = "".join(
        f'<a href="{path}"{" aria-current=page" if path == here else ""}>{name}</a>'
        for name, path, needs in _PLACES
        if not needs or allows(user, needs, {})
    )
    version = text(engine.release.version.partition("-")[0])
    html = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{text(title)} · dcpstream</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="/ui/static/icon.svg">\n<link rel="stylesheet" href="/ui/static/style.css">\n'
        '<script type="module" src="/ui/static/main.js"></script>\n</head>\n<body>\n'
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header class="top"><span class="product">dcpstream</span><nav aria-label="Pages">{links}</nav>'
        f'<span class="facts">{text(request.host)}</span></header>\n'
        '<p id="gone" role="alert" hidden></p>\n<p id="said" role="status" hidden></p>\n'
        f'<main id="main" tabindex="-1"{"" if is_live else " data-still"}>\n'
        f'<div class="title">{trail}<h1>{text(title)}</h1></div>\n{content}\n</main>\n'
        f"<footer>It follows the protocol of Couchbase Server {version}. "
        'For machines: <a href="/metrics">metrics</a>, <a href="/health">health</a>.</footer>\n</body>\n</html>\n'
    )
    return web.Response(text=html, content_type="text/html", headers=_HEADERS, status=status)


async def static_file(request: web.Request) -> web.Response:
    """A file that pages load."""
    name = request.match_info["file"]
    kind = _TYPES.get("." + name.rpartition(".")[2])
    if kind is None or name not in {each.name for each in _STATIC.iterdir()}:
        return web.Response(status=404, text=NOT_FOUND)
    return web.Response(text=(_STATIC / name).read_text(encoding="utf-8"), content_type=kind, headers=_HEADERS)
