"""Shapes of DCP packets as a server checks them, and its answers to what is wrong with them.

The check comes before everything else, in this order: extras, key, value, datatype. What it refuses is answered EINVAL,
mostly with a text in JSON, and the connection stays.

Source: kv_engine daemon/mcbp_validators.cc, checked against recordings of malformed packets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from dcpstream.errors import FieldError
from dcpstream.wire import Datatype, Frame, FrameInfoId, Opcode, Status, StreamFlag, encode_response
from dcpstream.wire.keys import decode_frame_infos

__all__ = [
    "DCP_OPCODES",
    "MAX_KEY_BYTES",
    "Refusal",
    "answer",
    "check_shape",
    "check_stream_flags",
    "error_body",
    "refuse",
    "stream_id_of",
]

MAX_KEY_BYTES = 250
"""Longest key, and longest connection name."""

MAX_PREFIXED_KEY_BYTES = 251
"""Longest key with its collection id: 250 bytes and one, or 246 and up to five."""

DCP_OPCODES = range(Opcode.DCP_OPEN, Opcode.DCP_CACHE_TRANSFER_END + 1)
"""0x50 to 0x67: what belongs to DCP."""

_KNOWN_INFO_IDS = frozenset(int(item) for item in FrameInfoId) - {FrameInfoId.IMPERSONATE_TOKEN}
_INFO_BYTES: Mapping[int, int] = MappingProxyType({FrameInfoId.BARRIER: 0, FrameInfoId.DCP_STREAM_ID: 2})
_ALL_DATATYPES = int(Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR)
_WITH_DOCUMENT_KEY = frozenset(
    (
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
    )
)


_STREAM_FLAGS = int(
    StreamFlag.TAKEOVER
    | StreamFlag.DISK_ONLY
    | StreamFlag.TO_LATEST
    | StreamFlag.ACTIVE_ONLY
    | StreamFlag.STRICT_VBUUID
    | StreamFlag.IGNORE_PURGED_TOMBSTONES
)
"""What a recorded 7.2 server takes: from-latest (0x40) and the transfer of cached values (0x100) came later."""


class Refusal(NamedTuple):
    """A status with the text that goes with it, and what else belongs into the JSON body."""

    status: Status
    context: str = ""
    manifest_uid: int | None = None


class _Shape(NamedTuple):
    """What a request may consist of."""

    extras: tuple[int, ...] = (0,)
    key: bool | None = False
    """True: must be there, False: must not, None: may."""
    value: bool | None = False
    any_datatype: bool = False


_SHAPES: Mapping[int, _Shape] = MappingProxyType(
    {
        Opcode.DCP_OPEN: _Shape(extras=(8,), key=True, value=None, any_datatype=True),
        Opcode.DCP_ADD_STREAM: _Shape(extras=(4,)),
        Opcode.DCP_CLOSE_STREAM: _Shape(),
        Opcode.DCP_STREAM_REQ: _Shape(extras=(48,)),
        Opcode.DCP_GET_FAILOVER_LOG: _Shape(),
        Opcode.DCP_STREAM_END: _Shape(extras=(4,)),
        Opcode.DCP_MUTATION: _Shape(extras=(31,), key=True, value=None, any_datatype=True),
        Opcode.DCP_DELETION: _Shape(extras=(18, 21), key=True, value=None, any_datatype=True),
        Opcode.DCP_EXPIRATION: _Shape(extras=(20,), key=True, value=None, any_datatype=True),
        Opcode.DCP_SET_VBUCKET_STATE: _Shape(extras=(1,)),
        Opcode.DCP_NOOP: _Shape(),
        Opcode.DCP_BUFFER_ACK: _Shape(extras=(4,)),
        Opcode.DCP_CONTROL: _Shape(key=True, value=True),
        Opcode.DCP_SYSTEM_EVENT: _Shape(extras=(13,), key=None, value=None),
        Opcode.DCP_PREPARE: _Shape(extras=(31,), key=True, value=None, any_datatype=True),
        Opcode.DCP_SEQNO_ACKNOWLEDGED: _Shape(extras=(8,)),
        Opcode.DCP_COMMIT: _Shape(extras=(16,), key=True),
        Opcode.DCP_ABORT: _Shape(extras=(16,), key=True),
    }
)

_FILTERED_STREAM_REQUEST = _Shape(extras=(48,), value=None)

_MARKER_EXTRAS_BYTES = 20
_MARKER_VALUE_BYTES: Mapping[int, int] = MappingProxyType({0: 36, 2: 52})
"""Bytes of the value by a marker's version, which stands in its one byte of extras; version 1 was withdrawn."""


def check_shape(frame: Frame, *, has_collections: bool = False) -> Refusal | None:
    """What is wrong with a DCP request's parts, or None.

    Args:
        has_collections: keys of rows carry a collection id, so their length is checked with it, and a stream request
            may have a value.
    """
    if frame.opcode == Opcode.DCP_FLUSH:
        return Refusal(Status.NOT_SUPPORTED)
    if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
        return _bad_marker(frame)
    shape = _SHAPES.get(frame.opcode)
    if shape is None:
        return Refusal(Status.UNKNOWN_COMMAND)
    if frame.opcode == Opcode.DCP_STREAM_REQ and has_collections:
        shape = _FILTERED_STREAM_REQUEST
    has_prefix = has_collections and frame.opcode in _WITH_DOCUMENT_KEY
    context = _misfit(frame, shape, MAX_PREFIXED_KEY_BYTES if has_prefix else MAX_KEY_BYTES, has_collections)
    return Refusal(Status.EINVAL, context) if context else _bad_framing(frame)


def check_stream_flags(flags: int) -> Refusal | None:
    """What is wrong with the flags of an ADD_STREAM or a STREAM_REQ, or None."""
    if not flags & ~_STREAM_FLAGS:
        return None
    if flags & StreamFlag.NO_VALUE:
        return Refusal(Status.EINVAL, "Stream flag 0x8 (no value) is no longer used")
    return Refusal(Status.EINVAL, "Request contains invalid flags")


def _bad_marker(frame: Frame) -> Refusal | None:
    if frame.key or frame.datatype or len(frame.extras) not in (1, _MARKER_EXTRAS_BYTES):
        return Refusal(Status.EINVAL)
    if len(frame.extras) == _MARKER_EXTRAS_BYTES:
        return Refusal(Status.EINVAL) if frame.value else _bad_framing(frame)
    version = frame.extras[0]
    wanted = _MARKER_VALUE_BYTES.get(version)
    if wanted is None:
        return Refusal(Status.EINVAL, f"Unsupported dcp snapshot version:{version}")
    if len(frame.value) != wanted:
        return Refusal(Status.EINVAL, f"valuelen not expected:{wanted}")
    return _bad_framing(frame)


def _misfit(frame: Frame, shape: _Shape, key_bytes_max: int, has_collections: bool) -> str:
    if len(frame.extras) not in shape.extras:
        wanted = shape.extras[-1 if has_collections else 0]  # deletions are longer where there are collections
        return f"Request must include extras of length {wanted}" if wanted else "Request must not include extras"
    for name, part, rule in (("key", frame.key, shape.key), ("value", frame.value, shape.value)):
        if rule is True and not part:
            return f"Request must include {name}"
        if rule is False and part:
            return f"Request must not include {name}"
    if len(frame.key) > key_bytes_max:
        return f"Key length exceeds {key_bytes_max}"
    if frame.datatype and (not shape.any_datatype or frame.datatype & ~_ALL_DATATYPES):
        return "Request datatype invalid"
    return ""


def _bad_framing(frame: Frame) -> Refusal | None:
    if not frame.framing:
        return None
    try:
        infos = list(decode_frame_infos(frame.framing))
    except FieldError:
        return Refusal(Status.EINVAL)
    for info_id, data in infos:
        if info_id not in _KNOWN_INFO_IDS:
            return Refusal(Status.UNKNOWN_FRAME_INFO)
        if len(data) != _INFO_BYTES.get(info_id, len(data)) or info_id == FrameInfoId.DURABILITY:
            return Refusal(Status.EINVAL)
    return None


def stream_id_of(frame: Frame) -> int | None:
    """The stream id in the framing extras; None if there is none, or 0, which counts as none."""
    if not frame.framing:
        return None
    for info_id, data in decode_frame_infos(frame.framing):
        if info_id == FrameInfoId.DCP_STREAM_ID:
            return int.from_bytes(data, "big") or None
    return None


def error_body(refusal: Refusal) -> bytes:
    """The JSON that explains a refusal, or nothing."""
    body: dict[str, object] = {}
    if refusal.context:
        body["error"] = {"context": refusal.context}
    if refusal.manifest_uid is not None:
        body["manifest_uid"] = f"{refusal.manifest_uid:x}"
    return json.dumps(body, separators=(",", ":")).encode() if body else b""


def answer(frame: Frame, status: Status = Status.SUCCESS, *, value: bytes = b"") -> bytes:
    """An answer with the request's opcode and opaque."""
    return encode_response(frame.opcode, status=status, opaque=frame.opaque, value=value)


def refuse(frame: Frame, refusal: Refusal) -> bytes:
    """The answer that refuses a request."""
    body = error_body(refusal)
    datatype = Datatype.JSON if body else Datatype.RAW
    return encode_response(frame.opcode, status=refusal.status, opaque=frame.opaque, datatype=datatype, value=body)
