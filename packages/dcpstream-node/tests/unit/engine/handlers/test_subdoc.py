"""The sub-document commands: documents fetched, changed, stored, and answers."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.model import VbucketState
from dcpstream.wire import Datatype, Frame, Opcode, Status
from dcpstream.wire.values import encode_xattrs, snappy_compress
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.subdocument import SYSTEM_BYTES_MAX
from dcpstream_node.testing.simulation import START_UNIX_S, USUAL_FEATURES
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


def test_attributes_and_body(client):
    written = mutate(client, spec(UPSERT, "txn", b'{"id":1}', XATTR), spec(Opcode.SET, "", b'{"a":1}'))
    assert (written.status, written.value) == (0, b"")
    assert struct.unpack(">QQ", written.extras)[1] == 1
    assert client.get("k").value == b'{"a":1}'
    again = mutate(client, spec(UPSERT, "txn.more", b"2", XATTR), spec(UPSERT, "b", b"3"))
    assert again.status == 0
    found = look_up(client, (GET, "txn", XATTR), (EXISTS, "txn.id", XATTR), (GET, "a", 0), (Opcode.GET, "", 0))
    assert (found.status, found.cas, found.datatype) == (0, again.cas, 0)
    assert results(found) == [(0, b'{"id":1,"more":2}'), (0, b""), (0, b"1"), (0, b'{"a":1,"b":3}')]
    assert mutate(client, spec(DELETE, "txn", flags=XATTR), extras=b"").status == 0
    assert (stored(client).datatype, stored(client).value) == (1, b'{"a":1,"b":3}')


def test_several_attributes_at_once(client):
    assert mutate(client, spec(UPSERT, "b", b"1", XATTR), spec(UPSERT, "a", b" [2] ", XATTR)).status == 0
    assert stored(client).value == encode_xattrs({"b": b"1", "a": b"[2]"}) + b"{}"
    found = look_up(client, (GET, "a[0]", XATTR), (GET, "b", XATTR), (COUNT, "a", XATTR))
    assert results(found) == [(0, b"2"), (0, b"1"), (0, b"1")]


def test_counters_answer_with_their_value(client):
    written = mutate(client, spec(COUNTER, "n", b"5", XATTR), spec(UPSERT, "a", b"1"), spec(COUNTER, "m", b"-2"))
    assert written.value == struct.pack(">BHI", 0, 0, 1) + b"5" + struct.pack(">BHI", 2, 0, 2) + b"-2"


def test_what_is_missing_in_a_lookup(client):
    assert look_up(client, (GET, "a", 0)).status == Status.KEY_ENOENT
    client.set("k", b'{"a":1}')
    found = look_up(client, (GET, "x", XATTR), (GET, "a", 0), (COUNT, "a", 0))
    assert found.status == Status.SUBDOC_MULTI_FAILURE
    assert found.cas == stored(client).cas
    assert results(found) == [(Status.SUBDOC_PATH_ENOENT, b""), (0, b"1"), (Status.SUBDOC_PATH_MISMATCH, b"")]


def test_all_or_nothing(client):
    client.set("k", b'{"a":1}')
    failed = mutate(client, spec(UPSERT, "x", b"1", XATTR), spec(UPSERT, "b.c", b"1"), extras=b"")
    assert failed.status == Status.SUBDOC_MULTI_FAILURE
    assert struct.unpack(">BH", failed.value) == (1, Status.SUBDOC_PATH_ENOENT)
    assert client.get("k").value == b'{"a":1}'
    assert vbucket_of(client).high_seqno == 1


def test_what_is_not_json_has_no_parts(client):
    client.set("k", b"text")
    found = look_up(client, (GET, "a", 0), (Opcode.GET, "", 0))
    assert results(found) == [(Status.SUBDOC_DOC_NOTJSON, b""), (0, b"text")]
    assert mutate(client, spec(UPSERT, "x", b"1", XATTR), spec(Opcode.SET, "", b"other")).status == 0
    assert stored(client).datatype == Datatype.XATTR


def test_a_compressed_document(client):
    body = b'{"a":"' + b"x" * 500 + b'","b":2}'
    client.set("k", snappy_compress(body), datatype=Datatype.SNAPPY)
    assert one(client, GET, "b").value == b"2"
    assert one(client, UPSERT, "b", b"3").status == 0
    assert client.get("k").value == body.replace(b"2}", b"3}")


# ------------------------------------------------------------------------------------------------------ single paths


def test_single_paths(client):
    client.set("k", b'{"a":[1,2],"n":1}', flags=9)
    found = one(client, GET, "a")
    assert (found.status, found.value, found.datatype) == (0, b"[1,2]", Datatype.JSON)
    assert found.cas == stored(client).cas
    assert (one(client, EXISTS, "a").status, one(client, EXISTS, "a").value) == (0, b"")
    assert one(client, COUNT, "a").value == b"2"
    assert one(client, COUNT, "").value == b"2"
    counted = one(client, COUNTER, "n", b"4")
    assert (counted.status, counted.value, len(counted.extras)) == (0, b"5", 16)
    assert counted.datatype == Datatype.JSON
    for opcode, path, value in (
        (Opcode.SUBDOC_DICT_ADD, "d", b"1"),
        (UPSERT, "d", b"2"),
        (Opcode.SUBDOC_REPLACE, "d", b"3"),
        (Opcode.SUBDOC_ARRAY_PUSH_LAST, "a", b"3"),
        (Opcode.SUBDOC_ARRAY_PUSH_FIRST, "a", b"0"),
        (Opcode.SUBDOC_ARRAY_INSERT, "a[1]", b'"i"'),
        (Opcode.SUBDOC_ARRAY_ADD_UNIQUE, "a", b"9"),
        (DELETE, "n", b""),
    ):
        answer = one(client, opcode, path, value)
        assert (answer.status, answer.value) == (0, b"")
        assert answer.cas == stored(client).cas
    assert client.get("k").value == b'{"a":[0,"i",1,2,3,9],"d":3}'
    assert stored(client).flags == 9


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


def test_a_body_from_an_attribute(client):
    client.set("k", b"[]")
    mutate(client, spec(UPSERT, "txn.staged", b'{"new":1}', XATTR | PARENTS), extras=b"")
    moved = mutate(client, spec(Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR, "txn.staged", flags=XATTR),
                   spec(DELETE, "txn", flags=XATTR), extras=b"")  # fmt: skip
    assert moved.status == 0
    assert (stored(client).value, stored(client).datatype) == (b'{"new":1}', Datatype.JSON)


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


def test_the_right_cas(client):
    cas = client.set("k", b"{}").cas
    assert look_up(client, (Opcode.GET, "", 0), cas=cas + 1).status == Status.KEY_EEXISTS
    assert one(client, UPSERT, "a", b"1", cas=cas).status == 0


@pytest.mark.parametrize(
    ("first", "body"),
    [
        (spec(UPSERT, "a.b", b"1"), b'{"a":{"b":1}}'),
        (spec(Opcode.SUBDOC_ARRAY_PUSH_LAST, "", b"1"), b"[1]"),
        (spec(UPSERT, "a", b"1", XATTR), b"{}"),
        (spec(Opcode.SET, "", b"7"), b"7"),
    ],
)
def test_a_new_document(client, first, body):
    assert mutate(client, first, extras=MKDOC).status == 0
    assert client.get("k").value == body


def test_the_expiration(client):
    mutate(client, spec(UPSERT, "a", b"1"), extras=struct.pack(">IB", 100, 1))
    assert stored(client).expiration == START_UNIX_S + 100
    preserve = b"\x50"
    client.call(Opcode.SUBDOC_MULTI_MUTATION, key=b"\0k", value=spec(UPSERT, "a", b"2"), framing=preserve)
    assert stored(client).expiration == START_UNIX_S + 100
    one(client, UPSERT, "a", b"3", extras=struct.pack(">I", 50))
    assert stored(client).expiration == START_UNIX_S + 50
    one(client, UPSERT, "a", b"3")
    assert stored(client).expiration == 0


def test_the_user_s_flags(client):
    mutate(client, spec(UPSERT, "a", b"1"), extras=struct.pack(">IIB", 0, 6, 1))
    assert stored(client).flags == 6
    one(client, UPSERT, "a", b"2")
    assert stored(client).flags == 6
    one(client, UPSERT, "a", b"2", extras=struct.pack(">II", 0, 7))
    assert stored(client).flags == 7


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


def test_a_locked_document(client):
    client.set("k", b'{"a":1}')
    cas = client.call(Opcode.GET_LOCKED, key=b"\0k").cas
    assert one(client, UPSERT, "a", b"2").status == Status.LOCKED
    assert one(client, GET, "a").status == Status.LOCKED
    found = one(client, GET, "a", cas=5)
    assert (found.value, found.cas) == (b"1", 5)
    assert one(client, UPSERT, "a", b"2", cas=cas).status == 0
    assert one(client, UPSERT, "a", b"3").status == 0


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


def test_attributes_of_a_tombstone_are_changed(client):
    client.set("k", b"{}")
    client.delete("k")
    changed = mutate(client, spec(UPSERT, "user", b"1", XATTR | PARENTS), extras=DELETED)
    assert changed.status == Status.SUBDOC_SUCCESS_DELETED
    assert stored(client).is_deleted
    assert (stored(client).value, stored(client).datatype) == (encode_xattrs({"user": b"1"}), Datatype.XATTR)
    assert stored(client).cas == changed.cas
    assert stored(client).delete_time == START_UNIX_S
    assert client.get("k").status == Status.KEY_ENOENT


@rule("KV-SUBDOC-15")
def test_a_tombstone_has_no_body(client):
    refused = mutate(client, spec(UPSERT, "a", b"1", XATTR), spec(Opcode.SET, "", b"{}"), extras=bytes([1 | 8]))
    assert refused.status == Status.EINVAL
    mutate(client, spec(UPSERT, "a", b"1", XATTR), extras=bytes([1 | 8]))
    body = spec(Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR, "a", flags=XATTR)
    assert mutate(client, body, extras=DELETED).status == Status.SUBDOC_DELETED_CANT_HAVE_VALUE
    assert results(look_up(client, (Opcode.GET, "", 0), extras=DELETED)) == [(Status.SUBDOC_PATH_ENOENT, b"")]


def test_a_document_that_begins_as_a_tombstone_and_is_revived(client):
    staged = mutate(client, spec(UPSERT, "txn.new", b'{"n":1}', XATTR), extras=bytes([2 | 8]))
    assert staged.status == Status.SUBDOC_SUCCESS_DELETED
    assert client.get("k").status == Status.KEY_ENOENT
    assert mutate(client, spec(UPSERT, "x", b"1", XATTR), extras=bytes([2 | 4 | 8])).status == Status.KEY_EEXISTS
    revived = mutate(
        client,
        spec(Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR, "txn.new", flags=XATTR),
        spec(DELETE, "txn", flags=XATTR),
        extras=bytes([4 | 16]),
        cas=staged.cas,
    )
    assert revived.status == 0
    assert client.get("k").value == b'{"n":1}'
    assert stored(client).rev_seqno == 2


def test_the_whole_document_is_deleted(client):
    mutate(client, spec(UPSERT, "_s", b"1", XATTR), spec(UPSERT, "u", b"2", XATTR), spec(Opcode.SET, "", b"{}"))
    gone = mutate(client, spec(UPSERT, "_t", b"3", XATTR), spec(Opcode.DELETE, ""), extras=b"")
    assert gone.status == 0
    assert stored(client).is_deleted
    assert stored(client).value == encode_xattrs({"_s": b"1", "_t": b"3"})
    again = mutate(client, spec(Opcode.DELETE, ""), extras=DELETED)
    assert again.status == Status.SUBDOC_SUCCESS_DELETED
    bare = mutate(
        client,
        spec(DELETE, "_s", flags=XATTR),
        spec(DELETE, "_t", flags=XATTR),
        spec(Opcode.DELETE, ""),
        extras=DELETED,
    )
    assert bare.status == Status.KEY_ENOENT


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


def test_the_virtual_document(client):
    client.set("k", b'{"a":1}', flags=3, expiration=1000)
    item = stored(client)
    found = json.loads(one(client, GET, "$document", flags=XATTR).value)
    assert found == {
        "CAS": f"0x{item.cas:016x}",
        "datatype": ["json"],
        "deleted": False,
        "exptime": START_UNIX_S + 1000,
        "flags": 3,
        "last_modified": str(item.cas // 10**9),
        "revid": "1",
        "seqno": "0x0000000000000001",
        "value_bytes": 7,
        "value_crc32c": found["value_crc32c"],
        "vbucket_uuid": f"0x{vbucket_of(client).vbuuid:016x}",
    }
    clock = json.loads(one(client, GET, "$vbucket.HLC", flags=XATTR).value)
    assert clock == {"mode": "real", "now": str(START_UNIX_S)}
    assert results(look_up(client, (GET, "$document.exptime", XATTR), (EXISTS, "$document.x", XATTR))) == [
        (0, str(START_UNIX_S + 1000).encode()),
        (Status.SUBDOC_PATH_ENOENT, b""),
    ]


def test_the_system_s_attributes_need_a_right(client):
    mutate(client, spec(UPSERT, "_s", b"1", XATTR), spec(UPSERT, "u", b"2", XATTR))
    assert one(client, GET, "$XTOC", flags=XATTR).value == b'["_s","u"]'
    writer = Talker(client.engine, user="writer")
    assert one(writer, GET, "$XTOC", flags=XATTR).value == b'["u"]'
    assert one(writer, GET, "u", flags=XATTR).value == b"2"
    assert one(writer, GET, "_s", flags=XATTR).status == Status.EACCESS
    found = look_up(writer, (GET, "u", XATTR), (GET, "_s", XATTR), (Opcode.GET, "", 0))
    assert results(found) == [(Status.EACCESS, b""), (Status.EACCESS, b""), (0, b"{}")]
    refused = mutate(writer, spec(UPSERT, "u", b"2", XATTR), spec(UPSERT, "_s", b"2", XATTR))
    assert (refused.status, refused.value) == (
        Status.SUBDOC_MULTI_FAILURE,
        struct.pack(">BH", 0, Status.EACCESS),
    )


def test_who_may_do_what(client):
    client.set("k", b"{}")
    reader = Talker(client.engine, user="reader")
    assert one(reader, COUNT, "").value == b"0"
    assert one(reader, UPSERT, "a", b"1").status == Status.EACCESS
    assert one(reader, COUNTER, "a", b"1").status == Status.EACCESS
    assert mutate(reader, spec(UPSERT, "a", b"1")).status == Status.EACCESS


def test_without_attributes_negotiated(client):
    client.set("k", b"{}")
    plain = Talker(client.engine, features=tuple(feature for feature in USUAL_FEATURES if feature != 6))
    assert one(plain, GET, "$document", flags=XATTR).status == Status.NOT_SUPPORTED
    assert one(plain, UPSERT, "a", b"1").status == 0


# ----------------------------------------------------------------------------------------------------- durable writes


def durable(client, *specs: bytes, extras: bytes) -> Frame:
    framing = b"\x11\x01"
    return client.call(Opcode.SUBDOC_MULTI_MUTATION, key=b"\0k", value=b"".join(specs), extras=extras, framing=framing)


def test_durable_changes(client):
    vbucket_of(client).topology = '[["n0"]]'
    cas_macro = spec(UPSERT, "txn.cas", b'"${Mutation.CAS}"', XATTR | MACRO | PARENTS)
    staged = durable(client, cas_macro, spec(COUNTER, "txn.n", b"2", XATTR), extras=bytes([2 | 8]))
    assert staged.status == Status.SUBDOC_SUCCESS_DELETED
    assert staged.value == struct.pack(">BHI", 1, 0, 1) + b"2"
    assert stored(client).is_deleted
    found = one(client, GET, "txn.cas", flags=XATTR, extras=DELETED)
    assert found.value == f'"0x{staged.cas.to_bytes(8, "little").hex()}"'.encode()
    alive = durable(client, spec(UPSERT, "a", b"1"), extras=MKDOC)
    assert alive.status == 0
    assert client.get("k").value == b'{"a":1}'
