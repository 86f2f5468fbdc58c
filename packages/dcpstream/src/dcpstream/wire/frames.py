"""Frames: a 24-byte header and a body, in classic and in flexible framing.

Theory of operation: the header's lengths say where the parts of the body are (framing extras, extras, key, value, in
this order). `Frame` holds the parts as bytes without their meaning; `FrameReader` splits a byte stream into frames.
Bytes → Frame → bytes is the identity.

Source: kv_engine docs/BinaryProtocol.md, daemon/connection_libevent.cc (limits).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, Unpack

from dcpstream.errors import FieldError, FrameError
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.codes import Magic, Opcode, code_name

HEADER_FIELDS = (
    ("magic", 1),
    ("opcode", 1),
    ("key_length", 2),
    ("extras_length", 1),
    ("datatype", 1),
    ("vbid", 2),
    ("body_length", 4),
    ("opaque", 4),
    ("cas", 8),
)
"""Name and width of each field, all unsigned and big-endian. `vbid` is the status of a response. In flexible framing
`key_length` is the framing extras' length (u8) and the key's length (u8)."""

HEADER = struct.Struct(">" + "".join({1: "B", 2: "H", 4: "I", 8: "Q"}[width] for _, width in HEADER_FIELDS))
"""The header, packed and unpacked in the order of `HEADER_FIELDS`."""

Head: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""The fields of a header, in the order of `HEADER_FIELDS`."""

HEADER_BYTES = 24
BODY_LENGTH_AT = 8
"""Offset of the body's length in a header."""
MAX_FRAME_BYTES = 30 * 1024 * 1024
"""Largest frame: the server's default max_packet_size; a larger one closes the connection."""
MAX_FRAME_BYTES_BEFORE_AUTH = 16 * 1024
"""Largest frame before the login."""
MAX_FRAME_BYTES_BEFORE_AUTH_72 = 1024
"""The same until 8.0."""

_FLEXIBLE = frozenset((Magic.FLEX_REQUEST, Magic.FLEX_RESPONSE))
_RESPONSES = frozenset((Magic.RESPONSE, Magic.FLEX_RESPONSE, Magic.SERVER_RESPONSE))
MAGICS = frozenset(int(magic) for magic in Magic)


_OPAQUE_AT = 12
_CAS_AT = 16
_OPAQUE = struct.Struct(">I")


def with_opaque(data: bytes, opaque: int) -> bytes:
    """The bytes of one frame with another opaque."""
    return b"".join((data[:_OPAQUE_AT], _OPAQUE.pack(opaque), data[_CAS_AT:]))


@dataclass(slots=True, unsafe_hash=True, repr=False)
class Frame:
    """One frame, its body split into parts.

    Attributes:
        magic: u8, one of `Magic`.
        opcode: u8.
        datatype: u8.
        vbid: u16, the vbucket of a request; `status` is the same field read from a response.
        opaque: u32.
        cas: u64.
        framing, extras, key, value: the parts of the body.
    """

    magic: int
    opcode: int
    datatype: int = 0
    vbid: int = 0
    opaque: int = 0
    cas: int = 0
    framing: bytes = b""
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""

    @property
    def status(self) -> int:
        """The status of a response: the field that holds the vbucket in a request."""
        return self.vbid

    @property
    def is_response(self) -> bool:
        """Whether the magic is a response's."""
        return self.magic in _RESPONSES

    @property
    def is_request(self) -> bool:
        """Whether the magic is a request's."""
        return self.magic not in _RESPONSES

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return HEADER_BYTES + len(self.framing) + len(self.extras) + len(self.key) + len(self.value)

    def encode(self) -> bytes:
        """The frame's bytes.

        Raises:
            FieldError: a part is longer than its length field allows.
        """
        framing, key = self.framing, self.key
        key_length, extras_length = len(key), len(self.extras)
        body = len(framing) + extras_length + key_length + len(self.value)
        if self.magic in _FLEXIBLE:
            if key_length > 0xFF or len(framing) > 0xFF:
                raise FieldError("flexible framing allows 255 bytes of key and of framing extras")
            key_length |= len(framing) << 8
        elif framing:
            raise FieldError("framing extras need a flexible magic (0x08 or 0x18)")
        try:
            header = HEADER.pack(
                self.magic,
                self.opcode,
                key_length,
                extras_length,
                self.datatype,
                self.vbid,
                body,
                self.opaque,
                self.cas,
            )
        except struct.error as error:
            raise FieldError(f"a header field does not fit: {error}") from error
        return b"".join((header, framing, self.extras, key, self.value))

    def __repr__(self) -> str:
        """Names of the numbers that have one, and the sizes of long parts."""
        kind = "status" if self.is_response else "vb"
        parts = [
            f"{code_name(Magic, self.magic)} {code_name(Opcode, self.opcode)}",
            f"{kind}={self.vbid}",
            f"opaque=0x{self.opaque:x}",
        ]
        for name in ("framing", "extras", "key", "value"):
            part: bytes = getattr(self, name)
            if part:
                shown = part if len(part) <= 32 else part[:32]
                parts.append(f"{name}[{len(part)}]={shown!r}")
        return f"<Frame {' '.join(parts)}>"


class FrameFields(TypedDict, total=False):
    """The fields of requests and responses; those that are left out are 0 or empty."""

    datatype: int
    cas: int
    framing: bytes
    extras: bytes
    key: bytes
    value: bytes


class RequestFields(FrameFields, total=False):
    """The fields of a request."""

    vbid: int


def encode_request(opcode: int, *, opaque: int = 0, **fields: Unpack[RequestFields]) -> bytes:
    """The bytes of a request; flexible framing if there are framing extras."""
    magic = Magic.FLEX_REQUEST if fields.get("framing") else Magic.REQUEST
    return Frame(magic, opcode, opaque=opaque, **fields).encode()


def encode_response(opcode: int, *, status: int = 0, opaque: int = 0, **fields: Unpack[FrameFields]) -> bytes:
    """The bytes of a response; flexible framing if there are framing extras."""
    magic = Magic.FLEX_RESPONSE if fields.get("framing") else Magic.RESPONSE
    return Frame(magic, opcode, vbid=status, opaque=opaque, **fields).encode()


def frame_length(buffer: Buffer, offset: int, limit: int = MAX_FRAME_BYTES) -> int:
    """The length of the frame whose 24 header bytes begin at `offset`.

    Raises:
        FrameError: unknown magic, parts longer than the body, or longer than `limit` bytes in all.
    """
    magic, _, key_length, extras_length, _, _, body, _, _ = HEADER.unpack_from(buffer, offset)
    if magic not in MAGICS:
        raise bad_magic(buffer, offset)
    parts = extras_length + ((key_length >> 8) + (key_length & 0xFF) if magic in _FLEXIBLE else key_length)
    if parts > body:
        raise FrameError(
            f"framing extras, extras and key take {parts} bytes, but the body has {body}, in the frame",
            offset=offset,
            header=_header_bytes(buffer, offset),
        )
    length: int = HEADER_BYTES + body
    if length > limit:
        raise FrameError(
            f"the header announces a frame of {length} bytes, more than the allowed {limit},",
            offset=offset,
            header=_header_bytes(buffer, offset),
        )
    return length


def bad_magic(buffer: Buffer, offset: int, stop: int | None = None) -> FrameError:
    """The error of a byte that begins no frame, in data that end at `stop`."""
    message = f"0x{buffer[offset]:02x} is not a magic, so no frame begins"
    return FrameError(message, offset=offset, header=bytes(buffer[offset:stop][:HEADER_BYTES]))


def _header_bytes(buffer: Buffer, offset: int) -> bytes:
    return bytes(buffer[offset : offset + HEADER_BYTES])


def decode_frame(buffer: Buffer, offset: int = 0, limit: int = MAX_FRAME_BYTES) -> Frame:
    """The frame at `offset`.

    Raises:
        FrameError: fewer bytes than a whole frame, or not a frame.
    """
    if len(buffer) - offset < HEADER_BYTES:
        there = len(buffer) - offset
        raise FrameError(
            f"the data ends after {there} of the {HEADER_BYTES} bytes of the header",
            offset=offset,
            header=_header_bytes(buffer, offset),
        )
    end = offset + frame_length(buffer, offset, limit)
    if end > len(buffer):
        raise FrameError(
            f"the data ends {end - len(buffer)} bytes before the end of the frame",
            offset=offset,
            header=_header_bytes(buffer, offset),
        )
    return cut_frame(buffer, offset)


def cut_frame(buffer: Buffer, offset: int) -> Frame:
    """The frame at `offset`, which is whole and whose lengths were checked."""
    magic, opcode, key_length, extras_length, datatype, vbid, size, opaque, cas = HEADER.unpack_from(buffer, offset)
    body_at = offset + HEADER_BYTES
    body = bytes(buffer[body_at : body_at + size])
    framing_length = 0
    if magic in _FLEXIBLE:
        framing_length, key_length = key_length >> 8, key_length & 0xFF
    key_at = framing_length + extras_length
    value_at = key_at + key_length
    return Frame(
        magic,
        opcode,
        datatype,
        vbid,
        opaque,
        cas,
        body[:framing_length],
        body[framing_length:key_at],
        body[key_at:value_at],
        body[value_at:],
    )


class FrameReader:
    """Splits a byte stream into frames, however it arrives.

    It buffers at most one incomplete frame beyond the bytes of the last `receive_data`.

    Args:
        max_frame_bytes: larger frames raise FrameError once their header has arrived. May be changed at any time: a
            node allows 16 KiB until the peer has authenticated.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._start = 0
        self._received = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame, or of frames not taken yet."""
        return len(self._buffer) - self._start

    def receive_data(self, data: Buffer) -> None:
        """Add received bytes."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data
        self._received += len(data)

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None.

        Raises:
            FrameError: the bytes are not a frame; `offset` counts from the beginning of the stream.
        """
        buffer, start = self._buffer, self._start
        if len(buffer) - start < HEADER_BYTES:
            return None
        try:
            end = start + frame_length(buffer, start, self.max_frame_bytes)
        except FrameError as error:
            at = self._received - (len(buffer) - start)
            raise FrameError(error.reason, offset=at, header=error.header) from None
        if end > len(buffer):
            return None
        frame = cut_frame(buffer, start)
        self._start = end
        return frame

    def frames(self) -> Iterator[Frame]:
        """The whole frames received so far."""
        while (frame := self.next_frame()) is not None:
            yield frame
