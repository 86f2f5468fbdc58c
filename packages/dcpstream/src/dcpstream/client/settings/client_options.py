"""The options of a client: their names, defaults, checks, and meaning, for all clients, Spark and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcpstream.client.settings.secrets import Secret
from dcpstream.client.settings.tls import TlsOptions
from dcpstream.dcp.controls import BACKFILL_ORDERS, PRIORITIES
from dcpstream.dcp.sasl import MECHANISMS
from dcpstream.errors import ConfigError

CONNECT_TIMEOUT_S = 10.0
"""Seconds for connecting to a cluster, with authentication and bucket, before ConnectTimeout."""

PATIENCE_S = 300.0
"""Seconds that a node may stay away before a stream gives up; an automatic failover takes up to 120 s."""

MIN_BUFFER_BYTES = 64 * 1024
"""Smallest flow-control window: below it the node waits for acknowledgements most of the time."""

MAX_BUFFER_BYTES = 1024 * 1024 * 1024
"""Largest flow-control window."""

BUFFER_BYTES = 4 * 1024 * 1024
"""Default flow-control window in bytes: what the node may have sent before it was consumed, hence the bound of memory
for a connection, and of the bytes that are read in vain when a read ends inside a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of `Client`, `AsyncClient`, `BucketReader` and `KvClient`.

    Programs may share one object between clients. `buffer_bytes`, `patience_s`, `name`, `priority` and `backfill_order`
    are of streams, so they mean nothing to a `KvClient`; a `BucketReader` gets its patience with each read.

    Attributes:
        tls: certificates, for `couchbases://`.
        token: a JSON Web Token, with TLS and instead of user and password. A function, such as a `SecretFile`, is
            called for each login, and again when the token has expired.
        sasl_mechanism: the only one to log in with ("PLAIN" over TLS, "SCRAM-SHA512", …); None as in the connection
            string, or for the strongest that the node offers.
        network: "default", "external", …: which of the nodes' addresses to use; None as in the connection string.
        connect_timeout_s: limit for connecting to a cluster that does not answer, and for each question to it. A bucket
            that does not exist is an error at once, because the usual cause is a wrong name.
        patience_s: how long a node may stay away while a stream runs, or listen without having its bucket, refuse a
            vbucket, end its stream at once, or give an older version of the bucket's collections than is known.
        buffer_bytes: flow-control window of each connection: the bound of memory.
        name: of the connections in the node's statistics; a unique part is appended.
        priority: "high", "medium" or "low": the share of a node's time that its connections get beside those of other
            clients. None: medium, as nodes do without being asked.
        backfill_order: "round-robin" or "sequential": whether a node reads the vbuckets of a connection from disk in
            turn, or one after the other, which ends the first ones earlier and reads the disk in larger pieces. None:
            in turn.

    Raises:
        ConfigError: an option is not allowed.
    """

    tls: TlsOptions | None = None
    token: Secret | None = field(default=None, repr=False)
    sasl_mechanism: str | None = None
    network: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    patience_s: float = PATIENCE_S
    buffer_bytes: int = BUFFER_BYTES
    name: str = "dcpstream"
    priority: str | None = None
    backfill_order: str | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the connection string."""
        if self.sasl_mechanism is not None:
            object.__setattr__(self, "sasl_mechanism", checked_mechanism(self.sasl_mechanism))
        check_buffer_bytes(self.buffer_bytes)
        for option, value, allowed in (
            ("priority", self.priority, PRIORITIES),
            ("backfill_order", self.backfill_order, BACKFILL_ORDERS),
        ):
            if value is not None and value not in allowed:
                raise ConfigError(option, value, " or ".join(allowed))


def checked_mechanism(mechanism: str) -> str:
    """The name of a SASL mechanism in capital letters, checked.

    Raises:
        ConfigError: there is no such mechanism.
    """
    if mechanism.upper() not in MECHANISMS:
        raise ConfigError("sasl_mechanism", mechanism.upper(), f"one of {', '.join(MECHANISMS)}")
    return mechanism.upper()


def check_buffer_bytes(buffer_bytes: int) -> int:
    """The flow-control window, checked.

    Raises:
        ConfigError: it is too small or too large.
    """
    if not MIN_BUFFER_BYTES <= buffer_bytes <= MAX_BUFFER_BYTES:
        raise ConfigError("buffer_bytes", buffer_bytes, f"{MIN_BUFFER_BYTES} to {MAX_BUFFER_BYTES}")
    return buffer_bytes


CLIENT_DEFAULTS = ClientOptions()
