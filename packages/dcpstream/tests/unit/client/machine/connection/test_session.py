"""One connection's streams, through the whole machine: bytes in, events and bytes out."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.client.machine.connection.collection_events import follow
from dcpstream.client.machine.connection.connection import RECEIVE_BYTES, NodeConnection
from dcpstream.client.machine.connection.events import (
    Answer,
    RowsReceived,
    Stream,
    StreamBroken,
    StreamDone,
    StreamOpened,
    StreamRefused,
    StreamStopped,
)
from dcpstream.client.machine.reader.catalog import Catalog
from dcpstream.client.machine.values import CollectionEvents, ManifestEvent
from dcpstream.dcp.liveness import ANSWER_TIMEOUT_S
from dcpstream.errors import ConnectionLost, ConnectTimeout, DeadConnection, RemoteProtocolError, WireError
from dcpstream.model import MAX_SEQNO, FailoverLog, Op, StreamOffset
from dcpstream.wire import (
    Frame,
    FrameReader,
    Magic,
    Opcode,
    Status,
    StreamFlag,
    encode_request,
    encode_response,
)
from dcpstream.wire.messages.kv import GetAllVbSeqnos
from dcpstream.wire.system_events import CollectionEvent, encode_stored_event, flatbuffer_of
from tests.kit.cases import each_case
from tests.kit.client_machines import client_of_streams, new_connection, pump, ready_connection
from tests.kit.fake_node import FakeNode
from tests.kit.messages import (
    accepted,
    deletion,
    marker,
    mutation,
    oso,
    rollback,
    seqno_advanced,
    stream_end,
    system_event,
)
from tests.kit.recorded import split_frames
from tests.kit.rules import rule


def open_stream(connection: NodeConnection, end: int = MAX_SEQNO, offset: StreamOffset = StreamOffset.ZERO) -> Stream:
    assert connection.session is not None
    return connection.session.open_stream(0, offset, end, 0.0)


def sent(connection: NodeConnection) -> list[Frame]:
    reader = FrameReader()
    reader.receive_data(connection.data_to_send())
    return list(reader.frames())


def seqnos(events: Iterable[object]) -> list[int]:
    """The seqnos of all rows that count."""
    result = []
    for event in events:
        if isinstance(event, RowsReceived):
            for first, stop in event.keep:
                result += [event.rows.seqno(row) for row in range(first, stop)]
    return result


def row_seqnos(events: Iterator[object]) -> list[int]:
    """The same of rows in both shapes."""
    received = [event for event in events if isinstance(event, RowsReceived)]
    return [event.rows.seqno(row) for event in received for first, stop in event.keep for row in range(first, stop)]


@pytest.fixture
def connection() -> NodeConnection:
    return ready_connection()[0]


@rule("CLI-04")
def test_the_request_carries_the_whole_position(connection: NodeConnection) -> None:
    open_stream(connection, 99, StreamOffset(0xA, 7, 3, None))
    (request,) = sent(connection)
    assert struct.unpack(">IIQQQQQ", request.extras) == (StreamFlag.ACTIVE_ONLY, 0, 7, 99, 0xA, 3, MAX_SEQNO)


def test_rollback_and_other_refusals(connection: NodeConnection) -> None:
    first, second = open_stream(connection), open_stream(connection)
    refusal = encode_response(
        Opcode.DCP_STREAM_REQ, status=Status.NOT_MY_VBUCKET, opaque=second.opaque, value=b'{"rev": 2}'
    )
    connection.receive_data(rollback(first.opaque, 5) + refusal, 0.0)
    assert list(connection.events()) == [
        StreamRefused(first, Status.ROLLBACK, 5),
        StreamRefused(second, Status.NOT_MY_VBUCKET, None, b'{"rev": 2}'),
    ]


def test_an_end_inside_a_snapshot_closes_the_stream_and_drops_the_rest(connection: NodeConnection) -> None:
    stream = open_stream(connection, 5)
    opaque = stream.opaque
    sent(connection)
    connection.receive_data(
        accepted(opaque) + marker(opaque, 0, 9) + b"".join(mutation(opaque, seqno) for seqno in (1, 4, 6, 7)), 0.0
    )
    events = list(connection.events())
    assert seqnos(events) == [1, 4]
    assert isinstance(events[1], RowsReceived)
    assert events[1].offsets == {0: StreamOffset(0xA, 5, 0, 9)}
    assert events[-1] == StreamDone(stream)
    assert [frame.opcode for frame in sent(connection)] == [Opcode.DCP_CLOSE_STREAM]
    connection.receive_data(mutation(opaque, 8) + mutation(opaque, 9) + stream_end(opaque, 1), 0.0)
    assert list(connection.events()) == []


def test_an_end_that_is_hit_exactly(connection: NodeConnection) -> None:
    stream = open_stream(connection, 5)
    connection.receive_data(accepted(stream.opaque) + marker(stream.opaque, 0, 9) + mutation(stream.opaque, 5), 0.0)
    events = list(connection.events())
    assert seqnos(events) == [5]
    assert events[-1] == StreamDone(stream)


def reach_end_of_history(connection: NodeConnection) -> Stream:
    """A stream whose end is that of its last snapshot; the STREAM_END has not come yet."""
    stream = open_stream(connection, 5)
    sent(connection)
    opaque = stream.opaque
    connection.receive_data(accepted(opaque) + marker(opaque, 0, 5) + mutation(opaque, 5), 0.0)
    assert list(connection.events())[-1] == StreamDone(stream)
    return stream


def test_a_stream_that_the_node_ends_itself_is_not_closed(connection: NodeConnection) -> None:
    stream = reach_end_of_history(connection)
    connection.receive_data(stream_end(stream.opaque, 0), 0.0)
    assert list(connection.events()) == []
    open_stream(connection, 9, StreamOffset(0xA, 5, 0, 5))
    assert [frame.opcode for frame in sent(connection)] == [Opcode.DCP_STREAM_REQ]


def test_a_stream_that_has_not_ended_yet_is_closed_before_the_next_one(connection: NodeConnection) -> None:
    stream = reach_end_of_history(connection)
    following = open_stream(connection, 9, StreamOffset(0xA, 5, 0, 5))
    closing, request = sent(connection)
    assert (closing.opcode, request.opcode) == (Opcode.DCP_CLOSE_STREAM, Opcode.DCP_STREAM_REQ)
    connection.receive_data(
        stream_end(stream.opaque, 0)
        + encode_response(Opcode.DCP_CLOSE_STREAM, status=Status.KEY_ENOENT, opaque=closing.opaque)
        + accepted(following.opaque),
        0.0,
    )
    (opened,) = connection.events()
    assert isinstance(opened, StreamOpened)


def test_a_stream_whose_end_was_lowered_is_closed(connection: NodeConnection) -> None:
    stream = open_stream(connection, 9)
    sent(connection)
    stream.end_seqno = 5
    connection.receive_data(accepted(stream.opaque) + marker(stream.opaque, 0, 5) + mutation(stream.opaque, 5), 0.0)
    assert [frame.opcode for frame in sent(connection)] == [Opcode.DCP_CLOSE_STREAM]


@rule("CLI-17")
def test_rows_of_several_streams_keep_their_own_positions(connection: NodeConnection) -> None:
    assert connection.session is not None
    streams = [connection.session.open_stream(vbid, StreamOffset.ZERO, MAX_SEQNO, 0.0) for vbid in range(3)]
    data = b"".join(accepted(stream.opaque) + marker(stream.opaque, 0, 10, vbid=stream.vbid) for stream in streams)
    for seqno in (1, 2):
        data += b"".join(mutation(stream.opaque, seqno + stream.vbid, vbid=stream.vbid) for stream in streams)
    connection.receive_data(data, 0.0)
    rows = [event for event in connection.events() if isinstance(event, RowsReceived)]
    assert {vbid: offset.seqno for vbid, offset in rows[-1].offsets.items()} == {0: 2, 1: 3, 2: 4}
    assert seqnos(list(rows)) == [1, 2, 3, 2, 3, 4]


def test_markers_that_want_an_answer_get_one(connection: NodeConnection) -> None:
    stream = open_stream(connection)
    sent(connection)
    connection.receive_data(accepted(stream.opaque) + marker(stream.opaque, 0, 4, flags=0x9), 0.0)
    (answer,) = sent(connection)
    assert (answer.opcode, answer.opaque) == (Opcode.DCP_SNAPSHOT_MARKER, stream.opaque)


@each_case("opcode", [Opcode.DCP_BUFFER_ACK, Opcode.DCP_STREAM_REQ, Opcode.DCP_CLOSE_STREAM])
def test_an_expired_token_ends_the_connection_after_the_rows_before(opcode: Opcode) -> None:
    """As a recorded 8.0.1: it goes on sending, and answers the next request of any kind with AUTH_STALE."""
    connection, _ = ready_connection(buffer_bytes=1000)
    stream = open_stream(connection)
    rows = marker(stream.opaque, 0, 10) + mutation(stream.opaque, 1)
    stale = encode_response(opcode, status=Status.AUTH_STALE, opaque=7)
    with pytest.raises(ConnectionLost, match="the token has expired") as caught:
        connection.receive_data(accepted(stream.opaque) + rows + stale, 0.0)
    assert type(caught.value) is ConnectionLost
    assert row_seqnos(connection.events()) == [1]
    assert stream.tracker.seqno == 1


def test_dropped_bytes_are_acknowledged_without_the_user() -> None:
    connection, _ = ready_connection(buffer_bytes=1000)
    assert connection.session is not None
    stream = open_stream(connection)
    connection.session.close_stream(stream)
    sent(connection)
    connection.receive_data(accepted(stream.opaque) + mutation(stream.opaque, 1, value=b"x" * 300), 0.0)
    assert [frame.opcode for frame in sent(connection)] == [Opcode.DCP_BUFFER_ACK]


@rule("CLI-17")
def test_other_requests_are_answered_by_opaque(connection: NodeConnection) -> None:
    assert connection.session is not None
    opaque = connection.session.request(GetAllVbSeqnos(state=None, collection_id=None), 0.0)
    connection.receive_data(encode_response(Opcode.GET_ALL_VB_SEQNOS, opaque=opaque, value=b"12"), 0.0)
    (answer,) = connection.events()
    assert isinstance(answer, Answer)
    assert (answer.opaque, answer.frame.value) == (opaque, b"12")


def test_an_answer_to_another_question_is_refused(connection: NodeConnection) -> None:
    assert connection.session is not None
    opaque = connection.session.request(GetAllVbSeqnos(state=None, collection_id=None), 0.0)
    with pytest.raises(RemoteProtocolError):
        connection.receive_data(encode_response(Opcode.NOOP, opaque=opaque), 0.0)


def test_an_answer_that_does_not_come_is_noticed(connection: NodeConnection) -> None:
    open_stream(connection)
    now = 0.0
    while now < ANSWER_TIMEOUT_S:
        now += 20.0
        connection.receive_data(encode_request(Opcode.DCP_NOOP, opaque=1), now)
    with pytest.raises(DeadConnection, match="DCP_STREAM_REQ"):
        connection.handle_timeout(now)


def test_a_handshake_that_does_not_end_is_noticed() -> None:
    connection = new_connection()
    with pytest.raises(ConnectTimeout):
        connection.handle_timeout(connection.next_timeout())


def test_garbage_instead_of_a_handshake() -> None:
    with pytest.raises(RemoteProtocolError, match="is it the data port"):
        new_connection().receive_data(b"HTTP/1.1 400 Bad Request\r\n\r\n", 0.0)


def test_garbage_later(connection: NodeConnection) -> None:
    with pytest.raises(Exception, match="magic"):
        connection.receive_data(b"?" * 24, 0.0)


@rule("CLI-19")
def test_a_frame_larger_than_the_buffer(connection: NodeConnection) -> None:
    stream = open_stream(connection)
    value = bytes(3 * RECEIVE_BYTES)
    connection.receive_data(
        accepted(stream.opaque)
        + marker(stream.opaque, 0, 2)
        + mutation(stream.opaque, 1, value=value)
        + mutation(stream.opaque, 2),
        0.0,
    )
    assert seqnos(connection.events()) == [1, 2]


CONVERSATION = (
    accepted(1)
    + marker(1, 0, 4)
    + b"".join(mutation(1, seqno, value=b"x" * seqno) for seqno in (1, 2, 4))
    + encode_request(Opcode.DCP_NOOP, opaque=7)
    + marker(1, 5, 6)
    + deletion(1, 6)
    + stream_end(1, 2)
)


@pytest.mark.parametrize("frames", [False, True])
@given(cuts=st.lists(st.integers(0, len(CONVERSATION)), max_size=8))
def test_every_split_of_the_bytes_gives_the_same_events(frames: bool, cuts: list[int]) -> None:
    connection, _ = ready_connection(frames=frames)
    stream = open_stream(connection)
    assert stream.opaque == 1
    events: list[object] = []
    bounds = sorted({0, *cuts, len(CONVERSATION)})
    for first, last in pairwise(bounds):
        connection.receive_data(CONVERSATION[first:last], 0.0)
        events += connection.events()
    rows = [event for event in events if isinstance(event, RowsReceived)]
    assert sum(stop - first for event in rows for first, stop in event.keep) == 4
    assert rows[-1].offsets == {0: StreamOffset(0xA, 6, 5, 6)}
    assert events[-1] == StreamStopped(stream, 2)


def test_byte_by_byte_from_the_first_one() -> None:
    node, connection = FakeNode(), new_connection()
    while data := connection.data_to_send():
        for byte in node.receive(data):
            connection.receive_data(bytes((byte,)), 0.0)
    assert connection.is_ready
    pump(connection, node)


@rule("CLI-02")
def test_the_log_of_a_resumed_stream_is_the_new_one(connection: NodeConnection) -> None:
    log = FailoverLog.of((0xB, 9), (0xA, 0))
    stream = open_stream(connection, offset=StreamOffset(0xA, 5, 2, 9))
    connection.receive_data(accepted(stream.opaque, log), 0.0)
    assert stream.tracker.offset == StreamOffset(0xB, 5, 2, 9)


def clustermap_like(opcode: int) -> bytes:
    return struct.pack(">BBHBBHIIQ", Magic.SERVER_REQUEST, opcode, 0, 0, 0, 0, 0, 0, 0)


START = marker(1, 0, 9) + mutation(1, 1) + mutation(1, 2)
"""The first messages in the cases below, after the node has accepted the stream with opaque 1."""

STREAM_FAULTS = {
    "a seqno again": START + mutation(1, 2),
    "a seqno again, behind a control": START + seqno_advanced(1, 3) + mutation(1, 3),
    "a falling seqno": START + mutation(1, 5) + mutation(1, 4) + mutation(1, 6),
    "seqno 0": marker(1, 0, 9) + mutation(1, 0),
    "an advanced seqno again": START + seqno_advanced(1, 2),
    "a system event again": START + system_event(1, 2, "c", 9),
    "a row below its snapshot": marker(1, 3, 9) + mutation(1, 2),
    "a row above its snapshot": START + mutation(1, 10),
    "a row in front of its marker": mutation(1, 1),
    "an advanced seqno in front of its marker": seqno_advanced(1, 1),
    "a row of another vbucket": START + mutation(1, 3, vbid=2),
    "a row of another vbucket between sound ones": START + mutation(1, 3, vbid=2) + mutation(1, 4),
    "a marker of another vbucket": START + marker(1, 3, 9, vbid=1),
    "an end of another vbucket": START + stream_end(1, 2, vbid=1),
    "a marker that ends before it starts": marker(1, 5, 4),
    "a marker that goes back": START + marker(1, 0, 1),
    "a marker that overlaps": START + mutation(1, 5) + marker(1, 3, 20),
    "an end for an empty filter without one": stream_end(1, 7),
    "an end without a reason": encode_request(Opcode.DCP_STREAM_END, opaque=1),
    "an order that was not asked for": oso(1, 1),
    "short extras of a system event": START + encode_request(Opcode.DCP_SYSTEM_EVENT, opaque=1, extras=b"1"),
    "a marker of unknown layout": START + encode_request(Opcode.DCP_SNAPSHOT_MARKER, opaque=1, extras=b"12345"),
}
"""They cost the stream."""

CONNECTION_FAULTS = {
    "a row of a stream that never was": START + mutation(77, 3),
    "a marker of a stream that never was": START + marker(77, 0, 9),
    "an end of a stream that never was": START + stream_end(77, 0),
    "an unknown request": START + encode_request(0xEE, opaque=1),
    "a request that producers do not send": START + encode_request(Opcode.DCP_ADD_STREAM, opaque=1, extras=bytes(4)),
    "an unknown request of the server": clustermap_like(0x77),
    "an answer to nothing": encode_response(Opcode.NOOP, opaque=99),
    "a second answer": accepted(1),
    "a refused BUFFER_ACK": encode_response(Opcode.DCP_BUFFER_ACK, status=Status.EINVAL),
    "short extras of a row": encode_request(Opcode.DCP_MUTATION, opaque=1, extras=bytes(7), key=b"\0k"),
}
"""They cost the connection."""


def receive_all(connection: NodeConnection, pieces: list[bytes], told: list[int]) -> None:
    """Receive each piece by itself, and collect the seqnos of its events, also those before an error."""
    for piece in pieces:
        try:
            connection.receive_data(piece, 0.0)
        finally:
            told += row_seqnos(connection.events())


@each_case("frames", [False, True])
@each_case("end", [8, MAX_SEQNO])
@each_case("name", CONNECTION_FAULTS)
def test_a_fault_of_the_connection(name: str, end: int, frames: bool) -> None:
    """Neither in one receive nor frame by frame: an error, and no events but those of sound rows."""
    data = CONNECTION_FAULTS[name]
    for pieces in ([accepted(1) + data], [accepted(1), *split_frames(data)]):
        connection, _ = ready_connection(frames=frames)
        stream = open_stream(connection, end)
        told: list[int] = []
        with pytest.raises((RemoteProtocolError, WireError)):
            receive_all(connection, pieces, told)
        assert told == sorted(set(told))
        assert set(told) <= {1, 2}
        assert stream.tracker.seqno <= 2


@each_case("frames", [False, True])
@each_case("end", [8, MAX_SEQNO])
@each_case("name", STREAM_FAULTS)
def test_a_fault_of_one_stream_costs_that_stream_alone(name: str, end: int, frames: bool) -> None:
    data = STREAM_FAULTS[name]
    for pieces in ([accepted(1) + data], [accepted(1), *split_frames(data)]):
        connection, _ = ready_connection(frames=frames)
        assert connection.session is not None
        stream = open_stream(connection, end)
        other = connection.session.open_stream(1, StreamOffset.ZERO, MAX_SEQNO, 0.0)
        sent(connection)
        others = marker(other.opaque, 0, 9, vbid=1) + mutation(other.opaque, 7, vbid=1)
        events = []
        for piece in [*pieces, mutation(stream.opaque, 6), accepted(other.opaque) + others]:
            connection.receive_data(piece, 0.0)
            events += list(connection.events())
        (broken,) = (event for event in events if isinstance(event, StreamBroken))
        assert broken.stream is stream
        assert "broke the protocol: vbucket 0: " in str(broken.error)
        told = row_seqnos(iter(events))
        assert told.pop() == 7, "the other stream goes on"
        assert told == sorted(set(told))
        assert set(told) <= {1, 2, 5}
        assert stream.tracker.seqno <= 5
        is_over = b"\x80\x55" in data and "vbucket" not in name and "reason" not in name
        answers = [frame.opcode for frame in sent(connection) if frame.opcode != Opcode.DCP_BUFFER_ACK]
        assert answers == ([] if is_over else [Opcode.DCP_CLOSE_STREAM])


@pytest.mark.parametrize("frames", [False, True])
@given(seqnos=st.lists(st.integers(1, 12), min_size=1, max_size=120))
def test_rows_are_given_only_while_seqnos_rise(frames: bool, seqnos: list[int]) -> None:
    rising = [seqno for place, seqno in enumerate(seqnos) if all(a < b for a, b in pairwise(seqnos[: place + 1]))]
    is_sound = rising == seqnos
    connection, _ = ready_connection(frames=frames)
    open_stream(connection)
    data = accepted(1) + marker(1, 0, 12) + b"".join(mutation(1, seqno) for seqno in seqnos)
    connection.receive_data(data, 0.0)
    events = list(connection.events())
    assert row_seqnos(iter(events)) == rising
    assert ["comes after" in str(event.error) for event in events if isinstance(event, StreamBroken)] == (
        [] if is_sound else [True]
    )


def test_what_is_legal_at_the_borders(connection: NodeConnection) -> None:
    """A first marker begins where the request's snapshot did; a later one may begin at the position."""
    stream = open_stream(connection, MAX_SEQNO, StreamOffset(0xA, 7, 3, 9))
    connection.receive_data(
        accepted(1) + marker(1, 3, 9) + mutation(1, 9) + marker(1, 9, 12) + mutation(1, 12) + marker(1, 13, 13), 0.0
    )
    assert stream.tracker.offset == StreamOffset(0xA, 12, 9, 12)


def test_more_than_the_window_and_a_frame_is_too_much() -> None:
    connection, _ = ready_connection(buffer_bytes=1000)
    open_stream(connection)
    value = bytes(10 * 1024 * 1024)
    connection.receive_data(accepted(1) + marker(1, 0, 9), 0.0)
    rows = [mutation(1, seqno, value=value) for seqno in range(1, 5)]
    with pytest.raises(RemoteProtocolError, match="in spite of a window of 1000"):
        receive_all(connection, rows, [])


@each_case("status", [Status.SUCCESS, Status.KEY_ENOENT])
def test_messages_of_a_stream_that_was_closed_are_dropped_and_acknowledged(status: int) -> None:
    """KEY_ENOENT says that the node has ended the stream. What it had queued by then comes as the window opens."""
    connection, _ = ready_connection(buffer_bytes=1000)
    assert connection.session is not None
    stream = open_stream(connection)
    connection.receive_data(accepted(1), 0.0)
    connection.session.close_stream(stream)
    closing = sent(connection)[-1]
    answer = encode_response(Opcode.DCP_CLOSE_STREAM, status=status, opaque=closing.opaque)
    connection.receive_data(answer + START + marker(1, 3, 4) + mutation(1, 3, value=bytes(300)), 0.0)
    assert [frame.opcode for frame in sent(connection)] == [Opcode.DCP_BUFFER_ACK]
    connection.receive_data(stream_end(1, 0), 0.0)
    assert [type(event) for event in connection.events()] == [StreamOpened]


def told(connection: NodeConnection, event: CollectionEvent, *, flatbuffers: bool) -> ManifestEvent:
    """The client's event for an event of a node, in either form."""
    stream = open_stream(connection)
    stream.names = Catalog(None)
    frame = encode_stored_event(event, vbid=0, by_seqno=4)
    extras = struct.pack(">QIB", 4, event.event, 2 if flatbuffers else frame[36])
    key, value = frame[37 : 37 + len(event.name.encode())], frame[37 + len(event.name.encode()) :]
    if flatbuffers:
        key, value = b"", flatbuffer_of(event)
    message = encode_request(Opcode.DCP_SYSTEM_EVENT, opaque=stream.opaque, extras=extras, key=key, value=value)
    connection.receive_data(accepted(stream.opaque) + marker(stream.opaque, 0, 5) + message, 0.0)
    rows = next(item for item in connection.events() if isinstance(item, RowsReceived))
    (group,) = rows.parts()
    assert isinstance(group, CollectionEvents)
    (found, *_) = group.events
    assert isinstance(found, ManifestEvent)
    return found


@pytest.mark.parametrize("flatbuffers", [False, True])
@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (CollectionEvent(0, 7, 9, 10, "fleet"), (Op.COLLECTION_CREATED, "0x9", "fleet", 9, 10, 0)),
        (CollectionEvent(0, 7, 9, 10, "fleet", 60), (Op.COLLECTION_CREATED, "0x9", "fleet", 9, 10, 60)),
        (CollectionEvent(1, 7, 9, 10), (Op.COLLECTION_DROPPED, "", "0xa", 9, 10, None)),
        (CollectionEvent(3, 7, 9, 0, "shop"), (Op.SCOPE_CREATED, "shop", "", 9, None, None)),
        (CollectionEvent(4, 7, 9), (Op.SCOPE_DROPPED, "0x9", "", 9, None, None)),
    ],
)
def test_events_in_both_forms_say_the_same(
    connection: NodeConnection, event: CollectionEvent, expected: tuple[object, ...], flatbuffers: bool
) -> None:
    found = told(connection, event, flatbuffers=flatbuffers)
    assert (found.op, found.scope, found.collection, found.scope_id, found.collection_id, found.max_ttl) == expected
    assert (found.seqno, found.manifest_uid, found.offset.seqno) == (4, 7, 4)


def test_a_flushed_collection_is_distinguished_from_a_new_one(connection: NodeConnection) -> None:
    stream = open_stream(connection)
    stream.names = Catalog(None)
    event = CollectionEvent(0, 7, 9, 10, "fleet", 0, 8)
    stream.tracker.opened(FailoverLog.of((0xA, 0)))
    assert follow(stream, event, 4)[0].op is Op.COLLECTION_FLUSHED


HISTORY = 0x10


def test_a_snapshot_without_history_is_a_gap_for_a_reader_of_every_version() -> None:
    end = client_of_streams(history=True)
    stream = end.opened()
    data = marker(stream.opaque, 0, 5, vbid=1, flags=2) + mutation(stream.opaque, 3, vbid=1)
    data += mutation(stream.opaque, 5, vbid=1) + marker(stream.opaque, 6, 8, vbid=1, flags=2 | HISTORY | 0x20)
    data += mutation(stream.opaque, 6, vbid=1) + mutation(stream.opaque, 7, vbid=1)
    data += mutation(stream.opaque, 8, vbid=1) + marker(stream.opaque, 9, 9, vbid=1, flags=1 | HISTORY)
    (received,) = end.receive(data)
    assert isinstance(received, RowsReceived)
    gap, rows = received.parts()
    assert isinstance(gap, CollectionEvents)
    (event,) = gap.events
    assert (event.op, event.vbid, event.seqno, event.details()) == (
        Op.HISTORY_GAP,
        1,
        0,
        {"from_seqno": "0", "to_seqno": "5"},
    )
    assert gap.offsets[1].seqno == 0
    assert isinstance(rows, RowsReceived)
    assert rows.offsets[1].seqno == 8
