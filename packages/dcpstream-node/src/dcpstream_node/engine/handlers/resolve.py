"""Resolution of what a request names: vbucket, collection, key and expiration; or its refusal."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

from dcpstream.model import VbucketState
from dcpstream.wire import Feature, Frame, Status
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.layout import Group
from dcpstream.wire.messages import opcodes_of
from dcpstream.wire.release import Rule
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.bucket.documents import absolute_expiration, collection_of
from dcpstream_node.engine.bucket.vbucket import VBucket

if TYPE_CHECKING:
    from dcpstream_node.engine.session.session import Session
    from dcpstream_node.store import ItemMeta, StoredItem


_PLAIN_ABOUT_VBUCKETS = opcodes_of(Group.PLAIN_PLACE)
"""Commands that are answered NOT_MY_VBUCKET even while the bucket takes no traffic."""


def stored_key(session: Session, frame: Frame) -> bytes | None:
    """The request's well-formed key with its collection prefix, or None if the request was refused."""
    key = frame.key if session.has_collections else b"\0" + frame.key
    if leb128_decode(key)[0] in session.selected.collections:
        return key
    session.refuse_unknown(frame, Status.UNKNOWN_COLLECTION)
    return None


def may_in(session: Session, frame: Frame, privilege: str, collection_id: int) -> bool:
    """Refuse the request if the user lacks a privilege in a collection that it names outside its key."""
    refusal = session.refusal_in(privilege, collection_id)
    if refusal is not None:
        session.refuse_access(frame, refusal)
    return refusal is None


def expiration_of(session: Session, key: bytes, expiration: int) -> int:
    """The expiration of a document that is written now, limited by its collection or bucket."""
    engine = session.engine
    return absolute_expiration(expiration, engine.unix_s, max_ttl_of(session, key), started_s=engine.started_s)


def max_ttl_of(session: Session, key: bytes) -> int:
    """The longest life of a document in seconds: its collection's limit, else the bucket's; 0 for no limit."""
    collection = session.selected.collections.get(collection_of(key))
    max_ttl = (0 if collection is None else collection.max_ttl) or session.selected.settings.max_ttl
    return max(0, max_ttl)


def shown_delete_time(session: Session, vbucket: VBucket, key: bytes, item: ItemMeta | StoredItem) -> int:
    """The time that answers show for a tombstone: that of the deletion once persisted, until then the document's."""
    return vbucket.shown_delete_time(key, item.seqno, item.delete_time, session.engine.unix_ns)


def active_vbucket(session: Session, frame: Frame, *, states: frozenset[VbucketState] | None = None) -> VBucket | None:
    """The active vbucket of a request, or None if the request was refused or waits for a pending vbucket.

    Args:
        states: the allowed states of the vbucket; None for active only.
    """
    bucket = session.selected
    vbucket = bucket.vbucket(frame.vbid)
    if vbucket is not None and (vbucket.is_active if states is None else vbucket.state in states):
        return vbucket
    if vbucket is None or vbucket.state is not VbucketState.PENDING:
        is_plain = frame.opcode in _PLAIN_ABOUT_VBUCKETS or session.engine.release.has(Rule.DEGRADED_NAMES_VBUCKETS)
        if session.is_degraded and not is_plain:
            session.refuse(frame, Status.TMPFAIL)
        else:
            session.refuse_vbucket(frame)
    elif bucket.wait_for_role(session, frame.vbid):
        session.wait(frame, lambda _: session.try_again(frame))
    else:
        session.refuse(frame, Status.TMPFAIL, "Too many requests wait already")
    return None


Place = tuple[VBucket, bytes]
"""A vbucket and a key with its collection prefix."""


def active_place(session: Session, frame: Frame, *, states: frozenset[VbucketState] | None = None) -> Place | None:
    """The active vbucket and the key with its collection prefix; see `active_vbucket`."""
    vbucket = active_vbucket(session, frame, states=states)
    key = stored_key(session, frame) if vbucket is not None else None
    return None if vbucket is None or key is None else (vbucket, key)


def readable_place(session: Session, frame: Frame, *, states: frozenset[VbucketState] | None = None) -> Place | None:
    """Like `active_place`; also refuses to read a document whose durable write is being committed again."""
    place = active_place(session, frame, states=states)
    if place is None:
        return None
    vbucket, key = place
    return None if refuse_recommit(session, frame, vbucket, key) else place


def at_place(
    find: Callable[[Session, Frame], Place | None], handler: Callable[[Session, Frame, VBucket, bytes], None]
) -> Callable[[Session, Frame], None]:
    """The handler of a request about one document, which `find` resolves or refuses.

    It has the name and the docstring of `handler`, from which the reference pages are made.
    """

    @wraps(handler)
    def run(session: Session, frame: Frame) -> None:
        place = find(session, frame)
        if place is not None:
            vbucket, key = place  # cheaper than a call with a starred tuple
            handler(session, frame, vbucket, key)

    return run


def refuse_locked(session: Session, frame: Frame) -> None:
    """Answer LOCKED, or TMPFAIL to a client that did not negotiate XERROR; the client may retry.

    Writes that compare CAS values answer such a client KEY_EEXISTS instead: `Session.refuse` does that for LOCKED.
    """
    session.refuse(frame, Status.LOCKED if Feature.XERROR in session.features else Status.TMPFAIL)


def refuse_recommit(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> bool:
    """Refuse to read a document whose durable write is being committed again; False if there is none.

    A vbucket that was taken over may hold a prepare that its former node had already committed and shown.
    """
    if not documents.is_recommitted(vbucket, key):
        return False
    session.refuse(frame, Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS)
    return True


def holds_token(session: Session, frame: Frame) -> bool:
    """Refuse an administrator's request whose CAS is neither 0 nor the node's control token."""
    if frame.cas in (0, session.engine.control_token):
        return True
    session.refuse(frame, Status.KEY_EEXISTS)
    return False
