"""vBuckets: seqnos, branches, roles, persistence, stats."""

from __future__ import annotations

import contextlib
import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from dcpstream.model import VbucketState
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream.wire.values import decode_failover_log, decode_vbucket_seqnos
from dcpstream_node.engine.bucket.vbucket import MEMORY_ITEMS
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.testing.simulation import USUAL_FEATURES, SeededRandom
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


def test_seqnos_of_all_vbuckets_by_state(client):
    client.set("k", b"v", vbid=1)
    client.set("k", b"v", vbid=1)
    set_state(client, VbucketState.REPLICA, 2)
    set_state(client, VbucketState.DEAD, 3)
    assert seqnos(client) == [(0, 0), (1, 2), (2, 0)]
    assert seqnos(client, b"\0\0\0\1") == [(0, 0), (1, 2)]
    assert seqnos(client, b"\0\0\0\2") == [(2, 0)]
    assert seqnos(client, b"\0\0\0\4") == [(3, 0)]
    assert seqnos(client, b"\0\0\0\1\0\0\0\0") == [(0, 0), (1, 2)]
    assert client.call(Opcode.GET_ALL_VB_SEQNOS, extras=b"\0\0\0\5").status == Status.EINVAL
    assert client.call(Opcode.GET_ALL_VB_SEQNOS, extras=b"\0\0\0\1\0\0\0\x63").status == Status.UNKNOWN_COLLECTION
    old = Talker(client.engine, features=USUAL_FEATURES[:2])
    assert seqnos(old) == [(0, 0), (1, 2), (2, 0)]
    assert old.call(Opcode.GET_ALL_VB_SEQNOS, extras=bytes(8)).status == Status.EINVAL


def test_a_promotion_begins_a_branch_at_what_is_persisted(on_disk):
    first = failover_log(on_disk).newest
    assert first.seqno == 0
    on_disk.set("k", b"v")
    set_state(on_disk, VbucketState.REPLICA)
    set_state(on_disk, VbucketState.ACTIVE)
    assert [entry.seqno for entry in failover_log(on_disk)] == [0, 0]
    flush(on_disk)
    set_state(on_disk, VbucketState.REPLICA)
    set_state(on_disk, VbucketState.ACTIVE)
    log = failover_log(on_disk)
    assert [entry.seqno for entry in log] == [1, 0, 0]
    assert log.entries[-1] == first
    set_state(on_disk, VbucketState.ACTIVE)
    assert failover_log(on_disk) == log
    assert struct.unpack(">QQ", on_disk.set("k", b"w").extras) == (log.newest.vbuuid, 2)


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


def test_a_vbucket_is_deleted_and_recreated(client):
    client.set("k", b"v")
    old = failover_log(client).newest
    assert client.call(Opcode.DEL_VBUCKET, extras=b"x").status == Status.EINVAL
    assert client.call(Opcode.DEL_VBUCKET, value=b"async=0").status == 0
    assert client.call(Opcode.DEL_VBUCKET).status == Status.NOT_MY_VBUCKET
    assert client.call(Opcode.GET_VBUCKET).status == Status.NOT_MY_VBUCKET
    assert client.call(Opcode.GET_FAILOVER_LOG).status == Status.NOT_MY_VBUCKET
    assert set_state(client, VbucketState.PENDING).status == 0
    assert client.call(Opcode.GET_VBUCKET).value == b"\0\0\0\3"
    assert failover_log(client).newest != old
    set_state(client, VbucketState.ACTIVE)
    assert client.get("k").status == Status.KEY_ENOENT


def test_set_vbucket_refuses_what_makes_no_sense(client):
    assert set_state(client, 5).status == Status.EINVAL
    assert set_state(client, 1, cas=1).status == Status.EINVAL
    assert set_state(client, 1, vbid=4).status == Status.ERANGE
    assert set_state(client, 1, value=b'{"topology":[["a",null]]}', datatype=1).status == 0
    assert client.stats("vbucket-details 0")["vb_0:topology"] == '[["a",null]]'


def test_set_vbucket_of_a_72_answers_what_makes_no_sense():
    client = Talker(engine_of(release="7.2"))
    assert set_state(client, 1, cas=1).status == Status.KEY_EEXISTS
    for state, value in ((1, b"{"), (2, b'{"topology":[["a"]]}')):
        assert set_state(client, state, value=value, datatype=1).status == Status.EINVAL, value


@pytest.mark.parametrize(("state", "value"), [(1, b"{"), (2, b'{"topology":[["a"]]}')])
def test_set_vbucket_of_an_80_closes_on_what_makes_no_sense(client, state, value):
    extras = bytes((state,))
    assert client.send(encode_request(Opcode.SET_VBUCKET, extras=extras, value=value, datatype=1)) == []
    assert client.session.is_closing


def test_observe_seqno_of_new_and_old_branches(on_disk):
    old = failover_log(on_disk).newest.vbuuid
    on_disk.set("a", b"1")
    flush(on_disk)
    on_disk.set("b", b"1")
    answer = on_disk.call(Opcode.OBSERVE_SEQNO, value=struct.pack(">Q", old)).value
    assert struct.unpack(">BHQQQ", answer) == (0, 0, old, 1, 2)
    set_state(on_disk, VbucketState.REPLICA)
    set_state(on_disk, VbucketState.ACTIVE)
    new = failover_log(on_disk).newest.vbuuid
    answer = on_disk.call(Opcode.OBSERVE_SEQNO, value=struct.pack(">Q", old)).value
    assert struct.unpack(">BHQQQQQ", answer) == (1, 0, new, 1, 2, old, 1)
    assert on_disk.call(Opcode.OBSERVE_SEQNO, value=struct.pack(">Q", 1)).status == Status.KEY_ENOENT
    assert on_disk.call(Opcode.OBSERVE_SEQNO, value=b"short").status == Status.EINVAL
    set_state(on_disk, VbucketState.DEAD)
    assert on_disk.call(Opcode.OBSERVE_SEQNO, value=struct.pack(">Q", new)).status == Status.NOT_MY_VBUCKET


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


def test_persistence_is_stopped_and_started(client):
    bucket = client.engine.buckets["default"]
    assert client.call(Opcode.STOP_PERSISTENCE).status == 0
    assert not bucket.is_persisting
    assert client.call(Opcode.START_PERSISTENCE).status == 0
    assert bucket.is_persisting


def test_what_a_72_checkpointed_counts_as_on_disk():
    client = Talker(engine_of(release="7.2"))
    vbucket = client.engine.buckets["default"].vbuckets[0]
    for key in "abc":
        client.set(key, b"v")
    assert vbucket.memory_start_seqno == 1
    assert client.call(Opcode.CREATE_CHECKPOINT).status == 0
    assert vbucket.memory_start_seqno == 4
    assert client.call(Opcode.CREATE_CHECKPOINT, vbid=9).status == Status.NOT_MY_VBUCKET


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


def test_an_unclean_store_begins_new_branches(tmp_path):
    store = DiskBucketStore(tmp_path / "bucket", 2)
    client = Talker(engine_of(store))
    client.set("a", b"1")
    store.commit()
    client.set("b", b"1")
    before = failover_log(client)
    other = failover_log(client, 1)
    store.close(clean=False)
    with DiskBucketStore(tmp_path / "bucket", 2) as store:
        client = Talker(engine_of(store))
        after = failover_log(client)
        assert [entry.seqno for entry in after] == [1, 0]
        assert after.entries[1] == before.newest
        assert failover_log(client, 1).entries[1] == other.newest
        assert (client.get("a").status, client.get("b").status) == (0, Status.KEY_ENOENT)
    with DiskBucketStore(tmp_path / "bucket", 2) as store:
        assert failover_log(Talker(engine_of(store))) == after


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


def test_stat_groups(client):
    client.set("k", b"v")
    log = failover_log(client)
    assert client.stats("vbucket") == {f"vb_{vbid}": "active" for vbid in range(4)}
    values = client.stats("vbucket-seqno 0")
    assert values["vb_0:high_seqno"] == values["vb_0:last_persisted_seqno"] == "1"
    assert values["vb_0:uuid"] == str(log.newest.vbuuid)
    assert client.stats("failovers 0") == {
        "vb_0:num_entries": "1",
        "vb_0:num_erroneous_entries_erased": "0",
        "vb_0:0:id": str(log.newest.vbuuid),
        "vb_0:0:seq": "0",
    }
    assert client.stats("vbucket-details 0")["vb_0:num_items"] == "1"
    assert client.stats("")["curr_items"] == "1"
    assert client.stats("dcp")["ep_dcp_count"] == "0"
    assert len(client.stats("failovers")) == 16


@rule("KV-STAT-02")
def test_stat_refuses_unknown_groups_and_vbuckets(client):
    assert client.call(Opcode.STAT, key=b"nosuch").status == Status.KEY_ENOENT
    assert client.call(Opcode.STAT, key=b"vbucket-seqno x").status == Status.EINVAL
    assert client.call(Opcode.STAT, key=b"vbucket-seqno 9").status == Status.NOT_MY_VBUCKET


def test_stat_dcp_lists_connections(client):
    other = Talker(client.engine)
    assert other.call(Opcode.DCP_OPEN, key=b"mine", extras=struct.pack(">II", 0, 1)).status == 0
    values = client.stats("dcp")
    assert values["eq_dcpq:mine:type"] == "producer"
    assert (values["ep_dcp_count"], values["ep_dcp_producer_count"]) == ("1", "1")


# --------------------------------------------------------------------------------------------------------- collections


def test_the_default_collection_is_found(client):
    manifest = json.loads(client.call(Opcode.GET_COLLECTIONS_MANIFEST).value)
    assert manifest["scopes"][0]["collections"] == [{"name": "_default", "uid": "0"}]
    for path in (b"_default._default", b".", b"._default"):
        assert client.call(Opcode.GET_COLLECTION_ID, value=path).extras == bytes(12)
        assert client.call(Opcode.GET_COLLECTION_ID, key=path).extras == bytes(12)
    assert client.call(Opcode.GET_COLLECTION_ID, value=b"_default.x").status == Status.UNKNOWN_COLLECTION
    assert client.call(Opcode.GET_COLLECTION_ID, value=b"x._default").status == Status.UNKNOWN_SCOPE
    assert client.call(Opcode.GET_COLLECTION_ID, value=b"nodot").status == Status.EINVAL
    assert client.call(Opcode.GET_COLLECTION_ID).status == Status.EINVAL
    assert client.call(Opcode.GET_SCOPE_ID, value=b"_default").extras == bytes(12)
    assert client.call(Opcode.GET_SCOPE_ID, value=b"x").status == Status.UNKNOWN_SCOPE


# ----------------------------------------------------------------------------------------------------------------- DCP


def test_a_stream_gets_history_and_then_what_is_written(client):
    client.set("a", b"1")
    dcp = Talker(client.engine)
    dcp.call(Opcode.DCP_OPEN, key=b"stream", extras=struct.pack(">II", 0, 1))
    dcp.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
    request = struct.pack(">IIQQQQQ", 0, 0, 0, (1 << 64) - 1, 0, 0, 0)
    answer, marker, mutation = dcp.send(encode_request(Opcode.DCP_STREAM_REQ, extras=request, opaque=3))
    assert decode_failover_log(answer.value) == failover_log(client)
    assert (marker.opcode, mutation.key, mutation.opaque) == (Opcode.DCP_SNAPSHOT_MARKER, b"\0a", 3)
    client.set("b", b"2")
    client.delete("a")
    assert [(frame.opcode, frame.key) for frame in dcp.collect()] == [
        (Opcode.DCP_SNAPSHOT_MARKER, b""),
        (Opcode.DCP_MUTATION, b"\0b"),
        (Opcode.DCP_DELETION, b"\0a"),
    ]
    set_state(client, VbucketState.REPLICA)
    (end,) = dcp.collect()
    assert (end.opcode, end.extras) == (Opcode.DCP_STREAM_END, b"\0\0\0\2")


def test_a_newer_connection_takes_a_name_over(client):
    older, newer = Talker(client.engine), Talker(client.engine)
    extras = struct.pack(">II", 0, 1)
    older.call(Opcode.DCP_OPEN, key=b"same", extras=extras)
    newer.call(Opcode.DCP_OPEN, key=b"same", extras=extras)
    assert older.session.is_closing
    older.session.connection_lost()
    assert client.engine.buckets["default"].dcp_sessions == {"same": newer.session}
    newer.session.connection_lost()
    assert client.engine.buckets["default"].dcp_sessions == {}


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


@pytest.mark.parametrize("state", [VbucketState.REPLICA, VbucketState.DEAD, None])
def test_a_pending_vbucket_that_does_not_become_active(client, state):
    admin = Talker(client.engine)
    set_state(admin, VbucketState.PENDING)
    client.receive(encode_request(Opcode.SET, key=b"\0k", extras=bytes(8)))
    if state is None:
        admin.call(Opcode.DEL_VBUCKET)
    else:
        set_state(admin, state)
    assert [frame.status for frame in client.collect()] == [Status.NOT_MY_VBUCKET]


def test_who_leaves_does_not_wait_for_a_pending_vbucket_any_more(client):
    admin = Talker(client.engine)
    set_state(admin, VbucketState.PENDING)
    client.receive(encode_request(Opcode.SET, key=b"\0k", extras=bytes(8)))
    client.session.connection_lost()
    set_state(admin, VbucketState.ACTIVE)
    assert admin.get("k").status == Status.KEY_ENOENT
    assert client.engine.buckets["default"].waiters.for_roles == []


def test_traffic_is_switched_off_and_on(client):
    client.set("k", b"v")
    assert client.call(Opcode.DISABLE_TRAFFIC).status == 0
    assert client.get("k").value == b"v"
    assert client.get("none").status == Status.TMPFAIL
    assert client.set("k", b"w").status == Status.TMPFAIL
    assert client.call(Opcode.NOOP).status == 0
    assert client.call(Opcode.ENABLE_TRAFFIC).status == 0
    assert client.get("k").value == b"v"


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
