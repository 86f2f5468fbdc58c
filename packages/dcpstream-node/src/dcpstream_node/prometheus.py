"""The node's metrics for Prometheus, named as the server's where there is an equivalent.

They are read on request; only counters (`engine.counters`) are kept between requests.
Source: Couchbase Server metrics reference (`kv_*`) for names and meanings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


_B = ("bucket",)
METRICS: dict[str, MetricInfo] = {
    "kv_ops": MetricInfo("counter", ("bucket", "op"), "Requests answered, by opcode; an empty bucket stands for none."),
    "kv_curr_items": MetricInfo("gauge", _B, "Documents in active vbuckets."),
    "kv_num_vbuckets": MetricInfo("gauge", ("bucket", "state"), "vbuckets, by role."),
    "kv_mem_used_bytes": MetricInfo("gauge", _B, "Memory of the index, of the cache and of what waits for the disk."),
    "kv_ep_max_size": MetricInfo("gauge", _B, "Memory that the bucket may take, in bytes (its quota)."),
    "kv_ep_cache_bytes": MetricInfo("gauge", _B, "Memory of blocks that were read from files."),
    "kv_ep_cache_hits": MetricInfo("counter", _B, "Reads by key that found their page in the cache."),
    "kv_ep_cache_misses": MetricInfo("counter", _B, "Reads by key that fetched their page from a file."),
    "kv_ep_db_file_size_bytes": MetricInfo("gauge", _B, "Size of the bucket's files."),
    "kv_ep_db_data_size_bytes": MetricInfo(
        "gauge", _B, "What of the files, or of the buffers in memory, is not superseded."
    ),
    "kv_ep_compactions": MetricInfo("counter", _B, "Compactions that ended well."),
    "kv_ep_compactions_failed": MetricInfo("counter", _B, "Compactions that did not."),
    "kv_ep_compaction_running": MetricInfo("gauge", _B, "1 while the bucket is compacted, else 0."),
    "kv_ep_compaction_freed_bytes": MetricInfo("counter", _B, "Bytes that compactions gave back."),
    "kv_ep_diskqueue_items": MetricInfo("gauge", _B, "Seqnos that no commit has made durable yet."),
    "kv_ep_diskqueue_memory_bytes": MetricInfo("gauge", _B, "Bytes that wait for a commit."),
    "kv_ep_item_commit_failed": MetricInfo("gauge", _B, "1 while commits fail (disk full or broken), else 0."),
    "kv_ep_data_read_failed": MetricInfo("counter", _B, "Reads that met damage in a file, and were refused."),
    "kv_collections_manifest_uid": MetricInfo("gauge", _B, "Version of the scopes and collections."),
    "kv_bucket_connections": MetricInfo("gauge", _B, "KV connections that use the bucket."),
    "kv_dcp_connection_count": MetricInfo("gauge", ("bucket", "type"), "DCP connections: producers and consumers."),
    "kv_dcp_stream_count": MetricInfo("gauge", ("bucket", "type"), "DCP streams that are alive."),
    "kv_dcp_num_running_backfills": MetricInfo("gauge", _B, "DCP streams that read history."),
    "kv_dcp_items_sent": MetricInfo("gauge", _B, "Items sent by the DCP connections that are open."),
    "kv_dcp_total_data_size_bytes": MetricInfo("gauge", _B, "Bytes sent by the DCP connections that are open."),
    "kv_dcp_items_remaining": MetricInfo("gauge", _B, "Seqnos that living DCP streams have still to send."),
    "kv_curr_connections": MetricInfo("gauge", (), "Connections of the KV port that are open."),
    "kv_total_connections": MetricInfo("counter", (), "Connections of the KV port that were made."),
    "kv_rejected_connections": MetricInfo("counter", (), "Connections that were refused: there were too many."),
    "kv_auth_cmds": MetricInfo("counter", (), "Logins on the KV port that succeeded."),
    "kv_auth_errors": MetricInfo("counter", (), "Logins on the KV port that were refused."),
    "kv_read_bytes": MetricInfo("counter", (), "Bytes received on the KV port."),
    "kv_written_bytes": MetricInfo("counter", (), "Bytes sent on the KV port."),
    "kv_uptime_seconds": MetricInfo("gauge", (), "Seconds since the node was started."),
    "kv_system_memory_resident_bytes": MetricInfo("gauge", (), "Memory that the node's process has."),
    "kv_node_info": MetricInfo(
        "gauge", ("version",), "Always 1; the label is the release whose protocol the node follows."
    ),
}
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
