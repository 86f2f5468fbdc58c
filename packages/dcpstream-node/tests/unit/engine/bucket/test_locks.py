"""GET_LOCKED and UNLOCK, and what a lock means to every other command."""

from __future__ import annotations

import struct

import pytest

from dcpstream.wire import Feature, Opcode, Status
from dcpstream_node.engine.bucket.locks import LOCKS_MAX, Lock, Locks
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.engine import Talker, engine_of, pass_time

NO_COLLECTIONS = tuple(code for code in USUAL_FEATURES if code != Feature.COLLECTIONS)
STORE = bytes(8)
META = struct.pack(">IIQQ", 0, 0, 99, 1 << 60)

WRITES = [
    (Opcode.SET, STORE, b"1"),
    (Opcode.SETQ, STORE, b"1"),
    (Opcode.REPLACE, STORE, b"1"),
    (Opcode.REPLACEQ, STORE, b"1"),
    (Opcode.DELETE, b"", b""),
    (Opcode.DELETEQ, b"", b""),
    (Opcode.APPEND, b"", b"1"),
    (Opcode.APPENDQ, b"", b"1"),
    (Opcode.PREPEND, b"", b"1"),
    (Opcode.PREPENDQ, b"", b"1"),
    (Opcode.SET_WITH_META, META, b"1"),
    (Opcode.DELETE_WITH_META, META, b""),
]


@pytest.fixture(params=[USUAL_FEATURES, NO_COLLECTIONS], ids=["all", "no collections"])
def client(request):
    client = Talker(engine_of(), features=request.param)
    client.set("k", b"7", flags=3)
    return client


def lock(client: Talker, seconds: int | None = None):
    extras = b"" if seconds is None else struct.pack(">I", seconds)
    return client.call(Opcode.GET_LOCKED, key=client.key("k"), extras=extras)


def unlock(client: Talker, cas: int):
    return client.call(Opcode.UNLOCK, key=client.key("k"), cas=cas)


def test_a_lock_ends_with_its_time(client):
    for asked, lasts in ((None, 15), (0, 15), (1, 1), (30, 30), (31, 15)):
        cas = lock(client, asked).cas
        pass_time(client.engine, lasts - 0.001)
        assert client.set("k", b"1").status == Status.LOCKED, asked
        pass_time(client.engine, 0.001)
        assert unlock(client, cas).status == Status.NOT_LOCKED
        assert client.set("k", b"1").status == 0, asked


def test_locking_twice_and_unlocking_wrongly(client):
    assert unlock(client, 5).status == Status.NOT_LOCKED
    assert unlock(client, 0).status == Status.EINVAL
    cas = lock(client).cas
    assert lock(client).status == Status.LOCKED
    assert unlock(client, cas + 1).status == Status.LOCKED
    assert unlock(client, cas).status == 0
    assert unlock(client, cas).status == Status.NOT_LOCKED
    client.delete("k")
    assert lock(client).status == Status.KEY_ENOENT
    assert unlock(client, cas).status == Status.KEY_ENOENT
    assert client.call(Opcode.GET_LOCKED, key=client.key("k"), extras=b"\0").status == Status.EINVAL
    assert client.call(Opcode.GET_LOCKED, key=client.key("k"), vbid=9).status == Status.NOT_MY_VBUCKET


def test_a_lock_does_not_outlive_the_role(client):
    lock(client)
    for state in (2, 1):
        assert client.call(Opcode.SET_VBUCKET, extras=bytes((state,))).status == 0
    assert client.set("k", b"8").status == 0


def test_an_expired_document_is_not_locked(client):
    client.set("k", b"7", expiration=5)
    lock(client)
    pass_time(client.engine, 6)
    assert client.get("k").status == Status.KEY_ENOENT
    assert client.set("k", b"8").status == 0


def test_locks_are_bounded():
    locks = Locks()
    for number in range(LOCKS_MAX):
        assert locks.take(b"%d" % number, Lock(1, 100 if number else 50, 1), 0)
    assert not locks.take(b"more", Lock(1, 100, 1), 49)
    assert locks.take(b"more", Lock(1, 100, 1), 50)  # one of them is over by now
    assert locks.find(b"more", 1, 99)
    assert not locks.find(b"more", 2, 99)  # another version


HOUR_NS = 3600 * 10**9


def test_a_clock_that_is_set_back_makes_no_lock_longer_and_no_cas_smaller():
    engine = engine_of()
    owner, other = Talker(engine), Talker(engine)
    cas = owner.set("k", b"1").cas
    assert owner.call(Opcode.GET_LOCKED, key=owner.key("k"), extras=struct.pack(">I", 15)).status == 0
    engine.set_time(engine.now, engine.unix_ns - HOUR_NS)
    assert other.set("k", b"2").status == Status.LOCKED
    pass_time(engine, 16)
    answer = other.set("k", b"2")
    assert answer.status == 0
    assert answer.cas > cas


def test_a_clock_that_jumps_forward_ends_a_lock():
    engine = engine_of()
    owner, other = Talker(engine), Talker(engine)
    cas = owner.set("k", b"1").cas
    assert owner.call(Opcode.GET_LOCKED, key=owner.key("k"), extras=struct.pack(">I", 15)).status == 0
    engine.set_time(engine.now, engine.unix_ns + HOUR_NS)
    assert other.set("k", b"2").cas > cas
