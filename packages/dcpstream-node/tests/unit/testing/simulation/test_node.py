"""A node on virtual time and its peers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dcpstream.wire import Opcode, Status
from dcpstream_node.testing.simulation import SimulatedNode


def test_it_needs_neither_pytest_nor_hypothesis() -> None:
    code = """
import sys
from dcpstream_node.testing.simulation import SimulatedNode

SimulatedNode()
print(sorted({"pytest", "hypothesis"} & set(sys.modules)))
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_two_nodes_with_the_same_history_send_the_same_frames() -> None:
    sent = []
    for _ in range(2):
        node = SimulatedNode()
        node.fill(1, 3)
        sent.append([frame.encode() for frame in node.producer().stream(1, end=3)])
    assert sent[0] == sent[1]


def test_what_one_peer_writes_another_receives_at_the_same_moment() -> None:
    node = SimulatedNode()
    reader = node.producer()
    reader.stream(1)
    node.set_doc(1, "k")
    assert [frame.opcode for frame in reader.take()] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
    assert reader.take() == []


def test_a_crash_loses_what_was_not_flushed(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.set_doc(1, "kept")
    node.flush()
    node.set_doc(1, "lost")
    old = node.admin
    node.restart(clean=False)
    assert old.closed
    found = [node.admin.call(Opcode.GET, vbid=1, key=b"\0" + key).status for key in (b"kept", b"lost")]
    assert found == [Status.SUCCESS, Status.KEY_ENOENT]


def test_a_bucket_in_memory_is_not_restarted() -> None:
    with pytest.raises(AssertionError, match="does not survive"):
        SimulatedNode().restart()
