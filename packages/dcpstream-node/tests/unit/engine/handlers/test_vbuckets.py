"""vBuckets: seqnos, branches, roles, persistence, stats."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from typing import Any

import pytest

from dcpstream.model import VbucketState
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream.wire.values import decode_failover_log, decode_vbucket_seqnos
from dcpstream_node.engine.bucket.vbucket import MEMORY_ITEMS
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.testing.simulation import SeededRandom
from tests.kit.engine import Talker, engine_of, flush, pass_time
from tests.kit.rules import rule


@pytest.fixture
def client():
    return Talker(engine_of())


@pytest.fixture
def on_disk(tmp_path):
    with DiskBucketStore(tmp_path / "bucket", 4) as store:
        yield Talker(engine_of(store))


def set_state(client: Talker, state: int, vbid: int = 0, **fields: Any):
    return client.call(Opcode.SET_VBUCKET, vbid=vbid, extras=bytes((state,)), **fields)


def failover_log(client: Talker, vbid: int = 0):
    return decode_failover_log(client.call(Opcode.GET_FAILOVER_LOG, vbid=vbid).value)


def seqnos(client: Talker, extras: bytes = b"") -> list[tuple[int, int]]:
    return decode_vbucket_seqnos(client.call(Opcode.GET_ALL_VB_SEQNOS, extras=extras).value)


def test_in_memory_everything_counts_as_persisted(client):
    client.set("k", b"v")
    set_state(client, VbucketState.DEAD)
    set_state(client, VbucketState.ACTIVE)
    assert [entry.seqno for entry in failover_log(client)] == [1, 0]


def test_the_failover_log_keeps_25_entries(client):
    for _ in range(30):
        set_state(client, VbucketState.REPLICA)
        set_state(client, VbucketState.ACTIVE)
    assert len(failover_log(client)) == 25


@pytest.mark.parametrize(("state", "value"), [(1, b"{"), (2, b'{"topology":[["a"]]}')])
def test_set_vbucket_of_an_80_closes_on_what_makes_no_sense(client, state, value):
    extras = bytes((state,))
    assert client.send(encode_request(Opcode.SET_VBUCKET, extras=extras, value=value, datatype=1)) == []
    assert client.session.is_closing


def test_seqno_persistence_holds_later_requests_back(on_disk):
    on_disk.set("k", b"v")
    requests = encode_request(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", 1), opaque=1)
    requests += encode_request(Opcode.NOOP, opaque=2)
    used = on_disk.receive(requests)
    assert on_disk.session.is_waiting
    assert on_disk.collect() == []
    flush(on_disk)
    assert not on_disk.session.is_waiting
    assert [(frame.opaque, frame.status) for frame in on_disk.collect()] == [(1, 0)]
    assert [frame.opaque for frame in on_disk.send(requests[used:])] == [2]
    assert on_disk.call(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", 1)).status == 0


def test_seqno_persistence_does_not_wait_for_ever(on_disk):
    engine = on_disk.engine
    on_disk.receive(encode_request(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", 9)))
    assert engine.next_timeout() == engine.now + 30
    pass_time(engine, 29)
    engine.handle_timeout()
    assert on_disk.collect() == []
    pass_time(engine, 1)
    engine.handle_timeout()
    assert [frame.status for frame in on_disk.collect()] == [Status.TMPFAIL]
    assert engine.next_timeout() is None
    assert on_disk.call(Opcode.NOOP).status == 0


def test_requests_that_wait_for_a_deleted_vbucket_are_answered(on_disk):
    on_disk.set("k", b"v")
    on_disk.receive(encode_request(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", 1)))
    Talker(on_disk.engine).call(Opcode.DEL_VBUCKET)
    assert on_disk.collect()[0].status == Status.NOT_MY_VBUCKET


def test_memory_is_bounded(client):
    vbucket = client.engine.buckets["default"].vbuckets[0]
    for number in range(2 * MEMORY_ITEMS + 1):
        vbucket.log.append(
            encode_request(Opcode.DCP_MUTATION, extras=struct.pack(">QQ", number + 1, 1) + bytes(15), key=b"\0k"),
            b"\0k",
            number + 1,
        )
    vbucket.age_memory()
    assert vbucket.high_seqno - vbucket.memory_start_seqno + 1 == MEMORY_ITEMS


def test_cas_rises_over_a_restart_with_a_clock_that_is_behind(tmp_path):
    with DiskBucketStore(tmp_path / "bucket", 1) as store:
        client = Talker(engine_of(store))
        pass_time(client.engine, 1000)
        before = client.set("k", b"1").cas
    with DiskBucketStore(tmp_path / "bucket", 1) as store:
        client = Talker(engine_of(store))
        assert client.set("k", b"2").cas == before + 1
        assert client.set("l", b"2").cas == before + 2


def test_deleted_vbuckets_stay_away_after_a_restart(tmp_path):
    with DiskBucketStore(tmp_path / "bucket", 4) as store:
        Talker(engine_of(store)).call(Opcode.DEL_VBUCKET, vbid=2)
    with DiskBucketStore(tmp_path / "bucket", 4) as store:
        assert [vbid for vbid, _ in seqnos(Talker(engine_of(store)))] == [0, 1, 3]


# ---------------------------------------------------------------------------------------------------------------- STAT


@rule("KV-STAT-02")
def test_stat_refuses_unknown_groups_and_vbuckets(client):
    assert client.call(Opcode.STAT, key=b"nosuch").status == Status.KEY_ENOENT
    assert client.call(Opcode.STAT, key=b"vbucket-seqno x").status == Status.EINVAL
    assert client.call(Opcode.STAT, key=b"vbucket-seqno 9").status == Status.NOT_MY_VBUCKET


# --------------------------------------------------------------------------------------------------------- collections


# ----------------------------------------------------------------------------------------------------------------- DCP


def test_random_is_seeded():
    assert SeededRandom(3).getrandbits(48) == SeededRandom(3).getrandbits(48)


def test_a_request_for_a_pending_vbucket_waits(client):
    admin = Talker(client.engine)
    client.set("k", b"v")
    set_state(admin, VbucketState.PENDING)
    used = client.receive(encode_request(Opcode.GET, key=b"\0k", opaque=1) + encode_request(Opcode.NOOP))
    assert used == 24 + 2
    assert client.session.is_waiting
    set_state(admin, VbucketState.PENDING, vbid=1)
    set_state(admin, VbucketState.ACTIVE, vbid=1)  # another vbucket
    assert client.collect() == []
    set_state(admin, VbucketState.ACTIVE)
    assert [(frame.opaque, frame.value) for frame in client.collect()] == [(1, b"v")]
    assert not client.session.is_waiting


def test_who_leaves_does_not_wait_for_a_pending_vbucket_any_more(client):
    admin = Talker(client.engine)
    set_state(admin, VbucketState.PENDING)
    client.receive(encode_request(Opcode.SET, key=b"\0k", extras=bytes(8)))
    client.session.connection_lost()
    set_state(admin, VbucketState.ACTIVE)
    assert admin.get("k").status == Status.KEY_ENOENT
    assert client.engine.buckets["default"].waiters.for_roles == []


def test_the_longest_life_in_a_bucket(client):
    bucket = client.engine.buckets["default"]
    bucket.change_settings(replace(bucket.settings, max_ttl=100))
    now = client.engine.unix_s
    for asked, kept in ((0, 100), (50, 50), (200, 100), (now + 99, 99), (now + 101, 100)):
        client.set("k", b"v", expiration=asked)
        assert bucket.vbuckets[0].log.meta(b"\0k").expiration == now + kept
    client.call(Opcode.TOUCH, key=b"\0k", extras=bytes(4))
    assert bucket.vbuckets[0].log.meta(b"\0k").expiration == now + 100


@contextlib.contextmanager
def reopened(path, *, is_clean):
    """A client of a member of a cluster whose four vbuckets were active before its store was closed."""
    store = DiskBucketStore(path, 4)
    engine_of(store)
    store.close(clean=is_clean)
    with DiskBucketStore(path, 4) as store:
        engine = engine_of(store)
        engine.buckets["default"].stand_down()
        yield Talker(engine)


def branches(client, vbid):
    return len(decode_failover_log(client.call(Opcode.GET_FAILOVER_LOG, vbid=vbid).value).entries)


def test_a_copy_that_was_closed_cleanly_goes_on_with_its_branch(tmp_path):
    with reopened(tmp_path, is_clean=True) as client:
        assert client.call(Opcode.GET_VBUCKET, vbid=0).value == struct.pack(">I", VbucketState.DEAD)
        before = branches(client, 0)
        for vbid, roles in enumerate(([b"\x01"], [b"\x02", b"\x01"], [b"\x04", b"\x01"], [b"\x01", b"\x04", b"\x01"])):
            for role in roles:
                assert client.call(Opcode.SET_VBUCKET, vbid=vbid, extras=role).status == 0
        found = [branches(client, vbid) - before for vbid in range(4)]
    assert found == [0, 1, 1, 1], "only a copy whose first role it is"


def test_a_copy_that_was_not_closed_cleanly_begins_a_branch(tmp_path):
    with reopened(tmp_path, is_clean=False) as client:
        before = branches(client, 0)
        assert client.call(Opcode.SET_VBUCKET, vbid=0, extras=b"\x01").status == 0
        assert branches(client, 0) == before + 1
