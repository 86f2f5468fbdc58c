"""The configuration of a bucket in STAT: names of a 7.2 server, each with the value that holds here.

A server lists every setting of its engine. Those that do something here come from the bucket and from `parameters`. The
others belong to parts that this node does not have (checkpoints in memory, threads, other storage engines); they cannot
be set, and show what a server is shipped with (`configuration.toml`), because tools look for them.

Source: kv_engine engines/ep/configuration.json (7.2): names and defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

from dcpstream.model.history import MAX_FAILOVER_ENTRIES
from dcpstream_node.engine.bucket.documents import MAX_VALUE_BYTES
from dcpstream_node.engine.bucket.parameters import all_parameters

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.bucket import Bucket

HIGH_WATERMARK, LOW_WATERMARK = 0.85, 0.75
"""Shares of the quota above and below which a server begins and stops to evict values; here nothing is evicted."""

_POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "valueOnly": "value_only",
        "fullEviction": "full_eviction",
        "noEviction": "fail_new_data",
        "nruEviction": "auto_delete",
    }
)


@cache
def _shipped() -> Mapping[str, Mapping[str, str]]:
    """Kind of bucket → names and values of the settings that have no effect here."""
    return tomllib.loads((files(__package__) / "configuration.toml").read_text(encoding="utf-8"))


def configuration(bucket: Bucket) -> Iterator[tuple[str, object]]:
    """Every name and its value, without the prefix `ep_`, sorted."""
    settings = bucket.settings
    is_magma = not settings.is_ephemeral and (settings.storage_backend == "magma" or settings.keeps_history)
    kind, shipped = "ephemeral" if settings.is_ephemeral else "persistent", _shipped()
    values: dict[str, object] = {**shipped["all"], **shipped[kind], **(shipped["magma"] if is_magma else {})}
    values |= dict(all_parameters(bucket))
    values |= {
        "backend": "magma" if is_magma else "couchdb",
        "bucket_type": kind,
        "conflict_resolution_type": settings.conflict_resolution.value,
        "couch_bucket": bucket.name,
        "data_traffic_enabled": str(bucket.takes_traffic).lower(),
        "dbname": bucket.store.place,
        "dcp_noop_mandatory_for_v5_features": "true",
        "exp_pager_enabled": str(settings.expiry_pager_s > 0).lower(),
        "max_failover_entries": MAX_FAILOVER_ENTRIES,
        "max_item_size": MAX_VALUE_BYTES,
        "max_size": settings.ram_quota_bytes,
        "max_vbuckets": bucket.vbucket_count,
        "mem_high_wat": int(settings.ram_quota_bytes * HIGH_WATERMARK),
        "mem_low_wat": int(settings.ram_quota_bytes * LOW_WATERMARK),
        "uuid": bucket.uuid,
    }
    values[f"{kind}_metadata_purge_age"] = int(settings.purge_age_s)
    policy = _POLICIES[settings.eviction or ("noEviction" if settings.is_ephemeral else "valueOnly")]
    values["ephemeral_full_policy" if settings.is_ephemeral else "item_eviction_policy"] = policy
    # Of a 7.2 server only magma has these; here every bucket may keep its history.
    values["history_retention_seconds"] = settings.history_retention_s
    values["history_retention_bytes"] = settings.history_retention_bytes
    yield from sorted(values.items())
