"""One Spark session for all tests of this directory, and what they ask of a node."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dcpstream
from dcpstream.client.kv.client import KvClient
from dcpstream.pipelines import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VBUCKETS = 16


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from dcpstream.spark.session import build_session

    # py4j leaves its sockets to the garbage collector.
    warnings.filterwarnings("ignore", category=ResourceWarning)
    session = build_session("dcpstream tests", master="local[2,4]", driver_memory="1g")
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


class Bucket:
    """A node on disk with one bucket, whose last writes can be lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._port = 0
        self.flush_interval_s = 0.02
        self.node = self._started(self.flush_interval_s)
        self._port = self.node.port

    def _started(self, flush_interval_s: float) -> dcpstream.Node:
        node = dcpstream.Node(vbuckets=VBUCKETS, path=self._path, port=self._port, flush_interval_s=flush_interval_s)
        return node.start()

    def stop_flushing(self) -> None:
        """From now on nothing is made durable."""
        self.node.stop()
        self.node = self._started(3600)

    def flush_every(self, seconds: float) -> None:
        """From now on a crash may lose the writes of so long."""
        self.flush_interval_s = seconds
        self.node.stop()
        self.node = self._started(seconds)

    def crash(self) -> None:
        self.node.crash()
        self.node = self._started(self.flush_interval_s)

    @property
    def options(self) -> dict[str, str]:
        needed = {"connectionString": self.node.connection_string, "username": "Administrator"}
        return {**needed, "password": "password", "bucket": "default"}

    def set(self, **values: str) -> None:
        with self._kv() as kv:
            kv.set_many((key, value.encode()) for key, value in values.items())

    def set_many(self, prefix: str, count: int, value: str) -> None:
        self.set(**{f"{prefix}{n}": value for n in range(count)})

    def delete(self, *keys: str) -> None:
        with self._kv() as kv:
            kv.delete_many(keys)

    def documents(self, keys: Any) -> dict[str, str]:
        """Those of the keys that exist, with their values."""
        keys = list(keys)
        with self._kv() as kv:
            found = kv.get_many(keys)
        return {key: document.value.decode() for key, document in zip(keys, found, strict=True) if document is not None}

    def _kv(self) -> KvClient:
        return KvClient(self.node.connection_string, username="Administrator", password="password", bucket="default")


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    bucket = Bucket(tmp_path / "node")
    yield bucket
    bucket.node.stop()


def current_of(pipeline: Pipeline) -> dict[str, str]:
    """Key → value in the table `current`; each key must be there once."""
    rows = pipeline.current.open().to_pyarrow_table(columns=["key", "value"]).to_pylist()
    state = {row["key"]: row["value"] for row in rows}
    assert len(state) == len(rows), "a document is there twice"
    return state


def changes_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Data rows of the table `changes`; each (vbucket, seqno) must be there once."""
    rows: list[dict[str, Any]] = pipeline.changes.open().to_pyarrow_table().to_pylist()
    rows = [row for row in rows if row["op"] != "rollback"]
    assert len({(row["vbucket"], row["seqno"]) for row in rows}) == len(rows), "a row is there twice"
    return rows
