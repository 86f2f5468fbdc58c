"""Backfill: a node that streams its whole history over loopback, compared with `sendall` of a constant buffer.

The reader, a process of its own, drops the received bytes. The figure is the CPU time of the sending process: for the
node everything from its store to the socket; for the baseline blocking `sendall` calls with one buffer, of the faster
of two sizes. That buffer stays in the CPU's cache. The node has to fetch every byte of its history from memory once and
to write the stream's opaque into each message, so it cannot reach 1. `send.*.bare` measures the possible optimum: the
same blocks, found beforehand, are copied into one buffer, get their opaque and are sent with a blocking `sendall`. In
`send.*.superseded` 30 % of the rows have a newer version, so no two messages in a row are sure to be neighbours;
`send.*.superseded.scattered` copies the blocks from where they lie in the history, instead of one piece each.
"""

from __future__ import annotations

import multiprocessing
import random
import socket
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from dcpstream.model import BucketSettings
from dcpstream.wire import Opcode, encode_request
from dcpstream.wire.buffers import BufferPool
from dcpstream.wire.stored.block import FrameBlock, Version, encode_stored_mutation
from dcpstream_node import Node
from lab.bench.common import Figure, repeats_for, report

CASES = ((256, False), (1024, False), (256, True))
"""Bytes of a value, and whether rows are superseded."""
SUPERSEDED = 0.3
OVERHEAD_BYTES = 24 + 31 + 15
TOTAL_BYTES = 256 * 1024 * 1024
QUICK_TOTAL_BYTES = 64 * 1024 * 1024
CONSTANT_BYTES = (256 * 1024, 1024 * 1024)
BLOCK_BYTES = 1024 * 1024
OPAQUE = 0x01020304
OPAQUE_AT = 12
RECEIVE_BYTES = 1024 * 1024
BATCH_ROWS = 5000
PASSWORD = "password"
TIMEOUT_S = 60.0


def fill(node: Node, value_bytes: int, total_bytes: int) -> None:
    """Give vbucket 0 a history of about `total_bytes`."""
    count = total_bytes // (value_bytes + OVERHEAD_BYTES)
    write(node, value_bytes, range(1, count + 1))


def supersede(node: Node, value_bytes: int) -> None:
    """Write so many of the documents again, by chance, that `SUPERSEDED` of all rows are superseded."""
    assert node.engine is not None
    vbucket = node.engine.buckets["default"].vbucket(0)
    assert vbucket is not None
    count = vbucket.high_seqno
    write(node, value_bytes, random.Random(1).sample(range(1, count + 1), int(count * SUPERSEDED / (1 - SUPERSEDED))))


def write(node: Node, value_bytes: int, numbers: Sequence[int]) -> None:
    """Write the documents with these numbers to vbucket 0."""
    assert node.engine is not None
    vbucket = node.engine.buckets["default"].vbucket(0)
    assert vbucket is not None
    value = b"\x80" * value_bytes
    for at in range(0, len(numbers), BATCH_ROWS):
        keys = [b"\0doc-%010d" % number for number in numbers[at : at + BATCH_ROWS]]
        seqnos = range(vbucket.high_seqno + 1, vbucket.high_seqno + 1 + len(keys))
        frames = [
            encode_stored_mutation(Version(key, value, 1), vbid=0, by_seqno=seqno, cas=seqno)
            for key, seqno in zip(keys, seqnos, strict=True)
        ]
        vbucket.log.append_many(frames, keys, seqnos)


def receive(port: int, wanted: int, is_node: bool, control: Connection) -> None:
    """The reader: requests the stream if a node sends it, and counts the bytes until all have arrived."""
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    if is_node:
        ask(connection)
    buffer = bytearray(RECEIVE_BYTES)
    control.send("ready")
    control.recv()
    if is_node:
        extras = struct.pack(">IIQQQQQ", 4, 0, 0, (1 << 64) - 1, 0, 0, 0)
        connection.sendall(encode_request(Opcode.DCP_STREAM_REQ, opaque=OPAQUE, extras=extras))
    received = 0
    while received < wanted:
        count = connection.recv_into(buffer)
        if not count:
            break
        received += count
    control.send(received)
    connection.close()


def ask(connection: socket.socket, name: bytes = b"bench") -> None:
    """Log in and open a DCP connection without flow control."""
    features = struct.pack(">6H", 0x04, 0x06, 0x07, 0x08, 0x0B, 0x12)
    requests = (
        encode_request(Opcode.HELLO, key=b"bench", value=features),
        encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0" + PASSWORD.encode()),
        encode_request(Opcode.SELECT_BUCKET, key=b"default"),
        encode_request(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", 0, 0x01 | 0x04 | 0x20)),
        encode_request(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true"),
        encode_request(Opcode.DCP_CONTROL, key=b"enable_expiry_opcode", value=b"true"),
    )
    stream = connection.makefile("rb")
    for request in requests:
        connection.sendall(request)
        header = stream.read(24)
        stream.read(int.from_bytes(header[8:12], "big"))
        assert header[6:8] == b"\0\0", f"the node refuses opcode 0x{request[1]:02x}"


def send_constant(connection: socket.socket, size: int, total: int) -> None:
    """The baseline."""
    block = b"\x80" * size
    for left in range(total, 0, -size):
        connection.sendall(block[: min(left, size)])


def blocks_of(node: Node) -> list[FrameBlock]:
    """The blocks of the history."""
    assert node.engine is not None
    vbucket = node.engine.buckets["default"].vbucket(0)
    assert vbucket is not None
    found: list[FrameBlock] = []
    seqno = 0
    while (block := vbucket.log.read(seqno, vbucket.high_seqno, max_bytes=BLOCK_BYTES)).count:
        found.append(block)
        seqno = block.last_seqno
    return found


def together(blocks: list[FrameBlock]) -> list[FrameBlock]:
    """The same blocks, each in one piece of memory."""
    return [FrameBlock(block.data, block.starts, block.seqnos, block.kinds) for block in blocks]


def send_bare(connection: socket.socket, blocks: list[FrameBlock]) -> None:
    """The steps that no sender of this history can leave out."""
    buffers = BufferPool()
    for block in blocks:
        data = memoryview(block.copy(0, block.size, buffers))
        words = np.ndarray((block.size - 3,), dtype=">u4", buffer=data, strides=(1,))
        words[block.starts + OPAQUE_AT] = OPAQUE
        connection.sendall(data)
        buffers.give_back([data])


Send = Callable[[socket.socket], None]


def timed(
    port: int, wanted: int, *, listener: socket.socket | None = None, send: Send | None = None
) -> tuple[float, float]:
    """(CPU seconds of this process, wall seconds) for sending `wanted` bytes to a reader.

    Args:
        listener, send: the socket that accepts the reader, and the function that sends to it; without them the reader
            connects to a node.
    """
    context = multiprocessing.get_context("spawn")
    control, other = context.Pipe()
    reader = context.Process(target=receive, args=(port, wanted, send is None, other), daemon=True)
    reader.start()
    connection: socket.socket | None = None
    if listener is not None:
        connection, _ = listener.accept()
    assert control.poll(TIMEOUT_S)
    control.recv()
    cpu, wall = time.process_time(), time.perf_counter()
    control.send("go")
    if connection is not None and send is not None:
        send(connection)
    assert control.poll(TIMEOUT_S)
    received = control.recv()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if connection is not None:
        connection.close()
    reader.join(TIMEOUT_S)
    assert received >= wanted, f"only {received} of {wanted} bytes came"
    return cpu, wall


def run(quick: bool) -> dict[str, Any]:
    """Measure."""
    total, repeats = QUICK_TOTAL_BYTES if quick else TOTAL_BYTES, repeats_for(quick)
    figures: list[Figure] = []
    ratios: dict[str, float | None] = {}
    for value_bytes, is_superseded in CASES:
        case = f"send.{value_bytes}" + (".superseded" if is_superseded else "")
        # Without compaction, which would remove the superseded rows while this runs.
        settings = BucketSettings(compact_at=1.0) if is_superseded else None
        with (
            Node(vbuckets=1, system_scope=False, password=PASSWORD, settings=settings) as node,
            socket.create_server(("127.0.0.1", 0)) as listener,
        ):
            fill(node, value_bytes, total)
            if is_superseded:
                supersede(node, value_bytes)
            blocks = blocks_of(node)
            size, messages = sum(block.size for block in blocks), sum(block.count for block in blocks)
            senders: list[Send] = [partial(send_constant, size=each, total=size) for each in CONSTANT_BYTES]
            senders.append(partial(send_bare, blocks=together(blocks_of(node))))
            bares = {f"{case}.bare": "; copy, opaque and sendall, and nothing else: the ceiling"}
            if is_superseded:
                senders.append(partial(send_bare, blocks=blocks))
                bares[f"{case}.scattered"] = "; the same, copying the rows from where they lie"
            port = listener.getsockname()[1]
            streaming: list[tuple[float, float]] = []
            others: list[list[tuple[float, float]]] = [[] for _ in senders]
            for _ in range(repeats + 1):
                streaming.append(timed(node.port, size))
                for times, send in zip(others, senders, strict=True):
                    times.append(timed(port, size, listener=listener, send=send))
            del blocks, senders
        chosen = min(
            range(len(CONSTANT_BYTES)), key=lambda index: statistics.median(cpu for cpu, _ in others[index][1:])
        )
        constant = others[chosen]
        baseline = tuple(size / cpu / 1e9 for cpu, _ in constant[1:])
        wall = statistics.median(b / a for (_, a), (_, b) in zip(streaming[1:], constant[1:], strict=True))
        for name, times, note in (
            (case, streaming, f"; by wall clock the ratio is {wall:.2f}"),
            *((name, times, bares[name]) for name, times in zip(bares, others[len(CONSTANT_BYTES) :], strict=True)),
        ):
            rates = tuple(size / cpu / 1e9 for cpu, _ in times[1:])
            figures.append(
                Figure(
                    name=name,
                    value=statistics.median(rates),
                    unit="GB/s",
                    baseline=f"sendall of a constant buffer of {CONSTANT_BYTES[chosen] // 1024} KiB",
                    baseline_value=statistics.median(baseline),
                    repeats=repeats,
                    samples=rates,
                    note="CPU time of the sender" + note,
                )
            )
            ratios[f"{name}.of_sendall"] = statistics.median(a / b for a, b in zip(rates, baseline, strict=True))
        for name, times in zip(bares, others[len(CONSTANT_BYTES) :], strict=True):
            ratios[f"{case}.of_{name.rpartition('.')[2]}"] = statistics.median(
                other / own for (own, _), (other, _) in zip(streaming[1:], times[1:], strict=True)
            )
        ratios[f"{case}.million_per_cpu_s"] = messages / statistics.median(cpu for cpu, _ in streaming[1:]) / 1e6
        ratios[f"{case}.million_per_s"] = messages / statistics.median(seconds for _, seconds in streaming[1:]) / 1e6
    return report(figures, ratios)
