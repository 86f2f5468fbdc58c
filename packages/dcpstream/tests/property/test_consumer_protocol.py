"""A consumer connection under whatever a peer may send: it answers, ignores or leaves, and its copies stay sound."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dcpstream.model import VbucketState
from dcpstream.wire import Feature, Opcode, decode_frame, encode_request, encode_response
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation.replication import LOG
from tests.kit.lists import MachineProducer, replica

SEQNOS = st.integers(0, 12)
EXTRAS = {
    Opcode.DCP_ADD_STREAM: st.sampled_from((0, 1, 8, 0x40, 0x10)).map(lambda flags: flags.to_bytes(4, "big")),
    Opcode.DCP_CLOSE_STREAM: st.just(b""),
    Opcode.DCP_STREAM_END: st.just(bytes(4)),
    Opcode.DCP_SNAPSHOT_MARKER: st.tuples(SEQNOS, SEQNOS, st.sampled_from((1, 2, 5, 6, 9))).map(
        lambda fields: struct.pack(">QQI", *fields)
    ),
    Opcode.DCP_MUTATION: SEQNOS.map(lambda seqno: struct.pack(">QQ", seqno, 1) + bytes(15)),
    Opcode.DCP_DELETION: SEQNOS.map(lambda seqno: struct.pack(">QQH", seqno, 1, 0)),
    Opcode.DCP_EXPIRATION: SEQNOS.map(lambda seqno: struct.pack(">QQI", seqno, 1, 7)),
    Opcode.DCP_PREPARE: SEQNOS.map(lambda seqno: struct.pack(">QQ", seqno, 1) + bytes(14) + b"\1"),
    Opcode.DCP_COMMIT: st.tuples(SEQNOS, SEQNOS).map(lambda pair: struct.pack(">QQ", *pair)),
    Opcode.DCP_ABORT: st.tuples(SEQNOS, SEQNOS).map(lambda pair: struct.pack(">QQ", *pair)),
    Opcode.DCP_SET_VBUCKET_STATE: st.integers(0, 5).map(lambda state: bytes([state])),
    Opcode.DCP_SYSTEM_EVENT: st.just(bytes(13)),
    Opcode.DCP_NOOP: st.just(b""),
    Opcode.DCP_SEQNO_ADVANCED: st.just(bytes(8)),
}
WITH_KEY = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION, Opcode.DCP_PREPARE, Opcode.DCP_COMMIT)
ANSWERS = (
    (0, encode_failover_log(LOG)),
    (0, b""),
    (0x23, (2).to_bytes(8, "big")),
    (0x23, bytes(8)),
    (0x23, b""),
    (0x07, b""),
    (0x86, b""),
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """One frame, mostly well formed."""
    opcode = draw(st.sampled_from(list(EXTRAS)))
    extras = draw(EXTRAS[opcode]) if draw(st.integers(0, 9)) else draw(st.binary(max_size=60))
    key = draw(st.sampled_from((b"a", b"b"))) if opcode in WITH_KEY or opcode == Opcode.DCP_ABORT else b""
    value = b"v" if opcode in (Opcode.DCP_MUTATION, Opcode.DCP_PREPARE) else b""
    if not draw(st.integers(0, 9)):
        key, value = draw(st.binary(max_size=4)), draw(st.binary(max_size=4))
    fields: dict[str, Any] = {
        "vbid": draw(st.sampled_from((1, 1, 1, 2, 9))),
        "opaque": draw(st.sampled_from((0x01000000, 2, 77))),
    }
    return encode_request(opcode, extras=extras, key=key, value=value, cas=draw(st.sampled_from((0, 5))), **fields)


STEPS = st.one_of(
    messages(),
    st.sampled_from(ANSWERS),
    st.sampled_from(("state", "deleted", "later")),
    st.binary(min_size=24, max_size=24).map(lambda data: b"\x80" + data[1:2] + bytes(10) + data[12:]),
)


@given(st.booleans(), st.lists(STEPS, max_size=25))
def test_any_conversation(has_stream: bool, steps: list[object]) -> None:
    source = MachineProducer(replica(), replica(2, VbucketState.PENDING), features=(Feature.XATTR,), consumer_name="n")
    asked = []
    if has_stream:
        source.accept()
    for step in steps:
        if isinstance(step, bytes):
            source.machine.handle(decode_frame(step), source.now)
        elif isinstance(step, tuple):
            opaque = asked.pop().opaque if asked else 0x33
            data = encode_response(Opcode.DCP_STREAM_REQ, status=step[0], opaque=opaque, value=step[1])
            source.machine.handle(decode_frame(data), source.now)
        elif step == "later":
            source.now += 6.0
            source.machine.handle_timeout(source.now)
        else:
            view = source.replicas.vbuckets.get(1)
            if view is not None and step == "state":
                view.state = VbucketState.ACTIVE if view.state is not VbucketState.ACTIVE else VbucketState.REPLICA
            elif step == "deleted":
                source.replicas.vbuckets[1] = replica()
            source.machine.vbucket_state_changed(1, source.now)
        rest = source.negotiate(source.take())
        asked += [frame for frame in rest if frame.opcode == Opcode.DCP_STREAM_REQ]
        check(source)
        if source.closed:
            return


def check(source: MachineProducer) -> None:
    """Check the rules that hold at any time."""
    machine = source.machine
    for vbucket in source.replicas.vbuckets.values():
        assert all(before < after for (before, *_), (after, *_) in pairwise(vbucket.rows))
    assert all(stream.vbid == vbid for vbid, stream in machine.streams.items())
    for stream in machine.streams.values():
        if stream.is_reading and stream.view is source.replicas.vbucket(stream.vbid):
            assert stream.last_seqno >= stream.view.high_seqno
    if source.closed:
        assert not machine.streams
        assert not machine.has_output
        assert machine.wake_at is None
