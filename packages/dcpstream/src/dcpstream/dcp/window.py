"""Flow control of one connection, seen from both ends, and its pauses: plain numbers, no messages.

The consumer names the size of its buffer. The producer counts every message of a stream with its header, as it was sent
(`ProducerWindow`); NOOPs and answers do not count. A message may start while fewer bytes than the buffer are
outstanding, so one message may overshoot.

The consumer, a replica or a client, counts the same bytes (`counted_bytes`) and acknowledges those that it has handled
(`ConsumerWindow`), whatever came of them. It acknowledges more than a fifth of the buffer at once. A replica
acknowledges any smaller number of bytes some time after its last acknowledgement: a trickle must not block a producer
that assumes a smaller buffer. A client's producer knows the client's buffer, so a client needs no such time. A replica
that has no room acknowledges nothing until it has.

Source: kv_engine engines/ep/src/dcp/producer.cc (BufferLog), flow-control.cc, dcp_consumer_flow_control_ack_ratio;
checked against recordings of a server, from which the times are taken.
"""

from __future__ import annotations

from dcpstream.wire import MAX_FRAME_BYTES, Opcode
from dcpstream.wire.messages import FLOW_CONTROLLED

CONSUMER_BUFFER_BYTES = 50 * 1024 * 1024
"""The buffer that a node asks for as a consumer, as recorded."""

ACK_FRACTION = 5
"""More than 1/5 of the buffer is acknowledged at once: often enough that the producer never waits for the consumer."""

ACK_INTERVAL_S = 5.0
"""Seconds after the last acknowledgement (or the connection's beginning) when any number of bytes is acknowledged."""

PREPARE_EXTRA_BYTES = 2
"""Bytes that a server counts for a PREPARE beyond its length."""

_PREPARE = int(Opcode.DCP_PREPARE)

BUFFER_FULL, INITIALIZING, NOTHING_TO_SAY = "BufferLogFull", "Initializing", "ReadyListEmpty"
"""Reasons of a pause, with the server's names, in its order."""


def counted_bytes(opcode: int, size: int) -> int:
    """The bytes that a producer's request of this size counts."""
    if opcode not in FLOW_CONTROLLED:
        return 0
    return size + PREPARE_EXTRA_BYTES if opcode == _PREPARE else size


class ProducerWindow:
    """The producer's end; without a limit until a buffer size is set.

    Attributes:
        buffer_bytes: the consumer's buffer; 0 means that there is no limit.
        outstanding_bytes: sent and not acknowledged.
        acked_bytes: the sum of all acknowledgements, even if they exceeded what was outstanding.
        is_full: whether no message that counts may start now.
        stuck_since: when the window last moved while it was full; None while it is not full.
    """

    __slots__ = ("acked_bytes", "buffer_bytes", "is_full", "outstanding_bytes", "stuck_since")

    def __init__(self) -> None:
        self.buffer_bytes = 0
        self.outstanding_bytes = 0
        self.acked_bytes = 0
        self.is_full = False
        self.stuck_since: float | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether there is a limit."""
        return self.buffer_bytes > 0

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
        self.is_full = 0 < size_bytes <= self.outstanding_bytes

    def sent(self, count_bytes: int) -> None:
        """Messages that count were sent. They are counted without a limit too, because one may be set later."""
        outstanding = self.outstanding_bytes = self.outstanding_bytes + count_bytes
        self.is_full = 0 < self.buffer_bytes <= outstanding

    def acknowledged(self, count_bytes: int, now: float) -> None:
        """The consumer acknowledged bytes; more than are outstanding count as all of them."""
        if self.buffer_bytes:
            outstanding = self.outstanding_bytes
            outstanding = self.outstanding_bytes = outstanding - count_bytes if count_bytes < outstanding else 0
            self.is_full = self.buffer_bytes <= outstanding
            self.acked_bytes += count_bytes
        if self.is_full:
            self.watch(now, has_moved=count_bytes > 0)
        else:
            self.stuck_since = None

    def watch(self, now: float, *, has_moved: bool = False) -> None:
        """Note since when the window has been full without moving."""
        if not self.is_full:
            self.stuck_since = None
        elif self.stuck_since is None or has_moved:
            self.stuck_since = now


class ConsumerWindow:
    """The consumer's end.

    Args:
        now: seconds of a monotonic clock.
        buffer_bytes: the size of the buffer, which the producer knows.
        ack_interval_s: see `ACK_INTERVAL_S`; None to acknowledge whole fifths only.

    Attributes:
        outstanding_bytes: received and not acknowledged yet.
        freed_bytes: the part of these that was handled.
        acked_bytes: acknowledged since the connection began.
    """

    __slots__ = ("_ack_interval_s", "_last_ack", "acked_bytes", "buffer_bytes", "freed_bytes", "outstanding_bytes")

    def __init__(
        self, now: float, buffer_bytes: int = CONSUMER_BUFFER_BYTES, ack_interval_s: float | None = ACK_INTERVAL_S
    ) -> None:
        self.buffer_bytes = buffer_bytes
        self.outstanding_bytes = 0
        self.freed_bytes = 0
        self.acked_bytes = 0
        self._ack_interval_s = ack_interval_s
        self._last_ack = now

    @property
    def next_timeout(self) -> float | None:
        """The latest time to acknowledge the freed bytes; None if there are none, or if they have no time."""
        interval = self._ack_interval_s
        return self._last_ack + interval if self.freed_bytes and interval is not None else None

    @property
    def is_overrun(self) -> bool:
        """Whether the producer has sent more than the buffer and one frame."""
        return self.outstanding_bytes > self.buffer_bytes + MAX_FRAME_BYTES

    def received(self, count_bytes: int) -> None:
        """Messages of this size have come, and are not handled yet."""
        self.outstanding_bytes += count_bytes

    def freed(self, count_bytes: int) -> None:
        """Received messages of this size were handled."""
        self.freed_bytes += count_bytes

    def handled(self, count_bytes: int) -> None:
        """Messages of this size have come and were handled at once."""
        self.outstanding_bytes += count_bytes
        self.freed_bytes += count_bytes

    def take(self, now: float = 0.0) -> int:
        """The number of bytes to acknowledge now; 0 if none. Without an interval the time does not count."""
        freed = self.freed_bytes
        if freed * ACK_FRACTION <= self.buffer_bytes:
            due = self.next_timeout
            if due is None or now < due:
                return 0
        self.outstanding_bytes -= freed
        self.freed_bytes = 0
        self.acked_bytes += freed
        self._last_ack = now
        return freed


class Pause:
    """The times in which a connection sent nothing.

    Args:
        now: seconds of a monotonic clock.
        reason: the reason of the first pause.

    Attributes:
        counts: reason → pauses that have ended.
        durations_s: reason → their duration, summed up.
        reason: the reason of the present pause.
    """

    def __init__(self, now: float, reason: str = NOTHING_TO_SAY) -> None:
        self.counts = dict.fromkeys((BUFFER_FULL, INITIALIZING, NOTHING_TO_SAY), 0)
        self.durations_s = dict.fromkeys(self.counts, 0.0)
        self.reason = reason
        self._since = self._now = now

    def passed(self, now: float, *, is_over: bool, reason: str = NOTHING_TO_SAY) -> None:
        """Time has passed.

        Args:
            now: seconds of a monotonic clock.
            is_over: something was sent.
            reason: the reason of the pause that begins or goes on now.
        """
        self._now = now
        if is_over or reason != self.reason:
            self.counts[self.reason] += 1
            self.durations_s[self.reason] += self.current_s
            self.reason, self._since = reason, now

    @property
    def current_s(self) -> float:
        """Duration of the present pause, as of the last call of `passed`."""
        return self._now - self._since
