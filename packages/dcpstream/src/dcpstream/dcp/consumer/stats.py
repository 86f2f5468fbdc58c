"""A consumer's part of the `dcp` stats group, under the names of the server.

Messages are never buffered here, so the figures of the server's buffers and of the task that empties them are constant.
"""

from __future__ import annotations

from collections.abc import Iterator

from dcpstream.dcp.consumer.connection import ConsumerConnection
from dcpstream.dcp.consumer.stream import ConsumerStream
from dcpstream.dcp.controls import CHANGE_STREAMS, FLATBUFFERS
from dcpstream.dcp.stats import milliseconds, stat_text
from dcpstream.dcp.window import NOTHING_TO_SAY
from dcpstream.model import MAX_SEQNO
from dcpstream.wire.release import Rule


def consumer_stats(machine: ConsumerConnection) -> Iterator[tuple[str, str]]:
    """Names and values for a connection and its streams."""
    prefix = f"eq_dcpq:{machine.name}:"
    accepted, pause = machine.negotiation.accepted, machine.pause
    is_80 = machine.release.has(Rule.STATS_OF_80)
    values: dict[str, object] = {
        "type": "consumer",
        "created": int(machine.opened_at),
        "pending_disconnect": machine.close_reason is not None,
        "supports_ack": False,
        "paused": not machine.has_output,
        **({"paused_count": 0, "unpaused_count": 0} if is_80 else {}),
        "paused_current_reason": NOTHING_TO_SAY,
        "paused_current_duration": milliseconds(pause.current_s),
        "paused_previous_ReadyListEmpty_count": pause.counts[NOTHING_TO_SAY],
        "paused_previous_ReadyListEmpty_duration": milliseconds(pause.durations_s[NOTHING_TO_SAY]),
        "priority": "Medium",
        "flatbuffers_system_events": FLATBUFFERS in accepted,
        "change_streams_enabled": CHANGE_STREAMS in accepted,
    }
    of_streams = {
        f"stream_{stream.vbid}_{name}": value
        for stream in machine.streams.values()
        for name, value in _stream_values(stream, is_80=is_80)
    }
    totals = {
        "total_backoffs": 0,
        "processor_task_state": "ALL_PROCESSED",
        "total_acked_bytes": machine.window.acked_bytes,
        "max_buffer_bytes": machine.window.buffer_bytes,
        "unacked_bytes": machine.window.freed_bytes,
        "dcp_buffered_ready_queue_size": 0,
        "processor_notification": False,
        "synchronous_replication": machine.is_sync_replication,
        "pending_add_stream": machine.has_pending_streams,
    }
    values |= totals | of_streams if is_80 else of_streams | totals
    for name, value in values.items():
        yield prefix + name, stat_text(value)


def _stream_values(stream: ConsumerStream, *, is_80: bool) -> Iterator[tuple[str, object]]:
    start, low, high = stream.asked
    yield "flags", stream.flags
    yield "opaque", stream.number
    yield "start_seqno", start
    if not is_80:
        yield "end_seqno", MAX_SEQNO
    yield "vb_uuid", stream.asked_vbuuid
    yield "snap_start_seqno", low
    yield "snap_end_seqno", high
    yield "state", stream.state.value
    yield "items_ready", False
    yield "readyQ_items", 0
    if is_80:
        yield "unacked_bytes", 0
    else:
        yield "buffer_items", 0
        yield "buffer_bytes", 0
    yield "last_received_seqno", stream.last_seqno
    yield "ready_queue_memory", 0
    yield "cur_snapshot_type", stream.snapshot_type
    yield "cur_snapshot_prepare", stream.has_prepares
    yield "vb_manifest_uid", stream.asked_value or '{"uid":"0"}'
