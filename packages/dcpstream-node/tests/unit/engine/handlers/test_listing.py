"""GET_RANDOM_KEY, GET_KEYS and OBSERVE."""

from __future__ import annotations

import struct

import pytest

from dcpstream.wire import Datatype, Feature, Opcode, Status
from dcpstream.wire.values import encode_xattrs, snappy_compress
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.engine import Talker, engine_of, pass_time, with_collection
from tests.kit.rules import rule

NO_COLLECTIONS = tuple(code for code in USUAL_FEATURES if code != Feature.COLLECTIONS)
NO_SNAPPY = tuple(code for code in USUAL_FEATURES if code not in (Feature.SNAPPY, Feature.XATTR))
FRUIT = 9


@pytest.fixture
def client():
    client = Talker(engine_of())
    with_collection(client.engine, FRUIT)
    return client


def random_key(client: Talker, collection_id: int | None = 0, flag: bytes = b""):
    extras = b"" if collection_id is None else collection_id.to_bytes(4, "big") + flag
    return client.call(Opcode.GET_RANDOM_KEY, extras=extras)


@rule("KV-KEYS-01")
def test_random_documents_of_all_vbuckets(client):
    assert random_key(client).status == Status.KEY_ENOENT
    for vbid in range(4):
        for number in range(5):
            client.set(f"k{vbid}{number}", b"v%d" % number, flags=vbid, vbid=vbid)
    client.delete("k00")
    found = [random_key(client) for _ in range(300)]
    assert {answer.key for answer in found} == {
        b"\0k%d%d" % (vbid, number) for vbid in range(4) for number in range(5) if (vbid, number) != (0, 0)
    }
    for answer in found:
        assert answer.extras == struct.pack(">I", int(answer.key[2:3]))
        assert answer.value == b"v" + answer.key[3:4]
        assert answer.cas


@rule("KV-KEYS-01")
def test_a_random_document_of_a_collection_among_many_others(client):
    for number in range(2000):
        client.set(f"k{number}", b"v" * 100)
    assert random_key(client, FRUIT).status == Status.KEY_ENOENT
    client.call(Opcode.SET, key=b"\x09apple", value=b"1", extras=bytes(8))
    for _ in range(5):
        assert random_key(client, FRUIT).key == b"\x09apple"
    unknown = random_key(client, 99)
    assert unknown.status == Status.EACCESS
    assert b"manifest_uid" in unknown.value


def test_a_random_document_of_an_unknown_collection_of_a_72():
    unknown = random_key(Talker(engine_of(release="7.2")), 99)
    assert unknown.status == Status.UNKNOWN_COLLECTION
    assert b"manifest_uid" in unknown.value


@rule("KV-KEYS-01")
def test_a_random_document_that_is_over_is_none(client):
    client.set("k", b"v", expiration=5)
    pass_time(client.engine, 6)
    assert random_key(client).status == Status.KEY_ENOENT


@rule("KV-KEYS-01")
def test_who_knows_no_collections_asks_without_one(client):
    old = Talker(client.engine, features=NO_COLLECTIONS)
    client.set("k", b"v")
    assert random_key(old, None).key == b"k"
    assert random_key(old, 0).status == Status.EINVAL
    assert random_key(client, None).status == Status.EINVAL


@rule("KV-KEYS-01")
def test_an_80_also_takes_a_flag_for_a_random_document():
    for version, status in (("7.2", Status.EINVAL), ("8.0", Status.KEY_ENOENT)):
        assert random_key(Talker(engine_of(release=version)), 0, b"\0").status == status


def test_xattrs_of_a_random_document_only_if_asked_for():
    client = Talker(engine_of(release="8.0"))
    value = encode_xattrs({"u": b"1"}, b'{"a":1}')
    extras = struct.pack(">IIQQ", 0, 0, 1, 5)
    packed = snappy_compress(value)
    client.call(Opcode.SET_WITH_META, key=b"\0k", value=packed, extras=extras, datatype=7)
    plain = random_key(client)
    assert (plain.value, plain.datatype) == (b'{"a":1}', Datatype.JSON)
    assert random_key(client, 0, b"\0").value == b'{"a":1}'
    whole = random_key(client, 0, b"\1")
    assert (whole.value, whole.datatype) == (value, Datatype.JSON | Datatype.XATTR)
    assert random_key(Talker(client.engine, features=NO_SNAPPY), 0, b"\1").value == b'{"a":1}'


def keys(client: Talker, start: bytes, count: int | None = None, **fields):
    extras = b"" if count is None else count.to_bytes(4, "big")
    answer = client.call(Opcode.GET_KEYS, key=start, extras=extras, **fields)
    found, at = [], 0
    while at < len(answer.value):
        end = at + 2 + int.from_bytes(answer.value[at : at + 2], "big")
        found.append(answer.value[at + 2 : end])
        at = end
    return answer.status, found


def test_keys_of_a_vbucket_in_order(client):
    for name in ("b", "d", "a", "c", "gone"):
        client.set(name, b"v")
    client.delete("gone")
    client.call(Opcode.SET, key=b"\x09apple", value=b"1", extras=bytes(8))
    assert keys(client, b"\0a") == (0, [b"\0a", b"\0b", b"\0c", b"\0d"])
    assert keys(client, b"\0b", 2) == (0, [b"\0b", b"\0c"])
    assert keys(client, b"\0e") == (0, [])
    assert keys(client, b"\0a", 0) == (0, [])
    assert keys(client, b"\x09a") == (0, [b"\x09apple"])
    assert keys(client, b"\x63a")[0] == Status.UNKNOWN_COLLECTION
    assert keys(client, b"\0a", vbid=9)[0] == Status.NOT_MY_VBUCKET
    old = Talker(client.engine, features=NO_COLLECTIONS)
    assert keys(old, b"a") == (0, [b"a", b"b", b"c", b"d"])


def observe(client: Talker, *wanted: tuple[int, bytes]):
    value = b"".join(struct.pack(">HH", vbid, len(key)) + key for vbid, key in wanted)
    answer = client.call(Opcode.OBSERVE, value=value)
    if answer.status:
        return answer.status
    found, at = [], 0
    for vbid, key in wanted:
        assert answer.value[at:].startswith(struct.pack(">HH", vbid, len(key)) + key)
        at += 4 + len(key)
        found.append(struct.unpack_from(">BQ", answer.value, at))
        at += 9
    assert at == len(answer.value)
    return found


@rule("KV-KEYS-02")
def test_observe(tmp_path):
    with DiskBucketStore(tmp_path / "bucket", 4) as store:
        client = Talker(engine_of(store))
        first, second = client.set("a", b"1").cas, client.set("b", b"1", vbid=3).cas
        assert observe(client, (0, b"\0a"), (3, b"\0b"), (0, b"\0c")) == [(0, first), (0, second), (0x80, 0)]
        store.commit()
        assert observe(client, (0, b"\0a")) == [(1, first)]
        gone = client.delete("a").cas
        assert observe(client, (0, b"\0a")) == [(0x81, gone)]
        store.commit()
        assert observe(client, (0, b"\0a")) == [(0x80, 0)]
        client.call(Opcode.GET_LOCKED, key=b"\0b", vbid=3)
        assert observe(client, (3, b"\0b")) == [(1, second)]
        assert observe(Talker(client.engine, features=NO_COLLECTIONS), (3, b"b")) == [(1, second)]


@rule("KV-KEYS-02", "KV-REQ-03")
def test_observe_refuses(client):
    assert observe(client, (9, b"\0k")) == Status.NOT_MY_VBUCKET
    assert observe(client, (0, b"\x63k")) == Status.UNKNOWN_COLLECTION
    assert observe(client, (0, b"\0")) == [(0x80, 0)]
    for value in (b"\0", b"\0\0\0\1", b"\0\0\0\3\0k"):
        assert client.call(Opcode.OBSERVE, value=value).status == Status.EINVAL
