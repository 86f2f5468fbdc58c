"""Search for documents: GET_RANDOM_KEY, GET_KEYS, and OBSERVE, which looks for several keys.

Source: kv_engine daemon/protocol/mcbp/get_context.cc, engines/ep/src/getkeys.cc, ep_engine.cc (handleObserve).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.errors import FieldError
from dcpstream.wire import Datatype, Frame, Opcode, Status, decode_frame, decode_message
from dcpstream.wire.keys import leb128_decode, leb128_encode
from dcpstream.wire.messages import kv
from dcpstream.wire.release import Rule
from dcpstream.wire.shape import Fault
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers.reads import body_of
from dcpstream_node.engine.handlers.resolve import active_place, at_place, may_in, refuse_recommit

if TYPE_CHECKING:
    from array import array
    from collections.abc import Generator

    from dcpstream_node.engine.bucket.bucket import Bucket
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.session.session import Session
    from dcpstream_node.store import StoredItem

    KeyWalk = Generator[None, None, tuple[list[bytes], array[int]]]

DEFAULT_KEYS, MAX_KEYS = 1000, 100_000
"""Default and largest number of keys in an answer to GET_KEYS: the server's numbers."""

RANDOM_PROBES = 64
"""Rows of a vbucket that GET_RANDOM_KEY reads before it goes through the collection's keys instead."""
PROBE_BYTES = 16 * 1024

_FOUND, _PERSISTED, _NOT_FOUND, _DELETED = 0x00, 0x01, 0x80, 0x81
_WHOLE_DOCUMENT = 1
"""The flag of GET_RANDOM_KEY that asks for extended attributes."""


def get_random_key(session: Session, frame: Frame) -> None:
    """GET_RANDOM_KEY: a random document of a collection, with its key."""
    bucket = session.selected
    request = decode_message(frame)
    collection_id = request.collection_id if isinstance(request, kv.GetRandomKeyOfCollection) else 0
    if collection_id not in bucket.collections:
        is_denied = session.engine.release.has(Rule.RANDOM_KEY_DENIES_UNKNOWN)
        session.refuse_unknown(frame, Status.EACCESS if is_denied else Status.UNKNOWN_COLLECTION)
        return
    if not may_in(session, frame, "Read", collection_id):
        return
    item = _random_document(session, bucket, collection_id)
    if item is None:
        session.respond(frame, Status.KEY_ENOENT)
        return
    asks_for_xattrs = isinstance(request, kv.GetRandomKeyWithXattrs) and request.include_xattrs & _WHOLE_DOCUMENT
    is_whole = asks_for_xattrs and session.datatypes & Datatype.XATTR
    datatypes = session.datatypes if is_whole else session.datatypes & ~int(Datatype.XATTR)
    value, datatype = body_of(item, session.datatypes, keeps_xattrs=bool(is_whole))
    session.reply(
        frame,
        kv.GetRandomKeyResponse,
        item.flags,
        cas=item.cas,
        datatype=datatype & datatypes,
        key=item.key if session.has_collections else item.key[1:],
        value=value,
    )


def _check_keys(_session: Session, frame: Frame) -> Fault | None:
    is_sound = len(frame.extras) in kv.GetKeys.layout.extras_lengths
    return None if is_sound else Fault(Status.EINVAL, "Expected 4 bytes of extras containing the number of keys to get")


def _check_random_key(session: Session, frame: Frame) -> Fault | None:
    if session.has_collections and not frame.extras:
        return Fault(Status.EINVAL, "Extras should contain collection id")
    if not session.has_collections and frame.extras:
        return Fault(Status.EINVAL, "Extras should be empty for clients without collections support")
    return None


def _random_document(session: Session, bucket: Bucket, collection_id: int) -> StoredItem | None:
    """A live document of a collection, from a random vbucket or the next one that has any."""
    filled = [
        vbucket
        for vbucket in bucket.vbuckets
        if vbucket is not None and vbucket.is_active and vbucket.high_seqno_of((collection_id,))
    ]
    first = session.engine.random.getrandbits(32) % len(filled) if filled else 0
    for vbucket in filled[first:] + filled[:first]:
        key = _random_key(vbucket, leb128_encode(collection_id), session)
        item = None if key is None else documents.live_item(vbucket, key, session.engine.unix_ns)
        if item is not None:
            return item
    return None


def _random_key(vbucket: VBucket, prefix: bytes, session: Session) -> bytes | None:
    """The key of a document of a vbucket: the first after a random seqno."""
    high = vbucket.high_seqno
    unix_s = session.engine.unix_s
    after = session.engine.random.getrandbits(64) % max(1, high)
    for _ in range(RANDOM_PROBES):
        block = vbucket.log.read(after, high, snapshot_end=None, max_bytes=PROBE_BYTES)
        if not block.count:
            break
        for start, seqno in zip(block.starts, block.seqnos, strict=True):
            after = int(seqno)
            frame = decode_frame(block.data, int(start))
            if frame.opcode == Opcode.DCP_MUTATION and frame.key.startswith(prefix):
                meta = vbucket.log.meta(frame.key)
                if meta is not None and meta.seqno == after and not 0 < meta.expiration <= unix_s:
                    return frame.key
    keys = vbucket.log.keys_between(prefix, prefix + b"\xff" * 251)
    for key in keys:
        meta = vbucket.log.meta(key)
        if meta is not None and not 0 < meta.expiration <= unix_s:
            return key
    return None


def get_keys(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """GET_KEYS: keys of a vbucket in one collection, ascending from the given key."""
    (asked,) = kv.GetKeys.unpack(frame)
    count = min(DEFAULT_KEYS if asked is None else asked, MAX_KEYS)
    prefix = leb128_encode(documents.collection_of(key))
    last = prefix + b"\xff" * 251
    session.stream(frame, _keys(session, frame, vbucket.log.walk_keys(key, last, count)))


def _keys(session: Session, frame: Frame, walk: KeyWalk) -> Generator[None, None, None]:
    found, _ = yield from walk
    if not session.has_collections:
        found = [item[1:] for item in found]
    pack = kv.KeyLength.struct.pack
    session.reply(frame, kv.GetKeysResponse, value=b"".join(pack(len(item)) + item for item in found))


def observe(session: Session, frame: Frame) -> None:
    """OBSERVE: for each key whether the document exists and is persisted; keys may be of several vbuckets."""
    out: list[bytes] = []
    value, at = frame.value, 0
    while at < len(value):
        start, key_at = at, at + kv.ObservedKey.size
        if key_at > len(value):
            session.refuse(frame, Status.EINVAL, "Requires vbid and keylen.")
            return
        vbid, key_bytes = kv.ObservedKey.struct.unpack_from(value, at)
        at = key_at + key_bytes
        if at > len(value):
            session.refuse(frame, Status.EINVAL, "Incorrect keylen")
            return
        vbucket = session.selected.vbucket(vbid)
        if vbucket is None:
            session.refuse_vbucket(frame)
            return
        key = _observed_key(session, frame, value[key_at:at])
        if key is None or not may_in(session, frame, "Read", documents.collection_of(key)):
            return
        if refuse_recommit(session, frame, vbucket, key):
            return
        out.append(value[start:at] + _observed(session, vbucket, key).pack())
    session.reply(frame, kv.ObserveResponse, value=b"".join(out))


def _observed_key(session: Session, frame: Frame, key: bytes) -> bytes | None:
    """A key of OBSERVE with its collection prefix, or None if the request was refused.

    Like the server, the node checks no more of it than that it begins with a number; without one it closes.
    """
    if not session.has_collections:
        return b"\0" + key
    try:
        collection_id, _ = leb128_decode(key)
    except FieldError:
        session.close("OBSERVE of a key without a collection's number")
        return None
    if collection_id in session.selected.collections:
        return key
    if session.engine.release.has(Rule.OBSERVE_NAMES_NO_COLLECTION):
        session.respond(frame, Status.UNKNOWN_COLLECTION)
    else:
        session.refuse_unknown(frame, Status.UNKNOWN_COLLECTION)
    return None


def _observed(session: Session, vbucket: VBucket, key: bytes) -> kv.ObservedState:
    """State and CAS of a document; on an active vbucket a document that is due expires now."""
    if vbucket.is_active:
        before = vbucket.high_seqno
        documents.live_meta(vbucket, key, session.engine.unix_ns)
        if vbucket.high_seqno != before:
            session.changed(vbucket)
    meta = vbucket.log.meta(key)
    if meta is None:
        return kv.ObservedState(_NOT_FOUND, 0)
    is_persisted = meta.seqno <= vbucket.persisted_seqno
    if meta.is_deleted:
        return kv.ObservedState(_NOT_FOUND, 0) if is_persisted else kv.ObservedState(_DELETED, meta.cas)
    return kv.ObservedState(_PERSISTED if is_persisted else _FOUND, meta.cas)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(Opcode.GET_RANDOM_KEY, get_random_key, check=_check_random_key)
    table.add(Opcode.GET_KEYS, at_place(active_place, get_keys), check=_check_keys, own_extras=True)
    table.add(Opcode.OBSERVE, observe)
