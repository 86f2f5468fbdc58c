"""Sockets as all shells use them: TLS contexts, errors translated to ours, and the interface of a machine."""

from __future__ import annotations

import logging
import os
import ssl
from typing import Protocol

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.settings.secrets import current
from dcpstream.client.settings.tls import PEM, TlsOptions
from dcpstream.errors import ConfigError, ConnectionLost, ConnectTimeout, TlsError
from dcpstream.model import NodeAddress

MAX_WAIT_S = 1.0
"""Longest single wait for sockets, so that the machine's clocks are checked in between."""

logger = logging.getLogger(__name__)


class Machine(Protocol):
    """The interface of a machine that a shell drives: a reader, or questions."""

    def gather_s(self, now: float) -> float:
        """Seconds that bytes which have just come should wait for more, so that they are read together."""
        ...

    def received(self, connection: NodeConnection, now: float) -> None:
        """Bytes were read into the connection's buffer."""
        ...

    def lost(self, connection: NodeConnection, error: BaseException, now: float) -> None:
        """The connection failed, or could not be made."""
        ...

    def next_timeout(self) -> float:
        """The latest time to call `handle_timeout`."""
        ...

    def handle_timeout(self, now: float) -> None:
        """Check the clocks."""
        ...


def make_context(options: TlsOptions) -> ssl.SSLContext:
    """The context for connections of a client.

    Raises:
        ConfigError: a file cannot be read or is no certificate or key, or the password of the key is wrong or
            cannot be had.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.verify:
        _load_trust(context, options.trust)
    else:
        logger.warning(
            "TLS certificates are NOT verified: anybody on the way to the node can read the password and all data. "
            "Use this for tests only; give the authority's certificate (trust_certificate) instead."
        )
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.certificate is not None:
        _load_identity(context, options.certificate, options.key, current(options.key_password or ""))
    return context


def server_name(options: TlsOptions, address: NodeAddress) -> str:
    """The name that is asked for (SNI) and that the certificate must have."""
    return options.server_name or address.host


def tls_failure(address: NodeAddress, error: OSError) -> ConnectionLost:
    """The error for a TLS handshake that failed: a TlsError if trying again cannot help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or str(error)
        if "mismatch" in why or "doesn't match" in why or "not valid for" in why:
            return TlsError(
                f"the certificate of {address} is for another name: {why.rstrip('.')}. Connect by the name that it "
                "has, or give server_name",
                cause=error,
            )
        if "expired" in why:
            return TlsError(
                f"the certificate of {address}, or one above it, has expired: the node needs a new one", cause=error
            )
        return TlsError(
            f"the certificate of {address} is not trusted: {why}. Give the certificate of the authority that signed "
            "it (trust_certificate)",
            cause=error,
        )
    if isinstance(error, ssl.SSLError) and error.reason in {"WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE"}:
        return TlsError(
            f"{address} does not speak TLS: is this the port with TLS (11207)? Without TLS the scheme is couchbase://",
            cause=error,
        )
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return TlsError(
            f"{address} refuses the secured connection ({error.reason}): does it want a client certificate, or another "
            "one?",
            cause=error,
        )
    return ConnectionLost(
        f"{address} broke off the TLS handshake{_reason(error)}. The port with TLS (11207) is another one than that "
        "without; without TLS the connection string begins with couchbase://",
        cause=error,
    )


def _reason(error: OSError) -> str:
    """Why the system says that it failed; nothing for the ways in which OpenSSL says that the peer closed."""
    return "" if isinstance(error, ssl.SSLError) and "EOF" in str(error) else f": {_why(error)}"


def cannot_connect(address: NodeAddress, error: OSError | ValueError) -> ConnectTimeout:
    """The error for a node that does not accept connections."""
    return ConnectTimeout(f"cannot connect to {address}: {_why(error)}", cause=error)


def lost_by(address: NodeAddress, error: OSError) -> ConnectionLost:
    """The error for a connection that broke; with TLS 1.3 that may be the node's answer to the client's certificate."""
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return tls_failure(address, error)
    return ConnectionLost(f"{address}: {error.strerror or error}", cause=error)


def _why(error: OSError | ValueError) -> str:
    """The reason in words, without the number."""
    return getattr(error, "strerror", None) or str(error)


def _load_trust(context: ssl.SSLContext, trust: str | None) -> None:
    if trust is None:
        context.load_default_certs()
        return
    try:
        if trust.lstrip().startswith(PEM):
            context.load_verify_locations(cadata=trust)
        elif os.path.isdir(trust):  # noqa: PTH112 - OpenSSL takes the text
            context.load_verify_locations(capath=trust)
        else:
            context.load_verify_locations(cafile=trust)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "trust_certificate",
            trust[:200],
            "PEM certificates that can be read",
            message=f"the trusted certificate {trust[:200]} cannot be read: {_why(error)}. It must be a PEM file",
        ) from error


def _load_identity(context: ssl.SSLContext, certificate: str, key: str | None, password: str) -> None:
    # A function, so that OpenSSL never asks at the terminal; empty is refused like any wrong password.
    try:
        context.load_cert_chain(certificate, key, password=lambda: password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "certificate",
            certificate,
            "PEM files of a certificate and its key that can be read, with the right key_password",
            message=f"the client certificate {certificate}{f' with the key {key}' if key else ''} cannot be used: "
            f"{_why(error)}. Both must be PEM files, and key_password the password of the key",
        ) from error
