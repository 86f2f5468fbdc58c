"""Plugins, time limits and the distribution of tests on workers."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from lab.tools.patience import patient

pytest_plugins = [
    "tests.fixtures.collecting",
    "tests.fixtures.commands",
    "tests.fixtures.decoders",
    "tests.fixtures.hypothesis_profiles",
    "tests.fixtures.passwords",
    "tests.fixtures.skips",
    "tests.fixtures.spark_connections",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what the collection makes, and what it imports, out of the searches for garbage: nothing of it goes away."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests with Spark on one worker of a parallel run, and scale every test's time limit.

    Tests with Spark share one session, which takes seconds to start. They come first: they take more than any other
    worker's share, and at the end nothing would be left to do beside them. A test that asks for the session is one of
    them, marked or not.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
    usual_s = config.getoption("timeout") or float(config.getini("timeout"))
    for item in items:
        limit = item.get_closest_marker("timeout")
        seconds = limit.args[0] if limit is not None else usual_s
        item.add_marker(pytest.mark.timeout(patient(seconds)), append=False)
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.xdist_group("spark"))
