"""How a connection becomes usable: HELLO, SASL, SELECT_BUCKET, cluster map, and for DCP the open and its controls.

Theory of operation: three round trips, each a handful of pipelined requests whose answers must come in order.

1. HELLO, and unless a client certificate says who it is, SASL_LIST_MECHS, SASL_AUTH with the strongest SCRAM
   (guessed, as the list is not known yet), SASL_STEP. If the node refuses the guess and does not list it, the
   strongest listed mechanism is tried; PLAIN, which gives the password away, only where the caller allows it.
2. SELECT_BUCKET, GET_CLUSTER_CONFIG.
3. For DCP: DCP_OPEN and the controls. NOOP and the flow-control window must be granted; the others are wishes.

`start()` and `receive()` give the bytes to send; every refusal is an exception that names user, bucket and node.
"""

from __future__ import annotations

import json
import struct
from collections import deque

from dcpstream.client.settings.options import DcpSettings, Login
from dcpstream.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    KeyNotFound,
    ProtocolError,
    RemoteProtocolError,
    StatusError,
)
from dcpstream.model import NodeAddress
from dcpstream.protocol.sasl import MECHANISMS, ClientLogin, strongest_mechanism
from dcpstream.wire import Feature, Frame, Opcode, Status, encode_request
from dcpstream.wire.codes import code_name
from dcpstream.wire.messages.dcp import Open
from dcpstream.wire.status import status_error

KV_FEATURES = (
    Feature.TCP_NODELAY,
    Feature.MUTATION_SEQNO,
    Feature.XATTR,
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.JSON,
    Feature.COLLECTIONS,
)
"""Asked for on a connection for documents."""

DCP_FEATURES = (
    Feature.TCP_NODELAY,
    Feature.XATTR,
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.JSON,
    Feature.COLLECTIONS,
    Feature.DUPLEX,
    Feature.CLUSTERMAP_NOTIFICATION,
    Feature.CLUSTERMAP_NOTIFICATION_BRIEF,
)
"""Asked for on a connection for DCP, where maps are pushed if the node does that; SNAPPY comes on top if the caller
wants compressed values."""

MAX_FEATURES = 1024
"""Features that a HELLO may grant; some forty are known."""

MAX_REASON_BYTES = 4096
"""Of an answer's body that may tell why something was refused: a longer one is a document or a cluster map."""

_U16 = struct.Struct(">H")


class Handshake:
    """One connection's way to being usable.

    Args:
        login: user, password, bucket.
        address: the node, for messages.
        nonce: at least 16 random bytes.
        dcp: None for a connection for documents.
        agent: what the node's log calls us.
    """

    def __init__(
        self, login: Login, address: NodeAddress, nonce: bytes, dcp: DcpSettings | None = None, agent: str = "dcpstream"
    ) -> None:
        self.is_done = False
        self.granted: frozenset[int] = frozenset()
        self.config = b""
        self._login = login
        self._address = address
        self._nonce = nonce
        self._dcp = dcp
        self._agent = agent
        self._mechanism = login.mechanism or MECHANISMS[0]
        self._mechanisms: bytes | None = None
        self._sasl = ClientLogin(self._mechanism, login.username, login.password, nonce)
        self._expected: deque[tuple[Opcode, str]] = deque()
        self._refused_guess = False
        self._is_required: dict[str, bool] = {}

    def start(self) -> bytes:
        """The first bytes to send."""
        wanted = list(DCP_FEATURES if self._dcp else KV_FEATURES)
        if self._dcp and self._dcp.snappy:
            wanted.append(Feature.SNAPPY)
        agent = json.dumps({"a": self._agent, "i": self._nonce[:8].hex()}).encode()
        hello = self._request(Opcode.HELLO, key=agent, value=b"".join(_U16.pack(code) for code in wanted))
        if self._login.by_certificate:
            return hello + self._select_bucket()
        return (
            hello
            + self._request(Opcode.SASL_LIST_MECHS)
            + self._request(Opcode.SASL_AUTH, key=self._mechanism.encode(), value=self._sasl.start())
        )

    def receive(self, frame: Frame) -> bytes:
        """Take an answer; returns what to send now.

        Raises:
            AuthenticationFailed: the node refuses user, password and every mechanism.
            KeyNotFound, AccessDenied: it refuses the bucket.
            StatusError: it refuses DCP or a control that is needed.
            ConnectionLost: it has no cluster map yet.
            RemoteProtocolError: the answer is none to what was asked.
        """
        if not self._expected or not frame.is_response or frame.opcode != self._expected[0][0]:
            raise RemoteProtocolError(
                f"{self._address} sent {code_name(Opcode, frame.opcode)} during the handshake",
                state=code_name(Opcode, self._expected[0][0]) if self._expected else "done",
                event=repr(frame),
            )
        opcode, detail = self._expected.popleft()
        if opcode is Opcode.HELLO:
            self._check(frame, "HELLO")
            codes = frame.value
            if len(codes) > _U16.size * MAX_FEATURES:
                raise RemoteProtocolError(f"{self._address} grants {len(codes) // 2} features to a client")
            self.granted = frozenset(_U16.unpack_from(codes, at)[0] for at in range(0, len(codes) & ~1, 2))
            return b""
        if opcode is Opcode.SASL_LIST_MECHS:
            self._mechanisms = frame.value if frame.status == Status.SUCCESS else None
            return b""
        if opcode in {Opcode.SASL_AUTH, Opcode.SASL_STEP}:
            return self._authenticated(frame)
        if opcode is Opcode.SELECT_BUCKET:
            self._check_bucket(frame)
            return b""
        if opcode is Opcode.GET_CLUSTER_CONFIG:
            if frame.status != Status.SUCCESS or not frame.value:
                raise ConnectionLost(f"{self._address} has no cluster map for bucket {self._login.bucket!r} yet")
            self.config = frame.value
            return self._open_dcp()
        if opcode is Opcode.DCP_OPEN:
            self._check(frame, f"opening a DCP connection to {self._address} as user {self._login.username!r}")
        elif frame.status != Status.SUCCESS and self._is_required[detail]:
            self._check(frame, f"DCP control {detail}, which is needed, at {self._address}")
        self.is_done = not self._expected
        return b""

    def _request(self, opcode: Opcode, *, extras: bytes = b"", key: bytes = b"", value: bytes = b"") -> bytes:
        self._expected.append((opcode, key.decode(errors="replace")))
        return encode_request(opcode, extras=extras, key=key, value=value)

    def _check(self, frame: Frame, context: str) -> None:
        if frame.status != Status.SUCCESS:
            raise status_error(frame.status, opcode=frame.opcode, opaque=frame.opaque, context=context)

    def _authenticated(self, frame: Frame) -> bytes:
        if frame.status == Status.AUTH_CONTINUE:
            return self._request(Opcode.SASL_STEP, key=self._mechanism.encode(), value=self._sasl_step(frame.value))
        if frame.status == Status.SUCCESS:
            try:
                self._sasl.finish(frame.value)
            except ProtocolError as error:
                raise AuthenticationFailed(f"{self._address} cannot be trusted: {error}", cause=error) from error
            return self._select_bucket()
        listed = (self._mechanisms or b"").decode(errors="replace").split()
        if self._login.mechanism is None and not self._refused_guess and listed and self._mechanism not in listed:
            self._refused_guess = True
            try:
                self._mechanism = strongest_mechanism(" ".join(listed), allow_plain=self._login.allow_plain)
            except ConfigError as error:
                raise AuthenticationFailed(
                    f"{self._address} offers only {' '.join(listed)} to authenticate, none of which is allowed here",
                    cause=error,
                ) from error
            self._sasl = ClientLogin(self._mechanism, self._login.username, self._login.password, self._nonce)
            return self._request(Opcode.SASL_AUTH, key=self._mechanism.encode(), value=self._sasl.start())
        raise AuthenticationFailed(
            f"user {self._login.username!r} was refused by {self._address} ({code_name(Status, frame.status)}, "
            f"{self._mechanism}): check username and password"
        )

    def _select_bucket(self) -> bytes:
        return self._request(Opcode.SELECT_BUCKET, key=self._login.bucket.encode()) + self._request(
            Opcode.GET_CLUSTER_CONFIG
        )

    def _sasl_step(self, challenge: bytes) -> bytes:
        try:
            return self._sasl.step(challenge)
        except ProtocolError as error:
            raise AuthenticationFailed(f"{self._address} cannot be trusted: {error}", cause=error) from error

    def _check_bucket(self, frame: Frame) -> None:
        if frame.status == Status.SUCCESS:
            return
        bucket, user = self._login.bucket, self._login.username
        who = "the client certificate" if self._login.by_certificate else f"user {user!r}"
        kind: type[StatusError] = StatusError
        why = f"status {code_name(Status, frame.status)}"
        if said := reason_in(bytes(frame.value)):
            why += f", {said}"
        if frame.status == Status.KEY_ENOENT:
            kind, why = KeyNotFound, "there is no such bucket"
        elif frame.status == Status.EACCESS:
            kind, why = AccessDenied, "there is no such bucket, or the user may not use it"
            if self._login.by_certificate:
                why += ", or the node does not know a user by this certificate"
        raise kind(
            f"bucket {bucket!r} was refused by {self._address} for {who}: {why}",
            status=frame.status,
            opcode=frame.opcode,
        )

    def _open_dcp(self) -> bytes:
        if self._dcp is None:
            self.is_done = True
            return b""
        name = self._dcp.name.encode()
        self._expected.append((Opcode.DCP_OPEN, self._dcp.name))
        parts = [Open(reserved=0, flags=self._dcp.open_flags, key=name).encode()]
        for key, value, is_required in self._dcp.controls():
            self._is_required[key] = is_required
            parts.append(self._request(Opcode.DCP_CONTROL, key=key.encode(), value=value.encode()))
        return b"".join(parts)


def reason_in(body: bytes) -> str:
    """Why a node refused something, in its own words, from the body of its answer; empty if it says nothing."""
    if len(body) > MAX_REASON_BYTES:
        return ""
    try:
        reason = json.loads(body)["error"]["context"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return reason if isinstance(reason, str) else ""
