"""Pages of scopes and collections: make, change and drop them one at a time, or set all at once.

Each change makes the bucket's next manifest. Source: Couchbase Server REST API, "Manage scopes and collections".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from dcpstream.model import Manifest
from dcpstream.model.collections import NO_TTL
from dcpstream_node.engine import Bucket
from dcpstream_node.engine.access.permission import visible_manifest
from dcpstream_node.engine.bucket.manifest import MAX_NAME_BYTES, ManifestError
from dcpstream_node.engine.bucket.manifest_editor import (
    MAX_TTL,
    SYSTEM_PREFIXES,
    ManifestEditor,
    NameMissingError,
    Wanted,
)
from dcpstream_node.rest.site import (
    USER,
    Route,
    Site,
    answer,
    done,
    fault,
    faults,
    form_of,
    json_of,
    note,
    whole_number,
)

SCOPES = "/pools/default/buckets/{bucket}/scopes"
MAX_WAIT_MS = 300_000
"""Longest wait of @ensureManifest."""
DEFAULT_WAIT_MS = 30_000
MAX_UID_DIGITS = 16
_NAME = re.compile(r"[0-9A-Za-z_%-]+")


class CollectionPages:
    """The pages of a bucket's manifest."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._engine = site.engine

    def routes(self) -> list[Route]:
        """The pages."""
        scope, item = SCOPES + "/{scope}", SCOPES + "/{scope}/collections/{collection}"
        write = "collections.write"
        replace = "all scopes and collections as JSON; `?validOnUid=` of the last"
        ensure = "wait for a manifest: `timeout`"
        return [
            Route("GET", SCOPES, self._get, "bucket.read", "the manifest"),
            Route("POST", SCOPES, self._add_scope, write, "make a scope: `name`"),
            Route("PUT", SCOPES, self._replace, write, replace),
            Route("DELETE", scope, self._drop_scope, write, "drop a scope with its collections"),
            Route("POST", scope + "/collections", self._add, write, "make a collection: `name`, `maxTTL`, `history`"),
            Route("PATCH", item, self._change, write, "change a collection: `maxTTL`, `history`"),
            Route("DELETE", item, self._drop, write, "drop a collection"),
            Route("POST", SCOPES + "/@ensureManifest/{uid}", self._ensure, "bucket.read", ensure),
        ]

    async def _adopt(self, request: web.Request, bucket: Bucket, change: str, *arguments: Any) -> web.Response:
        """Give the bucket a changed manifest; answered when its vbuckets have the events of the change.

        Args:
            change: the method of `ManifestEditor`.
        """
        settings = bucket.settings
        editor = ManifestEditor(bucket.manifest, history=settings.keeps_history and settings.history_default)
        try:
            manifest: Manifest = getattr(editor, change)(*arguments)
        except ManifestError as error:
            return fault(404 if isinstance(error, NameMissingError) else 400, str(error))
        uid = manifest.uid
        if self._site.manager is not None:
            uid = await self._site.order("edit_collections", name=bucket.name, change=change, arguments=arguments)
        else:
            self._engine.set_manifest(bucket, manifest)
            self._site.changed()
        while bucket.behind and self._engine.buckets.get(bucket.name) is bucket:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
        note(request, "changed scopes and collections of bucket", bucket.name)
        return answer({"uid": f"{uid:x}"})

    async def _get(self, request: web.Request) -> web.Response:
        bucket, user = self._site.bucket(request), request[USER]
        manifest = bucket.manifest
        if not any(user.may(right, bucket.name) for right in ("bucket.write", "cluster.read", "collections.write")):
            seen = {scope.name: scope for scope in visible_manifest(manifest, user, bucket.name).scopes}
            own = {
                scope.name: scope for scope in manifest.scopes if user.may("collections.write", bucket.name, scope.name)
            }
            kept = seen | own
            manifest = Manifest(
                manifest.uid, tuple(kept[scope.name] for scope in manifest.scopes if scope.name in kept)
            )
        return answer(manifest.to_json(no_ttl=NO_TTL))

    async def _add_scope(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        bucket = self._site.bucket(request)
        wrong = _name_faults(form) | _unknown(form, {"name"})
        if wrong:
            return faults(wrong)
        return await self._adopt(request, bucket, "add_scope", form["name"])

    async def _drop_scope(self, request: web.Request) -> web.Response:
        bucket = self._site.bucket(request)
        return await self._adopt(request, bucket, "drop_scope", request.match_info["scope"])

    async def _add(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        bucket, scope = self._site.bucket(request), request.match_info["scope"]
        wanted, wrong = _wanted(form)
        wrong = _name_faults(form) | wrong | _unknown(form, {"name", "maxTTL", "history"})
        if wrong:
            return faults(wrong)
        return await self._adopt(request, bucket, "add_collection", scope, form["name"], wanted)

    async def _change(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        bucket, path = self._site.bucket(request), _path(request)
        wanted, wrong = _wanted(form)
        wrong |= _unknown(form, {"maxTTL", "history"})
        if wrong:
            return faults(wrong)
        return await self._adopt(request, bucket, "change_collection", *path, wanted)

    async def _drop(self, request: web.Request) -> web.Response:
        bucket, path = self._site.bucket(request), _path(request)
        return await self._adopt(request, bucket, "drop_collection", *path)

    async def _replace(self, request: web.Request) -> web.Response:
        content = await json_of(request)
        bucket = self._site.bucket(request)
        valid_on = request.query.get("validOnUid")
        if valid_on is not None:
            uid = _uid(valid_on)
            if uid is None:
                return fault(400, "Invalid validOnUid")
            if uid != bucket.manifest.uid:
                return fault(400, "validOnUid doesn't match the current manifest Uid")
        try:
            scopes = _read_scopes(content)
        except ManifestError as error:
            return fault(400, str(error))
        return await self._adopt(request, bucket, "replace_all", scopes)

    async def _ensure(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        bucket, uid = self._site.bucket(request), _uid(request.match_info["uid"])
        wait_ms = whole_number(form.get("timeout", str(DEFAULT_WAIT_MS)), 0, MAX_WAIT_MS)
        if uid is None:
            return fault(400, "Invalid UID")
        if wait_ms is None:
            return faults({"timeout": f"The value must be in range from 0 to {MAX_WAIT_MS}"})
        news = asyncio.Event()
        self._engine.config_listeners.add(news.set)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while bucket.manifest.uid < uid:
                    news.clear()
                    await news.wait()
                    if self._engine.buckets.get(bucket.name) is not bucket:
                        return web.Response(status=404, text="bucket no longer exists")
        except TimeoutError:
            return web.Response(status=504, text="timeout")
        finally:
            self._engine.config_listeners.discard(news.set)
        return done()


def _path(request: web.Request) -> tuple[str, str]:
    return request.match_info["scope"], request.match_info["collection"]


def _uid(text: str) -> int | None:
    try:
        return int(text, 16) if text.isalnum() and len(text) <= MAX_UID_DIGITS else None
    except ValueError:
        return None


def _name_faults(form: Mapping[str, str]) -> dict[str, str]:
    name = form.get("name")
    if name is None:
        return {"name": "The value must be supplied"}
    if not 0 < len(name) <= MAX_NAME_BYTES:
        return {"name": f"The length must be in range from 1 to {MAX_NAME_BYTES}"}
    if not _NAME.fullmatch(name):
        return {"name": "Can only contain characters A-Z, a-z, 0-9 and the following symbols _ - %"}
    if name.startswith(SYSTEM_PREFIXES):
        return {"name": "First character must not be _ or %"}
    return {}


def _unknown(form: Mapping[str, str], known: set[str]) -> dict[str, str]:
    return {name: "Unsupported key" for name in form if name not in known}


def _wanted(form: Mapping[str, str]) -> tuple[Wanted, dict[str, str]]:
    """The wanted attributes of a collection in a form, and the form's errors."""
    wrong = {}
    given, history = form.get("maxTTL"), form.get("history")
    ttl = NO_TTL if given == str(NO_TTL) else whole_number(given or "", 0, MAX_TTL)
    if given is not None and ttl is None:
        wrong["maxTTL"] = f"The value must be an integer between {NO_TTL} and {MAX_TTL}"
    if history not in (None, "true", "false"):
        wrong["history"] = "The value must be one of the following: [true,false]"
    return Wanted(ttl, None if history is None else history == "true"), wrong


def _read_scopes(content: Any) -> dict[str, dict[str, Wanted]]:
    """The scopes of a manifest that was sent; ids in it do not matter.

    Raises: ManifestError: another shape.
    """
    scopes = content.get("scopes") if isinstance(content, dict) else None
    if not isinstance(scopes, list):
        raise ManifestError('{"scopes": [{"name": "…", "collections": [{"name": "…"}]}]} is expected')
    result: dict[str, dict[str, Wanted]] = {}
    for scope in scopes:
        items: dict[str, Wanted] = {}
        listed = scope.get("collections", []) if isinstance(scope, dict) else None
        for item in listed if isinstance(listed, list) else [None]:
            if not isinstance(item, dict):
                raise ManifestError("scopes and collections are JSON objects in lists")
            name = _text(item)
            form = {key: _as_form(value) for key, value in item.items() if key not in ("name", "uid")}
            items_wanted, wrong = _wanted(form)
            wrong |= _unknown(form, {"maxTTL", "history", "metered"})
            if wrong or name in items:
                raise ManifestError(f"{name}: {wrong or 'Contains duplicate name'}")
            items[name] = items_wanted
        name = _text(scope)
        if name in result:
            raise ManifestError(f"{name}: Contains duplicate name")
        result[name] = items
    return result


def _text(entry: Mapping[str, Any]) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise ManifestError("name: The value must be supplied")
    return name


def _as_form(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
