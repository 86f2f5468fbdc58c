"""A node of a few lines that answers handshakes, and other requests as a test tells it to; no sockets."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from functools import cache

from dcpstream.client.settings.options import Login
from dcpstream.dcp.sasl import MECHANISMS, OAUTHBEARER, Credentials, Outcome, ServerLogin, ServerStep
from dcpstream.model import NodeAddress
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, Status, encode_response

ADDRESS = NodeAddress("127.0.0.1", 11210)
LOGIN = Login("Administrator", "password", "default")
GRANTED = (
    Feature.SELECT_BUCKET,
    Feature.XATTR,
    Feature.XERROR,
    Feature.JSON,
    Feature.COLLECTIONS,
    Feature.SUBDOC_REPLICA_READ_DELETED,
)


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


@cache
def credentials(password: str, salt: bytes, *, has_scram: bool = True) -> Credentials:
    """Made once: deriving the keys of a password takes milliseconds."""
    return Credentials(password, salt, has_scram=has_scram)


class FakeNode:
    """Answers the handshake; everything else goes to `answer`, which gives bytes or None.

    Args:
        password: what SCRAM and PLAIN are checked against.
        mechanisms: what is listed and allowed.
        scram_users: names of users who may log in with SCRAM.
        token: the one that OAUTHBEARER takes; None to offer no OAUTHBEARER.
        statuses: opcode → status to answer instead of success.
    """

    def __init__(
        self,
        *,
        password: str = "password",
        mechanisms: str = "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN",
        scram_users: Iterable[str] = (LOGIN.username,),
        token: str | None = None,
        granted: Iterable[int] = GRANTED,
        cluster_map: bytes | None = None,
        statuses: dict[int, int] | None = None,
        answer: Callable[[Frame], bytes | None] = lambda _: None,
    ) -> None:
        self.mechanisms = mechanisms if token is None else f"{mechanisms} {OAUTHBEARER}"
        self.granted = list(granted)
        self.cluster_map = config() if cluster_map is None else cluster_map
        self.statuses = statuses or {}
        self.answer = answer
        self.requests: list[Frame] = []
        self.has_manifest = True
        self._reader = FrameReader()
        known = credentials(password, b"salt" * 4, has_scram=LOGIN.username in scram_users)
        nobody = credentials("?", b"none" * 4)
        self._login = ServerLogin(
            lambda name: known if name == LOGIN.username else None,
            lambda: bytes(24),
            lambda _: nobody,
            (*MECHANISMS, OAUTHBEARER),
            lambda _, given: ServerStep(Outcome.SUCCESS if given == token else Outcome.REFUSED),
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
        elif opcode == Opcode.VERSION:
            value = b"8.0.1-1234-enterprise"
        elif opcode == Opcode.GET_CLUSTER_CONFIG:
            value = self.cluster_map
        elif opcode == Opcode.GET_COLLECTIONS_MANIFEST and self.has_manifest:
            value = json.dumps(
                {
                    "uid": "5",
                    "scopes": [
                        {
                            "name": "_default",
                            "uid": "0",
                            "collections": [{"name": "_default", "uid": "0"}, {"name": "flights", "uid": "8"}],
                        }
                    ],
                }
            ).encode()
        elif opcode not in {Opcode.NOOP, Opcode.SELECT_BUCKET, Opcode.DCP_OPEN, Opcode.DCP_CONTROL}:
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
