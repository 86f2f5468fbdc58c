"""The bytes of segment files, read by the page about the format and not by the code that wrote them."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import pytest

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.model import SnapshotRange
from dcpstream.store import DiskBucketStore, blocks
from dcpstream.store.blocks import decode_segment_header, encode_segment_header, split_rows, was_committed_after
from tests.behaviour.store_kit import fill, key_of, put


def test_a_file_reads_as_the_page_says(tmp_path: Path) -> None:
    store = DiskBucketStore(tmp_path, 2)
    fill(store)
    vbucket = store.vbuckets[1]
    vbucket.set_snapshot(SnapshotRange(3, 20))
    frames = [put(vbucket, key_of("a", b"\x08"), b"1", seqno=7), put(vbucket, key_of("b"), None, seqno=9)]
    store.commit()
    vbucket.rollback(0)
    store.close()
    data = (tmp_path / "segment-0000000001.log").read_bytes()

    assert data[:28] == b"dcpstore" + struct.pack(">IIQ", 1, 1, 0) + struct.pack(">I", crc32(data[:24]))
    assert data[28:32] == b"\xdcPb1"
    assert struct.unpack_from(">BBHIIQQQQHHII", data, 32) == (
        1, 1, 1, 1, 2, 7, 9, 3, 20, 1 | 32, 0, 28, 8 + len(frames[0]) + len(frames[1]),
    )  # fmt: skip
    assert struct.unpack_from(">I", data, 28 + 60)[0] == crc32(data[28 : 28 + 60])
    table_end = 28 + 64 + 8
    assert struct.unpack_from(">II", data, 28 + 64) == (len(frames[0]), len(frames[0]) + len(frames[1]))
    frames_end = table_end + sum(map(len, frames))
    assert data[table_end:frames_end] == b"".join(frames)
    assert struct.unpack_from(">I", data, frames_end)[0] == crc32(data[28:frames_end])

    rollback = frames_end + 4
    assert data[rollback : rollback + 6] == b"\xdcPb1\x01\x02"
    assert struct.unpack_from(">Q", data, rollback + 24)[0] == 0
    assert struct.unpack_from(">II", data, rollback + 52) == (rollback, 0)
    assert len(data) == rollback + 64 + 4


def test_segment_headers_are_checked() -> None:
    header = encode_segment_header(7, 1234)
    assert decode_segment_header(header, "f", 7) == 1234
    with pytest.raises(CorruptLog, match="renamed"):
        decode_segment_header(header, "f", 8)
    with pytest.raises(CorruptLog, match="CRC-32"):
        decode_segment_header(header[:20] + b"\xff" + header[21:], "f", 7)
    with pytest.raises(CorruptLog, match="a segment header"):
        decode_segment_header(b"", "f", 7)
    newer = struct.pack(">8sIIQ", b"dcpstore", 2, 7, 0)
    with pytest.raises(StoreError, match="format 2"):
        decode_segment_header(newer + struct.pack(">I", crc32(newer)), "f", 7)


def test_rows_are_split_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_BLOCK_BYTES", 100)
    assert split_rows([0, 40, 80, 120, 130]) == [(0, 2), (2, 4)]
    assert split_rows([50, 100, 150]) == [(0, 2)]
    assert split_rows([0, 500, 501]) == [(0, 1), (1, 2)]
    assert split_rows([0]) == []


def test_only_a_commit_that_began_later_proves_damage() -> None:
    def block(commit_offset: int) -> bytes:
        return b"".join(
            blocks.encode_block(
                blocks.StoredKind.ROLLBACK, 0, 1, commit_offset=commit_offset, seqnos=(0, 0), snapshot=(0, 0)
            )
        )

    torn = b"?" * 10
    assert not was_committed_after(torn + block(0), 0)
    assert was_committed_after(torn + block(10), 0)
    assert not was_committed_after(torn + block(500), 0)  # says that it began behind itself: not a block of ours
    assert not was_committed_after(torn + block(10)[:-20], 0)
