"""A simulated node that loses its power has what it had synced, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dcpstream.model import VbucketState
from dcpstream_node.testing.simulation import SimulatedNode
from dcpstream_node.testing.simulation.disk import SimulatedDisk


@pytest.mark.parametrize("seed", range(4))
def test_what_was_synced_is_there_and_a_torn_write_is_not(tmp_path: Path, seed: int):
    node = SimulatedNode(path=tmp_path, vbuckets=1, disk=SimulatedDisk(random.Random(seed)))
    node.set_doc(0, "synced")
    node.flush()
    persisted = node.vbucket(0).persisted_seqno
    node.set_doc(0, "in memory", b"v" * 500)
    node.lose_power()
    vbucket = node.vbucket(0)
    assert b"\0synced" in vbucket.log.rows.keys
    assert b"\0in memory" not in vbucket.log.rows.keys
    assert vbucket.high_seqno == persisted
    assert vbucket.state is VbucketState.DEAD, "another copy may be active by now"
    node.set_vbucket(0, VbucketState.ACTIVE)
    node.set_doc(0, "later")
    node.flush()
    assert node.vbucket(0).persisted_seqno > persisted
