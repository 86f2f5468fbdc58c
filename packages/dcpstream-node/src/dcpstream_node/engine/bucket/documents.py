"""The rules of reading, writing, expiring and deleting one document of a vbucket.

Every write gets the next seqno, a new CAS and the next revision; deleting leaves a tombstone; a document past its
expiration time is replaced by an expiration when it is accessed. Knows nothing of connections and frames of requests.

Source: kv_engine engines/ep/src/vbucket.cc, daemon/protocol/mcbp/mutation_context.cc (xattrs kept).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dcpstream.wire import Datatype, Magic, Opcode
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.messages.dcp import Mutation
from dcpstream.wire.stored.block import (
    BlockKind,
    Version,
    encode_stored_deletion,
    encode_stored_expiration,
    encode_stored_mutation,
)
from dcpstream.wire.values import snappy_uncompress, system_xattrs
from dcpstream_node.engine.bucket.durability import FREQUENCY_OF_NEW
from dcpstream_node.engine.bucket.locks import HIDDEN_CAS, Lock
from dcpstream_node.engine.bucket.vbucket import MAX_TRUSTED_CAS, VBucket
from dcpstream_node.store import ItemMeta

if TYPE_CHECKING:
    from dcpstream_node.store import StoredItem

RELATIVE_EXPIRY_MAX_S = 30 * 24 * 3600
"""Expirations up to 30 days are relative to now; larger numbers are seconds since 1970."""

MAX_VALUE_BYTES = 20 * 1024 * 1024
"""Largest document, the server's default; larger ones are E2BIG."""

STORED_MUTATION = Mutation.layout.head
"""Header and extras of a stored mutation in one piece."""
STORED_EXTRAS = Mutation.layout.extras_bytes

_XATTR, _DELETED = int(BlockKind.XATTR), int(BlockKind.DELETION | BlockKind.EXPIRATION)
_NAMED = int(BlockKind.NAMED_COLLECTION)
_PACKED = int(Datatype.SNAPPY | Datatype.XATTR)
_KINDS = {
    int(datatype): int(kinds)
    for datatype, kinds in (
        (0, BlockKind(0)),
        (Datatype.SNAPPY, BlockKind.SNAPPY),
        (Datatype.XATTR, BlockKind.XATTR),
        (Datatype.SNAPPY | Datatype.XATTR, BlockKind.SNAPPY | BlockKind.XATTR),
    )
}
# Plain integers: arithmetic with members of an enum costs more than the rest of a short write.
_MAGIC, _MUTATION = int(Magic.REQUEST), int(Opcode.DCP_MUTATION)


class Written(NamedTuple):
    """The result of a write: CAS and seqno."""

    cas: int
    seqno: int


def absolute_expiration(expiration: int, unix_s: int, max_ttl: int = 0, *, started_s: int) -> int:
    """The expiration of a document in seconds since 1970; 0 for never.

    Args:
        max_ttl: the limit of its collection in seconds; 0 for none.
        started_s: when the node started, in seconds since 1970. Like the server, a node keeps no expiration from before
            its start: such a document expires one second after the start, so it has expired already.
    """
    if expiration > RELATIVE_EXPIRY_MAX_S:
        expiration = max(expiration, started_s + 1)
    elif expiration:
        expiration += unix_s
    return limited_expiration(expiration, unix_s, max_ttl)


def collection_of(key: bytes) -> int:
    """The id of the collection that a key with collection prefix is in."""
    return leb128_decode(key)[0] if key[0] else 0


def limited_expiration(expiration: int, unix_s: int, max_ttl: int) -> int:
    """An expiration in seconds since 1970, limited by `max_ttl`; 0 for no limit."""
    return unix_s + max_ttl if max_ttl and not 0 < expiration <= unix_s + max_ttl else expiration


def kinds_of(key: bytes, datatype: int) -> int:
    """The kinds of a document's stored frame."""
    kinds = _KINDS[datatype & _PACKED]
    return kinds | _NAMED if key[0] else kinds


def live_meta(vbucket: VBucket, key: bytes, unix_ns: int) -> ItemMeta | None:
    """The metadata of a document or tombstone; a document past its time is expired first."""
    meta = vbucket.log.meta(key)
    if vbucket.locks and meta is not None:
        lock = vbucket.locks.find(key, meta.seqno, unix_ns)
        meta = meta if lock is None else meta._replace(cas=lock.cas)
    is_over = meta is not None and meta.expiration and not meta.is_deleted and meta.expiration <= unix_ns // 10**9
    if meta is not None and is_over and not is_undecided(vbucket, key):
        expire(vbucket, key, meta, unix_ns)
        return vbucket.log.meta(key)
    return meta  # a locked document's has the CAS of the lock


def live_item(vbucket: VBucket, key: bytes, unix_ns: int) -> StoredItem | None:
    """The document, or None. A locked document has the CAS of its lock, which a writer must name."""
    item = vbucket.log.get(key)
    if item is None or item.is_deleted:
        return None
    if item.expiration and item.expiration <= unix_ns // 1_000_000_000:
        meta = vbucket.log.meta(key)
        assert meta is not None, "the document was found"
        if not is_undecided(vbucket, key):
            expire(vbucket, key, meta, unix_ns)
        return None
    if vbucket.locks:
        lock = vbucket.locks.find(key, item.seqno, unix_ns)
        return item if lock is None else item._replace(cas=lock.cas)
    return item


def lock_of(vbucket: VBucket, key: bytes, unix_ns: int) -> Lock | None:
    """The lock of the document, or None."""
    if not vbucket.locks:
        return None
    meta = vbucket.log.meta(key)
    if meta is None or (0 < meta.expiration <= unix_ns // 10**9 and not meta.is_deleted):
        return None  # an expired document is not locked any more
    return vbucket.locks.find(key, meta.seqno, unix_ns)


def shown_cas(vbucket: VBucket, key: bytes, cas: int, unix_ns: int) -> int:
    """The CAS that readers see; the one of a locked document is hidden."""
    return cas if lock_of(vbucket, key, unix_ns) is None else HIDDEN_CAS


def is_undecided(vbucket: VBucket, key: bytes) -> bool:
    """Whether a durable write of the document is under way; until its end no other write or expiry is possible."""
    return vbucket.durability is not None and key in vbucket.durability.undecided


def prepared_meta(vbucket: VBucket, key: bytes) -> ItemMeta | None:
    """The fields that a document has once its durable write is committed; None if none is under way."""
    waiting = vbucket.durability.undecided.get(key) if vbucket.durability is not None else None
    if waiting is None:
        return None
    prepare = waiting.prepare
    times = (0, prepare.expiration) if prepare.is_deleted else (prepare.expiration, 0)
    return ItemMeta(
        prepare.cas, prepare.rev_seqno, prepare.seqno, prepare.flags, times[0], prepare.datatype, prepare.is_deleted,
        times[1],
    )  # fmt: skip


def is_recommitted(vbucket: VBucket, key: bytes) -> bool:
    """Whether a durable write, taken over at a restart or from another node, may already have been visible there."""
    if vbucket.durability is None:
        return False
    waiting = vbucket.durability.undecided.get(key)
    return waiting is not None and waiting.is_maybe_visible


def next_rev(vbucket: VBucket, meta: ItemMeta | None) -> int:
    """The revision of the next version of a document; `meta` belongs to the present document or tombstone."""
    return (vbucket.max_deleted_rev if meta is None else meta.rev_seqno) + 1


def store(vbucket: VBucket, version: Version, unix_ns: int) -> Written:
    """Write a document."""
    key, value, rev_seqno, datatype, flags, expiration = version
    log = vbucket.log
    if vbucket.durability is not None:
        vbucket.durability.before_plain_write(key)
    seqno = log.high_seqno + 1
    cas = vbucket.next_cas(unix_ns)
    body = STORED_EXTRAS + len(key) + len(value)
    head = STORED_MUTATION.pack(
        _MAGIC, _MUTATION, len(key), STORED_EXTRAS, datatype, vbucket.vbid, body, 0, cas,
        seqno, rev_seqno, flags, expiration, 0, 0, FREQUENCY_OF_NEW,
    )  # fmt: skip
    log.append(head + key + value, key, seqno, kinds=kinds_of(key, datatype))
    return Written(cas, seqno)


def store_version(
    vbucket: VBucket, version: Version, *, cas: int, is_deleted: bool, is_expiration: bool = False
) -> Written:
    """Write a document or a tombstone with a given CAS."""
    key = version.key
    if vbucket.durability is not None:
        vbucket.durability.before_plain_write(key)
    seqno = vbucket.log.high_seqno + 1
    kinds = kinds_of(key, version.datatype)
    if is_deleted:
        vbucket.max_deleted_rev = max(vbucket.max_deleted_rev, version.rev_seqno)
        encode = encode_stored_expiration if is_expiration else encode_stored_deletion
        frame = encode(version, vbid=vbucket.vbid, by_seqno=seqno, cas=cas)
        kinds |= BlockKind.EXPIRATION if is_expiration else BlockKind.DELETION
    else:
        frame = encode_stored_mutation(version, vbid=vbucket.vbid, by_seqno=seqno, cas=cas, nru=FREQUENCY_OF_NEW)
    vbucket.log.append(frame, key, seqno, kinds=int(kinds))
    if vbucket.max_cas < cas <= MAX_TRUSTED_CAS:
        vbucket.max_cas = cas
    return Written(cas, seqno)


def delete(vbucket: VBucket, key: bytes, meta: ItemMeta, unix_ns: int, *, keeps_system: bool = True) -> Written:
    """Delete a document; the tombstone keeps its flags and its system xattrs.

    Like the server's, the tombstone of a document with system xattrs has no flags.

    Args:
        keeps_system: whether the system xattrs stay.
    """
    value, datatype = remains(vbucket, key, meta) if keeps_system else (b"", 0)
    return _bury(vbucket, key, meta, value, datatype, unix_ns, flags=0 if value else meta.flags, is_expiration=False)


def expire(vbucket: VBucket, key: bytes, meta: ItemMeta, unix_ns: int) -> Written:
    """Turn a document past its time into an expiration."""
    vbucket.expired_count += 1
    # Like the server: the next new document gets the revision after the next, where a deletion leaves no gap.
    vbucket.max_deleted_rev = max(vbucket.max_deleted_rev, meta.rev_seqno + 2)
    value, datatype = remains(vbucket, key, meta)
    return _bury(vbucket, key, meta, value, datatype, unix_ns, flags=meta.flags, is_expiration=True)


def remains(vbucket: VBucket, key: bytes, meta: ItemMeta) -> tuple[bytes, int]:
    """(value, datatype) that a document's tombstone keeps: its system xattrs."""
    if not meta.datatype & Datatype.XATTR:
        return b"", 0
    item = vbucket.log.get(key)
    assert item is not None, "its metadata was found"
    kept = system_xattrs(plain_value(item.value, item.datatype))
    return kept, int(Datatype.XATTR) if kept else 0


def plain_value(value: bytes, datatype: int) -> bytes:
    """A stored value without compression: xattr section, if any, and body."""
    return snappy_uncompress(value, MAX_VALUE_BYTES) if datatype & Datatype.SNAPPY else value


def _bury(
    vbucket: VBucket,
    key: bytes,
    meta: ItemMeta,
    value: bytes,
    datatype: int,
    unix_ns: int,
    *,
    flags: int,
    is_expiration: bool,
) -> Written:
    version = Version(key, value, meta.rev_seqno + 1, datatype, flags, unix_ns // 1_000_000_000)
    cas = vbucket.next_cas(unix_ns)
    result = store_version(vbucket, version, cas=cas, is_deleted=True, is_expiration=is_expiration)
    vbucket.note_deletion(key, result.seqno, 0 if value else meta.expiration, unix_ns)
    return result
