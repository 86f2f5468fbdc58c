"""A tidy pool of connections for tests that read as a task of Spark does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def closes_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop every stream reader and close every pooled connection at the end of a test."""
    from dcpstream.spark import pool
    from tests.kit.spark import Stream

    # A frozen object is never collected, which is right for a worker of Spark and wrong for a test run.
    monkeypatch.setattr(pool, "_is_frozen", True)
    yield
    pool.close_all()
    while Stream.running:
        Stream.running.pop().stop()
