"""Requests of the sub-document commands: parsing and checks.

The table `KINDS` says for each operation which flags it may have, whether it has a value and whether its path may be
empty. Requests with one path and with several are checked against it in the server's order.

A node of release 7.2 refuses what 7.6 added: several attributes in one request, binary values in attributes, reading
from replicas, and flags for the document.

Source: kv_engine daemon/subdocument_traits.h, daemon/subdocument_validators.cc, daemon/subdocument_parser.h.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import Any, Final, NamedTuple

from dcpstream.wire import Opcode, Status
from dcpstream.wire.by_message import ByMessage
from dcpstream.wire.layout import Layout
from dcpstream.wire.messages import REQUESTS, kv, subdoc
from dcpstream.wire.release import NEWEST, Release, Rule
from dcpstream_node.engine.subdocument.attributes import has_bad_binary, is_macro, is_virtual, name_of
from dcpstream_node.engine.subdocument.paths import PATH_BYTES_MAX

SPECS_MAX: Final = 16
"""Most operations in one request: the server's limit."""

_SINGLE: Final = subdoc.SubdocDictAdd.layout
"""The layout of requests with one path. Those of lookups are parsed as if they were changes: the server refuses their
longer extras only at the end."""
_BAD_EXTRAS: Final = "Request extras invalid"
_WIDE_DELTA: Final = re.compile(rb"-?[1-9][0-9]{18,19}")
"""The deltas of a counter that may need more than 63 bits."""
_DOC_FLAGS_KNOWN: Final = 0x1F
_DOC_FLAGS_KNOWN_76: Final = 0x3F


class PathFlag(IntFlag):
    """Flags of one operation."""

    NONE = 0
    CREATE_PARENTS = 0x01
    XATTR = 0x04
    EXPAND_MACROS = 0x10
    BINARY = 0x20


class DocFlag(IntFlag):
    """Flags of a request."""

    NONE = 0
    MKDOC = 0x01
    ADD = 0x02
    ACCESS_DELETED = 0x04
    CREATE_AS_DELETED = 0x08
    REVIVE = 0x10
    REPLICA_READ = 0x20


class Scope(Enum):
    """The part of a document that an operation concerns."""

    PART = "a part of the body or of an attribute"
    WHOLE = "the body"
    BODY_FROM_XATTR = "the body, taken from an attribute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The rules of one operation.

    Attributes:
        path_flags, doc_flags: the flags that it may have.
        needed: the path flags that it must have.
        has_value: whether the request has a value.
        allows_root: whether the path may be empty.
        has_result: whether the answer has a value.
        makes_array: whether a document that it creates is an array if the path is empty.
    """

    scope: Scope = Scope.PART
    is_mutation: bool = False
    path_flags: PathFlag = PathFlag.XATTR
    doc_flags: DocFlag = DocFlag.NONE
    needed: PathFlag = PathFlag.NONE
    has_value: bool = False
    allows_root: bool = False
    has_result: bool = False
    makes_array: bool = False


_READ: Final = DocFlag.ACCESS_DELETED | DocFlag.REVIVE | DocFlag.REPLICA_READ
_CHANGE: Final = DocFlag.ACCESS_DELETED | DocFlag.REVIVE
_CREATE: Final = _CHANGE | DocFlag.MKDOC | DocFlag.ADD | DocFlag.CREATE_AS_DELETED
_PLAIN: Final = PathFlag.XATTR | PathFlag.CREATE_PARENTS
_MACRO: Final = _PLAIN | PathFlag.EXPAND_MACROS
_ANY: Final = _MACRO | PathFlag.BINARY


def _member(path_flags: PathFlag, doc_flags: DocFlag) -> Kind:
    return Kind(is_mutation=True, path_flags=path_flags, doc_flags=doc_flags, has_value=True)


def _array(path_flags: PathFlag) -> Kind:
    return Kind(
        is_mutation=True, path_flags=path_flags, doc_flags=_CREATE, has_value=True, allows_root=True, makes_array=True
    )


def _whole(doc_flags: DocFlag, *, has_value: bool = False) -> Kind:
    return Kind(
        scope=Scope.WHOLE,
        is_mutation=True,
        path_flags=PathFlag.NONE,
        doc_flags=doc_flags,
        has_value=has_value,
        allows_root=True,
    )


KINDS: Final[ByMessage[Kind]] = ByMessage("the table of sub-document operations")
"""Opcode → operation. The last three concern the whole body and occur only in requests with several paths."""
KINDS.of(subdoc.SubdocGet)(Kind(path_flags=PathFlag.XATTR | PathFlag.BINARY, doc_flags=_READ, has_result=True))
KINDS.of(subdoc.SubdocExists)(Kind(doc_flags=_READ))
KINDS.of(subdoc.SubdocGetCount)(Kind(doc_flags=_READ, allows_root=True, has_result=True))
KINDS.of(subdoc.SubdocDictAdd)(_member(_ANY, _CREATE))
KINDS.of(subdoc.SubdocDictUpsert)(_member(_ANY, _CREATE))
KINDS.of(subdoc.SubdocReplace)(_member(_ANY & ~PathFlag.CREATE_PARENTS, _CHANGE | DocFlag.ADD))
KINDS.of(subdoc.SubdocDelete)(Kind(is_mutation=True, doc_flags=_CHANGE))
KINDS.of(subdoc.SubdocArrayPushLast)(_array(_MACRO))
KINDS.of(subdoc.SubdocArrayPushFirst)(_array(_MACRO))
KINDS.of(subdoc.SubdocArrayInsert)(_member(_MACRO & ~PathFlag.CREATE_PARENTS, _CREATE & ~DocFlag.MKDOC))
KINDS.of(subdoc.SubdocArrayAddUnique)(_array(_PLAIN))
KINDS.of(subdoc.SubdocCounter)(
    Kind(is_mutation=True, path_flags=_PLAIN, doc_flags=_CREATE, has_value=True, has_result=True)
)
KINDS.of(subdoc.SubdocReplaceBodyWithXattr)(
    Kind(
        scope=Scope.BODY_FROM_XATTR,
        is_mutation=True,
        path_flags=PathFlag.XATTR | PathFlag.BINARY,
        doc_flags=_CHANGE,
        needed=PathFlag.XATTR,
    )
)
KINDS.of(kv.Get)(Kind(scope=Scope.WHOLE, path_flags=PathFlag.NONE, doc_flags=_READ, allows_root=True, has_result=True))
KINDS.of(kv.Set)(_whole(DocFlag.MKDOC | DocFlag.ADD, has_value=True))
KINDS.of(kv.Delete)(_whole(_CHANGE))
KINDS.require(layout for layout in REQUESTS if "path_length" in layout.names)

COMMANDS: Final = tuple(opcode for opcode in KINDS if opcode >= Opcode.SUBDOC_GET)
"""The operations that are also commands."""


class RefusedError(Exception):
    """A request is malformed, or its operation is never allowed."""

    def __init__(self, status: Status, context: str | None = None) -> None:
        super().__init__(context)
        self.status = status
        self.context = context


class Spec(NamedTuple):
    """One operation of a request."""

    opcode: int
    kind: Kind
    flags: PathFlag
    path: bytes
    value: bytes

    @property
    def is_xattr(self) -> bool:
        """Whether the path is in an attribute."""
        return bool(self.flags & PathFlag.XATTR)

    @property
    def has_bytes(self) -> bool:
        """Whether the value is binary, stored in the attribute as base64."""
        return bool(self.flags & PathFlag.BINARY)


class Request(NamedTuple):
    """A request.

    Attributes:
        expiration: as given, 0 if left out.
        user_flags: new flags of the document, or None to keep them.
    """

    specs: tuple[Spec, ...]
    flags: DocFlag
    expiration: int
    user_flags: int | None
    is_mutation: bool
    is_multi: bool


def read_request(
    opcode: int, extras: bytes, value: bytes, *, cas: int, has_xattrs: bool, release: Release = NEWEST
) -> Request:
    """The request in a frame of one of the sub-document commands.

    Args:
        has_xattrs: whether the connection negotiated extended attributes.
        release: the release of the node.

    Raises:
        RefusedError: the request is refused.
    """
    if opcode in (Opcode.SUBDOC_MULTI_LOOKUP, Opcode.SUBDOC_MULTI_MUTATION):
        is_mutation = opcode == Opcode.SUBDOC_MULTI_MUTATION
        return _read_multi(is_mutation, extras, value, cas=cas, has_xattrs=has_xattrs, release=release)
    context = "Invalid extras section"
    path_bytes, path_flags, expiration, user_flags, doc_flags = _read_extras(_SINGLE, extras, context)
    flags = _read_flags(user_flags, doc_flags, context, release=release)
    if path_bytes > PATH_BYTES_MAX:
        raise RefusedError(Status.EINVAL, "Request path length exceeds maximum")
    if path_bytes > len(value):
        raise RefusedError(Status.EINVAL, "Path length can't exceed value")
    spec = Spec(opcode, KINDS[opcode], PathFlag(path_flags), value[:path_bytes], value[path_bytes:])
    spec = spec if release.has(Rule.SUBDOC_UNSIGNED_DELTAS) else _as_72_reads(spec)
    _check_value(spec)
    _check_flags(spec, flags, release=release)
    if flags & DocFlag.CREATE_AS_DELETED:
        if not flags & (DocFlag.MKDOC | DocFlag.ADD):
            raise RefusedError(Status.EINVAL, "CreateAsDeleted requires Mkdoc or Add")
        if not spec.is_xattr:
            raise RefusedError(Status.EINVAL, "CreateAsDeleted does not support body path")
    _check_document(flags, cas)
    _check_xattr(spec, has_xattrs=has_xattrs)
    _check_path(spec)
    if not spec.kind.is_mutation and expiration is not None:
        raise RefusedError(Status.EINVAL, _BAD_EXTRAS)
    return Request((spec,), flags, expiration or 0, user_flags, spec.kind.is_mutation, is_multi=False)


def _read_extras(layout: Layout, extras: bytes, context: str) -> tuple[Any, ...]:
    """The fields of the extras; `context` is the text that refuses other lengths."""
    if len(extras) not in layout.extras_lengths:
        raise RefusedError(Status.EINVAL, context)
    return layout.unpack_extras(extras)


def _read_flags(user_flags: int | None, doc_flags: int | None, context: str, *, release: Release) -> DocFlag:
    """The document flags; `context` is the text that refuses unknown flags, and user flags before 7.6."""
    has_all = release.has(Rule.SUBDOC_DOC_FLAGS)
    flags, known = doc_flags or 0, _DOC_FLAGS_KNOWN_76 if has_all else _DOC_FLAGS_KNOWN
    if flags & ~known or (user_flags is not None and not has_all):
        raise RefusedError(Status.EINVAL, context)
    return DocFlag(flags)


def _check_flags(spec: Spec, flags: DocFlag, *, release: Release) -> None:
    # Plain integers: the complement of an enum's flags has no unknown bits.
    if int(spec.flags) & ~int(spec.kind.path_flags) or (spec.has_bytes and not release.has(Rule.SUBDOC_DOC_FLAGS)):
        raise RefusedError(Status.EINVAL, "Request flags invalid")
    if spec.kind.needed & ~int(spec.flags):
        raise RefusedError(Status.EINVAL, "Request missing mandatory flags")
    if flags & ~spec.kind.doc_flags:
        raise RefusedError(Status.EINVAL, "Request document flags invalid")
    if len(spec.path) > PATH_BYTES_MAX:
        raise RefusedError(Status.EINVAL, "Request path length exceeds maximum")


def _check_document(flags: DocFlag, cas: int) -> None:
    if flags & DocFlag.ADD and cas:
        raise RefusedError(Status.EINVAL, "Request with add flag must have CAS 0")
    if flags & DocFlag.ADD and flags & DocFlag.MKDOC:
        raise RefusedError(Status.EINVAL, "Request must not contain both add and mkdoc flags")


def _check_xattr(spec: Spec, *, has_xattrs: bool, is_one_of_several: bool = False) -> None:
    """Check the rules of attributes.

    Args:
        is_one_of_several: whether the request names several attributes although only one is allowed.
    """
    for flag in (PathFlag.EXPAND_MACROS, PathFlag.BINARY):
        if spec.flags & flag and not spec.is_xattr:
            name = "EXPAND_MACROS" if flag is PathFlag.EXPAND_MACROS else "BINARY_VALUE"
            raise RefusedError(Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, f"{name} flag requires XATTR flag to be set")
    if not spec.is_xattr:
        return
    if spec.flags & PathFlag.BINARY and spec.flags & PathFlag.EXPAND_MACROS:
        context = "BINARY_VALUE can't be used together with EXPAND_MACROS"
        raise RefusedError(Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, context)
    if not has_xattrs:
        raise RefusedError(Status.NOT_SUPPORTED, "Connection not XATTR enabled")
    if name_of(spec.path) is None:
        raise RefusedError(Status.XATTR_EINVAL, "Request XATTR key invalid")
    if is_virtual(spec.path) and spec.kind.is_mutation:
        raise RefusedError(Status.SUBDOC_XATTR_CANT_MODIFY_VATTR)
    if is_one_of_several:
        raise RefusedError(Status.SUBDOC_XATTR_INVALID_KEY_COMBO)
    if not spec.has_bytes and has_bad_binary(spec.value):
        raise RefusedError(Status.XATTR_EINVAL, "Incorrectly encoded binary value")
    if spec.flags & PathFlag.EXPAND_MACROS and not is_macro(spec.value):
        raise RefusedError(Status.SUBDOC_XATTR_UNKNOWN_MACRO)


def _as_72_reads(spec: Spec) -> Spec:
    """The operation as release 7.2 carries it out: a delta of 64 bits without a sign counts as a negative one."""
    if spec.opcode != Opcode.SUBDOC_COUNTER or not _WIDE_DELTA.fullmatch(spec.value):
        return spec
    delta = int(spec.value)
    if not 1 << 63 <= abs(delta) < 1 << 64:
        return spec
    signed = (delta + (1 << 63)) % (1 << 64) - (1 << 63)
    return spec._replace(value=b"%d" % signed)


def _check_path(spec: Spec) -> None:
    if not spec.path and not spec.kind.allows_root:
        raise RefusedError(Status.EINVAL, "Request must include path")


def _check_value(spec: Spec) -> None:
    if spec.kind.has_value and not spec.value:
        raise RefusedError(Status.EINVAL, "Request must include value")
    if spec.value and not spec.kind.has_value:
        raise RefusedError(Status.EINVAL, "Request must not include value")


def _read_multi(
    is_mutation: bool, extras: bytes, value: bytes, *, cas: int, has_xattrs: bool, release: Release
) -> Request:
    message = subdoc.SubdocMultiMutation if is_mutation else subdoc.SubdocMultiLookup
    *times, doc_flags = _read_extras(message.layout, extras, _BAD_EXTRAS)
    expiration, user_flags = times or (None, None)
    flags = _read_flags(user_flags, doc_flags, _BAD_EXTRAS, release=release)
    _check_document(flags, cas)
    if flags & DocFlag.REVIVE:
        if not flags & DocFlag.ACCESS_DELETED:
            raise RefusedError(Status.EINVAL, "ReviveDocument can't be used without AccessDeleted")
        if flags & DocFlag.CREATE_AS_DELETED:
            raise RefusedError(Status.EINVAL, "ReviveDocument can't be used with CreateAsDeleted")
    specs: list[Spec] = []
    names: set[str | None] = set()
    at, is_body, is_over = 0, False, False
    while at < len(value) and len(specs) < SPECS_MAX:
        if is_over:
            raise RefusedError(Status.SUBDOC_INVALID_COMBO, "Request contains an invalid combination of commands")
        spec, at = _read_spec(is_mutation, value, at)
        spec = spec if release.has(Rule.SUBDOC_UNSIGNED_DELTAS) else _as_72_reads(spec)
        _check_flags(spec, flags, release=release)
        if spec.path and spec.kind.scope is Scope.WHOLE:
            raise RefusedError(Status.EINVAL, "Request must not include path for wholedoc operations")
        names |= {name_of(spec.path)} if spec.is_xattr and not is_virtual(spec.path) else set()
        is_one_too_many = len(names) > 1 and not release.has(Rule.SUBDOC_SEVERAL_XATTRS)
        _check_xattr(spec, has_xattrs=has_xattrs, is_one_of_several=is_one_too_many)
        _check_path(spec)
        _check_value(spec)
        if is_body and spec.is_xattr:
            raise RefusedError(Status.SUBDOC_INVALID_XATTR_ORDER)
        # The deletion of the whole document is the only operation on its body.
        is_over = spec.opcode == Opcode.DELETE
        if is_body and is_over:
            raise RefusedError(Status.SUBDOC_INVALID_COMBO, "Request contains an invalid combination of commands")
        is_body = not spec.is_xattr
        specs.append(spec)
    if not specs:
        raise RefusedError(Status.SUBDOC_INVALID_COMBO, "Request must contain at least one path")
    if at < len(value):
        raise RefusedError(Status.SUBDOC_INVALID_COMBO, f"Request must contain at most {SPECS_MAX} paths")
    return Request(tuple(specs), flags, expiration or 0, user_flags, is_mutation, is_multi=True)


def _read_spec(is_mutation: bool, request: bytes, at: int) -> tuple[Spec, int]:
    """(one operation, position of the next one)."""
    head = subdoc.MutationSpec if is_mutation else subdoc.LookupSpec
    name = "mutation" if is_mutation else "lookup"
    if at + head.size > len(request):
        raise RefusedError(Status.EINVAL, f"Multi {name} spec truncated")
    opcode, flags, path_bytes, *rest = head.struct.unpack_from(request, at)
    path_at = at + head.size
    value_at = path_at + path_bytes
    end = value_at + sum(rest)
    if end > len(request):
        raise RefusedError(Status.EINVAL, f"Multi {name} path{' and value' if is_mutation else ''} truncated")
    kind = KINDS.get(opcode)
    if kind is None:
        raise RefusedError(Status.SUBDOC_INVALID_COMBO, "Subdoc and MCBP command must not both be invalid")
    if kind.is_mutation is not is_mutation:
        raise RefusedError(Status.SUBDOC_INVALID_COMBO, "Mutation opcodes only permitted for mutation commands")
    return Spec(opcode, kind, PathFlag(flags), request[path_at:value_at], request[value_at:end]), end
