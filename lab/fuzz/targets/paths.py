"""Plain requests by both paths: the kernel and the command table give the same bytes and history.

Input: the features of the connection, how many frames come in one read, and frames. Two bytes between them, of which
the first is 0, let time pass.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

from dcpstream.wire import Feature, Opcode, encode_request
from dcpstream_node.engine.session.step import Wants
from dcpstream_node.testing.simulation import USUAL_FEATURES
from lab.fuzz import seeds as shared
from lab.fuzz.mutation import split
from tests.kit.engine import Talker, engine_of, pass_time

FRAMES_AT = 2
MAX_BYTES = 1200
READ_BYTES = 1 << 20
_LEFT_OUT = (Feature.COLLECTIONS, Feature.MUTATION_SEQNO, Feature.JSON, Feature.XERROR, Feature.SNAPPY, Feature.XATTR)


def seeds() -> Iterator[bytes]:
    values = (b"1", b'{"a":1}', b"{", b"\xff", b"")
    kinds = [(value, kind, expiration) for value in values for kind in (0, 1) for expiration in (0, 5)]
    sets = []
    for number, (value, kind, expiration) in enumerate(kinds):
        place = {"vbid": number % 4, "opaque": number, "datatype": kind}
        extras = struct.pack(">II", number, expiration)
        sets.append(encode_request(Opcode.SET, key=b"\0k%d" % (number % 3), value=value, extras=extras, **place))
    gets = [encode_request(Opcode.GET, vbid=vbid, opaque=vbid, key=b"\0k%d" % (vbid % 3)) for vbid in range(5)]
    for features in (0, 1, 2, 4, 8, 16, 32, 63):
        yield bytes((features, 0)) + b"".join(sets[:8] + gets)
        yield bytes((features, 3)) + b"".join(sets[8:16]) + b"\x00\x20" + b"".join(gets)
    deletes = encode_request(Opcode.DELETE, key=b"\0k0"), encode_request(Opcode.GET_LOCKED, key=b"\0k1")
    yield b"\x00\x05" + b"".join((*sets[:4], *deletes, *gets, *sets[:4], *gets))
    durable = encode_request(Opcode.SET, key=b"\0k0", extras=bytes(8), value=b"1", framing=b"\x11\x01")
    yield b"\x00\x00" + sets[0] + durable + b"".join(gets)
    others = [frame for frame in shared.made_frames() if frame[0] == 0x80 and frame[1] < 0x50]
    for at in range(0, len(others), 6):
        yield b"\x00\x00" + sets[0] + b"".join(others[at : at + 6]) + gets[0]


def check(data: bytes) -> None:
    if len(data) < FRAMES_AT:
        return
    features = tuple(code for number, code in enumerate(_LEFT_OUT) if not data[0] >> number & 1)
    features += tuple(code for code in USUAL_FEATURES if code not in _LEFT_OUT)
    whole, table = (Talker(engine_of(vbuckets=4), features=features) for _ in range(2))
    table.session.dispatch = replace(table.session.dispatch, plain=None)
    for read in reads(split(data[2:]), data[1]):
        assert answers(whole, read) == answers(table, read), "the kernel differs from the command table"
        if whole.session.is_closing or whole.session.is_waiting:
            break
    assert histories(whole) == histories(table)
    assert dirty(whole) == dirty(table)


def reads(pieces: list[bytes], count: int) -> Iterator[bytes]:
    """The bytes of each read: this many pieces, all if it is 0; time passes between two reads."""
    waiting: list[bytes] = []
    for piece in pieces:
        if piece[0] == 0:
            yield b"".join(waiting)
            yield piece
            waiting = []
            continue
        waiting.append(piece)
        if len(waiting) == count:
            yield b"".join(waiting)
            waiting = []
    yield b"".join(waiting)


def answers(client: Talker, data: bytes) -> tuple[bytes, bool]:
    """The bytes that a session sends for some bytes, and whether it closes."""
    if data[:1] == b"\0":
        pass_time(client.engine, data[-1])
        return b"", False
    out = b""
    session = client.session
    while data:
        step = session.receive(data)
        data = data[step.used :]
        out += b"".join(bytes(piece) for piece in (*step.output, *session.send(READ_BYTES).output))
        if step.wants in (Wants.INPUT, Wants.EVENT):
            break
    return out, session.is_closing


def histories(client: Talker) -> list[bytes]:
    return [
        bytes(vbucket.read(0, vbucket.high_seqno, snapshot_end=None, max_bytes=READ_BYTES).data)
        for bucket in client.engine.buckets.values()
        for vbucket in bucket.vbuckets
        if vbucket is not None
    ]


def dirty(client: Talker) -> list[set[int]]:
    return [set(bucket.dirty) for bucket in client.engine.buckets.values()]
