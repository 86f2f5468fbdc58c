"""Every recorded frame decodes and encodes to the same bytes."""

from __future__ import annotations

import pytest

from dcpstream import wire
from dcpstream.errors import FrameError
from tests.kit import recorded
from tests.kit.cases import each_case


@each_case("name", recorded.scenario_names())
def test_every_frame_of_the_real_server_survives(name: str) -> None:
    count = 0
    for line in recorded.server_transcript(name):
        if not line.frame:
            continue
        if line.is_malformed:
            with pytest.raises(FrameError):
                _decode_exactly(line.frame)
            continue
        frame = wire.decode_frame(line.frame)
        assert frame.encode() == line.frame, line
        assert wire.decode_message(frame).encode() == line.frame, line
        count += 1
    assert count


@each_case("name", recorded.client_names())
def test_every_frame_of_real_clients_survives(name: str) -> None:
    count = 0
    for line in recorded.client_transcript(name):
        for data in recorded.split_frames(line.frame):
            assert wire.decode_message(wire.decode_frame(data)).encode() == data, line
            count += 1
    assert count


@each_case("name", recorded.STREAMS)
def test_every_frame_of_the_recorded_streams_survives_and_has_a_layout(name: str) -> None:
    data = recorded.stream_bytes(name)
    reader = wire.FrameReader()
    reader.receive_data(data)
    total = 0
    for frame in reader.frames():
        message = wire.decode_message(frame, strict=True)
        encoded = message.encode()
        assert encoded == data[total : total + len(encoded)]
        total += len(encoded)
    assert total == len(data)
    assert reader.pending_bytes == 0


def test_well_formed_requests_of_the_scenarios_have_layouts() -> None:
    """A success answer means that the server found the request well-formed: then so must the layout table."""
    raw = set()
    for name in recorded.scenario_names():
        asked: dict[tuple[str, int, int], wire.Frame] = {}
        for line in recorded.server_transcript(name):
            if not line.frame or line.is_malformed:
                continue
            frame = wire.decode_frame(line.frame)
            if line.direction == "c2s" and frame.is_request:
                asked[line.connection, frame.opcode, frame.opaque] = frame
            elif line.direction == "s2c" and frame.is_response and frame.status == wire.Status.SUCCESS:
                request = asked.get((line.connection, frame.opcode, frame.opaque))
                if request is not None and isinstance(wire.decode_message(request), wire.RawRequest):
                    raw.add(wire.code_name(wire.Opcode, request.opcode))
    assert raw == set()


def _decode_exactly(data: bytes) -> None:
    frame = wire.decode_frame(data)
    if frame.size != len(data):
        raise FrameError("more bytes than one frame")
