"""Rules of collections: keys, filters, events of scopes and collections."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import FieldError
from dcpstream.wire import Feature, Frame, Opcode, OpenFlag, Status, StreamEndReason, SystemEventId
from dcpstream.wire.keys import leb128_decode, leb128_encode
from dcpstream.wire.system_events import CollectionEvent, flatbuffer_of
from dcpstream_node.testing.simulation import USUAL_FEATURES, WITHOUT_COLLECTIONS, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import (
    DISK,
    FIRST,
    FRUIT,
    FRUIT_KEY,
    LATER,
    REPLICA,
    VEG,
    VEG_KEY,
    VEG_SCOPE,
    answer,
    collection,
    dcp_stat,
    drain,
    end,
    garden,
    item_count,
    manifest,
    new_checkpoint,
    read,
    scope,
    sent,
    seqno_of,
    set_manifest,
)

ALL = [("event", 1, 3), ("event", 2, 0), ("event", 3, 0), 4, 5, 6, 7, 8, 9, 10]
WITHOUT_FRUIT = manifest(2, scope("s1", VEG_SCOPE, collection("veg", VEG)))
ONLY_DEFAULT = manifest(3)
NO_DEFAULT = json.dumps({"uid": "2", "scopes": [{"name": "_default", "uid": "0", "collections": []}]}).encode()
GARDEN_WITH_TTL = manifest(
    1, scope("s1", VEG_SCOPE, collection("veg", VEG, maxTTL=100)), default=[collection("fruit", FRUIT)]
)
FLATBUFFERS = (b"flatbuffers_system_events", b"true")


def events(frames: list[Frame]) -> list[Frame]:
    return [frame for frame in frames if frame.opcode == Opcode.DCP_SYSTEM_EVENT]


@rule("COL-01")
def test_without_collections_there_is_the_default_one() -> None:
    node = garden()
    node.delete_doc(1, "plain")
    new_checkpoint(node)
    frames = node.producer(features=WITHOUT_COLLECTIONS).stream(1)
    assert sent(frames) == [(0, 11, DISK), 11]
    assert frames[-1].key == b"plain"


@rule("COL-02")
def test_with_collections_every_key_has_its_id_in_front() -> None:
    node = garden()
    node.delete_doc(1, "ap0", collection=FRUIT_KEY)
    keys = {seqno_of(frame): frame.key for frame in node.producer().stream(1) if frame.opcode in (0x57, 0x58)}
    assert keys == {
        5: VEG_KEY + b"ca0", 6: FRUIT_KEY + b"ap1", 7: VEG_KEY + b"ca1", 8: FRUIT_KEY + b"ap2", 9: VEG_KEY + b"ca2",
        10: b"\0plain", 11: FRUIT_KEY + b"ap0",
    }  # fmt: skip
    big = manifest(2, default=[collection("big", 0x555)])
    set_manifest(node, big)
    node.set_doc(2, "k", collection=b"\xd5\x0a")
    assert node.producer(b"other").stream(2)[-1].key == b"\xd5\x0ak"


@rule("COL-03")
@each_case("key", [b"\x80", b"\x80\x80", b"\x80\0k", b"\xff\xff\xff\xff\xff\x01k", b"\x88\x80\0k", b"\0", b"\x08", b""])
def test_ids_that_are_none(key: bytes) -> None:
    node = garden()
    answered = node.admin.call(Opcode.SET, vbid=1, key=key, extras=bytes(8), value=b"v")
    assert answered.status == Status.EINVAL
    assert node.admin.call(Opcode.SET, vbid=1, key=FRUIT_KEY + b"k", extras=bytes(8)).status == 0
    assert node.vbucket(1).high_seqno == 11


@rule("COL-04")
@each_case(
    ("number", "encoded"),
    [
        (0, "00"), (0x7F, "7f"), (0x80, "8001"), (0x555, "d50a"), (0x5555, "d5aa01"), (0x8000, "808002"),
        (0xCAFEF00, "80debf65"), (0xCAFEF00D, "8de0fbd70c"), (0xFFFFFFFF, "ffffffff0f"),
    ],
)  # fmt: skip
def test_the_published_examples(number: int, encoded: str) -> None:
    assert leb128_encode(number) == bytes.fromhex(encoded)
    assert leb128_decode(bytes.fromhex(encoded) + b"key") == (number, len(encoded) // 2)
    with pytest.raises(FieldError):
        leb128_decode(bytes.fromhex("ffffffffff0f"))


@rule("COL-05")
@each_case(("number", "status"), [(1, 0x04), (7, 0x04), (8, 0), (9, Status.UNKNOWN_COLLECTION)])
def test_reserved_ids(number: int, status: int) -> None:
    node = garden()
    answered = node.admin.call(Opcode.SET, vbid=1, key=bytes([number]) + b"k", extras=bytes(8))
    assert answered.status == status
    assert node.admin.call(Opcode.GET, vbid=1, key=bytes([number]) + b"k").status == status


@rule("COL-06")
@each_case(("prefix", "longest"), [(b"\0", 250), (FRUIT_KEY, 246)])
def test_how_long_a_key_may_be(prefix: bytes, longest: int) -> None:
    node = garden()
    for length, status in ((longest, 0), (longest + 1, Status.EINVAL), (1, 0)):
        answered = node.admin.call(Opcode.SET, vbid=1, key=prefix + b"k" * length, extras=bytes(8))
        assert answered.status == status


@rule("COL-07", "COL-08")
@each_case("value", [b"", b'{"uid":"1"}', b'{"uid":"0","purge_seqno":"7","cts":{}}', b'{"uid":1,"cts":[]}'])
def test_no_filter_is_everything(value: bytes) -> None:
    node = garden()
    new_checkpoint(node)
    assert sent(node.producer().stream(1, value=value)) == [(0, 10, DISK), *ALL]


@rule("COL-08")
def test_a_stream_id_alone_is_no_filter() -> None:
    node = garden()
    new_checkpoint(node)
    peer = node.producer(controls=[(b"enable_stream_id", b"true")])
    assert sent(peer.stream(1, value=b'{"sid":5}')) == [(0, 10, DISK), *ALL]


@rule("COL-10")
@each_case(
    "value",
    [
        b"x", b"{", b"[]", b'"8"', b"8", b"null", b"{}", b'{"collection":["8"]}', b'{"other":1}', b"[" * 2000,
        b'{"cts":{}}', b'{"cts":[],"more":1}',
    ],
)  # fmt: skip
def test_values_that_say_nothing(value: bytes) -> None:
    peer = garden().producer()
    assert answer(peer.stream(1, value=value))[0] == Status.EINVAL
    assert not peer.closed


@rule("COL-11")
def test_unknown_names_together_with_known_ones() -> None:
    node = garden()
    new_checkpoint(node)
    found = sent(node.producer().stream(1, value=b'{"collections":["8"],"other":[1],"more":{}}'))
    assert found == [(0, 10, DISK), ("event", 3, 0), 4, 6, 8, ("advanced", 10)]


@rule("COL-12")
def test_collections_or_a_scope() -> None:
    peer = garden().producer()
    assert answer(peer.stream(1, value=b'{"collections":["a"],"scope":"9"}'))[0] == Status.EINVAL


@rule("COL-13")
@each_case(
    "value",
    [
        '{"collections":"8"}', '{"collections":[8]}', '{"collections":["0x8"]}',
        '{"collections":["g"]}',
        '{"collections":[""]}', '{"collections":{"8":1}}', '{"collections":["8",null]}',
        '{"collections":["123456789"]}',
        '{"scope":9}', '{"scope":"0x9"}', '{"scope":"s1"}', '{"scope":""}', '{"scope":["9"]}', '{"scope":null}',
    ],
)  # fmt: skip
def test_ids_are_hexadecimal_text(value: str) -> None:
    peer = garden().producer()
    assert answer(peer.stream(1, value=value.encode()))[0] == Status.EINVAL
    assert answer(peer.stream(1, value=b'{"collections":["8","0A","0"]}'))[0] == 0
    assert answer(peer.stream(2, value=b'{"collections":["a"]}'))[0] == 0


@rule("COL-14")
@each_case(
    ("value", "status"),
    [(b'{"collections":["8","63"]}', Status.UNKNOWN_COLLECTION), (b'{"scope":"63"}', Status.UNKNOWN_SCOPE)],
)
def test_what_there_is_not(value: bytes, status: int) -> None:
    node = garden()
    set_manifest(node, manifest(0xAB, scope("s1", 9, collection("veg", VEG)), default=[collection("fruit", FRUIT)]))
    (found,) = node.producer().stream(1, value=value)
    assert found.status == status == (0x88 if b"coll" in value else 0x8C)
    assert found.datatype == 1
    assert json.loads(found.value)["manifest_uid"] == "ab"


@rule("COL-13")
@of_release("7.2", "8.0")
@each_case("value", [b'{"collections":["8","8"]}', b'{"collections":["A","8","0a"]}'])
def test_to_name_a_collection_twice_closes_the_connection_or_is_nothing(value: bytes, release: str) -> None:
    peer = garden().producer()
    frames = peer.stream(1, value=value)
    assert peer.closed == (release == "8.0")
    assert peer.closed or answer(frames)[0] == 0


@rule("COL-15")
def test_without_collections_after_the_default_one_was_dropped() -> None:
    node = garden()
    peer = node.producer(features=WITHOUT_COLLECTIONS)
    assert answer(peer.stream(1))[0] == 0
    set_manifest(node, NO_DEFAULT)
    refused, text = answer(peer.stream(2))
    assert (refused, b"Unknown scope or collection" in text) == (Status.UNKNOWN_COLLECTION, True)
    peer_without_xerror = node.producer(b"plain", features=(Feature.XATTR,))
    assert answer(peer_without_xerror.stream(2)) == (Status.EINVAL, text)
    assert end(StreamEndReason.OK) in read(peer.received), "the open one ends without a reason that it knows not"
    for features, status in ((WITHOUT_COLLECTIONS, Status.UNKNOWN_COLLECTION), ((Feature.XATTR,), Status.EINVAL)):
        legacy = node.connect(features=features)
        assert legacy.call(Opcode.SET, vbid=1, key=b"k", extras=bytes(8)).status == status
        assert legacy.call(Opcode.GET, vbid=1, key=b"plain").status == status


@rule("COL-16")
@each_case("uid", ['"1"', '"ffff"', "7", "null", "[]", '"x"', '"0"'])
def test_the_uid_is_ignored(uid: str) -> None:
    assert answer(garden().producer().stream(1, value=b'{"uid":%s}' % uid.encode()))[0] == 0


@rule("COL-17")
@of_release("7.2", "8.0")
@each_case("value", [b'{"collections":["8"]}', b'{"scope":"9"}', b'{"scope":"0"}'])
def test_no_filter_with_durable_writes(value: bytes, release: str) -> None:
    peer = garden().producer(controls=[(b"enable_sync_writes", b"true")])
    is_taken = b"scope" in value and release == "8.0"
    assert answer(peer.stream(1, value=value))[0] == (0 if is_taken else Status.NOT_SUPPORTED)
    assert answer(peer.stream(2, value=b'{"uid":"1"}'))[0] == 0


@rule("COL-18")
@each_case("text", ["7", "null", '""', '"x"', '"-1"', '"18446744073709551616"', "[]", '"7"', '"0"'])
@of_release("7.2")
def test_a_purge_seqno_is_an_unknown_name(text: str) -> None:
    peer = garden().producer()
    assert answer(peer.stream(1, value=b'{"purge_seqno":%s}' % text.encode()))[0] == Status.EINVAL
    assert answer(peer.stream(1, value=b'{"uid":"0","purge_seqno":%s}' % text.encode()))[0] == 0
    assert not peer.closed


@rule("COL-19")
@each_case("options", ["{}", '{"free_memory":5,"all_keys":true}', "[]", "7", '{"free_memory":-1}'])
def test_options_of_cache_transfer_are_an_unknown_name(options: str) -> None:
    peer = garden().producer()
    assert answer(peer.stream(1, value=b'{"cts":%s}' % options.encode()))[0] == Status.EINVAL
    assert answer(peer.stream(1, value=b'{"uid":"0","cts":%s}' % options.encode()))[0] == 0


@rule("COL-13", "END-12")
def test_a_stream_of_no_collection_ends_before_it_sends_anything_from_memory() -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    peer = node.producer()
    assert sent(peer.stream(1, value=b'{"collections":[]}')) == [end(StreamEndReason.FILTER_EMPTY)]
    assert sent(peer.stream(2, value=b'{"collections":[]}')) == [end(StreamEndReason.FILTER_EMPTY)], "an empty vbucket"
    assert sent(peer.stream(1, 5, value=b'{"collections":[]}')) == [], "it has all, so there is nothing to look at"
    node.set_doc(1, "more")
    assert drain(peer) == [end(StreamEndReason.FILTER_EMPTY)]


@rule("COL-20", "COL-22", "COL-23", "COL-24", "COL-26")
def test_the_beginning_of_scopes_and_collections() -> None:
    node = SimulatedNode()
    set_manifest(node, GARDEN_WITH_TTL)
    made, with_ttl, without = events(node.producer().stream(1))
    for seqno, frame in enumerate((made, with_ttl, without), 1):
        assert len(frame.extras) == 13
        assert frame.extras[:8] == struct.pack(">Q", seqno)
        assert (frame.datatype, frame.cas) == (0, 0)
    assert (made.extras[8:], made.key, made.value) == (b"\0\0\0\3\0", b"s1", struct.pack(">QI", 0, 9))
    assert (with_ttl.extras[8:], with_ttl.key) == (b"\0\0\0\0\1", b"veg")
    assert with_ttl.value == struct.pack(">QIII", 0, 9, 10, 100), "uid, scope, collection, max_ttl"
    assert (without.extras[8:], without.key) == (b"\0\0\0\0\0", b"fruit")
    assert without.value == struct.pack(">QII", 1, 0, 8)


@rule("COL-25", "COL-26", "COL-29")
def test_the_end_of_collections_and_scopes() -> None:
    node = garden()
    peer = node.producer()
    peer.stream(1)
    set_manifest(node, ONLY_DEFAULT)
    found = events(peer.take())
    assert [(seqno_of(frame), frame.extras[8:], frame.key, frame.value) for frame in found] == [
        (11, b"\0\0\0\1\0", b"", struct.pack(">QII", 1, 0, 8)),
        (12, b"\0\0\0\1\0", b"", struct.pack(">QII", 1, 9, 10)),
        (13, b"\0\0\0\4\0", b"", struct.pack(">QI", 3, 9)),
    ]


@rule("COL-29")
def test_only_the_last_event_has_the_new_uid() -> None:
    node = garden()
    peer = node.producer()
    peer.stream(1)
    other = manifest(
        0x77, scope("s2", 0x20, collection("c", 0x21)), default=[collection("fruit", FRUIT), collection("d", 0x22)]
    )
    set_manifest(node, other)
    uids = [int.from_bytes(frame.value[:8], "big") for frame in events(peer.take())]
    assert len(uids) == 5, "a scope, an end, two beginnings, an end of a scope"
    assert uids == [1, 1, 1, 1, 0x77]


@rule("COL-21")
@each_case(
    ("event", "version", "status"),
    [(0, 0, None), (3, 0, None), (2, 0, 4), (6, 0, 4), (99, 0, 4), (0, 3, 4), (0, 255, 4)],
)
def test_events_that_a_copy_takes(event: int, version: int, status: int | None) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept(1, refused=FLATBUFFERS[0])  # its events are of version 0
    assert source.marker(1, 1) == []
    value = struct.pack(">QI", 5, 9) if event == 3 else struct.pack(">QII", 5, 0, 8)
    extras = struct.pack(">QIB", 1, event, version)
    frames = source.send(Opcode.DCP_SYSTEM_EVENT, extras=extras, key=b"name", value=value)
    assert read(frames) == ([] if status is None else [("answer", status)])
    assert node.vbucket(1).high_seqno == (status is None)
    assert {int(item) for item in SystemEventId} == {0, 1, 3, 4, 5}


@rule("COL-27")
def test_with_flatbuffers_every_event_is_of_version_2() -> None:
    node = SimulatedNode()
    set_manifest(node, GARDEN_WITH_TTL)
    peer = node.producer(controls=[FLATBUFFERS])
    found = events(peer.stream(1))
    set_manifest(node, ONLY_DEFAULT)
    found += events(peer.take())
    assert [frame.extras[12] for frame in found] == [2] * 6
    assert found[0].value == flatbuffer_of(CollectionEvent(SystemEventId.CREATE_SCOPE, 0, 9, 0, "s1"))
    assert found[0].value.hex() == "1000000000000a000c000000040008000a00000009000000040000000200000073310000"
    assert found[1].value == flatbuffer_of(CollectionEvent(0, 0, 9, 10, "veg", 100))
    assert [frame.key for frame in found] == [b"s1", b"veg", b"fruit", b"", b"", b""]


@rule("COL-28")
@of_release("7.2", "8.0")
def test_the_time_of_documents_in_a_collection_may_change_later(release: str) -> None:
    changed = manifest(2, scope("s1", 9, collection("veg", VEG, maxTTL=7)), default=[collection("fruit", FRUIT)])
    set_manifest(garden(), changed, Status.CANNOT_APPLY_MANIFEST if release == "7.2" else Status.SUCCESS)


@rule("COL-28")
@of_release("7.2")
def test_a_modified_collection() -> None:
    node = garden()
    plain, flat = node.producer(b"plain"), node.producer(b"flat", controls=[FLATBUFFERS])
    for peer in (plain, flat):
        peer.stream(1)
    set_manifest(
        node, manifest(2, scope("s1", 9, collection("veg", VEG, history=True)), default=[collection("fruit", FRUIT)])
    )
    assert drain(flat) == [(11, 11, FIRST), ("event", 11, 5)]
    assert drain(plain) == [(11, 11, FIRST), ("advanced", 11)]
    (told,) = events(flat.received)[-1:]
    assert told.value == flatbuffer_of(CollectionEvent(SystemEventId.MODIFY_COLLECTION, 2, 9, VEG, "veg", history=True))
    node.set_doc(1, "ca9", collection=VEG_KEY)
    assert drain(plain)[-1] == 12


@rule("COL-30")
@of_release("7.2")
def test_a_filter_by_collections_passes_their_events() -> None:
    node = garden()
    peer = node.producer(controls=[FLATBUFFERS])
    assert sent(peer.stream(1, value=b'{"collections":["a"]}'))[1] == ("event", 2, 0)
    set_manifest(
        node, manifest(2, scope("s1", 9, collection("veg", VEG, history=True)), default=[collection("fruit", FRUIT)])
    )
    assert drain(peer) == [(11, 11, FIRST), ("event", 11, 5)]
    set_manifest(node, manifest(3, scope("s1", 9), default=[collection("fruit", FRUIT)]))
    assert drain(peer) == [(12, 12, FIRST), ("event", 12, 1), end(StreamEndReason.FILTER_EMPTY)]
    assert all(frame.extras[8:12] not in (b"\0\0\0\3", b"\0\0\0\4") for frame in events(peer.received))


@rule("COL-30")
def test_two_collections_and_one_of_them_ends() -> None:
    node = garden()
    peer = node.producer()
    peer.stream(1, value=b'{"collections":["8","a"]}')
    set_manifest(node, WITHOUT_FRUIT)
    assert drain(peer) == [(11, 11, FIRST), ("event", 11, 1)], "the other one is still there"
    node.set_doc(1, "ca9", collection=VEG_KEY)
    assert drain(peer) == [(12, 12, LATER), 12]
    set_manifest(node, ONLY_DEFAULT)
    assert drain(peer)[-2:] == [("event", 13, 1), end(StreamEndReason.FILTER_EMPTY)]


@rule("COL-31")
@of_release("7.2")
def test_a_scope_grows_and_ends() -> None:
    node = garden()
    peer = node.producer()
    found = sent(peer.stream(1, value=b'{"scope":"9"}'))
    assert found[1:] == [("event", 1, 3), ("event", 2, 0), 5, 7, 9, ("advanced", 10)]
    more = scope("s1", 9, collection("veg", VEG), collection("roots", 0x30))
    set_manifest(node, manifest(2, more, default=[collection("fruit", FRUIT)]))
    node.set_doc(1, "beet", collection=b"\x30")
    node.set_doc(1, "apx", collection=FRUIT_KEY)
    assert drain(peer) == [(11, 11, FIRST), ("event", 11, 0), (12, 12, LATER), 12]
    resumed = node.producer(b"resumed")
    found = sent(resumed.stream(1, 10, value=b'{"scope":"9"}'))
    assert found == [(10, 12, FIRST), ("event", 11, 0), 12], "from memory, so it ends with what is for the stream"
    set_manifest(node, manifest(3, scope("s1", 9), default=[collection("fruit", FRUIT)]))
    assert read(peer.received)[-1] != end(StreamEndReason.FILTER_EMPTY), "an empty scope may get collections again"
    set_manifest(node, manifest(4, default=[collection("fruit", FRUIT)]))
    assert read(peer.received)[-2:] == [("event", 16, 4), end(StreamEndReason.FILTER_EMPTY)]


@rule("COL-32")
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_nothing_follows_the_end(is_on_disk: bool, tmp_path: Path) -> None:
    node = garden(path=tmp_path) if is_on_disk else garden()
    node.delete_doc(1, "ap0", collection=FRUIT_KEY)
    live = node.producer(b"live")
    live.stream(1)
    set_manifest(node, WITHOUT_FRUIT)
    answered = node.admin.call(Opcode.SET, vbid=1, key=FRUIT_KEY + b"x", extras=bytes(8))
    assert answered.status == Status.UNKNOWN_COLLECTION
    assert json.loads(answered.value)["manifest_uid"] == "2"
    assert node.admin.call(Opcode.GET, vbid=1, key=FRUIT_KEY + b"ap2").status == Status.UNKNOWN_COLLECTION
    assert read(live.received)[-1] == ("event", 12, 1)
    for _ in range(2):
        new_checkpoint(node)
        found = sent(node.producer(b"later").stream(1))
        assert found == [(0, 12, DISK), ("event", 1, 3), ("event", 2, 0), 5, 7, 9, 10, ("event", 12, 1)]
        if not is_on_disk:
            break
        node.restart()
        assert node.bucket.manifest.uid == 2


@rule("COL-33")
def test_events_are_items() -> None:
    node = SimulatedNode()
    set_manifest(node, GARDEN_WITH_TTL)
    new_checkpoint(node)
    assert node.vbucket(1).high_seqno == 3
    peer = node.producer()
    assert sent(peer.stream(1)) == [(0, 3, DISK), ("event", 1, 3), ("event", 2, 0), ("event", 3, 0)]
    assert dcp_stat(node, "items_sent") == "3"
    peer.close_stream(1)
    assert sent(peer.stream(1, 3)) == [], "and a position"
    assert sent(node.producer(b"b").stream(1, 1, end=2))[1:] == [("event", 2, 0), ("event", 3, 0), end()]


@rule("COL-34")
@of_release("8.0")
def test_a_flushed_collection_starts_over() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept(1, refused=FLATBUFFERS[0])  # its events are of version 0
    begin: dict[str, Any] = {"key": b"fruit", "value": struct.pack(">QII", 5, 0, 8)}
    assert source.marker(1, 4) == []
    source.send(Opcode.DCP_SYSTEM_EVENT, extras=struct.pack(">QIB", 1, 0, 0), **begin)
    mutation = struct.pack(">QQIIIHB", 2, 1, 0, 0, 0, 0, 0)
    assert source.send(Opcode.DCP_MUTATION, extras=mutation, key=FRUIT_KEY + b"old", cas=1) == []
    assert item_count(node) == 1
    assert source.send(Opcode.DCP_SYSTEM_EVENT, extras=struct.pack(">QIB", 3, 0, 0), **begin) == []
    assert item_count(node) == 0
    mutation = struct.pack(">QQIIIHB", 4, 1, 0, 0, 0, 0, 0)
    assert source.send(Opcode.DCP_MUTATION, extras=mutation, key=FRUIT_KEY + b"new", cas=1) == []
    reader = node.producer(flags=OpenFlag.PRODUCER)
    assert sent(reader.stream(1))[1:] == [("event", 3, 0), 4], "the old generation is gone"
