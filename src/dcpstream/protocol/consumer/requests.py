"""The STREAM_REQs of a consumer: which wait, which are asked, and what comes of their answers.

Each ADD_STREAM is answered once, when the producer has said yes or no; a rollback is neither. A stream that was closed
meanwhile is not asked for, and if it was asked before, its answer is taken and says nothing.

Source: kv_engine engines/ep/src/dcp/consumer.cc (streamAccepted, handleRollbackResponse), recordings of every answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dcpstream.errors import FieldError, RemoteProtocolError
from dcpstream.protocol.bucket import ReplicaBucket
from dcpstream.protocol.consumer.stream import ConsumerStream, StreamEvent
from dcpstream.wire import Frame, Status
from dcpstream.wire.messages.dcp import AddStreamResponse, RollbackResponse
from dcpstream.wire.values import decode_failover_log

__all__ = ["StreamRequests"]


class StreamRequests:
    """The STREAM_REQs of one connection.

    Args:
        replicas: the bucket, for its manifest.
        out: where requests, and answers to ADD_STREAM, go.
        has_collections: requests say which manifest is known.
    """

    def __init__(self, replicas: ReplicaBucket, out: deque[bytes], *, has_collections: bool) -> None:
        self._replicas = replicas
        self._out = out
        self._has_collections = has_collections
        self._waiting: deque[ConsumerStream] = deque()
        self._asked: dict[int, ConsumerStream] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing was asked."""
        return not self._waiting and not self._asked

    def add(self, stream: ConsumerStream) -> None:
        """Ask for a stream as soon as it may be."""
        self._waiting.append(stream)

    def send_waiting(self) -> None:
        """The controls are through: ask for all that waits, in its order."""
        while self._waiting:
            stream = self._waiting.popleft()
            if stream.is_living:
                self._send(stream)

    def _send(self, stream: ConsumerStream) -> None:
        uid = self._replicas.manifest.uid
        value = b'{"uid":"%x"}' % uid if uid and self._has_collections else b""
        self._asked[stream.opaque] = stream
        self._out.append(stream.request(value))

    def answered(self, frame: Frame, current: Callable[[int], ConsumerStream | None]) -> ConsumerStream | None:
        """Take the answer to a STREAM_REQ.

        Args:
            current: the connection's stream of a vbucket.

        Returns: the stream, if it is accepted now.

        Raises:
            RemoteProtocolError: nothing of the kind was asked, or the answer is malformed.
        """
        stream = self._asked.pop(frame.opaque, None)
        if stream is None or current(stream.vbid) is not stream:
            raise RemoteProtocolError("the peer answered a STREAM_REQ that nothing waits for")
        was_living = stream.is_living
        if frame.status == Status.ROLLBACK:
            if len(frame.value) != RollbackResponse.layout.value_bytes:
                raise RemoteProtocolError(f"a rollback with {len(frame.value)} bytes instead of a seqno")
            if stream.rolled_back(RollbackResponse.unpack(frame)[0]):
                self._send(stream)
            return None
        if frame.status == Status.SUCCESS:
            try:
                log = decode_failover_log(frame.value)
            except FieldError as error:
                raise RemoteProtocolError(f"a stream was accepted with {error}") from error
            stream.accepted(log)
        else:
            stream.go(StreamEvent.REFUSED)
        if was_living:
            self._out.append(AddStreamResponse.pack(stream.number, status=frame.status, opaque=stream.add_opaque))
        return stream if stream.is_reading else None

    def clear(self) -> None:
        """Forget everything: the connection ends."""
        self._waiting.clear()
        self._asked.clear()
