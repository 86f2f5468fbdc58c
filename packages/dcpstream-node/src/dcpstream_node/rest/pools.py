"""Pages of the cluster and its nodes, as in the REST API; a node without a manager is a cluster of its own."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from dcpstream_node.engine.engine import MAX_BUCKETS
from dcpstream_node.rest.authorization import allows, has_permission, visible_buckets
from dcpstream_node.rest.cluster_map import MapPages
from dcpstream_node.rest.node_info import describe, nodes, this_node
from dcpstream_node.rest.pool_form import DATA_QUOTA, OTHER_QUOTAS, read_form
from dcpstream_node.rest.site import (
    ANYBODY,
    LOGIN,
    USER,
    Route,
    Site,
    answer,
    done,
    fault,
    faults,
    form_of,
    note,
    text_of,
)
from dcpstream_node.rest.topology import CONTROLLERS, rebalance_task
from dcpstream_node.summary import memory_bytes

MIB = 1024 * 1024
STATUS_PAGE = "/ui"
MAX_PERMISSIONS = 1000
"""Largest number of permissions in one request."""


class PoolPages:
    """The pages below /pools about the whole cluster, and a few others that clients request."""

    def __init__(self, site: Site, maps: MapPages) -> None:
        self._site = site
        self._engine = site.engine
        self._maps = maps

    def routes(self) -> list[Route]:
        """The pages."""
        return [
            Route("GET", "/", self._root, LOGIN, "leads to the status page"),
            Route("GET", "/pools", self._pools, LOGIN, "version, and the one pool that there is"),
            Route("GET", "/pools/default", self._pool, "pools.read", "the cluster: nodes, buckets, quotas"),
            Route("POST", "/pools/default", self._change, "cluster.write", "set `clusterName`, `memoryQuota`, …"),
            Route("GET", "/poolsStreaming/default", self._stream, "pools.read", "the same as a stream"),
            Route("GET", "/pools/nodes", self._pool, "pools.read", "the same as /pools/default"),
            Route("GET", "/pools/default/nodeStatuses", self._statuses, "pools.read", "each node's status"),
            Route("GET", "/pools/default/serverGroups", self._groups, "pools.read", "one group with all nodes"),
            Route("GET", "/pools/default/tasks", self._tasks, "pools.read", "what runs in the background"),
            Route("GET", "/pools/default/terseClusterInfo", self._terse, LOGIN, "identity of the cluster"),
            Route("POST", "/pools/default/checkPermissions", self._check, LOGIN, "which of the permissions one has"),
            Route("GET", "/nodes/self", self._self, "pools.read", "the node that answers"),
            Route("GET", "/versions", self._versions, ANYBODY, "version of the server whose protocol this follows"),
        ]

    async def _root(self, _: web.Request) -> web.Response:
        return web.Response(status=302, text="dcpstream node\n", headers={"Location": STATUS_PAGE})

    async def _versions(self, _: web.Request) -> web.Response:
        return answer({"implementationVersion": self._engine.release.version, "componentsVersion": {}})

    async def _pools(self, request: web.Request) -> web.Response:
        pool = {"name": "default", "uri": "/pools/default", "streamingUri": "/poolsStreaming/default"}
        return answer(
            {
                "isAdminCreds": allows(request[USER], "cluster.write", {}),
                "isROAdminCreds": False,
                "isEnterprise": True,
                "allowedServices": ["kv"],
                "implementationVersion": self._engine.release.version,
                "uuid": self._engine.config.cluster_uuid,
                "pools": [pool],
                "settings": {},
            }
        )

    async def _pool(self, request: web.Request) -> web.Response:
        return answer(await self._description(request))

    async def _change(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        config, used = self._engine.config, self._bucket_quotas()
        name = (await this_node(self._site, request))["otpNode"]
        asked = read_form(form, used_mib=used // MIB, machine_mib=memory_bytes()[0] // MIB, node=name)
        if asked.errors:
            return faults(asked.errors)
        if self._site.manager is not None:
            await self._site.order("set_pool", name=asked.name, quotas_mib=asked.quotas)
        else:
            self._engine.set_pool(asked.name, asked.quotas)
            self._site.changed()
        note(request, "changed settings of cluster", config.cluster_name)
        return done()

    def _bucket_quotas(self) -> int:
        return sum(bucket.settings.ram_quota_bytes for bucket in self._engine.buckets.values())

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        engine = self._engine

        async def content() -> bytes:
            return json.dumps(await self._description(request), separators=(",", ":")).encode()

        version = lambda: None if self._maps.is_stopping else engine.config.version  # noqa: E731
        return await self._maps.stream(request, version, content)

    async def _description(self, request: web.Request) -> dict[str, Any]:
        buckets = visible_buckets(request[USER], self._engine)
        config, used = self._engine.config, self._bucket_quotas()
        quota = config.quotas_mib.get(DATA_QUOTA, used // MIB)
        state = await self._site.state(request)
        return {
            "name": "default",
            "clusterName": config.cluster_name,
            "nodes": describe(state, self._engine, request),
            "balanced": state.is_balanced,
            "rebalanceStatus": "none" if state.task is None else "running",
            "rebalanceProgressUri": "/pools/default/rebalanceProgress",
            "stopRebalanceUri": "/controller/stopRebalance",
            "controllers": {name: {"uri": f"/controller/{page}"} for name, page in CONTROLLERS.items()},
            **{field: least for field, (_, least) in OTHER_QUOTAS.items()},
            **config.quotas_mib,
            DATA_QUOTA: quota,
            "maxBucketCount": MAX_BUCKETS,
            "storageTotals": {"ram": {"quotaTotal": quota * MIB, "quotaUsed": used}},
            "bucketNames": [{"bucketName": bucket.name, "uuid": bucket.uuid} for bucket in buckets],
            "buckets": {
                "uri": "/pools/default/buckets",
                "terseBucketsBase": "/pools/default/b/",
                "terseStreamingBucketsBase": "/pools/default/bs/",
            },
            "nodeStatusesUri": "/pools/default/nodeStatuses",
            "serverGroupsUri": "/pools/default/serverGroups",
            "tasks": {"uri": "/pools/default/tasks"},
            "checkPermissionsURI": "/pools/default/checkPermissions",
            "alerts": [],
            "counters": {},
        }

    async def _statuses(self, request: web.Request) -> web.Response:
        return answer(
            {
                node["hostname"]: {
                    "status": node["status"],
                    "otpNode": node["otpNode"],
                    "clusterMembership": node["clusterMembership"],
                    "replication": 1,
                }
                for node in await nodes(self._site, request)
            }
        )

    async def _groups(self, request: web.Request) -> web.Response:
        group = {"name": "Group 1", "uri": "/pools/default/serverGroups/0", "nodes": await nodes(self._site, request)}
        return answer({"groups": [group], "uri": "/pools/default/serverGroups?rev=1"})

    async def _tasks(self, request: web.Request) -> web.Response:
        running = [
            {"type": "bucket_compaction", "bucket": name, "status": "running", "recommendedRefreshPeriod": 2.0}
            for name, status in self._site.buckets.compactions().items()
            if status.is_running and allows(request[USER], "bucket.read", {"bucket": name})
        ]
        return answer([rebalance_task(await self._site.state(request)), *running])

    async def _terse(self, request: web.Request) -> web.Response:
        state = await self._site.state(request)
        return answer(
            {
                "clusterUUID": self._engine.config.cluster_uuid,
                "orchestrator": state.nodes[0].name,
                "isBalanced": state.is_balanced,
                "clusterCompatVersion": self._engine.config.compatible.name,
            }
        )

    async def _check(self, request: web.Request) -> web.Response:
        wanted = [item.strip() for item in (await text_of(request)).split(",") if item.strip()]
        if len(wanted) > MAX_PERMISSIONS:
            return fault(400, f"At most {MAX_PERMISSIONS} permissions are looked at")
        return answer({item: has_permission(request[USER], item, self._engine.buckets) for item in wanted})

    async def _self(self, request: web.Request) -> web.Response:
        return answer(await this_node(self._site, request))
