"""Metrics: complete, true, and readable by Prometheus' own parser."""

from __future__ import annotations

import struct

from prometheus_client.parser import text_string_to_metric_families

from dcpstream.model import BucketSettings
from dcpstream.wire import Opcode, encode_request
from dcpstream_node.prometheus import METRICS, Metrics
from dcpstream_node.store import DiskBucketStore, MemoryBucketStore
from dcpstream_node.summary import summarize_bucket
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of


def values_of(engine) -> dict[tuple[str, ...], float]:
    """(name, *labels) → value."""
    found = {}
    for family in text_string_to_metric_families(Metrics(engine).text().decode()):
        assert family.documentation
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    return found


def test_every_metric_is_there_and_no_other():
    engine = engine_of()
    Talker(engine).set("k", b"v")
    families = {family.name for family in text_string_to_metric_families(Metrics(engine).text().decode())}
    assert families == set(METRICS)
    shown = {name[0].removesuffix("_total") if METRICS.get(name[0]) is None else name[0] for name in values_of(engine)}
    assert shown == set(METRICS)


def test_requests_are_counted_however_they_come():
    engine = engine_of()
    client = Talker(engine)
    for number in range(3):
        client.set(f"k{number}", b"v")
    client.get("k0")
    data = b"".join(
        encode_request(Opcode.SET, key=b"\0b%d" % number, extras=bytes(8), value=b"v", vbid=number % 4)
        for number in range(400)
    )
    client.send(data)
    client.call(0xEE)
    found = values_of(engine)
    assert found["kv_ops_total", "default", "set"] == 403
    assert found["kv_ops_total", "default", "get"] == 1
    assert found["kv_ops_total", "default", "0xee"] == 1
    assert found["kv_ops_total", "", "sasl_auth"] == 1


def test_a_bucket_is_measured(tmp_path):
    with DiskBucketStore(tmp_path, 4, BucketSettings(ram_quota_bytes=200 << 20)) as store:
        engine = engine_of(store)
        client = Talker(engine)
        client.set("k", b"v" * 1000)
        client.call(Opcode.SET_VBUCKET, vbid=3, extras=b"\2")
        before = values_of(engine)
        assert before["kv_ep_diskqueue_items", "default"] == 1
        assert before["kv_ep_diskqueue_memory_bytes", "default"] > 1000
        store.commit()
        after = values_of(engine)
        assert after["kv_ep_diskqueue_items", "default"] == 0
        assert after["kv_ep_db_file_size_bytes", "default"] > 1000
        assert after["kv_curr_items", "default"] == 1
        assert after["kv_ep_max_size", "default"] == 200 << 20
        assert (after["kv_num_vbuckets", "default", "active"], after["kv_num_vbuckets", "default", "replica"]) == (3, 1)
        store.note_commit(has_failed=True)
        assert values_of(engine)["kv_ep_item_commit_failed", "default"] == 1


def test_connections_and_logins_are_counted():
    engine = engine_of()
    Talker(engine)
    stranger = Talker(engine, user=None)
    stranger.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0wrong")
    found = values_of(engine)
    assert (found["kv_curr_connections",], found["kv_total_connections_total",]) == (2, 2)
    assert (found["kv_auth_cmds_total",], found["kv_auth_errors_total",]) == (1, 1)
    assert found["kv_bucket_connections", "default"] == 1


def test_streams_are_seen():
    engine = engine_of(MemoryBucketStore(2))
    client = Talker(engine)
    client.set("k", b"v")
    client.call(Opcode.DCP_OPEN, key=b"changes", extras=struct.pack(">II", 0, 1))
    client.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
    request = struct.pack(">IIQQQQQ", 0, 0, 0, (1 << 64) - 1, 0, 0, 0)
    client.send(encode_request(Opcode.DCP_STREAM_REQ, extras=request, opaque=5))
    (seen,) = summarize_bucket(engine.buckets["default"]).dcp
    assert (seen.name, seen.kind, seen.streams, seen.items_sent, seen.items_remaining) == (
        "changes",
        "producer",
        1,
        1,
        0,
    )
    found = values_of(engine)
    assert found["kv_dcp_connection_count", "default", "producer"] == 1
    assert found["kv_dcp_stream_count", "default", "producer"] == 1
    assert found["kv_dcp_items_sent", "default"] == 1
    assert found["kv_dcp_total_data_size_bytes", "default"] > 0


@each_case("name", METRICS)
def test_names_follow_the_conventions(name: str):
    info = METRICS[name]
    assert name.startswith("kv_")
    assert info.kind in ("counter", "gauge")
    assert not name.endswith("_total")
    assert info.help.endswith(".")
