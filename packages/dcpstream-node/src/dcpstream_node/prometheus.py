"""The node's metrics for Prometheus, named as the server's where there is an equivalent.

They are read on request; only counters (`engine.counters`) are kept between requests.
Source: Couchbase Server metrics reference (`kv_*`) for names and meanings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dcpstream.wire import Opcode
from dcpstream_node.engine import Engine
from dcpstream_node.summary import BucketSummary, resident_bytes, summarize_bucket
from dcpstream_node.tasks.compactor import CompactionStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricInfo(NamedTuple):
    """The description of a metric.

    Attributes:
        kind: counter or gauge; the text format adds `_total` to a counter's name.
        labels: the names of its labels.
        help: the line for people.
    """

    kind: str
    labels: tuple[str, ...]
    help: str


METRICS: Mapping[str, MetricInfo] = MappingProxyType(
    {
        name: MetricInfo(entry["kind"], tuple(entry["labels"]), entry["help"])
        for name, entry in tomllib.loads((files(__package__) / "metrics.toml").read_text(encoding="utf-8")).items()
    }
)
"""Every metric, by name."""

_OP_NAMES = {int(opcode): opcode.name.lower() for opcode in Opcode}
_TYPES = ("producer", "consumer")


class Metrics(Collector):
    """A node's metrics, read from it whenever they are asked for.

    Args:
        engine: the node; read on its own loop, so that it does not change meanwhile.
        compactions: gives the status of each bucket's compactions, by name.
    """

    def __init__(self, engine: Engine, compactions: Callable[[], Mapping[str, CompactionStatus]] = dict) -> None:
        self._engine = engine
        self._compactions = compactions
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics with their values."""
        families = {
            name: (CounterMetricFamily if info.kind == "counter" else GaugeMetricFamily)(
                name, info.help, labels=info.labels
            )
            for name, info in METRICS.items()
        }
        for name, labels, value in self._values():
            families[name].add_metric(labels, value)
        yield from families.values()

    def _values(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        engine, counters = self._engine, self._engine.counters
        yield "kv_curr_connections", (), len(engine.sessions)
        yield "kv_total_connections", (), counters.connections
        yield "kv_rejected_connections", (), counters.connections_refused
        yield "kv_auth_cmds", (), counters.logins
        yield "kv_auth_errors", (), counters.logins_refused
        yield "kv_read_bytes", (), counters.bytes_received
        yield "kv_written_bytes", (), counters.bytes_sent
        yield "kv_uptime_seconds", (), engine.now - engine.started
        yield "kv_system_memory_resident_bytes", (), resident_bytes()
        yield "kv_node_info", (engine.release.version,), 1
        yield from _ops("", {opcode: count for opcode, count in enumerate(counters.ops) if count})
        for name, bucket in engine.buckets.items():
            yield from _of_bucket(name, summarize_bucket(bucket))
            yield from _of_compactions(name, self._compactions().get(name, CompactionStatus()))
            yield "kv_ep_db_data_size_bytes", (name,), bucket.store.live_bytes
            yield "kv_ep_item_commit_failed", (name,), int(bucket.store.is_failing)
            yield "kv_ep_data_read_failed", (name,), bucket.store.read_failures
            cache = bucket.store.cache_stats
            yield "kv_ep_cache_hits", (name,), cache.hits
            yield "kv_ep_cache_misses", (name,), cache.misses
            yield "kv_collections_manifest_uid", (name,), bucket.manifest.uid


def _ops(bucket: str, ops: dict[int, int]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    for opcode, count in ops.items():
        yield "kv_ops", (bucket, _OP_NAMES.get(opcode, f"0x{opcode:02x}")), count


def _of_compactions(name: str, status: CompactionStatus) -> Iterator[tuple[str, tuple[str, ...], float]]:
    yield "kv_ep_compactions", (name,), status.count
    yield "kv_ep_compactions_failed", (name,), status.failures
    yield "kv_ep_compaction_running", (name,), int(status.is_running)
    yield "kv_ep_compaction_freed_bytes", (name,), status.bytes_freed


def _of_bucket(name: str, seen: BucketSummary) -> Iterator[tuple[str, tuple[str, ...], float]]:
    plain = {
        "kv_curr_items": seen.items,
        "kv_mem_used_bytes": seen.memory_bytes,
        "kv_ep_max_size": seen.quota_bytes,
        "kv_ep_cache_bytes": seen.cached_bytes,
        "kv_ep_db_file_size_bytes": seen.file_bytes,
        "kv_ep_diskqueue_items": seen.items_unpersisted,
        "kv_ep_diskqueue_memory_bytes": seen.pending_bytes,
        "kv_bucket_connections": seen.sessions,
        "kv_dcp_num_running_backfills": sum(each.backfilling for each in seen.dcp),
        "kv_dcp_items_sent": sum(each.items_sent for each in seen.dcp),
        "kv_dcp_total_data_size_bytes": sum(each.bytes_sent for each in seen.dcp),
        "kv_dcp_items_remaining": sum(each.items_remaining for each in seen.dcp),
    }
    for metric, value in plain.items():
        yield metric, (name,), value
    for state, count in seen.vbuckets.items():
        yield "kv_num_vbuckets", (name, state.name.lower()), count
    for kind in _TYPES:
        connections = [each for each in seen.dcp if each.kind == kind]
        yield "kv_dcp_connection_count", (name, kind), len(connections)
        yield "kv_dcp_stream_count", (name, kind), sum(each.streams for each in connections)
    yield from _ops(name, seen.ops)
