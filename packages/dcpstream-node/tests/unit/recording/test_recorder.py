"""A recording holds what the bucket has: played back, any reader finds the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import dcpstream_node
from dcpstream.errors import ConfigError
from dcpstream.model import FailoverEntry, FailoverLog, StreamOffset
from dcpstream_node.recording.file import RecordingReader
from dcpstream_node.recording.history import Histories, VbucketHistory
from dcpstream_node.recording.recorder import branch_log
from tests.kit.recordings import client, documents, drain, state, state_of_replay


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    """A bucket with documents, deletions, an expiry, a collection and a dropped one."""
    with dcpstream_node.Node(vbuckets=4) as node:
        with documents(node) as kv:
            kv.set_many((f"key::{n}", json.dumps({"n": n})) for n in range(200))
            kv.set("key::1", b"\0no json", flags=7, expiry=10**6)
            kv.delete_many(["key::2", "key::3"])
        node.set_collections("default", {"shop": ["orders", "old"]})
        with documents(node, "shop.orders") as orders:
            orders.set_many((f"order::{n}", "{}") for n in range(50))
        node.set_collections("default", {"shop": {"orders": 3600}})
        yield node


def test_a_replay_has_all_that_the_bucket_has(node: dcpstream_node.Node, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    done = drain(node, path)
    assert done.seqnos == done.seqnos_wanted
    assert (done.incomplete, done.rollbacks) == (0, 0)
    assert done.file_bytes == path.stat().st_size
    assert state_of_replay(path) == state(node)


def test_recording_again_goes_on(node: dcpstream_node.Node, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    first = drain(node, path)
    assert drain(node, path).changes == first.changes
    with documents(node) as kv:
        kv.set("key::5", "new")
        kv.delete("key::6")
    assert drain(node, path).changes == first.changes + 2
    assert state_of_replay(path) == state(node)


def test_a_killed_recorder_goes_on_behind_its_last_block(node: dcpstream_node.Node, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    drain(node, path)
    with RecordingReader(path) as reader:
        ends = [reader.start, *(block.end for block in reader.blocks())]
    assert len(ends) > 2
    whole = path.read_bytes()
    wanted = state(node)
    for end in ends[:-1]:
        path.write_bytes(whole[: end + 10])
        drain(node, path)
        assert state_of_replay(path) == wanted


def test_a_lost_history_is_taken_back(node: dcpstream_node.Node, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    drain(node, path)
    with documents(node) as kv:
        for n in range(40):
            kv.set(f"key::{n}", "later")
            if n % 8 == 0:
                drain(node, path)
        drain(node, path)
        with client(node) as reader:
            high = reader.cluster.high_seqnos()
        for vbid in range(3):
            node.inject("stale_failover", bucket="default", vbid=vbid, seqno=high[vbid] - 3)
        kv.set_many((f"key::{n}", "other") for n in range(20))
    done = drain(node, path)
    assert done.rollbacks == 3
    assert done.seqnos == done.seqnos_wanted
    found = state_of_replay(path)
    assert found == state(node)
    assert all(len(found["logs"][vbid]) == 2 for vbid in range(3))


def test_from_now_on(node: dcpstream_node.Node, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    assert drain(node, path, start="latest").changes == 0
    with documents(node, "shop.orders") as orders:
        orders.set("order::new", "{}")
    assert drain(node, path).changes == 1
    found, wanted = state_of_replay(path), state(node)
    for name in ("logs", "high", "manifest", "uuid"):
        assert found[name] == wanted[name]
    [(vbid, changes)] = found["changes"].items()
    assert changes == wanted["changes"][vbid][-1:]


@pytest.mark.parametrize("kept", [0, 30, -3])
def test_a_recorder_killed_before_its_first_block_starts_over(
    node: dcpstream_node.Node, tmp_path: Path, kept: int
) -> None:
    """From "latest" too: positions that were not written are not taken for the beginning."""
    path = tmp_path / "recording"
    drain(node, path, start="latest")
    with RecordingReader(path) as reader:
        first_end = next(reader.blocks()).end
    path.write_bytes(path.read_bytes()[: kept if kept >= 0 else first_end + kept])
    assert drain(node, path, start="latest").changes == 0
    with RecordingReader(path) as reader:
        assert len(list(reader.blocks())) >= 1


def test_from_now_on_leaves_no_file_where_a_vbucket_cannot_be_asked(
    node: dcpstream_node.Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(node) as source:
        states = source.cluster.observe()
    del states[2]
    monkeypatch.setattr(type(source.cluster), "observe", lambda _: states)
    with pytest.raises(ConfigError, match="1 of 4 vbuckets have no node that can be reached"):
        drain(node, tmp_path / "recording", start="latest")
    assert list(tmp_path.iterdir()) == []


def test_some_collections(node: dcpstream_node.Node, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    done = drain(node, path, collections=["shop.*"])
    assert done.changes == 50
    with documents(node) as kv:
        kv.set("key::1", "not recorded")
    with documents(node, "shop.orders") as orders:
        orders.set("order::1", "recorded")
    assert drain(node, path).changes == 51
    # A reader of other collections finds less; one of the same collections finds the same.
    # The last seqno of a vbucket may be that of a change which is not recorded.
    found, wanted = state_of_replay(path, ["shop.*"]), state(node, ["shop.*"])
    assert all(found["high"][vbid] <= seqno for vbid, seqno in wanted.pop("high").items())
    del found["high"]
    assert found == wanted


def test_following_ends_when_it_is_stopped(node: dcpstream_node.Node, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    total = drain(node, tmp_path / "all").seqnos
    histories = Histories()

    def is_over() -> bool:
        with RecordingReader(path) as reader:
            histories.vbuckets.clear()
            for block in reader.blocks():
                histories.take(block.frames)
        return histories.high_seqnos == total

    assert drain(node, path, follow=True, is_over=is_over).seqnos == total
    assert state_of_replay(path) == state(node)


def test_a_recording_of_something_else_is_refused(node: dcpstream_node.Node, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    drain(node, path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"the collections all, not shop\.orders"):
        drain(node, path, collections=["shop.orders"])
    with dcpstream_node.Node(vbuckets=4) as other, pytest.raises(ConfigError, match="deleted and created again"):
        drain(other, path)
    with (
        dcpstream_node.Node(vbuckets=8) as other,
        pytest.raises(ConfigError, match="with 4 vbuckets, not default with 8"),
    ):
        drain(other, path)
    assert path.read_bytes() == before


def test_the_log_of_a_branch() -> None:
    one = VbucketHistory(0, FailoverLog.of((5, 0)), seqno=30)
    newest = FailoverLog.of((7, 20), (6, 10), (5, 0))
    assert branch_log(newest, 7, one) == newest
    assert branch_log(newest, 6, one) == FailoverLog.of((6, 10), (5, 0))
    assert branch_log(newest, 9, one) == FailoverLog.of((9, 30), (5, 0))
    assert branch_log(None, 9, VbucketHistory(0, start=StreamOffset.ZERO)) == FailoverLog((FailoverEntry(9, 0),))
