"""Requests that look at all keys of a vbucket: in steps, with others served between them, as of one moment."""

from __future__ import annotations

import json
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


def test_a_client_that_goes_away_meanwhile_leaves_nothing_behind(engine: Engine) -> None:
    client = Talker(engine)
    value = json.dumps({"collection": "0", "sampling": {"samples": 10}}).encode()
    assert ask(client, Opcode.RANGE_SCAN_CREATE, value=value, datatype=Datatype.JSON) == []
    vbucket = engine.buckets["default"].vbuckets[0]
    assert vbucket is not None
    assert vbucket.log.held_seqnos(), "its state is held while it is looked through"
    client.session.connection_lost()
    assert vbucket.log.held_seqnos() == ()
