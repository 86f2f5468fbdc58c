"""The file of a recording: what is written comes back, and damage is told."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError, CorruptLog
from dcpstream.model import Manifest
from dcpstream_node.recording import file
from dcpstream_node.recording.file import (
    DEFLATE_MIN_BYTES,
    Header,
    RecordingReader,
    RecordingWriter,
    is_recording,
    is_unbegun,
)

HEADER = Header("travel", "ab12", 64, Manifest.DEFAULT, ("shop.*",))
BLOCKS = [(b"a" * 5000, 1_000), (b"b" * (DEFLATE_MIN_BYTES - 1), 2_000), (bytes(range(256)) * 4, 3_000)]


@pytest.fixture(params=[True, False], ids=["deflated", "plain"])
def written(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "file"
    with RecordingWriter.create(path, HEADER, is_deflated=request.param) as writer:
        for frames, time_ns in BLOCKS:
            writer.write(frames, time_ns)
        writer.write(b"", 4_000)
        assert writer.size == path.stat().st_size
    return path


def read(path: Path) -> tuple[list[tuple[bytes, int]], bool]:
    with RecordingReader(path) as reader:
        blocks = [(block.frames, block.time_ns) for block in reader.blocks()]
        return blocks, reader.is_cut


def test_what_is_written_comes_back(written: Path) -> None:
    assert read(written) == (BLOCKS, False)
    with RecordingReader(written) as reader:
        assert reader.header == HEADER
    assert is_recording(written.read_bytes()[:100])


def test_deflating_makes_it_shorter(tmp_path: Path) -> None:
    sizes = []
    for is_deflated in (True, False):
        path = tmp_path / str(is_deflated)
        with RecordingWriter.create(path, HEADER, is_deflated=is_deflated) as writer:
            writer.write(b"a" * 5000, 1)
        sizes.append(path.stat().st_size)
    assert sizes[0] < sizes[1] - 4000


def test_a_file_cut_anywhere_keeps_its_whole_blocks(written: Path) -> None:
    with RecordingReader(written) as reader:
        ends = [reader.start, *(block.end for block in reader.blocks())]
    whole = written.read_bytes()
    sizes = [size for end in ends for size in (*range(end - 3, end + 30), end + 200) if ends[1] <= size <= ends[-1]]
    for size in sizes:
        written.write_bytes(whole[:size])
        blocks, is_cut = read(written)
        assert len(blocks) == sum(end <= size for end in ends[1:])
        assert is_cut is (size not in ends)


def test_a_file_cut_before_its_first_whole_block_says_so(written: Path) -> None:
    with RecordingReader(written) as reader:
        start, first_end = reader.start, next(reader.blocks()).end
    whole = written.read_bytes()
    sizes = {*range(0, first_end, 100), *range(start - 3, start + 30), first_end - 1}
    for content in (*(whole[:size] for size in sizes), whole[:start] + bytes(40)):
        written.write_bytes(content)
        assert is_unbegun(written)
    with pytest.raises(ConfigError, match=f"{written} is a recording without changes: its recorder was ended before"):
        RecordingReader(written)
    written.write_bytes(b"")
    with pytest.raises(ConfigError, match=f"{written} is empty. If it is a recording, its recorder was ended before"):
        RecordingReader(written)
    written.write_bytes(whole[:first_end])
    assert not is_unbegun(written)
    damaged = bytearray(whole)
    damaged[start] ^= 1  # the size of the first block
    written.write_bytes(damaged)
    assert not is_unbegun(written)


def test_writing_goes_on_behind_the_last_whole_block(written: Path) -> None:
    whole = written.read_bytes()
    with RecordingReader(written) as reader:
        end = [block.end for block in reader.blocks()][1]
    written.write_bytes(whole[:-1])
    with RecordingWriter.go_on(written, end) as writer:
        writer.write(b"new", 5_000)
    assert read(written) == ([*BLOCKS[:2], (b"new", 5_000)], False)


def test_zeros_behind_the_last_block_are_an_incomplete_one(written: Path) -> None:
    written.write_bytes(written.read_bytes() + bytes(100))
    assert read(written) == (BLOCKS, True)


@pytest.mark.parametrize("at", [0, 10, 20, 25], ids=["length", "time", "checksum", "payload"])
def test_damage_is_reported_with_its_place(written: Path, at: int) -> None:
    with RecordingReader(written) as reader:
        block = next(iter(reader.blocks())).end  # where the second one begins
    data = bytearray(written.read_bytes())
    data[block + at] ^= 0x40
    written.write_bytes(data)
    with pytest.raises(CorruptLog, match=f"truncate --size={block}"):
        read(written)


@pytest.mark.parametrize("packed", [zlib.compress(bytes(10_001)), zlib.compress(bytes(1000))[:-4], b"not deflated"])
def test_a_block_that_inflates_to_too_much_or_to_nothing_is_reported(
    written: Path, packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "MAX_BLOCK_BYTES", 10_000)
    head = file._BLOCK.pack(len(packed), zlib.crc32(packed), 1, True)
    at = written.stat().st_size
    with written.open("ab") as end:
        end.write(head + file._CHECKSUM.pack(zlib.crc32(head)) + packed)
    with pytest.raises(CorruptLog, match=f"damaged at byte {at}"):
        read(written)


@pytest.mark.parametrize("content", [b"\x80\x01", b'{"a": 1}', b'{"a": 1}\n'])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no recording"):
        RecordingReader(path)


def test_a_later_version_and_a_damaged_first_line_are_reported(written: Path) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole.replace(b'"version": 1', b'"version": 9'))
    with pytest.raises(ConfigError, match="has version 9"):
        RecordingReader(written)
    written.write_bytes(whole.replace(b'"vbuckets": 64', b'"vbuckets": []'))
    with pytest.raises(CorruptLog, match="damaged"):
        RecordingReader(written)
