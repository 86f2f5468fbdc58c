"""A consumer connection of a node: what it answers before it has a stream.

The node's end of a connection that was opened without the producer flag. It sends nothing by itself. It answers what a
consumer without streams answers; ADD_STREAM, which would make it ask its peer for a vbucket's history, is refused with
NOT_SUPPORTED and a text.

Source: kv_engine engines/ep/src/dcp/consumer.cc, checked against recordings of a server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from dcpstream.protocol.answers import Refusal, answer, check_shape, refuse, stream_id_of
from dcpstream.protocol.producer_stream import Buffer
from dcpstream.protocol.source import HistorySource
from dcpstream.wire import Frame, Opcode, Status, StreamFlag

__all__ = ["ConsumerConnection"]

_ADD_STREAM_FLAGS = int(
    StreamFlag.TAKEOVER
    | StreamFlag.DISK_ONLY
    | StreamFlag.TO_LATEST
    | StreamFlag.ACTIVE_ONLY
    | StreamFlag.STRICT_VBUUID
)
_FROM_A_PRODUCER = frozenset(
    (
        Opcode.DCP_STREAM_END,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SET_VBUCKET_STATE,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
    )
)


class ConsumerConnection:
    """One consumer connection without streams.

    Attributes:
        close_reason: why the connection must be closed now, or None.
    """

    def __init__(self, name: str, source: HistorySource, now: float) -> None:
        self.name = name
        self.source = source
        self.close_reason: str | None = None
        self._opened_at = now
        self._answers: deque[bytes] = deque()

    def handle(self, frame: Frame, now: float) -> None:
        """Take one frame with a DCP opcode."""
        if self.close_reason is not None:
            return
        if frame.is_response:
            self.close_reason = f"the peer answered opcode 0x{frame.opcode:02x}, which was not asked"
            return
        refusal = check_shape(frame)
        if refusal is not None:
            self._answers.append(refuse(frame, refusal))
        elif frame.opcode == Opcode.DCP_OPEN:
            text = "The connection is already opened as a DCP connection"
            self._answers.append(refuse(frame, Refusal(Status.EINVAL, text)))
        elif frame.opcode == Opcode.DCP_NOOP:
            self._answers.append(answer(frame))
        elif frame.opcode == Opcode.DCP_ADD_STREAM:
            self._answers.append(refuse(frame, self._refusal_to_add(frame)))
        elif stream_id_of(frame) is not None:
            self._answers.append(refuse(frame, Refusal(Status.EINVAL)))
        elif frame.opcode == Opcode.DCP_CLOSE_STREAM or frame.opcode in _FROM_A_PRODUCER:
            self._answers.append(answer(frame, Status.KEY_ENOENT))
        else:
            self.close_reason = f"the peer sent {Opcode(frame.opcode).name} to a consumer"

    def _refusal_to_add(self, frame: Frame) -> Refusal:
        flags = int.from_bytes(frame.extras, "big")
        if flags & StreamFlag.NO_VALUE:
            return Refusal(Status.EINVAL, "stream flag 0x8 (no value) is no longer used")
        if flags & ~_ADD_STREAM_FLAGS:
            return Refusal(Status.EINVAL, "Request contains invalid flags")
        view = self.source.vbucket(frame.vbid)
        if view is None or view.state.name == "ACTIVE":
            return Refusal(Status.NOT_MY_VBUCKET)
        return Refusal(Status.NOT_SUPPORTED, "this node does not take part in replication: it has no consumer streams")

    @property
    def has_output(self) -> bool:
        """Whether there are answers to send."""
        return bool(self._answers) and self.close_reason is None

    def data_to_send(self, max_bytes: int, now: float) -> list[Buffer]:
        """The answers that wait; empty if there are none."""
        if self.close_reason is not None:
            return []
        out: list[Buffer] = list(self._answers)
        self._answers.clear()
        return out

    def vbucket_changed(self, vbid: int, now: float) -> None:
        """Without streams nothing follows from it."""

    def vbucket_state_changed(self, vbid: int, now: float) -> None:
        """Without streams nothing follows from it."""

    def vbucket_rolled_back(self, vbid: int, now: float) -> None:
        """Without streams nothing follows from it."""

    def next_timeout(self) -> float | None:
        """Nothing is waited for."""
        return None

    def handle_timeout(self, now: float) -> None:
        """Nothing is waited for."""

    def close(self, reason: str) -> None:
        """Let the connection end, for a reason outside of it."""
        self.close_reason = self.close_reason or reason

    def stats(self) -> Iterator[tuple[str, str]]:
        """Names and values of the `dcp` group for this connection."""
        prefix = f"eq_dcpq:{self.name}:"
        yield prefix + "type", "consumer"
        yield prefix + "created", str(int(self._opened_at))
        yield prefix + "pending_disconnect", str(self.close_reason is not None).lower()
        yield prefix + "supports_ack", "false"
        yield prefix + "paused", "true"
