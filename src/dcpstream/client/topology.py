"""The cluster map as this client sees it: which of a node's names and ports it should use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dcpstream.errors import RemoteProtocolError
from dcpstream.model import Manifest, NodeAddress, VbucketMap


def parse_config(
    text: bytes | str, origin: NodeAddress, network: str = "auto", seeds: tuple[NodeAddress, ...] = ()
) -> VbucketMap:
    """The map in the answer to GET_CLUSTER_CONFIG, or in a NOT_MY_VBUCKET answer.

    Args:
        text: the JSON; `$HOST` and missing host names stand for the host that the answer came from.
        origin: the node that answered.
        network: "default" for the nodes' own addresses, another name for those alternate addresses, "auto" to take
            the alternate addresses among which a seed is found.
        seeds: the addresses that the user gave, to choose the network by.

    Raises:
        RemoteProtocolError: not a cluster map, or one without vbuckets.
    """
    try:
        config = json.loads(text)
        if not isinstance(config, dict):
            raise TypeError("not an object")
        chosen = _network_of(config, network, seeds or (origin,))
        result = VbucketMap.from_json(_with_network(config, chosen), origin.host)
    except (ValueError, TypeError, KeyError) as error:
        raise RemoteProtocolError(f"{origin} sent something that is no cluster map: {error}") from error
    if not result.chains:
        raise RemoteProtocolError(f"{origin} sent a cluster map without vbuckets: the bucket is not ready")
    return result


def manifest_of(text: bytes) -> Manifest:
    """The list of collections in the answer to GET_COLLECTIONS_MANIFEST.

    Raises:
        RemoteProtocolError: it is none.
    """
    try:
        return Manifest.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RemoteProtocolError(f"the node sent something that is no list of collections: {error!r}") from error


def _network_of(config: Mapping[str, Any], network: str, seeds: tuple[NodeAddress, ...]) -> str:
    if network != "auto":
        return network
    wanted = {(seed.host, seed.kv_port) for seed in seeds}
    for entry in config.get("nodesExt") or ():
        for name, alternate in (entry.get("alternateAddresses") or {}).items():
            ports = alternate.get("ports") or entry.get("services") or {}
            if (alternate.get("hostname"), ports.get("kv")) in wanted:
                return str(name)
    return "default"


def _with_network(config: dict[str, Any], network: str) -> dict[str, Any]:
    """The configuration with every node's alternate address in place of its own, where it has one."""
    if network == "default":
        return config
    entries = []
    for entry in config.get("nodesExt") or ():
        alternate = (entry.get("alternateAddresses") or {}).get(network)
        if alternate is None:
            entries.append(entry)
        else:
            services = alternate.get("ports") or entry.get("services") or {}
            entries.append({**entry, "hostname": alternate.get("hostname"), "services": services})
    return {**config, "nodesExt": entries} if entries else config
