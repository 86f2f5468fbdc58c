"""A simulated node and a peer of it, for tests that need nothing special, and the release of a test's nodes."""

from __future__ import annotations

import pytest

from dcpstream.wire.release import DEFAULT_RELEASE
from dcpstream_node.testing.simulation import Peer, SimulatedNode


@pytest.fixture
def release(request: pytest.FixtureRequest) -> str:
    """The release of a test's nodes; `of_release` of tests.kit.rules names others."""
    return getattr(request.config, "rules_release", DEFAULT_RELEASE.name)


@pytest.fixture(autouse=True)
def _nodes_are_of_the_release(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `SimulatedNode()` one of the test's release, also where a helper makes it."""
    defaults = SimulatedNode.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "release", release)


@pytest.fixture
def node() -> SimulatedNode:
    return SimulatedNode()


@pytest.fixture
def peer(node: SimulatedNode) -> Peer:
    return node.connect()
