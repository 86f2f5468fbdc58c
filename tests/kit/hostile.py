"""A server with real sockets that does what a script says, also what no server may do; and ways to read from it.

    class Repeats(Script):
        def stream(self, request, attempt):
            return accepted(request.opaque) + ...

    with HostileServer(Repeats()) as server:
        outcome = read("changes", server)
        outcome.rows, outcome.error

A `Script` on its own is a sound server of a bucket with two vbuckets and a hundred rows in each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from dcpstream.client import AsyncClient, BucketReader, Client, ClientOptions, RowsRead, StreamOptions, VbucketRange
from dcpstream.client.settings.options import DcpSettings
from dcpstream.model import StreamOffset
from dcpstream.wire import Feature, Frame, Opcode, encode_response
from dcpstream.wire.values import encode_failover_log, encode_vbucket_seqnos
from tests.kit.access import LOGIN
from tests.kit.fake_node import GRANTED, FakeNode, config
from tests.kit.listener import Listener, close_sockets
from tests.kit.messages import LOG, accepted, marker, mutation, stream_end

VBUCKETS = 2
ROWS = 100
WHOLE = [(vbid, seqno) for vbid in range(VBUCKETS) for seqno in range(1, ROWS + 1)]
CHUNK_BYTES = 256 * 1024
CONTROLS = len(DcpSettings(name="any").controls())
"""Requests at the end of a handshake."""
SHORT_S = 0.7
"""Connect and idle time-out where a server is as good as not there: nothing right can be late then."""
LONG_S = 15.0
"""The same elsewhere, so that a busy machine is no reason to fail."""


class Script:
    """The answers of a server. These are sound; a broken server overrides some of them."""

    granted: tuple[int, ...] = (*GRANTED, Feature.CLUSTERMAP_NOTIFICATION)
    mechanisms = "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"

    def map(self, port: int) -> bytes:
        """The cluster map."""
        return config(VBUCKETS, ports=(port,))

    def statuses(self) -> dict[int, int]:
        """Opcode → status, of the requests of the next connection's handshake that are refused."""
        return {}

    def greeting(self) -> bytes:
        """Bytes that the server sends before the first request."""
        return b""

    def handshake(self, request: Frame, answer: bytes) -> bytes:
        """The answer to a request of the handshake; `answer` is the right one."""
        return answer

    def opened(self) -> bytes:
        """Bytes that follow the handshake of a DCP connection."""
        return b""

    def stream(self, request: Frame, attempt: int) -> bytes:
        """The answer to a stream request and the stream; `attempt` counts requests from 0."""
        return accepted(request.opaque) + history(request)

    def close(self, request: Frame) -> bytes:
        """The answer to CLOSE_STREAM."""
        return encode_response(request.opcode, opaque=request.opaque)

    def high_seqnos(self, request: Frame) -> bytes:
        """The answer to GET_ALL_VB_SEQNOS."""
        value = encode_vbucket_seqnos((vbid, ROWS) for vbid in range(VBUCKETS))
        return encode_response(request.opcode, opaque=request.opaque, value=value)

    def failover_log(self, request: Frame) -> bytes:
        """The answer to DCP_GET_FAILOVER_LOG."""
        return encode_response(request.opcode, opaque=request.opaque, value=encode_failover_log(LOG))

    def manifest(self, request: Frame) -> bytes:
        """The answer to GET_COLLECTIONS_MANIFEST."""
        scope = {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}
        value = json.dumps({"uid": "0", "scopes": [scope]}).encode()
        return encode_response(request.opcode, opaque=request.opaque, value=value)

    def sends(self, data: bytes) -> tuple[bytes, bool]:
        """The bytes to send instead of these, and whether the connection is closed after them."""
        return data, False


def start_of(request: Frame) -> int:
    """The seqno that a stream request starts from."""
    return int.from_bytes(request.extras[8:16], "big")


def row(opaque: int, vbid: int, seqno: int, **fields: object) -> bytes:
    return mutation(opaque, seqno, vbid=vbid, key=f"k{seqno}".encode(), value=f"v{seqno}".encode(), **fields)  # type: ignore[arg-type]


def rows(request: Frame, first: int, last: int) -> bytes:
    return b"".join(row(request.opaque, request.vbid, seqno) for seqno in range(first, last + 1))


def history(request: Frame, last: int = ROWS) -> bytes:
    """The rest of the vbucket in one snapshot; the end of the stream if that is all that was asked for."""
    start = start_of(request)
    end = int.from_bytes(request.extras[16:24], "big")
    if start == end:
        return stream_end(request.opaque, vbid=request.vbid)
    if start >= last:
        return b""
    return marker(request.opaque, start, last, vbid=request.vbid) + rows(request, start + 1, last)


def mutated(frames: list[bytes], dice: random.Random) -> bytes:
    """Some of the frames changed, moved, doubled or left out."""
    frames = list(frames)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        at = dice.randrange(len(frames))
        frame = bytearray(frames[at])
        match dice.randrange(9):
            case 0:
                frame[dice.randrange(len(frame))] ^= 1 << dice.randrange(8)
            case 1:
                frame[dice.randrange(min(24, len(frame)))] = dice.randrange(256)
            case 2:
                frame[dice.randrange(min(48, len(frame)))] = dice.choice((0, 0x7F, 0x80, 0xFF))
            case 3:
                del frame[dice.randrange(len(frame)) :]
            case 4:
                where = dice.randrange(len(frame))
                frame[where:where] = dice.randbytes(dice.randrange(1, 40))
            case 5:
                frame += bytes(frame)
            case 6:
                frame.clear()
            case 7:
                other = dice.randrange(len(frames))
                frame[:], frames[other] = frames[other], bytes(frame)
            case 8:
                frame[dice.randrange(len(frame)) :] = dice.randbytes(dice.randrange(60))
        frames[at] = bytes(frame)
        frames = [one for one in frames if one] or [b"\0"]
    return b"".join(frames)


class HostileServer:
    """Listens, and answers each connection as the script says.

    Attributes:
        port: where it listens.
        attempts: stream requests so far.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.attempts = 0
        self._listener = Listener(self._serve)
        self.port = self._listener.port

    @property
    def connections(self) -> int:
        """The number of connections that were made."""
        return self._listener.connections

    @property
    def connection_string(self) -> str:
        return f"couchbase://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()

    def cut(self) -> None:
        """Close every connection."""
        self._listener.cut()

    def _serve(self, client: socket.socket) -> None:
        node = _ScriptedNode(self._script, self)
        try:
            is_over = self._send(client, self._script.greeting())
            while not is_over and (data := client.recv(CHUNK_BYTES)):
                is_over = self._send(client, node.receive(data))
        except OSError:
            pass
        finally:
            close_sockets(client)

    def _send(self, client: socket.socket, data: bytes) -> bool:
        if not data:
            return False
        data, is_over = self._script.sends(data)
        client.sendall(data)
        return is_over


class _ScriptedNode(FakeNode):
    """One connection of a server."""

    def __init__(self, script: Script, server: HostileServer) -> None:
        super().__init__(
            mechanisms=script.mechanisms,
            granted=script.granted,
            statuses=script.statuses(),
            cluster_map=script.map(server.port),
        )
        self._script = script
        self._server = server
        self._controls = 0

    def _answer(self, frame: Frame) -> bytes:
        if frame.is_response:
            return b""
        script, opcode = self._script, frame.opcode
        if opcode == Opcode.DCP_STREAM_REQ:
            self._server.attempts += 1
            return script.stream(frame, self._server.attempts - 1)
        if opcode == Opcode.DCP_CLOSE_STREAM:
            return script.close(frame)
        if opcode == Opcode.GET_ALL_VB_SEQNOS:
            return script.high_seqnos(frame)
        if opcode == Opcode.DCP_GET_FAILOVER_LOG:
            return script.failover_log(frame)
        if opcode == Opcode.GET_COLLECTIONS_MANIFEST:
            return script.manifest(frame)
        if opcode in {Opcode.NOOP, Opcode.DCP_NOOP}:
            return encode_response(opcode, opaque=frame.opaque)
        if opcode == Opcode.DCP_BUFFER_ACK:
            return b""
        answer = script.handshake(frame, super()._answer(frame))
        self._controls += opcode == Opcode.DCP_CONTROL
        is_last = opcode == Opcode.DCP_CONTROL and self._controls == CONTROLS
        return answer + (script.opened() if is_last else b"")


@dataclass
class Outcome:
    """The result of reading.

    Attributes:
        rows: (vbucket, seqno) of each row, in the order in which they were given out.
        error: the error that ended reading; None if everything was read.
        timeout_s: connect and idle time-out of the client.
    """

    rows: list[tuple[int, int]] = field(default_factory=list)
    error: BaseException | None = None
    seconds: float = 0.0
    timeout_s: float = LONG_S


Reading = Callable[[HostileServer, Outcome], None]


def _batches(server: HostileServer, outcome: Outcome) -> None:
    with Client(
        server.connection_string, options=ClientOptions(connect_timeout_s=outcome.timeout_s), **LOGIN
    ) as client:
        stream = client.stream(StreamOptions(end="latest", idle_timeout_s=outcome.timeout_s))
        with contextlib.closing(stream) as batches:
            for batch in batches:
                _add(batch.record_batch, outcome)


def _changes(server: HostileServer, outcome: Outcome) -> None:
    with Client(
        server.connection_string, options=ClientOptions(connect_timeout_s=outcome.timeout_s), **LOGIN
    ) as client:
        stream = client.changes(StreamOptions(end="latest", idle_timeout_s=outcome.timeout_s))
        with contextlib.closing(stream) as changes:
            for change in changes:
                outcome.rows.append((change.vbid, change.seqno))


def _async_changes(server: HostileServer, outcome: Outcome) -> None:
    async def run() -> None:
        async with AsyncClient(
            server.connection_string,
            options=ClientOptions(connect_timeout_s=outcome.timeout_s),
            **LOGIN,
        ) as client:
            stream = client.changes(StreamOptions(end="latest", idle_timeout_s=outcome.timeout_s))
            async with contextlib.aclosing(stream) as changes:
                async for change in changes:
                    outcome.rows.append((change.vbid, change.seqno))

    asyncio.run(run())


def _async_batches(server: HostileServer, outcome: Outcome) -> None:
    async def run() -> None:
        async with AsyncClient(
            server.connection_string,
            options=ClientOptions(connect_timeout_s=outcome.timeout_s),
            **LOGIN,
        ) as client:
            stream = client.stream(StreamOptions(end="latest", idle_timeout_s=outcome.timeout_s))
            async with contextlib.aclosing(stream) as batches:
                async for batch in batches:
                    _add(batch.record_batch, outcome)

    asyncio.run(run())


def _ranges(server: HostileServer, outcome: Outcome) -> None:
    with BucketReader(
        server.connection_string, options=ClientOptions(connect_timeout_s=outcome.timeout_s), **LOGIN
    ) as cluster:
        # What is not known of a vbucket is left out of the answer; it is read all the same.
        cluster.high_seqnos()
        ranges = [VbucketRange(vbid, StreamOffset.ZERO, ROWS) for vbid in range(VBUCKETS)]
        for item in cluster.read_ranges(ranges, StreamOptions(on_rollback="rewind", idle_timeout_s=outcome.timeout_s)):
            assert isinstance(item, RowsRead)
            _add(item.rows, outcome)


def _spark_task(server: HostileServer, outcome: Outcome) -> None:
    from dcpstream_spark import pool
    from dcpstream_spark.options import OffsetSpec, SourceOptions
    from dcpstream_spark.source.coordinator import Coordinator
    from dcpstream_spark.source.reading import DcpPartition, read_partition

    options = SourceOptions.parse(
        {
            "connectionString": server.connection_string,
            **LOGIN,
            "connectTimeout": str(outcome.timeout_s),
            "idleTimeout": str(outcome.timeout_s),
            "numPartitions": "1",
        }
    )
    coordinator = Coordinator(options, default_start=OffsetSpec("earliest"))
    try:
        start, end = coordinator.batch()
        for node, ranges in coordinator.tasks_of(coordinator.ranges_between(start, end)):
            for batch in read_partition(options, DcpPartition(node, ranges)):
                _add(batch, outcome)
    finally:
        coordinator.close()
        pool.close_all()


def _add(batch: object, outcome: Outcome) -> None:
    columns = batch.to_pydict()  # type: ignore[attr-defined]
    outcome.rows += list(zip(columns["vbucket"], columns["seqno"], strict=True))


READINGS: dict[str, Reading] = {
    "batches": _batches,
    "changes": _changes,
    "async batches": _async_batches,
    "async changes": _async_changes,
    "ranges": _ranges,
    "spark task": _spark_task,
}
"""Ways to read the whole bucket as it is now."""


def read(reading: str, server: HostileServer, timeout_s: float = LONG_S) -> Outcome:
    """Read everything; an error is part of what comes out."""
    outcome = Outcome(timeout_s=timeout_s)
    began = time.monotonic()
    try:
        READINGS[reading](server, outcome)
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        outcome.error = error
    outcome.seconds = time.monotonic() - began
    return outcome
