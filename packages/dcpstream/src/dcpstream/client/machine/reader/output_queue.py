"""The queue between a reader and its user: rows, events and rollbacks in order; rows are converted when taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, assert_never

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import RowsReceived
from dcpstream.client.machine.reader.catalog import Catalog
from dcpstream.client.machine.values import CollectionEvents, R, ReaderOutput, RollbackEvent, RowsRead

Names = Mapping[int, tuple[str, str]]
"""Collection id → (scope name, collection name)."""

Branches = Mapping[int, int]
"""Vbucket → vbuuid."""


class Converter(Protocol[R]):
    """Makes the rows that the user asked for of the rows of one receive.

    Attributes:
        uses_names: whether the rows have the names of collections in them, so that they wait for these.
        keeps_frames: whether connections keep rows as the frames that they came in.
    """

    uses_names: bool
    keeps_frames: bool

    def convert(
        self, event: RowsReceived, has_collections: bool, names: Names, vbuuids: Branches
    ) -> Iterable[RowsRead[R]]:
        """The rows for the user, in one part or more.

        Args:
            event: the rows.
            has_collections: whether keys carry collection ids.
            names: of collections; the same object as long as nothing changed.
            vbuuids: the branches that are read; likewise.
        """
        ...


@dataclass(frozen=True, slots=True)
class Received:
    """Rows that wait for the user.

    Attributes:
        event: the rows.
        connection: where they came from; they are acknowledged there.
        names, vbuuids: collections and branches at that moment.
    """

    event: RowsReceived
    connection: NodeConnection
    names: Names
    vbuuids: Branches


class OutputQueue(Generic[R]):
    """The output of one reader; its size is bounded by the flow-control windows of the connections.

    Args:
        converter: makes the user's rows.
        catalog: the names of collections.
    """

    def __init__(self, converter: Converter[R], catalog: Catalog) -> None:
        self._converter = converter
        self._catalog = catalog
        self._queue: deque[Received | RollbackEvent | CollectionEvents] = deque()
        self._ready: Iterator[RowsRead[R] | CollectionEvents] | None = None
        self._unacknowledged: tuple[NodeConnection, int] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return not self._queue and self._ready is None

    def put(self, entry: Received | RollbackEvent | CollectionEvents) -> None:
        """Append an entry; adjacent events become one group."""
        if (
            isinstance(entry, CollectionEvents)
            and self._queue
            and isinstance(last := self._queue[-1], CollectionEvents)
        ):
            self._queue[-1] = last.joined(entry)
        else:
            self._queue.append(entry)

    def clear(self) -> None:
        """Drop what was not taken. Rows that were taken in part refer to this queue, and it to them."""
        self._queue.clear()
        self._ready = self._unacknowledged = None

    def take(self) -> ReaderOutput[R] | None:
        """The next item; acknowledges the bytes of the receive before. None if there is none, or it waits for names."""
        while True:
            if self._ready is not None:
                item = next(self._ready, None)
                if item is not None:
                    return item
                self._ready = None
            if self._unacknowledged is not None:
                connection, flow_bytes = self._unacknowledged
                self._unacknowledged = None
                if connection.session is not None:
                    connection.session.consumed(flow_bytes)
            if not self._queue:
                return None
            entry = self._queue[0]
            match entry:
                case RollbackEvent() | CollectionEvents():
                    self._queue.popleft()
                    return entry
                case Received():
                    names = self._names_for(entry)
                    if names is None:
                        return None
                    self._queue.popleft()
                    self._unacknowledged = (entry.connection, entry.event.flow_bytes)
                    self._ready = self._parts(entry, names)
                case _:
                    assert_never(entry)

    def _names_for(self, entry: Received) -> Names | None:
        """The names of the rows' collections; None while one has no name."""
        if not self._converter.uses_names:
            return entry.names
        session, event = entry.connection.session, entry.event
        assert session is not None
        ids = event.rows.collections(event.keep, has_collections=session.has_collections)
        return entry.names if all(number in entry.names for number in ids) else self._catalog.names_of(ids)

    def _parts(self, entry: Received, names: Names) -> Iterator[RowsRead[R] | CollectionEvents]:
        session = entry.connection.session
        assert session is not None
        for part in entry.event.parts():
            if isinstance(part, CollectionEvents):
                yield part
            else:
                yield from self._converter.convert(part, session.has_collections, names, entry.vbuuids)
