"""The configuration of a bucket in STAT: names of a 7.2 server, each with the value that holds here.

A server lists every setting of its engine. Those that do something here come from the bucket and from `parameters`. The
others belong to parts that this node does not have (checkpoints in memory, threads, other storage engines); they cannot
be set, and show what a server is shipped with, because tools look for them.

Source: kv_engine engines/ep/configuration.json (7.2): names and defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def _table(text: str) -> Mapping[str, str]:
    """Names and values, one of each a line; no value is an empty one."""
    rows = (line.strip().partition(" ") for line in text.strip().splitlines())
    return MappingProxyType({name: value for name, _, value in rows})


_OF_ALL = _table(
    """
    backfill_mem_threshold 96
    bfilter_enabled true
    bfilter_fp_prob 0.01
    bfilter_key_count 10000
    bfilter_residency_threshold 0.1
    checkpoint_destruction_tasks 1
    checkpoint_max_size 0
    checkpoint_memory_ratio 0.3
    checkpoint_memory_recovery_lower_mark 0.6
    checkpoint_memory_recovery_upper_mark 0.9
    checkpoint_removal_mode eager
    checkpoint_remover_task_count 1
    chk_expel_enabled true
    chk_max_items 10000
    chk_period 5
    chk_remover_stime 5
    collections_drop_compaction_delay 5000
    collections_enabled true
    compaction_expire_from_start true
    compaction_expiry_fetch_inline true
    compaction_max_concurrent_ratio 0.5
    compaction_write_queue_cap 10000
    concurrent_pagers 2
    connection_manager_interval 1
    couchstore_file_cache_max_size 30720
    couchstore_midpoint_rollback_optimisation true
    couchstore_mprotect false
    couchstore_tracing false
    couchstore_write_validation false
    dcp_backfill_byte_limit 20972856
    dcp_backfill_in_progress_per_connection_limit 64
    dcp_conn_buffer_size 10485760
    dcp_conn_buffer_size_aggr_mem_threshold 10
    dcp_conn_buffer_size_aggressive_perc 5
    dcp_conn_buffer_size_max 52428800
    dcp_conn_buffer_size_perc 1
    dcp_consumer_control_enabled false
    dcp_consumer_process_buffered_messages_batch_size 10
    dcp_consumer_process_buffered_messages_yield_limit 10
    dcp_enable_noop true
    dcp_flow_control_policy aggressive
    dcp_min_compression_ratio 0.85
    dcp_noop_tx_interval 1
    dcp_producer_catch_exceptions true
    dcp_producer_processor_run_duration_us 100000
    dcp_producer_snapshot_marker_yield_limit 0
    dcp_scan_byte_limit 4194304
    dcp_scan_item_limit 4096
    defragmenter_age_threshold 1
    defragmenter_auto_lower_threshold 0.07
    defragmenter_auto_max_sleep 10.0
    defragmenter_auto_min_sleep 0.6
    defragmenter_auto_pid_d 0.0
    defragmenter_auto_pid_dt 30000
    defragmenter_auto_pid_i 0.0000197
    defragmenter_auto_pid_p 52
    defragmenter_auto_upper_threshold 0.25
    defragmenter_chunk_duration 20
    defragmenter_enabled true
    defragmenter_interval 10.0
    defragmenter_mode auto_pid
    defragmenter_stored_value_age_threshold 1
    durability_timeout_mode event-driven
    executor_pool_backend folly
    exp_pager_initial_run_time -1
    expiry_pager_concurrency 2
    failpartialwarmup true
    flusher_total_batch_limit 4000000
    fsync_after_every_n_bytes_written 1048576
    hlc_drift_ahead_threshold_us 5000000
    hlc_drift_behind_threshold_us 5000000
    ht_locks 47
    ht_resize_interval 1
    ht_size 47
    item_compressor_chunk_duration 20
    item_compressor_interval 250
    item_eviction_age_percentage 30
    item_eviction_freq_counter_age_threshold 1
    item_freq_decayer_chunk_duration 20
    item_freq_decayer_percent 50
    item_num_based_new_chk true
    magma_bloom_filter_accuracy 0.99
    magma_bloom_filter_accuracy_for_bottom_level 0.95
    magma_checkpoint_interval 120
    magma_checkpoint_threshold 0.02
    magma_delete_frag_ratio 0.50
    magma_delete_memtable_writecache 8192
    magma_enable_block_cache true
    magma_enable_direct_io false
    magma_enable_group_commit false
    magma_enable_upsert false
    magma_enable_wal true
    magma_expiry_frag_threshold 0.25
    magma_expiry_purger_interval 3600
    magma_flusher_thread_percentage 20
    magma_fragmentation_percentage 50
    magma_group_commit_max_sync_wait_duration_ms 20
    magma_group_commit_max_transaction_count 20
    magma_heartbeat_interval 10
    magma_initial_wal_buffer_size 65536
    magma_max_checkpoints 5
    magma_max_default_storage_threads 20
    magma_max_level_0_ttl 600
    magma_max_recovery_bytes 67108864
    magma_max_write_cache 134217728
    magma_mem_quota_low_watermark_ratio 0.2
    magma_mem_quota_ratio 0.5
    magma_min_checkpoint_interval 1
    magma_sync_every_batch false
    magma_write_cache_ratio 0.2
    max_checkpoints 10
    max_item_privileged_bytes 1048576
    max_num_bgfetchers 0
    max_num_flushers 0
    max_num_shards 0
    max_num_workers 4
    max_threads 0
    mem_used_merge_threshold_percent 0.5
    min_compression_ratio 1.2
    mutation_mem_threshold 93
    num_auxio_threads 0
    num_nonio_threads 0
    num_reader_threads 0
    num_writer_threads 0
    pager_active_vb_pcnt 40
    pager_sleep_time_ms 5000
    pitr_enabled false
    pitr_granularity 600
    pitr_max_history_age 86400
    replication_throttle_threshold 99
    retain_erroneous_tombstones true
    rocksdb_bbt_options block_size=16384,cache_index_and_filter_blocks=true,pin_l0_filter_and_index_blocks_in_cache=true,cache_index_and_filter_blocks_with_high_priority=true,index_type=kTwoLevelIndexSearch,partition_filters=true
    rocksdb_block_cache_high_pri_pool_ratio 0.9
    rocksdb_block_cache_ratio 0.1
    rocksdb_cf_options
    rocksdb_default_cf_optimize_compaction none
    rocksdb_high_pri_background_threads 0
    rocksdb_low_pri_background_threads 0
    rocksdb_memtables_ratio 0.1
    rocksdb_options bytes_per_sync=1048576,stats_dump_period_sec=600
    rocksdb_seqno_cf_optimize_compaction none
    rocksdb_stats_level kExceptTimeForMutex
    rocksdb_uc_max_size_amplification_percent 200
    rocksdb_write_rate_limit 0
    sync_writes_max_allowed_replicas 2
    time_synchronization disabled
    vbucket_mapping_sanity_checking false
    vbucket_mapping_sanity_checking_error_mode log
    warmup_batch_size 10000
    warmup_min_items_threshold 100
    warmup_min_memory_threshold 100
    workload_monitor_enabled false
    workload_pattern_default mixed
    xattr_enabled true
    """  # noqa: E501 - one name a line
)

_OF_PERSISTENT = _table(
    """
    access_scanner_enabled true
    alog_block_size 4096
    alog_max_stored_items 1024
    alog_path
    alog_resident_ratio_threshold 95
    alog_sleep_time 1440
    alog_task_time 2
    warmup true
    warmup_backfill_scan_chunk_duration 100
    """
)

_OF_EPHEMERAL = _table(
    """
    ephemeral_metadata_mark_stale_chunk_duration 20
    ephemeral_metadata_purge_interval 60
    ephemeral_metadata_purge_stale_chunk_duration 20
    """
)

_OF_MAGMA = _table(
    """
    magma_key_tree_data_block_size 4096
    magma_key_tree_index_block_size 4096
    magma_seq_tree_data_block_size 4096
    magma_seq_tree_index_block_size 4096
    """
)


def configuration(bucket: Bucket) -> Iterator[tuple[str, object]]:
    """Every name and its value, without the prefix `ep_`, sorted."""
    settings = bucket.settings
    is_magma = not settings.is_ephemeral and (settings.storage_backend == "magma" or settings.keeps_history)
    values: dict[str, object] = dict(_OF_ALL)
    values |= _OF_EPHEMERAL if settings.is_ephemeral else _OF_PERSISTENT
    values |= _OF_MAGMA if is_magma else {}
    values |= dict(all_parameters(bucket))
    values |= {
        "backend": "magma" if is_magma else "couchdb",
        "bucket_type": "ephemeral" if settings.is_ephemeral else "persistent",
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
    kind = "ephemeral" if settings.is_ephemeral else "persistent"
    values[f"{kind}_metadata_purge_age"] = int(settings.purge_age_s)
    policy = _POLICIES[settings.eviction or ("noEviction" if settings.is_ephemeral else "valueOnly")]
    values["ephemeral_full_policy" if settings.is_ephemeral else "item_eviction_policy"] = policy
    # Of a 7.2 server only magma has these; here every bucket may keep its history.
    values["history_retention_seconds"] = settings.history_retention_s
    values["history_retention_bytes"] = settings.history_retention_bytes
    yield from sorted(values.items())
