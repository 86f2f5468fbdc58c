"""The checks of the loop can fail, and pass where nothing is wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dcpstream.client import RollbackEvent
from dcpstream.model import StreamOffset
from dcpstream_node import Cluster
from lab.tools import cluster_loop
from lab.tools.cluster_loop import Follower, Load, Loop, Loss
from tests.kit.waiting import wait_until


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with Cluster(2, 1, vbuckets=cluster_loop.VBUCKETS) as cluster:
        load, follower = Load(cluster, 1), Follower(cluster)
        found = Loop(cluster, load, follower, random.Random(1))
        load.start()
        follower.start()
        wait_until(lambda: min(load.writes.values()) >= 20)
        yield found
        load.stop()
        follower.stop()
    assert load.errors == []
    assert follower.error is None


def test_nothing_is_wrong_in_a_cluster_without_trouble(loop: Loop):
    loop.check()
    loop.follower.cut()
    loop.check()


def test_a_lost_durable_write_is_noticed(loop: Loop):
    loop.check()
    loop.load.acknowledged[b"durable write"] = 7
    with pytest.raises(Loss, match=r"durable write.*was acknowledged"):
        loop.check()
    del loop.load.acknowledged[b"durable write"]


def test_a_client_that_differs_is_noticed(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    loop.check()
    monkeypatch.setattr(cluster_loop, "TIMEOUT_S", 0.5)
    loop.follower._versions[b"never written"] = [(0, 1, b"x")]
    with pytest.raises(Loss, match=r"differs from the bucket in 1 keys: \[b'never written'\]"):
        loop.check()
    del loop.follower._versions[b"never written"]


def test_what_is_rolled_back_is_taken_back(loop: Loop):
    follower = Follower(loop.cluster)
    follower._versions = {b"a": [(0, 1, b"1"), (0, 5, b"5")], b"b": [(0, 6, b"6")], b"c": [(1, 9, b"9")]}
    here = StreamOffset(vbuuid=2, seqno=4, snapshot_start=4, snapshot_end=4)
    follower._take_back(RollbackEvent(vbid=0, from_seqno=6, to_seqno=4, old_vbuuid=1, new_vbuuid=2, resumed_at=here))
    assert follower.documents() == {b"a": b"1", b"c": b"9"}
