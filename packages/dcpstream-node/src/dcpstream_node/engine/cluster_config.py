"""The cluster configuration: the JSON that gives clients the nodes and the vbucket map.

Every field that some client was found to need is there, and none that was found to break one (`appTelemetryPath`).
Of a node without a name of its own (it listens on loopback, or on all addresses) `nodesExt` leaves the hostname out,
which makes clients use the address they dialled. With addresses for other networks, and of several nodes, it names the
one at which the asking connection reached the node; and so do the fields of older clients that must name a host
(`nodes`, `serverList`).

Versions: the pair (epoch, rev). Each start is an epoch. Revisions are counted for the node as a whole, so that they
never repeat, but each bucket keeps the one of its own last change, so an unchanged configuration is not sent again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, NamedTuple, Self

from dcpstream.errors import ConfigError
from dcpstream.model import NodeAddress
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule

SERVER_GROUP = "Group 1"
"""The one server group that there is."""
DEFAULT_CLUSTER_NAME = "dcpstream"

HOST_PLACEHOLDER = b"$HOST"
"""Stands in the cached text for the address at which the asking connection reached the node."""
ADDRESS_PLACEHOLDER = b"$ADDRESS"
"""The same without the brackets that IPv6 has before a port."""
MAX_ALTERNATE_NETWORKS = 16
"""Networks from which one node is reached by other addresses: a handful at most."""
MAX_HOST_LENGTH = 255
"""Longest name in the DNS."""
MAX_PORT = (1 << 16) - 1

_PORTS = {"kv": "kv", "mgmt": "mgmt", "kvSSL": "kvSSL", "mgmtSSL": "mgmtSSL"}


@dataclass(frozen=True, slots=True)
class AlternateAddress:
    """The addresses of a node in another network.

    Attributes:
        hostname: name or address there.
        ports: service → port there (kv, mgmt, kvSSL, mgmtSSL); empty: the same as here.
    """

    hostname: str
    ports: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, network: str, data: Any) -> Self:
        """From `{"hostname": …, "kv": …, "mgmt": …}`.

        Raises:
            ConfigError: another shape; the message names the network.
        """
        option = f"alternate_addresses: {network}"
        allowed = '{"hostname": "…", "kv": port, "mgmt": port, "kvSSL": port, "mgmtSSL": port}, ports may be left out'
        if not isinstance(data, Mapping) or set(data) - {"hostname", *_PORTS}:
            raise ConfigError(option, data, allowed)
        hostname, ports = data.get("hostname"), {name: data[name] for name in _PORTS if name in data}
        if not isinstance(hostname, str) or not _is_host(hostname):
            raise ConfigError(option, hostname, "a name or an address")
        for name, port in ports.items():
            if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= MAX_PORT:
                raise ConfigError(f"{option}: {name}", port, "a port from 1 to 65535")
        return cls(hostname, ports)

    def to_json(self) -> dict[str, Any]:
        """As it stands in a configuration."""
        return {"hostname": self.hostname} | ({"ports": dict(self.ports)} if self.ports else {})


def read_alternates(data: Mapping[str, Any] | None) -> dict[str, AlternateAddress]:
    """The alternate addresses of a node, `{network: {"hostname": …, "kv": …}}`.

    Raises:
        ConfigError: a network or an address that cannot be.
    """
    found = dict(data or {})
    if len(found) > MAX_ALTERNATE_NETWORKS:
        raise ConfigError("alternate_addresses", f"{len(found)} networks", f"at most {MAX_ALTERNATE_NETWORKS}")
    for network in found:
        if not network or network in ("default", "auto") or not network.isidentifier():
            raise ConfigError(
                "alternate_addresses", network, "the name of a network, like external; not default or auto"
            )
    return {network: AlternateAddress.from_json(network, entry) for network, entry in found.items()}


def _is_host(text: str) -> bool:
    allowed = all(char.isascii() and (char.isalnum() or char in "-._:") for char in text)
    return 0 < len(text) <= MAX_HOST_LENGTH and allowed


class BucketFacts(NamedTuple):
    """The properties of a bucket that its configuration shows.

    Attributes:
        name: the bucket's name.
        uuid: the bucket's identity, changes when it is created again.
        chains: per vbucket the indexes of its nodes, active first, -1 for none.
        manifest_uid: version of the collections manifest.
        rev: revision of the bucket's last change.
        nodes: those that the chains mean; none: those of the cluster.
        this_node: which of `nodes` this is.
        is_ephemeral: whether it is kept in memory alone.
        is_magma: whether it can keep the history of changes, as magma does.
    """

    name: str
    uuid: str
    chains: Sequence[Sequence[int]]
    manifest_uid: int
    rev: int
    nodes: Sequence[NodeAddress]
    this_node: int
    is_ephemeral: bool
    is_magma: bool


class ClusterConfig:
    """The configuration of one node's cluster.

    Attributes:
        epoch: first part of every version.
        rev: the highest revision given so far.
        node_rev: revision of the configuration without a bucket.
        nodes: where they listen.
        this_node: which of them this is.
        alternates: other addresses of this node, by network.
        release: which server release the node is.
        compatible: the oldest release of the cluster: its maps show nothing newer.
        quotas_mib: memory for services, by the name of its field in REST; empty until set.
        is_given: whether a cluster manager gives the maps. Their versions are the manager's then: nothing that happens
            on this node makes another one.
    """

    def __init__(
        self,
        nodes: Sequence[NodeAddress],
        this_node: int = 0,
        *,
        cluster_uuid: str = "",
        cluster_name: str = DEFAULT_CLUSTER_NAME,
        alternates: Mapping[str, AlternateAddress] | None = None,
        release: Release = DEFAULT_RELEASE,
    ) -> None:
        self.epoch = 1
        self.rev = 1
        self.node_rev = 1
        self.nodes = list(nodes)
        self.this_node = this_node
        self.cluster_uuid = cluster_uuid
        self.cluster_name = cluster_name
        self.alternates = dict(alternates or {})
        self.release = self.compatible = release
        self.quotas_mib: dict[str, int] = {}
        self.is_given = False

    def settings_to_json(self) -> dict[str, Any]:
        """The settings of the cluster, for `take_settings`; empty if none was set."""
        found: dict[str, Any] = {"quotas_mib": dict(self.quotas_mib)} if self.quotas_mib else {}
        return found | ({"name": self.cluster_name} if self.cluster_name != DEFAULT_CLUSTER_NAME else {})

    def take_settings(self, data: Mapping[str, Any]) -> None:
        """Take what `settings_to_json` gave.

        Raises:
            ValueError, TypeError, AttributeError: it is something else.
        """
        name, quotas = data.get("name", DEFAULT_CLUSTER_NAME), data.get("quotas_mib", {})
        if not isinstance(name, str) or not all(type(quota) is int and quota >= 0 for quota in quotas.values()):
            raise ValueError("settings of the cluster that cannot be")
        self.cluster_name, self.quotas_mib = name, dict(quotas)

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, rev) of the newest change."""
        return self.epoch, self.rev

    def next_rev(self) -> int:
        """A revision above every other."""
        self.rev += 1
        return self.rev

    def _common(self, rev: int, nodes: Sequence[NodeAddress], this_node: int) -> dict[str, Any]:
        cluster = {"clusterName": self.cluster_name, "clusterUUID": self.cluster_uuid}
        return {
            "rev": rev,
            "revEpoch": self.epoch,
            **(cluster if self.compatible.has(Rule.MAP_NAMES_CLUSTER) else {}),
            "clusterCapabilitiesVer": [1, 0],
            "clusterCapabilities": {},
            "nodesExt": [
                self._node_ext(node, is_this=index == this_node, is_alone=len(nodes) == 1)
                for index, node in enumerate(nodes)
            ],
        }

    def _node_ext(self, node: NodeAddress, *, is_this: bool, is_alone: bool) -> dict[str, Any]:
        ports = {
            "kv": node.kv_port,
            "mgmt": node.mgmt_port,
            "kvSSL": node.kv_tls_port,
            "mgmtSSL": node.mgmt_tls_port,
        }
        always = ("kv", "mgmt")
        entry: dict[str, Any] = {"services": {name: port for name, port in ports.items() if port or name in always}}
        if is_this:
            entry["thisNode"] = True
            if self.alternates:
                entry["alternateAddresses"] = {name: item.to_json() for name, item in self.alternates.items()}
        if self.compatible.has(Rule.MAP_NAMES_SERVER_GROUPS):
            entry["serverGroup"] = SERVER_GROUP
        if self.compatible.has(Rule.MAP_NAMES_NODES):
            place = f"{self.cluster_uuid}:{node.host}:{node.kv_port}:{node.mgmt_port}"
            entry["nodeUUID"] = md5(place.encode(), usedforsecurity=False).hexdigest()
        if node.host:
            entry["hostname"] = node.host
        elif (is_this and self.alternates) or not is_alone:
            # Without a name clients would take the one they dialled for this network's, also if it is another one's.
            # And the Java SDK refuses a configuration of several nodes of which one has no name.
            entry["hostname"] = ADDRESS_PLACEHOLDER.decode()
        return entry

    def for_node(self) -> dict[str, Any]:
        """The configuration without a bucket ("global")."""
        return self._common(self.node_rev, self.nodes, self.this_node)

    def for_bucket(self, bucket: BucketFacts) -> dict[str, Any]:
        """The configuration of a bucket; where a host must be named that is not known it says `$HOST`."""
        name, uuid, chains = bucket.name, bucket.uuid, bucket.chains
        nodes, this_node = (bucket.nodes, bucket.this_node) if bucket.nodes else (self.nodes, self.this_node)
        hosts = [in_url(node.host) if node.host else HOST_PLACEHOLDER.decode() for node in nodes]
        capabilities = [
            name for name in self.compatible.capabilities if not (bucket.is_ephemeral and name == "couchapi")
        ]
        if bucket.is_magma and not bucket.is_ephemeral:
            capabilities.append("nonDedupedHistory")
        return self._common(bucket.rev, nodes, this_node) | {
            "name": name,
            "uuid": uuid,
            "bucketType": "ephemeral" if bucket.is_ephemeral else "membase",
            "nodeLocator": "vbucket",
            "uri": f"/pools/default/buckets/{name}?bucket_uuid={uuid}",
            "streamingUri": f"/pools/default/bucketsStreaming/{name}?bucket_uuid={uuid}",
            "bucketCapabilitiesVer": "",
            "bucketCapabilities": capabilities,
            "collectionsManifestUid": f"{bucket.manifest_uid:x}",
            "nodes": [
                {"hostname": f"{host}:{node.mgmt_port}", "ports": {"direct": node.kv_port}}
                for host, node in zip(hosts, nodes, strict=True)
            ],
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": max((len(chain) for chain in chains), default=1) - 1,
                "serverList": [f"{host}:{node.kv_port}" for host, node in zip(hosts, nodes, strict=True)],
                "vBucketMap": [list(chain) for chain in chains],
            },
        }


def plain_host(host: str) -> str:
    """A host alone: IPv6 without brackets, and without the prefix of a mapped IPv4 address."""
    host = host.removeprefix("[").removesuffix("]")
    mapped = host.lower().removeprefix("::ffff:")
    return mapped if mapped.count(".") == 3 and ":" not in mapped else host


def in_url(host: str) -> str:
    """A host as it stands before a colon: as `plain_host`, IPv6 in brackets."""
    host = plain_host(host)
    return f"[{host}]" if ":" in host else host


def to_bytes(config: dict[str, Any]) -> bytes:
    """A configuration as the bytes that go over the wire."""
    return json.dumps(config, separators=(",", ":")).encode()
