"""The producer machine where the recordings do not reach: ends, wake-ups, windows, stream ids, filters, drops."""

import pytest

from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer.connection import ProducerConnection, ProducerLimits
from dcpstream.dcp.producer.states import OVER, STREAM, Phase, StreamEvent
from dcpstream.errors import LocalProtocolError
from dcpstream.model import MAX_SEQNO, Collection, Manifest, Scope
from dcpstream.wire import (
    Feature,
    Opcode,
    OpenFlag,
    Status,
    StreamEndReason,
    SystemEventId,
    decode_frame,
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


def test_a_change_of_role_ends_every_stream_of_the_vbucket():
    client = Client(filled(2, 0), filled(2, 1))
    client.request(0, opaque=1)
    client.request(1, opaque=2)
    client.all()
    client.machine.vbucket_state_changed(0, 1.0)
    assert [(frame.opaque, *read([frame])) for frame in client.all()] == [(1, ("end", 2))]
    client.machine.vbucket_rolled_back(1, 1.0)
    assert [(frame.opaque, *read([frame])) for frame in client.all()] == [(2, ("end", 2))]
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
    [("vbucket_state_changed", [1, 2, 3, 4, 5, ("end", 2)]), ("vbucket_rolled_back", [("end", 2)])],
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


def test_open_and_close_in_a_full_window_leaves_nothing_behind():
    client = Client(filled())
    client.control(b"connection_buffer_size", b"1")
    for _ in range(100):
        client.request()
        client.send(Opcode.DCP_CLOSE_STREAM)
        client.all()
    assert (client.machine.stream_count, len(client.machine._ready)) == (0, 0)


def test_rollback_answers_with_eight_bytes_and_leaves_no_stream():
    client = Client(filled())
    client.request(start=9)
    (answer,) = client.all()
    assert (answer.status, answer.value) == (Status.ROLLBACK, (5).to_bytes(8, "big"))
    client.request(start=5)
    assert read(client.all()) == [("answer", 0)]


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


def test_everything_has_no_seqno_advanced():
    assert read(filtered(fruit_and_veg(), b"").all()) == [("answer", 0), (0, 6, 5), 1, 2, 3, 4, 5, 6]


def test_a_filter_whose_collections_are_gone_ends_the_stream():
    vbucket = fruit_and_veg()
    client = filtered(vbucket, b'{"collections":["8"]}')
    client.all()
    vbucket.event(CollectionEvent(SystemEventId.DROP_COLLECTION, 2, 0, 8))
    client.wrote()
    assert read(client.all()) == [(7, 7, 5), ("event", 7, 1), ("end", StreamEndReason.FILTER_EMPTY)]


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
    assert read(client.all())[-1] == ("end", StreamEndReason.STATE_CHANGED)


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
