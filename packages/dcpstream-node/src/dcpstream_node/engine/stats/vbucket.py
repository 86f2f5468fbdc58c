"""The STAT groups of single vbuckets: names and values without the vbucket's number.

Source: kv_engine engines/ep/src/vbucket.cc (addStats), ep_engine.cc; names and their order as recorded from a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from dcpstream.model import VbucketState
from dcpstream.wire import SystemEventId
from dcpstream.wire.stored.block import event_at
from dcpstream_node.engine.bucket.manifest import manifest_in
from dcpstream_node.store.items import seqno_of

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.store.vbucket import VBucketLog

Items = Iterator[tuple[str, object] | None]
"""Keys and values; None ends a step of a long search."""

NANOSECONDS = 1_000_000_000

UNKNOWN = "unknown"
"""The server's value for a number that it cannot measure."""

DRIFT_THRESHOLD_NS = 5 * NANOSECONDS
"""The server's hlc_drift_ahead_threshold_us and hlc_drift_behind_threshold_us."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def state_name(vbucket: VBucket) -> str:
    """The vbucket's role."""
    return VbucketState(vbucket.state).name.lower()


def _state(vbucket: VBucket) -> Items:
    yield "", state_name(vbucket)


def _seqno(vbucket: VBucket) -> Items:
    log = vbucket.log
    persisted = log.persisted_snapshot
    # Of a copy it is the end of the snapshot that its last row belongs to.
    yield "high_seqno", log.high_seqno if vbucket.is_active else log.snapshot.end_seqno
    yield "abs_high_seqno", log.high_seqno
    yield "last_persisted_seqno", log.persisted_seqno
    yield "uuid", vbucket.vbuuid
    yield "purge_seqno", log.purge_seqno
    # A whole snapshot is one point for the server.
    is_whole = persisted.end_seqno == log.persisted_seqno
    yield "last_persisted_snap_start", persisted.end_seqno if is_whole else persisted.start_seqno
    yield "last_persisted_snap_end", persisted.end_seqno
    yield from _durable(vbucket)
    yield "max_visible_seqno", log.visible_seqno(log.high_seqno)


def _durable(vbucket: VBucket) -> Items:
    durable = vbucket.durability
    yield "high_prepared_seqno", durable.high_prepared_seqno if durable else 0
    yield "high_completed_seqno", durable.high_completed_seqno if durable else 0


def _details(vbucket: VBucket) -> Items:
    """The server's keys, in its order; numbers that this node does not measure are `UNKNOWN`."""
    log, durable = vbucket.log, vbucket.durability
    yield "num_items", log.item_count
    yield "num_temp_items", 0
    yield "num_non_resident", 0
    yield "num_prepared_sync_writes", len(durable.undecided) if durable else 0
    yield from _index(log)
    yield "num_ejects", 0
    for operation in ("create", "delete", "get", "reject", "update"):
        yield f"ops_{operation}", UNKNOWN
    yield "queue_size", max(0, log.high_seqno - log.persisted_seqno)
    yield "queue_memory", 0
    yield "queue_fill", UNKNOWN
    yield "queue_drain", UNKNOWN
    yield "queue_age", UNKNOWN
    yield "pending_writes", log.unflushed_bytes
    yield "uuid", vbucket.vbuuid
    yield "purge_seqno", log.purge_seqno
    yield "bloom_filter", "DOESN'T EXIST"
    yield "bloom_filter_size", 0
    yield "bloom_filter_key_count", 0
    yield "bloom_filter_memory", 0
    yield "rollback_item_count", UNKNOWN
    yield "hp_vb_req_size", 0
    yield "might_contain_xattrs", "true"
    yield "max_deleted_revid", vbucket.max_deleted_rev
    yield "high_completed_seqno", durable.high_completed_seqno if durable else 0
    yield "sync_write_accepted_count", durable.accepted_count if durable else 0
    yield "sync_write_committed_count", durable.committed_count if durable else 0
    yield "sync_write_aborted_count", durable.aborted_count if durable else 0
    yield "max_visible_seqno", log.visible_seqno(log.high_seqno)
    yield "persistence_seqno", log.persisted_seqno
    yield "max_cas", vbucket.max_cas
    yield "max_cas_str", _cas_time(vbucket.max_cas)
    yield "total_abs_drift", 0  # a node takes every CAS as it comes and compares none with its clock
    yield "total_abs_drift_count", 0
    yield "drift_ahead_threshold_exceeded", 0
    yield "drift_behind_threshold_exceeded", 0
    yield "logical_clock_ticks", UNKNOWN
    yield "drift_ahead_threshold", DRIFT_THRESHOLD_NS
    yield "drift_behind_threshold", DRIFT_THRESHOLD_NS
    yield "high_seqno", log.high_seqno
    yield "topology", vbucket.topology or "null"
    yield "high_prepared_seqno", durable.high_prepared_seqno if durable else 0
    yield "", state_name(vbucket)
    yield "db_data_size", log.live_bytes
    yield "db_file_size", UNKNOWN  # files hold several vbuckets
    yield "db_prepare_size", log.prepare_bytes
    yield "history_items_flushed", UNKNOWN


def _index(log: VBucketLog) -> Items:
    """The index stands for the server's hash table."""
    size = log.rows.memory_bytes
    yield "ht_memory", size
    yield "ht_num_items", log.item_count
    yield "ht_num_deleted_items", len(log.rows.keys) - log.item_count
    yield "ht_num_in_memory_items", log.item_count
    yield "ht_num_in_memory_non_resident_items", 0
    yield "ht_num_temp_items", 0
    yield "ht_item_memory", size
    yield "ht_item_memory_uncompressed", size
    yield "ht_cache_size", size
    yield "ht_size", len(log.rows.keys)


def _kept(vbucket: VBucket) -> Items:
    """The history that the vbucket keeps, and its readers: a group of this node's own."""
    held = vbucket.log.held_seqnos()
    yield "held_snapshots", len(held)
    yield "oldest_held_snapshot", held[0] if held else 0
    yield "rollback_horizon_seqno", vbucket.log.horizon_seqno


def _cas_time(cas: int) -> str:
    """The time that a CAS is, with its nanoseconds."""
    moment = _EPOCH + timedelta(seconds=cas // NANOSECONDS)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{cas % NANOSECONDS:09}"


def _failovers(vbucket: VBucket) -> Items:
    log = vbucket.failover_log
    yield "num_entries", len(log)
    yield "num_erroneous_entries_erased", 0
    for index, entry in enumerate(log):
        yield f"{index}:id", entry.vbuuid
        yield f"{index}:seq", entry.seqno


def _checkpoint(vbucket: VBucket) -> Items:
    """The newest checkpoint, which the log stands for: it has no memory of its own."""
    items, number = vbucket.high_seqno - vbucket.memory_start_seqno + 1, vbucket.checkpoint_number
    yield "state", state_name(vbucket)
    yield "open_checkpoint_id", number
    yield "last_closed_checkpoint_id", number - 1
    yield "num_conn_cursors", 1
    yield "num_checkpoint_items", items
    yield "num_open_checkpoint_items", items
    yield "num_checkpoints", 1
    yield "num_items_for_persistence", vbucket.high_seqno - vbucket.persisted_seqno
    yield "mem_usage", 0
    yield from cursor("persistence", number, vbucket.persisted_seqno, vbucket.memory_start_seqno)
    prefix = f"id_{number}:"
    for name in ("mem_usage_queued_items", "mem_usage_queue_overhead", "mem_usage_key_index_overhead"):
        yield prefix + name, 0
    for name in ("key_index_allocator_bytes", "key_index_key_allocator_bytes", "queue_allocator_bytes"):
        yield prefix + name, 0
    yield prefix + "state", "Open"
    yield prefix + "type", "Memory"
    yield prefix + "snap_start", vbucket.memory_start_seqno
    yield prefix + "snap_end", vbucket.high_seqno
    yield prefix + "visible_snap_end", vbucket.log.visible_seqno(vbucket.high_seqno)
    yield prefix + "historical", str(vbucket.log.keeps_history).lower()
    yield prefix + "highest_expelled_seqno", 0


def cursor(name: str, checkpoint: int, seqno: int, start_seqno: int) -> Items:
    """A reader of the newest checkpoint.

    Args:
        name: of the cursor.
        checkpoint: the checkpoint's number.
        seqno: everything up to here was read.
        start_seqno: the checkpoint's first seqno.
    """
    yield f"{name}:cursor_checkpoint_id", checkpoint
    yield f"{name}:cursor_seqno", seqno
    yield f"{name}:cursor_op", UNKNOWN
    yield f"{name}:cursor_distance", max(0, seqno - start_seqno + 1)
    yield f"{name}:num_visits", UNKNOWN


def _durability(vbucket: VBucket) -> Items:
    yield "", state_name(vbucket)
    yield "high_seqno", vbucket.high_seqno
    yield "topology", vbucket.topology or "null"
    yield "high_prepared_seqno", vbucket.durability.high_prepared_seqno if vbucket.durability else 0


def _collections(vbucket: VBucket) -> Items:
    manifest, starts = manifest_in(vbucket.log), dict(_starts(vbucket))
    counts = yield from vbucket.log.walk_collections()
    found = list(manifest.collections())
    yield "collections", len(found)
    yield "manifest:uid", manifest.uid
    for scope, item in found:
        number = item.collection_id
        high = vbucket.high_seqno_of((number,))
        yield f"{number:#x}:scope", f"{scope.scope_id:#x}"
        yield f"{number:#x}:name", item.name
        yield f"{number:#x}:items", counts.get(number, 0)
        yield f"{number:#x}:high_seqno", high
        yield f"{number:#x}:persisted_high_seqno", min(high, vbucket.persisted_seqno)
        yield f"{number:#x}:start_seqno", starts.get(number, 0)
        if item.max_ttl:
            yield f"{number:#x}:maxTTL", item.max_ttl


def _starts(vbucket: VBucket) -> Iterator[tuple[int, int]]:
    """(collection id, seqno) of the beginning of each collection that is there."""
    for data in vbucket.log.collection_events():
        event = event_at(data)
        if event.event == SystemEventId.CREATE_COLLECTION:
            yield event.collection_id, seqno_of(data)


def _scopes(vbucket: VBucket) -> Items:
    manifest = manifest_in(vbucket.log)
    yield "scopes", len(manifest.scopes)
    yield "manifest:uid", manifest.uid
    for scope in manifest.scopes:
        yield f"{scope.scope_id:#x}:name", scope.name
        yield f"{scope.scope_id:#x}:collections", len(scope.collections)


def _disk(vbucket: VBucket) -> Items:
    yield "data_size", vbucket.log.live_bytes
    yield "prepare_size", vbucket.log.prepare_bytes


def _details_80(vbucket: VBucket) -> Items:
    """As `_details`, with the name that came with 8.0."""
    for item in _details(vbucket):
        yield item
        if item is not None and item[0] == "sync_write_committed_count":
            yield "sync_write_committed_not_durable_count", 0


_GONE_IN_80 = ("last_closed_checkpoint_id", "num_items_for_persistence", "key_index_key_allocator_bytes")


def _checkpoint_80(vbucket: VBucket) -> Items:
    """As `_checkpoint`, with the names of 8.0."""
    for item in _checkpoint(vbucket):
        if item is not None and item[0].rpartition(":")[2] in _GONE_IN_80:
            continue
        yield item
        if item is not None and item[0] == "mem_usage":
            for name in ("mem_usage_key_index_overhead", "mem_usage_queue_overhead", "mem_usage_queued_items"):
                yield name, 0
        elif item is not None and item[0] == "persistence:num_visits":
            yield "persistence:num_items_for_cursor", max(0, vbucket.high_seqno - vbucket.persisted_seqno)
    prefix = f"id_{vbucket.checkpoint_number}:"
    yield prefix + "num_items", vbucket.high_seqno - vbucket.memory_start_seqno + 1
    yield prefix + "num_cursors_in_checkpoint", 1


PER_VBUCKET: Mapping[str, Callable[[VBucket], Items]] = MappingProxyType(
    {
        "vbucket": _state,
        "vbucket-seqno": _seqno,
        "vbucket-details": _details,
        "vbucket-durability-state": _durability,
        "failovers": _failovers,
        "checkpoint": _checkpoint,
        "vbucket-kept": _kept,
        "collections-details": _collections,
        "scopes-details": _scopes,
        "diskinfo-detail": _disk,
    }
)
"""Groups of statistics of one vbucket, or of all if none is named."""

PER_VBUCKET_80: Mapping[str, Callable[[VBucket], Items]] = MappingProxyType(
    {**PER_VBUCKET, "vbucket-details": _details_80, "checkpoint": _checkpoint_80}
)
"""The same in 8.0."""
