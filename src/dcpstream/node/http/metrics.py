"""Metrics over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from dcpstream.node.http.page import Route, Site
from dcpstream.node.metrics import CONTENT_TYPE, Metrics
from dcpstream.node.tasks.compactor import CompactionStatus


class MetricsPages:
    """The pages of metrics.

    Args:
        site: the node.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._metrics = Metrics(site.engine, self._compactions)

    def _compactions(self) -> Mapping[str, CompactionStatus]:
        return self._site.buckets.compactions()

    def routes(self) -> list[Route]:
        """The pages."""
        return [
            Route("GET", "/metrics", self._get, "metrics.read", "figures for Prometheus, see [Metrics](metrics.md)")
        ]

    async def _get(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})
