"""Statistics over HTTP: metrics for Prometheus, and one sample of a bucket in the shape of the server's pages."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from dcpstream.wire.layout import Group
from dcpstream.wire.messages import opcodes_of
from dcpstream_node.prometheus import CONTENT_TYPE, Metrics
from dcpstream_node.rest.site import Route, Site, answer
from dcpstream_node.summary import summarize_bucket
from dcpstream_node.tasks.compactor import CompactionStatus

_GETS, _SETS = opcodes_of(Group.READ), opcodes_of(Group.STORE)


class StatsPages:
    """The pages of statistics."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._metrics = Metrics(site.engine, self._compactions)

    def _compactions(self) -> Mapping[str, CompactionStatus]:
        return self._site.buckets.compactions()

    def routes(self) -> list[Route]:
        """The pages."""
        does = "items, memory, disk and counts of requests; one sample, where the server has a series"
        metrics = "figures for Prometheus, see [Metrics](metrics.md)"
        return [
            Route("GET", "/pools/default/buckets/{bucket}/stats", self._get, "bucket.stats", does),
            Route("GET", "/metrics", self._get_metrics, "metrics.read", metrics),
        ]

    async def _get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _get(self, request: web.Request) -> web.Response:
        bucket = self._site.bucket(request)
        seen = summarize_bucket(bucket)
        now_ms = self._site.engine.unix_ns // 1_000_000
        figures = {
            "curr_items": seen.items,
            "curr_items_tot": seen.items,
            "curr_connections": seen.sessions,
            "mem_used": seen.memory_bytes,
            "ep_mem_high_wat": seen.quota_bytes,
            "ep_queue_size": seen.items_unpersisted,
            "ep_diskqueue_items": seen.items_unpersisted,
            "couch_docs_actual_disk_size": seen.file_bytes,
            "couch_total_disk_size": seen.file_bytes,
            "ep_dcp_total_bytes": sum(each.bytes_sent for each in seen.dcp),
            "ep_dcp_items_sent": sum(each.items_sent for each in seen.dcp),
            "ep_dcp_items_remaining": sum(each.items_remaining for each in seen.dcp),
            "cmd_get": sum(seen.ops.get(opcode, 0) for opcode in _GETS),
            "cmd_set": sum(seen.ops.get(opcode, 0) for opcode in _SETS),
            "cmd_total": sum(seen.ops.values()),
        }
        return answer(
            {
                "op": {
                    "samples": {name: [value] for name, value in figures.items()} | {"timestamp": [now_ms]},
                    "samplesCount": 1,
                    "isPersistent": bucket.store.is_durable,
                    "lastTStamp": now_ms,
                    "interval": 1000,
                },
                "hot_keys": [],
            }
        )
