"""A blocking socket to a running node that sends and reads single frames, encrypted or not."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from typing import Self, Unpack

from dcpstream.dcp.sasl import ClientLogin
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, Status, encode_request
from dcpstream_node.testing.simulation import FrameFields
from tests.kit.waiting import TIMEOUT_S

NONCE = bytes(range(24))
"""The nonce of a SCRAM login."""
FEATURES = (Feature.XERROR, Feature.MUTATION_SEQNO, Feature.COLLECTIONS, Feature.SELECT_BUCKET)
CHUNK_BYTES = 1 << 18
SMALL_BUFFER_BYTES = 4096


class SocketPeer:
    """A connection that sends what a test says and nothing else.

    Args:
        port: the node's, on `host`.
        context: for TLS; None connects without.
        small: whether the receive buffer is small, so that the client is soon full.
    """

    def __init__(
        self, port: int, context: ssl.SSLContext | None = None, *, host: str = "127.0.0.1", small: bool = False
    ) -> None:
        raw = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if small:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.settimeout(TIMEOUT_S)
        raw.connect((host, port))
        self.socket = raw if context is None else context.wrap_socket(raw, server_hostname="localhost")
        self._reader = FrameReader()

    # ------------------------------------------------------------------------------------------------------- frames

    def send(self, opcode: int, **fields: Unpack[FrameFields]) -> None:
        """Send a request."""
        self.socket.sendall(encode_request(opcode, **fields))

    def read(self) -> Frame | None:
        """The next frame, None when the node has closed."""
        while (frame := self._reader.next_frame()) is None:
            try:
                data = self.socket.recv(CHUNK_BYTES)
            except (ConnectionError, ssl.SSLError):
                return None
            if not data:
                return None
            self._reader.receive_data(data)
        return frame

    def next(self) -> Frame:
        """The next frame; the node must not close."""
        frame = self.read()
        assert frame is not None, "the node closed the connection"
        return frame

    def read_ready(self) -> list[Frame]:
        """The frames that are there, at least one.

        Raises:
            ConnectionError: the node has closed.
        """
        first = self.read()
        if first is None:
            raise ConnectionError("closed by the node")
        return [first, *self._reader.frames()]

    def call(self, opcode: int, **fields: Unpack[FrameFields]) -> Frame:
        """Send a request; returns the next frame."""
        self.send(opcode, **fields)
        return self.next()

    def succeed(self, opcode: int, **fields: Unpack[FrameFields]) -> Frame:
        """Send a request; returns its answer, which must be a success."""
        answer = self.call(opcode, **fields)
        assert answer.is_response, answer
        assert answer.status == 0, answer
        return answer

    def is_closed(self) -> bool:
        """Whether the node closes the connection before it sends anything else."""
        return self.read() is None

    # -------------------------------------------------------------------------------------------------------- login

    def hello(self, features: Iterable[int] = FEATURES) -> None:
        """HELLO."""
        self.succeed(Opcode.HELLO, key=b"test", value=b"".join(struct.pack(">H", code) for code in features))

    def plain(self, user: str, password: str) -> int:
        """The status of a login with PLAIN."""
        return self.call(Opcode.SASL_AUTH, key=b"PLAIN", value=f"\0{user}\0{password}".encode()).status

    def scram(self, mechanism: str, user: str, password: str) -> int:
        """The status of a login with SCRAM."""
        login = ClientLogin(mechanism, user, password, NONCE)
        answer = self.call(Opcode.SASL_AUTH, key=mechanism.encode(), value=login.start())
        if answer.status == Status.AUTH_CONTINUE:
            answer = self.call(Opcode.SASL_STEP, key=mechanism.encode(), value=login.step(answer.value))
        return answer.status

    def open(
        self,
        user: str = "Administrator",
        password: str = "password",
        bucket: str = "default",
        *,
        features: Iterable[int] = FEATURES,
    ) -> Self:
        """Log in and select a bucket."""
        self.hello(features)
        assert self.plain(user, password) == 0
        self.succeed(Opcode.SELECT_BUCKET, key=bucket.encode())
        return self

    # ---------------------------------------------------------------------------------------------------- documents

    def set(self, key: str, value: bytes, vbid: int = 0) -> Frame:
        """SET in the default collection."""
        return self.call(Opcode.SET, key=b"\0" + key.encode(), value=value, extras=bytes(8), vbid=vbid)

    def get(self, key: str, vbid: int = 0) -> Frame:
        """GET in the default collection."""
        return self.call(Opcode.GET, key=b"\0" + key.encode(), vbid=vbid)

    def persisted(self, seqno: int, vbid: int = 0) -> None:
        """Return when a seqno is on disk."""
        self.succeed(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", seqno), vbid=vbid)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
