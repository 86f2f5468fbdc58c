"""A file that is damaged under a running node: what it held is refused, everything else goes on."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from dcpstream.wire import Feature, Opcode, Status, StreamEndReason, encode_request
from dcpstream_node.rest.health import state_of
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.log import blocks
from tests.kit.engine import Talker, engine_of


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An engine whose documents are on disk, in pages of one document; and what finds the bytes of one."""
    monkeypatch.setattr(blocks, "PAGE_BYTES", 50)
    store = DiskBucketStore(tmp_path, 1)
    engine = engine_of(store, vbuckets=1)
    client = Talker(engine)
    for number in range(5):
        assert client.set(f"key{number}", b"value %d" % number * 10).status == 0
    store.commit()
    assert client.get("key1").value == b"value 1" * 10
    path = tmp_path / "segment-0000000001.log"
    data = path.read_bytes()
    at = data.index(b"value 2")
    path.write_bytes(data[:at] + b"?" + data[at + 1 :])
    yield engine, client, store, path
    store.close(clean=False)


def test_only_what_is_damaged_is_refused(node, caplog: pytest.LogCaptureFixture) -> None:
    engine, client, store, path = node
    for _ in range(3):
        refused = client.get("key2")
        assert refused.status == Status.EINTERNAL
        assert "its log says which" in json.loads(refused.value)["error"]["context"]
    for number in (0, 1, 3, 4):
        assert client.get(f"key{number}").value == b"value %d" % number * 10
    assert len(caplog.records) == 1
    assert f"{path}: damaged at byte" in caplog.text
    assert "vbucket 0, seqnos 3 to 3" in caplog.text
    assert "dcpstream store check" in caplog.text
    assert client.stats("")["ep_data_read_failed"] == str(store.read_failures)
    assert store.read_failures >= 3
    bucket = engine.buckets["default"]
    state = state_of(bucket)
    assert (state["status"], len(state["damage"])) == ("files are damaged", 1)


def test_a_damaged_document_can_be_written_again(node) -> None:
    _, client, _, _ = node
    assert client.get("key2").status == Status.EINTERNAL
    assert client.set("key2", b"new").status == 0
    assert client.get("key2").value == b"new"


def test_a_change_that_needs_the_damaged_value_is_refused_and_changes_nothing(node) -> None:
    _, client, store, _ = node
    high = store.vbuckets[0].high_seqno
    assert client.call(Opcode.APPEND, key=client.key("key2"), value=b"x").status == Status.EINTERNAL
    assert store.vbuckets[0].high_seqno == high


def test_a_stream_ends_where_the_damage_begins(node) -> None:
    engine, _, _, _ = node
    client = Talker(engine, features=[Feature.XERROR, Feature.SELECT_BUCKET])
    client.call(Opcode.DCP_OPEN, key=b"reader", extras=struct.pack(">II", 0, 1))
    request = struct.pack(">IIQQQQQ", 0, 0, 0, 2**64 - 1, 0, 0, 0)
    frames = client.send(encode_request(Opcode.DCP_STREAM_REQ, opaque=7, extras=request)) + client.collect()
    assert frames[0].status == 0
    sent = [struct.unpack_from(">Q", frame.extras)[0] for frame in frames if frame.opcode == Opcode.DCP_MUTATION]
    assert sent in ([], [1], [1, 2])
    assert frames[-1].opcode == Opcode.DCP_STREAM_END
    assert struct.unpack(">I", frames[-1].extras)[0] == StreamEndReason.BACKFILL_FAILED
