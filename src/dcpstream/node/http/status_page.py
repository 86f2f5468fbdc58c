"""The status page for people: the health of the node, its buckets, and its DCP connections.

Rendered here, so that it works without scripts; a small script fetches the content again and shows rates. Texts from
clients are escaped, and the page may load nothing from other sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files

from aiohttp import web

from dcpstream.model import VbucketState
from dcpstream.node.engine import Bucket
from dcpstream.node.http.authorization import allows, visible_buckets
from dcpstream.node.http.health import UNSERVED, state_of
from dcpstream.node.http.site import LOGIN, USER, Route, Site
from dcpstream.node.summary import BucketSummary, DcpSummary, resident_bytes, summarize_bucket
from dcpstream.node.tasks.compactor import CompactionStatus

MAX_CONNECTIONS_SHOWN = 200
"""Largest number of DCP connections in the table, because people cannot read more."""
NEARLY_FULL = 0.95
"""Share of the quota from which a bucket's meter warns."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_STATIC = files("dcpstream.node.http") / "static"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_KIB = 1024
_NONE = "&ndash;"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class StatusPages:
    """The page and its parts."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._engine = site.engine

    def routes(self) -> list[Route]:
        """The pages."""
        return [
            Route("GET", "/ui", self._page, "pools.read", "a page to look at: node, buckets, DCP connections"),
            Route("GET", "/ui/content", self._content, "pools.read", "what is inside of it, again"),
            Route("GET", "/ui/status.css", self._style, LOGIN, "how it looks"),
            Route("GET", "/ui/status.js", self._script, LOGIN, "what asks for its content again"),
        ]

    async def _page(self, request: web.Request) -> web.Response:
        text = (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>dcpstream node</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<link rel="stylesheet" href="/ui/status.css">\n<script src="/ui/status.js" defer></script>\n</head>\n'
            f"<body>\n<main>\n{self._render(request)}\n</main>\n</body>\n</html>\n"
        )
        return web.Response(text=text, content_type="text/html", headers=_HEADERS)

    async def _content(self, request: web.Request) -> web.Response:
        return web.Response(text=self._render(request), content_type="text/html", headers=_HEADERS)

    async def _style(self, _: web.Request) -> web.Response:
        return _static("status.css", "text/css")

    async def _script(self, _: web.Request) -> web.Response:
        return _static("status.js", "text/javascript")

    def _render(self, request: web.Request) -> str:
        user = request[USER]
        buckets = [(bucket, summarize_bucket(bucket)) for bucket in visible_buckets(user, self._engine)]
        unserved = [name for name in self._engine.damaged if allows(user, "bucket.read", {"bucket": name})]
        parts = [
            self._header(buckets, unserved),
            self._tiles(buckets),
            _buckets(buckets, unserved, self._site.buckets.compactions()),
            _connections(buckets),
        ]
        version = escape(self._engine.release.version.partition("-")[0])
        followed = f"It follows the protocol of Couchbase Server {version}."
        return "\n".join([*parts, f"<footer>{followed} Figures for machines: /metrics, /health.</footer>"])

    def _header(self, buckets: list[tuple[Bucket, BucketSummary]], unserved: list[str]) -> str:
        node = self._engine.config.nodes[self._engine.config.this_node]
        wrong = [bucket.name for bucket, _ in buckets if state_of(bucket)["status"] != "healthy"] + unserved
        state, kind = (f"not well: {', '.join(wrong)}", "critical") if wrong else ("well", "")
        up = _duration(self._engine.now - self._engine.started)
        return (
            f'<header><h1>dcpstream node</h1><span class="facts">KV port {node.kv_port} · management port '
            f'{node.mgmt_port} · up {up}</span><span class="state {kind}">{escape(state)}</span></header>'
        )

    def _tiles(self, buckets: list[tuple[Bucket, BucketSummary]]) -> str:
        seen = [figures for _, figures in buckets]
        streams = sum(each.streams for figures in seen for each in figures.dcp)
        ops = sum(sum(figures.ops.values()) for figures in seen)
        waiting = sum(figures.items_unpersisted for figures in seen)
        tiles = [
            (
                "Documents",
                _number(sum(figures.items for figures in seen)),
                f"in {len(seen)} bucket{'s' if len(seen) != 1 else ''}",
            ),
            (
                "Requests per second",
                f'<span data-key="ops" data-count="{ops}">{_NONE}</span>',
                f"{_number(ops)} in all",
            ),
            ("Connections", _number(len(self._engine.sessions)), f"{_number(streams)} DCP streams"),
            ("Not on disk yet", _number(waiting), _bytes(sum(figures.pending_bytes for figures in seen))),
            ("Disk", _bytes(sum(figures.file_bytes for figures in seen)), "files of all buckets"),
            ("Process memory", _bytes(resident_bytes()), "resident"),
        ]
        cells = "".join(
            f'<div class="tile"><div class="label">{label}</div><div class="value">{value}</div>'
            f'<div class="more">{more}</div></div>'
            for label, value, more in tiles
        )
        return f'<div class="tiles">{cells}</div>'


def _static(name: str, content_type: str) -> web.Response:
    text = (_STATIC / name).read_text(encoding="utf-8")
    return web.Response(text=text, content_type=content_type, headers=_HEADERS)


def _buckets(
    buckets: list[tuple[Bucket, BucketSummary]], unserved: list[str], compactions: Mapping[str, CompactionStatus]
) -> str:
    heads = ("Bucket", "State", "Documents", "Requests/s", "Memory", "Disk", "Not on disk yet", "vBuckets")
    rows = [_bucket_row(bucket, seen, compactions.get(bucket.name)) for bucket, seen in buckets]
    state = f'<span class="state critical">{UNSERVED}</span>'
    rows += [[f'{escape(name)}<span class="small">on disk</span>', state, *[_NONE] * 6] for name in unserved]
    return _section("Buckets", heads, rows, "There is no bucket that you may see.", plain=2)


def _bucket_row(bucket: Bucket, seen: BucketSummary, compaction: CompactionStatus | None) -> list[str]:
    status = state_of(bucket)["status"]
    is_well = status == "healthy"
    share = seen.memory_bytes / seen.quota_bytes
    kind = "ephemeral" if bucket.settings.is_ephemeral else "on disk" if bucket.store.is_durable else "in memory"
    meter = (
        f'<svg class="meter{" full" if share >= NEARLY_FULL else ""}" viewBox="0 0 100 6" preserveAspectRatio="none" '
        f'role="img" aria-label="{share:.1%} of the quota"><rect width="100" height="6" class="track"/>'
        f'<rect width="{min(100, max(1, 100 * share)):.1f}" height="6" class="fill"/></svg>'
    )
    superseded = f"{bucket.store.fragmentation:.0%} superseded"
    if compaction is not None and compaction.is_running:
        superseded = "is compacted now"
    active, replica = seen.vbuckets[VbucketState.ACTIVE], seen.vbuckets[VbucketState.REPLICA]
    others = f'<span class="small">{_number(replica)} replica</span>' if replica else ""
    return [
        f'{escape(bucket.name)}<span class="small">{kind}</span>',
        f'<span class="state{"" if is_well else " critical"}">{escape("well" if is_well else status)}</span>',
        _number(seen.items),
        f'<span data-key="{escape(bucket.uuid)}" data-count="{sum(seen.ops.values())}">{_NONE}</span>',
        f'{_bytes(seen.memory_bytes)}<span class="small">of {_bytes(seen.quota_bytes)}</span>{meter}',
        f'{_bytes(seen.file_bytes)}<span class="small">{superseded}</span>' if bucket.store.is_durable else _NONE,
        f'{_number(seen.items_unpersisted)}<span class="small">{_bytes(seen.pending_bytes)}</span>'
        if bucket.store.is_durable
        else _NONE,
        f'{_number(active)}<span class="small">active</span>{others}',
    ]


def _connections(buckets: list[tuple[Bucket, BucketSummary]]) -> str:
    heads = ("Connection", "Bucket", "Streams", "Reading history", "Items sent", "Bytes sent", "Still to send")
    found = [(bucket.name, each) for bucket, seen in buckets for each in seen.dcp]
    rows = [_connection_row(name, each) for name, each in found[:MAX_CONNECTIONS_SHOWN]]
    more = f" (the first {MAX_CONNECTIONS_SHOWN} of {len(found)})" if len(found) > MAX_CONNECTIONS_SHOWN else ""
    return _section(f"DCP connections{more}", heads, rows, "Nobody streams from this node.", plain=2)


def _connection_row(bucket: str, seen: DcpSummary) -> list[str]:
    is_producer = seen.kind == "producer"
    return [
        f'{escape(seen.name)}<span class="small">{seen.kind} · {escape(seen.peer)}</span>',
        escape(bucket),
        _number(seen.streams),
        _number(seen.backfilling) if is_producer else _NONE,
        _number(seen.items_sent) if is_producer else _NONE,
        _bytes(seen.bytes_sent) if is_producer else _NONE,
        _number(seen.items_remaining) if is_producer else _NONE,
    ]


def _section(title: str, heads: tuple[str, ...], rows: list[list[str]], nothing: str, *, plain: int) -> str:
    """A table; columns from `plain` on are numbers."""
    if not rows:
        return f'<section><h2>{title}</h2><p class="none">{nothing}</p></section>'
    marks = ['class="name"', *[""] * (plain - 1), *['class="number"'] * (len(heads) - plain)]
    head = "".join(
        f"<th {mark if 'number' in mark else ''}>{name}</th>" for name, mark in zip(heads, marks, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td {mark}>{cell}</td>' for cell, mark in zip(row, marks, strict=True))}</tr>" for row in rows
    )
    return f"<section><h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"


def _number(value: int) -> str:
    return f"{value:,}"


def _bytes(value: int) -> str:
    amount = float(value)
    for unit in _UNITS:
        if amount < _KIB or unit == _UNITS[-1]:
            break
        amount /= _KIB
    digits = 0 if unit == "B" or amount >= 100 else 1
    return f"{amount:,.{digits}f} {unit}"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole >= _DAY:
        return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
    if whole >= _HOUR:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _MINUTE} min {whole % _MINUTE} s" if whole >= _MINUTE else f"{whole} s"
