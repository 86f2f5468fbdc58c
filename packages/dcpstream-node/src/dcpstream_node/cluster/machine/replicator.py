"""Feeds the copies of one node from another node: a consumer connection and a producer connection, joined.

Theory of operation. Nodes do not connect to each other. The orchestrator opens a producer connection to the source and
a consumer connection to the destination, and passes every frame from one to the other. It sends two requests of its
own to the consumer: ADD_STREAM, which makes the consumer ask the source for a vbucket, and CLOSE_STREAM; and
CLOSE_STREAM to the producer. It keeps the answers to these, and reads the STREAM_ENDs that it passes on. Frames that
are not for the orchestrator are not decoded.

Source: ns_server's dcp_proxy, dcp_consumer_conn and dcp_producer_conn, which do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from dcpstream.errors import ConnectionLost
from dcpstream.wire import (
    HEADER_BYTES,
    Frame,
    Opcode,
    OpenFlag,
    RequestFields,
    Status,
    decode_frame,
    encode_request,
)
from dcpstream.wire.layout import Group
from dcpstream.wire.messages import opcodes_of
from dcpstream.wire.messages.dcp import Open
from dcpstream.wire.status import status_error
from dcpstream_node.cluster.machine.link import Link
from dcpstream_node.cluster.machine.tasks import Outcome, Procedure

SOURCE, DESTINATION = "source", "destination"

HELD_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that wait while replication is paused: more than the window of a consumer, 50 MiB, ever lets a source send."""

NO_VBUCKET = 0xFFFF
"""A number that no vbucket has."""

_BODY_AT, _BODY_END = 8, 12
_LOOKED_AT = {
    SOURCE: opcodes_of(Group.FROM_SOURCE),
    DESTINATION: opcodes_of(Group.FROM_DESTINATION),
}
"""Opcodes of the frames that may concern the orchestrator, by sender."""

_FLAGS = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES | OpenFlag.INCLUDE_DELETED_USER_XATTRS


@dataclass(slots=True)
class Feed:
    """A stream that was added.

    Attributes:
        ended: the status of its STREAM_END, once that has come.
        opaque: of the STREAM_REQ that the destination sent for it; None until then. It distinguishes the ends of two
            streams of one vbucket.
        is_closed: whether the orchestrator closed it.
    """

    ended: Outcome[int] = field(default_factory=Outcome)
    opaque: int | None = None
    is_closed: bool = False


def openings(name: str, consumer_name: str) -> tuple[RequestFields, RequestFields]:
    """DCP_OPEN for the source and for the destination.

    Args:
        name: of both connections.
        consumer_name: the destination's name in topologies, under which it acknowledges durable writes.
    """
    source = RequestFields(key=name.encode(), extras=Open.layout.extras.pack(0, _FLAGS | OpenFlag.PRODUCER))
    destination = RequestFields(
        key=name.encode(),
        extras=Open.layout.extras.pack(0, OpenFlag.INCLUDE_DELETE_TIMES),
        value=b'{"consumer_name":"%b"}' % consumer_name.encode(),
        datatype=1,
    )
    return source, destination


class Replicator:
    """The replication of one bucket from one node to another.

    Args:
        producer: the connection to the source.
        consumer: the connection to the destination.
        ended: called with vbucket and status when a stream ends that nobody closed and nobody waits for.
        lost: called when one of the connections is lost.

    Attributes:
        feeds: vbucket → its stream, until that has ended.
        is_paused: whether the source's frames are held back.
        capture: called with the sender and the bytes of all that passes; None: nobody looks.
    """

    def __init__(
        self,
        producer: Link,
        consumer: Link,
        ended: Callable[[Replicator, int, int], None],
        lost: Callable[[Replicator, Exception], None],
    ) -> None:
        self.producer = producer
        self.consumer = consumer
        self.feeds: dict[int, Feed] = {}
        self.is_paused = False
        self.capture: Callable[[str, bytes], None] | None = None
        self._ended = ended
        self._lost = lost
        self._held = {SOURCE: bytearray(), DESTINATION: bytearray()}
        self._answers: dict[tuple[str, int], Outcome[int]] = {}
        self._closing: list[tuple[int, Feed]] = []
        self._opaques = count(1)
        producer.tap = lambda data: self._take(SOURCE, data)
        consumer.tap = lambda data: self._take(DESTINATION, data)

    @property
    def is_closed(self) -> bool:
        """Whether one of its connections ended."""
        return self.producer.is_closed or self.consumer.is_closed

    # ---------------------------------------------------------------------------------------- the orchestrator's orders

    def add_stream(self, vbid: int, flags: int = 0) -> Outcome[int]:
        """ADD_STREAM to the destination; there when the destination says that the source accepted.

        Errors: StatusError: the destination or the source refused. ConnectionLost: one of them is gone.
        """
        feed = self.feeds[vbid] = Feed()
        answer = self._ask(self.consumer, DESTINATION, Opcode.DCP_ADD_STREAM, vbid, flags.to_bytes(4, "big"))
        found: Outcome[int] = Outcome()

        def take() -> None:
            if answer.error is None and answer.value == Status.SUCCESS:
                found.succeed(answer.value)
                return
            if self.feeds.get(vbid) is feed:
                del self.feeds[vbid]
            where = f"vbucket {vbid} from node {self.producer.node} to node {self.consumer.node}"
            found.fail(
                answer.error or status_error(answer.value, opcode=Opcode.DCP_ADD_STREAM, vbid=vbid, context=where)
            )

        answer.then(take)
        return found

    def close_stream(self, vbid: int) -> Procedure[None]:
        """CLOSE_STREAM to the destination and to the source; through when the source has ended the stream.

        Both may answer that they have no such stream.
        """
        feed = self.feeds.pop(vbid, None)
        if feed is not None:
            feed.is_closed = True
            self._closing.append((vbid, feed))
        _, of_source = yield [
            self._ask(self.consumer, DESTINATION, Opcode.DCP_CLOSE_STREAM, vbid),
            self._ask(self.producer, SOURCE, Opcode.DCP_CLOSE_STREAM, vbid),
        ]
        if feed is not None:
            if of_source == Status.SUCCESS:
                yield feed.ended
            elif (vbid, feed) in self._closing:  # it had ended before
                self._closing.remove((vbid, feed))

    def barrier(self) -> Outcome[int]:
        """There when the destination has carried out everything that was passed on to it before.

        It closes a stream that is none; the answer comes in the order of the requests.
        """
        return self._ask(self.consumer, DESTINATION, Opcode.DCP_CLOSE_STREAM, NO_VBUCKET)

    def _ask(self, link: Link, side: str, opcode: int, vbid: int, extras: bytes = b"") -> Outcome[int]:
        if self.is_closed:
            return Outcome.failed(ConnectionLost(f"replication to node {self.consumer.node} is closed"))
        opaque = next(self._opaques) & 0xFFFFFFFF
        answer = self._answers[side, opaque] = Outcome()
        data = encode_request(opcode, vbid=vbid, opaque=opaque, extras=extras)
        if self.capture is not None:
            self.capture(f"orchestrator to {side}", data)
        link.send(data)
        return answer

    def pause(self, *, is_on: bool) -> None:
        """Hold back what the source sends, or pass it on again: meanwhile the copies stay as they are."""
        self.is_paused = is_on
        if not is_on:
            self._pass(SOURCE)

    def lost(self, error: Exception) -> None:
        """One of the connections ended: the other one is closed, and whoever waits gets the error."""
        for link in (self.producer, self.consumer):
            link.lost(error)
        answers, self._answers = self._answers, {}
        feeds = [*self.feeds.values(), *(feed for _, feed in self._closing)]
        self.feeds, self._closing = {}, []
        for answer in answers.values():
            answer.fail(error)
        for feed in feeds:
            feed.ended.fail(error)
        self._lost(self, error)

    # ------------------------------------------------------------------------------------------------------- the relay

    def _take(self, side: str, data: bytes | bytearray | memoryview) -> None:
        held = self._held[side]
        held += data
        if side == SOURCE and self.is_paused and len(held) < HELD_BYTES_MAX:
            return
        self._pass(side)

    def _pass(self, side: str) -> None:
        """Pass on every whole frame; those for the orchestrator stay here."""
        held, looked_at = self._held[side], _LOOKED_AT[side]
        kept_from = at = 0
        while len(held) - at >= HEADER_BYTES:
            end = at + HEADER_BYTES + int.from_bytes(held[at + _BODY_AT : at + _BODY_END], "big")
            if len(held) < end:
                break
            if held[at + 1] in looked_at:
                frame = decode_frame(held, at)
                if self._is_ours(side, frame):
                    self._forward(side, bytes(held[kept_from:at]))
                    if self.capture is not None:
                        self.capture(f"{side} to orchestrator", bytes(held[at:end]))
                    kept_from = end
            at = end
        self._forward(side, bytes(held[kept_from:at]))
        del held[:at]

    def _forward(self, side: str, data: bytes) -> None:
        if data:
            if self.capture is not None:
                self.capture(side, data)
            (self.consumer if side == SOURCE else self.producer).send(data)

    def _is_ours(self, side: str, frame: Frame) -> bool:
        """Look at a frame; whether it is an answer to the orchestrator, which is not passed on."""
        if frame.is_response:
            answer = self._answers.pop((side, frame.opaque), None)
            if answer is not None:
                answer.succeed(frame.status)
            return answer is not None
        if frame.opcode == Opcode.DCP_STREAM_END:
            self._end(frame)
        elif frame.opcode == Opcode.DCP_STREAM_REQ:
            feed = self.feeds.get(frame.vbid)
            if feed is not None:
                feed.opaque = frame.opaque
        return False

    def _end(self, frame: Frame) -> None:
        vbid, status = frame.vbid, int.from_bytes(frame.extras, "big")
        feed = self.feeds.get(vbid)
        if feed is not None and feed.opaque == frame.opaque:
            del self.feeds[vbid]
            feed.ended.succeed(status)
            self._ended(self, vbid, status)
            return
        for closing in [each for each in self._closing if each[0] == vbid and each[1].opaque == frame.opaque]:
            self._closing.remove(closing)
            closing[1].ended.succeed(status)
