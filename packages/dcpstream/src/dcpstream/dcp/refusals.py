"""Refusals of DCP requests: the checks that come before everything else, and the answers.

Both ends check the shape of each request against the table of messages. A snapshot marker has several versions and a
check of its own. A misshapen request is answered EINVAL, mostly with a text in JSON, and the connection stays open.

Source: kv_engine daemon/mcbp_validators.cc, checked against recordings of malformed packets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from dcpstream.wire import Datatype, Frame, FrameInfoId, Opcode, Status, StreamFlag, encode_response
from dcpstream.wire.cached_items import MIN_RECORD_BYTES
from dcpstream.wire.keys import decode_frame_infos
from dcpstream.wire.layout import Layout
from dcpstream.wire.messages.dcp import SnapshotMarker, SnapshotMarkerV2, SnapshotMarkerV21, SnapshotMarkerV22
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule
from dcpstream.wire.shape import read_frame_infos, shape_of


class Refusal(NamedTuple):
    """A status and the contents of the answer's JSON body."""

    status: Status
    context: str = ""
    manifest_uid: int | None = None


_MARKERS: Mapping[int, Layout] = MappingProxyType(
    {
        layout.fixed_fields[0][1].fixed or 0: layout
        for layout in (SnapshotMarkerV2.layout, SnapshotMarkerV21.layout, SnapshotMarkerV22.layout)
        if layout.refused is None
    }
)
"""Version of a marker (its one byte of extras) → its layout; version 1 was withdrawn."""


def check_shape(frame: Frame, *, release: Release = DEFAULT_RELEASE, has_collections: bool = False) -> Refusal | None:
    """Refuse a DCP request whose parts do not fit its opcode; None if they do.

    Args:
        frame: the request.
        release: that of the receiver.
        has_collections: keys of rows carry a collection id, so every key, also a name, may be a byte longer; a stream
            request may have a value.
    """
    shape = shape_of(frame.opcode, release=release, has_collections=has_collections)
    if shape is None:
        return Refusal(Status.UNKNOWN_COMMAND)
    if shape.refused is not None:
        return Refusal(shape.refused)
    if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
        refusal = _bad_marker(frame)
        if refusal is not None:
            return refusal
    else:
        context = shape.fault(frame, has_prefix=has_collections)
        if context is not None:
            return Refusal(Status.EINVAL, context)
        if frame.opcode == Opcode.DCP_CACHE_TRANSFER and len(frame.value) < MIN_RECORD_BYTES:
            return Refusal(Status.EINVAL)
    if not frame.framing:
        return None
    _, fault = read_frame_infos(shape, frame.framing)
    return None if fault is None else Refusal(fault.status)


_WITH_CACHE_TRANSFER = int(StreamFlag.CACHE_TRANSFER | StreamFlag.TAKEOVER | StreamFlag.ACTIVE_ONLY)
"""The flags that a transfer of cached documents goes together with."""


def check_stream_flags(flags: int, release: Release = DEFAULT_RELEASE) -> Refusal | None:
    """Refuse the flags of an ADD_STREAM or a STREAM_REQ that a release does not accept; None if all are accepted."""
    if not flags & ~release.stream_flags:
        is_bad = flags & StreamFlag.CACHE_TRANSFER and flags & ~_WITH_CACHE_TRANSFER
        return Refusal(Status.EINVAL, "Request contains invalid flags combination") if is_bad else None
    if flags & StreamFlag.NO_VALUE:
        return Refusal(Status.EINVAL, "DCP_ADD_STREAM_FLAG_NO_VALUE{8} flag is no longer used")
    return Refusal(Status.EINVAL, bad_flags(flags & ~release.stream_flags, release))


def bad_flags(flags: int, release: Release, names: Mapping[int, str] = MappingProxyType({})) -> str:
    """The text that refuses flags; all of these are wrong. `names` has those that a server calls by a name."""
    if not release.has(Rule.NAMES_BAD_FLAGS):
        return "Request contains invalid flags"
    wrong = [1 << number for number in range(32) if flags & 1 << number]
    named = [names.get(flag, f"unknown:{flag:#x}") for flag in wrong]
    text = json.dumps(named if len(named) > 1 else named[0], separators=(",", ":"))
    return f"Request contains invalid flags: {text}"


def _bad_marker(frame: Frame) -> Refusal | None:
    """Refuse a marker whose parts do not fit its version."""
    plain = SnapshotMarker.layout
    if len(frame.extras) == plain.extras_bytes:
        return None if plain.mismatch(frame) is None and not frame.datatype else Refusal(Status.EINVAL)
    if frame.key or frame.datatype or len(frame.extras) != SnapshotMarkerV2.layout.extras_bytes:
        return Refusal(Status.EINVAL)
    version = frame.extras[0]
    layout = _MARKERS.get(version)
    if layout is None:
        return Refusal(Status.EINVAL, f"Unsupported dcp snapshot version:{version}")
    wanted = layout.value_bytes
    return Refusal(Status.EINVAL, f"valuelen not expected:{wanted}") if len(frame.value) != wanted else None


def stream_id_of(frame: Frame) -> int | None:
    """The stream id in the framing extras; None if there is none or it is 0."""
    if not frame.framing:
        return None
    for info_id, data in decode_frame_infos(frame.framing):
        if info_id == FrameInfoId.DCP_STREAM_ID:
            return int.from_bytes(data, "big") or None
    return None


ALREADY_OPEN = Refusal(Status.EINVAL, "The connection is already opened as a DCP connection")
"""Refusal of a second DCP_OPEN."""


def unknown_place(status: Status, manifest_uid: int) -> Refusal:
    """Refuse a scope or collection that the manifest does not have."""
    return Refusal(status, "Unknown scope or collection in operation", manifest_uid)


def _error_body(refusal: Refusal) -> bytes:
    """The JSON that explains a refusal; empty if there is nothing to explain."""
    body: dict[str, object] = {}
    if refusal.context:
        body["error"] = {"context": refusal.context}
    if refusal.manifest_uid is not None:
        body["manifest_uid"] = f"{refusal.manifest_uid:x}"
    return json.dumps(body, separators=(",", ":")).encode() if body else b""


def answer(frame: Frame, status: Status = Status.SUCCESS, *, value: bytes = b"") -> bytes:
    """An answer with the request's opcode and opaque."""
    return encode_response(frame.opcode, status=status, opaque=frame.opaque, value=value)


def without_map() -> bytes:
    """The cluster map of a node that has none."""
    return b""


def refuse(frame: Frame, refusal: Refusal, cluster_map: Callable[[], bytes] = without_map) -> bytes:
    """The answer that refuses a request; NOT_MY_VBUCKET has the cluster map, if there is one."""
    body = cluster_map() if refusal.status is Status.NOT_MY_VBUCKET else _error_body(refusal)
    datatype = Datatype.JSON if body else Datatype.RAW
    return encode_response(frame.opcode, status=refusal.status, opaque=frame.opaque, datatype=datatype, value=body)
