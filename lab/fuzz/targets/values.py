"""The contents of values: read and written back alike, or refused with a FieldError; nothing inflates without bound.

Input: which reader, and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dcpstream.errors import FieldError
from dcpstream.wire import SystemEventId, decode_frame, decode_message
from dcpstream.wire.keys import decode_frame_infos, encode_frame_info, leb128_decode, leb128_encode
from dcpstream.wire.messages.dcp import SystemEvent
from dcpstream.wire.system_events import (
    CollectionEvent,
    encode_stored_event,
    flatbuffer_of,
    read_event,
    read_flatbuffer,
)
from dcpstream.wire.values import (
    decode_failover_log,
    decode_vbucket_seqnos,
    decode_xattrs,
    encode_failover_log,
    encode_vbucket_seqnos,
    encode_xattrs,
    snappy_compress,
    snappy_uncompress,
    split_xattrs,
)
from lab.fuzz import seeds as shared

MAX_BYTES = 600
INFLATED_BYTES_MAX = 4096
EVENTS = tuple(SystemEventId)


def seeds() -> Iterator[bytes]:
    yield b"\x00" + bytes(range(32))
    yield b"\x01" + bytes(20)
    yield b"\x02" + encode_xattrs({"_sync": b'{"a":1}', "x": b"2"}, b"body")
    yield b"\x03" + snappy_compress(b"body" * 40 + bytes(range(50)))
    for number, event in enumerate(EVENTS):
        made = CollectionEvent(event, 5, 8, 0 if number > 2 else 9, "fruit", 30)
        yield bytes((4, number)) + flatbuffer_of(made)
        message = decode_frame(encode_stored_event(made, vbid=1, by_seqno=7))
        yield bytes((5, number)) + message.key[:8].ljust(8) + message.value
    yield b"\x06" + encode_frame_info(1, b"\2\0\1") + encode_frame_info(20, b"x" * 30)
    yield b"\x07" + leb128_encode(300) + b"key"
    for _, frame in shared.recorded_frames():
        message = decode_message(decode_frame(frame))
        if isinstance(message, SystemEvent) and message.version == 2:
            yield bytes((4, EVENTS.index(SystemEventId(message.event)))) + message.value


def check(data: bytes) -> None:
    if len(data) < 2:
        return
    try:
        _CHECKS[data[0] % len(_CHECKS)](data[1:])
    except FieldError:
        return


def failover_log(value: bytes) -> None:
    assert encode_failover_log(decode_failover_log(value)) == value


def vbucket_seqnos(value: bytes) -> None:
    assert encode_vbucket_seqnos(decode_vbucket_seqnos(value)) == value


def xattrs(value: bytes) -> None:
    section, body = split_xattrs(value)
    assert section + body == value
    found, its_body = decode_xattrs(value)
    assert its_body == body
    names = [name.encode() for name in found]
    if all(name.isascii() and b"\\" not in name for name in names) and encode_xattrs(found, body) != value:
        # A name that occurs twice counts once.
        assert len(encode_xattrs(found, body)) < len(value)


def snappy(value: bytes) -> None:
    inflated = snappy_uncompress(value, INFLATED_BYTES_MAX)
    assert len(inflated) <= INFLATED_BYTES_MAX
    assert snappy_uncompress(snappy_compress(inflated)) == inflated


def flatbuffer(value: bytes) -> None:
    event = EVENTS[value[0] % len(EVENTS)]
    found = read_flatbuffer(event, value[1:])
    again = read_flatbuffer(event, flatbuffer_of(found))
    assert again == found._replace(flush_uid=0)


def event(value: bytes) -> None:
    kind = EVENTS[value[0] % len(EVENTS)]
    extras = SystemEvent.layout.extras.pack(7, int(kind), 0)
    found = read_event(extras, value[1:9], value[9:])
    frame = decode_frame(encode_stored_event(found, vbid=1, by_seqno=7))
    assert read_event(frame.extras, frame.key, frame.value) == found


def frame_infos(value: bytes) -> None:
    infos = list(decode_frame_infos(value))
    assert list(decode_frame_infos(b"".join(encode_frame_info(*info) for info in infos))) == infos


def number(value: bytes) -> None:
    found, used = leb128_decode(value)
    assert leb128_encode(found) == value[:used]


_CHECKS: tuple[Callable[[bytes], None], ...] = (
    failover_log,
    vbucket_seqnos,
    xattrs,
    snappy,
    flatbuffer,
    event,
    frame_infos,
    number,
)
