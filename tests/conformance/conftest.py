"""A simulated node and a peer of it, and the release of a test's nodes.

The tests run in process on simulated nodes, and on a server by `dcpstream judge --rules`.
"""

from __future__ import annotations

import pytest

from dcpstream.wire.release import DEFAULT_RELEASE
from dcpstream_node.testing.simulation import Peer, SimulatedNode
from tests.kit import cases


@pytest.fixture(autouse=True)
def _all_cases_are_shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server, `dcpstream judge --rules` shows everything that differs."""
    monkeypatch.setattr(cases, "goes_on_after_failures", hasattr(request.config, "rules_release"))


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
