"""A node's engine on virtual time, and peers that exchange frames with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypedDict, Unpack

from dcpstream.errors import StoreError
from dcpstream.model import MAX_SEQNO, BucketSettings, FailoverLog, NodeAddress
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, OpenFlag, encode_request, encode_response
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.messages.dcp import Open, StreamRequest
from dcpstream.wire.messages.kv import Set, encode_features
from dcpstream.wire.release import DEFAULT_RELEASE, Release, release_of
from dcpstream.wire.values import decode_failover_log
from dcpstream_node.dcp.dispatch import handle_dcp
from dcpstream_node.dcp.stats import dcp_stats
from dcpstream_node.engine import MAX_OUTPUT_BYTES, Bucket, ClusterConfig, Engine, Session, Users, VBucket, new_engine
from dcpstream_node.engine.session.step import Wants
from dcpstream_node.store import BucketStore, DiskBucketStore, MemoryBucketStore
from dcpstream_node.testing.simulation.clock import SeededRandom, VirtualClock
from dcpstream_node.testing.simulation.disk import SimulatedDisk, Trouble

ROUNDS_MAX = 10_000
"""Turns of one pump, and steps of one `advance`; a node that needs more never comes to rest."""

USUAL_FEATURES = (
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
"""The features that a peer negotiates unless the test names others."""

_encoded = cache(encode_features)


WITHOUT_COLLECTIONS = tuple(feature for feature in USUAL_FEATURES if feature != Feature.COLLECTIONS)


class HeaderFields(TypedDict, total=False):
    """Fields of a request other than opcode, vbucket, key and value; those that are missing are 0 or empty."""

    opaque: int
    cas: int
    datatype: int
    framing: bytes
    extras: bytes


class MessageFields(HeaderFields, total=False):
    """Fields of a request other than opcode and vbucket."""

    key: bytes
    value: bytes


class FrameFields(MessageFields, total=False):
    """Fields of a request other than its opcode."""

    vbid: int


@cache
def known_users() -> Users:
    """The users of a simulated node; every password is `secret`.

    `admin` and `@admin` may do everything, `producer`, `consumer`, `nostream`, `reader` and `writer` a part of it. Made
    once, because it takes milliseconds to derive the keys of a password.
    """
    users = Users(SeededRandom())
    users.add("admin", "secret")
    users.add("@admin", "secret")
    users.add("producer", "secret", frozenset(("Read", "DcpProducer", "DcpStream")))
    users.add("consumer", "secret", frozenset(("Read", "DcpConsumer", "DcpStream")))
    users.add("nostream", "secret", frozenset(("Read", "DcpProducer", "DcpConsumer")))
    users.add("reader", "secret", frozenset(("Read", "DcpProducer")))
    users.add("writer", "secret", frozenset(("Read", "Upsert", "Insert", "Delete")))
    return users


def simulated_engine(
    store: BucketStore,
    *,
    clock: VirtualClock,
    random: SeededRandom,
    users: Users,
    release: Release = DEFAULT_RELEASE,
    uuid: str = "",
) -> Engine:
    """An engine with the bucket `default` in this store; one with this identity was made before."""
    config = ClusterConfig([NodeAddress("", 11210, 8091)], cluster_uuid="c1", release=release)
    engine = new_engine(users, config, random, handle_dcp, dcp_stats)
    engine.set_time(clock.monotonic(), clock.time_ns())
    engine.add_bucket("default", store, is_filled=not uuid, uuid=uuid)
    return engine


class SimulatedNode:
    """A node's engine with its peers.

    Args:
        path: a directory for a bucket on disk; None keeps the bucket in memory.
        vbuckets: how many; all are active at first.
        users: the users that may log in; `known_users` by default.
        settings: of the bucket.
        release: the server release that the node stands in for, by name, or with other bugs than its own.
        disk: holds the files of documents, if there is a path; the system's by default.
        seed: of its random numbers. The nodes of a cluster need different ones, or two of them choose the same vbuuid.
        wakes_all: whether a frame of one peer makes the node look at all of them: for tests that reach into the node.
            Else it looks at those to which something happened.

    Attributes:
        clock: the node's time; `advance` moves it.
        disk: on which its documents are; None: the system's.
        wakes_all: as given.
        peers: the open connections.
    """

    def __init__(
        self,
        *,
        path: Path | None = None,
        vbuckets: int = 4,
        users: Users | None = None,
        settings: BucketSettings | None = None,
        release: str | Release = DEFAULT_RELEASE,
        disk: SimulatedDisk | None = None,
        seed: int = 2,
        wakes_all: bool = True,
    ) -> None:
        self.disk = disk
        self.wakes_all = wakes_all
        self._settings = settings
        self._release = release if isinstance(release, Release) else release_of(release)
        self._path = path
        self._vbuckets = vbuckets
        self._users = users or known_users()
        self._random = SeededRandom(seed)
        self.clock = VirtualClock()
        self.peers: list[Peer] = []
        self._connections = 0
        self._peer_of: dict[Session, Peer] = {}
        self._timeout: float | None = None
        self._is_timeout_known = False
        self._start()

    def _start(self, uuid: str = "") -> None:
        self.store: BucketStore = (
            DiskBucketStore(self._path / "bucket", self._vbuckets, self._settings, file_system=self.disk)
            if self._path
            else MemoryBucketStore(self._vbuckets, self._settings)
        )
        # A test does not stop such a node: the garbage collector closes its files as a crash would.
        weakref.finalize(self, self.store.close, clean=False)
        self.engine: Engine = simulated_engine(
            self.store,
            clock=self.clock,
            random=self._random,
            users=self._users,
            release=self._release,
            uuid=uuid,
        )
        self.bucket: Bucket = self.engine.buckets["default"]
        self._admin: Peer | None = None
        self._is_timeout_known = False

    # ----------------------------------------------------------------------------------------------- the node's life

    def restart(self, *, clean: bool = True, uuid: str = "") -> None:
        """Stop and start again on the same files; `clean=False` is a crash, which loses what was not flushed.

        Args:
            uuid: the identity of the bucket, if the node remembers it, as a member of a cluster does.
        """
        assert self._path is not None, "a bucket in memory does not survive a restart"
        for peer in list(self.peers):
            peer.disconnect()
        self.store.close(clean=clean)
        self._start(uuid)

    def lose_power(self) -> None:
        """The power goes while a commit is written; the node starts again, as a member of a cluster does."""
        assert self.disk is not None, "a disk of its own"
        self.disk.trouble = Trouble.POWER
        with suppress(StoreError):
            self.store.commit()
        self.disk.trouble = None
        self.disk.lose_unsynced()
        self.restart(clean=False, uuid=self.bucket.uuid)
        self.bucket.stand_down()

    def delete_vbuckets(self) -> None:
        """Delete every vbucket of the bucket `default`, as for a member of a cluster that has no copy yet."""
        for vbid in range(self._vbuckets):
            self.bucket.delete_vbucket(vbid, self.now)
            self.engine.topology_changed(self.bucket)
        self.pump()

    def add_bucket(self, name: str, vbuckets: int) -> None:
        """Open another bucket, in memory, without vbuckets, as a member of a cluster does."""
        self.engine.add_bucket(name, MemoryBucketStore(vbuckets), is_filled=False)

    def remove_bucket(self, name: str) -> None:
        """Close a bucket and its connections."""
        self.engine.remove_bucket(name).store.close()
        self.pump()

    def host_buckets(self) -> None:
        """Let CREATE_BUCKET make buckets in memory, without vbuckets, and DELETE_BUCKET remove them."""
        self.engine.bucket_host = _BucketHost(self)

    def flush_bucket(self, name: str) -> None:
        """Empty a bucket."""
        self.engine.flush_bucket(self.engine.buckets[name])
        self.pump()

    def flush(self) -> None:
        """Persist all that was written; if the disk refuses, nothing is."""
        try:
            persisted = self.store.commit()
        except StoreError:
            self.store.note_commit(has_failed=True)
            return
        self.store.note_commit(has_failed=False)
        self.engine.persisted("default", [vbid for vbid, _ in persisted])
        self.pump()

    def pump(self, max_bytes: int = 1 << 20, *, heard: Iterable[Peer] | None = None) -> None:
        """Exchange frames until neither the node nor a peer has anything to send.

        Args:
            heard: the only peers to which something has happened; the node says which others to look at.
        """
        engine, peer_of = self.engine, self._peer_of
        self._is_timeout_known = False
        moving = set(self.peers if heard is None else heard)
        for _ in range(ROUNDS_MAX):
            ready = engine.end_turn()
            if ready:
                moving.update(peer_of[session] for session in ready if session in peer_of)
            elif not moving and not any(bucket.dirty for bucket in engine.buckets.values()):
                return
            turns = moving if len(moving) < 2 else sorted(moving, key=_by_number)
            moving = {peer for peer in turns if peer.fetch(max_bytes)}
        raise AssertionError("the node never comes to rest")

    def join(self, peer: Peer) -> int:
        """A connection was made; returns its number."""
        self.peers.append(peer)
        self._peer_of[peer.session] = peer
        self._is_timeout_known = False
        self._connections += 1
        return self._connections

    def leave(self, peer: Peer) -> None:
        """A connection is gone."""
        self.peers.remove(peer)
        del self._peer_of[peer.session]
        self._is_timeout_known = False

    def next_timeout(self) -> float | None:
        """When the engine or a connection wants to be woken."""
        if not self._is_timeout_known:
            self._is_timeout_known = True
            times = [self.engine.next_timeout(), *[peer.wake_at for peer in self.peers]]
            self._timeout = min((at for at in times if at is not None), default=None)
        return self._timeout

    def advance(self, seconds: float) -> None:
        """Let time pass; every time-out on the way happens at its moment."""
        self._is_timeout_known = False  # a test may have reached into the node
        self.wait_until(self.clock.now + seconds)

    def wait_until(self, target: float) -> bool:
        """Let time pass for a node that only peers have touched. Returns whether there was a time-out."""
        was_woken = False
        for _ in range(ROUNDS_MAX):
            due = self.next_timeout()
            if due is None or due > target:
                break
            was_woken = True
            self._set_time(max(self.clock.now, due))
            self.engine.handle_timeout()
            heard = []
            for peer in list(self.peers):
                if peer.wake_at is not None and peer.wake_at <= self.clock.now:
                    peer.session.handle_timeout()
                    heard.append(peer)
            self.pump(heard=heard)
        else:
            raise AssertionError("time-outs follow each other without end")
        self._set_time(target)
        if not self.engine.is_quiet:
            self.pump(heard=())
        return was_woken

    def _set_time(self, now: float) -> None:
        self.clock.now = now
        self.engine.set_time(now, self.clock.time_ns())

    @property
    def users(self) -> Users:
        """The users; a change of them holds at once."""
        return self.engine.users

    @property
    def now(self) -> float:
        """Seconds of the node's monotonic clock."""
        return self.clock.now

    # ---------------------------------------------------------------------------------------------------------- peers

    def connect(
        self, *, user: str | None = "admin", features: Iterable[int] = USUAL_FEATURES, bucket: str | None = "default"
    ) -> Peer:
        """A new connection; with a user it logs in, with a bucket it also selects the bucket."""
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
        features: Iterable[int] = USUAL_FEATURES,
        user: str = "admin",
    ) -> Peer:
        """A connection whose node end is a producer, with NOOPs enabled (streams with collections need them)."""
        peer = self.connect(features=features, user=user)
        assert peer.dcp_open(name, flags | OpenFlag.PRODUCER).status == 0
        for key, value in ((b"enable_noop", b"true"), *controls):
            assert peer.control(key, value).status == 0, key
        return peer

    def consumer(self, name: bytes = b"source", *, features: Iterable[int] = USUAL_FEATURES) -> Peer:
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
        """SET; `collection` is the encoded collection id."""
        answer = self.admin.call(
            Opcode.SET, vbid=vbid, key=collection + key.encode(), value=value, datatype=datatype,
            extras=Set.layout.extras.pack(flags, expiration),
        )  # fmt: skip
        assert answer.status == 0, answer

    def delete_doc(self, vbid: int, key: str, *, collection: bytes = b"\0") -> None:
        """DELETE."""
        assert self.admin.call(Opcode.DELETE, vbid=vbid, key=collection + key.encode()).status == 0

    def fill(self, vbid: int, count: int, *, prefix: str = "k", value: bytes = b"v") -> None:
        """Write `count` documents with different keys."""
        for number in range(count):
            self.set_doc(vbid, f"{prefix}{number}", value)

    def vbucket(self, vbid: int) -> VBucket:
        """The node's own object, for what no request asks."""
        vbucket = self.bucket.vbucket(vbid)
        assert vbucket is not None
        return vbucket

    def failover_log(self, vbid: int) -> FailoverLog:
        """The answer to GET_FAILOVER_LOG."""
        answer = self.admin.call(Opcode.GET_FAILOVER_LOG, vbid=vbid)
        assert answer.status == 0, answer
        return decode_failover_log(answer.value)

    def stats(self, group: str) -> dict[str, str]:
        """The whole answer to STAT."""
        frames = self.admin.send(Opcode.STAT, key=group.encode())
        assert frames, "STAT was not answered"
        assert all(frame.status == 0 for frame in frames)
        return {frame.key.decode(): frame.value.decode() for frame in frames[:-1]}


class _BucketHost:
    """Makes and removes buckets for requests."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node

    def create(self, name: str, vbucket_count: int) -> None:
        self._node.add_bucket(name, vbucket_count)

    def delete(self, name: str, done: Callable[[], None]) -> None:
        self._node.engine.remove_bucket(name).store.close()
        done()


def _by_number(peer: Peer) -> int:
    return peer.number


class Peer:
    """The other end of one connection of a node.

    A method that sends returns the frames that this peer received because of it. Frames for other peers arrive at the
    same moment: see their `received` or `take`.

    Attributes:
        number: of the node's connections, in the order in which they were made.
        received: every frame that came, in order.
        closed: the node closed the connection.
        close_reason: the node's reason, for messages of failing tests.
        is_reading: False keeps the node's frames at the node, as full socket buffers do.
        wake_at: the time at which the node's end wants to be woken.
    """

    def __init__(self, node: SimulatedNode) -> None:
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
        self._needed = 0
        self._unsent: list[Buffer] = []
        self.wake_at: float | None = None
        self._opaque = 0
        self.number = node.join(self)

    # ------------------------------------------------------------------------------------------------------- bytes

    def send_bytes(self, data: bytes) -> list[Frame]:
        """Send bytes; returns the frames that follow from them."""
        self.take()
        self.deliver(data)
        return self.take()

    def deliver(self, data: bytes) -> None:
        """Send bytes; the frames that follow from them are left to `take`."""
        if not self.closed:
            self._unread += data
            self._feed()
            self._exchange()

    def _exchange(self) -> None:
        """Let frames follow from what was sent."""
        self.node.pump(heard=None if self.node.wakes_all else (self,))

    def _feed(self) -> None:
        for _ in range(ROUNDS_MAX):
            if len(self._unread) < self._needed or sum(map(len, self._unsent)) > MAX_OUTPUT_BYTES:
                return
            step = self.session.receive(self._unread)
            self._unread, self._needed = self._unread[step.used :], step.needed
            self._unsent += step.output
            if step.wants not in (Wants.ROOM, Wants.TURN):
                return

    def fetch(self, max_bytes: int) -> bool:
        """Receive what the node has to send, for `SimulatedNode.pump`; False if it has nothing more."""
        if self.closed:
            return False
        step = self.session.send(max_bytes if self.is_reading else None)
        self._unsent += step.output
        self.wake_at = step.wake_at
        if not self.is_reading:
            return False
        pieces, self._unsent = self._unsent, []
        if pieces:
            self.arrive(b"".join(pieces))
        if step.wants is Wants.CLOSE:
            self.closed = True
            self.close_reason = self.session.close_reason
            self._leave()
            return True
        moved = step.wants is Wants.TURN
        if self._unread and step.wants is Wants.INPUT:
            before = len(self._unread)
            self._feed()
            moved |= len(self._unread) != before
        return moved

    def arrive(self, data: bytes) -> None:
        """The node sent bytes; a subclass may keep them as they are."""
        self._reader.receive_data(data)
        self.received += self._reader.frames()

    def take(self) -> list[Frame]:
        """The frames that came since the last call."""
        found = self.received[self._taken :]
        self._taken = len(self.received)
        return found

    @property
    def has_news(self) -> bool:
        """Whether frames came that `take` has not returned."""
        return len(self.received) > self._taken

    def disconnect(self) -> None:
        """Close from the peer's side."""
        if not self.closed:
            self.closed = True
            self._leave()

    def _leave(self) -> None:
        self.node.leave(self)
        self.session.connection_lost()

    # ------------------------------------------------------------------------------------------------------- frames

    def opaque(self) -> int:
        """An opaque not used before."""
        self._opaque += 1
        return self._opaque

    def send(self, opcode: int, **fields: Unpack[FrameFields]) -> list[Frame]:
        """Send one request; returns every frame that follows from it."""
        fields.setdefault("opaque", self.opaque())
        return self.send_bytes(encode_request(opcode, **fields))

    def call(self, opcode: int, **fields: Unpack[FrameFields]) -> Frame:
        """Send one request; returns its answer. Other frames stay in `received`."""
        opaque = fields.setdefault("opaque", self.opaque())
        frames = self.send(opcode, **fields)
        answers = [frame for frame in frames if frame.is_response and frame.opcode == opcode]
        assert len(answers) == 1, (answers, self.close_reason)
        assert answers[0].opaque == opaque
        return answers[0]

    def answer(
        self, request: Frame, *, status: int = 0, extras: bytes = b"", value: bytes = b"", datatype: int = 0
    ) -> list[Frame]:
        """Answer a request of the node's."""
        data = encode_response(
            request.opcode, status=status, opaque=request.opaque, extras=extras, value=value, datatype=datatype
        )
        return self.send_bytes(data)

    def hello(self, features: Iterable[int]) -> Frame:
        """HELLO."""
        return self.call(Opcode.HELLO, key=b"test", value=_encoded(tuple(features)))

    # ---------------------------------------------------------------------------------------------------------- DCP

    def dcp_open(
        self,
        name: bytes = b"reader",
        flags: int = OpenFlag.PRODUCER,
        *,
        first: int = 0,
        **fields: Unpack[FrameFields],
    ) -> Frame:
        """DCP_OPEN; `first` is the first word of the extras."""
        fields.setdefault("key", name)
        fields.setdefault("extras", Open.layout.extras.pack(first, flags))
        return self.call(Opcode.DCP_OPEN, **fields)

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
        """STREAM_REQ; returns the answer and what the stream sends at once.

        Args:
            vbuuid: the branch; by default the newest one, or 0 if start is 0 or there is no such vbucket.
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

    def buffer_ack(self, count: int, **fields: Unpack[FrameFields]) -> list[Frame]:
        """DCP_BUFFER_ACK."""
        fields.setdefault("extras", count.to_bytes(4, "big"))
        return self.send(Opcode.DCP_BUFFER_ACK, **fields)

    def close_stream(self, vbid: int = 1, **fields: Unpack[MessageFields]) -> list[Frame]:
        """DCP_CLOSE_STREAM."""
        return self.send(Opcode.DCP_CLOSE_STREAM, vbid=vbid, **fields)
