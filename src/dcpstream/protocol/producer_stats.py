"""A producer's part of the `dcp` stats group, under the names of the server.

What this producer does not have (a queue of made messages, a buffer of backfilled items, history) is shown empty.

Source: kv_engine engines/ep/src/dcp/producer.cc, active_stream.cc (addStats), recorded names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dcpstream.protocol.pause import milliseconds

if TYPE_CHECKING:
    from dcpstream.protocol.producer import ProducerConnection
    from dcpstream.protocol.producer_stream import ProducerStream

__all__ = ["connection_stats", "stream_stats"]


def connection_stats(connection: ProducerConnection) -> Iterator[tuple[str, str]]:
    """Names and values for a connection and its streams."""
    prefix = f"eq_dcpq:{connection.name}:"
    for name, value in _connection_values(connection).items():
        yield prefix + name, _text(value)
    for stream in connection.streams():
        for name, text in stream_stats(stream):
            yield prefix + name, text
    yield prefix + "num_streams", str(connection.stream_count)


def _connection_values(connection: ProducerConnection) -> Mapping[str, object]:
    settings, window, pause = connection.settings, connection.window, connection.pause
    first_s = pause.first_s or 0.0
    return {
        "type": "producer",
        "created": int(connection.opened_at),
        "pending_disconnect": connection.close_reason is not None,
        "supports_ack": window.is_enabled,
        "paused": not connection.ready_count,
        "paused_current_reason": "BufferLogFull" if window.is_full else "ReadyListEmpty",
        "paused_current_duration": milliseconds(pause.current_s),
        "paused_previous_Initializing_count": int(pause.count > 0),
        "paused_previous_Initializing_duration": milliseconds(first_s),
        "paused_previous_ReadyListEmpty_count": max(0, pause.count - 1),
        "paused_previous_ReadyListEmpty_duration": milliseconds(pause.previous_s - first_s),
        "priority": settings.priority.capitalize(),
        "flatbuffers_system_events": settings.flatbuffers_system_events,
        "change_streams_enabled": settings.change_streams,
        "items_sent": connection.items_sent,
        "items_remaining": 0,
        "total_bytes_sent": connection.bytes_sent,
        "total_uncompressed_data_size": connection.bytes_sent,
        "last_sent_time": int(connection.last_sent_at),
        "last_receive_time": int(connection.last_received_at),
        "noop_enabled": settings.noop_enabled,
        "noop_wait": connection.noop.pending_opaque is not None,
        "force_value_compression": settings.force_value_compression,
        "cursor_dropping": settings.cursor_dropping,
        "send_stream_end_on_client_close_stream": settings.stream_end_on_client_close,
        "enable_expiry_opcode": settings.expiry_opcode,
        "enable_stream_id": settings.stream_ids,
        "synchronous_replication": settings.is_sync_replication,
        "synchronous_writes": settings.sync_writes,
        "backfill_buffer_bytes_read": 0,
        "backfill_buffer_max_bytes": connection.limits.turn_bytes,
        "backfill_buffer_full": False,
        "backfill_buffer_next_read_size": 0,
        "backfill_num_initializing": 0,
        "backfill_num_active": 0,
        "backfill_num_snoozing": 0,
        "backfill_num_pending": 0,
        "backfill_order": settings.backfill_order,
        "max_buffer_bytes": window.buffer_bytes,
        "unacked_bytes": window.outstanding_bytes,
        "total_acked_bytes": window.acked_bytes,
        "flow_control": "enabled" if window.is_enabled else "disabled",
        "flow_control_last_checked_acked_bytes": "nullopt",
        "flow_control_last_checked_time": 0,
        "ckpt_processor_queue_size": connection.ready_count,
        "ckpt_processor_queue_notified": connection.ready_count > 0,
        "dcp_ready_queue_size": connection.ready_count,
        "should_disconnect_when_stuck": connection.drops_when_stuck,
        "disconnect_when_stuck_timeout": int(connection.limits.stuck_timeout_s),
    }


def stream_stats(stream: ProducerStream) -> Iterator[tuple[str, str]]:
    """Names and values for a stream, without the connection's prefix."""
    vbid, accepted = stream.vbid, stream.accepted
    ids = stream.wanted.collection_ids
    prefix = f"stream_{vbid}_" if stream.stream_id is None else f"stream_{vbid}_sid:{stream.stream_id}_"
    values: dict[str, object] = {
        "flags": stream.flags,
        "opaque": stream.opaque,
        "start_seqno": accepted.start_seqno,
        "end_seqno": accepted.end_seqno,
        "vb_uuid": accepted.vbuuid,
        "snap_start_seqno": accepted.snapshot_start,
        "snap_end_seqno": accepted.snapshot_end,
        "state": stream.state.value,
        "items_ready": stream.is_queued,
        "readyQ_items": 0,
        "backfill_disk_items": stream.messages_backfilled,
        "backfill_mem_items": 0,
        "backfill_sent": stream.messages_backfilled,
        "memory_phase": stream.messages_sent - stream.messages_backfilled,
        "last_sent_seqno": stream.last_sent_seqno,
        "last_sent_seqno_advance": 0,
        "last_sent_snap_end_seqno": stream.last_snapshot_end,
        "last_read_seqno": stream.last_read_seqno,
        "ready_queue_memory": 0,
        "backfill_buffer_bytes": 0,
        "backfill_buffer_items": 0,
        "change_streams_enabled": stream.has_change_streams,
    }
    for name, value in values.items():
        yield prefix + name, _text(value)
    sid = "none" if stream.stream_id is None else str(stream.stream_id)
    filters: dict[str, object] = {
        "passthrough": ids is None,
        "default_allowed": ids is None or 0 in ids,
        "system_allowed": stream.form.collections,
        "sid": f"sid:{sid}",
    }
    if ids is not None:
        filters |= {"size": len(ids), "cids": ",".join(f"0x{number:x}" for number in sorted(ids))}
    for name, value in filters.items():
        yield f"filter_{vbid}_{name}", _text(value)


def _text(value: object) -> str:
    """A stat's value as the server writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
