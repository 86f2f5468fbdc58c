"""One segment file: appending to it, and reading verified pages of it.

An address names a byte in any file: the number of the file times 2**32, plus the offset in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.runtime import File
from dcpstream.wire.buffers import Buffer
from dcpstream_node.store.log.blocks import (
    DAMAGE_HINT,
    RESTORE_HINT,
    SEGMENT_HEADER,
    SegmentKind,
    checksum,
    decode_segment_header,
)

ADDRESS_SHIFT = 32
OFFSET_MASK = (1 << ADDRESS_SHIFT) - 1

MAX_SEGMENT_BYTES = 2**32 - 1
"""Offsets in a file are u32."""
JOIN_BYTES = 4 * 1024 * 1024
"""The buffers of a commit up to this size are joined for one write; larger commits take a few writes."""


class Segment:
    """One file. A piece of it keeps it open, also after a compaction has retired it.

    Attributes:
        number: of the segment, from 1; never used again for another file that counts.
        path: of the file.
        file: open for append and read.
        size: committed bytes; after a failed write there may be more in the file.
        salt: the seed of all checksums in it.
        rollbacks: (vbid, incarnation) of the vbuckets whose rollback blocks it holds.
    """

    __slots__ = ("file", "number", "path", "rollbacks", "salt", "size")

    def __init__(self, number: int, path: Path, file: File, size: int, salt: int) -> None:
        self.number = number
        self.path = path
        self.file = file
        self.size = size
        self.salt = salt
        self.rollbacks: set[tuple[int, int]] = set()

    @property
    def address(self) -> int:
        """The address of its first byte."""
        return self.number << ADDRESS_SHIFT


Checksums: TypeAlias = int | tuple[Sequence[int], Sequence[int]]
"""The checksum of one page; or sizes and checksums of adjacent pages."""
FilePiece: TypeAlias = tuple[Segment, int, int, int, int, Checksums]
"""Bytes [from, to) of whole pages in a file: the file, the pages' offset and size, from, to, the pages' checksums."""
Piece: TypeAlias = Buffer | FilePiece
"""Bytes in memory or in a file."""


def append_to(segment: Segment, buffers: Sequence[Buffer], size: int) -> None:
    """Write `size` bytes at the end of a segment, without a sync.

    Raises: StoreError: they do not fit, or part of them may have been written.
    """
    if segment.size + size > MAX_SEGMENT_BYTES:
        raise StoreError(f"a commit of {size} bytes does not fit a segment file; commit more often")
    if size <= JOIN_BYTES and len(buffers) > 1:
        buffers = [b"".join(buffers)]
    try:
        segment.file.append(buffers)
    except OSError as error:
        raise StoreError(f"{segment.path}: {size} bytes could not be made durable: {error}") from error


def is_leftover(head: bytes, path: Path, number: int) -> bool:
    """Whether a segment file that is not listed is the rest of an unfinished step, and holds no commits.

    Args:
        head: the file's first bytes: its header, and one more if there is one.
    """
    if len(head) <= SEGMENT_HEADER.size:
        return True
    try:
        return decode_segment_header(head, str(path), number)[1] is SegmentKind.REWRITTEN
    except StoreError:
        return False


def read_from(file: Segment, offset: int, length: int) -> bytes:
    """Bytes of a file, unverified.

    Raises:
        CorruptLog: the file is shorter than when it was written.
        StoreError: the system cannot read it.
    """
    try:
        data = file.file.read(offset, length)
    except OSError as error:
        raise StoreError(f"{file.path} cannot be read at byte {offset}: {error}") from error
    if len(data) != length:
        raise CorruptLog(str(file.path), offset, f"{length} bytes", f"{len(data)}", DAMAGE_HINT)
    return data


def read_page(file: Segment, offset: int, size: int, expected: int) -> bytes:
    """As `read_pages` of one page, with fewer calls: after small commits a page holds only a few documents."""
    try:
        data = file.file.read(offset, size)
    except OSError:
        data = b""
    if len(data) == size and checksum(data, file.salt) == expected:
        return data
    return read_pages(file, offset, size, expected)  # raises the error that fits


def read_pages(file: Segment, offset: int, size: int, expected: Checksums) -> bytes:
    """Adjacent pages of a file, verified.

    Raises:
        CorruptLog: the file does not hold the bytes that were written.
        StoreError: the system cannot read it.
    """
    data = read_from(file, offset, size)
    salt = file.salt
    if isinstance(expected, int):
        actual = checksum(data, salt)
        if actual != expected:
            raise _damaged(file, offset, expected, actual)
        return data
    view, begin = memoryview(data), 0
    for length, of_page in zip(*expected, strict=True):
        end = begin + length
        actual = checksum(view[begin:end], salt)
        if actual != of_page:
            raise _damaged(file, offset + begin, of_page, actual)
        begin = end
    return data


def _damaged(file: Segment, offset: int, expected: int, actual: int) -> CorruptLog:
    return CorruptLog(str(file.path), offset, f"XXH3 {expected:016x} of the page", f"{actual:016x}", DAMAGED_PAGE_HINT)


DAMAGED_PAGE_HINT = (
    "Nothing of this page is served; other keys and vbuckets are. `dcpstream store check DIR` reports the damage. "
    f"{RESTORE_HINT}"
)
