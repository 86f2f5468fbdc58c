"""Guarded streams: when a session says which deletions their first snapshot may lack, and what waits until then."""

from __future__ import annotations

from collections.abc import Callable

from dcpstream.client.machine.connection.events import (
    Event,
    PurgeChecked,
    Purged,
    RowsReceived,
    Stream,
    StreamOpened,
    StreamStopped,
)
from dcpstream.model import MAX_SEQNO, StreamOffset
from dcpstream.wire import (
    Frame,
    MarkerFlag,
    Opcode,
    Status,
    StreamEndReason,
    StreamFlag,
    decode_message,
    encode_response,
)
from dcpstream.wire.messages.dcp import CloseStream, StreamRequest
from tests.kit.cases import each_case
from tests.kit.client_machines import ClientEnd, client_of_streams
from tests.kit.messages import (
    DISK,
    accepted,
    marker,
    marker_v22,
    mutation,
    purge_statistics,
    rollback,
    stream_end,
)

POSITION = StreamOffset(0xA, 4, 0, 9, purge_limit=9)


def guarded(client: ClientEnd, *, vbid: int = 0, end: int = MAX_SEQNO) -> tuple[Stream, StreamRequest]:
    """A guarded stream that the node has accepted, and its request."""
    stream = client.session.open_stream(vbid, POSITION, end, client.now, purged=Purged.GUARD)
    (frame,) = client.sent()
    message = decode_message(frame)
    assert isinstance(message, StreamRequest)
    assert [type(event) for event in client.receive(accepted(stream.opaque))] == [StreamOpened]
    return stream, message


def questions(client: ClientEnd) -> tuple[Frame, Frame]:
    statistics, again = client.sent()
    assert (statistics.opcode, statistics.key) == (Opcode.STAT, b"vbucket-seqno 0")
    assert again.opcode == Opcode.DCP_STREAM_REQ
    return statistics, again


def exists(frame: Frame, status: int = Status.KEY_EEXISTS) -> bytes:
    return encode_response(Opcode.DCP_STREAM_REQ, status=status, opaque=frame.opaque)


def seqnos(events: list[Event]) -> list[object]:
    """Rows as their seqnos, other events as their types."""
    found: list[object] = []
    for event in events:
        if isinstance(event, RowsReceived):
            found += [event.rows.seqno(row) for first, stop in event.keep for row in range(first, stop)]
        else:
            found.append(type(event))
    return found


def test_the_request_ignores_purged_deletions_and_never_ends() -> None:
    _, request = guarded(client_of_streams(), end=7)
    assert request.flags == StreamFlag.ACTIVE_ONLY | StreamFlag.IGNORE_PURGED_TOMBSTONES
    assert (request.start_seqno, request.snapshot_start, request.snapshot_end) == (4, 0, 9)
    assert request.end_seqno == MAX_SEQNO, "it must live until the node was asked about it"


def test_a_marker_with_the_purge_seqno_answers_at_once() -> None:
    client = client_of_streams()
    stream, _ = guarded(client)
    events = client.receive(marker_v22(stream.opaque, 0, 9, 8) + mutation(stream.opaque, 5))
    assert seqnos(events) == [PurgeChecked, 5]
    assert events[0] == PurgeChecked(stream, 8)
    assert not client.sent()


def test_after_any_other_marker_the_node_is_asked_and_rows_wait() -> None:
    client = client_of_streams()
    stream, _ = guarded(client)
    assert client.receive(marker(stream.opaque, 0, 9, flags=DISK) + mutation(stream.opaque, 5)) == []
    statistics, again = questions(client)
    request = decode_message(again)
    assert isinstance(request, StreamRequest)
    assert (request.start_seqno, request.end_seqno, request.flags) == (4, 4, StreamFlag.ACTIVE_ONLY)
    assert client.receive(mutation(stream.opaque, 6) + purge_statistics(statistics, 8)) == []
    events = client.receive(mutation(stream.opaque, 7) + exists(again) + mutation(stream.opaque, 8))
    assert events[0] == PurgeChecked(stream, 8)
    assert seqnos(events) == [PurgeChecked, 5, 6, 7, 8]
    assert seqnos(client.receive(mutation(stream.opaque, 9))) == [9], "nothing waits any more"


def test_held_rows_are_acknowledged_when_they_are_consumed() -> None:
    client = client_of_streams(buffer_bytes=1000)
    stream, _ = guarded(client)
    client.receive(marker(stream.opaque, 0, 9, flags=DISK) + mutation(stream.opaque, 5, value=bytes(500)))
    statistics, again = questions(client)
    assert client.session.window.outstanding_bytes > 500
    events = client.receive(purge_statistics(statistics, 8) + exists(again))
    assert not client.sent()
    (rows,) = (event for event in events if isinstance(event, RowsReceived))
    client.session.consumed(rows.flow_bytes)
    assert [frame.opcode for frame in client.sent()] == [Opcode.DCP_BUFFER_ACK]


def test_held_rows_of_a_stream_that_is_closed_are_dropped_and_acknowledged() -> None:
    client = client_of_streams(buffer_bytes=1000)
    stream, _ = guarded(client)
    client.receive(marker(stream.opaque, 0, 9, flags=DISK) + mutation(stream.opaque, 5, value=bytes(500)))
    statistics, again = questions(client)
    client.session.close_stream(stream)
    assert [frame.opcode for frame in client.sent()] == [Opcode.DCP_BUFFER_ACK, CloseStream.layout.opcode]
    assert client.receive(mutation(stream.opaque, 6) + purge_statistics(statistics, 8) + exists(again)) == []


@each_case(
    "answer",
    [
        lambda frame: encode_response(Opcode.STAT, status=Status.EACCESS, opaque=frame.opaque),
        lambda frame: encode_response(Opcode.STAT, opaque=frame.opaque),
        lambda frame: purge_statistics(frame, 8, vbid=1),
        lambda frame: purge_statistics(frame, 8).replace(b"seqno8", b"seqno?"),
    ],
    ids=["no right", "nothing", "another vbucket", "no number"],
)
def test_without_a_purge_seqno_it_is_unknown(answer: Callable[[Frame], bytes]) -> None:
    client = client_of_streams()
    stream, _ = guarded(client)
    client.receive(marker(stream.opaque, 0, 9, flags=DISK))
    statistics, again = questions(client)
    assert client.receive(answer(statistics) + exists(again)) == [PurgeChecked(stream, None)]


@each_case("status", [Status.NOT_MY_VBUCKET, Status.ROLLBACK, Status.SUCCESS])
def test_a_stream_that_does_not_live_any_more_shows_nothing(status: int) -> None:
    client = client_of_streams()
    stream, _ = guarded(client)
    client.receive(marker(stream.opaque, 0, 9, flags=DISK) + mutation(stream.opaque, 5))
    statistics, again = questions(client)
    opened_after_all = accepted(again.opaque) + stream_end(again.opaque)
    answer = {Status.ROLLBACK: rollback(again.opaque, 0), Status.SUCCESS: opened_after_all}
    events = client.receive(purge_statistics(statistics, 8) + answer.get(Status(status), exists(again, status)))
    assert events == [StreamStopped(stream, StreamEndReason.STATE_CHANGED)]
    assert client.receive(mutation(stream.opaque, 6) + stream_end(stream.opaque, 2)) == []


@each_case("flags", [1, DISK | MarkerFlag.MAY_DUPLICATE])
def test_a_snapshot_with_several_versions_shows_nothing(flags: int) -> None:
    client = client_of_streams()
    stream, _ = guarded(client)
    assert client.receive(marker(stream.opaque, 0, 9, flags=flags)) == [PurgeChecked(stream, None)]
