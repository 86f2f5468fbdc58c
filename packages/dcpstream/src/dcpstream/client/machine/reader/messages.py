"""Rows as the frames that they came in: what users of `messages()` get instead of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dcpstream.client.machine.connection.events import RowsReceived
from dcpstream.client.machine.connection.rows import FrameRows
from dcpstream.client.machine.reader.output_queue import Branches, Names
from dcpstream.client.machine.tracker import Run
from dcpstream.client.machine.values import RowsRead
from dcpstream.wire import Frame


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Adjacent messages of one vbucket, or a place where its position moved without one.

    Attributes:
        frames: mutations, deletions and expirations as they came; their opaque is that of the stream.
        run: where the position is after them, with the bounds of their snapshot.
        has_collections: whether keys begin with a collection id.
    """

    frames: tuple[Frame, ...]
    run: Run
    has_collections: bool


class MessageConverter:
    """Makes tuples of `MessageRun`, one for each receive."""

    uses_names = False
    keeps_frames = True

    def convert(
        self, event: RowsReceived, has_collections: bool, _names: Names, _vbuuids: Branches
    ) -> Iterator[RowsRead[tuple[MessageRun, ...]]]:
        """One tuple; see `output_queue.Converter`."""
        rows = event.rows
        assert isinstance(rows, FrameRows), "the connection keeps frames"
        runs = tuple(MessageRun(tuple(rows.frames[run.first : run.stop]), run, has_collections) for run in event.runs)
        yield RowsRead(runs, event.offsets)
