"""Flow control of one connection, seen from both ends: plain integers, no messages.

The consumer names the size of its buffer. The producer counts every message of a stream with its header, as it was sent
(`ProducerWindow`); NOOPs and answers do not count. A message may start while fewer bytes than the buffer are
outstanding, so one message may overshoot.

The consumer adds every such message when it was handled, whatever came of it (`ConsumerWindow`). It acknowledges a
fifth of the buffer at once, and any smaller number of bytes some time after its last acknowledgement: a trickle must
not block a producer that assumes a smaller buffer. A consumer that has no room acknowledges nothing until it has.

Source: kv_engine engines/ep/src/dcp/producer.cc (BufferLog), flow-control.cc, dcp_consumer_flow_control_ack_ratio;
checked against recordings of a server, from which the times are taken.
"""

from __future__ import annotations

__all__ = [
    "ACK_INTERVAL_S",
    "ACK_RATIO",
    "CONSUMER_BUFFER_BYTES",
    "ConsumerWindow",
    "ProducerWindow",
]

CONSUMER_BUFFER_BYTES = 50 * 1024 * 1024
"""The buffer that a node asks for as a consumer, as recorded."""

ACK_RATIO = 0.2
"""Share of the buffer that is acknowledged at once."""

ACK_INTERVAL_S = 5.0
"""Seconds after the last acknowledgement (or the connection's beginning) when any number of bytes is acknowledged."""


class ProducerWindow:
    """The producer's end; without a limit until a buffer size is set.

    Attributes:
        buffer_bytes: the consumer's buffer; 0 means that there is no limit.
        outstanding_bytes: sent and not acknowledged.
        acked_bytes: the sum of all acknowledgements, even if they exceeded what was outstanding.
        stuck_since: when the window last moved while it was full; None while it is not full.
    """

    __slots__ = ("acked_bytes", "buffer_bytes", "outstanding_bytes", "stuck_since")

    def __init__(self) -> None:
        self.buffer_bytes = 0
        self.outstanding_bytes = 0
        self.acked_bytes = 0
        self.stuck_since: float | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether there is a limit."""
        return self.buffer_bytes > 0

    @property
    def is_full(self) -> bool:
        """Whether no message that counts may start now."""
        return 0 < self.buffer_bytes <= self.outstanding_bytes

    @property
    def credit_bytes(self) -> int | None:
        """Messages may start within this many bytes from now; None without a limit, 0 if full."""
        if not self.buffer_bytes:
            return None
        return max(0, self.buffer_bytes - self.outstanding_bytes)

    def set_buffer(self, size_bytes: int) -> None:
        """Change the limit; 0 takes it away and forgets outstanding and acknowledged bytes."""
        self.buffer_bytes = size_bytes
        if not size_bytes:
            self.outstanding_bytes = self.acked_bytes = 0

    def sent(self, count_bytes: int) -> None:
        """Messages that count were sent. They are counted without a limit too, because one may be set later."""
        self.outstanding_bytes += count_bytes

    def acknowledged(self, count_bytes: int) -> None:
        """The consumer acknowledged bytes; more than are outstanding count as all of them."""
        if self.buffer_bytes:
            self.outstanding_bytes -= min(count_bytes, self.outstanding_bytes)
            self.acked_bytes += count_bytes

    def watch(self, now: float, *, has_moved: bool) -> None:
        """Note since when the window has been full without moving."""
        if not self.is_full:
            self.stuck_since = None
        elif self.stuck_since is None or has_moved:
            self.stuck_since = now


class ConsumerWindow:
    """The consumer's end.

    Attributes:
        freed_bytes: handled and not acknowledged yet.
        acked_bytes: acknowledged since the connection began.
    """

    __slots__ = ("_last_ack", "acked_bytes", "buffer_bytes", "freed_bytes")

    def __init__(self, now: float, buffer_bytes: int = CONSUMER_BUFFER_BYTES) -> None:
        self.buffer_bytes = buffer_bytes
        self.freed_bytes = 0
        self.acked_bytes = 0
        self._last_ack = now

    @property
    def next_timeout(self) -> float | None:
        """The latest time to acknowledge the freed bytes; None if there are none."""
        return self._last_ack + ACK_INTERVAL_S if self.freed_bytes else None

    def freed(self, count_bytes: int) -> None:
        """A message of this size was handled."""
        self.freed_bytes += count_bytes

    def take(self, now: float) -> int:
        """The number of bytes to acknowledge now; 0 if none."""
        freed = self.freed_bytes
        if not freed or (freed < self.buffer_bytes * ACK_RATIO and now < self._last_ack + ACK_INTERVAL_S):
            return 0
        self.freed_bytes = 0
        self.acked_bytes += freed
        self._last_ack = now
        return freed
