"""Descriptions of nodes in the shape of the server's REST API."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from aiohttp import web

from dcpstream.node.engine import Engine
from dcpstream.node.engine.cluster_config import in_url
from dcpstream.node.http.site import reached_host
from dcpstream.node.summary import memory_bytes, resident_bytes


def nodes(engine: Engine, request: web.Request) -> list[dict[str, Any]]:
    """Every node of the cluster, with what is known of it."""
    config = engine.config
    total, free = memory_bytes()
    items = sum(bucket.item_count() for bucket in engine.buckets.values())
    result = []
    for index, node in enumerate(config.nodes):
        host = in_url(node.host or reached_host(request))
        ports = {"direct": node.kv_port, "directTLS": node.kv_tls_port, "httpsMgmt": node.mgmt_tls_port}
        entry: dict[str, Any] = {
            "hostname": f"{host}:{node.mgmt_port}",
            "configuredHostname": f"{host}:{node.mgmt_port}",
            "otpNode": f"ns_1@{host}",
            "nodeUUID": config.cluster_uuid,
            "status": "healthy",
            "clusterMembership": "active",
            "recoveryType": "none",
            "clusterCompatibility": engine.release.compatibility,
            "version": engine.release.version,
            "os": f"{platform.machine()}-{sys.platform}",
            "addressFamily": "inet6" if host.startswith("[") else "inet",
            "services": ["kv"],
            "ports": {name: port for name, port in ports.items() if port},
            "cpuCount": os.cpu_count() or 1,
            "uptime": str(int(engine.now - engine.started)),
            "memoryTotal": total,
            "memoryFree": free,
            "interestingStats": {
                "curr_items": items,
                "curr_items_tot": items,
                "mem_used": resident_bytes(),
                "couch_docs_actual_disk_size": sum(bucket.store.file_bytes for bucket in engine.buckets.values()),
            },
        }
        if index == config.this_node:
            entry["thisNode"] = True
            if config.alternates:
                entry["alternateAddresses"] = {name: item.to_json() for name, item in config.alternates.items()}
        result.append(entry)
    return result


def this_node(engine: Engine, request: web.Request) -> dict[str, Any]:
    """The node that answers."""
    return nodes(engine, request)[engine.config.this_node]
