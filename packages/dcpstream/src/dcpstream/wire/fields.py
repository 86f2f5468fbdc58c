"""The fields of messages and records: numbers and byte strings at fixed places, declared once.

A field is declared in a class body by `u8` … `u64`, `i64` or `raw`. `record` makes a class of such a body for a
structure without an opcode, such as one entry of a failover log; `dcpstream.wire.layout` makes messages.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack, dataclass_transform

from dcpstream.errors import FieldError
from dcpstream.wire.buffers import Buffer

_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Field:
    """One number or byte string on the wire.

    Attributes:
        name: as in the specification, in snake_case.
        width: bytes; numbers are big-endian.
        offset: from the start of its part, in bytes, if all optional fields before it are there.
        place: "extras" or "value".
        fixed: the only value that this layout has here (a version byte), or None.
        since: server version that brought it, or "".
        form: "u" an unsigned number, "i" a signed one, "s" bytes.
        optional: whether the extras may lack it.
    """

    name: str
    width: int
    offset: int
    place: str
    fixed: int | None = None
    since: str = ""
    form: str = "u"
    optional: bool = False

    @property
    def code(self) -> str:
        """Its letter in a struct's format."""
        if self.form == "s":
            return f"{self.width}s"
        return _FORMATS[self.width].lower() if self.form == "i" else _FORMATS[self.width]

    @property
    def type_name(self) -> str:
        """Its type in documents and errors: u16, i64, 16 bytes."""
        return f"{self.width} bytes" if self.form == "s" else f"{self.form}{8 * self.width}"

    def holds(self, content: object) -> bool:
        """Whether a value fits."""
        if self.form == "s":
            return isinstance(content, bytes) and len(content) == self.width
        try:
            struct.pack(">" + self.code, content)
        except struct.error:
            return False
        return True

    def misfit(self, owner: str, content: object) -> FieldError:
        """The error of a value that does not fit; `owner` is the message's or the record's name."""
        article = "" if self.form == "s" else "a "
        return FieldError(f"{owner}.{self.name}={content!r} is not {article}{self.type_name}")


class FieldOptions(TypedDict, total=False):
    """The options of a field's declaration.

    Attributes:
        default: the content in messages that are made without it.
        value: the field stands at the start of the value, not in the extras.
        fixed: the only number that the layout has here.
        since: server version that brought it.
        optional: the extras may lack it; their length says which of the optional fields are there. Where one length
            could be read in several ways, the first fields are.
    """

    default: Any
    value: bool
    fixed: int | None
    since: str
    optional: bool


def _field(width: int, form: str, options: FieldOptions) -> Any:
    fixed, is_optional = options.get("fixed"), options.get("optional", False)
    metadata = {
        "width": width,
        "place": "value" if options.get("value") else "extras",
        "fixed": fixed,
        "since": options.get("since", ""),
        "form": form,
        "optional": is_optional,
    }
    default = options.get("default") if fixed is None else fixed
    if default is None and not is_optional:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def u8(**options: Unpack[FieldOptions]) -> Any:
    """An unsigned byte."""
    return _field(1, "u", options)


def u16(**options: Unpack[FieldOptions]) -> Any:
    """An unsigned number of two bytes."""
    return _field(2, "u", options)


def u32(**options: Unpack[FieldOptions]) -> Any:
    """An unsigned number of four bytes."""
    return _field(4, "u", options)


def u64(**options: Unpack[FieldOptions]) -> Any:
    """An unsigned number of eight bytes."""
    return _field(8, "u", options)


def i64(**options: Unpack[FieldOptions]) -> Any:
    """A signed number of eight bytes."""
    return _field(8, "i", options)


def raw(width: int, **options: Unpack[FieldOptions]) -> Any:
    """A string of `width` bytes."""
    return _field(width, "s", options)


def fields_of(cls: type[Any]) -> tuple[Field, ...]:
    """The declared fields of a dataclass, those of the extras first."""
    fields: list[Field] = []
    sizes = {"extras": 0, "value": 0}
    for item in dataclasses.fields(cls):
        if "width" in item.metadata:
            place = item.metadata["place"]
            fields.append(Field(item.name, offset=sizes[place], **item.metadata))
            sizes[place] += item.metadata["width"]
    return tuple(sorted(fields, key=lambda item: item.place))


def struct_of(fields: tuple[Field, ...]) -> struct.Struct:
    """The big-endian struct of some fields."""
    return struct.Struct(">" + "".join(item.code for item in fields))


def contents_getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives these attributes of an object as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda owner: (getattr(owner, names[0]),)) if names else lambda _owner: ()


_R = TypeVar("_R", bound="Record")


class Record:
    """A structure without an opcode, such as one entry of a list in a value.

    Attributes:
        struct: its precompiled struct; hot paths use it for plain tuples.
        size: bytes that it takes.
    """

    __slots__ = ()

    struct: ClassVar[struct.Struct]
    size: ClassVar[int]
    _fields: ClassVar[tuple[Field, ...]]
    _numbers: ClassVar[Callable[[Any], tuple[Any, ...]]]

    def pack(self) -> bytes:
        """Its bytes.

        Raises:
            FieldError: a field does not fit its width.
        """
        numbers = type(self)._numbers(self)
        for item, content in zip(self._fields, numbers, strict=True):
            if not item.holds(content):
                raise item.misfit(type(self).__name__, content)
        return self.struct.pack(*numbers)

    @classmethod
    def unpack_from(cls, data: Buffer, at: int = 0) -> Self:
        """The record that begins at an offset.

        Raises:
            FieldError: the data ends within it.
        """
        try:
            return cls(*cls.struct.unpack_from(data, at))
        except struct.error:
            raise FieldError(f"{cls.__name__} needs {cls.size} bytes, there are {len(data) - at}") from None

    @classmethod
    def iter_unpack(cls, data: Buffer) -> Iterator[Self]:
        """The records that follow one another in some bytes.

        Raises:
            FieldError: the length of the data is not a multiple of a record's.
        """
        if len(data) % cls.size:
            raise FieldError(f"{len(data)} bytes are no whole number of {cls.__name__}, {cls.size} bytes each")
        return (cls(*numbers) for numbers in cls.struct.iter_unpack(data))


@dataclass_transform(frozen_default=True, field_specifiers=(u8, u16, u32, u64, i64, raw))
def record(cls: type[_R]) -> type[_R]:
    """Make a record class of a class body."""
    made = dataclass(frozen=True, slots=True)(cls)
    fields = fields_of(made)
    made.struct = struct_of(fields)
    made.size = made.struct.size
    made._fields = fields
    made._numbers = staticmethod(contents_getter([item.name for item in fields]))
    return made
