"""Descriptions of nodes in the shape of the server's REST API."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from aiohttp import web

from dcpstream.model import ClusterState, NodeAddress, NodeState
from dcpstream_node.engine import Engine
from dcpstream_node.engine.cluster_config import in_url
from dcpstream_node.rest.site import Site, reached_host
from dcpstream_node.summary import memory_bytes, resident_bytes


async def nodes(site: Site, request: web.Request) -> list[dict[str, Any]]:
    """Every node of the cluster, with what is known of it."""
    return describe(await site.state(request), site.engine, request)


def describe(state: ClusterState, engine: Engine, request: web.Request) -> list[dict[str, Any]]:
    """The nodes of a cluster, with what is known of them; only of the one that answers there are figures."""
    own = engine.config.nodes[engine.config.this_node]
    return [_describe(node, engine, request, is_this=_is(node.address, own)) for node in state.nodes]


def _is(address: NodeAddress, own: NodeAddress) -> bool:
    return (address.host, address.kv_port, address.mgmt_port) == (own.host, own.kv_port, own.mgmt_port)


def _describe(state: NodeState, engine: Engine, request: web.Request, *, is_this: bool) -> dict[str, Any]:
    node, config = state.address, engine.config
    host = in_url(node.host or reached_host(request))
    ports = {"direct": node.kv_port, "directTLS": node.kv_tls_port, "httpsMgmt": node.mgmt_tls_port}
    entry: dict[str, Any] = {
        "hostname": f"{host}:{node.mgmt_port}",
        "configuredHostname": f"{host}:{node.mgmt_port}",
        "otpNode": state.name,
        "nodeUUID": config.cluster_uuid,
        "status": "healthy" if state.is_healthy else "unhealthy",
        "clusterMembership": str(state.membership),
        "recoveryType": state.recovery,
        "clusterCompatibility": engine.config.compatible.compatibility,
        "version": engine.release.version,
        "os": f"{platform.machine()}-{sys.platform}",
        "addressFamily": "inet6" if host.startswith("[") else "inet",
        "services": ["kv"],
        "ports": {name: port for name, port in ports.items() if port},
        "cpuCount": os.cpu_count() or 1,
    }
    if is_this:
        total, free = memory_bytes()
        items = sum(bucket.item_count() for bucket in engine.buckets.values())
        entry |= {
            "uptime": str(int(engine.now - engine.started)),
            "memoryTotal": total,
            "memoryFree": free,
            "interestingStats": {
                "curr_items": items,
                "curr_items_tot": items,
                "mem_used": resident_bytes(),
                "couch_docs_actual_disk_size": sum(bucket.store.file_bytes for bucket in engine.buckets.values()),
            },
            "thisNode": True,
        }
        if config.alternates:
            entry["alternateAddresses"] = {name: item.to_json() for name, item in config.alternates.items()}
    return entry


async def this_node(site: Site, request: web.Request) -> dict[str, Any]:
    """The node that answers."""
    found = [node for node in await nodes(site, request) if node.get("thisNode")]
    if not found:
        raise web.HTTPNotFound(text="This node has left its cluster.\r\n")
    return found[0]
