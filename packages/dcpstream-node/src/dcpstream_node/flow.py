"""The feeds of a cluster: from nodes to nodes and to clients, and how far behind these are.

Each node tells of itself: the newest seqnos of its copies, and its DCP connections. What a cluster knows is that of all
its nodes that answer, beside the map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dcpstream.model import VbucketState
from dcpstream_node.engine import Engine
from dcpstream_node.summary import DcpSummary, summarize_dcp

Chain = Sequence[str | None]
_COPIES = (VbucketState.REPLICA, VbucketState.PENDING)


@dataclass(frozen=True, slots=True)
class BucketTraffic:
    """A bucket on one node.

    Attributes:
        seqnos: vbucket → role and newest seqno of the copy here.
        dcp: the DCP connections.
    """

    seqnos: Mapping[int, tuple[VbucketState, int]]
    dcp: Sequence[DcpSummary]


Traffic = Mapping[str, BucketTraffic]
"""Bucket → what one node tells of it."""


@dataclass(frozen=True, slots=True)
class Feed:
    """The vbuckets of a bucket whose active copy one node has, and a replica another one.

    Attributes:
        source, destination: names of the nodes.
        vbuckets: how many.
        behind: seqnos that the active copies have and the replicas lack, of the vbuckets for which both are known.
        unknown: vbuckets for which they are not: a node does not answer, or has no such copy.
    """

    bucket: str
    source: str
    destination: str
    vbuckets: int
    behind: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Flow:
    """A cluster.

    Attributes:
        feeds: by bucket and pair of nodes.
        traffic: node → what it tells; only of those that answer.
    """

    feeds: tuple[Feed, ...] = ()
    traffic: Mapping[str, Traffic] = field(default_factory=dict)


def traffic_of(engine: Engine) -> dict[str, BucketTraffic]:
    """Look at a node."""
    return {
        name: BucketTraffic(
            {each.vbid: (each.state, each.high_seqno) for each in bucket.vbuckets if each is not None},
            summarize_dcp(bucket),
        )
        for name, bucket in engine.buckets.items()
    }


def flow_of(chains: Mapping[str, Sequence[Chain]], traffic: Mapping[str, Traffic]) -> Flow:
    """The feeds of a cluster.

    Args:
        chains: bucket → per vbucket the nodes of its copies, the active one first.
        traffic: node → what it tells.
    """
    feeds = []
    for bucket, of_bucket in chains.items():
        pairs: dict[tuple[str, str], list[int | None]] = {}
        for vbid, source, destination in _copies(of_bucket):
            pairs.setdefault((source, destination), []).append(_behind(bucket, vbid, source, destination, traffic))
        feeds += [
            Feed(bucket, *pair, len(found), sum(filter(None, found)), found.count(None))
            for pair, found in sorted(pairs.items())
        ]
    return Flow(tuple(feeds), traffic)


def _copies(chains: Sequence[Chain]) -> Iterator[tuple[int, str, str]]:
    """(vbucket, node of the active copy, node of a replica)."""
    for vbid, chain in enumerate(chains):
        for node in chain[1:]:
            if node is not None and chain[0] is not None:
                yield vbid, chain[0], node


def _behind(bucket: str, vbid: int, source: str, destination: str, traffic: Mapping[str, Traffic]) -> int | None:
    """Seqnos that a replica lacks; None if one of the copies is not known.

    The nodes are not asked at the same moment, so a replica may seem to be ahead.
    """
    state, newest = _copy(bucket, vbid, traffic.get(source))
    of_replica, reached = _copy(bucket, vbid, traffic.get(destination))
    if state != VbucketState.ACTIVE or of_replica not in _COPIES:
        return None
    return max(0, newest - reached)


def _copy(bucket: str, vbid: int, traffic: Traffic | None) -> tuple[VbucketState | None, int]:
    found = None if traffic is None else traffic.get(bucket)
    return (None, 0) if found is None else found.seqnos.get(vbid, (None, 0))
