"""Scopes and collections by the paths and ids that requests name.

Source: kv_engine engines/ep/src/collections/manifest.cc, collections/utils.cc (makeCollectionIDFromString).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dcpstream.model.collections import DEFAULT_NAME
from dcpstream.wire import Status
from dcpstream_node.engine.bucket.manifest import MAX_NAME_BYTES, NAME

if TYPE_CHECKING:
    from dcpstream.model import Collection, Manifest, Scope

ID_MAX = 0xFFFFFFFF
_ID = re.compile(r"(?:0[xX])?[0-9a-fA-F]+")


def is_name(name: str) -> bool:
    """True if a scope or collection may have this name."""
    return bool(NAME.fullmatch(name)) and len(name) <= MAX_NAME_BYTES


def names_in(path: str) -> tuple[str, str]:
    """The scope and the collection that a path names; an empty part means `_default`."""
    scope, _, collection = path.partition(".")
    return scope or DEFAULT_NAME, collection or DEFAULT_NAME


def scope_at(manifest: Manifest, path: str) -> Scope | int:
    """The scope of `scope` or `scope.text`, or EINVAL or UNKNOWN_SCOPE."""
    name, _ = names_in(path)
    if path.count(".") > 1 or not is_name(name):
        return Status.EINVAL
    return next((scope for scope in manifest.scopes if scope.name == name), Status.UNKNOWN_SCOPE)


def collection_at(manifest: Manifest, path: str) -> Collection | int:
    """The collection of `scope.collection`, or EINVAL, UNKNOWN_SCOPE or UNKNOWN_COLLECTION: the scope comes first."""
    scope = scope_at(manifest, path) if path.count(".") == 1 else Status.EINVAL
    if isinstance(scope, int):
        return scope
    _, name = names_in(path)
    if not is_name(name):
        return Status.EINVAL
    return next((item for item in scope.collections if item.name == name), Status.UNKNOWN_COLLECTION)


def id_in(text: str) -> int | None:
    """The hexadecimal id of a scope or collection, with or without 0x; None if it is not one."""
    number = int(text, 16) if _ID.fullmatch(text) else None
    return None if number is None or number > ID_MAX else number
