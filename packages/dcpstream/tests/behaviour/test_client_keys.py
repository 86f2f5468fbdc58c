"""Reads without values beside reads with them, of documents that a node of 7.6 reads from disk.

Such a node leaves out more than values where it is not asked rightly, as servers since 7.6 do.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import dcpstream_node
from dcpstream.cli.app import run
from dcpstream.client import AsyncClient, Client, KvClient, StreamOptions
from dcpstream.wire import Feature, Opcode
from lab.tools.patience import patient
from tests.kit.access import LOGIN
from tests.kit.peer import FEATURES, SocketPeer

pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")

ROUNDS = 5
ABOUT = ("key", "op", "collection", "vbucket", "seqno", "rev", "cas", "flags", "datatype", "expiry")
"""Columns that need no value."""

_XATTR_PATH, _MAKE_DOCUMENT = 4, 1


def write(node: dcpstream_node.Node) -> None:
    """Per round a plain document, one with attributes, and a deletion, with flags, expiry and several revisions."""
    node.set_collections("default", {"shop": ["orders"]})
    for collection in ("_default._default", "shop.orders"):
        with KvClient(node.connection_string, **LOGIN, collection=collection) as kv:
            for _ in range(2):
                kv.set_many((f"plain{number}", b'{"n": 1}') for number in range(ROUNDS))
            kv.set("until", b"x" * 100, flags=7, expiry=2_000_000_000)
            kv.set_many((f"gone{number}", b"1") for number in range(ROUNDS))
            kv.delete_many(f"gone{number}" for number in range(ROUNDS))
    peer = SocketPeer(node.port).open(features=(*FEATURES, Feature.XATTR, Feature.JSON))
    with contextlib.closing(peer.socket):
        for number in range(ROUNDS):
            extras = struct.pack(">HBB", 1, _XATTR_PATH, _MAKE_DOCUMENT)
            key = f"\0with{number}".encode()
            peer.succeed(Opcode.SUBDOC_DICT_UPSERT, key=key, value=b'a{"b": 1}', extras=extras)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dcpstream_node.Node]:
    path = tmp_path_factory.mktemp("node") / "data"
    running = dcpstream_node.Node(vbuckets=2, path=path, release="7.6")
    with running:
        write(running)
    with running:  # what was written before is read from disk
        yield running


def batches(kind: str, node: dcpstream_node.Node, **options: Any) -> list[dict[str, Any]]:
    """All rows of documents, in order of vbucket and seqno."""
    found: list[Any] = []

    async def read() -> None:
        async with AsyncClient(node.connection_string, **LOGIN) as client:
            async for batch in client.stream(StreamOptions(end="latest", **options)):
                found.append(batch)

    if kind == "asyncio":
        asyncio.run(asyncio.wait_for(read(), patient(30)))
    else:
        with Client(node.connection_string, **LOGIN) as client:
            found = list(client.stream(StreamOptions(end="latest", **options)))
    rows = [row for batch in found if not batch.events for row in batch.record_batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["vbucket"], row["seqno"]))


def about(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in ABOUT} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("blocking", {}),
        ("asyncio", {}),
        ("blocking", {"read_stable": True}),
        ("blocking", {"members": (1, 2)}),
        ("blocking", {"collections": ["shop.orders"], "on_rollback": "rewind"}),
    ],
    ids=["blocking", "asyncio", "stable", "member", "collection"],
)
def test_rows_without_values_are_those_with_values(
    node: dcpstream_node.Node, kind: str, options: dict[str, Any]
) -> None:
    whole = batches(kind, node, **options)
    assert {row["op"] for row in whole} == {"mutation", "deletion"}
    assert all(row["value"] for row in whole if row["op"] == "mutation")
    bare = batches(kind, node, columns=ABOUT, **options)
    assert about(bare) == about(whole)


def test_changes_without_values_are_those_with_values(node: dcpstream_node.Node) -> None:
    with Client(node.connection_string, **LOGIN) as client:
        whole, bare = (
            list(client.changes(StreamOptions(end="latest", keys_only=keys_only))) for keys_only in (False, True)
        )
    assert any(change.value for change in whole if change.op == "mutation")
    assert [replace(change, value=None, xattrs={}) for change in whole if change.key] == [
        replace(change, value=None) for change in bare if change.key
    ]
    assert not any(change.value or change.xattrs for change in bare if change.key)


def test_only_keys_that_exist_are_listed(node: dcpstream_node.Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kv", "ls", "--cluster", node.connection_string, "--collection", "shop.orders"]) == 0
    assert capsys.readouterr().out.split() == [*(f"plain{number}" for number in range(ROUNDS)), "until"]
