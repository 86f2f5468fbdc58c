"""The streams of a connection as the native kernel knows them, and its walk over the messages of a receive.

The kernel follows a stream while its messages are plain: rows, SEQNO_ADVANCED, and markers that ask for nothing. Then
it checks them and moves the position, and Python sees neither. Everything else is handed over, with all later messages
of the stream in the same receive. If somebody asks for the position of such a stream (`PositionTracker.snapshots`), the
kernel gives it back; before the next receive, the kernel gets it again if its next messages are plain.

`native/walk.c` has the layout of the table. Needs the kernel and nothing else.
"""

from __future__ import annotations

import struct
from functools import partial
from types import ModuleType
from typing import NamedTuple, Protocol

from dcpstream.client.machine.tracker import Moves, PositionTracker, Run
from dcpstream.dcp.snapshot import PlainItems
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.columns import NativeScan, check_rest
from dcpstream.wire.frames import frame_length

FIRST_PLACES = 2048
"""Places of a new table, 256 KiB, of which a few streams touch a small part; a power of two, as all sizes are."""

PLACES_MAX = 64 * 1024
"""Most places, 8 MiB. The opaques of open streams are close together, so that a table needs few more than there are
streams. A stream whose place is taken in the largest table is handled in Python."""

GROWTH = 4

_KNOWN = struct.Struct("=IHBB6Q")
"""The facts about a stream: opaque, vbucket, state, flags; seqno, bounds of the position, bounds of the next items,
and the first seqno that is handed over."""
_PLACE_BYTES = 128
_FLAGS_AT = 7
_OFF, _PLAIN, _UNORDERED = 0, 1, 2
_HAS_ITEMS, _TAKES_MARKERS, _WANTS_HISTORY, _HAS_LIMIT = 1, 2, 4, 16
_ROUNDS = 0xFFFFFFFF


class Stream(Protocol):
    """A stream of a session; see `events.Stream`."""

    @property
    def opaque(self) -> int:
        """That of its request."""
        ...

    @property
    def vbid(self) -> int:
        """The vbucket."""
        ...

    @property
    def end_seqno(self) -> int:
        """The seqno at which to stop."""
        ...

    @property
    def tracker(self) -> PositionTracker:
        """Its position."""
        ...

    @property
    def is_plain(self) -> bool:
        """Whether its rows go to the user as they come."""
        ...


class Walked(NamedTuple):
    """The messages of a receive; nothing has moved yet.

    Attributes:
        found: the rows.
        others: (rows before it, start) of every other message that the kernel hands over.
        owners, raw, runs, marked, handed: see `Moves`; `marked` are the moves under a marker that the kernel has taken.
        touched: the streams with a new state.
    """

    found: NativeScan
    others: list[tuple[int, int]]
    owners: bytes
    raw: bytes
    runs: tuple[Run, ...]
    marked: bytes
    handed: list[tuple[int, int]]
    touched: bytes


class StreamTable:
    """The streams of one connection.

    Args:
        native: the kernel.

    Attributes:
        wants_history: whether a marker without history means something.
    """

    def __init__(self, native: ModuleType) -> None:
        self._native = native
        self.wants_history = False
        self._has_unordered = False
        self._changed: dict[Stream, None] = {}
        self._round = 0
        self._begin(FIRST_PLACES)

    def _begin(self, places: int) -> None:
        self._memory = bytearray(places * _PLACE_BYTES)
        self._streams: list[Stream | None] = [None] * places
        self._runs: list[Run | None] = [None] * places

    def changed(self, stream: Stream) -> None:
        """A message of a stream was handled in Python: the next ones may be plain."""
        self._changed[stream] = None

    def forget(self, stream: Stream) -> None:
        """A stream is over."""
        stream.tracker.take_back()
        self._changed.pop(stream, None)

    def walk(self, buffer: Buffer, start: int, stop: int) -> Walked:
        """Follow the whole frames in `buffer[start:stop]`, and take those that are plain.

        Raises:
            FrameError: bytes that are no frame, also at the begin of the frame that is not whole.
        """
        while self._changed:
            self._follow(self._changed.popitem()[0])
        self._round = self._round % _ROUNDS + 1
        starts, end, key_bytes, value_bytes, broken, others, owners, raw, runs, marked, handed, touched = (
            self._native.walk(buffer, start, stop, self._memory, self._round, self._runs)
        )
        if broken >= 0:
            frame_length(buffer, broken)
            raise AssertionError(f"the kernel refused the frame at {broken}, the plain check did not")
        check_rest(buffer, end, stop)
        found = NativeScan(self._native, starts, end, len(owners) // 4, key_bytes, value_bytes)
        return Walked(found, others, owners, raw, runs, marked, handed, touched)

    def settle(self, walked: Walked, seqnos: memoryview) -> Moves:
        """The rows of a walk were decoded, and have these seqnos: take over the positions."""
        self._native.settle(self._memory, walked.touched)
        moves = Moves(walked.runs, walked.raw, walked.owners, walked.handed, self._has_unordered, self._native, seqnos)
        if not walked.marked:
            return moves
        runs = list(walked.runs)
        for move in memoryview(walked.marked).cast("I"):
            begin, end = moves.bounds(move)
            place = moves.place(move)
            flags = self._memory[place * _PLACE_BYTES + _FLAGS_AT]
            limit = end if flags & _HAS_LIMIT else None  # such a marker is the last one that the kernel takes
            run = runs[move]._replace(snapshot_start=begin, snapshot_end=end, purge_limit=limit)
            runs[move] = self._runs[place] = run
        return moves._replace(runs=tuple(runs))

    def _follow(self, stream: Stream) -> None:
        """Let the kernel follow a stream, if its next messages can be plain."""
        if not stream.is_plain:
            return
        found = stream.tracker.plain_items(stream.vbid)
        self._changed.pop(stream, None)  # because of the question
        if found is None:
            return
        place = stream.opaque & (len(self._streams) - 1)
        if self._streams[place] is not None:
            self._grow(stream)
            return
        items, run = found
        self._has_unordered = self._has_unordered or items.is_unordered
        flags = _HAS_ITEMS * items.has_items | _TAKES_MARKERS * items.takes_markers
        _KNOWN.pack_into(
            self._memory,
            place * _PLACE_BYTES,
            stream.opaque,
            stream.vbid,
            _UNORDERED if items.is_unordered else _PLAIN,
            flags | _WANTS_HISTORY * self.wants_history,
            *items[3:8],
            min(items.stop, stream.end_seqno),
        )
        self._streams[place], self._runs[place] = stream, run
        stream.tracker.follow(partial(self._give_back, stream, place))

    def _give_back(self, stream: Stream, place: int) -> PlainItems:
        at = place * _PLACE_BYTES
        _, _, state, flags, *numbers = _KNOWN.unpack_from(self._memory, at)
        _KNOWN.pack_into(self._memory, at, 0, 0, _OFF, 0, 0, 0, 0, 0, 0, 0)
        self._streams[place] = self._runs[place] = None
        self._changed[stream] = None
        return PlainItems(
            state == _UNORDERED,
            bool(flags & _HAS_ITEMS),
            bool(flags & _TAKES_MARKERS),
            *numbers,
        )._replace(has_limit=bool(flags & _HAS_LIMIT))

    def _grow(self, stream: Stream) -> None:
        """Make room for a stream whose place is taken."""
        places = min(len(self._streams) * GROWTH, PLACES_MAX)
        if places == len(self._streams):
            return
        for one in self._streams:
            if one is not None:
                one.tracker.take_back()
        self._begin(places)
        self._changed[stream] = None
