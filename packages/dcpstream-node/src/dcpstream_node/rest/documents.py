"""Pages of documents: list keys, read, and, on a node for development, write and delete.

A request is carried out by a session without a connection, so the rules of the key-value port hold: rights, locks,
expiry, durability and the answers' statuses.

Source: Couchbase Server REST API, paths of ns_server menelaus_web_crud.erl.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
from typing import Any, NamedTuple

from aiohttp import web

from dcpstream.model import vbucket_of_key
from dcpstream.wire import Datatype, Feature, Frame, Opcode, Status, decode_frame, encode_request
from dcpstream.wire.keys import MAX_KEY_BYTES, leb128_encode
from dcpstream.wire.messages import kv
from dcpstream_node.engine import Bucket, User
from dcpstream_node.engine.session.step import Wants
from dcpstream_node.rest.site import NOT_FOUND, USER, Route, Site, answer, fault, form_of, note, whole_number
from dcpstream_node.store import ItemMeta

DOCUMENTS = "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}/docs"
DEFAULT_KEYS, MAX_KEYS = 100, 1000
"""Keys in an answer: people read no more."""
ANSWER_S, POLL_S = 10.0, 0.005
"""Longest wait for a session's answer, which a durable write delays, and the pause between two looks."""
MAX_U32, MAX_CAS = (1 << 32) - 1, (1 << 64) - 1
NOT_FOR_DEVELOPMENT = (
    "This node is not for development, so documents are not changed here. Start it with "
    "`dcpstream node --development`, or Node(development=True)."
)
_FEATURES = frozenset((Feature.COLLECTIONS, Feature.XERROR, Feature.JSON))
_HTTP: dict[int, int] = {
    Status.KEY_ENOENT: 404,
    Status.KEY_EEXISTS: 409,
    Status.LOCKED: 409,
    Status.NOT_MY_VBUCKET: 421,
    Status.EACCESS: 403,
    Status.UNKNOWN_COLLECTION: 404,
    Status.E2BIG: 413,
    Status.EINVAL: 400,
}
_TEXTS: dict[int, str] = {
    Status.KEY_ENOENT: "There is no such document.",
    Status.KEY_EEXISTS: "The document changed meanwhile: load it again.",
    Status.LOCKED: "A client holds a lock on the document.",
    Status.NOT_MY_VBUCKET: "Another node of the cluster has the document.",
    Status.E2BIG: "The document is too large.",
}
_UNAVAILABLE = 503


class Place(NamedTuple):
    """A collection of a bucket."""

    bucket: Bucket
    scope: str
    collection: str
    collection_id: int


class Listing(NamedTuple):
    """Keys in ascending order with their metadata; `is_cut`: there are more."""

    rows: list[tuple[bytes, ItemMeta]]
    is_cut: bool


class Documents:
    """Reads and writes documents for the users of pages."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._engine = site.engine
        self._walking = asyncio.Lock()

    def place(self, request: web.Request) -> Place:
        """The collection that a path names. Raises: HTTPNotFound: there is none."""
        bucket, names = self._site.bucket(request), request.match_info
        found = bucket.manifest.find(names["scope"], names["collection"])
        if found is None:
            raise web.HTTPNotFound(text=NOT_FOUND)
        return Place(bucket, names["scope"], names["collection"], found.collection_id)

    async def list(self, place: Place, prefix: bytes, limit: int) -> Listing:
        """The first keys with a prefix in the active vbuckets of this node. One search runs at a time."""
        first = leb128_encode(place.collection_id) + prefix
        found: list[tuple[bytes, ItemMeta]] = []
        id_bytes = len(first) - len(prefix)
        async with self._walking:
            for vbid in range(place.bucket.vbucket_count):
                vbucket = place.bucket.active(vbid)
                if vbucket is None:
                    continue
                walk = vbucket.log.walk_keys(first, first + b"\xff" * MAX_KEY_BYTES, limit + 1)
                keys: list[bytes] = []
                while True:
                    try:
                        next(walk)
                    except StopIteration as end:
                        keys = end.value[0]
                        break
                    await asyncio.sleep(0)
                metas = ((key[id_bytes:], vbucket.log.meta(key)) for key in keys)
                found += [(key, meta) for key, meta in metas if meta is not None]
                found = heapq.nsmallest(limit + 1, found)
                await asyncio.sleep(0)
        return Listing(found[:limit], len(found) > limit)

    async def ask(
        self,
        user: User,
        place: Place,
        opcode: int,
        key: bytes,
        *,
        value: bytes = b"",
        extras: bytes = b"",
        cas: int = 0,
    ) -> Frame:
        """The answer to a request about a document, as on the key-value port.

        Raises: HTTPServiceUnavailable: too many connections. HTTPGatewayTimeout: it is not durable in time.
        """
        self._site.buckets.set_time()
        session = self._engine.new_session("management port")
        if session is None:
            raise web.HTTPServiceUnavailable(text="The node has too many connections.\r\n")
        try:
            session.logged_in(user)
            session.negotiated(_FEATURES)
            session.select(place.bucket)
            vbid = vbucket_of_key(key, place.bucket.vbucket_count)
            key = leb128_encode(place.collection_id) + key
            step = session.receive(encode_request(opcode, vbid=vbid, key=key, value=value, extras=extras, cas=cas))
            self._site.changed()
            async with asyncio.timeout(ANSWER_S):
                while not step.output:
                    if step.wants is Wants.CLOSE:
                        raise web.HTTPServiceUnavailable(text="The node could not make the change durable.\r\n")
                    await asyncio.sleep(POLL_S)
                    step = session.send(0)
        except TimeoutError:
            raise web.HTTPGatewayTimeout(text="The change is not durable yet; it may become so.\r\n") from None
        finally:
            session.connection_lost()
        return decode_frame(b"".join(step.output))

    def meta(self, place: Place, key: bytes) -> ItemMeta | None:
        """The metadata of a document, if this node has the active copy."""
        vbucket = place.bucket.active(vbucket_of_key(key, place.bucket.vbucket_count))
        return None if vbucket is None else vbucket.log.meta(leb128_encode(place.collection_id) + key)


class DocumentPages:
    """The pages of documents in the REST API."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.documents = Documents(site)

    def routes(self) -> list[Route]:
        """The pages."""
        one = DOCUMENTS + "/{key}"
        return [
            Route("GET", DOCUMENTS, self._list, "Read", "keys on this node, ascending: `prefix`, `limit`"),
            Route("GET", one, self._get, "Read", "a document"),
            Route("POST", one, self._set, "Upsert", "write a document: `value`, `flags`, `expiry`, `cas`"),
            Route("DELETE", one, self._delete, "Delete", "delete a document: `?cas=`"),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        place, query = self.documents.place(request), request.query
        limit = whole_number(query.get("limit", str(DEFAULT_KEYS)), 1, MAX_KEYS)
        if limit is None:
            return fault(400, f"limit: 1 to {MAX_KEYS}")
        found = await self.documents.list(place, key_of(query.get("prefix", "")), limit)
        rows = [{"id": key.decode(errors="replace"), **meta_json(meta)} for key, meta in found.rows]
        return answer({"rows": rows, "isCut": found.is_cut})

    async def _get(self, request: web.Request) -> web.Response:
        place, key = self.documents.place(request), key_of(request.match_info["key"])
        frame = await self.documents.ask(request[USER], place, Opcode.GET, key)
        if frame.status != Status.SUCCESS:
            return refusal(frame)
        meta = self.documents.meta(place, key)
        content: dict[str, Any] = {"meta": {"id": request.match_info["key"], **(meta_json(meta) if meta else {})}}
        if frame.datatype & Datatype.JSON:
            content["json"] = frame.value.decode()
        else:
            content["base64"] = base64.b64encode(frame.value).decode()
        return answer(content)

    async def _set(self, request: web.Request) -> web.Response:
        if not self._site.is_development:
            return fault(403, NOT_FOR_DEVELOPMENT)
        place, key, form = self.documents.place(request), key_of(request.match_info["key"]), await form_of(request)
        numbers = {
            name: whole_number(form.get(name) or "0", 0, bound)
            for name, bound in (("flags", MAX_U32), ("expiry", MAX_U32), ("cas", MAX_CAS))
        }
        wrong = [name for name, number in numbers.items() if number is None]
        if wrong or "value" not in form:
            return fault(400, f"{(wrong or ['value'])[0]}: {'a whole number' if wrong else 'is missing'}")
        flags, expiry, cas = (number or 0 for number in numbers.values())
        extras = kv.Set.layout.extras.pack(flags, expiry)
        frame = await self.documents.ask(
            request[USER], place, Opcode.SET, key, value=form["value"].encode(), extras=extras, cas=cas
        )
        return self._changed(request, "wrote a document of", place, frame)

    async def _delete(self, request: web.Request) -> web.Response:
        if not self._site.is_development:
            return fault(403, NOT_FOR_DEVELOPMENT)
        place, key = self.documents.place(request), key_of(request.match_info["key"])
        cas = whole_number(request.query.get("cas", "0"), 0, MAX_CAS)
        if cas is None:
            return fault(400, "cas: a whole number")
        frame = await self.documents.ask(request[USER], place, Opcode.DELETE, key, cas=cas)
        return self._changed(request, "deleted a document of", place, frame)

    @staticmethod
    def _changed(request: web.Request, what: str, place: Place, frame: Frame) -> web.Response:
        if frame.status != Status.SUCCESS:
            return refusal(frame)
        note(request, what, place.bucket.name, place.scope, place.collection)
        return answer({"cas": str(frame.cas)})


def key_of(text: str) -> bytes:
    """A key as it stands in a path. Raises: HTTPBadRequest: it is too long, or no text."""
    try:
        key = text.encode()
    except UnicodeEncodeError:
        raise web.HTTPBadRequest(text="The key is not UTF-8.\r\n") from None
    if len(key) > MAX_KEY_BYTES:
        raise web.HTTPBadRequest(text=f"A key has at most {MAX_KEY_BYTES} bytes.\r\n")
    return key


def refusal(frame: Frame) -> web.Response:
    """The answer to a request that the engine refused."""
    status = frame.status
    return fault(_HTTP.get(status, _UNAVAILABLE), _TEXTS.get(status, f"The node refused it: status {status:#04x}."))


def meta_json(meta: ItemMeta) -> dict[str, Any]:
    """A document's metadata; a CAS is larger than the numbers of JavaScript."""
    return {
        "seqno": meta.seqno,
        "cas": str(meta.cas),
        "rev": meta.rev_seqno,
        "flags": meta.flags,
        "expiration": meta.expiration,
    }
