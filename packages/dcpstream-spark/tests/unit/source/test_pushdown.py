"""Filters in the source: by the option `where`, and as Spark pushes them down."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

import dcpstream_node
from dcpstream.arrow import Comparison
from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError
from dcpstream.model import Op
from dcpstream_node.summary import summarize_bucket
from dcpstream_spark import pool
from dcpstream_spark.data_source import PUSHDOWN_WORKER, DcpBatchReader, DcpDataSource, PushdownReader
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.source.reading import DcpPartition
from dcpstream_spark.where import parse_where
from tests.kit.comparing import all_true
from tests.kit.spark import Stream, access, kv_of, rows_of

pytestmark = pytest.mark.usefixtures("closes_connections")

VBUCKETS = 8


def fill(node: dcpstream_node.Node) -> None:
    node.set_collections("default", {"shop": ["orders", "returns"]})
    node.set_collections("default", {"shop": ["orders", "returns"], "old": ["gone"]})
    node.set_collections("default", {"shop": ["orders"]})
    node.set_collections("default", {"shop": ["orders", "returns"]})
    with kv_of(node) as kv:
        kv.set_many((f"cart:{n}", b"[]") for n in range(40, 60))
        kv.set_many((f"{kind}:{n}", b"{}") for kind in ("user", "cart") for n in range(60))
        kv.delete_many([f"user:{n}" for n in range(0, 60, 7)])
    login: dict[str, Any] = {"username": "Administrator", "password": "password"}
    for path in ("shop.orders", "shop.returns"):
        with KvClient(node.connection_string, **login, collection=path) as kv:
            kv.set_many((f"user:{n}", b"1") for n in range(30))


@pytest.fixture(scope="module")
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS) as node:
        fill(node)
        yield node


def read(reader: Any) -> list[dict[str, Any]]:
    rows = []
    for partition in reader.partitions():
        copy, task = pickle.loads(pickle.dumps((reader, partition)))
        rows += rows_of(copy.read(task))
    for row in rows:
        if Op(row["op"]).is_control:
            row["_commit_timestamp"] = None  # the time of the read
    return sorted(rows, key=lambda row: (row["vbucket"], row["seqno"], row["op"]))


def batch(node: dcpstream_node.Node, **options: str) -> list[dict[str, Any]]:
    source = DcpDataSource(access(node, **options))
    return read(source.reader(source.schema()))


def test_where_reads_only_the_vbuckets_it_needs(node: dcpstream_node.Node) -> None:
    reader = DcpBatchReader(SourceOptions.parse(access(node, where="vbucket in (3, 5, 900)")))
    planned = [task.ranges for task in reader.partitions() if isinstance(task, DcpPartition)]
    assert sorted(one.range.vbid for one in itertools.chain(*planned)) == [3, 5]
    assert read(reader) == [row for row in batch(node) if row["vbucket"] in {3, 5}]


@pytest.mark.parametrize(
    "where",
    [
        "startswith(key, 'user:')",
        "seqno > 10 and seqno <= 20",
        "op = 'deletion'",
        "collection = 'orders'",
        "scope = '_default' and collection = '_default' and _change_type = 'insert'",
        "key = 'user:3' and vbucket >= 0",
        "seqno > 100000",
        "expiry is not null",
    ],
)
def test_where_is_a_full_read_that_is_filtered_afterwards(node: dcpstream_node.Node, where: str) -> None:
    """A control row stays unless its `op`, `vbucket`, `scope` or `collection` is another one."""
    comparisons = parse_where(where).comparisons

    def stays(row: dict[str, Any]) -> bool:
        if not Op(row["op"]).is_control:
            return all_true(comparisons, row)
        deciding = [one for one in comparisons if one.column in {"op", "scope", "collection", "vbucket"}]
        return all_true([one for one in deciding if row[one.column] is not None], row)

    expected = [row for row in batch(node) if stays(row)]
    assert batch(node, where=where) == expected


def test_columns_that_are_compared_need_not_be_read(node: dcpstream_node.Node) -> None:
    reader = DcpBatchReader(SourceOptions.parse(access(node, where="op = 'deletion'", columns="key")))
    rows = [row for task in reader.partitions() for row in rows_of(reader.read(task))]
    assert sorted(row["key"] for row in rows) == sorted(f"user:{n}" for n in range(0, 60, 7))


def test_one_collection_is_filtered_by_the_node(node: dcpstream_node.Node) -> None:
    options = SourceOptions.parse(access(node, where="scope = 'shop' and collection = 'orders'"))
    assert options.collections == ("shop.orders",)
    documents = [row for row in batch(node, where="scope = 'shop' and collection = 'orders'") if row["key"]]
    assert documents == [row for row in batch(node) if row["collection"] == "orders" and row["key"]]
    with pytest.raises(ConfigError, match=r"shop\.nothing"):
        batch(node, where="scope = 'shop' and collection = 'nothing'")


def test_a_stream_leaves_other_vbuckets_where_they_are() -> None:
    """A query that drops its filter later reads them from there: nothing is lost."""
    with dcpstream_node.Node(vbuckets=VBUCKETS) as node:
        fill(node)
        everything = {(row["vbucket"], row["seqno"]) for row in batch(node)}
        stream = Stream(node, where="vbucket < 3", maxOffsetsPerTrigger="20")
        some: list[dict[str, Any]] = []
        while rows := stream.step():
            assert len(rows) <= 20
            some += rows
        assert {(row["vbucket"], row["seqno"]) for row in some} == {one for one in everything if one[0] < 3}
        at = stream.at
        stream = Stream(node)
        stream.at = at
        others = stream.step()
        assert {(row["vbucket"], row["seqno"]) for row in others} == {one for one in everything if one[0] >= 3}


def test_rows_that_are_left_out_do_not_come_later(node: dcpstream_node.Node) -> None:
    stream = Stream(
        node, where="startswith(key, 'cart:') and op = 'mutation'", maxBatchRows="7", maxOffsetsPerTrigger="50"
    )
    keys = []
    while (end := stream.plan()) != stream.at:
        keys += [row["key"] for row in stream.read(end)]
        stream.at = end
    assert sorted(keys) == sorted(f"cart:{n}" for n in range(60))


def items_sent(node: dcpstream_node.Node) -> int:
    """Rows that the node has sent to connections that are still open: those of tasks, which are kept."""
    return sum(one.items_sent for one in summarize_bucket(node._bucket("default")).dcp)


class TestPushFilters:
    @pytest.fixture(autouse=True)
    def api(self) -> Any:
        import pyspark.sql.datasource as api

        if not hasattr(api, "EqualTo"):
            pytest.skip("this Spark pushes no filters")
        return api

    def test_only_the_worker_that_pushes_filters_gets_such_a_reader(
        self, node: dcpstream_node.Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Spark refuses a reader with pushFilters while its setting is off."""
        source = DcpDataSource(access(node))
        assert type(source.reader(source.schema())) is DcpBatchReader
        monkeypatch.setitem(sys.modules, PUSHDOWN_WORKER, ModuleType(PUSHDOWN_WORKER))
        assert type(source.reader(source.schema())) is PushdownReader

    def test_that_worker_is_where_we_look_for_it(self) -> None:
        import importlib.util

        assert importlib.util.find_spec(PUSHDOWN_WORKER) is not None

    def test_filters_that_are_not_taken_are_left_to_spark(self, node: dcpstream_node.Node, api: Any) -> None:
        schema = StructType([StructField("key", StringType()), StructField("name", StringType())])
        from dcpstream_spark.source.schema import Layout

        options = SourceOptions.parse(access(node))
        reader = PushdownReader(options, Layout(schema, options))
        left = [api.EqualTo(("name",), "x"), api.StringEndsWith(("key",), "9"), api.EqualTo(("seqno",), 9)]
        assert list(reader.pushFilters([left[0], api.EqualTo(("key",), "user:9"), left[1], left[2]])) == left
        rows = [row for task in reader.partitions() for row in rows_of(reader.read(task))]
        assert [row["key"] for row in rows] == ["user:9"] * 3

    def test_it_joins_the_option(self, node: dcpstream_node.Node, api: Any) -> None:
        reader = PushdownReader(SourceOptions.parse(access(node, where="startswith(key, 'user:')")))
        assert list(reader.pushFilters([api.EqualTo(("vbucket",), 2), api.IsNotNull(("key",))])) == []
        expected = [row for row in batch(node) if row["vbucket"] == 2 and row["key"] and row["key"].startswith("user:")]
        assert read(reader) == expected
        assert expected

    @pytest.mark.parametrize(
        ("filters", "share"),
        [
            ([("EqualTo", "collection", "orders")], 0.25),
            ([("EqualTo", "scope", "shop"), ("EqualTo", "op", "mutation")], 0.45),
            ([("In", "collection", ("orders", "nothing")), ("EqualTo", "vbucket", 3)], 0.05),
            ([("LessThanOrEqual", "seqno", 0)], 0.0),
            ([("EqualTo", "collection", "nothing")], 0.0),
            ([("EqualTo", "vbucket", 700)], 0.0),
        ],
    )
    def test_the_node_sends_less(
        self, node: dcpstream_node.Node, api: Any, filters: list[tuple[str, str, Any]], share: float
    ) -> None:
        whole = batch(node)
        reader = PushdownReader(SourceOptions.parse(access(node)))
        assert list(reader.pushFilters([getattr(api, kind)((column,), value) for kind, column, value in filters])) == []
        pool.close_all()
        rows = read(reader)
        sent = items_sent(node)
        assert len(rows) <= sent <= share * len(whole)
        pool.close_all()
        signs: dict[str, Any] = {"EqualTo": "=", "In": "in", "LessThanOrEqual": "<=", "LessThan": "<"}
        comparisons = [Comparison(column, signs.get(kind, ">"), value) for kind, column, value in filters]
        assert rows == [row for row in whole if all_true(comparisons, row)]

    def test_the_node_stops_at_the_last_seqno(self, api: Any) -> None:
        """It may have sent a window in vain by then."""
        with dcpstream_node.Node(vbuckets=2) as node:
            with kv_of(node) as kv:
                kv.set_many((f"k{n}", b"x" * 1000) for n in range(4_000))
            reader = PushdownReader(SourceOptions.parse(access(node)))
            filters = [api.LessThan(("seqno",), 101), api.GreaterThan(("seqno",), 90), api.EqualTo(("vbucket",), 1)]
            assert list(reader.pushFilters(filters)) == []
            pool.close_all()
            assert [(row["vbucket"], row["seqno"]) for row in read(reader)] == [(1, n) for n in range(91, 101)]
            assert items_sent(node) <= 500
            pool.close_all()

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
    @given(data=st.data())
    def test_a_filtered_read_is_a_full_read_that_is_filtered_afterwards(
        self, node: dcpstream_node.Node, api: Any, data: st.DataObject
    ) -> None:
        """For all rows, control rows included."""
        everything = batch(node)
        columns = ["key", "vbucket", "seqno", "op", "collection", "scope", "_change_type", "rev", "collection", "seqno"]
        kinds = [api.EqualTo, api.GreaterThan, api.GreaterThanOrEqual, api.LessThan, api.LessThanOrEqual, api.In]
        filters, comparisons = [], []
        signs: dict[Any, Any] = dict(zip(kinds, ["=", ">", ">=", "<", "<=", "in"], strict=True))
        for _ in range(data.draw(st.integers(1, 3))):
            column = data.draw(st.sampled_from(columns))
            values = st.sampled_from(sorted({row[column] for row in everything} - {None}))
            kind = data.draw(st.sampled_from(kinds))
            value = data.draw(st.lists(values, min_size=1, max_size=3) if kind is api.In else values)
            filters.append(kind((column,), value))
            comparisons.append(Comparison(column, signs[kind], tuple(value) if kind is api.In else value))
        reader = PushdownReader(SourceOptions.parse(access(node)))
        assert list(reader.pushFilters(filters)) == []
        assert read(reader) == [row for row in everything if all_true(comparisons, row)]
