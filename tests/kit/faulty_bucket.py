"""A bucket in memory behind connections that refuse, cut and reorder, with the face of a `KvPool`."""

from __future__ import annotations

import random
from typing import Any

from dcpstream.client.kv.bulk import Answered
from dcpstream.errors import ConnectionLost, RemoteProtocolError
from dcpstream.model import NodeAddress
from dcpstream.wire import Frame, FrameReader, Opcode, Status
from dcpstream.wire.messages.kv import Set

VBUCKETS = 4
ADDRESS = NodeAddress("127.0.0.1", 11210)


class FaultyBucket:
    """Documents, and the faults of the connections to them.

    Attributes:
        documents: key with collection prefix → (value, flags, cas).
        refusals: probability of each status per request.
        cuts: probability that a request is the last one that its connection carries out.
        log: opcode and key of each request that was carried out.
    """

    def __init__(self, seed: int = 0, *, cuts: float = 0.0, is_unordered: bool = False) -> None:
        self.random = random.Random(seed)
        self.documents: dict[bytes, tuple[bytes, int, int]] = {}
        self.refusals: dict[int, float] = {}
        self.cuts = cuts
        self.is_unordered = is_unordered
        self.is_away = False
        self.log: list[tuple[int, bytes]] = []
        self.connections_made = 0
        self._cas = 0
        self._connection: FaultyConnection | None = None
        self.map = _Map()

    def any(self) -> FaultyConnection:
        return self.of(0)

    def of(self, vbid: int) -> FaultyConnection:
        if self.is_away:
            raise ConnectionLost("nobody listens")
        if self._connection is None:
            self._connection = FaultyConnection(self)
            self.connections_made += 1
        return self._connection

    def forget(self, connection: FaultyConnection) -> None:
        connection.close()
        if self._connection is connection:
            self._connection = None

    def close(self) -> None:
        if self._connection is not None:
            self.forget(self._connection)

    def take_map(self, text: bytes, origin: NodeAddress) -> bool:
        return True

    def carry_out(self, frame: Frame) -> Answered:
        for status, share in self.refusals.items():
            if self.random.random() < share:
                return _answer(frame, status)
        self.log.append((frame.opcode, frame.key))
        found = self.documents.get(frame.key)
        match frame.opcode:
            case Opcode.GET:
                if found is None:
                    return _answer(frame, Status.KEY_ENOENT)
                return _answer(frame, 0, cas=found[2], extras=found[1].to_bytes(4, "big"), value=found[0])
            case Opcode.DELETE:
                if found is None:
                    return _answer(frame, Status.KEY_ENOENT)
                if frame.cas and frame.cas != found[2]:
                    return _answer(frame, Status.KEY_EEXISTS)
                del self.documents[frame.key]
                return _answer(frame, 0)
            case Opcode.SET | Opcode.ADD | Opcode.REPLACE:
                if frame.opcode == Opcode.ADD and found is not None:
                    return _answer(frame, Status.KEY_EEXISTS)
                if found is None and (frame.opcode == Opcode.REPLACE or frame.cas):
                    return _answer(frame, Status.KEY_ENOENT)
                if frame.cas and found is not None and frame.cas != found[2]:
                    return _answer(frame, Status.KEY_EEXISTS)
                self._cas += 1
                flags = Set.unpack(frame)[0]
                self.documents[frame.key] = (frame.value, flags, self._cas)
                return _answer(frame, 0, cas=self._cas)
            case _:
                raise AssertionError(frame)


class _Map:
    vbucket_count = VBUCKETS
    version = (0, 1)


class FaultyConnection:
    """One connection; a request may be carried out whose answer never comes."""

    has_collections = True

    def __init__(self, bucket: FaultyBucket) -> None:
        self.address = ADDRESS
        self.is_unordered = bucket.is_unordered
        self._bucket = bucket
        self._reader = FrameReader()
        self._answers: list[Answered] = []
        self._is_cut = False
        self.is_closed = False

    def send(self, data: bytes) -> None:
        if self.is_closed:
            raise ConnectionLost("closed")
        self._reader.receive_data(data)
        found = []
        for frame in self._reader.frames():
            if self._is_cut:
                break
            answer = self._bucket.carry_out(frame)
            if self._bucket.random.random() < self._bucket.cuts:
                self._is_cut = True
                break
            found.append(answer)
        if self.is_unordered:
            self._bucket.random.shuffle(found)
        self._answers += found

    def answers(self, count: int) -> list[Answered]:
        if self.is_closed or len(self._answers) < count:
            raise ConnectionLost("cut")
        found, self._answers = self._answers[:count], self._answers[count:]
        return found

    def check(self, answer: Answered, opcode: int) -> None:
        if answer.opcode != opcode:
            raise RemoteProtocolError(f"{answer.opcode} for {opcode}")

    def ask(self, request: bytes) -> Answered:
        raise ConnectionLost("no maps here")

    def close(self) -> None:
        self.is_closed = True


def _answer(frame: Frame, status: int, **parts: Any) -> Answered:
    values = {"datatype": 0, "cas": 0, "extras": b"", "value": b"", **parts}
    return Answered(status=status, opcode=frame.opcode, opaque=frame.opaque, **values)
