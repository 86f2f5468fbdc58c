"""Code that the scenarios share: the registry, logins, vbuckets, documents, a peer."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from dcpstream_node.judge.connection import Connection, Endpoint
from dcpstream_node.judge.packets import Op, Status, leb128, packet, response, status_name
from dcpstream_node.judge.transcript import Recorder

ALL_FEATURES = [*range(0x01, 0x1E), 0x20, 0x99]
# xattr, xerror, select bucket, snappy, json, mutation seqno
BASE = [0x06, 0x07, 0x08, 0x0A, 0x0B, 0x04]
# … alternative request, sync replication, collections
COLLECTIONS = [*BASE, 16, 17, 18]
ACTIVE, REPLICA, PENDING, DEAD = 1, 2, 3, 4
ACTIVE_TOPOLOGY = [["active"]]
ERROR_MAP = b'{"version":1,"revision":1,"errors":{}}'
PEER_UUID = 0xABCDEF
TEST_PASSWORD = "password"
"""The password of the users `readonly` (DcpProducer, Read) and `nodcp` (Read, Upsert, Insert, Delete)."""
NOT_LET = (Status.EACCESS, Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED)
"""Answers to a step of set-up that say nothing about the server's quality: a right is missing, or the command."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A function that drives a server, and what it needs.

    Attributes:
        name: as `s01_hello_sasl_select`.
        play: the function.
        first_vb: its vbuckets are first_vb + 1, + 2, …
        release: the first release of the server that it asks for.
        ends_servers: a server with a known bug ends at it, so it is only played if it is named.
    """

    name: str
    play: Callable[[Run], None]
    first_vb: int
    release: str
    ends_servers: bool = False

    @property
    def title(self) -> str:
        """One line about it."""
        return (self.play.__doc__ or "").strip().splitlines()[0]


SCENARIOS: dict[str, Scenario] = {}
"""Name → scenario; each registers itself when its module is imported."""


def scenario(
    first_vb: int, release: str = "7.2", *, ends_servers: bool = False
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Register a function as a scenario."""

    def register(function: Callable[[Run], None]) -> Callable[[Run], None]:
        SCENARIOS[function.__name__] = Scenario(function.__name__, function, first_vb, release, ends_servers)
        return function

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server to talk to, and the user who does.

    Attributes:
        endpoint: where it is.
        user, password: of an administrator.
        bucket: the one to play in.
    """

    endpoint: Endpoint
    user: str
    password: str
    bucket: str


class Run:
    """One run of one scenario: target, recorder, counters of connections and vbuckets."""

    def __init__(self, target: Target, recorder: Recorder, first_vb: int) -> None:
        self.target = target
        self.recorder = recorder
        self.last_vb = first_vb
        self.connections: list[Connection] = []

    def note(self, text: str) -> None:
        """A remark in the transcript."""
        self.recorder.write({}, text)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        pause(self.recorder, seconds)

    def new_vb(self) -> int:
        """The next vbucket of this scenario."""
        self.last_vb += 1
        return self.last_vb

    def fresh_vb(self, admin, state=ACTIVE):
        """The next vbucket of this scenario, at seqno 0."""
        vb = self.new_vb()
        fresh_vb(admin, vb, state)
        return vb

    def close(self) -> None:
        """Close what is still open."""
        for conn in self.connections:
            conn.close()

    def connect(self, label: str = "conn", setup: bool = False) -> Connection:
        """A bare connection."""
        name = f"{label}#{len(self.connections) + 1}"
        conn = Connection(self.recorder, self.target.endpoint, name, is_setup=setup)
        self.connections.append(conn)
        return conn

    def login(self, conn):
        """SASL as the user under whom all is done."""
        return conn.auth(self.target.user, self.target.password)

    def select(self, conn):
        """SELECT_BUCKET of the bucket under test."""
        return conn.select(self.target.bucket)

    def session(self, label="conn", features=BASE, bucket=None):
        """A connection logged in quietly, ready for the scenario."""
        conn = self.connect(label, setup=True)
        conn.hello(features)
        self.login(conn)
        conn.select(bucket or self.target.bucket)
        conn.set_setup(False)
        return conn

    def plain(self, features=BASE, label="plain"):
        """A connection that is not a DCP one; its login is under test too."""
        conn = self.connect(label)
        conn.hello(features)
        self.login(conn)
        self.select(conn)
        return conn

    def admin(self, bucket="", label="admin", features=COLLECTIONS):
        """An administrator's connection; all it does is set-up."""
        conn = self.connect(label, setup=True)
        conn.hello(features)
        require(conn, self.login(conn), "the administrator's login")
        if bucket is not None:
            require(conn, conn.select(bucket or self.target.bucket), "SELECT_BUCKET")
        return conn

    def dcp(self, name, flags=1, features=BASE, ctl=(), noop=None):
        """An open DCP connection.

        Streams with collections or xattrs are refused unless NOOP was
        enabled before, so that is done by default where it matters.
        """
        conn = self.session(name, features)
        answer = conn.dcp_open(name, flags)
        if answer is None:
            raise RuntimeError(f"no answer to DCP_OPEN {name}")
        if noop is None:
            noop = bool(flags & 1) and (0x12 in features or bool(flags & 4))
        if noop:
            conn.control("enable_noop", "true")
        for key, value in ctl:
            conn.control(key, value)
        return conn

    def stream_once(self, name, vb, open_flags=1, features=BASE, ctl=(), idle=0.7, **fields):
        """A DCP connection, one stream, what comes of it."""
        conn = self.dcp(name, open_flags, features, ctl=ctl)
        conn.read_stream(vb, idle, **fields)
        conn.close()


def require(conn, answer, what):
    """Stop the scenario unless a set-up step succeeded.

    Raises:
        Stopped: the server does not let us. RuntimeError: it fails.
    """
    if answer is None:
        raise RuntimeError(f"{what}: no answer")
    permitted(conn, answer, what)
    if answer.status:
        raise RuntimeError(f"{what}: {answer.describe()}")
    return answer


def permitted(conn, answer, what):
    """Stop the scenario if the server does not let us do a step of set-up; the answer may be another error.

    Raises: Stopped.
    """
    if answer is not None and answer.status in NOT_LET:
        raise conn.stop(f"{what} is refused: {status_name(answer.status)}")
    return answer


def login_user(conn, user):
    """Log in as one of the users that the scenarios need. Raises: Stopped: the server has none."""
    answer = conn.auth(user, TEST_PASSWORD)
    if answer is not None and answer.status == Status.AUTH_ERROR:
        raise conn.stop(f"there is no user {user} with the password {TEST_PASSWORD!r}")
    return answer


def pause(recorder: Recorder, seconds: float) -> None:
    """Wait, within the deadline."""
    recorder.check_deadline()
    time.sleep(seconds)


# vbuckets


def set_vb(admin, vb, state, topology=None):
    """SET_VBUCKET."""
    if not topology:
        return admin.cmd(Op.SET_VBUCKET, ext=bytes([state]), vb=vb)
    value = json.dumps({"topology": topology})
    return admin.cmd(Op.SET_VBUCKET, ext=bytes([state]), vb=vb, val=value, dt=1)


def activate(admin, vb):
    """SET_VBUCKET active. Raises: Stopped: the server does not let us."""
    return permitted(admin, set_vb(admin, vb, ACTIVE, ACTIVE_TOPOLOGY), f"SET_VBUCKET {vb}")


def delete_vb(admin, vb):
    """DEL_VBUCKET."""
    return admin.cmd(Op.DEL_VBUCKET, vb=vb)


def fresh_vb(admin, vb, state=ACTIVE):
    """Dead, deleted, created again: the vbucket starts at seqno 0."""
    permitted(admin, set_vb(admin, vb, DEAD), f"SET_VBUCKET {vb}")
    with admin.marked(poll=f"delete {vb}"):
        for _ in range(100):
            answer = delete_vb(admin, vb)
            if answer and answer.status in (Status.SUCCESS, Status.NOT_MY_VBUCKET):
                break
            pause(admin.recorder, 0.05)
    topology = ACTIVE_TOPOLOGY if state == ACTIVE else None
    require(admin, set_vb(admin, vb, state, topology), f"SET_VBUCKET {vb}")


def vb_state(admin, vb):
    """The state of a vbucket by its stats."""
    return admin.stats(f"vbucket-details {vb}").get(f"vb_{vb}")


def vb_stat(admin, group, vb, name):
    """One value of a vbucket's stats."""
    return admin.stats(f"{group} {vb}").get(f"vb_{vb}:{name}")


def is_persisted(stats, vb, high_seqno):
    """Whether the stats say that everything is on disk."""
    high = stats.get(f"vb_{vb}:high_seqno", 0)
    persisted = stats.get(f"vb_{vb}:last_persisted_seqno", high)
    queue = stats.get(f"vb_{vb}:queue_size", 0)
    return int(persisted or 0) >= high_seqno and int(queue) == 0


def persist(admin, vb, timeout=20):
    """Wait until the vbucket is on disk; return its high seqno."""
    high_seqno = int(vb_stat(admin, "vbucket-seqno", vb, "high_seqno") or 0)
    end = admin.now() + timeout
    while admin.now() < end:
        if is_persisted(admin.stats(f"vbucket-details {vb}"), vb, high_seqno):
            break
        pause(admin.recorder, 0.1)
    return high_seqno


def new_checkpoint(admin, vb):
    """CREATE_CHECKPOINT, so that older items are read from disk."""
    return admin.optional(Op.CREATE_CHECKPOINT, vb=vb)


def failover_log(admin, vb):
    """The failover log: pairs of uuid and seqno, newest first."""
    value = admin.cmd(Op.GET_FAILOVER_LOG, vb=vb).value
    return list(struct.iter_unpack(">QQ", value))


# documents


def doc_key(key, coll=0):
    """A key with its collection in front."""
    return leb128(coll) + (key.encode() if isinstance(key, str) else key)


def set_doc(admin, key, value, vb, exp=0, flags=0, dt=0, coll=0):
    """SET, again while the node says ETMPFAIL."""
    extras = struct.pack(">II", flags, exp)
    key = doc_key(key, coll)
    with admin.marked(poll=f"set {key.hex()}"):
        for _ in range(50):
            answer = admin.cmd(Op.SET, key=key, ext=extras, val=value, vb=vb, dt=dt)
            if not answer or answer.status != Status.ETMPFAIL:
                return answer
            pause(admin.recorder, 0.1)
    return answer


def set_docs(admin, vb, count, value=b"v", prefix="k"):
    """Documents prefix0, prefix1, … with the same value."""
    for index in range(count):
        set_doc(admin, f"{prefix}{index}", value, vb)


def delete_doc(admin, key, vb, coll=0):
    """DELETE."""
    return admin.cmd(Op.DELETE, key=doc_key(key, coll), vb=vb)


def get_doc(admin, key, vb, coll=0):
    """GET."""
    return admin.cmd(Op.GET, key=doc_key(key, coll), vb=vb)


def subdoc_spec(op, flags, path, value):
    """One operation of a sub-document request."""
    head = struct.pack(">BBHI", op, flags, len(path), len(value))
    return head + path.encode() + (value.encode() if isinstance(value, str) else value)


def set_xattr(admin, key, vb, path, value, body=None):
    """Set an extended attribute, and the body too if one is given."""
    specs = subdoc_spec(0xC8, 4 | 1, path, value)
    if body is not None:
        specs += subdoc_spec(0x01, 0, "", body)
    return admin.cmd(Op.SUBDOC_MULTI_MUTATION, key=doc_key(key), ext=b"\1", val=specs, vb=vb)


def snappy_literal(data):
    """A valid snappy stream made of literals only."""
    out = leb128(len(data))
    for start in range(0, len(data), 60):
        chunk = data[start : start + 60]
        out += bytes([(len(chunk) - 1) << 2]) + chunk
    return out


# extras


def u32(number):
    """Four bytes."""
    return struct.pack(">I", number)


def marker_extras(start, end, flags=1):
    """Extras of a snapshot marker."""
    return struct.pack(">QQI", start, end, flags)


def mutation_extras(seqno, rev=1, flags=0, exp=0, nru=0):
    """Extras of a DCP mutation."""
    return struct.pack(">QQIIIHB", seqno, rev, flags, exp, 0, 0, nru)


def frames_size(frames):
    """Bytes of some frames, headers included."""
    return sum(len(frame.raw) for frame in frames)


def buffer_ack(conn, size, opaque=0, note=""):
    """BUFFER_ACK, which has no answer."""
    conn.send(packet(Op.DCP_BUFFER_ACK, ext=u32(size), opaque=opaque), note)


class Peer:
    """Plays the producer for the server's consumer connection."""

    def __init__(self, run, name, features=BASE, answer=0, openflags=0, overrides=None, val=b"", dt=0):
        self.conn = run.session(name, features)
        self.conn.dcp_open(name, openflags, val=val, dt=dt)
        self.answer_status = answer
        self.overrides = overrides or {}
        self.stream_opaque = 0

    def close(self):
        """Close the connection."""
        self.conn.close()

    def send(self, op, note="", **fields):
        """Send a message of the stream; the opaque is the stream's."""
        fields.setdefault("opaque", self.stream_opaque)
        self.conn.send(packet(op, **fields), note)

    def marker(self, vb, start, end, flags=1, **fields):
        """A snapshot marker."""
        extras = marker_extras(start, end, flags)
        self.send(Op.DCP_SNAPSHOT_MARKER, ext=extras, vb=vb, **fields)

    def mutation(self, vb, key, seqno, **fields):
        """A mutation with a small value."""
        fields.setdefault("ext", mutation_extras(seqno))
        fields.setdefault("cas", seqno + 100)
        fields.setdefault("val", b"v")
        self.send(Op.DCP_MUTATION, key=key, vb=vb, **fields)

    def pump(self, idle=0.5, total=5, until=None):
        """Answer what the server asks until it is quiet."""
        frames = []
        end = self.conn.now() + total
        while self.conn.now() < end:
            frame = self.conn.recv(idle)
            if frame is None:
                break
            frames.append(frame)
            if not frame.is_response:
                self.answer(frame)
            if until and until(frame):
                break
        return frames

    def answer(self, frame):
        """Answer one request of the server."""
        opaque = frame.opaque
        if frame.op == Op.DCP_CONTROL:
            key = frame.key.decode(errors="replace")
            status = self.overrides.get(key, self.answer_status)
            self.conn.send(response(frame.op, opaque=opaque, status=status))
        elif frame.op == Op.DCP_NOOP:
            self.conn.send(response(frame.op, opaque=opaque))
        elif frame.op == Op.GET_ERROR_MAP:
            self.answer_error_map(opaque)
        elif frame.op == Op.DCP_GET_FAILOVER_LOG:
            value = struct.pack(">QQ", PEER_UUID, 0)
            self.conn.send(response(frame.op, opaque=opaque, val=value))

    def answer_error_map(self, opaque):
        """An error map, or the status the scenario wants."""
        status = self.overrides.get("errmap", 0)
        value, datatype = (b"", 0) if status else (ERROR_MAP, 1)
        frame = response(Op.GET_ERROR_MAP, opaque=opaque, status=status, val=value, dt=datatype)
        self.conn.send(frame, "answer GET_ERROR_MAP")

    def answer_stream(self, note="", **fields):
        """Answer the server's STREAM_REQ."""
        fields.setdefault("opaque", self.stream_opaque)
        self.conn.send(response(Op.DCP_STREAM_REQ, **fields), note)

    def add(self, vb, flags=0, accept=True, log=((PEER_UUID, 0),), note="ADD_STREAM"):
        """ADD_STREAM, and accept the stream that the server then asks for."""
        opaque = self.conn.next_opaque()
        frame = packet(Op.DCP_ADD_STREAM, ext=u32(flags), vb=vb, opaque=opaque)
        self.conn.send(frame, note)
        frames = self.pump(1.0, 6, until=is_stream_request_or_refusal)
        requests = [frame for frame in frames if is_stream_request(frame)]
        if not requests:
            return
        self.stream_opaque = requests[-1].opaque
        if accept:
            value = b"".join(struct.pack(">QQ", *entry) for entry in log)
            self.answer_stream("accept stream with failover log", val=value)
            self.pump(0.7, 3, until=lambda frame: frame.op == Op.DCP_ADD_STREAM)


def is_stream_request(frame):
    """Whether the server asks for a stream."""
    return frame.op == Op.DCP_STREAM_REQ and not frame.is_response


def is_stream_request_or_refusal(frame):
    """Whether ADD_STREAM led to a request, or was answered at once."""
    if frame.op == Op.DCP_STREAM_REQ:
        return True
    return frame.op == Op.DCP_ADD_STREAM and frame.is_response
