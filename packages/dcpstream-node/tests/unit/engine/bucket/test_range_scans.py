"""Range scans: what they find, in which packets, and when they end."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from dcpstream.wire import Feature, Opcode, Status, encode_request
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.values import encode_xattrs, snappy_uncompress
from dcpstream_node.engine import MAX_OUTPUT_BYTES
from dcpstream_node.engine.bucket.range_scans import SCANNED_KEYS_MAX, SCANS_MAX, walk_sample
from dcpstream_node.store import DiskBucketStore, finish
from tests.kit.engine import Talker, engine_of, flush, pass_time, with_collection
from tests.kit.rules import rule

CREATE, CONTINUE, CANCEL = Opcode.RANGE_SCAN_CREATE, Opcode.RANGE_SCAN_CONTINUE, Opcode.RANGE_SCAN_CANCEL
MORE, COMPLETE = Status.RANGE_SCAN_MORE, Status.RANGE_SCAN_COMPLETE
ALL = {"start": b"", "end": b"\xff" * 10}


@pytest.fixture
def client():
    client = Talker(engine_of(release="7.6"))
    for name in "abcde":
        client.set(name, name.encode() * 3, flags=ord(name))
    return client


def description(bounds: dict[str, bytes] | None = None, **more) -> bytes:
    if "sampling" not in more:
        more["range"] = {name: base64.b64encode(key).decode() for name, key in (bounds or ALL).items()}
    return json.dumps(more).encode()


def create(client: Talker, bounds: dict[str, bytes] | None = None, vbid: int = 0, **more):
    return client.call(CREATE, value=description(bounds, **more), datatype=1, vbid=vbid)


def proceed(client: Talker, scan_id: bytes, *, items: int = 0, time_ms: int = 0, size: int = 0, vbid: int = 0):
    """All packets of a continued scan."""
    extras = scan_id + struct.pack(">III", items, time_ms, size)
    frames = client.send(encode_request(CONTINUE, extras=extras, vbid=vbid, opaque=77))
    while client.session.is_waiting:
        frames += client.collect()
    assert all(frame.opaque == 77 for frame in frames)
    assert all(frame.status == 0 for frame in frames[:-1])
    return frames


def keys_of(frames) -> list[bytes]:
    found = []
    for frame in frames:
        assert frame.extras == bytes(4)
        value = frame.value
        while value:
            length, at = leb128_decode(value)
            found.append(value[at : at + length])
            value = value[at + length :]
    return found


def documents_of(frames) -> list[tuple]:
    """(key, value, flags, expiration, seqno, CAS, datatype) of each."""
    found = []
    for frame in frames:
        assert frame.extras == b"\0\0\0\1"
        value = frame.value
        while value:
            flags, expiration, seqno, cas, datatype = struct.unpack_from(">IIQQB", value)
            value = value[25:]
            parts = []
            for _ in range(2):
                length, at = leb128_decode(value)
                parts.append(value[at : at + length])
                value = value[at + length :]
            found.append((*parts, flags, expiration, seqno, cas, datatype))
    return found


def scanned_keys(client: Talker, bounds: dict[str, bytes] | None = None, **more) -> list[bytes]:
    made = create(client, bounds, key_only=True, **more)
    assert (made.status, len(made.value)) == (0, 16), made
    frames = proceed(client, made.value)
    assert frames[-1].status == COMPLETE
    return keys_of(frames)


@rule("KV-SCAN-01", "KV-SCAN-02")
@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        (ALL, b"abcde"),
        ({"start": b"b", "end": b"d"}, b"bcd"),
        ({"excl_start": b"b", "end": b"d"}, b"cd"),
        ({"start": b"b", "excl_end": b"d"}, b"bc"),
        ({"excl_start": b"b", "excl_end": b"d"}, b"c"),
        ({"excl_start": b"bb", "excl_end": b"dd"}, b"cd"),
    ],
)
def test_keys_in_a_range(client, bounds, found):
    assert scanned_keys(client, bounds) == [bytes((byte,)) for byte in found]


@rule("KV-SCAN-02")
@pytest.mark.parametrize("bounds", [{"start": b"x", "end": b"z"}, {"start": b"d", "end": b"b"},
                                    {"excl_start": b"c", "end": b"c"}])  # fmt: skip
def test_an_empty_range(client, bounds):
    assert create(client, bounds).status == Status.KEY_ENOENT


@rule("KV-SCAN-02", "KV-SCAN-04")
def test_documents_as_they_were_when_the_scan_was_made(client):
    vbucket = client.engine.buckets["default"].vbuckets[0]
    before = {name: client.get(name).cas for name in "abcde"}
    scan_id = create(client).value
    client.set("b", b"changed")
    client.delete("c")
    client.set("bb", b"new")
    frames = proceed(client, scan_id)
    assert frames[-1].status == COMPLETE
    assert documents_of(frames) == [
        (name.encode(), name.encode() * 3, ord(name), 0, number, before[name], 0)
        for number, name in enumerate("abcde", 1)
    ]
    assert vbucket.high_seqno == 8
    assert proceed(client, scan_id)[0].status == Status.KEY_ENOENT  # it is complete


def test_limits(client):
    scan_id = create(client, key_only=True).value
    first = proceed(client, scan_id, items=2)
    assert (keys_of(first), first[-1].status) == ([b"a", b"b"], MORE)
    second = proceed(client, scan_id, size=1)
    assert (keys_of(second), second[-1].status) == ([b"c"], MORE)
    client.engine.stopwatch = iter(range(100)).__next__
    third = proceed(client, scan_id, time_ms=1)
    assert (keys_of(third), third[-1].status) == ([b"d"], MORE)
    last = proceed(client, scan_id, items=2)
    assert (keys_of(last), last[-1].status) == ([b"e"], COMPLETE)


def test_many_documents_go_in_packets_and_no_faster_than_they_are_read():
    client = Talker(engine_of(release="7.6"))
    for number in range(4000):
        client.set(f"k{number:04}", b"\x80" * 1000)
    scan_id = create(client).value
    request = encode_request(CONTINUE, extras=scan_id + bytes(12)) + encode_request(Opcode.NOOP, opaque=5)
    used = client.receive(request)
    assert used == 24 + 28  # the NOOP has to wait
    assert client.session.output.nbytes < MAX_OUTPUT_BYTES / 4
    frames = []
    while client.session.is_waiting:
        assert client.session.pending.steps is not None
        frames += client.collect()
    assert [item[0] for item in documents_of(frames)] == [b"k%04d" % number for number in range(4000)]
    assert all(8192 <= len(frame.value) < 8192 + 1100 for frame in frames[:-1])
    assert [frame.opaque for frame in client.send(request[used:])] == [5]


@rule("KV-SCAN-04")
def test_one_continue_at_a_time(client):
    other = Talker(client.engine)
    for number in range(600):
        client.set(f"k{number}", b"\x80" * 1000)
    scan_id = create(client).value
    client.receive(encode_request(CONTINUE, extras=scan_id + bytes(12)))
    assert client.session.is_waiting
    assert proceed(other, scan_id)[0].status == Status.BUSY
    other.call(CANCEL, extras=scan_id)
    while client.session.is_waiting:
        last = client.collect()[-1]
    assert last.status == Status.RANGE_SCAN_CANCELLED


@rule("KV-SCAN-04")
def test_a_scan_ends_with_the_connection_that_continues_it(client):
    other = Talker(client.engine)
    for number in range(600):
        client.set(f"k{number}", b"\x80" * 1000)
    scan_id = create(client).value
    client.receive(encode_request(CONTINUE, extras=scan_id + bytes(12)))
    client.session.connection_lost()
    assert proceed(other, scan_id)[0].status == Status.KEY_ENOENT
    assert not client.engine.buckets["default"].range_scans.by_id


@rule("KV-SCAN-04")
def test_cancel(client):
    scan_id = create(client).value
    assert client.call(CANCEL, extras=bytes(16)).status == Status.KEY_ENOENT
    assert client.call(CANCEL, extras=scan_id, vbid=1).status == Status.KEY_ENOENT
    assert client.call(CANCEL, extras=scan_id).status == 0
    assert client.call(CANCEL, extras=scan_id).status == Status.KEY_ENOENT
    assert proceed(client, scan_id)[0].status == Status.KEY_ENOENT


@rule("KV-SCAN-04")
@pytest.mark.parametrize("opcode", [CONTINUE, CANCEL])
def test_a_vbucket_that_is_not_active(client, opcode):
    scan_id = create(client).value
    extras = scan_id + (bytes(12) if opcode == CONTINUE else b"")
    client.call(Opcode.SET_VBUCKET, extras=b"\2")
    assert client.call(opcode, extras=extras).status == Status.NOT_MY_VBUCKET
    client.call(Opcode.SET_VBUCKET, extras=b"\1")
    assert client.call(opcode, extras=extras).status == Status.KEY_ENOENT
    assert create(client, vbid=9).status == Status.NOT_MY_VBUCKET


@rule("KV-SCAN-04")
def test_a_vbucket_that_goes_in_the_middle(client):
    for number in range(600):
        client.set(f"k{number}", b"\x80" * 1000)
    scan_id = create(client).value
    client.receive(encode_request(CONTINUE, extras=scan_id + bytes(12)))
    Talker(client.engine).call(Opcode.SET_VBUCKET, extras=b"\4")
    while client.session.is_waiting:
        last = client.collect()[-1]
    assert last.status == Status.NOT_MY_VBUCKET
    assert b"vBucketServerMap" in last.value


@rule("KV-SCAN-05")
def test_a_named_collection(client):
    with_collection(client.engine, 9)
    assert create(client, collection="9").status == Status.KEY_ENOENT
    client.call(Opcode.SET, key=b"\x09apple", value=b"1", extras=bytes(8))
    assert scanned_keys(client, collection="9") == [b"apple"]
    assert b"apple" not in scanned_keys(client)
    unknown = create(client, collection="aa")
    assert unknown.status == Status.UNKNOWN_COLLECTION
    assert b"manifest_uid" in unknown.value
    assert create(client, collection="ffffffff").status == Status.UNKNOWN_COLLECTION
    assert create(client, collection="aa", vbid=9).status == Status.UNKNOWN_COLLECTION, "before the vbucket"


@rule("KV-SCAN-04")
def test_a_collection_that_is_dropped_in_the_middle(client):
    with_collection(client.engine, 9)
    client.call(Opcode.SET, key=b"\x09apple", value=b"1", extras=bytes(8))
    scan_id = create(client, collection="9").value
    with_collection(client.engine, 10, name="other")
    (answer,) = proceed(client, scan_id)
    assert answer.status == Status.UNKNOWN_COLLECTION
    assert b"manifest_uid" in answer.value


@rule("KV-SCAN-01")
def test_samples(client):
    assert len(scanned_keys(client, sampling={"samples": 5})) == 5
    assert len(scanned_keys(client, sampling={"samples": 99, "seed": 3})) == 5
    assert create(client, vbid=1, sampling={"samples": 5}).status == Status.KEY_ENOENT
    some, others = (list(finish(walk_sample(10_000, 1000, seed))) for seed in (1, 2))
    assert 850 < len(some) < 1150
    assert some == list(finish(walk_sample(10_000, 1000, 1))) != others
    assert some == sorted(some)


REQUIREMENTS = "snapshot_requirements"


@pytest.fixture
def on_disk(tmp_path):
    with DiskBucketStore(tmp_path / "bucket", 4) as store:
        client = Talker(engine_of(store, release="7.6"))
        client.set("a", b"1")
        client.set("a", b"2")
        yield client


def required(client: Talker, **fields):
    uuid = str(client.engine.buckets["default"].vbuckets[0].vbuuid)
    requirements: dict[str, Any] = {REQUIREMENTS: {"vb_uuid": uuid, **fields}}
    return create(client, **requirements)


@rule("KV-SCAN-03")
def test_what_a_snapshot_must_hold(on_disk):
    assert required(on_disk, seqno=2).status == Status.TMPFAIL
    flush(on_disk)
    assert required(on_disk, seqno=2).status == 0
    assert required(on_disk, seqno=2, vb_uuid="1").status == Status.VBUUID_NOT_EQUAL
    assert required(on_disk, seqno=1).status == 0
    assert required(on_disk, seqno=2, seqno_exists=True).status == 0
    assert required(on_disk, seqno=1, seqno_exists=True).status == Status.NOT_STORED
    assert required(on_disk, seqno=0, seqno_exists=True).status == Status.NOT_STORED


@rule("KV-SCAN-03")
def test_a_scan_waits_for_the_disk(on_disk):
    uuid = str(on_disk.engine.buckets["default"].vbuckets[0].vbuuid)
    value = description(snapshot_requirements={"vb_uuid": uuid, "seqno": 2, "timeout_ms": 500})
    request = encode_request(CREATE, value=value, datatype=1)
    on_disk.receive(request)
    assert on_disk.session.is_waiting
    pass_time(on_disk.engine, 0.5)
    on_disk.engine.handle_timeout()
    assert [frame.status for frame in on_disk.collect()] == [Status.TMPFAIL]
    on_disk.receive(request)
    flush(on_disk)
    assert [(frame.status, len(frame.value)) for frame in on_disk.collect()] == [(0, 16)]


@rule("KV-SCAN-01", "KV-SCAN-05")
def test_xattrs_only_where_asked_for(client):
    value = encode_xattrs({"_s": b"1", "u": b"2"}, b"{}")
    extras = struct.pack(">IIQQ", 0, 0, 1, 5)
    client.call(Opcode.SET_WITH_META, key=b"\0x", value=value, extras=extras, datatype=5)

    def shown(who: Talker, **more):
        (found,) = documents_of(proceed(who, create(who, {"start": b"x", "end": b"x"}, **more).value))
        return found[1], found[-1]

    assert shown(client) == (b"{}", 1)
    assert shown(client, include_xattrs=True) == (value, 5)
    client.engine.users.put("ann", "secret", ["data_reader[default]"])
    reader = Talker(client.engine, user="ann")
    assert shown(reader, include_xattrs=True) == (encode_xattrs({"u": b"2"}, b"{}"), 5)
    old = Talker(client.engine, features=(Feature.XERROR, Feature.JSON, Feature.COLLECTIONS))
    assert create(old, include_xattrs=True).status == Status.NOT_SUPPORTED


@rule("KV-SCAN-05")
def test_values_are_compressed_only_for_those_who_understand_it(client):
    bucket = client.engine.buckets["default"]
    bucket.change_settings(replace(bucket.settings, compression="passive"))
    from dcpstream.wire.values import snappy_compress

    text = b"\x80" * 1000
    client.set("x", snappy_compress(text), datatype=2)
    plain = Talker(client.engine, features=(Feature.XERROR, Feature.JSON, Feature.COLLECTIONS))
    bounds = {"start": b"x", "end": b"x"}
    ((_, value, *_, datatype),) = documents_of(proceed(client, create(client, bounds).value))
    assert (snappy_uncompress(value), datatype) == (text, 2)
    ((_, value, *_, datatype),) = documents_of(proceed(plain, create(plain, bounds).value))
    assert (value, datatype) == (text, 0)


@rule("KV-SCAN-01")
@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"[]",
        b"{}x",
        b'{"collection":"zz"}',
        b'{"collection":7}',
        b'{"collection":"-1"}',
        b'{"collection":"100000000"}',
        b'{"snapshot_requirements":{"vb_uuid":"18446744073709551616","seqno":1}}',
        '{"snapshot_requirements":{"vb_uuid":"\u0661","seqno":1}}'.encode(),
        b'{"range":{}}',
        b'{"range":{"start":"YQ=="}}',
        b'{"range":{"start":"YQ==","excl_start":"YQ==","end":"YQ=="}}',
        b'{"range":{"start":"*","end":"YQ=="}}',
        b'{"range":{"start":"YQ==","end":"YQ=="},"sampling":{"samples":1}}',
        b'{"sampling":{}}',
        b'{"sampling":{"samples":-1}}',
        b'{"sampling":{"samples":true}}',
        b'{"key_only":1}',
        b'{"key_only":true,"include_xattrs":true}',
        b'{"name":"' + b"n" * 51 + b'"}',
        b'{"snapshot_requirements":{"seqno":1}}',
        b'{"snapshot_requirements":{"vb_uuid":"1"}}',
        b'{"snapshot_requirements":{"vb_uuid":"1x","seqno":1}}',
        b'{"range":{"start":"YQ==","end":"' + base64.b64encode(b"k" * 251) + b'"}}',
    ],
)
def test_what_is_not_a_description(client, value):
    answer = client.call(CREATE, value=value, datatype=1)
    assert answer.status == Status.EINVAL
    assert json.loads(answer.value)["error"]["context"]


@rule("KV-SCAN-01")
def test_the_longest_names_and_keys(client):
    assert scanned_keys(client, {"start": b"", "end": b"k" * 250}, name="n" * 50) == [b"a", b"b", b"c", b"d", b"e"]


@rule("KV-SCAN-01")
def test_the_datatype_has_to_say_json(client):
    assert client.call(CREATE, value=description()).status == Status.EINVAL


@rule("KV-SCAN-05")
def test_who_may_scan(client):
    client.engine.users.put("ann", "secret", ["data_writer[default]"])
    writer = Talker(client.engine, user="ann")
    assert create(writer).status == Status.EACCESS
    scan_id = create(client).value
    assert writer.call(CANCEL, extras=scan_id).status == Status.EACCESS


def test_a_scan_is_over_after_three_minutes(client):
    engine = client.engine
    scan_id = create(client).value
    assert engine.next_timeout() == engine.now + 180
    pass_time(engine, 180)
    engine.handle_timeout()
    assert proceed(client, scan_id)[0].status == Status.KEY_ENOENT
    assert engine.next_timeout() is None


@rule("KV-SCAN-04")
def test_scans_are_bounded(client, monkeypatch):
    scans = client.engine.buckets["default"].range_scans
    made = [create(client).value for _ in range(SCANS_MAX)]
    assert create(client).status == Status.BUSY
    client.call(CANCEL, extras=made[0])
    assert create(client).status == 0
    for scan_id in made[1:]:
        client.call(CANCEL, extras=scan_id)
    assert scans.has_room(SCANNED_KEYS_MAX - 5)
    assert not scans.has_room(SCANNED_KEYS_MAX - 4)
