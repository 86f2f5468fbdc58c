"""The sub-document commands: documents fetched, changed, stored, and answers."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.model import VbucketState
from dcpstream.wire import Frame, Opcode, Status
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.subdocument import SYSTEM_BYTES_MAX
from tests.kit.engine import Talker, engine_of
from tests.kit.rules import rule

GET, EXISTS, COUNT = Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT
UPSERT, DELETE, COUNTER = Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DELETE, Opcode.SUBDOC_COUNTER
XATTR, PARENTS, MACRO, BINARY = 4, 1, 0x10, 0x20
MKDOC, ADD, DELETED, AS_DELETED, REVIVE, REPLICA = b"\1", b"\2", b"\4", b"\x08", b"\x10", b"\x20"


@pytest.fixture
def client():
    """A client of a node that knows all that was ever added to these commands."""
    return Talker(engine_of(release="7.6"))


def spec(opcode: int, path: str, value: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">BBHI", opcode, flags, len(path), len(value)) + path.encode() + value


def mutate(client, *specs: bytes, extras: bytes = MKDOC, **fields):
    return client.call(Opcode.SUBDOC_MULTI_MUTATION, key=b"\0k", value=b"".join(specs), extras=extras, **fields)


def look_up(client, *paths: tuple[int, str, int], extras: bytes = b"", **fields):
    value = b"".join(struct.pack(">BBH", op, flags, len(path)) + path.encode() for op, path, flags in paths)
    return client.call(Opcode.SUBDOC_MULTI_LOOKUP, key=b"\0k", value=value, extras=extras, **fields)


def one(client, opcode: int, path: str, value: bytes = b"", flags: int = 0, extras: bytes = b"", **fields):
    extras = struct.pack(">HB", len(path), flags) + extras
    return client.call(opcode, key=b"\0k", value=path.encode() + value, extras=extras, **fields)


def results(frame) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(frame.value):
        status, length = struct.unpack_from(">HI", frame.value, at)
        found.append((status, frame.value[at + 6 : at + 6 + length]))
        at += 6 + length
    return found


def vbucket_of(client):
    return client.engine.buckets["default"].vbuckets[0]


def stored(client):
    return vbucket_of(client).log.get(b"\0k")


# ------------------------------------------------------------------------------------------------------- many paths


# ------------------------------------------------------------------------------------------------------ single paths


@rule("KV-SUBDOC-16", "KV-SUBDOC-17", "KV-SUBDOC-18")
def test_single_paths_that_fail(client):
    assert one(client, GET, "a").status == Status.KEY_ENOENT
    client.set("k", b"{}")
    assert one(client, GET, "a").status == Status.SUBDOC_PATH_ENOENT
    assert one(client, EXISTS, "a").status == Status.SUBDOC_PATH_ENOENT
    assert one(client, GET, "a]").status == Status.SUBDOC_PATH_EINVAL
    assert one(client, GET, "a" + ".a" * 31).status == Status.SUBDOC_PATH_E2BIG
    assert one(client, UPSERT, "a", b"x").status == Status.SUBDOC_VALUE_CANTINSERT
    assert one(client, UPSERT, "a", b'"\xff"').status == Status.SUBDOC_VALUE_CANTINSERT
    assert one(client, GET, "").status == Status.EINVAL
    assert one(client, GET, "$other", flags=XATTR).status == Status.SUBDOC_XATTR_UNKNOWN_VATTR
    assert client.call(GET, key=b"\0k", value=b"a", extras=b"\0\1").status == Status.EINVAL
    assert vbucket_of(client).high_seqno == 1


@rule("KV-SUBDOC-06")
def test_bytes_in_attributes(client):
    client.set("k", b"{}")
    assert one(client, UPSERT, "bin", b"\0\xff", XATTR | BINARY).status == 0
    assert one(client, GET, "bin", flags=XATTR).value == b'"cb-content-base64-encoded:AP8="'
    found = one(client, GET, "bin", flags=XATTR | BINARY)
    assert (found.value, found.datatype) == (b"\0\xff", 0)
    assert one(client, UPSERT, "no", b"1", XATTR).status == 0
    assert one(client, GET, "no", flags=XATTR | BINARY).status == Status.SUBDOC_FIELD_NOT_BINARY_VALUE
    assert one(client, Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR, "bin", flags=XATTR | BINARY).status == 0
    assert client.get("k").value == b"\0\xff"
    looks_encoded = b'"cb-content-base64-encoded:%"'
    assert one(client, UPSERT, "text", looks_encoded, XATTR).status == Status.XATTR_EINVAL
    assert one(client, UPSERT, "text", looks_encoded, XATTR | BINARY).status == 0, "bytes may be anything"


# ------------------------------------------------------------------------------------------------- when, how long


@rule("KV-SUBDOC-15")
@pytest.mark.parametrize(
    ("is_there", "extras", "cas", "status"),
    [
        (False, b"", 0, Status.KEY_ENOENT),
        (False, b"", 5, Status.KEY_ENOENT),
        (False, MKDOC, 0, 0),
        (False, ADD, 0, 0),
        (False, MKDOC, 5, 0),
        (True, b"", 0, 0),
        (True, MKDOC, 0, 0),
        (True, ADD, 0, Status.KEY_EEXISTS),
        (True, b"", 5, Status.KEY_EEXISTS),
        (True, DELETED, 0, 0),
        (True, bytes([4 | 16]), 0, Status.SUBDOC_CAN_ONLY_REVIVE_DELETED),
    ],
)
def test_when_it_may_be_written(client, is_there, extras, cas, status):
    if is_there:
        client.set("k", b"{}")
    assert mutate(client, spec(UPSERT, "a", b"1"), extras=extras, cas=cas).status == status


@rule("KV-SUBDOC-12")
def test_sizes(client, monkeypatch):
    client.set("k", b"{}")
    large = b'"' + b"x" * SYSTEM_BYTES_MAX + b'"'
    assert one(client, UPSERT, "_s", large, XATTR).status == Status.E2BIG
    assert one(client, UPSERT, "s", large, XATTR).status == 0
    most = b'"' + b"x" * (SYSTEM_BYTES_MAX - 14) + b'"'  # with name and lengths 1 MiB
    assert one(client, UPSERT, "_s", most, XATTR).status == 0
    assert one(client, UPSERT, "_s", most[:-1] + b'x"', XATTR).status == Status.E2BIG
    monkeypatch.setattr(documents, "MAX_VALUE_BYTES", SYSTEM_BYTES_MAX)
    assert one(client, UPSERT, "a", b"1").status == Status.E2BIG
    client.delete("k")
    client.set("k", b"{}")
    monkeypatch.setattr(documents, "MAX_VALUE_BYTES", len(b'{"a":123}'))
    assert one(client, UPSERT, "a", b"123").status == 0
    assert one(client, UPSERT, "a", b"1234").status == Status.E2BIG


@rule("KV-SUBDOC-02", "KV-SUBDOC-16", "KV-SUBDOC-18")
def test_what_cannot_be_looked_up(client):
    client.set("k", b'{"a":1}')
    assert one(client, GET, "a" * 1024).status == Status.SUBDOC_PATH_ENOENT
    assert one(client, GET, "a" * 1025).status == Status.EINVAL
    for cut in (struct.pack(">BBH", GET, 0, 5) + b"ab", struct.pack(">BB", GET, 0)):
        answer = client.call(Opcode.SUBDOC_MULTI_LOOKUP, key=b"\0k", value=cut)
        assert (answer.status, b"truncated" in answer.value) == (Status.EINVAL, True)
    client.set("k", b'{"a":1} and more')
    assert one(client, GET, "a").status == Status.SUBDOC_DOC_NOTJSON


@rule("KV-SUBDOC-09")
def test_deletions_of_what_has_or_had_attributes(client):
    mutate(client, spec(UPSERT, "u", b"1", XATTR), spec(Opcode.SET, "", b"{}"))
    assert mutate(client, spec(Opcode.DELETE, ""), extras=b"").status == 0, "a live one, with its last attribute"
    client.set("k", b"{}")
    client.delete("k")
    assert mutate(client, spec(UPSERT, "_u", b"1", XATTR), extras=DELETED).status == Status.SUBDOC_SUCCESS_DELETED
    last = mutate(client, spec(DELETE, "_u", flags=XATTR), extras=DELETED)
    assert last.status == Status.SUBDOC_SUCCESS_DELETED, "the attribute alone"


# ------------------------------------------------------------------------------------------------- deleted documents


@rule("KV-SUBDOC-17")
def test_a_deleted_document_is_read_on_request(client):
    mutate(client, spec(UPSERT, "_s", b"1", XATTR), spec(Opcode.SET, "", b"{}"))
    client.delete("k")
    assert look_up(client, (GET, "_s", XATTR)).status == Status.KEY_ENOENT
    found = look_up(client, (GET, "_s", XATTR), extras=DELETED)
    assert (found.status, results(found)) == (Status.SUBDOC_SUCCESS_DELETED, [(0, b"1")])
    failed = look_up(client, (GET, "x", XATTR), (Opcode.GET, "", 0), extras=DELETED)
    assert failed.status == Status.SUBDOC_MULTI_FAILURE_DELETED
    assert [status for status, _ in results(failed)] == [Status.SUBDOC_PATH_ENOENT] * 2
    single = one(client, GET, "_s", flags=XATTR, extras=DELETED)
    assert (single.status, single.value) == (Status.SUBDOC_SUCCESS_DELETED, b"1")
    deleted = one(client, GET, "$document.deleted", flags=XATTR, extras=DELETED)
    assert deleted.value == b"true"


@rule("KV-SUBDOC-15")
def test_a_tombstone_has_no_body(client):
    refused = mutate(client, spec(UPSERT, "a", b"1", XATTR), spec(Opcode.SET, "", b"{}"), extras=bytes([1 | 8]))
    assert refused.status == Status.EINVAL
    mutate(client, spec(UPSERT, "a", b"1", XATTR), extras=bytes([1 | 8]))
    body = spec(Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR, "a", flags=XATTR)
    assert mutate(client, body, extras=DELETED).status == Status.SUBDOC_DELETED_CANT_HAVE_VALUE
    assert results(look_up(client, (Opcode.GET, "", 0), extras=DELETED)) == [(Status.SUBDOC_PATH_ENOENT, b"")]


@rule("KV-SUBDOC-19")
def test_a_replica_is_read_on_request(client):
    client.set("k", b'{"a":1}')
    for vbid in (0, 99):
        assert one(client, GET, "a", extras=REPLICA, vbid=vbid).status == Status.NOT_MY_VBUCKET
    assert client.call(Opcode.SET_VBUCKET, extras=bytes([VbucketState.REPLICA])).status == 0
    assert one(client, GET, "a").status == Status.NOT_MY_VBUCKET
    assert one(client, GET, "a", extras=REPLICA).value == b"1"
    assert results(look_up(client, (GET, "a", 0), extras=REPLICA)) == [(0, b"1")]


# ------------------------------------------------------------------------------------------ what is made up, rights


def test_macros_know_what_the_write_gets(client):
    client.set("k", b'{"a":1}')
    before = stored(client)
    written = mutate(
        client,
        spec(UPSERT, "m.cas", b'"${Mutation.CAS}"', XATTR | PARENTS | MACRO),
        spec(UPSERT, "m.seqno", b'"${Mutation.seqno}"', XATTR | MACRO),
        spec(UPSERT, "m.crc", b'"${Mutation.value_crc32c}"', XATTR | MACRO),
        spec(UPSERT, "m.old", b'"${$document.CAS}"', XATTR | MACRO),
        spec(Opcode.SET, "", b"123456789"),
        extras=b"",
    )
    assert written.status == 0
    found = json.loads(one(client, GET, "m", flags=XATTR).value)
    assert found == {
        "cas": f"0x{written.cas.to_bytes(8, 'little').hex()}",
        "seqno": "0x0000000000000002",
        "crc": "0xe3069283",
        "old": f"0x{before.cas:016x}",
    }
    unknown = mutate(client, spec(UPSERT, "m", b'"${$document.x}"', XATTR | MACRO), extras=b"")
    assert unknown.value == struct.pack(">BH", 0, Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO)


# ----------------------------------------------------------------------------------------------------- durable writes


def durable(client, *specs: bytes, extras: bytes) -> Frame:
    framing = b"\x11\x01"
    return client.call(Opcode.SUBDOC_MULTI_MUTATION, key=b"\0k", value=b"".join(specs), extras=extras, framing=framing)
