"""The layout table: each message's fields, sender and limits, declared once.

Theory of operation: a message is a frozen dataclass whose fields are declared with `u8` … `u64`, `i64` and `raw`. The
`message` decorator reads the declarations, works out offsets, compiles the structs and enters a `Layout` into
`LAYOUTS`. Everything else is derived from that one table: the encoder (`encode`, `pack`), the decoder (`decode`,
`unpack`, `decode_message`), the checks of both protocol ends (`dcpstream.wire.shape`), flow-control
accounting, the Hypothesis strategies of the test kit, `dcpstream decode`, and the reference pages. `record` does the
same for structures that have no opcode, such as the entries of a failover log.

A frame whose parts do not fit any layout of its opcode is not lost: it decodes to `RawRequest` or `RawResponse`, which
carry all its bytes. `decode_message(frame, strict=True)` refuses it instead, with the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, auto
from inspect import get_annotations
from itertools import chain, combinations
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypedDict, TypeVar, Unpack, dataclass_transform

from dcpstream.errors import FieldError
from dcpstream.wire.codes import Feature, FrameInfoId, Magic, Opcode, code_name
from dcpstream.wire.fields import Field, contents_getter, fields_of, i64, raw, struct_of, u8, u16, u32, u64
from dcpstream.wire.frames import HEADER, HEADER_BYTES, HEADER_FIELDS, Frame
from dcpstream.wire.keys import decode_frame_infos
from dcpstream.wire.status import Status


class Kind(Enum):
    """Direction of a message."""

    REQUEST = "request"
    RESPONSE = "response"


class Part(Enum):
    """Whether a part of a request (extras aside) has to be there: the key, the value, or the CAS."""

    NONE = "must be empty"
    OPTIONAL = "may be empty"
    REQUIRED = "must not be empty"

    def accepts(self, part: bytes) -> bool:
        """Whether these bytes are allowed."""
        return self is Part.OPTIONAL or bool(part) == (self is Part.REQUIRED)


class Side(Flag):
    """The sender of a request. The receiver of a consumer's requests is a producer, and the other way round."""

    CLIENT = 1
    """An application, to a node."""
    NODE = 2
    """A node, to an application."""
    PRODUCER = 4
    """The end of a DCP connection that has the history."""
    CONSUMER = 8
    """The end of a DCP connection that receives the history: an application or another node."""


class Phase(IntEnum):
    """The earliest moment in a connection's life at which a request may be sent."""

    CONNECTED = 0
    """Before the login."""
    LOGGED_IN = 1
    BUCKET = 2
    """After SELECT_BUCKET."""
    DCP = 3
    """After DCP_OPEN."""


class Group(Flag):
    """Kinds of messages that some part of the project treats alike."""

    NONE = 0
    READ = auto()
    """The statistics count the request as a read of a document."""
    STORE = auto()
    """The statistics count the request as a write of a document."""
    WHOLE_BUCKET = auto()
    """The request is about all vbuckets, whichever its header names."""
    MAP_ONLY = auto()
    """A node that has only the map of a bucket answers the request in that bucket."""
    VBUCKET_METADATA = auto()
    """The message comes once for each vbucket, and changes its role or cuts its history durably."""
    QUESTION = auto()
    """A replica sends the request before its first stream."""
    UNDECIDED = auto()
    """The message is a row of a durable write that is not committed."""
    FROM_SOURCE = auto()
    """A manager that relays a stream acts on the message, when the source sends it or its answer."""
    FROM_DESTINATION = auto()
    """A manager that relays a stream acts on the message, when the destination sends it or its answer."""
    LOGIN = auto()
    """The request is of a login: the node carries it out after the token of an earlier login has expired."""
    PLAIN_MISS = auto()
    """The node answers KEY_ENOENT about a missing document even while the bucket is being loaded."""
    PLAIN_PLACE = auto()
    """The node answers NOT_MY_VBUCKET about a vbucket elsewhere even while the bucket takes no traffic."""
    ACTS = auto()
    """The request changes something, although its privileges are those of a reader; see `effects`."""
    OF_ENGINE = auto()
    """Without a bucket the request is NOT_SUPPORTED, where others are NO_BUCKET."""
    OF_ENGINE_80 = auto()
    """The same in 8.0."""


class Answers(NamedTuple):
    """The answers to a request of DCP with which its sender goes on; every other one ends the connection.

    Attributes:
        tolerated: statuses of an answer that is not needed.
        before_v7: further ones of a peer that did not negotiate status codes of their own for "no such stream" and
            "wrong opaque".
        are_awaited: a takeover waits for the answer, whatever its status.
    """

    tolerated: frozenset[int] = frozenset()
    before_v7: frozenset[int] = frozenset()
    are_awaited: bool = False


_MAGICS = {
    Kind.REQUEST: (int(Magic.REQUEST), int(Magic.FLEX_REQUEST)),
    Kind.RESPONSE: (int(Magic.RESPONSE), int(Magic.FLEX_RESPONSE)),
}


class Variant(NamedTuple):
    """One length that the extras of a layout can have; without optional fields there is one variant.

    Attributes:
        extras_bytes: that length.
        extras: the struct of the extras.
        head: the struct of header and extras.
        present: which of the layout's extras fields are there.
        spread: from the fields that are there and a None behind them to all extras fields.
    """

    extras_bytes: int
    extras: struct.Struct
    head: struct.Struct
    present: tuple[int, ...]
    spread: Callable[[tuple[Any, ...]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything about one shape of one message.

    Attributes:
        name: the message class's name.
        opcode, kind: as in the frame's header.
        fields: extras fields first, then those at the start of the value; each in order of offset.
        extras_bytes, value_bytes: how many bytes they take, with all optional fields.
        extras_lengths: the lengths that the extras can have, ascending.
        extras: the precompiled struct of the extras, with all optional fields.
        head: the precompiled struct of header and extras together, for hot paths.
        value: the precompiled struct of the value's fields.
        key, rest: whether a key, and bytes after the value's fields, may be there.
        cas: whether a request has a CAS.
        document_key: the key is a document's, with a collection prefix where negotiated.
        datatypes: bits that may be set in a request's datatype.
        durable, keeps_ttl: whether the framing extras may ask for durability, or to keep the document's expiration.
        sent_by: the sender of the request; a response goes the other way.
        phase: when a request may be sent.
        privilege: the privileges that the user of a request needs, separated by blanks; alternatives are separated by
            bars. Empty: none is needed. None: not declared, and a node refuses the request.
        anywhere: whether a privilege in any one collection is enough.
        flow_controlled: whether it counts against the consumer's buffer.
        needs_answer: whether the sender of a request waits for its answer.
        answers: the answers that a producer tolerates; None: every answer ends the connection.
        seqno: the field with the seqno to which the message moves its stream; empty if it does not move it.
        groups: see `Group`.
        statuses: for a response, the statuses this layout belongs to; empty = any.
        any_extras: a node accepts extras of every length; a frame with extras that are not declared decodes raw.
        refused: what a node answers to the request, whatever its shape; None: it looks at it.
        quiet_of: the opcode whose quiet form this is: the same request with fewer answers; None for others.
        rest_needs: the feature that a connection needs for bytes after the value's fields, or None.
        without: the feature that a connection must not have for this layout, or None.
        since: the release that brought it, as "7.6", or "" for one before all that matter. A node of an older release
            does not know the message.
        until: the first release that no longer has it, or "". A node of that or a later release answers NOT_SUPPORTED.
        source: where it is documented.
        summary: the first line of the class's docstring.
    """

    name: str
    opcode: int
    kind: Kind
    fields: tuple[Field, ...]
    variants: tuple[Variant, ...]
    value: struct.Struct
    source: str
    summary: str
    key: Part = Part.NONE
    rest: Part = Part.NONE
    cas: Part = Part.NONE
    document_key: bool = False
    datatypes: int = 0
    durable: bool = False
    keeps_ttl: bool = False
    sent_by: Side = Side.CLIENT
    phase: Phase = Phase.BUCKET
    privilege: str | None = None
    anywhere: bool = False
    flow_controlled: bool = False
    needs_answer: bool = True
    answers: Answers | None = None
    seqno: str = ""
    groups: Group = Group.NONE
    statuses: tuple[int, ...] = ()
    any_extras: bool = False
    refused: Status | None = None
    quiet_of: Opcode | None = None
    rest_needs: Feature | None = None
    without: Feature | None = None
    since: str = ""
    until: str = ""
    # Derived from the above when the class is made, so that they cost nothing per message.
    magic: int = field(init=False)
    flexible_magic: int = field(init=False)
    extras_bytes: int = field(init=False)
    extras_lengths: tuple[int, ...] = field(init=False)
    variant_of_length: dict[int, Variant] = field(init=False, repr=False, compare=False)
    extras: struct.Struct = field(init=False)
    head: struct.Struct = field(init=False)
    value_bytes: int = field(init=False)
    extras_fields: tuple[Field, ...] = field(init=False)
    value_fields: tuple[Field, ...] = field(init=False)
    fixed_fields: tuple[tuple[int, Field], ...] = field(init=False)
    raw_fields: tuple[int, ...] = field(init=False)
    is_simple: bool = field(init=False)
    names: tuple[str, ...] = field(init=False)
    numbers: Callable[[Any], tuple[Any, ...]] = field(init=False)

    def __post_init__(self) -> None:
        """Compute the derived attributes."""
        whole = self.variants[-1]
        extras_fields = tuple(item for item in self.fields if item.place == "extras")
        derived = {
            "magic": _MAGICS[self.kind][0],
            "flexible_magic": _MAGICS[self.kind][1],
            "extras_bytes": whole.extras_bytes,
            "extras_lengths": tuple(variant.extras_bytes for variant in self.variants),
            "variant_of_length": {variant.extras_bytes: variant for variant in self.variants},
            "extras": whole.extras,
            "head": whole.head,
            "value_bytes": self.value.size,
            "extras_fields": extras_fields,
            "value_fields": self.fields[len(extras_fields) :],
            "fixed_fields": tuple((at, item) for at, item in enumerate(self.fields) if item.fixed is not None),
            "raw_fields": tuple(at for at, item in enumerate(self.fields) if item.form == "s"),
            "is_simple": len(self.variants) == 1 and all(item.form != "s" for item in self.fields),
            "names": tuple(item.name for item in self.fields),
            "numbers": contents_getter([item.name for item in self.fields]),
        }
        for name, content in derived.items():
            object.__setattr__(self, name, content)
        if self.seqno and self.seqno not in self.names:
            raise TypeError(f"{self.name} has no field {self.seqno!r}, which its option `seqno` names")

    def offset(self, name: str) -> int:
        """The offset of a field of the header or the extras in a classic frame."""
        at = 0
        for field_name, width in (*HEADER_FIELDS, *((item.name, item.width) for item in self.extras_fields)):
            if field_name == name:
                return at
            at += width
        raise KeyError(name)

    def mismatch(self, frame: Frame) -> str | None:
        """The reason why the frame does not have this layout, or None if it does."""
        if len(frame.extras) not in self.extras_lengths:
            return f"extras of {len(frame.extras)} bytes, not {' or '.join(map(str, self.extras_lengths))}"
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
        for _, item in self.fixed_fields:
            part = frame.extras if item.place == "extras" else frame.value
            actual = int.from_bytes(part[item.offset : item.offset + item.width], "big")
            if actual != item.fixed:
                return f"{item.name} is {actual}, not {item.fixed}"
        return None

    def unpack(self, frame: Frame) -> tuple[Any, ...]:
        """All fields of a frame that has this layout; None for those that it lacks.

        Raises:
            struct.error: the extras, or the value's fields, have another length.
        """
        numbers = self.unpack_extras(frame.extras) if self.extras_bytes else ()
        return numbers + self.value.unpack_from(frame.value) if self.value_bytes else numbers

    def unpack_extras(self, extras: bytes) -> tuple[Any, ...]:
        """The fields of the extras; None for those that are left out.

        Raises:
            struct.error: the extras have another length.
        """
        variant = self.variant_of_length.get(len(extras))
        if variant is None:
            raise struct.error(f"extras of {len(extras)} bytes")
        numbers = variant.extras.unpack(extras)
        return numbers if variant.extras_bytes == self.extras_bytes else variant.spread((*numbers, None))

    def encode(
        self,
        numbers: tuple[Any, ...],
        vbid: int,
        opaque: int,
        cas: int,
        datatype: int,
        framing: bytes,
        key: bytes,
        value: bytes,
    ) -> bytes:
        """A message's bytes.

        Args:
            numbers: all fields.
            vbid: of a response its status.

        Raises:
            FieldError: a field does not fit its width.
        """
        extras_bytes, head, given = self.extras_bytes, self.head, numbers
        if not self.is_simple:
            extras_bytes, head, numbers = self._present(numbers)
        magic, key_field = self.magic, len(key)
        body = extras_bytes + key_field + self.value_bytes + len(value)
        if framing:
            if key_field > 0xFF or len(framing) > 0xFF:
                raise FieldError("flexible framing allows 255 bytes of key and of framing extras")
            magic, key_field, body = self.flexible_magic, key_field | len(framing) << 8, body + len(framing)
        try:
            if self.value_bytes:
                count = len(numbers) - len(self.value_fields)
                value = self.value.pack(*numbers[count:]) + value
                numbers = numbers[:count]
            packed = head.pack(magic, self.opcode, key_field, extras_bytes, datatype, vbid, body, opaque, cas, *numbers)
        except struct.error as error:
            raise self.misfit(given, error) from None
        if framing:
            packed = packed[:HEADER_BYTES] + framing + packed[HEADER_BYTES:]
        return packed + key + value

    def _present(self, numbers: tuple[Any, ...]) -> tuple[int, struct.Struct, tuple[Any, ...]]:
        """(bytes of extras, struct of header and extras, fields that are there) of one message."""
        for at in self.raw_fields:
            if not self.fields[at].holds(numbers[at]):  # a struct would cut them or fill them up
                raise self.misfit(numbers, struct.error("other length"))
        if None not in numbers:
            return self.extras_bytes, self.head, numbers
        present = tuple([at for at, content in enumerate(numbers) if content is not None])
        value_fields = len(self.value_fields)
        extras_present = present[: len(present) - value_fields]
        for variant in self.variants:
            if variant.present == extras_present:
                return variant.extras_bytes, variant.head, tuple([numbers[at] for at in present])
        names = ", ".join(self.fields[at].name for at in extras_present)
        raise FieldError(f"{self.name} cannot have {names} without the fields before them")

    def misfit(self, numbers: tuple[Any, ...], error: struct.error) -> FieldError:
        """The error that names the field which does not fit."""
        if len(numbers) == len(self.fields):
            for item, content in zip(self.fields, numbers, strict=True):
                if not item.holds(content) and not (item.optional and content is None):
                    return item.misfit(self.name, content)
        return FieldError(f"{self.name}: a header field does not fit: {error}")


LAYOUTS: list[Layout] = []
"""Every layout that is known, in order of declaration; whole once `dcpstream.wire.messages` is imported."""
_CLASSES: dict[tuple[int, Kind], list[type[Message]]] = {}
_M = TypeVar("_M", bound="Message")


def classes_of(opcode: int, kind: Kind) -> tuple[type[Message], ...]:
    """The message classes of an opcode, in order of declaration."""
    return tuple(_CLASSES.get((opcode, kind), ()))


def _picker(places: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that gives the items of a tuple at these places as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return (lambda row: (row[places[0]],)) if places else lambda _row: ()


def _variants_of(fields: tuple[Field, ...]) -> tuple[Variant, ...]:
    """The variants of some extras fields, ascending by length."""
    extras = [item for item in fields if item.place == "extras"]
    optional = [at for at, item in enumerate(extras) if item.optional]
    absent_sets = chain.from_iterable(combinations(reversed(optional), count) for count in range(len(optional) + 1))
    found: dict[int, Variant] = {}
    # Fewest and last fields first: of two variants with one length, the one with the earlier fields counts.
    for absent in absent_sets:
        present = tuple(at for at in range(len(extras)) if at not in absent)
        chosen = tuple(extras[at] for at in present)
        size = sum(item.width for item in chosen)
        found.setdefault(
            size,
            Variant(
                size,
                struct_of(chosen),
                struct.Struct(HEADER.format + "".join(item.code for item in chosen)),
                present,
                _picker([present.index(at) if at in present else len(present) for at in range(len(extras))]),
            ),
        )
    return tuple(found[size] for size in sorted(found))


class Packer(Protocol):
    """The function `pack` of a message's class: its bytes, without making an object."""

    def __call__(
        self,
        *fields: Any,
        vbid: int = 0,
        status: int = 0,
        opaque: int = 0,
        cas: int = 0,
        datatype: int = 0,
        framing: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
    ) -> bytes:
        """The bytes of such a message.

        Args:
            fields: those of the extras, then those of the value, in order of declaration; without the fixed ones.
            vbid: of a request.
            status: of a response.
            opaque, cas, datatype, framing, key: as in `Message`.
            value: what follows the fields.

        Raises:
            FieldError: a field does not fit its width.
        """


def _packer(layout: Layout) -> Packer:
    """The `pack` of one layout, with everything looked up that does not depend on the message."""
    encode, head, size = layout.encode, layout.head.pack, layout.extras_bytes
    magic, opcode = layout.magic, layout.opcode
    fixed_fields = layout.fixed_fields

    def pack(
        *fields: Any,
        vbid: int = 0,
        status: int = 0,
        opaque: int = 0,
        cas: int = 0,
        datatype: int = 0,
        framing: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
    ) -> bytes:
        if fixed_fields:
            numbers = list(fields)
            for at, item in fixed_fields:
                numbers.insert(at, item.fixed)
            fields = tuple(numbers)
        return encode(fields, vbid or status, opaque, cas, datatype, framing, key, value)

    def pack_extras(
        *fields: Any,
        vbid: int = 0,
        status: int = 0,
        opaque: int = 0,
        cas: int = 0,
        datatype: int = 0,
        framing: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
    ) -> bytes:
        if framing:
            return encode(fields, vbid or status, opaque, cas, datatype, framing, key, value)
        key_bytes = len(key)
        body = size + key_bytes + len(value)
        try:
            packed = head(magic, opcode, key_bytes, size, datatype, vbid or status, body, opaque, cas, *fields)
        except struct.error as error:
            raise layout.misfit(fields, error) from None
        return packed + key + value

    # Most messages have nothing but plain numbers in their extras.
    return pack_extras if layout.is_simple and not layout.value_bytes and not fixed_fields else pack


def _unpacker(layout: Layout) -> Callable[[Frame], tuple[Any, ...]]:
    """The `unpack` of one layout."""
    unpack_extras = layout.extras.unpack if len(layout.variants) == 1 else layout.unpack_extras
    unpack_all, has_value_fields = layout.unpack, bool(layout.value_bytes)
    fixed = frozenset(at for at, _ in layout.fixed_fields)

    def unpack(frame: Frame) -> tuple[Any, ...]:
        try:
            numbers = unpack_all(frame) if has_value_fields else unpack_extras(frame.extras)
        except struct.error:
            raise FieldError(f"not {layout.name}: {layout.mismatch(frame)}") from None
        return tuple([number for at, number in enumerate(numbers) if at not in fixed]) if fixed else numbers

    return unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The attributes of every message.

    Attributes:
        opaque: u32, chosen by the requester and echoed.
        cas: u64.
        datatype: u8, what the value bytes are; see `Datatype`.
        framing: the framing extras as bytes (flexible framing).
        key, value: the rest of the body; `value` is what follows the fields that a layout has in the value.
        magic: u8; 0 stands for the usual one.
    """

    layout: ClassVar[Layout]
    pack: ClassVar[Packer]
    unpack: ClassVar[Callable[[Frame], tuple[Any, ...]]]
    """The fields of a frame whose shape was checked, as `pack` takes them; makes no object. Raises FieldError if the
    extras, or the value's fields, have another length."""

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
        plain = layout.encode(layout.numbers(self), 0, 0, 0, 0, b"", b"", b"")
        extras_end = HEADER_BYTES + plain[4]
        return self._frame(layout.opcode, layout.kind, plain[HEADER_BYTES:extras_end], plain[extras_end:] + self.value)

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
        """The message's bytes on the wire.

        Raises:
            FieldError: a field does not fit its width.
        """
        layout = self.layout
        if self.magic and self.magic != (layout.flexible_magic if self.framing else layout.magic):
            return self.to_frame().encode()
        return layout.encode(
            layout.numbers(self),
            self._vbid(),
            self.opaque,
            self.cas,
            self.datatype,
            self.framing,
            self.key,
            self.value,
        )

    @classmethod
    def decode(cls, frame: Frame) -> Self:
        """The message of this class in a frame.

        Raises:
            FieldError: the frame is another message, or has another shape.
        """
        layout = cls.layout
        reason = layout.mismatch(frame)
        if frame.opcode != layout.opcode or frame.magic not in (layout.magic, layout.flexible_magic):
            reason = f"{code_name(Magic, frame.magic)} {code_name(Opcode, frame.opcode)}"
        if reason is not None:
            raise FieldError(f"not {layout.name}: {reason}")
        return cls._of(frame)

    @classmethod
    def _of(cls, frame: Frame) -> Self:
        layout = cls.layout
        numbers = layout.unpack(frame)
        fields = dict(zip(layout.names, numbers, strict=True))
        fields["status" if layout.kind is Kind.RESPONSE else "vbid"] = frame.vbid
        return cls(
            opaque=frame.opaque,
            cas=frame.cas,
            datatype=frame.datatype,
            framing=frame.framing,
            key=frame.key,
            value=frame.value[layout.value_bytes :],
            magic=frame.magic,
            **fields,
        )


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

    def encode(self) -> bytes:
        """The very bytes it came from."""
        return self.to_frame().encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResponse(Response):
    """A response without a layout of its own: most are bare headers or carry text."""

    opcode: int
    extras: bytes = b""

    def to_frame(self) -> Frame:
        """The very frame it came from."""
        return self._frame(self.opcode, Kind.RESPONSE, self.extras, self.value)

    def encode(self) -> bytes:
        """The very bytes it came from."""
        return self.to_frame().encode()


class MessageOptions(TypedDict, total=False):
    """The options of `message`; each is an attribute of `Layout`."""

    key: Part
    rest: Part
    cas: Part
    document_key: bool
    datatypes: int
    durable: bool
    keeps_ttl: bool
    sent_by: Side
    phase: Phase
    privilege: str | None
    anywhere: bool
    flow_controlled: bool
    needs_answer: bool
    answers: Answers | None
    seqno: str
    groups: Group
    statuses: tuple[int, ...]
    any_extras: bool
    refused: Status | None
    rest_needs: Feature | None
    without: Feature | None
    quiet_of: Opcode | None
    since: str
    until: str
    source: str


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(u8, u16, u32, u64, i64, raw))
def message(opcode: int, **options: Unpack[MessageOptions]) -> Callable[[type[_M]], type[_M]]:
    """Make a message class of a class body and enter it into the layout table.

    A class that extends another message (the quiet form of a command, say) has its fields, and its options where they
    are not given. If nothing else is given, a producer sends the flow-controlled messages, which need no answer,
    DCP_OPEN comes before what a producer or a consumer sends, whose CAS is ignored, and a document's key must not be
    empty.
    """

    def decorate(cls: type[_M]) -> type[_M]:
        extended: Layout | None = getattr(cls, "layout", None)
        assumed: dict[str, Any] = {}
        if extended is not None:
            assumed = {name: getattr(extended, name) for name in MessageOptions.__annotations__}
        else:
            if options.get("document_key"):
                assumed["key"] = Part.REQUIRED
            if options.get("flow_controlled"):
                assumed |= {"sent_by": Side.PRODUCER, "needs_answer": False}
            if options.get("sent_by", assumed.get("sent_by")) not in (None, Side.CLIENT):
                assumed |= {"phase": Phase.DCP, "cas": Part.OPTIONAL}
        made = _made(cls)
        fields = fields_of(made)
        kind = Kind.RESPONSE if issubclass(made, Response) else Kind.REQUEST
        made.layout = Layout(
            name=made.__name__,
            opcode=int(opcode),
            kind=kind,
            fields=fields,
            variants=_variants_of(fields),
            value=struct_of(tuple(item for item in fields if item.place == "value")),
            summary=(made.__doc__ or "").strip().partition("\n")[0],
            **{**assumed, **options},
        )
        made.pack = staticmethod(_packer(made.layout))
        made.unpack = staticmethod(_unpacker(made.layout))
        LAYOUTS.append(made.layout)
        _CLASSES.setdefault((int(opcode), kind), []).append(made)
        return made

    return decorate


def declare(opcode: Opcode, summary: str, base: type[Message] = Request, **options: Unpack[MessageOptions]) -> None:
    """Enter a message by the name of its opcode, as `derive`."""
    derive(opcode.name.title().replace("_", ""), opcode, summary, base, **options)


def quiet_forms(rule: str, opcodes: Mapping[type[Request], Opcode]) -> None:
    """Enter the quiet forms of requests, which no durability has. `rule` says when they are answered."""
    for loud, opcode in opcodes.items():
        name, quiet_of = loud.__name__, Opcode(loud.layout.opcode)
        derive(f"{name}Q", opcode, f"`{name}`, {rule}.", loud, quiet_of=quiet_of, durable=False)


def answered_alike(answer: type[Response], *opcodes: Opcode) -> None:
    """Enter the answers of requests that have the shape of another answer."""
    (like, *_) = classes_of(answer.layout.opcode, Kind.REQUEST)
    for opcode in opcodes:
        (request, *_) = classes_of(opcode, Kind.REQUEST)
        name = answer.__name__.replace(like.__name__, request.__name__)
        derive(name, opcode, f"As `{answer.__name__}`: {answer.layout.summary}", answer)


def derive(
    name: str, opcode: Opcode, summary: str, base: type[Message] = Request, **options: Unpack[MessageOptions]
) -> None:
    """Enter a message without fields of its own, or with those of another, into the table."""
    message(opcode, **options)(type(name, (base,), {"__doc__": summary, "__module__": base.__module__}))


def _made(cls: type[_M]) -> type[_M]:
    """The dataclass of a class body.

    A class without fields of its own has the methods of the class that it extends. They need not be made again, which
    would cost most of the time that it takes to load the table.
    """
    if get_annotations(cls):
        return dataclass(frozen=True, slots=True, kw_only=True)(cls)
    contents = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    contents |= {"__slots__": (), "__qualname__": cls.__qualname__}
    made: type[_M] = type(cls.__name__, cls.__bases__, contents)
    return made


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
        if not strict and len(frame.extras) not in cls.layout.extras_lengths:
            continue
        reason = cls.layout.mismatch(frame)
        if reason is None:
            return cls._of(frame)
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
