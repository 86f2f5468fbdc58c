"""What holds for all tests."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.fixtures.skips", "tests.fixtures.hypothesis_profiles"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests with Spark on one worker of a parallel run: they share one session, which takes seconds to start."""
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.xdist_group("spark"))
