"""The native kernel: who chooses it, and that no argument makes it leave the memory that it was given."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dcpstream
from dcpstream.columnar import scan
from dcpstream.runtime import kernel
from tests.kit import raw_frames
from tools.patience import patient

FRAMES = b"".join(raw_frames.mutation(b"\0key%d" % number, bytes(number % 90)) for number in range(200))
WIDTHS = (1, 1, 2, 8, 8, 8, 4, 4, 4, 4, 2)


class TestChoice:
    @pytest.mark.parametrize("switch", ["1", "yes", "true"])
    def test_the_variable_turns_it_off(self, switch: str) -> None:
        assert kernel.load(switch) == (None, f"plain Python with numpy (DCPSTREAM_PURE={switch})")

    @pytest.mark.parametrize("switch", [None, "", "0"])
    def test_without_a_kernel_plain_python_runs(self, switch: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "dcpstream._kernel", None)
        native, description = kernel.load(switch)
        assert native is None
        assert description.startswith("plain Python with numpy (the native kernel is not installed: ")

    def test_a_kernel_of_other_sources_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        older = ModuleType("dcpstream._kernel")
        older.__file__ = "there"
        monkeypatch.setitem(sys.modules, "dcpstream._kernel", older)
        text = "plain Python with numpy (the kernel in there is of other sources: install dcpstream again)"
        assert kernel.load(None) == (None, text)
        older.__dict__["INTERFACE"] = kernel.INTERFACE
        assert kernel.load(None) == (older, "native kernel (there)")

    def test_a_process_with_the_variable_scans_in_plain_python(self) -> None:
        program = (
            "from dcpstream.columnar import scan; from dcpstream.runtime import kernel; "
            "print(scan(bytes([0x80]) + bytes(23)).counts, kernel.description)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"DCPSTREAM_PURE": "1", "PYTHONPATH": str(Path(dcpstream.__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=patient(60),
            check=True,
        )
        assert done.stdout == "None plain Python with numpy (DCPSTREAM_PURE=1)\n"


@pytest.fixture(scope="module")
def native() -> ModuleType:
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    return kernel.native


def arguments(frames: bytes, rows: int | None = None) -> list[Any]:
    """Arguments that fit, unless `rows` says otherwise."""
    index = scan(frames)
    assert index.counts is not None
    room = index.counts.rows if rows is None else rows
    columns = tuple(np.zeros(room, f"u{width}") for width in WIDTHS)
    offsets = [np.zeros(room + 1, np.int32) for _ in range(2)]
    key, value = bytearray(index.counts.key_bytes), bytearray(index.counts.value_bytes)
    return [frames, index.starts, room, True, True, columns, offsets[0], key, offsets[1], value]


class TestBounds:
    """The kernel trusts none of its arguments."""

    def test_what_fits(self, native: ModuleType) -> None:
        assert native.decode(*arguments(FRAMES)) == (-1, [])

    @pytest.mark.parametrize("bounds", [(-1, 5), (0, len(FRAMES) + 1), (6, 5), (2**62, 2**62)])
    def test_a_scan_outside(self, native: ModuleType, bounds: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="bounds"):
            native.scan(FRAMES, *bounds)

    @pytest.mark.parametrize("start", [-1, -(2**63), 2**63 - 1, len(FRAMES), len(FRAMES) - 23, 1, 24])
    @pytest.mark.parametrize("place", [0, 1, 199])
    def test_starts_that_are_none(self, native: ModuleType, start: int, place: int) -> None:
        given = arguments(FRAMES)
        given[1] = given[1].copy()
        given[1][place] = start
        with pytest.raises(ValueError, match="not those that were scanned"):
            native.decode(*given)

    def test_other_bytes_than_those_that_were_scanned(self, native: ModuleType) -> None:
        chance = random.Random(7)
        refused = 0
        for _ in range(500):
            given = arguments(FRAMES)
            other = bytearray(FRAMES)
            for _ in range(3):
                other[chance.randrange(len(other))] = chance.randrange(256)
            given[0] = bytes(other)
            try:
                fault, _ = native.decode(*given)
                refused += fault >= 0
            except ValueError:
                refused += 1
        assert 50 < refused < 450, "most changes are in lengths or in keys and values"

    @pytest.mark.parametrize("rows", [0, 1, 199, 201, 10_000])
    def test_another_number_of_rows(self, native: ModuleType, rows: int) -> None:
        with pytest.raises(ValueError, match="not those that were scanned"):
            native.decode(*arguments(FRAMES, rows))

    @pytest.mark.parametrize("rows", [-1, 2**62])
    def test_impossible_numbers_of_rows(self, native: ModuleType, rows: int) -> None:
        given = arguments(FRAMES)
        given[2] = rows
        with pytest.raises(ValueError, match="a wrong number"):
            native.decode(*given)

    @pytest.mark.parametrize("column", range(len(WIDTHS)))
    def test_columns_that_are_too_short(self, native: ModuleType, column: int) -> None:
        given = arguments(FRAMES)
        columns = list(given[5])
        columns[column] = columns[column][:-1]
        given[5] = tuple(columns)
        with pytest.raises(ValueError, match="a buffer of"):
            native.decode(*given)

    @pytest.mark.parametrize("place", [6, 8])
    def test_offsets_that_are_too_short(self, native: ModuleType, place: int) -> None:
        given = arguments(FRAMES)
        given[place] = given[place][:-1]
        with pytest.raises(ValueError, match="a buffer of"):
            native.decode(*given)

    @pytest.mark.parametrize("place", [7, 9])
    def test_too_little_room_for_keys_or_values(self, native: ModuleType, place: int) -> None:
        given = arguments(FRAMES)
        given[place] = given[place][: len(given[place]) // 2]
        with pytest.raises(ValueError, match="not those that were scanned"):
            native.decode(*given)

    def test_a_wrong_number_of_columns(self, native: ModuleType) -> None:
        given = arguments(FRAMES)
        given[5] = given[5][:-1]
        with pytest.raises(ValueError, match="columns"):
            native.decode(*given)

    def test_memory_that_is_read_only(self, native: ModuleType) -> None:
        given = arguments(FRAMES)
        given[7] = bytes(given[7])
        with pytest.raises(BufferError):
            native.decode(*given)

    def test_a_column_that_is_not_aligned(self, native: ModuleType) -> None:
        given = arguments(FRAMES)
        odd = memoryview(bytearray(8 * 300))[1:]
        given[5] = (*given[5][:3], odd, *given[5][4:])
        with pytest.raises(ValueError, match="not aligned"):
            native.decode(*given)

    def test_every_buffer_is_free_after_an_error(self, native: ModuleType) -> None:
        given = arguments(FRAMES)
        given[5] = (*given[5][:-1], b"")
        with pytest.raises(BufferError):
            native.decode(*given)
        given[7].clear()  # a bytearray that somebody still looks into refuses this with a BufferError
        given[9].clear()
