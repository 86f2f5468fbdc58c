"""Extended attributes: names, binary values, macros, and virtual attributes.

Changes treat a document's attributes as one JSON object, name to value. System attributes have names that begin with
`_`; reading and writing them needs privileges of their own. Virtual attributes have names that begin with `$`; they are
computed from the document and can only be read.

Source: kv_engine xattr/key_validator.cc, daemon/subdocument_context.cc, docs/SubDocument.md.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import google_crc32c

from dcpstream.errors import FieldError
from dcpstream.model.json_text import is_json
from dcpstream.wire import Datatype, Status
from dcpstream.wire.values import decode_xattrs, encode_xattrs, is_system_xattr, split_xattrs
from dcpstream_node.engine.subdocument.paths import PathError
from dcpstream_node.engine.subdocument.scanner import members, unescape

NAME_BYTES_MAX: Final = 15
"""Longest name of an attribute: the server's limit."""

SYSTEM_BYTES_MAX: Final = 1024 * 1024
"""Largest size of all system attributes of a document together: the server's limit."""

BINARY_MARK: Final = "cb-content-base64-encoded:"
"""Prefix of the JSON string that stands for a binary value; base64 follows."""

_PUNCTUATION: Final = frozenset("!\"#%&'()*+,-./:;<=>?@[\\]^`{|}~")
_PAIR_OVERHEAD: Final = 6
_SECTION_OVERHEAD: Final = 4

MUTATION_CAS: Final = b'"${Mutation.CAS}"'
MUTATION_SEQNO: Final = b'"${Mutation.seqno}"'
MUTATION_CRC32C: Final = b'"${Mutation.value_crc32c}"'
_DOCUMENT_MACRO: Final = b'"${$document'
_MACRO_END: Final = b'}"'


def name_of(path: bytes) -> str | None:
    """The attribute's name at the start of a path, or None if the name is not allowed."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return None
    name = text.partition(".")[0].partition("[")[0]
    first = name[:1]
    is_plain = first not in _PUNCTUATION and first >= " " and first != "\x7f"
    is_long_enough = len(name.encode()) > (first in ("_", "$"))
    if not is_plain or not is_long_enough or len(name.encode()) > NAME_BYTES_MAX or "\0" in text:
        return None
    return name


def has_valid_xattrs(value: bytes, *, limits_system: bool = True) -> bool:
    """True if an inflated value begins with a valid attribute section: allowed names, each once, and JSON values.

    Args:
        limits_system: whether more system attributes than `SYSTEM_BYTES_MAX` make it invalid.
    """
    try:
        xattrs, _ = decode_xattrs(value)
        section, _ = split_xattrs(value)
    except FieldError:
        return False
    if len(encode_xattrs(xattrs)) != len(section):
        return False  # a name that came twice, or is not UTF-8
    if limits_system and system_bytes(xattrs) > SYSTEM_BYTES_MAX:
        return False
    return all(name_of(name.encode()) is not None and is_json(text) for name, text in xattrs.items())


def is_virtual(path: bytes) -> bool:
    """Whether a path is that of a virtual attribute."""
    return path.startswith(b"$")


def is_macro(value: bytes) -> bool:
    """Whether a value is one of the macros."""
    if value in (MUTATION_CAS, MUTATION_SEQNO, MUTATION_CRC32C):
        return True
    return value.startswith(_DOCUMENT_MACRO) and value.endswith(_MACRO_END)


# ------------------------------------------------------------------------------------------------- binary values


def encode_binary(value: bytes) -> str:
    """The JSON string that stands for a binary value."""
    return f'"{BINARY_MARK}{base64.b64encode(value).decode()}"'


def decode_binary(text: str) -> bytes | None:
    """The binary value that a JSON string stands for, or None if it stands for none."""
    content = text.strip('"').replace("\\/", "/")
    if not content.startswith(BINARY_MARK):
        return None
    try:
        return base64.b64decode(content[len(BINARY_MARK) :], validate=True)
    except binascii.Error:
        return None


def has_bad_binary(value: bytes) -> bool:
    """Whether a value contains the mark of a binary value without valid base64 behind it."""
    at = value.find(BINARY_MARK.encode())
    if at < 0:
        return False
    encoded = value[at:].split(b'"', 1)
    if len(encoded) == 1 and at > 1:
        return True
    return decode_binary(encoded[0].decode("latin-1")) is None


# -------------------------------------------------------------------------------------- attributes as one document


def as_object(xattrs: dict[str, bytes]) -> str:
    """Attributes as the text of one JSON object.

    Raises:
        PathError: XATTR_EINVAL: a value is not UTF-8; only a broken replication source can store such a value.
    """
    try:
        return "{" + ",".join(f"{_dump(name)}:{text.decode()}" for name, text in xattrs.items()) + "}"
    except UnicodeDecodeError:
        raise PathError(Status.XATTR_EINVAL) from None


def from_object(text: str) -> dict[str, bytes]:
    """The attributes in the text of a JSON object.

    Raises:
        PathError: SUBDOC_DOC_NOTJSON: a stored value is not JSON.
    """
    return {unescape(name): value.encode() for name, value in members(text, 0)}


def system_bytes(xattrs: dict[str, bytes]) -> int:
    """The bytes that system attributes take in a stored value, including the section's length field."""
    if not xattrs:
        return 0
    return _SECTION_OVERHEAD + sum(
        _PAIR_OVERHEAD + len(name.encode()) + len(text) for name, text in xattrs.items() if is_system_xattr(name)
    )


# -------------------------------------------------------------------------------------------- virtual attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A document before a request, as virtual attributes show it.

    Attributes:
        vbuuid: the vbucket's newest branch.
        expiration: seconds since 1970; of a tombstone the time of the deletion; 0 for never.
        datatype: as stored.
        names: the names of the attributes that the user may see.
        body: inflated, without attributes.
        now_s: seconds since 1970.
        is_clock_behind: whether the vbucket has given out a CAS that is later than now.
    """

    cas: int = 0
    vbuuid: int = 0
    seqno: int = 0
    rev_seqno: int = 0
    expiration: int = 0
    flags: int = 0
    datatype: int = 0
    is_deleted: bool = False
    names: tuple[str, ...] = ()
    body: bytes = b""
    now_s: int = 0
    is_clock_behind: bool = False


_DATATYPES: Final = ((Datatype.SNAPPY, "snappy"), (Datatype.JSON, "json"), (Datatype.XATTR, "xattr"))


def checksum(body: bytes) -> str:
    """The CRC-32C of a body, as attributes and macros show it."""
    return f"0x{int(google_crc32c.value(body)):08x}"


_FIELDS: Final[dict[str, Callable[[Origin], object]]] = {
    "CAS": lambda origin: f"0x{origin.cas:016x}",
    "datatype": lambda origin: [text for bit, text in _DATATYPES if origin.datatype & bit] or ["raw"],
    "deleted": lambda origin: origin.is_deleted,
    "exptime": lambda origin: origin.expiration,
    "flags": lambda origin: origin.flags,
    "last_modified": lambda origin: str(origin.cas // 10**9),
    "revid": lambda origin: str(origin.rev_seqno),
    "seqno": lambda origin: f"0x{origin.seqno:016x}",
    "value_bytes": lambda origin: len(origin.body),
    "value_crc32c": lambda origin: checksum(origin.body),
    "vbucket_uuid": lambda origin: f"0x{origin.vbuuid:016x}",
}
"""The fields of `$document` in the server's order."""


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def virtual_object(origin: Origin, path: bytes) -> str:
    """The text of an object with the virtual attribute that a path names.

    Raises:
        PathError: SUBDOC_XATTR_UNKNOWN_VATTR.
    """
    name, _, rest = path.decode().partition("[")[0].partition(".")
    if name == "$document":
        # The checksum costs a pass over the body, so it is computed only if the path names it.
        wanted: Iterable[str] = (rest,) if rest in _FIELDS else _FIELDS
        return _dump({name: {each: _FIELDS[each](origin) for each in wanted}})
    if name == "$XTOC":
        return _dump({name: list(origin.names)})
    if name == "$vbucket":
        mode = "logical" if origin.is_clock_behind else "real"
        return _dump({name: {"HLC": {"mode": mode, "now": str(origin.now_s)}}})
    raise PathError(Status.SUBDOC_XATTR_UNKNOWN_VATTR)


def expand_document(origin: Origin, macro: bytes) -> str:
    """The JSON text that a macro `"${$document…}"` stands for.

    Raises:
        PathError: SUBDOC_XATTR_UNKNOWN_VATTR_MACRO.
    """
    name = macro[len(_DOCUMENT_MACRO) : -len(_MACRO_END)].decode(errors="replace")
    if not name:
        return _dump({each: make(origin) for each, make in _FIELDS.items()})
    # The server has no macro for the checksum, and expands the time to a number.
    if name[1:] not in _FIELDS or name[0] != "." or name == ".value_crc32c":
        raise PathError(Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO)
    if name == ".last_modified":
        return str(origin.cas // 10**9)
    return _dump(_FIELDS[name[1:]](origin))


@dataclass(slots=True)
class Macros:
    """Placeholders for the CAS, seqno and checksum, which are known only when the document is written.

    A placeholder has the length of the text that replaces it.

    Args:
        taken: texts of the request and of the attributes; a placeholder occurs in none of them.

    Attributes:
        used: macro → placeholder.
    """

    taken: list[bytes]
    used: dict[bytes, bytes] = field(default_factory=dict)

    def placeholder(self, macro: bytes) -> str:
        """The placeholder of one of the macros `"${Mutation.…}"`."""
        if macro not in self.used:
            digits = 8 if macro == MUTATION_CRC32C else 16
            # Each number in `taken` rules out one candidate at most, so this loop ends.
            number = len(self.used)
            while any(self._candidate(number, digits) in text for text in (*self.taken, *self.used.values())):
                number += 1
            self.used[macro] = self._candidate(number, digits)
        return self.used[macro].decode()

    @staticmethod
    def _candidate(number: int, digits: int) -> bytes:
        return b'"0x%0*x"' % (digits, number)

    def fill(self, text: bytes, *, cas: int, seqno: int, body: bytes) -> bytes:
        """A text with its placeholders replaced; the CAS is written in reversed byte order, as the server does."""
        for macro, placeholder in self.used.items():
            if macro == MUTATION_CAS:
                made = f"0x{int.from_bytes(cas.to_bytes(8, 'little'), 'big'):016x}"
            elif macro == MUTATION_SEQNO:
                made = f"0x{seqno:016x}"
            else:
                made = checksum(body)
            text = text.replace(placeholder, f'"{made}"'.encode())
        return text
