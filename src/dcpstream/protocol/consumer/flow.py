"""When a consumer tells its producer that received bytes were processed.

Plain integers. Every message that counts is added when it was handled, whatever came of it. What was added is
acknowledged once it is a fifth of the buffer, or a while after the last time, so that a slow trickle does not block a
producer with another idea of the buffer. A consumer that has no room acknowledges nothing until it has.

Source: kv_engine engines/ep/src/dcp/flow-control.cc, dcp_consumer_flow_control_ack_ratio; times from a recording.
"""

from __future__ import annotations

from dcpstream.protocol.consumer.controls import BUFFER_BYTES
from dcpstream.wire import Opcode

__all__ = ["ACK_INTERVAL_S", "ACK_RATIO", "COUNTED", "ConsumerWindow"]

ACK_RATIO = 0.2
"""Share of the buffer that is acknowledged at once."""

ACK_INTERVAL_S = 5.0
"""Seconds since the last acknowledgement (or the connection's beginning) after which any number of bytes is."""

COUNTED = frozenset(
    int(opcode)
    for opcode in (
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
        Opcode.DCP_SEQNO_ADVANCED,
        Opcode.DCP_OSO_SNAPSHOT,
        Opcode.DCP_CACHE_TRANSFER,
        Opcode.DCP_CACHE_TRANSFER_END,
    )
)
"""What a producer counts as sent."""


class ConsumerWindow:
    """The consumer's side of a connection's flow control.

    Attributes:
        freed_bytes: handled and not acknowledged yet.
        acked_bytes: acknowledged since the connection began.
    """

    __slots__ = ("_last_ack", "acked_bytes", "buffer_bytes", "freed_bytes")

    def __init__(self, now: float, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.buffer_bytes = buffer_bytes
        self.freed_bytes = 0
        self.acked_bytes = 0
        self._last_ack = now

    @property
    def next_timeout(self) -> float | None:
        """When what was freed is acknowledged at the latest; None if nothing was."""
        return self._last_ack + ACK_INTERVAL_S if self.freed_bytes else None

    def freed(self, count_bytes: int) -> None:
        """A message of this size was handled."""
        self.freed_bytes += count_bytes

    def take(self, now: float) -> int:
        """How many bytes to acknowledge now; 0: none."""
        freed = self.freed_bytes
        if not freed or (freed < self.buffer_bytes * ACK_RATIO and now < self._last_ack + ACK_INTERVAL_S):
            return 0
        self.freed_bytes = 0
        self.acked_bytes += freed
        self._last_ack = now
        return freed
