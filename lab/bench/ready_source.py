"""The baseline of the Spark benches: a Python data source that yields batches from memory.

A worker reads the Arrow file once and keeps it, so that the time is that of Spark itself with the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

_ready: dict[str, list[pa.RecordBatch]] = {}


class ReadySource(DataSource):
    """Options: `files` (Arrow IPC files, one per partition, joined by ":")."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._files = options["files"].split(":")

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "dcpstream_ready"

    def schema(self) -> StructType:
        """As written in the files."""
        from pyspark.sql.pandas.types import from_arrow_schema

        with pa.OSFile(self._files[0]) as file:
            return from_arrow_schema(pa.ipc.open_file(file).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of these files."""
        return _ReadyReader(self._files)


class _ReadyReader(DataSourceReader):
    def __init__(self, files: list[str]) -> None:
        self._files = files

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        path = str(partition.value)
        if path not in _ready:
            with pa.OSFile(path) as file:
                reader = pa.ipc.open_file(file)
                _ready[path] = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        yield from _ready[path]
