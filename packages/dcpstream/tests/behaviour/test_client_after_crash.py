"""A reader whose position lies on a branch that the node has lost, told apart only by the branch's name."""

from __future__ import annotations

from pathlib import Path

import pytest

import dcpstream
import dcpstream_node
from dcpstream.client import KvClient, RollbackEvent, StreamOptions
from tests.kit.access import LOGIN


def write(node: dcpstream_node.Node, *keys: str) -> None:
    with KvClient(node.connection_string, **LOGIN) as documents:
        documents.set_many([(key, "{}") for key in keys])


def read(node: dcpstream_node.Node, store: dcpstream.FileOffsetStore) -> tuple[list[bytes], list[RollbackEvent]]:
    """Keys up to now, and the rollbacks before them."""
    rollbacks: list[RollbackEvent] = []
    with dcpstream.Client(node.connection_string, **LOGIN) as client:
        changes = client.changes(
            StreamOptions(end="latest", store=store, on_rollback=rollbacks.append, idle_timeout_s=30)
        )
        return [change.key for change in changes], rollbacks


@pytest.mark.slow
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_the_new_branch_is_shorter_as_long_or_longer(kept: int, tmp_path: Path) -> None:
    """As long is the hard one: the position's seqno is the very end that is planned, on another branch."""
    store = dcpstream.FileOffsetStore(tmp_path / "positions")
    node = dcpstream_node.Node(vbuckets=1, path=tmp_path / "data", flush_interval_s=3600, system_scope=False)
    with node:
        write(node, "lost 1", "lost 2")
        assert read(node, store) == ([b"lost 1", b"lost 2"], [])
        node.crash()
    with node:
        keys = [f"kept {number}" for number in range(kept)]
        write(node, *keys)
        read_keys, rollbacks = read(node, store)
    assert read_keys == [key.encode() for key in keys]
    assert [(event.vbid, event.from_seqno, event.to_seqno) for event in rollbacks] == [(0, 2, 0)]
    assert rollbacks[0].old_vbuuid != rollbacks[0].new_vbuuid
