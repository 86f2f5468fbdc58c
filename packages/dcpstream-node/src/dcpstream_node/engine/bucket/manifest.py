"""Manifests: parsing and checking, the allowed steps, and the system events between two manifests.

A bucket has one manifest. Each active vbucket takes its changes into its history as system events, so that a stream
learns of a collection before the first and after the last of its documents. What a vbucket has taken in so far is read
from its history (`manifest_in`), so one that was a replica, or whose events a crash took, catches up by comparing.

Source: kv_engine docs/Collections.md, engines/ep/src/collections/manifest.cc, vbucket_manifest.cc; the order of the
events as in a recording of a server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dcpstream.model import Collection, Manifest, Scope
from dcpstream.model.collections import DEFAULT_COLLECTION_ID, DEFAULT_NAME, DEFAULT_SCOPE_ID, NO_TTL
from dcpstream.wire import SystemEventId
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule
from dcpstream.wire.stored.block import event_at
from dcpstream.wire.system_events import CollectionEvent

if TYPE_CHECKING:
    from dcpstream_node.store import VBucketLog

MAX_COLLECTIONS = 1200
"""Collections of a bucket, and scopes: the server's limit."""
MAX_NAME_BYTES = 251
FIRST_RESERVED, LAST_RESERVED = 1, 7
MAX_ID = 2**32 - 1
MAX_UID = 2**64 - 1

NAME = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9_%$-]*")
"""The form of names of scopes and collections."""
_ID = re.compile(r"[0-9a-fA-F]{1,16}")


class ManifestError(ValueError):
    """A manifest that cannot be one; says why."""


class CannotApplyError(ManifestError):
    """A proper manifest that cannot follow the present one."""


def read_manifest(text: bytes, release: Release = DEFAULT_RELEASE) -> Manifest:
    """The manifest of a SET_COLLECTIONS to a node of a release.

    Raises:
        ManifestError: no JSON, or names, ids or sizes that are not allowed.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise ManifestError("not a JSON object")
    uid = _number(document, MAX_UID)
    made = tuple(
        Scope(
            _number(scope, MAX_ID),
            _name(scope),
            tuple(_collection(item, uid, release) for item in _list(scope, "collections")),
        )
        for scope in _list(document, "scopes")
    )
    manifest = Manifest(uid, made)
    check_manifest(manifest)
    if not manifest.uid and manifest != Manifest.DEFAULT:
        raise ManifestError("uid 0 is that of the first manifest, with the default scope and collection alone")
    return manifest


def _list(document: Any, name: str) -> list[Any]:
    found = document.get(name, []) if isinstance(document, Mapping) else None
    if not isinstance(found, list):
        raise ManifestError(f"{name} must be a list")
    return found


def _number(document: Any, largest: int) -> int:
    text = document.get("uid") if isinstance(document, Mapping) else None
    if not isinstance(text, str) or not _ID.fullmatch(text) or int(text, 16) > largest:
        raise ManifestError(f"uid must be hexadecimal text up to {largest:x}, not {text!r}")
    return int(text, 16)


def _name(document: Mapping[str, Any]) -> str:
    name = document.get("name")
    if not isinstance(name, str):
        raise ManifestError(f"name must be text, not {name!r}")
    return name


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_BYTES:
        raise ManifestError(f"a name has 1 to {MAX_NAME_BYTES} characters, not {len(name)}")
    if not NAME.fullmatch(name):
        raise ManifestError(f"{name!r} is no name: A-Z a-z 0-9 _ - % $ are allowed, $ not at the start")


def _collection(document: Any, uid: int, release: Release) -> Collection:
    number = _number(document, MAX_ID)
    max_ttl = document.get("maxTTL", 0)
    if not isinstance(max_ttl, int) or isinstance(max_ttl, bool) or not 0 <= max_ttl < 2**31:
        raise ManifestError(f"maxTTL must be a number of seconds below {2**31}, not {max_ttl!r}")
    if "maxTTL" in document and not max_ttl:
        max_ttl = NO_TTL
    return Collection(
        number,
        _name(document),
        max_ttl,
        _truth(document, "history"),
        release.has(Rule.METERED_COLLECTIONS) and _truth(document, "metered"),
        _flush_uid(document, uid) if release.has(Rule.FLUSHED_COLLECTIONS) else 0,
    )


def _truth(document: Mapping[str, Any], name: str) -> bool:
    found = document.get(name, False)
    if not isinstance(found, bool):
        raise ManifestError(f"{name} must be true or false")
    return found


def _flush_uid(document: Mapping[str, Any], uid: int) -> int:
    text = document.get("flush_uid", "0")
    if not isinstance(text, str) or not _ID.fullmatch(text) or int(text, 16) > uid:
        raise ManifestError(f"flush_uid must be hexadecimal text up to the manifest's uid {uid:x}, not {text!r}")
    return int(text, 16)


def check_manifest(manifest: Manifest) -> None:
    """Whether this can be a manifest: names and ids, each once, the reserved ones where they belong.

    Raises:
        ManifestError: it cannot.
    """
    collections = list(manifest.collections())
    if len(collections) > MAX_COLLECTIONS or len(manifest.scopes) > MAX_COLLECTIONS:
        raise ManifestError(f"at most {MAX_COLLECTIONS} collections and as many scopes")
    _each_once("scope ids", (scope.scope_id for scope in manifest.scopes))
    _each_once("scope names", (scope.name for scope in manifest.scopes))
    _each_once("collection ids", (item.collection_id for _, item in collections))
    for name in (*(scope.name for scope in manifest.scopes), *(item.name for _, item in collections)):
        _check_name(name)
    for scope in manifest.scopes:
        _each_once(f"collection names in scope {scope.name}", (item.name for item in scope.collections))
        if (scope.scope_id == DEFAULT_SCOPE_ID) != (scope.name == DEFAULT_NAME):
            raise ManifestError(f"scope {DEFAULT_SCOPE_ID} is {DEFAULT_NAME}, and no other")
        _check_free(scope.scope_id)
    if all(scope.scope_id != DEFAULT_SCOPE_ID for scope in manifest.scopes):
        raise ManifestError("the default scope is missing; it cannot be dropped")
    for scope, item in collections:
        if (item.collection_id == DEFAULT_COLLECTION_ID) != (item.name == DEFAULT_NAME):
            raise ManifestError(f"collection {DEFAULT_COLLECTION_ID} is {DEFAULT_NAME}, and no other")
        if item.collection_id == DEFAULT_COLLECTION_ID and scope.scope_id != DEFAULT_SCOPE_ID:
            raise ManifestError("the default collection is in the default scope")
        _check_free(item.collection_id)


def _each_once(what: str, values: Iterable[object]) -> None:
    found = list(values)
    if len(set(found)) != len(found):
        raise ManifestError(f"{what} must be different")


def _check_free(number: int) -> None:
    if FIRST_RESERVED <= number <= LAST_RESERVED:
        raise ManifestError(f"ids {FIRST_RESERVED} to {LAST_RESERVED} are reserved")


def check_step(old: Manifest, new: Manifest, release: Release = DEFAULT_RELEASE) -> None:
    """Whether one manifest may follow another with a lower uid.

    Raises:
        CannotApplyError: the default collection is created again, an id means something else now, or the release does
            not let a collection's maxTTL change.
    """
    if not release.has(Rule.COLLECTION_TTL_CHANGES):
        times = {item.collection_id: item.max_ttl for _, item in old.collections()}
        for _, item in new.collections():
            if times.get(item.collection_id, item.max_ttl) != item.max_ttl:
                raise CannotApplyError(f"the maxTTL of collection {item.collection_id:x} cannot change")
    before = {item.collection_id: (scope.scope_id, item.name) for scope, item in old.collections()}
    for scope, item in new.collections():
        number = item.collection_id
        if number == DEFAULT_COLLECTION_ID and number not in before:
            raise CannotApplyError("the default collection was dropped and cannot be created again")
        if before.get(number, (scope.scope_id, item.name)) != (scope.scope_id, item.name):
            raise CannotApplyError(f"collection {number:x} is {before[number][1]}; a new one needs a new id")
    names = {scope.scope_id: scope.name for scope in old.scopes}
    for scope in new.scopes:
        if names.get(scope.scope_id, scope.name) != scope.name:
            raise CannotApplyError(f"scope {scope.scope_id:x} is {names[scope.scope_id]}; a new one needs a new id")


def events_between(
    old: Manifest, new: Manifest, *, in_reverse: bool = True, has_system: bool = False
) -> list[CollectionEvent]:
    """The events for a vbucket's history, in order: new scopes, ends, beginnings, changes, dropped scopes.

    All but the last carry the old manifest's uid: only with the last the new manifest is complete. Collections begin
    in the reverse of the manifest's order, as a server was seen to do it.

    Args:
        in_reverse: whether collections of one scope begin in reverse, too.
        has_system: whether the events of dropped system collections and scopes say so.
    """
    before = {item.collection_id: (scope, item) for scope, item in old.collections()}
    after = {item.collection_id: (scope, item) for scope, item in new.collections()}
    old_scopes = {scope.scope_id for scope in old.scopes}
    new_scopes = {scope.scope_id for scope in new.scopes}
    events = [
        CollectionEvent(SystemEventId.CREATE_SCOPE, old.uid, scope.scope_id, 0, scope.name)
        for scope in new.scopes
        if scope.scope_id not in old_scopes
    ]
    events += [
        CollectionEvent(
            SystemEventId.DROP_COLLECTION, old.uid, scope.scope_id, number, is_system=has_system and item.is_system
        )
        for number, (scope, item) in before.items()
        if number not in after
    ]
    order = reversed(after)
    if not in_reverse:
        order = iter([item.collection_id for scope in reversed(new.scopes) for item in scope.collections])
    begun = [number for number in order if number not in before]
    kept = [number for number in after if number in before]
    begun += [number for number in kept if after[number][1].flush_uid > before[number][1].flush_uid]
    changed = [number for number in kept if number not in begun and after[number][1] != before[number][1]]
    for kind, numbers in ((SystemEventId.CREATE_COLLECTION, begun), (SystemEventId.MODIFY_COLLECTION, changed)):
        for number in numbers:
            scope, item = after[number]
            settings = item.name, item.max_ttl, item.flush_uid, item.history, item.metered
            events.append(CollectionEvent(kind, old.uid, scope.scope_id, number, *settings))
    events += [
        CollectionEvent(SystemEventId.DROP_SCOPE, old.uid, scope.scope_id, is_system=has_system and scope.is_system)
        for scope in old.scopes
        if scope.scope_id not in new_scopes
    ]
    if events:
        events[-1] = events[-1]._replace(manifest_uid=new.uid)
    return events


def manifest_in(log: VBucketLog) -> Manifest:
    """The manifest according to a vbucket's history; `Manifest.DEFAULT` itself if that is empty."""
    if not log.high_seqno:
        return Manifest.DEFAULT
    uid = 0
    scopes = {DEFAULT_SCOPE_ID: DEFAULT_NAME}
    found = {DEFAULT_COLLECTION_ID: (DEFAULT_SCOPE_ID, Collection(DEFAULT_COLLECTION_ID, DEFAULT_NAME))}
    for data in log.collection_events():
        event = event_at(data)
        uid = max(uid, event.manifest_uid)
        if event.event == SystemEventId.CREATE_SCOPE:
            scopes[event.scope_id] = event.name
        elif event.event == SystemEventId.DROP_SCOPE:
            scopes.pop(event.scope_id, None)
        elif event.event == SystemEventId.DROP_COLLECTION:
            found.pop(event.collection_id, None)
        else:
            found[event.collection_id] = event.scope_id, _collection_of(event)
    return Manifest(
        uid,
        tuple(
            Scope(number, name, tuple(item for scope_id, item in found.values() if scope_id == number))
            for number, name in scopes.items()
        ),
    )


def with_event(manifest: Manifest, event: CollectionEvent) -> Manifest:
    """The manifest after an event of some vbucket's history; unchanged by an event that is older than it.

    Each vbucket has the same events, at its own pace, so most of them have been seen before.
    """
    if event.manifest_uid < manifest.uid:
        return manifest
    scopes = {scope.scope_id: scope for scope in manifest.scopes}
    if event.event == SystemEventId.CREATE_SCOPE:
        scopes.setdefault(event.scope_id, Scope(event.scope_id, event.name))
    elif event.event == SystemEventId.DROP_SCOPE:
        scopes.pop(event.scope_id, None)
    elif event.scope_id in scopes:
        scope = scopes[event.scope_id]
        kept = {item.collection_id: item for item in scope.collections}
        if event.event == SystemEventId.DROP_COLLECTION:
            kept.pop(event.collection_id, None)
        else:
            kept[event.collection_id] = _collection_of(event)
        scopes[event.scope_id] = Scope(scope.scope_id, scope.name, tuple(kept.values()))
    return Manifest(event.manifest_uid, tuple(scopes.values()))


def _collection_of(event: CollectionEvent) -> Collection:
    settings = event.max_ttl, event.history, event.metered, event.flush_uid
    return Collection(event.collection_id, event.name, *settings)


class KnownIds:
    """The ids of scopes and collections that the history of a copy has.

    Args:
        manifest: according to the history so far.
    """

    __slots__ = ("collections", "scopes")

    def __init__(self, manifest: Manifest) -> None:
        self.scopes = {scope.scope_id for scope in manifest.scopes}
        self.collections = {item.collection_id for _, item in manifest.collections()}

    def fits(self, event: CollectionEvent) -> bool:
        """Whether an event may follow. An unknown collection may be dropped, a known one may begin again."""
        if event.event == SystemEventId.CREATE_SCOPE:
            return event.scope_id not in self.scopes
        if event.event == SystemEventId.CREATE_COLLECTION:
            return event.scope_id in self.scopes
        return event.event != SystemEventId.MODIFY_COLLECTION or event.collection_id in self.collections

    def take(self, event: CollectionEvent) -> None:
        """The event is in the history now."""
        if event.event == SystemEventId.CREATE_SCOPE:
            self.scopes.add(event.scope_id)
        elif event.event == SystemEventId.DROP_SCOPE:
            self.scopes.discard(event.scope_id)
        elif event.event == SystemEventId.DROP_COLLECTION:
            self.collections.discard(event.collection_id)
        else:
            self.collections.add(event.collection_id)
