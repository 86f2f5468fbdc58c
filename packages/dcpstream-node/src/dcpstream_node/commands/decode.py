"""`dcpstream decode`: recorded bytes as readable messages, derived from the message table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from dcpstream.cli.output import json_option
from dcpstream.errors import ConfigError, FieldError, FrameError
from dcpstream.wire import (
    Datatype,
    Field,
    Frame,
    Magic,
    Message,
    Opcode,
    RawRequest,
    RawResponse,
    Status,
    code_name,
    decode_frame,
    decode_message,
)
from dcpstream.wire.cached_items import CachedItem, cached_items
from dcpstream.wire.keys import leb128_decode

MAX_INPUT_BYTES = 256 * 1024 * 1024
"""Largest input, because it is held in memory."""

TEXT_CHARACTERS = 120
"""Limit of characters of a key or value in a line; the number of bytes follows a cut one."""

_NO_FRAMES = (
    "The input must begin with a whole frame. Cut off what comes before the first one, or say with --format what the "
    "input is"
)
_WHOLE_BEFORE = "The frames before that byte are whole: cut the input there to keep them"
"""Advice on an input whose bytes at its start, or later, are no frame."""

_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF \t\r\n")


@click.command("decode")
@click.argument("source", metavar="FILE|-", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "hex", "binary", "recording"]),
    default="auto",
    show_default=True,
    help="Hexadecimal text (blanks, line breaks and # comments are skipped), the bytes themselves, or a file of "
    "`record`.",
)
@json_option("One JSON object per frame, without cuts.")
def decode_command(source: Path, form: str, as_json: bool) -> None:
    """Print the messages in FILE, or in standard input, with -.

    FILE has the bytes of one direction of a connection, or a recording.
    """
    for one in found_frames(source, form):
        if as_json:
            time = {"time_ns": str(one.time_ns)} if one.time_ns else {}
            click.echo(json.dumps(time | as_object(one.offset, one.frame)))
        else:
            click.echo(as_text(one.offset, one.frame))


class Found(NamedTuple):
    """A frame of the input.

    Attributes:
        offset: in the input, or in its block of a recording.
        time_ns: when it was recorded, in nanoseconds since 1970; 0 if the input does not say.
    """

    offset: int
    frame: Frame
    time_ns: int = 0


def found_frames(source: Path, form: str) -> Iterator[Found]:
    """The frames of any input.

    Raises:
        ConfigError: it is not what `form` says. FrameError: bytes that are no frame.
    """
    if form == "recording" or (form == "auto" and _is_recording(source)):
        from dcpstream_node.recording.file import RecordingReader, cut_note

        with RecordingReader(source) as reader:
            for block in reader.blocks():
                for offset, frame in frames(block.frames):
                    yield Found(offset, frame, time_ns=block.time_ns)
            if reader.is_cut:
                click.echo(cut_note(source), err=True)
        return
    for offset, frame in frames(frame_bytes(read_source(source), form)):
        yield Found(offset, frame)


def _is_recording(source: Path) -> bool:
    """Whether the input is a recording, or the empty beginning of one. A pipe is not read for that."""
    from dcpstream_node.recording.file import is_recording, is_unbegun

    if str(source) == "-" or not source.is_file():
        return False
    with source.open("rb") as file:
        return is_recording(file.read(100)) or is_unbegun(source)


def read_source(source: Path, standard_input: BinaryIO | None = None) -> bytes:
    """The whole input, at most `MAX_INPUT_BYTES`.

    Raises:
        ConfigError: it is larger.
        OSError: it cannot be read.
    """
    if str(source) == "-":
        data = (standard_input or sys.stdin.buffer).read(MAX_INPUT_BYTES + 1)
    else:
        with source.open("rb") as file:
            data = file.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        message = f"the input has more than {MAX_INPUT_BYTES >> 20} MiB. Cut it at the start of a frame"
        raise ConfigError("FILE", str(source), f"at most {MAX_INPUT_BYTES >> 20} MiB", message=message)
    return data


def frame_bytes(data: bytes, form: str = "auto") -> bytes:
    """The frames' bytes from the input; hexadecimal text is converted.

    Raises:
        ConfigError: `form` is "hex" and the input is not hexadecimal.
    """
    if form == "binary":
        return data
    text = b"\n".join(line.partition(b"#")[0] for line in data.split(b"\n"))
    if form == "auto" and not (data.strip() and _HEX_DIGITS.issuperset(text)):
        return data
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError as error:
        if form == "auto" and not data.isascii():
            return data
        message = f"the input is not hexadecimal text: {error}"
        raise ConfigError("--format", "hex", "pairs of hexadecimal digits", message=message) from error


def frames(data: bytes) -> Iterator[tuple[int, Frame]]:
    """Each frame with its offset.

    Raises:
        FrameError: bytes that are not a frame, or an incomplete last frame; earlier frames have been yielded.
    """
    offset = 0
    while offset < len(data):
        try:
            frame = decode_frame(data, offset)
        except FrameError as error:
            hint = _WHOLE_BEFORE if offset else _NO_FRAMES
            raise FrameError(error.reason, offset=offset, header=error.header, hint=hint) from error
        yield offset, frame
        offset += frame.size


def as_object(offset: int, frame: Frame) -> dict[str, Any]:
    """A frame as JSON: offset, header, and the fields of its message. u64 fields and bytes are text."""
    message, problem = _message(frame)
    result: dict[str, Any] = {
        "offset": offset,
        "bytes": frame.size,
        "magic": code_name(Magic, frame.magic),
        "opcode": code_name(Opcode, frame.opcode),
        "message": type(message).__name__,
        "opaque": frame.opaque,
    }
    if frame.is_request:
        result["vbid"] = frame.vbid
    else:
        result["status"] = code_name(Status, frame.status)
    if frame.cas:
        result["cas"] = str(frame.cas)
    if frame.datatype:
        result["datatype"] = frame.datatype
    result["fields"] = {field.name: _json_value(field, value) for field, value in _fields(message)}
    if isinstance(message, RawRequest | RawResponse) and frame.extras:
        result["extras_hex"] = frame.extras.hex()
    for name, part in (("framing", frame.framing), ("key", frame.key), ("value", message.value)):
        if part:
            result |= _part(name, part)
    items, fault = _cached(frame)
    if items:
        result["documents"] = [
            {
                **{name: getattr(item, name) for name in _OF_DOCUMENTS if name not in ("cas", "seqno", "rev_seqno")},
                **{name: str(getattr(item, name)) for name in ("cas", "seqno", "rev_seqno")},
                **_part("key", item.key),
                **(_part("value", item.value) if item.value else {}),
            }
            for item in items
        ]
    if problem or fault:
        result["problem"] = problem or fault
    return result


def as_text(offset: int, frame: Frame) -> str:
    """A frame as one line, with its key and value on the lines below."""
    message, problem = _message(frame)
    head = [f"{offset:08x}", "→" if frame.is_request else "←", code_name(Opcode, frame.opcode)]
    if not frame.is_request:
        head.append(code_name(Status, frame.status))
    words = [f"vb:{frame.vbid}"] if frame.is_request else []
    words.append(f"opaque:0x{frame.opaque:x}")
    if frame.cas:
        words.append(f"cas:0x{frame.cas:x}")
    if frame.datatype:
        words.append(f"datatype:{_datatype(frame.datatype)}")
    if frame.framing:
        words.append(f"framing:{frame.framing.hex()}")
    words += [f"{field.name}={_number(field, value)}" for field, value in _fields(message)]
    if isinstance(message, RawRequest | RawResponse) and frame.extras:
        words.append(f"extras:{frame.extras.hex()}")
    lines = [f"{' '.join(head)}  {' '.join(words)}  ({frame.size} B)"]
    lines += [
        f"           {name}: {_shown(part)}" for name, part in (("key", frame.key), ("value", message.value)) if part
    ]
    items, fault = _cached(frame)
    for item in items:
        numbers = " ".join(f"{name}={getattr(item, name)}" for name in _OF_DOCUMENTS)
        lines.append(f"           document {_key(item.key)}: {numbers} value: {_shown(item.value) or 'left out'}")
    if problem or fault:
        lines.append(f"           problem: {problem or fault}")
    return "\n".join(lines)


def _key(key: bytes) -> str:
    """A key whose collection prefix, which is not printable, does not hide its name."""
    collection_id, length = leb128_decode(key)
    return f"{_shown(key[length:])} of collection 0x{collection_id:x}"


_OF_DOCUMENTS = ("seqno", "rev_seqno", "cas", "flags", "expiration", "datatype", "hint")
"""The numbers of a cached document."""


def _cached(frame: Frame) -> tuple[list[CachedItem], str | None]:
    """The documents in a transfer of cached documents, and why there are no more of them."""
    items: list[CachedItem] = []
    if frame.opcode != Opcode.DCP_CACHE_TRANSFER or not frame.is_request:
        return items, None
    try:
        items.extend(cached_items(frame.value))
    except FieldError as error:
        return items, str(error)
    return items, None


def _message(frame: Frame) -> tuple[Message, str | None]:
    """(message, problem): for a request that fits no layout the raw message, and the reason.

    A raw response is not a problem: most responses are bare headers, or carry the text of an error.
    """
    message = decode_message(frame)
    if not isinstance(message, RawRequest):
        return message, None
    try:
        decode_message(frame, strict=True)
    except FieldError as error:
        return message, str(error)
    return message, None


def _fields(message: Message) -> list[tuple[Field, int | bytes]]:
    if isinstance(message, RawRequest | RawResponse):
        return []
    values = zip(message.layout.fields, message.layout.numbers(message), strict=True)
    return [(field, value) for field, value in values if value is not None]


def _json_value(field: Field, value: int | bytes) -> str | int:
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if field.width == 8 else int(value)


def _number(field: Field, value: int | bytes) -> str:
    """Bytes, flags and vbuuids in hexadecimal, as in the documents; other numbers in decimal."""
    if isinstance(value, bytes):
        return value.hex()
    return f"0x{value:x}" if "uuid" in field.name or field.name == "flags" else str(value)


def _datatype(value: int) -> str:
    names = [flag.name or "" for flag in Datatype if value & flag]
    unknown = value & ~sum(flag.value for flag in Datatype)
    return "|".join(names + ([f"0x{unknown:x}"] if unknown else []))


def _part(name: str, part: bytes) -> dict[str, str]:
    try:
        return {name: part.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_hex": part.hex()}


def _shown(part: bytes) -> str:
    """Text with escaped unprintable characters (keys begin with a collection id); hexadecimal if there are many."""
    try:
        text = part.decode("utf-8")
    except UnicodeDecodeError:
        text = part.hex()
    else:
        unprintable = sum(not character.isprintable() for character in text)
        if unprintable * 4 > len(text):
            text = part.hex()
        elif unprintable:
            text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    if len(text) <= TEXT_CHARACTERS:
        return text
    return f"{text[:TEXT_CHARACTERS]}… ({len(part)} B)"
