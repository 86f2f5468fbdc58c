"""Changes to inputs that are chains of frames.

A changed byte in a header mostly makes the lengths wrong, and nothing behind it is read. So half of the changes here
are made to the parts of one frame, whose lengths are then put right.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

HEADER = struct.Struct(">BBHBBHIIQ")
"""Magic, opcode, key length, extras length, datatype, vbucket, body length, opaque, CAS."""
FLEXIBLE = (0x08, 0x18)
MAGICS = (0x80, 0x81, 0x82, 0x83, *FLEXIBLE)
NUMBERS = (0, 1, 2, 4, 7, 8, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)
"""Numbers at which code decides."""
PLAIN_SHARE = 0.4
"""Share of changes that know nothing of frames."""

Mutate = Callable[[bytes, int], bytes]
"""Changes any bytes: (bytes, limit of the result's size) → bytes."""


def split(data: bytes) -> list[bytes]:
    """The frames at the start of some bytes, and the rest if there is any."""
    pieces = []
    at = 0
    while at < len(data):
        end = len(data)
        if data[at] in MAGICS and len(data) - at >= HEADER.size:
            end = min(at + HEADER.size + int.from_bytes(data[at + 8 : at + 12], "big"), len(data))
        elif data[at] not in MAGICS:
            # An event of `lab.fuzz.targets.node`: two bytes.
            end = min(at + 2, len(data))
        pieces.append(data[at:end])
        at = end
    return pieces


def changed_frame(frame: bytes, dice: random.Random, mutate: Mutate) -> bytes:
    """A frame with one field or part changed, and its lengths right."""
    if len(frame) < HEADER.size or frame[0] not in MAGICS:
        return mutate(frame, len(frame) + 8)
    magic, opcode, key_bytes, extras_bytes, datatype, vbid, _, opaque, cas = HEADER.unpack_from(frame)
    framing_bytes = 0
    if magic in FLEXIBLE:
        framing_bytes, key_bytes = key_bytes >> 8, key_bytes & 0xFF
    cuts = [HEADER.size]
    for size in (framing_bytes, extras_bytes, key_bytes):
        cuts.append(min(cuts[-1] + size, len(frame)))
    framing, extras, key, value = (frame[a:b] for a, b in zip(cuts, [*cuts[1:], len(frame)], strict=True))
    match dice.randrange(12):
        case 0:
            opcode = dice.randrange(256)
        case 1:
            vbid = dice.choice((0, 1, 2, 3, 4, 5, 0x20, 0x23, 0x24, 0xFFFF, dice.randrange(1 << 16)))
        case 2:
            datatype = dice.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 255))
        case 3:
            cas = dice.choice((*NUMBERS, dice.getrandbits(64)))
        case 4:
            opaque = dice.choice((*NUMBERS, dice.getrandbits(32))) & 0xFFFFFFFF
        case 5:
            magic = dice.choice(MAGICS)
        case 6:
            framing = mutate(framing, 24)
        case 7:
            extras = mutate(extras, 64)
        case 8 | 9:
            width = dice.choice((1, 2, 4, 8))
            if len(extras) >= width:
                at = dice.randrange(0, len(extras) - width + 1)
                number = dice.choice(NUMBERS) & ((1 << 8 * width) - 1)
                extras = extras[:at] + number.to_bytes(width, "big") + extras[at + width :]
        case 10:
            key = mutate(key, 260)
        case _:
            value = mutate(value, len(value) + 64)
    return joined(magic, opcode, datatype, vbid, opaque, cas, framing, extras, key, value)


def joined(
    magic: int, opcode: int, datatype: int, vbid: int, opaque: int, cas: int,
    framing: bytes, extras: bytes, key: bytes, value: bytes,
) -> bytes:  # fmt: skip
    """A frame of these parts, each cut to what its length field can say."""
    if framing and magic not in FLEXIBLE:
        magic = 0x08 if magic in (0x80, 0x82) else 0x18
    extras = extras[:255]
    if magic in FLEXIBLE:
        framing, key = framing[:255], key[:255]
        lengths = len(framing) << 8 | len(key)
    else:
        key = key[:0xFFFF]
        lengths = len(key)
    body = framing + extras + key + value
    return HEADER.pack(magic, opcode, lengths, len(extras), datatype, vbid, len(body), opaque, cas) + body


def mutated(data: bytes, max_bytes: int, seed: int, *, head: int, others: Sequence[bytes], mutate: Mutate) -> bytes:
    """An input made of another one.

    Args:
        data: a few bytes that choose what the target does, then frames.
        max_bytes: limit of the result's size.
        seed: decides on everything but `mutate`.
        head: number of those few bytes.
        others: frames that may be put in.
        mutate: changes any bytes.
    """
    dice = random.Random(seed)
    if dice.random() < PLAIN_SHARE or len(data) <= head:
        return mutate(data, max_bytes)
    first, pieces = data[:head], split(data[head:])
    at = dice.randrange(len(pieces))
    match dice.randrange(10):
        case 0:
            del pieces[at]
        case 1:
            pieces.insert(dice.randrange(len(pieces) + 1), pieces[at])
        case 2:
            other = dice.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        case 3 | 4 if others:
            pieces.insert(at, dice.choice(others))
        case 5 if head:
            first = mutate(first, head).ljust(head, b"\0")
        case _:
            for _ in range(dice.choice((1, 1, 2, 4))):
                at = dice.randrange(len(pieces))
                pieces[at] = changed_frame(pieces[at], dice, mutate)
    return (first + b"".join(pieces))[:max_bytes]
