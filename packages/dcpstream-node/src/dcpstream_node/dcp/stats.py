"""The STAT groups of DCP connections: `dcp`, `dcpagg SEPARATOR`, `dcp-vbtakeover VBUCKET [NAME]`.

Source: kv_engine engines/ep/src/ep_engine.cc, dcp/dcpconnmap.cc, dcp/active_stream.cc (addTakeoverStats); names and
values as recorded from a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dcpstream.dcp.consumer.connection import ConsumerConnection
from dcpstream.dcp.consumer.stats import consumer_stats
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.dcp.producer.states import OVER, Phase
from dcpstream.dcp.producer.stats import producer_stats
from dcpstream.dcp.producer.stream import ProducerStream
from dcpstream.dcp.window import BUFFER_FULL
from dcpstream.wire import Status
from dcpstream.wire.release import Rule

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.bucket import Bucket

__all__ = ["dcp_stats", "remaining_of"]

Stats = Iterator[tuple[str, str]]

_NO_CONNECTION = ("does_not_exist", "connection_does_not_exist")
"""The status of a takeover without a connection: until 8.0, and since."""
DEFAULT_SEPARATOR = ":"
"""Ends the part of a connection's name that `dcpagg` groups by."""


def dcp_stats(bucket: Bucket, group: str = "dcp", argument: str = "") -> Stats | int:
    """Names and values of a group, or the status that refuses it.

    Args:
        group: dcp, dcpagg or dcp-vbtakeover.
        argument: the text after the group's name.
    """
    if group == "dcpagg":
        return _aggregated(bucket, argument or DEFAULT_SEPARATOR)
    if group == "dcp-vbtakeover":
        return _takeover(bucket, argument)
    return _connections(bucket)


def _machines(bucket: Bucket) -> list[ProducerConnection | ConsumerConnection]:
    return [session.dcp for session in bucket.dcp_sessions.values() if session.dcp is not None]


def _connections(bucket: Bucket) -> Stats:
    machines, has_counts = _machines(bucket), bucket.release.has(Rule.STATS_OF_80)
    for machine in machines:
        if has_counts:
            yield f"eq_dcpq:{machine.name}:user", bucket.dcp_sessions[machine.name].user_name or ""
        yield from producer_stats(machine) if isinstance(machine, ProducerConnection) else consumer_stats(machine)
    producers = [machine for machine in machines if isinstance(machine, ProducerConnection)]
    totals = {
        "count": len(machines),
        "producer_count": len(producers),
        "consumer_count": len(machines) - len(producers),
        "total_bytes": sum(machine.bytes_sent for machine in producers),
        "total_uncompressed_data_size": sum(machine.bytes_sent for machine in producers),
        **({} if has_counts else {"total_queue": 0}),
        "queue_fill": 0,
        "backfill_disk": 0,
        "backfill_memory": 0,
        "items_sent": sum(machine.items_sent for machine in producers),
        "items_remaining": 0,
        "num_running_backfills": 0,
        "max_running_backfills": 4096,
        "dead_conn_count": 0,
    }
    for key, value in totals.items():
        yield f"ep_dcp_{key}", str(value)


def _aggregated(bucket: Bucket, separator: str) -> Stats:
    """Sums over all connections, and over those whose names begin alike up to the separator."""
    machines, has_counts = _machines(bucket), bucket.release.has(Rule.STATS_OF_80)
    groups: dict[str, list[ProducerConnection | ConsumerConnection]] = {}
    for machine in machines:
        prefix, found, _ = machine.name.partition(separator)
        groups.setdefault(prefix if found else "_unknown", []).append(machine)
    for name, members in ((":total", machines), *groups.items()):
        producers = [machine for machine in members if isinstance(machine, ProducerConnection)]
        sums = {
            "count": len(members),
            "backoff": 0,
            "producer_count": len(producers),
            "items_backfilled_disk": sum(
                stream.at.messages_backfilled for machine in producers for stream in machine.streams()
            ),
            "items_backfilled_memory": 0,
            "items_sent": sum(machine.items_sent for machine in producers),
            "items_remaining": sum(remaining_of(stream) for machine in producers for stream in machine.streams()),
            "total_bytes": sum(machine.bytes_sent for machine in producers),
            "total_uncompressed_data_size": sum(machine.bytes_sent for machine in producers),
            "ready_queue_bytes": 0,
        }
        if has_counts:
            consumers = [machine for machine in members if isinstance(machine, ConsumerConnection)]
            pauses = sum(machine.pause.counts[BUFFER_FULL] for machine in producers)
            sums |= {
                "activestream_count": sum(machine.stream_count for machine in producers),
                "passivestream_count": sum(len(machine.streams) for machine in consumers),
                "paused_count": pauses,
                "unpaused_count": pauses,
            }
        for key, value in sums.items():
            yield f"{name}:{key}", str(value)


def remaining_of(stream: ProducerStream) -> int:
    """Seqnos that a living stream has not sent: at least as many as messages."""
    return 0 if stream.at.phase in OVER else max(0, stream.terms.view.high_seqno - stream.at.sent_seqno)


def _takeover(bucket: Bucket, argument: str) -> Stats | int:
    """The work left in a takeover of a vbucket by a connection."""
    number, _, name = argument.partition(" ")
    if not number.isdigit():
        return Status.EINVAL
    vbucket = bucket.vbucket(int(number))
    if vbucket is None:
        return Status.NOT_MY_VBUCKET
    name = name.removeprefix("eq_dcpq:")
    session = bucket.dcp_sessions.get(name)
    machine = session.dcp if session is not None else None
    items = vbucket.log.item_count
    if isinstance(machine, ProducerConnection):
        for stream in machine.streams():
            if stream.vbid == vbucket.vbid:
                return _takeover_of(stream, machine.name, items, vbucket.log.deletion_count())
    deletions = vbucket.log.deletion_count()
    known = {
        "status": _NO_CONNECTION[bucket.release.has(Rule.STATS_OF_80)] if machine is None else "stream_is_dead",
        "on_disk_deletes": deletions,
        "vb_items": items,
        "chk_items": max(0, vbucket.high_seqno - vbucket.memory_start_seqno + 1),
        "estimate": items + deletions,
    }
    return iter([(key, str(value)) for key, value in known.items()])


def _takeover_of(stream: ProducerStream, name: str, items: int, deletions: int) -> Stats:
    remaining = remaining_of(stream)
    yield "name", f"eq_dcpq:{name}"
    phase = stream.at.phase
    if phase in OVER:
        yield "status", "stream_is_dead"
    elif phase in (Phase.PENDING, Phase.BACKFILLING):
        yield "status", "calculating-item-count" if phase is Phase.PENDING else "backfilling"
        yield "backfillRemaining", str(remaining)
    else:
        yield "status", "in-memory"
    yield "estimate", str(remaining)
    yield "chk_items", str(remaining if phase.shown == Phase.IN_MEMORY.shown else 0)
    yield "vb_items", str(items)
    yield "on_disk_deletes", str(deletions)
