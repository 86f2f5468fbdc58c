"""The bytes of segment files, read by the page about the format and not by the code that wrote them."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import pytest
import xxhash

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.model import SnapshotRange
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.log import blocks
from dcpstream_node.store.log.blocks import (
    SegmentKind,
    decode_segment_header,
    encode_rollback,
    encode_segment_header,
    segment_name,
    segment_number,
    split_rows,
    was_committed_after,
)
from tests.kit.stores import fill, key_of, put


def xxh3(data: bytes, seed: int) -> bytes:
    return xxhash.xxh3_64_digest(data, seed)


def test_a_file_reads_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PAGE_BYTES", 70)
    store = DiskBucketStore(tmp_path, 2)
    fill(store)
    vbucket = store.vbuckets[1]
    vbucket.set_snapshot(SnapshotRange(3, 20))
    frames = [put(vbucket, key_of("a", b"\x08"), b"1", seqno=7), put(vbucket, key_of("b"), None, seqno=9)]
    store.commit()
    vbucket.rollback(0)
    store.close()
    data = (tmp_path / "segment-0000000001.log").read_bytes()

    salt = int.from_bytes(data[20:28], "big")
    assert data[:20] == b"dcpstore" + struct.pack(">III", 2, 1, 1)
    assert data[28:36] == xxh3(data[:28], 0)
    assert data[36:40] == b"\xdcPb2"
    first, both = len(frames[0]), len(frames[0]) + len(frames[1])
    assert struct.unpack_from(">BBHIIQQHHHHII", data, 40) == (2, 1, 1, 1, 2, 7, 9, 1 | 32, 2, 1, 0, 36, both)
    assert data[84:92] == xxh3(data[36:84], salt)
    assert struct.unpack_from(">IIII", data, 92) == (first, both, first, both)
    assert data[108:124] == xxh3(frames[0], salt) + xxh3(frames[1], salt)
    assert struct.unpack_from(">QQQ", data, 124) == (7, 3, 20)
    assert data[148:156] == xxh3(data[36:148], salt)
    assert data[156 : 156 + both] == b"".join(frames)

    rollback = 156 + both
    assert data[rollback : rollback + 8] == b"\xdcPb2\x02\x02\0\x01"
    assert struct.unpack_from(">Q", data, rollback + 24)[0] == 0
    assert struct.unpack_from(">II", data, rollback + 40) == (rollback, 0)
    assert data[rollback + 56 :] == xxh3(data[rollback : rollback + 56], salt)
    assert len(data) == rollback + 64


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


def test_names_say_numbers() -> None:
    assert segment_number(segment_name(12)) == 12
    assert [segment_number(name) for name in ("segment-12.log", "segment-0000000012.log~", "lock")] == [None] * 3


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
