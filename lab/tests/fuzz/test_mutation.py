"""Changes that keep frames whole."""

from __future__ import annotations

import random

from dcpstream.errors import FrameError
from dcpstream.wire import Frame, FrameReader, Magic, Opcode, decode_frame
from lab.fuzz.mutation import changed_frame, mutated, split

FRAMES = [
    Frame(Magic.REQUEST, Opcode.SET, vbid=3, opaque=9, cas=5, extras=bytes(8), key=b"\0k", value=b"v").encode(),
    Frame(Magic.FLEX_REQUEST, Opcode.GET, framing=b"\x11\x02", key=b"\0k").encode(),
    Frame(Magic.RESPONSE, Opcode.GET, extras=bytes(4), value=b"v" * 40).encode(),
]


def flip(data: bytes, max_bytes: int) -> bytes:
    return bytes(byte ^ 1 for byte in data)[:max_bytes] + b"!"[: max_bytes - len(data)]


def test_split_gives_frames_events_and_the_rest() -> None:
    stream = FRAMES[0] + b"\x01\x20" + FRAMES[1] + FRAMES[2][:30]
    assert split(stream) == [FRAMES[0], b"\x01\x20", FRAMES[1], FRAMES[2][:30]]
    assert split(b"") == []


def test_a_changed_frame_is_a_frame() -> None:
    dice = random.Random(1)
    different = set()
    for _ in range(300):
        for frame in FRAMES:
            changed = changed_frame(frame, dice, flip)
            assert decode_frame(changed).encode() == changed
            different.add(changed)
    assert len(different) > 100
    assert changed_frame(b"\x01\x20", dice, flip) == b"\x00\x21!"


def test_an_input_keeps_its_head_and_its_limit() -> None:
    whole = 0
    for seed in range(300):
        found = mutated(b"\x07\x00" + b"".join(FRAMES), 120, seed, head=2, others=[FRAMES[1]], mutate=flip)
        assert len(found) <= 120
        reader = FrameReader()
        reader.receive_data(found[2:])
        try:
            list(reader.frames())
        except FrameError:
            continue
        whole += 1
    assert whole > 100, "too few inputs are chains of frames"


def test_a_seed_decides() -> None:
    data = b"\x07\x00" + b"".join(FRAMES)
    first, second = (mutated(data, 500, 4, head=2, others=FRAMES, mutate=flip) for _ in range(2))
    assert first == second
