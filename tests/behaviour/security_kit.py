"""Clients for tests of a node's security: byte by byte, encrypted or not, well-behaved or not."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path

from dcpstream.node import Node
from dcpstream.protocol.sasl import ClientLogin
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, Status, encode_request
from tools.patience import patient

TIMEOUT_S = patient(20.0)
NONCE = bytes(range(24))


class Wire:
    """A socket that speaks frames and does nothing of its own accord."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, *, small: bool = False) -> None:
        raw = socket.socket()
        if small:  # a client that is soon full
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(TIMEOUT_S)
        raw.connect(("127.0.0.1", port))
        self.socket = raw if context is None else context.wrap_socket(raw, server_hostname="localhost")
        self.reader = FrameReader()

    def send(self, opcode: int, **fields: object) -> None:
        self.socket.sendall(encode_request(opcode, **fields))  # type: ignore[arg-type]

    def read(self) -> Frame | None:
        """The next frame, None when the node has closed."""
        while True:
            frame = self.reader.next_frame()
            if frame is not None:
                return frame
            try:
                data = self.socket.recv(1 << 16)
            except (ConnectionError, ssl.SSLError):
                return None
            if not data:
                return None
            self.reader.receive_data(data)

    def call(self, opcode: int, **fields: object) -> Frame:
        self.send(opcode, **fields)
        frame = self.read()
        assert frame is not None, "closed"
        return frame

    def hello(self) -> None:
        features = struct.pack(
            ">4H", Feature.XERROR, Feature.MUTATION_SEQNO, Feature.COLLECTIONS, Feature.SELECT_BUCKET
        )
        assert self.call(Opcode.HELLO, value=features).status == 0

    def plain(self, user: str, password: str) -> int:
        return self.call(Opcode.SASL_AUTH, key=b"PLAIN", value=f"\0{user}\0{password}".encode()).status

    def scram(self, mechanism: str, user: str, password: str) -> int:
        login = ClientLogin(mechanism, user, password, NONCE)
        answer = self.call(Opcode.SASL_AUTH, key=mechanism.encode(), value=login.start())
        if answer.status == Status.AUTH_CONTINUE:
            answer = self.call(Opcode.SASL_STEP, key=mechanism.encode(), value=login.step(answer.value))
        return answer.status

    def open(self, user: str = "Administrator", password: str = "password", bucket: str = "default") -> Wire:
        """Log in and select a bucket."""
        self.hello()
        assert self.plain(user, password) == 0
        assert self.call(Opcode.SELECT_BUCKET, key=bucket.encode()).status == 0
        return self

    def set(self, key: str, value: bytes, vbid: int = 0) -> Frame:
        return self.call(Opcode.SET, key=b"\0" + key.encode(), value=value, extras=bytes(8), vbid=vbid)

    def get(self, key: str, vbid: int = 0) -> Frame:
        return self.call(Opcode.GET, key=b"\0" + key.encode(), vbid=vbid)

    def is_closed(self) -> bool:
        return self.read() is None

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def trusting(node: Node) -> ssl.SSLContext:
    """A client's context that trusts the node's own authority and nobody else."""
    return ssl.create_default_context(cadata=node.ca_certificate)


def with_certificate(context: ssl.SSLContext, directory: Path, pair: tuple[str, str]) -> ssl.SSLContext:
    """The same, with a client's certificate and key."""
    file = directory / "client.pem"
    file.write_text(pair[0] + pair[1])
    context.load_cert_chain(file)
    return context


def rest(
    node: Node,
    path: str,
    method: str = "GET",
    user: str = "Administrator",
    password: str = "password",
    body: str | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """(status, body) of a request to the management port."""
    if context is not None:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "localhost", node.mgmt_tls_port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def wait_until(is_true: Callable[[], bool], why: str) -> None:
    """Wait for something that another thread does; not for a time."""
    end = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < end, why
        time.sleep(0.005)
