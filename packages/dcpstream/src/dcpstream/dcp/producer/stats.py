"""A producer's part of the `dcp` stats group, under the names of the server.

Parts of the server that this producer lacks (queues of messages, a buffer of backfilled items) are shown as empty.

Source: kv_engine engines/ep/src/dcp/producer.cc, active_stream.cc (addStats), recorded names.
"""

from __future__ import annotations

from collections.abc import Iterator

from dcpstream.dcp.controls import ProducerSettings
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.dcp.producer.states import OVER, Phase
from dcpstream.dcp.producer.stream import ProducerStream
from dcpstream.dcp.stats import milliseconds, stat_text
from dcpstream.dcp.window import BUFFER_FULL, NOTHING_TO_SAY
from dcpstream.wire import StreamEndReason
from dcpstream.wire.release import Rule

NANOSECONDS = 1_000_000_000
PASSTHROUGH = "passthrough"
"""The kind of a filter of everything, of which nothing else is shown."""

_FILTER_EMPTY = StreamEndReason.FILTER_EMPTY


def producer_stats(connection: ProducerConnection) -> Iterator[tuple[str, str]]:
    """Names and values for a connection and its streams."""
    prefix = f"eq_dcpq:{connection.name}:"
    for name, value in _connection_values(connection):
        yield prefix + name, stat_text(value)
    for stream in connection.streams():
        for name, text in _stream_stats(stream):
            yield prefix[:-1] + name, text
    yield prefix + "num_streams", str(connection.stream_count)


def _connection_values(connection: ProducerConnection) -> Iterator[tuple[str, object]]:
    settings, window, pause = connection.settings, connection.window, connection.pause
    is_paused = not connection.ready_count or window.is_full
    yield "type", "producer"
    yield "created", int(connection.opened_at)
    yield "pending_disconnect", connection.close_reason is not None
    yield "supports_ack", window.is_enabled
    yield "paused", is_paused
    if is_paused:
        yield "paused_current_reason", pause.reason
        yield "paused_current_duration", milliseconds(pause.current_s)
    has_counts = settings.release.has(Rule.STATS_OF_80)
    if has_counts:
        yield from _values_of_80(connection)
    for reason, count in pause.counts.items():
        if count and not (has_counts and reason == NOTHING_TO_SAY):
            yield f"paused_previous_{reason}_count", count
            yield f"paused_previous_{reason}_duration", milliseconds(pause.durations_s[reason])
    yield "priority", settings.priority.capitalize()
    yield "flatbuffers_system_events", settings.flatbuffers_system_events
    yield "change_streams_enabled", settings.change_streams
    yield "items_sent", connection.items_sent
    yield "items_remaining", connection.items_remaining
    yield "total_bytes_sent", connection.bytes_sent
    if settings.has_snappy:
        yield "total_uncompressed_data_size", connection.bytes_sent
    yield "last_sent_time", int(connection.last_sent_at)
    yield "last_receive_time", int(connection.last_received_at)
    yield "noop_enabled", settings.noop_enabled
    yield "noop_wait", connection.noop.pending_opaque is not None
    yield "force_value_compression", settings.force_value_compression
    yield "cursor_dropping", settings.cursor_dropping
    yield "send_stream_end_on_client_close_stream", settings.stream_end_on_client_close
    yield "enable_expiry_opcode", settings.expiry_opcode
    yield "enable_stream_id", settings.stream_ids
    yield "synchronous_replication", settings.is_sync_replication
    yield "synchronous_writes", settings.sync_writes
    yield "backfill_buffer_bytes_read", 0
    yield "backfill_buffer_max_bytes", connection.limits.turn_bytes
    yield "backfill_buffer_full", False
    if not has_counts:
        yield "backfill_buffer_next_read_size", 0
    yield "backfill_num_initializing", 0
    yield "backfill_num_active", sum(stream.at.phase is Phase.BACKFILLING for stream in connection.streams())
    yield "backfill_num_snoozing", 0
    yield "backfill_num_pending", 0
    yield "backfill_order", settings.backfill_order
    if window.is_enabled:
        yield "max_buffer_bytes", window.buffer_bytes
        yield "unacked_bytes", window.outstanding_bytes
        yield "total_acked_bytes", window.acked_bytes
    yield "flow_control", "enabled" if window.is_enabled else "disabled"
    is_stuck = window.stuck_since is not None
    yield "flow_control_last_checked_acked_bytes", window.acked_bytes if is_stuck else "nullopt"
    yield "flow_control_last_checked_time", int((window.stuck_since or 0) * NANOSECONDS)
    if connection.has_streamed:
        yield "ckpt_processor_queue_size", 0
        yield "ckpt_processor_queue_notified", False
    yield "dcp_ready_queue_size", connection.ready_count
    yield "should_disconnect_when_stuck", connection.drops_when_stuck
    yield "disconnect_when_stuck_timeout", int(connection.limits.stuck_timeout_s)


def _values_of_80(connection: ProducerConnection) -> Iterator[tuple[str, object]]:
    settings, pauses = connection.settings, connection.pause.counts[BUFFER_FULL]
    yield "paused_count", pauses
    yield "unpaused_count", pauses
    yield "noop_tx_interval", f"{settings.noop_interval_s:g} s"
    yield "max_marker_version", _marker_version(settings)
    yield "num_dead_streams", sum(stream.at.phase in OVER for stream in connection.streams())


def _stream_stats(stream: ProducerStream) -> Iterator[tuple[str, str]]:
    """Names and values for a stream; a name continues the connection's name, of which the stream id is a part."""
    vbid, terms, at = stream.vbid, stream.terms, stream.at
    accepted, wanted = terms.accepted, terms.wanted
    name = "" if stream.stream_id is None else f"sid:{stream.stream_id}"
    is_living = at.end_reason is None
    values: dict[str, object] = {
        "flags": terms.flags,
        "opaque": int.from_bytes(terms.opaque.to_bytes(4, "big"), "little"),  # the server's own byte order
        "start_seqno": accepted.start_seqno,
        "end_seqno": accepted.end_seqno,
        "vb_uuid": accepted.vbuuid,
        "snap_start_seqno": accepted.snapshot_start,
        "snap_end_seqno": accepted.snapshot_end,
        "state": at.phase.shown,
        "items_ready": stream.is_queued,
        "readyQ_items": 0,
        "backfill_disk_items": at.messages_backfilled,
        "backfill_mem_items": 0,
        "backfill_sent": at.messages_backfilled,
        "memory_phase": at.messages_sent - at.messages_backfilled,
        "last_sent_seqno": at.sent_seqno,
        "last_sent_seqno_advance": at.advanced_seqno,
        "last_sent_snap_end_seqno": at.snapshot_end,
        "last_read_seqno": at.read_seqno,
        "ready_queue_memory": 0,
        "backfill_buffer_bytes": 0,
        "backfill_buffer_items": 0,
        "cursor_registered": is_living and not terms.is_disk_only,
        "change_streams_enabled": terms.settings.change_streams,
    }
    for key, value in values.items():
        yield f"{name}:stream_{vbid}_{key}", stat_text(value)
    ids = wanted.collection_ids
    # A request with a value and no collections: the server lists the default collection in the filter of that stream.
    shown = sorted(ids) if ids is not None else [0] if wanted.has_value else []
    middle = f"filter_{vbid}_"
    filters: dict[str, object] = {"passthrough": ids is None, "default_allowed": 0 in shown}
    filters["system_allowed"] = terms.form.collections
    if terms.settings.release.has(Rule.STATS_OF_80):
        middle = f"stream_{vbid}_filter_"
        filters = {"type": _filter_type(stream), "default_allowed": 0 in shown}
    if wanted.scope_id is not None:
        filters |= {"scope_id": f"{wanted.scope_id:#x}", "scope_dropped": at.end_reason == _FILTER_EMPTY}
    filters |= {
        "sid": "sid:none" if stream.stream_id is None else f"sid:{stream.stream_id}",
        "size": len(shown),
        "cids": ",".join(f"{number:#x}" for number in shown),
    }
    for key, value in filters.items():
        if filters.get("type") != PASSTHROUGH or key == "type":
            yield f"{name}:{middle}{key}", stat_text(value)


def _filter_type(stream: ProducerStream) -> str:
    """The kind of a stream's filter, in the words of 8.0."""
    wanted = stream.terms.wanted
    if not stream.terms.form.collections:
        return "legacy"
    if wanted.hides_system:
        return "uservisible"
    if wanted.scope_id is not None:
        return "scope"
    return PASSTHROUGH if wanted.collection_ids is None else "collection"


def _marker_version(settings: ProducerSettings) -> str:
    """The newest version of snapshot markers that the client gets, in the words of 8.0."""
    if settings.has_marker_v22:
        return "V2_2"
    return "V2_0" if settings.is_sync_replication else "V1_0"
