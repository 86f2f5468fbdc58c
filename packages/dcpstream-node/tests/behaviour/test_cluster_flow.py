"""The flow of a running cluster: what its page shows is what the map and the copies say."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest

from dcpstream.client import Client
from dcpstream.client.kv.client import KvClient
from dcpstream_node import Cluster, Node
from tests.kit.rest import ask
from tests.kit.waiting import wait_until

VBUCKETS = 16
KEYS = [f"k{number}" for number in range(200)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, replicas=2, buckets=("travel",), vbuckets=VBUCKETS) as running:
        yield running


def login(cluster: Cluster) -> dict[str, Any]:
    return {"username": cluster.username, "password": cluster.password, "bucket": "travel"}


def shown(node: Node) -> dict[tuple[str, str], tuple[int, int | None]]:
    """(source, target) → (vbuckets or streams, behind) as a page shows it; None: not known."""
    html = ask(node, "GET", "/ui/cluster").body.decode()
    (part,) = re.findall(r'<section id="feeds".*?</section>', html, re.DOTALL)
    found = {}
    for row in re.findall(r"<tr role=\"row\" data-key.*?</tr>", part, re.DOTALL):
        source, target, count, behind = re.findall(r'data-value="(.*?)"', row)
        found[source, target] = int(count), None if 'aria-label="none"' in row else int(behind)
    return found


def shows(node: Node, expected: dict[tuple[str, str], tuple[int, int]]) -> bool:
    return shown(node) == expected


def pairs(cluster: Cluster) -> Counter[tuple[str, str]]:
    """(node of the active copy, node of a replica) → vbuckets."""
    return Counter((chain[0], node) for chain in cluster.chains("travel") for node in chain[1:])  # type: ignore[misc]


def test_each_pair_of_nodes_has_the_vbuckets_of_the_map(cluster: Cluster) -> None:
    expected = {pair: (count, 0) for pair, count in pairs(cluster).items()}
    assert len(expected) == 6
    assert sum(count for count, _ in expected.values()) == 2 * VBUCKETS
    for each in cluster.nodes:
        wait_until(partial(shows, each.node, expected), "the replicas never were equal")


def test_replication_that_is_held_back_shows_what_the_replicas_lack(cluster: Cluster) -> None:
    node = cluster.nodes[1].node
    cluster.wait_until_drained("travel")
    cluster.pause_replication()
    with KvClient(cluster.connection_string, **login(cluster)) as kv:
        for key in KEYS:
            kv.set(key, b"{}")
    behind = {pair: lag for pair, (_, lag) in shown(node).items()}
    assert sum(filter(None, behind.values())) == 2 * len(KEYS), "each document is on two other nodes"
    assert all(behind.values())
    assert 'class="arrow late"' in ask(node, "GET", "/ui/cluster").body.decode()
    cluster.resume_replication()
    wait_until(lambda: set(shown(node).values()) == {(count, 0) for count in pairs(cluster).values()})


def test_a_client_is_fed_by_each_node_and_a_dead_node_tells_nothing(cluster: Cluster) -> None:
    node, victim = cluster.nodes[0].node, cluster.nodes[2]
    with (
        KvClient(cluster.connection_string, **login(cluster)) as kv,
        Client(cluster.connection_string, **login(cluster)) as client,
    ):
        for key in KEYS:
            kv.set(key, b"{}")
        changes = client.changes()  # it reads until it is forgotten
        assert len(list(islice(changes, len(KEYS)))) == len(KEYS), "of all vbuckets"

        def streams() -> dict[str, int]:
            nodes = {each.name for each in cluster.nodes}
            return {source: count for (source, target), (count, _) in shown(node).items() if target not in nodes}

        active = Counter(chain[0] for chain in cluster.chains("travel"))
        wait_until(lambda: streams() == active, "the client never read every vbucket")
        victim.crash()
        wait_until(lambda: victim.name not in streams())
        lags = {pair: lag for pair, (_, lag) in shown(node).items() if victim.name in pair}
        assert set(lags.values()) == {None}
        assert len(lags) == 4


def test_a_node_that_hangs_holds_up_no_page() -> None:
    with Cluster(nodes=2, replicas=1, buckets=("travel",), vbuckets=8, processes=True) as cluster:
        seer, victim = cluster.nodes
        wait_until(lambda: set(shown(seer.node).values()) == {(4, 0)}, "the replicas never were equal")
        os.kill(victim.node.pid, signal.SIGSTOP)  # the cluster knows nothing of it
        assert set(shown(seer.node).values()) == {(4, None)}
        os.kill(victim.node.pid, signal.SIGCONT)
        wait_until(lambda: set(shown(seer.node).values()) == {(4, 0)}, "the node never told of itself again")
