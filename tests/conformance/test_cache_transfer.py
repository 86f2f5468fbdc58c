"""The transfer of cached documents, of release 8.5: at the producer, at the consumer, and what older releases say.

Source: kv_engine docs/dcp/documentation/cache-transfer.md; nothing of 8.5 was recorded.
"""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.wire import Opcode, OpenFlag, Status, StreamFlag
from dcpstream.wire.cached_items import MIN_RECORD_BYTES, CachedItem, cached_items, encode_cached_item
from dcpstream.wire.frames import Frame
from dcpstream_node.testing.simulation import USUAL_FEATURES, Peer, ScriptedProducer, SimulatedNode
from tests.kit.rules import of_release, rule
from tests.kit.streams import DEAD, REPLICA, answer, end, garden, new_checkpoint, of, opcodes, read, statuses

pytestmark = of_release("8.5")

FLAG = StreamFlag.CACHE_TRANSFER
ALL, NEXT = int(Opcode.DCP_CACHE_TRANSFER), int(Opcode.DCP_CACHE_TRANSFER_END)


def records(frames: list[Frame]) -> list[CachedItem]:
    return [item for frame in frames if frame.opcode == ALL for item in cached_items(frame.value)]


def lived() -> SimulatedNode:
    """Seqnos 1 to 5: k0 to k4; 6: k1 again; 7: k2 is deleted; 8: k3 again."""
    node = SimulatedNode()
    node.fill(1, 5)
    node.set_doc(1, "k1", value=b"longer")
    node.delete_doc(1, "k2")
    node.set_doc(1, "k3")
    return node


@rule("REQ-39", "REQ-41")
@pytest.mark.parametrize("is_disk", [False, True])
@pytest.mark.parametrize("more", [0, StreamFlag.ACTIVE_ONLY])
def test_a_stream_of_cached_documents_alone(more: int, is_disk: bool) -> None:
    node = lived()
    if is_disk:
        new_checkpoint(node)
    frames = node.producer().stream(1, 7, 7, flags=FLAG | more)
    assert answer(frames)[0] == 0
    assert [(item.key, item.seqno) for item in records(frames)] == [(b"\0k0", 1), (b"\0k4", 5), (b"\0k1", 6)]
    assert [frame.opcode for frame in frames[1:-1]] == [ALL]
    assert read(frames[-1:]) == [end()]


@rule("REQ-40", "REQ-41")
def test_the_history_above_the_start_follows() -> None:
    node = lived()
    peer = node.producer()
    frames = peer.stream(1, 6, flags=FLAG)
    assert opcodes(frames[1:]) == [ALL, NEXT, Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_DELETION, Opcode.DCP_MUTATION]
    assert (frames[2].size, frames[2].opaque) == (24, 0x77)
    node.set_doc(1, "k9")
    assert opcodes(peer.take()) == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]


def test_a_stream_from_the_beginning_has_nothing_to_transfer() -> None:
    peer = lived().producer()
    assert opcodes(peer.stream(1, flags=FLAG))[1:3] == [NEXT, Opcode.DCP_SNAPSHOT_MARKER]
    assert read(lived().producer().stream(1, 0, 0, flags=FLAG))[1:] == [end()]


@rule("REQ-42")
def test_a_record_has_forty_bytes_before_its_key() -> None:
    node = SimulatedNode()
    node.set_doc(1, "k", value=b"v" * 9)
    stored = node.vbucket(1).log.get(b"\0k")
    assert stored is not None
    frames = node.producer().stream(1, 1, 1, flags=FLAG)
    (frame,) = of(frames, ALL)
    assert (frame.extras, frame.key, frame.cas, frame.vbid, frame.opaque) == (b"", b"", 0, 1, 0x77)
    cas, seqno, rev, size, flags, expiration, key_size, datatype, _ = struct.unpack_from(">QQQIIIHBB", frame.value)
    assert (cas, seqno, rev, size, flags, expiration) == (stored.cas, 1, 1, 9, 0, 0)
    assert (key_size, datatype, frame.value[40:]) == (2, 0, b"\0k" + b"v" * 9)


@rule("REQ-41")
def test_only_the_wanted_and_living_collections() -> None:
    node = garden()
    fields = {"collections": ["8"], "cts": {"free_memory": 1 << 20, "all_keys": True}}
    found = records(node.producer().stream(1, 10, 10, flags=FLAG, value=json.dumps(fields).encode()))
    assert [item.seqno for item in found] == [4, 6, 8]
    assert [item.seqno for item in records(node.producer().stream(1, 9, 9, flags=FLAG))] == [4, 5, 6, 7, 8, 9]


@rule("REQ-39")
@pytest.mark.parametrize(("all_keys", "sizes"), [(False, [50, 50]), (True, [50, 50, 0, 0, 0])])
def test_free_memory_bounds_the_values(all_keys: bool, sizes: list[int]) -> None:
    node = SimulatedNode()
    node.fill(1, 5, value=b"v" * 50)
    wish = json.dumps({"cts": {"free_memory": 150, "all_keys": all_keys}}).encode()
    frames = node.producer().stream(1, 5, 5, flags=FLAG, value=wish)
    assert [len(item.value) for item in records(frames)] == sizes
    assert read(frames[-1:]) == [end()]


@rule("COL-19")
@pytest.mark.parametrize("options", ["[]", "7", '{"free_memory":-1}', '{"free_memory":"1"}', '{"all_keys":1}'])
def test_bad_options_are_refused(options: str) -> None:
    peer = garden().producer()
    assert answer(peer.stream(1, value=b'{"cts":%s}' % options.encode()))[0] == Status.EINVAL
    assert answer(peer.stream(1, value=b'{"uid":"0","cts":%s}' % options.encode()))[0] == Status.EINVAL
    assert answer(peer.stream(1, value=b'{"cts":{}}'))[0] == 0


@rule("ADD-10", "REQ-05")
@pytest.mark.parametrize("more", [2, 4, 0x20, 0x40, 0x80, 0x12])
def test_other_flags_do_not_go_with_it(more: int) -> None:
    node = lived()
    assert answer(node.producer().stream(1, 7, flags=FLAG | more))[0] == Status.EINVAL
    node.set_vbucket(2, REPLICA)
    assert statuses(ScriptedProducer(node).add(2, int(FLAG | more))) == [Status.EINVAL]


@rule("REQ-38", "CTL-27")
def test_where_the_bucket_does_not_permit_it_the_stream_is_an_ordinary_one() -> None:
    node = lived()
    node.bucket.has_cache_transfer = False
    peer = node.producer()
    assert peer.control(b"cache_transfer", b"true").status == Status.NOT_SUPPORTED
    assert opcodes(peer.stream(1, 7, flags=FLAG))[1:] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
    node.bucket.has_cache_transfer = True
    assert node.producer(b"other").control(b"cache_transfer", b"x").status == 0


@rule("FLC-11", "FLC-15")
def test_the_messages_count_for_flow_control() -> None:
    node = SimulatedNode()
    node.fill(1, 40, value=b"v" * 100)
    peer = node.producer(controls=[(b"connection_buffer_size", b"1000")])
    new = frames = peer.stream(1, 40, flags=FLAG)
    assert 0 < len(records(frames)) < 40
    while opcodes(frames)[-1] == ALL:
        new = peer.buffer_ack(sum(frame.size for frame in new if frame.is_request))
        assert new, "what was acknowledged is not sent"
        frames = frames + new
    assert [item.seqno for item in records(frames)] == list(range(1, 41))
    assert opcodes(frames)[-1] == NEXT


@rule("DIS-09")
def test_a_consumer_without_memory_ends_the_transfer() -> None:
    node = SimulatedNode()
    node.fill(1, 40, value=b"v" * 100)
    peer = node.producer(controls=[(b"connection_buffer_size", b"1000")])
    frames = peer.stream(1, 40, flags=FLAG)
    frame = of(frames, ALL)[0]
    peer.answer(frame, status=Status.ENOMEM)
    frames += peer.buffer_ack(10000)
    assert len(records(frames)) < 40
    assert opcodes(frames)[-1] == NEXT
    assert not peer.closed


@rule("REQ-43", "DIS-03")
@pytest.mark.parametrize("size", [1, MIN_RECORD_BYTES - 1])
def test_a_value_too_short_for_a_record_is_invalid_at_both_ends(size: int) -> None:
    node = SimulatedNode()
    for peer in (node.producer(), node.consumer()):
        assert peer.call(Opcode.DCP_CACHE_TRANSFER, vbid=1, value=bytes(size)).status == Status.EINVAL
        assert not peer.closed
    producer = node.producer(b"again")
    producer.send(Opcode.DCP_CACHE_TRANSFER, vbid=1, value=bytes(MIN_RECORD_BYTES))
    assert producer.closed


# ---------------------------------------------------------------------------------------------------- at the consumer


@pytest.fixture
def source(node: SimulatedNode) -> ScriptedProducer:
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept()
    return source


ITEM = CachedItem(b"\0k", b"v", 7, 1, 1, 0, 0, 0, 4)


@rule("REQ-42", "CON-01")
def test_a_consumer_takes_cached_documents_and_moves_no_position(source: ScriptedProducer) -> None:
    asked = [frame.key for frame in source.peer.received if frame.opcode == Opcode.DCP_CONTROL]
    assert asked[-2:] == [b"cache_transfer", b"connection_buffer_size"]
    value = encode_cached_item(ITEM) + encode_cached_item(ITEM._replace(key=b"\0other", value=b""))
    assert source.send(ALL, value=value) == []
    assert source.send(NEXT) == []
    assert not source.closed
    assert source.node.vbucket(1).high_seqno == 0
    source.marker(1, 1)
    extras = struct.pack(">QQIIIHB", 1, 1, 0, 0, 0, 0, 0)
    assert source.send(Opcode.DCP_MUTATION, extras=extras, key=b"\0k", value=b"v", cas=7) == []
    assert source.node.vbucket(1).high_seqno == 1


@rule("CON-22")
def test_a_collection_that_the_copy_does_not_know(source: ScriptedProducer) -> None:
    value = encode_cached_item(ITEM._replace(key=b"\x63k"))
    assert statuses(source.send(ALL, value=value)) == [Status.UNKNOWN_COLLECTION]
    assert not source.closed


@rule("REQ-43")
@pytest.mark.parametrize("cut", [1, 20])
def test_a_record_longer_than_the_value_ends_the_connection(source: ScriptedProducer, cut: int) -> None:
    whole = encode_cached_item(ITEM) + encode_cached_item(ITEM._replace(value=b"v" * 30))
    source.send(ALL, value=whole[:-cut])
    assert source.closed


@rule("CON-19")
def test_a_copy_that_is_a_replica_no_more(source: ScriptedProducer) -> None:
    source.node.set_vbucket(1, DEAD)
    assert statuses(source.send(ALL, value=encode_cached_item(ITEM))) == [Status.NOT_MY_VBUCKET]


@rule("ADD-07")
def test_a_consumer_passes_the_flag_on(node: SimulatedNode) -> None:
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    (request,) = source.negotiate(source.add(1, int(FLAG | StreamFlag.ACTIVE_ONLY)))
    assert int.from_bytes(request.extras[:4], "big") == FLAG | StreamFlag.ACTIVE_ONLY


def test_a_cached_document_of_a_stream_that_is_over(source: ScriptedProducer) -> None:
    source.send(Opcode.DCP_STREAM_END, extras=bytes(4))
    assert statuses(source.send(ALL, value=encode_cached_item(ITEM))) == [Status.DCP_STREAM_NOT_FOUND]


# --------------------------------------------------------------------------------------------------------- takeovers


@rule("REQ-40")
def test_it_goes_together_with_a_takeover() -> None:
    node = lived()
    peer: Peer = node.producer(flags=OpenFlag.PRODUCER)
    frames = peer.stream(1, 7, flags=FLAG | StreamFlag.TAKEOVER)
    assert opcodes(frames[1:])[:3] == [ALL, NEXT, Opcode.DCP_SNAPSHOT_MARKER]
