"""Options of a connection, checked: who logs in how, where, and what comes over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dcpstream.client.machine.handshake import DcpSettings, Login
from dcpstream.client.machine.nodes import ConnectOptions
from dcpstream.client.settings.connection_string import ConnectionString, parse
from dcpstream.client.settings.tls import TlsOptions, tls_options
from dcpstream.errors import ConfigError
from dcpstream.protocol.sasl import MECHANISMS

CONNECT_TIMEOUT_S = 10.0
"""How long connecting to a cluster, with authentication and bucket, may take before ConnectTimeout."""

PATIENCE_S = 300.0
"""How long a node that is needed may stay away before a stream gives up; an automatic failover takes up to 120 s."""

MAX_BATCH_ROWS = 10_000
"""Rows of a batch at most: what Spark takes best."""

MIN_BUFFER_BYTES = 64 * 1024
"""Smallest flow-control window: below it the node waits for acknowledgements most of the time."""

MAX_BUFFER_BYTES = 1024 * 1024 * 1024
"""Largest flow-control window."""

_VALUE_COLUMNS = frozenset(("value", "xattrs", "datatype"))


def check_buffer_bytes(buffer_bytes: int) -> int:
    """The window, if it is one.

    Raises:
        ConfigError: it is too small or too large.
    """
    if not MIN_BUFFER_BYTES <= buffer_bytes <= MAX_BUFFER_BYTES:
        raise ConfigError("buffer_bytes", buffer_bytes, f"{MIN_BUFFER_BYTES} to {MAX_BUFFER_BYTES}")
    return buffer_bytes


def dcp_settings(
    name: str, buffer_bytes: int, columns: Sequence[str] | None, *, out_of_order: bool = False
) -> DcpSettings:
    """What has to come over the wire for some columns."""
    wanted = None if columns is None else frozenset(columns)
    return DcpSettings(
        name=name,
        buffer_bytes=buffer_bytes,
        xattrs=wanted is None or "xattrs" in wanted,
        no_value=wanted is not None and not wanted & _VALUE_COLUMNS,
        out_of_order=out_of_order,
    )


@dataclass(frozen=True, slots=True)
class Access:
    """Where to connect to, as whom, and how secured.

    Attributes:
        parsed: the connection string, with the network to use.
        login: user, password and bucket.
        tls: None without TLS.
    """

    parsed: ConnectionString
    login: Login
    tls: TlsOptions | None

    def connect_options(self, connect_timeout_s: float, name: str) -> ConnectOptions:
        """How connections for questions are made; those for streams are derived from it."""
        return ConnectOptions(
            seeds=self.parsed.seeds,
            network=self.parsed.network,
            login=self.login,
            connect_timeout_s=connect_timeout_s,
            arrow=False,
            settings=DcpSettings(name=f"{name}:control"),
            tls=self.tls,
        )


def access(
    connection_string: str,
    *,
    username: str,
    password: str,
    bucket: str,
    tls: TlsOptions | None = None,
    sasl_mechanism: str | None = None,
    network: str | None = None,
) -> Access:
    """Check what the user gave; where an argument is None, the options of the connection string count.

    Args:
        username, password: empty with a client certificate, and only then.
        sasl_mechanism: one of `MECHANISMS`, None for the strongest that the node offers.
        network: as `ConnectionString.network`.

    Raises:
        ConfigError: an option is not allowed.
    """
    parsed = parse(connection_string)
    secured = tls_options(tls, parsed.options, is_secure=parsed.is_secure)
    by_certificate = secured is not None and secured.certificate is not None
    mechanism = sasl_mechanism or parsed.options.get("sasl_mechanism")
    if by_certificate and (username or password or mechanism):
        why = "no user, password or mechanism with a client certificate: the node knows the user by it"
        raise ConfigError("username", username, why)
    if not by_certificate and not username:
        raise ConfigError("username", username, "a name, unless a client certificate is given")
    if mechanism is not None:
        mechanism = mechanism.upper()
        if mechanism not in MECHANISMS:
            raise ConfigError("sasl_mechanism", mechanism, f"one of {', '.join(MECHANISMS)}")
        if mechanism == "PLAIN" and secured is None:
            raise ConfigError("sasl_mechanism", mechanism, "with couchbases:// only: else all can read the password")
    login = Login(
        username,
        password,
        bucket,
        allow_plain=secured is not None,
        mechanism=mechanism,
        by_certificate=by_certificate,
    )
    return Access(replace(parsed, network=network or parsed.network), login, secured)
