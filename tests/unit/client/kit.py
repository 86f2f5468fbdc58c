"""Frames as a node sends them, and a node of a few lines that answers handshakes and what a test tells it to."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from functools import cache

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.settings.options import DcpSettings, Login
from dcpstream.model import FailoverLog, NodeAddress
from dcpstream.protocol.sasl import Credentials, Outcome, ServerLogin
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, Status, encode_request, encode_response
from dcpstream.wire.values import encode_failover_log

ADDRESS = NodeAddress("127.0.0.1", 11210)
LOGIN = Login("Administrator", "password", "default")
NONCE = bytes(range(24))
LOG = FailoverLog.of((0xA, 0))
GRANTED = (Feature.SELECT_BUCKET, Feature.XATTR, Feature.XERROR, Feature.JSON, Feature.COLLECTIONS)


def config(vbuckets: int = 4, *, rev: int = 1, ports: tuple[int, ...] = (11210,), owner: int = 0) -> bytes:
    return json.dumps(
        {
            "rev": rev,
            "name": "default",
            "nodeLocator": "vbucket",
            "nodes": [{} for _ in ports],
            "nodesExt": [{"services": {"kv": port, "mgmt": 8091}} for port in ports],
            "vBucketServerMap": {"vBucketMap": [[owner] for _ in range(vbuckets)]},
        }
    ).encode()


def marker(opaque: int, start: int, end: int, *, vbid: int = 0, flags: int = 1) -> bytes:
    extras = struct.pack(">QQI", start, end, flags)
    return encode_request(Opcode.DCP_SNAPSHOT_MARKER, vbid=vbid, opaque=opaque, extras=extras)


def mutation(opaque: int, seqno: int, *, vbid: int = 0, key: bytes = b"k", value: bytes = b"v", rev: int = 1) -> bytes:
    extras = struct.pack(">QQIIIHB", seqno, rev, 7, 0, 0, 0, 0)
    return encode_request(
        Opcode.DCP_MUTATION, vbid=vbid, opaque=opaque, cas=seqno << 16, extras=extras, key=b"\0" + key, value=value
    )


def deletion(opaque: int, seqno: int, *, vbid: int = 0, key: bytes = b"k") -> bytes:
    extras = struct.pack(">QQIB", seqno, 2, 1_700_000_000, 0)
    return encode_request(Opcode.DCP_DELETION, vbid=vbid, opaque=opaque, cas=seqno, extras=extras, key=b"\0" + key)


def seqno_advanced(opaque: int, seqno: int, *, vbid: int = 0) -> bytes:
    return encode_request(Opcode.DCP_SEQNO_ADVANCED, vbid=vbid, opaque=opaque, extras=struct.pack(">Q", seqno))


def system_event(opaque: int, seqno: int, name: str, collection_id: int, *, uid: int = 5, vbid: int = 0) -> bytes:
    return encode_request(
        Opcode.DCP_SYSTEM_EVENT,
        vbid=vbid,
        opaque=opaque,
        extras=struct.pack(">QIB", seqno, 0, 0),
        key=name.encode(),
        value=struct.pack(">QII", uid, 0, collection_id),
    )


def stream_end(opaque: int, reason: int = 0, *, vbid: int = 0) -> bytes:
    return encode_request(Opcode.DCP_STREAM_END, vbid=vbid, opaque=opaque, extras=struct.pack(">I", reason))


def accepted(opaque: int, log: FailoverLog = LOG) -> bytes:
    return encode_response(Opcode.DCP_STREAM_REQ, opaque=opaque, value=encode_failover_log(log))


def rollback(opaque: int, seqno: int) -> bytes:
    return encode_response(Opcode.DCP_STREAM_REQ, status=Status.ROLLBACK, opaque=opaque, value=struct.pack(">Q", seqno))


@cache
def credentials(password: str, salt: bytes) -> Credentials:
    """Made once: deriving the keys of a password takes milliseconds."""
    return Credentials(password, salt)


class FakeNode:
    """Answers the handshake; everything else goes to `answer`, which gives bytes or None.

    Args:
        password: what SCRAM and PLAIN are checked against.
        mechanisms: what is listed and allowed.
        statuses: opcode → status to answer instead of success.
    """

    def __init__(
        self,
        *,
        password: str = "password",
        mechanisms: str = "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN",
        granted: Iterable[int] = GRANTED,
        cluster_map: bytes | None = None,
        statuses: dict[int, int] | None = None,
        answer: Callable[[Frame], bytes | None] = lambda _: None,
    ) -> None:
        self.mechanisms = mechanisms
        self.granted = list(granted)
        self.cluster_map = config() if cluster_map is None else cluster_map
        self.statuses = statuses or {}
        self.answer = answer
        self.requests: list[Frame] = []
        self.has_manifest = True
        self._reader = FrameReader()
        known, nobody = credentials(password, b"salt" * 4), credentials("?", b"none" * 4)
        self._login = ServerLogin(
            lambda name: known if name == LOGIN.username else None, lambda: bytes(24), lambda _: nobody
        )

    def receive(self, data: bytes) -> bytes:
        """Take what the client sent; returns the answers."""
        self._reader.receive_data(data)
        return b"".join(self._answer(frame) for frame in self._reader.frames())

    def asked(self, opcode: Opcode) -> list[Frame]:
        return [frame for frame in self.requests if frame.opcode == opcode]

    def _answer(self, frame: Frame) -> bytes:
        self.requests.append(frame)
        if frame.is_response:
            return b""
        opcode = frame.opcode
        status = self.statuses.get(opcode, 0)
        value = b""
        if status:
            return encode_response(opcode, status=status, opaque=frame.opaque)
        if opcode == Opcode.HELLO:
            value = b"".join(struct.pack(">H", code) for code in self.granted)
        elif opcode == Opcode.SASL_LIST_MECHS:
            value = self.mechanisms.encode()
        elif opcode in {Opcode.SASL_AUTH, Opcode.SASL_STEP}:
            status, value = self._sasl(frame)
        elif opcode == Opcode.GET_CLUSTER_CONFIG:
            value = self.cluster_map
        elif opcode == Opcode.GET_COLLECTIONS_MANIFEST and self.has_manifest:
            value = json.dumps(
                {
                    "uid": "0",
                    "scopes": [
                        {
                            "name": "_default",
                            "uid": "0",
                            "collections": [{"name": "_default", "uid": "0"}, {"name": "flights", "uid": "8"}],
                        }
                    ],
                }
            ).encode()
        elif opcode not in {Opcode.SELECT_BUCKET, Opcode.DCP_OPEN, Opcode.DCP_CONTROL}:
            return self.answer(frame) or b""
        return encode_response(opcode, status=status, opaque=frame.opaque, value=value)

    def _sasl(self, frame: Frame) -> tuple[int, bytes]:
        if frame.key.decode() not in self.mechanisms.split():
            return Status.AUTH_ERROR, b""
        login = self._login
        step = (login.start if frame.opcode == Opcode.SASL_AUTH else login.step)(frame.key, frame.value)
        statuses = {
            Outcome.CONTINUE: Status.AUTH_CONTINUE,
            Outcome.SUCCESS: Status.SUCCESS,
            Outcome.REFUSED: Status.AUTH_ERROR,
            Outcome.MALFORMED: Status.EINVAL,
        }
        return statuses[step.outcome], step.data


def new_connection(*, arrow: bool = False, buffer_bytes: int = 1000, login: Login = LOGIN) -> NodeConnection:
    settings = DcpSettings(name="test", buffer_bytes=buffer_bytes)
    return NodeConnection(ADDRESS, login, settings, NONCE, 0.0, connect_timeout_s=5.0, arrow=arrow)


def pump(connection: NodeConnection, node: FakeNode, now: float = 0.0) -> None:
    """Carry bytes between the two until both are silent."""
    while data := connection.data_to_send():
        answers = node.receive(data)
        if answers:
            connection.receive_data(answers, now)


def ready_connection(node: FakeNode | None = None, **options: object) -> tuple[NodeConnection, FakeNode]:
    """A connection whose handshake is done."""
    node = node or FakeNode()
    connection = new_connection(**options)  # type: ignore[arg-type]
    pump(connection, node)
    assert connection.is_ready
    return connection, node
