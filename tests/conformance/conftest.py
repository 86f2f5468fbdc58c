"""A simulated node and a peer of it, for tests that need nothing special."""

from __future__ import annotations

import pytest

from dcpstream_node.testing.simulation import Peer, SimulatedNode


@pytest.fixture
def node() -> SimulatedNode:
    return SimulatedNode()


@pytest.fixture
def peer(node: SimulatedNode) -> Peer:
    return node.connect()
