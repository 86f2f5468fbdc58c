"""The commands about scopes and collections, and how an unknown one is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.wire import Feature, Opcode, Status
from dcpstream_node.testing.simulation import USUAL_FEATURES, WITHOUT_COLLECTIONS, SimulatedNode
from tests.kit.rules import rule
from tests.kit.streams import GARDEN, collection, manifest, set_manifest

IDS = pytest.mark.parametrize("opcode", [Opcode.GET_COLLECTION_ID, Opcode.GET_SCOPE_ID])


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    set_manifest(node, GARDEN)
    return node


@rule("KV-COL-01")
@pytest.mark.parametrize("path", [b"", b"a", b"a.b.c", b".."])
@pytest.mark.parametrize("part", ["key", "value"])
def test_the_dots_of_a_path(node: SimulatedNode, path: bytes, part: str) -> None:
    peer = node.connect()
    fields: dict[str, Any] = {part: path}
    answer = peer.call(Opcode.GET_COLLECTION_ID, **fields)
    assert (answer.status, answer.value) == (Status.EINVAL, b"")
    answer = peer.call(Opcode.GET_SCOPE_ID, **fields)
    expected = Status.EINVAL if path.count(b".") > 1 else 0 if not path else Status.UNKNOWN_SCOPE
    assert answer.status == expected


@rule("KV-COL-02")
@pytest.mark.parametrize("path", [b".", b"_default._default", b"._default", b"_default."])
def test_empty_parts_mean_the_default(node: SimulatedNode, path: bytes) -> None:
    answer = node.connect().call(Opcode.GET_COLLECTION_ID, value=path)
    assert (answer.status, answer.extras, answer.value) == (0, bytes(7) + b"\1" + bytes(4), b"")


@rule("KV-COL-03")
@pytest.mark.parametrize("name", [b"$a", b"a b", b"a/b", b"\xc3\xa4", b"x" * 252])
@IDS
def test_a_path_that_cannot_be_a_name_is_refused(node: SimulatedNode, opcode: int, name: bytes) -> None:
    for path in (name + b".c", b"s1." + name):
        if path.startswith(b"s1") and opcode == Opcode.GET_SCOPE_ID:
            continue
        answer = node.connect().call(opcode, value=path)
        assert (answer.status, answer.value) == (Status.EINVAL, b"")
    answer = node.connect().call(Opcode.GET_COLLECTION_ID, value=b"s2." + name)
    assert answer.status == Status.UNKNOWN_SCOPE, "the scope comes first"


@rule("KV-COL-04")
@IDS
def test_a_path_is_in_the_key_or_in_the_value(node: SimulatedNode, opcode: int) -> None:
    peer = node.connect()
    assert peer.call(opcode, key=b"s1.veg", value=b"s1.veg").status == Status.EINVAL
    assert peer.call(opcode, value=b"s1.veg", vbid=1).status == Status.EINVAL
    assert peer.call(opcode, key=b"s1.veg").extras == peer.call(opcode, value=b"s1.veg").extras


@rule("KV-COL-05")
def test_what_cannot_follow_the_present_manifest(node: SimulatedNode) -> None:
    for value in (manifest(0), manifest(1), manifest(2, default=[collection("other", 8)])):
        answer = node.admin.call(Opcode.SET_COLLECTIONS, value=value)
        assert answer.status == Status.CANNOT_APPLY_MANIFEST
        assert "context" in json.loads(answer.value)["error"]
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=GARDEN).status == 0
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=GARDEN, datatype=1).status == Status.EINVAL
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=GARDEN, vbid=1).status == Status.EINVAL
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=b"{").status == Status.EINVAL
    old = node.connect(features=[feature for feature in USUAL_FEATURES if feature != Feature.XERROR], user="@admin")
    assert old.call(Opcode.SET_COLLECTIONS, value=manifest(0)).status == Status.EINTERNAL


@rule("KV-COL-06")
@pytest.mark.parametrize("has_xerror", [True, False])
def test_an_unknown_collection_is_named_to_clients_with_xerror_or_collections(
    node: SimulatedNode, has_xerror: bool
) -> None:
    content = json.loads(manifest(2))
    content["scopes"][0]["collections"] = []
    dropped = json.dumps(content).encode()
    set_manifest(node, dropped)
    features = [feature for feature in WITHOUT_COLLECTIONS if has_xerror or feature != Feature.XERROR]
    answer = node.connect(features=features).call(Opcode.GET, vbid=1, key=b"k")
    assert answer.status == (Status.UNKNOWN_COLLECTION if has_xerror else Status.EINVAL)
    told = json.loads(answer.value)
    assert (told["manifest_uid"], "context" in told["error"]) == ("2", True)
