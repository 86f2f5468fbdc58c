"""Ingest: SET requests through a session of the node, compared with a loop that only finds the ends of requests.

No server in pure Python can be faster than the baseline, a loop that unpacks each header and jumps to the next.
`per_op` is a whole operation, one by one, from bytes to bytes: header, privileges, vbucket, JSON check, CAS, the stored
frame, the index, the answer with its mutation token. `bulk` is the same for requests in long runs. There
are no sockets; the store is in memory, with one session.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

from dcpstream.model import NodeAddress
from dcpstream.runtime import SystemRandom
from dcpstream.wire import HEADER, HEADER_BYTES, Feature, Opcode, encode_request
from dcpstream_node import Node
from dcpstream_node.dcp.dispatch import handle_dcp
from dcpstream_node.dcp.stats import dcp_stats
from dcpstream_node.engine import ClusterConfig, Session, Users, new_engine
from dcpstream_node.engine.session.step import Wants
from dcpstream_node.store import MemoryBucketStore
from lab.bench.common import Figure, measure, measure_in_turns, median_of_ratios, repeats_for, report

OPERATIONS = 50_000
QUICK_OPERATIONS = 10_000
VBUCKETS = 1024
OP_BY_OP_BYTES = 32 * 1024
"""Less than what the node answers as a whole."""
BULK_READ_BYTES = 512 * 1024
VALUE_BYTES = 256
START_ROUNDS = 5


def requests(count: int, value: bytes, opcode: Opcode = Opcode.SET) -> bytes:
    """Pipelined requests for `count` keys, like those of a loader."""
    parts = []
    for number in range(count):
        key = b"doc-%010d" % number
        vbid = ((zlib.crc32(key) >> 16) & 0x7FFF) % VBUCKETS
        extras = bytes(8) if opcode == Opcode.SET else b""
        body = value if opcode == Opcode.SET else b""
        parts.append(encode_request(opcode, vbid=vbid, opaque=number, extras=extras, key=b"\0" + key, value=body))
    return b"".join(parts)


def scan(data: bytes) -> int:
    """The bare boundary loop: counts the requests."""
    at, end, count = 0, len(data), 0
    unpack = HEADER.unpack_from
    while end - at >= HEADER_BYTES:
        _, _, _, _, _, _, body, _, _ = unpack(data, at)
        at += HEADER_BYTES + body
        count += 1
    return count


def new_session() -> Session:
    """A logged-in session with a bucket, on an engine without sockets."""
    users = Users(SystemRandom())
    users.add("bench", "unused")
    user = users.find("bench")
    assert user is not None
    engine = new_engine(users, ClusterConfig([NodeAddress("", 1, 2)]), SystemRandom(), handle_dcp, dcp_stats)
    engine.set_time(0.0, time.time_ns())
    bucket = engine.add_bucket("default", MemoryBucketStore(VBUCKETS))
    session = engine.new_session("bench")
    assert session is not None
    session.logged_in(user)
    session.select(bucket)
    session.negotiated(frozenset((Feature.MUTATION_SEQNO, Feature.XERROR, Feature.JSON, Feature.COLLECTIONS)))
    return session


def feed(session: Session, data: bytes, read_bytes: int = OP_BY_OP_BYTES) -> int:
    """Hand the bytes to the session as a socket would; returns the bytes of the answers."""
    rest, answered = b"", 0
    for at in range(0, len(data), read_bytes):
        piece = rest + data[at : at + read_bytes]
        wants = Wants.ROOM
        while wants is Wants.ROOM:
            step = session.receive(piece)
            piece, wants = piece[step.used :], step.wants
            answered += sum(map(len, step.output))
        rest = piece
    assert not rest
    session.engine.end_turn()
    return answered


def run(quick: bool) -> dict[str, Any]:
    """Measure."""
    count = QUICK_OPERATIONS if quick else OPERATIONS
    repeats = repeats_for(quick)
    binary = b"\x80" + b"v" * (VALUE_BYTES - 1)
    text = b'{"name":"abcdefgh","number":12345,"text":"' + b"x" * (VALUE_BYTES - 44) + b'"}'
    figures: list[Figure] = []
    ratios: dict[str, float | None] = {}
    for name, value, read_bytes in (
        ("per_op", binary, OP_BY_OP_BYTES),
        ("per_op_json", text, OP_BY_OP_BYTES),
        ("bulk", binary, BULK_READ_BYTES),
        ("bulk_json", text, BULK_READ_BYTES),
    ):
        figure, ratio = writes(name, value, read_bytes, count, repeats)
        figures.append(figure)
        ratios[f"ingest.{name}.of_scan"] = ratio
    figures += reads(count, repeats)
    figures.append(overwrites(count, repeats))
    started = measure(start_and_stop, repeats=START_ROUNDS if not quick else 3)
    figures.append(
        Figure(
            name="node_start_s",
            value=started.wall,
            unit="s",
            repeats=started.repeats,
            samples=started.wall_s,
            note="start and stop, 1,024 vbuckets, memory; imports done before",
        )
    )
    ratios["node_start_s"] = started.wall
    return report(figures, ratios)


def writes(name: str, value: bytes, read_bytes: int, count: int, repeats: int) -> tuple[Figure, float]:
    """SET of new keys."""
    data, scans = requests(count, value), 10
    # Each round writes to a new engine, so that every SET is an insert. Making the engine is not timed.
    sessions = iter([new_session() for _ in range(repeats + 1)])
    scanning, setting = measure_in_turns(
        lambda: [scan(data) for _ in range(scans)], lambda: feed(next(sessions), data, read_bytes), repeats=repeats
    )
    rates = setting.cpu_rates(count / 1e6)
    figure = Figure(
        name=f"ingest.{name}",
        value=count / setting.cpu / 1e6,
        unit="M op/s",
        baseline="header loop of the same requests",
        baseline_value=count * scans / scanning.cpu / 1e6,
        repeats=repeats,
        samples=rates,
        note=f"SET, {VALUE_BYTES} B {'JSON' if 'json' in name else 'binary'}, new keys, {VBUCKETS} vbuckets, CPU time",
    )
    return figure, median_of_ratios(rates, scanning.cpu_rates(count * scans / 1e6))


def reads(count: int, repeats: int) -> list[Figure]:
    """GET of the same keys."""
    session = new_session()
    feed(session, requests(count, b"\x80" + b"v" * (VALUE_BYTES - 1)))
    data = requests(count, b"", Opcode.GET)
    scanning, getting = measure_in_turns(lambda: scan(data), lambda: feed(session, data), repeats=repeats)
    return [
        Figure(
            name="ingest.get",
            value=count / getting.cpu / 1e6,
            unit="M op/s",
            baseline="header loop of the same requests",
            baseline_value=count / scanning.cpu / 1e6,
            repeats=repeats,
            note=f"GET, {VALUE_BYTES} B, CPU time",
        )
    ]


def overwrites(count: int, repeats: int) -> Figure:
    """SET of the same keys again."""
    session = new_session()
    data, scans = requests(count, b"\x80" + b"v" * (VALUE_BYTES - 1)), 10
    feed(session, data)
    scanning, setting = measure_in_turns(
        lambda: [scan(data) for _ in range(scans)], lambda: feed(session, data), repeats=repeats
    )
    return Figure(
        name="ingest.per_op_overwrite",
        value=count / setting.cpu / 1e6,
        unit="M op/s",
        baseline="header loop of the same requests",
        baseline_value=count * scans / scanning.cpu / 1e6,
        repeats=repeats,
        note=f"SET, {VALUE_BYTES} B binary, keys that are there, {VBUCKETS} vbuckets, nothing compacted, CPU time",
    )


def start_and_stop() -> None:
    """Start and stop of a node without clients."""
    with Node(vbuckets=VBUCKETS, system_scope=False):
        pass
