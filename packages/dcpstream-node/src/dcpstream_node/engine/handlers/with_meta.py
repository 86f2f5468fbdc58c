"""Writes of versions from another cluster: SET, ADD and DELETE_WITH_META, each with its quiet form; RETURN_META.

A WITH_META request has the revision and the CAS of its version. The bucket's `conflict_resolution` says whether the
higher revision or the higher CAS wins. RETURN_META is a plain write whose answer has the new metadata. MUTATE_WITH_META
of 8.5 (`dcpstream_node.engine.handlers.mutate_with_meta`) is another form of the first three, and ends in `carry_out`.

Source: kv_engine docs/BinaryProtocol.md, engines/ep/src/ep_engine.cc (setWithMeta), conflict_resolution.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dcpstream.errors import FieldError
from dcpstream.model import ConflictResolution, VbucketState
from dcpstream.model.json_text import is_json
from dcpstream.wire import Datatype, Frame, Opcode, Status
from dcpstream.wire.messages import QUIET_FORMS, kv, loud_form
from dcpstream.wire.release import Rule
from dcpstream.wire.shape import Fault
from dcpstream.wire.stored.block import Version
from dcpstream.wire.values import decode_xattrs, snappy_uncompress, split_xattrs
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers.resolve import Place, expiration_of, max_ttl_of, refuse_locked
from dcpstream_node.engine.handlers.writes import conflict, is_kept_out, is_under_way, target, token_of
from dcpstream_node.engine.subdocument import SYSTEM_BYTES_MAX, system_bytes

if TYPE_CHECKING:
    from dcpstream_node.engine.session.session import Session
    from dcpstream_node.store import ItemMeta

_RETURNING = {1: Opcode.SET, 2: Opcode.ADD, 3: Opcode.DELETE}
FORCE, ACCEPT_TIMESTAMPS, REGENERATE_CAS, SKIP_RESOLUTION, IS_EXPIRATION = 0x01, 0x02, 0x04, 0x08, 0x10
"""Options; other bits are ignored."""
_STATES = frozenset((VbucketState.ACTIVE, VbucketState.REPLICA, VbucketState.PENDING))
"""States in which a vbucket accepts a forced write."""
_IMPOSSIBLE_CAS = (0, (1 << 64) - 1)

_EXTENDED_VERSION = 1
_EXTENDED_TYPES = frozenset((1, 2))
"""Adjusted time and conflict resolution mode; both are ignored."""


class Meta(NamedTuple):
    """The metadata of a version, as a request has them.

    Attributes:
        command: SET_WITH_META, ADD_WITH_META or DELETE_WITH_META.
        time: the expiration, or the time of a deletion.
        options: see `FORCE` and the following.
        meta_bytes: length of the further metadata at the end of the value.
    """

    command: int
    flags: int
    time: int
    rev_seqno: int
    cas: int
    options: int = 0
    meta_bytes: int = 0

    @property
    def checks_conflicts(self) -> bool:
        """Whether the version must win over the present one."""
        return not self.options & (SKIP_RESOLUTION | FORCE)

    @property
    def is_deletion(self) -> bool:
        """Whether the version is a deletion."""
        return self.command == Opcode.DELETE_WITH_META

    def fits(self, *, is_by_time: bool) -> bool:
        """Whether the options contradict neither each other nor the bucket's conflict resolution.

        In a bucket that resolves conflicts by time, the request must accept timestamps or let the node choose the CAS.
        """
        options = self.options
        return not (
            (options & ACCEPT_TIMESTAMPS and not is_by_time)
            or (is_by_time and not options & (ACCEPT_TIMESTAMPS | REGENERATE_CAS))
            or (options & REGENERATE_CAS and self.checks_conflicts)
        )


class Content(NamedTuple):
    """The value to store.

    Attributes:
        cas_offsets, seqno_offsets: where the version's own CAS and seqno are written into the value.
    """

    value: bytes
    datatype: int
    cas_offsets: Sequence[int] = ()
    seqno_offsets: Sequence[int] = ()

    def value_of(self, cas: int, seqno: int) -> bytes:
        """The value of the version with this CAS and seqno."""
        if not self.cas_offsets and not self.seqno_offsets:
            return self.value
        value = bytearray(self.value)
        # As in the macros of sub-documents, the CAS is in the byte order of the wire.
        swapped = int.from_bytes(cas.to_bytes(8, "big"), "little")
        for number, offsets in ((swapped, self.cas_offsets), (seqno, self.seqno_offsets)):
            for offset in offsets:
                value[offset : offset + HEX_TEXT_BYTES] = hex_text(number)
        return bytes(value)


HEX_TEXT_BYTES = 18
"""Length of a `hex_text`."""


def hex_text(number: int) -> bytes:
    """A number of 64 bits as it is written into a value."""
    return b"0x%016x" % number


def is_by_time(session: Session) -> bool:
    """Whether the selected bucket resolves conflicts by time."""
    return session.selected.settings.conflict_resolution is ConflictResolution.LWW


def write(session: Session, frame: Frame) -> None:
    """SET_WITH_META, ADD_WITH_META, DELETE_WITH_META: write a version if it wins over the present one."""
    if session.is_degraded:
        session.refuse(frame, Status.TMPFAIL)
        return
    flags, time, rev_seqno, cas, options, meta_bytes = kv.SetWithMeta.unpack(frame)
    meta = Meta(int(loud_form(frame.opcode)), flags, time, rev_seqno, cas, options or 0, meta_bytes or 0)
    if not meta.fits(is_by_time=is_by_time(session)):
        session.refuse(frame, Status.EINVAL)
        return
    content = _content(session, frame, meta)
    if content is not None:
        carry_out(session, frame, meta, content)


def carry_out(session: Session, frame: Frame, meta: Meta, content: Content) -> None:
    """Write a version if it wins over the present one, and answer."""
    reaches_copies = meta.options & FORCE and session.engine.release.has(Rule.FORCED_META_REACHES_COPIES)
    found = target(session, frame, states=_STATES if reaches_copies else None)
    if found is None:
        return
    vbucket, key = found
    if meta.cas in _IMPOSSIBLE_CAS:
        has_name = session.engine.release.has(Rule.WITH_META_NAMES_BAD_CAS)
        session.refuse(frame, Status.CAS_VALUE_INVALID if has_name else Status.KEY_EEXISTS)
        return
    if not meta.is_deletion:
        time = documents.limited_expiration(meta.time, session.engine.unix_s, max_ttl_of(session, key))
        meta = meta._replace(time=time)
    old = vbucket.log.meta(key)  # even if the document has expired
    prepared = documents.prepared_meta(vbucket, key)
    if prepared is not None:
        is_won = not meta.checks_conflicts or _wins(meta, content, prepared, is_by_time=is_by_time(session))
        session.refuse(frame, Status.SYNC_WRITE_IN_PROGRESS if is_won else Status.KEY_EEXISTS)
        return
    is_bare = meta.is_deletion and not content.value
    kept = documents.remains(vbucket, key, old)[0] if is_bare and old is not None else b""
    status = _status(session, frame, meta, content, old, found, is_pruned=bool(kept))
    if status == Status.LOCKED and is_bare:
        refuse_locked(session, frame)
        return
    if status:
        session.refuse(frame, status)
        return
    _store(session, frame, meta, content._replace(value=kept, datatype=int(Datatype.XATTR)) if kept else content, found)


def _store(session: Session, frame: Frame, meta: Meta, content: Content, place: Place) -> None:
    vbucket, key = place
    unix_ns = session.engine.unix_ns
    is_deletion = meta.is_deletion
    time = meta.time or (unix_ns // 1_000_000_000 if is_deletion else 0)
    cas = vbucket.next_cas(unix_ns) if meta.options & REGENERATE_CAS else meta.cas
    value = content.value_of(cas, vbucket.log.high_seqno + 1)
    result = documents.store_version(
        vbucket,
        Version(key, value, meta.rev_seqno, content.datatype, meta.flags, time),
        cas=cas,
        is_deleted=is_deletion,
        # Like the server, a tombstone with attributes does not keep that it is an expiration's.
        is_expiration=bool(is_deletion and meta.options & IS_EXPIRATION and not content.value),
    )
    if is_deletion:
        vbucket.note_deletion(key, result.seqno, meta.time, unix_ns)
    session.changed(vbucket)
    if frame.opcode not in QUIET_FORMS:
        has_stored = is_deletion or session.engine.release.has(Rule.WITH_META_RETURNS_STORED_CAS)
        cas = result.cas if has_stored else meta.cas
        session.respond(frame, cas=cas, extras=token_of(session, vbucket, result))


def _is_sound_extension(data: bytes) -> bool:
    """Whether further metadata is a version and fields of known types."""
    if data[:1] != bytes((_EXTENDED_VERSION,)):
        return not data
    at = 1
    while at < len(data):
        if at + kv.MetaField.size > len(data):
            return False
        kind, length = kv.MetaField.struct.unpack_from(data, at)
        at += kv.MetaField.size + length
        if kind not in _EXTENDED_TYPES or at > len(data):
            return False
    return True


def _content(session: Session, frame: Frame, meta: Meta) -> Content | None:
    """The value to store, or None if the request was refused."""
    if meta.meta_bytes > len(frame.value):
        session.refuse(frame, Status.EINVAL, "Invalid extended metadata")
        return None
    sent, extension = frame.value, b""
    if meta.meta_bytes:
        sent, extension = frame.value[: -meta.meta_bytes], frame.value[-meta.meta_bytes :]
    datatype, value = frame.datatype, sent
    if meta.meta_bytes and datatype & Datatype.SNAPPY:
        try:
            value = snappy_uncompress(sent)
        except FieldError:
            session.refuse(frame, Status.EINVAL, "Failed to inflate document")
            return None
    elif datatype & Datatype.SNAPPY:
        value = session.payload
    if meta.is_deletion:
        section, body = split_xattrs(value) if datatype & Datatype.XATTR and value else (b"", value)
        if body and not session.selected.parameters.strips_deletions:
            why = "It is only possible to specify Xattrs as a value to DeleteWithMeta"
            session.refuse(frame, Status.EINVAL, why)
            return None
        sent = value = section
        datatype = int(Datatype.XATTR)
    if not _is_sound_extension(extension):
        session.refuse(frame, Status.EINVAL, "Invalid extended metadata")
        return None
    if not value:
        return Content(b"", 0)
    return checked(session, frame, sent, value, datatype)


def checked(session: Session, frame: Frame, sent: bytes, value: bytes, datatype: int) -> Content | None:
    """The value to store, or None if it was refused as too large; `sent` as received, `value` inflated."""
    if datatype & Datatype.SNAPPY and (not session.selected.keeps_compressed or len(value) < len(sent)):
        sent, datatype = value, datatype & ~Datatype.SNAPPY
    system = system_bytes(decode_xattrs(value)[0]) if datatype & Datatype.XATTR else 0
    if system > SYSTEM_BYTES_MAX:
        why = f"System XATTR ({system}) exceeds the max limit for system xattrs: {SYSTEM_BYTES_MAX}"
        session.refuse(frame, Status.EINVAL, why)
        return None
    if len(value) - system > documents.MAX_VALUE_BYTES:
        session.refuse(frame, Status.E2BIG)
        return None
    looks_always = session.engine.release.has(Rule.WITH_META_LOOKS_FOR_JSON)
    if looks_always:
        datatype &= ~Datatype.JSON
    if looks_always or not session.is_json:
        body = split_xattrs(value)[1] if datatype & Datatype.XATTR else value
        datatype |= Datatype.JSON if is_json(body) else 0
    return Content(sent, int(datatype))


def _status(
    session: Session,
    frame: Frame,
    new: Meta,
    content: Content,
    old: ItemMeta | None,
    place: Place,
    *,
    is_pruned: bool,
) -> int:
    """The status that forbids the write, or 0, in the server's order: conflict, existence, lock, CAS.

    Args:
        is_pruned: whether this is a deletion without a value of a document with system attributes; the server then
            checked neither lock nor CAS until 7.6.
    """
    exists = old is not None and not old.is_deleted
    if old is not None and new.checks_conflicts and not _wins(new, content, old, is_by_time=is_by_time(session)):
        return Status.KEY_EEXISTS
    if is_pruned and not session.engine.release.has(Rule.PRUNED_DELETIONS_HEED_LOCKS):
        return Status.SUCCESS
    if new.command == Opcode.ADD_WITH_META and exists:
        return Status.KEY_EEXISTS
    if is_kept_out(session, frame, *place):
        return Status.LOCKED
    lock = documents.lock_of(*place, session.engine.unix_ns)
    if not frame.cas or lock is not None:
        return Status.SUCCESS
    is_soft = new.is_deletion and not content.value
    if old is None:
        if is_soft:
            return Status.KEY_EEXISTS if new.checks_conflicts else Status.SUCCESS
        return Status.KEY_ENOENT
    if frame.cas == old.cas:
        return Status.SUCCESS
    return Status.KEY_ENOENT if old.is_deleted and not new.is_deletion else Status.KEY_EEXISTS


def _wins(new: Meta, content: Content, old: ItemMeta, *, is_by_time: bool) -> bool:
    """Whether the new version wins over the old one."""
    mine, theirs = (new.rev_seqno, new.cas), (old.rev_seqno, old.cas)
    if is_by_time:
        mine, theirs = mine[::-1], theirs[::-1]
    if new.is_deletion:
        return mine > theirs
    time = old.delete_time if old.is_deleted else old.expiration
    ours = (*mine, new.time, _swapped(new.flags))
    others = (*theirs, time, _swapped(old.flags))
    if ours != others:
        return ours > others
    return bool(content.datatype & Datatype.XATTR and not old.datatype & Datatype.XATTR)


def _swapped(flags: int) -> int:
    """Flags as the server compares them: in network byte order, on little-endian machines."""
    return int.from_bytes(flags.to_bytes(4, "big"), "little")


def _check_extras(_session: Session, frame: Frame) -> Fault | None:
    is_sound = len(frame.extras) in kv.SetWithMeta.layout.extras_lengths
    return None if is_sound else Fault(Status.EINVAL, "Request extras invalid")


def _check_return_meta(_session: Session, frame: Frame) -> Fault | None:
    mode, _, _ = kv.ReturnMeta.unpack(frame)
    return None if mode in _RETURNING else Fault(Status.EINVAL, "Invalid mode")


def return_meta(session: Session, frame: Frame) -> None:
    """RETURN_META: SET, ADD or DELETE whose answer has the document's new flags, expiration and revision.

    Unlike the plain commands it also replaces the document's attributes, and accepts no datatype. An addition may not
    have a CAS. Until 7.2 the node, like the server, looks for JSON on behalf of clients without that datatype only.
    """
    if session.is_degraded:
        session.refuse(frame, Status.TMPFAIL)
        return
    mode, flags, expiration = kv.ReturnMeta.unpack(frame)
    found = target(session, frame)
    if found is None:
        return
    vbucket, key = found
    if is_under_way(session, frame, vbucket, key):
        return
    engine = session.engine
    opcode = _RETURNING[mode]
    old = documents.live_meta(vbucket, key, engine.unix_ns)
    is_there = old is not None and not old.is_deleted
    status = conflict(opcode, frame.cas, old)
    if opcode == Opcode.ADD and (status or frame.cas):
        status = Status.NOT_STORED
    elif is_there and opcode != Opcode.ADD and is_kept_out(session, frame, vbucket, key):
        status = Status.LOCKED
    elif not status and len(frame.value) > documents.MAX_VALUE_BYTES:
        status = Status.E2BIG
    if status:
        session.changed(vbucket)
        if status == Status.LOCKED and opcode == Opcode.DELETE:
            refuse_locked(session, frame)
        else:
            session.refuse(frame, status)
        return
    if opcode == Opcode.DELETE:
        assert old is not None, "conflict() found the document"
        result = documents.delete(vbucket, key, old, engine.unix_ns, keeps_system=False)
        fields, shown = (old.flags, old.expiration, old.rev_seqno + 1), 0
    else:
        looks_always = engine.release.has(Rule.WITH_META_LOOKS_FOR_JSON)
        has_json = (looks_always or not session.is_json) and is_json(frame.value)
        datatype, time = int(Datatype.JSON) if has_json else 0, expiration_of(session, key, expiration)
        shown = datatype if looks_always and session.is_json else 0
        version = Version(key, frame.value, documents.next_rev(vbucket, old), datatype, flags, time)
        result = documents.store(vbucket, version, engine.unix_ns)
        new = vbucket.log.meta(key)
        assert new is not None, "it was just written"
        fields = new.flags, new.expiration, new.rev_seqno
    session.changed(vbucket)
    session.reply(frame, kv.ReturnMetaResponse, *fields, cas=result.cas, datatype=shown)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    writing = (Opcode.SET_WITH_META, Opcode.ADD_WITH_META, Opcode.DELETE_WITH_META)
    table.add(writing, write, check=_check_extras, own_extras=True)
    table.add(Opcode.RETURN_META, return_meta, check=_check_return_meta)
