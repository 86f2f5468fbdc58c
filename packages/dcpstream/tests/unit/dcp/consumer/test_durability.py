"""A copy that takes part in durable writes: prepares, commits, aborts, and what it acknowledges when."""

import struct

from dcpstream.wire import MarkerFlag, Opcode, Status, decode_frame
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation.replication import LOG
from tests.kit.cases import each_case
from tests.kit.lists import MachineProducer
from tests.kit.rules import rule


def prepare(source, key, seqno, *, level=1, deleted=0, cas=0x77, value=b"v"):
    extras = struct.pack(">QQIIIBBB", seqno, 2, 0x55, 777, 0, 0, deleted, level)
    return source.send(Opcode.DCP_PREPARE, key=key, value=value, extras=extras, cas=cas)


def decide(source, opcode, key, prepared, seqno, **fields):
    return source.send(opcode, key=key, extras=struct.pack(">QQ", prepared, seqno), **fields)


def commit(source, key, prepared, seqno):
    return decide(source, Opcode.DCP_COMMIT, key, prepared, seqno)


def abort(source, key, prepared, seqno):
    return decide(source, Opcode.DCP_ABORT, key, prepared, seqno)


def durable_source(*vbuckets):
    source = MachineProducer(*vbuckets, consumer_name="b")
    source.accept()
    return source


def acknowledged(frames):
    assert all(frame.opcode == Opcode.DCP_SEQNO_ACKNOWLEDGED for frame in frames)
    return [int.from_bytes(frame.extras, "big") for frame in frames]


def v2(source, start, end, flags=1):
    value = struct.pack(">QQIQQ", start, end, flags, end, 0)
    assert source.send(Opcode.DCP_SNAPSHOT_MARKER, extras=b"\0", value=value) == []


def rows(source):
    return [decode_frame(frame) for _, _, frame in source.replicas.vbuckets[1].rows]


@rule("DUR-16")
def test_a_whole_snapshot_is_acknowledged():
    source = durable_source()
    v2(source, 1, 3)
    assert prepare(source, b"a", 1) == []
    assert prepare(source, b"b", 2) == []
    frames = source.mutation(b"c", 3)
    assert acknowledged(frames) == [2]
    assert (frames[0].vbid, frames[0].opaque) == (1, source.opaque)
    v2(source, 4, 4)
    assert source.mutation(b"d", 4) == []


@rule("DUR-09")
def test_a_commit_becomes_the_document():
    source = durable_source()
    v2(source, 1, 2)
    prepare(source, b"a", 1)
    assert acknowledged(commit(source, b"a", 1, 2)) == [1]
    mutation = rows(source)[-1]
    assert (mutation.opcode, mutation.key, mutation.value, mutation.cas) == (Opcode.DCP_MUTATION, b"\0a", b"v", 0x77)
    assert struct.unpack(">QQII", mutation.extras[:24]) == (2, 2, 0x55, 777)


@rule("DUR-17", "DUR-18")
def test_decisions_without_their_prepare():
    source = durable_source()
    v2(source, 1, 9)
    assert [frame.status for frame in commit(source, b"a", 1, 2)] == [Status.KEY_ENOENT]
    assert [frame.status for frame in abort(source, b"a", 1, 2)] == [Status.EINVAL]
    prepare(source, b"a", 3)
    assert [frame.status for frame in commit(source, b"a", 2, 4)] == [Status.KEY_ENOENT]
    assert [frame.status for frame in abort(source, b"a", 2, 4)] == [Status.EINVAL]
    assert source.replicas.vbuckets[1].high_seqno == 3
    v2(source, 1, 10, int(MarkerFlag.DISK))
    assert [frame.status for frame in commit(source, b"b", 4, 8)] == [Status.KEY_ENOENT]
    assert abort(source, b"b", 4, 8) == []
    assert source.replicas.vbuckets[1].high_seqno == 8


@rule("CON-09", "DUR-20")
def test_a_second_prepare_of_a_document():
    source = durable_source()
    v2(source, 1, 9)
    assert prepare(source, b"a", 1) == []
    assert [frame.status for frame in prepare(source, b"a", 2)] == [Status.SYNC_WRITE_IN_PROGRESS]
    assert [frame.status for frame in prepare(source, b"a", 1)] == [Status.ERANGE]
    source.send_request(Opcode.DCP_CLOSE_STREAM, vbid=1)
    assert prepare(source, b"a", 3) == []
    assert decide(source, Opcode.DCP_COMMIT, b"a", 1, 4) == []
    assert source.replicas.vbuckets[1].high_seqno == 1


@rule("DUR-03")
@each_case("fields", [{"prepared": 0}, {"prepared": 2}, {"prepared": 5}, {"cas": 1}, {"value": b"v"}])
def test_decisions_that_cannot_be(fields):
    source = durable_source()
    v2(source, 1, 9)
    prepare(source, b"a", 1)
    prepared = fields.pop("prepared", 1)
    frames = decide(source, Opcode.DCP_COMMIT, b"a", prepared, 2, **fields)
    assert [frame.status for frame in frames] == [Status.EINVAL]


@rule("DUR-16")
def test_an_accepted_stream_begins_with_what_the_copy_has_prepared():
    source = durable_source()
    v2(source, 1, 1)
    prepare(source, b"a", 1)
    source.send(Opcode.DCP_STREAM_END, extras=bytes(4))
    frames = source.send_answer(source.request(opaque=0x52), value=encode_failover_log(LOG))
    assert frames[0].opcode == Opcode.DCP_ADD_STREAM
    assert acknowledged(frames[1:]) == [1]


@rule("DUR-16")
@each_case(
    ("version", "rest", "acknowledgements"),
    [(0, b"", [2]), (2, struct.pack(">QQ", 0, 0), []), (2, struct.pack(">QQ", 0, 1), [1])],
)
def test_a_disk_snapshot_acknowledges_prepares_that_are_gone_from_it(version, rest, acknowledgements):
    source = durable_source()
    value = struct.pack(">QQIQQ", 1, 2, MarkerFlag.DISK | MarkerFlag.CHECKPOINT, 2, 0) + rest
    assert source.send(Opcode.DCP_SNAPSHOT_MARKER, extras=bytes([version]), value=value) == []
    assert source.mutation(b"a", 1) == []
    assert acknowledged(source.mutation(b"b", 2)) == acknowledgements
