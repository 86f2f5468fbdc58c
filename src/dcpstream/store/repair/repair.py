"""Repairing a damaged store: cut out the unreadable parts, so that the store opens again.

Theory of operation: each damaged segment is copied, without the damage, into a new file that replaces it. The damaged
files go to `lost+found`, with a report and a copy of the old metadata. Every vbucket that lost frames begins a new
branch at its last seqno before the loss, so that clients beyond it roll back to there and read again. One
transaction switches from the old files to the new ones.

If a newer version of a document is lost and an older one is not, the older one is the newest again, as after a
rollback. If the owner of lost bytes is unknown, every vbucket begins a new branch; if a rollback block was among them,
the rows that it had voided are back.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from dcpstream.errors import CorruptLog, StoreError, StoreInUse
from dcpstream.model import FailoverEntry, FailoverLog
from dcpstream.runtime import Random, SystemFileSystem, SystemRandom, make_private, new_vbuuid
from dcpstream.store.items import seqno_of
from dcpstream.store.log.block_scan import Stretch, ends_of, pages_of, walk_blocks
from dcpstream.store.log.blocks import (
    BLOCK_HEADER,
    MARK,
    SALT_BITS,
    SEGMENT_HEADER,
    BlockHeader,
    Mark,
    SegmentKind,
    StoredKind,
    decode_segment_header,
    encode_block_head,
    encode_rollback,
    encode_segment_header,
    segment_name,
    segment_number,
)
from dcpstream.store.metadata import FILE_NAME, Metadata, VbucketMetadata
from dcpstream.store.repair.check import OnProgress, StoreReport, check_store

logger = logging.getLogger(__name__)

LOST_AND_FOUND = "lost+found"
MAX_REPAIRS = 1000
"""Largest number of directories in `lost+found`; a disk with more damage should be replaced."""


@dataclass(slots=True, kw_only=True)
class Repair:
    """The result of a repair, or its plan.

    Attributes:
        directory: of the store.
        before: the check before the repair.
        kept_in: the directory of the damaged files and the report; empty if nothing was done.
        rewritten: segment files that were copied without their damage.
        dropped: listed segment files of which nothing can be read.
        branches: vbid → the seqno at which its new branch begins.
        impossible: the reason why the store cannot be repaired; empty if it can.
        removed: whether the directory was the rest of an unfinished creation, and was removed.
    """

    directory: str
    before: StoreReport
    kept_in: str = ""
    rewritten: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    branches: dict[int, int] = field(default_factory=dict)
    impossible: str = ""
    removed: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether there was damage to repair."""
        return not self.before.is_sound


def repair_store(
    directory: Path,
    *,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
    is_acknowledged: bool = False,
    random: Random | None = None,
) -> Repair:
    """Repair a store so that it opens. A sound store stays as it is.

    Args:
        dry_run: only plan the repair.
        is_acknowledged: see `check_store`.
        random: the source of salts and vbuuids; the system's by default.

    Raises:
        StoreError: a node has the store open, it is of another format, or a file cannot be read or written.
    """
    try:
        lock = SystemFileSystem().lock_directory(directory)
    except BlockingIOError as error:
        raise StoreInUse(f"the store in {directory} is in use; stop the node first") from error
    except OSError as error:
        raise StoreError(f"the store in {directory} cannot be repaired: {error}") from error
    try:
        report = check_store(directory, on_progress, is_acknowledged=is_acknowledged, holds_lock=True)
        repair = Repair(directory=str(directory), before=report)
        if report.is_unfinished:
            repair.removed = True
            if not dry_run:
                shutil.rmtree(directory)
            return repair
        if not repair.is_needed:
            return repair
        try:
            metadata = Metadata(directory, verify=False) if (directory / FILE_NAME).exists() else None
        except StoreError as error:
            metadata, repair.impossible = None, str(error)
        if metadata is None:
            repair.impossible = repair.impossible or f"{directory / FILE_NAME} is missing"
            repair.impossible = repair.impossible.rstrip(".") + (
                ". States, failover logs and the order of the segments are in no other file: restore it from a copy "
                "that is as old as the segments, or start empty and let the node be filled again."
            )
            return repair
        with closing(metadata):
            try:
                repairer = _Repairer(directory, metadata, repair, random or SystemRandom())
            except CorruptLog as error:  # lines whose values cannot be read
                repair.impossible = str(error)
                return repair
            try:
                repairer.run(dry_run=dry_run)
            except OSError as error:
                raise StoreError(f"the store in {directory} cannot be repaired: {error}") from error
        return repair
    finally:
        lock.release()


class _Repairer:
    """One repair. It goes through the segments in order; `_last` is the last seqno of each vbucket so far.

    Raises: CorruptLog: the metadata holds unreadable values.
    """

    def __init__(self, directory: Path, metadata: Metadata, repair: Repair, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._metadata = metadata
        self._repair = repair
        self._found = metadata.contents()
        self._lines = self._found.lines
        self._last: dict[int, int] = {}
        self._is_metadata_damaged = repair.before.is_metadata_damaged or bool(repair.before.strangers)
        self._snapshots: dict[int, tuple[int, int]] = {}

    def run(self, *, dry_run: bool) -> None:
        """Plan the repair, and carry it out."""
        order = self._found.order
        if order is None:
            self._repair.impossible = f"{self._directory / FILE_NAME} does not list the segments"
            return
        if self._is_metadata_damaged:
            self._everybody(0)
        damaged = {segment.number for segment in self._repair.before.segments if segment.damage}
        made: dict[int, bytes | None] = {}
        for number, committed in order:
            made_of = self._without_damage(number, committed, is_damaged=number in damaged)
            if number in damaged:
                made[number] = made_of
                (self._repair.dropped if made_of is None else self._repair.rewritten).append(segment_name(number))
        if self._repair.before.problems and not self._is_metadata_damaged:
            self._everybody()  # the end of the last segment is gone
        if not dry_run:
            self._switch(order, made)

    # --------------------------------------------------------------------------------------------------- lost seqnos

    def _lost(self, vbid: int, seqno: int) -> None:
        """Note that a vbucket's history is incomplete above a seqno."""
        line = self._lines.get(vbid)
        if line is not None and line.state is not None:
            self._repair.branches[vbid] = min(seqno, self._repair.branches.get(vbid, seqno))

    def _everybody(self, seqno: int | None = None) -> None:
        for vbid in self._lines:
            self._lost(vbid, self._before_loss(vbid) if seqno is None else seqno)

    def _before_loss(self, vbid: int) -> int:
        """The last seqno up to which a vbucket is complete; never inside a snapshot, which is no state of a bucket."""
        last = self._last.get(vbid, 0)
        start, end = self._snapshots.get(vbid, (0, 0))
        return min(last, start) if end > last else last

    def _without_damage(self, number: int, committed: int | None, *, is_damaged: bool) -> bytes | None:
        """The blocks of a damaged segment without the damage; empty for a sound one, None if no block is readable."""
        path = self._directory / segment_name(number)
        if not path.exists():
            self._everybody()
            return None
        data = path.read_bytes()[:committed]
        torn = next(segment.torn_bytes for segment in self._repair.before.segments if segment.number == number)
        try:
            salt, _ = decode_segment_header(data, str(path), number)
        except StoreError:
            self._everybody()
            return None
        kept = bytearray()
        for stretch in walk_blocks(data[: len(data) - torn], salt):
            self._keep(data, salt, stretch, kept)
        if committed is not None and len(data) < committed:
            self._everybody()
        return bytes(kept) if is_damaged else b""

    def _keep(self, data: bytes, salt: int, stretch: Stretch, kept: bytearray) -> None:
        """Add the readable blocks of a stretch. Their commit offsets stay: only a growing file needs right ones."""
        header = stretch.header
        if header is None:
            self._everybody()
            return
        vbid = header.vbid
        if not self._found.counts(vbid, header.incarnation):
            # A void block; kept, because the metadata that makes it void may be damaged itself.
            kept += data[stretch.offset : stretch.offset + stretch.size] if stretch.is_whole else b""
            return
        if header.kind == StoredKind.ROLLBACK:
            # A rollback's header holds all its information.
            kept += encode_rollback(salt, vbid, header.incarnation, commit_offset=0, seqno=header.last_seqno)
            self._last[vbid] = min(self._last.get(vbid, 0), header.last_seqno)
            if vbid in self._repair.branches:
                self._lost(vbid, header.last_seqno)  # no branch begins above the last row
            return
        last = self._last.get(vbid, 0)
        if header.first_seqno <= last:
            # The rollback block between them is lost; write it again.
            kept += encode_rollback(salt, vbid, header.incarnation, commit_offset=0, seqno=header.first_seqno - 1)
            self._lost(vbid, header.first_seqno - 1)
            self._last[vbid] = header.first_seqno - 1
        if stretch.is_whole:
            kept += data[stretch.offset : stretch.offset + stretch.size]
        else:
            if stretch.are_tables_whole:
                self._go_to_loss(data, stretch, header)
            self._lost(vbid, self._before_loss(vbid))
            if stretch.are_tables_whole:
                for head, frames in _whole_parts(data, salt, stretch, header):
                    kept += head
                    kept += frames
        self._last[vbid] = header.last_seqno
        marks = _marks_of(data, stretch, header) if stretch.are_tables_whole else []
        self._snapshots[vbid] = marks[-1][1:] if marks else (0, 0)

    def _go_to_loss(self, data: bytes, stretch: Stretch, header: BlockHeader) -> None:
        """Move `_last` to the last frame before the first damaged page of a block."""
        base = stretch.offset + header.frames_at
        first_lost = stretch.damaged_pages[0][0] - base
        starts = [0, *ends_of(data, stretch.offset, header)]
        whole = [start for start, end in pairwise(starts) if end <= first_lost]
        if whole:
            seqno = self._last[header.vbid] = seqno_of(data, base + whole[-1])
            marks = [mark for mark in _marks_of(data, stretch, header) if mark[0] <= seqno]
            self._snapshots[header.vbid] = marks[-1][1:] if marks else (0, 0)

    # -------------------------------------------------------------------------------------------------------- writing

    def _switch(self, order: list[tuple[int, int | None]], made: dict[int, bytes | None]) -> None:
        present = [number for entry in self._directory.iterdir() if (number := segment_number(entry.name)) is not None]
        following = max([*present, *(number for number, _ in order)], default=0) + 1
        kept_in = self._make_room()
        new_order: list[tuple[int, int | None]] = []
        for number, committed in order:
            if number not in made:
                new_order.append((number, committed))
                continue
            blocks = made[number]
            if blocks:
                new_order.append((following, self._write(following, self._salt_of(number), blocks)))
                following += 1
        if not new_order or new_order[-1][1] is not None:
            # The last segment grows, which a copy must not: the commit offsets of its blocks are wrong.
            self._write(following, self._random.getrandbits(SALT_BITS), b"", SegmentKind.APPENDED)
            new_order.append((following, None))
        values = {
            "segments": json.dumps(new_order),
            "retired": json.dumps(sorted({*self._found.retired, *made})),
        }
        if self._found.closed_at is not None:
            last = self._directory / segment_name(new_order[-1][0])
            values["closed_at"] = json.dumps([new_order[-1][0], last.stat().st_size])
        self._metadata.put(values, self._new_lines())
        make_private(self._directory)  # also files of older versions
        for name in [*self._repair.before.strangers, *map(segment_name, made)]:
            path = self._directory / name
            if path.exists():
                path.rename(kept_in / path.name)
        _sync(self._directory)
        _sync(kept_in)

    def _make_room(self) -> Path:
        """A new directory in `lost+found`, with the report and the old metadata."""
        for count in range(1, MAX_REPAIRS + 1):
            path = self._directory / LOST_AND_FOUND / f"repair-{count}"
            if not path.exists():
                SystemFileSystem().make_directory(path)
                break
        else:
            raise StoreError(f"{self._directory / LOST_AND_FOUND} holds {MAX_REPAIRS} repairs; move them away")
        self._repair.kept_in = str(path)
        shutil.copyfile(self._directory / FILE_NAME, path / FILE_NAME)
        (path / "report.json").write_text(json.dumps(asdict(self._repair), indent=2) + "\n", encoding="utf-8")
        make_private(path)
        for entry in path.iterdir():
            _sync(entry)
        _sync(path)
        return path

    def _salt_of(self, number: int) -> int:
        """The damaged file's salt, which seeds the checksums of the blocks that are copied."""
        path = self._directory / segment_name(number)
        with path.open("rb") as file:
            return decode_segment_header(file.read(SEGMENT_HEADER.size), str(path), number)[0]

    def _write(self, number: int, salt: int, blocks: bytes, kind: SegmentKind = SegmentKind.REWRITTEN) -> int:
        path = self._directory / segment_name(number)
        with path.open("wb") as file:
            file.write(encode_segment_header(number, kind, salt))
            file.write(blocks)
            file.flush()
            os.fsync(file.fileno())
        make_private(path)
        _sync(self._directory)
        return SEGMENT_HEADER.size + len(blocks)

    def _new_lines(self) -> list[VbucketMetadata]:
        lines = []
        for vbid, seqno in sorted(self._repair.branches.items()):
            line = self._lines[vbid]
            entry = FailoverEntry(new_vbuuid(self._random), seqno)
            known = None if self._is_metadata_damaged else line.failover_log
            log = FailoverLog((entry,)) if known is None else known.pushed(entry)
            lines.append(replace(line, failover_log=log))
        return lines


def _whole_parts(data: bytes, salt: int, stretch: Stretch, header: BlockHeader) -> Iterable[tuple[bytes, bytes]]:
    """The whole pages of a block with damaged pages, as blocks of their own: head and frames of each."""
    base = stretch.offset + header.frames_at
    ends = ends_of(data, stretch.offset, header)
    marks = _marks_of(data, stretch, header)
    for begin, finish, expected in pages_of(data, stretch.offset, header):
        if (base + begin, base + finish) in stretch.damaged_pages:
            continue
        frames = data[base + begin : base + finish]
        rows = [row for row, end in enumerate(ends) if begin < end <= finish]
        seqnos = [seqno_of(data, base + (ends[row - 1] if row else 0)) for row in rows]
        head = encode_block_head(
            salt,
            header.vbid,
            header.incarnation,
            commit_offset=0,
            seqnos=(seqnos[0], seqnos[-1]),
            occurring=header.occurring,
            ends=[ends[row] - begin for row in rows],
            page_ends=[finish - begin],
            page_checksums=[expected],
            marks=_marks_within(marks, seqnos[0], seqnos[-1]),
        )
        yield head, frames


def _marks_of(data: bytes, stretch: Stretch, header: BlockHeader) -> list[Mark]:
    size = MARK.size * header.marks
    at = stretch.offset + BLOCK_HEADER.size + header.tables_bytes - size
    return [*MARK.iter_unpack(data[at : at + size])]


def _marks_within(marks: list[Mark], first: int, last: int) -> list[Mark]:
    covering = [mark for mark in marks if mark[0] <= first][-1:]
    found = [(first, mark[1], mark[2]) for mark in covering]
    return found + [mark for mark in marks if first < mark[0] <= last]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
