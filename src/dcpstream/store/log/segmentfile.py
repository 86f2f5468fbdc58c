"""One segment file: what is written to its end, and pages of it that are read and verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.runtime import File
from dcpstream.store.log.blocks import DAMAGE_HINT, SEGMENT_HEADER, SegmentKind, checksum, decode_segment_header
from dcpstream.store.log.bytelog import ADDRESS_SHIFT, Buffer, Checksums, PageFile

MAX_SEGMENT_BYTES = 2**32 - 1
"""Offsets in a file are u32."""
JOIN_BYTES = 4 * 1024 * 1024
"""Commits up to this size are put together in memory, so that they are one write; larger ones are a few."""


class Segment:
    """One file.

    Attributes:
        number: of the segment, from 1; never used again for another file that counts.
        path: its file.
        file: open for append and read.
        size: committed bytes; there may be more in the file after a failed write.
        salt: the seed of all checksums in it.
        rollbacks: (vbid, incarnation) of the vbuckets of which it holds a rollback.
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


def holds_copies(file: File, path: Path, number: int) -> bool:
    """Whether a segment's header can be read and says that it holds copies."""
    try:
        return decode_segment_header(file.read(0, SEGMENT_HEADER.size), str(path), number)[1] == SegmentKind.REWRITTEN
    except StoreError:
        return False


def read_from(file: PageFile, offset: int, length: int) -> bytes:
    """Bytes of a file, unverified.

    Raises:
        CorruptLog: the file is shorter than it was.
        StoreError: the system cannot read it.
    """
    try:
        data = file.file.read(offset, length)
    except OSError as error:
        raise StoreError(f"{file.path} cannot be read at byte {offset}: {error}") from error
    if len(data) != length:
        raise CorruptLog(str(file.path), offset, f"{length} bytes", f"{len(data)}", DAMAGE_HINT)
    return data


def read_page(file: PageFile, offset: int, size: int, expected: int) -> bytes:
    """As `read_pages` of one page, with fewer calls: after small commits a page holds a few documents."""
    try:
        data = file.file.read(offset, size)
    except OSError:
        data = b""
    if len(data) == size and checksum(data, file.salt) == expected:
        return data
    return read_pages(file, offset, size, expected)  # which tells what is wrong


def read_pages(file: PageFile, offset: int, size: int, expected: Checksums) -> bytes:
    """Pages that lie side by side in a file, verified.

    Raises:
        CorruptLog: what is there is not what was written.
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


def _damaged(file: PageFile, offset: int, expected: int, actual: int) -> CorruptLog:
    return CorruptLog(str(file.path), offset, f"XXH3 {expected:016x} of the page", f"{actual:016x}", DAMAGED_PAGE_HINT)


DAMAGED_PAGE_HINT = (
    "Nothing of this page is served; other keys and vbuckets are. Stop the node, and let `dcpstream store check DIR` "
    "tell what is damaged and `dcpstream store repair DIR` cut it out; or restore the directory from a copy."
)
