"""Setting the manifest: what is refused, what vbuckets are told, and what survives."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dcpstream.model import Collection, Manifest, Scope
from dcpstream.wire import Opcode, Status, SystemEventId
from dcpstream.wire.system_events import CollectionEvent
from dcpstream_node.engine.bucket.manifest import events_between, manifest_in, read_manifest, with_event
from dcpstream_node.engine.bucket.manifest_editor import ManifestEditor, Wanted
from dcpstream_node.testing.simulation import SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import FRUIT_KEY, GARDEN, collection, manifest, scope, set_manifest

BEGIN, END, MODIFY = (
    SystemEventId.CREATE_COLLECTION,
    SystemEventId.DROP_COLLECTION,
    SystemEventId.MODIFY_COLLECTION,
)
ELSEWHERE = {"name": "s", "uid": "8", "collections": [{"name": "_default", "uid": "0"}]}
"""A scope that has the default collection."""
NEW_SCOPE, OLD_SCOPE = SystemEventId.CREATE_SCOPE, SystemEventId.DROP_SCOPE


@rule("KV-COL-07")
@each_case(
    ("value", "why"),
    [
        (b"x", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"scopes":[]}', "uid"),
        (b'{"uid":1,"scopes":[]}', "uid"),
        (b'{"uid":"x","scopes":[]}', "uid"),
        (b'{"uid":"1","scopes":{}}', "scopes must be a list"),
        (b'{"uid":"1","scopes":[]}', "default scope is missing"),
        (b'{"uid":"1","scopes":[7]}', "uid"),
        (manifest(0, default=[collection("c", 8)]), "first manifest"),
        (manifest(1, default=[collection("c", 3)]), "reserved"),
        (manifest(1, scope("s", 7)), "reserved"),
        (manifest(1, default=[collection("c", 8), collection("d", 8)]), "collection ids"),
        (manifest(1, default=[collection("c", 8), collection("c", 9)]), "collection names"),
        (manifest(1, scope("s", 8), scope("s", 9)), "scope names"),
        (manifest(1, scope("s", 8), scope("t", 8)), "scope ids"),
        (manifest(1, default=[collection("a b", 8)]), "no name"),
        (manifest(1, default=[collection("$a", 8)]), "no name"),
        (manifest(1, default=[collection("", 8)]), "no name"),
        (manifest(1, default=[collection("a" * 252, 8)]), "251"),
        (manifest(1, default=[collection("c", 8, maxTTL=-1)]), "maxTTL"),
        (manifest(1, default=[collection("c", 8, maxTTL="5")]), "maxTTL"),
        (manifest(1, default=[collection("c", 8, history=1)]), "history"),
        (manifest(1, default=[collection("c", 8, maxTTL=1 << 31)]), "maxTTL"),
        (manifest(1, default=[collection("c", 8, maxTTL=True)]), "maxTTL"),
        (manifest(1, default=[collection("c", 1 << 32)]), "uid"),
        (manifest(1, scope("s", 1)), "reserved"),
        (b'{"uid":"1","scopes":[{"uid":"0"}]}', "name must be text"),
        (b'{"uid":"1","scopes":[{"name":"other","uid":"0"}]}', "no other"),
        (
            json.dumps({"uid": "1", "scopes": [{"name": "_default", "uid": "0"}, ELSEWHERE]}).encode(),
            "is in the default scope",
        ),
        (manifest(1, scope("s", 9, collection("_default", 8))), "no other"),
        (manifest(1, scope("_default", 8)), "scope names"),
        (manifest(1, scope("s", 8, collection("_default", 0))), "collection ids"),
        (manifest(1, default=[collection(f"c{number}", number + 8) for number in range(1200)]), "1200"),
    ],
)
def test_manifests_that_cannot_be(value: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_manifest(value)
    node = SimulatedNode()
    answer = node.admin.call(Opcode.SET_COLLECTIONS, value=value)
    assert answer.status == Status.EINVAL
    assert why in json.loads(answer.value)["error"]["context"]
    assert node.bucket.manifest.uid == 0


@rule("KV-COL-07")
def test_manifests_that_may_be() -> None:
    value = manifest(
        2**64 - 1, scope("_system", 8), scope("%A-z_0$", 9, collection("-", 8)), default=[collection("_x", 0xFFFFFFFF)]
    )
    assert read_manifest(manifest(1, default=[collection("n" * 251, 8, maxTTL=(1 << 31) - 1)])).uid == 1
    found = read_manifest(value)
    assert found.uid == 2**64 - 1
    assert {item.collection_id for _, item in found.collections()} == {0, 8, 0xFFFFFFFF}


@rule("KV-COL-05")
def test_one_manifest_follows_another() -> None:
    node = SimulatedNode()
    set_manifest(node, GARDEN)
    high = node.vbucket(0).high_seqno
    set_manifest(node, GARDEN)
    assert node.vbucket(0).high_seqno == high, "the same again changes nothing"
    set_manifest(node, manifest(0), Status.CANNOT_APPLY_MANIFEST)
    set_manifest(node, manifest(1), Status.CANNOT_APPLY_MANIFEST)
    set_manifest(node, manifest(2, default=[collection("other", 8)]), Status.CANNOT_APPLY_MANIFEST)
    set_manifest(node, manifest(2, scope("other", 9)), Status.CANNOT_APPLY_MANIFEST)
    set_manifest(node, manifest(2, scope("t", 10, collection("fruit", 8))), Status.CANNOT_APPLY_MANIFEST)
    without = {"uid": "2", "scopes": [{"name": "_default", "uid": "0"}]}
    set_manifest(node, json.dumps(without).encode())
    set_manifest(node, manifest(3), Status.CANNOT_APPLY_MANIFEST)


@rule("KV-COL-02")
def test_the_manifest_can_be_asked_for() -> None:
    node = SimulatedNode()
    set_manifest(node, GARDEN)
    shown = read_manifest(node.admin.call(Opcode.GET_COLLECTIONS_MANIFEST).value)
    assert replace(shown, scopes=shown.scopes[::-1]) == read_manifest(GARDEN)
    found = node.admin.call(Opcode.GET_COLLECTION_ID, value=b"s1.veg")
    assert (found.status, found.extras) == (0, bytes(7) + b"\1" + bytes(3) + b"\x0a")
    assert node.admin.call(Opcode.GET_COLLECTION_ID, value=b"s1.fruit").status == Status.UNKNOWN_COLLECTION
    assert node.admin.call(Opcode.GET_SCOPE_ID, value=b"s1").extras[8:] == bytes(3) + b"\x09"
    assert node.admin.call(Opcode.GET_SCOPE_ID, value=b"s2").status == Status.UNKNOWN_SCOPE


def test_the_order_of_events() -> None:
    def made(uid: int, *scopes: Scope) -> Manifest:
        return Manifest(uid, (Scope(0, "_default", (Collection(0, "_default"),)), *scopes))

    old = made(4, Scope(8, "s", (Collection(8, "a"), Collection(9, "b"))), Scope(10, "going", (Collection(11, "c"),)))
    new = made(5, Scope(8, "s", (Collection(9, "b", 60), Collection(12, "d"), Collection(13, "e"))), Scope(14, "new"))
    assert events_between(old, new) == [
        CollectionEvent(NEW_SCOPE, 4, 14, 0, "new"),
        CollectionEvent(END, 4, 8, 8),
        CollectionEvent(END, 4, 10, 11),
        CollectionEvent(BEGIN, 4, 8, 13, "e"),
        CollectionEvent(BEGIN, 4, 8, 12, "d"),
        CollectionEvent(MODIFY, 4, 8, 9, "b", 60),
        CollectionEvent(OLD_SCOPE, 5, 10),
    ]
    assert events_between(new, new) == []


def test_every_active_vbucket_gets_the_events_and_others_when_they_become_active() -> None:
    node = SimulatedNode()
    node.set_vbucket(3, 2)
    set_manifest(node, GARDEN)
    assert [node.vbucket(vbid).high_seqno for vbid in range(4)] == [3, 3, 3, 0]
    node.set_vbucket(3, 1)
    assert node.vbucket(3).high_seqno == 3
    node.set_vbucket(3, 2)
    set_manifest(node, manifest(2))
    node.set_vbucket(3, 1)
    assert node.vbucket(3).high_seqno == 6
    assert {item.collection_id for _, item in manifest_in(node.vbucket(3).log).collections()} == {0}
    node.delete_vbucket(2)
    node.set_vbucket(2, 1)
    assert node.vbucket(2).high_seqno == 0, "what is over was never there for a new one"


def test_the_manifest_survives_and_events_lost_in_a_crash_are_written_again(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_doc(1, "k")
    node.flush()
    set_manifest(node, GARDEN)
    node.set_doc(1, "ap", collection=FRUIT_KEY)
    node.restart(clean=False)
    assert node.bucket.manifest == read_manifest(GARDEN)
    assert node.vbucket(1).high_seqno == 4, "one document and three events"
    assert node.admin.call(Opcode.GET, vbid=1, key=FRUIT_KEY + b"ap").status == Status.KEY_ENOENT
    node.set_doc(1, "ap", collection=FRUIT_KEY)
    node.restart()
    assert node.vbucket(1).high_seqno == 5
    assert node.admin.call(Opcode.GET, vbid=1, key=FRUIT_KEY + b"ap").status == 0


def test_a_manifest_after_the_events_of_its_vbuckets() -> None:
    """Whatever the pace of each vbucket, the manifest ends as it does in the history of one."""
    steps = [Manifest.DEFAULT]
    for scopes in (
        {"shop": {"orders": Wanted(None), "old": Wanted(60)}},
        {"shop": {"orders": Wanted(None)}},
        {"shop": {"orders": Wanted(3600)}, "other": {}},
        {"other": {"items": Wanted(None)}},
    ):
        steps.append(ManifestEditor(steps[-1], history=False).replace_all(scopes, keeps_default_collection=True))
    events = [event for old, new in pairwise(steps) for event in events_between(old, new)]
    found = steps[0]
    for event in events:
        found = with_event(found, event)
    assert found == steps[-1]
    for event in events:  # another vbucket, which has them later
        found = with_event(found, event)
    assert found == steps[-1]
