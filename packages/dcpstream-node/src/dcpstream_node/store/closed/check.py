"""Checking a store without opening it: the contents of its files, and their damage.

A store that a node has open can be checked too; a commit in progress then looks like a torn end,
which is no damage. Memory: one segment, and the keys of all documents.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from dcpstream.errors import CorruptLog, StoreError, TooManySegments
from dcpstream.runtime import is_locked
from dcpstream.runtime.descriptors import OTHER_DESCRIPTORS
from dcpstream_node.store.closed.detect import copy_of_metadata, is_unfinished
from dcpstream_node.store.items import index_key, seqno_of
from dcpstream_node.store.log.block_scan import Damage, Stretch, damage_of, ends_of, walk_blocks
from dcpstream_node.store.log.blocks import (
    SEGMENT_HEADER,
    BlockHeader,
    StoredKind,
    decode_segment_header,
    segment_name,
    segment_number,
    was_committed_after,
)
from dcpstream_node.store.log.segment_file import is_leftover
from dcpstream_node.store.metadata import FILE_NAME, Metadata, MetadataContents

MAX_LOOKS = 4
"""Attempts at a store in use, whose files a busy node may change between two reads."""
MAX_LISTINGS = 100
"""Attempts to open all listed segments of a store in use before a compaction removes one. Each takes milliseconds."""

_NOT_OF_THE_FILE = frozenset({errno.ENOENT, errno.EMFILE, errno.ENFILE})
"""Errors of opening a file that are no damage: a compaction has removed it, or too many files are open."""

OnProgress = Callable[[int, int], None]
"""Called with the number of bytes checked so far, and the total."""


@dataclass(slots=True, kw_only=True)
class SegmentReport:
    """One segment file.

    Attributes:
        number, file, size: of the segment.
        blocks, frames, frame_bytes: whole blocks and their contents.
        live_frames, live_bytes: frames that are the newest of their keys, tombstones included.
        rollbacks: rollback blocks.
        void_blocks: blocks of vbuckets that were deleted or created again.
        torn_bytes: the rest of an unfinished commit at the end; the next opening cuts it off.
        damage: stretches that do not hold the bytes that were written.
    """

    number: int
    file: str
    size: int = 0
    blocks: int = 0
    frames: int = 0
    frame_bytes: int = 0
    live_frames: int = 0
    live_bytes: int = 0
    rollbacks: int = 0
    void_blocks: int = 0
    torn_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)

    @property
    def superseded_bytes(self) -> int:
        """Frames that are superseded or void."""
        return self.frame_bytes - self.live_bytes


@dataclass(slots=True, kw_only=True)
class StoreReport:
    """A store.

    Attributes:
        directory: of the store.
        format: of the files.
        is_in_use: whether a node has it open.
        was_closed: whether it was closed cleanly.
        vbuckets: the number of existing vbuckets.
        segments: the listed segment files, in order.
        others: unlisted segment files from an unfinished step; the next opening removes them.
        strangers: unlisted segment files with commits.
        problems: descriptions of problems outside the segments.
        is_unfinished: whether this is the rest of a store creation that was cut short. It holds no data.
        last_seqnos: vbucket → the last seqno of its whole blocks. The metadata does not record each commit, so of a
            store that was not closed cleanly a file that was cut between two commits is sound.
    """

    directory: str
    format: str = ""
    is_in_use: bool = False
    was_closed: bool = False
    vbuckets: int = 0
    segments: list[SegmentReport] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_unfinished: bool = False
    last_seqnos: dict[int, int] = field(default_factory=dict)

    @property
    def damage(self) -> list[Damage]:
        """The damage of all segments."""
        return [damage for segment in self.segments for damage in segment.damage]

    @property
    def last_commit(self) -> tuple[str, int] | None:
        """The last segment file with a whole block, and the byte at which its last one ends; None without any."""
        for segment in reversed(self.segments):
            if segment.blocks:
                return segment.file, segment.size - segment.torn_bytes
        return None

    @property
    def is_sound(self) -> bool:
        """Whether the store can be opened and everything in it can be read."""
        return not self.problems and not self.damage


def check_store(
    directory: Path,
    on_progress: OnProgress | None = None,
    *,
    is_acknowledged: bool = False,
) -> StoreReport:
    """Check everything in a store.

    While a node has the store open, files change between two reads. There, only damage that two reads find counts.

    Args:
        is_acknowledged: whether the store is known to have existed; then an unfinished creation counts as damage.

    Raises:
        TooManySegments: the store is in use, and this process may not open all of its files at a time.
        StoreError: a file cannot be read at all, or the store is of another format.
    """
    if not is_acknowledged and is_unfinished(directory):
        return StoreReport(directory=str(directory), is_in_use=is_locked(directory), is_unfinished=True)
    report = _look(directory, on_progress)
    for _ in range(MAX_LOOKS - 1):
        if report.is_sound or not report.is_in_use:
            break
        before, report = report, _look(directory, on_progress)
        if (before.problems, before.damage) == (report.problems, report.damage):
            break
    return report


def _look(directory: Path, on_progress: OnProgress | None) -> StoreReport:
    with ExitStack() as held:
        before = None
        for _ in range(MAX_LISTINGS):
            held.close()
            report = StoreReport(directory=str(directory), is_in_use=is_locked(directory))
            order, metadata = _listing(directory, report)
            # A file that is open can be read to its end, also after a compaction has removed it.
            files = _opened(directory, order, held) if report.is_in_use else {}
            # A compaction lists other files before it removes one. What is still listed, and not there, is lost.
            if not report.is_in_use or len(files) == len(order) or order == before:
                break
            before = order
        _Walk(directory, report, order, metadata, files).run(on_progress)
    return report


def _listing(directory: Path, report: StoreReport) -> tuple[list[tuple[int, int | None]], MetadataContents | None]:
    """The segments that count, with their committed bytes, and the metadata; problems are added to the report."""
    # The heads come first: a node commits into a file only after it has listed it in the metadata.
    heads = _heads(directory)
    metadata = _read_metadata(directory, report)
    numbers = sorted(heads)
    order: list[tuple[int, int | None]] = [(number, None) for number in numbers]
    if metadata is not None:
        listed = metadata.order
        if listed is None and numbers:
            report.problems.append(f"{FILE_NAME} does not list the segments that are there")
        elif listed is not None:
            order = listed
        report.was_closed = metadata.closed_at is not None
        report.vbuckets = sum(line.state is not None for line in metadata.lines.values())
        for number in sorted({*numbers}.difference(number for number, _ in order)):
            name = segment_name(number)
            if number in metadata.retired or is_leftover(heads[number], directory / name, number):
                report.others.append(name)
            elif (directory / name).exists():  # otherwise a compaction has removed it since
                report.strangers.append(name)
    for name in report.strangers:
        report.problems.append(f"{name} holds commits that {FILE_NAME} knows nothing of: is that an older copy?")
    return order, metadata


def _heads(directory: Path) -> dict[int, bytes]:
    """The first bytes of each segment file by its number, as `is_leftover` needs them."""
    found: dict[int, bytes] = {}
    for entry in directory.iterdir():
        number = segment_number(entry.name)
        if number is not None:
            with suppress(FileNotFoundError), _to_read(entry) as file:
                found[number] = file.read(SEGMENT_HEADER.size + 1)
    return found


def _opened(directory: Path, order: list[tuple[int, int | None]], held: ExitStack) -> dict[int, BinaryIO]:
    """The listed segment files, open; those that do not exist are left out.

    Raises:
        TooManySegments: the system does not allow that many open files. StoreError: a file cannot be opened.
    """
    found: dict[int, BinaryIO] = {}
    for number, _ in order:
        try:
            found[number] = held.enter_context(_to_read(directory / segment_name(number)))
        except FileNotFoundError:
            continue
        except OSError as error:
            needed = len(order) + OTHER_DESCRIPTORS
            raise TooManySegments(
                f"{directory}: a node has the store open, and the check cannot open all of its {len(order)} segment "
                f"files at a time: {error.strerror}. Allow {needed} open files (`ulimit -n {needed}`), or stop the "
                "node: a store that is not in use is read file by file."
            ) from error
    return found


def _to_read(path: Path) -> BinaryIO:
    """A file opened for reading, without a buffer.

    Raises:
        OSError: it does not exist, or too many files are open. StoreError: it cannot be opened for another reason.
    """
    try:
        return cast("BinaryIO", path.open("rb", buffering=0))
    except OSError as error:
        if error.errno in _NOT_OF_THE_FILE:
            raise
        raise StoreError(f"{path} cannot be read: {error}") from error


def _read_metadata(directory: Path, report: StoreReport) -> MetadataContents | None:
    """Read a copy of the metadata file, and add its problems to the report.

    Raises:
        StoreError: the store is of another format.
    """
    path = directory / FILE_NAME
    if not path.exists():
        report.problems.append(f"{path} is missing: states, failover logs and the order of the segments are unknown")
        return None
    with copy_of_metadata(directory) as copy:

        def message(error: object) -> str:
            return str(error).replace(str(copy), str(directory))

        try:
            metadata = Metadata(copy)
        except CorruptLog as error:
            report.problems.append(message(error))
            try:
                metadata = Metadata(copy, verify=False)
            except StoreError:
                return None
        except StoreError as error:
            if "is in store format" in str(error):
                raise StoreError(message(error)) from None
            report.problems.append(message(error))
            return None
        try:
            report.format = metadata.get("format") or ""
            found = metadata.contents()
        except StoreError as error:
            report.problems.append(message(error))
            return None
        else:
            report.problems += [f"{path}: {problem}" for problem in metadata.integrity()]
            return found
        finally:
            metadata.close()


class _Walk:
    """A walk through the segments: forward to find damage, then backward to count live frames."""

    def __init__(
        self,
        directory: Path,
        report: StoreReport,
        order: list[tuple[int, int | None]],
        metadata: MetadataContents | None,
        files: Mapping[int, BinaryIO],
    ) -> None:
        self._directory = directory
        self._files = files
        self._report = report
        self._order = order
        self._metadata = metadata
        self._closed_at = None if metadata is None else metadata.closed_at
        self._last: dict[int, int] = {}

    def run(self, on_progress: OnProgress | None) -> None:
        """Fill the report."""
        sizes = {}
        for number, _ in self._order:
            sizes[number] = 0
            with suppress(FileNotFoundError):
                file = self._files.get(number)
                path = self._directory / segment_name(number)
                sizes[number] = (path.stat() if file is None else os.fstat(file.fileno())).st_size
        total, done = 2 * sum(sizes.values()), 0
        readable: list[tuple[SegmentReport, int]] = []
        for index, (number, committed) in enumerate(self._order):
            segment = SegmentReport(number=number, file=str(self._directory / segment_name(number)))
            self._report.segments.append(segment)
            data = self._read(segment, committed)
            if data is not None:
                segment.size = len(data)
                try:
                    salt, _ = decode_segment_header(data, segment.file, number)
                except CorruptLog as error:
                    what = f"the segment's header: expected {error.expected}, found {error.actual}"
                    segment.damage.append(
                        Damage(file=segment.file, offset=0, size=len(data), what=f"{what}; nothing in it can be read")
                    )
                else:
                    self._forward(segment, data, salt, is_last=index == len(self._order) - 1)
                    readable.append((segment, salt))
            done += sizes[number]
            if on_progress is not None:
                on_progress(done, total)
        self._report.last_seqnos = dict(sorted(self._last.items()))
        cutoffs: dict[int, int] = {}
        seen: dict[int, set[bytes]] = {}
        for segment, salt in reversed(readable):
            data = self._read(segment, segment.size - segment.torn_bytes)
            if data is not None:
                self._backward(segment, data, salt, cutoffs, seen)
            done += sizes[segment.number]
            if on_progress is not None:
                on_progress(done, total)

    def _read(self, segment: SegmentReport, committed: int | None) -> bytes | None:
        path = Path(segment.file)
        try:
            file = self._files.get(segment.number)
            if file is None:
                data = path.read_bytes()
            else:
                file.seek(0)
                data = file.read()
        except FileNotFoundError:
            segment.damage.append(Damage(file=segment.file, offset=0, size=0, what="the file is missing"))
            return None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        if committed is not None and len(data) < committed:
            what = f"the file has {len(data)} bytes instead of {committed}"
            if not any(damage.what == what for damage in segment.damage):
                segment.damage.append(
                    Damage(file=segment.file, offset=len(data), size=committed - len(data), what=what)
                )
        return data if committed is None else data[:committed]

    def _forward(self, segment: SegmentReport, data: bytes, salt: int, *, is_last: bool) -> None:
        for stretch in walk_blocks(data, salt):
            header = stretch.header
            if stretch.is_whole and header is not None:
                self._count(segment, header, stretch)
                continue
            is_torn = is_last and self._closed_at is None and not was_committed_after(data, stretch.offset, salt)
            if is_torn:
                segment.torn_bytes = len(data) - stretch.offset
                return
            segment.damage += damage_of(segment.file, data, stretch)
            if header is not None and header.kind == StoredKind.FRAMES and self._counts(header):
                self._last[header.vbid] = max(self._last.get(header.vbid, 0), header.last_seqno)
        if is_last and self._closed_at is not None and self._closed_at != (segment.number, len(data)):
            self._report.problems.append(
                f"the store was closed with segment {self._closed_at[0]} of {self._closed_at[1]} bytes at the end, and "
                f"now ends with segment {segment.number} of {len(data)}"
            )

    def _count(self, segment: SegmentReport, header: BlockHeader, stretch: Stretch) -> None:
        segment.blocks += 1
        if not self._counts(header):
            segment.void_blocks += 1
            segment.frames += header.frames
            segment.frame_bytes += header.frames_bytes
            return
        if header.kind == StoredKind.ROLLBACK:
            segment.rollbacks += 1
            self._last[header.vbid] = min(self._last.get(header.vbid, 0), header.last_seqno)
            return
        last = self._last.get(header.vbid, 0)
        if header.first_seqno <= last:
            segment.damage.append(
                Damage(
                    file=segment.file, offset=stretch.offset, size=0, vbid=header.vbid,
                    first_seqno=header.first_seqno, last_seqno=last, is_rollback=True,
                    what=f"seqno {header.first_seqno} comes after {last}: a rollback block between them is lost",
                )
            )  # fmt: skip
        self._last[header.vbid] = header.last_seqno
        segment.frames += header.frames
        segment.frame_bytes += header.frames_bytes

    def _counts(self, header: BlockHeader) -> bool:
        """Whether the block's vbucket exists, in the block's incarnation; true if that is unknown."""
        return self._metadata is None or self._metadata.counts(header.vbid, header.incarnation)

    def _backward(
        self, segment: SegmentReport, data: bytes, salt: int, cutoffs: dict[int, int], seen: dict[int, set[bytes]]
    ) -> None:
        """Count live frames from the newest block on; a rollback voids frames of the blocks before it."""
        for stretch in reversed([*walk_blocks(data, salt)]):
            header = stretch.header
            if header is None or not stretch.is_whole or not self._counts(header):
                continue
            vbid = header.vbid
            if header.kind == StoredKind.ROLLBACK:
                cutoffs[vbid] = min(cutoffs.get(vbid, header.last_seqno), header.last_seqno)
                continue
            cutoff, keys = cutoffs.get(vbid, 2**64), seen.setdefault(vbid, set())
            base, ends = stretch.offset + header.frames_at, ends_of(data, stretch.offset, header)
            for begin, end in reversed([*zip((0, *ends), ends, strict=False)]):
                frame = data[base + begin : base + end]
                key = index_key(frame)
                if key in keys or seqno_of(frame) > cutoff:
                    continue
                keys.add(key)
                segment.live_frames += 1
                segment.live_bytes += end - begin
