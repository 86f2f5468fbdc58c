"""The stored form of history: encoding one document, and blocks of many frames in one piece of memory.

History is kept as the frames that the richest kind of stream gets (the *stored form*): keys with collection prefix,
deletions with delete time, expirations as such, xattrs and datatype as written, vbucket in the header, opaque 0,
classic magic. `dcpstream.wire.stored.rendering` turns a block into the bytes of one stream.

Source: kv_engine docs/dcp/documentation/commands/{mutation,deletion,expiration}.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import IntFlag
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dcpstream.runtime import kernel
from dcpstream.wire.buffers import Buffer, BufferPool
from dcpstream.wire.codes import Datatype, Opcode, plain_masks
from dcpstream.wire.frames import HEADER, HEADER_BYTES
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.messages.dcp import DeletionV2, Expiration, Mutation
from dcpstream.wire.system_events import CollectionEvent, read_event

Offsets: TypeAlias = npt.NDArray[np.int64]
Seqnos: TypeAlias = npt.NDArray[np.uint64]

_DURABLE = frozenset((int(Opcode.DCP_PREPARE), int(Opcode.DCP_ABORT)))


@plain_masks
class BlockKind(IntFlag):
    """The kinds of frames in a block, other than plain mutations of the default collection."""

    PLAIN = 0
    DELETION = 1
    EXPIRATION = 2
    XATTR = 4
    SNAPPY = 8
    SYSTEM_EVENT = 16
    NAMED_COLLECTION = 32
    PREPARE = 64
    """A prepare or an abort: only streams with sync writes get it."""
    COMMIT = 128
    """A change that decided a prepare; a restart forgets this."""


class FrameBlock:
    """Whole frames of one vbucket in stored form, in order of seqno.

    Attributes:
        size: the number of bytes.
        starts: int64[count], offset of each frame in `data`.
        seqnos: uint64[count], their seqnos.
        kinds: all kinds that occur, possibly more: bits of `BlockKind`.
    """

    __slots__ = ("_data", "kinds", "seqnos", "size", "starts")

    def __init__(self, data: Buffer, starts: Offsets, seqnos: Seqnos, kinds: int) -> None:
        self._data: Buffer | None = data
        self.size = len(data)
        self.starts = starts
        self.seqnos = seqnos
        self.kinds = kinds

    @property
    def data(self) -> Buffer:
        """The frames, one after the other."""
        assert self._data is not None
        return self._data

    @property
    def count(self) -> int:
        """The number of frames."""
        return len(self.starts)

    def copy(self, begin: int, end: int, buffers: BufferPool | None = None) -> bytearray | memoryview:
        """A writable copy of the bytes [begin, end) of `data`.

        Args:
            buffers: where a large copy gets its memory from; fresh memory without.
        """
        data = memoryview(self.data)[begin:end]
        return bytearray(data) if buffers is None else buffers.copy_of(data)

    @property
    def first_seqno(self) -> int:
        """Seqno of the first frame; the block must not be empty."""
        return int(self.seqnos[0])

    @property
    def last_seqno(self) -> int:
        """Seqno of the last frame; the block must not be empty."""
        return int(self.seqnos[-1])

    def without(self, leaves_out: Sequence[bool]) -> FrameBlock:
        """A copy without the frames for which `leaves_out` is true."""
        bounds = [*self.starts.tolist(), len(self.data)]
        view = memoryview(self.data)
        kept = np.flatnonzero(~np.asarray(leaves_out, dtype=np.bool_))
        frames = [view[bounds[index] : bounds[index + 1]] for index in kept.tolist()]
        sizes = np.diff(np.asarray(bounds))[kept]
        return FrameBlock(b"".join(frames), np.cumsum(sizes) - sizes, self.seqnos[kept], self.kinds)


class ScatteredBlock(FrameBlock):
    """A block whose frames lie among others. They are copied once, to where they are needed.

    Args:
        parts: memory that, one part after the other, has all between the first and the last of the runs.
        runs: int64[2 * number], begin and end of each run of frames, rising.
        starts, seqnos, kinds: as of `FrameBlock`.
    """

    __slots__ = ("_parts", "_runs")

    def __init__(self, parts: list[Buffer], runs: Offsets, starts: Offsets, seqnos: Seqnos, kinds: int) -> None:
        super().__init__(b"", starts, seqnos, kinds)
        self._data = None
        self._parts = parts
        self._runs = runs
        self.size = int((runs[1::2] - runs[::2]).sum())

    @property
    def data(self) -> Buffer:
        """The frames, one after the other, copied at the first use."""
        if self._data is None:
            self._data = cut(self._parts, self._runs)
        return self._data

    def copy(self, begin: int, end: int, buffers: BufferPool | None = None) -> bytearray | memoryview:
        """As of `FrameBlock`, straight from the frames' places if it is a copy of all of them."""
        if self._data is not None or (begin, end) != (0, self.size):
            return super().copy(begin, end, buffers)
        return cut(self._parts, self._runs, None if buffers is None else buffers.allocate(self.size))


def cut(parts: list[Buffer], runs: Offsets, into: memoryview | None = None) -> bytearray | memoryview:
    """A copy of some runs of bytes.

    Args:
        parts: they have, one after the other, all from the begin of the first run to the end of the last.
        runs: int64[2 * number], begin and end of each run, rising.
        into: memory of exactly the size of the runs; fresh memory without.
    """
    base = int(runs[0])
    if kernel.native is not None:
        found: bytearray | memoryview = kernel.native.cut(parts, base, runs, into)
        return found
    view = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
    bounds = (runs - base).tolist()
    pieces = [view[begin:end] for begin, end in zip(bounds[::2], bounds[1::2], strict=True)]
    if into is None:
        return bytearray().join(pieces)
    into[:] = b"".join(pieces)
    return into


EMPTY_BLOCK = FrameBlock(b"", np.empty(0, np.int64), np.empty(0, np.uint64), BlockKind.PLAIN)


class Version(NamedTuple):
    """One version of a document, or its tombstone; its place in history and its CAS are given by the vbucket.

    Attributes:
        key: with its collection prefix.
        value: of a tombstone, its system xattrs.
        rev_seqno: one more than that of the version before.
        time: the expiration (seconds since 1970, 0 never), or the time of the deletion.
    """

    key: bytes
    value: bytes
    rev_seqno: int
    datatype: int = 0
    flags: int = 0
    time: int = 0


def encode_stored_mutation(version: Version, *, vbid: int, by_seqno: int, cas: int, nru: int = 0) -> bytes:
    """A mutation in stored form."""
    key, value, rev_seqno, datatype, flags, expiration = version
    return Mutation.pack(
        by_seqno, rev_seqno, flags, expiration, 0, 0, nru, vbid=vbid, cas=cas, datatype=datatype, key=key, value=value
    )


def encode_stored_deletion(version: Version, *, vbid: int, by_seqno: int, cas: int) -> bytes:
    """A deletion in stored form.

    The message has no field for flags, so the document's flags stand in place of the opaque.
    """
    key, value, rev_seqno, datatype, flags, time = version
    return DeletionV2.pack(
        by_seqno, rev_seqno, time, 0, vbid=vbid, opaque=flags, cas=cas, datatype=datatype, key=key, value=value
    )


def encode_stored_expiration(version: Version, *, vbid: int, by_seqno: int, cas: int) -> bytes:
    """An expiration in stored form; flags as of a deletion."""
    key, value, rev_seqno, datatype, flags, time = version
    return Expiration.pack(
        by_seqno, rev_seqno, time, vbid=vbid, opaque=flags, cas=cas, datatype=datatype, key=key, value=value
    )


def frame_kinds(opcode: int, datatype: int, key: bytes) -> BlockKind:
    """The kinds of one stored frame; `key` with its collection prefix."""
    if opcode == Opcode.DCP_SYSTEM_EVENT:
        return BlockKind.SYSTEM_EVENT
    kinds = BlockKind.PLAIN
    if opcode == Opcode.DCP_DELETION:
        kinds |= BlockKind.DELETION
    elif opcode == Opcode.DCP_EXPIRATION:
        kinds |= BlockKind.EXPIRATION
    elif opcode in _DURABLE:
        kinds |= BlockKind.PREPARE
    if datatype & Datatype.XATTR:
        kinds |= BlockKind.XATTR
    if datatype & Datatype.SNAPPY:
        kinds |= BlockKind.SNAPPY
    if key[:1] != b"\0":
        kinds |= BlockKind.NAMED_COLLECTION
    return kinds


def events_of(block: FrameBlock, first: int, stop: int) -> Iterator[CollectionEvent]:
    """The events of scopes and collections among the block's messages [first, stop)."""
    for index in _event_rows(block, first, stop):
        yield event_at(memoryview(block.data), int(block.starts[index]))


def event_at(data: Buffer, start: int = 0) -> CollectionEvent:
    """The event of a scope or collection in a stored frame."""
    _, _, key_length, extras_length, _, _, body, _, _ = HEADER.unpack_from(data, start)
    key_at = start + HEADER_BYTES + extras_length
    value_at, stop_at = key_at + key_length, start + HEADER_BYTES + body
    extras = bytes(data[start + HEADER_BYTES : key_at])
    return read_event(extras, bytes(data[key_at:value_at]), bytes(data[value_at:stop_at]))


def seqnos_of(block: FrameBlock, numbers: Collection[int]) -> Iterator[int]:
    """The seqnos of the messages that belong to some collections, their events included, in order.

    Args:
        numbers: collection ids, and the numbers that `events_of_scope` gives for scopes.
    """
    if not block.kinds & (BlockKind.NAMED_COLLECTION | BlockKind.SYSTEM_EVENT):
        yield from block.seqnos.tolist() if 0 in numbers else ()
        return
    data = memoryview(block.data)
    for start, seqno in zip(block.starts.tolist(), block.seqnos.tolist(), strict=True):
        _, opcode, _, extras_length, *_ = HEADER.unpack_from(data, start)
        if opcode == Opcode.DCP_SYSTEM_EVENT:
            number = event_at(data, start).number
        else:
            number = leb128_decode(data[start + HEADER_BYTES + extras_length :])[0]
        if number in numbers:
            yield seqno


def _event_rows(block: FrameBlock, first: int, stop: int) -> Sequence[int]:
    """The indexes of the system events among the block's messages [first, stop)."""
    if not block.kinds & BlockKind.SYSTEM_EVENT:
        return ()
    opcodes = np.frombuffer(block.data, dtype=np.uint8)[block.starts[first:stop] + 1]
    return (np.flatnonzero(opcodes == int(Opcode.DCP_SYSTEM_EVENT)) + first).tolist()
