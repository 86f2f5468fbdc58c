"""Documents whose disk is behind, and documents that have expired, with every kind of client."""

from __future__ import annotations

import struct

import pytest

from dcpstream.wire import Feature, Opcode, Status, decode_frame
from dcpstream_node.testing.simulation import START_UNIX_S, USUAL_FEATURES
from tests.kit.cases import each_case
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


@rule("KV-WRITE-01")
def test_writes_wait_while_the_disk_is_behind(client):
    store = client.engine.buckets["default"].store
    store.pending_bytes = 1 << 40
    assert client.set("k", b"v").status == Status.TMPFAIL
    assert client.get("k").status == Status.KEY_ENOENT


@rule("KV-EXP-01")
@each_case("value", [b"{}", b"v"])
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
