"""DCP on a node's sessions: opening, names, dispatch, wake-ups, stats."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from dcpstream.model import MAX_SEQNO
from dcpstream.wire import Feature, Frame, Opcode, OpenFlag, Status, StreamEndReason, decode_message, encode_request
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.engine import Talker, engine_of, pass_time


def open_dcp(talker: Talker, name: bytes = b"reader", flags: int = OpenFlag.PRODUCER, **fields: Any) -> Frame:
    return talker.call(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", 0, flags), **fields)


def stream(talker: Talker, vbid: int = 1, start: int = 0, end: int = MAX_SEQNO) -> list[Frame]:
    request = StreamRequest(
        vbid=vbid, opaque=77, start_seqno=start, end_seqno=end, vbuuid=0, snapshot_start=start, snapshot_end=start
    )
    return talker.send(request.encode())


def reader_of(engine: object) -> Talker:
    talker = Talker(engine)  # type: ignore[arg-type]
    assert open_dcp(talker).status == 0
    assert talker.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true").status == 0
    return talker


def test_a_stream_follows_writes_of_other_sessions() -> None:
    engine = engine_of()
    writer, reader = Talker(engine), reader_of(engine)
    writer.set("a", b"1", vbid=1)
    frames = stream(reader)
    assert [frame.opcode for frame in frames] == [
        Opcode.DCP_STREAM_REQ,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
    ]
    writer.set("b", b"2", vbid=1)
    writer.delete("a", vbid=1)
    writer.set("elsewhere", b"3", vbid=2)
    live = reader.collect()
    assert [frame.opcode for frame in live if frame.opcode != Opcode.DCP_SNAPSHOT_MARKER] == [
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
    ]
    assert {frame.opaque for frame in live} == {77}


def test_a_change_of_role_ends_the_stream() -> None:
    engine = engine_of()
    admin, reader = Talker(engine), reader_of(engine)
    stream(reader)
    assert admin.call(Opcode.SET_VBUCKET, vbid=1, extras=b"\x02").status == 0
    (end,) = reader.collect()
    message: Any = decode_message(end)
    assert message.reason == StreamEndReason.STATE_CHANGED


def test_a_deleted_vbucket_ends_the_stream() -> None:
    engine = engine_of()
    admin, reader = Talker(engine), reader_of(engine)
    stream(reader)
    admin.call(Opcode.SET_VBUCKET, vbid=1, extras=b"\x04")
    admin.call(Opcode.DEL_VBUCKET, vbid=1)
    assert [frame.opcode for frame in reader.collect()] == [Opcode.DCP_STREAM_END]
    (answer,) = stream(reader)
    assert answer.status == Status.NOT_MY_VBUCKET


@pytest.mark.parametrize("flags", [0, int(OpenFlag.PRODUCER)])
def test_a_name_opened_again_closes_the_older_connection(flags: int) -> None:
    engine = engine_of()
    older, newer = reader_of(engine), Talker(engine)
    stream(older)
    assert open_dcp(newer, flags=flags).status == 0
    assert older.session.is_closing
    assert not newer.session.is_closing
    older.session.connection_lost()
    assert newer.session.bucket is not None
    assert newer.session.bucket.dcp_sessions == {"reader": newer.session}


def test_opening_needs_the_privilege_of_the_role() -> None:
    engine = engine_of()
    reader = Talker(engine, user="reader")
    assert open_dcp(reader, b"c", 0).status == Status.EACCESS
    assert open_dcp(reader, b"p").status == 0
    assert open_dcp(Talker(engine, user="writer"), b"w").status == Status.EACCESS


def test_unordered_execution_and_dcp_exclude_each_other() -> None:
    talker = Talker(engine_of(), features=(*USUAL_FEATURES, Feature.UNORDERED_EXECUTION))
    assert open_dcp(talker).status == Status.NOT_SUPPORTED
    assert talker.session.dcp is None


def test_a_second_open_is_refused_and_the_first_stays() -> None:
    talker = reader_of(engine_of())
    assert open_dcp(talker, b"other", 0).status == Status.EINVAL
    assert stream(talker)[0].status == 0


def test_other_dcp_requests_need_an_open_connection() -> None:
    talker = Talker(engine_of())
    assert talker.call(Opcode.DCP_GET_FAILOVER_LOG).status == Status.EINVAL
    assert b"DCP connection" in talker.call(Opcode.DCP_CONTROL, key=b"k", value=b"v").value
    assert b"extras of length 48" in talker.call(Opcode.DCP_STREAM_REQ).value
    assert talker.call(Opcode.DCP_OSO_SNAPSHOT).status == Status.UNKNOWN_COMMAND
    assert not talker.session.is_closing


def test_a_consumer_with_an_empty_object_is_dropped() -> None:
    talker = Talker(engine_of())
    data = encode_request(Opcode.DCP_OPEN, key=b"c", extras=bytes(8), value=b"{}", datatype=1)
    assert talker.send(data) == []
    assert talker.session.is_closing


def test_what_a_producer_does_not_take_closes_the_session() -> None:
    talker = reader_of(engine_of())
    assert talker.send(encode_request(Opcode.DCP_NOOP)) == []
    assert talker.session.is_closing


def test_documents_can_be_read_and_written_on_a_dcp_connection() -> None:
    talker = reader_of(engine_of())
    assert talker.set("k", b"v").status == 0
    assert talker.get("k").value == b"v"


def test_noops_come_with_time() -> None:
    engine = engine_of()
    talker = reader_of(engine)
    assert talker.session.dcp is not None
    assert talker.session.dcp.wake_at == 120.0
    pass_time(engine, 20.0)
    talker.session.dcp.handle_timeout(engine.now)
    assert [frame.opcode for frame in talker.collect()] == [Opcode.DCP_NOOP]


def test_stats_of_the_dcp_group() -> None:
    engine = engine_of()
    reader = reader_of(engine)
    stream(reader)
    consumer = Talker(engine)
    open_dcp(consumer, b"copy", 0)
    stats = Talker(engine).stats("dcp")
    assert stats["eq_dcpq:reader:type"] == "producer"
    assert stats["eq_dcpq:reader:stream_1_state"] == "in-memory"
    assert stats["eq_dcpq:copy:type"] == "consumer"
    assert (stats["ep_dcp_count"], stats["ep_dcp_producer_count"], stats["ep_dcp_consumer_count"]) == ("2", "1", "1")
