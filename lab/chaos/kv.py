"""A small key-value client with its own bytes: it writes documents, reads them back, and knows nothing of DCP.

It talks to one node. The world knows which node has which vbucket, so there is no cluster map and no retry here.
"""

from __future__ import annotations

import json
import socket
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TIMEOUT_S = 60.0

_HEADER = struct.Struct(">BBHBBHIIQ")
_REQUEST, _RESPONSE = 0x80, 0x81
_GET, _SET, _DELETE, _HELLO, _SASL, _SELECT = 0x00, 0x01, 0x04, 0x1F, 0x21, 0x89
_SUBDOC_GET, _SUBDOC_DICT_UPSERT = 0xC5, 0xC8
_ALL_SEQNOS, _SET_VBUCKET, _SEQNO_PERSISTENCE = 0x48, 0x3D, 0xB7
_COMPACT, _SET_COLLECTIONS, _FAILOVER_LOG = 0xB3, 0xB9, 0x96
_FEATURES = (0x04, 0x06, 0x07, 0x08, 0x0B, 0x12)
"""Mutation seqnos, extended attributes, extended errors, SELECT_BUCKET, JSON, collections."""

OK, MISSING, NO_PATH = 0x00, 0x01, 0xC0
ACTIVE, REPLICA, DEAD = 1, 2, 4

XATTR = "mark"
"""The extended attribute that some documents have."""

JSON_FLAGS, BINARY_FLAGS = 0x02000006, 0x03000002


class Refused(Exception):
    """A node answered with another status than expected."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of an answer that matter."""

    status: int
    extras: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Document:
    """A document as the bucket has it: the value's bytes, and the JSON text of its extended attribute or None."""

    value: bytes
    xattr: str | None = None


def vbucket_of(key: bytes, vbuckets: int) -> int:
    """The vbucket of a key: bits 16 to 30 of its CRC-32, modulo the number of vbuckets."""
    return (zlib.crc32(key) >> 16 & 0x7FFF) % vbuckets


def prefixed(collection_id: int, key: bytes) -> bytes:
    """The key with its collection's id as LEB128 before it."""
    prefix = bytearray()
    while collection_id >= 0x80:
        prefix.append(collection_id & 0x7F | 0x80)
        collection_id >>= 7
    prefix.append(collection_id)
    return bytes(prefix) + key


class Link:
    """A connection to one node, logged in, with the bucket selected."""

    def __init__(self, port: int, *, bucket: str = "default", username: str, password: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.succeed(_HELLO, key=b"chaos", value=b"".join(code.to_bytes(2, "big") for code in _FEATURES))
        self.succeed(_SASL, key=b"PLAIN", value=f"\0{username}\0{password}".encode())
        self.succeed(_SELECT, key=bucket.encode())

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    # ------------------------------------------------------------------------------------------------------- frames

    @property
    def socket(self) -> socket.socket:
        """The socket, for one who forwards its frames."""
        return self._socket

    def send(self, opcode: int, *, vbid: int = 0, key: bytes = b"", extras: bytes = b"", value: bytes = b"") -> None:
        """Send a request."""
        self._socket.sendall(request(opcode, vbid=vbid, key=key, extras=extras, value=value))

    def frame(self) -> bytes:
        """The next whole frame.

        Raises:
            ConnectionError: the node has closed the connection.
        """
        while len(self._buffer) < _HEADER.size or len(self._buffer) < _HEADER.size + self._body():
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("closed by the node")
            self._buffer += data
        size = _HEADER.size + self._body()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    @property
    def has_frame(self) -> bool:
        """Whether a whole frame has arrived already."""
        return len(self._buffer) >= _HEADER.size and len(self._buffer) >= _HEADER.size + self._body()

    def _body(self) -> int:
        return int.from_bytes(self._buffer[8:12], "big")

    def answer(self) -> Answer:
        """The next answer; requests of the node are passed over."""
        while True:
            frame = self.frame()
            if frame[0] == _RESPONSE:
                break
        _, _, key_size, extras_size, _, status, _, _, _ = _HEADER.unpack_from(frame)
        body = frame[_HEADER.size :]
        return Answer(status, body[:extras_size], body[extras_size + key_size :])

    def call(self, opcode: int, *, vbid: int = 0, key: bytes = b"", extras: bytes = b"", value: bytes = b"") -> Answer:
        """A request and its answer."""
        self.send(opcode, vbid=vbid, key=key, extras=extras, value=value)
        return self.answer()

    def succeed(
        self, opcode: int, *, vbid: int = 0, key: bytes = b"", extras: bytes = b"", value: bytes = b""
    ) -> Answer:
        """A request and its answer.

        Raises:
            Refused: it is not a success.
        """
        answer = self.call(opcode, vbid=vbid, key=key, extras=extras, value=value)
        if answer.status != OK:
            raise Refused(f"opcode {opcode:#x} of vbucket {vbid}: status {answer.status:#x} {answer.value[:200]!r}")
        return answer

    # ---------------------------------------------------------------------------------------------------- documents

    def write(self, orders: Sequence[tuple[int, bytes, bytes | None, str | None]]) -> list[tuple[int, int] | None]:
        """Write documents, in order.

        Args:
            orders: (vbucket, key with its collection's prefix, value, extended attribute). The value None deletes;
                with an extended attribute, only that attribute is written and the value must be empty.

        Returns: (vbuuid, seqno) of each write; None for the deletion of a document that is not there.

        Raises:
            Refused: a write was refused.
        """
        frames = []
        for vbid, key, value, xattr in orders:
            if xattr is not None:
                path = XATTR.encode()
                extras = struct.pack(">HB", len(path), 0x04)
                frames.append(
                    request(_SUBDOC_DICT_UPSERT, vbid=vbid, key=key, extras=extras, value=path + xattr.encode())
                )
            elif value is None:
                frames.append(request(_DELETE, vbid=vbid, key=key))
            else:
                flags = JSON_FLAGS if value.startswith(b"{") else BINARY_FLAGS
                frames.append(request(_SET, vbid=vbid, key=key, extras=struct.pack(">II", flags, 0), value=value))
        self._socket.sendall(b"".join(frames))
        found: list[tuple[int, int] | None] = []
        for vbid, key, _, _ in orders:
            answer = self.answer()
            if answer.status == MISSING:
                found.append(None)
                continue
            if answer.status != OK:
                raise Refused(f"write of {key!r} in vbucket {vbid}: {answer.status:#x} {answer.value[:200]!r}")
            vbuuid, seqno = struct.unpack(">QQ", answer.extras[:16])
            found.append((vbuuid, seqno))
        return found

    def read(self, keys: Sequence[tuple[int, bytes]]) -> list[Document | None]:
        """Documents by (vbucket, key with its collection's prefix).

        Raises:
            Refused: a read was refused.
        """
        path = XATTR.encode()
        frames = []
        for vbid, key in keys:
            frames.append(request(_GET, vbid=vbid, key=key))
            extras = struct.pack(">HB", len(path), 0x04)
            frames.append(request(_SUBDOC_GET, vbid=vbid, key=key, extras=extras, value=path))
        self._socket.sendall(b"".join(frames))
        found: list[Document | None] = []
        for vbid, key in keys:
            value, xattr = self.answer(), self.answer()
            if value.status == MISSING:
                found.append(None)
                continue
            if value.status != OK or xattr.status not in {OK, NO_PATH}:
                raise Refused(f"read of {key!r} in vbucket {vbid}: {value.status:#x}, {xattr.status:#x}")
            found.append(Document(value.value, xattr.value.decode() if xattr.status == OK else None))
        return found

    # --------------------------------------------------------------------------------------------- a manager's orders

    def high_seqnos(self, state: int) -> dict[int, int]:
        """Vbucket → high seqno of the copies in this state."""
        value = self.succeed(_ALL_SEQNOS, extras=struct.pack(">I", state)).value
        return dict(struct.iter_unpack(">HQ", value))

    def set_vbucket(self, vbid: int, state: int) -> None:
        """Give a copy another role."""
        self.succeed(_SET_VBUCKET, vbid=vbid, extras=bytes([state]))

    def persist(self, seqnos: dict[int, int]) -> None:
        """Return when these seqnos are durable."""
        self._succeed_all(_SEQNO_PERSISTENCE, {vbid: seqno.to_bytes(8, "big") for vbid, seqno in seqnos.items()})

    def _succeed_all(self, opcode: int, extras: Mapping[int, bytes]) -> None:
        """Send a request for each vbucket, all at once, and take the answers."""
        self._socket.sendall(b"".join(request(opcode, vbid=vbid, extras=one) for vbid, one in extras.items()))
        for _ in extras:
            answer = self.answer()
            if answer.status != OK:
                raise Refused(f"opcode {opcode:#x}: status {answer.status:#x} {answer.value[:200]!r}")

    def failover_log(self, vbid: int) -> list[tuple[int, int]]:
        """(vbuuid, seqno), newest first."""
        return list(struct.iter_unpack(">QQ", self.succeed(_FAILOVER_LOG, vbid=vbid).value))

    def purge(self, vbids: Iterable[int]) -> None:
        """Forget the deletions of vbuckets."""
        self._succeed_all(_COMPACT, {vbid: struct.pack(">QQB7x", 0, 0, 1) for vbid in vbids})

    def set_collections(self, manifest: object) -> None:
        """Give the bucket these scopes and collections."""
        self.succeed(_SET_COLLECTIONS, value=json.dumps(manifest).encode())


def request(opcode: int, *, vbid: int = 0, key: bytes = b"", extras: bytes = b"", value: bytes = b"") -> bytes:
    """The bytes of a request."""
    body = extras + key + value
    datatype = 0
    return _HEADER.pack(_REQUEST, opcode, len(key), len(extras), datatype, vbid, len(body), 0, 0) + body
