"""The segment files."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.runtime import SystemFileSystem
from dcpstream_node.store.log import segment_file
from dcpstream_node.store.log.blocks import SEGMENT_HEADER, checksum, segment_name
from dcpstream_node.store.log.segment_file import FilePiece, Segment, read_from
from dcpstream_node.store.log.segments import SLOW_READ_S, Listing, Segments, SegmentSizes

HEADER = SEGMENT_HEADER.size


class Saved:
    """The metadata, as far as segments need it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {"segments": "[]"}
        self.fails = False

    def __call__(self, values: dict[str, str]) -> None:
        if self.fails:
            raise StoreError("the metadata is full")
        self.values |= values

    @property
    def order(self) -> list[tuple[int, int | None]]:
        return [(number, size) for number, size in json.loads(self.values["segments"])]

    @property
    def retired(self) -> list[int]:
        return [*json.loads(self.values.get("retired", "[]"))]


def opened(path: Path, saved: Saved, size: int = 100, cache_bytes: int = 0) -> Segments:
    listing = Listing(saved.order, saved.retired)
    return Segments(path, SystemFileSystem(), listing, saved, SegmentSizes(size, cache_bytes))


def commit(segments: Segments, data: bytes) -> FilePiece:
    """Write one page; where it is."""
    segment = segments.place()
    offset = segment.size
    segments.write([data], len(data))
    return (segment, offset, len(data), 0, len(data), checksum(data, segment.salt))


def test_a_commit_fits_the_offsets_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_file, "MAX_SEGMENT_BYTES", 200)
    segments = opened(tmp_path, Saved())
    segments.place()
    with pytest.raises(StoreError, match="commit more often"):
        segments.write([b"x" * 200], 200)
    segments.close()


def test_what_a_failed_write_left_in_an_older_segment_is_void(tmp_path: Path) -> None:
    saved = Saved()
    segments = opened(tmp_path, saved)
    commit(segments, b"x" * 100)
    segments.place()
    segments.close()
    with (tmp_path / segment_name(1)).open("ab") as file:
        file.write(b"left over")
    segments = opened(tmp_path, saved)
    assert segments.all()[0].size == HEADER + 100
    segments.close()


def test_a_directory_that_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        opened(tmp_path / "missing", Saved())


def test_every_page_is_verified(tmp_path: Path) -> None:
    segments = opened(tmp_path, Saved(), 10_000, cache_bytes=1000)
    pages = [commit(segments, bytes([65 + number]) * 20) for number in range(3)]
    file, offset = pages[0][0], pages[0][1]
    sizes, checksums = [20, 20, 20], [page[5] for page in pages]
    run: FilePiece = (file, offset, 60, 10, 45, (sizes, checksums))  # type: ignore[assignment]
    assert segments.read_pieces([run, b"memory", pages[0]]) == [b"A" * 10 + b"B" * 20 + b"C" * 5, b"memory", b"A" * 20]
    with file.path.open("r+b") as damaged:
        damaged.seek(offset + 25)
        damaged.write(b"?")
    for by_key in (True, False):
        assert segments.read_pieces([pages[0]], by_key=by_key) == [b"A" * 20]
        for piece in (run, pages[1]):
            with pytest.raises(CorruptLog, match=r"XXH3 .* of the page.*dcpstream store check DIR") as caught:
                segments.read_pieces([piece], by_key=by_key)
            assert (caught.value.file, caught.value.offset) == (str(file.path), offset + 20)
    with file.path.open("r+b") as short:
        short.truncate(offset + 50)
    with pytest.raises(CorruptLog, match="expected 20 bytes, found 10"):
        segments.read_pieces([pages[2]])
    with pytest.raises(CorruptLog, match="bytes, found"):
        read_from(file, 0, file.size)
    segments.close()


def test_a_retired_file_is_closed_by_its_last_reader(tmp_path: Path) -> None:
    closed = threading.Event()

    class Watched(SystemFileSystem):
        def open(self, path: Path) -> object:  # type: ignore[override]
            file = super().open(path)
            if path.name != segment_name(1):
                return file

            class File(type(file)):  # type: ignore[misc]
                def __del__(self) -> None:
                    super().__del__()
                    closed.set()

            file.__class__ = File
            return file

    saved = Saved()
    segments = Segments(tmp_path, Watched(), Listing(saved.order), saved, SegmentSizes(100))  # type: ignore[arg-type]
    piece = commit(segments, b"x" * 100)
    commit(segments, b"y")
    segments.replace([piece[0]], [])
    segments.retire([piece[0]])
    assert not closed.is_set()
    assert segments.read_pieces([piece]) == [b"x" * 100]
    del piece
    assert closed.is_set()
    segments.close()


def test_only_finished_neighbours_can_be_replaced(tmp_path: Path) -> None:
    saved = Saved()
    segments = opened(tmp_path, saved)
    for _ in range(3):
        commit(segments, b"x" * 100)
    first, second, last = segments.all()
    for old in ([first, last], [second, last], [last]):
        with pytest.raises(AssertionError, match="no neighbours, or still grow"):
            segments.replace(old, [])
    before = saved.order
    saved.fails = True
    with pytest.raises(StoreError, match="metadata is full"):
        segments.replace([first], [])
    assert (saved.order, segments.all()) == (before, [first, second, last])
    segments.close()


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_segment_with_commits_is_never_a_leftover(tmp_path: Path, is_listed: bool) -> None:
    """Metadata that is gone, or older than the segments, must not cost data."""
    saved = Saved()
    segments = opened(tmp_path, saved)
    commit(segments, b"x")
    segments.close()
    files = SystemFileSystem()
    with pytest.raises(CorruptLog, match=r"commits that it does not know.*Was meta.sqlite removed"):
        Segments(tmp_path, files, Listing([] if is_listed else None), saved)
    assert (tmp_path / segment_name(1)).exists()


def test_a_roll_that_fails_is_tried_again_with_the_same_file(tmp_path: Path) -> None:
    saved = Saved()
    segments = opened(tmp_path, saved)
    commit(segments, b"x" * 100)
    saved.fails = True
    for _ in range(3):
        with pytest.raises(StoreError, match="metadata is full"):
            segments.place()
    assert sorted(path.name for path in tmp_path.iterdir()) == [segment_name(1), segment_name(2)]
    saved.fails = False
    assert commit(segments, b"y")[0].number == 2
    segments.close()
    segments = opened(tmp_path, saved)
    assert isinstance(segments.all()[1], Segment)
    assert read_from(segments.all()[1], 0, HEADER + 1)[HEADER:] == b"y"
    segments.close()


def test_time_and_salts_come_from_what_is_handed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Turned:
        now = 0.0

        def monotonic(self) -> float:
            self.now += SLOW_READ_S * 2
            return self.now

        def time_ns(self) -> int:
            return 0

    class Fixed:
        def getrandbits(self, count: int) -> int:
            assert count == 64
            return 0xABCD

    saved = Saved()
    segments = Segments(tmp_path, SystemFileSystem(), Listing(None), saved, clock=Turned(), random=Fixed())
    segment = segments.place()
    assert segment.salt == 0xABCD
    segments.write([b"page"], 4)
    piece: FilePiece = (segment, segment.size - 4, 4, 0, 4, checksum(b"page", 0xABCD))
    assert not segments.would_wait([piece]), "no read was slow so far"
    assert segments.read_pieces([piece]) == [b"page"]
    monkeypatch.setattr(segment.file, "is_at_hand", lambda offset: False)
    assert segments.would_wait([piece]), "the clock says that the read was slow, so the system is asked"
    segments.close()
