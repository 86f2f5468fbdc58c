"""A manifest is told to the vbuckets in steps, and nobody can see that it is."""

from __future__ import annotations

import struct

import pytest

from dcpstream.wire import Opcode, encode_request
from dcpstream_node.engine import Engine
from dcpstream_node.engine.bucket.bucket import CATCH_UP_KEYS, CATCH_UP_VBUCKETS, Bucket
from dcpstream_node.engine.bucket.manifest_editor import ManifestEditor, Wanted
from tests.kit.engine import Talker, engine_of

VBUCKETS = 4 * CATCH_UP_VBUCKETS


@pytest.fixture
def engine() -> Engine:
    made = engine_of(vbuckets=VBUCKETS)
    made.is_stepwise = True
    return made


def bucket_of(engine: Engine) -> Bucket:
    return engine.buckets["default"]


def make(engine: Engine, name: str) -> int:
    """Make a collection; returns its id."""
    bucket = bucket_of(engine)
    engine.set_manifest(bucket, ManifestEditor(bucket.manifest).add_collection("_default", name, Wanted()))
    return next(item.collection_id for _, item in bucket.manifest.collections() if item.name == name)


def receive(client: Talker, data: bytes) -> None:
    """Hand over all of it, with no turn of the engine in between."""
    while data:
        data = data[client.receive(data) :]


def drop(engine: Engine, name: str) -> None:
    bucket = bucket_of(engine)
    engine.set_manifest(bucket, ManifestEditor(bucket.manifest).drop_collection("_default", name))


def high_seqnos(engine: Engine) -> list[int]:
    return [vbucket.log.high_seqno for vbucket in bucket_of(engine).vbuckets if vbucket is not None]


def test_a_turn_updates_so_many_vbuckets_and_no_more(engine: Engine) -> None:
    make(engine, "c")
    seen = []
    while not engine.is_quiet:
        engine.end_turn()
        seen.append(sum(high_seqnos(engine)))
    assert seen == [CATCH_UP_VBUCKETS * (turn + 1) for turn in range(4)]
    engine.end_turn()
    assert high_seqnos(engine) == [1] * VBUCKETS


def test_vbuckets_with_many_keys_end_a_turn_early(engine: Engine) -> None:
    keys = [b"\0k%d" % number for number in range(CATCH_UP_KEYS)]
    sets = [encode_request(Opcode.SETQ, key=key, value=b"v", extras=bytes(8)) for key in keys]
    receive(Talker(engine), b"".join(sets))
    make(engine, "c")
    engine.end_turn()
    assert sum(1 for seqno in high_seqnos(engine)[1:] if seqno) == 0
    assert len(bucket_of(engine).behind) == VBUCKETS - 1


def test_who_looks_at_all_vbuckets_sees_all_of_it(engine: Engine) -> None:
    client = Talker(engine)
    make(engine, "c")
    found = client.call(Opcode.GET_ALL_VB_SEQNOS).value
    assert {seqno for _, seqno in struct.iter_unpack(">HQ", found)} == {1}
    make(engine, "d")
    late = Talker(engine)
    assert late.session.bucket is bucket_of(engine)
    assert high_seqnos(engine) == [2] * VBUCKETS, "selecting the bucket looks at it"


def test_successive_changes_are_each_reported(engine: Engine) -> None:
    make(engine, "c")
    make(engine, "d")
    drop(engine, "c")
    while not engine.is_quiet:
        engine.end_turn()
    assert high_seqnos(engine) == [3] * VBUCKETS
