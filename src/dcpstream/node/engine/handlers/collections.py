"""The manifest of scopes and collections: asking about it, and setting it. Source: kv_engine docs/Collections.md."""

from __future__ import annotations

import json
import struct
from functools import partial
from typing import TYPE_CHECKING

from dcpstream.model.collections import DEFAULT_NAME
from dcpstream.node.engine.collections import CannotApplyError, ManifestError, check_step, read_manifest
from dcpstream.node.engine.commands import Command, CommandTable, Fault, Part
from dcpstream.node.engine.handlers.keys import refuse_unknown
from dcpstream.node.engine.permission import visible_manifest
from dcpstream.wire import Datatype, Frame, Opcode, Status

if TYPE_CHECKING:
    from dcpstream.model import Manifest
    from dcpstream.node.engine.session import Session

_ID = struct.Struct(">QI")


def _manifest(session: Session) -> Manifest:
    """What the user may know of it."""
    assert session.bucket is not None, "the table asks for a bucket"
    assert session.user is not None, "who is not logged in does not come here"
    return visible_manifest(session.bucket.manifest, session.user, session.bucket.name)


def _check(_session: Session, frame: Frame) -> Fault | None:
    return Fault(Status.EINVAL, "Request vbucket id must be 0") if frame.vbid else None


def _check_path(_session: Session, frame: Frame) -> Fault | None:
    if frame.key and frame.value:
        return Fault(Status.EINVAL, "Cannot set both key and value")
    return Fault(Status.EINVAL, "Request vbucket id must be 0") if frame.vbid else None


def get_manifest(session: Session, frame: Frame) -> None:
    """GET_COLLECTIONS_MANIFEST: scopes and collections, JSON."""
    value = json.dumps(_manifest(session).to_json(), separators=(",", ":")).encode()
    session.respond(frame, datatype=Datatype.JSON if session.is_json else 0, value=value)


def set_manifest(session: Session, frame: Frame) -> None:
    """SET_COLLECTIONS: another manifest, with the same uid or a higher one."""
    bucket = session.bucket
    assert bucket is not None, "the table asks for a bucket"
    try:
        manifest = read_manifest(frame.value)
        if manifest.uid < bucket.manifest.uid:
            session.refuse(frame, Status.ERANGE, "The uid of the manifest is lower than that of the present one")
            return
        if manifest.uid == bucket.manifest.uid and manifest != bucket.manifest:
            raise CannotApplyError("the same uid, and something else in it")
        check_step(bucket.manifest, manifest)
    except CannotApplyError as error:
        session.refuse(frame, Status.CANNOT_APPLY_MANIFEST, str(error))
    except ManifestError as error:
        session.refuse(frame, Status.EINVAL, str(error))
    else:
        if manifest != bucket.manifest:
            session.engine.set_manifest(bucket, manifest)
        session.respond(frame)


def _path(session: Session, frame: Frame) -> str | None:
    """The path, from key or value; None if the request was refused."""
    if bool(frame.key) == bool(frame.value):
        session.refuse(frame, Status.EINVAL, "Request must have the path as key or as value")
        return None
    return (frame.key or frame.value).decode(errors="replace")


def get_collection_id(session: Session, frame: Frame) -> None:
    """GET_COLLECTION_ID of `scope.collection`; empty parts mean `_default`."""
    path = _path(session, frame)
    if path is None:
        return
    scope_name, dot, collection_name = path.partition(".")
    if not dot or "." in collection_name:
        session.refuse(frame, Status.EINVAL, "The path must be scope.collection")
        return
    manifest = _manifest(session)
    if all(scope.name != (scope_name or DEFAULT_NAME) for scope in manifest.scopes):
        refuse_unknown(session, frame, Status.UNKNOWN_SCOPE)
        return
    found = manifest.find(scope_name, collection_name)
    if found is None:
        refuse_unknown(session, frame, Status.UNKNOWN_COLLECTION)
    else:
        session.respond(frame, extras=_ID.pack(manifest.uid, found.collection_id))


def get_scope_id(session: Session, frame: Frame) -> None:
    """GET_SCOPE_ID of `scope`, what follows a dot is ignored."""
    path = _path(session, frame)
    if path is None:
        return
    name = path.partition(".")[0] or DEFAULT_NAME
    manifest = _manifest(session)
    for scope in manifest.scopes:
        if scope.name == name:
            session.respond(frame, extras=_ID.pack(manifest.uid, scope.scope_id))
            return
    refuse_unknown(session, frame, Status.UNKNOWN_SCOPE)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(Opcode.GET_COLLECTIONS_MANIFEST, Command(get_manifest, check=_check))
    table.add(
        Opcode.SET_COLLECTIONS,
        Command(
            set_manifest, value=Part.REQUIRED, datatypes=int(Datatype.JSON), privilege="NodeSupervisor", check=_check
        ),
    )
    by_path = partial(Command, key=Part.OPTIONAL, value=Part.OPTIONAL, check=_check_path)
    table.add(Opcode.GET_COLLECTION_ID, by_path(get_collection_id))
    table.add(Opcode.GET_SCOPE_ID, by_path(get_scope_id))
