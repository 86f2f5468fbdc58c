"""Pages of buckets: list, make, change, empty and delete.

Source: Couchbase Server REST API, "Buckets"; ns_server menelaus_web_buckets.erl (shapes and words of the answers).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from dcpstream.model import BucketSettings
from dcpstream_node.engine import Bucket
from dcpstream_node.engine.engine import MAX_BUCKETS
from dcpstream_node.rest.authorization import visible_buckets
from dcpstream_node.rest.bucket_form import BucketForm, name_fault, read_form, settings_json
from dcpstream_node.rest.node_info import nodes
from dcpstream_node.rest.pool_form import DATA_QUOTA
from dcpstream_node.rest.site import USER, Route, Site, answer, done, faults, form_of, note, reached_host
from dcpstream_node.summary import memory_bytes

BUCKETS = "/pools/default/buckets"
BUCKET = BUCKETS + "/{bucket}"
MIB = 1024 * 1024


class BucketPages:
    """The pages of buckets."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._engine = site.engine

    def routes(self) -> list[Route]:
        """The pages."""
        compact = "give space back that superseded versions take, and forget old tombstones"
        controller = BUCKET + "/controller/"
        return [
            Route("GET", BUCKETS, self._list, "pools.read", "the buckets that one may see"),
            Route("POST", BUCKETS, self._create, "bucket.create", "make a bucket; `?just_validate=1` only looks"),
            Route("GET", BUCKET, self._get, "bucket.read", "a bucket: settings, nodes, map, figures"),
            Route("POST", BUCKET, self._change, "bucket.write", "change settings; what is not named stays"),
            Route("DELETE", BUCKET, self._delete, "bucket.delete", "delete a bucket; answered when its files are gone"),
            Route("GET", BUCKET + "/nodes", self._nodes, "bucket.read", "the nodes that serve it"),
            Route("POST", controller + "doFlush", self._flush, "bucket.flush", "empty a bucket, if `flushEnabled`"),
            Route("POST", controller + "compactBucket", self._compact, "bucket.write", compact),
            Route("POST", controller + "compactDatabases", self._compact, "bucket.write", "the same"),
            Route("POST", controller + "cancelBucketCompaction", self._cancel, "bucket.write", "taken, without effect"),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        seen = visible_buckets(request[USER], self._engine)
        return answer([await self._describe(bucket, request) for bucket in seen])

    async def _get(self, request: web.Request) -> web.Response:
        return answer(await self._describe(self._site.bucket(request), request))

    async def _nodes(self, request: web.Request) -> web.Response:
        bucket = self._site.bucket(request)
        servers = [
            {"hostname": node["hostname"], "uri": f"{BUCKETS}/{bucket.name}/nodes/{node['hostname']}"}
            for node in await nodes(self._site, request)
        ]
        return answer({"servers": servers})

    async def _create(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        name = form.get("name")
        if name is not None:
            await self._site.buckets.gone(name)
        asked = read_form(form)
        wrong = name_fault(name, self._engine.buckets)
        errors = asked.errors | ({"name": wrong} if wrong else {})
        errors |= self._beyond_quota(asked, None)
        if len(self._engine.buckets) >= MAX_BUCKETS:
            errors["_"] = f"Cannot create more than {MAX_BUCKETS} buckets"
        if errors or "just_validate" in request.query:
            return self._validated(errors, asked)
        assert name is not None, "there is a fault without"
        vbuckets = asked.vbuckets or self._site.buckets.vbuckets
        if self._site.manager is not None:
            if (await self._site.state(request)).task is not None:
                return answer({"_": "Cannot create buckets during rebalance"}, 503)
            await self._site.order("create_bucket", name=name, settings=asked.settings, vbuckets=vbuckets)
        else:
            self._site.buckets.create(name, vbuckets, asked.settings, is_filled=True)
        note(request, "made bucket", name)
        return done(202, {"Location": f"{BUCKETS}/{name}"})

    async def _change(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        bucket = self._site.bucket(request)
        asked = read_form(form, bucket.settings, bucket.vbucket_count)
        errors = asked.errors | self._beyond_quota(asked, bucket)
        if errors or "just_validate" in request.query:
            return self._validated(errors, asked, bucket)
        if self._site.manager is not None:
            await self._site.order("change_bucket", name=bucket.name, settings=asked.settings)
        else:
            self._engine.change_settings(bucket, asked.settings)
            self._site.changed()
        note(request, "changed bucket", bucket.name)
        return done()

    def _beyond_quota(self, asked: BucketForm, bucket: Bucket | None) -> dict[str, str]:
        """The error if the cluster was given a memory quota that the buckets would not fit into; else nothing."""
        quota, others = self._engine.config.quotas_mib.get(DATA_QUOTA), self._quota_of_others(bucket)
        if quota is None or asked.errors or others + asked.settings.ram_quota_bytes <= quota * MIB:
            return {}
        return {"ramQuota": "RAM quota specified is too large to be provisioned into this cluster."}

    def _quota_of_others(self, bucket: Bucket | None) -> int:
        return sum(other.settings.ram_quota_bytes for other in self._engine.buckets.values() if other is not bucket)

    def _validated(self, errors: Mapping[str, str], asked: BucketForm, bucket: Bucket | None = None) -> web.Response:
        summary = self._ram_summary(asked.settings, bucket)
        return faults(errors, 400 if errors else 200, summaries={"ramSummary": summary})

    def _ram_summary(self, settings: BucketSettings, bucket: Bucket | None) -> dict[str, int]:
        others = self._quota_of_others(bucket)
        used = bucket.store.memory_bytes if bucket is not None else 0
        quota = self._engine.config.quotas_mib.get(DATA_QUOTA, 0) * MIB
        total = quota or max(memory_bytes()[0], others + settings.ram_quota_bytes)
        return {
            "total": total,
            "otherBuckets": others,
            "nodesCount": 1,
            "perNodeMegs": settings.ram_quota_bytes // MIB,
            "thisAlloc": settings.ram_quota_bytes,
            "thisUsed": used,
            "free": total - others - settings.ram_quota_bytes,
        }

    async def _delete(self, request: web.Request) -> web.Response:
        name = self._site.bucket(request).name
        if self._site.manager is not None:
            if (await self._site.state(request)).task is not None:
                return answer({"_": "Cannot delete buckets during rebalance.\r\n"}, 503)
            await self._site.order("drop_bucket", name=name)
        else:
            await self._site.buckets.drop(name)
        note(request, "deleted bucket", name)
        return done()

    async def _flush(self, request: web.Request) -> web.Response:
        bucket = self._site.bucket(request)
        if not bucket.settings.flush_enabled:
            return answer({"_": "Flush is disabled for the bucket"}, 400)
        if self._site.manager is not None:
            if (await self._site.state(request)).task is not None:
                return answer({"_": "Cannot flush buckets during rebalance"}, 503)
            await self._site.order("flush_bucket", name=bucket.name)
        else:
            await self._site.buckets.flush(bucket.name)
        note(request, "emptied bucket", bucket.name)
        return done()

    async def _compact(self, request: web.Request) -> web.Response:
        self._site.buckets.compact(self._site.bucket(request).name)
        return done()

    async def _cancel(self, request: web.Request) -> web.Response:
        self._site.bucket(request)
        return done()

    async def _describe(self, bucket: Bucket, request: web.Request) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._engine.config_json(bucket, reached_host(request)))
        path = f"{BUCKETS}/{bucket.name}"
        uuid = f"?bucket_uuid={bucket.uuid}"
        controllers = {
            "compactAll": f"{path}/controller/compactBucket",
            "compactDB": f"{path}/controller/compactDatabases",
        }
        if bucket.settings.flush_enabled:
            controllers["flush"] = f"{path}/controller/doFlush"
        items, store = bucket.item_count(), bucket.store
        used = store.memory_bytes
        return (
            content
            | settings_json(bucket.settings)
            | {
                "uri": path + uuid,
                "streamingUri": f"/pools/default/bucketsStreaming/{bucket.name}{uuid}",
                "nodes": await nodes(self._site, request),
                "controllers": controllers,
                "stats": {"uri": f"{path}/stats", "nodeStatsListURI": f"{path}/nodes"},
                "authType": "sasl",
                "autoCompactionSettings": False,
                "threadsNumber": 3,
                "rank": 0,
                "numVBuckets": bucket.vbucket_count,
                "basicStats": {
                    "quotaPercentUsed": 100 * used / bucket.settings.ram_quota_bytes,
                    "opsPerSec": 0,
                    "diskFetches": 0,
                    "itemCount": items,
                    "diskUsed": store.file_bytes,
                    "dataUsed": store.file_bytes,
                    "memUsed": used,
                    "vbActiveNumNonResident": 0,
                },
            }
        )
