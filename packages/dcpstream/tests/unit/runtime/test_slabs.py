"""Memory is used again when nothing refers to it, never before, and not more of it is kept than allowed."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from dcpstream.arrow import ChangeContext, to_changes
from dcpstream.runtime import kernel
from dcpstream.runtime.slabs import FIT_MAX, SLAB_BYTES_MAX, SLAB_BYTES_MIN, SLABS_MAX, Slabs, slabs
from tests.kit import raw_frames
from tests.kit.wire_columns import batch_of, decode_wire

SIZE = SLAB_BYTES_MIN
BOUND = SLABS_MAX * SLAB_BYTES_MAX


def address(memory: object) -> int:
    return int(pa.py_buffer(memory).address)


def test_a_free_slab_is_used_again() -> None:
    own = Slabs()
    first = address(own.take(2 * SIZE))
    assert address(own.take(2 * SIZE - 1)) == first
    assert own.kept_bytes == 2 * SIZE


def test_every_kind_of_view_keeps_a_slab() -> None:
    own = Slabs()
    slab = own.take(SIZE)
    first = address(slab)
    array = np.frombuffer(slab, np.uint8, 100, 64)
    buffer = pa.py_buffer(array)
    views = [array[3:9].view(np.uint16), pa.Array.from_buffers(pa.uint8(), 100, [None, buffer]).slice(7, 5)]
    views.append(memoryview(slab)[5:])
    del slab, array, buffer
    while views:
        assert address(own.take(SIZE)) != first
        del views[0]
    assert address(own.take(SIZE)) == first


def test_slabs_that_are_held_are_different_and_no_more_are_kept() -> None:
    own = Slabs()
    held = [own.take(SIZE) for _ in range(3 * SLABS_MAX)]
    assert len(set(map(address, held))) == len(held)
    assert own.kept_bytes == SLABS_MAX * SIZE


def test_sizes_are_rounded_up_and_small_or_large_memory_is_not_kept() -> None:
    own = Slabs()
    assert len(own.take(SIZE + 1)) == 2 * SIZE
    assert own.kept_bytes == 2 * SIZE
    assert len(own.take(SLAB_BYTES_MAX)) == SLAB_BYTES_MAX
    before = own.kept_bytes
    for size in (0, 1, SIZE - 1, SLAB_BYTES_MAX + 1):
        assert len(own.take(size)) == size
    assert own.kept_bytes == before


def test_a_free_slab_serves_smaller_receives_but_not_much_smaller_ones() -> None:
    own = Slabs()
    largest, smaller = address(own.take(8 * SIZE)), 8 * SIZE // FIT_MAX
    assert address(own.take(smaller)) == largest
    assert own.kept_bytes == 8 * SIZE
    assert address(own.take(smaller // 2)) != largest
    assert own.kept_bytes == 8 * SIZE + smaller // 2
    assert address(own.take(smaller // 2)) != largest, "the smallest one that fits"


def test_receives_of_changing_sizes_make_no_new_slabs() -> None:
    chance, own = random.Random(13), Slabs()
    places: set[int] = set()
    slab: object = None
    for _ in range(200):
        slab = own.take(chance.randrange(SIZE, SLAB_BYTES_MAX))
        places.add(address(slab))
    assert slab is not None
    assert len(places) <= 2 * SLABS_MAX


def test_a_free_slab_goes_before_one_that_is_used() -> None:
    own = Slabs()
    held = [own.take(SIZE) for _ in range(SLABS_MAX)]
    first = address(held[0])
    del held[2]
    large = own.take(SLAB_BYTES_MAX)
    assert own.kept_bytes == (SLABS_MAX - 1) * SIZE + len(large)
    del held
    assert address(own.take(SIZE)) == first


def test_content_is_aligned() -> None:
    assert address(Slabs().take(SIZE)) % 64 == 0


def receive(chance: random.Random, vbucket: int) -> bytearray:
    """Some hundred rows, of a size that takes a slab."""
    value = chance.randbytes(chance.randrange(1000, 3000))
    return bytearray(
        b"".join(
            raw_frames.mutation(vbucket=vbucket, seqno=1 + row, key=b"\0%d" % row, value=value) for row in range(400)
        )
    )


@pytest.fixture
def native() -> None:
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")


@pytest.mark.usefixtures("native")
def test_batches_that_are_kept_stay_as_they_are() -> None:
    chance = random.Random(11)
    kept: list[tuple[pa.RecordBatch, bytearray]] = []
    for number in range(30):
        buffer = receive(chance, number)
        chunk = decode_wire(buffer)
        if chance.random() < 0.4:
            # Only a slice of one column is left of some.
            kept.append((batch_of(chunk.slice(7, 9)).select(["value"]) if number % 2 else batch_of(chunk), buffer))
    assert len(kept) > SLABS_MAX
    for batch, buffer in kept:
        again = batch_of(decode_wire(buffer))
        assert batch.equals(again if batch.num_columns > 1 else again.slice(7, 2).select(["value"]))


@pytest.mark.usefixtures("native")
def test_a_stream_of_any_length_holds_a_bounded_amount() -> None:
    """Receives of any size, each of another vbucket; the batches are dropped."""
    chance = random.Random(12)
    vbuuids = {vbid: 10**14 + vbid for vbid in range(60)}
    context = ChangeContext(vbuuids=vbuuids)
    addresses: set[int] = set()
    pool: list[int] = []
    for vbid in vbuuids:
        buffer = receive(chance, vbid)
        chunk = decode_wire(buffer)
        addresses.add(chunk.value.buffers()[2].address // SLAB_BYTES_MIN)
        to_changes(chunk, context=context)
        del chunk
        pool.append(pa.total_allocated_bytes())
        assert slabs.kept_bytes <= BOUND
    assert len(addresses) <= 2 * SLABS_MAX, "the memory of a few slabs serves all receives"
    assert pool[-1] == pool[0], "nothing is cached for each vbucket"
