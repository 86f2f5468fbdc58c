"""Sub-document requests: what is well formed."""

from __future__ import annotations

import struct

import pytest

from dcpstream.wire import Opcode, Status
from dcpstream_node.engine.subdocument.specs import KINDS, SPECS_MAX, DocFlag, PathFlag, RefusedError, read_request
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


def test_a_single_path():
    request = one(UPSERT, b"a.b", b"1", P.CREATE_PARENTS, struct.pack(">IB", 60, D.MKDOC))
    (spec,) = request.specs
    assert (spec.opcode, spec.path, spec.value, spec.flags) == (UPSERT, b"a.b", b"1", P.CREATE_PARENTS)
    assert (request.flags, request.expiration, request.is_mutation, request.is_multi) == (D.MKDOC, 60, True, False)


def test_many_paths():
    request = many(MULTI_MUTATION, mutation(UPSERT, b"x", b"1", XATTR), mutation(Opcode.SET, b"", b"{}"))
    assert [(spec.opcode, spec.is_xattr) for spec in request.specs] == [(UPSERT, True), (Opcode.SET, False)]
    assert request.is_multi
    assert len(many(MULTI_LOOKUP, *[lookup(GET, b"a")] * SPECS_MAX, extras=b"\4").specs) == SPECS_MAX


def test_what_is_in_the_extras():
    for extras, expected in (
        (b"", (0, None, 0)),
        (b"\1", (0, None, 1)),
        (b"\0\0\0\5", (5, None, 0)),
        (b"\0\0\0\5\2", (5, None, 2)),
        (b"\0\0\0\5\0\0\0\7", (5, 7, 0)),
        (b"\0\0\0\5\0\0\0\7\1", (5, 7, 1)),
    ):
        for request in (
            one(UPSERT, b"a", b"1", flags=extras),
            many(MULTI_MUTATION, mutation(UPSERT, b"a", b"1"), extras=extras),
        ):
            assert (request.expiration, request.user_flags, request.flags) == expected


EINVAL, COMBO = Status.EINVAL, Status.SUBDOC_INVALID_COMBO
FLAG_COMBO, NAME = Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, Status.XATTR_EINVAL


@rule("KV-SUBDOC-02", "KV-SUBDOC-06")
@pytest.mark.parametrize(
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


def test_a_path_longer_than_the_request():
    with pytest.raises(RefusedError, match="exceed"):
        read_request(GET, struct.pack(">HB", 9, 0), b"a", cas=0, has_xattrs=True)


def test_adding_has_no_cas():
    with pytest.raises(RefusedError, match="CAS 0"):
        one(UPSERT, b"a", b"1", 0, b"\2", cas=1)
    with pytest.raises(RefusedError, match="CAS 0"):
        many(MULTI_MUTATION, mutation(UPSERT, b"a", b"1"), extras=b"\2", cas=1)


def test_attributes_have_to_be_negotiated():
    with pytest.raises(RefusedError) as error:
        one(GET, b"a", b"", XATTR, has_xattrs=False)
    assert error.value.status == Status.NOT_SUPPORTED


@rule("KV-SUBDOC-02", "KV-SUBDOC-05", "KV-SUBDOC-06")
@pytest.mark.parametrize(
    ("opcode", "specs", "doc_flags", "status"),
    [
        (MULTI_LOOKUP, [], 0, COMBO),
        (MULTI_LOOKUP, [lookup(GET, b"a")] * 17, 0, COMBO),
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


def test_every_operation_says_whether_it_changes_something():
    changing = {opcode for opcode, kind in KINDS.items() if kind.is_mutation}
    assert {Opcode.GET, GET, EXISTS, Opcode.SUBDOC_GET_COUNT} == set(KINDS) - changing
