"""The short paths of GET and SET, as every client sends them.

A short path reads the request where it lies and builds no `Frame`. It answers only requests that need nothing but the
rules in `documents`: default collection, no CAS, no flexible framing, no compression, no xattrs, no lock, no durable
write. For all others it returns False, and the command table answers them.

The short paths take a quarter to a third of the CPU time (docs/explanation/ingest.md). A differential test
(packages/dcpstream-node/tests/property/test_set_paths.py) holds them to the bytes and the stored state of the command
table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.model.json_text import JSON_STARTS, is_json
from dcpstream.wire import HEADER, HEADER_BYTES, Datatype, Magic, Opcode, Status
from dcpstream.wire.keys import MAX_KEY_BYTES
from dcpstream.wire.messages.kv import GetResponse, Set, SetResponse
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.bucket.durability import FREQUENCY_OF_NEW
from dcpstream_node.engine.session.responses import pack_duration

if TYPE_CHECKING:
    from dcpstream.wire import Head
    from dcpstream_node.engine.session.session import FastHandler, Session

_FLEXIBLE = bytes((Magic.FLEX_RESPONSE,))
# Plain integers and bound methods: looking up an enum's member or an attribute costs as much as a step of the work.
_RESPONSE, _GET, _SET, _KEY_ENOENT = int(Magic.RESPONSE), int(Opcode.GET), int(Opcode.SET), int(Status.KEY_ENOENT)
_JSON, _PACKED = int(Datatype.JSON), int(Datatype.SNAPPY | Datatype.XATTR)
_SET_EXTRAS, _TOKEN, _FLAGS = Set.layout.extras_bytes, SetResponse.layout.extras_bytes, GetResponse.layout.extras_bytes
_unpack_set = Set.layout.extras.unpack_from
_pack_bare, _pack_token, _pack_flags = HEADER.pack, SetResponse.layout.head.pack, GetResponse.layout.head.pack
_JSON_STARTS, _MAX_VALUE = JSON_STARTS, documents.MAX_VALUE_BYTES
_is_json, _revision = is_json, documents.plain_revision
_pack_stored, _STORED_EXTRAS = documents.STORED_MUTATION.pack, documents.STORED_EXTRAS
_REQUEST, _MUTATION, _FREQUENCY = int(Magic.REQUEST), int(Opcode.DCP_MUTATION), FREQUENCY_OF_NEW


def fast_get(session: Session, data: bytes, at: int, stop: int, head: Head) -> bool:
    """GET of a document of the default collection that is there, or that never was."""
    _, _, key_length, extras_length, datatype, vbid, _, opaque, cas = head
    key_at = at + HEADER_BYTES
    if extras_length or cas or datatype or key_at + key_length != stop:
        return False
    bucket = session.bucket
    if bucket is None or vbid >= len(bucket.vbuckets):
        return False
    vbucket = bucket.vbuckets[vbid]
    if vbucket is None or not vbucket.is_active or vbucket.locks:
        return False
    if vbucket.durability is not None and vbucket.durability.undecided:
        return False  # a durable write that was taken over must not be read
    if session.has_collections:
        if not 1 < key_length <= MAX_KEY_BYTES + 1 or data[key_at]:
            return False
        key = data[key_at:stop]
    elif 0 < key_length <= MAX_KEY_BYTES:
        key = b"\0" + data[key_at:stop]
    else:
        return False
    item = vbucket.log.get(key)
    if item is None:
        session.output.add(_pack_bare(_RESPONSE, _GET, 0, 0, 0, _KEY_ENOENT, 0, opaque, 0))
        return True
    if item.is_deleted or item.expiration or item.datatype & _PACKED:
        return False
    value = item.value
    size, shown = len(value) + _FLAGS, item.datatype & session.datatypes
    session.output.add(_pack_flags(_RESPONSE, _GET, 0, _FLAGS, shown, 0, size, opaque, item.cas, item.flags) + value)
    return True


def fast_set(session: Session, data: bytes, at: int, stop: int, head: Head) -> bool:
    """SET without CAS of a document of the default collection."""
    _, _, key_length, extras_length, datatype, vbid, _, opaque, cas = head
    if cas or extras_length != _SET_EXTRAS or datatype & ~(session.datatypes & _JSON):
        return False
    bucket = session.bucket
    if bucket is None or vbid >= len(bucket.vbuckets):
        return False
    vbucket = bucket.vbuckets[vbid]
    if vbucket is None or not vbucket.takes_plain_writes or not bucket.store.has_room:
        return False
    key_at = at + HEADER_BYTES + _SET_EXTRAS
    value_at = key_at + key_length
    if session.has_collections:
        if not 1 < key_length <= MAX_KEY_BYTES + 1 or data[key_at]:
            return False
        key = data[key_at:value_at]
    elif 0 < key_length <= MAX_KEY_BYTES:
        key = b"\0" + data[key_at:value_at]
    else:
        return False
    size = stop - value_at
    if size > _MAX_VALUE:
        return False
    log, unix_ns = vbucket.log, session.engine.unix_ns
    rev_seqno = vbucket.max_deleted_rev + 1
    if key in log.rows.keys:  # most keys are new, and this finds it out without a call
        rev_seqno = _revision(vbucket, key, unix_ns // 1_000_000_000)
        if not rev_seqno:
            return False
    flags, expiration = _unpack_set(data, at + HEADER_BYTES)
    if expiration:
        engine = session.engine
        expiration = documents.absolute_expiration(expiration, engine.unix_s, started_s=engine.started_s)
    is_json = size and data[value_at] in _JSON_STARTS and _is_json(data[value_at:stop])
    # The same as `documents.store`, with one copy of key and value in place of three.
    seqno = log.high_seqno + 1
    new_cas = vbucket.next_cas(unix_ns)
    body = _STORED_EXTRAS + len(key) + size
    stored = _pack_stored(
        _REQUEST, _MUTATION, len(key), _STORED_EXTRAS, _JSON if is_json else 0, vbid, body, 0, new_cas,
        seqno, rev_seqno, flags, expiration, 0, 0, _FREQUENCY,
    )  # fmt: skip
    log.append(
        stored + data[key_at:stop] if session.has_collections else stored + key + data[value_at:stop], key, seqno
    )
    bucket.dirty.add(vbid)
    if session.has_tokens:
        answer = _pack_token(_RESPONSE, _SET, 0, _TOKEN, 0, 0, _TOKEN, opaque, new_cas, vbucket.vbuuid, seqno)
    else:
        answer = _pack_bare(_RESPONSE, _SET, 0, 0, 0, 0, 0, opaque, new_cas)
    output = session.output
    output.has_written = True
    output.pieces.append(answer)
    output.nbytes += len(answer)
    return True


def _traced(handler: FastHandler) -> FastHandler:
    """The short path whose answer has the duration of the request."""

    def run(session: Session, data: bytes, at: int, stop: int, head: Head) -> bool:
        stopwatch = session.engine.stopwatch
        began = stopwatch()
        if not handler(session, data, at, stop, head):
            return False
        answer = session.output.pieces[-1]
        framing = pack_duration(stopwatch() - began)
        size = int.from_bytes(answer[8:12], "big") + len(framing)
        # The answer has no key: the two bytes of its length become those of framing and key.
        start = _FLEXIBLE + answer[1:2] + bytes((len(framing), 0)) + answer[4:8] + size.to_bytes(4, "big")
        session.output.pieces[-1] = b"".join((start, answer[12:24], framing, answer[24:]))
        session.output.nbytes += len(framing)
        return True

    return run


_traced_get, _traced_set = _traced(fast_get), _traced(fast_set)


def fast_handlers(session: Session) -> dict[int, FastHandler]:
    """The short paths that the session may take: its user has the privilege, and its bucket asks for nothing more."""
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
