"""A client that is a socket and speaks frames, for tests of what a node answers byte by byte."""

from __future__ import annotations

import socket
import struct

from dcpstream.node import Node
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, encode_request
from tools.patience import patient

TIMEOUT_S = patient(20.0)


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
