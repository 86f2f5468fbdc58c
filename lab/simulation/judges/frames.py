"""The judges' own reading of frames: the few messages and fields that they look at, by their numbers on the wire."""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct(">BBHBBHIIQ")
HEADER_BYTES = 24
REQUEST, RESPONSE = 0x80, 0x81
FLEX_REQUEST, FLEX_RESPONSE = 0x08, 0x18

STREAM_REQUEST, STREAM_END, MARKER = 0x53, 0x55, 0x56
MUTATION, DELETION, EXPIRATION, SYSTEM_EVENT = 0x57, 0x58, 0x59, 0x5F
BUFFER_ACK, CONTROL = 0x5D, 0x5E
PREPARE, ACKNOWLEDGED, COMMIT, ABORT, ADVANCED, OSO = 0x60, 0x61, 0x62, 0x63, 0x64, 0x65
SET_VBUCKET, DELETE_VBUCKET, ADD_STREAM, CLOSE_STREAM, HAND_OVER = 0x3D, 0x3F, 0x51, 0x52, 0x5B
SET_MAP = 0xB4

ITEMS = {MUTATION: 0, DELETION: 0, EXPIRATION: 0, SYSTEM_EVENT: 0, PREPARE: 0, COMMIT: 8, ABORT: 8, ADVANCED: 0}
"""Messages that carry a seqno, and where in their extras it stands. A commit and an abort have the prepare's first."""
DOCUMENTS = frozenset((MUTATION, DELETION, EXPIRATION))
WINDOWED = frozenset((*ITEMS, MARKER, STREAM_END, OSO, 0x5B))
"""Messages that use up a flow-control window."""
PREPARE_EXTRA = 2
"""Bytes of the window that a prepare takes beyond its size, as on a server."""

_U64 = struct.Struct(">Q")


class Message(NamedTuple):
    """A frame.

    Attributes:
        size: of the whole frame.
        number: the status of a response, the vbucket of a request.
    """

    opcode: int
    is_response: bool
    number: int
    opaque: int
    extras: bytes
    key: bytes
    value: bytes
    size: int

    def u64(self, at: int) -> int:
        """A number in the extras."""
        return int(_U64.unpack_from(self.extras, at)[0])


def cut(data: bytes) -> list[Message]:
    """The whole frames at the beginning of some bytes."""
    return _cut(data)[0]


def _cut(data: bytes) -> tuple[list[Message], int]:
    """The whole frames at the beginning of some bytes, and the bytes that they take."""
    found: list[Message] = []
    at, end = 0, len(data)
    unpack = _HEADER.unpack_from
    while end - at >= HEADER_BYTES:
        magic, opcode, key_size, extras_size, _, number, body, opaque, _ = unpack(data, at)
        stop = at + HEADER_BYTES + body
        if stop > end:
            break
        framing = 0
        if magic in (FLEX_REQUEST, FLEX_RESPONSE):
            framing, key_size = key_size >> 8, key_size & 0xFF
        extras_at = at + HEADER_BYTES + framing
        key_at = extras_at + extras_size
        value_at = key_at + key_size
        is_response = magic in (RESPONSE, FLEX_RESPONSE)
        found.append(
            Message(
                opcode,
                is_response,
                number,
                opaque,
                data[extras_at:key_at],
                data[key_at:value_at],
                data[value_at:stop],
                stop - at,
            )
        )
        at = stop
    return found, at


DROP_COLLECTION = 1
"""Number of the system event that drops a collection."""


def dropped_collection(event: Message) -> int | None:
    """The collection that a system event drops; None if it drops none."""
    if int.from_bytes(event.extras[8:12], "big") != DROP_COLLECTION:
        return None
    return int.from_bytes(event.value[12:16], "big")


def bounds(marker: Message) -> tuple[int, int]:
    """The first and the last seqno of a snapshot, from either form of its marker."""
    data = marker.extras if len(marker.extras) > 1 else marker.value
    return int.from_bytes(data[:8], "big"), int.from_bytes(data[8:16], "big")


class Cutter:
    """Cuts a flow of bytes that comes in pieces."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[Message]:
        """The frames that are whole now."""
        data = self._rest + data if self._rest else data
        found, size = _cut(data)
        self._rest = data[size:]
        return found


def collection_and_key(key: bytes) -> tuple[int, bytes]:
    """A collection id and the rest of a key that begins with it (LEB128)."""
    number = shift = at = 0
    while True:
        byte = key[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, key[at:]
