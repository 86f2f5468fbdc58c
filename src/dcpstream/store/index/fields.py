"""What the index keeps of each frame: revision, and expiration or delete time."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dcpstream.store.index.rows import NOT_A_DOCUMENT, PREPARE, SYSTEM, UNTOLD_REVISION, U32s
from dcpstream.store.items import HEADER_BYTES
from dcpstream.store.log.bytelog import Buffer

_document_fields = struct.Struct(">QII").unpack_from
"""Revision, flags and expiration; they follow the seqno in a mutation's extras."""
document_halves = struct.Struct(">IIII").unpack_from
"""The same, with the revision in two halves."""
_tombstone_fields = struct.Struct(">QI").unpack_from
"""Revision and delete time."""
FIELDS_AT = HEADER_BYTES + 8
"""Where these begin in a frame."""


def fields_of(frame: Buffer, kinds: int) -> tuple[int, int]:
    """Revision and time of a stored frame, as the index has them."""
    if not kinds & NOT_A_DOCUMENT:
        revision, _, time = _document_fields(frame, FIELDS_AT)
    elif kinds & (SYSTEM | PREPARE):
        return UNTOLD_REVISION, 0
    else:
        revision, time = _tombstone_fields(frame, FIELDS_AT)
    return min(UNTOLD_REVISION, revision), time


def columns_of(data: bytes | bytearray, sizes: Sequence[int]) -> tuple[npt.NDArray[np.int64], U32s, U32s]:
    """Of documents' frames that follow each other: where each begins, expirations, revisions."""
    lengths = np.fromiter(sizes, np.int64, len(sizes))
    starts = lengths.cumsum()
    starts -= lengths
    whole = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
    times = whole[starts + (FIELDS_AT + 8)].astype(np.uint32)  # the lower half: the flags are above it
    return starts, times, np.minimum(whole[starts + FIELDS_AT], UNTOLD_REVISION).astype(np.uint32)
