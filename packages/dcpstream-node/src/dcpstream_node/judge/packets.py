"""Frames of the memcached binary protocol, as the judge builds, reads and describes them.

The judge shares no code with the codec (`dcpstream.wire`), so that a mistake there cannot hide here. Nothing in this
module decides what is right.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypedDict, Unpack

HEADER_BYTES = 24

REQUEST = 0x80
RESPONSE = 0x81
FRAMED_REQUEST = 0x08
FRAMED_RESPONSE = 0x18

MAX_SEQNO = 0xFFFFFFFFFFFFFFFF


class Op(IntEnum):
    """The opcodes that scenarios name; others are numbers."""

    GET = 0x00
    SET = 0x01
    DELETE = 0x04
    QUIT = 0x07
    NOOP = 0x0A
    VERSION = 0x0B
    STAT = 0x10
    HELLO = 0x1F
    SASL_LIST_MECHS = 0x20
    SASL_AUTH = 0x21
    SET_VBUCKET = 0x3D
    GET_VBUCKET = 0x3E
    DEL_VBUCKET = 0x3F
    GET_ALL_VB_SEQNOS = 0x48
    DCP_OPEN = 0x50
    DCP_ADD_STREAM = 0x51
    DCP_CLOSE_STREAM = 0x52
    DCP_STREAM_REQ = 0x53
    DCP_GET_FAILOVER_LOG = 0x54
    DCP_STREAM_END = 0x55
    DCP_SNAPSHOT_MARKER = 0x56
    DCP_MUTATION = 0x57
    DCP_DELETION = 0x58
    DCP_EXPIRATION = 0x59
    DCP_FLUSH = 0x5A
    DCP_SET_VBUCKET_STATE = 0x5B
    DCP_NOOP = 0x5C
    DCP_BUFFER_ACK = 0x5D
    DCP_CONTROL = 0x5E
    DCP_SYSTEM_EVENT = 0x5F
    DCP_PREPARE = 0x60
    DCP_SEQNO_ACK = 0x61
    DCP_COMMIT = 0x62
    DCP_ABORT = 0x63
    DCP_SEQNO_ADVANCED = 0x64
    DCP_OSO_SNAPSHOT = 0x65
    SET_PARAM = 0x82
    GET_REPLICA = 0x83
    CREATE_BUCKET = 0x85
    DELETE_BUCKET = 0x86
    LIST_BUCKETS = 0x87
    SELECT_BUCKET = 0x89
    GET_FAILOVER_LOG = 0x96
    GET_META = 0xA0
    SET_WITH_META = 0xA2
    DEL_WITH_META = 0xA8
    CREATE_CHECKPOINT = 0xAA
    ENABLE_TRAFFIC = 0xAD
    COMPACT_DB = 0xB3
    COLLECTIONS_SET_MANIFEST = 0xB9
    COLLECTIONS_GET_MANIFEST = 0xBA
    SUBDOC_MULTI_MUTATION = 0xD1
    GET_ERROR_MAP = 0xFE


class Status(IntEnum):
    """The statuses that have names here; others are numbers."""

    SUCCESS = 0x00
    KEY_ENOENT = 0x01
    KEY_EEXISTS = 0x02
    E2BIG = 0x03
    EINVAL = 0x04
    NOT_STORED = 0x05
    NOT_MY_VBUCKET = 0x07
    NO_BUCKET = 0x08
    LOCKED = 0x09
    STREAM_NOT_FOUND = 0x0A
    OPAQUE_NO_MATCH = 0x0B
    CONFIG_ONLY = 0x0D
    NOT_LOCKED = 0x0E
    CAS_VALUE_INVALID = 0x0F
    AUTH_STALE = 0x1F
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    ERANGE = 0x22
    ROLLBACK = 0x23
    EACCESS = 0x24
    NOT_INITIALIZED = 0x25
    BUCKET_PAUSED = 0x50
    UNKNOWN_COMMAND = 0x81
    ENOMEM = 0x82
    NOT_SUPPORTED = 0x83
    EINTERNAL = 0x84
    EBUSY = 0x85
    ETMPFAIL = 0x86
    XATTR_EINVAL = 0x87
    UNKNOWN_COLLECTION = 0x88
    UNKNOWN_SCOPE = 0x8C
    DCP_STREAMID_INVALID = 0x8D


# Extras of requests by opcode and length: struct format and field names.
EXTRAS_LAYOUTS: dict[tuple[int, int], tuple[str, str]] = {
    (Op.DCP_MUTATION, 31): (">QQIIIHB", "by_seqno rev flags expiry lock nmeta nru"),
    (Op.DCP_PREPARE, 31): (">QQIIIBBB", "by_seqno rev flags expiry lock nru deleted level"),
    (Op.DCP_DELETION, 18): (">QQH", "by_seqno rev nmeta"),
    (Op.DCP_DELETION, 21): (">QQIB", "by_seqno rev delete_time unused"),
    (Op.DCP_EXPIRATION, 20): (">QQI", "by_seqno rev delete_time"),
    (Op.DCP_SNAPSHOT_MARKER, 20): (">QQI", "start end flags"),
    (Op.DCP_STREAM_END, 4): (">I", "end_flags"),
    (Op.DCP_STREAM_REQ, 48): (">IIQQQQQ", "flags reserved start end vbuuid snap_start snap_end"),
    (Op.DCP_BUFFER_ACK, 4): (">I", "bytes"),
    (Op.DCP_SET_VBUCKET_STATE, 1): (">B", "state"),
    (Op.DCP_SYSTEM_EVENT, 13): (">QIB", "by_seqno event version"),
    (Op.DCP_COMMIT, 16): (">QQ", "prepared_seqno by_seqno"),
    (Op.DCP_ABORT, 16): (">QQ", "prepared_seqno by_seqno"),
    (Op.DCP_SEQNO_ACK, 8): (">Q", "by_seqno"),
    (Op.DCP_SEQNO_ADVANCED, 8): (">Q", "by_seqno"),
    (Op.DCP_OSO_SNAPSHOT, 4): (">I", "flags"),
    (Op.DCP_ADD_STREAM, 4): (">I", "flags"),
    (Op.DCP_OPEN, 8): (">II", "seqno flags"),
}
# Value of a marker with one byte of extras: 36 bytes, or 44 with a timestamp; 52 since 8.0.
MARKER_V2_LAYOUTS = {
    36: (">QQIQQ", "start end flags max_visible high_completed"),
    44: (">QQIQQQ", "start end flags max_visible high_completed purge_seqno"),
    52: (">QQIQQQQ", "start end flags max_visible high_completed purge_seqno high_prepared"),
}


def op_name(op: int) -> str:
    """The name of an opcode, or its number."""
    return Op(op).name if op in Op._value2member_map_ else hex(op)


def status_name(status: int) -> str:
    """The name of a status, or its number."""
    known = status in Status._value2member_map_
    return Status(status).name if known else hex(status)


@dataclass
class Packet:
    """One frame, taken apart. `status` and `vbucket` share their two bytes."""

    raw: bytes
    magic: int = 0
    op: int = 0
    datatype: int = 0
    vbucket: int = 0
    opaque: int = 0
    cas: int = 0
    framing: bytes = b""
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""

    @classmethod
    def parse(cls, raw: bytes) -> Packet:
        """Take a frame apart; lengths that lie give short fields."""
        magic, op = raw[0], raw[1]
        framing_length, key_length = 0, struct.unpack(">H", raw[2:4])[0]
        if magic in (FRAMED_REQUEST, FRAMED_RESPONSE):
            framing_length, key_length = raw[2], raw[3]
        extras_length, datatype = raw[4], raw[5]
        vbucket = struct.unpack(">H", raw[6:8])[0]
        _, opaque, cas = struct.unpack(">IIQ", raw[8:24])
        body = raw[HEADER_BYTES:]
        framing, body = body[:framing_length], body[framing_length:]
        extras, body = body[:extras_length], body[extras_length:]
        key, value = body[:key_length], body[key_length:]
        return cls(raw, magic, op, datatype, vbucket, opaque, cas, framing, extras, key, value)

    @property
    def status(self) -> int:
        """The status of a response."""
        return self.vbucket

    @property
    def is_response(self) -> bool:
        """Whether the magic is that of a response."""
        return self.magic in (RESPONSE, FRAMED_RESPONSE)

    def extras_fields(self) -> dict[str, Any]:
        """Named integers of the extras (or of a version 2 marker's value)."""
        if self.is_response:
            return {}
        layout = EXTRAS_LAYOUTS.get((self.op, len(self.extras)))
        if layout:
            return unpack_fields(layout, self.extras)
        if self.op == Op.DCP_SNAPSHOT_MARKER and len(self.extras) == 1:
            layout = MARKER_V2_LAYOUTS.get(len(self.value))
            if layout:
                version = {"marker_version": 2 + self.extras[0] / 10}
                return version | unpack_fields(layout, self.value)
        return {}

    def describe(self) -> str:
        """One readable line."""
        name = op_name(self.op)
        if self.is_response:
            words = [f"{name} response {status_name(self.status)}"]
        else:
            words = [f"{name} request vb={self.vbucket}"]
        words.append(f"opaque=0x{self.opaque:x}")
        if self.cas:
            words.append(f"cas=0x{self.cas:x}")
        if self.datatype:
            words.append(f"datatype={self.datatype}")
        if self.framing:
            words.append(f"framing={self.framing.hex()}")
        words += self.describe_body()
        return " ".join(words)

    def describe_body(self) -> list[str]:
        """Readable words for extras, key and value."""
        words = [f"{name}={value}" for name, value in self.extras_fields().items()]
        if self.extras and not words:
            words.append(f"extras={self.extras.hex()}")
        if self.key:
            words.append(f"key={self.key!r}")
        if self.value:
            shown = repr(self.value[:120])
            words.append(f"value[{len(self.value)}]={shown}")
        return words


def unpack_fields(layout: tuple[str, str], data: bytes) -> dict[str, Any]:
    """Named integers from bytes."""
    layout_format, names = layout
    return dict(zip(names.split(), struct.unpack(layout_format, data), strict=True))


def as_bytes(value: str | bytes) -> bytes:
    """Text becomes UTF-8, bytes stay."""
    return value.encode() if isinstance(value, str) else value


class OddFields(TypedDict, total=False):
    """Fields that few requests have; with a wrong length a frame lies on purpose."""

    magic: int
    fr: bytes
    keylen: int
    extlen: int
    bodylen: int
    status: int


def packet(
    op: int,
    key: str | bytes = b"",
    ext: bytes = b"",
    val: str | bytes = b"",
    vb: int = 0,
    opaque: int = 0,
    cas: int = 0,
    dt: int = 0,
    **odd: Unpack[OddFields],
) -> bytes:
    """Build a frame."""
    key, val, framing = as_bytes(key), as_bytes(val), odd.get("fr", b"")
    body = framing + ext + key + val
    key_length = odd.get("keylen", len(key))
    magic = odd.get("magic", REQUEST)
    if framing:
        magic = FRAMED_REQUEST if magic == REQUEST else FRAMED_RESPONSE
        head = struct.pack(">BBBB", magic, op, len(framing), key_length)
    else:
        head = struct.pack(">BBH", magic, op, key_length)
    extras_length, body_length = odd.get("extlen", len(ext)), odd.get("bodylen", len(body))
    tail = struct.pack(">BBHIIQ", extras_length, dt, odd.get("status", vb), body_length, opaque, cas)
    return head + tail + body


def response(op: int, **fields: Any) -> bytes:
    """Build a response frame."""
    return packet(op, magic=RESPONSE, **fields)


def leb128(number: int) -> bytes:
    """Unsigned LEB128, as in front of keys when collections are on."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def stream_request_extras(
    flags: int = 0,
    start: int = 0,
    end: int = MAX_SEQNO,
    uuid: int = 0,
    ss: int | None = None,
    se: int | None = None,
    res: int = 0,
) -> bytes:
    """Extras of STREAM_REQ; the snapshot is [start, start] unless given."""
    snap_start = start if ss is None else ss
    snap_end = start if se is None else se
    return struct.pack(">IIQQQQQ", flags, res, start, end, uuid, snap_start, snap_end)
