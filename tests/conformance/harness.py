"""A node without sockets on virtual time, and peers that talk to it: what the conformance tests drive.

    node = Node()                                  # one bucket in memory; Node(path=tmp_path) keeps it on disk
    node.set_doc(1, "k", b"v")
    peer = node.connect()                          # HELLO, SASL, SELECT_BUCKET
    peer.dcp_open()                                # producer; flags=0 makes the node's end a consumer
    frames = peer.stream(1)                        # STREAM_REQ: everything that comes back
    peer.closed                                    # whether the node closed the connection
    node.advance(20)                               # time passes: NOOPs, time-outs

Every call that sends returns the frames that this peer received because of it; `peer.received` has all since the
beginning. Other peers get theirs at the same moment: see their `received`, or `peer.take()`.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from dcpstream.client.machine.connection.events import Event, Stream
from dcpstream.client.machine.connection.rows import FrameDecoder
from dcpstream.client.machine.connection.session import DcpSession
from dcpstream.client.settings.options import DcpSettings
from dcpstream.model import MAX_SEQNO, BucketSettings, FailoverLog, NodeAddress, StreamOffset, VbucketState
from dcpstream.node.dcp.endpoint import dcp_stats, handle_dcp
from dcpstream.node.engine import Bucket, ClusterConfig, Engine, Users, VBucket, new_engine
from dcpstream.store import BucketStore, DiskBucketStore, MemoryBucketStore
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, OpenFlag, encode_request, encode_response
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.values import decode_failover_log, encode_failover_log
from tests.unit.node.kit import SeededRandom

START_S = 100.0
START_UNIX_S = 1_700_000_000
ROUNDS_MAX = 10_000
"""Turns of one pump, and steps of one `advance`: more means that something never comes to rest."""

USUAL = (
    Feature.XATTR,
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.SNAPPY,
    Feature.JSON,
    Feature.MUTATION_SEQNO,
    Feature.COLLECTIONS,
    Feature.ALT_REQUEST,
    Feature.PRESERVE_TTL,
    Feature.SYNC_REPLICATION,
)
"""What a peer asks for unless the test says otherwise."""
WITHOUT_COLLECTIONS = tuple(feature for feature in USUAL if feature != Feature.COLLECTIONS)
WITHOUT_XERROR = tuple(feature for feature in USUAL if feature != Feature.XERROR)

ACTIVE, REPLICA, PENDING, DEAD = VbucketState


@cache
def known_users() -> Users:
    """Everybody's password is `secret`. Made once: deriving the keys of a password takes milliseconds."""
    users = Users(SeededRandom())
    users.add("admin", "secret")
    users.add("@admin", "secret")
    users.add("producer", "secret", frozenset(("Read", "DcpProducer", "DcpStream")))
    users.add("consumer", "secret", frozenset(("Read", "DcpConsumer", "DcpStream")))
    users.add("nostream", "secret", frozenset(("Read", "DcpProducer", "DcpConsumer")))
    users.add("nodcp", "secret", frozenset(("Read", "Upsert", "Insert", "Delete")))
    return users


class Node:
    """A node's engine with its peers.

    Args:
        path: a directory for a bucket on disk; None keeps it in memory.
        vbuckets: how many; all active at first.
        users: who may log in; `known_users` by default.
        settings: of the bucket.
        compat_version: the server release that the node is.
    """

    def __init__(
        self,
        *,
        path: Path | None = None,
        vbuckets: int = 4,
        users: Users | None = None,
        settings: BucketSettings | None = None,
        compat_version: str = "7.2",
    ) -> None:
        self._settings = settings
        self._compat_version = compat_version
        self._path = path
        self._vbuckets = vbuckets
        self._users = users or known_users()
        self._random = SeededRandom(2)
        self._now = START_S
        self.peers: list[Peer] = []
        self._start()

    def _start(self) -> None:
        config = ClusterConfig([NodeAddress("", 11210, 8091)], cluster_uuid="c1", compat_version=self._compat_version)
        self.engine: Engine = new_engine(self._users, config, self._random, handle_dcp, dcp_stats)
        self.engine.set_time(self._now, int((START_UNIX_S + self._now - START_S) * 1e9))
        self.store: BucketStore = (
            DiskBucketStore(self._path / "bucket", self._vbuckets, self._settings)
            if self._path
            else MemoryBucketStore(self._vbuckets, self._settings)
        )
        # Nobody stops such a node; its files are closed, as after a crash, when it is not needed any more.
        weakref.finalize(self, self.store.close, clean=False)
        self.bucket: Bucket = self.engine.add_bucket("default", self.store, storage="disk" if self._path else "memory")
        self._admin: Peer | None = None

    # ----------------------------------------------------------------------------------------------- the node's life

    def restart(self, *, clean: bool = True) -> None:
        """Stop and start again on the same files; not clean: as after a crash, what was not flushed is lost."""
        assert self._path is not None, "a bucket in memory does not survive"
        for peer in list(self.peers):
            peer.disconnect()
        self.store.close(clean=clean)
        self._start()

    def flush(self) -> None:
        """Persist all that was written."""
        self.engine.persisted("default", [vbid for vbid, _ in self.store.commit()])
        self.pump()

    def pump(self, max_bytes: int = 1 << 20) -> None:
        """Let everybody send until nobody has anything left to say."""
        for _ in range(ROUNDS_MAX):
            self.engine.end_turn()
            moved = [peer.fetch(max_bytes) for peer in list(self.peers)]
            if not any(moved) and not any(bucket.dirty for bucket in self.engine.buckets.values()):
                return
        raise AssertionError("the node never comes to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass; every time-out on the way happens at its moment."""
        target = self._now + seconds
        for _ in range(ROUNDS_MAX):
            due = [at for peer in self.peers if (at := peer.next_timeout) is not None and at <= target]
            of_engine = self.engine.next_timeout()
            if of_engine is not None and of_engine <= target:
                due.append(of_engine)
            if not due:
                break
            self._set_time(max(self._now, min(due)))
            self.engine.handle_timeout()
            for peer in list(self.peers):
                at, dcp = peer.next_timeout, peer.session.dcp
                if dcp is not None and at is not None and at <= self._now:
                    dcp.handle_timeout(self._now)
            self.pump()
        else:
            raise AssertionError("time-outs follow each other without end")
        self._set_time(target)
        self.pump()

    def _set_time(self, now: float) -> None:
        self._now = now
        self.engine.set_time(now, int((START_UNIX_S + now - START_S) * 1e9))

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self._now

    # ---------------------------------------------------------------------------------------------------------- peers

    def connect(
        self, *, user: str | None = "admin", features: Iterable[int] = USUAL, bucket: str | None = "default"
    ) -> Peer:
        """A new connection; with a user also logged in, with a bucket also selected."""
        peer = Peer(self)
        if features := tuple(features):
            assert peer.hello(features).status == 0
        if user is not None:
            assert peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0%b\0secret" % user.encode()).status == 0
            if bucket is not None:
                assert peer.call(Opcode.SELECT_BUCKET, key=bucket.encode()).status == 0
        return peer

    def producer(
        self,
        name: bytes = b"reader",
        flags: int = OpenFlag.PRODUCER,
        *,
        controls: Iterable[tuple[bytes, bytes]] = (),
        features: Iterable[int] = USUAL,
        user: str = "admin",
    ) -> Peer:
        """A connection whose node end is a producer, with NOOPs enabled (streams with collections need them)."""
        peer = self.connect(features=features, user=user)
        assert peer.dcp_open(name, flags | OpenFlag.PRODUCER).status == 0
        for key, value in ((b"enable_noop", b"true"), *controls):
            assert peer.control(key, value).status == 0, key
        return peer

    def consumer(self, name: bytes = b"source", *, features: Iterable[int] = USUAL) -> Peer:
        """A connection whose node end is a consumer: the peer plays the producer."""
        peer = self.connect(features=features)
        assert peer.dcp_open(name, 0).status == 0
        return peer

    # -------------------------------------------------------------------------------------------------- administration

    @property
    def admin(self) -> Peer:
        """An administrator's connection, for setting things up."""
        if self._admin is None or self._admin.closed:
            self._admin = self.connect(user="@admin")
        return self._admin

    def set_vbucket(self, vbid: int, state: int, value: bytes = b"") -> None:
        """SET_VBUCKET."""
        answer = self.admin.call(
            Opcode.SET_VBUCKET, vbid=vbid, extras=bytes([state]), value=value, datatype=1 if value else 0
        )
        assert answer.status == 0, answer

    def delete_vbucket(self, vbid: int) -> None:
        """DEL_VBUCKET."""
        assert self.admin.call(Opcode.DEL_VBUCKET, vbid=vbid).status == 0

    def set_doc(
        self, vbid: int, key: str, value: bytes = b"v", *, flags: int = 0, expiration: int = 0, datatype: int = 0,
        collection: bytes = b"\0",
    ) -> None:  # fmt: skip
        """SET."""
        answer = self.admin.call(
            Opcode.SET, vbid=vbid, key=collection + key.encode(), value=value, datatype=datatype,
            extras=struct.pack(">II", flags, expiration),
        )  # fmt: skip
        assert answer.status == 0, answer

    def delete_doc(self, vbid: int, key: str, *, collection: bytes = b"\0") -> None:
        """DELETE."""
        assert self.admin.call(Opcode.DELETE, vbid=vbid, key=collection + key.encode()).status == 0

    def fill(self, vbid: int, count: int, *, prefix: str = "k", value: bytes = b"v") -> None:
        """Write `count` documents with keys of their own."""
        for number in range(count):
            self.set_doc(vbid, f"{prefix}{number}", value)

    def vbucket(self, vbid: int) -> VBucket:
        """The node's own object, for what cannot be asked for."""
        vbucket = self.bucket.vbucket(vbid)
        assert vbucket is not None
        return vbucket

    def failover_log(self, vbid: int) -> FailoverLog:
        """As GET_FAILOVER_LOG tells it."""
        answer = self.admin.call(Opcode.GET_FAILOVER_LOG, vbid=vbid)
        assert answer.status == 0, answer
        return decode_failover_log(answer.value)

    def stats(self, group: str) -> dict[str, str]:
        """A whole STAT answer."""
        frames = self.admin.send(Opcode.STAT, key=group.encode())
        assert frames, "STAT was not answered"
        assert all(frame.status == 0 for frame in frames)
        return {frame.key.decode(): frame.value.decode() for frame in frames[:-1]}


class Peer:
    """The other end of one connection of a node.

    Attributes:
        received: every frame that came, in order.
        closed: the node closed the connection.
        close_reason: why, in the node's own words; for messages of failing tests only.
        is_reading: False: what the node has to say stays with it, as when a socket's buffers are full.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        session = node.engine.new_session("test")
        assert session is not None
        self.session = session
        self.received: list[Frame] = []
        self.closed = False
        self.close_reason: str | None = None
        self.is_reading = True
        self._taken = 0
        self._reader = FrameReader()
        self._unread = b""
        self._opaque = 0
        node.peers.append(self)

    # ------------------------------------------------------------------------------------------------------- bytes

    def send_bytes(self, data: bytes) -> list[Frame]:
        """Send bytes; the frames that come of it."""
        self.take()
        if not self.closed:
            self._unread += data
            self._feed()
            self.node.pump()
        return self.take()

    def _feed(self) -> None:
        session = self.session
        for _ in range(ROUNDS_MAX):
            if not self._unread or session.is_closing or session.is_waiting:
                return
            consumed = session.receive(self._unread)
            self._unread = self._unread[consumed:]
            if not consumed:
                return

    def fetch(self, max_bytes: int) -> bool:
        """Take over what the node has to send; whether there was anything. For `Node.pump`."""
        if self.closed or not self.is_reading:
            return False
        moved = False
        for piece in self.session.data_to_send(max_bytes):
            self._reader.receive_data(bytes(piece))
            moved = True
        self.received += self._reader.frames()
        if self.session.is_closing:
            self.closed = True
            self.close_reason = self.session.close_reason
            self._leave()
            return True
        if self._unread and self.session.is_ready_to_read_on:
            before = len(self._unread)
            self._feed()
            moved |= len(self._unread) != before
        return moved

    def take(self) -> list[Frame]:
        """The frames that came since the last call."""
        found = self.received[self._taken :]
        self._taken = len(self.received)
        return found

    def disconnect(self) -> None:
        """Close from the peer's side."""
        if not self.closed:
            self.closed = True
            self._leave()

    def _leave(self) -> None:
        self.node.peers.remove(self)
        self.session.connection_lost()

    @property
    def next_timeout(self) -> float | None:
        """When the node's end wants to be woken."""
        dcp = self.session.dcp
        return None if dcp is None or self.closed else dcp.next_timeout()

    # ------------------------------------------------------------------------------------------------------- frames

    def opaque(self) -> int:
        """An opaque not used before."""
        self._opaque += 1
        return self._opaque

    def send(self, opcode: int, **fields: object) -> list[Frame]:
        """Send one request; everything that comes of it."""
        fields.setdefault("opaque", self.opaque())
        return self.send_bytes(encode_request(opcode, **fields))  # type: ignore[arg-type]

    def call(self, opcode: int, **fields: object) -> Frame:
        """Send one request; its answer. What else comes stays in `received`."""
        opaque = fields.setdefault("opaque", self.opaque())
        frames = self.send(opcode, **fields)
        answers = [frame for frame in frames if frame.is_response and frame.opcode == opcode]
        assert len(answers) == 1, (answers, self.close_reason)
        assert answers[0].opaque == opaque
        return answers[0]

    def answer(self, request: Frame, *, status: int = 0, extras: bytes = b"", value: bytes = b"") -> list[Frame]:
        """Answer a request of the node's."""
        data = encode_response(request.opcode, status=status, opaque=request.opaque, extras=extras, value=value)
        return self.send_bytes(data)

    def hello(self, features: Iterable[int]) -> Frame:
        """HELLO."""
        return self.call(Opcode.HELLO, key=b"test", value=b"".join(struct.pack(">H", code) for code in features))

    # ---------------------------------------------------------------------------------------------------------- DCP

    def dcp_open(
        self, name: bytes = b"reader", flags: int = OpenFlag.PRODUCER, *, first: int = 0, **fields: object
    ) -> Frame:
        """DCP_OPEN; `first` is the extras' first word."""
        return self.call(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", first, flags), **fields)

    def control(self, key: bytes, value: bytes) -> Frame:
        """DCP_CONTROL."""
        return self.call(Opcode.DCP_CONTROL, key=key, value=value)

    def stream(
        self,
        vbid: int = 1,
        start: int = 0,
        end: int = MAX_SEQNO,
        *,
        vbuuid: int | None = None,
        snapshot: tuple[int, int] | None = None,
        flags: int = 0,
        value: bytes = b"",
        opaque: int = 0x77,
    ) -> list[Frame]:
        """STREAM_REQ; the answer and whatever the stream says at once.

        Args:
            vbuuid: the branch; the newest one by default, 0 if start is 0 or there is no such vbucket.
            snapshot: its bounds; (start, start) by default.
        """
        if vbuuid is None:
            vbucket = self.node.bucket.vbucket(vbid)
            vbuuid = vbucket.vbuuid if start and vbucket is not None else 0
        low, high = snapshot or (start, start)
        request = StreamRequest(
            vbid=vbid, opaque=opaque, flags=flags, start_seqno=start, end_seqno=end, vbuuid=vbuuid,
            snapshot_start=low, snapshot_end=high, value=value,
        )  # fmt: skip
        return self.send_bytes(request.encode())

    def buffer_ack(self, count: int, **fields: object) -> list[Frame]:
        """DCP_BUFFER_ACK."""
        return self.send(Opcode.DCP_BUFFER_ACK, extras=count.to_bytes(4, "big"), **fields)

    def close_stream(self, vbid: int = 1, **fields: object) -> list[Frame]:
        """DCP_CLOSE_STREAM."""
        return self.send(Opcode.DCP_CLOSE_STREAM, vbid=vbid, **fields)


def opcodes(frames: Iterable[Frame]) -> list[int]:
    """The opcodes, in order."""
    return [frame.opcode for frame in frames]


def of(frames: Iterable[Frame], opcode: int) -> list[Frame]:
    """The frames with this opcode."""
    return [frame for frame in frames if frame.opcode == opcode]


def filtered(frames: Iterable[Frame], wanted: Callable[[Frame], bool]) -> list[Frame]:
    """The frames that fit."""
    return [frame for frame in frames if wanted(frame)]


def client_of_streams(**settings: object) -> ClientEnd:
    """Our own client's end of a DCP connection, past its handshake."""
    return ClientEnd(DcpSettings(name="reader", **settings))  # type: ignore[arg-type]


class ClientEnd:
    """Our own client's session machine, with bytes going in and frames coming out."""

    def __init__(self, settings: DcpSettings, now: float = START_S) -> None:
        self.now = now
        self.session = DcpSession(NodeAddress("node", 11210, 8091), settings, True, now)

    def stream(self, vbid: int = 1, offset: StreamOffset = StreamOffset.ZERO, end: int = MAX_SEQNO) -> Stream:
        """Ask for a stream; the request is taken off the output."""
        stream = self.session.open_stream(vbid, offset, end, self.now)
        self.sent()
        return stream

    def opened(self, log: FailoverLog | None = None, **fields: object) -> Stream:
        """A stream that the node has accepted."""
        stream = self.stream(**fields)  # type: ignore[arg-type]
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
