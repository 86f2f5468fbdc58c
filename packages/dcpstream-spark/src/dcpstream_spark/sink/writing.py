"""The writer of the format `dcp`: rows of a DataFrame or of a stream into a bucket.

Theory of operation: each task turns its Arrow batches into writes (`documents`) and carries them out with a
`DocumentWriter`, which repeats what may pass. Rows that are refused for good go to `rejects`. The commit message of a
task holds its counts, and the driver adds them up.

Nothing is taken back if a task fails: documents that were written stay. Spark repeats the task or the batch, and a
repetition comes to the same bucket, because upserts and deletions do so by themselves and `DocumentWriter` compares a
refused insert with the document. Two attempts of one task at the same time, as with speculative execution, may bring
versions of one document out of order; see docs/how-to/write-from-spark.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from dcpstream.client.kv.writes import DocumentWriter, OutcomeKind, Write
from dcpstream.client.settings.options import access
from dcpstream.errors import ConfigError, RowsRefused
from dcpstream.runtime import SystemRandom
from dcpstream.wire import Status
from dcpstream.wire.codes import code_name
from dcpstream_spark import pool
from dcpstream_spark.sink.documents import DocumentColumns, Reject, op_name
from dcpstream_spark.sink.rejects import RejectsFile, describe, place
from dcpstream_spark.sink.write_options import WriteOptions
from dcpstream_spark.worker import called_by_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Row
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    HAS_STREAM_ARROW_WRITER = True
except ImportError:  # Spark 4.0
    HAS_STREAM_ARROW_WRITER = False

logger = logging.getLogger(__name__)

ROWS_OF_A_BATCH = 10_000
"""Rows that become one Arrow batch on Spark 4.0, whose streams hand out single rows."""

MAX_REJECTS_REPORTED = 100
"""Refused rows that the driver lists for a whole batch; the counts are complete."""

_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""Since 4.2 Spark asks for the zone of a timestamp's Arrow type; before, it is always UTC."""

_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
"""Local properties that Spark gives to the tasks of a streaming query."""


@dataclass(kw_only=True)
class WriteCounts(WriterCommitMessage):
    """Counts of the rows of a task, or of all tasks together, by their outcome.

    Attributes:
        rows: that arrived.
        written: carried out by this attempt.
        repeated: found as wanted, probably written by an earlier attempt.
        absent: deletions of documents that did not exist.
        controls: control rows of the source that concern no document.
        rejected: refused for good.
        requests_repeated: requests that were sent again, because of a busy node or a lost connection.
        rejects: descriptions of refused rows, up to the option `maxRejectsListed`.
    """

    rows: int = 0
    written: int = 0
    repeated: int = 0
    absent: int = 0
    controls: int = 0
    rejected: int = 0
    requests_repeated: int = 0
    rejects: tuple[str, ...] = ()

    @classmethod
    def total(cls, parts: Iterable[WriterCommitMessage | None]) -> WriteCounts:
        """The sum over tasks; a task without a message counts nothing."""
        total = cls()
        for part in parts:
            if isinstance(part, WriteCounts):
                for one in fields(cls):
                    setattr(total, one.name, getattr(total, one.name) + getattr(part, one.name))
        total.rejects = total.rejects[:MAX_REJECTS_REPORTED]
        return total

    def to_json(self) -> str:
        """The counts as a JSON object."""
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    def __str__(self) -> str:
        """The counts that are not 0, for the log."""
        parts = [f"{getattr(self, one.name)} {one.name}" for one in fields(self) if one.type in {"int", int}]
        return ", ".join(part for part in parts if not part.startswith("0 ")) or "no rows"


class RowWriter:
    """Writes the rows of a task; the common part of the writers.

    Args:
        options: checked.
        columns: checked against the rows' schema.
        run: names this write among others, in the names of files with refused rows.
    """

    def __init__(self, options: WriteOptions, columns: DocumentColumns, run: str) -> None:
        self._options = options
        self._columns = columns
        self._run = run

    @called_by_spark()
    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> WriteCounts:
        """Write all rows of a task.

        Raises:
            RowsRefused: onReject is fail, and a row was refused for good.
            StatusError, ConnectionLost: what could not be done until retryTimeout, or for any row.
        """
        counts = WriteCounts()
        rejects = self._rejects_file()
        try:
            with pool.kept(self._pool_key(), self._connect) as writer:
                before = writer.requests_repeated
                for batch in batches:
                    self._write_batch(writer, batch, counts, rejects)
                counts.requests_repeated = writer.requests_repeated - before
            if rejects is not None:
                rejects.finish()
        except BaseException:
            if rejects is not None:
                rejects.abandon()
            raise
        return counts

    def _write_batch(
        self, writer: DocumentWriter, batch: pa.RecordBatch, counts: WriteCounts, file: RejectsFile | None
    ) -> None:
        found = self._columns.writes_of(batch)
        counts.rows += batch.num_rows
        counts.controls += found.controls
        refused = list(found.rejects)
        for write, outcome in zip(found.writes, writer.write(found.writes), strict=True):
            if outcome is None:
                counts.written += 1
            elif outcome.kind is OutcomeKind.REPEATED:
                counts.repeated += 1
            elif outcome.kind is OutcomeKind.ABSENT:
                counts.absent += 1
            else:
                refused.append(_reject(write, outcome.status, outcome.reason))
        if not refused:
            return
        counts.rejected += len(refused)
        left = self._options.max_rejects_listed - len(counts.rejects)
        counts.rejects += tuple(describe(reject) for reject in refused[: max(left, 0)])
        if file is not None:
            file.add(refused)
        if self._options.on_reject == "fail":
            raise RowsRefused(_refused_message(counts))

    def _rejects_file(self) -> RejectsFile | None:
        path = self._options.rejects_path
        if path is None:
            return None
        context = TaskContext.get()
        if context is None:
            return RejectsFile(path, f"rejects-{self._run}-00000.jsonl", "0")
        batch = context.getLocalProperty(_BATCH_ID)
        run = (
            self._run if batch is None else f"{(context.getLocalProperty(_QUERY_ID) or self._run)[:8]}-{int(batch):06d}"
        )
        name = f"rejects-{run}-{context.partitionId():05d}.jsonl"
        return RejectsFile(path, name, str(context.taskAttemptId()))

    def _connect(self) -> DocumentWriter:
        options, given = self._options, self._options.connection
        return DocumentWriter(
            access(given.connection_string, given.username, given.password, given.bucket, given.client_options),
            durability=options.durability,
            durability_timeout_ms=round(options.durability_timeout_s * 1000),
            retry_timeout_s=options.retry_timeout_s,
            window_ops=options.max_in_flight,
            window_bytes=options.max_in_flight_bytes,
        )

    def _pool_key(self) -> pool.Key:
        options = self._options
        return (
            "writer",
            *pool.key_of(options.connection),
            options.durability,
            options.durability_timeout_s,
            options.retry_timeout_s,
            options.max_in_flight,
            options.max_in_flight_bytes,
        )

    @called_by_spark()
    def report(self, messages: Sequence[WriterCommitMessage | None], what: str) -> WriteCounts:
        """Add up the tasks' counts, log them, and write them to the directory of the refused rows."""
        total = WriteCounts.total(messages)
        logger.info("%s: %s", what, total)
        if total.rejected:
            logger.warning("%s: %d rows were refused", what, total.rejected)
            for line in total.rejects:
                logger.warning("%s: %s", what, line)
        return total


class DcpBatchWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame."""

    def __init__(self, writer: RowWriter, run: str) -> None:
        self._writer = writer
        self._run = run

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteCounts:
        """Write the rows of a task; runs in an executor."""
        return self._writer.write_batches(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report the counts of all tasks."""
        self._writer.report(messages, f"write {self._run}")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say that the documents of the finished tasks stay."""
        total = WriteCounts.total(messages)
        logger.warning("write %s failed; documents that were written stay: %s", self._run, total)


class _StreamWriterBase:
    """The common part of both stream writers: everything except `write`."""

    def __init__(self, writer: RowWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Report the counts of a micro-batch."""
        self._writer.report(messages, f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Say that the documents of the finished tasks stay."""
        total = WriteCounts.total(messages)
        logger.warning("batch %d failed; it is written again when the query starts again: %s", batchId, total)


class RowStreamWriter(_StreamWriterBase, DataSourceStreamWriter):
    """For Spark 4.0, whose streams hand out single rows."""

    def write(self, iterator: Iterator[Row]) -> WriteCounts:
        """Write the rows of a task; runs in an executor."""
        return self._writer.write_batches(self._batches(iterator))

    def _batches(self, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        held: list[dict[str, Any]] = []
        for row in rows:
            held.append(row.asDict())
            if len(held) >= ROWS_OF_A_BATCH:
                yield pa.RecordBatch.from_pylist(held, self._schema)
                held = []
        if held:
            yield pa.RecordBatch.from_pylist(held, self._schema)


if HAS_STREAM_ARROW_WRITER:

    class ArrowStreamWriter(_StreamWriterBase, DataSourceStreamArrowWriter):
        """For Spark 4.1 and newer: rows arrive as Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteCounts:
            """Write the rows of a task; runs in an executor."""
            return self._writer.write_batches(iterator)


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DcpBatchWriter:
    """The writer of a DataFrame.

    Raises:
        ConfigError: an option or a column cannot be used, or the mode is overwrite.
    """
    if overwrite:
        raise ConfigError(
            "mode",
            "overwrite",
            "append. A write never empties a bucket: with append, the option operation says what happens to a document "
            "that exists",
        )
    writer, _ = _row_writer(options, schema)
    return DcpBatchWriter(writer, writer._run)


def stream_writer(options: Mapping[str, str], schema: StructType) -> DataSourceStreamWriter:
    """The writer of a streaming query, with the features of this version of Spark.

    The output modes append and update write the rows of a batch; complete writes all rows of the result each time.

    Raises:
        ConfigError: an option or a column cannot be used.
    """
    writer, arrow = _row_writer(options, schema)
    return ArrowStreamWriter(writer, arrow) if HAS_STREAM_ARROW_WRITER else RowStreamWriter(writer, arrow)


def _row_writer(options: Mapping[str, str], schema: StructType) -> tuple[RowWriter, pa.Schema]:
    checked = WriteOptions.parse(options)
    if checked.rejects_path is not None:
        _check_place(checked.rejects_path)
    arrow = to_arrow_schema(schema, **_IN_UTC)
    columns = DocumentColumns.check(checked, arrow)
    return RowWriter(checked, columns, f"{SystemRandom().getrandbits(32):08x}"), arrow


def _check_place(path: str) -> None:
    try:
        place(path)
    except (OSError, ValueError) as error:
        raise ConfigError("rejectsPath", path, f"a directory or URL that pyarrow can write ({error})") from None


def _reject(write: Write, status: int, reason: str) -> Reject:
    return Reject(write.key, op_name(write.op), write.collection, code_name(Status, status), reason, write.value)


def _refused_message(counts: WriteCounts) -> str:
    shown = "; ".join(counts.rejects[:3])
    return (
        f"the bucket refuses {counts.rejected} rows of this task so far: {shown}. The rows before them are written. "
        "Set onReject to skip or path to go on without such rows, or change the rows or the option operation."
    )
