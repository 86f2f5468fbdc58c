"""WireChunk: parts of it, and its batch."""

from __future__ import annotations

import numpy as np
import pytest

from dcpstream.arrow import WireChunk
from tests.kit import raw_frames
from tests.kit.wire_columns import decode_messages, decode_wire

pytestmark = pytest.mark.usefixtures("each_decoder")


@pytest.fixture
def chunk() -> WireChunk:
    frames = [raw_frames.mutation(b"\0%d" % n, b"v" * n, seqno=n + 1, opaque=n % 3) for n in range(90)]
    buffer = b"".join(frames) + raw_frames.marker()
    return decode_wire(buffer)


def part(rows: list[int]) -> WireChunk:
    frames = [raw_frames.mutation(b"\0%d" % n, b"v" * n, seqno=n + 1, opaque=n % 3) for n in rows]
    return decode_messages(b"".join(frames))


@pytest.mark.parametrize(("start", "stop"), [(0, 90), (3, 70), (5, 5), (89, 90)])
def test_slice(chunk: WireChunk, start: int, stop: int) -> None:
    raw_frames.same(chunk.slice(start, stop), part(list(range(start, stop))))


def test_select_does_not_share_memory(chunk: WireChunk) -> None:
    assert not np.shares_memory(chunk.select(np.ones(90, np.bool_)).seqno, chunk.seqno)
