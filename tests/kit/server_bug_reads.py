"""Reads of a bucket that meet the known bugs of servers: what is written, what a reader must have in the end.

A reader is a `Bucket`; one of another client has another `read`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dcpstream.client import Change, Client, KvClient, StreamOptions
from dcpstream.model import Op, StreamOffset
from dcpstream.wire import Datatype, Feature, Opcode
from dcpstream.wire.keys import encode_frame_info, leb128_encode
from dcpstream_node import Node
from tests.kit.access import LOGIN
from tests.kit.peer import FEATURES, SocketPeer

Documents = dict[bytes, bytes]
ORDERS, RETURNS = "shop.orders", "shop.returns"
COUNT = 60
LARGE = b"x" * 100_000
"""Three of them are more than the changes that a stream looks at in memory at once."""


class Bucket:
    """A bucket of a node, the documents that it must have, and a reader that keeps its positions."""

    def __init__(self, server: str, name: str, login: Mapping[str, str] = LOGIN) -> None:
        self.server = server
        self.name = name
        self.login: dict[str, Any] = {**login, "bucket": name}
        self.node: Node | None = None
        self.wanted: dict[str, Documents] = {ORDERS: {}, RETURNS: {}}
        self.found: Documents = {}
        self.positions: dict[int, StreamOffset] = {}
        self.ops: list[str] = []

    def write(self, collection: str, documents: Documents) -> None:
        with KvClient(self.server, **self.login, collection=collection) as kv:
            kv.set_many(documents.items())
        self.wanted[collection] |= documents

    def delete(self, collection: str, keys: list[bytes]) -> None:
        with KvClient(self.server, **self.login, collection=collection) as kv:
            kv.delete_many(keys)
        for key in keys:
            del self.wanted[collection][key]

    def read(self, count: int | None = None, **options: Any) -> Documents:
        """Read up to now, or so many changes, and go on from there the next time."""
        self.ops = []
        with Client(self.server, **self.login) as client:
            changes = client.changes(StreamOptions(start=dict(self.positions), end="latest", **options))
            for change in itertools.islice(changes, count):
                self.take(change)
            changes.close()
        return self.found

    def take(self, change: Change) -> None:
        self.ops.append(change.op)
        self.positions[change.vbid] = change.offset
        if change.op == Op.MUTATION:
            self.found[change.key] = change.value or b""
        elif change.op in {Op.DELETION, Op.EXPIRATION}:
            self.found.pop(change.key, None)
        elif change.op == Op.ROLLBACK:
            self.found.clear()


B = TypeVar("B", bound=Bucket)


def documents(prefix: str, count: int = COUNT, value: bytes = b"1") -> Documents:
    return {f"{prefix} {number}".encode(): value for number in range(count)}


def node_of(bucket: Bucket) -> Node:
    """The bucket's node, which does what no client can ask a server for."""
    if bucket.node is None:
        pytest.skip("the read needs a node of this project")
    return bucket.node


def resume_inside_a_snapshot(bucket: Bucket) -> None:
    """What is left of the snapshot begins with many changes for nobody."""
    bucket.read(collections=[ORDERS])
    bucket.write(ORDERS, documents("new", 3))
    bucket.write(RETURNS, documents("large", 3, LARGE))
    bucket.write(ORDERS, documents("newest", 2))
    bucket.read(3, collections=[ORDERS])
    assert bucket.read(collections=[ORDERS]) == bucket.wanted[ORDERS]


def resume_before_nothing(bucket: Bucket) -> None:
    """What is left of the snapshot is for nobody, and then a change comes."""
    bucket.read(len(bucket.wanted[ORDERS]) + COUNT // 2 + 1, collections=[ORDERS])
    bucket.read(collections=[ORDERS])
    bucket.write(ORDERS, documents("new", 3))
    assert bucket.read(collections=[ORDERS]) == bucket.wanted[ORDERS]


def read_keys_alone(bucket: Bucket) -> None:
    assert bucket.read(keys_only=True).keys() == (bucket.wanted[ORDERS] | bucket.wanted[RETURNS]).keys()
    assert bucket.ops.count(Op.DELETION) >= COUNT // 2


def read_before_a_durable_write(bucket: Bucket) -> None:
    """A write of the collection that is not decided yet is followed by one of another collection."""
    with contextlib.closing(SocketPeer(node_of(bucket).port)) as peer:
        peer.open(bucket=bucket.name, features=(*FEATURES, Feature.JSON))
        peer.succeed(
            Opcode.SET_VBUCKET, extras=b"\1", value=b'{"topology":[["active","replica"]]}', datatype=int(Datatype.JSON)
        )
        bucket.read(collections=[ORDERS])
        bucket.write(ORDERS, documents("new", 2))
        manifest = json.loads(peer.succeed(Opcode.GET_COLLECTIONS_MANIFEST).value)
        ids = {item["name"]: int(item["uid"], 16) for scope in manifest["scopes"] for item in scope["collections"]}
        peer.send(
            Opcode.SET,
            key=leb128_encode(ids["orders"]) + b"pending",
            value=b"1",
            extras=bytes(8),
            framing=encode_frame_info(1, b"\1"),
        )
        bucket.write(RETURNS, documents("new return", 2))
        assert bucket.read(collections=[ORDERS]) == bucket.wanted[ORDERS]
        bucket.write(ORDERS, documents("newer", 2))
        assert bucket.read(collections=[ORDERS]) == bucket.wanted[ORDERS]


def read_out_of_order(bucket: Bucket) -> None:
    bucket.read(collections=[RETURNS], on_rollback="rewind")
    assert bucket.found == bucket.wanted[RETURNS]
    bucket.write(RETURNS, documents("new", 2))
    assert bucket.read(collections=[RETURNS], on_rollback="rewind") == bucket.wanted[RETURNS]


def fill(bucket: Bucket) -> None:
    bucket.write(ORDERS, documents("order"))
    bucket.write(RETURNS, documents("return") | {b"\xffkey": b"2", b"\xff": b"3"})
    gone = documents("gone", COUNT // 2)
    bucket.write(ORDERS, gone)
    bucket.delete(ORDERS, list(gone))
    bucket.write(RETURNS, documents("after", 1))


@contextlib.contextmanager
def served(
    names: Sequence[str],
    path: Path,
    *,
    release: str,
    bugs: Sequence[str],
    kind: Callable[[str, str], B] = Bucket,  # type: ignore[assignment]
) -> Iterator[dict[str, B]]:
    """The buckets of a node with these bugs, filled, and then read from disk."""
    node = Node(names, vbuckets=1, path=path, release=release, server_bugs=bugs)
    found = {}
    with node:
        for name in names:
            node.set_collections(name, {"shop": ["orders", "returns"]})
            bucket = found[name] = kind(node.connection_string, name)
            bucket.node = node
            fill(bucket)
    with node:
        for bucket in found.values():
            bucket.server = node.connection_string
            assert node.engine is not None
            node.engine.buckets[bucket.name].parameters.oso_backfill = "enabled"
        yield found
