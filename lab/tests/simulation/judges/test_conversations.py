"""The watch over connections: seqnos, windows, rollbacks."""

from __future__ import annotations

import pytest

from dcpstream.wire import Opcode, Status, encode_request, encode_response
from dcpstream.wire.messages.dcp import Mutation, OsoSnapshot, SnapshotMarker, StreamRequest
from lab.simulation.judges.conversations import Conversations
from lab.simulation.judges.history import Branch, Histories, Item, Violation
from lab.simulation.lines import Line


@pytest.fixture
def histories() -> Histories:
    found = Histories()
    root = Branch(0, 0xA, None, 0, 0, [Item(seqno, (0, b"k"), b"v") for seqno in range(1, 11)])
    found.newest[0] = child = Branch(0, 0xB, root, 5, 5, [])
    found.branches = {(0, 0xA): root, (0, 0xB): child}
    found._serving[0] = "n0"
    return found


@pytest.fixture
def line() -> Line:
    return Line("reader", "n0", None, 1.0, is_splitting=False)  # type: ignore[arg-type]


@pytest.fixture
def watch(histories: Histories, line: Line) -> Conversations:
    found = Conversations(histories)
    found.opened(line)
    return found


def ask(
    watch: Conversations, line: Line, start: int, vbuuid: int = 0xB, snapshot: tuple[int, int] | None = None
) -> None:
    low, high = snapshot or (start, start)
    watch.to_node(
        line,
        StreamRequest(
            vbid=0, opaque=7, flags=0, start_seqno=start, end_seqno=100, vbuuid=vbuuid, snapshot_start=low,
            snapshot_end=high,
        ).encode(),
    )  # fmt: skip


def accept(watch: Conversations, line: Line) -> None:
    watch.from_node(line, encode_response(Opcode.DCP_STREAM_REQ, opaque=7))


def marker(watch: Conversations, line: Line, start: int, end: int) -> None:
    extras = SnapshotMarker.layout.extras.pack(start, end, 1)
    watch.from_node(line, encode_request(Opcode.DCP_SNAPSHOT_MARKER, opaque=7, extras=extras))


def mutation(watch: Conversations, line: Line, seqno: int, key: bytes | None = None) -> None:
    key = b"\0k%d" % seqno if key is None else key
    extras = Mutation.layout.extras.pack(seqno, 1, 0, 0, 0, 0, 0)
    watch.from_node(line, encode_request(Opcode.DCP_MUTATION, opaque=7, key=key, extras=extras))


@pytest.mark.parametrize("seqno", [6, 7])
def test_seqnos_rise(watch: Conversations, line: Line, seqno: int) -> None:
    ask(watch, line, 0)
    accept(watch, line)
    marker(watch, line, 0, 9)
    mutation(watch, line, 7)
    with pytest.raises(Violation, match="seqnos rise"):
        mutation(watch, line, seqno)


def test_seqnos_need_not_rise_in_an_unordered_snapshot(watch: Conversations, line: Line) -> None:
    ask(watch, line, 0)
    accept(watch, line)
    for code in (1, 2):
        extras = OsoSnapshot.layout.extras.pack(code)
        watch.from_node(line, encode_request(Opcode.DCP_OSO_SNAPSHOT, opaque=7, extras=extras))
        if code == 1:
            for seqno in (7, 3, 5):
                mutation(watch, line, seqno)
    marker(watch, line, 8, 8)
    mutation(watch, line, 8)


def test_items_lie_within_their_snapshot(watch: Conversations, line: Line) -> None:
    ask(watch, line, 0)
    accept(watch, line)
    marker(watch, line, 0, 6)
    with pytest.raises(Violation, match="items lie within their snapshot"):
        mutation(watch, line, 7)


def test_snapshots_go_forward(watch: Conversations, line: Line) -> None:
    ask(watch, line, 5)
    accept(watch, line)
    with pytest.raises(Violation, match="a snapshot goes forward"):
        marker(watch, line, 1, 4)


@pytest.mark.parametrize(
    ("start", "vbuuid", "snapshot", "is_right"),
    [
        (5, 0xA, None, True),
        (6, 0xA, None, False),
        (5, 0xA, (3, 5), True),
        (4, 0xA, (3, 8), False),
        (3, 0xA, (3, 8), True),
        (4, 0xB, (3, 8), True),
    ],
)
def test_a_position_of_another_branch_is_refused(
    watch: Conversations, line: Line, start: int, vbuuid: int, snapshot: tuple[int, int] | None, is_right: bool
) -> None:
    ask(watch, line, start, vbuuid, snapshot)
    if is_right:
        accept(watch, line)
    else:
        with pytest.raises(Violation, match="a position of another branch is refused"):
            accept(watch, line)


@pytest.mark.parametrize(("to", "message"), [(5, ""), (0, ""), (6, "above the common point"), (9, "goes back")])
def test_rollbacks_land_at_or_below_the_common_point(watch: Conversations, line: Line, to: int, message: str) -> None:
    ask(watch, line, 8, 0xA)
    data = encode_response(Opcode.DCP_STREAM_REQ, status=Status.ROLLBACK, opaque=7, value=to.to_bytes(8, "big"))
    if not message:
        watch.from_node(line, data)
        assert watch.rollbacks == 1
    else:
        with pytest.raises(Violation, match=message):
            watch.from_node(line, data)


def test_a_window_bounds_what_is_not_acknowledged(watch: Conversations, line: Line) -> None:
    watch.to_node(line, encode_request(Opcode.DCP_CONTROL, opaque=3, key=b"connection_buffer_size", value=b"100"))
    watch.from_node(line, encode_response(Opcode.DCP_CONTROL, opaque=3))
    ask(watch, line, 0)
    accept(watch, line)
    marker(watch, line, 0, 9)  # 44 bytes
    mutation(watch, line, 1)  # 58 bytes: more than the window may be under way, but nothing follows
    with pytest.raises(Violation, match="unacknowledged bytes are bounded"):
        mutation(watch, line, 2)
    watch.to_node(line, encode_request(Opcode.DCP_BUFFER_ACK, extras=(102).to_bytes(4, "big")))
    mutation(watch, line, 3)


def test_an_acknowledgement_of_nothing_is_seen(watch: Conversations, line: Line) -> None:
    with pytest.raises(Violation, match="never sent"):
        watch.to_node(line, encode_request(Opcode.DCP_BUFFER_ACK, extras=(9).to_bytes(4, "big")))


def test_a_snapshot_has_a_document_once(watch: Conversations, line: Line) -> None:
    ask(watch, line, 0)
    accept(watch, line)
    marker(watch, line, 0, 3)
    mutation(watch, line, 1, b"\0k")
    with pytest.raises(Violation, match="a snapshot has a document once"):
        mutation(watch, line, 3, b"\0k")
    marker(watch, line, 4, 9)
    mutation(watch, line, 4, b"\0k")
