"""A micro-batch that Spark repeats: from the nodes again, or from the files of its first attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dcpstream_node
from dcpstream.errors import ConfigError
from dcpstream_spark.options import SourceOptions
from tests.kit.spark import Stream, access, kv_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VBUCKETS = 8


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as node:
        yield node


def write(node: dcpstream_node.Node, value: bytes, count: int = 40) -> None:
    with kv_of(node) as kv:
        kv.set_many((f"k{number}", value) for number in range(count))


def rows(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["vbucket"], row["seqno"], row["key"], row["value"], row["_commit_timestamp"]) for row in found)


@pytest.mark.usefixtures("closes_connections")
def test_a_replay_from_the_spool_has_the_very_same_rows(node: dcpstream_node.Node, tmp_path: Path) -> None:
    plain, spooled = Stream(node), Stream(node, replay="spool", spoolDirectory=str(tmp_path))
    write(node, b"1")
    ends = plain.plan(), spooled.plan()
    first = rows(plain.read(ends[0])), rows(spooled.read(ends[1]))
    assert first[0] == first[1]
    assert len(first[0]) == 40
    write(node, b"2", count=30)
    # Another process repeats the batch, with other tasks.
    again = Stream(node), Stream(node, replay="spool", spoolDirectory=str(tmp_path), numPartitions="1")
    assert len(rows(again[0].read(ends[0]))) == 10, "the others were superseded"
    assert rows(again[1].read(ends[1])) == first[1]
    # The spool holds one batch.
    spooled.at = ends[1]
    then = spooled.plan()
    assert len(spooled.read(then)) == 30
    assert len(list(tmp_path.iterdir())) == 1
    spooled.reader.commit(then)
    assert not list(tmp_path.iterdir())


def test_the_spool_needs_a_directory(node: dcpstream_node.Node) -> None:
    for given, told in (
        ({"replay": "spool"}, "Give spoolDirectory"),
        ({"spoolDirectory": "/spool"}, "without replay=spool"),
    ):
        with pytest.raises(ConfigError, match=told):
            SourceOptions.parse(access(node, **given))
    with pytest.raises(ConfigError, match="an absolute path"):
        SourceOptions.parse(access(node, replay="spool", spoolDirectory="spool"))
    with pytest.raises(ConfigError, match="a URL that Arrow can open"):
        SourceOptions.parse(access(node, replay="spool", spoolDirectory="ftp://host/spool"))


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_that_fails_in_its_sink_gets_the_same_rows_again(
    spark: SparkSession, node: dcpstream_node.Node, tmp_path: Path
) -> None:
    given: list[list[tuple[Any, ...]]] = []

    def sink(frame: DataFrame, _: int) -> None:
        given.append(rows([row.asDict() for row in frame.collect()]))
        if len(given) == 1:
            write(node, b"2", count=30)
            raise RuntimeError("the sink fails")

    def run() -> None:
        options = access(node, startingOffsets="earliest", replay="spool", spoolDirectory=str(tmp_path / "spool"))
        frame = spark.readStream.format("dcp").options(**options).load()
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    write(node, b"1")
    with pytest.raises(Exception, match="the sink fails"):
        run()
    run()
    assert [len(found) for found in given] == [40, 40, 30]
    assert given[0] == given[1]
