"""What clients and nodes said to each other, captured: frames, and a recording that a node plays back."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError, FrameError
from dcpstream.model import FailoverLog, Manifest, Scope
from dcpstream.recording.capture import FramesToPcap, StreamsOf, frames_of, is_from_server, recorded
from dcpstream.recording.file import RecordingWriter
from dcpstream.recording.history import Histories
from dcpstream.recording.pcap import packets
from dcpstream.recording.tcp import Conversation, Endpoint, Piece, conversations
from dcpstream.wire import Frame, Magic, Opcode, Status, encode_request, encode_response
from dcpstream.wire.messages.dcp import (
    DcpNoop,
    DcpNoopResponse,
    Mutation,
    RollbackResponse,
    SeqnoAdvanced,
    SnapshotMarker,
    StreamRequest,
    StreamResponse,
)
from dcpstream.wire.values import encode_failover_log
from tests.kit.recordings import state_of_replay

CLIENT, SERVER = Endpoint("10.0.0.1", 40000), Endpoint("10.0.0.2", 11210)
LOG, NEXT_LOG = FailoverLog.of((5, 0)), FailoverLog.of((6, 2), (5, 0))


def conversation(*said: tuple[bool, bytes], since: int = 0) -> Conversation:
    pieces = [Piece(since + number * 1000, side, data) for number, (side, data) in enumerate(said, 1)]
    return Conversation(CLIENT, SERVER, pieces)


def asks(opaque: int, seqno: int = 0, vbid: int = 1) -> tuple[bool, bytes]:
    request = StreamRequest(
        vbid=vbid,
        opaque=opaque,
        start_seqno=seqno,
        end_seqno=2**64 - 1,
        vbuuid=5 if seqno else 0,
        snapshot_start=seqno,
        snapshot_end=seqno,
    )
    return False, request.encode()


def opens(opaque: int, log: FailoverLog = LOG) -> tuple[bool, bytes]:
    return True, StreamResponse.pack(opaque=opaque, value=encode_failover_log(log))


def marker(opaque: int, start: int, end: int) -> bytes:
    return SnapshotMarker.pack(start, end, 1, vbid=1, opaque=opaque)


def row(opaque: int, seqno: int, key: bytes) -> bytes:
    return Mutation.pack(seqno, 1, 0, 0, 0, 0, 0, vbid=1, opaque=opaque, cas=seqno, key=b"\0" + key, value=b"{}")


def keys_played(tmp_path: Path, *found: Conversation) -> list[bytes]:
    header, blocks = recorded(found)
    with RecordingWriter.create(tmp_path / "file", header) as writer:
        for time_ns, data in blocks:
            writer.write(data, time_ns)
    played = state_of_replay(tmp_path / "file")
    assert played["logs"][1] in (LOG, NEXT_LOG)
    return [change.key for change in played["changes"].get(1, [])]


def test_a_dcp_connection_becomes_a_recording(tmp_path: Path) -> None:
    first = conversation(
        asks(8),
        opens(8),
        (True, marker(8, 0, 2) + row(8, 1, b"a")),
        (True, row(8, 2, b"b") + SeqnoAdvanced.pack(3, vbid=1, opaque=8)),
    )
    again = conversation(asks(3, 2), opens(3), (True, marker(3, 2, 4) + row(3, 4, b"c")), since=9000)
    assert keys_played(tmp_path, first, again) == [b"a", b"b", b"c"]


def test_a_rollback_that_was_captured_is_played(tmp_path: Path) -> None:
    refused = RollbackResponse(opaque=9, status=Status.ROLLBACK, rollback_seqno=1).encode()
    found = conversation(
        asks(8),
        opens(8),
        (True, marker(8, 0, 3) + row(8, 1, b"a") + row(8, 2, b"void") + row(8, 3, b"void, too")),
        asks(9, 3),
        (True, refused),
        asks(10, 1),
        opens(10, FailoverLog.of((6, 1), (5, 0))),
        (True, marker(10, 1, 2) + row(10, 2, b"b")),
    )
    header, blocks = recorded([found])
    assert header.vbuckets == 2
    histories = Histories()
    for _, data in blocks:
        histories.take(data)
    assert histories.vbuckets[1].offset.vbuuid == 6
    with RecordingWriter.create(tmp_path / "file", header) as writer:
        writer.write(b"".join(data for _, data in blocks), 1)
    assert [change.key for change in state_of_replay(tmp_path / "file")["changes"][1]] == [b"a", b"b"]


def test_rows_that_come_again_are_recorded_once(tmp_path: Path) -> None:
    first = conversation(asks(8), opens(8), (True, marker(8, 0, 2) + row(8, 1, b"a") + row(8, 2, b"b")))
    again = conversation(asks(3), opens(3), (True, marker(3, 0, 2) + row(3, 1, b"a") + row(3, 2, b"b")), since=9000)
    assert keys_played(tmp_path, first, again) == [b"a", b"b"]


def test_keys_without_collections_get_them(tmp_path: Path) -> None:
    hello = encode_response(Opcode.HELLO, value=struct.pack(">H", 6))
    plain = Mutation.pack(1, 1, 0, 0, 0, 0, 0, vbid=1, opaque=8, cas=1, key=b"plain", value=b"{}")
    found = conversation((True, hello), asks(8), opens(8), (True, marker(8, 0, 1) + plain))
    assert keys_played(tmp_path, found) == [b"plain"]


def test_what_the_connections_say_of_their_bucket() -> None:
    config = {"name": "travel", "uuid": "ab", "vBucketServerMap": {"vBucketMap": [[0]] * 64}}
    manifest = Manifest(3, (*Manifest.DEFAULT.scopes, Scope(8, "shop")))
    said = [
        (False, encode_request(Opcode.SELECT_BUCKET, key=b"other")),
        (True, encode_response(Opcode.GET_CLUSTER_CONFIG, value=json.dumps(config).encode())),
        (True, encode_response(Opcode.GET_COLLECTIONS_MANIFEST, value=json.dumps(manifest.to_json()).encode())),
    ]
    header, _ = recorded([conversation(*said, asks(8), opens(8))])
    assert (header.bucket, header.bucket_uuid, header.vbuckets, header.manifest) == ("travel", "ab", 64, manifest)


def test_a_stream_from_before_the_capture_is_left_out() -> None:
    with pytest.raises(ConfigError, match="no DCP stream that was opened in it"):
        recorded([conversation((True, marker(8, 0, 1) + row(8, 1, b"a")))])
    streams = StreamsOf(Histories())
    [captured] = frames_of(conversation(opens(8)))
    assert streams.recorded(captured) == b""


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


def test_bytes_that_are_no_frame_and_tls_are_told() -> None:
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
    said = [asks(8), opens(8), (True, row(8, 1, b"a" * 100) * 2000)]
    for time_ns, (side, data) in enumerate(said, 5):
        writer.write(data, time_ns, is_from_server=side)
    [found] = conversations(packets(file.getvalue()), {11210})
    for wanted in (False, True):
        data = b"".join(one.frame.encode() for one in frames_of(found) if one.is_from_server is wanted)
        assert data == b"".join(data for side, data in said if side is wanted)


def test_the_direction_of_frames_from_no_connection() -> None:
    answer = Frame(Magic.RESPONSE, Opcode.DCP_STREAM_REQ)
    request = Frame(Magic.REQUEST, Opcode.DCP_STREAM_REQ)
    probe, probed = Frame(Magic.REQUEST, Opcode.DCP_NOOP), Frame(Magic.RESPONSE, DcpNoopResponse.layout.opcode)
    pushed = Frame(Magic.SERVER_REQUEST, 1)
    assert [is_from_server(one) for one in (answer, request, probe, probed, pushed)] == [True, False, True, False, True]
