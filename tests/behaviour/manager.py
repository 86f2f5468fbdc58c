"""What a cluster manager does to move a vbucket: it joins a consumer of one node with a producer of the other.

Frames pass through it one at a time, so that a test can stop (or kill somebody) after any of them.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple, Self

from dcpstream.wire import Feature, Frame, FrameReader, Opcode, OpenFlag, StreamFlag, encode_request
from tools.patience import patient

TIMEOUT_S = patient(20.0)
FEATURES = (Feature.XATTR, Feature.XERROR, Feature.SNAPPY, Feature.JSON, Feature.MUTATION_SEQNO, Feature.COLLECTIONS)


class Address(NamedTuple):
    """Where a node listens, and its administrator."""

    host: str
    port: int
    username: str = "Administrator"
    password: str = "password"


class Wire:
    """A blocking connection, logged in, with the bucket selected."""

    def __init__(self, address: Address, bucket: str = "default") -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = FrameReader()
        self._opaque = 0
        self.call(Opcode.HELLO, key=b"manager", value=b"".join(struct.pack(">H", code) for code in FEATURES))
        login = f"\0{address.username}\0{address.password}".encode()
        self.call(Opcode.SASL_AUTH, key=b"PLAIN", value=login)
        self.call(Opcode.SELECT_BUCKET, key=bucket.encode())

    def call(self, opcode: int, *, is_checked: bool = True, **fields: object) -> Frame:
        """A request and its answer; other frames must not come in between."""
        self._opaque += 1
        self.socket.sendall(encode_request(opcode, opaque=self._opaque, **fields))  # type: ignore[arg-type]
        answer = self.read()[0]
        assert answer.is_response, answer
        assert not (is_checked and answer.status), answer
        return answer

    def read(self) -> list[Frame]:
        """At least one frame.

        Raises: ConnectionError: there will be none.
        """
        while True:
            frames = list(self.reader.frames())
            if frames:
                return frames
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed by the node")
            self.reader.receive_data(data)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ administration

    def set_vbucket(self, vbid: int, state: int) -> None:
        self.call(Opcode.SET_VBUCKET, vbid=vbid, extras=bytes([state]))

    def state(self, vbid: int) -> int:
        return int.from_bytes(self.call(Opcode.GET_VBUCKET, vbid=vbid).value, "big")

    def set(self, vbid: int, key: bytes, value: bytes) -> None:
        self.call(Opcode.SET, vbid=vbid, key=b"\0" + key, value=value, extras=bytes(8))

    def get(self, vbid: int, key: bytes) -> tuple[int, bytes, int]:
        """(status, value, CAS)."""
        answer = self.call(Opcode.GET, vbid=vbid, key=b"\0" + key, is_checked=False)
        return answer.status, answer.value, answer.cas

    def high_seqno(self, vbid: int) -> int:
        """Of the vbucket in whatever role."""
        vbuuid = self.call(Opcode.GET_FAILOVER_LOG, vbid=vbid).value[:8]
        value = self.call(Opcode.OBSERVE_SEQNO, vbid=vbid, value=vbuuid).value
        return int.from_bytes(value[19:27], "big")

    def persist(self, vbid: int) -> None:
        """Return when all of the vbucket is durable."""
        self.call(Opcode.SEQNO_PERSISTENCE, vbid=vbid, extras=self.high_seqno(vbid).to_bytes(8, "big"))


class Move:
    """One attempt to move a vbucket.

    Args:
        old: who has it.
        new: who is to have it.
        after: called after each frame that passed, with its sender ("old" or "new") and the frame; may kill somebody.

    Attributes:
        passed: how many frames went over.
        status: of the ADD_STREAM, once it is known.
        is_done: STREAM_END went over.
    """

    def __init__(
        self, old: Address, new: Address, vbid: int, after: Callable[[str, Frame], None] = lambda *_: None
    ) -> None:
        self._after = after
        self.passed = 0
        self.status: int | None = None
        self.is_done = False
        self._vbid = vbid
        name = b"replication:move:%d" % vbid
        flags = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES | OpenFlag.INCLUDE_DELETED_USER_XATTRS
        self.producer = Wire(old)
        self.producer.call(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", 0, flags | OpenFlag.PRODUCER))
        self.consumer = Wire(new)
        self.consumer.call(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", 0, OpenFlag.INCLUDE_DELETE_TIMES))

    def run(self, flags: int = StreamFlag.TAKEOVER, until: Callable[[], bool] = lambda: False) -> bool:
        """Move it; False if somebody closed a connection before it was done."""
        add = encode_request(Opcode.DCP_ADD_STREAM, vbid=self._vbid, opaque=0xADD, extras=flags.to_bytes(4, "big"))
        deadline = time.monotonic() + TIMEOUT_S
        try:
            self.consumer.socket.sendall(add)
            with selectors.DefaultSelector() as selector:
                selector.register(self.producer.socket, selectors.EVENT_READ, "old")
                selector.register(self.consumer.socket, selectors.EVENT_READ, "new")
                while not self.is_done and not until():
                    assert time.monotonic() < deadline, "the move hangs"
                    for key, _ in selector.select(0.5):
                        self._pass(key.data)
        except OSError:
            return False
        finally:
            self.producer.close()
            self.consumer.close()
        return True

    def _pass(self, sender: str) -> None:
        come, go = (self.producer, self.consumer) if sender == "old" else (self.consumer, self.producer)
        for frame in come.read():
            if frame.is_response and frame.opcode == Opcode.DCP_ADD_STREAM:
                self.status = frame.status
                continue
            go.socket.sendall(frame.encode())
            self.passed += 1
            if frame.opcode == Opcode.DCP_STREAM_END:
                self.is_done = True
            self._after(sender, frame)
