from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dcpstream_spark import pool
from dcpstream_spark.options import SourceOptions


class Opened:
    """Stands for a cluster."""

    def __init__(self, options: SourceOptions) -> None:
        self.is_closed = False
        self.is_current = True

    def refresh(self) -> bool:
        return self.is_current

    def close(self) -> None:
        self.is_closed = True


def options(bucket: str = "b", **more: str) -> SourceOptions:
    needed = {"connectionString": "couchbase://localhost", "username": "u", "password": "p"}
    return SourceOptions.parse({**needed, "bucket": bucket, **more})


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    pool.close_all()
    yield
    pool.close_all()


def borrow(given: SourceOptions) -> Any:
    with pool.borrowed(given, Opened) as cluster:  # type: ignore[arg-type]
        return cluster


def test_what_ends_well_is_used_again() -> None:
    first = borrow(options())
    assert borrow(options(maxBatchRows="5")) is first, "it was not made from that option"
    assert borrow(options("other")) is not first


def test_two_tasks_at_once_do_not_share() -> None:
    with pool.borrowed(options(), Opened) as first:  # type: ignore[arg-type]
        second = borrow(options())
        assert second is not first
    assert first.is_closed  # type: ignore[attr-defined]
    assert borrow(options()) is second, "one is enough to keep"


def test_what_fails_is_closed() -> None:
    with pytest.raises(KeyError), pool.borrowed(options(), Opened) as cluster:  # type: ignore[arg-type]
        raise KeyError
    assert cluster.is_closed  # type: ignore[attr-defined]
    assert borrow(options()) is not cluster


def test_few_are_kept() -> None:
    kept = [borrow(options(f"b{number}")) for number in range(pool.MAX_IDLE_CLUSTERS + 1)]
    assert [cluster.is_closed for cluster in kept] == [True, *[False] * pool.MAX_IDLE_CLUSTERS]


def test_a_forked_worker_does_not_use_its_parents_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = borrow(options())
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert borrow(options()) is not mine


def test_a_plan_takes_a_kept_cluster_that_is_up_to_date() -> None:
    def plan() -> Any:
        with pool.borrowed_for_plan(options(), Opened) as cluster:  # type: ignore[arg-type]
            return cluster

    first = plan()
    assert plan() is first
    first.is_current = False
    second = plan()
    assert second is not first
    assert first.is_closed
    assert borrow(options()) is second
