"""Kinds of rows that a query asks for. The readers are driven without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dcpstream_node
from dcpstream.client import KvClient
from dcpstream.errors import ConfigError, ConnectTimeout
from dcpstream_spark.options import SourceOptions
from tests.kit.access import LOGIN
from tests.kit.spark import Stream, access, kv_of

pytestmark = pytest.mark.usefixtures("closes_connections")

VBUCKETS = 2


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as node:
        yield node


def changed(node: dcpstream_node.Node) -> None:
    node.set_collections("default", {"shop": ["a"]})
    with kv_of(node) as kv:
        kv.set_many((f"k{number}", b"1") for number in range(6))
        kv.delete_many(["k0", "k1"])


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (None, {"mutation": 4, "deletion": 2, "scope_created": 2, "collection_created": 2}),
        ("systemEvents", {"mutation": 4, "scope_created": 2, "collection_created": 2}),
        ("deletes", {"mutation": 4, "deletion": 2}),
        ("none", {"mutation": 4}),
        ("snapshotMarks", {"mutation": 4, "snapshot": 2}),
    ],
)
def test_rows_that_were_not_asked_for_do_not_come(
    node: dcpstream_node.Node, include: str | None, expected: dict[str, int]
) -> None:
    changed(node)
    rows = Stream(node, **({"include": include} if include else {})).step()
    assert Counter(row["op"] for row in rows) == expected
    assert ("xattrs" in rows[0]) == (include is None)


def test_a_mark_says_how_far_a_batch_has_read(node: dcpstream_node.Node) -> None:
    changed(node)
    stream = Stream(node, include="snapshotMarks,deletes")
    rows = stream.step()
    for mark in (row for row in rows if row["op"] == "snapshot"):
        of_vbucket = [row for row in rows if row["vbucket"] == mark["vbucket"]]
        assert of_vbucket[-1] is mark
        detail = json.loads(mark["value"])
        assert detail["is_whole"] is True
        assert int(detail["snapshot_end"]) == mark["seqno"] == max(row["seqno"] for row in of_vbucket)
    assert stream.step() == []


def test_changes_before_a_time_are_left_out(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        kv.set("old", b"1")
        (old,) = Stream(node).step()
        while True:
            kv.set("new", b"1")
            new = next(row for row in Stream(node).step() if row["key"] == "new")
            if new["_commit_timestamp"] > old["_commit_timestamp"]:
                break
    since = new["_commit_timestamp"].isoformat()
    options = access(node, startingTimestamp=since)
    assert SourceOptions.parse(options).starting_offsets is not None, "a stream would begin at the latest otherwise"
    rows = Stream(node, startingTimestamp=since).step()
    assert [row["key"] for row in rows] == ["new"]


def test_a_column_that_was_not_asked_for_is_refused(node: dcpstream_node.Node) -> None:
    with pytest.raises(ConfigError, match="Add xattrs to include"):
        SourceOptions.parse(access(node, include="deletes", columns="key,xattrs"))


def test_deletions_come_where_values_are_not_asked_for(tmp_path: Path) -> None:
    node = dcpstream_node.Node(vbuckets=VBUCKETS, path=tmp_path / "node", release="7.6", system_scope=False)
    with node:
        changed(node)
    with node:  # which reads from disk what it had before
        rows = Stream(node, columns="key,op,cas").step()
    assert Counter(row["op"] for row in rows) == {
        "mutation": 4,
        "deletion": 2,
        "scope_created": 2,
        "collection_created": 2,
    }
    assert all(row["cas"] for row in rows if row["key"])


def test_a_batch_waits_for_the_manifest_that_its_start_knows(node: dcpstream_node.Node) -> None:
    changed(node)
    with KvClient(node.connection_string, **LOGIN, collection="shop.a") as kv:
        kv.set_many((f"k{number}", b"1") for number in range(6))
        stream = Stream(node, collections="shop.a")
        stream.step()
        kv.set_many((f"k{number}", b"2") for number in range(6))
        number = node.inject("forget_manifest", bucket="default")
        assert stream.plan() == stream.at, "no batch without the manifest"
        node.lift(number)
        end = stream.plan()
        # A task that meets a node without it does not read nothing instead.
        node.inject("forget_manifest", bucket="default", for_s=0.3)
        rows = stream.read(end)
    assert [row["op"] for row in rows] == ["mutation"] * 6
    assert {row["value"] for row in rows} == {b"2"}


def test_a_first_batch_does_not_lose_what_was_planned(node: dcpstream_node.Node) -> None:
    changed(node)
    with KvClient(node.connection_string, **LOGIN, collection="shop.a") as kv:
        kv.set_many((f"k{number}", b"1") for number in range(6))
    stream = Stream(node, collections="shop.a", idleTimeout="1")
    end = stream.plan()
    node.inject("forget_manifest", bucket="default")
    with pytest.raises(ConnectTimeout, match="has version 0"):
        stream.read(end)
