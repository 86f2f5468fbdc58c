"""Streams whose messages are mixed: what the kernel puts together means the same as the frames in their order."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import (
    RowsReceived,
    StreamBroken,
    StreamDone,
    StreamStopped,
)
from dcpstream.client.machine.connection.native_rows import NativeDecoder
from dcpstream.client.machine.connection.rows import ArrowDecoder, Decoder, FrameDecoder
from dcpstream.errors import DcpstreamError
from dcpstream.model import MAX_SEQNO, StreamOffset
from dcpstream.runtime import kernel
from dcpstream.wire import Magic, Opcode, encode_request
from dcpstream.wire.columns import scan_natively
from dcpstream.wire.frames import cut_frame
from tests.kit.client_machines import ready_connection
from tests.kit.messages import accepted, deletion, marker, mutation, oso, seqno_advanced, stream_end, system_event

if kernel.native is None:
    pytest.skip(f"no native kernel here: {kernel.description}", allow_module_level=True)
NATIVE = kernel.native

STREAMS = 4
UNKNOWN = 77
MOVING = {Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SEQNO_ADVANCED}
SNAPSHOT = 40
"""Seqnos in each snapshot."""


@dataclass
class Sender:
    """One stream of a node that keeps the protocol until it is told not to."""

    opaque: int
    vbid: int
    seqno: int = 0
    end: int = 0
    sent: list[bytes] = field(default_factory=list)

    def row(self, make: Callable[..., bytes] = mutation) -> bytes:
        self.seqno += 1
        announced = b""
        if self.seqno > self.end:
            self.end = self.seqno + SNAPSHOT
            announced = marker(self.opaque, self.seqno - 1, self.end, vbid=self.vbid)
        return announced + make(self.opaque, self.seqno, vbid=self.vbid)


SOUND: dict[str, Callable[[Sender], bytes]] = {
    "row": lambda one: one.row(),
    "deletion": lambda one: one.row(deletion),
    "advance": lambda one: one.row(seqno_advanced),
    "event": lambda one: one.row(lambda opaque, seqno, vbid: system_event(opaque, seqno, "c", 9, vbid=vbid)),
    "noop": lambda one: encode_request(Opcode.DCP_NOOP, opaque=9),
    "end": lambda one: stream_end(one.opaque, 2, vbid=one.vbid),
}
BROKEN: dict[str, Callable[[Sender], bytes]] = {
    "again": lambda one: mutation(one.opaque, one.seqno, vbid=one.vbid),
    "outside": lambda one: mutation(one.opaque, one.end + 1, vbid=one.vbid),
    "stray": lambda one: mutation(one.opaque, one.seqno + 1, vbid=one.vbid + 1),
    "back": lambda one: marker(one.opaque, 0, max(one.seqno - 1, 0), vbid=one.vbid),
    "oso": lambda one: oso(one.opaque, 1),
    "cut short": lambda one: encode_request(Opcode.DCP_SEQNO_ADVANCED, opaque=one.opaque, vbid=one.vbid),
    "nobody": lambda one: mutation(UNKNOWN, 1, vbid=one.vbid),
    "not a producer": lambda one: encode_request(Opcode.DCP_ADD_STREAM, opaque=one.opaque, vbid=one.vbid),
}
STEADY = ["row"] * 40 + ["deletion", "advance"] * 4 + ["event", "noop", "end"]


def script_of(seed: int) -> list[tuple[int, str]]:
    """(stream, message) in the order of sending: sound ones, and in two of three scripts some that are not."""
    dice = random.Random(seed)
    script = [(dice.randrange(STREAMS), dice.choice(STEADY)) for _ in range(dice.randrange(70, 200))]
    for _ in range(seed % 3):
        script.insert(dice.randrange(len(script)), (dice.randrange(STREAMS), dice.choice(sorted(BROKEN))))
    return script


class Outcome(NamedTuple):
    """The outcome of one stream: its rows, how it ended, its events, its position, and the last that was given out."""

    rows: list[int]
    ends: list[str]
    events: list[int]
    position: StreamOffset
    offset: StreamOffset | None


@dataclass
class Heard:
    """The results of one connection for some bytes, by vbucket, and the error that ended it."""

    rows: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    events: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[int, StreamOffset] = field(default_factory=dict)
    positions: list[StreamOffset] = field(default_factory=list)
    outstanding: int = 0
    error: str = ""

    def of(self, vbid: int) -> Outcome:
        offset = self.offsets.get(vbid)
        return Outcome(self.rows[vbid], self.ends[vbid], self.events[vbid], self.positions[vbid], offset)


def heard(decoder: Decoder, data: bytes, ends: list[int]) -> Heard:
    connection, _ = ready_connection(buffer_bytes=1 << 20)
    session = connection.session
    assert session is not None
    connection._decoder = decoder
    streams = [session.open_stream(vbid, StreamOffset.ZERO, end, 0.0) for vbid, end in enumerate(ends)]
    assert [stream.opaque for stream in streams] == list(range(1, STREAMS + 1))
    connection.receive_data(b"".join(accepted(stream.opaque) for stream in streams), 0.0)
    list(connection.events())
    result = Heard()
    try:
        connection.receive_data(data, 0.0)
    except DcpstreamError as error:
        result.error = str(error)
    take(connection, result)
    result.positions = [stream.tracker.offset for stream in streams]
    result.outstanding = session.window.outstanding_bytes
    return result


def take(connection: NodeConnection, result: Heard) -> None:
    for event in connection.events():
        match event:
            case RowsReceived(rows=rows):
                for run in event.runs:
                    result.rows[run.vbid] += [rows.seqno(row) for row in range(run.first, run.stop)]
                    assert {rows.vbid(row) for row in range(run.first, run.stop)} <= {run.vbid}
                    if run.event is not None:
                        result.events[run.vbid].append(run.event.seqno)
                result.offsets.update(event.offsets)
            case StreamBroken():
                result.ends[event.stream.vbid].append(str(event.error))
            case StreamDone():
                result.ends[event.stream.vbid].append("done")
            case StreamStopped():
                result.ends[event.stream.vbid].append(f"stopped {event.reason}")
            case _:
                pass


def decoders() -> list[Decoder]:
    pytest.importorskip("pyarrow", reason="Arrow columns need pyarrow")
    return [NativeDecoder(NATIVE, collections=True), ArrowDecoder(collections=True)]


def wire(script: list[tuple[int, str]]) -> bytes:
    senders = [Sender(number + 1, number) for number in range(STREAMS)]
    return b"".join({**SOUND, **BROKEN}[kind](senders[number]) for number, kind in script)


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 120))])
def test_mixed_streams_mean_the_same_in_every_shape(seed: int) -> None:
    """A run of rows with a fault is refused whole, and the runs of the kernel are longer: it may give fewer before it.

    If the connection is given up, it may give more: sound rows of other streams that came after the fault.
    """
    data = wire(script_of(seed))
    ends = random.Random(seed).choices([5, 17, MAX_SEQNO], k=STREAMS)
    plain = heard(FrameDecoder(), data, ends)
    for decoder in decoders():
        found = heard(decoder, data, ends)
        assert bool(found.error) == bool(plain.error)
        assert found.outstanding == plain.outstanding or plain.error
        for vbid in range(STREAMS):
            mine, theirs = found.of(vbid), plain.of(vbid)
            if any("broke the protocol" in text for text in found.ends[vbid]):
                assert theirs.rows[: len(mine.rows)] == mine.rows
            elif plain.error:
                assert mine.rows[: len(theirs.rows)] == theirs.rows
            else:
                assert mine == theirs
            assert mine.rows == sorted(set(mine.rows))
            assert mine.position.seqno >= max(mine.rows, default=0)
            assert mine.offset in {mine.position, None}


def in_order(data: bytes) -> list[int]:
    """The places of all frames, those of each stream together between two that do not move."""
    places: list[int] = []
    part: dict[int, list[int]] = {}
    at = 0
    while at < len(data):
        frame = cut_frame(data, at)
        if frame.opcode in MOVING and frame.magic in {Magic.REQUEST, Magic.FLEX_REQUEST}:
            part.setdefault(frame.opaque, []).append(at)
        else:
            places += [place for some in part.values() for place in some] + [at]
            part = {}
        at += frame.size
    return places + [place for some in part.values() for place in some]


def starts_of(data: bytes, *, by_stream: bool = True) -> list[int]:
    found = scan_natively(NATIVE, data, 0, len(data), by_stream=by_stream)
    assert found.end == len(data)
    return memoryview(found.starts).cast("q").tolist()


def test_the_order_of_the_kernel() -> None:
    for seed in range(60):
        data = wire(script_of(seed))
        plain = starts_of(data, by_stream=False)
        assert starts_of(data) == (in_order(data) if len(plain) >= 64 else plain), seed


@pytest.mark.parametrize(("streams", "turns"), [(2048, 3), (2049, 3), (5000, 2), (1, 200), (3, 1)])
def test_any_number_of_streams(streams: int, turns: int) -> None:
    """More of them than there is room for stay in the order of arrival; so do few messages."""
    data = b"".join(mutation(opaque, turn) for turn in range(1, turns + 1) for opaque in range(streams))
    stays = streams > 2048 or streams * turns < 64
    assert starts_of(data) == (starts_of(data, by_stream=False) if stays else in_order(data))


def test_opaques_that_were_chosen_to_collide() -> None:
    """No peer makes the kernel search for long: such frames stay in the order of arrival."""
    inverse = pow(2654435761, -1, 1 << 32)
    opaques = [number * inverse % (1 << 32) for number in range(200)]
    data = b"".join(mutation(opaque, turn) for turn in (1, 2) for opaque in opaques)
    assert starts_of(data) == starts_of(data, by_stream=False)


def test_long_runs_stay_as_they_came() -> None:
    data = b"".join(mutation(opaque, seqno) for opaque in (1, 2, 1, 2) for seqno in range(1, 101))
    assert starts_of(data) == starts_of(data, by_stream=False)


def test_random_opaques() -> None:
    dice = random.Random(20261124)
    data = b"".join(mutation(dice.randrange(1 << 32), 1) for _ in range(500)) * 2
    assert starts_of(data) == in_order(data)
