"""Buffers that are used again."""

from __future__ import annotations

import pytest

from dcpstream.wire import buffers as buffers_module
from dcpstream.wire.buffers import BufferPool
from dcpstream.wire.stored.block import BlockKind, FrameBlock, Version, encode_stored_mutation
from dcpstream.wire.stored.form import StreamForm
from dcpstream.wire.stored.rendering import render
from tests.kit.blocks import block_of


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> BufferPool:
    monkeypatch.setattr(buffers_module, "POOLED_BYTES_MIN", 4)
    monkeypatch.setattr(buffers_module, "BUFFER_BYTES", 8)
    return BufferPool()


def lent(pool: BufferPool, data: bytes) -> memoryview:
    piece = pool.copy_of(memoryview(data))
    assert isinstance(piece, memoryview)
    return piece


def test_a_copy_is_of_its_own_until_it_is_given_back(pool: BufferPool) -> None:
    first, second = lent(pool, b"first"), lent(pool, b"second")
    assert (first, second) == (b"first", b"second")
    assert first.obj is not second.obj
    pool.give_back([first])
    third = lent(pool, b"third!!")
    assert third.obj is first.obj
    assert (second, third) == (b"second", b"third!!")


@pytest.mark.parametrize("size", [0, 3, 9])
def test_what_is_too_small_or_too_large_gets_memory_of_its_own(pool: BufferPool, size: int) -> None:
    data = bytes(range(size))
    assert pool.copy_of(memoryview(data)) == data
    pool.give_back([memoryview(bytearray(size)), memoryview(data)])
    assert not pool.free


def test_few_buffers_wait(pool: BufferPool) -> None:
    pool.give_back([lent(pool, b"12345678") for _ in range(5)])
    assert len(pool.free) == buffers_module.FREE_BUFFERS_MAX


def test_a_block_comes_out_the_same_in_a_buffer_that_was_used_before() -> None:
    frames = [
        encode_stored_mutation(Version(b"\0k%d" % seqno, bytes(5000), 1), vbid=0, by_seqno=seqno, cas=seqno)
        for seqno in range(1, 21)
    ]
    block: FrameBlock = block_of(b"".join(frames))
    assert block.kinds == BlockKind.PLAIN
    pool = BufferPool()
    used = pool.copy_of(memoryview(b"\xff" * len(block.data)))
    assert isinstance(used, memoryview)
    pool.give_back([used])
    for opaque, first, budget in ((7, 0, None), (0, 0, None), (9, 3, 50_000)):
        rendered = render(block, opaque, StreamForm(), first, budget, pool)
        assert isinstance(rendered.data, memoryview)
        assert rendered.data.obj is used.obj
        expected = render(block, opaque, StreamForm(), first, budget)
        assert (rendered.data, *rendered[1:]) == (expected.data, *expected[1:])
        pool.give_back([rendered.data])
