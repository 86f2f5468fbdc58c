"""What the index keeps of each frame: revision, and expiration or delete time."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate

from dcpstream.store.bytelog import Buffer
from dcpstream.store.items import HEADER_BYTES
from dcpstream.store.rows import NOT_A_DOCUMENT, PREPARE, SYSTEM, UNTOLD_REVISION, np

COLUMNS_AT_ONCE = 64
"""From so many frames on their columns are read in bulk: its fixed cost is that of some forty read one by one."""

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


def columns_of(data: bytes | bytearray, sizes: Sequence[int]) -> tuple[array[int], array[int]]:
    """Expiration and revision of many documents' frames, which follow each other."""
    times, revisions = array("I"), array("I")
    if np is None or len(sizes) < COLUMNS_AT_ONCE:
        for start in accumulate(sizes[:-1], initial=0):
            revision, _, time = _document_fields(data, start + FIELDS_AT)
            times.append(time)
            revisions.append(min(revision, UNTOLD_REVISION))
        return times, revisions
    fields = np.cumsum(sizes) - np.asarray(sizes) + FIELDS_AT
    whole = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
    times.frombytes((whole[fields + 8] & 0xFFFFFFFF).astype(np.uint32).tobytes())
    revisions.frombytes(np.minimum(whole[fields], UNTOLD_REVISION).astype(np.uint32).tobytes())
    return times, revisions
