"""Streams whose messages are mixed: what the kernel follows means the same as the frames in their order.

`FrameDecoder` and the session are the definition of what is right. The other decoders let the kernel follow the
streams. All get the same bytes in the same pieces, of sound and of hostile nodes.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from dcpstream.client.machine.connection import stream_table
from dcpstream.client.machine.connection.events import RowsReceived, Stream, StreamBroken, StreamDone, StreamStopped
from dcpstream.client.machine.connection.rows import Decoder, FrameDecoder, FrameRows, NativeDecoder, NativeRows
from dcpstream.client.machine.connection.session import DcpSession
from dcpstream.client.machine.reader.changes import changes_of, native_changes
from dcpstream.client.machine.values import CollectionEvents
from dcpstream.client.settings.options import DcpSettings
from dcpstream.errors import DcpstreamError
from dcpstream.model import MAX_SEQNO, StreamOffset
from dcpstream.runtime import kernel
from dcpstream.wire import Opcode, encode_request
from tests.kit.fake_node import ADDRESS
from tests.kit.messages import (
    LOG,
    accepted,
    deletion,
    marker,
    marker_v22,
    mutation,
    oso,
    seqno_advanced,
    stream_end,
    system_event,
)

if kernel.native is None:
    pytest.skip(f"no native kernel here: {kernel.description}", allow_module_level=True)
NATIVE = kernel.native

STREAMS = 5
UNKNOWN = 77
SNAPSHOT = 12
"""Most seqnos in a snapshot."""
MEMORY, DISK, CHECKPOINT, ACK, HISTORY = 1, 2, 4, 8, 16
BRANCH = LOG.newest.vbuuid
STARTS = (
    StreamOffset.ZERO,
    StreamOffset(BRANCH, 5, 0, 30, 0),  # inside a snapshot, whose bounds go on to count
    StreamOffset(BRANCH, 9, 9, 9, 0),
    StreamOffset(BRANCH, 6, 0, 40, 0, None, 40),  # with a purge limit
)


@dataclass
class Sender:
    """One stream of a node that keeps the protocol until it is told not to."""

    dice: random.Random
    opaque: int
    vbid: int
    seqno: int
    end: int = 0
    unordered: list[int] = field(default_factory=list)

    def row(self, make: Callable[..., bytes] = mutation) -> bytes:
        if self.unordered:
            seqno = self.unordered.pop()
            closed = b"" if self.unordered else self._border(2)
            return make(self.opaque, seqno, vbid=self.vbid) + closed
        announced = self._marker() if self.seqno >= self.end else b""
        self.seqno = min(self.seqno + self.dice.choice((1, 1, 1, 2)), self.end)
        return announced + make(self.opaque, self.seqno, vbid=self.vbid)

    def _marker(self) -> bytes:
        start, self.end = self.seqno + self.dice.choice((0, 1)), self.seqno + 1 + self.dice.randrange(SNAPSHOT)
        if self.seqno in {5, 6} and self.dice.random() < 0.7:
            start, self.end = 0, max(self.end, 20)  # the producer begins where the request's snapshot began
        flags = self.dice.choice((MEMORY, MEMORY | CHECKPOINT, DISK, DISK | HISTORY, MEMORY | HISTORY, MEMORY | ACK))
        match self.dice.randrange(4):
            case 0:
                return marker_v22(self.opaque, start, self.end, 0, vbid=self.vbid)
            case 1:
                value = struct.pack(">QQIQQ", start, self.end, flags, self.end, 0)
                return encode_request(
                    Opcode.DCP_SNAPSHOT_MARKER, opaque=self.opaque, vbid=self.vbid, extras=b"\0", value=value
                )
            case _:
                return marker(self.opaque, start, self.end, vbid=self.vbid, flags=flags)

    def mixed(self) -> bytes:
        """An out-of-order snapshot begins; it ends after its last row."""
        if self.unordered or self.seqno < self.end:
            return self.row()
        seqnos = list(range(self.seqno + 1, self.seqno + 2 + self.dice.randrange(SNAPSHOT)))
        self.seqno = self.end = seqnos[-1]
        self.dice.shuffle(seqnos)
        self.unordered = seqnos
        return self._border(1)

    def _border(self, flags: int) -> bytes:
        frame = bytearray(oso(self.opaque, flags))
        frame[6:8] = self.vbid.to_bytes(2, "big")
        return bytes(frame)


def event(opaque: int, seqno: int, *, vbid: int) -> bytes:
    return system_event(opaque, seqno, "c", 9, vbid=vbid)


SOUND: dict[str, Callable[[Sender], bytes]] = {
    "row": lambda one: one.row(),
    "deletion": lambda one: one.row(deletion),
    "advance": lambda one: one.row(seqno_advanced),
    "event": lambda one: one.row(event),
    "mixed": lambda one: one.mixed(),
    "noop": lambda one: encode_request(Opcode.DCP_NOOP, opaque=9),
    "same opaque": lambda one: encode_request(Opcode.DCP_NOOP, opaque=one.opaque),
    "end": lambda one: stream_end(one.opaque, 2, vbid=one.vbid),
}
BROKEN: dict[str, Callable[[Sender], bytes]] = {
    "again": lambda one: mutation(one.opaque, one.seqno, vbid=one.vbid),
    "outside": lambda one: mutation(one.opaque, one.end + 1, vbid=one.vbid),
    "stray": lambda one: mutation(one.opaque, one.seqno + 1, vbid=one.vbid + 1),
    "stray advance": lambda one: seqno_advanced(one.opaque, one.seqno + 1, vbid=one.vbid + 1),
    "stray marker": lambda one: marker(one.opaque, one.seqno, one.seqno + 3, vbid=one.vbid + 1),
    "back": lambda one: marker(one.opaque, 0, max(one.seqno - 1, 0), vbid=one.vbid),
    "overlap": lambda one: marker(one.opaque, max(one.seqno - 1, 0), one.seqno + 5, vbid=one.vbid),
    "backwards": lambda one: marker(one.opaque, one.seqno + 5, one.seqno, vbid=one.vbid),
    "oso": lambda one: one._border(1),
    "oso end": lambda one: one._border(2),
    "cut short": lambda one: encode_request(Opcode.DCP_SEQNO_ADVANCED, opaque=one.opaque, vbid=one.vbid),
    "short marker": lambda one: encode_request(
        Opcode.DCP_SNAPSHOT_MARKER, opaque=one.opaque, vbid=one.vbid, extras=b"\2", value=bytes(19)
    ),
    "nobody": lambda one: mutation(UNKNOWN, 1, vbid=one.vbid),
    "not a producer": lambda one: encode_request(Opcode.DCP_ADD_STREAM, opaque=one.opaque, vbid=one.vbid),
    "extras": lambda one: encode_request(
        Opcode.DCP_MUTATION, opaque=one.opaque, vbid=one.vbid, extras=(one.seqno + 1).to_bytes(8, "big")
    ),
}
UNREADABLE = "unreadable"
STEADY = ["row"] * 140 + ["deletion", "advance"] * 12 + ["event", "noop", "same opaque", "mixed"]
RARE = ["end"]


def script_of(dice: random.Random, faults: int) -> list[tuple[int, str]]:
    """(stream, message) in the order of sending: sound ones, and some that are not."""
    script = [(dice.randrange(STREAMS), dice.choice(STEADY)) for _ in range(dice.randrange(70, 400))]
    for kind in dice.choices(sorted(BROKEN), k=faults) + (RARE if dice.random() < 0.3 else []):
        script.insert(dice.randrange(len(script)), (dice.randrange(STREAMS), kind))
    return script


def pieces_of(dice: random.Random, data: bytes) -> list[bytes]:
    sizes = dice.choice(((1, 90), (100, 2000), (len(data), len(data) + 1)))
    pieces = []
    while data:
        size = dice.randrange(*sizes)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


class Outcome(NamedTuple):
    """The outcome of one stream.

    Attributes:
        rows: the seqno of each row, and the position after it.
        ends: how it ended.
        events: seqno and position of each event.
        position: of the stream.
        offset: the last position that was given out.
    """

    rows: list[tuple[int, StreamOffset]]
    ends: list[str]
    events: list[tuple[int, StreamOffset]]
    position: StreamOffset
    offset: StreamOffset | None


@dataclass
class Heard:
    """The results of one session, by vbucket, and the error that ended it."""

    rows: dict[int, list[tuple[int, StreamOffset]]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    events: dict[int, list[tuple[int, StreamOffset]]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[int, StreamOffset] = field(default_factory=dict)
    positions: list[StreamOffset] = field(default_factory=list)
    outstanding: int = 0
    sent: bytes = b""
    error: str = ""
    moves: int = 0
    followed: int = 0

    def of(self, vbid: int) -> Outcome:
        return Outcome(
            self.rows[vbid], self.ends[vbid], self.events[vbid], self.positions[vbid], self.offsets.get(vbid)
        )


class Names:
    """Resolves the names in system events."""

    def take_event(self, event: object) -> None:
        """It is of no interest."""

    def scope_of(self, event: object) -> str:
        return "s"

    def collection_of(self, event: object) -> None:
        raise AssertionError("no stream is of some collections")


class Case(NamedTuple):
    """Bytes, and the session that gets them."""

    starts: list[StreamOffset]
    ends: list[int]
    settings: DcpSettings
    pieces: list[bytes]


def case_of(seed: int, *, unreadable: bool = False) -> Case:
    dice = random.Random(seed)
    starts = dice.choices(STARTS, k=STREAMS)
    ends = [max(start.seqno + 1, dice.choice([10, 40, *[MAX_SEQNO] * 4])) for start in starts]
    settings = DcpSettings(name="reader", out_of_order=dice.random() < 0.8, history=dice.random() < 0.3)
    senders = [Sender(dice, number + 1, number, start.seqno) for number, start in enumerate(starts)]
    data = b"".join({**SOUND, **BROKEN}[kind](senders[stream]) for stream, kind in script_of(dice, seed % 4))
    if unreadable:
        one = dice.choice(senders)
        data += mutation(one.opaque, one.seqno + 1, vbid=one.vbid, key=b"\xff" * 9).replace(b"\0\xff", b"\xff\xff")
        data += one.row()
    return Case(starts, ends, settings, pieces_of(dice, data))


def heard(decoder: Decoder, case: Case) -> Heard:
    session = DcpSession(ADDRESS, case.settings, True, 0.0, has_history=case.settings.history, table=decoder.table)
    streams = [
        session.open_stream(vbid, start, end, 0.0)
        for vbid, (start, end) in enumerate(zip(case.starts, case.ends, strict=True))
    ]
    assert [stream.opaque for stream in streams] == list(range(1, STREAMS + 1))
    result = Heard()
    left = b"".join(accepted(stream.opaque) for stream in streams)
    for piece in (b"", *case.pieces):
        left += piece
        buffer = bytearray(left)
        try:
            rows, end = decoder.decode(buffer, 0, len(buffer))
            left = left[end:]
            session.receive_rows(rows, 0.0)
        except DcpstreamError as error:
            result.error = str(error)
        buffer[:] = bytes(len(buffer))
        take(session, result)
        if result.error:
            break
    result.positions = [stream.tracker.offset for stream in streams]
    result.outstanding = session.window.outstanding_bytes
    result.sent = session.data_to_send()
    return result


def take(session: DcpSession, result: Heard) -> None:
    for event in session.events():
        match event:
            case RowsReceived():
                take_rows(event, result)
            case StreamBroken():
                result.ends[event.stream.vbid].append(str(event.error))
            case StreamDone():
                result.ends[event.stream.vbid].append("done")
            case StreamStopped():
                result.ends[event.stream.vbid].append(f"stopped {event.reason}")
            case _:
                pass


def take_rows(event: RowsReceived, result: Heard) -> None:
    rows = event.rows
    if event.moves is not None:
        result.moves += len(event.moves.runs)
        result.followed += sum(event.moves.rows(move) for move in range(len(event.moves.runs)))
    for run in event.runs:
        for row in range(run.first, run.stop):
            assert rows.vbid(row) == run.vbid
            result.rows[run.vbid].append((rows.seqno(row), run.offset(rows.seqno(row))))
        if run.event is not None:
            result.events[run.vbid].append((run.event.seqno, run.event.offset))
    check_changes(event)
    check_pieces(event)
    check_parts(event)
    result.offsets.update(event.offsets)


def check_changes(event: RowsReceived) -> None:
    """Single changes are the rows of the runs, in the order of arrival, with their positions."""
    rows = event.rows
    expected = sorted((row, run.offset(rows.seqno(row))) for run in event.runs for row in range(run.first, run.stop))
    assert [row for row, _ in expected] == [row for first, stop in event.keep for row in range(first, stop)]
    owned = event.owned
    if isinstance(rows, NativeRows):
        runs, owners = (event.handled, None) if owned is None else (owned.runs, owned.owners)
        changes = native_changes(rows, runs, {}, {}, owners)
    elif isinstance(rows, FrameRows) and not any(frame.key.startswith(b"\xff") for frame in rows.frames):
        changes = changes_of(rows.frames, event.runs, True, {}, {})
    else:
        return
    got = [(change.vbid, change.seqno, change.offset) for change in changes]
    assert got == [(rows.vbid(row), rows.seqno(row), offset) for row, offset in expected]


def check_pieces(event: RowsReceived) -> None:
    """After each piece the positions are those after its rows."""
    rows = event.rows
    after = {row: run for run in event.runs for row in range(run.first, run.stop)}
    kept = [row for first, stop in event.keep for row in range(first, stop)]
    pieces = list(event.pieces(7))
    assert [number for begin, end, _ in pieces for number in range(begin, end)] == list(range(len(kept)))
    for begin, end, offsets in pieces[:-1] if event.moves is not None else ():
        last = {after[row].vbid: row for row in kept[begin:end]}
        assert dict(offsets) == {vbid: after[row].offset(rows.seqno(row)) for vbid, row in last.items()}
    for vbid, offset in pieces[-1][2].items():
        assert offset == event.offsets[vbid]


def check_parts(event: RowsReceived) -> None:
    """The parts have all rows of each vbucket, in order, and its events between them."""
    rows = event.rows
    expected: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for run in event.runs:
        expected[run.vbid] += [("row", rows.seqno(row)) for row in range(run.first, run.stop)]
        if run.event is not None:
            expected[run.vbid].append(("event", run.event.seqno))
    got: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for part in event.parts():
        if isinstance(part, CollectionEvents):
            for one in part.events:
                got[one.vbid].append(("event", one.seqno))
        else:
            for row in (row for first, stop in part.keep for row in range(first, stop)):
                got[rows.vbid(row)].append(("row", rows.seqno(row)))
    assert {vbid: items for vbid, items in got.items() if items} == {
        vbid: items for vbid, items in expected.items() if items
    }


SEEDS = [*range(60), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60, 1500))]


@pytest.mark.parametrize("seed", SEEDS)
def test_mixed_streams_mean_the_same_in_every_shape(seed: int) -> None:
    """If the connection is given up, the kernel may give more: sound rows of other streams after the fault."""
    case = case_of(seed)
    plain = heard(FrameDecoder(), case)
    assert plain.moves == 0
    found = heard(NativeDecoder(NATIVE, collections=True), case)
    assert found.error[:40] == plain.error[:40]
    if not plain.error:
        assert (found.outstanding, found.sent) == (plain.outstanding, plain.sent)
    for vbid in range(STREAMS):
        mine, theirs = found.of(vbid), plain.of(vbid)
        if plain.error:
            assert mine.rows[: len(theirs.rows)] == theirs.rows
            assert mine.offset in {mine.position, None}
        else:
            assert mine == theirs


def test_the_kernel_follows_most_of_it() -> None:
    """Otherwise the test above would compare nothing."""
    found = [heard(NativeDecoder(NATIVE, collections=True), case_of(seed)) for seed in range(0, 80, 4)]
    rows = sum(len(some) for one in found for some in one.rows.values())
    assert sum(one.followed for one in found) > rows / 2 > 500


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_a_key_that_cannot_be_read_costs_no_other_row(seed: int) -> None:
    case = case_of(seed, unreadable=True)
    plain = heard(FrameDecoder(), case)
    native = heard(NativeDecoder(NATIVE, collections=True), case)
    for vbid in range(STREAMS):
        if not plain.error:
            assert native.of(vbid) == plain.of(vbid)
        mine = native.of(vbid)
        assert mine.offset in {mine.position, None}


@pytest.mark.parametrize("most", [1, 2, 64])
def test_places_of_streams(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A table grows, up to a limit; streams without a place are followed in Python."""
    monkeypatch.setattr(stream_table, "FIRST_PLACES", 1)
    monkeypatch.setattr(stream_table, "PLACES_MAX", most)
    for seed in range(12):
        case = case_of(4 * seed)
        plain = heard(FrameDecoder(), case)
        found = heard(NativeDecoder(NATIVE, collections=True), case)
        assert (found.error, found.sent) == (plain.error, plain.sent)
        assert [found.of(vbid) for vbid in range(STREAMS)] == [plain.of(vbid) for vbid in range(STREAMS)]


def test_an_end_that_is_lowered_is_known_to_the_kernel() -> None:
    decoder = NativeDecoder(NATIVE, collections=True)
    session = DcpSession(ADDRESS, DcpSettings(name="reader"), True, 0.0, table=decoder.table)
    stream = session.open_stream(0, StreamOffset.ZERO, MAX_SEQNO, 0.0)
    result = Heard()

    def receive(data: bytes) -> None:
        session.receive_rows(decoder.decode(bytearray(data), 0, len(data))[0], 0.0)
        take(session, result)

    receive(accepted(stream.opaque) + marker(stream.opaque, 0, 9) + mutation(stream.opaque, 1))
    receive(mutation(stream.opaque, 2))
    assert result.moves == 1
    stream.stop_at(4)
    receive(b"".join(mutation(stream.opaque, seqno) for seqno in (3, 4, 5)))
    assert [seqno for seqno, _ in result.rows[0]] == [1, 2, 3, 4]
    assert result.ends[0] == ["done"]


def test_a_followed_stream_costs_one_move_for_each_marker() -> None:
    decoder = NativeDecoder(NATIVE, collections=True)
    session = DcpSession(ADDRESS, DcpSettings(name="reader"), True, 0.0, table=decoder.table)
    streams: list[Stream] = [session.open_stream(vbid, StreamOffset.ZERO, MAX_SEQNO, 0.0) for vbid in (0, 1)]

    def receive(*frames: bytes) -> list[RowsReceived]:
        data = bytearray(b"".join(frames))
        session.receive_rows(decoder.decode(data, 0, len(data))[0], 0.0)
        return [event for event in session.events() if isinstance(event, RowsReceived)]

    receive(*(accepted(one.opaque) + marker(one.opaque, 0, 2, vbid=one.vbid) for one in streams))
    turns = [mutation(one.opaque, seqno, vbid=one.vbid) for seqno in (1, 2) for one in streams]
    (event,) = receive(*turns)
    assert event.moves is not None
    assert (len(event.moves.runs), event.handled, event.keep) == (2, [], [(0, 4)])
    one = streams[0].opaque
    receive(marker(one, 3, 4), mutation(one, 3), mutation(one, 4))
    (event,) = receive(marker(one, 5, 5), mutation(one, 5), marker(one, 6, 7), mutation(one, 6))
    assert event.moves is not None
    assert [run.snapshot_end for run in event.moves.runs] == [5, 7]
    assert event.offsets[0] == StreamOffset(BRANCH, 6, 6, 7)
    assert streams[0].tracker.offset == StreamOffset(BRANCH, 6, 6, 7)
    assert streams[0].tracker.followed_seqno == 6
