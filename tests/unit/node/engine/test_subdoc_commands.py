"""SUBDOC_MULTI_LOOKUP and SUBDOC_MULTI_MUTATION."""

from __future__ import annotations

import struct

import pytest

from dcpstream.wire import Opcode, Status, encode_xattrs
from tests.unit.node.kit import START_UNIX_S, Talker, engine_of

UPSERT, DELETE = Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DELETE
XATTR, PARENTS = 4, 1


@pytest.fixture
def client():
    return Talker(engine_of())


def spec(opcode: int, path: str, value: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">BBHI", opcode, flags, len(path), len(value)) + path.encode() + value


def mutate(client, *specs: bytes, extras: bytes = b"\1", **fields):
    return client.call(Opcode.SUBDOC_MULTI_MUTATION, key=b"\0k", value=b"".join(specs), extras=extras, **fields)


def look_up(client, *paths: tuple[int, str, int], extras: bytes = b""):
    value = b"".join(struct.pack(">BBH", op, flags, len(path)) + path.encode() for op, path, flags in paths)
    return client.call(Opcode.SUBDOC_MULTI_LOOKUP, key=b"\0k", value=value, extras=extras)


def results(frame) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(frame.value):
        status, length = struct.unpack_from(">HI", frame.value, at)
        found.append((status, frame.value[at + 6 : at + 6 + length]))
        at += 6 + length
    return found


def test_attributes_and_body(client):
    written = mutate(client, spec(UPSERT, "txn", b'{"id":1}', XATTR), spec(Opcode.SET, "", b'{"a":1}'))
    assert (written.status, written.value) == (0, b"")
    assert struct.unpack(">QQ", written.extras)[1] == 1
    assert client.get("k").value == b'{"a":1}'
    again = mutate(client, spec(UPSERT, "txn.more", b"2", XATTR), spec(UPSERT, "b", b"3"))
    assert again.status == 0
    found = look_up(
        client,
        (Opcode.SUBDOC_GET, "txn", XATTR),
        (Opcode.SUBDOC_EXISTS, "txn.id", XATTR),
        (Opcode.SUBDOC_GET, "a", 0),
        (Opcode.GET, "", 0),
    )
    assert (found.status, found.cas) == (0, again.cas)
    assert results(found) == [(0, b'{"id":1,"more":2}'), (0, b""), (0, b"1"), (0, b'{"a":1,"b":3}')]
    assert mutate(client, spec(DELETE, "txn", flags=XATTR), extras=b"").status == 0
    item = client.engine.buckets["default"].vbuckets[0].log.get(b"\0k")
    assert (item.datatype, item.value) == (1, b'{"a":1,"b":3}')


def test_what_is_missing_in_a_lookup(client):
    assert look_up(client, (Opcode.SUBDOC_GET, "a", 0)).status == Status.KEY_ENOENT
    client.set("k", b'{"a":1}')
    found = look_up(client, (Opcode.SUBDOC_GET, "x", XATTR), (Opcode.SUBDOC_GET, "a", 0))
    assert found.status == Status.SUBDOC_MULTI_FAILURE
    assert results(found) == [(Status.SUBDOC_PATH_ENOENT, b""), (0, b"1")]


def test_a_deleted_document_is_read_on_request(client):
    mutate(client, spec(UPSERT, "_s", b"1", XATTR))
    client.delete("k")
    assert look_up(client, (Opcode.SUBDOC_GET, "_s", XATTR)).status == Status.KEY_ENOENT
    found = look_up(client, (Opcode.SUBDOC_GET, "_s", XATTR), extras=b"\4")
    assert (found.status, results(found)) == (0xCD, [(0, b"1")])
    assert look_up(client, (Opcode.SUBDOC_GET, "x", XATTR), extras=b"\4").status == 0xD3


def test_all_or_nothing(client):
    client.set("k", b'{"a":1}')
    failed = mutate(client, spec(UPSERT, "x", b"1", XATTR), spec(UPSERT, "b.c", b"1"))
    assert failed.status == Status.SUBDOC_MULTI_FAILURE
    assert struct.unpack(">BH", failed.value) == (1, Status.SUBDOC_PATH_ENOENT)
    assert client.get("k").value == b'{"a":1}'
    assert client.engine.buckets["default"].vbuckets[0].high_seqno == 1


@pytest.mark.parametrize(
    ("is_there", "extras", "cas", "status"),
    [
        (False, b"", 0, Status.KEY_ENOENT),
        (False, b"\1", 0, 0),
        (False, b"\2", 0, 0),
        (False, b"\1", 5, Status.KEY_ENOENT),
        (True, b"", 0, 0),
        (True, b"\2", 0, Status.KEY_EEXISTS),
        (True, b"", 5, Status.KEY_EEXISTS),
        (True, b"\4", 0, Status.EINVAL),
    ],
)
def test_when_it_may_be_written(client, is_there, extras, cas, status):
    if is_there:
        client.set("k", b"{}")
    assert mutate(client, spec(UPSERT, "a", b"1"), extras=extras, cas=cas).status == status


def test_the_expiration(client):
    mutate(client, spec(UPSERT, "a", b"1"), extras=struct.pack(">IB", 100, 1))
    vbucket = client.engine.buckets["default"].vbuckets[0]
    assert vbucket.log.meta(b"\0k").expiration == START_UNIX_S + 100
    mutate(client, spec(UPSERT, "a", b"2"))
    assert vbucket.log.meta(b"\0k").expiration == START_UNIX_S + 100


def test_a_new_document_with_attributes_only_is_an_empty_object(client):
    mutate(client, spec(UPSERT, "a", b"1", XATTR))
    item = client.engine.buckets["default"].vbuckets[0].log.get(b"\0k")
    assert (item.datatype, item.value) == (5, encode_xattrs({"a": b"1"}) + b"{}")


@pytest.mark.parametrize(
    "value",
    [
        spec(UPSERT, "a", b"1")[:-1],
        spec(UPSERT, "a", b"1") + b"\0",
        spec(UPSERT, "a", b"1") * 17,
        spec(Opcode.SUBDOC_COUNTER, "a", b"1"),
        spec(UPSERT, "a", b"1") + spec(UPSERT, "x", b"1", XATTR),
        struct.pack(">BBHI", UPSERT, 0, 1, 0) + b"\xff",
    ],
    ids=["cut", "too long", "too many", "unknown", "attribute after body", "no text"],
)
def test_malformed(client, value):
    client.set("k", b"{}")
    assert mutate(client, value).status == Status.EINVAL


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (spec(Opcode.SET, "a", b"1"), Status.SUBDOC_INVALID_COMBO),
        (spec(UPSERT, "", b"1"), Status.SUBDOC_PATH_EINVAL),
        (spec(UPSERT, "$document", b"1", XATTR), Status.SUBDOC_PATH_EINVAL),
        (spec(UPSERT, "a", b"no json", XATTR), Status.SUBDOC_VALUE_CANTINSERT),
        (spec(Opcode.SUBDOC_REPLACE, "a", b"1", XATTR), Status.SUBDOC_PATH_ENOENT),
        (spec(UPSERT, "a.b", b"1", XATTR), Status.SUBDOC_PATH_ENOENT),
    ],
)
def test_what_cannot_be_done(client, change, status):
    client.set("k", b"{}")
    failed = mutate(client, change, extras=b"")
    assert failed.status == Status.SUBDOC_MULTI_FAILURE
    assert failed.value == struct.pack(">BH", 0, status)


def test_an_attribute_that_is_there_is_not_added(client):
    mutate(client, spec(Opcode.SUBDOC_DICT_ADD, "a", b"1", XATTR))
    failed = mutate(client, spec(Opcode.SUBDOC_DICT_ADD, "a", b"1", XATTR))
    assert failed.value == struct.pack(">BH", 0, Status.SUBDOC_PATH_EEXISTS)
    assert mutate(client, spec(UPSERT, "n.m", b"1", XATTR | PARENTS)).status == 0
