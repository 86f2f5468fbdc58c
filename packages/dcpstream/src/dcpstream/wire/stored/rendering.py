"""Rendering blocks of stored history as the bytes of one stream.

Theory of operation: a stream with exactly the stored form (see `block`) gets a copy of the block, into which its opaque
is scattered (one memcpy and one numpy scatter, no work per message). Two other forms are common and are made for all
messages of a block at once: without the prefix of the default collection, and without values. For a stream with another
form (no xattrs, a filter, a stream id, …) messages are rewritten one by one, but only in blocks whose `BlockKind` bits
name something to rewrite.

Source: kv_engine engines/ep/src/dcp/producer.cc.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dcpstream.runtime import kernel
from dcpstream.wire.buffers import Buffer, BufferPool
from dcpstream.wire.codes import Datatype, Opcode, SystemEventId
from dcpstream.wire.frames import BODY_LENGTH_AT, HEADER_BYTES
from dcpstream.wire.messages.dcp import Mutation
from dcpstream.wire.stored.block import BlockKind, FrameBlock, Offsets, cut, events_of
from dcpstream.wire.stored.form import COARSE_COUNTER, EXACT_COUNTER, NOT_DEFAULT, StreamForm, rewritten

_KEY_LENGTH_AT = Mutation.layout.offset("key_length")
_EXTRAS_LENGTH_AT = Mutation.layout.offset("extras_length")
_OPAQUE_AT = Mutation.layout.offset("opaque")
_COUNTER_AT = Mutation.layout.offset("nru")

_mark = None if kernel.native is None else kernel.native.mark

_U32, _U64 = np.dtype(">u4"), np.dtype(">u8")

_OF_BODY = int(Datatype.JSON | Datatype.SNAPPY)
"""Bits of the datatype that describe a document's body and its packing."""

_NO_PLAIN_VALUE = BlockKind.XATTR | BlockKind.SYSTEM_EVENT | BlockKind.PREPARE
"""Kinds of frames whose values have parts that stay, or may go elsewhere."""


class Rendered(NamedTuple):
    """The result of `render`.

    Attributes:
        data: the bytes to send.
        next_index: index of the block's first frame that is not rendered yet.
        messages: the number of messages in `data`; smaller than the number of frames if a filter dropped some.
    """

    data: Buffer
    next_index: int
    messages: int


def render(
    block: FrameBlock,
    opaque: int,
    form: StreamForm,
    first: int = 0,
    budget: int | None = None,
    buffers: BufferPool | None = None,
) -> Rendered:
    """The block's messages in the form of a stream.

    Args:
        block: stored history.
        opaque: u32, the stream's.
        form: the form of the stream's messages.
        first: index of the first frame to render.
        budget: stop after the message that brings the total to this many bytes or more (at least one is rendered);
            None for all. This is how the server overshoots its flow-control window by at most one message.
        buffers: where a large copy gets its memory from; fresh memory without.
    """
    count = len(block.starts)
    if first >= count:
        return Rendered(b"", count, 0)
    kinds = block.kinds
    if form.is_plain_as_stored if not kinds else form.is_as_stored(_kinds_to_rewrite(block, form)):
        rendered = _copy(block, opaque, first, budget, buffers)
        if form.hifi_counter:
            _set_counters(rendered.data, block.starts[first : rendered.next_index], int(block.starts[first]))
        return rendered
    if (
        not form.collections
        and not form.hifi_counter
        and not block.kinds & NOT_DEFAULT
        and form.differs_by_prefix(block.kinds)
    ):
        return _copy_without_prefix(block, opaque, first, budget)
    if form.no_value and not block.kinds & _NO_PLAIN_VALUE and form.is_as_stored_but_for_bodies(block.kinds):
        return _copy_without_values(block, opaque, form, first, budget)
    return _rewrite(block, opaque, form, first, budget)


def _copy(block: FrameBlock, opaque: int, first: int, budget: int | None, buffers: BufferPool | None) -> Rendered:
    """A copy of the block's bytes with the opaque scattered in."""
    starts = block.starts
    last = count = len(starts)
    begin = int(starts[first]) if first else 0
    end = block.size
    if budget is not None and begin + budget < end:
        last = int(starts.searchsorted(begin + max(budget, 1), side="left"))
        if last < count:
            end = int(starts[last])
    out: Buffer = block.copy(begin, end, buffers)
    if opaque and _mark is not None:
        _mark(out, starts[first:last] if last - first < count else starts, begin, opaque)
    elif opaque:
        words = np.ndarray(shape=(len(out) - 3 - _OPAQUE_AT,), dtype=">u4", buffer=out, offset=_OPAQUE_AT, strides=(1,))
        places = starts[first:last]
        words[places - begin if begin else places] = opaque
    return Rendered(out, last, last - first)


def _set_counters(out: Buffer, starts: Offsets, begin: int) -> None:
    """Write the exact use counter into the mutations of copied frames; `starts` are offsets, the first at `begin`."""
    octets = np.frombuffer(out, dtype=np.uint8)
    at = starts - begin
    counters = at[octets[at + 1] == int(Opcode.DCP_MUTATION)] + _COUNTER_AT
    octets[counters[octets[counters] == COARSE_COUNTER]] = EXACT_COUNTER


def _copy_without_prefix(block: FrameBlock, opaque: int, first: int, budget: int | None) -> Rendered:
    """A copy of a block of the default collection without the keys' prefixes, one byte each; all frames at once."""
    starts = block.starts[first:]
    begin = int(starts[0])
    ends = np.append(starts[1:], len(block.data)) - begin
    count = len(starts)
    if budget is not None:
        made = ends - np.arange(1, count + 1)  # each message loses a byte
        count = min(count, int(np.searchsorted(made, max(budget, 1), side="left")) + 1)
    starts = starts[:count] - begin
    data = np.frombuffer(block.data, dtype=np.uint8)[begin : begin + int(ends[count - 1])].copy()
    for at, kind in ((_KEY_LENGTH_AT, ">u2"), (BODY_LENGTH_AT, ">u4")):
        width = int(kind[-1])
        np.ndarray(shape=(len(data) - width + 1,), dtype=kind, buffer=data, strides=(1,))[starts + at] -= 1
    np.ndarray(shape=(len(data) - 3,), dtype=">u4", buffer=data, strides=(1,))[starts + _OPAQUE_AT] = opaque
    is_kept = np.ones(len(data), dtype=bool)
    is_kept[starts + HEADER_BYTES + data[starts + _EXTRAS_LENGTH_AT]] = False
    return Rendered(data[is_kept].data, first + count, count)


def _copy_without_values(block: FrameBlock, opaque: int, form: StreamForm, first: int, budget: int | None) -> Rendered:
    """The headers, extras and keys of a block, in which every value is nothing but a body; all frames at once."""
    most = None if budget is None else first + budget // HEADER_BYTES + 1
    starts = block.starts[first:most]
    shapes = _numbers_at(_KEY_LENGTH_AT, _U32, block.data)[starts].astype(np.int64)  # and extras' length, datatype
    bodies = (shapes >> 16) + (shapes >> 8 & 0xFF)
    sizes = bodies + HEADER_BYTES
    ends = sizes.cumsum()
    count = len(starts)
    if budget is not None:
        count = min(count, int(ends.searchsorted(max(budget, 1))) + 1)
    if count < len(starts):
        starts, shapes, bodies, sizes, ends = (column[:count] for column in (starts, shapes, bodies, sizes, ends))
    made = ends - sizes
    data = _beginnings(block.data, starts, sizes)
    _numbers_at(BODY_LENGTH_AT, _U64, data)[made] = bodies << 32 | opaque  # the opaque stands behind the length
    if not form.keep_datatype:
        _numbers_at(_KEY_LENGTH_AT, _U32, data)[made] = shapes & ~_OF_BODY
    if form.hifi_counter:
        _set_counters(data, made, 0)
    return Rendered(data, first + count, count)


def _numbers_at(offset: int, kind: np.dtype[np.unsignedinteger], data: Buffer) -> npt.NDArray[np.unsignedinteger]:
    """The numbers that stand this far behind each byte: of a frame's start, a field of its header."""
    return np.ndarray((len(data) - offset - kind.itemsize + 1,), kind, data, offset, (1,))


def _beginnings(data: Buffer, starts: Offsets, sizes: Offsets) -> bytearray | memoryview:
    """A copy of the first bytes of each frame, `sizes` of them."""
    runs = np.empty(2 * len(starts), np.int64)
    runs[::2] = starts
    runs[1::2] = starts + sizes
    return cut([memoryview(data)[int(starts[0]) :]], runs)


def _rewrite(block: FrameBlock, opaque: int, form: StreamForm, first: int, budget: int | None) -> Rendered:
    """Message by message, for a form that differs from the stored one."""
    data = memoryview(block.data)
    starts = block.starts
    count = len(starts)
    pieces: list[Buffer] = []
    total = made = 0
    index = first
    while index < count:
        start = int(starts[index])
        end = int(starts[index + 1]) if index + 1 < count else len(data)
        piece = rewritten(data[start:end], opaque, form)
        index += 1
        if piece is None:
            continue
        pieces.append(piece)
        made += 1
        total += len(piece)
        if budget is not None and total >= budget:
            break
    return Rendered(b"".join(pieces), index, made)


def _kinds_to_rewrite(block: FrameBlock, form: StreamForm) -> int:
    """The block's kinds, without the events if they go out to this stream as they are stored."""
    kinds = block.kinds
    takes_events = form.collection_ids is None and not form.flatbuffer_events and not form.hifi_counter
    if kinds & BlockKind.SYSTEM_EVENT and takes_events:
        events = events_of(block, 0, len(block.starts))
        if all(event.is_plain and event.event != SystemEventId.MODIFY_COLLECTION for event in events):
            return kinds & ~BlockKind.SYSTEM_EVENT
    return kinds
