"""The client's machines without sockets: one connection, one session, and a reader with its nodes and its clock."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

from dcpstream.client import CollectionEvents, RollbackEvent, VbucketRange
from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import Event, Stream
from dcpstream.client.machine.connection.rows import FrameDecoder
from dcpstream.client.machine.connection.session import DcpSession
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.reader.batches import ArrowConverter
from dcpstream.client.machine.reader.changes import ChangeConverter
from dcpstream.client.machine.reader.read_rules import ReadRules
from dcpstream.client.machine.reader.reader import StreamReader
from dcpstream.client.machine.rollback_policy import PurgeGap, RollbackPolicy
from dcpstream.client.settings.options import ConnectOptions, DcpSettings, Login
from dcpstream.errors import ConnectionLost, ConnectTimeout
from dcpstream.model import MAX_SEQNO, FailoverLog, Manifest, NodeAddress, StreamOffset
from dcpstream.wire import Frame, FrameReader, Opcode, Status, encode_response
from dcpstream.wire.values import encode_failover_log, encode_vbucket_seqnos
from dcpstream_node.testing.simulation import START_S
from tests.kit.fake_node import ADDRESS, LOGIN, FakeNode, config
from tests.kit.messages import LOG, accepted, marker, mutation

NONCE = bytes(range(24))
"""The nonce of a SCRAM login."""

Answer = Callable[[Frame, int], bytes]


class World:
    """A reader, nodes by port, and a clock.

    Args:
        answer: what a node says to a stream request, given the frame and how many came before.
        arrow: whether rows come as Arrow batches.
        observe: what the node at a port says to OBSERVE_SEQNO; with it, rows are held back until they are stable.
        statistics: what a node says to STAT, given the frame and how many stream requests came before.
    """

    def __init__(
        self,
        ranges: list[VbucketRange],
        answer: Answer,
        *,
        policy: RollbackPolicy = RollbackPolicy.REWIND_UNREAD,
        ports: tuple[int, ...] = (11210,),
        collections: list[str] | None = None,
        high_seqnos: dict[int, int] | None = None,
        purge_gap: PurgeGap = PurgeGap.RECONCILE,
        observe: Answer | None = None,
        statistics: Answer | None = None,
        to_zero: bool = False,
        idle_timeout_s: float | None = 30.0,
        arrow: bool = False,
        manifest: Callable[[], Manifest] | None = None,
        **node_options: Any,
    ) -> None:
        self.now = 0.0
        self.requests: list[tuple[int, tuple[int, ...]]] = []
        self.values: list[bytes] = []
        self.out: list[object] = []
        self.collections: list[str] = []
        self.offsets: dict[int, StreamOffset] = {}
        self.down: set[int] = set()
        self.links: dict[NodeConnection, FakeNode] = {}
        self._answer = answer
        self._observe = observe
        self._statistics = statistics
        self.flags: list[int] = []
        self._high_seqnos = high_seqnos or {}
        self._manifest = manifest
        self._node_options = {"cluster_map": config(4, ports=ports), **node_options}
        options = ConnectOptions(
            seeds=(NodeAddress("127.0.0.1", ports[0]),),
            network="auto",
            login=LOGIN,
            connect_timeout_s=5.0,
            settings=DcpSettings(name="test"),
        )
        rng = random.Random(7)
        self.nodes = Nodes(options, rng)
        self.reader = StreamReader(
            ranges,
            self.nodes,
            rng,
            ArrowConverter("binary", None, 10_000) if arrow else ChangeConverter(),
            ReadRules(
                policy=policy,
                purge_gap=purge_gap,
                collections=collections,
                is_stable=observe is not None,
                to_zero=to_zero,
                idle_timeout_s=idle_timeout_s,
                patience_s=30.0,
            ),
            self.now,
        )

    def run(self, until: Callable[[], bool] | None = None, limit_s: float = 100.0) -> None:
        """Turn the wheel until the reader is done (or `until`)."""
        while not (until() if until else self.reader.is_done):
            assert self.now < limit_s, "the reader does not come to an end"
            self.turn()

    def turn(self) -> None:
        self._take()
        self.reader.step(self.now)
        moved = self._carry()
        self._take()
        if not moved:
            self.now = max(self.now + 0.001, min(self.reader.next_timeout(), self.now + 5.0))
            self.reader.handle_timeout(self.now)
            self._take()

    def cut(self, connection: NodeConnection) -> None:
        del self.links[connection]
        self.reader.lost(connection, ConnectionLost("cut"), self.now)

    def seqnos(self) -> list[int]:
        return [item for item in self.out if isinstance(item, int)]

    def _carry(self) -> bool:
        moved = False
        for connection in self.nodes.to_disconnect():
            self.links.pop(connection, None)
        for connection in self.nodes.to_connect():
            port = connection.address.kv_port
            if port in self.down:
                self.reader.lost(connection, ConnectTimeout(f"nobody at {port}"), self.now)
            else:
                node = FakeNode(answer=self._answers(connection), **self._node_options)
                node.has_manifest = self._manifest is None
                self.links[connection] = node
            moved = True
        for connection, node in list(self.links.items()):
            data = connection.data_to_send()
            if not data:
                continue
            moved = True
            for byte_range in (node.receive(data),):
                view = memoryview(byte_range)
                while view and connection in self.links:
                    room = connection.get_buffer()
                    count = min(len(room), len(view))
                    room[:count] = view[:count]
                    view = view[count:]
                    connection.buffer_updated(count)
                    self.reader.received(connection, self.now)
        return moved

    def _answers(self, connection: NodeConnection) -> Callable[[Frame], bytes]:
        def answer(frame: Frame) -> bytes:
            if frame.opcode == Opcode.DCP_STREAM_REQ:
                fields = struct.unpack(">IIQQQQQ", frame.extras)[2:]
                self.requests.append((connection.address.kv_port, fields))
                self.values.append(frame.value)
                self.flags.append(struct.unpack_from(">I", frame.extras)[0])
                return self._answer(frame, len(self.requests) - 1)
            if frame.opcode == Opcode.OBSERVE_SEQNO:
                if self._observe is not None:
                    return self._observe(frame, connection.address.kv_port)
                return observed(frame, self._high_seqnos)
            if frame.opcode == Opcode.STAT:
                assert self._statistics is not None
                return self._statistics(frame, len(self.requests))
            if frame.opcode == Opcode.GET_COLLECTIONS_MANIFEST:
                assert self._manifest is not None
                text = json.dumps(self._manifest().to_json()).encode()
                return encode_response(frame.opcode, opaque=frame.opaque, value=text)
            if frame.opcode == Opcode.GET_ALL_VB_SEQNOS:
                value = encode_vbucket_seqnos(sorted(self._high_seqnos.items()))
                return encode_response(frame.opcode, opaque=frame.opaque, value=value)
            return b""

        return answer

    def _take(self) -> None:
        while (event := self.reader.next_event()) is not None:
            if isinstance(event, RollbackEvent):
                self.out.append(event)
            elif isinstance(event, CollectionEvents):
                self.out += event.events
                self.offsets.update(event.offsets)
            else:
                rows = event.rows if isinstance(event.rows, tuple) else event.rows["seqno"].to_pylist()
                self.out += [getattr(row, "seqno", row) for row in rows]
                self.collections += [f"{row.scope}.{row.collection}" for row in rows if hasattr(row, "scope")]
                self.offsets.update(event.offsets)


def history(frame: Frame, last: int, log: FailoverLog = LOG) -> bytes:
    """An accepted stream with every seqno up to the last one, in one snapshot."""
    start = struct.unpack(">IIQQQQQ", frame.extras)[2]
    rows = b"".join(mutation(frame.opaque, seqno, vbid=frame.vbid) for seqno in range(start + 1, last + 1))
    return accepted(frame.opaque, log) + (marker(frame.opaque, start, last, vbid=frame.vbid) + rows if rows else b"")


def observed(frame: Frame, high_seqnos: dict[int, int]) -> bytes:
    """An answer to OBSERVE_SEQNO: the requested branch is the newest, with this high seqno."""
    (vbuuid,) = struct.unpack(">Q", frame.value)
    if frame.vbid not in high_seqnos:
        return encode_response(frame.opcode, status=Status.NOT_MY_VBUCKET, opaque=frame.opaque)
    high_seqno = high_seqnos[frame.vbid]
    value = struct.pack(">BHQQQ", 0, frame.vbid, vbuuid, high_seqno, high_seqno)
    return encode_response(frame.opcode, opaque=frame.opaque, value=value)


def refused(frame: Frame, status: int, value: bytes = b"") -> bytes:
    return encode_response(Opcode.DCP_STREAM_REQ, status=status, opaque=frame.opaque, value=value)


def at(seqno: int, start: int | None = None, end: int | None = None, vbuuid: int = 0xA) -> StreamOffset:
    return StreamOffset(vbuuid, seqno, seqno if start is None else start, seqno if end is None else end)


def new_connection(*, frames: bool = False, buffer_bytes: int = 1000, login: Login = LOGIN) -> NodeConnection:
    settings = DcpSettings(name="test", buffer_bytes=buffer_bytes)
    return NodeConnection(ADDRESS, login, settings, NONCE, 0.0, connect_timeout_s=5.0, frames=frames)


def pump(connection: NodeConnection, node: FakeNode, now: float = 0.0) -> None:
    """Carry bytes between the two until both are silent."""
    while data := connection.data_to_send():
        answers = node.receive(data)
        if answers:
            connection.receive_data(answers, now)


def ready_connection(node: FakeNode | None = None, **options: Any) -> tuple[NodeConnection, FakeNode]:
    """A connection whose handshake is done."""
    node = node or FakeNode()
    connection = new_connection(**options)
    pump(connection, node)
    assert connection.is_ready
    return connection, node


def client_of_streams(**settings: Any) -> ClientEnd:
    """Our own client's end of a DCP connection, past its handshake."""
    return ClientEnd(DcpSettings(name="reader", **settings))


class ClientEnd:
    """Our own client's session machine, with bytes going in and frames coming out."""

    def __init__(self, settings: DcpSettings, now: float = START_S) -> None:
        self.now = now
        address = NodeAddress("node", 11210, 8091)
        self.session = DcpSession(address, settings, True, now, has_history=settings.history)

    def stream(self, vbid: int = 1, offset: StreamOffset = StreamOffset.ZERO, end: int = MAX_SEQNO) -> Stream:
        """Ask for a stream; the request is taken off the output."""
        stream = self.session.open_stream(vbid, offset, end, self.now)
        self.sent()
        return stream

    def opened(self, log: FailoverLog | None = None, **fields: Any) -> Stream:
        """A stream that the node has accepted."""
        stream = self.stream(**fields)
        log = log or FailoverLog.of((0xA, 0))
        self.receive(encode_response(Opcode.DCP_STREAM_REQ, opaque=stream.opaque, value=encode_failover_log(log)))
        return stream

    def receive(self, data: bytes) -> list[Event]:
        """The node sends bytes; what the client makes of them."""
        rows, consumed = FrameDecoder().decode(bytearray(data), 0, len(data))
        assert consumed == len(data)
        self.session.receive_rows(rows, self.now)
        return list(self.session.events())

    def sent(self) -> list[Frame]:
        """The frames that the client sends now."""
        reader = FrameReader()
        reader.receive_data(self.session.data_to_send())
        return list(reader.frames())
