"""Frames of captured connections."""

from __future__ import annotations

import io

import pytest

from dcpstream.errors import ConfigError, FrameError
from dcpstream.wire import Opcode
from dcpstream.wire.messages.dcp import DcpNoop, Mutation, SnapshotMarker
from dcpstream_node.recording.capture import frames_of
from dcpstream_node.recording.pcap import packets
from dcpstream_node.recording.tcp import Conversation, Endpoint, Piece, conversations
from tests.kit.pcap import FramesToPcap

CLIENT, SERVER = Endpoint("10.0.0.1", 40000), Endpoint("10.0.0.2", 11210)


def conversation(*said: tuple[bool, bytes], since: int = 0) -> Conversation:
    pieces = [Piece(since + number * 1000, side, data) for number, (side, data) in enumerate(said, 1)]
    return Conversation(CLIENT, SERVER, pieces)


def marker(opaque: int, start: int, end: int) -> bytes:
    return SnapshotMarker.pack(start, end, 1, vbid=1, opaque=opaque)


def row(opaque: int, seqno: int, key: bytes) -> bytes:
    return Mutation.pack(seqno, 1, 0, 0, 0, 0, 0, vbid=1, opaque=opaque, cas=seqno, key=b"\0" + key, value=b"{}")


def test_frames_may_be_cut_anywhere() -> None:
    data = marker(8, 0, 1) + row(8, 1, b"a") + DcpNoop.pack(opaque=4)
    for size in (25, 30, 70):
        parts = [(True, data[at : at + size]) for at in range(0, len(data), size)]
        found = list(frames_of(conversation(*parts)))
        assert b"".join(one.frame.encode() for one in found) == data
        assert found[0].offset == 0
        assert found[-1].time_ns == len(parts) * 1000


def test_a_capture_from_the_middle_begins_with_the_first_frame() -> None:
    found = frames_of(
        conversation((True, b"end of a value"), (True, b"\x80 and more of it" * 3), (True, row(8, 1, b"a")))
    )
    assert [one.frame.opcode for one in found] == [Opcode.DCP_MUTATION]


def test_bytes_that_are_no_frame_and_tls_are_reported() -> None:
    first = row(8, 1, b"a")
    with pytest.raises(FrameError) as caught:
        list(frames_of(conversation((True, first + b"x" * 24))))
    assert str(caught.value) == (
        f"10.0.0.2:11210 to 10.0.0.1:40000: 0x78 is not a magic, so no frame begins at byte {len(first)} (header "
        f"{(b'x' * 24).hex()}). The bytes are counted from the first frame of this direction. Is the port one of a "
        "node's data? Choose with --ports"
    )
    with pytest.raises(ConfigError, match="is encrypted"):
        list(frames_of(conversation((False, b"\x16\x03\1" + b"x" * 100))))


def test_frames_written_as_packets_come_back() -> None:
    file = io.BytesIO()
    writer = FramesToPcap(file)
    said = [(False, marker(8, 0, 9)), (True, row(8, 1, b"a" * 100) * 2000)]
    for time_ns, (side, data) in enumerate(said, 5):
        writer.write(data, time_ns, is_from_server=side)
    [found] = conversations(packets(file.getvalue()), {11210})
    for wanted in (False, True):
        data = b"".join(one.frame.encode() for one in frames_of(found) if one.is_from_server is wanted)
        assert data == b"".join(data for side, data in said if side is wanted)
