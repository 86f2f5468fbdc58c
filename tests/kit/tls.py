"""Certificates made for a test, and a proxy that speaks TLS in front of a node that does not."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import selectors
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dcpstream.wire import Frame, FrameReader
from dcpstream_node import Node
from tests.kit.fake_node import FakeNode
from tests.kit.listener import Listener

CHUNK_BYTES = 256 * 1024
NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as files."""

    certificate: str
    key: str


class Authority:
    """Signs certificates; `path` is its own."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.path = str(directory / f"{name.replace(' ', '-')}.pem")
        Path(self.path).write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, address: str | None = "127.0.0.1", password: str | None = None) -> Identity:
        """A certificate for a name and an address, with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if address is not None:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        builder = _builder(subject, self._name, key).add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        paths = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        how: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            how = serialization.BestAvailableEncryption(password.encode())
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
        return Identity(str(paths[0]), str(paths[1]))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
    )


class TlsServer:
    """Accepts connections with TLS; each is served in a thread.

    Args:
        identity: of the server.
        target: port of a node to forward to, or a FakeNode that answers.
        client_authority: a PEM file; clients must have a certificate signed by it.
    """

    def __init__(self, identity: Identity, target: int | FakeNode, *, client_authority: str | None = None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(identity.certificate, identity.key)
        if client_authority is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(client_authority)
        self._target = target
        self.subjects: list[str] = []
        self._listener = Listener(self._serve)
        self.port = self._listener.port

    @property
    def connection_string(self) -> str:
        return f"couchbases://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, plain: socket.socket) -> None:
        client = self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        self._listener.keep(client)
        try:
            client.do_handshake()
        except OSError:
            # What was sent to refuse must not be lost by a reset: wait until the client closes.
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)  # of the bare socket from here on
                while client.recv(CHUNK_BYTES):
                    pass
            client.close()
            return
        certificate = client.getpeercert() or {}
        subject: Any = certificate.get("subject", ())
        self.subjects += [value for ((_, value),) in subject]
        if isinstance(self._target, FakeNode):
            with contextlib.suppress(OSError):
                while data := client.recv(CHUNK_BYTES):
                    client.sendall(self._target.receive(data))
            return
        node = self._listener.connect(self._target, client)
        if node is not None:
            _Pump(client, node, self.port).run()


class _Pump:
    """Both ways between two sockets; one TLS socket must not be used by two threads, so one selector loop does both."""

    def __init__(self, client: ssl.SSLSocket, node: socket.socket, port: int) -> None:
        self._client = client
        self._node = node
        self._port = port
        self._reader = FrameReader()

    def run(self) -> None:
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(self._client, selectors.EVENT_READ)
            selector.register(self._node, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._client in ready:
                    while True:
                        data = self._client.recv(CHUNK_BYTES)
                        if not data:
                            return
                        self._node.sendall(data)
                        if not self._client.pending():
                            break
                if self._node in ready:
                    data = self._node.recv(CHUNK_BYTES)
                    if not data:
                        return
                    self._client.sendall(self._with_tls_port(data))

    def _with_tls_port(self, data: bytes) -> bytes:
        self._reader.receive_data(data)
        return b"".join(self._changed(frame) for frame in self._reader.frames())

    def _changed(self, frame: Frame) -> bytes:
        if b"nodesExt" in frame.value:
            config = json.loads(frame.value)
            for entry in config["nodesExt"]:
                entry["services"]["kvSSL"] = self._port
            frame.value = json.dumps(config).encode()
        return frame.encode()


def trusting(node: Node) -> ssl.SSLContext:
    """A client's context that trusts the node's own authority only."""
    return ssl.create_default_context(cadata=node.ca_certificate)


def with_certificate(context: ssl.SSLContext, directory: Path, pair: tuple[str, str]) -> ssl.SSLContext:
    """The same, with a client's certificate and key."""
    file = directory / "client.pem"
    file.write_text(pair[0] + pair[1])
    context.load_cert_chain(file)
    return context
