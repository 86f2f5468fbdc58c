"""Events of scopes and collections, byte by byte as a recorded server sends them."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.errors import FieldError
from dcpstream.model.collections import NO_TTL
from dcpstream.wire import Frame, Opcode, SystemEventId, decode_frame
from dcpstream.wire.messages.dcp import SystemEvent
from dcpstream.wire.stored.block import BlockKind, event_at, events_of
from dcpstream.wire.stored.form import StreamForm
from dcpstream.wire.stored.rendering import render
from dcpstream.wire.system_events import (
    CollectionEvent,
    encode_stored_event,
    flatbuffer_of,
    read_event,
    read_flatbuffer,
)
from tests.kit import recorded
from tests.kit.blocks import block_of
from tests.kit.cases import each_case
from tests.kit.rules import rule

EVERY = (
    CollectionEvent(SystemEventId.CREATE_SCOPE, 0, 9, 0, "s1"),
    CollectionEvent(SystemEventId.CREATE_COLLECTION, 0, 9, 10, "veg", 100),
    CollectionEvent(SystemEventId.CREATE_COLLECTION, 1, 0, 8, "fruit"),
    CollectionEvent(SystemEventId.DROP_COLLECTION, 2, 0, 8),
    CollectionEvent(SystemEventId.DROP_SCOPE, 3, 9),
)
SYSTEM = (
    CollectionEvent(SystemEventId.CREATE_SCOPE, 4, 8, 0, "_system"),
    CollectionEvent(SystemEventId.CREATE_COLLECTION, 4, 8, 9, "_query"),
    CollectionEvent(SystemEventId.CREATE_COLLECTION, 4, 0, 12, "_mine"),
    CollectionEvent(SystemEventId.MODIFY_COLLECTION, 5, 0, 0, "_default", 7),
    CollectionEvent(SystemEventId.DROP_COLLECTION, 6, 8, 9, is_system=True),
    CollectionEvent(SystemEventId.DROP_SCOPE, 7, 8, is_system=True),
    CollectionEvent(SystemEventId.DROP_COLLECTION, 8, 0, 10),
)
"""Events about names that begin with an underscore; the default collection's and the last are no hidden ones."""


def recorded_events() -> dict[tuple[int, int], Frame]:
    """(seqno, version) → the message."""
    found = {}
    for line in recorded.server_transcript("s25"):
        if line.direction == "s2c" and line.frame[1] == Opcode.DCP_SYSTEM_EVENT:
            frame = decode_frame(line.frame)
            found[int.from_bytes(frame.extras[:8], "big"), frame.extras[12]] = frame
    return found


def test_every_recorded_event_is_made_the_same_in_every_version() -> None:
    events = recorded_events()
    assert {event[1] for event in events} == {0, 1, 2}
    for (seqno, version), frame in events.items():
        if version == 2:
            continue
        event = read_event(frame.extras, frame.key, frame.value)
        made = decode_frame(encode_stored_event(event, vbid=frame.vbid, by_seqno=seqno))
        assert (made.extras, made.key, made.value, made.vbid) == (frame.extras, frame.key, frame.value, frame.vbid)
        if (seqno, 2) in events:
            assert flatbuffer_of(event) == events[seqno, 2].value


def test_every_recorded_flatbuffer_is_read() -> None:
    events = recorded_events()
    read = 0
    for (seqno, version), frame in events.items():
        event_id = int.from_bytes(frame.extras[8:12], "big")
        if version == 2:
            other = events.get((seqno, 0)) or events.get((seqno, 1))
            event = read_flatbuffer(event_id, frame.value)
            assert flatbuffer_of(event) == frame.value
            assert other is None or event == read_event(other.extras, other.key, other.value)
            read += 1
    assert read


@each_case("scenario", ["s65", "s69", "s79"])
def test_every_flatbuffer_of_80_is_read_and_made_the_same_from_the_store(scenario: str) -> None:
    """Also the ones about history, metering, emptied collections, and system collections that were dropped."""
    read, richer = 0, 0
    for line in recorded.server_transcript(scenario, "8.0"):
        if line.direction != "s2c" or line.frame[1] != Opcode.DCP_SYSTEM_EVENT:
            continue
        frame = decode_frame(line.frame)
        seqno, event_id, version = SystemEvent.unpack(frame)
        if version == 2:
            event = read_flatbuffer(event_id, frame.value)
            stored = encode_stored_event(event, vbid=frame.vbid, by_seqno=seqno)
            assert event_at(stored) == event
            assert flatbuffer_of(event) == frame.value
            read, richer = read + 1, richer + (not event.is_plain)
    assert read
    assert bool(richer) == (scenario != "s69")


def test_what_old_versions_cannot_say_is_left_out_of_them() -> None:
    created = CollectionEvent(SystemEventId.CREATE_COLLECTION, 3, 0, 8, "fruit", 60, 3, True, True)
    dropped = CollectionEvent(SystemEventId.DROP_COLLECTION, 4, 8, 9, is_system=True)
    scope = CollectionEvent(SystemEventId.DROP_SCOPE, 5, 8, is_system=True)
    events = (created, dropped, scope)
    block = block_of(b"".join(encode_stored_event(item, vbid=1, by_seqno=n) for n, item in enumerate(events, 1)))
    assert tuple(events_of(block, 0, block.count)) == events
    sent = block_of(render(block, 7, StreamForm()).data)
    plain = created._replace(flush_uid=0, history=False, metered=False)
    assert tuple(events_of(sent, 0, 3)) == (plain, dropped._replace(is_system=False), scope._replace(is_system=False))
    versions = [frame.extras[12] for frame in (decode_frame(sent.data, int(start)) for start in sent.starts)]
    assert versions == [1, 0, 0]


@given(st.sampled_from(EVERY), st.data())
def test_a_damaged_flatbuffer_is_refused_or_read_as_something_else(event: CollectionEvent, data: st.DataObject) -> None:
    value = bytearray(flatbuffer_of(event))
    assert read_flatbuffer(event.event, bytes(value)) == event
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    del value[data.draw(st.integers(0, len(value))) :]
    with contextlib.suppress(FieldError):
        assert isinstance(read_flatbuffer(event.event, bytes(value)), CollectionEvent)


def test_a_limit_of_nothing_differs_from_no_limit() -> None:
    for max_ttl, value_bytes in ((0, 16), (NO_TTL, 20), (60, 20)):
        event = CollectionEvent(SystemEventId.CREATE_COLLECTION, 7, 0, 8, "fruit", max_ttl)
        frame = decode_frame(encode_stored_event(event, vbid=1, by_seqno=2))
        assert len(frame.value) == value_bytes
        assert read_event(frame.extras, frame.key, frame.value) == event
        assert read_flatbuffer(event.event, flatbuffer_of(event)) == event


def test_a_stream_gets_the_events_of_what_it_asked_for() -> None:
    data = b"".join(encode_stored_event(event, vbid=1, by_seqno=seqno) for seqno, event in enumerate(EVERY, 1))
    block = block_of(data)
    assert block.kinds & BlockKind.SYSTEM_EVENT
    assert tuple(events_of(block, 0, block.count)) == EVERY

    def seqnos(form: StreamForm) -> list[int]:
        return [int(seqno) for seqno in block_of(render(block, 0, form).data).seqnos]

    assert seqnos(StreamForm()) == [1, 2, 3, 4, 5]
    assert seqnos(StreamForm(collection_ids=frozenset((8,)))) == [3, 4]
    assert seqnos(StreamForm(collection_ids=frozenset((10,)), scope_id=9)) == [1, 2, 5]
    assert seqnos(StreamForm(collections=False, collection_ids=frozenset((0,)))) == []


def test_a_stream_of_what_everybody_may_see_gets_no_event_of_the_system() -> None:
    block = block_of(b"".join(encode_stored_event(item, vbid=1, by_seqno=n) for n, item in enumerate(SYSTEM, 1)))
    form = StreamForm(collection_ids=frozenset((0,)), hides_system=True, flatbuffer_events=True)
    sent = block_of(render(block, 0, form).data)
    assert sent.seqnos.tolist() == [4, 7]


def test_a_modified_collection_is_reported_in_flatbuffers_only() -> None:
    modified = CollectionEvent(SystemEventId.MODIFY_COLLECTION, 4, 9, 10, "veg", 7)
    block = block_of(encode_stored_event(modified, vbid=1, by_seqno=6))
    assert render(block, 0, StreamForm()).messages == 0
    rendered = render(block, 0, StreamForm(flatbuffer_events=True))
    frame = decode_frame(rendered.data)
    assert (frame.extras[8:], frame.value) == (b"\0\0\0\5\2", flatbuffer_of(modified))


@rule("COL-27")
def test_a_flatbuffer_may_end_with_a_field_and_not_within_one() -> None:
    """As another implementation may build one: the list of fields first, and the table's last field at the very end."""
    fields = struct.pack("<5H", 10, 20, 4, 12, 16)
    table = struct.pack("<iQII", 12, 7, 9, 10)
    value = struct.pack("<I", 16) + fields + bytes(2) + table
    event = CollectionEvent(SystemEventId.DROP_COLLECTION, 7, 9, 10)
    assert read_flatbuffer(event.event, value) == event
    for length in range(len(value)):
        with pytest.raises(FieldError):
            read_flatbuffer(event.event, value[:length])
