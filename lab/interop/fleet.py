"""A cluster as the counterpart of a program: the program has its nodes come, be killed and be replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dcpstream.model import AutoFailover
from dcpstream_node import Cluster
from lab.interop.running import COLLECTIONS, PASSWORD

ACTIONS = ("grow", "kill")


@contextmanager
def served(nodes: int, options: Mapping[str, Any]) -> Iterator[Cluster]:
    """A fresh cluster of node processes with one replica and the collections of the programs."""
    settings: dict[str, Any] = {"vbuckets": 64, "password": PASSWORD, "auto_failover": AutoFailover()}
    with Cluster(nodes, 1, processes=True, **settings | dict(options)) as cluster:
        scopes: dict[str, list[str]] = {}
        for name in COLLECTIONS:
            scope, _, collection = name.partition(".")
            scopes.setdefault(scope, []).append(collection)
        cluster.set_collections("default", scopes)
        yield cluster


def order(cluster: Cluster, action: str) -> None:
    """Carry out a program's action on a cluster; returns when it is through.

    Args:
        action: grow: a node is added and gets its share, and one that was failed over leaves. kill: the first node, the
            one that clients ask first, is killed and failed over.
    """
    if action not in ACTIONS:
        raise ValueError(f"a program asked for {action!r}: {' or '.join(ACTIONS)}")
    if action == "grow":
        cluster.add_node()
        cluster.rebalance()
    else:
        victim = cluster.nodes[0]
        victim.crash()
        cluster.fail_over(victim)
