"""What a commit takes of one vbucket, and the blocks that it becomes."""

from __future__ import annotations

from typing import NamedTuple

from dcpstream.store.index.rows import KIND_SHIFT, POSITION_MASK
from dcpstream.store.log import blocks as limits
from dcpstream.store.log.blocks import Buffer, Page, checksum_of, encode_block_head, split_rows
from dcpstream.store.log.segmentfile import Segment
from dcpstream.store.vbucket import VBucketLog


class Pending(NamedTuple):
    """What a commit takes of one vbucket: rows [first, stop), `size` bytes from position `start`."""

    vbucket: VBucketLog
    first: int
    stop: int
    start: int
    size: int


def add_blocks(part: Pending, segment: Segment, at: int, buffers: list[Buffer], pages: list[Page]) -> int:
    """Encode one vbucket's pending rows as blocks that begin at offset `at` of a segment; returns where they end.

    Runs without the store's lock: rows and sealed buffers below `stop` do not change while a commit is under way.

    Args:
        buffers, pages: what is written, and where its pages will be, are added here.
    """
    vbucket, salt = part.vbucket, segment.salt
    tagged = vbucket.rows.positions[part.first : part.stop].tolist()
    is_plain = max(tagged) <= POSITION_MASK
    places = tagged if is_plain else [position & POSITION_MASK for position in tagged]
    places.append(part.start + part.size)
    seqnos = vbucket.rows.seqnos
    held = vbucket.log.held
    for first, stop in split_rows(places, limits.MAX_BLOCK_BYTES):
        occurring = 0
        if not is_plain:
            for position in tagged[first:stop]:
                occurring |= position
        base = places[first]
        ends = [place - base for place in places[first + 1 : stop + 1]]
        page_ends, checksums, frames = [], [], []
        for begin, end in split_rows(places[first : stop + 1], limits.PAGE_BYTES):
            page = held(places[first + begin], places[first + end])
            page_ends.append(places[first + end] - base)
            checksums.append(checksum_of(page, salt))
            frames += page
        head = encode_block_head(
            salt,
            vbucket.vbid,
            vbucket.incarnation,
            commit_offset=segment.size,
            seqnos=(seqnos[part.first + first], seqnos[part.first + stop - 1]),
            occurring=occurring >> KIND_SHIFT,
            ends=ends,
            page_ends=page_ends,
            page_checksums=checksums,
            marks=vbucket.marks_of(part.first + first, part.first + stop),
        )
        buffers.append(head)
        buffers += frames
        at += len(head)
        address, begin = segment.address | at, 0
        for end, page_checksum in zip(page_ends, checksums, strict=True):
            pages.append((base + begin, address + begin, end - begin, page_checksum))
            begin = end
        at += ends[-1]
    return at
