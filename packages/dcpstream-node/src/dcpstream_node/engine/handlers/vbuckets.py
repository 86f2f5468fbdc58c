"""Commands about vbuckets: seqnos, failover logs, states, persistence, compaction.

Source: kv_engine docs/BinaryProtocol.md, engines/ep/docs/protocol/*, engines/ep/src/ep_engine.cc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.model import MAX_SEQNO, VbucketState
from dcpstream.wire import Datatype, Frame, Opcode, RawRequest, Status, decode_message
from dcpstream.wire.messages import admin, kv
from dcpstream.wire.release import Rule
from dcpstream.wire.shape import Fault
from dcpstream.wire.values import encode_failover_log, encode_vbucket_seqnos
from dcpstream_node.engine.bucket.topology import NOTHING, read_meta
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers.resolve import holds_token, may_in
from dcpstream_node.store import CompactionOrder

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.session.session import Session

_END_OF_TIME = 2**32
_ALIVE = frozenset((VbucketState.ACTIVE, VbucketState.REPLICA, VbucketState.PENDING))


def _vbucket(session: Session, frame: Frame) -> VBucket | None:
    """The vbucket of a request, whatever its state, or None if the request was refused."""
    vbucket = session.selected.vbucket(frame.vbid)
    if vbucket is None:
        session.refuse_vbucket(frame)
    return vbucket


def _check_get_all_vb_seqnos(_session: Session, frame: Frame) -> Fault | None:
    state, _ = kv.GetAllVbSeqnos.unpack(frame)
    return Fault(Status.EINVAL, "Request vbucket state invalid") if state and state > VbucketState.DEAD else None


def get_all_vb_seqnos(session: Session, frame: Frame) -> None:
    """GET_ALL_VB_SEQNOS: high seqnos of the vbuckets in a state, of the whole vbucket or of one collection."""
    bucket = session.selected
    state, collection_id = kv.GetAllVbSeqnos.unpack(frame)
    wanted = frozenset((VbucketState(state),)) if state else _ALIVE
    if collection_id is not None:
        if not session.has_collections:
            session.respond(frame, Status.EINVAL)
            return
        if not may_in(session, frame, "Read", collection_id):
            return
        if collection_id not in bucket.manifest.collection_names():
            session.refuse_unknown(frame, Status.UNKNOWN_COLLECTION)
            return
    elif not session.has_collections:
        # A client without collections sees only the default collection, so it gets that collection's seqnos.
        collection_id = 0
        if not may_in(session, frame, "Read", 0):
            return
    else:
        identity = session.identity
        assert identity.user is not None, "the command needs a login"
        if not identity.user.may_within("Read", bucket.name) or "Read" in identity.dropped:
            session.refuse(frame, Status.EACCESS)
            return
    chosen = [vbucket for vbucket in bucket.vbuckets if vbucket is not None and vbucket.state in wanted]
    if collection_id is None:
        pairs = [(vbucket.vbid, _reported_seqno(vbucket)) for vbucket in chosen]
    else:
        is_asked = session.has_collections
        pairs = [
            (
                vbucket.vbid,
                vbucket.high_seqno_with_prepares(collection_id) if is_asked else vbucket.high_seqno_of((0,)),
            )
            for vbucket in chosen
        ]
        if collection_id:
            # Every other collection has a seqno: that of the event which created it.
            pairs = [(vbid, seqno) for vbid, seqno in pairs if seqno]
    session.reply(frame, kv.GetAllVbSeqnosResponse, value=encode_vbucket_seqnos(pairs))


def _reported_seqno(vbucket: VBucket) -> int:
    """The high seqno; for a copy that is receiving a snapshot, the snapshot's end."""
    high, received = vbucket.high_seqno, vbucket.received
    if vbucket.state is VbucketState.ACTIVE or received is None or high < received.start_seqno:
        return high
    return max(high, received.end_seqno)


def _check_observe_seqno(_session: Session, frame: Frame) -> Fault | None:
    wanted = kv.ObserveSeqno.layout.value_bytes
    return None if len(frame.value) == wanted else Fault(Status.EINVAL, f"Request value must be of length {wanted}")


def observe_seqno(session: Session, frame: Frame) -> None:
    """OBSERVE_SEQNO: persisted and high seqno; for an old branch also its last seqno."""
    vbucket = session.selected.vbucket(frame.vbid)
    if vbucket is None or vbucket.state == VbucketState.DEAD:
        session.refuse_vbucket(frame)
        return
    if not session.selected.store.is_durable:
        vbucket.fresh_deletions.clear()  # the answer reports everything as persisted
    (vbuuid,) = kv.ObserveSeqno.unpack(frame)
    log, high = vbucket.failover_log, vbucket.high_seqno
    upper = log.upper(vbuuid, high)
    if upper is None:
        session.respond(frame, Status.KEY_ENOENT)
    elif vbuuid == log.newest.vbuuid:
        session.reply(frame, kv.ObserveSeqnoResponse, vbucket.vbid, vbuuid, vbucket.persisted_seqno, high)
    else:
        present = vbucket.vbid, log.newest.vbuuid, vbucket.persisted_seqno, high
        session.reply(frame, kv.ObserveSeqnoFailoverResponse, *present, vbuuid, upper)


def get_failover_log(session: Session, frame: Frame) -> None:
    """GET_FAILOVER_LOG: the branches of a vbucket, newest first."""
    vbucket = _vbucket(session, frame)
    if vbucket is not None:
        session.reply(frame, kv.GetFailoverLogPlainResponse, value=encode_failover_log(vbucket.failover_log))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def set_vbucket(session: Session, frame: Frame) -> None:
    """SET_VBUCKET: create a vbucket, or change its state.

    The state is one byte of extras, and the value may be JSON. Older forms have four bytes of extras or of value.
    """
    bucket, request = session.selected, decode_message(frame)
    is_short = isinstance(request, admin.SetVbucket)
    if is_short and frame.datatype != (Datatype.JSON if frame.value else 0):
        session.refuse(frame, Status.EINVAL, f"datatype should be set to {'JSON' if frame.value else 'RAW'}")
        return
    has_one_form = session.engine.release.has(Rule.SET_VBUCKET_WITHOUT_CAS)
    if isinstance(request, RawRequest) or (not is_short and (frame.datatype or has_one_form)):
        why = "Invalid format. Use 1 byte state in extras and an optional JSON value"
        session.refuse(frame, Status.EINVAL, why)
        return
    assert isinstance(request, admin.SetVbucket | admin.SetVbucketWide | admin.SetVbucketByValue), "its only layouts"
    if frame.cas and has_one_form:
        session.refuse(frame, Status.EINVAL, "Request CAS must not be set")
        return
    if request.state not in tuple(VbucketState):
        session.refuse(frame, Status.EINVAL, "The provided vbucket state is invalid")
        return
    if not holds_token(session, frame):
        return
    state, meta = VbucketState(request.state), NOTHING
    if is_short and frame.value:
        found = read_meta(frame.value)
        if session.engine.release.has(Rule.SET_VBUCKET_CLOSES) and (state != VbucketState.ACTIVE or found is None):
            session.close("SET_VBUCKET with a value that its state cannot have")
            return
        if state != VbucketState.ACTIVE:
            session.refuse(frame, Status.EINVAL, "vbucket meta may only be set on active vbuckets")
            return
        if found is None and not _is_utf8(frame.value):
            session.close("SET_VBUCKET with a value that is not UTF-8")
            return
        if found is None:
            session.refuse(frame, Status.EINVAL, "The value is not JSON")
            return
        meta = found
    if frame.vbid >= bucket.vbucket_count:
        session.refuse(frame, Status.ERANGE, "VBucket number too big")
        return
    is_done = bucket.set_vbucket(frame.vbid, state, meta, session.engine.now)
    session.engine.topology_changed(bucket)
    if is_done:
        session.respond(frame, cas=frame.cas)
    else:
        session.close("SET_VBUCKET with a topology that is none")


def get_vbucket(session: Session, frame: Frame) -> None:
    """GET_VBUCKET: the vbucket's state."""
    vbucket = _vbucket(session, frame)
    if vbucket is not None:
        session.reply(frame, admin.GetVbucketResponse, int(vbucket.state))


def del_vbucket(session: Session, frame: Frame) -> None:
    """DEL_VBUCKET: delete a vbucket at once, whether the request is asynchronous or not."""
    if frame.vbid >= len(session.selected.vbuckets) and not session.engine.release.has(Rule.DEL_VBUCKET_CHECKS_NUMBER):
        session.close("DEL_VBUCKET of a vbucket number that the bucket cannot have")
        return
    if holds_token(session, frame) and _vbucket(session, frame) is not None:
        session.selected.delete_vbucket(frame.vbid, session.engine.now)
        session.engine.topology_changed(session.selected)
        session.respond(frame, cas=frame.cas)


def seqno_persistence(session: Session, frame: Frame) -> None:
    """SEQNO_PERSISTENCE: wait until the seqno is persisted."""
    vbucket = _vbucket(session, frame)
    if vbucket is None:
        return
    (seqno,) = kv.SeqnoPersistence.unpack(frame)
    if vbucket.persisted_seqno >= seqno:
        if not session.selected.store.is_durable:
            vbucket.fresh_deletions.clear()
        session.respond(frame)
        return
    deadline = session.engine.now + session.selected.parameters.seqno_persistence_timeout_s
    if session.selected.wait_for_persistence(session, frame.vbid, seqno, deadline):
        session.wait(frame, lambda status: session.respond(frame, status))
    else:
        session.respond(frame, Status.TMPFAIL)


def create_checkpoint(session: Session, frame: Frame) -> None:
    """CREATE_CHECKPOINT: close the open checkpoint; new streams read its persisted items from disk."""
    vbucket = _vbucket(session, frame)
    if vbucket is not None:
        vbucket.close_checkpoint()
        session.respond(frame)


def _check_padding(_session: Session, frame: Frame) -> Fault | None:
    _, _, _, padding, _, more_padding = admin.CompactDb.unpack(frame)
    return Fault(Status.EINVAL, "Padding bytes should be set to 0") if padding or more_padding else None


def compact(session: Session, frame: Frame) -> None:
    """COMPACT_DB: purge old tombstones, or all if asked for, and compact; answered when done.

    Like on the server, the seqno limits the old ones only.
    """
    before_time, before_seqno, drop_deletes, *_ = admin.CompactDb.unpack(frame)
    vbucket, bucket = _vbucket(session, frame), session.selected
    if vbucket is None:
        return
    durability = vbucket.durability
    limit = MAX_SEQNO if durability is None or durability.purge_limit is None else durability.purge_limit
    order = CompactionOrder(
        before_time=_END_OF_TIME if drop_deletes else before_time,
        before_seqno=MAX_SEQNO if drop_deletes else before_seqno or MAX_SEQNO,
        purge_limits={vbucket.vbid: limit},
        vbids=frozenset((vbucket.vbid,)),
        is_full=True,
    )
    if bucket.compact is None:  # no task compacts the bucket
        bucket.store.compact(order)
        session.respond(frame)
    elif bucket.compact(order, lambda error: session.resume(Status.EINTERNAL if error else Status.SUCCESS)):
        session.wait(frame, lambda status: session.respond(frame, status))
    else:
        session.respond(frame, Status.TMPFAIL)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(Opcode.GET_ALL_VB_SEQNOS, get_all_vb_seqnos, check=_check_get_all_vb_seqnos)
    table.add(Opcode.OBSERVE_SEQNO, observe_seqno, check=_check_observe_seqno)
    table.add(Opcode.GET_FAILOVER_LOG, get_failover_log)
    table.add(Opcode.SET_VBUCKET, set_vbucket, own_extras=True)
    table.add(Opcode.GET_VBUCKET, get_vbucket)
    table.add(Opcode.DEL_VBUCKET, del_vbucket)
    table.add(Opcode.SEQNO_PERSISTENCE, seqno_persistence)
    table.add(Opcode.CREATE_CHECKPOINT, create_checkpoint)
    table.add(Opcode.COMPACT_DB, compact, check=_check_padding)
