"""Requests that look at all keys of a vbucket: in steps, with others served between them, as of one moment."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable
from itertools import count

import pytest

from dcpstream.wire import Datatype, Frame, Opcode, Status, encode_request
from dcpstream_node.engine import Engine
from dcpstream_node.engine.bucket import range_scans
from dcpstream_node.store.index import key_scan
from tests.kit.engine import Talker, engine_of, with_collection
from tests.kit.rules import rule

KEYS_A_STEP = 100
KEYS = 3 * KEYS_A_STEP + 10
_CONTINUE = struct.Struct(">16sIII")


def key_at(number: int) -> bytes:
    return b"\0k%06d" % (number * 7919 % KEYS)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """With many documents in one vbucket, written in no order, and a clock that a step takes too long for."""
    monkeypatch.setattr(key_scan, "KEYS_A_STEP", KEYS_A_STEP)
    monkeypatch.setattr(key_scan, "SORTED_A_STEP", KEYS_A_STEP // 5)
    monkeypatch.setattr(range_scans, "SAMPLED_A_STEP", KEYS_A_STEP // 3)
    made = engine_of(vbuckets=1, release="7.6")
    with_collection(made, 8)
    client = Talker(made)
    data = b"".join(
        encode_request(Opcode.SETQ, key=key_at(number), value=b"v", extras=bytes(8)) for number in range(KEYS)
    )
    while data:
        data = data[client.receive(data) :]
    client.collect()
    ticks = count()
    made.stopwatch = lambda: next(ticks) * 1.0
    return made


def ask(client: Talker, opcode: int, **fields: object) -> list[Frame]:
    return client.send(encode_request(opcode, **fields))  # type: ignore[arg-type]


def finish(client: Talker, frames: list[Frame], between: Iterable[Callable[[], object]] = ()) -> list[Frame]:
    """Turn by turn, with something else done in each."""
    others = iter(between)
    turns = 0
    while client.session.pending.steps is not None:
        next(others, lambda: None)()
        frames += client.collect()
        turns += 1
        assert turns < KEYS, "it comes to an end"
    assert turns >= 3, "it took several turns"
    return frames


def changes(engine: Engine) -> list[Callable[[], object]]:
    """The requests of another client meanwhile: read, write a new document, delete one and change one."""
    other = Talker(engine)

    def read() -> None:
        assert other.get("k000001").value == b"v"

    return [
        read,
        lambda: other.set("k000000a", b"new"),
        lambda: other.delete("k000002"),
        lambda: other.set("k000003", b"changed"),
        read,
    ]


def test_keys_of_a_vbucket_are_as_of_one_moment(engine: Engine) -> None:
    client = Talker(engine)
    frames = ask(client, Opcode.GET_KEYS, key=b"\0k", extras=struct.pack(">I", 10_000))
    assert frames == [], "the first step does not answer"
    (frame,) = finish(client, frames, changes(engine))
    keys, at = [], 0
    while at < len(frame.value):
        size = int.from_bytes(frame.value[at : at + 2], "big")
        keys.append(frame.value[at + 2 : at + 2 + size])
        at += 2 + size
    assert keys == [b"\0k%06d" % number for number in range(KEYS)]


@pytest.mark.parametrize("limit", [1, 10, 250])
def test_keys_up_to_a_limit_are_the_first_ones(engine: Engine, limit: int) -> None:
    client = Talker(engine)
    (frame,) = finish(client, ask(client, Opcode.GET_KEYS, key=b"\0k000005", extras=struct.pack(">I", limit)))
    assert frame.value == b"".join(b"\0\x08\0k%06d" % number for number in range(5, 5 + limit))


def test_a_range_scan_is_as_of_its_creation(engine: Engine) -> None:
    client = Talker(engine)
    bounds = {"start": base64.b64encode(b"k000001").decode(), "end": base64.b64encode(b"k000009").decode()}
    value = json.dumps({"collection": "0", "range": bounds}).encode()
    frames = ask(client, Opcode.RANGE_SCAN_CREATE, value=value, datatype=Datatype.JSON)
    (made,) = finish(client, frames, changes(engine))
    assert made.status == Status.SUCCESS
    found = ask(client, Opcode.RANGE_SCAN_CONTINUE, extras=_CONTINUE.pack(made.value, 0, 0, 0))
    while client.session.pending.steps is not None:
        found += client.collect()
    content = b"".join(frame.value for frame in found)
    assert b"changed" not in content
    assert [content.count(b"k00000%d" % number) for number in range(1, 10)] == [1] * 9


@rule("KV-SCAN-04")
def test_a_scan_of_a_vbucket_that_is_given_up_meanwhile_is_refused(engine: Engine) -> None:
    client, other = Talker(engine), Talker(engine)
    value = json.dumps({"collection": "0", "sampling": {"samples": 10}, "key_only": True}).encode()
    frames = ask(client, Opcode.RANGE_SCAN_CREATE, value=value, datatype=Datatype.JSON)
    give_up = lambda: other.call(Opcode.SET_VBUCKET, extras=b"\x02")  # noqa: E731 - a replica
    (made,) = finish(client, frames, [give_up])
    assert made.status == Status.NOT_MY_VBUCKET


@rule("KV-SCAN-04")
def test_a_scan_of_a_vbucket_that_is_another_branch_meanwhile_is_refused(engine: Engine) -> None:
    client, other = Talker(engine), Talker(engine)
    frames = ask(client, Opcode.RANGE_SCAN_CREATE, value=b'{"key_only":true}', datatype=Datatype.JSON)

    def leave_and_return() -> None:
        for state in (b"\x02", b"\x01"):
            assert other.call(Opcode.SET_VBUCKET, extras=state).status == Status.SUCCESS

    (made,) = finish(client, frames, [leave_and_return])
    assert made.status == Status.NOT_MY_VBUCKET


@rule("KV-SCAN-04")
def test_a_scan_of_a_collection_that_is_dropped_meanwhile_is_refused(engine: Engine) -> None:
    client = Talker(engine)
    value = b'{"collection":"8","key_only":true}'
    for number in range(2 * KEYS_A_STEP):
        client.call(Opcode.SET, key=b"\x08k%d" % number, value=b"v", extras=bytes(8))
    frames = ask(client, Opcode.RANGE_SCAN_CREATE, value=value, datatype=Datatype.JSON)
    (made,) = finish(client, frames, [lambda: with_collection(engine, 9, name="other")])
    assert made.status == Status.UNKNOWN_COLLECTION


def test_a_sample_is_chosen_in_steps(engine: Engine) -> None:
    client = Talker(engine)
    value = json.dumps({"collection": "0", "sampling": {"samples": 50, "seed": 1}, "key_only": True}).encode()
    (made,) = finish(client, ask(client, Opcode.RANGE_SCAN_CREATE, value=value, datatype=Datatype.JSON))
    assert made.status == Status.SUCCESS


@pytest.mark.parametrize("group", ["collections", "scopes", "collections-details 0"])
def test_documents_are_counted_in_steps(engine: Engine, group: str) -> None:
    client = Talker(engine)
    client.call(Opcode.SET, key=b"\x08k", value=b"v", extras=bytes(8))
    frames = finish(client, ask(client, Opcode.STAT, key=group.encode()), changes(engine))
    found = {frame.key.decode(): frame.value.decode() for frame in frames}
    counts = {int(value) for name, value in found.items() if name.endswith(":items")}
    if group != "collections-details 0":
        assert counts in ({KEYS, 1}, {KEYS + 1})


def test_a_client_that_goes_away_meanwhile_leaves_nothing_behind(engine: Engine) -> None:
    client = Talker(engine)
    value = json.dumps({"collection": "0", "sampling": {"samples": 10}}).encode()
    assert ask(client, Opcode.RANGE_SCAN_CREATE, value=value, datatype=Datatype.JSON) == []
    vbucket = engine.buckets["default"].vbuckets[0]
    assert vbucket is not None
    assert vbucket.log.held_seqnos(), "its state is held while it is looked through"
    client.session.connection_lost()
    assert vbucket.log.held_seqnos() == ()
