"""A bucket that was flushed, or deleted and created again, under a query. The reader is driven without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import dcpstream_node
from dcpstream.errors import BucketReset
from dcpstream_spark.data_source import PlainStreamReader
from dcpstream_spark.options import SourceOptions
from tests.kit.spark import Stream, access, kv_of, rows_of

pytestmark = pytest.mark.usefixtures("closes_connections")

VBUCKETS = 8


def recreate(vbuckets: int) -> Callable[[dcpstream_node.Node], None]:
    def change(node: dcpstream_node.Node) -> None:
        node.drop_bucket("default")
        node.create_bucket("default", vbuckets=vbuckets)

    return change


def flush(node: dcpstream_node.Node) -> None:
    node.flush_bucket("default")


RESETS = {
    "flushed": flush,
    "created again": recreate(VBUCKETS),
    "with fewer vbuckets": recreate(4),
    "with more vbuckets": recreate(16),
}


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as node:
        yield node


class Table:
    """The rows that no rollback has voided."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], str] = {}
        self.rollbacks = 0

    def read(self, stream: Stream) -> None:
        self.take(stream.step())

    def take(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            if row["op"] == "rollback":
                self.rollbacks += 1
                self.rows = {
                    at: key for at, key in self.rows.items() if at[0] != row["vbucket"] or at[1] <= row["seqno"]
                }
            else:
                assert (row["vbucket"], row["seqno"]) not in self.rows
                self.rows[row["vbucket"], row["seqno"]] = row["key"]


def write(node: dcpstream_node.Node, prefix: str, count: int) -> list[str]:
    names = [f"{prefix}{number}" for number in range(count)]
    with kv_of(node) as kv:
        kv.set_many((name, b"1") for name in names)
    return sorted(names)


def begun(node: dcpstream_node.Node, **options: str) -> tuple[Stream, Table]:
    write(node, "old", 40)
    stream, table = Stream(node, onRollback="rewindAndMark", **options), Table()
    table.read(stream)
    assert len(table.rows) == 40
    assert len({vbid for vbid, _ in table.rows}) == VBUCKETS
    return stream, table


def follow(stream: Stream, table: Table) -> None:
    stream.reader._coordinator._observed_all = None
    while stream.plan() != stream.at:
        table.read(stream)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("reset", RESETS)
def test_a_reset_is_found_by_name(node: dcpstream_node.Node, reset: str, is_restarted: bool) -> None:
    stream, table = begun(node)
    RESETS[reset](node)
    write(node, "new", 10)
    stream.reader._coordinator._observed_all = None
    if is_restarted:
        at = stream.at
        stream = Stream(node, onRollback="rewindAndMark")
        stream.at = at
    named = r"was flushed" if reset == "flushed" else r"was deleted and created again \(its uuid was"
    with pytest.raises(BucketReset, match=rf"Bucket 'default' {named}.*onBucketReset=rebuild"):
        table.read(stream)
    with pytest.raises(BucketReset, match="onBucketReset=rebuild"):
        table.read(stream)


@pytest.mark.parametrize("limit", [pytest.param("1000", marks=pytest.mark.slow), "3"])
@pytest.mark.parametrize("is_empty", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reset", RESETS)
def test_a_rebuild_takes_back_everything_and_reads_again(
    node: dcpstream_node.Node, reset: str, is_empty: bool, limit: str
) -> None:
    stream, table = begun(node, onBucketReset="rebuild")
    at = stream.at
    stream = Stream(node, onRollback="rewindAndMark", onBucketReset="rebuild", maxOffsetsPerTrigger=limit)
    stream.at = at
    RESETS[reset](node)
    names = [] if is_empty else write(node, "new", 10)
    end = stream.plan()
    stream.read(end)
    # The batch is repeated by another process.
    again = Stream(node, onRollback="rewindAndMark", onBucketReset="rebuild", maxOffsetsPerTrigger=limit)
    again.at = at
    again.plan = lambda: end
    table.read(again)
    assert table.rollbacks == VBUCKETS
    assert set(table.rows.values()) <= set(names), "the old rows are gone, in vbuckets that are gone, too"
    stream.at = end
    follow(stream, table)
    assert sorted(table.rows.values()) == names
    names += write(node, "more", 10)
    follow(stream, table)
    assert sorted(table.rows.values()) == sorted(names)
    assert table.rollbacks == VBUCKETS


@pytest.mark.parametrize("reset", RESETS)
def test_a_reset_between_planning_and_reading(node: dcpstream_node.Node, reset: str) -> None:
    stream, table = begun(node, onBucketReset="rebuild")
    write(node, "planned", 10)
    end = stream.plan()
    RESETS[reset](node)
    names = write(node, "new", 10)
    original, stream.plan = stream.plan, lambda: end
    table.read(stream)
    stream.plan = original
    follow(stream, table)
    assert sorted(table.rows.values()) == names


def test_a_task_of_a_plan_for_another_bucket_fails_by_name(node: dcpstream_node.Node) -> None:
    stream, _ = begun(node)
    write(node, "planned", 10)
    end = stream.plan()
    recreate(4)(node)
    with pytest.raises(BucketReset, match=r"was deleted and created again.*onBucketReset=rebuild"):
        stream.read(end)


@pytest.mark.parametrize("policy", ["fail", "rebuild"])
def test_older_sparks_plan_without_a_look_at_the_start(node: dcpstream_node.Node, policy: str) -> None:
    stream, table = begun(node)
    recreate(4)(node)
    names = write(node, "new", 10)
    options = access(node, onRollback="rewindAndMark", onBucketReset=policy)
    reader = PlainStreamReader(SourceOptions.parse(options))
    end = reader.latestOffset()
    if policy == "fail":
        with pytest.raises(BucketReset, match="onBucketReset=rebuild"):
            reader.partitions(stream.at, end)
    else:
        table.take(row for part in reader.partitions(stream.at, end) for row in rows_of(reader.read(part)))
        assert (sorted(table.rows.values()), table.rollbacks) == (names, VBUCKETS)
    reader.stop()


def test_a_checkpoint_without_a_uuid_learns_it(node: dcpstream_node.Node) -> None:
    stream, table = begun(node)
    uuid = stream.at.pop("uuid")
    write(node, "new", 10)
    table.read(stream)
    assert len(table.rows) == 50
    assert stream.at["uuid"] == uuid


def test_a_lost_history_of_one_vbucket_is_a_rollback() -> None:
    with dcpstream_node.Node(vbuckets=1, system_scope=False) as node:
        write(node, "old", 5)
        stream, table = Stream(node, onRollback="rewindAndMark"), Table()
        table.read(stream)
        node.flush_bucket("default")
        names = write(node, "new", 3)
        follow(stream, table)
        assert sorted(table.rows.values()) == names
