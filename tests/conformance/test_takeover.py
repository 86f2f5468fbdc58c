"""Takeover: a vbucket goes from one node to another, seen from the producer and joined end to end."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.wire import Frame, Opcode, Status, StreamFlag, encode_response
from dcpstream_node.testing.simulation import Peer, PretendWire, SimulatedNode
from tests.kit.rules import rule
from tests.kit.streams import ACTIVE, DEAD, PENDING, REPLICA, new_checkpoint, of, opcodes

OPAQUE = 0x77
FROM_DISK = 6


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    node.fill(1, 3)
    return node


def begun(node: SimulatedNode) -> tuple[Peer, list[Frame]]:
    """A takeover stream of vbucket 1, and what it said first."""
    peer = node.producer()
    frames = peer.stream(1, flags=StreamFlag.TAKEOVER, opaque=OPAQUE)
    assert frames[0].status == 0
    return peer, frames[1:]


def answer(peer: Peer, opcode: int, status: int = 0, opaque: int = OPAQUE) -> list[Frame]:
    return peer.send_bytes(encode_response(opcode, status=status, opaque=opaque))


def marker_flags(frames: list[Frame]) -> list[int]:
    return [int.from_bytes(frame.extras[16:20], "big") for frame in of(frames, Opcode.DCP_SNAPSHOT_MARKER)]


@rule("TKO-01", "TKO-02")
def test_markers_are_to_be_answered_and_then_the_copy_is_to_be_pending(node: SimulatedNode) -> None:
    peer, frames = begun(node)
    assert opcodes(frames) == [Opcode.DCP_SNAPSHOT_MARKER, *[Opcode.DCP_MUTATION] * 3]
    assert marker_flags(frames) == [0xD]
    node.set_doc(1, "more")
    more = peer.take()
    assert marker_flags(more) == [0x9]
    assert answer(peer, Opcode.DCP_SNAPSHOT_MARKER) == []  # one of two
    (asked,) = answer(peer, Opcode.DCP_SNAPSHOT_MARKER)
    assert (asked.opcode, asked.extras, asked.opaque) == (Opcode.DCP_SET_VBUCKET_STATE, b"\3", OPAQUE)
    node.advance(30)
    assert of(peer.take(), Opcode.DCP_SET_VBUCKET_STATE) == []
    assert node.vbucket(1).state == ACTIVE


@rule("TKO-02")
def test_what_is_empty_or_from_disk_needs_no_answer_first(tmp_path) -> None:
    node = SimulatedNode(path=tmp_path)
    peer, frames = begun(node)
    assert [frame.extras for frame in frames] == [b"\3"]
    node.fill(2, 3)
    new_checkpoint(node, 2)
    frames = peer.stream(2, flags=StreamFlag.TAKEOVER, opaque=0x78)
    assert marker_flags(frames) == [0x6]
    assert frames[-1].extras == b"\3"


@rule("TKO-03", "TKO-04")
def test_dead_then_the_rest_then_active_then_the_end(node: SimulatedNode) -> None:
    peer, _ = begun(node)
    answer(peer, Opcode.DCP_SNAPSHOT_MARKER)
    node.set_doc(1, "during", b"x")
    assert peer.take() == []
    frames = answer(peer, Opcode.DCP_SET_VBUCKET_STATE)
    assert node.vbucket(1).state == DEAD
    assert opcodes(frames) == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
    assert (marker_flags(frames), frames[1].key) == ([0xD], b"\0during")
    (asked,) = answer(peer, Opcode.DCP_SNAPSHOT_MARKER)
    assert (asked.opcode, asked.extras) == (Opcode.DCP_SET_VBUCKET_STATE, b"\1")
    (end,) = answer(peer, Opcode.DCP_SET_VBUCKET_STATE)
    assert (end.opcode, end.extras) == (Opcode.DCP_STREAM_END, bytes(4))
    assert node.vbucket(1).state == DEAD


@rule("TKO-05")
def test_the_death_of_the_vbucket_ends_no_stream(node: SimulatedNode) -> None:
    peer, _ = begun(node)
    reader = node.producer(b"other")
    reader.stream(1)
    answer(peer, Opcode.DCP_SNAPSHOT_MARKER)
    node.set_doc(1, "during", b"x")
    frames = answer(peer, Opcode.DCP_SET_VBUCKET_STATE)
    assert opcodes(frames)[0] == Opcode.DCP_SNAPSHOT_MARKER
    answer(peer, Opcode.DCP_SNAPSHOT_MARKER)
    answer(peer, Opcode.DCP_SET_VBUCKET_STATE)
    assert node.vbucket(1).state == DEAD
    assert [frame.key for frame in of(reader.take(), Opcode.DCP_MUTATION)][-1] == b"\0during"
    node.set_vbucket(1, DEAD)
    assert reader.take() == [], "it was dead before"
    assert reader.call(Opcode.DCP_CLOSE_STREAM, vbid=1).status == 0


@rule("TKO-05")
@pytest.mark.parametrize("state", [ACTIVE, REPLICA, PENDING, None])
def test_what_the_manager_does_next_ends_the_other_streams(node: SimulatedNode, state: int | None) -> None:
    peer, _ = begun(node)
    reader = node.producer(b"other")
    reader.stream(1)
    for opcode in (Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SET_VBUCKET_STATE, Opcode.DCP_SET_VBUCKET_STATE):
        answer(peer, opcode)
    assert reader.take() == []
    if state is None:
        node.delete_vbucket(1)
    else:
        node.set_vbucket(1, state)
    assert [frame.extras for frame in of(reader.take(), Opcode.DCP_STREAM_END)] == [b"\0\0\0\2"]
    assert reader.call(Opcode.DCP_CLOSE_STREAM, vbid=1).status == Status.KEY_ENOENT


@rule("TKO-05")
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_change_from_outside_does_end_it(node: SimulatedNode, steps: int) -> None:
    peer, _ = begun(node)
    for opcode in (Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SET_VBUCKET_STATE)[:steps]:
        answer(peer, opcode)
    node.set_vbucket(1, REPLICA)
    assert [frame.extras for frame in of(peer.take(), Opcode.DCP_STREAM_END)] == [b"\0\0\0\2"]


@rule("TKO-06")
def test_a_takeover_that_lasts_puts_writes_off(node: SimulatedNode) -> None:
    peer, _ = begun(node)

    def write() -> int:
        extras = bytes(8)
        return node.admin.call(Opcode.SET, vbid=1, key=b"\0w", value=b"v", extras=extras).status

    node.advance(59)
    assert write() == Status.SUCCESS
    node.advance(2)
    assert write() == Status.TMPFAIL
    assert node.admin.call(Opcode.SET, vbid=2, key=b"\0w", value=b"v", extras=bytes(8)).status == Status.SUCCESS
    assert node.admin.call(Opcode.GET, vbid=1, key=b"\0w").status == Status.SUCCESS
    peer.disconnect()
    assert write() == Status.SUCCESS


@rule("TKO-06")
def test_writes_that_were_put_off_go_to_the_new_owner_in_the_end(node: SimulatedNode) -> None:
    peer, _ = begun(node)
    node.advance(61)
    answer(peer, Opcode.DCP_SNAPSHOT_MARKER)
    answer(peer, Opcode.DCP_SET_VBUCKET_STATE)
    answer(peer, Opcode.DCP_SET_VBUCKET_STATE)
    assert peer.received[-1].opcode == Opcode.DCP_STREAM_END
    put: dict[str, Any] = {"vbid": 1, "key": b"\0w", "value": b"v", "extras": bytes(8)}
    assert node.admin.call(Opcode.SET, **put).status == Status.NOT_MY_VBUCKET
    node.set_vbucket(1, ACTIVE)
    assert node.admin.call(Opcode.SET, **put).status == Status.SUCCESS


@rule("TKO-07")
@pytest.mark.parametrize("status", [Status.SUCCESS, Status.EINVAL, Status.KEY_ENOENT, Status.NOT_MY_VBUCKET])
def test_only_the_opaque_of_the_answer_matters(node: SimulatedNode, status: Status) -> None:
    peer, _ = begun(node)
    answer(peer, Opcode.DCP_SNAPSHOT_MARKER)
    assert answer(peer, Opcode.DCP_SET_VBUCKET_STATE, opaque=0x99) == []
    assert node.vbucket(1).state == ACTIVE
    assert [frame.extras for frame in answer(peer, Opcode.DCP_SET_VBUCKET_STATE, status)] == [b"\1"]
    assert node.vbucket(1).state == DEAD
    assert not peer.closed


@rule("TKO-08")
def test_a_takeover_stays_in_memory_whatever_is_written(node: SimulatedNode) -> None:
    peer, _ = begun(node)
    peer.is_reading = False
    node.vbucket(1).close_checkpoint()
    for _ in range(50):
        node.set_doc(1, "k0")
    node.vbucket(1).close_checkpoint()
    peer.is_reading = True
    node.pump()
    frames = peer.take()
    assert all(flags & 0x9 == 0x9 and not flags & 0x2 for flags in marker_flags(frames))
    assert of(frames, Opcode.DCP_MUTATION)[-1].extras[:8] == (53).to_bytes(8, "big")


@rule("TKO-09")
def test_a_marker_answer_that_fits_no_stream_is_ignored(node: SimulatedNode) -> None:
    peer, _ = begun(node)
    assert answer(peer, Opcode.DCP_SNAPSHOT_MARKER, opaque=0x99) == []
    assert not peer.closed
    assert opcodes(answer(peer, Opcode.DCP_SNAPSHOT_MARKER)) == [Opcode.DCP_SET_VBUCKET_STATE]


@rule("TKO-10")
def test_clients_go_on_at_the_new_owner_without_a_rollback(node: SimulatedNode) -> None:
    new = SimulatedNode()
    new.set_vbucket(1, REPLICA)
    before = node.failover_log(1)
    link = PretendWire(node, new)
    link.add_stream(1, StreamFlag.TAKEOVER)
    link.run()
    assert [frame.status for frame in link.answers] == [0]
    assert new.failover_log(1) == before
    reader = new.producer()
    assert reader.stream(1, 2, vbuuid=before.newest.vbuuid)[0].status == 0


@rule("TKO-10")
def test_what_came_with_the_takeover_is_read_from_disk(node: SimulatedNode) -> None:
    new = SimulatedNode()
    new.set_vbucket(1, REPLICA)
    link = PretendWire(node, new)
    link.add_stream(1, StreamFlag.TAKEOVER)
    link.run()
    assert marker_flags(new.producer().stream(1)) == [FROM_DISK]


@rule("TKO-01", "TKO-02", "TKO-03", "TKO-04")
@pytest.mark.parametrize("state", [REPLICA, PENDING])
def test_both_ends_step_by_step(node: SimulatedNode, state: int) -> None:
    new = SimulatedNode()
    new.set_vbucket(1, state)
    link = PretendWire(node, new)
    link.add_stream(1, StreamFlag.TAKEOVER)
    seen = []
    while True:
        states = (node.vbucket(1).state, new.vbucket(1).state)
        if not seen or states != seen[-1]:
            seen.append(states)
        if not link.step():
            break
    before = [(ACTIVE, REPLICA)] if state == REPLICA else []
    assert seen == [*before, (ACTIVE, PENDING), (DEAD, PENDING), (DEAD, ACTIVE)]
    for key in (b"\0k0", b"\0k1", b"\0k2"):
        assert new.admin.call(Opcode.GET, vbid=1, key=key).value == b"v"
        assert node.admin.call(Opcode.GET, vbid=1, key=key).status == Status.NOT_MY_VBUCKET
