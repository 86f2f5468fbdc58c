"""From the rows of a session to what the user asked for: Arrow batches of changes, or single changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from dcpstream.client.machine.connection.events import RowsReceived
from dcpstream.client.machine.connection.rows import ArrowRows, FrameRows, require_columnar
from dcpstream.client.machine.reader.changes import changes_of
from dcpstream.model import StreamOffset

if TYPE_CHECKING:
    from dcpstream.columnar import WireChunk

Names = Mapping[int, tuple[str, str]]
ValueFormat = Literal["binary", "string"]


class Converter(Protocol):
    """Makes of the rows of one receive one or more things for the user."""

    def convert(
        self, event: RowsReceived, has_collections: bool, names: Names, vbuuids: Mapping[int, int]
    ) -> Iterable[tuple[object, Mapping[int, StreamOffset]]]:
        """(thing, positions after it) of each thing: exactly what it covers, for the vbuckets that it moves.

        Args:
            event: the rows.
            has_collections: whether keys carry collection ids.
            names: collection id → (scope name, collection name); the same object as long as nothing changed.
            vbuuids: vbucket → branch that is read; likewise.
        """
        ...


class ChangeConverter:
    """Tuples of `Change`."""

    def convert(
        self, event: RowsReceived, has_collections: bool, names: Names, vbuuids: Mapping[int, int]
    ) -> Iterator[tuple[object, Mapping[int, StreamOffset]]]:
        """One tuple."""
        rows = event.rows
        assert isinstance(rows, FrameRows)
        yield changes_of(rows.frames, event.runs, has_collections, names, vbuuids), event.offsets


class ArrowConverter:
    """RecordBatches of CHANGE_SCHEMA.

    Args:
        value_format: "binary", or "string" for values that are text.
        columns: what to build, None for all; the others are null.
        max_batch_rows: rows of a batch at most.
    """

    def __init__(self, value_format: ValueFormat, columns: Sequence[str] | None, max_batch_rows: int) -> None:
        columnar = require_columnar()
        self._to_changes = columnar.to_changes
        self._new_context = columnar.ChangeContext
        self._context = columnar.ChangeContext()
        self._made_of: tuple[Names, Mapping[int, int]] | None = None
        self._value_format = value_format
        self._columns = columns
        self._max_batch_rows = max_batch_rows

    def convert(
        self, event: RowsReceived, has_collections: bool, names: Names, vbuuids: Mapping[int, int]
    ) -> Iterator[tuple[object, Mapping[int, StreamOffset]]]:
        """One RecordBatch for each `max_batch_rows`."""
        rows = event.rows
        assert isinstance(rows, ArrowRows)
        chunk = _kept(rows.chunk, event.keep)
        if self._made_of is None or self._made_of[0] is not names or self._made_of[1] is not vbuuids:
            self._context = self._new_context(collection_names=names, vbuuids=vbuuids)
            self._made_of = (names, vbuuids)
        batch = self._to_changes(chunk, context=self._context, value_format=self._value_format, columns=self._columns)
        if len(chunk) <= self._max_batch_rows:
            yield batch, event.offsets
            return
        for first, stop, offsets in event.pieces(self._max_batch_rows):
            yield batch.slice(first, stop - first), offsets


def _kept(chunk: WireChunk, keep: Sequence[tuple[int, int]]) -> WireChunk:
    """The rows that count: a view if they lie together, else a copy."""
    import numpy as np

    if not keep:
        return chunk.slice(0, 0)
    if len(keep) == 1:
        first, stop = keep[0]
        return chunk if stop - first == len(chunk) else chunk.slice(first, stop)
    return chunk.select(np.concatenate([np.arange(first, stop) for first, stop in keep]))
