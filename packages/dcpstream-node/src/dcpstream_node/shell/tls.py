"""Encryption: the server's certificate, and logins by client certificate.

A node without a given certificate makes an authority and a certificate for `localhost`, the loopback addresses and its
own host. Clients trust the authority (`Node.ca_certificate`, `--tls-ca-out`). With a data directory
both are kept there, with keys that only the owner may read, so that clients trust the node after a restart.

TLS 1.2 and newer, with forward secrecy and authenticated encryption only, no renegotiation, no compression.

Source: Couchbase Server documentation, "Manage Certificates" and "Enable Client-Certificate Handling" (the user's
name); Mozilla's "intermediate" profile (ciphers). Needs the extra `tls` to make certificates.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from dcpstream.errors import ConfigError
from dcpstream_node.private_files import can_make_certificates, write_file

if TYPE_CHECKING:
    from dcpstream_node.shell.certificates import Authority, Pair

logger = logging.getLogger(__name__)

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2; all ciphers of TLS 1.3 qualify."""
MAX_USER_BYTES: Final = 128
CLIENT_AUTH: Final = ("none", "optional", "mandatory")
USER_FROM: Final = ("subject.cn", "san.dns", "san.email", "san.uri")
_SAN_KINDS: Final[Mapping[str, str]] = {"san.dns": "DNS", "san.email": "email", "san.uri": "URI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The TLS settings of a node.

    Attributes:
        certificate: file of the certificate and its chain, PEM; None: the node makes one.
        key: file of its key, PEM, without a password.
        client_ca: file of the authorities whose certificates log users in, PEM; None: the node's own authority.
        client_auth: whether clients are asked for a certificate: none, optional, mandatory.
        user_from: which part of a client's certificate has the user's name: subject.cn, san.dns, san.email, san.uri.
        user_prefix: prefix that the part must have; it is removed.
        user_delimiters: the name ends before the first of these characters.
        port, mgmt_port: KV and HTTPS over TLS, 0 for any free one.
        names: more names and addresses for the node's own certificate.
        authority: certificate and key of the authority that signs the node's own certificate, as the nodes of a cluster
            share one; None: one of the node's own.
        ca_out: file for the authority's certificate, for clients.

    Raises:
        ConfigError: an option with an unusable value.
    """

    certificate: str | Path | None = None
    key: str | Path | None = None
    client_ca: str | Path | None = None
    client_auth: str = "none"
    user_from: str = "subject.cn"
    user_prefix: str = ""
    user_delimiters: str = ""
    port: int = 0
    mgmt_port: int = 0
    names: tuple[str, ...] = ()
    authority: Pair | None = None
    ca_out: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("tls", "a certificate or a key alone", "both, or neither to have them made")
        if self.certificate is not None and self.authority is not None:
            raise ConfigError("tls", "a certificate and an authority", "one of them")
        if self.client_auth not in CLIENT_AUTH:
            raise ConfigError("client_auth", self.client_auth, ", ".join(CLIENT_AUTH))
        if self.client_auth != "none" and self.certificate is not None and self.client_ca is None:
            raise ConfigError("client_ca", "none", "a file of the authorities that sign clients' certificates")
        if self.client_auth == "none" and self.client_ca is not None:
            raise ConfigError("client_ca", str(self.client_ca), "client_auth optional or mandatory with it")
        if self.user_from not in USER_FROM:
            raise ConfigError("user_from", self.user_from, ", ".join(USER_FROM))
        for option, value in (("tls port", self.port), ("tls mgmt_port", self.mgmt_port)):
            if not 0 <= value < 1 << 16:
                raise ConfigError(option, value, "0 to 65535")


class Tls:
    """Certificate and context for a node's listening sockets.

    Attributes:
        settings: as given.
        context: for the server's side of a connection.
        ca_certificate: the authority that clients trust, PEM; empty with a given certificate.
        authority: signs users' certificates; None with a given certificate.
    """

    def __init__(
        self, settings: TlsSettings, context: ssl.SSLContext, ca_certificate: str, authority: Authority | None
    ) -> None:
        self.settings = settings
        self.context = context
        self.ca_certificate = ca_certificate
        self.authority = authority

    @classmethod
    def open(cls, settings: TlsSettings, host: str, directory: Path | None) -> Self:
        """Load the given or the kept certificate, or make one.

        Args:
            host: the address that the node listens on.
            directory: the data directory; None keeps nothing.

        Raises:
            ConfigError: a file cannot be read or does not fit, or the extra `tls` is missing.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
        authority: Authority | None = None
        if settings.certificate is not None and settings.key is not None:
            _load(context, Path(settings.certificate), Path(settings.key))
            if why := _trouble_with(Path(settings.certificate)):
                logger.warning("the certificate %s %s: clients will refuse it", settings.certificate, why)
            ca_certificate = ""
        else:
            authority, pair = _made(settings, _names(host, settings.names), directory)
            ca_certificate = authority.certificate
            _load_pair(context, pair)
        if settings.client_auth != "none":
            required = settings.client_auth == "mandatory"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
            _trust(context, settings.client_ca, ca_certificate)
        if settings.ca_out is not None:
            if authority is None:
                raise ConfigError("ca_out", str(settings.ca_out), "none, with a certificate that is given")
            write_file(Path(settings.ca_out), ca_certificate, mode=0o644)
        return cls(settings, context, ca_certificate, authority)

    def user_name(self, certificate: Mapping[str, Any] | None) -> str | None:
        """The user's name in a client's certificate (in the form of `getpeercert`); None if there is none."""
        if not certificate:
            return None
        for value in _values(certificate, self.settings.user_from):
            if not value.startswith(self.settings.user_prefix):
                continue
            name = value[len(self.settings.user_prefix) :]
            ends = [name.index(char) for char in self.settings.user_delimiters if char in name]
            name = name[: min(ends, default=len(name))]
            if name and len(name.encode()) <= MAX_USER_BYTES:
                return name
        return None


def _made(settings: TlsSettings, names: tuple[str, ...], directory: Path | None) -> tuple[Authority, Pair]:
    """The authority, and a certificate for the node that it signed."""
    from dcpstream_node.shell.certificates import Authority, kept_or_made

    if settings.authority is None:
        return kept_or_made(names, directory)
    authority = Authority(settings.authority)
    return authority, authority.server(names)


def _trouble_with(certificate: Path) -> str:
    """The reason why clients refuse the certificate today; empty if valid, or without the extra `tls`."""
    if not can_make_certificates():
        return ""
    from dcpstream_node.shell.certificates import trouble_with

    return trouble_with(certificate.read_text(encoding="utf-8", errors="replace"))


def _names(host: str, more: tuple[str, ...]) -> tuple[str, ...]:
    names = ["localhost", "127.0.0.1", "::1", *more]
    try:
        if not ipaddress.ip_address(host).is_unspecified:
            names.append(str(ipaddress.ip_address(host)))
    except ValueError:
        names.append(host)
    return tuple(dict.fromkeys(names))


def _values(certificate: Mapping[str, Any], where: str) -> list[str]:
    if where == "subject.cn":
        return [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return [value for kind, value in certificate.get("subjectAltName", ()) if kind == _SAN_KINDS[where]]


def _no_password() -> str:
    raise ConfigError(
        "tls key",
        "a key with a password",
        "a key without a password",
        message="the node's key has a password. Give a key without one, in a file that only its owner may read",
    )


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        missing = [str(file) for file in (certificate, key) if not file.exists()]
        files = " and ".join(missing or [str(certificate), str(key)])
        raise ConfigError(
            "tls",
            files,
            "a certificate and its key, PEM",
            message=f"the node's certificate and its key cannot be loaded: {files}: {why}. Both must be PEM files",
        ) from error


def _load_pair(context: ssl.SSLContext, pair: Pair) -> None:
    """Load a certificate through temporary files, because `ssl` reads only files; in memory where possible."""
    with ExitStack() as cleanup:
        try:
            texts = (pair.certificate, pair.key)
            certificate, key = (cleanup.enter_context(_file_in_memory(text)) for text in texts)
        except (AttributeError, OSError):
            place = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="dcpstream-")))  # for its owner alone
            certificate, key = place / "certificate.pem", place / "key.pem"
            write_file(certificate, pair.certificate)
            write_file(key, pair.key)
        _load(context, certificate, key)


@contextmanager
def _file_in_memory(text: str) -> Iterator[Path]:
    """A file in memory. Raises: AttributeError, OSError: the system does not support it."""
    descriptor = os.memfd_create("dcpstream")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        path = Path(f"/proc/self/fd/{descriptor}")
        path.stat()
        yield path
    finally:
        os.close(descriptor)


def _trust(context: ssl.SSLContext, client_ca: str | Path | None, ca_certificate: str) -> None:
    try:
        if client_ca is not None:
            context.load_verify_locations(cafile=client_ca)
        else:
            context.load_verify_locations(cadata=ca_certificate)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        raise ConfigError(
            "client_ca",
            str(client_ca),
            "a file of certificates, PEM",
            message=f"the authority of client certificates, {client_ca}, cannot be loaded: {why}. Give a PEM file",
        ) from error
