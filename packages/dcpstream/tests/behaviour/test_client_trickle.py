"""A node that writes each message by itself, as one whose disk is slow: clients read many of them at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Iterator

import pytest

from dcpstream.client import AsyncClient, BucketReader, KvClient, RowsRead, StreamOptions, VbucketRange
from dcpstream.client.kv.connection import KvConnection
from dcpstream.client.machine.reader.reader import StreamReader
from dcpstream.model import StreamOffset
from dcpstream.wire import Frame, Opcode, encode_response
from dcpstream.wire.values import encode_failover_log, encode_vbucket_seqnos
from tests.kit.access import LOGIN
from tests.kit.fake_node import FakeNode, config
from tests.kit.listener import Listener
from tests.kit.messages import LOG, marker, mutation, stream_end

ROWS = 1000
PAUSE_S = 0.0002


class Trickling(FakeNode):
    """One vbucket, whose messages are written one by one."""

    def __init__(self, port: int) -> None:
        super().__init__(cluster_map=config(1, ports=(port,)), answer=self._answered)
        self.messages: list[bytes] = []

    def _answered(self, frame: Frame) -> bytes | None:
        if frame.opcode == Opcode.GET_ALL_VB_SEQNOS:
            return encode_response(frame.opcode, opaque=frame.opaque, value=encode_vbucket_seqnos([(0, ROWS)]))
        if frame.opcode == Opcode.SET:
            self.messages.append(encode_response(frame.opcode, opaque=frame.opaque, cas=1))
            return b""
        if frame.opcode in {Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG}:
            if frame.opcode == Opcode.DCP_STREAM_REQ:
                rows = (mutation(frame.opaque, seqno, key=b"%d" % seqno) for seqno in range(1, ROWS + 1))
                self.messages = [marker(frame.opaque, 0, ROWS), *rows, stream_end(frame.opaque)]
            return encode_response(frame.opcode, opaque=frame.opaque, value=encode_failover_log(LOG))
        return None

    def serve(self, client: socket.socket) -> None:
        while data := client.recv(65536):
            client.sendall(self.receive(data))
            messages, self.messages = self.messages, []
            for message in messages:
                client.sendall(message)
                time.sleep(PAUSE_S)


@pytest.fixture
def connection_string() -> Iterator[str]:
    def serve(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Trickling(listener.port).serve(client)

    with Listener(serve) as listener:
        yield f"couchbase://127.0.0.1:{listener.port}"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that received bytes are handled."""
    found: list[int] = []
    real = StreamReader.received

    def received(self: StreamReader[object], *arguments: object) -> None:
        found.append(1)
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamReader, "received", received)
    return found


def test_blocking_reads_gather(connection_string: str, reads: list[int]) -> None:
    with BucketReader(connection_string, **LOGIN) as cluster:
        outputs = list(cluster.read_ranges([VbucketRange(0, StreamOffset.ZERO, ROWS)]))
    assert sum(output.rows.num_rows for output in outputs if isinstance(output, RowsRead)) == ROWS
    assert len(reads) < ROWS / 4


def test_asyncio_reads_gather(connection_string: str, reads: list[int]) -> None:
    async def read() -> list[int]:
        async with AsyncClient(connection_string, **LOGIN) as client:
            return [change.seqno async for change in client.changes(StreamOptions(end="latest"))]

    assert asyncio.run(read()) == list(range(1, ROWS + 1))
    assert len(reads) < ROWS / 4


@pytest.mark.skipif(sys.platform != "linux", reason="other systems wake a reader at the first byte")
def test_answers_of_a_window_gather(connection_string: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receives: list[int] = []
    real = KvConnection._receive

    def received(self: KvConnection) -> bytes:
        data = real(self)
        receives.append(len(data))
        return data

    with KvClient(connection_string, **LOGIN) as kv:
        monkeypatch.setattr(KvConnection, "_receive", received)
        written = kv.set_many((f"key-{number}", b"value") for number in range(ROWS))
    assert [one.cas for one in written] == [1] * ROWS
    assert len(receives) < ROWS / 4
