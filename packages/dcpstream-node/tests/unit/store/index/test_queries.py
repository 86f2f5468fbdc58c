"""Rows that a reader sees: the native way finds what the plain one finds, and stays inside of its arguments."""

from __future__ import annotations

import random
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dcpstream.runtime import kernel
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.stored.block import BlockKind, cut
from dcpstream_node.store.index import queries
from dcpstream_node.store.index.queries import covering, select, select_plainly, within
from dcpstream_node.store.index.rows import LIVE, RowTable
from tests.kit.cases import each_case


def table_of(chance: random.Random, rows: int, keys: int) -> RowTable:
    """A table whose rows supersede each other by chance; seqnos skip, and some rows have kinds."""
    table, seqno = RowTable(), 0
    for _ in range(rows):
        seqno += chance.choice((1, 1, 1, 5))
        kinds = chance.choice((0, 0, 0, int(BlockKind.DELETION), int(BlockKind.COMMIT | BlockKind.XATTR)))
        table.append(b"\0%d" % chance.randrange(keys), seqno, kinds, chance.randrange(60, 90), 0)
    return table


def found(selection: queries.Selection) -> tuple[Any, ...]:
    runs, starts, seqnos, kinds = selection
    return runs.tolist(), starts.tolist(), seqnos.tolist(), kinds


@pytest.fixture
def native() -> ModuleType:
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    return kernel.native


@pytest.mark.parametrize("step_rows", [7, 16_384])
@pytest.mark.parametrize("keys", [1, 3, 40, 1000])
def test_the_native_way_finds_the_same(
    native: ModuleType, keys: int, step_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "SELECT_ROWS", step_rows)
    chance = random.Random(keys)
    for _ in range(60):
        table = table_of(chance, chance.randrange(1, 60), keys)
        first, stop = sorted(chance.choices(range(len(table.seqnos) + 1), k=2))
        view = chance.choice((0, *table.seqnos, LIVE - 1))
        limit = chance.choice((1, 60, 200, 1000, 1 << 20))
        expected = select_plainly(table, first, stop, view, limit)
        assert found(select(table, first, stop, view, limit)) == found(expected)
        runs, starts, _, _ = expected
        if len(runs):
            places = sorted((int(runs[0]), table.end, *chance.choices(range(int(runs[0]), table.end), k=3)))
            data = chance.randbytes(table.end)
            parts: list[Buffer] = [data[begin:end] for begin, end in pairwise(places)]
            copied = cut(parts, runs)
            into = [memoryview(bytearray(b"\xff" * len(copied))) for _ in range(2)]
            assert cut(parts, runs, into[0]) is into[0]
            monkeypatch.setattr(kernel, "native", None)
            assert cut(parts, runs) == cut(parts, runs, into[1]) == into[0] == copied
            monkeypatch.setattr(kernel, "native", native)
            assert isinstance(copied, bytearray)
            assert len(copied) >= starts[-1]


def test_a_selection_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RowTable()
    for seqno, key in enumerate((b"\0a", b"\0b", b"\0a", b"\0c", b"\0d", b"\0c"), 1):
        table.append(key, seqno, 0, 10, 0)
    expected = ([10, 30, 40, 60], [0, 10, 20, 30], [2, 3, 5, 6], 0)
    for native in {kernel.native, None}:
        monkeypatch.setattr(kernel, "native", native)
        assert found(select(table, 0, 6, LIVE - 1, 1000)) == expected
        assert found(select(table, 0, 6, LIVE - 1, 25)) == ([10, 30], [0, 10], [2, 3], 0)
        assert found(select(table, 0, 6, 4, 35)) == ([10, 40], [0, 10, 20], [2, 3, 4], 0)
        assert found(select(table, 0, 1, LIVE - 1, 25)) == ([], [], [], 0)


def test_nothing_is_found_in_a_table_without_rows(native: ModuleType) -> None:
    table = RowTable()
    assert found(select(table, 0, 0, LIVE, 1000)) == found(select_plainly(table, 0, 0, LIVE, 1000))


@each_case(("limit", "rows"), [(-5, 3), (0, 3), (9, 3), (10, 1), (29, 1), (30, 2), (59, 2), (60, 3), (1000, 3)])
def test_the_first_rows_of_a_run(limit: int, rows: int) -> None:
    starts, seqnos = np.array([0, 10, 30]), np.array([4, 5, 9], np.uint64)
    end, *columns = within(limit, 100, 160, starts, seqnos)
    assert end == [100, 110, 130, 160][rows]
    assert [column.tolist() for column in columns] == [[0, 10, 30][:rows], [4, 5, 9][:rows]]


def test_ranges_that_are_fetched() -> None:
    few = np.array([0, 10, 1000, 1010])
    assert covering(few) == [(0, 10), (1000, 1010)]
    assert covering(few[:2]) == [(0, 10)]
    many = np.array([number for begin in range(0, 100, 20) for number in (begin, begin + 10)])
    assert covering(many) == [(0, 90)]
    assert covering(many * np.array([10, 1] * 5)) != [(0, 90)], "too much lies between them"


class TestBounds:
    """The kernel trusts none of its arguments."""

    def test_a_selection_of_rows_that_are_not_there(self, native: ModuleType) -> None:
        table = table_of(random.Random(1), 9, 3)
        columns = table.positions, table.successors, table.seqnos
        for bounds in ((-1, 5), (5, 4), (0, 10), (0, 1 << 62)):
            with pytest.raises(ValueError, match=r"outside|too short"):
                native.select_rows(*columns, *bounds, table.end, LIVE - 1, 100)
        for place in range(3):
            short = [column[:-1] if place == number else column for number, column in enumerate(columns)]
            with pytest.raises(ValueError, match="too short"):
                native.select_rows(*short, 0, 9, table.end, LIVE - 1, 100)
        odd = memoryview(bytearray(80))[1:73]
        with pytest.raises(ValueError, match="not aligned"):
            native.select_rows(odd, *columns[1:], 0, 9, table.end, LIVE - 1, 100)

    @each_case("runs", [[-1, 5], [5, 4], [0, 101], [0, 5, 90, 1 << 62], [9, 20], [0, 5, 4, 9]])
    def test_a_cut_outside(self, native: ModuleType, runs: list[int]) -> None:
        with pytest.raises(ValueError, match="outside of the data"):
            native.cut([bytes(40), bytes(60)], 10 if runs[0] == 9 else 0, np.array(runs))

    @each_case("parts", [b"bytes", (b"a",), [1], [b"a", "text"]])
    def test_a_cut_of_what_is_no_list_of_buffers(self, native: ModuleType, parts: object) -> None:
        with pytest.raises(TypeError):
            native.cut(parts, 0, np.array([0, 1]))

    def test_a_cut_into_memory_that_does_not_fit(self, native: ModuleType) -> None:
        for size in (0, 9, 11):
            with pytest.raises(ValueError, match="another size"):
                native.cut([bytes(40)], 0, np.array([0, 5, 10, 15]), memoryview(bytearray(size)))
        with pytest.raises(BufferError):
            native.cut([bytes(40)], 0, np.array([0, 5]), bytes(5))
        with pytest.raises(TypeError):
            native.cut([bytes(40)], 0, np.array([0, 5]), 5)

    @each_case("start", [9, 87, 110, 1 << 62, -(1 << 62)])
    def test_a_mark_outside(self, native: ModuleType, start: int) -> None:
        with pytest.raises(ValueError, match="outside of the data"):
            native.mark(bytearray(100), np.array([10, start]), 10, 7)

    def test_a_mark_inside(self, native: ModuleType) -> None:
        data = bytearray(100)
        native.mark(data, np.array([10, 86]), 10, 0x01020304)
        assert data[12:16] == data[88:92] == b"\1\2\3\4"
        assert sum(data) == 20
        with pytest.raises(BufferError):
            native.mark(bytes(100), np.array([10]), 10, 7)
