"""Commands about scopes and collections: the manifest, and the ids of names.

Source: kv_engine docs/Collections.md.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dcpstream.wire import Datatype, Frame, Opcode, Status
from dcpstream.wire.messages import kv
from dcpstream.wire.release import Rule
from dcpstream.wire.shape import Fault
from dcpstream_node.engine.access.permission import visible_manifest, without_system
from dcpstream_node.engine.bucket.manifest import CannotApplyError, ManifestError, check_step, read_manifest
from dcpstream_node.engine.bucket.places import collection_at, names_in, scope_at
from dcpstream_node.engine.commands import CommandTable

if TYPE_CHECKING:
    from dcpstream.model import Collection, Manifest, Scope
    from dcpstream_node.engine.session.session import Session


def _manifest(session: Session) -> Manifest:
    """The scopes and collections that the user may see, and those of the system's that the user has no right in."""
    assert session.identity.user is not None, "the command needs a login"
    return visible_manifest(session.selected.shown_manifest, session.identity.user, session.selected.name)


def _is_hidden(
    session: Session, frame: Frame, place: Scope | Collection | None, scope: str, collection: str = ""
) -> bool:
    """Refuse the id of a system scope or collection that the user may not see."""
    has_system = session.engine.release.has(Rule.SYSTEM_COLLECTIONS)
    is_hidden = (
        has_system
        and place is not None
        and place.is_system
        and not session.identity.may_see_system(session.selected.name, scope, collection)
    )
    if is_hidden:
        session.refuse(frame, Status.EACCESS)
    return is_hidden


def _check(_session: Session, frame: Frame) -> Fault | None:
    return Fault(Status.EINVAL, "Request vbucket id must be 0") if frame.vbid else None


def _check_path(_session: Session, frame: Frame) -> Fault | None:
    if frame.key and frame.value:
        return Fault(Status.EINVAL, "Cannot set both key and value")
    return Fault(Status.EINVAL, "Request vbucket id must be 0") if frame.vbid else None


def get_manifest(session: Session, frame: Frame) -> None:
    """GET_COLLECTIONS_MANIFEST: the scopes and collections, JSON; the scopes in the reverse order, as servers do it."""
    manifest, bucket = _manifest(session), session.selected
    if session.engine.release.has(Rule.SYSTEM_COLLECTIONS):
        manifest = without_system(manifest, partial(session.identity.may_see_system, bucket.name))
    manifest = replace(manifest, scopes=manifest.scopes[::-1])
    value = json.dumps(manifest.to_json(), separators=(",", ":")).encode()
    session.respond(frame, datatype=Datatype.JSON if session.is_json else 0, value=value)


def set_manifest(session: Session, frame: Frame) -> None:
    """SET_COLLECTIONS: replace the manifest; the uid must not be lower than the present one."""
    bucket = session.selected
    try:
        manifest = read_manifest(frame.value, session.engine.release)
        if manifest.uid < bucket.manifest.uid:
            raise CannotApplyError("the uid is lower than that of the present one")
        is_same = frozenset(manifest.scopes) == frozenset(bucket.manifest.scopes)  # in whatever order
        if manifest.uid == bucket.manifest.uid and not is_same:
            raise CannotApplyError("the same uid, and something else in it")
        check_step(bucket.manifest, manifest, session.engine.release)
    except CannotApplyError as error:
        session.refuse(frame, Status.CANNOT_APPLY_MANIFEST, str(error))
    except ManifestError as error:
        session.refuse(frame, Status.EINVAL, str(error))
    else:
        bucket.has_forgotten_manifest = False
        if manifest.uid != bucket.manifest.uid:
            session.engine.set_manifest(bucket, manifest)
        session.respond(frame)


def get_collection_id(session: Session, frame: Frame) -> None:
    """GET_COLLECTION_ID: the id of `scope.collection`; an empty part means `_default`."""
    manifest = _manifest(session)
    path = (frame.key or frame.value).decode(errors="replace")
    found = collection_at(manifest, path)
    if found == Status.EINVAL:
        session.refuse(frame, Status.EINVAL)
        return
    if found == Status.UNKNOWN_SCOPE:
        session.refuse_unknown(frame, Status.UNKNOWN_SCOPE)
        return
    place = None if isinstance(found, int) else found
    if _is_hidden(session, frame, place, *names_in(path)):
        return
    if place is None:
        session.refuse_unknown(frame, Status.UNKNOWN_COLLECTION)
    else:
        session.reply(frame, kv.GetCollectionIdResponse, manifest.uid, place.collection_id)


def get_scope_id(session: Session, frame: Frame) -> None:
    """GET_SCOPE_ID: the id of a scope; text after a dot is ignored."""
    manifest = _manifest(session)
    found = scope_at(manifest, (frame.key or frame.value).decode(errors="replace"))
    if found == Status.EINVAL:
        session.refuse(frame, Status.EINVAL)
    elif isinstance(found, int):
        session.refuse_unknown(frame, found)
    elif not _is_hidden(session, frame, found, found.name):
        session.reply(frame, kv.GetScopeIdResponse, manifest.uid, found.scope_id)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(Opcode.GET_COLLECTIONS_MANIFEST, get_manifest, check=_check)
    table.add(Opcode.SET_COLLECTIONS, set_manifest, check=_check)
    table.add(Opcode.GET_COLLECTION_ID, get_collection_id, check=_check_path)
    table.add(Opcode.GET_SCOPE_ID, get_scope_id, check=_check_path)
