"""Both clients, while scopes and collections come and go: nothing that is gone stays with a reader."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client import (
    AsyncClient,
    BucketReader,
    Change,
    Client,
    ClientOptions,
    CollectionEvents,
    FileOffsetStore,
    KvClient,
    OffsetStore,
    SqliteOffsetStore,
    StreamOptions,
    VbucketRange,
)
from dcpstream.errors import ConfigError
from dcpstream.model import Op, StreamOffset
from dcpstream.wire import Opcode
from tests.kit.access import LOGIN
from tests.kit.peer import SocketPeer
from tests.kit.proxy import Proxy

VBUCKETS = 4
DOCUMENTS = 40


class Follower:
    """Documents as a reader knows them, kept by the rules of the documentation."""

    def __init__(self) -> None:
        self.documents: dict[tuple[int, str, str, bytes], int] = {}
        self.ops: list[tuple[str, str, int]] = []
        self.last: dict[int, int] = {}

    def take(self, change: Change) -> None:
        place = (change.vbid, change.scope, change.collection)
        op = Op(change.op)
        if op.is_control:
            self.ops.append((change.op, f"{change.scope}.{change.collection}".rstrip("."), change.vbid))
            if op.empties_collection:
                gone = [key for key, seqno in self.documents.items() if key[:3] == place and seqno <= change.seqno]
                for key in gone:
                    del self.documents[key]
        elif op is Op.MUTATION:
            self.documents[*place, change.key] = change.seqno
        else:
            self.documents.pop((*place, change.key), None)

    @property
    def keys(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for _, scope, collection, key in self.documents:
            found.setdefault(f"{scope}.{collection}", set()).add(key.decode())
        return found

    def told(self, op: Op, name: str) -> list[int]:
        """The vbuckets that told it, rising."""
        return sorted(vbid for told, about, vbid in self.ops if (told, about) == (op.value, name))


class Reader:
    """One way of reading, with the same face."""

    def __init__(self, kind: str, connection_string: str) -> None:
        self.kind = kind
        self.make = lambda: (Client if kind == "blocking" else AsyncClient)(
            connection_string, **LOGIN, options=ClientOptions(connect_timeout_s=5.0)
        )

    def follow(self, follower: Follower, until: Callable[[], bool] = lambda: False, **options: Any) -> None:
        """Take changes until the stream ends, or `until` after one of them."""
        if self.kind == "blocking":
            with self.make() as client, contextlib.closing(client.changes(StreamOptions(**options))) as changes:
                for change in changes:
                    follower.take(change)
                    if until():
                        return
            return

        async def collect() -> None:
            async with self.make() as client, contextlib.aclosing(client.changes(StreamOptions(**options))) as changes:
                async for change in changes:
                    follower.take(change)
                    if until():
                        return

        asyncio.run(asyncio.wait_for(collect(), 60))


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as running:
        running.set_collections("default", {"shop": ["orders", "returns"]})
        yield running


@pytest.fixture(params=["blocking", "asyncio"])
def reader(request: pytest.FixtureRequest, node: dcpstream_node.Node) -> Reader:
    return Reader(str(request.param), node.connection_string)


def fill(node: dcpstream_node.Node, path: str, prefix: str = "doc", count: int = DOCUMENTS) -> set[str]:
    keys = {f"{prefix} {number}" for number in range(count)}
    with KvClient(node.connection_string, **LOGIN, collection=path) as kv:
        kv.set_many((key, "1") for key in keys)
    return keys


ALL = list(range(VBUCKETS))


def test_beginnings_and_ends_are_reported_once_for_each_vbucket(node: dcpstream_node.Node, reader: Reader) -> None:
    orders, others = fill(node, "shop.orders"), fill(node, "_default._default", "other")
    fill(node, "shop.returns")
    node.set_collections("default", {"shop": ["orders"]})
    follower = Follower()
    reader.follow(follower, end="latest")
    assert follower.keys == {"shop.orders": orders, "_default._default": others}
    assert follower.told(Op.SCOPE_CREATED, "shop") == ALL
    assert follower.told(Op.COLLECTION_CREATED, "shop.orders") == ALL
    # A reader that never had the collection does not know its name: the event of an end has only the id.
    assert follower.told(Op.COLLECTION_DROPPED, ".0x9") == ALL


def test_a_control_row_stands_between_the_rows_around_it(node: dcpstream_node.Node, reader: Reader) -> None:
    seen: list[tuple[int, int, str]] = []
    fill(node, "_default._default", "before")
    fill(node, "shop.returns")
    node.set_collections("default", {"shop": ["orders"]})
    fill(node, "_default._default", "after")
    follower = Follower()
    take = follower.take
    follower.take = lambda change: (seen.append((change.vbid, change.seqno, change.op)), take(change))[1]  # type: ignore[func-returns-value]
    reader.follow(follower, end="latest")
    for vbid in ALL:
        seqnos = [seqno for where, seqno, _ in seen if where == vbid]
        assert seqnos == sorted(seqnos)
        ops = [op for where, _, op in seen if where == vbid]
        assert "mutation" in ops[: ops.index("collection_dropped")]
        assert "mutation" in ops[ops.index("collection_dropped") :]


def test_a_follower_loses_what_is_dropped_while_it_watches(node: dcpstream_node.Node, reader: Reader) -> None:
    fill(node, "shop.returns")
    orders = fill(node, "shop.orders")
    follower = Follower()
    steps = iter(
        [
            (
                lambda: len(follower.documents) == 2 * DOCUMENTS,
                lambda: node.set_collections("default", {"shop": ["orders"]}),
            ),
            (lambda: follower.told(Op.COLLECTION_DROPPED, "shop.returns") == ALL, None),
        ]
    )
    step = next(steps)

    def until() -> bool:
        nonlocal step
        if not step[0]():
            return False
        if step[1] is None:
            return True
        step[1]()
        step = next(steps)
        return False

    reader.follow(follower, until)
    assert follower.keys == {"shop.orders": orders}


@pytest.fixture(params=[FileOffsetStore, SqliteOffsetStore])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], OffsetStore]:
    return lambda: request.param(tmp_path / "positions")


def test_a_client_that_was_away_gets_the_names(
    node: dcpstream_node.Node, reader: Reader, store: Callable[[], OffsetStore]
) -> None:
    fill(node, "shop.returns")
    orders = fill(node, "shop.orders")
    follower = Follower()
    reader.follow(follower, end="latest", store=store())
    node.set_collections("default", {"shop": ["orders"]})
    reader.follow(follower, end="latest", store=store())
    assert follower.keys == {"shop.orders": orders}
    assert follower.told(Op.COLLECTION_DROPPED, "shop.returns") == ALL


@pytest.mark.slow
@pytest.mark.parametrize("names", [["shop.orders", "shop.returns"], ["shop"], ["shop.*", "_default._default"]])
def test_the_survivors_go_on_when_a_collection_of_the_filter_is_gone(
    node: dcpstream_node.Node, reader: Reader, store: Callable[[], OffsetStore], names: list[str]
) -> None:
    fill(node, "shop.returns")
    orders = fill(node, "shop.orders")
    follower = Follower()
    reader.follow(follower, end="latest", store=store(), collections=names)
    assert follower.keys["shop.returns"]
    node.set_collections("default", {"shop": ["orders"]})
    more = fill(node, "shop.orders", "more")
    reader.follow(follower, end="latest", store=store(), collections=names)
    assert follower.keys == {"shop.orders": orders | more}
    assert follower.told(Op.COLLECTION_DROPPED, "shop.returns") == ALL
    reader.follow(follower, end="latest", store=store(), collections=names)
    assert follower.told(Op.COLLECTION_DROPPED, "shop.returns") == ALL, "told once"


def test_a_consumer_ahead_of_its_acknowledgement_loses_what_it_has_too(
    node: dcpstream_node.Node, reader: Reader
) -> None:
    fill(node, "shop.returns")
    orders = fill(node, "shop.orders")
    follower, positions = Follower(), {}
    take = follower.take

    def remember(change: Change) -> None:
        take(change)
        if change.vbid not in positions:
            positions[change.vbid] = change.offset

    follower.take = remember
    names = ["shop.orders", "shop.returns"]
    reader.follow(follower, end="latest", collections=names)
    node.set_collections("default", {"shop": ["orders"]})
    reader.follow(follower, start=dict(positions), end="latest", collections=names)
    assert follower.keys == {"shop.orders": orders}


@pytest.mark.slow
def test_one_that_is_recreated_is_followed(
    node: dcpstream_node.Node, reader: Reader, store: Callable[[], OffsetStore]
) -> None:
    names = ["shop.orders", "shop.returns"]
    fill(node, "shop.returns", "old")
    orders = fill(node, "shop.orders")
    follower = Follower()
    reader.follow(follower, end="latest", store=store(), collections=names)
    node.set_collections("default", {"shop": ["orders"]})
    node.set_collections("default", {"shop": ["orders", "returns"]})
    new = fill(node, "shop.returns", "new")
    reader.follow(follower, end="latest", store=store(), collections=names)
    assert follower.keys == {"shop.orders": orders, "shop.returns": new}
    assert follower.told(Op.COLLECTION_DROPPED, "shop.returns") == ALL


@pytest.mark.slow
def test_one_that_is_recreated_is_followed_by_a_reader_that_has_gone_on(
    node: dcpstream_node.Node, reader: Reader, store: Callable[[], OffsetStore]
) -> None:
    names = ["shop.orders", "shop.returns"]
    fill(node, "shop.returns", "old")
    follower = Follower()
    reader.follow(follower, end="latest", store=store(), collections=names)
    node.set_collections("default", {"shop": ["orders"]})
    orders = fill(node, "shop.orders")
    reader.follow(follower, end="latest", store=store(), collections=names)
    assert follower.keys == {"shop.orders": orders}
    node.set_collections("default", {"shop": ["orders", "returns"]})
    new = fill(node, "shop.returns", "new")
    more = fill(node, "shop.orders", "more")
    reader.follow(follower, end="latest", store=store(), collections=names)
    assert follower.keys == {"shop.orders": orders | more, "shop.returns": new}


@pytest.mark.slow
def test_a_live_stream_follows_one_that_is_recreated(node: dcpstream_node.Node, reader: Reader) -> None:
    fill(node, "shop.returns", "old")
    follower = Follower()
    new: set[str] = set()

    def until() -> bool:
        if not new and len(follower.documents) == DOCUMENTS:
            node.set_collections("default", {"shop": ["orders"]})
            node.set_collections("default", {"shop": ["orders", "returns"]})
            new.update(fill(node, "shop.returns", "new"))
        return bool(new) and follower.keys == {"shop.returns": new}

    reader.follow(follower, until, collections=["shop.returns"])
    assert follower.told(Op.COLLECTION_DROPPED, "shop.returns") == ALL


@pytest.mark.slow
def test_a_scope_brings_what_is_made_in_it_later(node: dcpstream_node.Node, reader: Reader) -> None:
    orders = fill(node, "shop.orders")
    fill(node, "_default._default", "other")
    follower = Follower()
    made: set[str] = set()

    def until() -> bool:
        if not made and len(follower.documents) == DOCUMENTS:
            node.set_collections("default", {"shop": ["orders", "late"]})
            made.update(fill(node, "shop.late", "late"))
        return len(follower.documents) == 2 * DOCUMENTS

    reader.follow(follower, until, collections=["shop.*"])
    assert follower.keys == {"shop.orders": orders, "shop.late": made}


@pytest.mark.slow
def test_a_name_that_is_new_to_the_filter_brings_all_that_it_has(
    node: dcpstream_node.Node, reader: Reader, store: Callable[[], OffsetStore]
) -> None:
    orders, returns = fill(node, "shop.orders"), fill(node, "shop.returns")
    others = fill(node, "_default._default", "other")
    follower = Follower()
    reader.follow(follower, end="latest", store=store(), collections=["shop.orders"])
    assert follower.keys == {"shop.orders": orders}
    reader.follow(follower, end="latest", store=store(), collections=["shop.orders", "shop.returns"])
    assert follower.keys == {"shop.orders": orders, "shop.returns": returns}
    reader.follow(follower, end="latest", store=store())
    assert follower.keys == {"shop.orders": orders, "shop.returns": returns, "_default._default": others}


@pytest.mark.slow
def test_when_all_is_gone_a_read_up_to_now_reports_that_and_ends(
    node: dcpstream_node.Node, reader: Reader, store: Callable[[], OffsetStore]
) -> None:
    fill(node, "shop.returns")
    follower = Follower()
    reader.follow(follower, end="latest", store=store(), collections=["shop.returns"])
    node.set_collections("default", {"shop": ["orders"]})
    reader.follow(follower, end="latest", store=store(), collections=["shop.returns"])
    assert follower.keys == {}
    assert follower.told(Op.COLLECTION_DROPPED, "shop.returns") == ALL


def test_a_name_that_never_was_is_a_mistake(node: dcpstream_node.Node, reader: Reader) -> None:
    with pytest.raises(ConfigError, match=r"no collection shop\.order\..*shop\.orders"):
        reader.follow(Follower(), end="latest", collections=["shop.order"])


@pytest.mark.slow
def test_a_reconnect_goes_on_with_the_survivors(node: dcpstream_node.Node) -> None:
    fill(node, "shop.returns")
    orders = fill(node, "shop.orders")
    follower, names = Follower(), ["shop.orders", "shop.returns"]
    with (
        Proxy(node.port) as proxy,
        Client(proxy.connection_string, **LOGIN) as client,
        contextlib.closing(client.changes(StreamOptions(collections=names))) as changes,
    ):
        for change in changes:
            follower.take(change)
            if len(follower.documents) == 2 * DOCUMENTS:
                break
        proxy.cut()
        node.set_collections("default", {"shop": ["orders"]})
        more = fill(node, "shop.orders", "more")
        for change in changes:
            follower.take(change)
            if follower.keys == {"shop.orders": orders | more}:
                break


def test_arrow_batches_have_control_rows_and_events(node: dcpstream_node.Node) -> None:
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    fill(node, "shop.returns")
    node.set_collections("default", {"shop": ["orders"]})
    with Client(node.connection_string, **LOGIN) as client:
        batches = list(client.stream(StreamOptions(end="latest", value_format="string")))
    told = [batch for batch in batches if batch.events]
    rows = [row for batch in told for row in batch.record_batch.to_pylist()]
    assert [(row["op"], row["vbucket"], row["seqno"]) for row in rows] == [
        (event.op.value, event.vbid, event.seqno) for batch in told for event in batch.events
    ]
    created = next(row for row in rows if row["op"] == "collection_created")
    assert (created["scope"], created["collection"], created["key"]) == ("shop", "orders", None)
    assert json.loads(created["value"])["collection_id"] == 8
    assert all(batch.rollback is None and batch.offsets for batch in told)


@pytest.mark.slow
def test_planned_ranges_have_events_up_to_their_end(node: dcpstream_node.Node) -> None:
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    fill(node, "shop.returns")
    node.set_collections("default", {"shop": ["orders"]})
    with BucketReader(node.connection_string, **LOGIN) as cluster:
        high = cluster.high_seqnos()[0]
        events = [
            event
            for end in range(1, high + 1)
            for item in cluster.read_ranges([VbucketRange(0, StreamOffset.ZERO, end)])
            if isinstance(item, CollectionEvents)
            for event in item.events
            if event.seqno == end
        ]
    assert [event.op for event in events][-1] is Op.COLLECTION_DROPPED
    assert all(event.offset.seqno == event.seqno for event in events)


@pytest.mark.parametrize("names", [None, ["shop.orders", "shop.returns"], ["shop"]])
@pytest.mark.parametrize("purge_gap", ["ignore", "reconcile"])
def test_an_end_that_was_purged_is_reported_all_the_same(
    node: dcpstream_node.Node, store: Callable[[], OffsetStore], names: list[str] | None, purge_gap: str
) -> None:
    reader = Reader("blocking", node.connection_string)
    follower = Follower()
    fill(node, "shop.returns")
    orders = fill(node, "shop.orders")
    options: dict[str, Any] = {"end": "latest", "store": store(), "collections": names}
    reader.follow(follower, **options)
    node.set_collections("default", {"shop": ["orders"]})
    # The last row of a vbucket, and the newest event of its collections, are never purged.
    node.set_collections("default", {"shop": ["orders", "late"]})
    others = fill(node, "_default._default", "other")
    with SocketPeer(node.port).open() as peer:
        for vbid in ALL:
            drop_deletes = struct.pack(">QQBBHL", 0, 0, 1, 0, 0, 0)
            peer.succeed(Opcode.COMPACT_DB, vbid=vbid, extras=drop_deletes)
    assert node.engine is not None
    assert all(node.engine.buckets["default"].store.vbuckets[vbid].purge_seqno for vbid in ALL)
    follower.take = taking_back(follower)  # type: ignore[assignment]
    reader.follow(follower, on_rollback="rewind", purge_gap=purge_gap, **options)
    wanted = {"shop.orders": orders} | ({} if names else {"_default._default": others})
    assert follower.keys == wanted


def taking_back(follower: Follower) -> Callable[[Change], None]:
    """A consumer that carries out rollbacks, too."""
    take = follower.take

    def taken(change: Change) -> None:
        if change.op == Op.ROLLBACK:
            gone = [key for key, seqno in follower.documents.items() if key[0] == change.vbid and seqno > change.seqno]
            for key in gone:
                del follower.documents[key]
        else:
            take(change)

    return taken
