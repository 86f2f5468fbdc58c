"""Cluster maps from a node's JSON, with the names and ports that this client should use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dcpstream.errors import ConfigError, RemoteProtocolError, TlsError
from dcpstream.model import Manifest, NodeAddress, VbucketMap

MAX_JSON_BYTES = 2 * 1024 * 1024
"""Largest cluster map or list of collections that is read: several times as large as one of 1,024 vbuckets with
three replicas on two hundred nodes, or of 1,200 collections."""


def parse_config(
    text: bytes | str,
    origin: NodeAddress,
    network: str = "auto",
    seeds: tuple[NodeAddress, ...] = (),
    *,
    is_secure: bool = False,
) -> VbucketMap:
    """The map in the answer to GET_CLUSTER_CONFIG, or in a NOT_MY_VBUCKET answer.

    Args:
        text: the JSON; `$HOST` and missing host names stand for the host that the answer came from.
        origin: the node that answered.
        network: "default" for the nodes' own addresses, another name for those alternate addresses, "auto" to take
            the alternate addresses among which a seed is found.
        seeds: the addresses that the user gave, to choose the network by.
        is_secure: whether the nodes are spoken to with TLS, at other ports.

    Raises:
        RemoteProtocolError: not a cluster map, or one without vbuckets.
        TlsError: a node that serves the bucket has no port with TLS.
        ConfigError: no node has an address in the network that was asked for.
    """
    try:
        config = _object_in(text)
        chosen = _network_of(config, network, seeds or (origin,), is_secure=is_secure)
        result = VbucketMap.from_json(_with_network(config, chosen), origin.host, is_secure=is_secure)
    except ConfigError:
        raise
    except _UNREADABLE as error:
        raise RemoteProtocolError(f"{origin} sent something that is no cluster map: {error}") from error
    if not result.chains:
        raise RemoteProtocolError(f"{origin} sent a cluster map without vbuckets: the bucket is not ready")
    if is_secure and any(not node.kv_port for node in result.nodes):
        missing = next(node.host for node in result.nodes if not node.kv_port)
        raise TlsError(f"the cluster map of {origin} has no port with TLS for {missing}: use couchbase://")
    return result


def manifest_of(text: bytes) -> Manifest:
    """The list of collections in the answer to GET_COLLECTIONS_MANIFEST.

    Raises:
        RemoteProtocolError: it is not such a list.
    """
    try:
        return Manifest.from_json(_object_in(text))
    except _UNREADABLE as error:
        raise RemoteProtocolError(f"the node sent something that is no list of collections: {error!r}") from error


_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
"""Errors of reading JSON that has another shape."""


def _object_in(text: bytes | str) -> dict[str, Any]:
    """The object in a JSON text from a node.

    Raises:
        ValueError: too long, nested too deeply, no JSON, or not an object.
    """
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"{len(text)} bytes, more than the {MAX_JSON_BYTES} allowed")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _network_of(config: Mapping[str, Any], network: str, seeds: tuple[NodeAddress, ...], *, is_secure: bool) -> str:
    """The network to use: as asked for, or the one whose addresses the seeds are among.

    By host and port first, then by host alone, the nodes' own addresses before alternate ones: a port that is mapped
    somewhere else leaves the host name as the only sign.
    """
    entries = config.get("nodesExt") or ()
    if network != "auto":
        known = {str(name) for entry in entries for name in entry.get("alternateAddresses") or ()}
        if network != "default" and network not in known:
            raise ConfigError(
                "network", network, f"auto, {', '.join(['default', *sorted(known)])} (what the cluster has)"
            )
        return network
    kv = "kvSSL" if is_secure else "kv"
    addresses: list[tuple[str, object, object]] = []
    for entry in entries:
        services = entry.get("services") or {}
        addresses.append(("default", _bare(entry.get("hostname")), services.get(kv)))
        for name, alternate in (entry.get("alternateAddresses") or {}).items():
            addresses.append(
                (str(name), _bare(alternate.get("hostname")), (alternate.get("ports") or services).get(kv))
            )
    exact = {(seed.host, seed.kv_port) for seed in seeds}
    hosts = {seed.host for seed in seeds}
    for name, host, port in addresses:
        if (host, port) in exact:
            return name
    return next((name for name, host, _ in addresses if host in hosts), "default")


def _bare(host: object) -> object:
    """A host name; of an IPv6 address without brackets, as seeds have it."""
    return host.strip("[]") if isinstance(host, str) else host


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
