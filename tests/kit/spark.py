"""A bucket to read with the Spark source, a stream reader driven as Spark drives it, and the tables of a pipeline."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

import dcpstream_node
from dcpstream.client.kv.client import KvClient
from dcpstream_spark import Pipeline
from dcpstream_spark.data_source import DcpDataSource
from lab.chaos.tables import read_delta

if TYPE_CHECKING:
    from dcpstream_spark.data_source import DcpStreamReader

VBUCKETS = 16


class Bucket:
    """A node on disk with one bucket that begins empty, and whose last writes can be lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._port = 0
        self.flush_interval_s = 0.02
        self.node = self._started(self.flush_interval_s)
        self._port = self.node.port

    def _started(self, flush_interval_s: float) -> dcpstream_node.Node:
        node = dcpstream_node.Node(
            vbuckets=VBUCKETS,
            path=self._path,
            port=self._port,
            flush_interval_s=flush_interval_s,
            system_scope=False,
        )
        return node.start()

    def stop_flushing(self) -> None:
        """From now on nothing is made durable."""
        self.node.stop()
        self.node = self._started(3600)

    def flush_every(self, seconds: float) -> None:
        """From now on, flush in this interval: a crash loses the writes since the last flush."""
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


def current_of(pipeline: Pipeline) -> dict[str, str]:
    """Key → value in the table `current`; each key must be there once."""
    rows = table_rows(pipeline, "current")
    state = {row["key"]: row["value"].decode() for row in rows}
    assert len(state) == len(rows), "a document is there twice"
    return state


def changes_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Data rows of the table `changes`; each (vbucket, seqno) must be there once."""
    rows = [row for row in table_rows(pipeline, "changes") if row["op"] != "rollback"]
    assert len({(row["vbucket"], row["seqno"]) for row in rows}) == len(rows), "a row is there twice"
    return rows


def table_rows(pipeline: Pipeline, table: str) -> list[dict[str, Any]]:
    """All rows of a table in the pipeline's directory."""
    rows: list[dict[str, Any]] = read_delta(Path(pipeline.path) / table).to_pylist()
    return rows


def access(node: dcpstream_node.Node, **options: str) -> dict[str, str]:
    needed = {"connectionString": node.connection_string, "username": "Administrator", "password": "password"}
    return {**needed, "bucket": "default", **options}


def kv_of(node: dcpstream_node.Node) -> KvClient:
    return KvClient(node.connection_string, username="Administrator", password="password", bucket="default")


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


class Stream:
    """A stream reader, driven as Spark drives it, with offsets that have been through JSON."""

    running: ClassVar[list[DcpStreamReader]] = []

    def __init__(self, node: dcpstream_node.Node, **options: str) -> None:
        source = DcpDataSource(access(node, startingOffsets="earliest", **options))
        reader = source.streamReader(source.schema())
        from dcpstream_spark.data_source import DcpStreamReader  # since Spark 4.2

        assert isinstance(reader, DcpStreamReader)
        self.reader = reader
        self.running.append(reader)
        self.at: dict[str, Any] = json.loads(json.dumps(reader.initialOffset()))

    def plan(self) -> dict[str, Any]:
        limit = self.reader.getDefaultReadLimit()
        end: dict[str, Any] = json.loads(json.dumps(self.reader.latestOffset(self.at, limit)))
        return end

    def read(self, end: dict[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for planned in self.reader.partitions(self.at, end):
            # The executor gets copies.
            reader, partition = pickle.loads(pickle.dumps((self.reader, planned)))
            rows += rows_of(reader.read(partition))
        return rows

    def step(self) -> list[dict[str, Any]]:
        end = self.plan()
        rows = self.read(end)
        self.at = end
        return rows
