"""Both ends of replication: a script that plays the producer of a node's copy, and two nodes joined by a pretend wire.

source = ScriptedProducer(node)             # the node's end is a consumer
source.accept(1)                               # ADD_STREAM, controls, STREAM_REQ, accepted
source.marker(1, 2)
source.mutation(b"k", 1)

wire = PretendWire(old_node, new_node)         # joined as a cluster manager joins them
wire.add_stream(1, StreamFlag.TAKEOVER)
wire.run()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Unpack

from dcpstream.dcp.consumer.connection import QUESTIONS
from dcpstream.model import FailoverLog
from dcpstream.wire import Feature, Frame, Opcode, OpenFlag, Status
from dcpstream.wire.messages.dcp import Mutation, SnapshotMarker, SnapshotMarkerV2
from dcpstream.wire.values import encode_failover_log
from dcpstream_node.testing.simulation.node import (
    WITHOUT_COLLECTIONS,
    FrameFields,
    HeaderFields,
    MessageFields,
    Peer,
    SimulatedNode,
)

LOG = FailoverLog.of((0xABCDEF, 0))
"""The failover log of a scripted producer unless the test gives another."""
STEPS_MAX = 10_000
"""Frames of one `run`; two nodes that need more never come to rest."""


class ProducerScript(ABC):
    """The messages of a cluster manager and a producer to a consumer, on any transport.

    A method that sends returns the frames that follow from it.

    Attributes:
        has_collections: whether keys carry a collection id.
        opaque: of the stream, taken from the last STREAM_REQ.
    """

    has_collections = False
    opaque = 0

    @abstractmethod
    def send_request(self, opcode: int, **fields: Unpack[FrameFields]) -> list[Frame]:
        """Send any request."""

    @abstractmethod
    def send_answer(self, request: Frame, *, status: int = 0, value: bytes = b"", datatype: int = 0) -> list[Frame]:
        """Answer a request of the consumer's."""

    def add(self, vbid: int = 1, flags: int = 0, **fields: Unpack[MessageFields]) -> list[Frame]:
        """ADD_STREAM alone."""
        fields.setdefault("opaque", 0x51)
        fields.setdefault("extras", flags.to_bytes(4, "big"))
        return self.send_request(Opcode.DCP_ADD_STREAM, vbid=vbid, **fields)

    def negotiate(self, frames: list[Frame], status: Callable[[Frame], int] | int = 0) -> list[Frame]:
        """Answer all controls in `frames` and those that follow; returns the other frames that came."""
        rest: list[Frame] = []
        waiting = list(frames)
        while waiting:
            frame = waiting.pop(0)
            if frame.is_request and frame.opcode in QUESTIONS:
                code = status(frame) if callable(status) else status
                waiting += self.send_answer(frame, status=code)
            else:
                rest.append(frame)
        return rest

    def request(self, vbid: int = 1, flags: int = 0, *, opaque: int = 0x51, refused: bytes = b"") -> Frame:
        """ADD_STREAM up to the STREAM_REQ that it leads to; `refused` is a control that the producer does not have."""

        def status(frame: Frame) -> int:
            return Status.EINVAL if frame.opcode == Opcode.DCP_CONTROL and frame.key == refused else Status.SUCCESS

        frames = self.negotiate(self.add(vbid, flags, opaque=opaque), status)
        (request,) = [frame for frame in frames if frame.opcode == Opcode.DCP_STREAM_REQ]
        self.opaque = request.opaque
        return request

    def accept(
        self, vbid: int = 1, flags: int = 0, *, log: FailoverLog = LOG, opaque: int = 0x51, refused: bytes = b""
    ) -> Frame:
        """ADD_STREAM up to its answer; `refused` as in `request`."""
        request = self.request(vbid, flags, opaque=opaque, refused=refused)
        (answer,) = self.send_answer(request, value=encode_failover_log(log))
        assert answer.opcode == Opcode.DCP_ADD_STREAM
        assert answer.status == 0
        return answer

    def send(self, opcode: int, vbid: int = 1, **fields: Unpack[MessageFields]) -> list[Frame]:
        """A message of the stream."""
        fields.setdefault("opaque", self.opaque)
        return self.send_request(opcode, vbid=vbid, **fields)

    def marker(
        self, start: int, end: int, flags: int = 1, *, vbid: int = 1, **fields: Unpack[MessageFields]
    ) -> list[Frame]:
        """A snapshot marker in version 1."""
        fields["extras"] = SnapshotMarker.layout.extras.pack(start, end, flags)
        return self.send(Opcode.DCP_SNAPSHOT_MARKER, vbid, **fields)

    def marker_v2(
        self, start: int, end: int, flags: int = 1, *, visible: int = 0, completed: int = 0, more: bytes = b""
    ) -> list[Frame]:
        """A snapshot marker in version 2.0, or 2.2 with purge seqno and high prepared seqno in `more`."""
        value = SnapshotMarkerV2.layout.value.pack(start, end, flags, visible, completed) + more
        return self.send(Opcode.DCP_SNAPSHOT_MARKER, extras=b"\2" if more else b"\0", value=value)

    def mutation(
        self, key: bytes, seqno: int, *, vbid: int = 1, value: bytes = b"v", **fields: Unpack[HeaderFields]
    ) -> list[Frame]:
        """A mutation; with collections the key is one of the default collection."""
        fields.setdefault("extras", Mutation.layout.extras.pack(seqno, 1, 0, 0, 0, 0, 0))
        fields.setdefault("cas", 0x1000 + seqno)
        prefix = b"\0" if self.has_collections else b""
        return self.send(Opcode.DCP_MUTATION, vbid, key=prefix + key, value=value, **fields)

    def snapshot(self, *keys: bytes, start: int, vbid: int = 1, flags: int = 1) -> None:
        """A whole snapshot of mutations with consecutive seqnos, to which the consumer says nothing."""
        assert self.marker(start, start + len(keys) - 1, flags, vbid=vbid) == []
        for number, key in enumerate(keys):
            assert self.mutation(key, start + number, vbid=vbid) == []

    def end(self, reason: int = 0, vbid: int = 1, **fields: Unpack[MessageFields]) -> list[Frame]:
        """STREAM_END."""
        fields["extras"] = reason.to_bytes(4, "big")
        return self.send(Opcode.DCP_STREAM_END, vbid, **fields)

    def set_state(self, state: int, vbid: int = 1, **fields: Unpack[MessageFields]) -> list[Frame]:
        """DCP SET_VBUCKET_STATE."""
        fields.setdefault("extras", bytes([state]))
        return self.send(Opcode.DCP_SET_VBUCKET_STATE, vbid, **fields)


class ScriptedProducer(ProducerScript):
    """Plays the cluster manager and the producer for a node whose end is a consumer.

    Args:
        node: the consumer's.
        name: of the connection.
        features: what the connection negotiates.
        flags: of DCP_OPEN.
        user: the name that logs in.
        fields: others of DCP_OPEN.

    Attributes:
        peer: the connection.
    """

    def __init__(
        self,
        node: SimulatedNode,
        name: bytes = b"source",
        *,
        features: Iterable[int] = WITHOUT_COLLECTIONS,
        flags: int = 0,
        user: str = "admin",
        **fields: Unpack[FrameFields],
    ) -> None:
        self.node = node
        features = tuple(features)
        self.has_collections = Feature.COLLECTIONS in features
        self.peer: Peer = node.connect(features=features, user=user)
        assert self.peer.dcp_open(name, flags, **fields).status == 0

    @property
    def closed(self) -> bool:
        """Whether the node closed the connection."""
        return self.peer.closed

    def send_request(self, opcode: int, **fields: Unpack[FrameFields]) -> list[Frame]:
        """Send any request."""
        return self.peer.send(opcode, **fields)

    def send_answer(self, request: Frame, *, status: int = 0, value: bytes = b"", datatype: int = 0) -> list[Frame]:
        """Answer a request of the node's."""
        return self.peer.answer(request, status=status, value=value, datatype=datatype)


class PretendWire:
    """Joins a producer of one node to a consumer of another, frame by frame.

    Attributes:
        answers: answers to ADD_STREAM and CLOSE_STREAM, which are for the cluster manager.
        passed: every frame that went over, in order, with its sender ("old" or "new").
    """

    def __init__(
        self, old: SimulatedNode, new: SimulatedNode, *, name: bytes = b"replication", consumer_name: str = ""
    ) -> None:
        self.old, self.new = old, new
        flags = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES | OpenFlag.INCLUDE_DELETED_USER_XATTRS
        self.producer = old.connect()
        assert self.producer.dcp_open(name, flags | OpenFlag.PRODUCER).status == 0
        self.consumer = new.connect()
        fields: FrameFields = {}
        if consumer_name:
            fields = {"value": b'{"consumer_name":"%s"}' % consumer_name.encode(), "datatype": 1}
        assert self.consumer.dcp_open(name, OpenFlag.INCLUDE_DELETE_TIMES, **fields).status == 0
        self.answers: list[Frame] = []
        self.passed: list[tuple[str, Frame]] = []
        self._to_new: list[Frame] = []
        self._to_old: list[Frame] = []

    def add_stream(self, vbid: int = 1, flags: int = 0) -> None:
        """ADD_STREAM; the frames that follow wait for `step`."""
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
        """Let frames pass until `until` holds or no frame waits."""
        for _ in range(STEPS_MAX):
            if until() or not self.step():
                return
        raise AssertionError("the two nodes never come to rest")

    def cut(self) -> None:
        """Close the connection on both sides; frames on the way are lost."""
        self.producer.disconnect()
        self.consumer.disconnect()

    def sent(self, sender: str, opcode: int) -> list[Frame]:
        """The frames with this opcode that one side ("old" or "new") sent."""
        return [frame for side, frame in self.passed if side == sender and frame.opcode == opcode]
