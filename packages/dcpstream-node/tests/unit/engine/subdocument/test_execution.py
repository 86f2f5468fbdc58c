"""Requests carried out on a document in pieces."""

from __future__ import annotations

import struct

from dcpstream.wire import Opcode, Status
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.engine.subdocument import Document, Origin, execute, read_request
from tests.kit.rules import rule

GET, UPSERT, SET, DELETE = Opcode.SUBDOC_GET, Opcode.SUBDOC_DICT_UPSERT, Opcode.SET, Opcode.DELETE
XATTR, MACRO = 4, 0x10


def mutation(*specs: tuple[int, bytes, bytes, int], flags: int = 0):
    value = b"".join(
        struct.pack(">BBHI", opcode, path_flags, len(path), len(text)) + path + text
        for opcode, path, text, path_flags in specs
    )
    return read_request(Opcode.SUBDOC_MULTI_MUTATION, bytes([flags]), value, cas=0, has_xattrs=True)


def lookup(*specs: tuple[int, bytes, int]):
    value = b"".join(struct.pack(">BBH", opcode, flags, len(path)) + path for opcode, path, flags in specs)
    return read_request(Opcode.SUBDOC_MULTI_LOOKUP, b"", value, cas=0, has_xattrs=True)


def run(request, document: Document, *, may_use_system: bool = True):
    return execute(request, document, Origin(), may_use_system=may_use_system)


def test_attributes_that_are_not_touched_keep_their_bytes():
    document = Document({"é": b'{ "z" : 1, "a":1.0 }', "t": b"1"}, b"{ }", is_json=True)
    outcome = run(mutation((UPSERT, b"t", b"[ 2 ]", XATTR), (UPSERT, b"x", b"3", 0)), document)
    assert outcome.failure is None
    assert outcome.value(1, 1) == encode_xattrs({"é": b'{ "z" : 1, "a":1.0 }', "t": b"[ 2 ]"}) + b'{ "x":3}'


@rule("KV-SUBDOC-17")
def test_the_first_failure_ends_a_mutation_but_not_a_lookup():
    document = Document({}, b'{"a":1}', is_json=True)
    failed = run(mutation((UPSERT, b"x.y", b"1", 0), (UPSERT, b"a", b"2", 0)), document)
    assert failed.results == [(Status.SUBDOC_PATH_ENOENT, b"")]
    found = run(lookup((GET, b"x", 0), (GET, b"a", 0)), document)
    assert found.results == [(Status.SUBDOC_PATH_ENOENT, b""), (0, b"1")]
    assert found.failure == (0, Status.SUBDOC_PATH_ENOENT)
