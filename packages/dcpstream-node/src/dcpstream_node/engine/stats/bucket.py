"""The STAT groups of a bucket as a whole.

Measurements of parts that this node does not have (hash table, tasks, histograms of time) are left out rather than
reported as zero. The configuration is complete.

Whether a bucket is `persistent` or `ephemeral` is its type, as in REST and the cluster map. It does not say where the
data is: a node without a directory keeps buckets of both types in memory (`ep_storage`), where writes count as
persisted at once.

Source: kv_engine engines/ep/docs/stats.org, engines/ep/src/ep_engine.cc, collections/manager.cc, warmup.cc.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from dcpstream.model import VbucketState
from dcpstream.wire import Status
from dcpstream.wire.layout import Group
from dcpstream.wire.messages import opcodes_of
from dcpstream.wire.release import Rule
from dcpstream_node.engine.bucket.places import collection_at, id_in, scope_at
from dcpstream_node.engine.stats.configuration import configuration
from dcpstream_node.engine.stats.vbucket import state_name

if TYPE_CHECKING:
    from dcpstream.model import Collection, Manifest, Scope
    from dcpstream_node.engine.bucket.bucket import Bucket
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.engine import Engine

Items = Iterator[tuple[str, object] | None]
"""Keys and values; None ends a step of a long search."""

NO_HISTORY = 2**63 - 1
"""The largest time a server can name: no older versions are kept."""

_READS, _STORES = opcodes_of(Group.READ), opcodes_of(Group.STORE)


def _held(bucket: Bucket) -> list[VBucket]:
    return [vbucket for vbucket in bucket.vbuckets if vbucket is not None]


def totals(engine: Engine, bucket: Bucket) -> Items:
    """Without a group."""
    held = _held(bucket)
    numbers, items, expired = Counter(map(state_name, held)), Counter[str](), Counter[str]()
    for vbucket in held:
        items[state_name(vbucket)] += vbucket.log.item_count
        expired[state_name(vbucket)] += vbucket.expired_count
    waiting = sum(vbucket.high_seqno - vbucket.persisted_seqno for vbucket in held)
    yield "version", engine.release.version
    yield "uptime", int(engine.now - engine.started)
    yield "curr_connections", len(engine.sessions)
    yield "total_connections", engine.counters.connections
    yield "rejected_conns", engine.counters.connections_refused
    yield "curr_items", items["active"]
    yield "curr_items_tot", items.total()
    for state in VbucketState:
        name = state.name.lower()
        yield f"vb_{name}_num", numbers[name]
        if state is not VbucketState.DEAD:
            yield f"vb_{name}_curr_items", items[name]
            yield f"vb_{name}_expired", expired[name]
    yield "cmd_get", sum(bucket.ops[opcode] for opcode in _READS)
    yield "cmd_set", sum(bucket.ops[opcode] for opcode in _STORES)
    yield "cmd_total_ops", sum(bucket.ops)
    yield "ep_diskqueue_items", waiting
    yield "ep_queue_size", waiting
    yield "ep_degraded_mode", str(not bucket.takes_traffic).lower()
    yield "ep_flusher_state", "running" if bucket.is_persisting else "paused"
    yield "ep_commit_num", bucket.commits_done + bucket.turns_kept
    yield "ep_expired_access", max(0, expired.total() - bucket.expired_by_pager)
    yield "ep_expired_pager", bucket.expired_by_pager
    yield "ep_storage", "disk" if bucket.store.is_durable else "memory"
    yield "ep_dcp_count", len(bucket.dcp_sessions)
    yield "ep_data_read_failed", bucket.store.read_failures
    yield from memory(bucket)
    yield from disk(bucket)
    yield from (item for item in config(bucket) if item is None or item[0] != "ep_max_size")


def memory(bucket: Bucket) -> Items:
    """`memory`."""
    store = bucket.store
    used = store.memory_bytes
    yield "bytes", used
    yield "mem_used", used
    yield "mem_used_estimate", used
    yield "ep_kv_size", sum(vbucket.log.rows.memory_bytes for vbucket in _held(bucket))
    yield "ep_cache_size", store.cached_bytes
    yield "ep_pending_bytes", store.pending_bytes
    yield "ep_max_size", bucket.settings.ram_quota_bytes


def disk(bucket: Bucket) -> Items:
    """`diskinfo`."""
    yield "ep_db_data_size", bucket.store.live_bytes
    yield "ep_db_file_size", bucket.store.file_bytes
    yield "ep_db_history_file_size", 0
    yield "ep_db_prepare_size", sum(vbucket.log.prepare_bytes for vbucket in _held(bucket))
    yield "ep_db_history_start_timestamp", NO_HISTORY
    if bucket.release.has(Rule.STATS_OF_80):
        yield "ep_db_tombstones", sum(vbucket.log.key_count - vbucket.log.item_count for vbucket in _held(bucket))


def config(bucket: Bucket) -> Items:
    """`config`: settings and parameters under their names."""
    for name, value in configuration(bucket):
        yield f"ep_{name}", value


def warmup(bucket: Bucket) -> Items:
    """`warmup`: a bucket is there only once it is loaded."""
    keys = sum(vbucket.log.item_count for vbucket in _held(bucket))
    yield "ep_warmup", "enabled"
    yield "ep_warmup_state", "done"
    yield "ep_warmup_thread", "complete"
    yield "ep_warmup_key_count", keys
    yield "ep_warmup_value_count", 0
    yield "ep_warmup_dups", 0
    yield "ep_warmup_oom", 0


# ------------------------------------------------------------------------------------------------------- collections


def numbers(manifest: Manifest, group: str) -> set[int]:
    """The ids of the scopes or of the collections of a manifest, whatever the group is about."""
    if group.startswith("scopes"):
        return {scope.scope_id for scope in manifest.scopes}
    return {item.collection_id for _, item in manifest.collections()}


def collections(bucket: Bucket, shown: Manifest, argument: str, *, is_by_id: bool) -> Items | int:
    """`collections`, `collections-byid`: all that are shown to the user, or the one that is named."""
    if not argument:
        return _collections(bucket, list(shown.collections()), has_uid=True)
    number: int | None
    if is_by_id:
        number = id_in(argument)
    else:
        named = collection_at(bucket.manifest, argument)
        if isinstance(named, int):
            return named
        number = named.collection_id
    if number is None:
        return Status.EINVAL
    chosen = [(scope, item) for scope, item in shown.collections() if item.collection_id == number]
    if chosen:
        return _collections(bucket, chosen, has_uid=False)
    return Status.EACCESS if number in bucket.collections else Status.UNKNOWN_COLLECTION


def scopes(bucket: Bucket, shown: Manifest, argument: str, *, is_by_id: bool) -> Items | int:
    """`scopes`, `scopes-byid`: all that are shown to the user, or the one that is named; then with its collections."""
    if not argument:
        return _scopes(bucket, list(shown.scopes), has_uid=True)
    number: int | None
    if is_by_id:
        number = id_in(argument)
    else:
        named = scope_at(bucket.manifest, argument)
        if isinstance(named, int):
            return named
        number = named.scope_id
    if number is None:
        return Status.EINVAL
    chosen = [scope for scope in shown.scopes if scope.scope_id == number]
    if chosen:
        return _scopes(bucket, chosen, has_uid=False)
    is_there = any(scope.scope_id == number for scope in bucket.manifest.scopes)
    return Status.EACCESS if is_there else Status.UNKNOWN_SCOPE


def _counts(bucket: Bucket) -> Generator[None, None, Counter[int]]:
    counts: Counter[int] = Counter()
    for vbucket in _held(bucket):
        if vbucket.is_active:
            counts.update((yield from vbucket.log.walk_collections()))
    return counts


def _collections(bucket: Bucket, chosen: list[tuple[Scope, Collection]], *, has_uid: bool) -> Items:
    counts = yield from _counts(bucket)
    for scope, item in chosen:
        yield from _collection(scope, item, counts)
    if has_uid:
        yield "manifest_uid", f"{bucket.manifest.uid:x}"


def _collection(scope: Scope, item: Collection, counts: Counter[int]) -> Items:
    prefix = f"{scope.scope_id:#x}:{item.collection_id:#x}"
    yield f"{prefix}:items", counts[item.collection_id]
    yield f"{prefix}:name", item.name
    yield f"{prefix}:scope_name", scope.name
    if item.max_ttl:
        yield f"{prefix}:maxTTL", item.max_ttl


def _scopes(bucket: Bucket, chosen: list[Scope], *, has_uid: bool) -> Items:
    counts = yield from _counts(bucket)
    for scope in chosen:
        prefix = f"{scope.scope_id:#x}"
        yield f"{prefix}:items", sum(counts[item.collection_id] for item in scope.collections)
        yield f"{prefix}:name", scope.name
        yield f"{prefix}:collections", len(scope.collections)
        if not has_uid:
            for item in scope.collections:
                yield from _collection(scope, item, counts)
    if has_uid:
        yield "manifest_uid", f"{bucket.manifest.uid:x}"
