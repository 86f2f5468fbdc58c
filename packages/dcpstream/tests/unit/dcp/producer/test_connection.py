"""The producer machine where the recordings do not reach: ends, wake-ups, windows, stream ids, filters, drops."""

from itertools import pairwise
from typing import Any

import pytest

from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer import next_step
from dcpstream.dcp.producer.connection import ProducerConnection, ProducerLimits
from dcpstream.dcp.producer.states import OVER, STREAM, Phase, StreamEvent
from dcpstream.dcp.producer.stats import producer_stats
from dcpstream.errors import CorruptLog, LocalProtocolError
from dcpstream.model import MAX_SEQNO, Collection, Manifest, Scope, SnapshotRange, VbucketState
from dcpstream.wire import (
    Feature,
    Opcode,
    OpenFlag,
    Status,
    StreamEndReason,
    StreamFlag,
    SystemEventId,
    decode_frame,
    encode_response,
)
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.system_events import CollectionEvent
from tests.kit.cases import each_case
from tests.kit.lists import UUID, ListSource, ListVBucket, frame_of, frames_in
from tests.kit.rules import rule
from tests.kit.streams import read

PLAIN = frozenset((Feature.XERROR, Feature.JSON))
COLLECTIONS = PLAIN | {Feature.COLLECTIONS, Feature.SNAPPY}
MANIFEST = Manifest(
    1, (Scope(0, "_default", (Collection(0, "_default"), Collection(8, "fruit"), Collection(9, "veg"))),)
)


class Client:
    """The other end of a connection."""

    def __init__(self, *vbuckets, features=PLAIN, flags=OpenFlag.PRODUCER, manifest=Manifest.DEFAULT, limits=None):
        self.source = ListSource(*vbuckets, manifest=manifest)
        self.machine = ProducerConnection(
            Opening("client", int(flags), features), self.source, 0.0, limits or ProducerLimits()
        )
        self.now = 0.0

    def send(self, opcode, **fields):
        self.machine.handle(frame_of(opcode, **fields), self.now)

    def control(self, key, value=b"true"):
        self.send(Opcode.DCP_CONTROL, key=key, value=value)
        return self.receive()[-1].status

    def receive(self, max_bytes=1 << 20):
        return frames_in(self.machine.data_to_send(max_bytes, self.now))

    def all(self):
        frames = []
        while more := self.receive():
            frames += more
        return frames

    def request(self, vbid=0, start=0, end=MAX_SEQNO, *, vbuuid=UUID, snapshot=None, flags=0, opaque=7, value=b""):
        low, high = snapshot or (start, start)
        message = StreamRequest(
            vbid=vbid, opaque=opaque, flags=flags, start_seqno=start, end_seqno=end, vbuuid=vbuuid,
            snapshot_start=low, snapshot_end=high, value=value,
        )  # fmt: skip
        self.machine.handle(decode_frame(message.encode()), self.now)

    def wrote(self, *vbids):
        for vbid in vbids or (0,):
            self.machine.vbucket_changed(vbid, self.now)


def filled(count=5, vbid=0, **fields):
    vbucket = ListVBucket(vbid, **fields)
    for index in range(count):
        vbucket.set(b"k%d" % index)
    return vbucket


def test_only_the_sent_end_is_final_and_every_other_phase_may_end():
    assert STREAM.final == {Phase.FINISHED}
    assert not STREAM.rows[Phase.FINISHED]
    others = set(Phase) - {Phase.HANDING_OVER, Phase.FINISHED}
    assert all(STREAM.rows[phase][StreamEvent.ENDED] is Phase.DEAD for phase in others)
    assert all(STREAM.rows[phase][StreamEvent.CLOSED] in OVER for phase in others - OVER)


@each_case("phase", Phase)
@each_case("event", StreamEvent)
def test_every_event_in_every_phase_leads_to_the_phase_of_the_table_or_is_refused(phase, event):
    client = Client(filled())
    client.request()
    stream = client.machine.stream(0)
    stream.at.phase = phase
    if STREAM.is_legal(phase, event):
        stream._go(event)
        assert stream.at.phase is STREAM.rows[phase][event]
    else:
        with pytest.raises(LocalProtocolError, match="vb 0") as caught:
            stream._go(event)
        assert (caught.value.state, caught.value.event) == (phase.value, event.value)
        assert stream.at.phase is phase


def test_the_end_inside_a_snapshot_sends_all_of_it():
    client = Client(filled(10))
    client.request(end=3)
    assert read(client.all()) == [("answer", 0), (0, 10, 5), *range(1, 11), ("end", 0)]
    assert client.machine.stream_count == 0


def test_what_is_written_during_a_snapshot_belongs_to_the_next():
    vbucket = filled(3)
    client = Client(vbucket)
    client.request()
    assert read(client.receive(max_bytes=44)) == [("answer", 0), (0, 3, 5)]
    vbucket.set(b"k0", b"again")
    client.wrote()
    assert read(client.all()) == [1, 2, 3, (4, 4, 1), 4]


def test_a_key_appears_once_in_a_snapshot():
    vbucket = filled(3)
    vbucket.set(b"k0")
    vbucket.delete(b"k1")
    client = Client(vbucket)
    client.request()
    assert read(client.all()) == [("answer", 0), (0, 5, 5), 3, 4, 5]


def test_below_the_memory_line_comes_one_disk_snapshot_and_then_memory():
    vbucket = filled(4)
    vbucket.new_checkpoint()
    vbucket.set(b"new")
    client = Client(vbucket)
    client.request()
    assert read(client.all()) == [("answer", 0), (0, 5, 6), 1, 2, 3, 4, 5]
    vbucket.set(b"live")
    client.wrote()
    assert read(client.all()) == [(6, 6, 5), 6]


def test_a_stream_in_memory_stays_there_when_the_line_moves_over_it():
    vbucket = filled(2)
    client = Client(vbucket, features=COLLECTIONS)
    client.control(b"enable_noop")
    client.request()
    client.all()
    vbucket.set(b"a")
    vbucket.new_checkpoint()
    vbucket.set(b"a")
    vbucket.set(b"b")
    client.wrote()
    # The key written in both checkpoints is sent in both.
    assert read(client.all()) == [(3, 3, 1), 3, (4, 5, 5), 4, 5]


def test_disk_only_ends_at_what_is_persisted():
    vbucket = filled(6)
    vbucket.persisted = 4
    client = Client(vbucket)
    client.request(flags=StreamFlag.DISK_ONLY)
    assert read(client.all()) == [("answer", 0), (0, 4, 6), 1, 2, 3, 4, ("end", 0)]


def test_to_latest_ends_at_the_high_seqno_of_now():
    vbucket = filled(3)
    client = Client(vbucket)
    client.request(flags=StreamFlag.TO_LATEST, end=1)
    assert read(client.all())[-1] == ("end", 0)


def test_idle_streams_are_not_read_when_others_change():
    vbuckets = [filled(1, vbid) for vbid in range(50)]
    client = Client(*vbuckets)
    for vbid in range(50):
        client.request(vbid, opaque=vbid)
    client.all()
    before = [vbucket.reads for vbucket in vbuckets]
    vbuckets[17].set(b"new")
    client.wrote(17)
    assert [frame.vbid for frame in client.all()] == [17, 17]
    assert [now - then for now, then in zip([v.reads for v in vbuckets], before, strict=True)].count(0) == 49
    assert not client.machine.has_output


def test_a_stream_that_has_sent_everything_is_not_visited_again():
    client = Client(filled(3))
    client.request()
    messages = client.receive()[1:]
    assert len(messages) == 4
    client = Client(filled(3))
    client.request()
    room = sum(frame.size for frame in messages) + 1  # the answer fills it
    assert len(client.receive(room)) == 5
    assert (client.machine.ready_count, client.machine.has_output) == (0, False)
    client.source.vbucket(0).set(b"new")
    client.wrote()
    assert len(client.receive()) == 2


def test_a_commit_wakes_nobody_who_has_read_everything():
    client = Client(filled())
    client.request()
    client.all()
    client.wrote()
    assert not client.machine.has_output


def test_streams_take_turns():
    client = Client(filled(40, 0), filled(40, 1), limits=ProducerLimits(turn_bytes=500))
    client.request(0, opaque=1)
    client.request(1, opaque=2)
    order = [frame.vbid for frame in client.all() if frame.opcode == Opcode.DCP_MUTATION]
    assert order.count(0) == order.count(1) == 40
    assert order.index(1) < 12


def test_sequential_backfill_finishes_one_vbucket_first():
    first, second = filled(40, 0), filled(40, 1)
    first.new_checkpoint()
    second.new_checkpoint()
    client = Client(first, second, limits=ProducerLimits(turn_bytes=500))
    client.control(b"backfill_order", b"sequential")
    client.request(0, opaque=1)
    client.request(1, opaque=2)
    order = [frame.vbid for frame in client.all() if frame.opcode == Opcode.DCP_MUTATION]
    assert order == [0] * 40 + [1] * 40


def test_output_is_bounded_by_the_call():
    vbucket = ListVBucket()
    for index in range(100):
        vbucket.set(b"k%d" % index, b"x" * 1000)
    client = Client(vbucket)
    client.request()
    while pieces := client.machine.data_to_send(5000, 0.0):
        assert sum(map(len, pieces)) <= 2 * 5000 + 1100


@each_case("buffer_bytes", [1, 50, 1000, 4096])
def test_the_window_is_overshot_by_one_message_at_most(buffer_bytes):
    vbucket = ListVBucket()
    for index in range(60):
        vbucket.set(b"k%d" % index, b"x" * (index * 7))
    client = Client(vbucket, filled(30, 1))
    client.control(b"connection_buffer_size", b"%d" % buffer_bytes)
    client.request(0, end=60, opaque=1)
    client.request(1, end=30, opaque=2)
    seen, outstanding = [], 0
    for _ in range(1000):
        frames = client.all()
        for frame in frames:
            if frame.is_request:
                assert outstanding < buffer_bytes, "a message started in a full window"
                outstanding += frame.size
        seen += frames
        if not frames:
            break
        assert outstanding == client.machine.window.outstanding_bytes
        client.send(Opcode.DCP_BUFFER_ACK, extras=outstanding.to_bytes(4, "big"))
        outstanding = 0
    for vbid, count in ((0, 60), (1, 30)):
        rows = read(frame for frame in seen if frame.vbid == vbid and frame.is_request)
        assert rows == [(0, count, 5), *range(1, count + 1), ("end", 0)]


@each_case(("messages", "expected"), [(1, 1), (2, 2), (4, 4)])
def test_a_window_filled_to_the_byte_is_full(messages, expected):
    # A marker of 44 bytes, then mutations of 24 + 31 + 2 + 1 (collection prefixes are not sent here).
    client = Client(filled(9))
    client.control(b"connection_buffer_size", b"%d" % (44 + (messages - 1) * 58))
    client.request()
    assert len([frame for frame in client.all() if frame.is_request]) == expected


def test_the_window_counts_what_is_sent_not_what_is_stored():
    # Stream ids make messages longer than their stored form.
    client = Client(filled(50), features=COLLECTIONS)
    client.control(b"enable_noop")
    client.control(b"enable_stream_id")
    client.control(b"connection_buffer_size", b"700")
    client.request(value=b'{"sid":5}')
    frames = [frame for frame in client.all() if frame.is_request]
    sizes = [frame.size for frame in frames]
    assert sum(sizes[:-1]) < 700 <= sum(sizes) == client.machine.window.outstanding_bytes


def test_answers_and_noops_pass_a_full_window():
    client = Client(filled())
    client.control(b"connection_buffer_size", b"1")
    client.control(b"enable_noop")
    client.control(b"set_noop_interval", b"5")
    client.request()
    assert read(client.all()) == [("answer", 0), (0, 5, 5)]
    assert not client.machine.has_output
    assert client.machine.wake_at == 5.0
    client.machine.handle_timeout(5.0)
    client.send(Opcode.DCP_GET_FAILOVER_LOG)
    assert [frame.opcode for frame in client.all()] == [Opcode.DCP_NOOP, Opcode.DCP_GET_FAILOVER_LOG]


def test_a_silent_peer_is_given_up():
    client = Client(filled())
    client.control(b"enable_noop")
    client.machine.handle_timeout(359.0)
    assert client.machine.close_reason is None
    client.machine.handle_timeout(360.0)
    assert "360" in str(client.machine.close_reason)
    assert client.machine.data_to_send(100, 361.0) == []
    assert client.machine.wake_at is None


def test_a_change_of_role_ends_every_stream_of_the_vbucket():
    client = Client(filled(2, 0), filled(2, 1))
    client.request(0, opaque=1)
    client.request(1, opaque=2)
    client.all()
    client.machine.vbucket_state_changed(0, 1.0)
    assert [(frame.opaque, *read([frame])) for frame in client.all()] == [(1, ("end", 2))]
    client.machine.vbucket_rolled_back(1, 1.0)
    assert [(frame.opaque, *read([frame])) for frame in client.all()] == [(2, ("end", 6))]
    client.request(0, opaque=3)
    assert read(client.all()) == [("answer", 0), (0, 2, 5), 1, 2]


NO_LIMIT = {"key": b"connection_buffer_size", "value": b"0"}


def blocked(*vbuckets):
    """A client whose window is full after the first message, and which is told of streams that it closes."""
    client = Client(*vbuckets)
    client.control(b"connection_buffer_size", b"1")
    client.control(b"send_stream_end_on_client_close_stream")
    return client


def test_an_ended_stream_waits_in_a_full_window_and_counts_as_closed():
    client = blocked(filled())
    client.request()
    assert read(client.all()) == [("answer", 0), (0, 5, 5)]
    client.send(Opcode.DCP_CLOSE_STREAM)
    client.send(Opcode.DCP_CLOSE_STREAM)
    assert read(client.all()) == [("answer", 0), ("answer", Status.KEY_ENOENT)]
    for seqno in (1, 2, 3, 4, 5):
        client.send(Opcode.DCP_BUFFER_ACK, extras=(10**6).to_bytes(4, "big"))
        assert read(client.all()) == [seqno], "the server had put the snapshot into its queue"
    client.send(Opcode.DCP_BUFFER_ACK, extras=(10**6).to_bytes(4, "big"))
    assert read(client.all()) == [("end", StreamEndReason.CLOSED)]


def test_what_is_written_after_the_close_is_not_sent():
    vbucket = filled()
    client = blocked(vbucket)
    client.request()
    client.all()
    client.send(Opcode.DCP_CLOSE_STREAM)
    vbucket.set(b"late")
    client.wrote()
    client.send(Opcode.DCP_CONTROL, **NO_LIMIT)
    assert read(client.all()) == [*[("answer", 0)] * 2, 1, 2, 3, 4, 5, ("end", StreamEndReason.CLOSED)]


def test_a_stream_that_is_closed_before_it_sent_anything_ends_with_what_was_in_memory():
    client = blocked(filled(), filled(vbid=1))
    client.request(0)
    assert read(client.all()) == [("answer", 0), (0, 5, 5)]
    client.request(1)
    assert read(client.all()) == [("answer", 0)]
    client.send(Opcode.DCP_CLOSE_STREAM, vbid=0)
    client.send(Opcode.DCP_CLOSE_STREAM, vbid=1)
    client.send(Opcode.DCP_CONTROL, **NO_LIMIT)
    rest = [1, 2, 3, 4, 5, ("end", StreamEndReason.CLOSED)]
    assert read(client.all()) == [*[("answer", 0)] * 3, *rest, (0, 5, 5), *rest]


def test_of_a_snapshot_from_disk_nothing_is_sent_after_the_close():
    client = blocked(filled(memory_start_seqno=6))
    client.request()
    assert read(client.all()) == [("answer", 0), (0, 5, 6)]
    client.send(Opcode.DCP_CLOSE_STREAM)
    client.send(Opcode.DCP_CONTROL, **NO_LIMIT)
    assert read(client.all()) == [*[("answer", 0)] * 2, ("end", StreamEndReason.CLOSED)]


@rule("END-07")
@each_case(
    ("happens", "rest"),
    [("vbucket_state_changed", [1, 2, 3, 4, 5, ("end", 2)]), ("vbucket_rolled_back", [("end", 6)])],
)
def test_a_snapshot_from_memory_outlives_a_change_of_state_and_no_rollback(happens, rest):
    client = blocked(filled())
    client.request()
    client.all()
    getattr(client.machine, happens)(0, 1.0)
    client.send(Opcode.DCP_CONTROL, **NO_LIMIT)
    assert read(client.all()) == [("answer", 0), *rest]


@each_case("has_control", [False, True])
def test_closing_a_stream_that_has_ended_forgets_it_unless_ends_are_sent(has_control):
    client = Client(filled())
    client.control(b"connection_buffer_size", b"1")
    if has_control:
        client.control(b"send_stream_end_on_client_close_stream")
    client.request()
    client.all()
    client.machine.vbucket_state_changed(0, 1.0)
    client.send(Opcode.DCP_CLOSE_STREAM)
    assert read(client.all()) == [("answer", Status.KEY_ENOENT)]
    client.send(Opcode.DCP_CONTROL, **NO_LIMIT)
    rest = [1, 2, 3, 4, 5, ("end", StreamEndReason.STATE_CHANGED)] if has_control else []
    assert read(client.all()) == [("answer", 0), *rest]


@each_case(
    ("fields", "status", "is_replaced"),
    [
        ({"start": 9, "snapshot": (9, 9)}, Status.ROLLBACK, True),
        ({"start": 5, "flags": StreamFlag.DISK_ONLY}, Status.ERANGE, True),
        ({"start": 3, "end": 2}, Status.ERANGE, False),
        ({"flags": 0x200}, Status.EINVAL, False),
    ],
)
def test_an_ended_stream_gives_way_also_to_a_request_that_its_history_refuses(fields, status, is_replaced):
    client = blocked(filled(persisted=4))
    client.request()
    client.all()
    client.send(Opcode.DCP_CLOSE_STREAM)
    client.request(**fields)
    assert read(client.all()) == [("answer", 0), ("answer", status)]
    client.send(Opcode.DCP_CONTROL, **NO_LIMIT)
    rest = [] if is_replaced else [1, 2, 3, 4, 5, ("end", StreamEndReason.CLOSED)]
    assert read(client.all()) == [("answer", 0), *rest]
    client.send(Opcode.DCP_CLOSE_STREAM)
    assert read(client.all()) == [("answer", Status.KEY_ENOENT)]


def test_a_new_request_replaces_a_stream_whose_end_was_not_sent():
    client = Client(filled())
    client.control(b"connection_buffer_size", b"1")
    client.control(b"send_stream_end_on_client_close_stream")
    client.request()
    client.all()
    client.send(Opcode.DCP_CLOSE_STREAM)
    client.request(opaque=8)
    client.all()
    client.control(b"connection_buffer_size", b"0")
    frames = client.all()
    assert {frame.opaque for frame in frames} <= {8}
    assert client.machine.stream_count == 1


def test_open_and_close_in_a_full_window_leaves_nothing_behind():
    client = Client(filled())
    client.control(b"connection_buffer_size", b"1")
    for _ in range(100):
        client.request()
        client.send(Opcode.DCP_CLOSE_STREAM)
        client.all()
    assert (client.machine.stream_count, len(client.machine._ready)) == (0, 0)


def test_a_second_stream_of_the_vbucket_exists_already():
    client = Client(filled())
    client.request()
    client.request(opaque=8)
    client.request(start=500, opaque=9)
    answers = [frame for frame in client.all() if frame.is_response]
    assert [frame.status for frame in answers] == [0, Status.KEY_EEXISTS, Status.KEY_EEXISTS]


def test_rollback_answers_with_eight_bytes_and_leaves_no_stream():
    client = Client(filled())
    client.request(start=9)
    (answer,) = client.all()
    assert (answer.status, answer.value) == (Status.ROLLBACK, (5).to_bytes(8, "big"))
    client.request(start=5)
    assert read(client.all()) == [("answer", 0)]


def test_a_takeover_is_refused_where_nothing_can_be_handed_over():
    client = Client(filled())
    client.request(flags=StreamFlag.TAKEOVER)
    (answer,) = client.all()
    assert answer.status == Status.NOT_SUPPORTED
    assert b"not handed over" in answer.value


@each_case("flags", [0x08, 0x200, 0x80000000, 0x100 | 0x02])
def test_unknown_stream_flags(flags):
    client = Client(filled())
    client.request(flags=flags)
    assert [frame.status for frame in client.all()] == [Status.EINVAL]


def test_streams_are_bounded():
    client = Client(filled(1, 0), filled(1, 1), limits=ProducerLimits(streams_max=1))
    client.request(0)
    client.request(1)
    assert Status.ENOMEM in [frame.status for frame in client.all() if frame.is_response]


# ------------------------------------------------------------------------------------------------- filters, stream ids


def fruit_and_veg():
    vbucket = ListVBucket()
    for index in range(6):
        vbucket.set(b"k%d" % index, collection_id=(0, 8, 9)[index % 3])
    return vbucket


def filtered(vbucket, value, **fields):
    client = Client(vbucket, features=COLLECTIONS, manifest=MANIFEST)
    client.control(b"enable_noop")
    client.request(value=value, **fields)
    return client


def test_a_filter_gets_the_position_of_the_stream():
    vbucket = fruit_and_veg()
    vbucket.memory_start_seqno = 7
    client = filtered(vbucket, b'{"collections":["8"]}')
    assert read(client.all()) == [("answer", 0), (0, 6, 6), 2, 5, ("advanced", 6)]
    vbucket.set(b"x", collection_id=9)
    client.wrote()
    assert read(client.all()) == []  # a snapshot from memory without anything for it is not announced
    vbucket.set(b"y", collection_id=8)
    vbucket.set(b"z", collection_id=9)
    client.wrote()
    # From memory a snapshot ends with what is for the stream; its beginning is the checkpoint's.
    assert read(client.all()) == [(7, 8, 5), 8]


@each_case(
    ("start", "snapshot", "expected"),
    [
        (0, (0, 0), [(0, 5, 5), 2, 5]),
        (1, (1, 1), [(1, 5, 5), 2, 5]),
        (2, (1, 4), [(1, 5, 5), 5]),
        (5, (5, 5), []),
        (5, (4, 6), [(4, 6, 5), ("advanced", 6)]),
        (6, (6, 6), []),
    ],
)
def test_a_snapshot_from_memory_reaches_from_the_first_to_the_last_message_for_the_stream(start, snapshot, expected):
    vbucket = fruit_and_veg()
    client = filtered(vbucket, b'{"collections":["8"]}', start=start, snapshot=snapshot)
    assert read(client.all()) == [("answer", 0), *expected]
    for number in (9, 8, 9):
        vbucket.set(b"later", collection_id=number)
    client.wrote()
    is_first = not expected
    assert read(client.all()) == [(snapshot[0] if is_first else 8, 8, 5 if is_first else 1), 8]


def test_each_checkpoint_comes_in_a_snapshot_of_its_own_that_begins_where_the_checkpoint_does():
    vbucket = ListVBucket()
    for number in (8, 9, 0, 9, 8, 0, 9, 0):
        if vbucket.high_seqno in (2, 6):
            vbucket.new_checkpoint()
        vbucket.set(b"k%d" % vbucket.high_seqno, collection_id=number)
    vbucket.memory_start_seqno = 1
    client = filtered(vbucket, b'{"collections":["8"]}')
    assert read(client.all()) == [("answer", 0), (0, 1, 5), 1, (3, 5, 5), 5]
    vbucket.set(b"last", collection_id=8)
    client.wrote()
    assert read(client.all()) == [(7, 9, 5), 9]


def test_what_is_too_long_to_be_looked_at_is_announced_whole(monkeypatch):
    monkeypatch.setattr(next_step, "LOOKAHEAD_BYTES", 1)
    vbucket = ListVBucket()
    for number in (9, 9, 8, 9, 8, 9):
        vbucket.set(b"k%d" % vbucket.high_seqno, collection_id=number)
    client = filtered(vbucket, b'{"collections":["8"]}')
    assert read(client.all()) == [("answer", 0), (0, 5, 5), 3, 5]


def test_a_client_without_collections_gets_markers_that_fit_its_messages():
    vbucket = fruit_and_veg()
    client = Client(vbucket, features=PLAIN, manifest=MANIFEST)
    client.request()
    assert read(client.all()) == [("answer", 0), (0, 4, 5), 1, 4]
    for number in (8, 0, 9):
        vbucket.set(b"later", collection_id=number)
    client.wrote()
    assert read(client.all()) == [(8, 8, 1), 8]


def test_a_filtered_stream_ends_at_its_end():
    assert read(filtered(fruit_and_veg(), b'{"collections":["8"]}', end=3).all())[-2:] == [5, ("end", 0)]
    latest = filtered(fruit_and_veg(), b'{"collections":["8"]}', flags=StreamFlag.TO_LATEST)
    assert latest.machine.stream(0).terms.accepted.end_seqno == 6


def test_everything_has_no_seqno_advanced():
    assert read(filtered(fruit_and_veg(), b"").all()) == [("answer", 0), (0, 6, 5), 1, 2, 3, 4, 5, 6]


def test_without_collections_the_snapshot_ends_at_a_message_of_its_own():
    vbucket = fruit_and_veg()
    client = Client(vbucket, manifest=MANIFEST)
    client.request(end=6)
    assert read(client.all()) == [("answer", 0), (0, 4, 5), 1, 4, ("end", 0)]
    silent = ListVBucket()
    silent.set(b"a", collection_id=8)
    client = Client(silent, manifest=MANIFEST)
    client.request()
    assert read(client.all()) == [("answer", 0)]
    silent.set(b"b")
    client.wrote()
    assert read(client.all()) == [(0, 2, 5), 2]


def test_a_filter_whose_collections_are_gone_ends_the_stream():
    vbucket = fruit_and_veg()
    client = filtered(vbucket, b'{"collections":["8"]}')
    client.all()
    vbucket.event(CollectionEvent(SystemEventId.DROP_COLLECTION, 2, 0, 8))
    client.wrote()
    assert read(client.all()) == [(7, 7, 5), ("event", 7, 1), ("end", StreamEndReason.FILTER_EMPTY)]


def test_long_stretches_without_a_message_get_a_seqno_advanced(monkeypatch):
    monkeypatch.setattr("dcpstream.dcp.producer.next_step.SKIPPED_MESSAGES_MAX", 10)
    vbucket = ListVBucket()
    for index in range(40):
        vbucket.set(b"k%d" % index, b"x" * 100, collection_id=9)
    vbucket.set(b"last", collection_id=8)
    client = Client(vbucket, features=COLLECTIONS, manifest=MANIFEST, limits=ProducerLimits(turn_bytes=1000))
    client.control(b"enable_noop")
    client.request(value=b'{"collections":["8"]}')
    rows: list[Any] = read(client.all())[2:]
    assert [row for row in rows if row != 41] == [("advanced", row[1]) for row in rows if row != 41]
    assert len(rows) >= 3
    assert rows[-1] == 41


def test_stream_ids_keep_streams_of_one_vbucket_apart():
    vbucket = fruit_and_veg()
    client = Client(vbucket, features=COLLECTIONS, manifest=MANIFEST)
    client.control(b"enable_noop")
    client.control(b"enable_stream_id")
    client.request(value=b'{"sid":1,"collections":["8"]}', opaque=11)
    client.request(value=b'{"sid":2}', opaque=12)
    client.request(value=b'{"sid":2}', opaque=13)
    frames = client.all()
    assert [frame.status for frame in frames if frame.is_response] == [0, 0, Status.KEY_EEXISTS]
    data = [frame for frame in frames if frame.is_request]
    assert {(frame.opaque, frame.framing.hex()) for frame in data} == {(11, "220001"), (12, "220002")}
    client.send(Opcode.DCP_CLOSE_STREAM)
    client.send(Opcode.DCP_CLOSE_STREAM, framing=b"\x22\x00\x09")
    client.send(Opcode.DCP_CLOSE_STREAM, framing=b"\x22\x00\x01")
    invalid = Status.DCP_STREAMID_INVALID
    assert [frame.status for frame in client.all()] == [invalid, invalid, 0]
    assert client.machine.stream(0, 2) is not None
    client.machine.vbucket_state_changed(0, 0.0)
    (end,) = client.all()
    assert (end.framing, end.size) == (b"\x22\x00\x02", 31)


# ------------------------------------------------------------------------------------------------- what may go wrong


def test_a_purge_ahead_of_the_position_ends_the_stream():
    vbucket = filled(10)
    client = Client(vbucket)
    client.request(start=4)
    client.receive(max_bytes=44)
    vbucket.purge_seqno = 9
    client.wrote()
    assert read(client.all())[-1] == ("end", StreamEndReason.ROLLBACK)


def test_a_client_that_began_with_nothing_misses_no_purged_deletion():
    vbucket = filled(10)
    client = Client(vbucket)
    client.request()
    client.receive(max_bytes=44)
    vbucket.purge_seqno = 9
    assert read(client.all()) == list(range(1, 11))


@rule("REQ-21", "REQ-24")
def test_a_stream_waits_while_its_history_is_fetched(monkeypatch):
    vbucket = filled()
    client, stored, waits = Client(vbucket), vbucket.read, [True, True]
    monkeypatch.setattr(vbucket, "read", lambda *at, **more: None if waits and waits.pop() else stored(*at, **more))
    client.request()
    seqnos = []
    for _ in range(3):
        seqnos.append([item for item in read(client.all()) if isinstance(item, int)])
        client.machine.vbucket_changed(0, 0.0)
    assert seqnos == [[], [], list(range(1, vbucket.high_seqno + 1))]


def test_history_that_cannot_be_read_ends_the_stream(monkeypatch):
    vbucket = filled()
    client = Client(vbucket)

    def broken(*args, **kwargs):
        raise CorruptLog("segment", 7, "crc 1", "crc 2")

    monkeypatch.setattr(vbucket, "read", broken)
    client.request()
    assert read(client.all())[-1] == ("end", StreamEndReason.BACKFILL_FAILED)
    assert client.machine.close_reason is None


def test_a_replicas_unfinished_snapshot_is_announced_whole():
    vbucket = filled(4, state=VbucketState.REPLICA, receiving=SnapshotRange(1, 9))
    client = Client(vbucket)
    client.request(end=2)
    assert read(client.all()) == [("answer", 0), (0, 9, 5), 1, 2, 3, 4]
    for index in range(5):
        vbucket.set(b"late%d" % index)
    client.wrote()
    assert read(client.all()) == [5, 6, 7, 8, 9, ("end", 0)]


@each_case(
    "opcode",
    [Opcode.DCP_NOOP, Opcode.DCP_ADD_STREAM, Opcode.DCP_STREAM_END, Opcode.DCP_SET_VBUCKET_STATE, Opcode.DCP_COMMIT],
)
def test_what_belongs_to_a_consumer_drops_the_connection(opcode):
    client = Client(filled())
    extras = {Opcode.DCP_NOOP: 0, Opcode.DCP_SET_VBUCKET_STATE: 1, Opcode.DCP_COMMIT: 16}.get(opcode, 4)
    client.send(opcode, extras=bytes(extras), key=b"k" if opcode == Opcode.DCP_COMMIT else b"")
    assert client.machine.close_reason
    client.send(Opcode.DCP_GET_FAILOVER_LOG)
    assert client.all() == []


@each_case(
    ("opcode", "status", "v7", "is_tolerated"),
    [
        (Opcode.DCP_MUTATION, Status.SUCCESS, False, True),
        (Opcode.DCP_MUTATION, Status.NOT_MY_VBUCKET, True, True),
        (Opcode.DCP_MUTATION, Status.KEY_ENOENT, False, True),
        (Opcode.DCP_MUTATION, Status.KEY_ENOENT, True, False),
        (Opcode.DCP_MUTATION, Status.KEY_EEXISTS, False, True),
        (Opcode.DCP_MUTATION, Status.KEY_EEXISTS, True, False),
        (Opcode.DCP_MUTATION, Status.DCP_STREAM_NOT_FOUND, True, True),
        (Opcode.DCP_MUTATION, Status.EINVAL, False, False),
        (Opcode.DCP_COMMIT, Status.KEY_ENOENT, False, False),
        (Opcode.DCP_STREAM_END, Status.KEY_ENOENT, True, True),
        (Opcode.DCP_STREAM_END, Status.EINTERNAL, False, False),
        (Opcode.DCP_SNAPSHOT_MARKER, Status.EINVAL, False, True),
        (Opcode.DCP_SET_VBUCKET_STATE, Status.EINVAL, False, True),
        (Opcode.DCP_CACHE_TRANSFER, Status.ENOMEM, False, True),
        (Opcode.DCP_MUTATION, Status.ENOMEM, False, False),
        (Opcode.DCP_STREAM_REQ, Status.SUCCESS, False, True),
        (Opcode.DCP_CONTROL, Status.SUCCESS, False, True),
        (Opcode.DCP_CONTROL, Status.EINVAL, False, False),
        (Opcode.DCP_SEQNO_ACKNOWLEDGED, Status.SUCCESS, False, False),
        (Opcode.DCP_NOOP, Status.SUCCESS, False, False),
    ],
)
def test_answers_that_are_tolerated(opcode, status, v7, is_tolerated):
    client = Client(filled())
    if v7:
        client.control(b"v7_dcp_status_codes")
    client.machine.handle(decode_frame(encode_response(opcode, status=status, opaque=7)), 0.0)
    assert (client.machine.close_reason is None) == is_tolerated


def test_without_extended_errors_a_stream_id_fault_drops():
    client = Client(filled(), features=frozenset((Feature.COLLECTIONS,)))
    client.send(Opcode.DCP_CLOSE_STREAM, framing=b"\x22\x00\x01")
    assert "DCP_STREAMID_INVALID" in str(client.machine.close_reason)


def test_seqno_acknowledgements_need_sync_replication():
    client = Client(filled())
    client.send(Opcode.DCP_SEQNO_ACKNOWLEDGED, extras=bytes(8))
    assert [frame.status for frame in client.all()] == [Status.EINVAL]
    client.control(b"enable_sync_writes")
    client.control(b"consumer_name", b"replica")
    client.send(Opcode.DCP_SEQNO_ACKNOWLEDGED, extras=bytes(8))
    assert client.all() == []


def test_unknown_and_malformed_requests_are_answered():
    client = Client(filled())
    client.send(Opcode.DCP_FLUSH)
    client.send(Opcode.DCP_OSO_SNAPSHOT)
    client.send(Opcode.DCP_STREAM_REQ)
    client.send(Opcode.DCP_GET_FAILOVER_LOG, framing=b"\xf1\x00\x00")
    client.send(Opcode.DCP_OPEN, key=b"x", extras=bytes(8))
    statuses = [frame.status for frame in client.all()]
    assert statuses == [
        Status.NOT_SUPPORTED,
        Status.UNKNOWN_COMMAND,
        Status.EINVAL,
        Status.UNKNOWN_FRAME_INFO,
        Status.EINVAL,
    ]
    assert client.machine.close_reason is None


def test_stats_name_connection_and_streams():
    client = Client(filled())
    client.control(b"connection_buffer_size", b"10000")
    client.request()
    client.all()
    stats = dict(producer_stats(client.machine))
    assert stats["eq_dcpq:client:type"] == "producer"
    assert stats["eq_dcpq:client:max_buffer_bytes"] == "10000"
    assert stats["eq_dcpq:client:unacked_bytes"] == str(client.machine.window.outstanding_bytes)
    assert stats["eq_dcpq:client:stream_0_state"] == "in-memory"
    assert stats["eq_dcpq:client:stream_0_last_sent_seqno"] == "5"
    assert stats["eq_dcpq:client:items_sent"] == "5"
    assert stats["eq_dcpq:client:num_streams"] == "1"


def test_1024_streams_on_one_connection():
    vbuckets = [filled(3, vbid) for vbid in range(1024)]
    client = Client(*vbuckets)
    for vbid in range(1024):
        client.request(vbid, end=3, opaque=vbid)
    frames = client.all()
    ends = [frame for frame in frames if frame.opcode == Opcode.DCP_STREAM_END]
    assert len(ends) == 1024
    assert sum(frame.opcode == Opcode.DCP_MUTATION for frame in frames) == 3 * 1024
    assert client.machine.stream_count == 0


@each_case(("priority", "turns"), [(b"high", 1), (b"medium", 5), (b"low", 25)])
def test_priority_is_the_length_of_a_turn(priority, turns):
    client = Client(filled(50), filled(50, vbid=1), limits=ProducerLimits(turn_bytes=10 * 60))
    assert client.control(b"set_priority", priority) == 0
    client.request()
    client.request(vbid=1)
    order = [frame.vbid for frame in client.all() if frame.opcode == Opcode.DCP_MUTATION]
    changes = sum(before != after for before, after in pairwise(order))
    assert len(order) == 100
    assert turns <= changes + 1 <= 4 * turns


@each_case("has_dropping", [False, True])
def test_a_slow_stream_reads_what_left_memory_from_disk(has_dropping):
    vbucket = filled(3)
    client = Client(vbucket)
    client.control(b"supports_cursor_dropping", b"true" if has_dropping else b"false")
    client.request()
    assert read(client.all())[-1] == 3
    vbucket.set(b"x")
    vbucket.evicted_seqno = 4
    vbucket.new_checkpoint()
    vbucket.set(b"y")
    client.wrote()
    disk = [(4, 5, 6), 4, 5]
    memory = [(4, 5, 1), 4, 5]
    assert read(client.all()) == (disk if has_dropping else memory)
    vbucket.set(b"z")
    client.wrote()
    assert read(client.all()) == [(6, 6, 5), 6]
