"""STAT: groups of keys and values about the node.

Source: kv_engine docs/stats.md, engines/ep/src/ep_engine.cc; names as recorded from a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dcpstream.model import VbucketState
from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.node.engine.config import IMPLEMENTATION_VERSION
from dcpstream.wire import Datatype, Frame, Opcode, Status

if TYPE_CHECKING:
    from dcpstream.node.engine.bucket import Bucket
    from dcpstream.node.engine.session import Session
    from dcpstream.node.engine.vbucket import VBucket

Items = Iterable[tuple[str, object]]


def _state_name(vbucket: VBucket) -> str:
    return VbucketState(vbucket.state).name.lower()


def _vbucket(vbucket: VBucket) -> Items:
    yield "", _state_name(vbucket)


def _vbucket_seqno(vbucket: VBucket) -> Items:
    log = vbucket.log
    persisted = log.persisted_snapshot
    yield "high_seqno", log.high_seqno
    yield "abs_high_seqno", log.high_seqno
    yield "last_persisted_seqno", log.persisted_seqno
    yield "uuid", vbucket.vbuuid
    yield "purge_seqno", log.purge_seqno
    yield "last_persisted_snap_start", persisted.start_seqno
    yield "last_persisted_snap_end", persisted.end_seqno
    durable = vbucket.durability
    yield "high_prepared_seqno", durable.high_prepared_seqno if durable else 0
    yield "high_completed_seqno", durable.high_completed_seqno if durable else 0
    yield "max_visible_seqno", log.visible_seqno(log.high_seqno)


def _vbucket_details(vbucket: VBucket) -> Items:
    log = vbucket.log
    yield "", _state_name(vbucket)
    yield "num_items", log.item_count
    yield "queue_size", max(0, log.high_seqno - log.persisted_seqno)
    yield "uuid", vbucket.vbuuid
    yield "purge_seqno", log.purge_seqno
    durable = vbucket.durability
    yield "high_completed_seqno", durable.high_completed_seqno if durable else 0
    yield "max_visible_seqno", log.visible_seqno(log.high_seqno)
    yield "persistence_seqno", log.persisted_seqno
    yield "max_cas", vbucket.max_cas
    yield "high_seqno", log.high_seqno
    yield "topology", vbucket.topology or "null"
    yield "high_prepared_seqno", durable.high_prepared_seqno if durable else 0


def _failovers(vbucket: VBucket) -> Items:
    log = vbucket.failover_log
    yield "num_entries", len(log)
    yield "num_erroneous_entries_erased", 0
    for index, entry in enumerate(log):
        yield f"{index}:id", entry.vbuuid
        yield f"{index}:seq", entry.seqno


def _checkpoint(vbucket: VBucket) -> Items:
    yield "state", _state_name(vbucket)
    yield "num_checkpoint_items", vbucket.high_seqno - vbucket.memory_start_seqno + 1


_NO_HISTORY = 2**63 - 1
"""The largest time a server can name: no older versions are kept."""

_DCP_GROUPS = ("dcp", "dcpagg", "dcp-vbtakeover")
"""What is answered by those who know the DCP connections."""

_PER_VBUCKET: dict[str, Callable[[VBucket], Items]] = {
    "vbucket": _vbucket,
    "vbucket-seqno": _vbucket_seqno,
    "vbucket-details": _vbucket_details,
    "failovers": _failovers,
    "checkpoint": _checkpoint,
}


def _totals(session: Session, bucket: Bucket) -> Items:
    active = [vbucket for vbucket in bucket.vbuckets if vbucket is not None and vbucket.is_active]
    yield "version", IMPLEMENTATION_VERSION
    yield "uptime", int(session.engine.now - session.engine.started)
    yield "curr_connections", len(session.engine.sessions)
    yield "curr_items", sum(vbucket.log.item_count for vbucket in active)
    yield "vb_active_num", len(active)
    yield "ep_diskqueue_items", sum(vbucket.high_seqno - vbucket.persisted_seqno for vbucket in active)
    yield "ep_storage", bucket.storage
    yield "ep_dcp_count", len(bucket.dcp_sessions)
    yield "ep_data_read_failed", bucket.store.read_failures


def _diskinfo(bucket: Bucket) -> Items:
    yield "ep_db_data_size", sum(vbucket.log.rows.end for vbucket in bucket.vbuckets if vbucket is not None)
    yield "ep_db_file_size", bucket.store.file_bytes
    yield "ep_db_history_file_size", 0
    yield "ep_db_prepare_size", 0
    yield "ep_db_history_start_timestamp", _NO_HISTORY


def _items(session: Session, bucket: Bucket, frame: Frame) -> Items | int:
    """The answer to a group, or the status that refuses it."""
    group, _, argument = frame.key.decode(errors="replace").partition(" ")
    if group in _PER_VBUCKET:
        return _of_vbuckets(bucket, _PER_VBUCKET[group], argument)
    if group in _DCP_GROUPS:
        return session.engine.dcp_stats(bucket, group, argument)
    if group in ("", "all"):
        return _totals(session, bucket)
    if group == "diskinfo":
        return _diskinfo(bucket)
    if group == "uuid":
        return iter((("uuid", bucket.uuid),))
    return Status.KEY_ENOENT


def _of_vbuckets(bucket: Bucket, describe: Callable[[VBucket], Items], argument: str) -> Items | int:
    if not argument:
        chosen = [vbucket for vbucket in bucket.vbuckets if vbucket is not None]
    else:
        if not argument.isdigit():
            return Status.EINVAL
        one = bucket.vbucket(int(argument))
        if one is None or (one.state is VbucketState.DEAD and describe is _vbucket_seqno):
            return Status.NOT_MY_VBUCKET
        chosen = [one]
    return (
        (f"vb_{vbucket.vbid}:{name}" if name else f"vb_{vbucket.vbid}", value)
        for vbucket in chosen
        for name, value in describe(vbucket)
    )


def stat(session: Session, frame: Frame) -> None:
    """STAT: one answer per item, then an empty one."""
    assert session.bucket is not None, "the table asks for a bucket"
    items = _items(session, session.bucket, frame)
    if isinstance(items, int):
        session.respond(frame, items)
        return
    for key, value in items:
        session.respond(frame, key=key.encode(), value=str(value).encode())
    session.respond(frame)


def register(table: CommandTable) -> None:
    """Add the command of this module."""
    table.add(
        Opcode.STAT,
        Command(stat, key=Part.OPTIONAL, value=Part.OPTIONAL, datatypes=int(Datatype.JSON), privilege="SimpleStats"),
    )
