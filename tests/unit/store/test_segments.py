"""The segment files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.runtime import SystemFileSystem
from dcpstream.store import segments as module
from dcpstream.store.blocks import SEGMENT_HEADER
from dcpstream.store.segments import Segments, segment_name


def opened(path: Path, size: int = 100) -> Segments:
    return Segments(path, SystemFileSystem(), size)


def test_an_address_says_segment_and_offset(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    assert (segments.end, segments.all()) == ((0, 0), [])
    address, offset = segments.place()
    assert (address, offset) == (1 << 32, SEGMENT_HEADER.size)
    segments.write([b"a" * 60, b"b" * 60], 120)
    assert segments.read(address + offset + 50, 20) == b"a" * 10 + b"b" * 10
    assert segments.end == (1, SEGMENT_HEADER.size + 120)
    assert segments.place() == (2 << 32, SEGMENT_HEADER.size)
    segments.write([b"c"], 1)
    segments.close()

    segments = opened(tmp_path)
    assert [(segment.number, segment.size) for segment in segments.all()] == [(1, 148), (2, 29)]
    assert segments.read((2 << 32) + 28, 1) == b"c"
    with pytest.raises(CorruptLog, match="expected 2 bytes, found 1"):
        segments.read((2 << 32) + 28, 2)
    segments.cut(segments.all()[1], 28)
    assert segments.end == (2, 28)
    segments.close()
    assert (tmp_path / segment_name(2)).stat().st_size == 28


def test_a_commit_fits_the_offsets_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SEGMENT_BYTES", 200)
    segments = opened(tmp_path)
    segments.place()
    with pytest.raises(StoreError, match="commit more often"):
        segments.write([b"x" * 200], 200)
    segments.close()


def test_what_a_failed_write_left_in_an_older_segment_is_void(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    segments.place()
    segments.write([b"x" * 100], 100)
    segments.place()
    segments.close()
    with (tmp_path / segment_name(1)).open("ab") as file:
        file.write(b"left over")
    segments = opened(tmp_path)
    assert segments.all()[0].size == 128
    segments.close()


def test_a_directory_that_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        opened(tmp_path / "missing")
