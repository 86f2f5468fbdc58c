"""The file of a recording: a line of JSON, then blocks of frames, each with a checksum and the time of its arrival.

The first line says what was recorded, so that `head -1` shows it. A block is a header of 21 bytes and the payload. The
header, big-endian: payload bytes u32, CRC-32 of the payload u32, nanoseconds since 1970 u64, 1 if the payload is
deflated u8, and CRC-32 of these u32. A block is written at once, so a recorder that is killed leaves at most one
incomplete block, at the end. The first block says where each vbucket begins. Without a whole one a file says nothing of
its bucket: it is refused here, and a recorder begins it again.

What the frames mean is in `history`.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from dcpstream.client.settings.client_options import MAX_BUFFER_BYTES
from dcpstream.errors import ConfigError, CorruptLog
from dcpstream.model import Manifest
from dcpstream.wire.frames import MAX_FRAME_BYTES

FORMAT = "dcpstream recording"
VERSION = 1

MAX_HEADER_BYTES = 16 * 1024 * 1024
"""Longest first line: 1,200 collections take some 100 KB."""

DEFLATE_MIN_BYTES = 256
"""Shorter payloads are stored as they are: they would not get smaller."""

MAX_BLOCK_BYTES = MAX_BUFFER_BYTES + MAX_FRAME_BYTES
"""Longest block, inflated: of one receive, which the largest flow-control window and one frame bound."""

DEFLATE_LEVEL = 1
"""The fastest: JSON shrinks to a third, and a higher level takes twice the time for a tenth less."""

_BLOCK = struct.Struct(">IIQB")
_CHECKSUM = struct.Struct(">I")
_HEAD_BYTES = _BLOCK.size + _CHECKSUM.size
_MAGIC = b'{"format": "' + FORMAT.encode() + b'"'


@dataclass(frozen=True, slots=True)
class Header:
    """The source and the extent of a recording.

    Attributes:
        bucket, bucket_uuid: of the source; the uuid is empty if it is not known.
        vbuckets: their number, of which all or some are recorded.
        manifest: scopes and collections when the recording began.
        collections: names of the collections that it is limited to; None for all.
    """

    bucket: str
    bucket_uuid: str
    vbuckets: int
    manifest: Manifest
    collections: tuple[str, ...] | None = None

    def to_line(self) -> bytes:
        """The first line."""
        content = asdict(self) | {"manifest": self.manifest.to_json(), "collections": self.collections}
        return json.dumps({"format": FORMAT, "version": VERSION, **content}).encode() + b"\n"

    @classmethod
    def from_line(cls, path: Path, line: bytes) -> Self:
        """The inverse.

        Raises:
            ConfigError: the file is no recording, or one of a later version.
            CorruptLog: the line is damaged.
        """
        if not is_recording(line):
            message = f"{path} is no recording as `dcpstream record` writes them. Choose another file"
            raise ConfigError("FILE", str(path), "a file that `dcpstream record` wrote", message=message)
        try:
            data: dict[str, Any] = json.loads(line)
            if data["version"] != VERSION:
                message = f"{path} has version {data['version']} of the format; this dcpstream reads {VERSION}"
                raise ConfigError("FILE", str(path), f"version {VERSION}", message=message)
            names = data["collections"]
            return cls(
                str(data["bucket"]),
                str(data["bucket_uuid"]),
                int(data["vbuckets"]),
                Manifest.from_json(data["manifest"]),
                None if names is None else tuple(map(str, names)),
            )
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise CorruptLog(
                str(path), 0, "the line that says what was recorded", f"a damaged one ({error})"
            ) from error


class Block(NamedTuple):
    """One block.

    Attributes:
        frames: whole frames, inflated.
        time_ns: when they arrived, in nanoseconds since 1970.
        end: the offset of the next block in the file.
    """

    frames: bytes
    time_ns: int
    end: int


def is_recording(start: bytes) -> bool:
    """Whether a file that begins so is a recording."""
    return start.startswith(_MAGIC)


def is_unbegun(path: Path) -> bool:
    """Whether a recorder was ended before it wrote the first block. An empty file may have been made by a recorder.

    Raises: OSError: it cannot be read.
    """
    with path.open("rb") as file:
        line = file.readline(MAX_HEADER_BYTES)
        if not line.endswith(b"\n"):
            return len(line) < MAX_HEADER_BYTES and (is_recording(line) or _MAGIC.startswith(line))
        if not is_recording(line):
            return False
        size, at = os.fstat(file.fileno()).st_size, file.tell()
        head = file.read(_HEAD_BYTES)
        if _is_cut(head):
            return True
        is_sound = zlib.crc32(head[: _BLOCK.size]) == _CHECKSUM.unpack_from(head, _BLOCK.size)[0]
        return is_sound and at + _HEAD_BYTES + int(_BLOCK.unpack_from(head)[0]) > size


def cut_note(path: Path) -> str:
    """The warning about a recording whose reader says `is_cut`."""
    return f"{path} ends in an incomplete block: it was still being written, or its recorder was killed"


def _is_cut(head: bytes) -> bool:
    """Whether the header of a block is incomplete. After a power cut the system may have left zeros."""
    return len(head) < _HEAD_BYTES or not any(head)


class RecordingReader:
    """Reads a recording from its beginning; a context manager.

    Args:
        path: the file.

    Attributes:
        header: its first line.
        is_cut: whether the last block was incomplete; known once all blocks were read.
        start: the offset of the first block.

    Raises:
        ConfigError: it is no recording, or one without a block. CorruptLog: its first line is damaged. OSError: it
            cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if is_unbegun(path):
            what = "is a recording without changes:" if path.stat().st_size else "is empty. If it is a recording,"
            message = (
                f"{path} {what} its recorder was ended before it wrote the first block. Call `dcpstream record` again, "
                "which begins the file again"
            )
            raise ConfigError("FILE", str(path), "a recording with at least one block", message=message)
        self._file = path.open("rb")
        try:
            self.header = Header.from_line(path, self._file.readline(MAX_HEADER_BYTES))
        except BaseException:
            self._file.close()
            raise
        self._size = os.fstat(self._file.fileno()).st_size
        self.start = self._file.tell()
        self.is_cut = False

    def blocks(self) -> Iterator[Block]:
        """Every block; an incomplete one at the end is left out.

        Raises:
            CorruptLog: a block is damaged.
        """
        at = self.start
        while at < self._size:
            self._file.seek(at)
            head = self._file.read(_HEAD_BYTES)
            if _is_cut(head):
                self.is_cut = True
                return
            length, checksum, time_ns, is_deflated = _BLOCK.unpack_from(head)
            self._check(at, head[: _BLOCK.size], *_CHECKSUM.unpack_from(head, _BLOCK.size))
            end = at + _HEAD_BYTES + length
            if end > self._size:
                self.is_cut = True
                return
            payload = self._file.read(length)
            self._check(at, payload, checksum)
            yield Block(self._inflated(at, payload) if is_deflated else payload, time_ns, end)
            at = end

    def _inflated(self, at: int, payload: bytes) -> bytes:
        inflater = zlib.decompressobj()
        try:
            frames = inflater.decompress(payload, MAX_BLOCK_BYTES)
        except zlib.error as error:
            raise CorruptLog(str(self.path), at, "deflated frames", str(error)) from error
        if not inflater.eof:
            raise CorruptLog(str(self.path), at, f"a whole block of at most {MAX_BLOCK_BYTES} bytes", "another one")
        return frames

    def _check(self, at: int, data: bytes, expected: int) -> None:
        actual = zlib.crc32(data)
        if actual != expected:
            hint = f"What comes before can be kept: truncate --size={at}"
            raise CorruptLog(str(self.path), at, f"the checksum {expected:08x}", f"{actual:08x}", hint)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        """The reader itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()


class RecordingWriter:
    """Writes blocks to the end of a recording; a context manager.

    Args:
        file: open for writing, at its end.
        is_deflated: whether payloads are deflated where that makes them shorter.
    """

    def __init__(self, file: BinaryIO, *, is_deflated: bool = True) -> None:
        self._file = file
        self._is_deflated = is_deflated

    @classmethod
    def create(cls, path: Path, header: Header, *, is_deflated: bool = True) -> Self:
        """Begin a new file.

        Raises: OSError: it exists, or cannot be written.
        """
        file = path.open("xb")
        file.write(header.to_line())
        return cls(file, is_deflated=is_deflated)

    @classmethod
    def go_on(cls, path: Path, end: int, *, is_deflated: bool = True) -> Self:
        """Go on with a file behind its last sound block; an incomplete one is cut off.

        Raises: OSError: it cannot be written.
        """
        file = path.open("r+b")
        file.truncate(end)
        file.seek(end)
        return cls(file, is_deflated=is_deflated)

    @property
    def size(self) -> int:
        """The size of the file so far, in bytes."""
        return self._file.tell()

    def write(self, frames: bytes, time_ns: int) -> None:
        """Append a block and hand it to the system; nothing for no frames.

        Args:
            frames: whole frames; those of one receive, which a flow-control window bounds.
            time_ns: when they arrived, in nanoseconds since 1970.

        Raises: OSError: it could not be written.
        """
        if not frames:
            return
        payload, is_packed = frames, False
        if self._is_deflated and len(frames) >= DEFLATE_MIN_BYTES:
            packed = zlib.compress(frames, DEFLATE_LEVEL)
            if len(packed) < len(frames):
                payload, is_packed = packed, True
        head = _BLOCK.pack(len(payload), zlib.crc32(payload), time_ns, is_packed)
        self._file.write(head + _CHECKSUM.pack(zlib.crc32(head)) + payload)
        self._file.flush()

    def close(self) -> None:
        """Make the file durable and close it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()
