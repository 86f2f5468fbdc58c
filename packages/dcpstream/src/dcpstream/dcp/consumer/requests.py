"""The STREAM_REQs of a consumer: waiting, sent, answered.

Each ADD_STREAM is answered once, when the producer has accepted or refused the stream; a rollback is neither. No
request is sent for a stream that was closed while it waited. If its request was already sent, the answer is ignored.

Source: kv_engine engines/ep/src/dcp/consumer.cc (streamAccepted, handleRollbackResponse), recordings of every answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dcpstream.dcp.bucket import ReplicaBucket
from dcpstream.dcp.consumer.stream import ConsumerStream, StreamEvent
from dcpstream.errors import FieldError, RemoteProtocolError
from dcpstream.wire import Frame, Status
from dcpstream.wire.messages.dcp import AddStreamResponse, RollbackResponse
from dcpstream.wire.values import decode_failover_log


class StreamRequests:
    """The STREAM_REQs of one connection.

    Args:
        replicas: the bucket, for the versions of the manifest that its copies have reached.
        out: gets the requests, and the answers to ADD_STREAM.
        has_collections: requests carry the version of the manifest that the copy has reached, unless it is 0.
    """

    def __init__(self, replicas: ReplicaBucket, out: deque[bytes], *, has_collections: bool) -> None:
        self._replicas = replicas
        self._out = out
        self._has_collections = has_collections
        self._waiting: deque[ConsumerStream] = deque()
        self._asked: dict[int, ConsumerStream] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no stream waits for its request or for an answer."""
        return not self._waiting and not self._asked

    def add(self, stream: ConsumerStream) -> None:
        """Request a stream as soon as the controls are done."""
        self._waiting.append(stream)

    def send_waiting(self) -> None:
        """The controls are done: request all waiting streams, in their order."""
        while self._waiting:
            stream = self._waiting.popleft()
            if stream.is_living:
                self._send(stream)

    def _send(self, stream: ConsumerStream) -> None:
        uid = self._replicas.collections_uid(stream.view)
        value = b'{"uid":"%x"}' % uid if uid and self._has_collections else b""
        self._asked[stream.opaque] = stream
        self._out.append(stream.request(value))

    def answered(self, frame: Frame, current: Callable[[int], ConsumerStream | None]) -> ConsumerStream | None:
        """Take the answer to a STREAM_REQ.

        Args:
            current: the connection's stream of a vbucket.

        Returns: the stream, if it was accepted.

        Raises:
            RemoteProtocolError: no request waits for this answer, or it is malformed.
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
