"""The cluster configuration: the JSON from which clients learn the nodes and who serves which vbucket.

Every field that some client was found to need is there, and none that was found to break one: no `$HOST`, no
`appTelemetryPath`. The hostname is left out unless it is told: clients then use the address they dialled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dcpstream.model import NodeAddress

IMPLEMENTATION_VERSION = "7.6.2-3721-enterprise"
"""What VERSION and the management port say: clients read it to learn what a server can do (7.2 and newer: change
streams, expiry opcode). It names the server release whose protocol this node follows."""

BUCKET_CAPABILITIES = (
    "collections",
    "tombstonedUserXAttrs",
    "dcp",
    "dcp.IgnorePurgedTombstones",
    "cbhello",
    "touch",
    "cccp",
    "nodesExt",
    "xattr",
    "preserveExpiry",
    "couchapi",
)
"""What clients may use on a bucket; `couchapi` only keeps JVM clients from taking the bucket for an ephemeral one."""


class ClusterConfig:
    """The configuration of one node's cluster in its present version.

    Attributes:
        epoch, rev: the version; clients take a configuration only if this pair grew.
    """

    def __init__(self, nodes: Sequence[NodeAddress], this_node: int = 0, *, cluster_uuid: str = "") -> None:
        self.epoch = 1
        self.rev = 1
        self.nodes = list(nodes)
        self.this_node = this_node
        self.cluster_uuid = cluster_uuid

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, rev)."""
        return self.epoch, self.rev

    def _common(self) -> dict[str, Any]:
        return {
            "rev": self.rev,
            "revEpoch": self.epoch,
            "clusterName": "dcpstream",
            "clusterUUID": self.cluster_uuid,
            "clusterCapabilitiesVer": [1, 0],
            "clusterCapabilities": {},
            "nodesExt": [self._node_ext(index) for index in range(len(self.nodes))],
        }

    def _node_ext(self, index: int) -> dict[str, Any]:
        node = self.nodes[index]
        ports = {
            "kv": node.kv_port,
            "mgmt": node.mgmt_port,
            "kvSSL": node.kv_tls_port,
            "mgmtSSL": node.mgmt_tls_port,
        }
        always = ("kv", "mgmt")
        entry: dict[str, Any] = {"services": {name: port for name, port in ports.items() if port or name in always}}
        if index == self.this_node:
            entry["thisNode"] = True
        if node.host:
            entry["hostname"] = node.host
        return entry

    def for_node(self) -> dict[str, Any]:
        """The configuration without a bucket ("global")."""
        return self._common()

    def for_bucket(self, name: str, uuid: str, chains: Sequence[Sequence[int]], manifest_uid: int) -> dict[str, Any]:
        """The configuration of a bucket.

        Args:
            name: the bucket's name.
            uuid: the bucket's identity, changes when it is created anew.
            chains: per vbucket the indexes of its nodes, active first, -1 for none.
            manifest_uid: version of the collections manifest.
        """
        hosts = [NodeAddress(node.host or "127.0.0.1", node.kv_port) for node in self.nodes]
        return self._common() | {
            "name": name,
            "uuid": uuid,
            "bucketType": "membase",
            "nodeLocator": "vbucket",
            "uri": f"/pools/default/buckets/{name}?bucket_uuid={uuid}",
            "streamingUri": f"/pools/default/bucketsStreaming/{name}?bucket_uuid={uuid}",
            "bucketCapabilitiesVer": "",
            "bucketCapabilities": list(BUCKET_CAPABILITIES),
            "collectionsManifestUid": f"{manifest_uid:x}",
            "nodes": [
                {"hostname": f"{host.host}:{node.mgmt_port}", "ports": {"direct": node.kv_port}}
                for host, node in zip(hosts, self.nodes, strict=True)
            ],
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": max((len(chain) for chain in chains), default=1) - 1,
                "serverList": [str(host) for host in hosts],
                "vBucketMap": [list(chain) for chain in chains],
            },
        }


def to_bytes(config: dict[str, Any]) -> bytes:
    """A configuration as the bytes that go over the wire."""
    return json.dumps(config, separators=(",", ":")).encode()
