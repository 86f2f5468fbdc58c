"""Blocking sockets to a running node that send and read single frames, encrypted or not."""

from __future__ import annotations

import socket
import ssl
import struct

from dcpstream.node import Node
from dcpstream.protocol.sasl import ClientLogin
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, Status, encode_request
from tests.kit.waiting import TIMEOUT_S

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


class Peer:
    """A plain socket that speaks frames."""

    def __init__(self, node: Node, *, login: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", node.port), TIMEOUT_S)
        self.reader = FrameReader()
        if login:
            features = struct.pack(">3H", Feature.XERROR, Feature.MUTATION_SEQNO, Feature.COLLECTIONS)
            assert self.call(Opcode.HELLO, value=features).status == 0
            assert self.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0password").status == 0
            assert self.call(Opcode.SELECT_BUCKET, key=b"default").status == 0

    def read(self) -> Frame | None:
        """The next frame, None when the node has closed."""
        while True:
            frame = self.reader.next_frame()
            if frame is not None:
                return frame
            data = self.socket.recv(1 << 20)
            if not data:
                return None
            self.reader.receive_data(data)

    def call(self, opcode: int, **fields: object) -> Frame:
        self.socket.sendall(encode_request(opcode, **fields))  # type: ignore[arg-type]
        frame = self.read()
        assert frame is not None
        return frame

    def set(self, key: str, value: bytes, vbid: int = 0) -> Frame:
        return self.call(Opcode.SET, key=b"\0" + key.encode(), value=value, extras=bytes(8), vbid=vbid)

    def get(self, key: str, vbid: int = 0) -> Frame:
        return self.call(Opcode.GET, key=b"\0" + key.encode(), vbid=vbid)

    def persisted(self, seqno: int, vbid: int = 0) -> None:
        """Wait until a seqno is on disk."""
        assert self.call(Opcode.SEQNO_PERSISTENCE, extras=struct.pack(">Q", seqno), vbid=vbid).status == 0

    def is_closed_by_node(self) -> bool:
        try:
            return self.read() is None
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
