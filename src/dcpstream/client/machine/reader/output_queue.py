"""What waits for the user of a reader, in order: rows, events and rollbacks. Rows are converted when asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import EventGroup
from dcpstream.client.machine.reader.batches import Converter
from dcpstream.client.machine.reader.vbucket import Received
from dcpstream.client.machine.values import RollbackEvent
from dcpstream.model import StreamOffset

__all__ = ["OutputQueue"]


class OutputQueue:
    """What one reader gives out; its size is bounded by the windows of the connections.

    Args:
        converter: makes of rows what the user gets.
    """

    def __init__(self, converter: Converter) -> None:
        self._converter = converter
        self._queue: deque[Received | RollbackEvent | EventGroup] = deque()
        self._ready: Iterator[tuple[object, Mapping[int, StreamOffset]] | EventGroup] | None = None
        self._owed: tuple[NodeConnection, int] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything was given out."""
        return not self._queue and self._ready is None

    def put(self, entry: Received | RollbackEvent | EventGroup) -> None:
        """This comes after what is there."""
        if isinstance(entry, EventGroup) and self._queue and isinstance(last := self._queue[-1], EventGroup):
            self._queue[-1] = last.joined(entry)
        else:
            self._queue.append(entry)

    def take(self) -> tuple[object, Mapping[int, StreamOffset]] | RollbackEvent | EventGroup | None:
        """The next thing, or None; the bytes of the one before are acknowledged."""
        while True:
            if self._ready is not None:
                item = next(self._ready, None)
                if item is not None:
                    return item
                self._ready = None
            if self._owed is not None:
                connection, flow_bytes = self._owed
                self._owed = None
                if connection.session is not None:
                    connection.session.consumed(flow_bytes)
            if not self._queue:
                return None
            entry = self._queue.popleft()
            if isinstance(entry, RollbackEvent | EventGroup):
                return entry
            self._owed = (entry.connection, entry.event.flow_bytes)
            self._ready = self._things(entry)

    def _things(self, entry: Received) -> Iterator[tuple[object, Mapping[int, StreamOffset]] | EventGroup]:
        session = entry.connection.session
        assert session is not None
        for part in entry.event.parts():
            if isinstance(part, EventGroup):
                yield part
            else:
                yield from self._converter.convert(part, session.has_collections, entry.names, entry.vbuuids)
