"""Durable writes of a vbucket: who decides them, and what is remembered of them."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from dcpstream.wire import Feature, Opcode, Status, encode_request
from dcpstream.wire.keys import encode_frame_info
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of, pass_time

DURABLE = (*USUAL_FEATURES, Feature.SYNC_REPLICATION)
EXTRAS = bytes(8)


def node(topology: bytes = b'[["a"]]', store=None, **options):
    """(engine, vbucket 0, a client)."""
    engine = engine_of(store, **options)
    client = Talker(engine, features=DURABLE)
    set_topology(engine, topology)
    return engine, vbucket_of(engine), client


def vbucket_of(engine):
    vbucket = engine.buckets["default"].vbuckets[0]
    assert vbucket is not None
    return vbucket


def set_topology(engine, topology: bytes) -> None:
    admin = Talker(engine, user="@admin")
    value = b'{"topology":%s}' % topology
    assert admin.call(Opcode.SET_VBUCKET, extras=b"\1", value=value, datatype=1).status == 0


def request(opcode: int = Opcode.SET, key: bytes = b"\0k", *, level: int = 1, timeout_ms: int = 0, **fields) -> bytes:
    fields = {"extras": EXTRAS, "value": b"v", **fields}
    data = bytes([level]) + (timeout_ms.to_bytes(2, "big") if timeout_ms else b"")
    return encode_request(opcode, key=key, opaque=9, framing=encode_frame_info(1, data), **fields)


@each_case(
    ("opcode", "fields", "value"),
    [
        (Opcode.SET, {}, b"v"),
        (Opcode.REPLACE, {}, b"v"),
        (Opcode.APPEND, {"extras": b""}, b"1v"),
        (Opcode.PREPEND, {"extras": b""}, b"v1"),
        (Opcode.INCREMENT, {"extras": struct.pack(">QQI", 2, 0, 0), "value": b""}, b"3"),
    ],
)
def test_alone_a_node_decides_at_once(opcode, fields, value):
    _, vbucket, client = node()
    client.set("k", b"1")
    (answer,) = client.send(request(opcode, **fields))
    assert answer.status == 0
    assert struct.unpack(">QQ", answer.extras) == (vbucket.vbuuid, 2)
    got = client.get("k")
    assert (got.value, got.cas) == (value, answer.cas)
    if opcode == Opcode.INCREMENT:
        assert answer.value == (3).to_bytes(8, "big")
    assert vbucket.high_seqno == 3
    assert dict(vbucket.durability.commits) == {3: 2}


@each_case(
    ("topology", "acknowledging", "is_decided"),
    [
        (b'[["a","b"]]', [], False),
        (b'[["a","b"]]', ["c"], False),
        (b'[["a","b"]]', ["b"], True),
        (b'[["a","b","c"]]', ["c"], True),
        (b'[["a","b"],["a","c"]]', ["b"], False),
        (b'[["a","b"],["a","c"]]', ["b", "c"], True),
    ],
)
def test_a_majority_of_every_chain(topology, acknowledging, is_decided):
    _, vbucket, client = node(topology)
    assert client.send(request()) == []
    for name in acknowledging:
        vbucket.durability.acknowledged(name, 1)
    assert bool(client.collect()) is is_decided
    assert (vbucket.high_seqno == 2) is is_decided


def test_decisions_come_in_order():
    engine, vbucket, client = node(b'[["a","b"]]')
    other = Talker(engine, features=DURABLE)
    client.send(request(key=b"\0k"))
    other.send(request(key=b"\0l"))
    vbucket.durability.acknowledged("b", 2)
    assert [client.collect()[0].status, other.collect()[0].status] == [0, 0]
    assert dict(vbucket.durability.commits) == {3: 1, 4: 2}
    assert vbucket.durability.high_completed_seqno == 2


def test_quiet_forms_cannot_be_durable():
    _, vbucket, client = node()
    assert [frame.status for frame in client.send(request(Opcode.SETQ))] == [Status.EINVAL]
    assert vbucket.high_seqno == 0


def test_a_level_that_asks_for_the_disk(tmp_path):
    store = DiskBucketStore(tmp_path, 4)
    engine, vbucket, client = node(store=store)
    assert client.send(request(level=3)) == []
    assert vbucket.durability.high_prepared_seqno == 0
    engine.persisted("default", [vbid for vbid, _ in store.commit()])
    assert [frame.status for frame in client.collect()] == [0]
    assert vbucket.durability.high_prepared_seqno == 1
    store.close()


@each_case(("timeout_ms", "seconds"), [(0, 30.0), (1500, 1.5)])
def test_time_is_up(timeout_ms, seconds):
    engine, vbucket, client = node(b'[["a","b"]]')
    client.send(request(timeout_ms=timeout_ms))
    assert engine.next_timeout() == engine.now + seconds
    pass_time(engine, seconds - 0.1)
    engine.handle_timeout()
    assert client.collect() == []
    pass_time(engine, 0.1)
    engine.handle_timeout()
    assert [frame.status for frame in client.collect()] == [Status.SYNC_WRITE_AMBIGUOUS]
    assert engine.next_timeout() is None
    assert (vbucket.high_seqno, vbucket.durability.high_completed_seqno) == (2, 1)
    assert not vbucket.durability.undecided
    vbucket.durability.acknowledged("b", 1)
    assert vbucket.high_seqno == 2


def test_what_the_store_holds(tmp_path):
    with DiskBucketStore(tmp_path, 4) as store:
        engine, _, client = node(store=store)
        client.send(request(key=b"\0done"))
        set_topology(engine, b'[["a","b"]]')
        client.send(request(key=b"\0open"))
        store.commit()
    with DiskBucketStore(tmp_path, 4) as store:
        vbucket = vbucket_of(engine_of(store))
        assert list(vbucket.durability.undecided) == [b"\0open"]
        assert vbucket.durability.high_completed_seqno == 1
        assert dict(vbucket.durability.commits) == {}


def test_a_checkpoint_holds_one_prepare_of_a_document():
    _, vbucket, client = node()
    client.send(request())
    client.send(request(key=b"\0l"))
    assert vbucket.memory_start_seqno == 1
    client.send(request())
    assert vbucket.memory_start_seqno == 5


@each_case(("release", "start"), [("7.2", 3), ("8.0", 1)])
def test_before_80_an_old_checkpoint_is_followed_by_another(release, start):
    engine, vbucket, client = node(release=release)
    client.set("a", b"1")
    pass_time(engine, 4.9)
    client.set("b", b"1")
    assert vbucket.memory_start_seqno == 1
    pass_time(engine, 0.2)
    client.set("c", b"1")
    assert vbucket.memory_start_seqno == start
    client.set("d", b"1")
    assert vbucket.memory_start_seqno == start


def test_deletions_are_not_purged_beyond_what_is_undecided():
    engine, vbucket, client = node(b'[["a","b"]]')
    client.set("first", b"v")
    client.delete("first")
    client.send(request())
    other = Talker(engine, features=DURABLE)
    other.set("second", b"v")
    other.delete("second")
    other.set("last", b"v")
    admin = Talker(engine, user="@admin")
    compact = struct.pack(">QQBBHI", 0, 0, 1, 0, 0, 0)
    assert admin.call(Opcode.COMPACT_DB, extras=compact).status == 0
    assert vbucket.purge_seqno == 2
    vbucket.durability.acknowledged("b", 3)
    assert admin.call(Opcode.COMPACT_DB, extras=compact).status == 0
    assert vbucket.purge_seqno == 5


def test_a_rollback_forgets_what_was_decided_since():
    _, vbucket, client = node()
    client.set("a", b"v")
    client.send(request())
    assert (vbucket.high_seqno, dict(vbucket.durability.commits)) == (3, {3: 2})
    vbucket.log.rollback(2)
    vbucket.durability.reload()
    assert list(vbucket.durability.undecided) == [b"\0k"]
    assert dict(vbucket.durability.commits) == {}


def test_touching_cannot_be_durable():
    _, _, client = node()
    for opcode in (Opcode.TOUCH, Opcode.GAT):
        answers = client.send(request(opcode, extras=bytes(4), value=b""))
        assert [frame.status for frame in answers] == [Status.NOT_SUPPORTED]


@each_case("opcode", [Opcode.SET, Opcode.SETQ, Opcode.INCREMENT, Opcode.DELETE, Opcode.DELETEQ])
def test_what_the_least_durability_of_a_bucket_makes_of_writes(opcode):
    engine, vbucket, client = node(b'[["a","b"]]')
    client.set("k", b"7")
    bucket = engine.buckets["default"]
    bucket.change_settings(replace(bucket.settings, durability_min_level=1))
    extras = {Opcode.INCREMENT: struct.pack(">QQI", 1, 0, 0)}.get(opcode, EXTRAS if "SET" in opcode.name else b"")
    value = b"8" if "SET" in opcode.name else b""
    plain = encode_request(opcode, key=b"\0k", opaque=9, extras=extras, value=value)
    assert client.receive(plain) == len(plain)
    assert client.session.is_waiting
    assert vbucket.durability is not None
    vbucket.durability.acknowledged("b", vbucket.high_seqno)
    answers = client.collect()
    assert [frame.status for frame in answers] == ([] if opcode.name.endswith("Q") else [0])
    assert not client.session.is_waiting
    assert client.get("k").status == (Status.KEY_ENOENT if "DELETE" in opcode.name else 0)
    assert client.get("k").value in (b"8", b"")


def test_the_least_durability_of_a_bucket_can_be_impossible():
    engine, _, client = node(b'[["a",null]]')
    bucket = engine.buckets["default"]
    bucket.change_settings(replace(bucket.settings, durability_min_level=3))
    assert client.set("k", b"v").status == Status.DURABILITY_IMPOSSIBLE


@pytest.mark.parametrize(("level", "commits"), [(1, 0), (2, 1), (3, 1)])
def test_a_write_that_waits_for_the_disk_asks_for_a_commit(tmp_path, level, commits):
    """With `persist=none` the next commit would else begin after ten seconds."""
    engine, _, client = node(store=DiskBucketStore(tmp_path, 4))
    asked: list[None] = []
    engine.buckets["default"].commit_soon = lambda: asked.append(None)
    client.send(request(level=level))
    assert len(asked) == commits
    engine.buckets["default"].store.close()
