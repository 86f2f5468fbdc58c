"""A client of a simulated cluster: the machines of `dcpstream.Client.changes`, without sockets and without waiting.

`SimulatedReader` reads all vbuckets for ever. It may be killed at any moment and begun again; what it knows then is
what its offset store has. Rows that it was given after its last record stay in its table, as in a table that is not
written together with the positions. Everything that it is given goes to a `TableJudge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.nodes.cluster_map import parse_config
from dcpstream.client.machine.reader.changes import Change, ChangeConverter
from dcpstream.client.machine.values import CollectionEvents, ManifestEvent, RollbackEvent, RowsRead
from dcpstream.client.offsets import SavedOffset
from dcpstream.client.settings.options import ConnectOptions, DcpSettings, Login
from dcpstream.client.stream_options import StreamOptions
from dcpstream.client.streaming import KnownBucket, StreamRun
from dcpstream.errors import ConnectionLost, ConnectTimeout, DcpstreamError
from dcpstream.model import NodeAddress, Op, StreamOffset
from dcpstream_node.cluster.machine.state import map_json
from dcpstream_node.testing.simulation.clock import SeededRandom
from lab.simulation.cluster import MAIN, SimulatedCluster
from lab.simulation.judges import TableJudge
from lab.simulation.lines import Line

HOST = "127.0.0.1"
"""The host of every node, as clients see it."""
LOGIN = Login("admin", "secret", "default", allow_plain=True, mechanism="PLAIN")
CONNECT_TIMEOUT_S = 5.0
PATIENCE_S = 3600.0
"""A reader of a simulation waits for any node that comes back."""


class MemoryOffsetStore:
    """An offset store whose records outlive the reader."""

    def __init__(self) -> None:
        self._records: dict[int, SavedOffset] = {}

    def load(self) -> dict[int, SavedOffset]:
        """All records."""
        return dict(self._records)

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        """Replace the records of these vbuckets."""
        self._records.update(offsets)


class _ConnectionEnd:
    """A reader's end of a line."""

    def __init__(self, reader: SimulatedReader, connection: NodeConnection) -> None:
        self._reader = reader
        self._connection = connection
        self._out = b""
        self.is_closed = False

    def collect(self) -> bool:
        """Take what the reader has said since the last call; returns whether there is anything to send."""
        self._out += self._connection.data_to_send()
        return bool(self._out)

    def data_to_send(self) -> bytes:
        """The connection's bytes."""
        out, self._out = self._out, b""
        return out

    def receive(self, data: bytes) -> None:
        """Bytes came."""
        self._reader.received(self._connection, data)

    def lost(self) -> None:
        """The connection ended."""
        self._reader.lost(self._connection)


class SimulatedReader:
    """A reader of all changes of a cluster's bucket.

    Args:
        cluster: it is added to its clients.
        judge: gets what the reader is given.
        name: of its connections.
        bucket: that it reads.
        buffer_bytes: its flow-control window; much smaller ones are taken than `dcpstream.Client` takes.
        ack_share: the share of deliveries after which it records its positions.

    Attributes:
        run: the stream that is being read; None while the reader is down.
        within: vbuckets of which it has a part of a snapshot.
        runs: how many times it was begun.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        judge: TableJudge,
        *,
        name: str = "reader",
        bucket: str = MAIN,
        buffer_bytes: int = 64 * 1024,
        ack_share: float = 0.5,
    ) -> None:
        self._cluster = cluster
        self._judge = judge
        self._name = name
        self._bucket = bucket
        self._buffer_bytes = buffer_bytes
        self._ack_share = ack_share
        self._store = MemoryOffsetStore()
        self._lines: dict[NodeConnection, Line] = {}
        self._is_dirty = False
        self.run: StreamRun[tuple[Change, ...]] | None = None
        self.within: set[int] = set()
        self.runs = 0
        cluster.clients.append(self)

    def begin(self) -> None:
        """Begin to read, from the recorded positions on."""
        assert self.run is None, "it reads already"
        cluster = self._cluster
        self.runs += 1
        found = parse_config(
            map_json(
                cluster.orchestrator.buckets[self._bucket],
                cluster.orchestrator.known_members(),
                "",
                epoch=0,
                rev=0,
                cluster_uuid="one cluster",
            ),
            NodeAddress(HOST, 0),
        )
        connect_options = ConnectOptions(
            seeds=tuple(found.nodes),
            network="default",
            login=replace(LOGIN, bucket=self._bucket),
            connect_timeout_s=CONNECT_TIMEOUT_S,
            settings=DcpSettings(name=self._name, buffer_bytes=self._buffer_bytes),
        )
        self.run = StreamRun(
            StreamOptions(store=self._store, on_rollback="rewind"),
            ChangeConverter(),
            KnownBucket(found, self._store.load(), {}),
            connect_options,
            PATIENCE_S,
            SeededRandom(cluster.chance.getrandbits(32)),
            cluster.now,
        )
        self._is_dirty = True

    def kill(self) -> None:
        """The reader is gone: what it did not record it does not know."""
        self.run = None
        self.within.clear()
        for line in self._lines.values():
            self._cluster.lines.cut(line)
        self._lines.clear()

    def leave(self) -> None:
        """It reads no more."""
        self.kill()
        self._cluster.clients.remove(self)

    # ------------------------------------------------------------------------------------------------- for the cluster

    def step(self, now: float) -> None:
        """Take what was delivered, and do what can be done now."""
        if self.run is None or not self._is_dirty:
            return
        self._is_dirty = False
        self._take()
        self.run.reader.step(now)
        self._carry()

    def _carry(self) -> None:
        assert self.run is not None
        nodes, cluster = self.run.nodes, self._cluster
        for connection in nodes.to_disconnect():
            line = self._lines.pop(connection, None)
            if line is not None:
                end = line.end
                assert isinstance(end, _ConnectionEnd)
                end.is_closed = True
                cluster.lines.wake(line)
        for connection in nodes.to_connect():
            name = cluster.name_at(connection.address.kv_port)
            node = cluster.nodes.get(name)
            if node is None:
                self._is_dirty = True
                self.run.reader.lost(connection, ConnectTimeout(f"{name} is down"), cluster.now)
            else:
                line = cluster.lines.connect(self._name, name, node, _ConnectionEnd(self, connection), self._bucket)
                line.is_stalled = name in cluster.hung
                self._lines[connection] = line
        for line in self._lines.values():
            end = line.end
            assert isinstance(end, _ConnectionEnd)
            if end.collect():
                line.has_output = True
                cluster.lines.wake(line)

    def received(self, connection: NodeConnection, data: bytes) -> None:
        """Bytes came on a connection."""
        if self.run is None or connection not in self._lines:
            return
        view = memoryview(data)
        while view:
            room = connection.get_buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            connection.buffer_updated(count)
            self.run.reader.received(connection, self._cluster.now)
        self._is_dirty = True

    def lost(self, connection: NodeConnection) -> None:
        """A connection ended."""
        if self._lines.pop(connection, None) is not None and self.run is not None:
            self.run.reader.lost(connection, ConnectionLost("closed"), self._cluster.now)
            self._is_dirty = True

    def next_timeout(self) -> float | None:
        """When it wants to be woken."""
        return None if self.run is None else self.run.reader.next_timeout()

    def handle_timeout(self, now: float) -> None:
        """Time has come."""
        if self.run is not None:
            self.run.reader.handle_timeout(now)
            self._is_dirty = True

    # ------------------------------------------------------------------------------------------------------- deliveries

    def _take(self) -> None:
        """Take everything that the reader gives out, as a user who is always quick enough."""
        run, judge = self.run, self._judge
        assert run is not None
        while True:
            try:
                output = run.reader.next_event()
            except DcpstreamError as error:
                raise AssertionError(f"{self._name} gave up: {error}") from error
            if output is None:
                return
            run.positions.write(run.due(output))
            number = run.positions.give(output.offsets)
            match output:
                case RowsRead(changes, offsets):
                    for change in changes:
                        key = collection_of(change.collection), change.key
                        judge.add(change.vbid, change.seqno, (key, change.value))
                        self._look(change.vbid, change.offset)
                    for vbid, offset in offsets.items():
                        self._look(vbid, offset)
                case CollectionEvents(events):
                    for each in events:
                        if not isinstance(each, ManifestEvent) or each.op is not Op.COLLECTION_DROPPED:
                            continue
                        if each.collection_id is not None:
                            judge.drop(each.vbid, each.seqno, each.collection_id)
                case RollbackEvent():
                    judge.roll_back(output.vbid, output.to_seqno)
                case _:
                    assert_never(output)
            if self._cluster.chance.random() < self._ack_share:
                run.positions.acknowledge(number)
                run.reader.record(output.offsets)

    def _look(self, vbid: int, offset: StreamOffset) -> None:
        (self.within.discard if offset.seqno == offset.snapshot_end else self.within.add)(vbid)
        if offset.seqno == offset.snapshot_end and offset.vbuuid:
            self._judge.snapshot_ended(vbid, offset.vbuuid, offset.seqno)


def collection_of(name: str) -> int:
    """The id of a collection of a simulation, which its name contains: `c8` has the id 8, written in hexadecimal."""
    return 0 if name in {"", "_default"} else int(name.removeprefix("c").removeprefix("0x"), 16)
