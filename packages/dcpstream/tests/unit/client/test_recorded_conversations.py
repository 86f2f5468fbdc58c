"""The client's session against nothing but bytes that a real server sent: every recorded conversation with streams.

The session's output (streams, rows, positions, refusals, bytes for flow control, answers) is compared with what the
bytes say when they are read here, field by field, without the session's code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest

from dcpstream.client.machine.connection.events import (
    RowsReceived,
    Stream,
    StreamBroken,
    StreamDone,
    StreamOpened,
    StreamRefused,
    StreamStopped,
)
from dcpstream.client.machine.connection.rows import Decoder, FrameDecoder, NativeDecoder
from dcpstream.client.machine.connection.session import DcpSession
from dcpstream.client.settings.options import DcpSettings
from dcpstream.model import NodeAddress, StreamOffset
from dcpstream.runtime import kernel
from dcpstream.wire import FrameReader, Opcode, Status, StreamFlag
from tests.kit.cases import each_case
from tests.kit.recorded import Line, scenario_names, server_transcript

HEADER = struct.Struct(">BBHBBHIIQ")
REQUEST = struct.Struct(">IIQQQQQ")
ADDRESS = NodeAddress("recorded", 11210)
WINDOW_BYTES = 1000
ROWS = {0x57, 0x58, 0x59}
WITH_SEQNO = {*ROWS, 0x5F, 0x60, 0x64}
WITH_SECOND_SEQNO = {0x62, 0x63}
NOOP, STREAM_REQ, CLOSE_STREAM, STREAM_END, MARKER = 0x5C, 0x53, 0x52, 0x55, 0x56
OSO, PREPARE, COLLECTIONS = 0x65, 0x60, 0x12
NOT_FOR_US = ("s04", "s19", "s20", "s21", "s22", "s23", "s24")
"""Consumers, takeovers and statistics, where the connection is not one of a client that reads; malformed requests;
stream ids, which our client does not use."""


@dataclass
class Said:
    """The recorded facts about one stream, by its opaque.

    Attributes:
        status: of the answer to its request.
        value: of that answer.
        seqnos: of rows up to the wanted end, in order.
        position: the last seqno that counts.
        marker: bounds of the last snapshot.
        reason: of STREAM_END, if it came before the wanted end.
    """

    end_seqno: int
    status: int | None = None
    value: bytes = b""
    seqnos: list[int] = field(default_factory=list)
    position: int = 0
    marker: tuple[int, int] = (0, 0)
    reason: int | None = None
    is_done: bool = False
    is_closed: bool = False
    has_oso: bool = False


@cache
def lines_of(scenario: str) -> dict[str, list[Line]]:
    """The frames of a scenario by connection."""
    result: dict[str, list[Line]] = {}
    for line in server_transcript(scenario):
        if line.frame and not line.is_malformed:
            result.setdefault(line.connection, []).append(line)
    return result


def is_possible(frame: bytes) -> bool:
    """Whether a client whose positions are sound can make the request: the recorder tried others too."""
    if len(frame) < 24 + REQUEST.size or frame[12:16] == b"\xff" * 4:
        return False  # our client never uses the last opaque, so that it always has one to close a stream with
    flags, _, start, end, _, first, last = REQUEST.unpack_from(frame, 24)
    return first <= start <= last and end >= start and not flags & StreamFlag.TAKEOVER


SCENARIOS = [name for name in scenario_names() if not name.startswith(NOT_FOR_US)]


def conversations(scenario: str) -> Iterator[list[Line]]:
    """The frames of every connection that asked for streams, and for none that we could not."""
    for lines in lines_of(scenario).values():
        requests = (line.frame for line in lines if line.direction == "c2s")
        asked = [frame for frame in requests if frame[:2] == bytes((0x80, STREAM_REQ))]
        if asked and all(is_possible(frame) for frame in asked):
            yield lines


def has_collections(lines: list[Line]) -> bool:
    hellos = [line.frame for line in lines if line.direction == "s2c" and line.frame[1] == 0x1F]
    codes = hellos[-1][24:] if hellos else b""
    return COLLECTIONS in struct.unpack(f">{len(codes) // 2}H", codes)


class Replay:
    """A session that asks what the recorder asked, and receives what the server sent."""

    def __init__(self, lines: list[Line], decoder: Decoder) -> None:
        settings = DcpSettings(name="replayed", buffer_bytes=WINDOW_BYTES)
        self.session = DcpSession(ADDRESS, settings, has_collections(lines), 0.0)
        controls = (line.frame for line in lines if line.direction == "c2s" and line.frame[1] == Opcode.DCP_CONTROL)
        self.session._allows_oso = any(b"enable_out_of_order_snapshots" in frame for frame in controls)
        self.decoder = decoder
        self.said: dict[int, Said] = {}
        self.streams: dict[int, Stream] = {}
        self.events: list[object] = []
        self.counted_bytes = 0
        self.acknowledged_bytes = 0
        self.noops: list[int] = []
        self.answered: list[int] = []
        self.rows: dict[int, list[int]] = {}
        self._reader = FrameReader()
        for line in lines:
            (self._asked if line.direction == "c2s" else self._came)(line.frame)

    def _asked(self, frame: bytes) -> None:
        magic, opcode, key_size, extras_size, _, vbid, _, opaque, _ = HEADER.unpack_from(frame)
        if magic != 0x80:
            return
        if opcode == STREAM_REQ:
            _, _, start, end, vbuuid, first, last = REQUEST.unpack_from(frame, 24)
            self.session._next_opaque = opaque
            offset = StreamOffset(vbuuid, start, first, last)
            self.streams[opaque] = self.session.open_stream(vbid, offset, end, 0.0)
            self.streams[opaque].is_filtered = len(frame) > 24 + extras_size + key_size
            sent = self.session.data_to_send()
            if start and end >= start and len(frame) == 24 + extras_size + key_size:
                # But for the flags (the recorder tried all kinds of them) it is the recorder's request.
                assert sent[:24] + sent[28:] == frame[:24] + frame[28:]
            self.said[opaque] = Said(end, position=start)
        elif opcode == CLOSE_STREAM:
            for number, stream in self.streams.items():
                if stream.vbid == vbid:
                    self.session._next_opaque = opaque
                    self.session.close_stream(stream)
                    self.said[number].is_closed = True
            self._take_out()
            self.session._closings.setdefault(opaque, 0)
        else:
            self.session._requests.sent(opaque, opcode, 0.0)

    def _came(self, frame: bytes) -> None:
        self._read(frame)
        buffer = bytearray(frame)
        rows, end = self.decoder.decode(buffer, 0, len(buffer))
        assert end == len(frame)
        self.session.receive_rows(rows, 0.0)
        for event in self.session.events():
            assert not isinstance(event, StreamBroken)
            self.events.append(event)
            if isinstance(event, RowsReceived):
                for first, stop in event.keep:
                    opaque = HEADER.unpack_from(frame)[7]
                    self.rows.setdefault(opaque, []).extend(event.rows.seqno(row) for row in range(first, stop))
                self.session.consumed(event.flow_bytes)
        self._take_out()

    def _take_out(self) -> None:
        self._reader.receive_data(self.session.data_to_send())
        for frame in self._reader.frames():
            if frame.opcode == Opcode.DCP_BUFFER_ACK:
                self.acknowledged_bytes += int.from_bytes(frame.extras, "big")
            elif frame.opcode == Opcode.DCP_NOOP and frame.is_response:
                self.answered.append(frame.opaque)

    def _read(self, data: bytes) -> None:
        """The frame, without the session's help."""
        magic, opcode, key_size, extras_size, _, status, _, opaque, _ = HEADER.unpack_from(data)
        extras, value = data[24 : 24 + extras_size], data[24 + extras_size + key_size :]
        said = self.said.get(opaque)
        if magic != 0x80:
            if opcode == STREAM_REQ and said is not None:
                said.status, said.value = status, value
            return
        if opcode == NOOP:
            self.noops.append(opaque)
            return
        self.counted_bytes += len(data) + (2 if opcode == PREPARE else 0)
        if said is None or said.is_done or said.is_closed or said.reason is not None:
            return
        if opcode == MARKER:
            said.marker = struct.unpack_from(">QQ", extras if len(extras) >= 16 else value)
        elif opcode == OSO:
            said.has_oso = True
        elif opcode == STREAM_END:
            said.reason = int.from_bytes(extras, "big")
        elif opcode in WITH_SEQNO or opcode in WITH_SECOND_SEQNO:
            (seqno,) = struct.unpack_from(">Q", extras, 8 if opcode in WITH_SECOND_SEQNO else 0)
            if seqno <= said.end_seqno:
                said.position = seqno
                if opcode in ROWS:
                    said.seqnos.append(seqno)
            elif said.marker[0] <= said.end_seqno <= said.marker[1]:
                said.position = said.end_seqno  # nothing up to the end is still to come
            said.is_done = seqno >= said.end_seqno


@each_case("decoder", ["frames", "native"])
@each_case("scenario", SCENARIOS)
def test_every_conversation(scenario: str, decoder: str) -> None:
    native = kernel.native
    if decoder == "native" and native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    for lines in conversations(scenario):
        check_conversation(
            lines,
            FrameDecoder() if decoder == "frames" or native is None else NativeDecoder(native, has_collections(lines)),
        )


def check_conversation(lines: list[Line], decoder: Decoder) -> None:
    replay = Replay(lines, decoder)
    opened = {event.stream.opaque: event for event in replay.events if isinstance(event, StreamOpened)}
    refused = {event.stream.opaque: event for event in replay.events if isinstance(event, StreamRefused)}
    stopped = {event.stream.opaque: event.reason for event in replay.events if isinstance(event, StreamStopped)}
    done = {event.stream.opaque for event in replay.events if isinstance(event, StreamDone)}
    for opaque, said in replay.said.items():
        stream = replay.streams[opaque]
        if said.status == Status.SUCCESS and not said.is_closed:
            (vbuuid,) = struct.unpack_from(">Q", said.value)
            assert opened[opaque].log.newest.vbuuid == vbuuid == stream.tracker.vbuuid
            assert replay.rows.get(opaque, []) == said.seqnos
            if not said.has_oso:
                assert stream.tracker.offset.seqno == said.position
            assert stopped.get(opaque) == (None if said.is_done else said.reason)
            assert (opaque in done) is said.is_done
        elif said.status == Status.ROLLBACK:
            assert refused[opaque].rollback_seqno == int.from_bytes(said.value, "big")
        elif said.status is not None and not said.is_closed:
            assert refused[opaque].status == said.status
    assert replay.acknowledged_bytes + replay.session.window.freed_bytes == replay.counted_bytes
    assert replay.answered == replay.noops
