"""The tables that the queries have written, read without the code that wrote them: by delta-rs, Spark, from Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from lab.chaos.checker import Row, row_of

BATCH_ID = "_batch_id"


def read_delta(path: Path) -> pa.Table:
    """A table in the Delta format, by delta-rs."""
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(str(path))
    return pa.table(QueryBuilder().register("t", table).execute("select * from t"))


def rows_of_changes(table: pa.Table) -> list[Row]:
    """The rows of `changes`."""
    return [row_of(data, data[BATCH_ID]) for data in table.to_pylist()]


def documents(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of `current` or `live`."""
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def rows_of_files(path: Path) -> list[Row]:
    """The rows of a sink of Parquet files, by the log that Spark keeps of the files of each batch."""
    return [
        row_of(data, batch)
        for batch, file in _files(path)
        for data in pq.read_table(file, partitioning=None).to_pylist()
    ]


def _files(path: Path) -> Iterator[tuple[int, Path]]:
    """(batch, file) of the files that count. A log may repeat the files of earlier batches (`.compact`)."""
    known: set[str] = set()
    logs = {
        int(log.name.removesuffix(".compact")): log
        for log in (path / "_spark_metadata").glob("*")
        if log.name.removesuffix(".compact").isdecimal()
    }
    for batch, log in sorted(logs.items()):
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            entry = json.loads(line)
            if entry["path"] not in known:
                known.add(entry["path"])
                yield batch, Path(unquote(urlparse(entry["path"]).path))
