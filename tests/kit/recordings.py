"""Code that the tests of recordings share: nodes, and what a reader finds in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dcpstream
import dcpstream_node
from dcpstream.client import Change, KvClient, StreamOptions
from dcpstream.runtime import SystemClock
from dcpstream_node.recording.player import header_of, play
from dcpstream_node.recording.recorder import Progress, record

LOGIN = {"username": "Administrator", "password": "password", "bucket": "default"}


def client(node: dcpstream_node.Node) -> dcpstream.Client:
    return dcpstream.Client(node.connection_string, **LOGIN)  # type: ignore[arg-type]


def documents(node: dcpstream_node.Node, collection: str | None = None) -> KvClient:
    return KvClient(node.connection_string, collection=collection, **LOGIN)  # type: ignore[arg-type]


def drain(node: dcpstream_node.Node, path: Path, **options: Any) -> Progress:
    """Record up to now; the last progress."""
    with client(node) as source:
        return list(record(source, path, SystemClock(), **options))[-1]


def state(node: dcpstream_node.Node, collections: list[str] | None = None) -> dict[str, Any]:
    """All that a reader of these collections can learn from a node."""
    with client(node) as reader:
        changes: dict[int, list[Change]] = {}
        for change in reader.changes(StreamOptions(end="latest", collections=collections)):
            changes.setdefault(change.vbid, []).append(change)
        manifest = reader.cluster.manifest()
        return {
            "changes": changes,
            "logs": reader.cluster.failover_logs(),
            "high": reader.cluster.high_seqnos(),
            "manifest": (manifest.uid, sorted(manifest.scopes, key=lambda scope: scope.scope_id)),
            "uuid": reader.cluster.map.uuid,
        }


def state_of_replay(path: Path, collections: list[str] | None = None) -> dict[str, Any]:
    """The same of a node that plays a recording."""
    header = header_of(path)
    with dcpstream_node.Node(("default",), header.vbuckets) as node:
        play(path, node, "default")
        return state(node, collections)
