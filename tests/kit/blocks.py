"""Blocks of stored frames for tests."""

from __future__ import annotations

import numpy as np

from dcpstream.wire.buffers import Buffer
from dcpstream.wire.frames import HEADER, HEADER_BYTES, frame_length
from dcpstream.wire.stored.block import BlockKind, FrameBlock, frame_kinds
from dcpstream_node.store.items import seqno_of


def block_of(data: Buffer) -> FrameBlock:
    """A block of whole stored frames, whose headers are read one by one.

    Raises:
        FrameError: the bytes are not whole frames.
    """
    starts: list[int] = []
    seqnos: list[int] = []
    kinds = BlockKind.PLAIN
    at = 0
    while at < len(data):
        end = at + frame_length(data, at)
        _, opcode, key_length, extras_length, datatype, *_ = HEADER.unpack_from(data, at)
        key_at = at + HEADER_BYTES + extras_length
        starts.append(at)
        seqnos.append(seqno_of(data, at))
        kinds |= frame_kinds(opcode, datatype, bytes(data[key_at : key_at + key_length]))
        at = end
    return FrameBlock(data, np.asarray(starts, np.int64), np.asarray(seqnos, np.uint64), kinds)
