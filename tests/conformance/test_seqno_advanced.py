"""Rules of SEQNO_ADVANCED: how a stream that leaves things out tells how far it has come."""

from __future__ import annotations

import pytest

from dcpstream.client.machine.tracker import PositionTracker
from dcpstream.dcp.producer import next_step
from dcpstream.model import FailoverLog, StreamOffset
from dcpstream.wire import Opcode, StreamFlag, SystemEventId
from dcpstream.wire.system_events import CollectionEvent
from dcpstream_node.testing.simulation import WITHOUT_COLLECTIONS
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import (
    DISK,
    FIRST,
    FRUIT_KEY,
    LATER,
    answer,
    collection,
    dcp_stat,
    drain,
    end,
    garden,
    manifest,
    new_checkpoint,
    scope,
    sent,
    set_manifest,
)

FRUIT = b'{"collections":["8"]}'
NAMED_REPLICA = ((b"enable_sync_writes", b"true"), (b"consumer_name", b"r"), (b"flatbuffers_system_events", b"true"))


@rule("ADV-01")
def test_the_message() -> None:
    node = garden()
    new_checkpoint(node)
    found = node.producer().stream(1, value=FRUIT, opaque=0x4321)[-1]
    assert (found.opcode, found.extras, found.key, found.value) == (0x64, (10).to_bytes(8, "big"), b"", b"")
    assert (found.opaque, found.vbid, found.cas, found.datatype, found.is_request) == (0x4321, 1, 0, 0, True)


@rule("ADV-02", "ADV-08")
@each_case("is_disk", [False, True])
@of_release("7.2")
def test_without_collections_the_marker_ends_earlier_instead(is_disk: bool) -> None:
    node = garden()
    node.set_doc(1, "apx", collection=FRUIT_KEY)
    if is_disk:
        new_checkpoint(node)
    frames = node.producer(features=WITHOUT_COLLECTIONS).stream(1)
    assert sent(frames)[0][:2] == (0, 10)  # type: ignore[index]
    assert sent(frames)[1:] == [10]
    assert sent(node.producer(b"with").stream(1, value=b'{"collections":["0"]}'))[-2:] == [10, ("advanced", 11)]


@rule("ADV-03")
def test_not_where_nothing_is_hidden(release: str) -> None:
    node = garden()
    set_manifest(
        node, manifest(2, scope("s1", 9, collection("veg", 0xA, history=True)), default=[collection("fruit", 8)])
    )
    modified = CollectionEvent(SystemEventId.MODIFY_COLLECTION, 2, 9, 0xA, "veg", history=True)
    assert node.vbucket(1).high_seqno == 11
    new_checkpoint(node)
    assert sent(node.producer(b"old").stream(1))[-1] == ("advanced", 11), "the event is hidden from this one"
    replica = node.producer(b"replica", controls=NAMED_REPLICA)
    assert sent(replica.stream(1))[-1] == ("event", 11, int(modified.event))
    assert not any(frame.opcode == Opcode.DCP_SEQNO_ADVANCED for frame in replica.received)
    # Also where a bound lies beyond the history, the request of such a stream keeps it.
    replica.close_stream(1)
    assert answer(replica.stream(1, 9, snapshot=(9, 99)))[0] == 0
    kept = ("99",) if release == "8.0" else ("99", "9")  # a server of 7.2 does not keep it
    assert dcp_stat(node, "stream_1_snap_end_seqno", "replica") in kept


@rule("ADV-04", "ADV-05")
@each_case(
    ("value", "expected"),
    [
        (FRUIT, [(0, 10, DISK), ("event", 3, 0), 4, 6, 8, ("advanced", 10)]),
        (b'{"collections":["0"]}', [(0, 10, DISK), 10]),
        (b'{"scope":"9"}', [(0, 10, DISK), ("event", 1, 3), ("event", 2, 0), 5, 7, 9, ("advanced", 10)]),
        (b"", [(0, 10, DISK), ("event", 1, 3), ("event", 2, 0), ("event", 3, 0), 4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_it_closes_a_snapshot_whose_end_is_not_for_the_stream(value: bytes, expected: list[object]) -> None:
    node = garden()
    new_checkpoint(node)
    assert sent(node.producer().stream(1, value=value)) == expected


@rule("ADV-04", "ADV-05")
@of_release("7.2")
def test_a_snapshot_from_memory_ends_with_what_is_for_the_stream() -> None:
    node = garden()
    peer = node.producer()
    peer.stream(1, value=FRUIT)
    peer.is_reading = False
    node.set_doc(1, "apx", collection=FRUIT_KEY)
    node.set_doc(1, "plain2")
    peer.is_reading = True
    assert drain(peer) == [(11, 11, FIRST), 11]
    node.set_doc(1, "plain3")
    assert drain(peer) == [], "a snapshot from memory without anything for the stream is not announced"
    node.set_doc(1, "apy", collection=FRUIT_KEY)
    assert drain(peer) == [(14, 14, LATER), 14]
    new_checkpoint(node)
    alone = node.producer(b"alone").stream(1, 14, value=b'{"collections":["a"]}', flags=StreamFlag.DISK_ONLY)
    assert sent(alone) == [end()], "and nothing at all of an empty range"
    node.set_doc(1, "plain4")
    new_checkpoint(node)
    alone = node.producer(b"alone").stream(1, 14, value=b'{"collections":["a"]}')
    assert sent(alone) == [(14, 15, DISK), ("advanced", 15)], "it may be all there is"


@rule("ADV-06")
def test_it_is_a_position() -> None:
    node = garden()
    new_checkpoint(node)
    peer = node.producer()
    frames = peer.stream(1, value=FRUIT)
    tracker = PositionTracker(StreamOffset.ZERO)
    tracker.opened(FailoverLog.of((0xA, 0)))
    tracker.marker(0, 10)
    tracker.item(8)
    assert not tracker.snapshots.is_complete
    assert tracker.offset.request_bounds() == (8, 0, 10)
    tracker.item(int.from_bytes(frames[-1].extras, "big"))
    assert tracker.snapshots.is_complete
    assert tracker.offset.seqno == 10
    peer.close_stream(1)
    assert sent(peer.stream(1, 10, snapshot=(0, 10), value=FRUIT)) == []


@rule("ADV-07")
def test_long_stretches_get_a_seqno_advanced_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next_step.SKIPPED_MESSAGES_MAX == 10_000
    monkeypatch.setattr(next_step, "SKIPPED_MESSAGES_MAX", 20)
    node = garden()
    node.fill(1, 90)
    node.set_doc(1, "apx", collection=FRUIT_KEY)
    new_checkpoint(node)
    peer = node.producer()
    peer.is_reading = False
    peer.stream(1, value=FRUIT)
    peer.is_reading = True
    while peer.fetch(600):
        pass
    found = sent(peer.take())
    assert found[:5] == [(0, 101, DISK), ("event", 3, 0), 4, 6, 8]
    assert found[-1] == 101
    told = [item[1] for item in found[5:-1]]  # type: ignore[index]
    assert {item[0] for item in found[5:-1]} == {"advanced"}  # type: ignore[index]
    assert len(told) >= 2
    assert all(8 < seqno < 101 for seqno in told)
    assert all(after - before >= 20 for before, after in zip([8, *told], told, strict=False))


@rule("ADV-09")
@each_case("is_disk", [False, True])
@of_release("7.2")
def test_a_resumed_client_gets_a_seqno_although_it_gets_no_row(is_disk: bool) -> None:
    node = garden()
    node.fill(1, 3)
    if is_disk:
        new_checkpoint(node)
    # From memory the snapshot is the client's own, from disk it reaches to the end of what is there.
    last, flags = (13, DISK) if is_disk else (11, FIRST)
    peer = node.producer()
    frames = peer.stream(1, 9, snapshot=(9, 11), value=FRUIT)
    assert sent(frames) == [(9, last, flags), ("advanced", last)]
    node.set_doc(1, "more")
    assert drain(peer) == [], "once it is in step it is not told of what is not for it"
