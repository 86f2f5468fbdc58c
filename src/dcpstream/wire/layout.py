"""The layout table: which message has which fields, where, how wide, since which version, by which source.

Theory of operation: a message is a frozen dataclass whose fields are declared with `u8` … `u64`; the `message`
decorator reads the declarations, works out offsets and enters a `Layout` into `LAYOUTS`. Encoder, decoder, numpy
dtypes, the Hypothesis strategies of the test kit and the reference page are all derived from that one table.

A frame whose parts do not fit any layout of its opcode is not lost: it decodes to `RawRequest` or `RawResponse`, which
carry all its bytes. `decode_message(frame, strict=True)` refuses it instead, with the reason.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, TypeVar, dataclass_transform

from dcpstream.errors import FieldError
from dcpstream.wire.codes import FrameInfoId, Magic, Opcode, code_name
from dcpstream.wire.frames import HEADER_BYTES, Frame
from dcpstream.wire.keys import decode_frame_infos

__all__ = [
    "LAYOUTS",
    "Field",
    "Kind",
    "Layout",
    "Message",
    "Part",
    "RawRequest",
    "RawResponse",
    "Request",
    "Response",
    "decode_message",
    "message",
    "u8",
    "u16",
    "u32",
    "u64",
]

_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Kind(Enum):
    """Which way round a message is."""

    REQUEST = "request"
    RESPONSE = "response"


class Part(Enum):
    """Whether a part of the body may be there."""

    NONE = "must be empty"
    OPTIONAL = "may be empty"
    REQUIRED = "must not be empty"

    def accepts(self, part: bytes) -> bool:
        """Whether these bytes are allowed."""
        return self is Part.OPTIONAL or bool(part) == (self is Part.REQUIRED)


_MAGICS = {
    Kind.REQUEST: (Magic.REQUEST, Magic.FLEX_REQUEST),
    Kind.RESPONSE: (Magic.RESPONSE, Magic.FLEX_RESPONSE),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One integer on the wire.

    Attributes:
        name: as in the specification, in snake_case.
        width: bytes; big-endian, unsigned.
        offset: from the start of its part, in bytes.
        place: "extras" or "value".
        fixed: the only value that this layout has here (a version byte), or None.
        since: server version that brought it, or "".
    """

    name: str
    width: int
    offset: int
    place: str
    fixed: int | None = None
    since: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything about one shape of one message.

    Attributes:
        name: the message class's name.
        opcode, kind: what the frame says.
        fields: extras fields first, then those at the start of the value; each in order of offset.
        extras_bytes, value_bytes: how many bytes they take.
        key, rest: whether a key, and bytes after the value's fields, may be there.
        flow_controlled: whether it counts against the consumer's buffer.
        statuses: for a response, the statuses this layout belongs to; empty = any.
        since, source: server version, and where it is documented.
    """

    name: str
    opcode: int
    kind: Kind
    fields: tuple[Field, ...]
    extras_bytes: int
    value_bytes: int
    key: Part
    rest: Part
    flow_controlled: bool
    statuses: tuple[int, ...]
    since: str
    source: str

    @property
    def extras_struct(self) -> struct.Struct:
        """How the extras are packed."""
        return struct.Struct(">" + "".join(_FORMATS[item.width] for item in self.extras_fields))

    @property
    def extras_fields(self) -> tuple[Field, ...]:
        """The fields in the extras."""
        return tuple(item for item in self.fields if item.place == "extras")

    @property
    def value_fields(self) -> tuple[Field, ...]:
        """The fields at the start of the value."""
        return tuple(item for item in self.fields if item.place == "value")

    def numpy_dtype(self) -> list[tuple[str, str]]:
        """A numpy dtype description of header and extras: (name, big-endian type) pairs, 24 + extras_bytes in all."""
        header = [
            ("magic", ">u1"),
            ("opcode", ">u1"),
            ("key_length", ">u2"),
            ("extras_length", ">u1"),
            ("datatype", ">u1"),
            ("vbid", ">u2"),
            ("body_length", ">u4"),
            ("opaque", ">u4"),
            ("cas", ">u8"),
        ]
        return header + [(item.name, f">u{item.width}") for item in self.extras_fields]

    def mismatch(self, frame: Frame) -> str | None:
        """Why the frame does not have this layout, or None if it does."""
        if len(frame.extras) != self.extras_bytes:
            return f"extras of {len(frame.extras)} bytes, not {self.extras_bytes}"
        if not self.key.accepts(frame.key):
            return f"key of {len(frame.key)} bytes: it {self.key.value}"
        if len(frame.value) < self.value_bytes:
            return f"value of {len(frame.value)} bytes, less than {self.value_bytes}"
        if not self.rest.accepts(frame.value[self.value_bytes :]):
            return (
                f"value of {len(frame.value)} bytes: after its {self.value_bytes} bytes of fields it {self.rest.value}"
            )
        if self.statuses and frame.status not in self.statuses:
            return f"status 0x{frame.status:02x}"
        for item in self.fields:
            part = frame.extras if item.place == "extras" else frame.value
            actual = int.from_bytes(part[item.offset : item.offset + item.width], "big")
            if item.fixed is not None and actual != item.fixed:
                return f"{item.name} is {actual}, not {item.fixed}"
        return None


LAYOUTS: list[Layout] = []
"""Every layout that is known, in order of declaration."""
_CLASSES: dict[tuple[int, Kind], list[type[Message]]] = {}
_M = TypeVar("_M", bound="Message")


def _integer(width: int, default: int | None, *, value: bool, fixed: int | None, since: str) -> Any:
    metadata = {"width": width, "place": "value" if value else "extras", "fixed": fixed, "since": since}
    if fixed is not None:
        default = fixed
    if default is None:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def u8(*, default: int | None = None, value: bool = False, fixed: int | None = None, since: str = "") -> Any:
    """An unsigned byte in the extras (or, with `value`, in the value)."""
    return _integer(1, default, value=value, fixed=fixed, since=since)


def u16(*, default: int | None = None, value: bool = False, fixed: int | None = None, since: str = "") -> Any:
    """Two bytes."""
    return _integer(2, default, value=value, fixed=fixed, since=since)


def u32(*, default: int | None = None, value: bool = False, fixed: int | None = None, since: str = "") -> Any:
    """Four bytes."""
    return _integer(4, default, value=value, fixed=fixed, since=since)


def u64(*, default: int | None = None, value: bool = False, fixed: int | None = None, since: str = "") -> Any:
    """Eight bytes."""
    return _integer(8, default, value=value, fixed=fixed, since=since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What every message has.

    Attributes:
        opaque: u32, chosen by the requester and echoed.
        cas: u64.
        datatype: u8, what the value bytes are; see `Datatype`.
        framing: the framing extras as bytes (flexible framing).
        key, value: the rest of the body; `value` is what follows the fields that a layout has in the value.
    """

    layout: ClassVar[Layout]

    opaque: int = 0
    cas: int = 0
    datatype: int = 0
    framing: bytes = b""
    key: bytes = b""
    value: bytes = b""
    magic: int = 0

    def _vbid(self) -> int:
        raise NotImplementedError

    def to_frame(self) -> Frame:
        """The message as a frame.

        Raises:
            FieldError: a field does not fit its width.
        """
        layout = self.layout
        parts = {"extras": b"", "value": b""}
        for item in layout.fields:
            number = getattr(self, item.name)
            try:
                parts[item.place] += number.to_bytes(item.width, "big")
            except (OverflowError, AttributeError):
                raise FieldError(f"{layout.name}.{item.name}={number!r} is not a u{8 * item.width}") from None
        return self._frame(layout.opcode, layout.kind, parts["extras"], parts["value"] + self.value)

    def _frame(self, opcode: int, kind: Kind, extras: bytes, value: bytes) -> Frame:
        classic, flexible = _MAGICS[kind]
        return Frame(
            self.magic or (flexible if self.framing else classic),
            opcode,
            self.datatype,
            self._vbid(),
            self.opaque,
            self.cas,
            self.framing,
            extras,
            self.key,
            value,
        )

    def encode(self) -> bytes:
        """The message's bytes on the wire."""
        return self.to_frame().encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    """A request: `vbid` is the vbucket (u16)."""

    vbid: int = 0

    def _vbid(self) -> int:
        return self.vbid

    @property
    def stream_id(self) -> int | None:
        """The stream id in the framing extras, or None."""
        for info_id, data in decode_frame_infos(self.framing):
            if info_id == FrameInfoId.DCP_STREAM_ID and len(data) == 2:
                return int.from_bytes(data, "big")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(Message):
    """A response: `status` is its status code (u16)."""

    status: int = 0

    def _vbid(self) -> int:
        return self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest(Request):
    """A request whose opcode, or whose shape, is not in the table; nothing of it is lost."""

    opcode: int
    extras: bytes = b""

    def to_frame(self) -> Frame:
        """The very frame it came from."""
        return self._frame(self.opcode, Kind.REQUEST, self.extras, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResponse(Response):
    """A response without a layout of its own: most are bare headers or carry text."""

    opcode: int
    extras: bytes = b""

    def to_frame(self) -> Frame:
        """The very frame it came from."""
        return self._frame(self.opcode, Kind.RESPONSE, self.extras, self.value)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(u8, u16, u32, u64))
def message(
    opcode: Opcode,
    *,
    key: Part = Part.NONE,
    rest: Part = Part.NONE,
    flow_controlled: bool = False,
    statuses: tuple[int, ...] = (),
    since: str = "",
    source: str,
) -> Callable[[type[_M]], type[_M]]:
    """Make a message class of a class body and enter it into the layout table.

    Args:
        opcode: the message's opcode.
        key: whether a key may be there.
        rest: whether bytes may follow the value's fields.
        flow_controlled: whether it counts against the consumer's buffer.
        statuses: for a response, the statuses it is for.
        since: server version that brought it.
        source: where it is documented.
    """

    def decorate(cls: type[_M]) -> type[_M]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        fields: list[Field] = []
        sizes = {"extras": 0, "value": 0}
        for item in dataclasses.fields(made):
            if "width" not in item.metadata:
                continue
            place, width = item.metadata["place"], item.metadata["width"]
            fields.append(Field(item.name, width, sizes[place], place, item.metadata["fixed"], item.metadata["since"]))
            sizes[place] += width
        kind = Kind.RESPONSE if issubclass(made, Response) else Kind.REQUEST
        made.layout = Layout(
            made.__name__,
            opcode,
            kind,
            tuple(sorted(fields, key=lambda item: item.place)),
            sizes["extras"],
            sizes["value"],
            key,
            rest,
            flow_controlled,
            statuses,
            since,
            source,
        )
        LAYOUTS.append(made.layout)
        _CLASSES.setdefault((int(opcode), kind), []).append(made)
        return made

    return decorate


def decode_message(frame: Frame, *, strict: bool = False) -> Message:
    """The message in a frame.

    Args:
        frame: a whole frame.
        strict: refuse a frame that fits no layout of its opcode, instead of returning it raw.

    Raises:
        FieldError: with `strict`, the frame fits no layout; the message names each reason.
    """
    kind = Kind.RESPONSE if frame.is_response else Kind.REQUEST
    reasons = []
    candidates = (
        () if frame.magic in (Magic.SERVER_REQUEST, Magic.SERVER_RESPONSE) else _CLASSES.get((frame.opcode, kind), ())
    )
    for cls in candidates:
        reason = cls.layout.mismatch(frame)
        if reason is None:
            return _build(cls, frame)
        reasons.append(f"{cls.__name__}: {reason}")
    if strict:
        name = code_name(Opcode, frame.opcode)
        raise FieldError(f"{name} {kind.value} fits no layout: {'; '.join(reasons) or 'unknown opcode'}")
    common: dict[str, Any] = {
        "opcode": frame.opcode,
        "magic": frame.magic,
        "opaque": frame.opaque,
        "cas": frame.cas,
        "datatype": frame.datatype,
        "framing": frame.framing,
        "extras": frame.extras,
        "key": frame.key,
        "value": frame.value,
    }
    return RawResponse(status=frame.vbid, **common) if kind is Kind.RESPONSE else RawRequest(vbid=frame.vbid, **common)


def _build(cls: type[Message], frame: Frame) -> Message:
    layout = cls.layout
    numbers = {
        item.name: int.from_bytes(
            (frame.extras if item.place == "extras" else frame.value)[item.offset : item.offset + item.width], "big"
        )
        for item in layout.fields
    }
    numbers["status" if layout.kind is Kind.RESPONSE else "vbid"] = frame.vbid
    return cls(
        opaque=frame.opaque,
        cas=frame.cas,
        datatype=frame.datatype,
        framing=frame.framing,
        key=frame.key,
        value=frame.value[layout.value_bytes :],
        magic=frame.magic,
        **numbers,
    )


def header_size(layout: Layout) -> int:
    """Bytes of a message of this layout before its key."""
    return HEADER_BYTES + layout.extras_bytes
