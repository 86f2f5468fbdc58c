"""Arrow batches of changes, and of control rows about rollbacks and collections. Needs pyarrow."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from dcpstream.client.machine.connection.events import RowsReceived
from dcpstream.client.machine.connection.rows import FrameRows, NativeRows
from dcpstream.client.machine.reader.output_queue import Branches, Names
from dcpstream.client.machine.values import RollbackEvent, RowsRead, VbucketEvent
from dcpstream.errors import ConfigError
from dcpstream.model import Op

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from dcpstream.arrow import Missing, RowFilter, WireChunk

ValueFormat = Literal["binary", "string"]


class ArrowConverter:
    """Makes RecordBatches of CHANGE_SCHEMA.

    Args:
        value_format: "binary", or "string" for values that are text.
        columns: the columns to build, None for those of CHANGE_SCHEMA.
        max_batch_rows: rows of a batch at most.
        row_filter: selects rows before they are built; None for all.
        missing: "null" fills the other columns with nulls, "drop" leaves them out.

    Raises:
        ConfigError: numpy or pyarrow is missing.
    """

    uses_names = True
    keeps_frames = False

    def __init__(
        self,
        value_format: ValueFormat,
        columns: Sequence[str] | None,
        max_batch_rows: int,
        *,
        row_filter: RowFilter | None = None,
        missing: Missing = "null",
    ) -> None:
        columnar = require_arrow()
        self._chunk_over = columnar.WireChunk.over
        self._chunk_of = columnar.chunk_of
        self._to_changes = columnar.to_changes
        self._new_context = columnar.ChangeContext
        self._context = columnar.ChangeContext()
        self._context_source: tuple[Names, Branches] | None = None
        self._value_format = value_format
        self._columns = columns
        self._max_batch_rows = max_batch_rows
        self._filter = row_filter
        self._missing = missing

    def convert(
        self, event: RowsReceived, has_collections: bool, names: Names, vbuuids: Branches
    ) -> Iterator[RowsRead[pa.RecordBatch]]:
        """One RecordBatch for each `max_batch_rows`; see `output_queue.Converter`."""
        rows = event.rows
        if isinstance(rows, NativeRows):
            chunk = self._chunk_over(rows.columns)
        else:
            assert isinstance(rows, FrameRows)
            chunk = self._chunk_of(rows.frames, has_collections)
        chunk = _kept(chunk, event.keep)
        source = self._context_source
        if source is None or source[0] is not names or source[1] is not vbuuids:
            self._context = self._new_context(collection_names=names, vbuuids=vbuuids)
            self._context_source = (names, vbuuids)
        rows_before: npt.NDArray[np.int64] | None = None
        count = len(chunk)
        if self._filter is not None:
            stays = self._filter.rows(chunk, self._context)
            if not stays.all():
                rows_before = _counted(stays)
                chunk = chunk.select(stays)
        batch = self._to_changes(
            chunk,
            context=self._context,
            value_format=self._value_format,
            columns=self._columns,
            missing=self._missing,
        )
        if count <= self._max_batch_rows:
            yield RowsRead(batch, event.offsets)
            return
        for first, stop, offsets in event.pieces(self._max_batch_rows):
            if rows_before is None:
                yield RowsRead(batch.slice(first, stop - first), offsets)
            else:
                begin = int(rows_before[first])
                yield RowsRead(batch.slice(begin, int(rows_before[stop]) - begin), offsets)


def require_arrow() -> ModuleType:
    """The columnar package.

    Raises:
        ConfigError: pyarrow is missing; says what to install and what works without.
    """
    try:
        return importlib.import_module("dcpstream.arrow")
    except ImportError as error:
        raise ConfigError(
            "stream",
            "Arrow batches",
            f"they need pyarrow: pip install 'dcpstream[arrow]', or read single changes with changes() ({error})",
        ) from error


def _counted(stays: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """int64[rows + 1], how many of the rows before each row stay."""
    import numpy as np

    counts = np.zeros(len(stays) + 1, np.int64)
    np.cumsum(stays, out=counts[1:])
    return counts


def _kept(chunk: WireChunk, keep: Sequence[tuple[int, int]]) -> WireChunk:
    """The rows that count: a view if they are contiguous, otherwise a copy."""
    import numpy as np

    if not keep:
        return chunk.slice(0, 0)
    if len(keep) == 1:
        first, stop = keep[0]
        return chunk if stop - first == len(chunk) else chunk.slice(first, stop)
    return chunk.select(np.concatenate([np.arange(first, stop) for first, stop in keep]))


def rollback_batch(
    event: RollbackEvent, value_format: ValueFormat, columns: Sequence[str] | None, time_ns: int
) -> pa.RecordBatch:
    """The control row that reports a rollback to a table."""
    columnar = require_arrow()
    row = columnar.ControlRow(Op.ROLLBACK, event.vbid, event.to_seqno, event.new_vbuuid, event.details())
    batch: pa.RecordBatch = columnar.control_rows([row], time=time_ns / 1e9, value_format=value_format, columns=columns)
    return batch


def events_batch(
    events: Iterable[VbucketEvent], value_format: ValueFormat, columns: Sequence[str] | None, time_ns: int
) -> pa.RecordBatch:
    """The control rows that report events to a table."""
    columnar = require_arrow()
    rows = [
        columnar.ControlRow(
            event.op,
            event.vbid,
            event.seqno,
            event.vbuuid,
            event.details(),
            event.scope or None,
            event.collection or None,
        )
        for event in events
    ]
    batch: pa.RecordBatch = columnar.control_rows(rows, time=time_ns / 1e9, value_format=value_format, columns=columns)
    return batch
