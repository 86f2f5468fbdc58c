"""The sub-document commands: one path (SUBDOC_GET to SUBDOC_REPLACE_BODY_WITH_XATTR) or up to 16 (MULTI).

This module fetches and stores documents; the package `subdocument` looks up and changes their parts.

Source: kv_engine docs/SubDocument.md, daemon/subdocument.cc; answers as recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.model import VbucketState
from dcpstream.wire import Datatype, Feature, Frame, FrameInfoId, Opcode, Status
from dcpstream.wire.messages import subdoc
from dcpstream.wire.release import Rule
from dcpstream.wire.shape import Fault
from dcpstream.wire.stored.block import Version
from dcpstream.wire.values import is_system_xattr
from dcpstream_node.engine.access.permission import Refusal
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.bucket.locks import HIDDEN_CAS
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers.resolve import (
    active_vbucket,
    at_place,
    expiration_of,
    refuse_locked,
    refuse_recommit,
    shown_delete_time,
    stored_key,
)
from dcpstream_node.engine.handlers.writes import Answer, is_kept_out, put, read_target
from dcpstream_node.engine.subdocument import (
    COMMANDS,
    KINDS,
    SYSTEM_BYTES_MAX,
    DocFlag,
    Document,
    Origin,
    Outcome,
    RefusedError,
    Request,
    execute,
    read_request,
    system_bytes,
    template,
)

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.session.session import Session
    from dcpstream_node.store import StoredItem


def _check(session: Session, frame: Frame) -> Fault | None:
    """Parse the request and leave it in `session.parsed`; or the fault."""
    try:
        session.parsed = read_request(
            frame.opcode,
            frame.extras,
            frame.value,
            cas=frame.cas,
            has_xattrs=Feature.XATTR in session.features,
            release=session.engine.release,
        )
    except RefusedError as error:
        return Fault(error.status, error.context)
    return None


def _request(session: Session) -> Request:
    """The request that `_check` parsed."""
    assert isinstance(session.parsed, Request), "_check runs before the handler"
    return session.parsed


def _refused_by_lock(session: Session, frame: Frame, vbucket: VBucket, key: bytes, item: StoredItem | None) -> bool:
    """Refuse a request without a CAS while the document is locked; False if it was not refused.

    Like in the server, a lookup with any other CAS succeeds, and a change with a wrong CAS is refused when stored.
    """
    is_refused = (
        item is not None
        and not item.is_deleted
        and frame.cas in (0, HIDDEN_CAS)
        and documents.lock_of(vbucket, key, session.engine.unix_ns) is not None
    )
    if is_refused:
        refuse_locked(session, frame)
    return is_refused


# -------------------------------------------------------------------------------------------------------- documents


def _fetch(session: Session, vbucket: VBucket, key: bytes, flags: DocFlag) -> StoredItem | None:
    """The document, or its tombstone if the flags allow it; None if there is neither."""
    if vbucket.is_active:
        before = vbucket.high_seqno
        documents.live_meta(vbucket, key, session.engine.unix_ns)
        if vbucket.high_seqno != before:
            session.changed(vbucket)
    item = vbucket.log.get(key)
    if item is None or (item.is_deleted and not flags & DocFlag.ACCESS_DELETED):
        return None
    return item


def _readable_vbucket(session: Session, frame: Frame, flags: DocFlag) -> VBucket | None:
    """The active vbucket of a lookup, or a replica if the flags ask for it; None if the request was refused."""
    if not flags & DocFlag.REPLICA_READ:
        return active_vbucket(session, frame)
    vbucket = session.selected.vbucket(frame.vbid)
    if vbucket is None or vbucket.state != VbucketState.REPLICA:
        session.refuse_vbucket(frame)
        return None
    return vbucket


def _refused_by_access(
    session: Session, frame: Frame, request: Request, outcome: Outcome, refusal: Refusal | None
) -> bool:
    """Refuse a whole request that names system attributes without the right to them; False if it was not refused.

    A request with several paths fails path by path instead, if the client negotiated XERROR.
    """
    if refusal is None or all(status != Status.EACCESS for status, _ in outcome.results):
        return False
    if request.is_multi and Feature.XERROR in session.features:
        return False
    may_close = not session.engine.release.has(Rule.SUBDOC_DENIES_ALOUD)
    session.refuse_access(frame, Refusal(Status.EACCESS, refusal.privilege), may_close=may_close)
    return True


def _origin(session: Session, vbucket: VBucket, item: StoredItem | None, document: Document) -> Origin:
    """The document as virtual attributes and macros show it."""
    unix_ns = session.engine.unix_ns
    now_s, is_clock_behind = unix_ns // 10**9, vbucket.max_cas > unix_ns
    if item is None:
        return Origin(vbuuid=vbucket.vbuuid, body=document.body, now_s=now_s, is_clock_behind=is_clock_behind)
    may_see_all = session.refusal_in("SystemXattrRead", documents.collection_of(item.key)) is None
    expiration = item.expiration
    if item.is_deleted:
        expiration = shown_delete_time(session, vbucket, item.key, item)
    return Origin(
        cas=item.cas,
        vbuuid=vbucket.vbuuid,
        seqno=item.seqno,
        rev_seqno=item.rev_seqno,
        expiration=expiration,
        flags=item.flags,
        datatype=item.datatype,
        is_deleted=item.is_deleted,
        names=tuple(name for name in document.xattrs if may_see_all or not is_system_xattr(name)),
        body=document.body,
        now_s=now_s,
        is_clock_behind=is_clock_behind,
    )


def _pieces(item: StoredItem) -> Document:
    return Document.of(documents.plain_value(item.value, item.datatype), item.datatype)


# ----------------------------------------------------------------------------------------------------------- lookups


def look_up(session: Session, frame: Frame) -> None:
    """SUBDOC lookups: read parts of a document's body and attributes."""
    request = _request(session)
    vbucket = _readable_vbucket(session, frame, request.flags)
    key = stored_key(session, frame) if vbucket is not None else None
    if vbucket is None or key is None:
        return
    if vbucket.is_active and refuse_recommit(session, frame, vbucket, key):
        return
    item = _fetch(session, vbucket, key, request.flags)
    reads_locked = session.engine.release.has(Rule.SUBDOC_READS_LOCKED)
    if not reads_locked and _refused_by_lock(session, frame, vbucket, key, item):
        return
    is_locked = item is not None and documents.lock_of(vbucket, key, session.engine.unix_ns) is not None
    status = Status.SUCCESS
    if item is None:
        status = Status.TMPFAIL if session.is_degraded else Status.KEY_ENOENT
    elif frame.cas and frame.cas != item.cas and not is_locked:
        status = Status.KEY_EEXISTS
    elif request.flags & DocFlag.REVIVE and not item.is_deleted:
        status = Status.SUBDOC_CAN_ONLY_REVIVE_DELETED
    if item is None or status:
        session.respond(frame, status)
        return
    cas = HIDDEN_CAS if is_locked and reads_locked else frame.cas or item.cas
    document = _pieces(item)
    origin = _origin(session, vbucket, item._replace(cas=HIDDEN_CAS) if is_locked else item, document)
    refusal = session.refusal_in("SystemXattrRead", documents.collection_of(key))
    outcome = execute(request, document, origin, may_use_system=refusal is None)
    if _refused_by_access(session, frame, request, outcome, refusal):
        return
    # Like the server, a request with one path is answered as if the document were revived.
    is_deleted = item.is_deleted and not (request.flags & DocFlag.REVIVE and not request.is_multi)
    if request.is_multi:
        _answer_multi_lookup(session, frame, outcome, cas, is_deleted=is_deleted)
    else:
        _answer_lookup(session, frame, request, outcome, cas, is_deleted=is_deleted)


def _answer_multi_lookup(session: Session, frame: Frame, outcome: Outcome, cas: int, *, is_deleted: bool) -> None:
    pack = subdoc.LookupResult.struct.pack
    value = b"".join(pack(status, len(found)) + found for status, found in outcome.results)
    if outcome.failure is not None:
        status = Status.SUBDOC_MULTI_FAILURE_DELETED if is_deleted else Status.SUBDOC_MULTI_FAILURE
    else:
        status = Status.SUBDOC_SUCCESS_DELETED if is_deleted else Status.SUCCESS
    session.reply(frame, subdoc.SubdocMultiLookupResponse, status=status, cas=cas, value=value)


def _answer_lookup(
    session: Session, frame: Frame, request: Request, outcome: Outcome, cas: int, *, is_deleted: bool
) -> None:
    status, value = outcome.results[0]
    if status:
        session.refuse(frame, status)
        return
    spec = request.specs[0]
    is_json = spec.kind.has_result and not spec.has_bytes
    session.respond(
        frame,
        Status.SUBDOC_SUCCESS_DELETED if is_deleted else Status.SUCCESS,
        cas=cas,
        datatype=Datatype.JSON if is_json and session.is_json else 0,
        value=value,
    )


# --------------------------------------------------------------------------------------------------------- mutations


def mutate(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """SUBDOC changes: change parts of a document, all of them or none."""
    request = _request(session)
    item = _fetch(session, vbucket, key, request.flags)
    if not request.flags & DocFlag.ADD and _refused_by_lock(session, frame, vbucket, key, item):
        return
    is_locked = item is not None and documents.lock_of(vbucket, key, session.engine.unix_ns) is not None
    is_tombstone = item.is_deleted if item is not None else bool(request.flags & DocFlag.CREATE_AS_DELETED)
    status = _conflict(request, 0 if is_locked else frame.cas, item, is_tombstone=is_tombstone)
    if item is None and session.is_degraded:
        status = Status.TMPFAIL
    if status:
        session.respond(frame, status)
        return
    document = template(request) if item is None else _pieces(item)
    origin = _origin(session, vbucket, item._replace(cas=HIDDEN_CAS) if item and is_locked else item, document)
    refusal = session.refusal_in("SystemXattrWrite", documents.collection_of(key))
    outcome = execute(request, document, origin, may_use_system=refusal is None)
    if _refused_by_access(session, frame, request, outcome, refusal):
        return
    if not session.engine.release.has(Rule.SUBDOC_DROPS_SHORT_NAMES) and _drops_short_name(request, outcome):
        session.refuse(frame, Status.ENOMEM)
        return
    failure = outcome.failure
    if failure is not None:
        if request.is_multi:
            session.reply(frame, subdoc.SubdocMultiMutationFailure, *failure, status=Status.SUBDOC_MULTI_FAILURE)
        else:
            session.refuse(frame, failure[1])
        return
    if session.engine.release.has(Rule.SUBDOC_SORTS_XATTRS) and any(spec.is_xattr for spec in request.specs):
        outcome.document.xattrs = dict(sorted(outcome.document.xattrs.items()))
    _store(session, frame, request, vbucket, key, item, outcome, is_tombstone=is_tombstone)


def _drops_short_name(request: Request, outcome: Outcome) -> bool:
    """Whether a request takes away an attribute whose name is one character long.

    Release 7.2 cannot do that: it takes the empty rest for the attribute's new value, and fails to copy it.
    """
    return any(
        not status and spec.opcode == Opcode.SUBDOC_DELETE and spec.is_xattr and len(spec.path) == 1
        for spec, (status, _) in zip(request.specs, outcome.results, strict=False)
    )


def _conflict(request: Request, cas: int, item: StoredItem | None, *, is_tombstone: bool) -> int:
    """The status that forbids a change, or 0; `item` is the fetched document."""
    if item is None:
        if not request.flags & (DocFlag.MKDOC | DocFlag.ADD):
            return Status.KEY_ENOENT
    elif request.flags & DocFlag.ADD or (cas and cas != item.cas):
        return Status.KEY_EEXISTS
    if request.flags & DocFlag.REVIVE and not is_tombstone:
        return Status.SUBDOC_CAN_ONLY_REVIVE_DELETED
    return Status.SUCCESS


def _store(
    session: Session,
    frame: Frame,
    request: Request,
    vbucket: VBucket,
    key: bytes,
    item: StoredItem | None,
    outcome: Outcome,
    *,
    is_tombstone: bool,
) -> None:
    """Store the outcome of a change, and answer."""
    document, engine = outcome.document, session.engine
    stays_deleted = is_tombstone and not request.flags & DocFlag.REVIVE
    had_xattrs = item is not None and bool(item.datatype & Datatype.XATTR)
    has_lost_xattrs = not document.xattrs and (had_xattrs or any(spec.is_xattr for spec in request.specs))
    if stays_deleted and outcome.deletes and has_lost_xattrs:
        # The server cannot delete a tombstone again; one without attributes it writes again.
        session.respond(frame, Status.KEY_ENOENT)
        return
    if stays_deleted and document.body:
        session.refuse(frame, Status.SUBDOC_DELETED_CANT_HAVE_VALUE, "A deleted document can't have a value")
        return
    value = outcome.value(vbucket.coming_cas(engine.unix_ns), vbucket.high_seqno + 1)
    system = system_bytes(document.xattrs)
    if system > SYSTEM_BYTES_MAX or len(value) - system > documents.MAX_VALUE_BYTES:
        session.respond(frame, Status.E2BIG)
        return
    if session.is_degraded or is_kept_out(session, frame, vbucket, key):
        session.refuse(frame, Status.TMPFAIL if session.is_degraded else Status.LOCKED)
        return
    if item is None and is_tombstone and vbucket.log.meta(key) is not None:
        # The request may not access the present tombstone and cannot create it again. With Mkdoc the server retries a
        # hundred times and gives up.
        session.respond(frame, Status.NOT_STORED if request.flags & DocFlag.ADD else Status.TMPFAIL)
        return
    pack = subdoc.MutationResult.struct.pack
    results = b"".join(
        pack(index, status, len(result)) + result for index, (status, result) in enumerate(outcome.results) if result
    )
    has_json = not request.is_multi and request.specs[0].kind.has_result
    is_deleted = stays_deleted or outcome.deletes
    flags = 0 if item is None else item.flags
    if request.user_flags is not None:
        flags = request.user_flags
    # Like the server: a document that sub-document commands create begins at 1, also where a SET would begin above the
    # revisions of tombstones, because they look for a tombstone first and remember that there is none.
    present = vbucket.log.meta(key)
    rev_seqno = 1 if present is None else present.rev_seqno + 1
    time = engine.unix_s if is_deleted else _expiration(session, request, key, item)
    put(
        session,
        frame,
        vbucket,
        Version(key, value, rev_seqno, document.datatype, flags, time),
        Answer(
            results if request.is_multi else outcome.results[0][1],
            Datatype.JSON if session.is_json and has_json else 0,
            Status.SUBDOC_SUCCESS_DELETED if stays_deleted else Status.SUCCESS,
        ),
        is_deleted=is_deleted,
        fresh_time=item.expiration if item is not None and outcome.deletes and not document.xattrs else 0,
    )


def _expiration(session: Session, request: Request, key: bytes, item: StoredItem | None) -> int:
    """The expiration of the changed document: the request's (0 if left out), or the old one with PRESERVE_TTL."""
    if item is not None and not item.is_deleted and FrameInfoId.PRESERVE_TTL in session.frame_infos:
        return item.expiration
    return expiration_of(session, key, request.expiration)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    changes = [opcode for opcode in COMMANDS if KINDS[opcode].is_mutation]
    lookups = [opcode for opcode in COMMANDS if not KINDS[opcode].is_mutation]
    changing = at_place(read_target, mutate)
    table.add((*changes, Opcode.SUBDOC_MULTI_MUTATION), changing, check=_check, own_extras=True)
    table.add((*lookups, Opcode.SUBDOC_MULTI_LOOKUP), look_up, check=_check, own_extras=True)
