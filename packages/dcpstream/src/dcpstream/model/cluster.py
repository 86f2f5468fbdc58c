"""The map from vbuckets to nodes, and the rule from key to vbucket."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from zlib import crc32

MAX_VBUCKETS = 1024
"""Largest number of vbuckets of a bucket, that of all servers and client libraries."""

MAX_NODES = 4096
"""Largest number of nodes in a cluster map: many times the largest known cluster."""

MAX_COPIES = 16
"""Largest number of entries in a vbucket's chain: a bucket has one active copy and up to three replicas."""

MAX_PORT = 0xFFFF
MAX_NODE_INDEX = 0xFFFF


class VbucketState(IntEnum):
    """A vbucket's role on a node; the numbers are those of the wire."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


def vbucket_of_key(key: bytes, count: int) -> int:
    """The vbucket that a document key belongs to.

    Args:
        key: the logical key, without collection prefix.
        count: number of vbuckets of the bucket, not necessarily a power of two.
    Source: libcouchbase vbucket.cc; checked with the Python, Go and Java clients.
    """
    return ((crc32(key) >> 16) & 0x7FFF) % count


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node: host name or address, and its ports: KV, management, and both over TLS (0 if there is none)."""

    host: str
    kv_port: int
    mgmt_port: int = 0
    kv_tls_port: int = 0
    mgmt_tls_port: int = 0

    def __str__(self) -> str:
        """As `host:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.kv_port}" if ":" in self.host else f"{self.host}:{self.kv_port}"


@dataclass(frozen=True, slots=True)
class VbucketMap:
    """A bucket's cluster map in one version.

    Attributes:
        epoch, rev: the version; compared as a pair, the larger is newer.
        bucket: the bucket's name; empty for a map without a bucket ("global config").
        nodes: the nodes that serve the bucket (all nodes in a global config).
        chains: per vbucket the indexes into `nodes`, active first, -1 for none.
        uuid: identity of the bucket, different for another bucket of that name; empty if unknown.
        cluster_uuid: identity of the cluster; empty if unknown.
    """

    epoch: int
    rev: int
    bucket: str
    nodes: tuple[NodeAddress, ...]
    chains: tuple[tuple[int, ...], ...] = ()
    uuid: str = ""
    cluster_uuid: str = ""

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, rev)."""
        return self.epoch, self.rev

    @property
    def vbucket_count(self) -> int:
        """The number of vbuckets of the bucket."""
        return len(self.chains)

    def active_node(self, vbid: int) -> NodeAddress | None:
        """The node that holds the active copy, or None while there is none."""
        chain = self.chains[vbid]
        return self.nodes[chain[0]] if chain and 0 <= chain[0] < len(self.nodes) else None

    def copies(self, vbid: int) -> tuple[NodeAddress, ...]:
        """The nodes that hold copies, the active one first; empty while there is no active one."""
        if self.active_node(vbid) is None:
            return ()
        return tuple(self.nodes[index] for index in self.chains[vbid] if 0 <= index < len(self.nodes))

    def replica_nodes(self, vbid: int) -> tuple[NodeAddress, ...]:
        """The nodes that hold replicas, also while there is no active copy."""
        return tuple(self.nodes[index] for index in self.chains[vbid][1:] if 0 <= index < len(self.nodes))

    def vbuckets_by_node(self) -> dict[NodeAddress, list[int]]:
        """Node → the vbuckets that are active there, ascending. Vbuckets without an active node are left out."""
        result: dict[NodeAddress, list[int]] = {}
        for vbid in range(len(self.chains)):
            node = self.active_node(vbid)
            if node is not None:
                result.setdefault(node, []).append(vbid)
        return result

    @classmethod
    def from_json(
        cls, data: str | bytes | Mapping[str, Any], origin_host: str, *, is_secure: bool = False
    ) -> VbucketMap:
        """The map from a cluster configuration.

        Args:
            data: the JSON text, or its parsed form.
            origin_host: the host that sent the configuration; it replaces `$HOST` and a missing name.
            is_secure: take the TLS ports; 0 for a node without one.

        Raises:
            ValueError: not a cluster configuration, or one beyond `MAX_VBUCKETS`, `MAX_NODES` or `MAX_COPIES`.
        """
        try:
            config: Mapping[str, Any] = data if isinstance(data, Mapping) else json.loads(data)
            nodes = _nodes(config, origin_host, is_secure=is_secure)
            server_map = config.get("vBucketServerMap") or {}
            chains = _chains(server_map.get("vBucketMap", ()))
            return cls(
                epoch=int(config.get("revEpoch", 0)),
                rev=int(config.get("rev", 0)),
                bucket=str(config.get("name", "")),
                nodes=nodes,
                chains=chains,
                uuid=str(config.get("uuid", "")),
                cluster_uuid=str(config.get("clusterUUID", "")),
            )
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"not a cluster configuration: {error!r}") from error


def _chains(rows: Sequence[Sequence[Any]]) -> tuple[tuple[int, ...], ...]:
    """The vbucket map, its size checked before anything is built."""
    if len(rows) > MAX_VBUCKETS:
        raise ValueError(f"{len(rows)} vbuckets: a bucket has at most {MAX_VBUCKETS}")
    longest = max(map(len, rows), default=0)
    if longest > MAX_COPIES:
        raise ValueError(f"{longest} copies of a vbucket: at most {MAX_COPIES} are possible")
    chains = tuple(tuple(int(index) for index in chain) for chain in rows)
    if any(not -1 <= index <= MAX_NODE_INDEX for chain in chains for index in chain):
        raise ValueError(f"an index of a node that is not within -1..{MAX_NODE_INDEX}")
    return chains


def _port(value: Any) -> int:
    port = int(value)
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"{port} is not a port")
    return port


def _nodes(config: Mapping[str, Any], origin_host: str, *, is_secure: bool) -> tuple[NodeAddress, ...]:
    """The nodes that serve the bucket: the first len(nodes) entries of nodesExt, else serverList."""
    entries = config.get("nodesExt")
    if entries is None:
        servers = (config.get("vBucketServerMap") or {}).get("serverList", ())
        _check_count(servers)
        pairs = (str(server).replace("$HOST", origin_host).rpartition(":") for server in servers)
        # Such a list has no TLS ports.
        return tuple(NodeAddress(host.strip("[]"), 0 if is_secure else _port(port)) for host, _, port in pairs)
    count = len(config["nodes"]) if "nodes" in config else len(entries)
    _check_count(entries[:count])
    result = []
    for entry in entries[:count]:
        host = str(entry.get("hostname") or origin_host).replace("$HOST", origin_host).strip("[]")
        services = entry["services"]
        kv, mgmt, kv_tls, mgmt_tls = (_port(services.get(name, 0)) for name in ("kv", "mgmt", "kvSSL", "mgmtSSL"))
        # With TLS, the TLS ports are the ones to connect to.
        dialled = (kv_tls, mgmt_tls) if is_secure else (kv, mgmt)
        result.append(NodeAddress(host, *dialled, kv_tls, mgmt_tls))
    return tuple(result)


def _check_count(nodes: Sequence[Any]) -> None:
    if len(nodes) > MAX_NODES:
        raise ValueError(f"{len(nodes)} nodes: at most {MAX_NODES} are possible")
