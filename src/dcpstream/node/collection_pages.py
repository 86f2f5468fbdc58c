"""Scopes and collections over HTTP: made and dropped one at a time, as administrators and client libraries do it.

Each change makes the bucket's next manifest, with the uid one higher. Ids are never given twice.
Source: Couchbase Server REST API, "Manage scopes and collections".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from dcpstream.model import Collection, Manifest, Scope
from dcpstream.model.collections import DEFAULT_NAME
from dcpstream.node.engine import Bucket, Engine, User
from dcpstream.node.engine.collections import ManifestError, check_manifest, check_step

ADMINISTRATOR = "NodeSupervisor"
"""The privilege that changes need, as SET_COLLECTIONS does."""
FIRST_ID = 8
"""The lowest id that may be given; those below are the default's and reserved."""
_SCOPES = "/pools/default/buckets/{bucket}/scopes"


class CollectionPages:
    """The pages that change a bucket's manifest.

    Args:
        engine: the node.
        find: the bucket of a request; raises HTTPNotFound.
        who: the user of a request.
        changed: called after a change, so that streams are told of it.
    """

    def __init__(
        self,
        engine: Engine,
        find: Callable[[web.Request], Bucket],
        who: Callable[[web.Request], User],
        changed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._find = find
        self._who = who
        self._changed = changed

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register the pages."""
        for method, path, handler in (
            ("POST", _SCOPES, self._add_scope),
            ("DELETE", _SCOPES + "/{scope}", self._drop_scope),
            ("POST", _SCOPES + "/{scope}/collections", self._add_collection),
            ("DELETE", _SCOPES + "/{scope}/collections/{collection}", self._drop_collection),
        ):
            router.add_route(method, path, handler)
            router.add_route(method, f"{path}/", handler)

    async def _add_scope(self, request: web.Request) -> web.Response:
        manifest = self._find(request).manifest
        name = str((await request.post()).get("name", ""))
        if any(scope.name == name for scope in manifest.scopes):
            return _fault(400, f'Scope with name "{name}" already exists')
        return self._apply(request, (*manifest.scopes, Scope(_next_id(manifest), name)))

    async def _drop_scope(self, request: web.Request) -> web.Response:
        manifest = self._find(request).manifest
        scope = _scope_of(request, manifest)
        if scope.name == DEFAULT_NAME:
            return _fault(400, "The default scope cannot be dropped")
        return self._apply(request, tuple(item for item in manifest.scopes if item is not scope))

    async def _add_collection(self, request: web.Request) -> web.Response:
        manifest = self._find(request).manifest
        form = await request.post()
        scope, name, max_ttl = _scope_of(request, manifest), str(form.get("name", "")), str(form.get("maxTTL", "0"))
        if any(item.name == name for item in scope.collections):
            return _fault(400, f'Collection with name "{name}" in scope "{scope.name}" already exists')
        if not (max_ttl.isascii() and max_ttl.isdigit() and int(max_ttl) < 2**31):
            return _fault(400, f"maxTTL must be a number of seconds from 0 to {2**31 - 1}")
        made = Collection(_next_id(manifest), name, int(max_ttl), form.get("history") == "true")
        return self._apply(request, _with(manifest, replace(scope, collections=(*scope.collections, made))))

    async def _drop_collection(self, request: web.Request) -> web.Response:
        manifest = self._find(request).manifest
        scope, name = _scope_of(request, manifest), request.match_info["collection"]
        kept = tuple(item for item in scope.collections if item.name != name)
        if len(kept) == len(scope.collections):
            return _fault(404, f'Collection with name "{name}" in scope "{scope.name}" is not found')
        return self._apply(request, _with(manifest, replace(scope, collections=kept)))

    def _apply(self, request: web.Request, scopes: tuple[Scope, ...]) -> web.Response:
        bucket = self._find(request)
        if not self._who(request).may(ADMINISTRATOR):
            return _fault(403, f"This needs the {ADMINISTRATOR} privilege")
        manifest = Manifest(bucket.manifest.uid + 1, scopes)
        new = [name for name in _names(manifest) if name.startswith("_") and name not in _names(bucket.manifest)]
        if new:
            return _fault(400, f"{new[0]!r}: names that begin with _ are the system's")
        try:
            check_manifest(manifest)
            check_step(bucket.manifest, manifest)
        except ManifestError as error:
            return _fault(400, str(error))
        self._engine.set_manifest(bucket, manifest)
        self._changed()
        return web.json_response({"uid": f"{manifest.uid:x}"})


def _fault(status: int, text: str) -> web.Response:
    content: dict[str, Any] = {"errors": {"_": text}}
    return web.json_response(content, status=status)


def _scope_of(request: web.Request, manifest: Manifest) -> Scope:
    name = request.match_info["scope"]
    for scope in manifest.scopes:
        if scope.name == name:
            return scope
    # The words matter: the official client libraries look for them.
    text = json.dumps({"errors": {"_": f'Scope with name "{name}" is not found'}})
    raise web.HTTPNotFound(text=text, content_type="application/json")


def _with(manifest: Manifest, changed: Scope) -> tuple[Scope, ...]:
    return tuple(changed if scope.scope_id == changed.scope_id else scope for scope in manifest.scopes)


def _names(manifest: Manifest) -> list[str]:
    return [scope.name for scope in manifest.scopes] + [item.name for _, item in manifest.collections()]


def _next_id(manifest: Manifest) -> int:
    """An id above every other, and above those of what was dropped: each change raises the manifest's uid by one."""
    known = [scope.scope_id for scope in manifest.scopes]
    known += [item.collection_id for _, item in manifest.collections()]
    return max(manifest.uid + FIRST_ID, max(known) + 1, FIRST_ID)
