"""The source against a real node whose scopes and collections come and go, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError
from dcpstream.model import Op
from dcpstream_spark.data_source import DcpDataSource, DcpStreamReader
from tests.kit.spark import Stream, access

pytestmark = pytest.mark.usefixtures("closes_connections")

VBUCKETS = 4
DOCUMENTS = 20
ALL = list(range(VBUCKETS))


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS) as node:
        node.set_collections("default", {"shop": ["orders", "returns"]})
        yield node


def fill(node: dcpstream_node.Node, path: str, prefix: str = "doc") -> set[str]:
    keys = {f"{prefix} {number}" for number in range(DOCUMENTS)}
    login: dict[str, Any] = {"username": "Administrator", "password": "password"}
    with KvClient(node.connection_string, **login, collection=path) as kv:
        kv.set_many((key, "1") for key in keys)
    return keys


class Table:
    """Documents as a sink keeps them, by the rules of the reference."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str, str, str], int] = {}
        self.told: list[tuple[str, str, int]] = []

    def take(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            place = (row["vbucket"], row["scope"], row["collection"])
            op = Op(row["op"])
            if op.is_control:
                self.told.append((op.value, f"{row['scope']}.{row['collection']}", row["vbucket"]))
            if op.empties_collection:
                self.rows = {k: seqno for k, seqno in self.rows.items() if k[:3] != place or seqno > row["seqno"]}
            elif op is Op.MUTATION:
                assert (*place, row["key"]) not in self.rows, "a row came twice"
                self.rows[*place, row["key"]] = row["seqno"]

    @property
    def keys(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for _, scope, collection, key in self.rows:
            found.setdefault(f"{scope}.{collection}", set()).add(key)
        return found

    def dropped(self, name: str) -> list[int]:
        return sorted(vbid for op, about, vbid in self.told if (op, about) == ("collection_dropped", name))


class Query(Stream):
    """A query that writes a table."""

    def __init__(self, node: dcpstream_node.Node, **options: Any) -> None:
        super().__init__(node, **options)
        self.node, self.options, self.table = node, options, Table()

    def run(self) -> Table:
        self.table.take(self.step())
        return self.table

    def restart(self) -> None:
        """A new reader that knows only the last offset."""
        source = DcpDataSource(access(self.node, startingOffsets="earliest", **self.options))
        reader = source.streamReader(source.schema())
        assert isinstance(reader, DcpStreamReader)
        self.running.append(reader)
        self.reader = reader


@pytest.mark.parametrize("names", ["shop.orders,shop.returns", "shop", ""])
def test_a_dropped_collection_leaves_the_table_and_the_others_go_on(node: dcpstream_node.Node, names: str) -> None:
    orders, _ = fill(node, "shop.orders"), fill(node, "shop.returns")
    query = Query(node, **({"collections": names} if names else {}))
    assert set(query.run().keys) == {"shop.orders", "shop.returns"}
    node.set_collections("default", {"shop": ["orders"]})
    query.restart()
    assert query.run().keys == {"shop.orders": orders}
    assert query.table.dropped("shop.returns") == ALL
    more = fill(node, "shop.orders", "more")
    assert query.run().keys == {"shop.orders": orders | more}
    assert query.table.dropped("shop.returns") == ALL, "reported once"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_one_that_is_recreated_is_followed(node: dcpstream_node.Node, is_restarted: bool) -> None:
    fill(node, "shop.returns", "old")
    query = Query(node, collections="shop.orders,shop.returns")
    query.run()
    node.set_collections("default", {"shop": ["orders"]})
    orders = fill(node, "shop.orders")
    assert query.run().keys == {"shop.orders": orders}
    node.set_collections("default", {"shop": ["orders", "returns"]})
    new = fill(node, "shop.returns", "new")
    if is_restarted:
        query.restart()
    assert query.run().keys == {"shop.orders": orders, "shop.returns": new}


def test_a_collection_dropped_between_planning_and_reading(node: dcpstream_node.Node) -> None:
    fill(node, "shop.returns", "old")
    orders = fill(node, "shop.orders")
    query = Query(node, collections="shop.orders,shop.returns")
    query.run()
    more = fill(node, "shop.orders", "more")
    end = query.plan()
    node.set_collections("default", {"shop": ["orders"]})
    node.set_collections("default", {"shop": ["orders", "returns"]})
    new = fill(node, "shop.returns", "new")
    query.table.take(query.read(end))
    query.at = end
    assert query.run().keys == {"shop.orders": orders | more, "shop.returns": new}


def test_a_batch_limit_leaves_some_vbuckets_for_later(node: dcpstream_node.Node) -> None:
    fill(node, "shop.returns")
    orders = fill(node, "shop.orders")
    query = Query(node, collections="shop.orders,shop.returns", maxOffsetsPerTrigger="7")
    while query.plan() != query.at:
        query.run()
    node.set_collections("default", {"shop": ["orders"]})
    while query.plan() != query.at:
        query.run()
    assert query.table.keys == {"shop.orders": orders}
    assert set(query.table.dropped("shop.returns")) == set(ALL)


def test_names_that_never_were_are_a_mistake(node: dcpstream_node.Node) -> None:
    with pytest.raises(ConfigError, match=r"no collection shop\.order\."):
        Query(node, collections="shop.order").run()


def test_a_batch_read_reports_control_rows(node: dcpstream_node.Node) -> None:
    orders = fill(node, "shop.orders")
    source = DcpDataSource(access(node, collections="shop"))
    reader = source.reader(source.schema())
    rows = [row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()]
    created = [row for row in rows if row["op"] == "collection_created"]
    assert sorted((row["vbucket"], row["collection"]) for row in created) == [
        (vbid, name) for vbid in ALL for name in ("orders", "returns")
    ]
    assert all(row["key"] is None and row["_change_type"] is None for row in created)
    assert {row["key"] for row in rows if row["op"] == "mutation"} == orders


def test_offsets_name_the_collections_that_were_read(node: dcpstream_node.Node) -> None:
    fill(node, "shop.orders")
    query = Query(node, collections="shop.orders")
    end = query.plan()
    assert node.engine is not None
    orders = f"{node.engine.buckets['default'].manifest.resolve('shop.orders').collection_id:x}"
    assert (end["names"], end["sets"]) == ({"shop": {orders: "orders"}}, [orders])
    assert query.plan() == end, "the same text each time"
    assert json.loads(json.dumps(end)) == end
