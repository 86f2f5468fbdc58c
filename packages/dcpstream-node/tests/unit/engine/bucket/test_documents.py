"""Documents by KV commands, with every kind of client; direct ways and command table must not differ."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from dcpstream.model.json_text import is_json
from dcpstream.wire import Feature, Opcode, Status, decode_frame, encode_request
from dcpstream.wire.stored.block import Version
from dcpstream.wire.values import encode_xattrs, snappy_compress
from dcpstream_node.testing.simulation import START_UNIX_S, USUAL_FEATURES
from tests.kit.engine import Talker, engine_of, pass_time
from tests.kit.rules import rule

WITHOUT_COLLECTIONS = tuple(code for code in USUAL_FEATURES if code != Feature.COLLECTIONS)


@pytest.fixture(params=[USUAL_FEATURES, WITHOUT_COLLECTIONS, (Feature.XERROR,)], ids=["all", "no collections", "old"])
def client(request):
    return Talker(engine_of(), features=request.param)


def stored(client: Talker, vbid: int = 0) -> list[tuple[int, int, bytes, int, int]]:
    """(opcode, seqno, key, revision, CAS) of what the vbucket's history holds."""
    vbucket = client.engine.buckets["default"].vbuckets[vbid]
    assert vbucket is not None
    block = vbucket.read(0, vbucket.high_seqno, snapshot_end=None, max_bytes=1 << 20)
    rows = []
    for start in map(int, block.starts):
        frame = decode_frame(block.data, start)
        seqno, rev = struct.unpack_from(">QQ", frame.extras)
        rows.append((frame.opcode, seqno, frame.key, rev, frame.cas))
    return rows


def token(frame) -> tuple[int, int]:
    return struct.unpack(">QQ", frame.extras)


def test_set_and_get(client):
    written = client.set("k", b"value", flags=7)
    assert written.status == 0
    got = client.get("k")
    assert (got.value, got.extras, got.cas) == (b"value", b"\0\0\0\7", written.cas)
    assert stored(client) == [(Opcode.DCP_MUTATION, 1, b"\0k", 1, written.cas)]
    again = client.set("k", b"")
    assert again.cas > written.cas
    assert client.get("k").value == b""
    assert stored(client) == [(Opcode.DCP_MUTATION, 2, b"\0k", 2, again.cas)]


def test_tokens_only_where_negotiated(client):
    written = client.set("k", b"v")
    if Feature.MUTATION_SEQNO in client.session.features:
        vbucket = client.engine.buckets["default"].vbuckets[0]
        assert token(written) == (vbucket.vbuuid, 1)
        assert token(client.delete("k")) == (vbucket.vbuuid, 2)
    else:
        assert written.extras == b""
        assert client.delete("k").extras == b""


def test_add_and_replace(client):
    assert client.set("k", b"1", opcode=Opcode.REPLACE).status == Status.KEY_ENOENT
    assert client.set("k", b"1", opcode=Opcode.ADD).status == 0
    assert client.set("k", b"2", opcode=Opcode.ADD).status == Status.KEY_EEXISTS
    assert client.set("k", b"3", opcode=Opcode.REPLACE).status == 0
    assert client.get("k").value == b"3"
    assert client.set("k", b"1", opcode=Opcode.ADD, cas=5).status == Status.EINVAL


def test_cas(client):
    assert client.set("k", b"1", cas=9).status == Status.KEY_ENOENT
    first = client.set("k", b"1")
    assert client.set("k", b"2", cas=first.cas + 1).status == Status.KEY_EEXISTS
    second = client.set("k", b"2", cas=first.cas)
    assert second.status == 0
    assert client.delete("k", cas=first.cas).status == Status.KEY_EEXISTS
    assert client.delete("k", cas=second.cas).status == 0


def test_delete_leaves_a_tombstone_and_revisions_go_on(client):
    client.set("k", b"1")
    assert client.delete("nosuch").status == Status.KEY_ENOENT
    deleted = client.delete("k")
    assert deleted.status == 0
    assert client.get("k").status == Status.KEY_ENOENT
    assert client.delete("k").status == Status.KEY_ENOENT
    assert stored(client) == [(Opcode.DCP_DELETION, 2, b"\0k", 2, deleted.cas)]
    client.set("k", b"2")
    client.set("new", b"2")
    assert [(row[2], row[3]) for row in stored(client)] == [(b"\0k", 3), (b"\0new", 3)]


def test_cas_rises_also_when_the_clock_stands_or_goes_back(client):
    first = client.set("k", b"1").cas
    second = client.set("k", b"1").cas
    pass_time(client.engine, -1000)
    third = client.set("k", b"1").cas
    assert first < second < third
    assert first == START_UNIX_S * 1_000_000_000 & ~0xFFFF


def test_expiration_is_relative_or_absolute(client):
    client.set("soon", b"1", expiration=10)
    client.set("later", b"1", expiration=START_UNIX_S + 100)
    client.set("past", b"1", expiration=START_UNIX_S - 1)
    assert client.get("past").status == Status.KEY_ENOENT
    assert client.get("soon").status == 0
    pass_time(client.engine, 10)
    assert client.get("soon").status == Status.KEY_ENOENT
    assert client.get("later").status == 0
    kinds = {row[2]: (row[0], row[3]) for row in stored(client)}
    assert kinds[b"\0soon"] == (Opcode.DCP_EXPIRATION, 2)
    assert client.set("soon", b"2", opcode=Opcode.ADD).status == 0


def test_touch_changes_the_expiration_and_gat_reads_too(client):
    client.set("k", b"v", flags=3)
    assert client.call(Opcode.TOUCH, key=client.key("k"), extras=struct.pack(">I", 5)).status == 0
    got = client.call(Opcode.GAT, key=client.key("k"), extras=struct.pack(">I", 50))
    assert (got.value, got.extras) == (b"v", b"\0\0\0\3")
    pass_time(client.engine, 6)
    assert client.get("k").status == 0
    pass_time(client.engine, 50)
    assert client.get("k").status == Status.KEY_ENOENT
    assert client.call(Opcode.TOUCH, key=client.key("k"), extras=bytes(4)).status == Status.KEY_ENOENT


def test_preserved_expiration():
    client = Talker(engine_of())
    client.set("k", b"1", expiration=10)
    client.set("k", b"2", expiration=0, framing=b"\x50")
    pass_time(client.engine, 11)
    assert client.get("k").status == Status.KEY_ENOENT


def test_counters(client):
    def count(opcode: int, delta: int, initial: int = 0, expiration: int = 0):
        extras = struct.pack(">QQI", delta, initial, expiration)
        return client.call(opcode, key=client.key("c"), extras=extras)

    assert count(Opcode.INCREMENT, 1, expiration=0xFFFFFFFF).status == Status.KEY_ENOENT
    assert count(Opcode.INCREMENT, 1, 10).value == struct.pack(">Q", 10)
    assert count(Opcode.INCREMENT, 5).value == struct.pack(">Q", 15)
    assert count(Opcode.DECREMENT, 20).value == struct.pack(">Q", 0)
    assert client.get("c").value == b"0"
    client.set("c", str((1 << 64) - 1).encode())
    assert count(Opcode.INCREMENT, 2).value == struct.pack(">Q", 1)
    client.set("c", b"no number")
    assert count(Opcode.INCREMENT, 1).status == Status.DELTA_BADVAL


def test_append_and_prepend(client):
    assert client.call(Opcode.APPEND, key=client.key("k"), value=b"x").status == Status.NOT_STORED
    client.set("k", b"b", flags=9)
    assert client.call(Opcode.APPEND, key=client.key("k"), value=b"c").status == 0
    assert client.call(Opcode.PREPEND, key=client.key("k"), value=b"a").status == 0
    got = client.get("k")
    assert (got.value, got.extras) == (b"abc", b"\0\0\0\x09")


def test_quiet_forms_answer_errors_only(client):
    extras = bytes(8)
    key = client.key("k")
    quiet = encode_request(Opcode.SETQ, key=key, extras=extras, value=b"1", opaque=1)
    quiet += encode_request(Opcode.ADDQ, key=key, extras=extras, value=b"2", opaque=2)
    quiet += encode_request(Opcode.GETQ, key=client.key("none"), opaque=3)
    quiet += encode_request(Opcode.GETQ, key=key, opaque=4)
    quiet += encode_request(Opcode.GETKQ, key=key, opaque=5)
    quiet += encode_request(Opcode.DELETEQ, key=key, opaque=6)
    quiet += encode_request(Opcode.GETK, key=key, opaque=7)
    answers = [(frame.opaque, frame.status, frame.key) for frame in client.send(quiet)]
    assert answers == [(2, Status.KEY_EEXISTS, b""), (4, 0, b""), (5, 0, key), (7, Status.KEY_ENOENT, b"")]


def test_meta_tells_of_tombstones(client):
    client.set("k", b"1", flags=5, expiration=100)
    meta = client.call(Opcode.GET_META, key=client.key("k"))
    assert struct.unpack(">IIIQ", meta.extras) == (0, 5, START_UNIX_S + 100, 1)
    client.delete("k")
    meta = client.call(Opcode.GET_META, key=client.key("k"), extras=b"\x02")
    assert struct.unpack(">IIIQB", meta.extras) == (1, 5, START_UNIX_S + 100, 2, 0), "not persisted yet"
    pass_time(client.engine, 0.01)
    meta = client.call(Opcode.GET_META, key=client.key("k"), extras=b"\x02")
    assert struct.unpack(">IIIQB", meta.extras) == (1, 5, START_UNIX_S, 2, 0)
    assert client.call(Opcode.GET_META, key=client.key("none")).status == Status.KEY_ENOENT
    assert client.call(Opcode.GET_META, key=client.key("k"), extras=b"\x03").status == Status.EINVAL


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"a":[1,2.5e3,null,true]}', True),
        (b"123", True),
        (b' "text" ', True),
        ('{"ä":"ø"}'.encode(), True),
        (b"{", False),
        (b"plain", False),
        (b"nan", False),
        (b"NaN", False),
        (b"[Infinity]", False),
        (b'{"a":1}{', False),
        (b'"\xff"', False),
        (b"", False),
        (b"[" * 100_000, False),
        (b"1" * 5000, True),
    ],
)
def test_json_is_found_by_looking(value, expected):
    assert is_json(value) is expected
    client = Talker(engine_of())
    client.set("k", value)
    assert client.get("k").datatype == int(expected)
    old = Talker(client.engine, features=(Feature.XERROR,))
    assert old.get("k").datatype == 0


def test_snappy_values_are_inflated():
    client = Talker(engine_of())
    value = b'{"text":"' + b"a" * 500 + b'"}'
    assert client.set("k", snappy_compress(value), datatype=3).status == 0
    got = client.get("k")
    assert (got.value, got.datatype) == (value, 1)
    assert client.set("k", b"\xff" * 20, datatype=2).status == Status.EINVAL
    refused = Talker(client.engine, features=WITHOUT_COLLECTIONS[:2])
    assert refused.set("k", snappy_compress(value), datatype=2).status == Status.EINVAL


def test_xattrs_stay_when_the_body_changes_and_system_ones_when_it_goes():
    client = Talker(engine_of())
    vbucket = client.engine.buckets["default"].vbuckets[0]
    assert vbucket is not None
    from dcpstream_node.engine.bucket import documents

    section = encode_xattrs({"_sys": b"1", "user": b"2"}, b"old")
    documents.store(vbucket, Version(b"\0k", section, 1, datatype=4), client.engine.unix_ns)
    assert (client.get("k").value, client.get("k").datatype) == (b"old", 0)
    client.set("k", b'{"new":1}')
    item = vbucket.log.get(b"\0k")
    assert (item.value, item.datatype) == (encode_xattrs({"_sys": b"1", "user": b"2"}, b'{"new":1}'), 5)
    assert client.get("k").value == b'{"new":1}'
    client.delete("k")
    item = vbucket.log.get(b"\0k")
    assert (item.value, item.datatype, item.is_deleted) == (encode_xattrs({"_sys": b"1"}), 4, True)


def test_keys_with_collections():
    client = Talker(engine_of())
    value: dict[str, Any] = {"extras": bytes(8), "value": b"v"}
    assert client.call(Opcode.SET, key=b"\0" + b"k" * 250, **value).status == 0
    assert client.call(Opcode.SET, key=b"\0" + b"k" * 251, **value).status == Status.EINVAL
    assert client.call(Opcode.SET, key=b"\0", **value).status == Status.EINVAL
    assert client.call(Opcode.SET, key=b"\x80\0k", **value).status == Status.EINVAL
    assert client.call(Opcode.SET, key=b"\x05k", **value).status == Status.EINVAL
    unknown = client.call(Opcode.GET, key=b"\x09k")
    assert unknown.status == Status.UNKNOWN_COLLECTION
    assert b'"manifest_uid":"0"' in unknown.value


def test_keys_without_collections_are_the_same_documents():
    engine = engine_of()
    new, old = Talker(engine), Talker(engine, features=(Feature.XERROR,))
    new.set("k", b"v")
    assert old.get("k").value == b"v"
    assert old.call(Opcode.SET, key=b"k" * 251, extras=bytes(8)).status == Status.EINVAL


def test_vbuckets_that_are_not_here(client):
    client.call(Opcode.GET_CLUSTER_CONFIG)
    for vbid in (4, 65535):
        assert client.set("k", b"v", vbid=vbid).status == Status.NOT_MY_VBUCKET
        assert client.get("k", vbid=vbid).status == Status.NOT_MY_VBUCKET
        assert b"vBucketServerMap" in client.delete("k", vbid=vbid).value
    client.call(Opcode.SET_VBUCKET, vbid=2, extras=b"\x02")
    assert client.get("k", vbid=2).status == Status.NOT_MY_VBUCKET
    assert client.call(Opcode.GET_REPLICA, key=client.key("k"), vbid=2).status == Status.KEY_ENOENT
    assert client.call(Opcode.GET_REPLICA, key=client.key("k"), vbid=1).status == Status.NOT_MY_VBUCKET


def test_a_client_that_knows_the_map_is_not_sent_it_again():
    client = Talker(engine_of(release="7.6"), features=(*USUAL_FEATURES, Feature.DEDUPE_NOT_MY_VBUCKET))
    assert client.get("k", vbid=9).value
    assert client.get("k", vbid=9).value == b""


def test_values_have_a_limit(client):
    assert client.set("k", b"\x80" * (20 * 1024 * 1024)).status == 0
    assert client.set("k", b"\x80" * (20 * 1024 * 1024 + 1)).status == Status.E2BIG


@rule("KV-WRITE-01")
def test_writes_wait_while_the_disk_is_behind(client):
    store = client.engine.buckets["default"].store
    store.pending_bytes = 1 << 40
    assert client.set("k", b"v").status == Status.TMPFAIL
    assert client.get("k").status == Status.KEY_ENOENT


@rule("KV-EXP-01")
@pytest.mark.parametrize("value", [b"{}", b"v"])
def test_an_expiration_before_the_start_of_the_node(value: bytes):
    engine = engine_of()
    client = Talker(engine)
    engine.started = engine.now
    pass_time(engine, 100)
    for name, expiration in (("old", 1_000_000_000), ("at start", START_UNIX_S), ("later", START_UNIX_S + 50)):
        assert client.set(name, value, expiration=expiration).status == 0
    vbucket = engine.buckets["default"].vbuckets[0]
    kept = [vbucket.log.meta(b"\0" + name).expiration - START_UNIX_S for name in (b"old", b"at start", b"later")]
    assert kept == [1, 1, 50]
    assert client.get("old").status == Status.KEY_ENOENT


@rule("KV-EXP-02")
def test_a_new_document_after_an_expiration():
    engine = engine_of()
    client = Talker(engine)
    client.set("short", b"v", expiration=1)
    client.set("gone", b"v")
    client.call(Opcode.DELETE, key=client.key("gone"))
    client.set("after a deletion", b"v")
    pass_time(engine, 5)
    assert client.get("short").status == Status.KEY_ENOENT
    client.set("after an expiration", b"v")
    assert {key[1:]: rev for _, _, key, rev, _ in stored(client)} == {
        b"gone": 2,
        b"after a deletion": 3,
        b"short": 2,
        b"after an expiration": 4,
    }
