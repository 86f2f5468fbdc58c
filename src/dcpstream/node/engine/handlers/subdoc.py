"""Several parts of a document at once: SUBDOC_MULTI_LOOKUP and SUBDOC_MULTI_MUTATION.

Answered are GET and EXISTS, DICT_ADD, DICT_UPSERT, REPLACE and DELETE of paths in the body and in extended attributes,
and reading and writing the whole body. Counters, arrays, macros and virtual attributes are refused.

Source: kv_engine docs/SubDocument.md, docs/ExtendedAttributes.md, daemon/subdocument.cc; answers as recorded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from dcpstream.node.engine import documents
from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.node.engine.handlers.keys import active_vbucket, expiration_of, stored_key
from dcpstream.node.engine.handlers.writes import WRITE_INFOS, put, target
from dcpstream.node.engine.subdoc import Path, PathError, change, load, look_up, parse_path
from dcpstream.wire import Datatype, Frame, Opcode, Status, decode_xattrs, encode_xattrs

if TYPE_CHECKING:
    from dcpstream.node.engine.session import Session

SPECS_MAX = 16
"""Paths in one request: the server's limit."""
CREATE_PARENTS, IN_XATTR = 0x01, 0x04
MKDOC, ADD, ACCESS_DELETED = 0x01, 0x02, 0x04

_LOOKUP_SPEC = struct.Struct(">BBH")
_MUTATION_SPEC = struct.Struct(">BBHI")
_RESULT = struct.Struct(">HI")
_FAILURE = struct.Struct(">BH")
_WHOLE_BODY_READ, _WHOLE_BODY_WRITE = int(Opcode.GET), int(Opcode.SET)
_LOOKUPS = frozenset(map(int, (Opcode.GET, Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS)))
_CHANGES = frozenset(
    map(
        int,
        (
            Opcode.SET,
            Opcode.SUBDOC_DICT_ADD,
            Opcode.SUBDOC_DICT_UPSERT,
            Opcode.SUBDOC_REPLACE,
            Opcode.SUBDOC_DELETE,
        ),
    )
)


class _Spec(NamedTuple):
    """One path of a request."""

    opcode: int
    flags: int
    path: str
    value: bytes

    @property
    def is_xattr(self) -> bool:
        """Whether the path begins with an attribute's name."""
        return bool(self.flags & IN_XATTR)


class _Parts:
    """A document taken apart: attributes and body."""

    def __init__(self, value: bytes, datatype: int) -> None:
        value = documents.plain_value(value, datatype)
        self.xattrs, self.body = decode_xattrs(value) if datatype & Datatype.XATTR else ({}, value)

    @property
    def value(self) -> bytes:
        """Attributes and body as they are stored."""
        return (encode_xattrs(self.xattrs) if self.xattrs else b"") + self.body

    @property
    def datatype(self) -> int:
        """Of `value`."""
        found = Datatype.XATTR if self.xattrs else Datatype.RAW
        return int(found | (Datatype.JSON if documents.is_json(self.body) else Datatype.RAW))

    def look_up(self, spec: _Spec) -> bytes:
        """What a lookup finds."""
        path = parse_path(spec.path)
        if not spec.is_xattr:
            if not path and spec.opcode != _WHOLE_BODY_READ:
                raise PathError(Status.SUBDOC_PATH_EINVAL)
            return look_up(self.body, path)
        name, rest = _attribute(path)
        if name not in self.xattrs:
            raise PathError(Status.SUBDOC_PATH_ENOENT)
        return look_up(self.xattrs[name], rest)

    def change(self, spec: _Spec) -> None:
        """Do what a mutation says."""
        path, creates_parents = parse_path(spec.path), bool(spec.flags & CREATE_PARENTS)
        if spec.opcode == _WHOLE_BODY_WRITE:
            if path or spec.is_xattr:
                raise PathError(Status.SUBDOC_INVALID_COMBO)
            self.body = spec.value
        elif not spec.is_xattr:
            if not path:
                raise PathError(Status.SUBDOC_PATH_EINVAL)
            self.body = change(self.body or b"{}", spec.opcode, path, spec.value, creates_parents=creates_parents)
        else:
            self._change_attribute(spec, path, creates_parents=creates_parents)

    def _change_attribute(self, spec: _Spec, path: Path, *, creates_parents: bool) -> None:
        name, rest = _attribute(path)
        old = self.xattrs.get(name)
        if rest:
            if old is None and not creates_parents:
                raise PathError(Status.SUBDOC_PATH_ENOENT)
            self.xattrs[name] = change(old or b"{}", spec.opcode, rest, spec.value, creates_parents=creates_parents)
            return
        if old is None and spec.opcode in (Opcode.SUBDOC_REPLACE, Opcode.SUBDOC_DELETE):
            raise PathError(Status.SUBDOC_PATH_ENOENT)
        if old is not None and spec.opcode == Opcode.SUBDOC_DICT_ADD:
            raise PathError(Status.SUBDOC_PATH_EEXISTS)
        if spec.opcode == Opcode.SUBDOC_DELETE:
            del self.xattrs[name]
        else:
            load(spec.value, Status.SUBDOC_VALUE_CANTINSERT)
            self.xattrs[name] = spec.value


def _attribute(path: Path) -> tuple[str, Path]:
    """An attribute's name and the path within it."""
    if not path or not isinstance(path[0], str) or path[0].startswith("$"):
        raise PathError(Status.SUBDOC_PATH_EINVAL)
    return path[0], path[1:]


def _specs(frame: Frame) -> list[_Spec] | None:
    """The paths of a request; None if they are not well formed."""
    try:
        specs = list(_read_specs(frame))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    is_mutation = frame.opcode == Opcode.SUBDOC_MULTI_MUTATION
    known = _CHANGES if is_mutation else _LOOKUPS
    # Attributes come first.
    in_order = all(first.is_xattr or not second.is_xattr for first, second in pairwise(specs))
    is_sound = 0 < len(specs) <= SPECS_MAX and in_order and all(spec.opcode in known for spec in specs)
    return specs if is_sound else None


def _read_specs(frame: Frame) -> Iterator[_Spec]:
    value, at = frame.value, 0
    is_mutation = frame.opcode == Opcode.SUBDOC_MULTI_MUTATION
    while at < len(value):
        length = 0
        if is_mutation:
            opcode, flags, path_length, length = _MUTATION_SPEC.unpack_from(value, at)
            at += _MUTATION_SPEC.size
        else:
            opcode, flags, path_length = _LOOKUP_SPEC.unpack_from(value, at)
            at += _LOOKUP_SPEC.size
        if at + path_length + length > len(value):
            raise ValueError("a path or value runs past the request")
        path = value[at : at + path_length].decode()
        yield _Spec(opcode, flags, path, value[at + path_length : at + path_length + length])
        at += path_length + length


def multi_lookup(session: Session, frame: Frame) -> None:
    """SUBDOC_MULTI_LOOKUP: a status and a value for each path."""
    specs = _specs(frame)
    if specs is None:
        session.respond(frame, Status.EINVAL)
        return
    vbucket = active_vbucket(session, frame)
    key = stored_key(session, frame) if vbucket is not None else None
    if vbucket is None or key is None:
        return
    meta = documents.live_meta(vbucket, key, session.engine.unix_ns)
    session.changed(vbucket)
    sees_deleted = bool(frame.extras and frame.extras[-1] & ACCESS_DELETED)
    if meta is None or (meta.is_deleted and not sees_deleted):
        session.respond(frame, Status.KEY_ENOENT)
        return
    item = vbucket.log.get(key)
    assert item is not None, "its meta data was there"
    parts = _Parts(item.value, item.datatype)
    results, has_failed = [], False
    for spec in specs:
        found = b""
        try:
            found, status = parts.look_up(spec), int(Status.SUCCESS)
        except PathError as error:
            status, has_failed = error.status, True
        if spec.opcode == Opcode.SUBDOC_EXISTS:
            found = b""
        results.append(_RESULT.pack(status, len(found)) + found)
    overall = int(Status.SUBDOC_MULTI_FAILURE if has_failed else Status.SUCCESS)
    if meta.is_deleted:
        overall = _FAILED_ON_DELETED if has_failed else _SUCCESS_ON_DELETED
    session.respond(frame, overall, cas=meta.cas, value=b"".join(results))


_SUCCESS_ON_DELETED, _FAILED_ON_DELETED = 0xCD, 0xD3


def multi_mutation(session: Session, frame: Frame) -> None:
    """SUBDOC_MULTI_MUTATION: all of it or nothing."""
    specs, extras = _specs(frame), frame.extras
    flags = extras[-1] if len(extras) in (1, 5) else 0
    if specs is None or flags & ~(MKDOC | ADD):
        session.respond(frame, Status.EINVAL)
        return
    found = target(session, frame)
    if found is None:
        return
    vbucket, key = found
    meta = documents.live_meta(vbucket, key, session.engine.unix_ns)
    session.changed(vbucket)
    item = vbucket.log.get(key) if meta is not None and not meta.is_deleted else None
    status = Status.SUCCESS
    if item is None:
        status = Status.SUCCESS if flags & (MKDOC | ADD) and not frame.cas else Status.KEY_ENOENT
    elif flags & ADD or (frame.cas and frame.cas != item.cas):
        status = Status.KEY_EEXISTS
    if status:
        session.respond(frame, status)
        return
    parts = _Parts(b"", 0) if item is None else _Parts(item.value, item.datatype)
    for index, spec in enumerate(specs):
        try:
            parts.change(spec)
        except PathError as error:
            value = _FAILURE.pack(index, error.status)
            session.respond(frame, Status.SUBDOC_MULTI_FAILURE, value=value)
            return
    if item is None and not parts.body:
        parts.body = b"{}"
    value = parts.value
    if len(value) > documents.MAX_VALUE_BYTES:
        session.respond(frame, Status.E2BIG)
        return
    expiration = 0 if item is None else item.expiration
    if len(extras) >= 4:
        expiration = expiration_of(session, key, int.from_bytes(extras[:4], "big"))
    put(
        session,
        frame,
        vbucket,
        key,
        value,
        datatype=parts.datatype,
        flags=0 if item is None else item.flags,
        expiration=expiration,
        rev_seqno=documents.next_rev(vbucket, meta),
    )


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    command = partial(Command, key=Part.REQUIRED, value=Part.REQUIRED, is_document=True)
    table.add(Opcode.SUBDOC_MULTI_LOOKUP, command(multi_lookup, extras=(0, 1), privilege="Read"))
    table.add(
        Opcode.SUBDOC_MULTI_MUTATION,
        command(multi_mutation, extras=(0, 1, 4, 5), has_cas=True, privilege="Upsert", frame_infos=WRITE_INFOS),
    )
