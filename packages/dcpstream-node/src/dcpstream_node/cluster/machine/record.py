"""The orchestrator's state that a restart of a whole cluster needs, as JSON: nodes, buckets, who has which copy.

A node is its index in the list of nodes. A chain is the text of its nodes' indices with commas between them; a copy
that is nowhere is an empty index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcpstream.model import Manifest
from dcpstream_node.cluster.machine.layout import Chain
from dcpstream_node.cluster.machine.orchestrator import Orchestrator
from dcpstream_node.cluster.machine.state import BucketState, Member, Recovery


def to_record(o: Orchestrator) -> dict[str, Any]:
    """The orchestrator's knowledge."""
    indices = {name: index for index, name in enumerate(o.members)}
    return {
        "epoch": o.epoch,
        "cluster_uuid": o.cluster_uuid,
        "nodes": [
            {"is_active": member.is_active, "is_failed": member.is_failed, "recovery": member.recovery or ""}
            for member in o.members.values()
        ],
        "buckets": {name: _bucket(bucket, indices) for name, bucket in o.buckets.items()},
    }


def new_record(o: Orchestrator, nodes: int) -> dict[str, Any]:
    """The record of a new cluster: so many active nodes, and no bucket yet."""
    entry = {"is_active": True, "is_failed": False, "recovery": ""}
    return {"epoch": o.epoch, "cluster_uuid": o.cluster_uuid, "nodes": [entry] * nodes, "buckets": {}}


def _bucket(bucket: BucketState, indices: dict[str, int]) -> dict[str, Any]:
    return {
        "uuid": bucket.uuid,
        "replicas": bucket.replicas,
        "manifest": bucket.manifest.to_json(),
        "chains": [_text(chain, indices) for chain in bucket.chains],
        "handing": {str(vbid): _text(chain, indices) for vbid, chain in bucket.handing.items()},
        "recovered": {str(indices[node]): sorted(held) for node, held in bucket.recovered.items() if node in indices},
    }


def _text(chain: Chain, indices: dict[str, int]) -> str:
    """A node that has left is nowhere."""
    return ",".join("" if node is None else str(indices.get(node, "")) for node in chain)


def take_record(o: Orchestrator, record: dict[str, Any], members: Sequence[Member]) -> None:
    """Give a new orchestrator what another one knew.

    Args:
        members: its nodes, in the order of the record.

    Raises: KeyError, ValueError, TypeError, IndexError, AttributeError: it is not a record of so many nodes.
    """
    names = [member.name for member in members]
    for member, entry in zip(members, record["nodes"], strict=True):
        member.is_active, member.is_failed = bool(entry["is_active"]), bool(entry["is_failed"])
        member.is_given_up = member.is_failed
        member.recovery = Recovery(entry["recovery"]) if entry["recovery"] else None
        o.members[member.name] = member
    o.cluster_uuid = str(record["cluster_uuid"])
    o.epoch = max(o.epoch, int(record["epoch"]) + 1)
    for name, entry in record["buckets"].items():
        bucket = BucketState(
            name,
            str(entry["uuid"]),
            int(entry["replicas"]),
            [_chain(text, names) for text in entry["chains"]],
            Manifest.from_json(entry["manifest"]),
        )
        bucket.handing = {int(vbid): _chain(text, names) for vbid, text in entry["handing"].items()}
        bucket.recovered = {names[int(index)]: set(map(int, held)) for index, held in entry["recovered"].items()}
        o.buckets[name] = bucket


def _chain(text: str, names: Sequence[str]) -> Chain:
    return tuple(names[int(index)] if index else None for index in text.split(","))
