"""The segment files of a store: one that grows, and older ones that do not change.

An address is the segment's number times 2**32 plus the offset in its file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.runtime import File, FileSystem
from dcpstream.store.blocks import DAMAGE_HINT, SEGMENT_HEADER, decode_segment_header, encode_segment_header
from dcpstream.store.bytelog import Buffer, Piece

SEGMENT_BYTES = 128 * 1024 * 1024
"""A segment that has reached this size is closed and a new one begun: what opening holds in memory, and what compaction
rewrites, at a time. Smaller ones make opening dearer (measured: 64 MiB +7 % CPU at 1,024 vbuckets)."""
MAX_SEGMENT_BYTES = 2**32 - 1
"""Offsets in a file are u32."""
JOIN_BYTES = 4 * 1024 * 1024
"""Commits up to this size are put together in memory, so that they are one write; larger ones are a few."""

ADDRESS_SHIFT = 32
OFFSET_MASK = (1 << ADDRESS_SHIFT) - 1
_NAME = re.compile(r"segment-(\d{10})\.log")


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"segment-{number:010}.log"


class Segment:
    """One file.

    Attributes:
        number: of the segment, from 1.
        path: its file.
        file: open for append and read.
        size: committed bytes; there may be more in the file after a failed write.
    """

    __slots__ = ("file", "number", "path", "size")

    def __init__(self, number: int, path: Path, file: File, size: int) -> None:
        self.number = number
        self.path = path
        self.file = file
        self.size = size


class Segments:
    """The files of one store directory.

    Args:
        segment_bytes: when to begin a new one.

    Raises:
        CorruptLog: a file is missing, too short, or its header is damaged.
        StoreError: a file cannot be opened.
    """

    def __init__(self, directory: Path, file_system: FileSystem, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._file_system = file_system
        self._segment_bytes = segment_bytes
        self._by_number: dict[int, Segment] = {}
        self._current: Segment | None = None
        self._must_roll = False
        try:
            self._open_all()
        except OSError as error:
            self.close()
            raise StoreError(f"the store in {directory} cannot be opened: {error}") from error
        except StoreError:
            self.close()
            raise

    def _open_all(self) -> None:
        names = self._file_system.names(self._directory)
        numbers = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        for number in numbers:
            path = self._directory / segment_name(number)
            file = self._file_system.open(path)
            self._by_number[number] = Segment(number, path, file, file.size())
            if number > numbers[0] and number - 1 not in self._by_number:
                missing = self._directory / segment_name(number - 1)
                raise CorruptLog(str(missing), 0, "a segment file", "no file", DAMAGE_HINT)
        if numbers:
            last = self._by_number[numbers[-1]]
            if last.size <= SEGMENT_HEADER.size and not self._has_header(last):
                # The process was stopped while it made this file; nothing was in it yet.
                del self._by_number[last.number]
                last.file.close()
                self._file_system.remove(last.path)
        for number, segment in self._by_number.items():
            header = segment.file.read(0, SEGMENT_HEADER.size)
            previous_bytes = decode_segment_header(header, str(segment.path), number)
            before = self._by_number.get(number - 1)
            if before is not None:
                if before.size < previous_bytes:
                    raise CorruptLog(
                        str(before.path), before.size, f"{previous_bytes} bytes", f"{before.size}", DAMAGE_HINT
                    )
                before.size = previous_bytes
            self._current = segment

    def _has_header(self, segment: Segment) -> bool:
        try:
            decode_segment_header(segment.file.read(0, SEGMENT_HEADER.size), str(segment.path), segment.number)
        except CorruptLog:
            return False
        return True

    def all(self) -> list[Segment]:
        """The segments, oldest first."""
        return list(self._by_number.values())

    @property
    def end(self) -> tuple[int, int]:
        """(number, committed bytes) of the last segment; (0, 0) if there is none."""
        return (0, 0) if self._current is None else (self._current.number, self._current.size)

    def cut(self, segment: Segment, size: int) -> None:
        """Drop what lies behind `size`: a torn commit."""
        try:
            segment.file.truncate(size)
            segment.file.sync()
        except OSError as error:
            raise StoreError(f"{segment.path} ends in a torn commit that cannot be cut off: {error}") from error
        segment.size = size

    def place(self) -> tuple[int, int]:
        """Where the next commit goes: (address of offset 0 in the segment, offset). Begins a new segment if need be.

        Raises:
            StoreError: a new segment was needed and cannot be made.
        """
        current = self._current
        if current is None or current.size >= self._segment_bytes or self._must_roll:
            current = self._roll()
        return current.number << ADDRESS_SHIFT, current.size

    def _roll(self) -> Segment:
        number, previous_bytes = self.end
        number += 1
        path = self._directory / segment_name(number)
        file: File | None = None
        try:
            file = self._file_system.open(path)
            file.truncate(0)
            size = file.append([encode_segment_header(number, previous_bytes)])
            file.sync()
            self._file_system.sync_directory(self._directory)
        except OSError as error:
            if file is not None:
                file.close()
                with suppress(OSError):
                    self._file_system.remove(path)
            raise StoreError(f"{path} cannot be made: {error}") from error
        self._current = self._by_number[number] = Segment(number, path, file, size)
        self._must_roll = False
        return self._current

    def write(self, buffers: Sequence[bytes | bytearray | memoryview], size: int) -> None:
        """Append a commit of `size` bytes where `place` said, and sync. All of it is durable, or none counts.

        Raises:
            StoreError: it is not durable; the file is as before, or will not be appended to any more.
        """
        segment = self._current
        assert segment is not None
        if segment.size + size > MAX_SEGMENT_BYTES:
            raise StoreError(f"a commit of {size} bytes does not fit a segment file; commit more often")
        if size <= JOIN_BYTES and len(buffers) > 1:
            buffers = [b"".join(buffers)]
        try:
            segment.file.append(buffers)
            segment.file.sync()
        except OSError as error:
            try:
                segment.file.truncate(segment.size)
            except OSError:
                self._must_roll = True
            raise StoreError(f"{segment.path}: {size} bytes could not be made durable: {error}") from error
        segment.size += size

    def read(self, address: int, length: int) -> bytes:
        """Bytes of a file; see `read_pieces`."""
        return bytes(self.read_pieces([(address, length)])[0])

    def read_pieces(self, pieces: Sequence[Piece]) -> list[Buffer]:
        """The pieces with each (address, length) replaced by the bytes there.

        Raises:
            CorruptLog: a file is shorter than it was.
            StoreError: the system cannot read it.
        """
        parts: list[Buffer] = []
        by_number = self._by_number
        for piece in pieces:
            if not isinstance(piece, tuple):
                parts.append(piece)
                continue
            address, length = piece
            segment, offset = by_number[address >> ADDRESS_SHIFT], address & OFFSET_MASK
            try:
                data = segment.file.read(offset, length)
            except OSError as error:
                raise StoreError(f"{segment.path} cannot be read at byte {offset}: {error}") from error
            if len(data) != length:
                raise CorruptLog(str(segment.path), offset, f"{length} bytes", f"{len(data)}", DAMAGE_HINT)
            parts.append(data)
        return parts

    def close(self) -> None:
        """Close all files."""
        for segment in self._by_number.values():
            segment.file.close()
