"""The client's machines against a hostile node: rows whose seqnos rise, or an error of ours; it comes to an end.

Input: flags, the size of the pieces, and frames. The first flag chooses between a whole reader, whose first stream is
the input and whose later ones are sound, and a single connection that gets the input from its first byte on.
"""

from __future__ import annotations

from collections.abc import Iterator

from dcpstream.client.machine.values import VbucketRange
from dcpstream.errors import DcpstreamError
from dcpstream.model import MAX_SEQNO, StreamOffset
from dcpstream.wire import Frame, Opcode, encode_request, encode_response
from lab.fuzz import seeds as shared
from lab.fuzz.mutation import split
from tests.kit.client_machines import World, history, new_connection
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

FRAMES_AT = 2
MAX_BYTES = 1600
END = 12
ARROW, FROM_FIRST_BYTE = 1, 2
BUFFER_BYTES_MAX = 4 << 20


def seeds() -> Iterator[bytes]:
    opaque = first_opaque()
    rows = (
        marker(opaque, 0, 6), mutation(opaque, 1), deletion(opaque, 2), system_event(opaque, 3, "c", 9),
        seqno_advanced(opaque, 6), encode_request(Opcode.DCP_NOOP, opaque=9), marker(opaque, 6, END),
        *(mutation(opaque, seqno) for seqno in range(7, END + 1)), stream_end(opaque),
    )  # fmt: skip
    for flags in (0, ARROW):
        yield bytes((flags, 0)) + accepted(opaque) + b"".join(rows)
        yield bytes((flags, 9)) + accepted(opaque) + b"".join(rows[:4]) + stream_end(opaque, 2)
        yield bytes((flags, 0)) + rollback(opaque, 0)
        yield bytes((flags, 0)) + accepted(opaque) + oso(opaque, 1) + b"".join(rows[1:3]) + oso(opaque, 2)
        yield bytes((flags, 0)) + encode_response(Opcode.DCP_STREAM_REQ, status=7, opaque=opaque)
    handshake = greeting()
    yield bytes((FROM_FIRST_BYTE, 0)) + handshake
    yield bytes((FROM_FIRST_BYTE, 0)) + handshake + accepted(opaque) + b"".join(rows[:3])
    received = [frame for direction, frame in shared.recorded_frames() if direction == "s2c"]
    for at in range(0, len(received), 6):
        yield bytes((at // 6 % 2, 0)) + accepted(opaque) + b"".join(received[at : at + 6])[: MAX_BYTES - 100]


def check(data: bytes) -> None:
    if len(data) < FRAMES_AT:
        return
    if data[0] & FROM_FIRST_BYTE:
        one_connection(data[2:], data[1], keeps_frames=bool(data[0] & ARROW))
    else:
        whole_reader(data[2:], is_arrow=bool(data[0] & ARROW))


def whole_reader(data: bytes, *, is_arrow: bool) -> None:
    def answer(frame: Frame, attempt: int) -> bytes:
        return data if attempt == 0 else history(frame, END) + ended(frame)

    world = World([VbucketRange(0, StreamOffset.ZERO, END)], answer, arrow=is_arrow)
    try:
        world.run(limit_s=300.0)
    except DcpstreamError:
        pass
    else:
        assert world.offsets[0].seqno == END
    seqnos = world.seqnos()
    assert seqnos == sorted(set(seqnos))
    assert all(0 < seqno <= END for seqno in seqnos)


def ended(frame: Frame) -> bytes:
    return stream_end(frame.opaque) if int.from_bytes(frame.extras[8:16], "big") >= END else b""


def one_connection(data: bytes, size: int, *, keeps_frames: bool) -> None:
    connection = new_connection(frames=keeps_frames)
    streams = 0
    try:
        for piece in [data[at : at + size] for at in range(0, len(data), size)] if size else split(data):
            connection.receive_data(piece, 0.0)
            connection.data_to_send()
            if connection.session is not None and not streams:
                streams = 1
                connection.session.open_stream(0, StreamOffset.ZERO, MAX_SEQNO, 0.0)
            list(connection.events())
            assert len(connection._buffer) <= BUFFER_BYTES_MAX
        connection.handle_timeout(connection.next_timeout())
    except DcpstreamError:
        return


def greeting() -> bytes:
    """The answers of a sound node to the handshake."""
    connection, node = new_connection(), FakeNode()
    said = b""
    while data := connection.data_to_send():
        answers = node.receive(data)
        said += answers
        connection.receive_data(answers, 0.0)
    assert connection.is_ready
    return said


def first_opaque() -> int:
    """The opaque of a reader's first stream."""
    found: list[int] = []

    def answer(frame: Frame, _attempt: int) -> bytes:
        found.append(frame.opaque)
        return history(frame, END) + ended(frame)

    World([VbucketRange(0, StreamOffset.ZERO, END)], answer).run()
    return found[0]
