"""The headers of many frames, gathered into columns by a few numpy operations.

The first 48 bytes of a frame in classic framing are the header (24) and what all data messages have in common of their
extras (24): by_seqno u64, rev_seqno u64, and eight bytes that hold flags and expiration of a mutation or the delete
time of a deletion. 48 bytes are six big-endian words of 64 bits. They are gathered once per frame, swapped and turned
once, so that every field is a strided slice of a word. With framing extras the second half begins later and is gathered
for itself.

The slices assume a little-endian host; elsewhere the decoder goes message by message.

Source: kv_engine docs/BinaryProtocol.md, docs/dcp/documentation/commands/{mutation,deletion,expiration}.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dcpstream.columnar.boundaries import Int64Array
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.frames import HEADER_BYTES, MAGICS, MAX_FRAME_BYTES
from dcpstream.wire.messages.dcp import Mutation

WORDS_BYTES = 48
UInt64Array: TypeAlias = npt.NDArray[np.uint64]

_IS_MAGIC = np.zeros(256, np.bool_)
_IS_MAGIC[sorted(MAGICS)] = True
_REQUEST = 0x80
_CLASSIC_MIN = 0x80
"""Of the six magics only the two with framing extras (0x08, 0x18) are below."""
_FIELDS: Any = np.dtype(Mutation.layout.numpy_dtype()).fields


class _Column:
    """A field of the mutation's layout: a view of the word that holds it, in words whose bytes were swapped."""

    def __init__(self, name: str) -> None:
        kind, offset = _FIELDS[name]
        width = kind.itemsize
        self._word, self._kind = offset // 8, kind.newbyteorder("=")
        self._first, self._step = (8 - width - offset % 8) // width, 8 // width

    def __get__(self, headers: Headers, _owner: type[Headers]) -> npt.NDArray[Any]:
        """The column of some headers."""
        word: npt.NDArray[Any] = headers.words[self._word].view(self._kind)
        return word[self._first :: self._step]


def gather(buffer: Buffer, positions: Int64Array, width: int) -> npt.NDArray[Any]:
    """`width` bytes at each position as one opaque value; bytes behind the end of the buffer are zero.

    Args:
        buffer: the bytes.
        positions: int64[n], rising, each below the buffer's length.
        width: 24 or 48.
    """
    kind = f"V{width}"
    last = len(buffer) - width
    if not len(positions) or positions[-1] <= last:
        if not len(positions):
            return np.empty(0, kind)
        return np.ndarray((last + 1,), kind, buffer, 0, (1,))[positions]
    inside = int(np.searchsorted(positions, last, "right"))
    begin = int(positions[inside])
    padded = bytes(buffer[begin:]) + bytes(width)
    return np.concatenate(
        (gather(buffer, positions[:inside], width), gather(padded, positions[inside:] - begin, width))
    )


def swap_words(values: npt.NDArray[Any]) -> UInt64Array:
    """uint64[words, n], contiguous by word, of n gathered values."""
    words = values.dtype.itemsize // 8
    return np.ascontiguousarray(values.view(np.uint64).reshape(-1, words).byteswap(True).T)


@dataclass(frozen=True, slots=True)
class Headers:
    """Columns over the headers of n frames.

    Attributes:
        words: uint64[6, n] (or [3, n] without the extras). The columns below are strided views of it.
    """

    words: UInt64Array

    def select(self, rows: Int64Array) -> Headers:
        """The headers of these rows only."""
        return Headers(self.words.take(rows, axis=1))

    # Of every frame.
    magic = _Column("magic")
    opcode = _Column("opcode")
    key_field = _Column("key_length")
    """The key's length, or in flexible framing framing extras length (high byte) and key length."""
    extras_length = _Column("extras_length")
    datatype = _Column("datatype")
    vbucket = _Column("vbid")
    body = _Column("body_length")
    """Bytes after the header."""
    opaque = _Column("opaque")
    cas = _Column("cas")
    # Of data messages.
    seqno = _Column("by_seqno")
    rev = _Column("rev_seqno")
    flags_field = _Column("flags")
    """The flags of a mutation; the delete time of a deletion or expiration."""
    expiration = _Column("expiration")
    """Of mutations only."""

    @property
    def is_flexible(self) -> npt.NDArray[np.bool_]:
        """A mask of the frames with framing extras (0x08, 0x18)."""
        return self.magic < _CLASSIC_MIN

    @property
    def magic_and_opcode(self) -> npt.NDArray[np.uint16]:
        """u16: magic << 8 | opcode."""
        first: UInt64Array = self.words[0]
        return first.view(np.uint16)[3::4]

    def part_lengths(self) -> tuple[Int64Array | None, Int64Array]:
        """(framing extras length or None if no frame has any, key length) of each frame."""
        field = self.key_field.astype(np.int64)
        flexible = self.is_flexible
        if not flexible.any():
            return None, field
        return np.where(flexible, field >> 8, 0), np.where(flexible, field & 0xFF, field)

    def broken(self) -> npt.NDArray[np.bool_]:
        """A mask of the faulty headers: unknown magic, parts longer than the body, frame above the limit."""
        magic, body = self.magic, self.body
        bad: npt.NDArray[np.bool_] = body > MAX_FRAME_BYTES - HEADER_BYTES
        if (magic == _REQUEST).all():  # nearly always
            bad |= np.add(self.key_field, self.extras_length, dtype=np.uint32) > body
            return bad
        framing, parts = self.part_lengths()
        if framing is not None:
            parts += framing
        parts += self.extras_length
        bad |= parts > body
        bad |= ~_IS_MAGIC[magic]
        return bad
