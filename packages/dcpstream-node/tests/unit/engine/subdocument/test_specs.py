"""Sub-document requests: what is well formed."""

from __future__ import annotations

import struct

import pytest

from dcpstream.wire import Opcode, Status
from dcpstream_node.engine.subdocument.specs import DocFlag, PathFlag, RefusedError, read_request
from tests.kit.cases import each_case
from tests.kit.rules import rule

GET, UPSERT, EXISTS = Opcode.SUBDOC_GET, Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_EXISTS
MULTI_LOOKUP, MULTI_MUTATION = Opcode.SUBDOC_MULTI_LOOKUP, Opcode.SUBDOC_MULTI_MUTATION
P, D = PathFlag, DocFlag
XATTR = P.XATTR


def one(opcode: int, path: bytes, value: bytes = b"", path_flags: int = 0, flags: bytes = b"", **more):
    extras = struct.pack(">HB", len(path), path_flags) + flags
    return read_request(opcode, extras, path + value, **{"cas": 0, "has_xattrs": True} | more)


def lookup(opcode: int, path: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">BBH", opcode, flags, len(path)) + path


def mutation(opcode: int, path: bytes = b"", value: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">BBHI", opcode, flags, len(path), len(value)) + path + value


def many(opcode: int, *specs: bytes, extras: bytes = b"", **more):
    return read_request(opcode, extras, b"".join(specs), **{"cas": 0, "has_xattrs": True} | more)


EINVAL, COMBO = Status.EINVAL, Status.SUBDOC_INVALID_COMBO
FLAG_COMBO, NAME = Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, Status.XATTR_EINVAL


@rule("KV-SUBDOC-02", "KV-SUBDOC-06")
@each_case(
    ("opcode", "path", "value", "path_flags", "doc_flags", "status"),
    [
        (GET, b"", b"", 0, 0, EINVAL),
        (GET, b"a", b"1", 0, 0, EINVAL),
        (GET, b"a" * 1025, b"", 0, 0, EINVAL),
        (GET, b"a", b"", P.CREATE_PARENTS, 0, EINVAL),
        (GET, b"a", b"", 0, D.MKDOC, EINVAL),
        (GET, b"a", b"", 0, 0x40, EINVAL),
        (GET, b"a", b"", P.BINARY, 0, FLAG_COMBO),
        (GET, b"-a", b"", XATTR, 0, NAME),
        (GET, b"", b"", XATTR, 0, NAME),
        (EXISTS, b"a", b"", XATTR | P.BINARY, 0, EINVAL),
        (UPSERT, b"a", b"", 0, 0, EINVAL),
        (UPSERT, b"a", b"1", 0x02, 0, EINVAL),
        (UPSERT, b"a", b"1", 0, D.REPLICA_READ, EINVAL),
        (UPSERT, b"a", b"1", 0, D.MKDOC | D.ADD, EINVAL),
        (UPSERT, b"a", b"1", XATTR, D.CREATE_AS_DELETED, EINVAL),
        (UPSERT, b"a", b"1", 0, D.CREATE_AS_DELETED | D.ADD, EINVAL),
        (UPSERT, b"a", b'"${Mutation.CAS}"', P.EXPAND_MACROS, 0, FLAG_COMBO),
        (UPSERT, b"a", b"1", XATTR | P.EXPAND_MACROS | P.BINARY, 0, FLAG_COMBO),
        (UPSERT, b"a", b"1", XATTR | P.EXPAND_MACROS, 0, Status.SUBDOC_XATTR_UNKNOWN_MACRO),
        (UPSERT, b"$document", b"1", XATTR, 0, Status.SUBDOC_XATTR_CANT_MODIFY_VATTR),
        (UPSERT, b"a", b'"cb-content-base64-encoded:%"', XATTR, 0, NAME),
        (Opcode.SUBDOC_REPLACE, b"a", b"1", 0, D.MKDOC, EINVAL),
        (Opcode.SUBDOC_DELETE, b"a", b"1", 0, 0, EINVAL),
        (Opcode.SUBDOC_COUNTER, b"", b"1", 0, 0, EINVAL),
        (Opcode.SUBDOC_ARRAY_INSERT, b"[0]", b"1", P.CREATE_PARENTS, 0, EINVAL),
        (Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR, b"a", b"", 0, 0, EINVAL),
    ],
)
def test_single_paths_that_are_refused(opcode, path, value, path_flags, doc_flags, status):
    with pytest.raises(RefusedError) as error:
        one(opcode, path, value, path_flags, bytes([doc_flags]) if doc_flags else b"")
    assert error.value.status == status


@rule("KV-SUBDOC-02", "KV-SUBDOC-05", "KV-SUBDOC-06")
@each_case(
    ("opcode", "specs", "doc_flags", "status"),
    [
        (MULTI_LOOKUP, [], 0, COMBO),
        (MULTI_LOOKUP, [lookup(GET, b"a")] * 17, 0, COMBO),
        (MULTI_LOOKUP, [lookup(GET, b"a" * 1025)], 0, EINVAL),
        (MULTI_LOOKUP, [lookup(UPSERT, b"a")], 0, COMBO),
        (MULTI_LOOKUP, [lookup(0x55, b"a")], 0, COMBO),
        (MULTI_LOOKUP, [lookup(GET, b"a")[:-1]], 0, EINVAL),
        (MULTI_LOOKUP, [b"\xc5\0"], 0, EINVAL),
        (MULTI_LOOKUP, [lookup(Opcode.GET, b"a")], 0, EINVAL),
        (MULTI_LOOKUP, [lookup(Opcode.GET, b"", XATTR)], 0, EINVAL),
        (MULTI_LOOKUP, [lookup(GET, b"a"), lookup(GET, b"x", XATTR)], 0, Status.SUBDOC_INVALID_XATTR_ORDER),
        (MULTI_LOOKUP, [lookup(GET, b"a")], D.REVIVE, EINVAL),
        (MULTI_LOOKUP, [lookup(GET, b"a")], D.MKDOC, EINVAL),
        (MULTI_MUTATION, [mutation(GET, b"a")], 0, COMBO),
        (MULTI_MUTATION, [mutation(Opcode.ADD, b"", b"1")], 0, COMBO),
        (MULTI_MUTATION, [mutation(UPSERT, b"a", b"1")[:-1]], 0, EINVAL),
        (MULTI_MUTATION, [mutation(UPSERT, b"a")], 0, EINVAL),
        (MULTI_MUTATION, [mutation(UPSERT, b"", b"1")], 0, EINVAL),
        (MULTI_MUTATION, [mutation(UPSERT, b"a", b"1")], D.MKDOC | D.ADD, EINVAL),
        (MULTI_MUTATION, [mutation(UPSERT, b"a", b"1")], D.ACCESS_DELETED | D.REVIVE | D.CREATE_AS_DELETED, EINVAL),
        (MULTI_MUTATION, [mutation(Opcode.SET, b"", b"1")], D.ACCESS_DELETED, EINVAL),
        (MULTI_MUTATION, [mutation(Opcode.DELETE), mutation(UPSERT, b"a", b"1")], 0, COMBO),
        (MULTI_MUTATION, [mutation(UPSERT, b"a", b"1"), mutation(Opcode.DELETE)], 0, COMBO),
        (MULTI_MUTATION, [mutation(Opcode.DELETE)], D.MKDOC, EINVAL),
    ],
)
def test_many_paths_that_are_refused(opcode, specs, doc_flags, status):
    with pytest.raises(RefusedError) as error:
        many(opcode, *specs, extras=bytes([doc_flags]) if doc_flags else b"")
    assert error.value.status == status
