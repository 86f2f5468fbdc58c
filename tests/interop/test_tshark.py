"""An independent decoder reads a capture of our own sessions: what it finds in each frame is what we put there.

The capture is written from the frames that a node and its peers exchanged, one frame a TCP segment, so no right to
capture is needed. Two habits of the decoder are known: it shows opaques in little-endian order, and it warns
of stray characters behind keys with a collection prefix, so warnings are not counted, malformed packets are.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from dcpstream.wire import Frame, Opcode, OpenFlag, decode_frame, decode_message
from dcpstream_node.testing.simulation import Peer, PretendWire, SimulatedNode
from lab.tools.patience import patient
from tests.kit.pcap import FramesToPcap
from tests.kit.streams import REPLICA

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed (Debian: apt install tshark)"),
]

PORT = 11210
TSHARK_TIMEOUT_S = patient(120)
FIELDS = (
    "couchbase.magic",
    "couchbase.opcode",
    "couchbase.vbucket",
    "couchbase.status",
    "couchbase.total_bodylength",
    "couchbase.opaque",
    "couchbase.cas",
    "couchbase.extras.by_seqno",
    "couchbase.extras.rev_seqno",
    "couchbase.extras.start_seqno",
    "couchbase.extras.end_seqno",
    "_ws.malformed",
)


class Capture:
    """Frames of one connection in both directions, as a pcap file."""

    def __init__(self) -> None:
        self.frames: list[tuple[bool, bytes]] = []

    def add(self, data: bytes, *, is_from_client: bool) -> None:
        """One frame."""
        self.frames.append((is_from_client, data))

    def write(self, path: Path) -> None:
        """The file, one frame a packet."""
        with path.open("wb") as file:
            writer = FramesToPcap(file)
            for number, (is_from_client, data) in enumerate(self.frames):
                writer.write(data, 1_700_000_000_000_000_000 + number * 1000, is_from_server=not is_from_client)


def decoded(path: Path) -> list[dict[str, str]]:
    """The fields that tshark finds in each packet."""
    command = ["tshark", "-r", str(path), "-d", f"tcp.port=={PORT},couchbase", "-T", "fields", "-E", "separator=|"]
    for name in FIELDS:
        command += ["-e", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TSHARK_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return [dict(zip(FIELDS, line.split("|"), strict=True)) for line in done.stdout.splitlines()]


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Takes down all that the peers of the harness send and receive while the test runs."""
    capture = Capture()
    send_bytes = Peer.send_bytes

    def recording(peer: Peer, data: bytes) -> list[Frame]:
        capture.add(data, is_from_client=True)
        frames = send_bytes(peer, data)
        for frame in frames:
            capture.add(frame.encode(), is_from_client=False)
        return frames

    monkeypatch.setattr(Peer, "send_bytes", recording)
    return capture


def number(text: str) -> int:
    """A field's first value; tshark writes decimal or hexadecimal."""
    return int(text.split(",", maxsplit=1)[0], 0)


def check(capture: Capture, path: Path) -> set[int]:
    """Compare every frame; the opcodes that were seen."""
    capture.write(path)
    found = decoded(path)
    assert len(found) == len(capture.frames) > 0
    seen = set()
    for (_, data), fields in zip(capture.frames, found, strict=True):
        frame = decode_frame(data)
        assert not fields["_ws.malformed"], (frame, fields)
        assert number(fields["couchbase.magic"]) == frame.magic
        assert number(fields["couchbase.opcode"]) == frame.opcode
        place = "couchbase.status" if frame.is_response else "couchbase.vbucket"
        assert number(fields[place]) == frame.vbid, (frame, fields)
        assert number(fields["couchbase.total_bodylength"]) == len(data) - 24
        assert number(fields["couchbase.opaque"]) == int.from_bytes(struct.pack(">I", frame.opaque), "little")
        assert number(fields["couchbase.cas"]) == frame.cas
        message = decode_message(frame)
        for name, field in (
            ("by_seqno", "couchbase.extras.by_seqno"),
            ("rev_seqno", "couchbase.extras.rev_seqno"),
            ("start_seqno", "couchbase.extras.start_seqno"),
            ("end_seqno", "couchbase.extras.end_seqno"),
        ):
            if fields[field] and hasattr(message, name):
                assert number(fields[field]) == getattr(message, name), (frame, fields)
        if frame.is_request and frame.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION):
            assert fields["couchbase.extras.by_seqno"]
            assert fields["couchbase.extras.rev_seqno"]
        seen.add(frame.opcode)
    return seen


def test_a_producer(capture: Capture, tmp_path: Path) -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    node.delete_doc(1, "k0")
    node.set_doc(1, "brief", expiration=5)
    node.advance(60)
    node.admin.call(Opcode.GET, vbid=1, key=b"\0brief")
    peer = node.producer(
        b"judged",
        OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES,
        controls=[
            (b"enable_expiry_opcode", b"true"),
            (b"connection_buffer_size", b"100000"),
            (b"send_stream_end_on_client_close_stream", b"true"),
        ],
    )
    peer.send(Opcode.DCP_GET_FAILOVER_LOG, vbid=1)
    peer.send(Opcode.GET_ALL_VB_SEQNOS)
    peer.stream(1, end=3, opaque=0x11223344)
    peer.stream(2)
    node.set_doc(2, "later")
    peer.buffer_ack(100)
    peer.close_stream(2)
    peer.stream(1, start=99, vbuuid=5, opaque=9)
    seen = check(capture, tmp_path / "producer.pcap")
    assert {
        Opcode.HELLO,
        Opcode.SASL_AUTH,
        Opcode.SELECT_BUCKET,
        Opcode.SET,
        Opcode.DELETE,
        Opcode.DCP_OPEN,
        Opcode.DCP_CONTROL,
        Opcode.DCP_GET_FAILOVER_LOG,
        Opcode.DCP_STREAM_REQ,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_STREAM_END,
        Opcode.DCP_CLOSE_STREAM,
        Opcode.DCP_BUFFER_ACK,
    } <= seen


def test_a_consumer_that_takes_a_vbucket_over(capture: Capture, tmp_path: Path) -> None:
    old, new = SimulatedNode(), SimulatedNode()
    old.fill(1, 4)
    new.set_vbucket(1, REPLICA)
    link = PretendWire(old, new)
    link.add_stream(1, 1)
    link.run()
    assert [answer.status for answer in link.answers] == [0]
    seen = check(capture, tmp_path / "takeover.pcap")
    assert {Opcode.DCP_ADD_STREAM, Opcode.DCP_SET_VBUCKET_STATE, Opcode.DCP_STREAM_END} <= seen
