"""The state of the blocks of a segment."""

from __future__ import annotations

from dcpstream_node.store.log.block_scan import Damage, damage_of, walk_blocks
from dcpstream_node.store.log.blocks import (
    BLOCK_HEADER,
    SEGMENT_HEADER,
    BlockPlace,
    SegmentKind,
    checksum,
    encode_block_head,
    encode_rollback,
    encode_segment_header,
)
from tests.kit.stores import frame_of, key_of

SALT = 7
FRAMES = [frame_of(3, key_of(name), seqno, b"value") for seqno, name in enumerate("abcd", 11)]
SIZE = len(FRAMES[0])
HEADER = SEGMENT_HEADER.size


def block() -> bytes:
    """Four frames in two pages."""
    pages = [FRAMES[0] + FRAMES[1], FRAMES[2] + FRAMES[3]]
    place = BlockPlace(SALT, 3, 1, commit_offset=HEADER, seqnos=(11, 14))
    checksums = [checksum(page, SALT) for page in pages]
    head = encode_block_head(place, [SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE], [2 * SIZE, 4 * SIZE], checksums)
    return head + b"".join(pages)


def segment(*blocks: bytes) -> bytes:
    return encode_segment_header(1, SegmentKind.APPENDED, SALT) + b"".join(blocks)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def found_in(data: bytes) -> list[Damage]:
    return [damage for stretch in walk_blocks(data, SALT) if not stretch.is_whole
            for damage in damage_of("file", data, stretch)]  # fmt: skip


ROLLBACK = encode_rollback(SALT, 3, 1, commit_offset=HEADER, seqno=12)


def test_a_damaged_page_leaves_the_other() -> None:
    data = segment(block(), ROLLBACK)
    frames_at = HEADER + len(block()) - 4 * SIZE
    (damage,) = found_in(flipped(data, frames_at + 2 * SIZE - 1))
    assert (damage.offset, damage.size, damage.vbid) == (frames_at, 2 * SIZE, 3)
    assert (damage.first_seqno, damage.last_seqno, damage.keys) == (11, 12, ("a", "b"))
    (damage,) = found_in(flipped(data, frames_at + 4 * SIZE - 1))
    assert (damage.first_seqno, damage.last_seqno, damage.keys) == (13, 14, ("c", "d"))
    both = flipped(flipped(data, frames_at + 30), frames_at + 3 * SIZE)
    assert [(each.first_seqno, each.last_seqno) for each in found_in(both)] == [(11, 14), (11, 14)]


def test_a_damaged_header_hides_its_block_and_no_other() -> None:
    data = segment(block(), block(), ROLLBACK)
    second = HEADER + len(block())
    (damage,) = found_in(flipped(data, second + 13))
    assert (damage.offset, damage.size, damage.vbid, damage.is_rollback) == (second, len(block()), None, False)
    (damage,) = found_in(flipped(data, second + BLOCK_HEADER.size + 1))
    assert (damage.offset, damage.what, damage.first_seqno) == (second, "the tables of a block", 11)
    (damage,) = found_in(flipped(data, second + len(block()) + 1))
    assert (damage.is_rollback, damage.size) == (True, len(ROLLBACK))
    (damage,) = found_in(flipped(data, len(data) - 1))
    assert (damage.is_rollback, damage.vbid, damage.last_seqno) == (True, 3, 12)


def test_an_end_that_is_cut_off() -> None:
    data = segment(block(), block())[:-10]
    (damage,) = found_in(data)
    assert (damage.offset, damage.size) == (HEADER + len(block()), len(block()) - 10)
    assert damage.vbid == 3
    (damage,) = found_in(segment(block()) + bytes(30))
    assert (damage.offset, damage.size, damage.vbid) == (HEADER + len(block()), 30, None)
