"""Checked options of a connection: login, addresses, time limits, and what comes over the wire.

Plain values, made from the user's arguments and the connection string; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dcpstream.client.settings.client_options import (
    BUFFER_BYTES,
    CLIENT_DEFAULTS,
    ClientOptions,
    checked_mechanism,
)
from dcpstream.client.settings.connection_string import ConnectionString, parse
from dcpstream.client.settings.secrets import Secret, current_token
from dcpstream.client.settings.tls import TlsOptions, tls_options
from dcpstream.dcp.controls import asked_by_client
from dcpstream.dcp.sasl import OAUTHBEARER
from dcpstream.errors import ConfigError
from dcpstream.model import NodeAddress
from dcpstream.wire import OpenFlag

MAX_BATCH_ROWS = 10_000
"""Rows of a batch at most: the best size for Spark."""

NOOP_INTERVAL_S = 20
"""Seconds between NOOPs of the node: the least that all server versions allow."""

_VALUE_COLUMNS = frozenset(("value", "value_text", "xattrs"))


@dataclass(frozen=True, slots=True)
class Login:
    """User, password and bucket of a connection.

    Attributes:
        password: the token instead, with the mechanism OAUTHBEARER.
        allow_plain: whether the password may be sent readable if the node offers nothing better, or refuses what it
            offers.
        mechanism: the only SASL mechanism to use; None for the strongest that the node offers.
        by_certificate: the node knows the user by the certificate of the TLS connection: nothing is sent to log in.
    """

    username: str
    password: Secret = field(repr=False)
    bucket: str
    allow_plain: bool = False
    mechanism: str | None = None
    by_certificate: bool = False

    @property
    def by_token(self) -> bool:
        """Whether the user is named by a token."""
        return self.mechanism == OAUTHBEARER

    def __str__(self) -> str:
        """The user, for messages."""
        if self.by_certificate:
            return "the client certificate"
        return "the token" if self.by_token else f"user {self.username!r}"


@dataclass(frozen=True, slots=True)
class DcpSettings:
    """The flags and controls of a DCP connection.

    Attributes:
        name: unique among the node's connections: a second one with that name replaces the first.
        buffer_bytes: the flow-control window.
        noop_interval_s: seconds between the node's NOOPs.
        xattrs: whether values come with their xattr section.
        no_value: leave out values and xattrs.
        out_of_order: whether the node may send the first snapshot of a single collection in any order, which it does
            where it finds the collection faster that way.
        priority, backfill_order: as in `ClientOptions`.
        history: whether the node sends every version that its bucket keeps.
        skip_deletes: whether a stream that begins at 0 comes without deletions, as far as it is read from disk. Nodes
            of releases before 8.5 send them.
    """

    name: str
    buffer_bytes: int = BUFFER_BYTES
    noop_interval_s: int = NOOP_INTERVAL_S
    xattrs: bool = True
    no_value: bool = False
    out_of_order: bool = False
    priority: str | None = None
    backfill_order: str | None = None
    history: bool = False
    skip_deletes: bool = False

    @property
    def open_flags(self) -> int:
        """The flags of DCP_OPEN that all releases have; with delete times, by which expirations differ from deletions.

        Values are left out by the flag that keeps the datatypes of the stored documents. With the other one, NO_VALUE
        alone, servers since 7.6 do not read documents from disk: they send deletions as mutations, and every CAS,
        revision, flag and expiry as that of a new document. No value comes with either of them.
        """
        flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
        if self.no_value:
            flags |= OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
        elif self.xattrs:
            flags |= OpenFlag.INCLUDE_XATTRS
        return int(flags)

    def for_columns(
        self,
        columns: Sequence[str] | None,
        *,
        out_of_order: bool = False,
        history: bool = False,
        skip_deletes: bool = False,
    ) -> DcpSettings:
        """The settings of a connection that needs only some columns."""
        wanted = None if columns is None else frozenset(columns)
        return replace(
            self,
            xattrs=wanted is None or "xattrs" in wanted,
            no_value=wanted is not None and not wanted & _VALUE_COLUMNS,
            out_of_order=out_of_order,
            history=history,
            skip_deletes=skip_deletes,
        )

    def controls(self) -> list[tuple[str, str, bool]]:
        """(name, value, must be granted) in the order in which they are sent."""
        return asked_by_client(self)


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The options of connections.

    Attributes:
        seeds: addresses from the connection string.
        network: the kind of a node's addresses to use.
        login: user, password, bucket.
        connect_timeout_s: for one connection; and for how long failed nodes are tried again while nothing works.
        frames: keep rows as the frames that they came in.
        settings: of each DCP connection; the name is completed with a part of its own.
        tls: how connections are secured; None for none.
    """

    seeds: tuple[NodeAddress, ...]
    network: str
    login: Login
    connect_timeout_s: float
    settings: DcpSettings
    tls: TlsOptions | None = None
    frames: bool = False

    @property
    def for_questions(self) -> ConnectOptions:
        """The options of connections that ask questions and have no stream."""
        return replace(self, settings=DcpSettings(name=f"{self.settings.name}:control"))


@dataclass(frozen=True, slots=True)
class Access:
    """Addresses, login and TLS of a user.

    Attributes:
        parsed: the connection string, with the network to use.
        login: user, password and bucket.
        tls: those of the program and of the connection string; None without TLS.
        options: of the client.
    """

    parsed: ConnectionString
    login: Login
    tls: TlsOptions | None
    options: ClientOptions

    def connect_options(self) -> ConnectOptions:
        """The options of connections; those for streams and for questions are derived from them."""
        return ConnectOptions(
            seeds=self.parsed.seeds,
            network=self.parsed.network,
            login=self.login,
            connect_timeout_s=self.options.connect_timeout_s,
            settings=DcpSettings(
                name=self.options.name,
                buffer_bytes=self.options.buffer_bytes,
                priority=self.options.priority,
                backfill_order=self.options.backfill_order,
            ),
            tls=self.tls,
        )


def access(
    connection_string: str, username: str, password: Secret, bucket: str, options: ClientOptions = CLIENT_DEFAULTS
) -> Access:
    """Check the user's arguments; where an option is None, that of the connection string counts.

    Args:
        username, password: empty with a client certificate or a token, and only then.

    Raises:
        ConfigError: an option is not allowed.
    """
    parsed = parse(connection_string)
    secured = tls_options(options.tls, parsed.options, is_secure=parsed.is_secure)
    by_certificate = secured is not None and secured.certificate is not None
    mechanism = options.sasl_mechanism or parsed.options.get("sasl_mechanism")
    named = "a client certificate" if by_certificate else "a token"
    if by_certificate and options.token is not None:
        raise _login_given_twice("token", "a client certificate is given together with a token")
    if (by_certificate or options.token is not None) and (username or password or mechanism):
        raise _login_given_twice("username", f"{named} is given together with a user, a password or a mechanism")
    if not by_certificate and not username and options.token is None:
        raise ConfigError("username", username, "a name, unless a client certificate or a token is given")
    if options.token is not None:
        if secured is None:
            message = "a token is sent as it is, so it needs TLS. Begin the connection string with couchbases://"
            raise ConfigError("token", "***", "with TLS", message=message)
        if isinstance(options.token, str):
            current_token(options.token)
        mechanism, password = OAUTHBEARER, options.token
    elif mechanism is not None:
        mechanism = checked_mechanism(mechanism)
        if mechanism == "PLAIN" and secured is None:
            message = (
                "the mechanism PLAIN sends the password as it is, so it needs TLS. Begin the connection string with "
                "couchbases://, or leave the mechanism out"
            )
            raise ConfigError("sasl_mechanism", mechanism, "a mechanism of SCRAM, without TLS", message=message)
    login = Login(
        username,
        password,
        bucket,
        allow_plain=secured is not None and secured.verify,
        mechanism=mechanism,
        by_certificate=by_certificate,
    )
    return Access(replace(parsed, network=options.network or parsed.network), login, secured, options)


def _login_given_twice(option: str, what: str) -> ConfigError:
    message = f"{what}. Each of them names the user: give one and leave the others out"
    return ConfigError(option, "***", "one way to log in", message=message)
