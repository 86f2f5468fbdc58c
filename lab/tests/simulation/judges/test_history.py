"""The judges' history: branches, common points, and the promises that copies break."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.model import VbucketState
from dcpstream_node.testing.simulation import SimulatedNode
from lab.simulation.judges.history import Branch, Histories, Item, Violation, items_of, replay

ACTIVE, REPLICA = int(VbucketState.ACTIVE), int(VbucketState.REPLICA)


def item(seqno: int, key: str, value: str | None = "v") -> Item:
    return Item(seqno, (0, key.encode()), None if value is None else value.encode())


def test_a_branch_replays_its_items() -> None:
    branch = Branch(0, 1, None, 0, 0, [item(1, "a"), item(2, "b"), item(3, "a", None), Item(4, None, None)])
    assert branch.documents(2) == {(0, b"a"): b"v", (0, b"b"): b"v"}
    assert branch.documents(9) == {(0, b"b"): b"v"}
    assert branch.high == 4


def test_below_its_begin_a_branch_is_its_parent() -> None:
    parent = Branch(0, 1, None, 0, 0, [item(1, "a"), item(2, "a", "w"), item(3, "b")])
    child = Branch(0, 2, parent, 2, 3, [item(2, "a", "w"), item(3, "c")])
    assert child.documents(1) == {(0, b"a"): b"v"}
    assert child.documents(3) == {(0, b"a"): b"w", (0, b"c"): b"v"}
    assert Branch(0, 2, parent, 1, 3, []).documents(2) is None


def test_the_common_point_of_cousins() -> None:
    histories = Histories()
    root = Branch(0, 1, None, 0, 0, [item(seqno, "a") for seqno in range(1, 10)])
    left, right = Branch(0, 2, root, 7, 7, []), Branch(0, 3, root, 5, 5, [])
    below = Branch(0, 4, right, 6, 6, [])
    histories.branches = {(0, each.vbuuid): each for each in (root, left, right, below)}
    assert histories.common(0, 1, root) == 9
    assert histories.common(0, 1, left) == 7
    assert histories.common(0, 2, below) == 5
    assert histories.common(0, 4, left) == 5
    assert histories.common(0, 77, left) is None


def test_items_are_read_with_every_version() -> None:
    node = SimulatedNode()
    node.set_doc(1, "k", b"1")
    node.set_doc(1, "k", b"2")
    node.delete_doc(1, "k")
    items = items_of(node.vbucket(1).log, 0)
    assert items == [item(1, "k", "1"), item(2, "k", "2"), item(3, "k", None)]
    assert items_of(node.vbucket(1).log, 2) == items[2:]
    assert replay(items, 2) == {(0, b"k"): b"2"}


@pytest.fixture
def nodes() -> tuple[SimulatedNode, SimulatedNode]:
    return SimulatedNode(seed=1), SimulatedNode(seed=2)


def look(histories: Histories, **nodes: SimulatedNode) -> None:
    for name, node in nodes.items():
        histories.look(name, 1, node.bucket.vbucket(1))


def test_two_active_copies_are_seen(nodes: tuple[SimulatedNode, SimulatedNode]) -> None:
    a, b = nodes
    with pytest.raises(Violation, match="one active copy"):
        look(Histories(), a=a, b=b)


def test_a_promoted_copy_without_a_new_branch_is_seen(nodes: tuple[SimulatedNode, SimulatedNode]) -> None:
    """It goes on with the branch, and lacks what was written last."""
    a, b = nodes
    b.set_vbucket(1, REPLICA)
    a.fill(1, 3)
    histories = Histories()
    look(histories, a=a)
    log = a.failover_log(1)
    histories.forget_node("a")
    b.vbucket(1).set_state(VbucketState.ACTIVE, a.engine.random, is_takeover=True)
    b.vbucket(1).log.failover_log = log
    b.vbucket(1).vbuuid = log.newest.vbuuid
    with pytest.raises(Violation, match="takeover loses nothing"):
        look(histories, b=b)


def promoted(histories: Histories, a: SimulatedNode, b: SimulatedNode, fork: int) -> None:
    """Make the copy of b active, on a branch that claims to leave that of a at a seqno."""
    look(histories, a=a)
    histories.forget_node("a")
    new: Any = b.failover_log(1).newest
    entries = [type(new)(new.vbuuid, fork), *a.failover_log(1)]
    b.vbucket(1).log.failover_log = type(b.failover_log(1))(tuple(entries))
    look(histories, b=b)


def test_a_copy_with_what_its_branch_never_had_is_seen(nodes: tuple[SimulatedNode, SimulatedNode]) -> None:
    a, b = nodes
    a.fill(1, 3)
    b.fill(1, 2, prefix="other")
    with pytest.raises(Violation, match="a promoted copy has what its branch had"):
        promoted(Histories(), a, b, 2)


def test_a_new_branch_that_claims_too_much_is_seen(nodes: tuple[SimulatedNode, SimulatedNode]) -> None:
    a, b = nodes
    a.fill(1, 3)
    b.fill(1, 2)
    with pytest.raises(Violation, match="a new branch begins where the old one is known"):
        promoted(Histories(), a, b, 3)


def test_a_promoted_copy_shares_what_both_have(nodes: tuple[SimulatedNode, SimulatedNode]) -> None:
    a, b = nodes
    a.fill(1, 3)
    b.fill(1, 2)
    histories = Histories()
    promoted(histories, a, b, 2)
    assert histories.newest[1].common == 2
    assert histories.serving(1) == "b"


def test_a_branch_that_goes_back_is_seen() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    histories = Histories()
    look(histories, a=node)
    vbucket = node.vbucket(1)
    vbucket.log.truncate(1)
    with pytest.raises(Violation, match="a branch only grows"):
        look(histories, a=node)


def test_what_a_copy_wrote_before_it_gave_its_role_up_counts() -> None:
    node = SimulatedNode()
    histories = Histories()
    look(histories, a=node)
    node.fill(1, 2)
    node.set_vbucket(1, REPLICA)
    look(histories, a=node)
    assert histories.serving(1) is None
    assert histories.newest[1].high == 2
