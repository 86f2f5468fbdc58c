"""Deletions that were purged before they were read, and changes that a failover may lose. Driven without Spark."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError, ConnectTimeout, HistoryPurged
from dcpstream.wire import Opcode, encode_request
from dcpstream_spark.data_source import DcpBatchReader, DcpDataSource
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.source.task_notes import DIRECTORY, TaskNotes
from tests.kit.spark import Stream, access, kv_of, rows_of

pytestmark = pytest.mark.usefixtures("closes_connections")

NEVER_S = 3600.0


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=2, system_scope=False) as node:
        yield node


def purge(kv: KvClient, vbuckets: int = 2) -> None:
    """COMPACT_DB with drop_deletes: the deletions are forgotten."""
    for vbid in range(vbuckets):
        kv._pool.any().ask(encode_request(Opcode.COMPACT_DB, vbid=vbid, extras=struct.pack(">QQB7x", 0, 0, 1)))


def keys_of(rows: list[dict[str, Any]], held: set[str] | None = None) -> set[str]:
    """The documents of one who applies the rows; the vbucket of a key follows from its rows."""
    places: dict[str, int] = {}
    state = set(held or ())
    for row in rows:
        if row["op"] == "rollback":
            assert row["seqno"] == 0, "the vbucket begins anew"
            state = {key for key in state if places.get(key, row["vbucket"]) != row["vbucket"]}
        else:
            places[row["key"]] = row["vbucket"]
            state.discard(row["key"])
            if row["_change_type"] != "delete":
                state.add(row["key"])
    return state


def with_a_gap(node: dcpstream_node.Node, stream: Stream) -> list[dict[str, Any]]:
    """The rows that the stream read before 5 of 20 documents were deleted and the deletions purged."""
    with kv_of(node) as kv:
        kv.set_many((f"k{number}", b"1") for number in range(20))
        rows = stream.step()
        kv.delete_many(f"k{number}" for number in range(5))
        kv.set_many((f"new{number}", b"1") for number in range(4))
        purge(kv)
    return rows


EXPECTED = {*(f"k{number}" for number in range(5, 20)), *(f"new{number}" for number in range(4))}
DELETED = {f"k{number}" for number in range(5)}


@pytest.mark.parametrize("options", [{"purgeGap": "reconcile"}, {}])
def test_a_stream_reconciles_a_gap_by_reading_again(node: dcpstream_node.Node, options: dict[str, str]) -> None:
    stream = Stream(node, onRollback="rewindAndMark", **options)
    rows = with_a_gap(node, stream)
    rows += stream.step()
    assert keys_of(rows) == EXPECTED, "also without the deletions that nobody can read any more"
    assert stream.plan()["vbuckets"] is not None
    with kv_of(node) as kv:
        kv.delete("k7")
    rows += stream.step()
    assert keys_of(rows) == EXPECTED - {"k7"}
    assert sum(row["op"] == "rollback" for row in rows) == 2, "once in each vbucket"


@pytest.mark.parametrize("options", [{}, {"onRollback": "rewindAndMark", "purgeGap": "fail"}])
def test_a_gap_is_an_error(node: dcpstream_node.Node, options: dict[str, str]) -> None:
    stream = Stream(node, **options)
    with_a_gap(node, stream)
    with pytest.raises(HistoryPurged, match="were purged before they were read"):
        stream.step()


def test_a_gap_can_be_ignored(node: dcpstream_node.Node, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(node, purgeGap="ignore")
    rows = with_a_gap(node, stream)
    rows += stream.step()
    assert keys_of(rows) == EXPECTED | DELETED, "what was deleted stays"
    assert "were purged before they were read" in caplog.text


def notes_in(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in (checkpoint / DIRECTORY).glob("*"))


def test_a_restarted_stream_finds_a_gap_while_planning(node: dcpstream_node.Node, tmp_path: Path) -> None:
    """Such a rollback is in the logged offset, so that no recorded position below it is used again."""
    options = {"onRollback": "rewindAndMark", "checkpointLocation": str(tmp_path)}
    stream = Stream(node, **options)
    rows = with_a_gap(node, stream)
    again = Stream(node, **options)
    again.at = stream.at
    rows += again.step()
    assert keys_of(rows) == EXPECTED
    assert notes_in(tmp_path) == []


def test_a_task_leaves_a_note_of_a_gap_that_no_plan_knows(node: dcpstream_node.Node, tmp_path: Path) -> None:
    stream = Stream(node, onRollback="rewindAndMark", checkpointLocation=str(tmp_path))
    with kv_of(node) as kv:
        kv.set_many((f"k{number}", b"1") for number in range(20))
        rows = stream.step()
        starts = {row["vbucket"]: max(one["seqno"] for one in rows if one["vbucket"] == row["vbucket"]) for row in rows}
        kv.delete_many(f"k{number}" for number in range(5))
        kv.set_many((f"new{number}", b"1") for number in range(4))
        end = stream.plan()
        purge(kv)
    rows += stream.read(end)
    assert keys_of(rows) == EXPECTED
    assert notes_in(tmp_path) == sorted(f"{vbid}-{seqno}" for vbid, seqno in starts.items())
    assert TaskNotes(str(tmp_path)).starts_left() == starts


def batch_from(node: dcpstream_node.Node, at: dict[str, Any], **options: str) -> list[dict[str, Any]]:
    reader = DcpBatchReader(SourceOptions.parse(access(node, startingOffsets=json.dumps(at), **options)))
    return [row for part in reader.partitions() for row in rows_of(reader.read(part))]


def test_a_batch_reconciles_a_gap_by_reading_again(node: dcpstream_node.Node) -> None:
    stream = Stream(node)
    rows = with_a_gap(node, stream)
    with pytest.raises(HistoryPurged):
        batch_from(node, stream.at)
    rows += batch_from(node, stream.at, onRollback="rewindAndMark", purgeGap="reconcile")
    assert keys_of(rows) == EXPECTED


def test_reconciling_needs_control_rows(node: dcpstream_node.Node) -> None:
    with pytest.raises(ConfigError, match="onRollback=rewindAndMark"):
        SourceOptions.parse(access(node, purgeGap="reconcile"))


@pytest.mark.parametrize("is_stable", [False, True])
def test_stable_reads_wait_for_the_disk(tmp_path: Path, is_stable: bool) -> None:
    with dcpstream_node.Node(path=tmp_path, vbuckets=1, flush_interval_s=NEVER_S, system_scope=False) as node:
        stream = Stream(node, readStable=str(is_stable).lower(), idleTimeout="0.5")
        with kv_of(node) as kv:
            kv.set("k", b"1")
        if is_stable:
            with pytest.raises(ConnectTimeout, match="settling"):
                stream.step()
        else:
            assert len(stream.step()) == 1


def test_a_stream_has_no_end(node: dcpstream_node.Node) -> None:
    source = DcpDataSource(access(node, startingOffsets="earliest", endingOffsets='{"0": "5"}'))
    with pytest.raises(ConfigError, match="a stream has no end"):
        source.streamReader(source.schema()).initialOffset()


def test_the_end_of_a_batch(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        kv.set_many((f"k{number}", b"1") for number in range(40))
    bounds = {"startingOffsets": '{"0": "3", "1": "-1"}', "endingOffsets": '{"0": "6", "1": "-1"}'}
    reader = DcpBatchReader(SourceOptions.parse(access(node, **bounds)))
    found = [(row["vbucket"], row["seqno"]) for part in reader.partitions() for row in rows_of(reader.read(part))]
    assert sorted(found) == [(0, 4), (0, 5), (0, 6)]
    below = access(node, startingOffsets='{"0": "3"}', endingOffsets='{"0": "2"}')
    with pytest.raises(ConfigError, match=r"endingOffsets cannot be '0: 2'.*at least the start of the read, seqno 3"):
        DcpBatchReader(SourceOptions.parse(below)).partitions()
