"""Requests carried out on a document in pieces."""

from __future__ import annotations

import struct

from dcpstream.wire import Opcode, Status
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.engine.subdocument import Document, Origin, execute, read_request, template
from tests.kit.cases import each_case
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


def test_pieces_of_a_document():
    value = encode_xattrs({"é": b"1", "a": b'{"b": 2}'}) + b"[]"
    document = Document.of(value, 5)
    assert (document.xattrs, document.body, document.is_json) == ({"é": b"1", "a": b'{"b": 2}'}, b"[]", True)
    assert (document.value, document.datatype) == (value, 5)
    assert Document.of(b"raw", 0).datatype == 0


def test_attributes_that_are_not_touched_keep_their_bytes():
    document = Document({"é": b'{ "z" : 1, "a":1.0 }', "t": b"1"}, b"{ }", is_json=True)
    outcome = run(mutation((UPSERT, b"t", b"[ 2 ]", XATTR), (UPSERT, b"x", b"3", 0)), document)
    assert outcome.failure is None
    assert outcome.value(1, 1) == encode_xattrs({"é": b'{ "z" : 1, "a":1.0 }', "t": b"[ 2 ]"}) + b'{ "x":3}'


@each_case(
    ("request_", "body"),
    [
        (mutation((UPSERT, b"a", b"1", 0), flags=1), b"{}"),
        (mutation((SET, b"", b"1", 0), (UPSERT, b"a", b"1", 0), flags=1), b"{}"),
        (mutation((Opcode.SUBDOC_ARRAY_PUSH_LAST, b"", b"1", 0), flags=1), b"[]"),
        (mutation((UPSERT, b"[0].a", b"1", 0), flags=1), b"[]"),
        (mutation((SET, b"", b"1", 0), flags=1), b""),
        (mutation((UPSERT, b"a", b"1", XATTR), flags=9), b""),
    ],
)
def test_what_a_new_document_begins_with(request_, body):
    assert template(request_).body == body


@rule("KV-SUBDOC-17")
def test_the_first_failure_ends_a_mutation_but_not_a_lookup():
    document = Document({}, b'{"a":1}', is_json=True)
    failed = run(mutation((UPSERT, b"x.y", b"1", 0), (UPSERT, b"a", b"2", 0)), document)
    assert failed.results == [(Status.SUBDOC_PATH_ENOENT, b"")]
    found = run(lookup((GET, b"x", 0), (GET, b"a", 0)), document)
    assert found.results == [(Status.SUBDOC_PATH_ENOENT, b""), (0, b"1")]
    assert found.failure == (0, Status.SUBDOC_PATH_ENOENT)


def test_a_body_that_was_replaced_is_examined_again():
    document = Document({}, b"raw", is_json=False)
    outcome = run(mutation((SET, b"", b"[1]", 0), (Opcode.SUBDOC_ARRAY_PUSH_LAST, b"", b"2", 0)), document)
    assert (outcome.document.body, outcome.document.is_json) == (b"[1,2]", True)
    outcome = run(mutation((SET, b"", b"raw", 0), (UPSERT, b"a", b"2", 0)), document)
    assert outcome.failure == (1, Status.SUBDOC_DOC_NOTJSON)


def test_a_deletion_leaves_the_system_s_attributes():
    document = Document({"_s": b"1", "u": b"2"}, b"{}", is_json=True)
    outcome = run(mutation((DELETE, b"", b"", 0)), document)
    assert outcome.deletes
    assert (outcome.document.xattrs, outcome.document.body, outcome.document.datatype) == ({"_s": b"1"}, b"", 4)


def test_one_attribute_without_a_right_stops_all():
    document = Document({"_s": b"1", "u": b"2"}, b"{}", is_json=True)
    found = run(lookup((GET, b"u", XATTR), (GET, b"_s", XATTR), (Opcode.GET, b"", 0)), document, may_use_system=False)
    assert found.results == [(Status.EACCESS, b""), (Status.EACCESS, b""), (0, b"{}")]
    assert run(lookup((GET, b"u", XATTR)), document, may_use_system=False).results == [(0, b"2")]


@each_case("xattrs", [{"a": b"oops"}, {"a": b"\xff"}, {"a": b"[1"}])
def test_attributes_that_somebody_broke(xattrs):
    """Only a source of replication can have left them; they must not end the session."""
    outcome = run(mutation((UPSERT, b"c.d", b"1", XATTR | 1)), Document(dict(xattrs), b"{}", is_json=True))
    assert outcome.failure is not None


def test_a_body_that_somebody_broke():
    assert run(lookup((GET, b"a", 0)), Document({}, b"\xff", is_json=True)).results == [
        (Status.SUBDOC_DOC_NOTJSON, b"")
    ]
    assert run(lookup((GET, b"a", 0)), Document({}, b'{"\\q":1}', is_json=True)).results == [
        (Status.SUBDOC_DOC_NOTJSON, b"")
    ]


def test_macros_are_filled_in_at_the_end():
    document = Document({"old": b'"0x0000000000000000"'}, b"{}", is_json=True)
    request = mutation(
        (UPSERT, b"m", b'"${Mutation.seqno}"', XATTR | MACRO), (UPSERT, b"x", b'"0x0000000000000001"', XATTR)
    )
    outcome = run(request, document)
    assert outcome.value(5, 7) == encode_xattrs(
        {"old": b'"0x0000000000000000"', "m": b'"0x0000000000000007"', "x": b'"0x0000000000000001"'}
    ) + b"{}"  # fmt: skip
