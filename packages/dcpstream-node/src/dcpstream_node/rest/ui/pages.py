"""The routes of the pages for people, and what their addresses mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from dcpstream.pages.frame import Link
from dcpstream.pages.markup import empty, path, text
from dcpstream.wire import Opcode, Status
from dcpstream_node.rest.authorization import allows, visible_buckets
from dcpstream_node.rest.documents import DEFAULT_KEYS, Documents, key_of
from dcpstream_node.rest.site import LOGIN, USER, Route, Site, reached_host, whole_number
from dcpstream_node.rest.ui.bucket_page import VBUCKETS_PER_PAGE, bucket_content
from dcpstream_node.rest.ui.cluster_page import cluster_content
from dcpstream_node.rest.ui.document_page import Rights, document_content, documents_path, search_content
from dcpstream_node.rest.ui.fault_page import fault_content
from dcpstream_node.rest.ui.frame import CLUSTER, FAULTS_PAGE, HOME, STATIC, answer_static, page
from dcpstream_node.rest.ui.overview import overview
from dcpstream_node.rest.ui.reader_page import reader_content
from dcpstream_node.rest.ui.readers import reader_of
from dcpstream_node.summary import summarize_dcp

if TYPE_CHECKING:
    from dcpstream_node.fault_host import FaultHost

_TO_HOME = Link("Node", HOME)


class UiPages:
    """The pages.

    Args:
        documents: reads documents.
        faults: carries faults out; None while the node does not run.
    """

    def __init__(self, site: Site, documents: Documents, faults: Callable[[], FaultHost | None]) -> None:
        self._site = site
        self._documents = documents
        self._engine = site.engine
        self._faults = faults

    def routes(self) -> list[Route]:
        """The pages."""
        bucket, reader = "/ui/buckets/{bucket}", "/ui/buckets/{bucket}/readers/{reader}"
        keys = "/ui/buckets/{bucket}/documents/{scope}/{collection}"
        return [
            Route("GET", HOME, self._overview, "pools.read", "a page to look at: node, buckets, readers"),
            Route("GET", bucket, self._bucket, "bucket.read", "a bucket: collections, vbuckets, failover logs"),
            Route("GET", reader, self._reader, "bucket.read", "a DCP connection: streams, flow control"),
            Route("GET", keys, self._search, "Read", "documents of a collection by key: `?prefix=`, or `?key=`"),
            Route("GET", keys + "/{key}", self._document, "Read", "a document"),
            Route("GET", CLUSTER, self._cluster, "pools.read", "the cluster: nodes, copies, orders"),
            Route("GET", FAULTS_PAGE, self._fault_page, "cluster.write", "faults on demand"),
            Route("GET", STATIC + "/{file}", answer_static, LOGIN, "scripts and style of the pages"),
        ]

    async def _overview(self, request: web.Request) -> web.Response:
        return page(request, self._engine, "Node", overview(self._site, request[USER]))

    async def _bucket(self, request: web.Request) -> web.Response:
        bucket, query = self._site.bucket(request), request.query
        top = bucket.vbucket_count - 1
        chosen = whole_number(query.get("vbucket", ""), 0, top)
        first = whole_number(query.get("first", ""), 0, top) or 0
        content = bucket_content(
            self._engine,
            bucket,
            request[USER],
            chosen=chosen,
            first=first // VBUCKETS_PER_PAGE * VBUCKETS_PER_PAGE,
            host=reached_host(request),
        )
        return page(request, self._engine, f"Bucket {bucket.name}", content, trail=[_TO_HOME])

    async def _reader(self, request: web.Request) -> web.Response:
        bucket, name = self._site.bucket(request), request.match_info["reader"]
        trail = [_TO_HOME, self._to_bucket(bucket.name)]
        seen = next((each for each in summarize_dcp(bucket) if each.name == name), None)
        if seen is None:
            gone = empty(f"No connection of this name reads the bucket now: <code>{text(name)}</code>")
            return page(request, self._engine, "Reader", gone, trail=trail, status=404)
        reader = reader_of(bucket.name, seen)
        content = reader_content(bucket, reader, self._engine.now)
        return page(request, self._engine, f"{reader.program}, {reader.title}", content, trail=trail)

    async def _search(self, request: web.Request) -> web.Response:
        place, query = self._documents.place(request), request.query
        if query.get("key"):
            key_of(query["key"])
            return web.Response(status=302, headers={"Location": documents_path(place, query["key"])})
        prefix = query.get("prefix", "")
        found = await self._documents.list(place, key_of(prefix), DEFAULT_KEYS)
        content = search_content(self._engine, place, prefix, found)
        title = f"Documents of {place.scope}.{place.collection}"
        trail = [_TO_HOME, self._to_bucket(place.bucket.name)]
        return page(request, self._engine, title, content, trail=trail, is_live=False)

    async def _document(self, request: web.Request) -> web.Response:
        place, key = self._documents.place(request), request.match_info["key"]
        user, names = request[USER], request.match_info
        frame = await self._documents.ask(user, place, Opcode.GET, key_of(key))
        rights = Rights(*(self._site.is_development and allows(user, right, names) for right in ("Upsert", "Delete")))
        meta = self._documents.meta(place, key_of(key))
        content = document_content(self._engine, place, key, frame, meta, rights, reached_host(request))
        collection = Link(f"{place.scope}.{place.collection}", documents_path(place))
        trail = [_TO_HOME, self._to_bucket(place.bucket.name), collection]
        status = 404 if frame.status == Status.KEY_ENOENT else 200
        return page(request, self._engine, key, content, trail=trail, status=status, is_live=False)

    async def _cluster(self, request: web.Request) -> web.Response:
        state, user = await self._site.state(request), request[USER]
        content = cluster_content(
            self._engine,
            state,
            await self._site.flow(),
            visible_buckets(user, self._engine),
            host=reached_host(request),
            takes_orders=self._site.manager is not None and allows(user, "cluster.write", {}),
            is_alone=self._site.manager is None,
        )
        return page(request, self._engine, "Cluster", content)

    async def _fault_page(self, request: web.Request) -> web.Response:
        host = self._faults()
        assert host is not None, "pages are served while the node runs"
        content = fault_content(host.describe(), list(self._engine.buckets))
        return page(request, self._engine, "Faults", content)

    @staticmethod
    def _to_bucket(name: str) -> Link:
        return Link(f"Bucket {name}", path("ui", "buckets", name))
