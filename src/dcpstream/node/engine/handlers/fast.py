"""The direct ways of the most frequent requests: GET and SET as every client sends them.

They read the request where it lies, build no object for it, and do exactly what the command table's functions do;
whatever is not plain (CAS, flexible framing, compression, xattrs, named collections, something amiss) they leave to
those by returning False. Each saves about half of an operation's time.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from dcpstream.node.engine.bucket import documents
from dcpstream.node.engine.session.responses import pack_duration
from dcpstream.wire import Magic, Opcode
from dcpstream.wire.stored.block import BlockKind

if TYPE_CHECKING:
    from dcpstream.node.engine.session.session import FastHandler, Session

_HEAD = 24
_FLAGS_EXPIRATION = struct.Struct(">II")
_BARE = struct.Struct(">BBHBBHIIQ")
_WITH_FLAGS = struct.Struct(">BBHBBHIIQI")
_RESPONSE = int(Magic.RESPONSE)
_FLEXIBLE = bytes((Magic.FLEX_RESPONSE,))
_REQUEST = int(Magic.REQUEST)
_GET, _SET, _MUTATION = int(Opcode.GET), int(Opcode.SET), int(Opcode.DCP_MUTATION)
_MAX_KEY = 250
_XATTR, _DELETED = int(BlockKind.XATTR), int(BlockKind.DELETION | BlockKind.EXPIRATION)
_pack_token, _pack_bare, _pack_flags = documents.SET_ANSWER.pack, _BARE.pack, _WITH_FLAGS.pack
_unpack_store = _FLAGS_EXPIRATION.unpack_from
_pack_stored = documents.STORED_MUTATION.pack
_FREQUENCY = documents.FREQUENCY_OF_NEW
_RELATIVE = documents.RELATIVE_EXPIRY_MAX_S
_JSON_STARTS = documents.JSON_STARTS


def fast_get(
    session: Session,
    data: bytes,
    at: int,
    stop: int,
    key_length: int,
    extras_length: int,
    datatype: int,
    vbid: int,
    opaque: int,
    cas: int,
) -> bool:
    """GET of a document of the default collection that is there, or that never was."""
    key_at = at + _HEAD
    if extras_length or cas or datatype or key_at + key_length != stop or not key_length:
        return False
    bucket = session.bucket
    if bucket is None or vbid >= len(bucket.vbuckets):
        return False
    vbucket = bucket.vbuckets[vbid]
    if vbucket is None or not vbucket.is_active or vbucket.locks:
        return False
    if vbucket.durability is not None and vbucket.durability.undecided:
        return False  # what was taken over is not to be read
    if session.has_collections:
        if data[key_at] or not 1 < key_length <= _MAX_KEY + 1:
            return False
        key = data[key_at:stop]
    else:
        if key_length > _MAX_KEY:
            return False
        key = b"\0" + data[key_at:stop]
    item = vbucket.log.get(key)
    if item is None:
        session.output.add(_pack_bare(_RESPONSE, _GET, 0, 0, 0, 1, 0, opaque, 0))
        return True
    if item.is_deleted or item.expiration or item.datatype & 6:
        return False
    value = item.value
    size = len(value) + 4
    head = _pack_flags(_RESPONSE, _GET, 0, 4, item.datatype & session.datatypes, 0, size, opaque, item.cas, item.flags)
    session.output.add(head + value)
    return True


def fast_set(
    session: Session,
    data: bytes,
    at: int,
    stop: int,
    key_length: int,
    extras_length: int,
    datatype: int,
    vbid: int,
    opaque: int,
    cas: int,
) -> bool:
    """SET without CAS of a document of the default collection."""
    if cas or extras_length != 8 or datatype & ~(session.datatypes & 1) or not key_length:
        return False
    bucket = session.bucket
    if bucket is None or vbid >= len(bucket.vbuckets):
        return False
    vbucket = bucket.vbuckets[vbid]
    if vbucket is None or not vbucket.is_active or vbucket.is_backed_up or not bucket.store.has_room:
        return False
    if vbucket.durability is not None or vbucket.locks:
        return False  # the document may have a durable write that is not decided, or be locked
    key_at = at + 32
    value_at = key_at + key_length
    if session.has_collections:
        if data[key_at] or not 1 < key_length <= _MAX_KEY + 1:
            return False
        key = data[key_at:value_at]
    else:
        if key_length > _MAX_KEY:
            return False
        key = b"\0" + data[key_at:value_at]
    size = stop - value_at
    if size > documents.MAX_VALUE_BYTES:
        return False
    engine = session.engine
    unix_ns = engine.unix_ns
    log = vbucket.log
    rev_seqno = vbucket.max_deleted_rev + 1
    # That most keys are new is found out without a call.
    if key in log.rows.keys and (old := log.brief(key)) is not None:
        if not old.kinds & _DELETED and (old.kinds & _XATTR or 0 < old.time <= unix_ns // 1_000_000_000):
            return False
        rev_seqno = old.revision + 1
    flags, expiration = _unpack_store(data, at + _HEAD)
    if 0 < expiration <= _RELATIVE:
        expiration += unix_ns // 1_000_000_000
    may_be_json = size and data[value_at] in _JSON_STARTS
    stored_type = 1 if may_be_json and documents.is_json(data[value_at:stop]) else 0
    seqno = log.high_seqno + 1
    new_cas = vbucket.next_cas(unix_ns)
    head = _pack_stored(
        _REQUEST, _MUTATION, len(key), 31, stored_type, vbid, 31 + len(key) + size, 0, new_cas,
        seqno, rev_seqno, flags, expiration, 0, 0, _FREQUENCY,
    )  # fmt: skip
    log.append(head + data[key_at:stop] if session.has_collections else head + key + data[value_at:stop], key, seqno)
    bucket.dirty.add(vbid)
    output = session.output
    output.has_written = True
    if session.has_tokens:
        answer = _pack_token(_RESPONSE, _SET, 0, 16, 0, 0, 16, opaque, new_cas, vbucket.vbuuid, seqno)
    else:
        answer = _pack_bare(_RESPONSE, _SET, 0, 0, 0, 0, 0, opaque, new_cas)
    output.pieces.append(answer)
    output.nbytes += len(answer)
    return True


def _traced(handler: FastHandler) -> FastHandler:
    """The direct way whose answer tells how long it took."""

    def run(
        session: Session,
        data: bytes,
        at: int,
        stop: int,
        key_length: int,
        extras_length: int,
        datatype: int,
        vbid: int,
        opaque: int,
        cas: int,
    ) -> bool:
        stopwatch = session.engine.stopwatch
        began = stopwatch()
        if not handler(session, data, at, stop, key_length, extras_length, datatype, vbid, opaque, cas):
            return False
        answer = session.output.pieces[-1]
        framing = pack_duration(stopwatch() - began)
        size = int.from_bytes(answer[8:12], "big") + len(framing)
        # The answer has no key: the two bytes of its length become those of framing and key.
        head = _FLEXIBLE + answer[1:2] + bytes((len(framing), 0)) + answer[4:8] + size.to_bytes(4, "big")
        session.output.pieces[-1] = b"".join((head, answer[12:24], framing, answer[24:]))
        session.output.nbytes += len(framing)
        return True

    return run


_traced_get, _traced_set = _traced(fast_get), _traced(fast_set)


def fast_handlers(session: Session) -> dict[int, FastHandler]:
    """The direct ways this session may take: those its user has the privilege for, once a bucket is selected."""
    handlers: dict[int, FastHandler] = {}
    bucket = session.bucket
    default = None if bucket is None else bucket.collections.get(0)
    if session.identity.user is not None and bucket is not None and default is not None and bucket.takes_traffic:
        if not session.refusal_in("Read", 0):
            handlers[_GET] = _traced_get if session.is_tracing else fast_get
        is_plain = not (default.max_ttl or bucket.settings.max_ttl or bucket.settings.durability_min_level)
        if is_plain and not session.refusal_in("Upsert", 0):
            handlers[_SET] = _traced_set if session.is_tracing else fast_set
    return handlers
