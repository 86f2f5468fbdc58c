"""The handshake of a connection: HELLO, SASL, SELECT_BUCKET, cluster map, and for DCP the open and its controls.

Theory of operation: three round trips, each of a few pipelined requests whose answers must come in order.
`TRANSITIONS` is the table of its states.

1. HELLO, and without a client certificate SASL_LIST_MECHS, SASL_AUTH with the strongest SCRAM (guessed, as the list is
   not known yet), SASL_STEP. If the node refuses the guess and does not list it, the strongest listed mechanism is
   tried. If it lists the mechanism and refuses it, PLAIN is tried: users whose passwords another service checks (LDAP)
   have no keys of SCRAM. PLAIN shows the password to the node, so it is used only where the caller allows it. A token
   has one mechanism of its own.
2. VERSION, SELECT_BUCKET, GET_CLUSTER_CONFIG; for documents also a NOOP, which a node refuses that has only the
   bucket's map.
3. For DCP: DCP_OPEN and the controls. NOOP and the flow-control window must be granted; the others are optional.

`start()` and `receive()` return the bytes to send; every refusal is an exception that names user, bucket and node.
"""

from __future__ import annotations

import json
from collections import deque
from enum import Enum

from dcpstream.client.settings.options import DcpSettings, Login
from dcpstream.client.settings.secrets import current, current_token
from dcpstream.dcp.controls import MARKER_VERSION, OUT_OF_ORDER
from dcpstream.dcp.sasl import MECHANISMS, OAUTHBEARER, PLAIN, ClientLogin, strongest_mechanism
from dcpstream.dcp.transitions import Transitions
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
from dcpstream.wire import Feature, Frame, Opcode, OpenFlag, Status
from dcpstream.wire.codes import code_name
from dcpstream.wire.layout import Request
from dcpstream.wire.messages.dcp import Control, Open
from dcpstream.wire.messages.kv import (
    FeatureCode,
    GetClusterConfig,
    Hello,
    Noop,
    SaslAuth,
    SaslListMechs,
    SaslStep,
    SelectBucket,
    Version,
    encode_features,
)
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
"""Features of a connection for documents."""

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
    Feature.SUBDOC_REPLICA_READ_DELETED,
)
"""Features of a connection for DCP, on which the node may push maps. The last one only tells servers of 8.0 from older
ones, which do not grant it."""

_ONLY_8_0 = frozenset((OUT_OF_ORDER, MARKER_VERSION))
"""Controls that are asked of servers of 8.0 and later. Older ones leave out some keys in an out-of-order snapshot
(MB-67551), and have no marker with the purge seqno."""

MAX_FEATURES = 1024
"""Features that a HELLO may grant; some forty are known."""

MAX_RELEASE_CHARACTERS = 64
"""Longest name of a release that is kept; a server's has some thirty characters."""

MAX_REASON_BYTES = 4096
"""Longest body that may hold the reason of a refusal: a longer one is a document or a cluster map."""


class State(Enum):
    """The state of a handshake."""

    NEW = "new"
    LOGGING_IN = "logging in"
    PROVING = "proving the password"
    SELECTING = "selecting the bucket"
    OPENING = "opening the DCP connection"
    READY = "ready"


class Event(Enum):
    """The events of a handshake."""

    LOGIN_SENT = "HELLO and SASL_AUTH sent"
    CERTIFICATE_SHOWN = "HELLO and SELECT_BUCKET sent with a certificate"
    CHALLENGED = "AUTH_CONTINUE received"
    MECHANISM_REFUSED = "mechanism refused, another one sent"
    LOGGED_IN = "login accepted"
    SERVED = "cluster map received, NOOP answered"
    OPEN_SENT = "cluster map received, DCP_OPEN sent"
    OPENED = "DCP_OPEN and controls answered"


TRANSITIONS = Transitions(
    "handshake with {}",
    State.NEW,
    {
        State.NEW: {Event.LOGIN_SENT: State.LOGGING_IN, Event.CERTIFICATE_SHOWN: State.SELECTING},
        State.LOGGING_IN: {
            Event.CHALLENGED: State.PROVING,
            Event.MECHANISM_REFUSED: State.LOGGING_IN,
            Event.LOGGED_IN: State.SELECTING,
        },
        State.PROVING: {
            Event.CHALLENGED: State.PROVING,
            Event.MECHANISM_REFUSED: State.LOGGING_IN,
            Event.LOGGED_IN: State.SELECTING,
        },
        State.SELECTING: {Event.SERVED: State.READY, Event.OPEN_SENT: State.OPENING},
        State.OPENING: {Event.OPENED: State.READY},
        State.READY: {},
    },
    peer_events=(Event.CHALLENGED, Event.LOGGED_IN, Event.SERVED, Event.OPENED),
)


class Handshake:
    """The handshake of one connection.

    Attributes:
        granted: the features that the node granted.
        controls: names of the controls that the node granted.
        config: the cluster map, JSON.
        release: the node's release, as it says; empty if it does not.

    Args:
        login: user, password, bucket.
        address: the node, for messages.
        nonce: at least 16 random bytes.
        dcp: None for a connection for documents.
        is_unordered: for documents, whether to allow the node to answer out of order.

    Raises:
        ConfigError: password or token cannot be had.
    """

    def __init__(
        self,
        login: Login,
        address: NodeAddress,
        nonce: bytes,
        dcp: DcpSettings | None = None,
        *,
        is_unordered: bool = False,
    ) -> None:
        self.state = TRANSITIONS.start
        self.granted: frozenset[int] = frozenset()
        self.controls: set[str] = set()
        self.config = b""
        self.release = ""
        self._login = login
        self._address = address
        self._nonce = nonce
        self._dcp = dcp
        self._is_unordered = is_unordered
        self._mechanism = login.mechanism or MECHANISMS[0]
        self._mechanisms: bytes | None = None
        self._password = "" if login.by_certificate else (current_token if login.by_token else current)(login.password)
        self._sasl = ClientLogin(self._mechanism, login.username, self._password, nonce)
        self._expected: deque[tuple[Opcode, str]] = deque()
        self._refused: list[str] = []
        self._is_required: dict[str, bool] = {}

    @property
    def is_done(self) -> bool:
        """Whether the connection is usable."""
        return self.state is State.READY

    def start(self) -> bytes:
        """The first bytes to send."""
        wanted = DCP_FEATURES if self._dcp else KV_FEATURES
        if self._dcp is not None and self._dcp.skip_deletes:
            wanted = (*wanted, Feature.DCP_SKIP_DELETES_IN_BACKFILL)
        if self._is_unordered:
            wanted = (*wanted, Feature.UNORDERED_EXECUTION)
        agent = json.dumps({"a": "dcpstream", "i": self._nonce[:8].hex()}).encode()
        hello = self._request(Hello(key=agent, value=encode_features(wanted)))
        if self._login.by_certificate:
            self._happen(Event.CERTIFICATE_SHOWN)
            return hello + self._select_bucket()
        self._happen(Event.LOGIN_SENT)
        return hello + self._request(SaslListMechs()) + self._begin_sasl()

    def receive(self, frame: Frame) -> bytes:
        """Take an answer; returns the bytes to send now.

        Raises:
            AuthenticationFailed: the node refuses user, password and every mechanism; ConnectionLost if the password
                comes from a function, because the next login may have another one.
            KeyNotFound, AccessDenied: it refuses the bucket.
            StatusError: it refuses DCP or a control that is needed; CONFIG_ONLY: it has only the map, in `config`.
            ConnectionLost: it has no cluster map yet, or the token has expired meanwhile.
            RemoteProtocolError: it answers another request than the next one.
        """
        if not self._expected or not frame.is_response or frame.opcode != self._expected[0][0]:
            raise RemoteProtocolError(
                f"{self._address} sent {code_name(Opcode, frame.opcode)} during the handshake",
                state=code_name(Opcode, self._expected[0][0]) if self._expected else "done",
                event=repr(frame),
            )
        opcode, detail = self._expected.popleft()
        if frame.status == Status.AUTH_STALE:
            raise login_is_over(self._address)
        if opcode is Opcode.HELLO:
            self._check(frame, "HELLO")
            count = len(frame.value) // FeatureCode.size
            if count > MAX_FEATURES:
                raise RemoteProtocolError(f"{self._address} grants {count} features to a client")
            codes = FeatureCode.iter_unpack(frame.value[: count * FeatureCode.size])
            self.granted = frozenset(feature.code for feature in codes)
            return b""
        if opcode is Opcode.SASL_LIST_MECHS:
            self._mechanisms = frame.value if frame.status == Status.SUCCESS else None
            return b""
        if opcode is Opcode.SASL_AUTH or opcode is Opcode.SASL_STEP:
            return self._authenticated(frame)
        if opcode is Opcode.VERSION:
            self.release = "" if frame.status else _release_in(bytes(frame.value))
            return b""
        if opcode is Opcode.SELECT_BUCKET:
            self._check_bucket(frame)
            return b""
        if opcode is Opcode.GET_CLUSTER_CONFIG:
            if frame.status != Status.SUCCESS or not frame.value:
                raise ConnectionLost(f"{self._address} has no cluster map for bucket {self._login.bucket!r} yet")
            self.config = frame.value
            return self._open_dcp()
        if frame.status == Status.CONFIG_ONLY:
            raise StatusError(
                f"{self._address} does not serve bucket {self._login.bucket!r}: it has only the bucket's cluster map",
                status=frame.status,
                opcode=frame.opcode,
            )
        if opcode is Opcode.NOOP:
            self._check(frame, f"NOOP at {self._address}")
            self._happen(Event.SERVED)
            return b""
        if opcode is Opcode.DCP_OPEN:
            self._check(frame, f"opening a DCP connection to {self._address} as {self._login}")
        elif frame.status != Status.SUCCESS and self._is_required[detail]:
            self._check(frame, f"DCP control {detail}, which is needed, at {self._address}")
        elif frame.status == Status.SUCCESS:
            self.controls.add(detail)
        if not self._expected:
            self._happen(Event.OPENED)
        return b""

    def _happen(self, event: Event) -> None:
        self.state = TRANSITIONS.after(self.state, event, self._address)

    def _request(self, request: Request) -> bytes:
        self._expected.append((Opcode(request.layout.opcode), request.key.decode(errors="replace")))
        return request.encode()

    def _check(self, frame: Frame, context: str) -> None:
        if frame.status != Status.SUCCESS:
            raise status_error(frame.status, opcode=frame.opcode, opaque=frame.opaque, context=context)

    def _authenticated(self, frame: Frame) -> bytes:
        if frame.status == Status.AUTH_CONTINUE:
            self._happen(Event.CHALLENGED)
            return self._request(SaslStep(key=self._mechanism.encode(), value=self._sasl_step(frame.value)))
        if frame.status == Status.SUCCESS:
            try:
                self._sasl.finish(frame.value)
            except ProtocolError as error:
                raise AuthenticationFailed(f"{self._address} cannot be trusted: {error}", cause=error) from error
            self._happen(Event.LOGGED_IN)
            return self._select_bucket()
        self._refused.append(self._mechanism)
        following = self._next_mechanism()
        if following is None:
            raise self._refusal(frame)
        self._mechanism = following
        self._sasl = ClientLogin(following, self._login.username, self._password, self._nonce)
        self._happen(Event.MECHANISM_REFUSED)
        return self._begin_sasl()

    def _refusal(self, frame: Frame) -> ConnectionLost:
        """The error for a login that was refused; not final if the next one may have another password or token."""
        kind = AuthenticationFailed if isinstance(self._login.password, str) else ConnectionLost
        status, tried = code_name(Status, frame.status), " and ".join(self._refused)
        if not self._login.by_token:
            ldap = "users of LDAP need TLS with a checked certificate (couchbases://)"
            hint = "check username and password" + ("" if self._login.allow_plain else f"; {ldap}")
        elif self._mechanisms is not None and OAUTHBEARER not in self._mechanisms.decode(errors="replace").split():
            hint = (
                "the node takes no tokens. They need Couchbase Server 8.0 or later, an issuer in its settings, and TLS"
            )
        else:
            hint = "it must be of an issuer that the cluster has, for its audience, and must not have expired"
        said = reason_in(bytes(frame.value))
        words = f". The node says: {said}" if said else ""
        return kind(f"{self._login} was refused by {self._address} ({status}, {tried}): {hint}{words}")

    def _next_mechanism(self) -> str | None:
        """The mechanism to try after the one that was just refused; None if there is none. Each is tried once.

        Raises:
            AuthenticationFailed: what the node lists is not allowed here.
        """
        listed = (self._mechanisms or b"").decode(errors="replace").split()
        if self._login.mechanism is not None or not listed:
            return None
        if self._mechanism not in listed:
            try:
                found = strongest_mechanism(" ".join(listed), allow_plain=self._login.allow_plain)
            except ConfigError as error:
                raise AuthenticationFailed(
                    f"{self._address} offers only {' '.join(listed)} to authenticate, none of which is allowed here",
                    cause=error,
                ) from error
        elif self._login.allow_plain and PLAIN in listed:
            found = PLAIN
        else:
            return None
        return None if found in self._refused else found

    def _begin_sasl(self) -> bytes:
        return self._request(SaslAuth(key=self._mechanism.encode(), value=self._sasl.start()))

    def _select_bucket(self) -> bytes:
        # VERSION comes first: in a bucket of which a node has only the map, it is refused.
        parts = [
            self._request(Version()),
            self._request(SelectBucket(key=self._login.bucket.encode())),
            self._request(GetClusterConfig()),
        ]
        if self._dcp is None:
            parts.append(self._request(Noop()))
        return b"".join(parts)

    def _sasl_step(self, challenge: bytes) -> bytes:
        try:
            return self._sasl.step(challenge)
        except ProtocolError as error:
            raise AuthenticationFailed(f"{self._address} cannot be trusted: {error}", cause=error) from error

    def _check_bucket(self, frame: Frame) -> None:
        if frame.status == Status.SUCCESS:
            return
        bucket = self._login.bucket
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
            f"bucket {bucket!r} was refused by {self._address} for {self._login}: {why}",
            status=frame.status,
            opcode=frame.opcode,
        )

    @property
    def is_8_0(self) -> bool:
        """Whether the node is a server of release 8.0 or later, or a node like one."""
        return Feature.SUBDOC_REPLICA_READ_DELETED in self.granted

    @property
    def skips_deletes(self) -> bool:
        """Whether streams from 0 come without deletions: that was wanted, and the node is of release 8.5 or later."""
        is_wanted = self._dcp is not None and self._dcp.skip_deletes
        return is_wanted and self.granted >= {Feature.DCP_SKIP_DELETES_IN_BACKFILL, Feature.COLLECTIONS}

    def _open_dcp(self) -> bytes:
        if self._dcp is None:
            return b""
        self._happen(Event.OPEN_SENT)
        flags = self._dcp.open_flags | (OpenFlag.SKIP_DELETES_IN_BACKFILL if self.skips_deletes else 0)
        parts = [self._request(Open(flags=flags, key=self._dcp.name.encode()))]
        for key, value, is_required in self._dcp.controls():
            if key in _ONLY_8_0 and not self.is_8_0:
                continue
            self._is_required[key] = is_required
            parts.append(self._request(Control(key=key.encode(), value=value.encode())))
        return b"".join(parts)


def _release_in(text: bytes) -> str:
    """The release in an answer to VERSION, as 8.0.1-1234-enterprise."""
    release = text[:MAX_RELEASE_CHARACTERS].decode("ascii", errors="replace")
    return "".join(one if one.isprintable() else "?" for one in release)


def login_is_over(address: NodeAddress) -> ConnectionLost:
    """The error for a connection on which a node answers AUTH_STALE: each login has another connection."""
    return ConnectionLost(f"{address} wants a new login: the token has expired")


def reason_in(body: bytes) -> str:
    """The reason of a refusal, in the node's words, from the body of its answer; empty if there is none."""
    if len(body) > MAX_REASON_BYTES:
        return ""
    try:
        reason = json.loads(body)["error"]["context"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return reason if isinstance(reason, str) else ""
