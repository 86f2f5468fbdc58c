"""Rules of a client, on our own client's machines; more of them are proven in packages/dcpstream/tests/unit/client."""

from __future__ import annotations

import struct

from dcpstream.client.machine.connection.events import ConfigPushed
from dcpstream.client.settings.options import DcpSettings
from dcpstream.model import MAX_SEQNO, FailoverLog, StreamOffset
from dcpstream.wire import Frame, Magic, Opcode, OpenFlag, decode_message, encode_request
from dcpstream.wire.messages.dcp import Mutation, SnapshotMarker, StreamRequest
from dcpstream_node.testing.simulation import SimulatedNode
from tests.kit.cases import each_case
from tests.kit.client_machines import ClientEnd, client_of_streams
from tests.kit.rules import rule
from tests.kit.streams import of


def request_of(frame: Frame) -> StreamRequest:
    """The stream request in a frame."""
    message = decode_message(frame, strict=True)
    assert isinstance(message, StreamRequest)
    return message


def marker(opaque: int, start: int, end: int) -> bytes:
    return SnapshotMarker(vbid=1, opaque=opaque, start_seqno=start, end_seqno=end, flags=1).encode()


def mutation(opaque: int, seqno: int, value: bytes = b"v") -> bytes:
    return Mutation(vbid=1, opaque=opaque, by_seqno=seqno, rev_seqno=1, cas=1, key=b"\0k", value=value).encode()


def asks(client: ClientEnd, offset: StreamOffset) -> StreamRequest:
    """The request that the client sends for a recorded position."""
    client.session.open_stream(1, offset, MAX_SEQNO, client.now)
    (frame,) = client.sent()
    return request_of(frame)


@rule("CLI-01")
def test_a_position_holds_all_that_a_request_needs() -> None:
    log = FailoverLog.of((0xB, 9), (0xA, 0))
    client = client_of_streams()
    stream = client.opened(log)
    client.receive(marker(stream.opaque, 0, 9) + mutation(stream.opaque, 4))
    assert stream.tracker.offset == StreamOffset(vbuuid=0xB, seqno=4, snapshot_start=0, snapshot_end=9, manifest_uid=0)
    assert set(stream.tracker.offset.to_json()) == {
        "vbuuid",
        "seqno",
        "snapshot_start",
        "snapshot_end",
        "manifest_uid",
    }


@rule("CLI-02")
def test_the_branch_of_the_last_success_replaces_the_stored_one() -> None:
    stream = client_of_streams().opened(FailoverLog.of((0xC, 7), (0xA, 0)), offset=StreamOffset(0xA, 5, 5, 5))
    assert stream.tracker.offset.vbuuid == 0xC


@rule("CLI-03")
def test_the_first_request_is_all_zeros() -> None:
    request = asks(client_of_streams(), StreamOffset.ZERO)
    assert (request.start_seqno, request.vbuuid, request.snapshot_start, request.snapshot_end) == (0, 0, 0, 0)
    assert request.end_seqno == MAX_SEQNO


@rule("CLI-04", "CLI-07")
def test_a_resumed_stream_sends_the_bounds_of_the_snapshot_it_stands_in() -> None:
    client = client_of_streams()
    stream = client.opened()
    client.receive(marker(stream.opaque, 0, 3) + mutation(stream.opaque, 3))
    client.receive(marker(stream.opaque, 4, 20) + mutation(stream.opaque, 9))
    request = asks(client_of_streams(), stream.tracker.offset)
    assert (request.start_seqno, request.vbuuid) == (9, 0xA)
    assert (request.snapshot_start, request.snapshot_end) == (4, 20)


@rule("CLI-05")
@each_case("next_start", [3, 4, 8])
def test_a_marker_without_a_message_changes_nothing(next_start: int) -> None:
    client = client_of_streams()
    stream = client.opened()
    client.receive(marker(stream.opaque, 0, 3) + mutation(stream.opaque, 3))
    before = stream.tracker.offset
    client.receive(marker(stream.opaque, next_start, 20))
    assert stream.tracker.offset == before
    request = asks(client_of_streams(), stream.tracker.offset)
    assert (request.start_seqno, request.snapshot_start, request.snapshot_end) == (3, 0, 3)


@rule("CLI-06")
@each_case("snapshot", [(5, 5), (0, 5), (2, 5)])
def test_at_the_end_of_a_snapshot_both_bounds_are_accepted(snapshot: tuple[int, int]) -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    frames = node.producer().stream(1, start=5, snapshot=snapshot)
    assert frames[0].status == 0
    assert not of(frames, Opcode.DCP_MUTATION)


@rule("CLI-08", "CLI-10")
def test_our_rule_after_a_rollback_is_accepted_by_the_node() -> None:
    """The position that is gone back to keeps its own bounds; without any, the beginning."""
    node = SimulatedNode()
    node.fill(1, 10)
    ahead = node.producer().stream(1, start=15, snapshot=(12, 20))
    assert ahead[0].status == 0x23
    assert int.from_bytes(ahead[0].value, "big") == 10
    own = node.producer(b"own").stream(1, start=8, snapshot=(5, 9))
    assert own[0].status == 0
    zero = node.producer(b"zero").stream(1, start=0)
    assert zero[0].status == 0


@rule("CLI-18")
@each_case("is_wanted", [True, False])
def test_every_counted_byte_is_acknowledged_at_its_size(is_wanted: bool) -> None:
    """Also of messages that nobody wants: those of a stream that was closed are freed at once."""
    client = client_of_streams(buffer_bytes=100_000)
    stream = client.opened()
    opaque = stream.opaque
    if not is_wanted:
        client.session.close_stream(stream)
        client.sent()
    data = marker(opaque, 0, 900) + b"".join(mutation(opaque, seqno, b"x" * 200) for seqno in range(1, 301))
    events = client.receive(data)
    freed = sum(event.flow_bytes for event in events if hasattr(event, "flow_bytes"))
    client.session.consumed(freed)
    acknowledged = sum(int.from_bytes(frame.extras, "big") for frame in of(client.sent(), Opcode.DCP_BUFFER_ACK))
    assert acknowledged == len(data)


@rule("CLI-18")
@each_case("window", [10_000, 1_000_000, 100_000_000])
def test_an_acknowledgement_comes_at_latest_after_a_fifth_of_the_window(window: int) -> None:
    client = client_of_streams(buffer_bytes=window)
    stream = client.opened()
    client.receive(marker(stream.opaque, 0, 9))
    client.session.consumed(window // 5)
    assert of(client.sent(), Opcode.DCP_BUFFER_ACK)


@rule("CLI-20")
def test_a_noop_is_answered_while_nothing_is_consumed() -> None:
    client = client_of_streams(buffer_bytes=1000)
    stream = client.opened()
    client.receive(marker(stream.opaque, 0, 99) + mutation(stream.opaque, 1, b"x" * 5000))
    assert client.sent() == []
    client.receive(encode_request(Opcode.DCP_NOOP, opaque=10000001))
    (answer,) = client.sent()
    assert (answer.opcode, answer.is_response, answer.opaque) == (Opcode.DCP_NOOP, True, 10000001)


@rule("CLI-22")
def test_a_request_of_the_server_is_not_answered() -> None:
    client = client_of_streams()
    extras = struct.pack(">qq", 1, 2)
    body = extras + b"default"
    header = struct.pack(">BBHBBHIIQ", Magic.SERVER_REQUEST, 0x01, 7, len(extras), 0, 0, len(body), 5, 0)
    assert client.receive(header + body) == [ConfigPushed("default", (1, 2), b"")]
    assert client.sent() == []


@rule("CLI-24")
def test_noops_are_enabled_before_the_first_stream() -> None:
    node = SimulatedNode()
    peer = node.connect()
    peer.dcp_open(b"n", OpenFlag.PRODUCER)
    assert peer.stream(1)[0].status == 0x83, "a server with collections insists on it"
    names = [name for name, _, _ in DcpSettings(name="reader").controls()]
    assert "enable_noop" in names
    assert "set_noop_interval" in names
