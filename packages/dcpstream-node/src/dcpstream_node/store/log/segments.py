"""The segment files of a store: the last one grows, the others do not change.

The metadata lists the files that count, in order (`segments`); a new file is listed before the first commit into it. A
file that is not listed is the rest of an unfinished step, and is removed when the store opens.

Several threads may read. A piece holds its file, so a retired file stays open for the reads that began before, and is
closed when the last of them ends.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeAlias

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.runtime import Clock, File, FileSystem, Random, SystemClock, SystemRandom
from dcpstream.wire.buffers import Buffer
from dcpstream_node.store.log.blocks import (
    DAMAGE_HINT,
    SALT_BITS,
    SEGMENT_HEADER,
    SegmentKind,
    decode_segment_header,
    encode_segment_header,
    segment_name,
    segment_number,
)
from dcpstream_node.store.log.page_cache import PageCache
from dcpstream_node.store.log.segment_file import (
    FilePiece,
    Piece,
    Segment,
    append_to,
    is_leftover,
    read_page,
    read_pages,
)

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 128 * 1024 * 1024
"""Size at which a new segment is begun. An opening holds one segment in memory, and a compaction rewrites one at a
time. Smaller segments make opening slower (measured: 64 MiB +7 % CPU at 1,024 vbuckets)."""
SLOW_READ_S = 0.002
"""A read that takes longer waited for the disk or for another process: reads from memory take gigabytes a second."""
SLOW_FOR_S = 10.0
"""For this long after a slow read, `would_wait` asks the system whether the bytes are in memory."""
PROBE_BYTES = 128 * 1024
"""Distance of the bytes that `would_wait` asks for: the system reads ahead about as much at a time."""

Save: TypeAlias = Callable[[dict[str, str]], None]
"""Makes values of the metadata durable in one transaction. Raises StoreError: none of them was kept."""


class SegmentWriter:
    """A segment that a compaction writes and that does not count yet, from `Segments.begin_rewrite`. For one thread.

    Attributes:
        segment: the file; its `size` grows with each write.
    """

    def __init__(self, segment: Segment, owner: Segments) -> None:
        self.segment = segment
        self._owner = owner

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        """Append `size` bytes; durable only after `finish`.

        Raises: StoreError: disk full or failing, or the file too large; `abandon` it.
        """
        append_to(self.segment, buffers, size)
        self.segment.size += size

    def sync(self) -> None:
        """Make the bytes written so far durable, so that `finish` takes less time.

        Raises: StoreError: disk failing; `abandon` it.
        """
        try:
            self.segment.file.sync()
        except OSError as error:
            raise StoreError(f"{self.segment.path} could not be made durable: {error}") from error

    def finish(self) -> Segment:
        """Make the file durable. Its pages can be read from now on; it counts once `Segments.replace` has listed it.

        Raises: StoreError: it is not durable; `abandon` it.
        """
        self.sync()
        self._owner.files[self.segment.number] = self.segment
        return self.segment

    def abandon(self) -> None:
        """Remove the file; also after `finish`, if `replace` has not listed it."""
        self._owner.discard(self.segment)


class Listing(NamedTuple):
    """The files that the metadata lists.

    Attributes:
        order: (number, committed bytes) of each file that counts, oldest first; None bytes for the one that grows. None
            if the metadata has no list: the store is new.
        retired: numbers of files that counted once and may still exist.
    """

    order: Sequence[tuple[int, int | None]] | None
    retired: Sequence[int] = ()


class SegmentSizes(NamedTuple):
    """Sizes of the files and of what is kept of them.

    Attributes:
        segment_bytes: size at which a new file is begun.
        cache_bytes: see `PageCache`.
    """

    segment_bytes: int = SEGMENT_BYTES
    cache_bytes: int = 0


USUAL_SIZES = SegmentSizes()


class Segments:
    """The files of one store directory.

    Args:
        listing: the files that the metadata lists.
        save: see `Save`.
        sizes: of files and cache.
        files: the dict in which to keep the files by number; frame logs look them up there.

    Attributes:
        segment_bytes: size at which a new file is begun; the store lowers it while it is small.
        cache: verified pages, for reads by key.
        must_roll: whether the next commit needs a new file. A failed write may have left bytes in the last one that
            could not be cut off, or a list with a file after it may be durable.

    Raises:
        CorruptLog: a file is missing, too short, or its header is damaged; or there are files of which the metadata
            knows nothing although commits are in them.
        StoreError: a file cannot be opened.
    """

    def __init__(
        self,
        directory: Path,
        file_system: FileSystem,
        listing: Listing,
        save: Save,
        sizes: SegmentSizes = USUAL_SIZES,
        *,
        files: dict[int, Segment] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._directory = directory
        self._file_system = file_system
        self._save = save
        self.segment_bytes = sizes.segment_bytes
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._lock = Lock()  # for the order, the numbers, and saving them
        self.files: dict[int, Segment] = {} if files is None else files
        self.cache = PageCache(sizes.cache_bytes)
        self._order: list[Segment] = []
        self._retired: set[int] = set()
        self.must_roll = False
        self._slow_until = 0.0
        self._failed_roll: int | None = None
        try:
            self._open_all(listing.order, frozenset(listing.retired))
        except OSError as error:
            self.close()
            raise StoreError(f"the store in {directory} cannot be opened: {error}") from error
        except StoreError:
            self.close()
            raise

    # ------------------------------------------------------------------------------------------------------- opening

    def _open_all(self, order: Sequence[tuple[int, int | None]] | None, retired: frozenset[int]) -> None:
        names = self._file_system.names(self._directory)
        present = {number for name in names if (number := segment_number(name)) is not None}
        listed = [] if order is None else [number for number, _ in order]
        for number in listed:
            if number not in present:
                missing = self._directory / segment_name(number)
                raise CorruptLog(str(missing), 0, "a segment file", "no file", DAMAGE_HINT)
        leftovers = sorted(present.difference(listed))
        for number in leftovers:
            self._remove_leftover(number, is_retired=number in retired, is_listed=order is not None)
        if leftovers:
            self._file_system.sync_directory(self._directory)
        self._next_number = max(present.union(listed), default=0) + 1
        for number, committed in order or ():
            path = self._directory / segment_name(number)
            file = self._file_system.open(path)
            segment = self.files[number] = Segment(number, path, file, file.size(), 0)
            segment.salt = decode_segment_header(file.read(0, SEGMENT_HEADER.size), str(path), number)[0]
            if committed is not None:
                if segment.size < committed:
                    raise CorruptLog(str(path), segment.size, f"{committed} bytes", f"{segment.size}", DAMAGE_HINT)
                segment.size = committed
            self._order.append(segment)

    def _remove_leftover(self, number: int, *, is_retired: bool, is_listed: bool) -> None:
        """Remove the rest of an unfinished step, but never a file with commits that the metadata does not list."""
        path = self._directory / segment_name(number)
        if not is_retired:
            file = self._file_system.open(path)
            try:
                head = file.read(0, SEGMENT_HEADER.size + 1)
            finally:
                file.close()
            if not is_listed or not is_leftover(head, path, number):
                raise CorruptLog(
                    str(path), 0, "a segment that meta.sqlite lists", "one with commits that it does not know",
                    "Was meta.sqlite removed, or restored from an older copy? Restore the directory as a whole.",
                )  # fmt: skip
        self._file_system.remove(path)
        logger.warning("%s was left by an unfinished step, and was removed", path)

    def all(self) -> list[Segment]:
        """The segments that count, oldest first; the last one grows."""
        return list(self._order)

    @property
    def end(self) -> tuple[int, int]:
        """(number, committed bytes) of the last segment; (0, 0) if there is none."""
        return (self._order[-1].number, self._order[-1].size) if self._order else (0, 0)

    def cut(self, segment: Segment, size: int) -> None:
        """Cut off a torn commit after `size`."""
        try:
            segment.file.truncate(size)
            segment.file.sync()
        except OSError as error:
            raise StoreError(f"{segment.path} ends in a torn commit that cannot be cut off: {error}") from error
        segment.size = size

    # ------------------------------------------------------------------------------------------------------ appending

    def place(self) -> Segment:
        """The segment to which the next commit is appended. Begins a new one if necessary.

        Raises:
            StoreError: a new segment was necessary and cannot be made.
        """
        if not self._order or self._order[-1].size >= self.segment_bytes or self.must_roll:
            return self.roll()
        return self._order[-1]

    def roll(self) -> Segment:
        """Begin a new segment; the one before can be rewritten then. No commit may be in progress.

        Raises: StoreError: it cannot be made.
        """
        with self._lock:
            number = self._failed_roll or self._take_number()
            # Try the same file again until it is listed, so that empty files do not pile up on a full disk.
            self._failed_roll = number
            segment = self._make(number, SegmentKind.APPENDED)
            try:
                self._save_order([*self._order, segment])
            except StoreError:
                segment.file.close()  # the file stays: the list with it may be durable
                self.must_roll = True  # and if it is, commits into the old last segment would not count
                raise
            self.files[number] = segment
            self._failed_roll = None
            self.must_roll = False
            return segment

    def _take_number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number

    def _make(self, number: int, kind: SegmentKind) -> Segment:
        path = self._directory / segment_name(number)
        salt = self._random.getrandbits(SALT_BITS)
        file: File | None = None
        try:
            file = self._file_system.open(path)
            file.truncate(0)
            size = file.append([encode_segment_header(number, kind, salt)])
            file.sync()
            self._file_system.sync_directory(self._directory)
        except OSError as error:
            if file is not None:
                file.close()
                with suppress(OSError):
                    self._file_system.remove(path)
            raise StoreError(f"{path} cannot be made: {error}") from error
        return Segment(number, path, file, size, salt)

    def _save_order(
        self,
        order: list[Segment],
        retired: Iterable[int] = (),
        save: Save | None = None,
    ) -> None:
        listed: list[list[int | None]] = [[segment.number, segment.size] for segment in order[:-1]]
        listed += [[segment.number, None] for segment in order[-1:]]
        gone = sorted(self._retired.union(retired))
        (save or self._save)({"segments": json.dumps(listed), "retired": json.dumps(gone)})
        self._order = order
        self._retired = set(gone)

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        """Append a commit of `size` bytes to the segment from `place`, and sync. All of it is durable, or none counts.

        Raises:
            StoreError: it is not durable; the file is as before, or takes no more commits.
        """
        segment = self._order[-1]
        try:
            append_to(segment, buffers, size)
            segment.file.sync()
        except (OSError, StoreError) as error:
            try:
                segment.file.truncate(segment.size)
            except OSError:
                self.must_roll = True
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{segment.path}: {size} bytes could not be made durable: {error}") from error
        segment.size += size

    def settle(self) -> None:
        """Cut off the bytes that a failed write may have left after the last commit. Needed before a clean close.

        Raises: StoreError: they cannot be cut off.
        """
        if self._order and self.must_roll:
            self.cut(self._order[-1], self._order[-1].size)
        if self._failed_roll is not None:
            with self._lock:
                self._save_order(self._order)

    # ------------------------------------------------------------------------------------------------------ rewriting

    def begin_rewrite(self) -> SegmentWriter:
        """A new file for copies of live frames.

        Raises: StoreError: it cannot be made.
        """
        with self._lock:
            number = self._take_number()
        return SegmentWriter(self._make(number, SegmentKind.REWRITTEN), self)

    def replace(
        self,
        old: Sequence[Segment],
        new: Sequence[Segment],
        save: Save | None = None,
    ) -> None:
        """List `new`, which are finished, in place of `old`, durably and in one step.

        The old files stay readable until `retire`, which follows the change of the index.

        Args:
            old: adjacent in the order, without the last segment.
            save: used instead of the store's, to make further metadata durable in the same step.

        Raises: StoreError: nothing has changed.
        """
        with self._lock:
            first = self._order.index(old[0])
            if self._order[first : first + len(old)] != [*old] or first + len(old) >= len(self._order):
                raise AssertionError(f"segments {[segment.number for segment in old]} are no neighbours, or still grow")
            order = [*self._order[:first], *new, *self._order[first + len(old) :]]
            self._save_order(order, [segment.number for segment in old], save)

    def retire(self, old: Iterable[Segment]) -> None:
        """Remove files that no index refers to any more. Reads that began before keep them open."""
        gone = {segment.number for segment in old if self.discard(segment)}
        try:
            self._file_system.sync_directory(self._directory)
        except OSError as error:
            logger.warning(
                "%s cannot be synced: %s; the next opening removes what is out of use", self._directory, error
            )
            return
        with self._lock:
            self._retired -= gone  # a power cut cannot bring them back, so they need not be listed

    def discard(self, segment: Segment) -> bool:
        """Remove a file that does not count; it is closed after the last read of it. False if it still exists."""
        self.files.pop(segment.number, None)
        self.cache.forget(segment.number)
        try:
            self._file_system.remove(segment.path)
        except OSError as error:
            logger.warning(
                "%s is out of use and cannot be removed: %s; the next opening tries again", segment.path, error
            )
            return False
        return True

    # -------------------------------------------------------------------------------------------------------- reading

    def read_pieces(self, pieces: Sequence[Piece], *, by_key: bool = False) -> list[Buffer]:
        """The bytes of the pieces; those in files are read and verified.

        Args:
            by_key: use the page cache.

        Raises:
            CorruptLog: a file does not hold the bytes that were written.
            StoreError: the system cannot read it.
        """
        started = self._clock.monotonic()
        parts: list[Buffer] = []
        data: bytes = b""
        latest: tuple[object, int, int] | None = None
        for piece in pieces:
            if not isinstance(piece, tuple):
                parts.append(piece)
                continue
            file, offset, size, begin, end, expected = piece
            if latest != (file, offset, size):  # several short pieces may lie in one page
                if type(expected) is not int:
                    data = read_pages(file, offset, size, expected)
                elif by_key:
                    data = self._cached(piece)
                else:
                    data = read_page(file, offset, size, expected)
                latest = (file, offset, size)
            parts.append(data if begin == 0 and end == size else memoryview(data)[begin:end])
        ended = self._clock.monotonic()
        if ended - started > SLOW_READ_S:
            self._slow_until = ended + SLOW_FOR_S
        return parts

    def would_wait(self, pieces: Sequence[Piece]) -> bool:
        """Whether reading the pieces would wait for the disk; asks the system only if a recent read was slow."""
        now = self._clock.monotonic()
        if now > self._slow_until:
            return False
        for piece in pieces:
            if isinstance(piece, tuple):
                file, offset, size = piece[0].file, piece[1], piece[2]
                if not all(
                    file.is_at_hand(at) for at in (*range(offset, offset + size, PROBE_BYTES), offset + size - 1)
                ):
                    self._slow_until = now + SLOW_FOR_S
                    return True
        return False

    @staticmethod
    def fetch(pieces: Sequence[Piece]) -> None:
        """Let the system read the pieces into its memory. For a worker thread; errors show when they are read."""
        for piece in pieces:
            if isinstance(piece, tuple):
                with suppress(OSError):
                    piece[0].file.read(piece[1], piece[2])

    def _cached(self, piece: FilePiece) -> bytes:
        key = (piece[0].number, piece[1])
        page = self.cache.get(key)
        if page is None:
            page = read_pages(piece[0], piece[1], piece[2], piece[5])
            self.cache.put(key, page)
        return page

    def close(self) -> None:
        """Close all files."""
        for segment in self.files.values():
            segment.file.close()
