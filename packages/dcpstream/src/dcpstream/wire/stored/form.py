"""The form of one stream's messages, and rewriting one stored message to it.

The stored form is the richest. A stream may do without collections, xattrs or values, may have a filter of collections,
may want values compressed or not, or a stream id in each message.

Source: kv_engine engines/ep/src/dcp/producer.cc, active_stream.cc (makeResponseFromItem),
backfill_disk.cc (CacheCallback), docs/dcp/documentation/commands/{mutation,deletion,expiration}.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dcpstream.wire.codes import Datatype, Magic, Opcode, SystemEventId
from dcpstream.wire.frames import HEADER, HEADER_BYTES
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.messages.dcp import Deletion, DeletionV2, Expiration, Mutation, Prepare
from dcpstream.wire.stored.block import BlockKind
from dcpstream.wire.stored.durable import DurableForm, commit_extras, is_sent, turned
from dcpstream.wire.system_events import VERSION_FLATBUFFERS, flatbuffer_of, old_form_of, read_event
from dcpstream.wire.values import snappy_compress, snappy_uncompress, split_xattrs, system_xattrs

_COMPRESSING = frozenset(("force", "active"))
_DURABLE = frozenset((int(Opcode.DCP_PREPARE), int(Opcode.DCP_ABORT)))
_DELETIONS = frozenset((int(Opcode.DCP_DELETION), int(Opcode.DCP_EXPIRATION)))
_DOCUMENTS = _DELETIONS | {int(Opcode.DCP_MUTATION)}
_DELETED_AT = Prepare.layout.offset("deleted") - HEADER_BYTES
"""Offset of the deletion flag in a prepare's extras."""

_SEQNO_BYTES = 8
"""The seqno stands first in the extras of a document."""

COARSE_COUNTER, EXACT_COUNTER = 2, 4
"""The last byte of a fresh document's extras, as recorded: without and with `supports_hifi_MFU`."""

NOT_DEFAULT = BlockKind.NAMED_COLLECTION | BlockKind.SYSTEM_EVENT
"""Kinds of frames that are no documents of the default collection."""

_ONLY_DEFAULT = frozenset((0,))
_HIGHEST_BYTE = 0xFF


@dataclass(frozen=True, slots=True)
class StreamForm:
    """The form of one stream's messages.

    Attributes:
        collections: keys carry the collection prefix; if false, only the default collection is sent.
        xattrs: values keep their xattr section.
        delete_times: deletions carry their time (21 bytes of extras).
        expiry_opcode: expirations are sent as such (needs `delete_times`); if false, as deletions.
        no_value: values without document body; the datatype describes the rest.
        keep_datatype: with `no_value`, the stored datatype is kept.
        snappy: "none" uncompresses values, "passive" sends them as stored, "force" compresses values that get smaller,
            "active" does the same except for values of which a part is left out.
        stream_id: goes into the framing extras, or None.
        collection_ids: only these collections, or None for all.
        scope_id: the events of this scope and its collections go with them; None: the events of `collection_ids`.
        hides_system: `collection_ids` are those that are not the system's, and the events of all others go with them.
        flatbuffer_events: system events are sent in version 2; modifications of collections are only sent with it.
        user_xattrs_on_delete: deletions keep user xattrs too.
        packs_deletions: xattrs of deletions that are sent whole are compressed, even if that makes them longer. A
            server reads deletions from its files, which hold every value compressed.
        only_keys: documents keep their key and seqno alone, and deletions come as mutations, as a bug of servers sends
            them (`ServerBug.KEYS_ONLY`).
        skips_deletions: deletions and expirations are left out.
        lacks_high_keys: documents whose keys begin with 0xff and are longer are left out (`ServerBug.OSO_HIGH_KEYS`).
        hifi_counter: a fresh document's use counter is the exact one instead of the coarse one.
        durable: the durable writes that are sent; None: only the documents that they make.
        is_plain_as_stored: `is_as_stored` of blocks of plain mutations, which most blocks are.
    """

    collections: bool = True
    xattrs: bool = True
    delete_times: bool = True
    expiry_opcode: bool = True
    no_value: bool = False
    keep_datatype: bool = False
    snappy: str = "passive"
    stream_id: int | None = None
    collection_ids: frozenset[int] | None = None
    scope_id: int | None = None
    hides_system: bool = False
    flatbuffer_events: bool = False
    user_xattrs_on_delete: bool = True
    packs_deletions: bool = False
    only_keys: bool = False
    skips_deletions: bool = False
    lacks_high_keys: bool = False
    hifi_counter: bool = False
    durable: DurableForm | None = None
    is_plain_as_stored: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_plain_as_stored", self.is_as_stored(0))

    def is_as_stored(self, kinds: int) -> bool:
        """Whether a block with these kinds can be sent as it is, except for the opaque."""
        if self.no_value or self.snappy in _COMPRESSING or (self.snappy == "none" and kinds & BlockKind.SNAPPY):
            return False
        return self.is_as_stored_but_for_bodies(kinds)

    def is_as_stored_but_for_bodies(self, kinds: int) -> bool:
        """As `is_as_stored`, if the documents' bodies and their compression are left aside."""
        if self.stream_id is not None or not self.collections or self.only_keys or self.lacks_high_keys:
            return False
        if not kinds and self.collection_ids is None:
            return True  # most blocks; the union of flags below would cost more than all checks before
        if kinds & (BlockKind.SYSTEM_EVENT | BlockKind.PREPARE) or (kinds & BlockKind.COMMIT and self.durable):
            return False  # some are left out, some get another value; they are rare
        if self.collection_ids is not None and (kinds & NOT_DEFAULT or self.collection_ids != _ONLY_DEFAULT):
            return False
        rewritten = BlockKind.PLAIN
        if self.skips_deletions:
            rewritten |= BlockKind.DELETION | BlockKind.EXPIRATION
        if not self.xattrs:
            rewritten |= BlockKind.XATTR
        if not self.delete_times:
            rewritten |= BlockKind.DELETION | BlockKind.EXPIRATION
        if not self.expiry_opcode:
            rewritten |= BlockKind.EXPIRATION
        if (self.packs_deletions or not self.user_xattrs_on_delete) and kinds & BlockKind.XATTR:
            rewritten |= BlockKind.DELETION | BlockKind.EXPIRATION
        return not kinds & rewritten

    def differs_by_prefix(self, kinds: int) -> bool:
        """Whether a block of the default collection, of these kinds, differs from this form by its prefixes only."""
        return (self.collection_ids is None or 0 in self.collection_ids) and replace(
            self, collections=True, collection_ids=None
        ).is_as_stored(kinds)


def rewritten(frame: memoryview, opaque: int, form: StreamForm) -> bytes | None:
    """One message in the stream's form; None if the stream does not get it."""
    _, opcode, key_length, extras_length, datatype, vbid, _, _, cas = HEADER.unpack_from(frame)
    key_at = HEADER_BYTES + extras_length
    extras = bytes(frame[HEADER_BYTES:key_at])
    key = bytes(frame[key_at : key_at + key_length])
    value = bytes(frame[key_at + key_length :])
    if opcode == Opcode.DCP_SYSTEM_EVENT:
        formed = _form_event(extras, key, value, form)
        if formed is None:
            return None
        extras, value = formed
    elif opcode in _DURABLE and not is_sent(opcode, extras, form.durable):
        return None
    else:
        if form.skips_deletions and opcode in _DELETIONS:
            return None
        collection_id, prefix_length = leb128_decode(key)
        if form.collection_ids is not None and collection_id not in form.collection_ids:
            return None
        if form.lacks_high_keys and key[prefix_length] == _HIGHEST_BYTE and len(key) > prefix_length + 1:
            return None
        if not form.collections:
            if collection_id:
                return None
            key = key[prefix_length:]
        of_commit = commit_extras(extras, form.durable) if opcode in _DOCUMENTS else None
        if of_commit is not None:
            opcode, extras, value, datatype, cas = Opcode.DCP_COMMIT, of_commit, b"", 0, 0
        elif opcode == Opcode.DCP_ABORT:
            extras = turned(extras)
        elif form.only_keys and opcode in _DOCUMENTS:
            opcode, extras, value, datatype, cas = Opcode.DCP_MUTATION, _extras_of_a_key(extras, form), b"", 0, 0
        else:
            is_deletion = opcode in _DELETIONS or (opcode == Opcode.DCP_PREPARE and bool(extras[_DELETED_AT]))
            value, datatype = _form_value(value, datatype, form, is_deletion=is_deletion)
            opcode, extras = _form_deletion(opcode, extras, form)
            if form.hifi_counter and opcode == Opcode.DCP_MUTATION and extras[-1] == COARSE_COUNTER:
                extras = extras[:-1] + bytes((EXACT_COUNTER,))
    magic, framing = Magic.REQUEST, b""
    key_field = len(key)
    if form.stream_id is not None:
        magic, framing = Magic.FLEX_REQUEST, b"\x22" + form.stream_id.to_bytes(2, "big")
        key_field |= len(framing) << 8
    body = len(framing) + len(extras) + len(key) + len(value)
    header = HEADER.pack(magic, opcode, key_field, len(extras), datatype, vbid, body, opaque, cas)
    return b"".join((header, framing, extras, key, value))


def _form_event(extras: bytes, key: bytes, value: bytes, form: StreamForm) -> tuple[bytes, bytes] | None:
    """Extras and value of a system event in the stream's form; None if the stream does not get it."""
    if not form.collections:
        return None
    event = read_event(extras, key, value)
    if event.event == SystemEventId.MODIFY_COLLECTION and not form.flatbuffer_events:
        return None
    if form.scope_id is not None:
        if event.scope_id != form.scope_id:
            return None
    elif form.hides_system:
        if event.is_hidden:
            return None
    elif form.collection_ids is not None and (event.is_of_scope or event.collection_id not in form.collection_ids):
        return None
    version, value = (VERSION_FLATBUFFERS, flatbuffer_of(event)) if form.flatbuffer_events else old_form_of(event)
    return extras[:-1] + bytes((version,)), value


def _extras_of_a_key(extras: bytes, form: StreamForm) -> bytes:
    """The extras of a new document with the seqno of this one."""
    by_seqno = int.from_bytes(extras[:_SEQNO_BYTES], "big")
    return Mutation.layout.extras.pack(by_seqno, 1, 0, 0, 0, 0, EXACT_COUNTER if form.hifi_counter else COARSE_COUNTER)


def _form_deletion(opcode: int, extras: bytes, form: StreamForm) -> tuple[int, bytes]:
    """Opcode and extras of a deletion or expiration in the stream's form."""
    if opcode not in _DELETIONS or (opcode == Opcode.DCP_EXPIRATION and form.expiry_opcode and form.delete_times):
        return opcode, extras
    by_seqno, rev_seqno, delete_time = Expiration.layout.extras.unpack_from(extras)
    if form.delete_times:
        return Opcode.DCP_DELETION, DeletionV2.layout.extras.pack(by_seqno, rev_seqno, delete_time, 0)
    return Opcode.DCP_DELETION, Deletion.layout.extras.pack(by_seqno, rev_seqno, 0)


def _form_value(value: bytes, datatype: int, form: StreamForm, *, is_deletion: bool) -> tuple[bytes, int]:
    """Value and datatype in the stream's form."""
    stored_datatype = datatype
    has_xattrs = bool(datatype & Datatype.XATTR)
    wants_parts = (
        form.no_value
        or (has_xattrs and not form.xattrs)
        or (is_deletion and has_xattrs and not form.user_xattrs_on_delete)
    )
    if datatype & Datatype.SNAPPY and (form.snappy == "none" or (wants_parts and (has_xattrs or form.no_value))):
        value = snappy_uncompress(value)
        datatype &= ~Datatype.SNAPPY
    if wants_parts:
        section, body = split_xattrs(value) if has_xattrs else (b"", value)
        if is_deletion and has_xattrs and not form.user_xattrs_on_delete:
            section = system_xattrs(section)
            datatype &= ~Datatype.JSON
        if not form.xattrs or not section:
            section = b""
            datatype &= ~Datatype.XATTR
        if form.no_value:
            body = b""
            datatype &= ~Datatype.JSON
        value = section + body
        if form.no_value and form.keep_datatype:
            return value, stored_datatype
    if form.packs_deletions and is_deletion and has_xattrs and not wants_parts and not datatype & Datatype.SNAPPY:
        return snappy_compress(value), datatype | Datatype.SNAPPY
    is_packed = form.snappy == "force" or (form.snappy == "active" and not wants_parts)
    if is_packed and value and not datatype & Datatype.SNAPPY:
        packed = snappy_compress(value)
        if len(packed) < len(value):
            return packed, datatype | Datatype.SNAPPY
    return value, datatype
