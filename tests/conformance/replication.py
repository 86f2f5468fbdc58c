"""Both ends of replication: a peer that plays the source of a node's copy, and two nodes joined by a pretend wire.

source = Source(node)                          # the node's end is a consumer
source.accept(1)                               # ADD_STREAM, controls, STREAM_REQ, accepted
source.marker(1, 2)
source.mutation(b"k", 1)

link = Link(old_node, new_node)                # as a cluster manager joins them
link.add_stream(1, StreamFlag.TAKEOVER)
link.run()
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from dcpstream.model import FailoverLog
from dcpstream.wire import Frame, Opcode, OpenFlag, Status, encode_response
from dcpstream.wire.values import encode_failover_log
from tests.conformance.harness import USUAL, WITHOUT_COLLECTIONS, Node, Peer

LOG = FailoverLog.of((0xABCDEF, 0))
STEPS_MAX = 10_000
CONTROLS = (Opcode.DCP_CONTROL, Opcode.GET_ERROR_MAP)


class Source:
    """Plays manager and producer on a connection whose node end is a consumer.

    Attributes:
        opaque: the stream's, taken from the last STREAM_REQ.
    """

    def __init__(
        self,
        node: Node,
        name: bytes = b"source",
        *,
        features: Iterable[int] = WITHOUT_COLLECTIONS,
        flags: int = 0,
        user: str = "admin",
        **fields: object,
    ) -> None:
        self.node = node
        self.peer: Peer = node.connect(features=features, user=user)
        assert self.peer.dcp_open(name, flags, **fields).status == 0
        self.has_collections = 0x12 in tuple(features)
        self.opaque = 0

    @property
    def closed(self) -> bool:
        return self.peer.closed

    def add(self, vbid: int = 1, flags: int = 0, *, opaque: int = 0x51, **fields: object) -> list[Frame]:
        """ADD_STREAM alone; what comes of it."""
        fields.setdefault("extras", flags.to_bytes(4, "big"))
        return self.peer.send(Opcode.DCP_ADD_STREAM, vbid=vbid, opaque=opaque, **fields)

    def negotiate(self, frames: list[Frame], status: Callable[[Frame], int] | int = 0) -> list[Frame]:
        """Answer all controls in `frames` and those that follow; what else came."""
        rest: list[Frame] = []
        waiting = list(frames)
        while waiting:
            frame = waiting.pop(0)
            if frame.is_request and frame.opcode in CONTROLS:
                code = status(frame) if callable(status) else status
                waiting += self.peer.answer(frame, status=code)
            else:
                rest.append(frame)
        return rest

    def request(self, vbid: int = 1, flags: int = 0, *, opaque: int = 0x51) -> Frame:
        """ADD_STREAM up to the STREAM_REQ that it leads to."""
        frames = self.negotiate(self.add(vbid, flags, opaque=opaque))
        (request,) = [frame for frame in frames if frame.opcode == Opcode.DCP_STREAM_REQ]
        self.opaque = request.opaque
        return request

    def accept(self, vbid: int = 1, flags: int = 0, *, log: FailoverLog = LOG, opaque: int = 0x51) -> Frame:
        """ADD_STREAM up to its answer."""
        request = self.request(vbid, flags, opaque=opaque)
        (answer,) = self.peer.answer(request, value=encode_failover_log(log))
        assert answer.opcode == Opcode.DCP_ADD_STREAM
        assert answer.status == 0
        return answer

    def send(self, opcode: int, vbid: int = 1, **fields: object) -> list[Frame]:
        """A message of the stream; what comes of it."""
        fields.setdefault("opaque", self.opaque)
        return self.peer.send(opcode, vbid=vbid, **fields)

    def marker(self, start: int, end: int, flags: int = 1, *, vbid: int = 1, **fields: object) -> list[Frame]:
        """A marker in version 1."""
        return self.send(Opcode.DCP_SNAPSHOT_MARKER, vbid, extras=struct.pack(">QQI", start, end, flags), **fields)

    def marker_v2(
        self, start: int, end: int, flags: int = 1, *, visible: int = 0, completed: int = 0, more: bytes = b""
    ) -> list[Frame]:
        """A marker in version 2.0, or 2.2 with purge seqno and high prepared seqno in `more`."""
        value = struct.pack(">QQIQQ", start, end, flags, visible, completed) + more
        return self.send(Opcode.DCP_SNAPSHOT_MARKER, extras=b"\2" if more else b"\0", value=value)

    def mutation(self, key: bytes, seqno: int, *, vbid: int = 1, value: bytes = b"v", **fields: object) -> list[Frame]:
        """A mutation."""
        fields.setdefault("extras", struct.pack(">QQIIIHB", seqno, 1, 0, 0, 0, 0, 0))
        fields.setdefault("cas", 0x1000 + seqno)
        prefix = b"\0" if self.has_collections else b""
        return self.send(Opcode.DCP_MUTATION, vbid, key=prefix + key, value=value, **fields)

    def snapshot(self, *keys: bytes, start: int, vbid: int = 1, flags: int = 1) -> None:
        """A whole snapshot of mutations with consecutive seqnos; all is taken without an answer."""
        assert self.marker(start, start + len(keys) - 1, flags, vbid=vbid) == []
        for number, key in enumerate(keys):
            assert self.mutation(key, start + number, vbid=vbid) == []

    def end(self, reason: int = 0, vbid: int = 1, **fields: object) -> list[Frame]:
        """STREAM_END."""
        return self.send(Opcode.DCP_STREAM_END, vbid, extras=reason.to_bytes(4, "big"), **fields)

    def set_state(self, state: int, vbid: int = 1, **fields: object) -> list[Frame]:
        """DCP SET_VBUCKET_STATE."""
        fields.setdefault("extras", bytes([state]))
        return self.send(Opcode.DCP_SET_VBUCKET_STATE, vbid, **fields)


class Link:
    """A producer of one node and a consumer of another, joined frame by frame.

    Attributes:
        answers: answers to ADD_STREAM and CLOSE_STREAM, which are for the manager.
        passed: every frame that went over, in order, with who sent it ("old" or "new").
    """

    def __init__(self, old: Node, new: Node, *, name: bytes = b"replication", consumer_name: str = "") -> None:
        self.old, self.new = old, new
        flags = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES | OpenFlag.INCLUDE_DELETED_USER_XATTRS
        self.producer = old.connect(features=USUAL)
        assert self.producer.dcp_open(name, flags | OpenFlag.PRODUCER).status == 0
        self.consumer = new.connect(features=USUAL)
        fields = {"value": b'{"consumer_name":"%s"}' % consumer_name.encode(), "datatype": 1} if consumer_name else {}
        assert self.consumer.dcp_open(name, OpenFlag.INCLUDE_DELETE_TIMES, **fields).status == 0
        self.answers: list[Frame] = []
        self.passed: list[tuple[str, Frame]] = []
        self._to_new: list[Frame] = []
        self._to_old: list[Frame] = []

    def add_stream(self, vbid: int = 1, flags: int = 0) -> None:
        """ADD_STREAM; what comes of it waits for `step`."""
        self._from_new(self.consumer.send(Opcode.DCP_ADD_STREAM, vbid=vbid, extras=flags.to_bytes(4, "big")))

    def _from_new(self, frames: list[Frame]) -> None:
        for frame in frames:
            is_for_manager = frame.is_response and frame.opcode in (Opcode.DCP_ADD_STREAM, Opcode.DCP_CLOSE_STREAM)
            (self.answers if is_for_manager else self._to_old).append(frame)

    def step(self) -> bool:
        """Let one frame pass; False if none waits."""
        self._to_new += self.producer.take()
        self._from_new(self.consumer.take())
        for sender, waiting, peer in (("new", self._to_old, self.producer), ("old", self._to_new, self.consumer)):
            if waiting and not peer.closed:
                frame = waiting.pop(0)
                self.passed.append((sender, frame))
                came = peer.send_bytes(frame.encode())
                if sender == "new":
                    self._to_new += came
                else:
                    self._from_new(came)
                return True
        return False

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let frames pass until nobody has anything to say, or something is so."""
        for _ in range(STEPS_MAX):
            if until() or not self.step():
                return
        raise AssertionError("the two never come to rest")

    def sent(self, sender: str, opcode: int) -> list[Frame]:
        """What one side sent with this opcode."""
        return [frame for who, frame in self.passed if who == sender and frame.opcode == opcode]


def response(opcode: int, opaque: int, status: int = Status.SUCCESS, **fields: object) -> bytes:
    """The bytes of an answer."""
    return encode_response(opcode, status=status, opaque=opaque, **fields)  # type: ignore[arg-type]
