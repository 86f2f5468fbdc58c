"""From a request's key to the document's key in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.errors import FieldError
from dcpstream.model import VbucketState
from dcpstream.node.engine.commands import MAX_KEY_BYTES
from dcpstream.node.engine.documents import absolute_expiration
from dcpstream.wire import Datatype, Frame, Status, leb128_decode

if TYPE_CHECKING:
    from dcpstream.node.engine.session import Session
    from dcpstream.node.engine.vbucket import VBucket

MAX_KEY_BYTES_ELSEWHERE = 246
"""Longest logical key outside of the default collection."""
FIRST_RESERVED, LAST_RESERVED = 1, 7


def stored_key(session: Session, frame: Frame) -> bytes | None:
    """The key with its collection prefix; None if the request was refused."""
    assert session.bucket is not None, "the table asks for a bucket"
    known = session.bucket.collections
    if not session.has_collections:
        if len(frame.key) > MAX_KEY_BYTES:
            session.refuse(frame, Status.EINVAL, f"Key length exceeds {MAX_KEY_BYTES}")
            return None
        if 0 not in known:
            refuse_unknown(session, frame, Status.UNKNOWN_COLLECTION)
            return None
        return b"\0" + frame.key
    key = frame.key
    try:
        collection_id, prefix = leb128_decode(key)
    except FieldError as error:
        session.refuse(frame, Status.EINVAL, f"Invalid collection prefix: {error}")
        return None
    longest = MAX_KEY_BYTES if collection_id == 0 else MAX_KEY_BYTES_ELSEWHERE
    if not 0 < len(key) - prefix <= longest:
        session.refuse(frame, Status.EINVAL, f"Logical key must have 1 to {longest} bytes")
        return None
    if FIRST_RESERVED <= collection_id <= LAST_RESERVED:
        session.refuse(frame, Status.EINVAL, "Collection id is reserved")
        return None
    if collection_id not in known:
        refuse_unknown(session, frame, Status.UNKNOWN_COLLECTION)
        return None
    return key


def expiration_of(session: Session, key: bytes, expiration: int) -> int:
    """When a document that is written now expires: as asked for, but no later than collection or bucket allow."""
    assert session.bucket is not None, "the table asks for a bucket"
    collection = session.bucket.collections.get(leb128_decode(key)[0] if key[0] else 0)
    max_ttl = (0 if collection is None else collection.max_ttl) or session.bucket.settings.max_ttl
    return absolute_expiration(expiration, session.engine.unix_s, max_ttl)


def refuse_unknown(session: Session, frame: Frame, status: int) -> None:
    """UNKNOWN_COLLECTION or UNKNOWN_SCOPE, with the version of the manifest that does not have it."""
    session.refuse_unknown(frame, status)


def active_vbucket(session: Session, frame: Frame) -> VBucket | None:
    """The active vbucket of a request; None if the request was refused, or waits for a vbucket that is pending."""
    bucket = session.bucket
    assert bucket is not None, "the table asks for a bucket"
    if not bucket.takes_traffic:
        session.refuse(frame, Status.TMPFAIL, "Requests for documents are switched off")
        return None
    vbucket = bucket.vbucket(frame.vbid)
    if vbucket is not None and vbucket.is_active:
        return vbucket
    if vbucket is None or vbucket.state is not VbucketState.PENDING:
        not_my_vbucket(session, frame)
    elif bucket.wait_for_role(session, frame.vbid):
        session.wait(frame, lambda _: session.try_again(frame))
    else:
        session.refuse(frame, Status.TMPFAIL, "Too many requests wait already")
    return None


def not_my_vbucket(session: Session, frame: Frame) -> None:
    """NOT_MY_VBUCKET with the cluster configuration, sent once per version to clients that asked for that."""
    config = session.config_to_send()
    session.respond(
        frame, Status.NOT_MY_VBUCKET, datatype=Datatype.JSON if config and session.is_json else 0, value=config
    )
