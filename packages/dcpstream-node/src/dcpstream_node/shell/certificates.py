"""An authority that signs certificates for a node and its users, and the files in which both are kept.

Keys are of the elliptic curve P-256, which takes a millisecond. The module needs the extra `tls`, and is
imported where a certificate is made or read; without the extra that raises ConfigError.
Source: RFC 5280 (content of a certificate), CA/Browser Forum baseline requirements (its lifetime).
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from dcpstream.errors import ConfigError
from dcpstream.runtime import utc_now
from dcpstream_node.private_files import KEPT_IN, make_secret_directory, write_file

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ImportError:
    _ALLOWED = "a certificate of your own, or to have one made: pip install dcpstream-node[tls]"
    raise ConfigError("tls", "no certificate", _ALLOWED) from None

logger = logging.getLogger(__name__)

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 397
"""Some platforms refuse longer lifetimes; a node renews its kept certificate at a start."""
_USAGES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
RENEW_DAYS: Final = 30
"""A kept certificate that ends sooner is renewed at a start."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        """Nothing of the key."""
        return "Pair(…)"


class Authority:
    """Signs certificates of servers and of users.

    Args:
        pair: its own certificate and key; None makes a new authority.

    Raises:
        ConfigError: the pair is none.
    """

    def __init__(self, pair: Pair | None = None, now: datetime | None = None) -> None:
        self._now = now or utc_now()
        if pair is not None:
            try:
                key = load_pem_private_key(pair.key.encode(), None)
                self._certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
            except (ValueError, TypeError) as error:
                raise ConfigError(
                    "tls", "a kept authority that cannot be read", "remove it to have one made"
                ) from error
            if not isinstance(key, EllipticCurvePrivateKey):
                raise ConfigError("tls", "a kept authority with another kind of key", "remove it to have one made")
            self._key: EllipticCurvePrivateKey = key
            return
        self._key = generate_private_key(SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dcpstream node authority")])
        usage = _usage("digital_signature", "key_cert_sign", "crl_sign")
        self._certificate = self._sign(
            name,
            name,
            self._key,
            AUTHORITY_DAYS,
            [(x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)],
        )

    @property
    def certificate(self) -> str:
        """The certificate that clients trust, PEM."""
        return _pem(self._certificate)

    @property
    def pair(self) -> Pair:
        """Certificate and key, to be kept."""
        return Pair(self.certificate, _pem_key(self._key))

    @property
    def ends(self) -> datetime:
        """The end of its lifetime."""
        return self._certificate.not_valid_after_utc

    def server(self, names: Sequence[str]) -> Pair:
        """A certificate for a server, followed by the authority's.

        Args:
            names: host names and addresses; the first is the common name.
        """
        extensions = [
            (x509.SubjectAlternativeName([_general_name(name) for name in names]), False),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        ]
        pair = self._issue(names[0], SERVER_DAYS, extensions)
        return Pair(pair.certificate + self.certificate, pair.key)

    def client(self, user: str, *, days: int = SERVER_DAYS) -> Pair:
        """A certificate with which a user logs in.

        Args:
            user: its common name.
            days: its lifetime; negative for an expired one.
        """
        return self._issue(user, days, [(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)])

    def _issue(self, name: str, days: int, extensions: list[tuple[x509.ExtensionType, bool]]) -> Pair:
        key = generate_private_key(SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        basics: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage("digital_signature"), True),
        ]
        certificate = self._sign(subject, self._certificate.subject, key, days, basics + extensions)
        return Pair(_pem(certificate), _pem_key(key))

    def _sign(
        self,
        subject: x509.Name,
        issuer: x509.Name,
        key: EllipticCurvePrivateKey,
        days: int,
        extensions: list[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        begins = self._now - timedelta(days=1 + max(0, -days))
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(max(begins + timedelta(seconds=1), self._now + timedelta(days=days)))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, critical=is_critical)
        return builder.sign(self._key, hashes.SHA256())


def kept_authority(directory: Path | None) -> Authority:
    """The authority that is kept in a data directory, or a new one in place of none or of one that ends soon."""
    now = utc_now()
    if directory is None:
        return Authority(now=now)
    kept = directory / KEPT_IN
    if why := trouble_with_pair(kept, "ca"):
        raise ConfigError("tls", str(kept / "ca.pem"), f"the authority that the node wrote ({why})")
    pair = read_pair(kept, "ca")
    authority = Authority(pair, now)
    if pair is None or authority.ends < now + timedelta(days=RENEW_DAYS):
        authority = Authority(now=now)
        write_pair(kept, "ca", authority.pair)
    return authority


def kept_or_made(names: tuple[str, ...], directory: Path | None) -> tuple[Authority, Pair]:
    """The kept authority and certificate, or new ones in place of unfit ones."""
    now = utc_now()
    authority = kept_authority(directory)
    if directory is None:
        return authority, authority.server(names)

    kept = directory / KEPT_IN
    pair = None
    if why := trouble_with_pair(kept, "server"):
        logger.warning("%s is replaced: %s", kept / "server.pem", why)
    else:
        pair = read_pair(kept, "server")
    if pair is not None:
        found = x509.load_pem_x509_certificate(pair.certificate.encode())
        names_there = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        fits = set(names_there) >= {_general_name(name) for name in names} and authority.certificate in pair.certificate
        if fits and found.not_valid_after_utc > now + timedelta(days=RENEW_DAYS):
            return authority, pair
    pair = authority.server(names)
    write_pair(kept, "server", pair)
    return authority, pair


def trouble_with_pair(directory: Path, name: str) -> str:
    """The fault of a kept certificate and its key, and its remedy; empty if sound."""
    todo = "remove it: the next start makes another"
    todo += ", which clients have to be given to trust" if name == "ca" else ""
    try:
        pair = read_pair(directory, name)
        if pair is None:
            return ""
        chain = x509.load_pem_x509_certificates(pair.certificate.encode())
        key = load_pem_private_key(pair.key.encode(), None)
        if key.public_key() != chain[0].public_key():
            raise ValueError("the key is another certificate's")
        for certificate in chain:
            certificate.verify_directly_issued_by(chain[-1])
    except InvalidSignature:
        return f"its signature does not fit, so its content is not what was written. {todo}"
    except (ConfigError, ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        return f"it cannot be read ({type(error).__name__}). {todo}"
    return ""


def trouble_with(certificate: str) -> str:
    """The reason why clients refuse a certificate (PEM) today; empty if valid."""
    try:
        found = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError:  # loading refuses an invalid certificate
        return ""
    now = utc_now()
    if found.not_valid_after_utc < now:
        return f"has expired ({found.not_valid_after_utc:%Y-%m-%d})"
    if found.not_valid_before_utc > now:
        return f"is not valid before {found.not_valid_before_utc:%Y-%m-%d}"
    return ""


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*names: str) -> x509.KeyUsage:
    return x509.KeyUsage(**(dict.fromkeys(_USAGES, False) | dict.fromkeys(names, True)))


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _pem_key(key: EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def write_pair(directory: Path, name: str, pair: Pair) -> None:
    """Keep a certificate and its key; the key first, so that every kept certificate has its key."""
    make_secret_directory(directory)
    write_file(directory / f"{name}.key", pair.key)
    write_file(directory / f"{name}.pem", pair.certificate)


def read_pair(directory: Path, name: str) -> Pair | None:
    """A kept certificate and its key, or None."""
    try:
        certificate = (directory / f"{name}.pem").read_text(encoding="utf-8")
        return Pair(certificate, (directory / f"{name}.key").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError("tls", f"{directory} ({error.strerror})", "a directory that can be read") from error
    except ValueError as error:
        raise ConfigError(
            "tls", f"{directory / name}.pem", "a certificate and its key, as the node wrote them"
        ) from error
