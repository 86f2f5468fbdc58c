"""The boundaries of many frames in a receive buffer.

The length of a frame is in its header, so boundaries form a chain that can only be followed from the front. There are
two ways to follow it:

- One frame after the other takes about 130 ns per frame in Python. It is used for large frames, where copying
  dominates.
- Lanes are used for small frames. The buffer is cut into some hundred lanes, and each lane is searched for a *guess*, a
  place that looks like the header of a data frame. Then all chains are followed at once, one numpy step for one frame
  of each lane.

Wrong guesses do no harm. The first lane starts at a true boundary. The chain of lane i leaves it at some position; if
that equals the guess of lane i+1, the guess is a true boundary as well, and so on by induction. Otherwise (a value
holds something like a header, at worst a perfect chain of frames) the guess is discarded, and that lane is followed
frame by frame from where the previous chain left. Guesses decide the speed, never the result.

The content of frames plays no role here; `dcpstream.columnar.frame_index` checks their headers.
"""

from __future__ import annotations

import sys
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dcpstream.wire.buffers import Buffer
from dcpstream.wire.frames import BODY_LENGTH_AT, HEADER_BYTES, unpack_body_length

Int64Array: TypeAlias = npt.NDArray[np.int64]

LITTLE_ENDIAN = sys.byteorder == "little"
"""Reading many headers at once is written for such hosts; elsewhere frames are followed one by one."""
SAMPLE_FRAMES = 64
"""Frames followed one by one before a method is chosen: enough for a mean, little if the buffer is large."""
SAMPLE_DATA_MIN = 32
"""Data messages that a sample must hold to say how large they are; answers and markers come in crowds."""
LANES_MIN_FRAMES = 400
"""Expected frames below which the fixed cost of lanes (about 60 µs) is more than they save."""
LANES_MAX_MEAN_BYTES = 4096
"""Mean frame above which finding a guess costs as much as following the frames that a lane saves."""
LANES_MAX = 2048
"""Bound on lanes; memory of a step is proportional to it."""
FRAMES_PER_LANE_BASE = 8
"""With FRAMES_PER_LANE_SLOPE the measured optimum between few steps (short lanes) and few guesses (long lanes)."""
FRAMES_PER_LANE_SLOPE = 700
WINDOW_FRAMES = 1.25
"""Mean frames that are searched for a guess; a lane without one becomes part of the lane before it."""
ACTIVE_LANES_MIN = 12
"""A step costs as much as following this many frames one by one: with fewer lanes left, they are followed so."""
LANE_STEPS_SLACK = 4
"""Steps, as a multiple of the expected ones, after which the lanes left are followed one by one: bounds the memory."""

_HEAD_MASK = np.uint64(0x0000_F800_00FF_F0FF)
"""The mark of a guess in a header's first eight bytes, read as a little-endian number: the magic, the high
half of the opcode (DCP's are 0x5_), the byte behind it, and that the datatype is at most 7."""
_CLASSIC = 0x00_50_80
"""A request with a key of at most 255 bytes."""
_FLEXIBLE = 0x03_50_08
"""A request with framing extras of three bytes: a stream id."""
_DATA_OPCODES = b"\x57\x58\x59"
_FLEX_REQUEST = 0x08


def find_boundaries(buffer: Buffer, start: int, stop: int) -> tuple[Int64Array, int]:
    """Follow the chain of frames that begins at `start`, trusting every length.

    Args:
        buffer: the bytes.
        start: a true boundary.
        stop: the end of what may be read.

    Returns:
        (starts of the whole frames, rising; where the next frame begins, at most `stop`).
    """
    head: list[int] = []
    at = start
    while True:
        sample, after = _walk(buffer, at, stop, limit=SAMPLE_FRAMES)
        head += sample
        mean = (after - at) / SAMPLE_FRAMES
        at = after
        if len(sample) < SAMPLE_FRAMES:
            return np.array(head, np.int64), at
        if sum(buffer[begin + 1] in _DATA_OPCODES for begin in sample) >= SAMPLE_DATA_MIN:
            break
    if LITTLE_ENDIAN and (stop - at) / mean >= LANES_MIN_FRAMES and mean <= LANES_MAX_MEAN_BYTES:
        looks = _FLEXIBLE if buffer[head[-1]] == _FLEX_REQUEST else _CLASSIC
        starts, at = _follow_lanes(buffer, at, stop, mean, looks)
        return np.concatenate((np.array(head, np.int64), starts)), at
    tail, at = _walk(buffer, at, stop)
    return np.array(head + tail, np.int64), at


def _walk(buffer: Buffer, at: int, stop: int, *, until: int | None = None, limit: int = -1) -> tuple[list[int], int]:
    """Follow frames one by one while they begin before `until` and end by `stop`, at most `limit` of them."""
    starts: list[int] = []
    last = stop - HEADER_BYTES
    if until is not None:
        last = min(last, until - 1)
    while at <= last and len(starts) != limit:
        after = at + HEADER_BYTES + unpack_body_length(buffer, at + BODY_LENGTH_AT)[0]
        if after > stop:
            break
        starts.append(at)
        at = after
    return starts, at


def _guess(buffer: Buffer, start: int, stop: int, mean: float, head: int) -> Int64Array:
    """`start`, then about one place a lane that looks like a header, rising; the last value is the end of all lanes.

    Args:
        buffer: the bytes.
        start: a true boundary.
        stop: the end of what may be read; many frames behind `start`.
        mean: bytes of a frame, on average.
        head: the first eight bytes that a header should have, as far as `_HEAD_MASK` looks at them.
    """
    frames = (stop - start) / mean
    lanes = min(LANES_MAX, int(frames / (FRAMES_PER_LANE_BASE + frames / FRAMES_PER_LANE_SLOPE)) + 1)
    width = (stop - start) // lanes
    # A guess is looked for in little more than a frame's length, so that searching stays a fraction of reading.
    window = int(WINDOW_FRAMES * mean)
    # No header fits behind stop - 24; positions from there on are exits.
    final = stop - HEADER_BYTES + 1
    begin = start + width
    count = max(0, (final - window - begin) // width + 1)
    windows = np.ndarray((count, window), np.uint8, buffer, begin if count else 0, (width, 1))
    hits = np.flatnonzero(windows == np.uint8(head & 0xFF))
    lane = hits // window
    places = begin + lane * width + (hits - lane * window)
    heads = np.ndarray((stop - 7,), np.uint64, buffer, 0, (1,))[places]
    good = (heads & _HEAD_MASK) == np.uint64(head)
    places, lane = places[good], lane[good]
    first = np.ones(len(lane), np.bool_)
    first[1:] = lane[1:] != lane[:-1]
    return np.concatenate(([start], places[first], [final]))


def _follow_lanes(buffer: Buffer, start: int, stop: int, mean: float, head: int) -> tuple[Int64Array, int]:
    bounds = _guess(buffer, start, stop, mean, head)
    steps_max = LANE_STEPS_SLACK * int((stop - start) / (mean * (len(bounds) - 1)) + 1)
    grid, exits, left = _step_lanes(buffer, bounds, stop, steps_max)
    tails = {}
    for lane, position in left.items():
        tails[lane], exits[lane] = _walk(buffer, position, stop, until=int(bounds[lane + 1]))
    if (exits[:-1] == bounds[1:-1]).all():
        turned = grid.T.ravel()
        starts = turned[turned >= 0]
        if tails:
            starts = np.sort(np.concatenate((starts, *(np.array(tail, np.int64) for tail in tails.values()))))
        at = int(exits[-1])
    else:
        starts, at = _confirmed(buffer, grid, tails, bounds, exits, stop)
    if at > stop:  # the last frame is not whole
        at = int(starts[-1])
        starts = starts[:-1]
    return starts, at


def _step_lanes(
    buffer: Buffer, bounds: Int64Array, stop: int, steps_max: int
) -> tuple[Int64Array, Int64Array, dict[int, int]]:
    """Follow all lanes at once.

    Returns:
        (grid[step, lane] of positions, -1 where the lane had ended; where each lane was left; lanes that were not
        followed to their end: lane → position reached).
    """
    lanes = len(bounds) - 1
    # The body length at every byte of the buffer, as an overlapping view: body[p] is that of a header at p.
    body = np.ndarray((stop - BODY_LENGTH_AT - 3,), np.uint32, buffer, BODY_LENGTH_AT, (1,))
    position, end = bounds[:-1], bounds[1:]
    lane = np.arange(lanes)
    exits = np.empty(lanes, np.int64)
    rows: list[Int64Array] = []
    while len(position) >= ACTIVE_LANES_MIN and len(rows) < steps_max:
        if len(position) == lanes:
            rows.append(position)
        else:
            row = np.full(lanes, -1, np.int64)
            row[lane] = position
            rows.append(row)
        length = body[position]
        after = length.byteswap(True) + position
        after += HEADER_BYTES
        inside = after < end
        if np.count_nonzero(inside) == len(position):
            position = after
            continue
        outside = ~inside
        exits[lane[outside]] = after[outside]
        position, end, lane = after[inside], end[inside], lane[inside]
    grid = np.array(rows) if rows else np.empty((0, lanes), np.int64)
    return grid, exits, dict(zip(lane.tolist(), position.tolist(), strict=True))


def _confirmed(
    buffer: Buffer,
    grid: Int64Array,
    tails: dict[int, list[int]],
    bounds: Int64Array,
    exits: Int64Array,
    stop: int,
) -> tuple[Int64Array, int]:
    """Keep the lanes whose guess the chain before them confirms; follow the others one by one."""
    pieces: list[Int64Array] = []
    at = int(bounds[0])
    for lane in range(len(exits)):
        lane_end = int(bounds[lane + 1])
        if at == bounds[lane]:
            column = grid[:, lane]
            pieces.append(column[column >= 0])
            pieces.append(np.array(tails.get(lane, ()), np.int64))
            at = int(exits[lane])
        elif at < lane_end:
            walked, at = _walk(buffer, at, stop, until=lane_end)
            pieces.append(np.array(walked, np.int64))
    return np.concatenate(pieces), at
