"""A copy that takes part in durable writes: prepares, commits, aborts, and what it acknowledges when."""

import struct

import pytest

from dcpstream.wire import MarkerFlag, Opcode, Status, decode_frame
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation.replication import LOG
from tests.kit.lists import MachineProducer, replica
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


def test_without_a_name_nothing_is_acknowledged():
    source = MachineProducer()
    source.accept()
    source.marker(1, 1)
    assert prepare(source, b"a", 1) == []
    assert source.replicas.vbuckets[1].high_seqno == 1


def test_what_is_to_be_on_the_disk_of_a_majority_waits_for_it():
    source = durable_source(replica(persisted=0))
    v2(source, 1, 3)
    prepare(source, b"a", 1)
    prepare(source, b"b", 2, level=3)
    assert acknowledged(prepare(source, b"c", 3)) == [1]
    source.machine.vbucket_changed(1, 0.0)
    assert source.take() == []
    source.replicas.vbuckets[1].persisted = 3
    source.machine.vbucket_changed(1, 0.0)
    assert acknowledged(source.take()) == [3]


@rule("DUR-09")
def test_a_commit_becomes_the_document():
    source = durable_source()
    v2(source, 1, 2)
    prepare(source, b"a", 1)
    assert acknowledged(commit(source, b"a", 1, 2)) == [1]
    mutation = rows(source)[-1]
    assert (mutation.opcode, mutation.key, mutation.value, mutation.cas) == (Opcode.DCP_MUTATION, b"\0a", b"v", 0x77)
    assert struct.unpack(">QQII", mutation.extras[:24]) == (2, 2, 0x55, 777)


def test_a_committed_deletion():
    source = durable_source()
    v2(source, 1, 2)
    prepare(source, b"a", 1, deleted=1, value=b"")
    commit(source, b"a", 1, 2)
    assert rows(source)[-1].opcode == Opcode.DCP_DELETION


def test_an_abort_takes_the_place_of_its_prepare():
    source = durable_source()
    v2(source, 1, 1)
    prepare(source, b"a", 1)
    v2(source, 2, 2, int(MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT))
    abort(source, b"a", 1, 2)
    stored = rows(source)[-1]
    assert (stored.opcode, struct.unpack(">QQ", stored.extras)) == (Opcode.DCP_ABORT, (2, 1))
    v2(source, 3, 3)
    assert [frame.status for frame in commit(source, b"a", 1, 3)] == [Status.KEY_ENOENT]


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
    v2(source, 1, 9, int(MarkerFlag.DISK))
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


@pytest.mark.parametrize("fields", [{"level": 0}, {"level": 4}, {"cas": 0}, {"deleted": 2}, {"seqno": 0}, {"key": b""}])
def test_prepares_that_cannot_be(fields):
    source = durable_source()
    v2(source, 1, 9)
    fields = {"key": b"a", "seqno": 1, **fields}
    key, seqno = fields.pop("key"), fields.pop("seqno")
    assert [frame.status for frame in prepare(source, key, seqno, **fields)] == [Status.EINVAL]


@rule("DUR-03")
@pytest.mark.parametrize("fields", [{"prepared": 0}, {"prepared": 2}, {"prepared": 5}, {"cas": 1}, {"value": b"v"}])
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


def test_a_copy_that_is_rolled_back_waits_for_the_end_of_its_snapshot_again():
    source = durable_source()
    v2(source, 1, 10)
    source.mutation(b"a", 10)
    source.send(Opcode.DCP_STREAM_END, extras=bytes(4))
    request = source.request(opaque=0x52)
    (request,) = source.send_answer(request, status=Status.ROLLBACK, value=struct.pack(">Q", 8))
    source.opaque = request.opaque
    source.send_answer(request, value=encode_failover_log(LOG))
    after = source.replicas.vbuckets[1].high_seqno
    assert after < 10
    v2(source, after + 1, 14)
    assert prepare(source, b"b", 9) == []
    assert acknowledged(source.mutation(b"c", 14)) == [9]
