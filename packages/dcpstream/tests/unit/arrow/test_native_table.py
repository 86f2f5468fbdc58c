"""The kernel builds the table of changes that plain Python builds."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pytest

from dcpstream.arrow import ChangeContext, WireChunk, to_changes
from dcpstream.arrow.native_table import Texts, build, kinds_of, packed
from dcpstream.arrow.schema import CHANGE_SCHEMA, FULL_SCHEMA
from dcpstream.errors import FieldError
from dcpstream.runtime import kernel
from dcpstream.wire.keys import leb128_encode
from dcpstream.wire.values import encode_xattrs
from tests.kit import raw_frames
from tests.kit.cases import each_case
from tests.kit.wire_columns import decode_messages, decode_wire

NAMES = {0: ("_default", "_default"), 8: ("inventory", "a" * 60), 300: ("s", "c"), 2**32 - 1: ("", "last")}
VBUUIDS = {0: 2**64 - 1, 1: 7, 3: 10**14, 5: 0}
CONTEXT = ChangeContext(collection_names=NAMES, vbuuids=VBUUIDS)
KEYS = [b"", b"key", "Zürich \U0001f6eb \u20ac".encode(), bytes(range(1, 128))]
BAD_TEXTS = [
    b"\xff",
    b"\x80",
    b"a\xc3",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xe2\x82",
    b"\xf0\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xf0\x9f\x9b",
    b"\xc3\xc3",
]


@pytest.fixture(autouse=True)
def native() -> ModuleType:
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    return kernel.native


def plainly(build_it: Callable[[], Any]) -> Any:
    """The result of plain Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "native", None)
        return build_it()


def compared(chunk: WireChunk, plain: WireChunk, **options: Any) -> pa.RecordBatch:
    """The rows as changes; the same with and without the kernel."""
    options.setdefault("context", CONTEXT)
    found = to_changes(chunk, **options)
    found.validate(full=True)
    expected = plainly(lambda: to_changes(plain, **options))
    assert found.schema == expected.schema
    for name in found.schema.names:
        mine, theirs = found.column(name), expected.column(name)
        assert mine.equals(theirs), name
        assert mine.null_count == theirs.null_count, name
    return found


def compare(frames: list[bytes], **options: Any) -> pa.RecordBatch:
    buffer = b"".join(frames)
    return compared(decode_wire(buffer), decode_messages(buffer), **options)


def row(chance: random.Random, *, packed_values: float = 0.0, keys: list[bytes] = KEYS) -> bytes:
    value, datatype = chance.choice([b"", b"{}", "ö".encode(), chance.randbytes(chance.randrange(90))]), 0
    if chance.random() < packed_values:
        datatype = chance.choice([raw_frames.SNAPPY, raw_frames.XATTR, raw_frames.SNAPPY | raw_frames.XATTR])
        if datatype & raw_frames.XATTR:
            value = encode_xattrs({"_sync": b"1"}, value)
        if datatype & raw_frames.SNAPPY:
            value = bytes(cramjam.snappy.compress_raw(value))
    fields: dict[str, Any] = {
        "vbucket": chance.choice([0, 1, 1, 1, 2, 3, 4, 5, 1023]),
        "opaque": 1,
        "cas": chance.choice([0, 1, chance.getrandbits(64), chance.getrandbits(64)]),
        "seqno": chance.getrandbits(64),
        "rev": chance.choice([1, 1, 2, chance.getrandbits(64)]),
        "datatype": datatype | chance.choice([0, raw_frames.JSON]),
        "key": leb128_encode(chance.choice([0, 0, 0, 8, 300, 2**32 - 1])) + chance.choice(keys),
        "value": value,
    }
    time = chance.choice([0, 0, 1, chance.getrandbits(32)])
    kind = chance.randrange(5)
    if kind < 3:
        return raw_frames.mutation(flags=chance.getrandbits(32), expiry=time, **fields)
    if kind == 3:
        return raw_frames.deletion(delete_time=chance.choice([None, time]), **fields)
    return raw_frames.expiration(delete_time=time, **fields)


@each_case("value_format", ["binary", "string"])
@each_case("seed", range(12))
def test_rows_of_all_kinds(seed: int, value_format: str) -> None:
    chance = random.Random(seed)
    share = chance.choice([0.0, 0.0, 0.01, 0.5])
    frames = [row(chance, packed_values=share) for _ in range(chance.choice([1, 7, 8, 9, 64, 700]))]
    compare(frames, value_format=value_format)
    columns = chance.sample(FULL_SCHEMA.names, chance.randrange(len(FULL_SCHEMA)))
    for missing in ("null", "drop"):
        compare(frames, value_format=value_format, columns=columns, missing=missing)


@each_case("name", FULL_SCHEMA.names)
def test_each_column_by_itself(name: str) -> None:
    chance = random.Random(name)
    frames = [row(chance) for _ in range(100)]
    for missing in ("null", "drop"):
        compare(frames, columns=[name], missing=missing)


@each_case("count", [1, 4, 5, 600])
def test_rows_that_are_all_the_same(count: int) -> None:
    for frame in (
        raw_frames.mutation(rev=1, cas=0, expiry=0),
        raw_frames.mutation(rev=2, cas=1, expiry=1, vbucket=9),
        raw_frames.deletion(delete_time=None),
        raw_frames.expiration(value=b"left"),
    ):
        compare([frame] * count)


def test_no_rows() -> None:
    for value_format in ("binary", "string"):
        assert compare([], value_format=value_format).num_rows == 0
        assert compare([raw_frames.marker()], value_format=value_format).num_rows == 0


@each_case("text", BAD_TEXTS)
@each_case("before", [b"", b"a" * 64, "€".encode()])
def test_texts_that_are_no_utf_8(text: bytes, before: bytes) -> None:
    for data in (before + text, before + text + b"z"):
        good = raw_frames.mutation(b"\0good", b"good")
        compare([good, raw_frames.mutation(b"\0" + data, b"good"), good])
        frames = [good, raw_frames.mutation(b"\0good", data), good]
        for value_format in ("binary", "string"):
            compare(frames, value_format=value_format, columns=["key", "value", "value_text"])


def test_a_character_that_two_rows_share_is_none() -> None:
    for cut in (1, 2):
        left, right = "€".encode()[:cut], "€".encode()[cut:]
        frames = [raw_frames.mutation(b"\0" + data, data) for data in (left, right)]
        assert compare(frames, columns=["key", "value_text"]).column("value_text").null_count == 2


def test_collections_that_have_no_name() -> None:
    frames = [raw_frames.mutation(leb128_encode(number) + b"k") for number in (0, 8, 9, 301, 2**32 - 2)]
    assert compare(frames).column("scope").null_count == 3
    compare(frames, context=ChangeContext(collection_names={}, vbuuids={}))


def test_values_that_are_left_out_by_the_node_keep_their_datatypes() -> None:
    frames = [raw_frames.mutation(value=b"", datatype=datatype) for datatype in range(8)]
    assert compare(frames).column("xattrs").null_count == len(frames)


def test_a_value_that_cannot_be_read_fails_only_where_it_is_built() -> None:
    frames = [raw_frames.mutation(), raw_frames.mutation(value=b"\xff", datatype=raw_frames.SNAPPY, seqno=7)]
    compare(frames, columns=["key", "seqno"])
    with pytest.raises(FieldError, match="seqno 7"):
        compare(frames)


@each_case("seed", range(6))
def test_slices_and_selections(seed: int) -> None:
    chance = random.Random(seed)
    buffer = b"".join(row(chance, packed_values=seed % 2 / 10) for _ in range(200))
    chunk, plain = decode_wire(buffer), decode_messages(buffer)
    for _ in range(10):
        first = chance.randrange(201)
        stop = chance.randrange(first, 201)
        compared(chunk.slice(first, stop), plain.slice(first, stop))
        part = chance.randrange(stop - first + 1)
        compared(chunk.slice(first, stop).slice(part, stop - first), plain.slice(first, stop).slice(part, stop - first))
        rows = [chance.randrange(200) for _ in range(chance.randrange(60))]
        picked, expected = chunk.select(rows), plain.select(rows)
        compared(picked, expected)
        if rows:
            compared(picked.slice(1, len(rows)), expected.slice(1, len(rows)))


def test_a_batch_keeps_the_memory_of_its_columns() -> None:
    """Columns outlive the batch and the rows, and memory is not used again before they are gone."""
    buffer = bytearray(b"".join(raw_frames.mutation(b"\0key%d" % number, bytes(300)) for number in range(3000)))
    for _ in range(3):
        chunk = decode_wire(buffer)
        batch = to_changes(chunk, context=CONTEXT)
        kept = [batch.column(name).slice(2990) for name in ("key", "op", "vbuuid", "xattrs", "_commit_timestamp")]
        expected = [column.to_pylist() for column in kept]
        del chunk, batch
        others = [to_changes(decode_wire(buffer), context=ChangeContext()) for _ in range(12)]
        assert [column.to_pylist() for column in kept] == expected
        del kept, others


class TestArguments:
    """Whatever the kernel is given, it stays within the memory that it was given."""

    def given(self, **changed: Any) -> tuple[Any, ...]:
        chunk = decode_messages(raw_frames.mutation(b"\0key", b"value") * 6)
        memory = chunk.memory
        rows = {name: getattr(memory.columns, name) for name in memory.columns._fields} | {
            name: changed.pop(name) for name in memory.columns._fields if name in changed
        }
        arguments = {
            "rows": tuple(rows.values()),
            "first": 0,
            "stop": 6,
            "kinds": kinds_of(CHANGE_SCHEMA, frozenset(CHANGE_SCHEMA.names)),
            "lists": CONTEXT.texts.lists,
            "collections": CONTEXT.texts.collection_ids,
            "take": bytearray,
            "give": pa.RecordBatch._import_from_c,
            "schema": CHANGE_SCHEMA,
        }
        return tuple((arguments | changed).values())

    def test_what_fits(self, native: ModuleType) -> None:
        batch = native.table(*self.given())
        batch.validate(full=True)
        assert batch.num_rows == 6

    @each_case(("first", "stop"), [(-1, 2), (3, 2), (0, 7), (0, 2**31), (2**62, 2**62)])
    def test_rows_outside(self, native: ModuleType, first: int, stop: int) -> None:
        with pytest.raises(ValueError, match=r"rows|buffer"):
            native.table(*self.given(first=first, stop=stop))

    @each_case("place", range(10))
    def test_a_column_that_is_too_short(self, native: ModuleType, place: int) -> None:
        numbers = list(self.given()[0][0])
        numbers[place] = numbers[place][:-1]
        with pytest.raises(ValueError, match="a buffer of"):
            native.table(*self.given(numbers=tuple(numbers)))

    @each_case("rows", [(), ((),), (7, 8), (tuple(bytes(99) for _ in range(10)),)])
    def test_rows_that_are_none(self, native: ModuleType, rows: tuple[Any, ...]) -> None:
        with pytest.raises((ValueError, IndexError)):
            native.table(*self.given(rows=rows))

    @each_case("offsets", [[-1, 1], [3, 1], [0, 99], [0, 2**31 - 1], [-(2**31), 0]])
    @each_case("which", ["key_offsets", "value_offsets"])
    def test_keys_and_values_outside(self, native: ModuleType, which: str, offsets: list[int]) -> None:
        ends = np.array([*offsets, *offsets[1:] * 5], np.int32)
        with pytest.raises(ValueError, match="outside of its buffer"):
            native.table(*self.given(**{which: ends}))
        misplaced = memoryview(bytes(40))[1:]
        with pytest.raises(ValueError, match="not aligned"):
            native.table(*self.given(**{which: misplaced}))

    @each_case("opcode", [0x56, 0x5A, 0, 255])
    def test_rows_that_are_no_changes(self, native: ModuleType, opcode: int) -> None:
        numbers = (bytes([0x57] * 5 + [opcode]), *self.given()[0][0][1:])
        with pytest.raises(ValueError, match="no change"):
            native.table(*self.given(numbers=numbers))

    @each_case("kinds", [b"\x14", b"\xff", bytes(65)])
    def test_columns_of_no_kind(self, native: ModuleType, kinds: bytes) -> None:
        with pytest.raises(ValueError, match="column"):
            native.table(*self.given(kinds=kinds))

    @each_case("place", range(5))
    @each_case("pair", [(), (b"", b""), (b"abc", b""), 7, (bytes(8), b"x", b"y")])
    def test_lists_that_are_none(self, native: ModuleType, place: int, pair: Any) -> None:
        lists = list(CONTEXT.texts.lists)
        lists[place] = pair
        with pytest.raises((ValueError, IndexError)):
            native.table(*self.given(lists=tuple(lists)))

    @each_case("bounds", [[0, 40], [5, 2], [-1, 3], [0, 2**31 - 1], [0, 9]])
    def test_texts_outside(self, native: ModuleType, bounds: list[int]) -> None:
        """They are as good as not there: a column without its text is refused, left to Python, or null."""
        lists = CONTEXT.texts.lists
        wrong = np.array([*bounds, *bounds[1:] * 9], np.int32).tobytes(), bytes(40)
        for place in (0, 1):
            with pytest.raises(ValueError, match="without a short text"):
                native.table(*self.given(lists=(*lists[:place], wrong, *lists[place + 1 :])))
        batch = native.table(*self.given(lists=(*lists[:2], wrong, *lists[3:])))
        assert batch.column("vbuuid").null_count == 6
        one, good = (wrong[0][:8], wrong[1]), packed(["x"])
        for names in ((one, good), (good, one)):
            assert native.table(*self.given(lists=(*lists[:3], *names), collections=bytes(4))) == 8

    def test_collections_that_are_too_short(self, native: ModuleType) -> None:
        with pytest.raises(ValueError, match="a buffer of"):
            native.table(*self.given(collections=bytes(15)))

    def test_less_memory_than_was_asked_for(self, native: ModuleType) -> None:
        with pytest.raises(ValueError, match="less memory"):
            native.table(*self.given(take=lambda size: bytearray(size - 1)))
        with pytest.raises((BufferError, TypeError)):
            native.table(*self.given(take=bytes))
        with pytest.raises(TypeError):
            native.table(*self.given(take=lambda _: None))

    def test_rows_and_memory_are_held_as_long_as_a_column_is(self, native: ModuleType) -> None:
        held: list[bytearray] = []

        def take(size: int) -> bytearray:
            held.append(bytearray(size))
            return held[-1]

        given = self.given(take=take)
        before = sys.getrefcount(given[0])
        batch = native.table(*given)
        kept = [batch.column("seqno").slice(2), batch.column("op").slice(2)]
        del batch
        while kept:
            with pytest.raises(BufferError):
                held[0].clear()
            references = sys.getrefcount(given[0])
            assert references == before + 1
            del kept[0]
        held[0].clear()
        references = sys.getrefcount(given[0])
        assert references == before

    def test_a_batch_that_is_not_taken_is_given_up(self, native: ModuleType) -> None:
        held: list[bytearray] = []

        def take(size: int) -> bytearray:
            held.append(bytearray(size))
            return held[0]

        def refuse(_address: int, _schema: object) -> None:
            raise RuntimeError("no")

        given = self.given(take=take, give=refuse)
        before = sys.getrefcount(given[0])
        with pytest.raises(RuntimeError, match="no"):
            native.table(*given)
        after = sys.getrefcount(given[0])
        assert after == before
        held[0].clear()  # nothing refers to it any more
        given = self.given(take=take, give=lambda *_: 5)
        held.clear()
        assert native.table(*given) == 5
        held[0].clear()


def test_it_says_which_columns_are_left(native: ModuleType) -> None:
    frames = [
        raw_frames.mutation(leb128_encode(77) + b"\xff", b"\xff"),
        raw_frames.mutation(value=encode_xattrs({"a": b"1"}, b""), datatype=raw_frames.XATTR),
    ]
    wanted = frozenset(FULL_SCHEMA.names)
    texts = Texts(CONTEXT.texts.lists, CONTEXT.texts.collection_ids)

    def left(*chosen: bytes) -> object:
        memory = decode_messages(b"".join(chosen)).memory
        return build(native, memory, FULL_SCHEMA, kinds_of(FULL_SCHEMA, wanted), texts)

    assert left(frames[0]) == {"key", "value", "value_text", "scope", "collection"}
    assert left(frames[1]) == {"value", "value_text", "xattrs"}
    assert isinstance(left(raw_frames.mutation()), pa.RecordBatch)


def test_packed_texts() -> None:
    bounds, texts = packed(["a", None, "bc"])
    assert np.frombuffer(bounds, np.int32).tolist() == [0, 1, 1, 3]
    assert texts == b"abc" + bytes(32)
