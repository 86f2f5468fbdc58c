"""Rules of the traffic between nodes and machines: seqnos rise, windows are kept, no position is accepted wrongly.

The judge sees the bytes of every connection as the node sends and takes them. From STREAM_REQs it knows what each
stream was asked for, from the histories what the answer should be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.simulation.judges import frames
from lab.simulation.judges.frames import Cutter, Message
from lab.simulation.judges.history import Histories, Violation
from lab.simulation.lines import Line

SUCCESS, EXISTS, ROLLBACK = 0x00, 0x02, 0x23
ACTIVE = b"\x01"
"""The state that SET_VBUCKET gives a copy which serves."""
MAP = b"vBucketMap"
"""Stands in each map of a bucket."""


@dataclass(slots=True)
class Request:
    """A stream that was asked for."""

    vbid: int
    start: int
    vbuuid: int
    snapshot_start: int
    snapshot_end: int


@dataclass(slots=True)
class Stream:
    """A stream that was accepted.

    Attributes:
        seqno: the last one.
        low, high: bounds of the snapshot that is being sent.
        is_unordered: whether an OSO snapshot is being sent.
        keys: of the documents in the snapshot that is being sent.
    """

    vbid: int
    seqno: int
    low: int = 0
    high: int = 0
    is_unordered: bool = False
    keys: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class Received:
    """The snapshot that a copy was sent last, on any connection.

    Attributes:
        high: its end.
        first: the first seqno that was sent of it since it was announced; 0: none yet.
        is_whole: whether its last item was sent.
    """

    high: int
    first: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class Conversation:
    """One connection.

    Attributes:
        window: the flow-control window; 0: none was agreed.
        unacked: bytes that the peer has not acknowledged.
        controls: opaque → the window that was asked for.
    """

    to_node: Cutter = field(default_factory=Cutter)
    from_node: Cutter = field(default_factory=Cutter)
    window: int = 0
    unacked: int = 0
    controls: dict[int, int] = field(default_factory=dict)
    requests: dict[int, Request] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)


class Conversations:
    """All connections of a cluster.

    Args:
        histories: of its vbuckets.
        map_sent: called with the content of each map in the turn in which the orchestrator sends it.

    Attributes:
        unacked_max: the most bytes that ever waited for an acknowledgement, as a share of the window.
        rollbacks: how many stream requests were answered with a rollback.
    """

    def __init__(self, histories: Histories, map_sent: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        self._histories = histories
        self._map_sent = map_sent
        self._open: dict[Line, Conversation] = {}
        self._received: dict[tuple[str, int], Received] = {}
        self.unacked_max = 0.0
        self.rollbacks = 0

    def opened(self, line: Line) -> None:
        """A connection is there."""
        self._open[line] = Conversation()

    def closed(self, line: Line) -> None:
        """A connection is gone."""
        self._open.pop(line, None)

    def said(self, line: Line, data: bytes) -> None:
        """The orchestrator has said this in this turn; only then its maps must be true. These are whole messages."""
        if MAP in data:
            for message in frames.cut(data):
                if message.opcode == frames.SET_MAP and MAP in message.value:
                    self._map_sent(json.loads(message.value))

    def to_node(self, line: Line, data: bytes) -> None:
        """Bytes are about to reach the node."""
        talk = self._open[line]
        for message in talk.to_node.take(data):
            if message.opcode == frames.STREAM_REQUEST and not message.is_response:
                start, vbuuid, low, high = (message.u64(at) for at in (8, 24, 32, 40))
                talk.requests[message.opaque] = Request(message.number, start, vbuuid, low, high)
            elif message.opcode == frames.BUFFER_ACK and not message.is_response:
                talk.unacked -= int.from_bytes(message.extras, "big")
                if talk.unacked < 0:
                    raise Violation(f"{line.name} acknowledges {-talk.unacked} bytes that {line.node} never sent")
            elif message.opcode == frames.CONTROL and message.key == b"connection_buffer_size":
                talk.controls[message.opaque] = int(message.value)
            elif message.opcode == frames.MARKER and not message.is_response:
                self._received[line.node, message.number] = Received(frames.bounds(message)[1])
            elif message.opcode == frames.SET_VBUCKET and message.extras[:1] == ACTIVE and not message.is_response:
                # From now on it writes what it acknowledges later, when it is a replica again.
                self._received.pop((line.node, message.number), None)
            elif message.opcode in frames.ITEMS and not message.is_response:
                received = self._received.get((line.node, message.number))
                if received is not None:
                    seqno = message.u64(frames.ITEMS[message.opcode])
                    received.first = received.first or seqno
                    received.is_whole = seqno == received.high

    def from_node(self, line: Line, data: bytes) -> None:
        """The node has sent bytes."""
        talk = self._open[line]
        for message in talk.from_node.take(data):
            if message.is_response:
                self._answer(line, talk, message)
            elif message.opcode in frames.WINDOWED:
                if talk.window:
                    if talk.unacked >= talk.window:
                        raise Violation(
                            f"unacknowledged bytes are bounded: {line.node} has sent {talk.unacked} of a window of "
                            f"{talk.window}, and sends more to {line.name}"
                        )
                    talk.unacked += message.size + (frames.PREPARE_EXTRA if message.opcode == frames.PREPARE else 0)
                    self.unacked_max = max(self.unacked_max, talk.unacked / talk.window)
                stream = talk.streams.get(message.opaque)
                if stream is not None:
                    self._data(line, talk, stream, message)
            elif message.opcode == frames.ACKNOWLEDGED:
                received, seqno = self._received.get((line.node, message.number)), message.u64(0)
                if received is not None and 0 < received.first <= seqno and not received.is_whole:
                    raise Violation(
                        f"prepares count when their snapshot is whole: {line.node} acknowledges vbucket "
                        f"{message.number} up to {seqno}, and was not sent all from {received.first} to {received.high}"
                    )

    def _answer(self, line: Line, talk: Conversation, message: Message) -> None:
        if message.opcode == frames.CONTROL:
            window = talk.controls.pop(message.opaque, 0)
            if window and message.number == SUCCESS:
                talk.window, talk.unacked = window, talk.unacked if talk.window else 0
        elif message.opcode == frames.ADD_STREAM and message.number == EXISTS and not self._has_lost(line.node):
            raise Violation(
                f"a copy follows one source at a time: {line.node} was to follow another one, and still follows the "
                "one before"
            )
        elif message.opcode == frames.STREAM_REQUEST:
            request = talk.requests.pop(message.opaque, None)
            if request is None:
                return
            if message.number == SUCCESS:
                self._accepted(line, request)
                talk.streams[message.opaque] = Stream(request.vbid, request.start)
            elif message.number == ROLLBACK:
                self.rollbacks += 1
                self._refused(line, request, int.from_bytes((message.extras or message.value)[:8], "big"))

    def _has_lost(self, node: str) -> bool:
        """Whether a node has a connection that the other end has given up, which the node does not know yet."""
        return any(line.node == node and line.end.is_closed for line in self._open)

    def _common(self, line: Line, request: Request) -> int | None:
        """The highest seqno that the one who asks and the node have in common; None if that is not known."""
        newest = self._histories.newest.get(request.vbid)
        if newest is None or self._histories.serving(request.vbid) != line.node or not request.vbuuid:
            return None
        return self._histories.common(request.vbid, request.vbuuid, newest)

    def _accepted(self, line: Line, request: Request) -> None:
        common = self._common(line, request)
        if common is None:
            return
        end = request.start if request.start == request.snapshot_start else request.snapshot_end
        newest = self._histories.newest[request.vbid]
        if request.start > common or (newest.vbuuid != request.vbuuid and end > common):
            raise Violation(
                f"a position of another branch is refused: {line.node} accepted {request} of {line.name}, "
                f"which shares history up to {common}"
            )

    def _refused(self, line: Line, request: Request, to: int) -> None:
        if to > request.start:
            raise Violation(f"a rollback goes back: {line.node} answers {request} of {line.name} with {to}")
        common = self._common(line, request)
        if common is not None and to > common:
            raise Violation(
                f"no rollback lands above the common point: {line.node} sends {line.name} from {request} back to {to}, "
                f"but shares history only up to {common}"
            )

    def _data(self, line: Line, talk: Conversation, stream: Stream, message: Message) -> None:
        opcode = message.opcode
        if opcode == frames.STREAM_END:
            del talk.streams[message.opaque]
        elif opcode == frames.MARKER:
            stream.low, stream.high = frames.bounds(message)
            stream.keys.clear()
            if stream.high < stream.seqno or stream.low > stream.high:
                raise Violation(
                    f"a snapshot goes forward: {line.node} begins {stream.low} to {stream.high} for {line.name} "
                    f"at seqno {stream.seqno} of vbucket {stream.vbid}"
                )
        elif opcode == frames.OSO:
            stream.is_unordered = not stream.is_unordered
        elif opcode in frames.ITEMS:
            seqno = message.u64(frames.ITEMS[opcode])
            if stream.is_unordered:
                stream.seqno = max(stream.seqno, seqno)
                return
            if seqno <= stream.seqno and opcode != frames.ADVANCED:
                raise Violation(
                    f"seqnos rise: {line.node} sends {line.name} seqno {seqno} of vbucket {stream.vbid} "
                    f"after {stream.seqno}"
                )
            if opcode != frames.ADVANCED and not stream.low <= seqno <= stream.high:
                raise Violation(
                    f"items lie within their snapshot: {line.node} sends {line.name} seqno {seqno} of vbucket "
                    f"{stream.vbid} in a snapshot from {stream.low} to {stream.high}"
                )
            stream.seqno = seqno
            if opcode in frames.DOCUMENTS:
                if message.key in stream.keys:
                    raise Violation(
                        f"a snapshot has a document once: {line.node} sends {line.name} {message.key!r} of vbucket "
                        f"{stream.vbid} twice between {stream.low} and {stream.high}"
                    )
                stream.keys.add(message.key)
