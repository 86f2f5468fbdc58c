"""The shape of a request, as a node checks it before it looks at anything else.

One opcode can have several layouts; its `Shape` is their union. `Shape.fault` names the first thing that is wrong, with
the texts of the real server and in its order: lengths, CAS and datatype. `read_frame_infos` does the same for the
framing extras. Both ends of a DCP connection and the node's command table check requests here.

Source: kv_engine daemon/mcbp_validators.cc (verify_header, frame infos), utilities/durability_spec.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from dcpstream.errors import FieldError
from dcpstream.wire.codes import Datatype, Feature, FrameInfoId
from dcpstream.wire.frames import Frame
from dcpstream.wire.keys import MAX_KEY_BYTES, MAX_PREFIXED_KEY_BYTES, decode_frame_infos
from dcpstream.wire.layout import Kind, Layout, Part, Phase, Side
from dcpstream.wire.messages import LAYOUTS
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule
from dcpstream.wire.status import Status

ALL_DATATYPES = int(Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR)

MAX_DURABILITY_LEVEL = 3
"""1 majority, 2 majority and persisted on the active copy, 3 persisted by a majority."""


class Fault(NamedTuple):
    """The status that refuses a request, and the reason for the peer, if there is one."""

    status: Status
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts that an opcode's request may have.

    Attributes:
        extras: allowed lengths of the extras, ascending; empty: any.
        key: whether a key may be there.
        value: whether a value may be there. A value with declared fields is optional here: its length is for the
            command's own check, which has its own text.
        cas: whether the header's CAS may, or must, be set.
        datatypes: bits of the datatype that may be set.
        document_key: the key is a document's, with a collection prefix where negotiated.
        durable, keeps_ttl: whether the framing extras may ask for durability, or to keep the document's expiration.
        sent_by, phase, privilege, anywhere: see `Layout`.
        refused: the status that refuses the request whatever its shape, or None.
        has_trace_context: whether the framing extras may hold one.
    """

    extras: tuple[int, ...]
    key: Part
    value: Part
    cas: Part
    datatypes: int
    document_key: bool
    durable: bool
    keeps_ttl: bool
    sent_by: Side
    phase: Phase
    privilege: str | None
    anywhere: bool
    refused: Status | None
    has_trace_context: bool

    def fault(  # noqa: PLR0911 - one line per rule
        self, frame: Frame, datatypes: int = ALL_DATATYPES, *, has_prefix: bool = False, checks_extras: bool = True
    ) -> str | None:
        """The fault in a request's parts, in the server's words; None if there is none.

        Args:
            frame: the request.
            datatypes: the bits that the connection negotiated.
            has_prefix: keys may be as long as keys with a collection prefix.
            checks_extras: whether to look at the length of the extras.
        """
        if frame.datatype & ~ALL_DATATYPES:
            return "Request datatype invalid"
        if checks_extras and self.extras and len(frame.extras) not in self.extras:
            if self.extras == (0,):
                return "Request must not include extras"
            if len(self.extras) == 1 or self.phase is Phase.DCP:  # of several versions the first is named
                return f"Request must include extras of length {self.extras[0]}"
            return f"Request extras must be of length {' or '.join(map(str, self.extras))}"
        if frame.key and self.key is Part.NONE:
            return "Request must not include key"
        if not frame.key and self.key is Part.REQUIRED:
            return "Request must include key"
        longest = MAX_PREFIXED_KEY_BYTES if has_prefix else MAX_KEY_BYTES
        if len(frame.key) > longest:
            return f"Key length exceeds {longest}"
        if frame.value and self.value is Part.NONE:
            return "Request must not include value"
        if not frame.value and self.value is Part.REQUIRED:
            return "Request must include value"
        if frame.cas and self.cas is Part.NONE:
            return "Request CAS must not be set"
        if not frame.cas and self.cas is Part.REQUIRED:
            return "Request CAS must be set"
        if frame.datatype & ~self.datatypes:
            return "Request datatype invalid"
        if frame.datatype & ~datatypes:
            return "Datatype not enabled for the connection"
        return None


@cache
def shape_of(opcode: int, *, release: Release = DEFAULT_RELEASE, has_collections: bool = False) -> Shape | None:
    """The shape of an opcode's requests; None if no message of the release has the opcode.

    Args:
        opcode: the request's opcode.
        release: that of the receiver.
        has_collections: the connection negotiated collections.
    """
    layouts = [layout for layout in LAYOUTS if layout.opcode == opcode and layout.kind is Kind.REQUEST]
    came = [layout for layout in layouts if release.knows(layout.since)]
    if not came:
        return None
    present = [layout for layout in came if release.knows(layout.since, layout.until)]
    layouts = present or came
    if has_collections:
        layouts = [layout for layout in layouts if layout.without is not Feature.COLLECTIONS]
    refused = next((layout.refused for layout in layouts if layout.refused is not None), None)
    if not all(layout.refused is not None for layout in layouts):
        refused = None
        layouts = [layout for layout in layouts if layout.refused is None]
    is_any = any(layout.any_extras for layout in layouts)
    values = {
        Part.NONE
        if layout.rest_needs is Feature.COLLECTIONS and not has_collections
        else Part.OPTIONAL
        if layout.value_fields
        else layout.rest
        for layout in layouts
    }
    datatypes = 0
    for layout in layouts:
        datatypes |= int(layout.datatypes)  # each request is checked: arithmetic of an enum would cost more
    return Shape(
        () if is_any else tuple(sorted({length for layout in layouts for length in _lengths_in(layout, release)})),
        _union({layout.key for layout in layouts}),
        _union(values),
        _union({layout.cas for layout in layouts}),
        datatypes,
        layouts[0].document_key,
        any(layout.durable for layout in layouts),
        any(layout.keeps_ttl for layout in layouts),
        layouts[0].sent_by,
        layouts[0].phase,
        layouts[0].privilege,
        layouts[0].anywhere,
        refused if present else Status.NOT_SUPPORTED,
        not release.has(Rule.NO_TRACE_CONTEXT),
    )


def _lengths_in(layout: Layout, release: Release) -> list[int]:
    """The lengths of the extras with no field that came after a release."""
    fields = layout.extras_fields
    return [
        variant.extras_bytes
        for variant in layout.variants
        if all(release.knows(fields[at].since) for at in variant.present)
    ]


def _union(parts: set[Part]) -> Part:
    return parts.pop() if len(parts) == 1 else Part.OPTIONAL


def read_frame_infos(
    shape: Shape, framing: bytes, privileges: Collection[str] | None = None
) -> tuple[dict[int, bytes], Fault | None]:
    """(id → data, fault) of a request's framing extras; what comes before the first fault is in the dictionary.

    Args:
        shape: of the request.
        framing: the framing extras.
        privileges: names that a request may add to its user's; None: any.
    """
    found: dict[int, bytes] = {}
    try:
        for info_id, data in decode_frame_infos(framing):
            check = _INFO_CHECKS.get(info_id)
            if check is None:
                return found, Fault(Status.UNKNOWN_FRAME_INFO)
            wrong = check(shape, data)
            if wrong is None and info_id == FrameInfoId.IMPERSONATE_PRIVILEGE and privileges is not None:
                wrong = _unknown_privilege(data, privileges)
            if wrong is not None:
                return found, wrong
            found[info_id] = data
    except FieldError:
        return found, Fault(Status.EINVAL, "Invalid encoding in FrameExtras")
    return found, None


def _barrier_fault(_shape: Shape, data: bytes) -> Fault | None:
    return Fault(Status.EINVAL, "Barrier should not contain value") if data else None


def _durability_fault(shape: Shape, data: bytes) -> Fault | None:
    if len(data) not in (1, 3):
        return Fault(Status.EINVAL, f"Invalid sized buffer provided: {len(data)}")
    if not 1 <= data[0] <= MAX_DURABILITY_LEVEL or data[1:] in (b"\0\0", b"\xff\xff"):
        context = "Content represents an invalid requirement specification"
        return Fault(Status.DURABILITY_INVALID_LEVEL, context)
    if not shape.durable:
        return Fault(Status.EINVAL, "The requested command does not support durability requirements")
    return None


def _stream_id_fault(_shape: Shape, data: bytes) -> Fault | None:
    return None if len(data) == 2 else Fault(Status.EINVAL, f"DcpStreamId invalid size:{len(data)}")


def _tracing_fault(shape: Shape, data: bytes) -> Fault | None:
    if not shape.has_trace_context:
        return Fault(Status.UNKNOWN_FRAME_INFO)
    return None if data else Fault(Status.EINVAL, "OpenTracingContext cannot be empty")


def _user_fault(_shape: Shape, data: bytes) -> Fault | None:
    if not data:
        return Fault(Status.EINVAL, "Impersonated user must be set")
    return Fault(Status.EINVAL, "Username must be at least one character") if data == b"^" else None


def _ttl_fault(shape: Shape, data: bytes) -> Fault | None:
    if data:
        return Fault(Status.EINVAL, "PreserveTtl should not contain value")
    return None if shape.keeps_ttl else Fault(Status.NOT_SUPPORTED, "This command does not support PreserveTtl")


def _privilege_fault(_shape: Shape, data: bytes) -> Fault | None:
    return None if data else Fault(Status.EINVAL, "Privilege name must be set")


def _unknown_privilege(data: bytes, privileges: Collection[str]) -> Fault | None:
    is_known = data.decode(errors="replace") in privileges
    return None if is_known else Fault(Status.EINVAL, "Failed to look up the privilege")


_INFO_CHECKS: dict[int, Callable[[Shape, bytes], Fault | None]] = {
    FrameInfoId.BARRIER: _barrier_fault,
    FrameInfoId.DURABILITY: _durability_fault,
    FrameInfoId.DCP_STREAM_ID: _stream_id_fault,
    FrameInfoId.TRACING_CONTEXT: _tracing_fault,
    FrameInfoId.IMPERSONATE_USER: _user_fault,
    FrameInfoId.PRESERVE_TTL: _ttl_fault,
    FrameInfoId.IMPERSONATE_PRIVILEGE: _privilege_fault,
}
"""The known elements of framing extras. A node ignores the barrier, because it answers requests in order anyway, and
the trace context, because it collects no traces."""
