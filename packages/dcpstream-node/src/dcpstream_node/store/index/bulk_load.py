"""Entering the frames of one segment into the indexes of its vbuckets, in bulk, while a store opens.

All frames of the segment are read as columns, so that the cost per frame is little more than making its key and
entering it in the dict.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dcpstream.errors import CorruptLog
from dcpstream.wire.codes import Opcode
from dcpstream.wire.frames import HEADER_BYTES
from dcpstream.wire.stored.block import BlockKind, frame_kinds
from dcpstream_node.store.index.rows import KIND_SHIFT, RowTable, U64s, collection_of
from dcpstream_node.store.items import (
    PREPARE,
    REVISION_AT,
    SEQNO_AT,
    SYSTEM,
    UNTOLD_REVISION,
    U32s,
    index_key,
    is_collection_end,
)
from dcpstream_node.store.log.blocks import (
    BLOCK_HEADER,
    CHECKSUM,
    DAMAGE_HINT,
    END_BYTES,
    MARK,
    PAGE_BYTES_IN_TABLE,
)
from dcpstream_node.store.log.frame_log import FrameLog
from dcpstream_node.store.log.segment_file import Segment

MIN_KEYS_OF_A_LENGTH = 32
"""With fewer keys of each length than this, slicing them one by one is cheaper."""

Offsets = npt.NDArray[np.int64]
_VBID_AT, _FRAMES_AT, _PAGES_AT, _MARKS_AT, _SIZE_AT = 6, 12, 34, 36, 44
"""Offsets in `BLOCK_HEADER`."""
_NAMED = int(BlockKind.NAMED_COLLECTION)


def _lookup(kinds: Iterable[BlockKind]) -> npt.NDArray[np.uint8]:
    """The kinds by the value of a header byte, as u8[256]."""
    return np.asarray([int(kind) for kind in kinds], dtype=np.uint8)


_KINDS_OF_OPCODE = _lookup(frame_kinds(opcode, 0, b"\0") for opcode in range(256))
_KINDS_OF_DATATYPE = _lookup(frame_kinds(Opcode.DCP_MUTATION, datatype, b"\0") for datatype in range(256))


def _not_rising(file: Segment, offset: int, vbid: int, seqno: int, last: int) -> CorruptLog:
    """The error for a seqno that does not rise, although every checksum fits."""
    return CorruptLog(str(file.path), offset, f"a seqno above {last} of vbucket {vbid}", str(seqno), DAMAGE_HINT)


class History(NamedTuple):
    """The index and the frame positions of one vbucket, which are filled together."""

    rows: RowTable
    log: FrameLog


def load_blocks(histories: Mapping[int, History], file: Segment, data: bytes, blocks: Sequence[int]) -> None:
    """Enter the verified blocks of frames at these offsets of a segment.

    All frames become columns, sorted by vbucket; one bulk step per vbucket follows.

    Args:
        histories: by vbid.
        data: the segment's bytes.

    Raises:
        CorruptLog: the seqnos of a vbucket do not rise.
    """
    if not blocks:
        return
    halves, words = _unaligned(data, ">u2"), _unaligned(data, ">u4")
    offsets, vbids, counts, page_counts, block_sizes, tables, bases = _columns(halves, words, blocks)
    firsts = np.cumsum(counts) - counts  # of each block, its first row among all

    octets = np.frombuffer(data, dtype=np.uint8)
    total = int(counts.sum())
    within = np.arange(total, dtype=np.int64) - np.repeat(firsts, counts)
    ends = words[np.repeat(tables, counts) + 4 * within].astype(np.int64)
    begins = np.empty_like(ends)
    begins[1:] = ends[:-1]
    begins[firsts] = 0
    sizes = ends - begins
    starts = begins + np.repeat(bases, counts)

    opcodes = octets[starts + 1]
    key_starts = starts + HEADER_BYTES + octets[starts + 4]
    key_stops = key_starts + halves[starts + 2]
    seqnos = _unaligned(data, ">u8")[starts + SEQNO_AT].astype(np.uint64)
    kinds = _KINDS_OF_OPCODE[opcodes] | _KINDS_OF_DATATYPE[octets[starts + 5]]
    revisions, times = _fields(data, starts, opcodes, kinds)
    in_default = octets[np.minimum(key_starts, len(octets) - 1)] == 0
    kinds[~in_default & (opcodes != Opcode.DCP_SYSTEM_EVENT)] |= _NAMED
    keys = _keys(data, key_starts, key_stops)
    ends_of_collections: list[int] = []
    for row in np.flatnonzero(kinds & (SYSTEM | PREPARE)).tolist():
        event = data[int(starts[row]) : int(starts[row] + sizes[row])]
        keys[row] = index_key(event)
        if is_collection_end(event):
            ends_of_collections.append(row)

    block_bounds = [0, *(np.flatnonzero(np.diff(vbids)) + 1).tolist(), len(vbids)]
    pages = _Pages(data, words, counts, tables, page_counts)
    _check_rising(file, offsets, vbids, firsts, block_bounds, seqnos)

    # Each vbucket has the blocks [block, next_block); `firsts` leads from there to its rows.
    addresses = bases + file.address
    for block, next_block in pairwise(block_bounds):
        first = int(firsts[block])
        stop = int(firsts[next_block]) if next_block < len(firsts) else total
        vbid = int(vbids[block])
        rows, log = histories[vbid]
        positions = np.cumsum(sizes[first:stop]) + rows.end
        block_ends = np.cumsum(block_sizes[block:next_block]) + rows.end
        pages.enter(log, block, next_block, block_ends - block_sizes[block:next_block], addresses[block:next_block])
        of_rows = kinds[first:stop].astype(np.uint64)
        tagged = (positions - sizes[first:stop]).astype(np.uint64) | of_rows << np.uint64(KIND_SHIFT)
        if rows.seqnos and seqnos[first] <= rows.seqnos[-1]:
            raise _not_rising(file, int(offsets[block]), vbid, int(seqnos[first]), rows.seqnos[-1])
        own_keys = keys[first:stop]
        before = len(rows.seqnos) - first
        rows.extend_columns(seqnos[first:stop], tagged, times[first:stop], revisions[first:stop])
        rows.end = int(positions[-1])
        own_seqnos = seqnos[first:stop].tolist()
        entered = first
        for row in ends_of_collections[
            bisect_left(ends_of_collections, first) : bisect_left(ends_of_collections, stop)
        ]:
            # The end supersedes the rows before it, and none after it.
            rows.index_rows(keys[entered : row + 1], own_seqnos[entered - first : row + 1 - first])
            rows.end_collection(collection_of(keys[row]), before + row)
            entered = row + 1
        rows.index_rows(own_keys if entered == first else keys[entered:stop], own_seqnos[entered - first :])
        if int(np.bitwise_or.reduce(of_rows)) & (_NAMED | SYSTEM | PREPARE):
            for key, seqno in zip(own_keys, own_seqnos, strict=True):
                rows.collection_high[collection_of(key)] = seqno
        else:
            rows.collection_high[0] = rows.seqnos[-1]


def _fields(
    data: bytes, starts: Offsets, opcodes: npt.NDArray[np.uint8], kinds: npt.NDArray[np.uint8]
) -> tuple[U32s, U32s]:
    """Revision and time of each frame, as the index keeps them (`fields_of` for one frame)."""
    revisions = np.minimum(_unaligned(data, ">u8")[starts + REVISION_AT], UNTOLD_REVISION).astype(np.uint32)
    # A tombstone's delete time stands where a mutation has its flags.
    words = _unaligned(data, ">u4")
    places = starts + (REVISION_AT + 8)
    places[opcodes == Opcode.DCP_MUTATION] += 4
    times = words[np.minimum(places, len(words) - 1)].astype(np.uint32)
    others = kinds & (SYSTEM | PREPARE) != 0
    revisions[others], times[others] = UNTOLD_REVISION, 0
    return revisions, times


def _columns(halves: Any, words: Any, blocks: Sequence[int]) -> tuple[Offsets, ...]:
    """The blocks at these offsets, sorted by vbucket, as columns.

    Returns: offsets, vbids, numbers of frames, numbers of pages, bytes of frames, offsets of tables, offsets of frames.
    """
    offsets = np.asarray(blocks, dtype=np.int64)
    vbids = halves[offsets + _VBID_AT]
    order = np.argsort(vbids, kind="stable")
    offsets, vbids = offsets[order], vbids[order]
    counts = words[offsets + _FRAMES_AT].astype(np.int64)
    page_counts = halves[offsets + _PAGES_AT].astype(np.int64)
    block_sizes = words[offsets + _SIZE_AT].astype(np.int64)
    tables = offsets + BLOCK_HEADER.size
    marks_bytes = halves[offsets + _MARKS_AT].astype(np.int64) * MARK.size
    bases = tables + END_BYTES * counts + PAGE_BYTES_IN_TABLE * page_counts + marks_bytes + CHECKSUM.size
    return offsets, vbids, counts, page_counts, block_sizes, tables, bases


def _check_rising(
    file: Segment, offsets: Offsets, vbids: Offsets, firsts: Offsets, block_bounds: list[int], seqnos: U64s
) -> None:
    """Refuse rows of a vbucket whose seqnos do not rise."""
    falls = seqnos[1:] <= seqnos[:-1]
    falls[firsts[block_bounds[1:-1]] - 1] = False  # from one vbucket to the next
    if falls.any():
        row = int(np.flatnonzero(falls)[0]) + 1
        block = int(np.searchsorted(firsts, row, side="right")) - 1
        raise _not_rising(file, int(offsets[block]), int(vbids[block]), int(seqnos[row]), int(seqnos[row - 1]))


class _Pages:
    """The page tables of some blocks, as columns."""

    def __init__(self, data: bytes, words: Any, counts: Offsets, tables: Offsets, pages: Offsets) -> None:
        self._counts = pages
        self._firsts = np.cumsum(pages) - pages
        total = int(pages.sum())
        within = np.arange(total, dtype=np.int64) - np.repeat(self._firsts, pages)
        at = np.repeat(tables + END_BYTES * counts, pages)
        ends = words[at + END_BYTES * within].astype(np.int64)
        self._begins = np.empty_like(ends)
        self._begins[1:] = ends[:-1]
        self._begins[self._firsts] = 0
        self._sizes = ends - self._begins
        self._checksums = _unaligned(data, ">u8")[at + np.repeat(END_BYTES * pages, pages) + CHECKSUM.size * within]

    def enter(self, log: FrameLog, block: int, next_block: int, starts: Offsets, addresses: Offsets) -> None:
        """Add the pages of the blocks [block, next_block), whose first frames have these positions and addresses."""
        counts = self._counts[block:next_block]
        first = int(self._firsts[block])
        stop = first + int(counts.sum())
        begins = self._begins[first:stop]
        log.page_starts.frombytes((np.repeat(starts, counts) + begins).astype(np.uint64).tobytes())
        log.page_addresses.frombytes((np.repeat(addresses, counts) + begins).astype(np.uint64).tobytes())
        log.page_sizes.frombytes(self._sizes[first:stop].astype(np.uint32).tobytes())
        log.page_checksums.frombytes(self._checksums[first:stop].astype(np.uint64).tobytes())


def _keys(data: bytes, starts: Offsets, stops: Offsets) -> list[bytes]:
    """The bytes [start, stop) for each pair.

    numpy makes the keys of one length at a time, as elements of a void type, at a quarter of the cost of slices. Unlike
    numpy's byte strings, elements of a void type keep zero bytes at their end.
    """
    lengths = stops - starts
    occurring = np.flatnonzero(np.bincount(lengths)).tolist()
    if len(starts) < MIN_KEYS_OF_A_LENGTH * len(occurring):
        return [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    keys = np.full(len(starts), b"", dtype=object)
    for length in occurring:
        if length:
            rows = np.flatnonzero(lengths == length)
            keys[rows] = _unaligned(data, f"V{length}")[starts[rows]].tolist()
    made: list[bytes] = keys.tolist()
    return made


def _unaligned(data: bytes, kind: str) -> Any:
    """A view of which element n is the number that begins at byte n."""
    width = np.dtype(kind).itemsize
    return np.ndarray(shape=(max(len(data) - width + 1, 0),), dtype=kind, buffer=data, strides=(1,))
