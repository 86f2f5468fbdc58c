"""The feeds of a cluster: their sums, and the texts of the page."""

from __future__ import annotations

import re

from dcpstream.model import ClusterState, NodeAddress, NodeState, VbucketState
from dcpstream_node.flow import BucketTraffic, Feed, Flow, flow_of
from dcpstream_node.rest.ui.cluster_flow import CLIENTS_MAX, flow_section
from dcpstream_node.summary import DcpSummary

ACTIVE, REPLICA, DEAD = VbucketState.ACTIVE, VbucketState.REPLICA, VbucketState.DEAD
CLUSTER = ClusterState(tuple(NodeState(f"ns_1@{name}", NodeAddress(name, 1, 2)) for name in "abc"))


def reader(name: str = "dcpstream:x", *, user: str = "me", streams: int = 2, remaining: int = 0) -> DcpSummary:
    return DcpSummary(
        name=name, kind="producer", peer="host:1", streams=streams, items_remaining=remaining, user=user
    )  # fmt: skip


def node(seqnos: dict[int, tuple[VbucketState, int]], *dcp: DcpSummary) -> dict[str, BucketTraffic]:
    return {"travel": BucketTraffic(seqnos, dcp)}


def rows(html: str) -> list[list[str]]:
    return [
        [" ".join(re.sub(r"<.*?>", " ", cell).split()) for cell in re.findall(r"<div>(.*?)</div>", row)]
        for row in re.findall(r"<tr role=\"row\" data-key.*?</tr>", html, re.DOTALL)
    ]


def test_a_replica_is_behind_by_what_its_active_copy_has_more() -> None:
    traffic = {
        "a": node({0: (ACTIVE, 10), 1: (ACTIVE, 7), 2: (REPLICA, 9)}),
        "b": node({0: (REPLICA, 4), 1: (REPLICA, 7), 2: (ACTIVE, 5)}),
    }
    flow = flow_of({"travel": [("a", "b"), ("a", "b"), ("b", "a"), (None, "a"), ("a", None)]}, traffic)
    ahead = Feed("travel", "b", "a", 1, 0, 0)  # it was asked later than its source
    assert flow.feeds == (Feed("travel", "a", "b", 2, 6, 0), ahead)


def test_what_a_node_does_not_tell_is_not_known() -> None:
    traffic = {"a": node({0: (ACTIVE, 10), 1: (ACTIVE, 7), 2: (DEAD, 7)}), "b": node({1: (REPLICA, 3)})}
    chains = {"travel": [("a", "b"), ("a", "b"), ("a", "b"), ("a", "c")], "other": [("a", "b")]}
    assert flow_of(chains, traffic).feeds == (
        Feed("travel", "a", "b", 3, 4, 2),
        Feed("travel", "a", "c", 1, 0, 1),
        Feed("other", "a", "b", 1, 0, 1),
    )


def test_the_page_sums_the_buckets_that_the_user_may_see() -> None:
    feeds = (
        Feed("travel", "ns_1@a", "ns_1@b", 2, 6, 0),
        Feed("shop", "ns_1@a", "ns_1@b", 3, 1, 1),
        Feed("secret", "ns_1@a", "ns_1@b", 8, 8, 0),
        Feed("shop", "ns_1@b", "ns_1@c", 3, 0, 3),
    )
    assert rows(flow_section(CLUSTER, Flow(feeds), ["travel", "shop"])) == [
        ["a", "b", "5 vBuckets", "7 1 vBucket not known"],
        ["b", "c", "3 vBuckets", "&ndash; 3 vBuckets not known"],
    ]
    assert "No node feeds another one" in flow_section(CLUSTER, Flow(feeds), ["none"])


def test_the_page_shows_clients_by_node_and_leaves_out_connections_between_nodes() -> None:
    traffic = {
        "ns_1@b": node({}, reader(remaining=3), reader("dcpstream:y", remaining=4)),
        "ns_1@a": node(
            {},
            reader("replication:ns_1@a->ns_1@b:travel", remaining=99),
            reader("dcpstream:control:1", streams=0),
            reader("dcpstream-spark:z", user=""),
        ),
    }
    assert rows(flow_section(CLUSTER, Flow(traffic=traffic), ["travel"])) == [
        ["b", "dcpstream client travel, me at host", "4 streams", "7"],
        ["a", "Spark source travel, host", "2 streams", "0"],
    ]


def test_the_page_names_the_clients_furthest_behind() -> None:
    many = [reader(user=f"user{number}", remaining=number) for number in range(CLIENTS_MAX + 3)]
    html = flow_section(CLUSTER, Flow(traffic={"": node({}, *many)}), ["travel"])
    assert [row[3] for row in rows(html)] == [str(number) for number in reversed(range(3, CLIENTS_MAX + 3))]
    assert {row[0] for row in rows(html)} == {"a"}, "a node that is alone"
    assert "3 more read" in html
