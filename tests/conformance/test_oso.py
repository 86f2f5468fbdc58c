"""Rules of snapshots without order."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from dcpstream.client.machine.tracker import PositionTracker
from dcpstream.model import FailoverLog, StreamOffset
from dcpstream.wire import Frame, Opcode, Status, StreamFlag
from dcpstream_node.testing.simulation import WITHOUT_COLLECTIONS, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import (
    DISK,
    FIRST,
    FRUIT_KEY,
    GARDEN,
    answer,
    drain,
    end,
    garden,
    message,
    new_checkpoint,
    sent,
    seqno_of,
    set_manifest,
    set_parameter,
)

OSO = (b"enable_out_of_order_snapshots", b"true")
OSO_WITH_END = (b"enable_out_of_order_snapshots", b"true_with_seqno_advanced")
FRUIT, VEG = b'{"collections":["8"]}', b'{"collections":["a"]}'
START, END = ("oso", 1), ("oso", 2)
FRUIT_ITEMS = [("event", 3, 0), 4, 6, 8]
VEG_ITEMS = [("event", 2, 0), 5, 7, 9]
LOG = FailoverLog.of((0xA, 0))


def on_disk() -> SimulatedNode:
    """`garden`, all of it on disk."""
    node = garden()
    set_parameter(node, b"dcp_oso_backfill", b"enabled")
    new_checkpoint(node)
    return node


def position(frames: Iterable[Frame]) -> StreamOffset:
    """The position of a client after these messages."""
    tracker = PositionTracker(StreamOffset.ZERO)
    tracker.opened(LOG)
    for frame in frames:
        if frame.is_response:
            continue
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            marker = message(frame)
            tracker.marker(marker.start_seqno, marker.end_seqno)  # type: ignore[attr-defined]
        elif frame.opcode == Opcode.DCP_OSO_SNAPSHOT:
            tracker.oso(frame.extras == b"\0\0\0\1")
        else:
            tracker.item(seqno_of(frame))
    return tracker.offset


@rule("OSO-01")
def test_the_message() -> None:
    frames = on_disk().producer(controls=[OSO]).stream(1, value=FRUIT, opaque=0x1234)
    first, last = frames[1], frames[-1]
    assert (first.opcode, first.extras, first.key, first.value, first.cas) == (0x65, b"\0\0\0\1", b"", b"", 0)
    assert (last.opcode, last.extras, last.key, last.value, last.cas) == (0x65, b"\0\0\0\2", b"", b"", 0)
    assert (first.opaque, first.vbid, first.magic, first.datatype) == (0x1234, 1, 0x80, 0)


@rule("OSO-02")
@of_release("7.2")
def test_what_comes_without_order() -> None:
    node = on_disk()
    on, off = node.producer(b"on", controls=[OSO]), node.producer(b"off")
    assert sent(on.stream(1, value=FRUIT)) == [START, *FRUIT_ITEMS, END]
    assert sent(off.stream(1, value=FRUIT)) == [(0, 10, DISK), *FRUIT_ITEMS, ("advanced", 10)]
    on.close_stream(1)
    assert sent(on.stream(1, value=b'{"scope":"9"}'))[0] == START
    on.close_stream(1)
    assert sent(on.stream(1, value=b'{"collections":["8","a"]}'))[0] == (0, 10, DISK)
    on.close_stream(1)
    assert sent(on.stream(1))[0] == (0, 10, DISK)
    on.close_stream(1)
    assert sent(on.stream(1, 4, value=FRUIT))[0] == (4, 10, DISK), "only from 0"
    node.set_doc(2, "k")
    assert sent(on.stream(2, value=b'{"collections":["0"]}')) == [START, 4, END]
    legacy = node.producer(b"legacy", controls=[OSO], features=WITHOUT_COLLECTIONS)
    assert sent(legacy.stream(1)) == [START, 10, END]


@rule("OSO-02", "OSO-04")
def test_only_the_first_disk_snapshot() -> None:
    node = on_disk()
    peer = node.producer(controls=[OSO])
    peer.stream(1, value=FRUIT)
    node.set_doc(1, "more")
    node.set_doc(1, "apx", collection=FRUIT_KEY)
    assert drain(peer) == [(11, 12, FIRST), 12]
    fresh = SimulatedNode()
    fresh.set_doc(1, "k")
    other = fresh.producer(controls=[OSO])
    assert sent(other.stream(1, value=b'{"collections":["0"]}')) == [(0, 1, FIRST), 1], "from memory"


@rule("OSO-03")
def test_each_key_once_and_no_marker() -> None:
    node = garden()
    set_parameter(node, b"dcp_oso_backfill", b"enabled")
    node.set_doc(1, "ap0", b"again", collection=FRUIT_KEY)
    node.delete_doc(1, "ap1", collection=FRUIT_KEY)
    new_checkpoint(node)
    frames = node.producer(controls=[OSO]).stream(1, value=FRUIT)
    found = sent(frames)
    assert (found[0], found[-1]) == (START, END)
    assert sorted(map(str, found[1:-1])) == sorted(map(str, [("event", 3, 0), 8, 11, 12]))
    keys = [frame.key for frame in frames if frame.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION)]
    assert len(keys) == len(set(keys)) == 3


@rule("OSO-05")
def test_the_end_of_the_snapshot_is_sent_to_who_wants_it() -> None:
    node = on_disk()
    peer = node.producer(controls=[OSO_WITH_END])
    assert sent(peer.stream(1, value=FRUIT)) == [START, *FRUIT_ITEMS, ("advanced", 10), END]
    peer.close_stream(1)
    assert sent(peer.stream(1, value=VEG)) == [START, *VEG_ITEMS, ("advanced", 10), END]
    peer.close_stream(1)
    assert sent(peer.stream(1, value=b'{"collections":["0"]}')) == [START, 10, END], "it was the last one"


@rule("OSO-06")
@each_case("count", [1, 2, 3, 4, 5])
def test_a_client_that_did_not_see_the_end_starts_over(count: int) -> None:
    frames = on_disk().producer(controls=[OSO]).stream(1, value=FRUIT)
    assert len(frames) == 7
    assert position(frames[: 1 + count]).request_bounds() == (0, 0, 0)


@rule("OSO-07")
@each_case(("control", "seqno"), [(OSO, 8), (OSO_WITH_END, 10)])
def test_a_client_that_saw_the_end_goes_on_from_there(control: tuple[bytes, bytes], seqno: int) -> None:
    node = on_disk()
    peer = node.producer(controls=[control])
    offset = position(peer.stream(1, value=FRUIT))
    assert offset.request_bounds() == (seqno, seqno, seqno)
    peer.close_stream(1)
    node.set_doc(1, "apx", collection=FRUIT_KEY)
    frames = peer.stream(1, seqno, value=FRUIT)
    assert answer(frames)[0] == 0
    assert sent(frames)[-1] == 11
    assert [item for item in sent(frames) if isinstance(item, int)] == [11]


@rule("OSO-08")
@each_case(("mode", "is_ordinary"), [(b"disabled", True), (b"auto", True), (b"enabled", False)])
def test_the_option_is_a_permission_and_no_promise(mode: bytes, is_ordinary: bool) -> None:
    node = on_disk()
    fields: dict[str, Any] = {"extras": (4).to_bytes(4, "big"), "key": b"dcp_oso_backfill"}
    assert node.admin.call(Opcode.SET_PARAM, value=mode, **fields).status == 0
    assert node.admin.call(Opcode.SET_PARAM, value=b"perhaps", **fields).status == Status.EINVAL
    found = sent(node.producer(controls=[OSO]).stream(1, value=FRUIT))
    assert found[0] == ((0, 10, DISK) if is_ordinary else START)
    assert found[-1] == (("advanced", 10) if is_ordinary else END)
    several = node.producer(b"several", controls=[OSO]).stream(1, value=b'{"collections":["8","a"]}')
    assert sent(several)[0] == (0, 10, DISK)


@rule("OSO-09")
@each_case("control", [OSO, OSO_WITH_END])
def test_disk_only_ends_right_after_it(control: tuple[bytes, bytes]) -> None:
    node = on_disk()
    found = sent(node.producer(controls=[control]).stream(1, flags=StreamFlag.DISK_ONLY, value=VEG))
    assert found[0] == START
    assert found[-2:] == [END, end()]


@rule("OSO-08")
@each_case(
    ("size", "share", "is_unordered"),
    [(10, 0.004, True), (10, 0.006, False), (400, 0.03, True), (400, 0.05, False)],
    ids=["few small", "many small", "few large", "many large"],
)
def test_the_server_decides_by_the_share_of_the_collection(size: int, share: float, is_unordered: bool) -> None:
    """Collections of less than 0.5 % of the documents come out of order, of 4 % if documents have 256 bytes or more."""
    node = SimulatedNode()
    set_manifest(node, GARDEN)
    few = round(1000 * share)
    value = Random(1).randbytes(size)  # which no compression makes smaller: the sizes on disk count
    node.fill(1, 1000 - few, value=value)
    for number in range(few):
        node.set_doc(1, f"ap{number}", value=value, collection=FRUIT_KEY)
    new_checkpoint(node)
    first = sent(node.producer(controls=[OSO]).stream(1, value=FRUIT))[0]
    assert (first == START) is is_unordered
    for name in (b"dcp_oso_backfill_small_value_ratio", b"dcp_oso_backfill_large_value_ratio"):
        set_parameter(node, name, b"0.1")
    assert sent(node.producer(b"more", controls=[OSO]).stream(1, value=FRUIT))[0] == START
