"""One connection of the orchestrator to a node: handshake, then requests and their answers.

Theory of operation. The whole handshake is sent at once: HELLO, SASL_AUTH, SELECT_BUCKET, and for a DCP connection
DCP_OPEN. Each answer must be a success. From then on a request is answered under its opaque, in any order. A link whose
frames belong to somebody else, because it is one end of a replicator, hands every byte to its `tap`.

PLAIN is the mechanism: the orchestrator talks to nodes of its own, on its own machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Unpack

from dcpstream.errors import ConnectionLost, DcpstreamError, WireError
from dcpstream.model import NodeAddress
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, RequestFields, Status, encode_request
from dcpstream.wire.messages.kv import encode_features
from dcpstream.wire.status import status_error
from dcpstream_node.cluster.machine.tasks import Outcome

FEATURES = (
    Feature.TCP_NODELAY,
    Feature.XATTR,
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.SNAPPY,
    Feature.JSON,
    Feature.MUTATION_SEQNO,
    Feature.COLLECTIONS,
)
"""Features of every connection: those of the server's own between nodes."""
_FEATURE_CODES = encode_features(FEATURES)


class Link:
    """A connection to a node.

    Args:
        node: the node's name, for messages.
        address: where it listens.
        username, password: of the node's administrator.
        bucket: selected after the login; empty for none.
        opening: key, extras, value and datatype of DCP_OPEN; None for a connection without DCP.

    Attributes:
        opened: there when the handshake is through.
        is_closed: whether it ended; nothing is sent any more.
        tap: takes every byte that comes after the handshake, instead of `request`'s answers.
        has_output: called when there is something to send, and when the link has ended.
    """

    def __init__(
        self,
        node: str,
        address: NodeAddress,
        username: str,
        password: str,
        bucket: str = "",
        opening: RequestFields | None = None,
    ) -> None:
        self.node = node
        self.address = address
        self.bucket = bucket
        self.opened: Outcome[Link] = Outcome()
        self.is_closed = False
        self.tap: Callable[[bytes | bytearray | memoryview], None] | None = None
        self.has_output: Callable[[Link], None] = lambda _: None
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._waiting: dict[int, Outcome[Frame]] = {}
        self._opaques = count(1)
        self._steps: deque[int] = deque()
        self._open_with(Opcode.HELLO, key=b"dcpstream cluster", value=_FEATURE_CODES)
        self._open_with(Opcode.SASL_AUTH, key=b"PLAIN", value=f"\0{username}\0{password}".encode())
        if bucket:
            self._open_with(Opcode.SELECT_BUCKET, key=bucket.encode())
        if opening is not None:
            self._open_with(Opcode.DCP_OPEN, **opening)

    def _open_with(self, opcode: int, **fields: Unpack[RequestFields]) -> None:
        self._steps.append(opcode)
        self._out.append(encode_request(opcode, **fields))

    # --------------------------------------------------------------------------------------------------- for the shell

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes that came."""
        if self.is_closed:
            return
        if self.tap is not None and not self._steps and not self._reader.pending_bytes:
            self.tap(data)
            return
        self._reader.receive_data(data)
        try:
            for frame in self._reader.frames():
                if self._steps:
                    self._take_step(frame)
                elif self.tap is not None:  # it came together with the end of the handshake
                    self.tap(frame.encode())
                elif frame.is_response:
                    waiting = self._waiting.pop(frame.opaque, None)
                    if waiting is not None:
                        waiting.succeed(frame)
        except (WireError, DcpstreamError) as error:
            self.lost(error)

    def _take_step(self, frame: Frame) -> None:
        opcode = self._steps.popleft()
        if frame.opcode != opcode or not frame.is_response or frame.status != Status.SUCCESS:
            raise status_error(frame.status, opcode=frame.opcode, opaque=0, context=f"connecting to node {self.node}")
        if not self._steps:
            self.opened.succeed(self)

    def data_to_send(self) -> bytes:
        """The bytes to send now."""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def lost(self, error: Exception) -> None:
        """The connection ended: whoever waits for an answer gets the error."""
        if self.is_closed:
            return
        self.is_closed = True
        self._out.clear()
        self.has_output(self)  # the shell closes the socket, if it is open
        self.opened.fail(error)
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.fail(error)

    # ------------------------------------------------------------------------------------------------ for procedures

    def request(self, opcode: int, **fields: Unpack[RequestFields]) -> Outcome[Frame]:
        """Send a request; the outcome is its answer, whatever its status."""
        if self.is_closed:
            return Outcome.failed(ConnectionLost(f"the connection to node {self.node} is closed"))
        opaque = next(self._opaques) & 0xFFFFFFFF
        answer = self._waiting[opaque] = Outcome()
        self.send(encode_request(opcode, opaque=opaque, **fields))
        return answer

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        if not self.is_closed:
            self._out.append(data)
            self.has_output(self)

    def stats(self, group: bytes) -> Outcome[dict[bytes, bytes]]:
        """STAT: every key and value of a group."""
        if self.is_closed:
            return Outcome.failed(ConnectionLost(f"the connection to node {self.node} is closed"))
        found: dict[bytes, bytes] = {}
        whole: Outcome[dict[bytes, bytes]] = Outcome()
        opaque = next(self._opaques) & 0xFFFFFFFF

        def ask_on() -> None:
            answer: Outcome[Frame] = Outcome()
            self._waiting[opaque] = answer
            answer.then(lambda: take(answer))

        def take(answer: Outcome[Frame]) -> None:
            if answer.error is not None:
                whole.fail(answer.error)
            elif answer.value.status != Status.SUCCESS:
                where = f"STAT {group.decode()} of node {self.node}"
                whole.fail(status_error(answer.value.status, opcode=Opcode.STAT, opaque=opaque, context=where))
            elif answer.value.key:
                found[answer.value.key] = answer.value.value
                ask_on()
            else:
                whole.succeed(found)

        ask_on()
        self.send(encode_request(Opcode.STAT, opaque=opaque, key=group))
        return whole

    def order(self, opcode: int, **fields: Unpack[RequestFields]) -> Outcome[Frame]:
        """Send a request; the outcome is an error unless it is answered with a success."""
        answer = self.request(opcode, **fields)
        found: Outcome[Frame] = Outcome()

        def take() -> None:
            if answer.error is not None:
                found.fail(answer.error)
            elif answer.value.status != Status.SUCCESS:
                frame = answer.value
                where = f"vbucket {fields.get('vbid', 0)} of node {self.node}"
                found.fail(status_error(frame.status, opcode=opcode, opaque=frame.opaque, context=where))
            else:
                found.succeed(answer.value)

        answer.then(take)
        return found
