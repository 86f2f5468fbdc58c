"""Secured connections: what the user says about certificates, and the `ssl.SSLContext` made of it.

The one place that decides how TLS is done; the shells only wrap their sockets with the context. TLS 1.2 is the least,
the node's certificate and name are checked unless the user says otherwise.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dcpstream.errors import ConfigError, ConnectionLost, TlsError
from dcpstream.model import NodeAddress

logger = logging.getLogger(__name__)

MAX_PEM_BYTES = 1024 * 1024
"""Longest text that is taken for certificates: a bundle of all public authorities has about 250 KiB."""

ALERT = b"\x15\x03"
"""How a peer that speaks TLS begins its refusal of something that is not TLS."""

_PEM = "-----BEGIN "
_OPTION_NAMES = ("trust_certificate", "certificate", "key", "tls_verify")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """What to trust, and who to be. Can be pickled; files are read where a connection is made.

    Attributes:
        trust: the certificates that the node's must be signed by: a PEM file, a directory of them as OpenSSL wants it,
            or PEM text. None for those of the system.
        certificate: PEM file with the client's own certificate (and those between it and the authority). With it the
            node knows the user, and neither name nor password are sent.
        key: PEM file with its private key; None if `certificate` holds it too.
        key_password: of an encrypted key.
        verify: whether the node's certificate and name are checked. Without that anybody on the way can read and
            change everything; only for tests.
        server_name: the name that the certificate must have, for a node that is reached under another one.

    Raises:
        ConfigError: a key without a certificate, or the like.
    """

    trust: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None

    def __post_init__(self) -> None:
        """Check what goes together."""
        if self.key is not None and self.certificate is None:
            raise ConfigError("key", self.key, "only with the option certificate")
        if self.trust is not None and len(self.trust) > MAX_PEM_BYTES:
            raise ConfigError("trust_certificate", f"{len(self.trust)} characters", f"at most {MAX_PEM_BYTES}")


def tls_options(given: TlsOptions | None, options: Mapping[str, str], *, is_secure: bool) -> TlsOptions | None:
    """What holds for a connection string, with its own options where `given` says nothing.

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
            raise ConfigError(what, options.get(what, given), "only with couchbases://, the scheme with TLS")
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


def make_context(options: TlsOptions) -> ssl.SSLContext:
    """The context for connections of a client.

    Raises:
        ConfigError: a file cannot be read or is no certificate or key, or the password of the key is wrong.
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
        _load_identity(context, options.certificate, options.key, options.key_password)
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
        f"{address} ended the TLS handshake: {error.strerror or error}; the port with TLS (11207) is another one "
        "than that without",
        cause=error,
    )


def closed_at_once(error: ConnectionLost, *, is_secured: bool) -> ConnectionLost:
    """The error for a connection that ended before the node said anything: what is usually the reason."""
    if error.cause is not None and is_secured:
        return error  # it says already what was wrong with the handshake
    why = "a port with TLS wants couchbases://"
    if is_secured:
        # Servers may close without the alert that tells it.
        why = "perhaps it wants a client certificate, or knows no user by the one it got"
    return ConnectionLost(f"{error} without a word; {why}", cause=error)


def check_for_alert(address: NodeAddress, received: bytes | bytearray | memoryview) -> None:
    """Look at the first bytes on a connection without TLS.

    Raises:
        TlsError: the node speaks TLS at this port.
    """
    if bytes(received[:2]) == ALERT:
        raise TlsError(f"{address} speaks TLS at this port: use couchbases://, or the port without TLS (11210)")


def _load_trust(context: ssl.SSLContext, trust: str | None) -> None:
    if trust is None:
        context.load_default_certs()
        return
    try:
        if trust.lstrip().startswith(_PEM):
            context.load_verify_locations(cadata=trust)
        elif os.path.isdir(trust):  # noqa: PTH112 - OpenSSL takes the text
            context.load_verify_locations(capath=trust)
        else:
            context.load_verify_locations(cafile=trust)
    except (OSError, ValueError) as error:
        raise ConfigError("trust_certificate", trust[:200], f"PEM certificates that can be read ({error})") from error


def _load_identity(context: ssl.SSLContext, certificate: str, key: str | None, password: str | None) -> None:
    # A function, so that OpenSSL never asks at the terminal; empty is refused like any wrong password.
    try:
        context.load_cert_chain(certificate, key, password=lambda: password or "")
    except (OSError, ValueError) as error:
        allowed = f"PEM files of a certificate and its key that can be read, with the right key_password ({error})"
        raise ConfigError("certificate", certificate, allowed) from error
