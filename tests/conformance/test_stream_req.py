"""Rules of STREAM_REQ: what is checked, in which order, and what a stream then brings."""

from __future__ import annotations

import json
import struct
from typing import Any

from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.model import MAX_SEQNO
from dcpstream.wire import Feature, Magic, Opcode, OpenFlag, Status, StreamFlag, decode_frame
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.values import decode_failover_log
from dcpstream_node.testing.simulation import WITHOUT_COLLECTIONS, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.lists import ListSource, ListVBucket, frame_of, frames_in
from tests.kit.rules import of_release, rule
from tests.kit.streams import (
    DEAD,
    DISK,
    FIRST,
    LATER,
    PENDING,
    REPLICA,
    answer,
    branched,
    dcp_stat,
    drain,
    end,
    garden,
    new_checkpoint,
    read,
    sent,
)

EXTRAS = struct.Struct(">IIQQQQQ")


def extras(**fields: Any) -> bytes:
    """The extras of a request for everything, with some fields otherwise."""
    values = {"flags": 0, "reserved": 0, "start": 0, "end": MAX_SEQNO, "vbuuid": 0, "low": 0, "high": 0} | fields
    return EXTRAS.pack(*values.values())


@rule("REQ-01")
@each_case("length", [0, 40, 47, 49, 56])
def test_the_extras_have_48_bytes(length: int) -> None:
    node = SimulatedNode()
    peer = node.producer()
    assert peer.call(Opcode.DCP_STREAM_REQ, vbid=1, extras=extras()[:length].ljust(length, b"\0")).status == 0x04
    assert peer.call(Opcode.DCP_STREAM_REQ, vbid=1, extras=extras()).status == 0


@rule("REQ-01")
def test_every_field_is_read_where_it_stands() -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    vbuuid = node.vbucket(1).vbuuid
    peer = node.producer()
    fields = extras(flags=0x20, start=7, end=9, vbuuid=vbuuid, low=5, high=8)
    frames = peer.send(Opcode.DCP_STREAM_REQ, vbid=1, extras=fields)
    assert sent(frames) == [(5, 10, FIRST), 8, 9, 10, end()]
    for wrong in ({"low": 8}, {"high": 6}, {"end": 6}, {"vbuuid": vbuuid + 1}):
        values = {"flags": 0x20, "start": 7, "end": 9, "vbuuid": vbuuid, "low": 5, "high": 8} | wrong
        status = answer(peer.send(Opcode.DCP_STREAM_REQ, vbid=1, extras=extras(**values)))[0]
        assert status == (Status.ROLLBACK if "vbuuid" in wrong else Status.ERANGE)


@rule("REQ-02")
@each_case("fields", [{"key": b"k"}, {"datatype": 1}, {"datatype": 1, "value": b'{"uid":"0"}'}])
def test_neither_key_nor_datatype(fields: dict[str, Any]) -> None:
    peer = SimulatedNode().producer()
    assert peer.call(Opcode.DCP_STREAM_REQ, vbid=1, extras=extras(), **fields).status == Status.EINVAL
    assert not peer.closed


@rule("REQ-03")
def test_a_value_needs_collections() -> None:
    peer = SimulatedNode().producer(features=WITHOUT_COLLECTIONS)
    assert answer(peer.stream(1, value=b'{"uid":"0"}'))[0] == Status.EINVAL
    assert answer(peer.stream(99, value=b'{"uid":"0"}'))[0] == Status.EINVAL, "before the vbucket is looked for"
    assert answer(peer.stream(1))[0] == 0


@rule("REQ-04")
def test_the_reserved_word_is_ignored() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    frames = node.producer().send(Opcode.DCP_STREAM_REQ, vbid=1, extras=extras(reserved=0xFFFFFFFF))
    assert sent(frames) == [(0, 2, FIRST), 1, 2]


@rule("REQ-05")
@each_case("flags", [0x08, 0x09, 0x100, 0x101, 0x102, 0x200, 0x8000_0000])
def test_unknown_flags_are_refused(flags: int) -> None:
    node = SimulatedNode()
    node.fill(1, 1)
    peer = node.producer()
    assert answer(peer.stream(1, flags=flags))[0] == Status.EINVAL
    assert dcp_stat(node, "num_streams") == "0"


@rule("REQ-06")
def test_the_first_check_that_fails_gives_the_answer() -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    node.set_vbucket(2, DEAD)
    peer = node.connect()
    peer.dcp_open()
    bad_filter = b'{"collections":["77"]}'
    inverted = {"start": 7, "end": 5, "snapshot": (9, 9), "vbuuid": 1, "value": bad_filter}
    assert answer(peer.stream(4, **inverted))[0] == Status.NOT_MY_VBUCKET  # type: ignore[arg-type]
    assert answer(peer.stream(2, **inverted))[0] == Status.NOT_MY_VBUCKET  # type: ignore[arg-type]
    assert answer(peer.stream(1, **inverted))[0] == Status.NOT_SUPPORTED  # type: ignore[arg-type]
    peer.control(b"enable_noop", b"true")
    assert answer(peer.stream(1, **inverted))[0] == Status.ERANGE  # type: ignore[arg-type]
    inverted["end"] = 8
    assert answer(peer.stream(1, **inverted))[0] == Status.ERANGE  # type: ignore[arg-type]
    inverted["snapshot"] = (7, 7)
    assert answer(peer.stream(1, **inverted))[0] == Status.UNKNOWN_COLLECTION  # type: ignore[arg-type]
    del inverted["value"]
    assert answer(peer.stream(1, **inverted))[0] == Status.ROLLBACK  # type: ignore[arg-type]
    assert answer(peer.stream(1))[0] == 0
    assert answer(peer.stream(1, **inverted))[0] == Status.KEY_EEXISTS  # type: ignore[arg-type]


@rule("REQ-07")
@each_case("vbid", [3, 4, 1024, 65535])
def test_a_vbucket_that_is_not_here(vbid: int) -> None:
    node = SimulatedNode()
    node.delete_vbucket(3)
    assert answer(node.producer().stream(vbid))[0] == Status.NOT_MY_VBUCKET


@rule("REQ-08")
@each_case(("state", "status"), [(1, 0), (REPLICA, 0), (PENDING, Status.NOT_MY_VBUCKET), (DEAD, Status.NOT_MY_VBUCKET)])
def test_the_role_decides(state: int, status: int) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, state)
    assert answer(node.producer().stream(1))[0] == status


@rule("REQ-09")
def test_an_active_vbucket_only() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    peer = node.producer()
    assert answer(peer.stream(1, flags=StreamFlag.ACTIVE_ONLY))[0] == Status.NOT_MY_VBUCKET
    assert answer(peer.stream(2, flags=StreamFlag.ACTIVE_ONLY))[0] == 0


@rule("REQ-10")
@each_case(
    ("flags", "features", "is_needed"),
    [
        (1, (Feature.XERROR, Feature.COLLECTIONS), True),
        (1 | OpenFlag.INCLUDE_XATTRS, (Feature.XERROR, Feature.XATTR), True),
        (1, (Feature.XERROR, Feature.XATTR), False),
    ],
)
def test_noops_come_before_collections_and_xattrs(flags: int, features: tuple[int, ...], is_needed: bool) -> None:
    peer = SimulatedNode().connect(features=features)
    peer.dcp_open(flags=flags)
    assert answer(peer.stream(1))[0] == (Status.NOT_SUPPORTED if is_needed else 0)
    peer.control(b"enable_noop", b"true")
    assert answer(peer.stream(2))[0] == 0


@rule("REQ-11", "REQ-12", "REQ-13")
@each_case(
    ("start", "last", "snapshot", "status"),
    [
        (5, 4, (5, 5), Status.ERANGE),
        (5, 5, (5, 5), 0),
        (5, 9, (6, 9), Status.ERANGE),
        (5, 9, (5, 9), 0),
        (5, 9, (2, 4), Status.ERANGE),
        (5, 9, (2, 5), 0),
    ],
)
def test_start_lies_in_its_snapshot_and_before_the_end(
    start: int, last: int, snapshot: tuple[int, int], status: int
) -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    assert answer(node.producer().stream(1, start, last, snapshot=snapshot))[0] == status


@rule("REQ-14")
@each_case("flag", [StreamFlag.TO_LATEST, StreamFlag.DISK_ONLY])
def test_the_end_as_it_was_sent_is_compared(flag: int) -> None:
    node = SimulatedNode()
    node.fill(1, 20)
    peer = node.producer()
    assert answer(peer.stream(1, 10, 0, flags=flag))[0] == Status.ERANGE
    assert answer(peer.stream(1, 10, 10, flags=flag))[0] == 0


@rule("REQ-15")
def test_a_second_stream_of_a_vbucket() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    peer = node.producer()
    peer.stream(1)
    assert answer(peer.stream(1))[0] == Status.KEY_EEXISTS
    assert answer(peer.stream(1, 99, vbuuid=1))[0] == Status.KEY_EEXISTS
    assert answer(node.producer(b"other").stream(1))[0] == 0


@rule("REQ-16")
def test_a_stream_that_ended_makes_place() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    peer = node.producer(controls=[(b"connection_buffer_size", b"1")])
    peer.stream(1)
    node.set_vbucket(1, REPLICA)  # the stream is dead now; its STREAM_END waits for room
    assert answer(peer.stream(1, opaque=0x99))[0] == 0
    assert dcp_stat(node, "stream_1_opaque").isdigit()
    assert dcp_stat(node, "num_streams") == "1"


@rule("REQ-17")
def test_success_carries_the_failover_log() -> None:
    node = SimulatedNode()
    branched(node)
    frames = node.producer().stream(1)
    first = frames[0]
    assert (first.status, first.extras, first.key, len(first.value)) == (0, b"", b"", 32)
    assert decode_failover_log(first.value) == node.failover_log(1)
    assert struct.unpack_from(">Q", first.value, 8) == (10,), "the newest entry comes first"


@rule("REQ-18")
def test_a_rollback_carries_the_seqno() -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    frames = node.producer().stream(1, 20)
    assert len(frames) == 1
    first = frames[0]
    assert (first.status, first.extras, first.key, first.value) == (0x23, b"", b"", struct.pack(">Q", 10))


@rule("REQ-19")
def test_the_published_exchange() -> None:
    node = SimulatedNode()
    node.fill(1, 1)
    for _ in range(3):
        node.flush()
        node.set_vbucket(1, REPLICA)
        node.set_vbucket(1, 1)
        node.set_doc(1, "more")
    peer = node.producer()
    published = {"vbuuid": 0xFEEDDECA, "snapshot": (0, 0xFFEEFF)}
    assert answer(peer.stream(1, 0xFFEEDD, **published)) == (Status.ROLLBACK, bytes(8))  # type: ignore[arg-type]
    status, value = answer(peer.stream(1, 0))
    assert (status, len(value)) == (0, 64)


@rule("REQ-20")
def test_no_stream_is_left_by_a_rollback() -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    peer = node.producer()
    assert answer(peer.stream(1, 20))[0] == Status.ROLLBACK
    assert answer(peer.stream(1, 10))[0] == 0


@rule("REQ-21", "REQ-22")
def test_the_answer_comes_first_and_every_message_carries_the_opaque() -> None:
    node = SimulatedNode()
    node.fill(2, 3)
    frames = node.producer().stream(2, end=3, opaque=0xDEADBEEF)
    assert frames[0].is_response
    assert len(frames) == 6
    assert {frame.opaque for frame in frames} == {0xDEADBEEF}
    assert {frame.vbid for frame in frames[1:]} == {2}
    assert {frame.magic for frame in frames[1:]} == {Magic.REQUEST}


@rule("REQ-23")
@each_case("at", [0, 5, 10])
def test_an_empty_range_ends_at_once(at: int) -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    assert sent(node.producer().stream(1, at, at)) == [end()]


@rule("REQ-24")
def test_without_an_end_the_stream_stays_open() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    peer = node.producer()
    assert sent(peer.stream(1)) == [(0, 2, FIRST), 1, 2]
    for number in range(3, 6):
        node.set_doc(1, f"live{number}")
        assert drain(peer) == [(number, number, LATER), number]
    assert read(peer.close_stream(1)) == [("answer", 0)]


@rule("REQ-25")
@each_case("is_disk", [False, True])
def test_a_snapshot_is_finished_beyond_the_end(is_disk: bool) -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    if is_disk:
        new_checkpoint(node)
    assert sent(node.producer().stream(1, end=3)) == [(0, 10, DISK if is_disk else FIRST), *range(1, 11), end()]


@rule("REQ-26")
@of_release("7.2")
def test_to_latest_ends_at_what_there_is() -> None:
    node = garden()
    peer = node.producer()
    assert sent(peer.stream(1, end=0, flags=StreamFlag.TO_LATEST))[-2:] == [10, end()]
    # A filtered stream's end is the vbucket's as well, 10, although its collections end at 8.
    peer.is_reading = False
    peer.stream(1, end=0, flags=StreamFlag.TO_LATEST, value=b'{"collections":["8"]}')
    assert dcp_stat(node, "stream_1_end_seqno") == "10"
    peer.is_reading = True
    assert drain(peer)[-2:] == [("advanced", 10), end()]
    assert sent(peer.stream(2, end=1, flags=StreamFlag.TO_LATEST))[-1] == end()


@rule("REQ-26", "REQ-27")
@of_release("8.0")
def test_to_latest_of_collections_ends_at_their_high_seqno() -> None:
    peer = garden().producer()
    request = {"flags": StreamFlag.TO_LATEST, "value": b'{"collections":["8"]}'}
    assert sent(peer.stream(1, 7, **request)) == [(7, 8, FIRST), 8, end()]  # type: ignore[arg-type]
    assert sent(peer.stream(1, 8, **request)) == [end()]  # type: ignore[arg-type]
    assert answer(peer.stream(1, 9, **request))[0] == Status.ERANGE  # type: ignore[arg-type]
    assert answer(peer.stream(1, 10, **request))[0] == Status.ERANGE  # type: ignore[arg-type]


@rule("REQ-27")
@of_release("7.2")
def test_to_latest_of_collections_that_end_below_the_start() -> None:
    node = garden()
    peer = node.producer()
    request = {"flags": StreamFlag.TO_LATEST, "value": b'{"collections":["8"]}'}
    assert sent(peer.stream(1, 9, **request))[-1] == end()  # type: ignore[arg-type]
    assert sent(peer.stream(1, 8, **request))[-1] == end()  # type: ignore[arg-type]
    assert sent(peer.stream(1, 10, **request)) == [end()]  # type: ignore[arg-type]


@rule("REQ-28")
def test_disk_only_ends_at_what_is_persisted(tmp_path: object) -> None:
    node = SimulatedNode(path=tmp_path)  # type: ignore[arg-type]
    node.fill(1, 5)
    node.flush()
    node.fill(1, 3, prefix="unsaved")
    peer = node.producer()
    assert sent(peer.stream(1, flags=StreamFlag.DISK_ONLY)) == [(0, 5, DISK), 1, 2, 3, 4, 5, end()]
    assert sent(peer.stream(1, 5, flags=StreamFlag.DISK_ONLY)) == [end()]
    assert answer(peer.stream(1, 6, flags=StreamFlag.DISK_ONLY))[0] == Status.ERANGE


@rule("REQ-29")
@each_case("start", [0, 3, 99])
@of_release("7.2")
def test_from_latest_is_an_unknown_flag(start: int) -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    (found,) = node.producer().stream(1, start, vbuuid=0, flags=StreamFlag.FROM_LATEST)
    assert found.status == Status.EINVAL
    assert json.loads(found.value)["error"]["context"] == "Request contains invalid flags"


@rule("REQ-30")
def test_a_start_beyond_the_end_is_a_rollback() -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    assert answer(node.producer().stream(1, 11)) == (Status.ROLLBACK, struct.pack(">Q", 10))


@rule("REQ-31")
def test_a_snapshot_of_which_nothing_came_may_end_beyond_the_last_seqno() -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    peer = node.producer()
    assert answer(peer.stream(1, 8, snapshot=(8, 20)))[0] == 0
    assert dcp_stat(node, "stream_1_snap_end_seqno") == "8"
    plain = node.producer(b"plain", features=WITHOUT_COLLECTIONS)
    assert answer(plain.stream(1, 8, snapshot=(8, 20)))[0] == 0
    assert dcp_stat(node, "stream_1_snap_end_seqno", "plain") == "20"


@rule("REQ-32")
def test_a_takeover_has_no_end() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    peer = node.producer()
    frames = peer.stream(1, end=1, flags=StreamFlag.TAKEOVER)
    assert sent(frames)[1:] == [1, 2, 3]
    assert dcp_stat(node, "stream_1_end_seqno") == str(MAX_SEQNO)


class Client:
    """A producer machine over a list, for what a whole node does not let happen."""

    def __init__(self, vbucket: ListVBucket, source: ListSource | None = None) -> None:
        self.machine = ProducerConnection(Opening("c", 1, (Feature.XERROR,)), source or ListSource(vbucket), 0.0)

    def request(self, start: int = 0, last: int = MAX_SEQNO, **fields: Any) -> list[object]:
        frame = StreamRequest(
            vbid=0, opaque=7, start_seqno=start, end_seqno=last, snapshot_start=start, snapshot_end=start,
            flags=fields.get("flags", 0), vbuuid=fields.get("vbuuid", 0),
        )  # fmt: skip
        self.machine.handle(decode_frame(frame.encode()), 0.0)
        return self.all()

    def all(self) -> list[object]:
        pieces: list[bytes] = []
        while data := self.machine.data_to_send(1 << 20, 0.0):
            pieces += [bytes(piece) for piece in data]
        return read(frames_in(pieces))


@rule("REQ-32")
def test_a_takeover_needs_somebody_who_hands_over() -> None:
    vbucket = ListVBucket()
    vbucket.set(b"k")
    assert Client(vbucket).request(flags=StreamFlag.TAKEOVER) == [("answer", Status.NOT_SUPPORTED)]


@rule("REQ-33")
def test_a_replica_finishes_the_snapshot_that_it_receives() -> None:
    vbucket = ListVBucket(state=REPLICA)
    for index in range(4):
        vbucket.set(b"k%d" % index)
    vbucket.receiving = type(vbucket.snapshot)(1, 6)
    client = Client(vbucket)
    assert client.request(last=2) == [("answer", 0), (0, 6, FIRST), 1, 2, 3, 4]
    for index in (5, 6):
        vbucket.set(b"k%d" % index)
        client.machine.vbucket_changed(0, 0.0)
        assert client.all() == [5] if index == 5 else [6, end()]


@rule("REQ-34")
def test_a_copy_that_is_being_filled_has_no_streams() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    node.vbucket(1).is_receiving_initial_snapshot = True
    peer = node.producer()
    assert answer(peer.stream(1))[0] == Status.TMPFAIL
    node.vbucket(1).is_receiving_initial_snapshot = False
    assert answer(peer.stream(1))[0] == 0


@rule("REQ-35")
def test_no_stream_begins_while_memory_is_short() -> None:
    vbucket = ListVBucket()
    vbucket.set(b"k")
    source = ListSource(vbucket)
    source.is_short_of_memory = True
    client = Client(vbucket, source)
    assert client.request() == [("answer", Status.TMPFAIL)]
    client.machine.is_internal = True
    assert client.request()[0] == ("answer", 0)


@rule("REQ-36")
def test_a_consumer_does_not_take_requests() -> None:
    peer = SimulatedNode().consumer()
    assert peer.stream(1) == []
    assert peer.closed


@rule("REQ-37")
def test_a_displaced_connection_is_not_answered() -> None:
    node = SimulatedNode()
    node.fill(1, 1)
    older = node.producer(b"same")
    newer = node.producer(b"same")
    assert older.stream(1) == []
    assert older.closed
    assert answer(newer.stream(1))[0] == 0


@rule("REQ-38", "REQ-39", "REQ-40", "REQ-41")
@each_case("last", [0, 3, MAX_SEQNO])
@each_case("more", [0, StreamFlag.TAKEOVER, StreamFlag.ACTIVE_ONLY])
def test_cached_values_are_not_to_be_had(last: int, more: int) -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    peer = node.producer()
    frames = peer.stream(1, end=last, flags=StreamFlag.CACHE_TRANSFER | more)
    assert answer(frames)[0] == Status.EINVAL
    assert len(frames) == 1
    assert dcp_stat(node, "num_streams") == "0"


@rule("REQ-42", "REQ-43")
@each_case("size", [0, 41, 42, 100])
def test_a_transfer_of_cached_values_is_an_unknown_command(size: int) -> None:
    node = SimulatedNode()
    for peer in (node.producer(), node.consumer()):
        answered = peer.call(Opcode.DCP_CACHE_TRANSFER, vbid=1, value=bytes(size))
        assert answered.status == Status.UNKNOWN_COMMAND
        assert not peer.closed
    machine = ProducerConnection(Opening("c", 1), ListSource(ListVBucket()), 0.0)
    machine.handle(frame_of(Opcode.DCP_CACHE_TRANSFER_END), 0.0)
    assert read(frames_in(machine.data_to_send(1 << 20, 0.0))) == [("answer", Status.UNKNOWN_COMMAND)]
