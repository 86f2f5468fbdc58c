"""The plan of copies: balanced, complete, and with few moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dcpstream_node.cluster.machine.layout import Chain, plan_chains
from tests.kit.cases import each_case


def check(chains: list[Chain], nodes: list[str], replicas: int) -> None:
    """Every chain is whole, and no node has more than one copy above another."""
    present = min(replicas, len(nodes) - 1)
    for chain in chains:
        assert len(chain) == replicas + 1
        assert chain[present + 1 :] == (None,) * (replicas - present)
        held = chain[: present + 1]
        assert len(set(held)) == len(held)
        assert set(held) <= set(nodes)
    active = Counter(dict.fromkeys(nodes, 0)) + Counter(chain[0] for chain in chains)
    counts = [active[node] for node in nodes]
    assert max(counts) - min(counts) <= 1


@each_case(("nodes", "replicas"), [(1, 0), (1, 2), (2, 1), (3, 1), (3, 2), (4, 3), (5, 1)])
def test_a_new_bucket_is_balanced(nodes: int, replicas: int):
    names = [f"n{number}" for number in range(nodes)]
    chains = plan_chains([()] * 1024, names, replicas)
    check(chains, names, replicas)
    copies = Counter(node for chain in chains for node in chain[1:] if node is not None)
    if copies:
        assert max(copies.values()) - min(copies.values()) <= 2


def test_a_failed_node_s_load_is_spread():
    chains = plan_chains([()] * 1024, ["a", "b", "c", "d"], 1)
    heirs = Counter(chain[1] for chain in chains if chain[0] == "a")
    assert set(heirs) == {"b", "c", "d"}
    assert max(heirs.values()) - min(heirs.values()) <= 2


def test_what_is_balanced_stays():
    names = ["a", "b", "c"]
    chains = plan_chains([()] * 64, names, 1)
    assert plan_chains(chains, names, 1) == chains


def test_a_node_that_comes_gets_its_share_and_no_more_moves():
    before = plan_chains([()] * 64, ["a", "b", "c"], 1)
    after = plan_chains(before, ["a", "b", "c", "d"], 1)
    moved = [(old[0], new[0]) for old, new in zip(before, after, strict=True) if old[0] != new[0]]
    assert len(moved) == 16
    assert {new for _, new in moved} == {"d"}


def test_a_replica_becomes_active_before_another_node_does():
    before: list[Chain] = [("a", "b"), ("a", "c"), ("b", "c"), ("c", "b")]
    after = plan_chains(before, ["b", "c"], 1)
    assert [chain[0] for chain in after] == ["b", "c", "b", "c"]


def test_a_copy_that_is_nowhere_gets_a_node():
    after = plan_chains([(None, None), ("a", None)], ["a", "b"], 1)
    check(after, ["a", "b"], 1)


@given(st.data())
def test_any_change_of_nodes_gives_a_sound_plan(data: st.DataObject):
    names = [f"n{number}" for number in range(6)]
    subsets = st.lists(st.sampled_from(names), min_size=1, unique=True)
    replicas, count = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 40))
    chains: list[Chain] = [()] * count
    for nodes in data.draw(st.lists(subsets, min_size=1, max_size=4)):
        chains = plan_chains(chains, nodes, replicas)
        check(chains, nodes, replicas)
