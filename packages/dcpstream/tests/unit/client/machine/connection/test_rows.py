"""Both shapes of rows answer the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.client.machine.connection.rows import Decoder, FrameDecoder, FrameRows, NativeDecoder
from dcpstream.client.machine.reader.batches import require_arrow
from dcpstream.errors import ConfigError
from dcpstream.runtime import kernel
from dcpstream.wire.keys import leb128_encode
from tests.kit import raw_frames
from tests.kit.messages import deletion, marker, mutation

MESSAGES = st.lists(
    st.tuples(st.sampled_from(["mutation", "deletion", "marker"]), st.integers(1, 3), st.binary(max_size=40)),
    max_size=80,
)


def encoded(messages: list[tuple[str, int, bytes]]) -> bytes:
    parts = []
    for seqno, (kind, opaque, value) in enumerate(messages, 1):
        if kind == "mutation":
            parts.append(mutation(opaque, seqno, value=value))
        elif kind == "deletion":
            parts.append(deletion(opaque, seqno))
        else:
            parts.append(marker(opaque, seqno, seqno))
    return b"".join(parts)


def native_decoder() -> Decoder:
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    return NativeDecoder(kernel.native, collections=True)


@given(messages=MESSAGES, tail=st.integers(0, 23))
def test_frames_and_columns_answer_the_same(messages: list[tuple[str, int, bytes]], tail: int) -> None:
    data = bytearray(encoded(messages) + b"\x80" + bytes(tail))
    stop = len(data)
    frames, frames_end = FrameDecoder().decode(data, 0, stop)
    columns, columns_end = native_decoder().decode(data, 0, stop)
    assert frames_end == columns_end
    assert frames.wire_bytes == columns.wire_bytes == frames_end
    assert frames.count == columns.count
    assert frames.runs() == columns.runs()
    assert list(frames.controls) == list(columns.controls)
    for row in range(frames.count):
        assert (frames.seqno(row), frames.vbid(row)) == (columns.seqno(row), columns.vbid(row))
    for first, end, _ in frames.runs():
        assert frames.highest(first, end) == columns.highest(first, end)
        for seqno in (0, frames.seqno(first), frames.seqno(end - 1), 10**18):
            assert frames.first_above(first, end, seqno) == columns.first_above(first, end, seqno)


ROWS = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 1), st.integers(0, 3)), max_size=90)


@given(rows=ROWS)
def test_what_does_not_go_with_the_row_before(rows: list[tuple[int, int, int]]) -> None:
    data = bytearray(b"".join(mutation(opaque, seqno, vbid=vbid) for opaque, vbid, seqno in rows))
    frames, _ = FrameDecoder().decode(data, 0, len(data))
    columns, _ = native_decoder().decode(data, 0, len(data))
    pairs = list(enumerate(pairwise(rows), 1))
    unordered = [row for row, (old, new) in pairs if old[0] == new[0] and new[2] <= old[2]]
    strays = [row for row, (old, new) in pairs if old[0] == new[0] and new[1] != old[1]]
    assert frames.disorder() == columns.disorder() == (unordered, strays)
    runs = frames.runs()
    ends = [(rows[first][1], rows[first][2], rows[stop - 1][2]) for first, stop, _ in runs]
    assert list(frames.edges(runs)) == list(columns.edges(runs)) == ends


@pytest.mark.parametrize("make", [FrameDecoder, native_decoder])
@given(ids=st.lists(st.sampled_from([0, 1, 8, 9, 0xFFFF, 0x10000, 0xFFFFFFFF]), min_size=1, max_size=20))
def test_collections_of_rows(make: Callable[[], Decoder], ids: list[int]) -> None:
    frames = (
        raw_frames.mutation(leb128_encode(number) + b"k", seqno=seqno, opaque=1) for seqno, number in enumerate(ids, 1)
    )
    data = bytearray(b"".join(frames))
    rows, _ = make().decode(data, 0, len(data))
    middle = len(ids) // 2
    for keep in ([(0, len(ids))], [(0, middle + 1)], [(0, 1), (middle, len(ids))]):
        expected = {ids[row] for first, stop in keep for row in range(first, stop)}
        assert rows.collections(keep, has_collections=True) == expected
        assert rows.collections(keep, has_collections=False) <= {0}


def test_runs_are_cut_at_controls_and_between_streams() -> None:
    data = bytearray(mutation(1, 1) + mutation(1, 2) + marker(2, 0, 9) + mutation(1, 3) + mutation(2, 1))
    rows, _ = FrameDecoder().decode(data, 0, len(data))
    assert rows.runs() == [(0, 2, 1), (2, 3, 1), (3, 4, 2)]


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("dcpstream.arrow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)


@pytest.mark.usefixtures("without_extras")
def test_without_the_arrow_extra_the_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"dcpstream\[arrow\].*changes\(\)"):
        require_arrow()


def test_the_kernel_leaves_a_key_that_cannot_be_read_to_its_row() -> None:
    data = bytearray(mutation(1, 1) + raw_frames.mutation(b"\x80", seqno=2) + mutation(1, 3))
    rows, end = native_decoder().decode(data, 0, len(data))
    assert isinstance(rows, FrameRows)
    assert (rows.count, end) == (3, len(data))
