"""The bytes of segment files, read by the page about the format and not by the code that wrote them."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
import xxhash

from dcpstream.errors import CorruptLog, StoreError
from dcpstream_node.store.log.blocks import (
    SegmentKind,
    decode_segment_header,
    encode_rollback,
    encode_segment_header,
    split_rows,
    was_committed_after,
)


def xxh3(data: bytes, seed: int) -> bytes:
    return xxhash.xxh3_64_digest(data, seed)


def test_segment_headers_are_checked() -> None:
    header = encode_segment_header(7, SegmentKind.REWRITTEN, 1234)
    assert decode_segment_header(header, "f", 7) == (1234, SegmentKind.REWRITTEN)
    with pytest.raises(CorruptLog, match="renamed"):
        decode_segment_header(header, "f", 8)
    with pytest.raises(CorruptLog, match="XXH3"):
        decode_segment_header(header[:20] + b"\xff" + header[21:], "f", 7)
    with pytest.raises(CorruptLog, match="a segment header"):
        decode_segment_header(b"", "f", 7)


def test_segments_of_other_formats_are_not_taken_for_damage() -> None:
    newer = struct.pack(">8sIIIQ", b"dcpstore", 3, 7, 1, 0)
    with pytest.raises(StoreError, match="format 3"):
        decode_segment_header(newer + xxh3(newer, 0), "f", 7)
    first = struct.pack(">8sIIQ", b"dcpstore", 1, 7, 0)
    for following in (b"", b"\xdcPb1" + bytes(60)):
        with pytest.raises(StoreError, match="format 1; this version of dcpstream reads format 2"):
            decode_segment_header(first + struct.pack(">I", crc32(first)) + following, "f", 7)


def test_rows_are_split_into_blocks() -> None:
    assert split_rows([0, 40, 80, 120, 130], 100) == [(0, 2), (2, 4)]
    assert split_rows([50, 100, 150], 100) == [(0, 2)]
    assert split_rows([0, 500, 501], 100) == [(0, 1), (1, 2)]
    assert split_rows([0], 100) == []


def test_only_a_commit_that_began_later_proves_damage() -> None:
    def block(commit_offset: int) -> bytes:
        return encode_rollback(5, 0, 1, commit_offset=commit_offset, seqno=0)

    torn = b"?" * 10
    assert not was_committed_after(torn + block(0), 0, 5)
    assert was_committed_after(torn + block(10), 0, 5)
    assert not was_committed_after(torn + block(10), 0, 6)  # of another file: a document that holds a block, say
    assert not was_committed_after(torn + block(500), 0, 5)  # says that it began behind itself: not a block of ours
    assert not was_committed_after(torn + block(10)[:-20], 0, 5)
