"""The frame that all pages share, the files that they load, and the headers of both.

A page may load nothing from elsewhere, run no script but those here, and be shown in no other page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

from dcpstream.pages.markup import text

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of each page and file."""
_STATIC = files("dcpstream.pages") / "static"
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Link(NamedTuple):
    """A link between pages.

    Attributes:
        name: plain text.
        path: quoted.
    """

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The frame that the pages of one server share.

    Attributes:
        server: the server's name at the beginning of a sentence: "The node".
        static: path below which the server has the files.
        ping: path that answers quickly; pages that do not load themselves again look there whether the server lives.
        footer: HTML.
    """

    server: str
    static: str
    ping: str
    footer: str

    def page(
        self,
        title: str,
        content: str,
        *,
        host: str,
        links: Sequence[Link],
        here: str,
        trail: Sequence[Link] = (),
        is_live: bool = True,
    ) -> str:
        """A whole page, as HTML.

        Args:
            title: plain text.
            content: HTML.
            host: as which the browser reaches the server.
            links: to the main pages.
            here: path of the page.
            trail: links to the pages above.
            is_live: whether the script loads the page again and again.
        """
        pages = "".join(
            f'<a href="{link.path}"{" aria-current=page" if link.path == here else ""}>{text(link.name)}</a>'
            for link in links
        )
        above = " ".join(f'<a href="{link.path}">{text(link.name)}</a>' for link in trail)
        above = f'<nav class="trail" aria-label="Above">{above}</nav>' if trail else ""
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f"<title>{text(title)} · dcpstream</title>\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<link rel="icon" href="{self.static}/icon.svg">\n'
            f'<link rel="stylesheet" href="{self.static}/style.css">\n'
            f'<script type="module" src="{self.static}/main.js"></script>\n</head>\n'
            f'<body data-server="{text(self.server)}" data-ping="{self.ping}">\n'
            '<a class="skip" href="#main">Skip to the content</a>\n'
            f'<header class="top"><span class="product">dcpstream</span><nav aria-label="Pages">{pages}</nav>'
            f'<span class="facts">{text(host)}</span></header>\n'
            '<p id="gone" role="alert" hidden></p>\n<p id="said" role="status" hidden></p>\n'
            f'<main id="main" tabindex="-1"{"" if is_live else " data-still"}>\n'
            f'<div class="title">{above}<h1>{text(title)}</h1></div>\n{content}\n</main>\n'
            f"<footer>{self.footer}</footer>\n</body>\n</html>\n"
        )


def static_file(name: str) -> tuple[str, str] | None:
    """Kind and content of a file that pages load; None if there is none of this name."""
    kind = _KINDS.get("." + name.rpartition(".")[2])
    if kind is None or name not in {each.name for each in _STATIC.iterdir()}:
        return None
    return kind, (_STATIC / name).read_text(encoding="utf-8")
