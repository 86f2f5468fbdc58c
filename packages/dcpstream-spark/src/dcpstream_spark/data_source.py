"""The data source `dcp` for Spark: its batch reader and its stream reader.

Thin classes: `options` checks options, `coordinator` and `planner` plan, and `reading` reads rows.

Features of Spark are detected, not version numbers. Since 4.2 `latestOffset` gets the start and a limit, and a mix-in
lets Trigger.AvailableNow run in several batches. Before, the source finds the start by itself where Spark's calls allow
it, and AvailableNow is one batch.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from dcpstream.arrow import Comparison, RowFilter
from dcpstream.errors import DcpstreamError
from dcpstream_spark import catalog, pool
from dcpstream_spark.options import OffsetSpec, SourceOptions
from dcpstream_spark.source.admission import Limits
from dcpstream_spark.source.checkpoint import NOTHING_LOGGED, newest_logged
from dcpstream_spark.source.coalescing import coalesced
from dcpstream_spark.source.coordinator import Coordinator, open_cluster
from dcpstream_spark.source.inference import inferred_schema
from dcpstream_spark.source.offsets import SourceOffset, is_start_marker
from dcpstream_spark.source.planner import PlannedRange
from dcpstream_spark.source.reading import DcpPartition, read_partition
from dcpstream_spark.source.schema import Layout, default_schema
from dcpstream_spark.source.single_attempt import HELD_BYTES_MAX, held, runs_once
from dcpstream_spark.source.spool import Spool, batch_name
from dcpstream_spark.where import pushed_comparison
from dcpstream_spark.worker import called_by_spark, given_to_spark, leave_if_spark_is_gone

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter  # since Spark 4.1

PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module of Spark's worker that pushes filters."""

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
except ImportError:  # Spark 4.0 and 4.1
    HAS_ADMISSION_CONTROL = False


class DcpDataSource(DataSource):
    """Changes of a Couchbase bucket, read by DCP.

    ```
    spark.read.format("dcp").options(connectionString="couchbase://127.0.0.1", username="u", password="p",
                                     bucket="default").load()
    ```

    Options: see `dcpstream_spark.options.OPTIONS`. Columns: see `dcpstream.arrow.FULL_SCHEMA`. A schema of the
    user's may name them in any order, and fields of the JSON documents with them.

    Raises:
        ConfigError: an option is missing, unknown, or has an invalid value.
    """

    @called_by_spark()
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._given = catalog.given_options(options)

    @cached_property
    def _options(self) -> SourceOptions:
        # Checked when a reader is made: a writer has other options.
        return SourceOptions.parse(self._given)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "dcp"

    @called_by_spark()
    def schema(self) -> StructType:
        """The schema if the user gives none."""
        options = self._options
        schema = inferred_schema(options) if options.infer_schema else default_schema(options)
        Layout(schema, options)
        return catalog.with_options(schema, self._given) if catalog.is_definition(self.options) else schema

    @called_by_spark()
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader."""
        options = self._options_for(schema)
        reader = PushdownReader if is_pushdown_enabled() else DcpBatchReader
        return reader(options, Layout(schema, options))

    @called_by_spark()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A stream reader with the features of this version of Spark, or one that only says what is wrong."""
        try:
            options = self._options_for(schema)
            options.require_no_end()
            reader = DcpStreamReader if HAS_ADMISSION_CONTROL else PlainStreamReader
            return reader(options, Layout(schema, options))
        except DcpstreamError as error:
            return RefusedStreamReader(error)

    @called_by_spark()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a DataFrame; see `dcpstream_spark.sink.write_options` for its options."""
        # Loaded when used, because most workers only read.
        from dcpstream_spark.sink.writing import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    @called_by_spark()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer of a streaming query with the features of this version of Spark."""
        from dcpstream_spark.sink.writing import stream_writer

        return stream_writer(self.options, schema)

    def _options_for(self, schema: StructType) -> SourceOptions:
        if catalog.has_access(self._given):
            return self._options
        # A table of a catalog has no options, or those of a query's WITH: the others come with its schema.
        return SourceOptions.parse(catalog.options_of_table(schema, self._given))


def is_pushdown_enabled() -> bool:
    """Whether Spark pushes filters to the reader that this process makes.

    Spark refuses a reader with `pushFilters` while spark.sql.python.filterPushdown.enabled is false, and does not pass
    that setting to a source. Only the worker that pushes filters has this module.
    """
    return PUSHDOWN_WORKER in sys.modules or getattr(sys.modules["__main__"].__spec__, "name", "") == PUSHDOWN_WORKER


class DcpBatchReader(DataSourceReader):
    """Reads from startingOffsets to endingOffsets once."""

    def __init__(self, options: SourceOptions, layout: Layout | None = None) -> None:
        self._options = options
        self._layout = layout or Layout(default_schema(options), options)

    @called_by_spark()
    def partitions(self) -> list[InputPartition]:
        """Plan the batch: tasks of one node each."""
        with pool.borrowed_for_plan(self._options, open_cluster) as cluster:
            # The pool closes the cluster if the plan fails.
            earliest = OffsetSpec("earliest")
            coordinator = Coordinator(self._options, default_start=earliest, connect=lambda _: cluster)
            start, end = coordinator.batch()
            ranges = coordinator.ranges_between(start, end, is_first=True, is_replayed=False, has_next_plan=False)
            tasks = _partitions(coordinator, ranges, end)
            return [replace(task, is_narrowed=coordinator.is_narrowed) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return given_to_spark(_rows(self._options, self._layout, partition))


class PushdownReader(DcpBatchReader):
    """A batch reader that applies filters itself."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that compare columns of the source; returns the others, which Spark applies."""
        left: list[Filter] = []
        taken: list[Comparison] = []
        for one in filters:
            comparison = pushed_comparison(one, self._layout.sources)
            if comparison is None:
                left.append(one)
            else:
                taken.append(comparison)
        row_filter = self._options.row_filter or RowFilter()
        self._options = replace(self._options, row_filter=replace(row_filter, exact=tuple(taken)))
        return left


class _StreamReaderBase(DataSourceStreamReader):
    """The common part of both stream readers: everything except `latestOffset`."""

    def __init__(self, options: SourceOptions, layout: Layout | None = None) -> None:
        self._options = options
        self._layout = layout or Layout(default_schema(options), options)
        self._coordinator = Coordinator(options, default_start=OffsetSpec("latest"))
        self._spool = None if options.spool_directory is None else Spool(options.spool_directory)

    @called_by_spark()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """A constant, because Spark may ask several times, also after a restart, and logs only the ends of batches."""
        return self._coordinator.start_marker()

    @called_by_spark()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks between two logged offsets."""
        ranges = self._coordinator.ranges(start, end)
        parts = _partitions(self._coordinator, ranges, self._coordinator.parse(end))
        if self._spool is None or not parts:
            return [*parts]
        tasks = [(part.node, part.ranges) for part in parts]
        files = self._spool.begin(batch_name(start, end, self._rows_text()), tasks)
        return [DcpPartition(node, members, parts[0].bucket_uuid, file) for node, members, file in files]

    def _rows_text(self) -> str:
        """All options that decide about the rows between two offsets."""
        options = self._options
        schema = str(self._layout.arrow)
        return repr(
            (
                schema,
                options.value_format,
                options.collections,
                options.row_filter,
                options.mode,
                sorted(options.include),
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; runs in an executor."""
        options, layout = self._options, self._layout
        if options.on_rollback == "fail" or not runs_once():
            return given_to_spark(_rows(options, layout, partition))
        # The spool has all rows of a task before it gives the first, so only the first batch needs to be held.
        is_spooled = isinstance(partition, DcpPartition) and partition.spool is not None
        return given_to_spark(held(lambda: _rows(options, layout, partition), 0 if is_spooled else HELD_BYTES_MAX))

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the files of a batch that is done; without a spool do nothing, the bucket keeps its history anyway."""
        if self._spool is not None:
            self._spool.done(end)

    def stop(self) -> None:
        """Close the driver's connections."""
        self._coordinator.close()
        leave_if_spark_is_gone()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the options, because the coordinator holds sockets."""
        return type(self), (self._options, self._layout)


class RefusedStreamReader(DataSourceStreamReader):
    """Raises the error that stands in the way of a reader, when Spark first asks for something.

    Spark's worker stops the reader that it has made, also where making it failed. The error would be lost in the one of
    stopping none.
    """

    def __init__(self, error: DcpstreamError) -> None:
        self._error = error

    @called_by_spark()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error."""
        raise self._error

    @called_by_spark()
    def latestOffset(self, *_start_and_limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error."""
        raise self._error

    @called_by_spark()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error


class PlainStreamReader(_StreamReaderBase):
    """For Spark 4.0 and 4.1, which do not pass the start of the next batch.

    After a restart, Spark first asks for the ranges of the last logged batch. Its end is the start of the next one. If
    Spark asks for the initial offset first, its marker is the start. With Trigger.AvailableNow it asks for the end
    before anything else, in a new query and after a restart (seen with 4.1.4). The checkpoint named by the option
    checkpointLocation has the start then. Without it the end is planned without limits, with bounds that are valid for
    every start.
    """

    def __init__(self, options: SourceOptions, layout: Layout | None = None) -> None:
        super().__init__(options, layout)
        self._end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The marker of the start, which is where the first batch begins."""
        marker = super().initialOffset()
        if self._end is None:
            self._end = marker
        return marker

    @called_by_spark()
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name, before 4.2
        """The end of the next batch."""
        if self._end is None and self._options.checkpoint_location is not None:
            newest = newest_logged(self._options.checkpoint_location, self._options.bucket)
            self._end = super().initialOffset() if newest is NOTHING_LOGGED else newest
        if self._end is None:
            return self._coordinator.unanchored_offset()
        if is_start_marker(self._end):
            # Trigger.AvailableNow is one batch here, so a vbucket that is away would be left out.
            self._coordinator.wait_for_all()
        return self._coordinator.next_offset(self._end, _default_limits(self._options))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks between two logged offsets; the end is the start of the next batch."""
        self._end = end
        return super().partitions(start, end)


if HAS_ADMISSION_CONTROL:

    class DcpStreamReader(_StreamReaderBase, SupportsTriggerAvailableNow):
        """For Spark 4.2 and newer: admission control and Trigger.AvailableNow in several batches."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
            """MaxOffsetsPerTrigger in seqnos, which is an upper limit of rows; `latestOffset` adds the other limits."""
            return ReadMaxRows(self._options.max_offsets_per_trigger)

        @called_by_spark()
        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
            """The end of the next batch; `start` itself if there is nothing new."""
            return self._coordinator.next_offset(start, _limits(limit, self._options))

        @called_by_spark()
        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
            """The lag, which the progress shows as `latestOffset`; see `dcpstream_spark.source.lag`."""
            report = self._coordinator.report()
            return None if report is None else report.to_json()

        @called_by_spark()
        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Keep the current high seqnos as the end of the run."""
            self._coordinator.freeze_target()


def _default_limits(options: SourceOptions) -> Limits:
    return Limits(options.max_offsets_per_trigger, options.max_bytes_per_trigger, options.min_offsets_per_trigger)


if HAS_ADMISSION_CONTROL:

    def _limits(limit: ReadLimit, options: SourceOptions) -> Limits:
        """Spark's limit, with the user's options for what it leaves open."""
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        limits = _default_limits(options)
        if isinstance(limit, ReadMaxRows):
            return replace(limits, seqnos=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return replace(limits, size=limit.max_bytes)
        if isinstance(limit, ReadMinRows):
            return replace(limits, least=limit.min_rows)
        return limits


def _rows(options: SourceOptions, layout: Layout, partition: InputPartition) -> Generator[pa.RecordBatch, None, None]:
    # Spark reads a batch without partitions as one with the partition None.
    if isinstance(partition, DcpPartition):
        rows = coalesced(read_partition(options, partition, layout=layout), options.max_batch_rows)
        yield from rows if partition.spool is None else partition.spool.replayed(rows)


def _partitions(coordinator: Coordinator, ranges: list[PlannedRange], end: SourceOffset) -> list[DcpPartition]:
    uuid = end.bucket_uuid or ""
    return [DcpPartition(node, members, uuid) for node, members in coordinator.tasks_of(ranges)]
