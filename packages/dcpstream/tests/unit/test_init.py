"""The package's front door: quick to import, and names that load when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dcpstream
from lab.tools.patience import patient

BASE_ONLY = """
import sys
import tests.fixtures.without_extras
import dcpstream
before = set(sys.modules)
assert not {"aiohttp", "click", "rich", "asyncio", "numpy"} & before, before
for name in dcpstream.__all__:
    getattr(dcpstream, name)
print("loaded", *sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_every_public_name_is_there() -> None:
    for name in dcpstream.__all__:
        assert getattr(dcpstream, name) is not None
    assert set(dcpstream.__all__) <= set(dir(dcpstream))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Bucket'"):
        dcpstream.Bucket  # noqa: B018


def test_the_base_dependencies_are_enough_for_node_and_client() -> None:
    """In a process of its own, where pyarrow and pyspark cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BASE_ONLY],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loaded")
