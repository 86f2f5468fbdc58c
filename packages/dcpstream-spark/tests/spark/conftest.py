"""One Spark session for all tests of this directory, and what they ask of a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.spark import Bucket


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore sockets of Spark: "the socket will be automatically closed when garbage-collected", says its code."""
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pyspark import __version__ as version

    from dcpstream_spark import build_session
    from dcpstream_spark.jars import CONNECTORS, TableFormat
    from dcpstream_spark.session import SHORT_RUN

    known: tuple[TableFormat, ...] = ("delta", "iceberg")
    tables = tuple(one for one in known if (one, version.rpartition(".")[0]) in CONNECTORS)
    session = build_session(
        "dcpstream tests", master="local[2,4]", driver_memory="1g", tables=tables, settings=SHORT_RUN
    )
    yield session
    session.stop()


def stop_queries(session: SparkSession) -> None:
    """Stop every streaming query of the session, also those of a test that failed half way."""
    for query in session.streams.active:
        query.stop()


@pytest.fixture(autouse=True)
def leaves_no_query(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails leaves no query behind: the next one may use its name."""
    yield
    if "spark" in request.fixturenames:
        stop_queries(request.getfixturevalue("spark"))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    from tests.kit.spark import Bucket

    bucket = Bucket(tmp_path / "node")
    yield bucket
    bucket.node.stop()
