"""TLS as the user describes it: the certificates to trust, and the client's own.

Values and texts only. `dcpstream.client.transport` makes the `ssl.SSLContext`; TLS 1.2 is the least, and the node's
certificate and name are checked unless the user says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dcpstream.client.settings.secrets import Secret
from dcpstream.errors import ConfigError, ConnectionLost, TlsError
from dcpstream.model import NodeAddress

MAX_PEM_BYTES = 1024 * 1024
"""Longest text that is taken for certificates: a bundle of all public authorities has about 250 KiB."""

ALERT = b"\x15\x03"
"""The first bytes of a TLS alert: the refusal of a peer that speaks TLS and received something else."""

PEM = "-----BEGIN "
_OPTION_NAMES = ("trust_certificate", "certificate", "key", "tls_verify")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The certificates to trust, and the client's own. Can be pickled; files are read when a connection is made.

    Attributes:
        trust: certificates of the authorities that may sign the node's certificate: a PEM file, a directory as OpenSSL
            wants it, or PEM text. None for those of the system.
        certificate: PEM file with the client's own certificate (and those between it and the authority). The node
            then knows the user by it, and neither name nor password are sent.
        key: PEM file with its private key; None if `certificate` holds it too.
        key_password: of an encrypted key; a function, such as a `SecretFile`, is called for each client.
        verify: whether the node's certificate and name are checked. Without the check anybody on the way can read and
            change everything; only for tests.
        server_name: the name that the certificate must have, if the node is reached under another name.

    Raises:
        ConfigError: a key without a certificate, or the like.
    """

    trust: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: Secret | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None

    def __post_init__(self) -> None:
        """Refuse combinations that make no sense."""
        if self.key is not None and self.certificate is None:
            message = "the key of a client certificate is given without the certificate. Give both, or neither"
            raise ConfigError("key", self.key, "the key of a certificate that is given, too", message=message)
        if self.trust is not None and len(self.trust) > MAX_PEM_BYTES:
            raise ConfigError("trust_certificate", f"{len(self.trust)} characters", f"at most {MAX_PEM_BYTES}")


def tls_options(given: TlsOptions | None, options: Mapping[str, str], *, is_secure: bool) -> TlsOptions | None:
    """The TLS options of a connection: those of the program, completed by those of the connection string.

    Args:
        given: from the program, or None.
        options: of the connection string: trust_certificate, certificate, key, tls_verify (peer or none).
        is_secure: whether the scheme is couchbases.

    Raises:
        ConfigError: options of TLS without TLS, or with a value that they may not have.
    """
    named = [name for name in _OPTION_NAMES if name in options]
    if not is_secure:
        if given is not None or named:
            what = named[0] if named else "tls"
            raise ConfigError(
                what,
                options.get(what, given),
                "only with couchbases://, the scheme with TLS",
                message="options of TLS (trusted authority, client certificate, verification) are given, but the "
                "connection string begins with couchbase://. Begin it with couchbases:// and give the port with TLS "
                "(11207), or leave the options out",
            )
        return None
    result = given or TlsOptions()
    verify = options.get("tls_verify", "peer")
    if verify not in {"peer", "none"}:
        raise ConfigError("tls_verify", verify, "peer or none")
    return replace(
        result,
        trust=result.trust or options.get("trust_certificate"),
        certificate=result.certificate or options.get("certificate"),
        key=result.key or options.get("key"),
        verify=result.verify and verify == "peer",
    )


def closed_at_once(error: ConnectionLost, *, is_secured: bool) -> ConnectionLost:
    """The error for a connection that ended before the node sent anything, with the usual reason."""
    if error.cause is not None and is_secured:
        return error  # its text already says what failed in the handshake
    why = "a port with TLS wants couchbases://"
    if is_secured:
        # Some servers close without the alert that gives the reason.
        why = "perhaps it wants a client certificate, or knows no user by the one it got"
    return ConnectionLost(f"{error} without a word; {why}", cause=error)


def check_for_alert(address: NodeAddress, received: bytes | bytearray | memoryview) -> None:
    """Check the first bytes of a connection without TLS.

    Raises:
        TlsError: the node speaks TLS at this port.
    """
    if bytes(received[:2]) == ALERT:
        raise TlsError(f"{address} speaks TLS at this port: use couchbases://, or the port without TLS (11210)")
