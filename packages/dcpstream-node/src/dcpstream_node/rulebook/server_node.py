"""A server at an address, in the place of a simulated node: the rules' tests run against it as they are.

`ServerNode` and `ServerPeer` have the methods of `SimulatedNode` and `Peer` and do over sockets what a request can do.
Every node of a test is a bucket that is made for it and deleted before the next one. What no request can do, the
virtual time or an object inside the node, raises `NotOnServer`: such a test decides nothing about the server.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Unpack

from _pytest.outcomes import Skipped

from dcpstream.errors import FieldError
from dcpstream.model import VbucketState
from dcpstream.runtime import SystemClock
from dcpstream.wire import Frame, FrameInfoId, FrameReader, Magic, Opcode, Status, encode_request
from dcpstream.wire.effects import changes
from dcpstream.wire.keys import decode_frame_infos
from dcpstream.wire.layout import Kind
from dcpstream.wire.messages import LAYOUTS
from dcpstream_node.engine import Users
from dcpstream_node.judge.connection import Endpoint
from dcpstream_node.judge.packets import HEADER_BYTES, Packet, status_name
from dcpstream_node.rulebook.server_users import ADMINISTRATORS, PrivilegesFile
from dcpstream_node.testing.simulation import USUAL_FEATURES, FrameFields, Peer, SimulatedNode

ANSWER_TIMEOUT_S = 5.0
"""Seconds that a test waits for an answer."""
CLOSING_S = 1.2
"""A server looks once a second for the DCP connections that it closes."""
PROBE_QUIETS = 10
"""The longest wait for the answer to a probe, in silences. A connection that waits gives none."""
SETTLE_MAX_S = 5.0
"""A connection that does not come to rest in this time never does."""
LONGEST_WAIT_S = 3.0
"""A test that lets more time pass decides nothing: the suite would take hours."""
BUCKET_TIMEOUT_S = 8.0
"""Seconds in which the server must make or delete a bucket."""
TRACE_MAX = 24
"""Frames that are kept to be shown with a failure."""
CHUNK_BYTES = 1 << 20
PASSWORD = "secret"
"""The password of the users that tests log in as, other than the administrators; not every server has them."""
NOT_THERE = 0
NOT_ON_SERVER = "not on a server: "
CHECKPOINT = "a checkpoint that a request begins"
PROBE, LAST_PROBE = 0xFE9CE000, 0xFEFFFFFF
"""The first opaque of the probes, which no test uses."""
MODULE = b"ep.so\0"
CONTROL_TOKEN = 0xDEADBEEF
"""The control token of a server that was just started; later releases have none."""
REQUEST_MAGICS = (Magic.REQUEST, Magic.FLEX_REQUEST)
_CLOCK = SystemClock()
_buckets = itertools.count(1)
_ADMINISTRATION = frozenset({"NodeSupervisor", "Administrator", "BucketThrottleManagement"})


@cache
def is_of_bucket(opcode: int) -> bool:
    """True if the bucket must be made again after this request; after others the vbucket suffices."""
    if opcode in (
        Opcode.SET_VBUCKET, Opcode.DEL_VBUCKET, Opcode.CREATE_CHECKPOINT, Opcode.COMPACT_DB, Opcode.SEQNO_PERSISTENCE,
    ):  # fmt: skip
        return False
    requests = [layout for layout in LAYOUTS if layout.opcode == opcode and layout.kind is Kind.REQUEST]
    return changes(opcode) and any(layout.privilege in _ADMINISTRATION for layout in requests)


def _may_wait(frame: bytes) -> bool:
    """True if this request may wait for what happens on another connection: ADD_STREAM, and durable writes."""
    if frame[1] == Opcode.DCP_ADD_STREAM or frame[0] != Magic.FLEX_REQUEST:
        return frame[1] == Opcode.DCP_ADD_STREAM
    with suppress(FieldError):
        infos = decode_frame_infos(frame[HEADER_BYTES : HEADER_BYTES + frame[2]])
        return any(info_id == FrameInfoId.DURABILITY for info_id, _ in infos)
    return False


class NotOnServer(Skipped):
    """A test asks for what no server offers over the wire.

    Args:
        need: what that is.
    """

    def __init__(self, need: str) -> None:
        super().__init__(f"{NOT_ON_SERVER}{need}")


def not_here(of: str, name: str) -> BaseException:
    """The answer of a stand-in to an attribute that it has not."""
    return AttributeError(name) if name.startswith("__") else NotOnServer(f"{of}.{name}")


@dataclass(slots=True, kw_only=True)
class ServerUnderTest:
    """The server whose buckets are the nodes of the tests.

    Attributes:
        endpoint: its data port.
        user, password: of an administrator who may do everything.
        bucket: made and deleted for every node of a test.
        config: settings of the bucket, as `name=value;…`.
        release: as the server says it.
        quiet_s: a connection has come to rest if nothing comes for this time.
        from_disk: settings with which a bucket streams from disk what it has persisted; empty: CREATE_CHECKPOINT works.
        privileges: the file from which it reads its users' privileges, if tests may write it.
    """

    endpoint: Endpoint
    user: str
    password: str
    bucket: str
    release: str
    config: str = ""
    quiet_s: float = 0.05
    from_disk: str = ""
    privileges: PrivilegesFile | None = None

    def is_there(self) -> bool:
        """True if the server takes connections."""
        with suppress(OSError):
            self.endpoint.connect().close()
            return True
        return False


class ServerVBucket:
    """A vbucket, as requests show it."""

    def __init__(self, node: ServerNode, vbid: int) -> None:
        self._node = node
        self._vbid = vbid

    def _stat(self, group: str, name: str) -> str:
        return self._node.control_stats(f"{group} {self._vbid}")[f"vb_{self._vbid}:{name}"]

    @property
    def state(self) -> int:
        """The state from GET_VBUCKET."""
        return self._node.state_of(self._vbid)

    @property
    def is_active(self) -> bool:
        """The state is active."""
        return self.state == VbucketState.ACTIVE

    @property
    def vbuuid(self) -> int:
        """The newest entry of the failover log."""
        return self._node.failover_log(self._vbid).newest.vbuuid

    @property
    def high_seqno(self) -> int:
        """The seqno of STAT, once all connections are at rest."""
        self._node.settle_all()
        return int(self._stat("vbucket-details", "high_seqno"))  # the other group has the snapshot's bound for a copy

    @property
    def purge_seqno(self) -> int:
        """The seqno of STAT."""
        return int(self._stat("vbucket-seqno", "purge_seqno"))

    @property
    def topology(self) -> str:
        """The topology of STAT, as JSON; empty for none."""
        found = self._stat("vbucket-details", "topology")
        return "" if found == "null" else found

    def close_checkpoint(self) -> None:
        """CREATE_CHECKPOINT; a server without it needs a bucket that keeps nothing in memory."""
        if self._node.control.call(Opcode.CREATE_CHECKPOINT, vbid=self._vbid).status:
            if not self._node.is_from_disk:
                raise NotOnServer(CHECKPOINT)
            time.sleep(self._node.target.quiet_s * 4)

    def __getattr__(self, name: str) -> NoReturn:
        raise not_here("vbucket", name)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise not_here("vbucket", name)
        super().__setattr__(name, value)


class ServerBucket:
    """A bucket, as requests show it."""

    def __init__(self, node: ServerNode) -> None:
        self._node = node

    def vbucket(self, vbid: int) -> ServerVBucket | None:
        """The copy of a vbucket, if there is one."""
        return ServerVBucket(self._node, vbid) if self._node.state_of(vbid) != NOT_THERE else None

    def __getattr__(self, name: str) -> NoReturn:
        raise not_here("bucket", name)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise not_here("bucket", name)
        super().__setattr__(name, value)


class ServerNode(SimulatedNode):
    """A fresh bucket of the server, in the place of a simulated node; the node before it is gone.

    Attributes:
        target: the server.
        is_on: whether `SimulatedNode()` is a bucket of the server.
        may_delete: whether a bucket of this name is deleted before one is made.
        wants_disk: whether buckets are made with the settings that let them stream from disk.
        hidden: the server's requests that tests are not shown, because they come when some time has passed.
        closing_waits: how often `closed` still waits until a server closes a connection at the latest.
        requests: how many frames tests have sent to servers.
        trace: the last frames that passed.
    """

    target: ClassVar[ServerUnderTest]
    is_on: ClassVar[bool] = True
    wants_disk: ClassVar[bool] = False
    may_delete: ClassVar[bool] = True
    hidden: ClassVar[frozenset[int]] = frozenset()
    closing_waits: ClassVar[int] = 0
    requests: ClassVar[int] = 0
    trace: ClassVar[deque[str]] = deque(maxlen=TRACE_MAX)
    sends: ClassVar[int] = 0
    _current: ClassVar[ServerNode | None] = None

    def __init__(
        self,
        *,
        path: Path | None = None,
        vbuckets: int = 4,
        users: Users | None = None,
        release: Any = None,
        seed: int = 2,
        **options: Any,
    ) -> None:
        name = getattr(release, "name", release)
        if name is not None and name != self.target.release:
            raise NotOnServer(f"a node of release {name}")
        if given := sorted(name for name, value in options.items() if value is not None):
            raise NotOnServer(f"a node with {', '.join(given)}")
        if users is not None and self.target.privileges is None:
            raise NotOnServer("a node with users, whose privileges --rbac-file may write")
        settings = (vbuckets, bool(self.wants_disk and self.target.from_disk), path is None)
        previous = self.retire_current(settings)
        self.peers: list[Peer] = []
        self._numbers = itertools.count(1)
        self._admin: Peer | None = None
        self._own_users = users
        self._vbuckets = vbuckets
        self._made_for = settings
        _, self.is_from_disk, self._is_persisting = settings
        self._changed: set[int] = set()
        self._made: set[bytes] = set()
        self._needs_bucket = True
        self.is_retired = False
        self.control: ServerPeer
        self.bucket = ServerBucket(self)  # type: ignore[assignment]
        ServerNode._current = self
        if previous is None:
            self._make_bucket()
        else:
            self.control = previous.control
            self.control.node = self
            del previous.control
        self._needs_bucket = False

    def __getattr__(self, name: str) -> NoReturn:
        raise not_here("node", name)

    # -------------------------------------------------------------------------------------------------------- users

    @property
    def users(self) -> Users:
        """The users of this test."""
        if self._own_users is None:
            raise NotOnServer("users that a test changes")
        return self._own_users

    def _share_users(self) -> None:
        """Have the server know the privileges of this test's users."""
        if self._own_users is None or self.target.privileges is None:
            return
        manifest = self.control.call(Opcode.GET_COLLECTIONS_MANIFEST).value
        if self.target.privileges.write(self._own_users, self.target.bucket, manifest):
            assert self.control.call(Opcode.RBAC_REFRESH).status == 0, "RBAC_REFRESH"

    def _forget_users(self) -> None:
        if self._own_users is not None and self.target.privileges is not None and self.target.privileges.restore():
            self.control.call(Opcode.RBAC_REFRESH)

    # -------------------------------------------------------------------------------------------------- the bucket

    def _make_bucket(self) -> None:
        target = self.target
        self._log_in_control()
        if self.may_delete and not self._delete_bucket():
            target.bucket = f"{target.bucket}-again"  # the server still waits for somebody
        words = [
            target.config.replace("NUMBER", f"{next(_buckets)}-{_CLOCK.time_ns()}"),
            f"max_vbuckets={self._vbuckets}",
        ]
        words += [target.from_disk] if self.is_from_disk else []
        config = ";".join(word for word in words if word)
        key = target.bucket.encode()
        control = self.control
        until = _CLOCK.monotonic() + BUCKET_TIMEOUT_S
        fields: FrameFields = {"key": key, "value": MODULE + config.encode()}
        while (made := control.call(Opcode.CREATE_BUCKET, timeout_s=BUCKET_TIMEOUT_S, **fields)).status:
            # A server may answer DELETE_BUCKET before the name is free again.
            may_wait = self.may_delete and _CLOCK.monotonic() < until
            assert may_wait, f"CREATE_BUCKET is answered {status_name(made.status)} {made.value!r}"
            time.sleep(0.02)
        assert control.call(Opcode.SELECT_BUCKET, key=key).status == 0
        for vbid in range(self._vbuckets):
            assert control.call(Opcode.SET_VBUCKET, vbid=vbid, extras=b"\1").status == 0
        self._set_map(key)
        token = control.call(Opcode.GET_CTRL_TOKEN)
        if not token.status and token.cas != CONTROL_TOKEN:
            control.call(Opcode.SET_CTRL_TOKEN, cas=token.cas, extras=struct.pack(">Q", CONTROL_TOKEN))
        while control.call(Opcode.GET, key=b"\0k", vbid=0).status == Status.TMPFAIL:
            assert _CLOCK.monotonic() < until, "the bucket does not warm up"
            time.sleep(0.01)
        if not self._is_persisting:
            self._persist(on=False)

    def _set_map(self, key: bytes) -> None:
        """A cluster map, which the answer NOT_MY_VBUCKET carries; a server that makes its own keeps it."""
        host, port = self.target.endpoint.host, self.target.endpoint.port
        nodes = f'{{"services":{{"kv":{port},"mgmt":8091}},"thisNode":true,"hostname":"{host}"}}'
        rows = ",".join(["[0]"] * self._vbuckets)
        server_map = f'{{"hashAlgorithm":"CRC","numReplicas":0,"serverList":["{host}:{port}"],"vBucketMap":[{rows}]}}'
        value = (
            f'{{"rev":1,"revEpoch":1,"name":"{key.decode()}","nodeLocator":"vbucket","uuid":"{"01" * 16}",'
            f'"nodesExt":[{nodes}],"vBucketServerMap":{server_map}}}'
        )
        self.control.call(
            Opcode.SET_CLUSTER_CONFIG, key=key, extras=struct.pack(">qq", 1, 1), value=value.encode(), datatype=1
        )

    def _delete_bucket(self) -> bool:
        """Delete the bucket, if it is there; False if the server does not come to an end with it."""
        key = self.target.bucket.encode()
        until = _CLOCK.monotonic() + BUCKET_TIMEOUT_S
        while _CLOCK.monotonic() < until:
            try:
                status = self.control.call(Opcode.DELETE_BUCKET, key=key, timeout_s=BUCKET_TIMEOUT_S).status
            except AssertionError:
                break
            if status in (Status.SUCCESS, Status.KEY_ENOENT):
                return True
            time.sleep(0.05)
        self.control.disconnect()
        self._log_in_control()
        return False

    def _log_in_control(self) -> None:
        """The suite's own connection."""
        self.control = ServerPeer(self, is_traced=False)
        self.control.hello(USUAL_FEATURES)
        assert self.control.log_in(self.target.user, self.target.password) == 0, "the administrator's login"

    @classmethod
    def leave_current(cls) -> None:
        """Close all connections and leave the bucket."""
        node, ServerNode._current = cls._current, None
        if node is not None:
            node._forget_users()
            for peer in [*node.peers, node.control]:
                peer.disconnect()

    @classmethod
    def retire_current(cls, settings: tuple[int, bool, bool]) -> ServerNode | None:
        """Close the connections of the last node. Returns it if its bucket is as good as new, for these settings."""
        node, ServerNode._current = cls._current, None
        if node is None or "control" not in vars(node):
            return None
        for peer in list(node.peers):
            peer.disconnect()
        with suppress(AssertionError):
            node._forget_users()
            for name in node._made:
                node.control.call(Opcode.DELETE_BUCKET, key=name, timeout_s=BUCKET_TIMEOUT_S)
            node._wait_for_goodbyes()
            node.is_retired = True
            if not node._is_persisting:
                node._persist(on=True)
            elif node._made_for == settings and not node._needs_bucket and node._renew_vbuckets():
                return node
        node.is_retired = True
        node.control.disconnect()
        return None

    def _wait_for_goodbyes(self) -> None:
        """Wait until the server has forgotten all DCP connections: consumers share what memory there is for them."""
        until = _CLOCK.monotonic() + BUCKET_TIMEOUT_S
        while self.control_stats("dcp").get("ep_dcp_count", "0") != "0" and _CLOCK.monotonic() < until:
            time.sleep(0.02)

    def _renew_vbuckets(self) -> bool:
        """Make the vbuckets anew that tests have changed."""
        for vbid in sorted(self._changed & set(range(self._vbuckets))):
            deleted = self.control.call(Opcode.DEL_VBUCKET, vbid=vbid, timeout_s=BUCKET_TIMEOUT_S)
            if deleted.status not in (Status.SUCCESS, Status.NOT_MY_VBUCKET):
                return False
            if self.control.call(Opcode.SET_VBUCKET, vbid=vbid, extras=b"\1").status:
                return False
        return True

    def changed(self, frame: bytes) -> None:
        """A test is about to send this frame."""
        opcode = frame[1] if len(frame) > 1 else -1
        if opcode in (Opcode.SET_VBUCKET, Opcode.COMPACT_DB) and self._is_persisting:
            self.flush()  # what a node in memory holds counts as persisted
        if opcode == Opcode.CREATE_BUCKET:
            size = HEADER_BYTES + frame[4]
            self._made.add(frame[size : size + int.from_bytes(frame[2:4], "big")])
        if is_of_bucket(opcode) or len(frame) < HEADER_BYTES:
            self._needs_bucket = True
        elif changes(opcode):
            self._changed.add(int.from_bytes(frame[6:8], "big"))

    def _persist(self, *, on: bool) -> None:
        self.control.call(Opcode.START_PERSISTENCE if on else Opcode.STOP_PERSISTENCE)

    def flush(self) -> None:
        """Wait until everything is persisted."""
        self.settle_all()
        if not self._is_persisting:
            self._persist(on=True)
        seqnos = self.control_stats("vbucket-seqno")
        for name, value in seqnos.items():
            vbid, what = name.removeprefix("vb_").split(":")
            if what == "abs_high_seqno" and int(value):  # the other one is of what a copy still waits for
                extras = struct.pack(">Q", int(value))
                self.control.call(Opcode.SEQNO_PERSISTENCE, vbid=int(vbid), extras=extras, timeout_s=BUCKET_TIMEOUT_S)
        if not self._is_persisting:
            self._persist(on=False)

    # ----------------------------------------------------------------------------------------------- a node's methods

    def host_buckets(self) -> None:
        """Nothing: a server that takes no CREATE_BUCKET is not judged."""

    def restart(self, *, clean: bool = True, uuid: str = "") -> None:
        """Refuse: no request restarts a server."""
        raise NotOnServer("a restart")

    def pump(self, max_bytes: int = 1 << 20, *, heard: Iterable[Peer] | None = None) -> None:
        """Nothing is held back on a server; what it sends by itself comes later."""
        self._share_users()
        ServerNode.sends += 1

    def advance(self, seconds: float) -> None:
        """Wait, if it is short."""
        if seconds > LONGEST_WAIT_S:
            raise NotOnServer(f"{seconds:g} seconds of virtual time")
        time.sleep(seconds)
        ServerNode.sends += 1

    def join(self, peer: Peer) -> int:
        """Take a connection of a test; its number."""
        if isinstance(peer, ServerPeer) and not peer.is_traced:
            return 0
        self.peers.append(peer)
        return next(self._numbers)

    def leave(self, peer: Peer) -> None:
        """Forget a connection that is closed."""
        if peer in self.peers:
            self.peers.remove(peer)

    def settle_all(self) -> None:
        """Wait until all connections are at rest."""
        for peer in list(self.peers):
            assert isinstance(peer, ServerPeer)
            peer.settle()

    def connect(
        self, *, user: str | None = "admin", features: Iterable[int] = USUAL_FEATURES, bucket: str | None = "default"
    ) -> Peer:
        """Connect, log in and select the bucket."""
        if self.is_retired:
            raise NotOnServer("two nodes at once")
        peer = ServerPeer(self)
        if features := tuple(features):
            assert peer.hello(features).status == 0
        if user is not None:
            self._share_users()
            name, password = (self.target.user, self.target.password) if user in ADMINISTRATORS else (user, PASSWORD)
            if peer.log_in(name, password):
                raise NotOnServer(f"a user `{user}`, whose password is `{PASSWORD}`")
            if bucket is not None:
                bucket = self.target.bucket if bucket == "default" else bucket
                assert peer.call(Opcode.SELECT_BUCKET, key=bucket.encode()).status == 0
        return peer

    def state_of(self, vbid: int) -> int:
        """The state from GET_VBUCKET; `NOT_THERE` if there is no copy."""
        answer = self.control.call(Opcode.GET_VBUCKET, vbid=vbid)
        return NOT_THERE if answer.status else int.from_bytes(answer.value, "big")

    def control_stats(self, group: str) -> dict[str, str]:
        """The answer to STAT on the suite's own connection."""
        frames = self.control.send(Opcode.STAT, key=group.encode())
        return {frame.key.decode(): frame.value.decode() for frame in frames if frame.key}


class ServerPeer(Peer):
    """A socket to the server.

    Attributes:
        is_traced: False: the suite's own connection.
    """

    def __init__(self, node: ServerNode, *, is_traced: bool = True) -> None:
        self.node: ServerNode = node
        self.is_traced = is_traced
        self.close_reason: str | None = None
        self._came: list[Frame] = []
        self._taken = 0
        self._reader = FrameReader()
        self._opaque = 0
        self._is_closed = False
        self._seen_sends = 0
        self._rest = b""
        self._can_probe = True
        self._probes = itertools.count(PROBE)
        self._answered = 0
        self._is_dcp = False
        self._has_streams = False
        self._waiting: set[int] = set()
        self._socket = node.target.endpoint.connect()
        self.number = node.join(self)

    def __getattr__(self, name: str) -> NoReturn:
        raise not_here("peer", name)

    def log_in(self, user: str, password: str) -> int:
        """SASL PLAIN; the status."""
        return self.call(Opcode.SASL_AUTH, key=b"PLAIN", value=f"\0{user}\0{password}".encode()).status

    # ------------------------------------------------------------------------------------------------------- bytes

    def _note(self, arrow: str, data: bytes) -> None:
        if not self.is_traced:
            return
        try:
            text = Packet.parse(data).describe()
        except (IndexError, ValueError, struct.error):
            text = data.hex(" ", 4)
        if data[1:2] and data[1] in (Opcode.SASL_AUTH, Opcode.SASL_STEP):
            text = text.partition(" value[")[0]  # reports are shared, and this has the password
        ServerNode.trace.append(f"{self.number} {arrow} {text:.300}")

    def deliver(self, data: bytes) -> None:
        """Send bytes."""
        if self.is_traced and self.node.is_retired:
            raise NotOnServer("two nodes at once")
        if self._is_closed:
            if self.node.is_retired:
                raise NotOnServer("two nodes at once")
            return
        ServerNode.sends += 1
        if self.is_traced:
            ServerNode.requests += 1
        self._note("->", data)
        self._follow(data)
        try:
            self._socket.settimeout(ANSWER_TIMEOUT_S)
            self._socket.sendall(data)
        except OSError:
            self._lost()

    def _follow(self, data: bytes) -> None:
        """Find out whether what was sent ends where a frame does: only there a probe is a frame of its own."""
        self._rest += data
        while len(self._rest) >= HEADER_BYTES:
            if self._rest[0] not in (*REQUEST_MAGICS, Magic.RESPONSE, Magic.FLEX_RESPONSE):
                break
            size = HEADER_BYTES + int.from_bytes(self._rest[8:12], "big")
            if len(self._rest) < size:
                break
            self._is_dcp |= self._rest[1] == Opcode.DCP_OPEN
            self._has_streams |= self._rest[1] in (Opcode.DCP_STREAM_REQ, Opcode.DCP_ADD_STREAM)
            if self._rest[0] in REQUEST_MAGICS and _may_wait(self._rest[:size]):
                self._waiting.add(int.from_bytes(self._rest[12:16], "big"))
            if self.is_traced and self._rest[0] in REQUEST_MAGICS:
                self.node.changed(self._rest)
            self._rest = self._rest[size:]
        self._can_probe = not self._rest
        if self.is_traced and self._rest:
            self.node.changed(b"")  # who knows

    def _lost(self) -> None:
        if not self._is_closed:
            self._note("<-", b"closed by the server")
            self._is_closed = True
            self._socket.close()
            self.node.leave(self)

    def _read(self, timeout_s: float) -> bool:
        """Read what is there or comes in this time; False if nothing did."""
        if self._is_closed:
            return False
        self._socket.settimeout(max(timeout_s, 1e-6))
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self._lost()
            return False
        self._reader.receive_data(data)
        for frame in self._reader.frames():
            if frame.is_response and frame.opcode == Opcode.NOOP and PROBE <= frame.opaque <= LAST_PROBE:
                self._answered = frame.opaque
            elif frame.is_request and frame.opcode in ServerNode.hidden:
                self._note("<- (late)", frame.encode())
            else:
                self._note("<-", frame.encode())
                self._came.append(frame)
                if frame.is_response:
                    self._waiting.discard(frame.opaque)
        return True

    def settle(self) -> None:
        """Read until nothing more comes. Without a request since the last time, only what is there is read."""
        if self._seen_sends == ServerNode.sends:
            while self._read(0.0):
                pass
            return
        self._seen_sends = ServerNode.sends
        until = _CLOCK.monotonic() + SETTLE_MAX_S
        if self._probe() and not self._is_dcp:
            return  # a connection that answers requests, one after the other, has nothing more to say
        # What a connection sends while it waits, the controls of a consumer, comes with pauses.
        quiet_s = self.node.target.quiet_s * (2 if self._waiting else 1)
        while self._read(quiet_s):
            if _CLOCK.monotonic() > until:
                raise AssertionError("the connection never comes to rest")

    def _probe(self) -> bool:
        """A NOOP: when it is answered, all that was sent before has been looked at. False if it was not.

        A connection executes nothing more while its ADD_STREAM or its durable write waits for another one.
        """
        if self._is_closed or not self._can_probe or self._waiting:
            return False
        opaque = next(self._probes)
        self._answered = 0
        with suppress(OSError):  # what the server has sent before it closed is still to be read
            self._socket.sendall(encode_request(Opcode.NOOP, opaque=opaque))
        until = _CLOCK.monotonic() + PROBE_QUIETS * self.node.target.quiet_s
        while self._awaits(opaque) and (left := until - _CLOCK.monotonic()) > 0:
            self._read(left)
        return self._answered == opaque

    def _awaits(self, opaque: int) -> bool:
        return self._answered != opaque and not self._is_closed

    # ------------------------------------------------------------------------------------------------- a peer's state

    @property
    def received(self) -> list[Frame]:  # type: ignore[override]
        """All frames that came, once the connection is at rest."""
        self.settle()
        return self._came

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """The server has closed the connection."""
        self.settle()
        if ServerNode.closing_waits and not self._is_closed:
            ServerNode.closing_waits -= 1
            self._await_closing()
        return self._is_closed

    def _await_closing(self) -> None:
        until = _CLOCK.monotonic() + CLOSING_S
        while not self._is_closed and (left := until - _CLOCK.monotonic()) > 0:
            self._read(left)

    @property
    def is_reading(self) -> bool:
        """True: what comes is always read."""
        return True

    @is_reading.setter
    def is_reading(self, value: bool) -> None:
        if not value:
            raise NotOnServer("a client that does not read")

    def disconnect(self) -> None:
        """Close the connection."""
        if not self._is_closed:
            self._is_closed = True
            self._socket.close()
            self.node.leave(self)
            ServerNode.sends += 1

    def call(self, opcode: int, *, timeout_s: float = ANSWER_TIMEOUT_S, **fields: Unpack[FrameFields]) -> Frame:
        """Send one request; returns its answer as soon as it is there. What follows stays for `take`."""
        opaque = fields.setdefault("opaque", self.opaque())
        first = len(self._came)
        self.deliver(encode_request(opcode, **fields))
        until = _CLOCK.monotonic() + timeout_s
        while True:
            for frame in self._came[first:]:
                if frame.is_response and frame.opcode == opcode:
                    assert frame.opaque == opaque
                    if self._has_streams:
                        self.settle()  # what a stream sends at once belongs to this request
                    self._taken = len(self._came)
                    return frame
            left = until - _CLOCK.monotonic()
            assert not self._is_closed, f"no answer to {Opcode(opcode).name}: the server closed the connection"
            assert left > 0, f"no answer to {Opcode(opcode).name}"
            self._read(left)
