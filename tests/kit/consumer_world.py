"""The production client over a pretend node, used by consumers that stop anywhere.

The node's side is the model of `resume_world`: copies that lag, failovers, lost changes, deduplicated snapshots. Here
it speaks frames: markers, rows and seqno-advanced, in receives of any length, on connections that are cut at any frame.
The client's side is production code from `Client.stream` and `Client.changes` down to the session; only the sockets,
the clock and the questions about the cluster are replaced, and the handshake is left out.

A consumer runs for several generations. Each one takes batches or single changes, applies their rows one by one,
acknowledges what it likes, and stops between any two rows: it closes the stream, fails, or is killed, after which
nothing is saved any more. Its rows survive, as those of a table do. In the end it must hold the bucket's documents.

`WRONG` holds variants of the client that the model must notice.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple
from unittest import mock

from dcpstream.client import streaming
from dcpstream.client.blocking import client as blocking_client
from dcpstream.client.blocking.client import Batch, Client
from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import RowsReceived
from dcpstream.client.machine.connection.rows import NativeDecoder
from dcpstream.client.machine.connection.session import DcpSession
from dcpstream.client.machine.nodes.cluster_map import parse_config
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.reader import side_requests
from dcpstream.client.machine.reader.changes import Change, positions_after
from dcpstream.client.machine.reader.reader import StreamReader
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.tracker import Run
from dcpstream.client.machine.values import RollbackEvent, VbucketRange
from dcpstream.client.offsets import SavedOffset
from dcpstream.client.positions import Positions
from dcpstream.client.settings.options import ConnectOptions, DcpSettings, Login
from dcpstream.client.stream_options import StreamOptions
from dcpstream.dcp.producer.rollback import Accept, Rollback, decide
from dcpstream.errors import ConnectionLost, RollbackRequired
from dcpstream.model import FailoverEntry, NodeAddress, StreamOffset
from dcpstream.runtime import kernel
from dcpstream.wire import Frame, FrameReader, Opcode, Status, decode_message, encode_request, encode_response
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation import VirtualClock
from tests.kit.fake_node import config
from tests.kit.messages import marker, seqno_advanced, stream_end
from tests.kit.resume_world import DELETED, Producer, Table

VBUCKETS = 2
ADDRESS = NodeAddress("127.0.0.1", 11210)
STATE_CHANGED = 2


class StoppedError(BaseException):
    """Ends a consumer that waits for changes, like Ctrl-C."""


class InexactError(AssertionError):
    """A position was saved that is not what was dealt with."""


@dataclass(eq=False)
class Serving:
    """A stream as the node sends it."""

    opaque: int
    vbid: int
    asked: StreamRequest
    branch: FailoverEntry
    at: int
    is_first: bool = True
    pending: list[bytes] = field(default_factory=list)


@dataclass(eq=False)
class Link:
    """One connection at the node."""

    connection: NodeConnection
    reader: FrameReader = field(default_factory=FrameReader)
    answers: list[bytes] = field(default_factory=list)
    streams: dict[int, Serving] = field(default_factory=dict)
    is_cut: bool = False


class World:
    """The bucket, its node, and the time.

    Attributes:
        refused_share: of the stream requests that the node answers with TMPFAIL.
    """

    refused_share = 0.0

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.producers = [Producer(self.rng) for _ in range(VBUCKETS)]
        self.clock = VirtualClock(0.0)
        self.map = parse_config(config(VBUCKETS), ADDRESS, "auto", (ADDRESS,), is_secure=False)
        self.links: dict[NodeConnection, Link] = {}
        self.is_calm = False
        self._idle = 0

    def happen(self) -> None:
        """Something happens to a vbucket; its streams end with the branch that they read."""
        producer = self.rng.choice(self.producers)
        branch = producer.active.failover_log.newest
        producer.happen()
        if producer.active.failover_log.newest == branch:
            return
        vbid = self.producers.index(producer)
        for link in self.links.values():
            if self.rng.random() < 0.5:
                link.is_cut = link.is_cut or any(one.vbid == vbid for one in link.streams.values())
            for opaque, serving in list(link.streams.items()):
                if serving.vbid == vbid:
                    del link.streams[opaque]
                    kept = serving.pending[: self.rng.randint(0, len(serving.pending))]
                    link.answers += [*kept, stream_end(opaque, STATE_CHANGED, vbid=vbid)]

    def observe(self, vbids: Any = None, *, high_seqnos: Any = None) -> dict[int, BranchState]:
        return {vbid: self.producers[vbid].observe() for vbid in (range(VBUCKETS) if vbids is None else vbids)}

    # What the hub of the client's sockets does.

    def sync(self, nodes: Nodes) -> list[tuple[NodeConnection, ConnectionLost]]:
        for connection in nodes.to_disconnect():
            self.links.pop(connection, None)
        for connection in nodes.to_connect():
            connection._out.clear()
            if kernel.native is not None:
                connection._decoder = NativeDecoder(kernel.native, collections=False)
            connection.session = DcpSession(connection.address, connection.settings, False, self.clock.now)
            self.links[connection] = Link(connection)
        return []

    def poll(self, timeout_s: float, _: object = None) -> Iterator[tuple[NodeConnection, ConnectionLost | None]]:
        rng = self.rng
        moved = False
        if not self.is_calm and rng.random() < 0.15:
            self.happen()
        for connection, link in list(self.links.items()):
            link.reader.receive_data(connection.data_to_send())
            for frame in link.reader.frames():
                self._answer(link, frame)
            frames = self._to_send(link)
            if frames:
                moved = True
                data = b"".join(frames)
                room = connection.get_buffer()
                room[: len(data)] = data
                connection.buffer_updated(len(data))
                yield connection, None
            if connection in self.links and (link.is_cut or (not self.is_calm and rng.random() < 0.03)):
                moved = True
                del self.links[connection]
                yield connection, ConnectionLost("cut")
        self.clock.now += 0.001 if moved else max(0.001, min(timeout_s, 1.0))
        self._idle = 0 if moved else self._idle + 1
        if self._idle > 8:
            self._idle = 0
            if self.is_calm or rng.random() < 0.3:
                raise StoppedError
            self.happen()

    def close(self) -> None:
        self.links.clear()

    def _to_send(self, link: Link) -> list[bytes]:
        """Some frames: answers in order, then the streams' in turns."""
        count = self.rng.choice((1, 2, 5, 12, 40))
        frames, link.answers = link.answers, []
        while len(frames) < count:
            ready = [one for one in list(link.streams.values()) if one.pending or self._fill(link, one)]
            if not ready:
                break
            serving = self.rng.choice(ready)
            taken = self.rng.randint(1, len(serving.pending))
            frames += serving.pending[:taken]
            del serving.pending[:taken]
        return frames

    def _fill(self, link: Link, serving: Serving) -> bool:
        """The next snapshot of a stream, or its end; whether there is something."""
        rng, vbid, opaque = self.rng, serving.vbid, serving.opaque
        active = self.producers[vbid].active
        if serving.at >= serving.asked.end_seqno:
            serving.pending = [stream_end(opaque, 0, vbid=vbid)]
            link.answers += serving.pending
            del link.streams[opaque]
            return False
        if serving.at >= active.high_seqno:
            return False
        begin, asked = serving.at, serving.asked
        first, last = active.snapshot_ends(begin)
        start = begin + rng.randint(0, 1)
        if serving.is_first:
            serving.is_first = False
            start = min(start, asked.snapshot_start)
            if asked.start_seqno < asked.snapshot_end:
                first = max(first, min(asked.snapshot_end, active.high_seqno))
        end = last if rng.random() < 0.5 else rng.randint(first, last)
        rows = active.deduplicated(begin, end)
        serving.pending = [marker(opaque, start, end, vbid=vbid), *(row_frame(opaque, vbid, row) for row in rows)]
        if not rows or rows[-1][0] < end:
            serving.pending.append(seqno_advanced(opaque, end, vbid=vbid))
        serving.at = end
        return True

    def _answer(self, link: Link, frame: Frame) -> None:
        if frame.is_response:
            return
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            link.answers.append(self._open(link, frame))
        elif frame.opcode == Opcode.DCP_CLOSE_STREAM:
            for opaque in [opaque for opaque, one in link.streams.items() if one.vbid == frame.vbid]:
                del link.streams[opaque]
            link.answers.append(encode_response(frame.opcode, opaque=frame.opaque))
        elif frame.opcode == Opcode.OBSERVE_SEQNO:
            active = self.producers[frame.vbid].active
            (vbuuid,) = struct.unpack(">Q", frame.value)
            is_same, high = vbuuid == active.failover_log.newest.vbuuid, active.high_seqno
            persisted = high if self.is_calm else min(high, active.persisted_seqno)
            value = struct.pack(">BHQQQ", not is_same, frame.vbid, active.failover_log.newest.vbuuid, persisted, high)
            if not is_same:
                value += struct.pack(">QQ", vbuuid, active.failover_log.upper(vbuuid, high) or 0)
            link.answers.append(encode_response(frame.opcode, opaque=frame.opaque, value=value))
        elif frame.opcode == Opcode.GET_CLUSTER_CONFIG:
            link.answers.append(encode_response(frame.opcode, opaque=frame.opaque, value=config(VBUCKETS)))

    def _open(self, link: Link, frame: Frame) -> bytes:
        asked = decode_message(frame)
        assert isinstance(asked, StreamRequest)
        if self.refused_share and not self.is_calm and self.rng.random() < self.refused_share:
            return encode_response(frame.opcode, status=Status.TMPFAIL, opaque=frame.opaque)
        active = self.producers[frame.vbid].active
        decision = decide(asked, active)
        if isinstance(decision, Rollback):
            value = struct.pack(">Q", decision.seqno)
            return encode_response(frame.opcode, status=Status.ROLLBACK, opaque=frame.opaque, value=value)
        assert isinstance(decision, Accept), (decision, asked)
        branch = active.failover_log.newest
        link.streams[frame.opaque] = Serving(frame.opaque, frame.vbid, asked, branch, asked.start_seqno)
        return encode_response(frame.opcode, opaque=frame.opaque, value=encode_failover_log(active.failover_log))


def row_frame(opaque: int, vbid: int, row: tuple[int, int, int]) -> bytes:
    seqno, key, value = row
    extras = struct.pack(">QQIIIHB", seqno, 1, 0, 0, 0, 0, 0)
    return encode_request(
        Opcode.DCP_MUTATION, vbid=vbid, opaque=opaque, cas=seqno, extras=extras, key=b"%d" % key, value=b"%d" % value
    )


class Store:
    """Positions in memory; after a kill nothing is saved any more."""

    def __init__(self) -> None:
        self.records: dict[int, SavedOffset] = {}
        self.is_dead = False

    def load(self) -> dict[int, SavedOffset]:
        return dict(self.records)

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        if not self.is_dead:
            self.records.update(offsets)

    def seqno(self, vbid: int) -> int:
        return self.records[vbid].offset.seqno if vbid in self.records else 0


class Newest(Table):
    """Rows of which only the newest of each key is kept: it cannot restore an older one."""

    def add(self, rows: list[tuple[int, int, int]]) -> None:
        for row in rows:
            for at, (_, key, _) in list(self.rows.items()):
                if key == row[1] and at <= row[0]:
                    del self.rows[at]
            self.rows[row[0]] = row


Kind = Literal["batches", "changes"]


class Consumer:
    """One reader of the bucket over its generations."""

    def __init__(self, world: World, kind: Kind, *, keeps_newest: bool, reads_stable: bool) -> None:
        self.world = world
        self.kind = kind
        self.rewind_to = "zero" if keeps_newest else "recorded"
        self.reads_stable = reads_stable
        self.tables = [Newest() if keeps_newest else Table() for _ in range(VBUCKETS)]
        self.store = Store()
        self.is_calm = False
        self._floor: dict[int, int] = {}
        self._dealt: dict[int, int] = {}

    def run(self, *, to_the_end: bool = False) -> None:
        """One generation."""
        rng = self.world.rng
        self.store.is_dead = False
        self._floor = {vbid: self.store.seqno(vbid) for vbid in range(VBUCKETS)}
        self._dealt = {}
        options: dict[str, Any] = {
            "store": self.store,
            "end": "latest" if to_the_end or rng.random() < 0.3 else None,
            "on_rollback": "rewind" if to_the_end or rng.random() < 0.9 else "fail",
            "rewind_to": self.rewind_to,
            "read_stable": self.reads_stable,
        }
        rows = None if to_the_end else rng.choice((0, 1, 2, 3, 5, 8, 13, 21, 40))
        read = self._batches if self.kind == "batches" else self._changes
        with self._client() as client, contextlib.suppress(StoppedError, RollbackRequired):
            read(client, options, rows)

    def _batches(self, client: Client, options: dict[str, Any], limit: int | None) -> None:
        rng = self.world.rng
        options["max_batch_rows"] = rng.choice((1, 2, 3, 5, 10_000))
        unacked: list[tuple[Batch, dict[int, int]]] = []
        with contextlib.closing(client.stream(StreamOptions(**options))) as stream:
            for batch in stream:
                if batch.rollback is not None:
                    if self._dies():
                        return
                    self._roll_back(batch.rollback.vbid, batch.rollback.to_seqno)
                    for _, dealt in unacked:
                        dealt.pop(batch.rollback.vbid, None)  # what it said of this vbucket is void
                for vbid, row in rows_of(batch):
                    if limit is not None and not limit:
                        self._stop()
                        return
                    self._apply(vbid, row)
                    limit = None if limit is None else limit - 1
                unacked.append((batch, dict(self._dealt)))
                if limit is None or rng.random() < 0.4:
                    number = len(unacked) - 1 if limit is None else rng.randrange(len(unacked))
                    acked, dealt = unacked[number]
                    acked.ack()
                    self._check(dealt)
                    del unacked[: number + 1]

    def _changes(self, client: Client, options: dict[str, Any], limit: int | None) -> None:
        changes = client.changes(StreamOptions(**options))
        dealt: dict[int, int] = {}  # of each vbucket the last one that was followed by a request for more
        held: Change | None = None
        try:
            for change in changes:
                if change.op == "rollback":
                    dealt.pop(change.vbid, None)  # what it said of this vbucket is void
                    if self._dies():
                        return
                    self._roll_back(change.vbid, change.seqno)
                    continue
                if change.offset.seqno != change.seqno:
                    raise InexactError(f"the position of {change} is {change.offset}")
                if limit is not None and not limit:
                    held = change
                    break
                self._apply(change.vbid, (change.seqno, int(change.key), int(change.value or DELETED)))
                limit = None if limit is None else limit - 1
                dealt[change.vbid] = change.seqno
        finally:
            self._stop()
            changes.close()
            if not self.store.is_dead:
                self._check(dealt)
                if held is not None and self.store.seqno(held.vbid) >= held.seqno:
                    raise InexactError(f"{held} was saved before it was dealt with")

    def _apply(self, vbid: int, row: tuple[int, int, int]) -> None:
        if row[0] <= self._floor[vbid]:
            raise InexactError(f"vbucket {vbid}: {row} comes again, {self._floor[vbid]} was acknowledged")
        self.tables[vbid].add([row])
        self._dealt[vbid] = row[0]

    def _roll_back(self, vbid: int, seqno: int) -> None:
        self.tables[vbid].roll_back(seqno)
        self._floor[vbid] = seqno
        self._dealt.pop(vbid, None)

    def _check(self, dealt: dict[int, int]) -> None:
        for vbid, seqno in dealt.items():
            if self.store.seqno(vbid) < seqno:
                raise InexactError(f"vbucket {vbid}: {seqno} was acknowledged, {self.store.seqno(vbid)} is saved")
            if self._dealt.get(vbid, -1) >= seqno:
                self._floor[vbid] = self.store.seqno(vbid)

    def _dies(self) -> bool:
        """Whether the consumer ends before it carries a rollback out."""
        is_dying = not self.is_calm and self.world.rng.random() < 0.2
        if is_dying:
            self._stop()
        return is_dying

    def _stop(self) -> None:
        """A consumer that stops may be killed: then nothing more is saved."""
        self.store.is_dead = not self.is_calm and self.world.rng.random() < 0.5

    @contextlib.contextmanager
    def _client(self) -> Iterator[Client]:
        world = self.world
        client = Client("couchbase://127.0.0.1", username="u", password="p", bucket="default")
        client.cluster = SimpleNamespace(  # type: ignore[assignment]
            rest=lambda: None,  # its questions need no connection
            map=world.map,
            observe=world.observe,
            connect_options=CONNECT_OPTIONS,
            close=lambda: None,
        )
        client._clock = world.clock  # type: ignore[assignment]
        with (
            mock.patch.object(blocking_client, "Sockets", return_value=world),
            mock.patch.object(blocking_client, "SystemRandom", return_value=random.Random(7)),
        ):
            yield client


CONNECT_OPTIONS = ConnectOptions(
    (ADDRESS,), "auto", Login("u", "p", "default"), connect_timeout_s=5.0, settings=DcpSettings("n")
)


def rows_of(batch: Batch) -> list[tuple[int, tuple[int, int, int]]]:
    return [
        (row["vbucket"], (row["seqno"], int(row["key"]), int(row["value"] or DELETED)))
        for row in batch.record_batch.to_pylist()
        if row["op"] != "rollback"
    ]


def run(seed: int, kind: Kind, *, keeps_newest: bool = False, reads_stable: bool = False) -> str | None:
    """One life of a bucket and its consumer; what was lost, or None.

    Args:
        seed: of all that happens.
        kind: what the consumer takes.
        keeps_newest: whether it keeps one version of each document only, and reads with `rewind_to="zero"`.
        reads_stable: whether rows are held back until they are on disk.
    """
    world = World(seed)
    rng = world.rng
    for producer in world.producers:
        producer.write(rng.randint(1, 10))
    consumer = Consumer(world, kind, keeps_newest=keeps_newest, reads_stable=reads_stable)
    try:
        for _ in range(rng.randint(1, 6)):
            consumer.run()
            for _ in range(rng.choice((0, 1, 3, 6))):
                world.happen()
        world.is_calm = consumer.is_calm = True
        for _ in range(2):
            consumer.run(to_the_end=True)
    except InexactError as error:
        return f"seed {seed}: {error}"
    for vbid, producer in enumerate(world.producers):
        found, expected = consumer.tables[vbid].documents(), producer.active.documents()
        if found != expected:
            return f"seed {seed}: vbucket {vbid}: consumer {found}, bucket {expected}"
    return None


def _only_after_the_last_piece(event: RowsReceived, size: int) -> Iterator[tuple[int, int, dict[int, StreamOffset]]]:
    pieces = list(_pieces(event, size))
    for index, (first, stop, _) in enumerate(pieces):
        yield first, stop, dict(event.offsets) if index == len(pieces) - 1 else {}


def _without_bounds(run: Run, seqno: int | None = None) -> StreamOffset:
    at = _offset(run, seqno)
    return StreamOffset(at.vbuuid, at.seqno, at.seqno, at.seqno, at.manifest_uid)


def _nothing_given_before(options: StreamOptions, *arguments: Any) -> list[VbucketRange]:
    return [replace(part, given_vbuuid=0) for part in _ranges(options, *arguments)]


def _only_at_the_first_opening(reader: StreamReader, connection: Any, event: Any, now: float) -> None:
    _opened(reader, connection, event, now)
    reader._vbuckets[event.stream.vbid].given.seqno = 0


def _any_high_seqno(frame: Frame, vbuuid: int) -> tuple[int, int]:
    del vbuuid
    persisted, high = struct.unpack_from(">QQ", frame.value, 11)
    return persisted, high


def _one_too_many(changes: Sequence[Change]) -> dict[int, StreamOffset]:
    return {vbid: replace(at, seqno=at.seqno + 1, snapshot_end=None) for vbid, at in positions_after(changes).items()}


def _without_a_start(positions: Positions, offsets: Any, rollback: RollbackEvent | None) -> dict[int, SavedOffset]:
    positions._starts.clear()
    return _due(positions, offsets, rollback)


def _without_a_mark(positions: Positions, offsets: Any, rollback: RollbackEvent | None) -> dict[int, SavedOffset]:
    return {vbid: replace(record, is_rolling_back=False) for vbid, record in _due(positions, offsets, rollback).items()}


def _without_a_rollback(positions: Positions, offsets: Any, rollback: RollbackEvent | None) -> dict[int, SavedOffset]:
    del rollback
    return _due(positions, offsets, None)


_pieces = RowsReceived.pieces
_offset = Run.offset
_ranges = StreamOptions.ranges
_opened = StreamReader._opened
_due = Positions.due


class Wrong(NamedTuple):
    """A variant of the client: what replaces an attribute, and where to look for a run that shows it."""

    owner: object
    attribute: str
    replacement: object
    kind: Kind
    first_seed: int = 0


WRONG = {
    "positions only after the last piece": Wrong(RowsReceived, "pieces", _only_after_the_last_piece, "batches"),
    "bounds dropped": Wrong(Run, "offset", _without_bounds, "batches", 100),
    "not told when the node accepts": Wrong(StreamOptions, "ranges", _nothing_given_before, "batches"),
    "not told when the node accepts, with single changes": Wrong(
        StreamOptions, "ranges", _nothing_given_before, "changes"
    ),
    "told only when a run opens its first stream": Wrong(
        StreamReader, "_opened", _only_at_the_first_opening, "changes", 250
    ),
    "the high seqno of whatever branch is the newest": Wrong(
        side_requests, "branch_seqnos", _any_high_seqno, "changes", 250
    ),
    "no record of where a vbucket begins": Wrong(Positions, "due", _without_a_start, "batches"),
    "a rollback that is told before it is recorded": Wrong(Positions, "due", _without_a_rollback, "batches"),
    "a rollback that is recorded as if it were carried out": Wrong(Positions, "due", _without_a_mark, "batches"),
    "more counts as dealt with than was followed by a request": Wrong(
        streaming, "positions_after", _one_too_many, "changes"
    ),
}
