"""The native kernel: who chooses it, and that no argument makes it leave the memory that it was given."""

from __future__ import annotations

import gc
import random
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dcpstream
from dcpstream.runtime import kernel
from lab.tools.patience import patient
from tests.kit import raw_frames
from tests.kit.cases import each_case
from tests.kit.messages import marker, mutation, seqno_advanced

FRAMES = b"".join(raw_frames.mutation(b"\0key%d" % number, bytes(number % 90)) for number in range(200))
WIDTHS = (1, 1, 2, 8, 8, 8, 4, 4, 4, 4, 2)


class TestChoice:
    @each_case("switch", ["1", "yes", "true"])
    def test_the_variable_turns_it_off(self, switch: str) -> None:
        assert kernel.load(switch) == (None, f"plain Python (DCPSTREAM_PURE={switch})")

    @pytest.mark.parametrize("switch", [None, "", "0"])
    def test_without_a_kernel_plain_python_runs(self, switch: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "dcpstream._kernel", None)
        native, description = kernel.load(switch)
        assert native is None
        assert description.startswith("plain Python (the native kernel is not installed: ")

    def test_a_kernel_of_other_sources_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        older = ModuleType("dcpstream._kernel")
        older.__file__ = "there"
        monkeypatch.setitem(sys.modules, "dcpstream._kernel", older)
        text = "plain Python (the kernel in there is of other sources: install dcpstream again)"
        assert kernel.load(None) == (None, text)
        older.__dict__["INTERFACE"] = kernel.INTERFACE
        assert kernel.load(None) == (older, "native kernel (there)")

    def test_a_process_with_the_variable_runs_plain_python(self) -> None:
        program = "from dcpstream.runtime import kernel; print(kernel.native, kernel.description)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"DCPSTREAM_PURE": "1", "PYTHONPATH": str(Path(dcpstream.__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=patient(60),
            check=True,
        )
        assert done.stdout == "None plain Python (DCPSTREAM_PURE=1)\n"


@pytest.fixture(scope="module")
def native() -> ModuleType:
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    return kernel.native


def arguments(frames: bytes, rows: int | None = None) -> list[Any]:
    """Arguments that fit, unless `rows` says otherwise."""
    assert kernel.native is not None
    starts, _, found, key_bytes, value_bytes, _ = kernel.native.scan(frames, 0, len(frames))
    room = found if rows is None else rows
    columns = tuple(np.zeros(room, f"u{width}") for width in WIDTHS)
    offsets = [np.zeros(room + 1, np.int32) for _ in range(2)]
    key, value = bytearray(key_bytes), bytearray(value_bytes)
    return [frames, np.frombuffer(starts, np.int64), room, True, True, columns, offsets[0], key, offsets[1], value]


class TestBounds:
    """The kernel trusts none of its arguments."""

    def test_what_fits(self, native: ModuleType) -> None:
        assert native.decode(*arguments(FRAMES)) == (-1, [])

    @each_case("bounds", [(-1, 5), (0, len(FRAMES) + 1), (6, 5), (2**62, 2**62)])
    def test_a_scan_outside(self, native: ModuleType, bounds: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="bounds"):
            native.scan(FRAMES, *bounds)

    @each_case("start", [-1, -(2**63), 2**63 - 1, len(FRAMES), len(FRAMES) - 23, 1, 24])
    @each_case("place", [0, 1, 199])
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

    @each_case("rows", [0, 1, 199, 201, 10_000])
    def test_another_number_of_rows(self, native: ModuleType, rows: int) -> None:
        with pytest.raises(ValueError, match="not those that were scanned"):
            native.decode(*arguments(FRAMES, rows))

    @each_case("rows", [-1, 2**62])
    def test_impossible_numbers_of_rows(self, native: ModuleType, rows: int) -> None:
        given = arguments(FRAMES)
        given[2] = rows
        with pytest.raises(ValueError, match="a wrong number"):
            native.decode(*given)

    @each_case("column", range(len(WIDTHS)))
    def test_columns_that_are_too_short(self, native: ModuleType, column: int) -> None:
        given = arguments(FRAMES)
        columns = list(given[5])
        columns[column] = columns[column][:-1]
        given[5] = tuple(columns)
        with pytest.raises(ValueError, match="a buffer of"):
            native.decode(*given)

    @each_case("place", [6, 8])
    def test_offsets_that_are_too_short(self, native: ModuleType, place: int) -> None:
        given = arguments(FRAMES)
        given[place] = given[place][:-1]
        with pytest.raises(ValueError, match="a buffer of"):
            native.decode(*given)

    @each_case("place", [7, 9])
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


class Made:
    """A class with the slots of a change."""

    __slots__ = (
        "_run",
        "cas",
        "collection",
        "datatype",
        "expiry",
        "flags",
        "key",
        "op",
        "rev",
        "scope",
        "seqno",
        "value",
        "vbid",
        "vbuuid",
        "xattrs",
    )


CHANGE_WIDTHS = (1, 4, 2, 8, 8, 8, 4, 1, 4)
ROWS = 5


def change_arguments() -> list[Any]:
    """Arguments that fit: five mutations, in two runs."""
    columns = [np.arange(ROWS).astype(f"u{width}") for width in CHANGE_WIDTHS]
    columns[0][:] = raw_frames.MUTATION
    offsets = np.arange(ROWS + 1, dtype=np.int32)
    runs = ((0, 0, 3), (0, 4, 5))
    ops, names, vbuuids = ("mutation", "deletion", "expiration"), {1: ("here", "there")}, {2: 77}

    def body_of(value: bytes, datatype: int, op: str) -> tuple[object, object]:
        return (value, datatype), op

    return [Made, ROWS, tuple(columns), offsets, b"abcde", offsets, b"vwxyz", runs, ops, names, vbuuids, body_of, None]


class TestChanges:
    """The kernel trusts none of its arguments here, either."""

    def test_what_fits(self, native: ModuleType) -> None:
        first, second, third, last = native.changes(*change_arguments())
        assert (first.key, first.value, first.xattrs, first.op) == (b"a", b"v", {}, "mutation")
        assert (first.scope, first.collection, second.scope, second.collection) == ("", "0x0", "here", "there")
        assert (second.vbuuid, third.vbuuid, third.seqno, third.cas) == (0, 77, 2, 2)
        assert (third.value, third.xattrs) == ((b"x", 2), "mutation"), "compressed values are left to Python"
        assert (last.vbid, last.rev, last.flags, last.expiry, last._run) == (4, 4, 4, 4, (0, 4, 5))

    @each_case("column", range(len(CHANGE_WIDTHS)))
    def test_columns_that_are_too_short(self, native: ModuleType, column: int) -> None:
        given = change_arguments()
        given[2] = tuple(one[:-1] if place == column else one for place, one in enumerate(given[2]))
        with pytest.raises(ValueError, match="a buffer of"):
            native.changes(*given)

    @each_case("place", [3, 5])
    def test_offsets_that_are_too_short(self, native: ModuleType, place: int) -> None:
        given = change_arguments()
        given[place] = given[place][:-1]
        with pytest.raises(ValueError, match="a buffer of"):
            native.changes(*given)

    @each_case("place", [3, 5])
    @each_case("offset", [-1, -(2**31), 6, 2**31 - 1])
    @each_case("row", [0, 2, 5])
    def test_offsets_outside(self, native: ModuleType, place: int, offset: int, row: int) -> None:
        given = change_arguments()
        given[place] = given[place].copy()
        given[place][row] = offset
        with pytest.raises(ValueError, match="outside of its buffer"):
            native.changes(*given)

    def test_offsets_that_are_not_aligned(self, native: ModuleType) -> None:
        given = change_arguments()
        given[3] = memoryview(bytearray(100))[1:]
        with pytest.raises(ValueError, match="not aligned"):
            native.changes(*given)

    @each_case("run", [(0, -1, 2), (0, 3, 2), (0, 0, 6), (0, 2**62, 2**62), (0, 1)])
    def test_runs_outside(self, native: ModuleType, run: tuple[int, ...]) -> None:
        given = change_arguments()
        given[7] = (run,)
        with pytest.raises(ValueError, match="a run"):
            native.changes(*given)

    @each_case("opcode", [0, raw_frames.MUTATION - 1, raw_frames.MUTATION + 3, 255])
    def test_rows_that_are_no_changes(self, native: ModuleType, opcode: int) -> None:
        given = change_arguments()
        given[2][0][2] = opcode
        with pytest.raises(ValueError, match="no change"):
            native.changes(*given)

    @each_case("kind", [int, object, Path, type("Short", (), {"__slots__": ("op", "key")}), 7, None])
    def test_another_class(self, native: ModuleType, kind: object) -> None:
        given = change_arguments()
        given[0] = kind
        with pytest.raises(ValueError, match="a class without the slot"):
            native.changes(*given)

    @each_case("rows", [-1, 2**31, 2**62])
    def test_impossible_numbers_of_rows(self, native: ModuleType, rows: int) -> None:
        given = change_arguments()
        given[1] = rows
        with pytest.raises(ValueError, match="a wrong number"):
            native.changes(*given)

    @each_case(("place", "other"), [(9, {1: "here"}), (11, lambda *_: None), (11, lambda *_: 1 / 0)])
    def test_names_and_bodies_of_another_kind(self, native: ModuleType, place: int, other: object) -> None:
        given = change_arguments()
        given[place] = other
        with pytest.raises((ValueError, ZeroDivisionError)):
            native.changes(*given)

    def test_nothing_is_held_afterwards(self, native: ModuleType) -> None:
        given = change_arguments()
        shared = given[9][1] = (str(object()), str(object()))
        before = [sys.getrefcount(one) for one in (*shared, given[7][0], Made)]
        for _ in range(50):
            native.changes(*given)
            with pytest.raises(ValueError, match="outside"):
                native.changes(*given[:6], b"vwx", *given[7:])
        assert [sys.getrefcount(one) for one in (*shared, given[7][0], Made)] == before
        made = native.changes(*given)
        assert not any(map(gc.is_tracked, made))
        keys = bytearray(given[4])
        native.changes(*given[:4], keys, *given[5:])
        keys.clear()


class TestRuns:
    """Nor here."""

    OPAQUES, SEQNOS, VBUCKETS = (np.array([1, 1, 2, 2], kind) for kind in (np.uint32, np.uint64, np.uint16))

    def test_what_fits(self, native: ModuleType) -> None:
        found = native.runs(4, self.OPAQUES, self.SEQNOS, self.VBUCKETS, [(0, None), (3, None), (4, None)], None)
        assert found == ([(0, 2, 1), (2, 3, 2), (3, 4, 2)], [(1, 1, 1), (2, 2, 2), (2, 2, 2)], [1, 3], [])
        assert native.runs(0, b"", b"", b"", [(0, None)], None) == ([], [], [], [])

    @each_case("rows", [-1, 5, 2**62])
    def test_columns_that_are_too_short(self, native: ModuleType, rows: int) -> None:
        with pytest.raises(ValueError, match="shorter than the number of rows"):
            native.runs(rows, self.OPAQUES, self.SEQNOS, self.VBUCKETS, [], None)

    @each_case("place", [0, 1, 2])
    def test_one_column_that_is_too_short(self, native: ModuleType, place: int) -> None:
        columns = [self.OPAQUES, self.SEQNOS, self.VBUCKETS]
        columns[place] = columns[place][:-1]
        with pytest.raises(ValueError, match="shorter than the number of rows"):
            native.runs(4, *columns, [], None)

    @each_case("others", [[7], [()], [("a",)], [(2**70,)]])
    def test_places_that_are_none(self, native: ModuleType, others: list[object]) -> None:
        with pytest.raises((ValueError, TypeError, IndexError, OverflowError)):
            native.runs(4, self.OPAQUES, self.SEQNOS, self.VBUCKETS, others, None)

    def test_places_outside_are_no_cuts(self, native: ModuleType) -> None:
        found = native.runs(2, self.OPAQUES, self.SEQNOS, self.VBUCKETS, [(-5, None), (900, None)], None)
        assert found[0] == [(0, 2, 1)]

    def test_rows_that_a_walk_has_taken_are_in_no_run(self, native: ModuleType) -> None:
        owners = np.array([2**32 - 1, 0, 2**32 - 1, 2**32 - 1], np.uint32)
        found = native.runs(4, self.OPAQUES, self.SEQNOS, self.VBUCKETS, [], owners)
        assert found == ([(0, 1, 1), (2, 4, 2)], [(1, 1, 1), (2, 2, 2)], [3], [])
        with pytest.raises(ValueError, match="shorter than the number of rows"):
            native.runs(4, self.OPAQUES, self.SEQNOS, self.VBUCKETS, [], owners[:-1])


def table_of(**changed: int) -> bytearray:
    """Two places; the stream with the opaque 1 may have the seqnos 1 to 9 of vbucket 0."""
    known = {"opaque": 1, "vbid": 0, "state": 1, "flags": 2, "seqno": 0, "begin": 0, "end": 0, "first": 0, "last": 9}
    known |= {"stop": 2**64 - 1} | changed
    return bytearray(128) + bytearray(struct.pack("=IHBB6Q", *known.values()).ljust(128, b"\0"))


class TestWalk:
    """Nor here, and not the table."""

    ROWS = b"".join(mutation(1, seqno) for seqno in (1, 2)) + marker(1, 3, 9) + seqno_advanced(1, 4) + mutation(1, 5)

    def walk(self, native: ModuleType, table: bytearray, frames: bytes = ROWS, turn: int = 1) -> tuple[Any, ...]:
        found: tuple[Any, ...] = native.walk(frames, 0, len(frames), table, turn, ["none", "one"])
        return found

    def test_what_fits(self, native: ModuleType) -> None:
        table = table_of()
        before = bytes(table[128:184])
        _, end, key_bytes, value_bytes, fault, others, owners, moves, runs, marked, handed, touched = self.walk(
            native, table
        )
        assert (end, key_bytes, value_bytes, fault, others, handed) == (len(self.ROWS), 6, 3, -1, [], [])
        assert memoryview(owners).cast("I").tolist() == [0, 0, 1]
        assert list(struct.iter_unpack("=QQQII", moves)) == [(2, 0, 9, 1, 2), (5, 3, 9, 1, 1)]
        assert (runs, memoryview(marked).cast("I").tolist()) == (("one", "one"), [1])
        assert table[128:184] == before, "nothing counts before it is settled"
        native.settle(table, touched)
        assert struct.unpack_from("=IHBB6Q", table, 128) == (1, 0, 1, 3, 5, 3, 9, 3, 9, 2**64 - 1)
        assert self.walk(native, table, turn=2)[10] == [(0, 3)], "the same rows again"

    @pytest.mark.parametrize(
        "changed",
        [{"opaque": 3}, {"vbid": 1}, {"state": 0}, {"seqno": 1}, {"first": 2}, {"last": 0}, {"stop": 1}],
    )
    def test_a_message_that_is_not_plain_ends_it(self, native: ModuleType, changed: dict[str, int]) -> None:
        table = table_of(**changed)
        found = self.walk(native, table)
        assert (found[7], found[10]) == (b"", [(0, 3)])
        assert [row for row, _ in found[5]] == [2, 2]

    @pytest.mark.parametrize("size", [0, 1, 127, 129, 384])
    def test_a_table_that_is_none(self, native: ModuleType, size: int) -> None:
        for call in (lambda table: self.walk(native, table), lambda table: native.settle(table, bytes(4))):
            with pytest.raises(ValueError, match="a table that is none"):
                call(bytearray(size))

    @pytest.mark.parametrize("bounds", [(-1, 5), (0, 10_000), (6, 5), (2**62, 2**62)])
    def test_bounds_outside(self, native: ModuleType, bounds: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="bounds outside"):
            native.walk(self.ROWS, *bounds, table_of(), 1, ["none", "one"])

    def test_too_few_objects(self, native: ModuleType) -> None:
        with pytest.raises(ValueError, match="too short"):
            native.walk(self.ROWS, 0, len(self.ROWS), table_of(), 1, ["none"])

    def test_places_that_are_none_are_others(self, native: ModuleType) -> None:
        table = table_of()
        native.settle(table, struct.pack("=II", 2**32 - 1, 77) + b"odd")
        assert len(table) == 256

    def test_any_table_and_any_frames(self, native: ModuleType) -> None:
        dice = random.Random(20261128)
        for _ in range(400):
            table = bytearray(dice.randbytes(256)) if dice.random() < 0.5 else table_of()
            struct.pack_into("=I", table, 128 + 112, 1)  # as if it were of this walk
            frames = bytearray(self.ROWS)
            for _ in range(dice.randrange(6)):
                frames[dice.randrange(len(frames))] = dice.randrange(256)
            found = self.walk(native, table, bytes(frames[: dice.randrange(len(frames) + 1)]))
            native.settle(table, found[11])

    def test_what_was_reached(self, native: ModuleType) -> None:
        owners = np.array([0, 1, 0, 9], np.uint32)
        seqnos = np.array([5, 6, 7, 8], np.uint64)
        moves = struct.pack("=QQQIIQQQII", 7, 0, 9, 0, 2, 6, 0, 9, 1, 1)
        found = native.reached(owners, seqnos, 0, 2, moves)
        assert list(struct.iter_unpack("=QQQII", found)) == [(5, 0, 9, 0, 1), (6, 0, 9, 1, 1)]
        found = native.reached(owners, seqnos, 2, 4, moves)
        assert [move[4] for move in struct.iter_unpack("=QQQII", found)] == [1, 0]
        for first, stop in ((-1, 2), (2, 1), (0, 5)):
            with pytest.raises(ValueError, match="rows outside"):
                native.reached(owners, seqnos, first, stop, moves)
