"""Keys with their collection ids, and the elements of framing extras.

Source: kv_engine docs/Collections.md (LEB128), docs/BinaryProtocol.md (frame info), daemon/mcbp_validators.cc (limits).
"""

from __future__ import annotations

from collections.abc import Iterator

from dcpstream.errors import FieldError
from dcpstream.wire.buffers import Buffer

MAX_LEB128_BYTES = 5
"""A u32 in groups of 7 bits."""
MAX_U32 = 0xFFFFFFFF

MAX_KEY_BYTES = 250
"""Longest key, and longest name in a key field, without a collection prefix."""
MAX_PREFIXED_KEY_BYTES = 251
"""Longest key field of a connection with collections: 250 bytes and one, or 246 and up to five."""
MAX_KEY_BYTES_ELSEWHERE = 246
"""Longest logical key outside of the default collection."""
FIRST_RESERVED, LAST_RESERVED = 1, 7
"""Ids that no collection of a client has."""


def leb128_encode(number: int) -> bytes:
    """Unsigned LEB128 of a u32: 7 bits a byte, low group first.

    Raises:
        FieldError: not a u32.
    """
    if not 0 <= number <= MAX_U32:
        raise FieldError(f"{number} is not a u32")
    if number < 0x80:
        return bytes((number,))
    result = bytearray()
    while number >= 0x80:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def leb128_decode(data: Buffer) -> tuple[int, int]:
    """The number at the start of `data`, and how many bytes it takes.

    Raises:
        FieldError: no last byte within five, more than 32 bits, or not the shortest form.
    """
    number = 0
    for index, byte in enumerate(data[:MAX_LEB128_BYTES]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index:
                raise FieldError(f"collection id {bytes(data[: index + 1]).hex()} is not in its shortest form")
            if number > MAX_U32:
                raise FieldError("collection id above 32 bits")
            return number, index + 1
    raise FieldError("collection id has no last byte")


def split_collection_key(key: bytes) -> tuple[int, bytes]:
    """(collection id, logical key) of a prefixed key."""
    collection_id, length = leb128_decode(key)
    return collection_id, key[length:]


def key_fault(key: bytes) -> str | None:
    """The fault in a document's key with collection prefix, in the server's words; None if there is none."""
    if len(key) <= 1:
        return "Key length must be >= 2"
    try:
        collection_id, prefix = leb128_decode(key)
    except FieldError:
        has_stop = any(byte < 0x80 for byte in key[:MAX_LEB128_BYTES])
        return "Key contains non-canonical leb128" if has_stop else "No stop-byte found"
    if len(key) == prefix:
        return "No logical key found"
    if FIRST_RESERVED <= collection_id <= LAST_RESERVED:
        return f"Invalid collection-id:{collection_id}"
    longest = MAX_KEY_BYTES if collection_id == 0 else MAX_KEY_BYTES_ELSEWHERE
    return f"Logical key exceeds {longest}" if len(key) - prefix > longest else None


def encode_frame_info(info_id: int, data: bytes) -> bytes:
    """One element of the framing extras: id and length in nibbles, 15 escapes to a further byte each."""
    escapes = b""
    id_nibble = info_id
    if info_id >= 0xF:
        escapes += bytes((info_id - 0xF,))
        id_nibble = 0xF
    length_nibble = len(data)
    if length_nibble >= 0xF:
        escapes += bytes((length_nibble - 0xF,))
        length_nibble = 0xF
    return bytes((id_nibble << 4 | length_nibble,)) + escapes + data


def decode_frame_infos(framing: bytes) -> Iterator[tuple[int, bytes]]:
    """(id, data) of each element.

    Raises:
        FieldError: an element runs past the section.
    """
    at = 0
    while at < len(framing):
        info_id, length = framing[at] >> 4, framing[at] & 0xF
        at += 1
        try:
            if info_id == 0xF:
                info_id += framing[at]
                at += 1
            if length == 0xF:
                length += framing[at]
                at += 1
        except IndexError:
            raise FieldError("frame info ends in an escape") from None
        if at + length > len(framing):
            raise FieldError(f"frame info {info_id} of {length} bytes runs past the framing extras")
        yield info_id, framing[at : at + length]
        at += length
