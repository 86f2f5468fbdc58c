"""A scripted producer, and two nodes joined by a pretend wire."""

from __future__ import annotations

import pytest

from dcpstream.model import VbucketState
from dcpstream.wire import Opcode
from dcpstream_node.testing.simulation import PretendWire, ScriptedProducer, SimulatedNode


@pytest.fixture
def nodes() -> tuple[SimulatedNode, SimulatedNode]:
    old, new = SimulatedNode(), SimulatedNode()
    old.fill(1, 3)
    new.set_vbucket(1, VbucketState.REPLICA)
    return old, new


def test_a_copy_gets_everything_and_the_manager_its_answer(nodes: tuple[SimulatedNode, SimulatedNode]) -> None:
    wire = PretendWire(*nodes)
    wire.add_stream(1)
    wire.run()
    assert nodes[1].vbucket(1).high_seqno == 3
    assert [answer.opcode for answer in wire.answers] == [Opcode.DCP_ADD_STREAM]
    assert len(wire.sent("old", Opcode.DCP_MUTATION)) == 3


def test_a_wire_that_is_cut_leaves_what_has_passed(nodes: tuple[SimulatedNode, SimulatedNode]) -> None:
    wire = PretendWire(*nodes)
    wire.add_stream(1)
    wire.run(until=lambda: len(wire.sent("old", Opcode.DCP_MUTATION)) == 2)
    wire.cut()
    assert not wire.step()
    assert nodes[1].vbucket(1).high_seqno == 2


def test_a_scripted_producer_fills_a_copy() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, VbucketState.REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    source.snapshot(b"a", b"b", start=1)
    assert node.vbucket(1).high_seqno == 2
    assert source.end() == []
    assert not source.closed
