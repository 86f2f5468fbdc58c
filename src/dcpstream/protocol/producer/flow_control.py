"""How much a producer may have sent without being told that it was processed.

Plain integers, one object a connection. A message counts with its header as it was sent; NOOPs and answers do not
count. A message may start as long as fewer bytes than the buffer are outstanding, so one message may overshoot.

Source: kv_engine engines/ep/src/dcp/producer.cc (BufferLog), checked against recordings of a server.
"""

from __future__ import annotations

__all__ = ["ProducerWindow"]


class ProducerWindow:
    """The producer's side of a connection's flow control; without a limit until a buffer size is set.

    Attributes:
        buffer_bytes: what the consumer is ready to hold; 0 means that there is no limit.
        outstanding_bytes: sent and not acknowledged.
        acked_bytes: acknowledged in all, as the consumer said it: also what was more than outstanding.
        stuck_since: when the window was last seen to move while it was full; None while it is not full.
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
        """Whether nothing that counts may start now."""
        return 0 < self.buffer_bytes <= self.outstanding_bytes

    @property
    def credit_bytes(self) -> int | None:
        """Messages may start within this many bytes from now; None without a limit, 0 if full."""
        if not self.buffer_bytes:
            return None
        return max(0, self.buffer_bytes - self.outstanding_bytes)

    def set_buffer(self, size_bytes: int) -> None:
        """Change the limit; 0 takes it away and forgets what is outstanding and acknowledged."""
        self.buffer_bytes = size_bytes
        if not size_bytes:
            self.outstanding_bytes = self.acked_bytes = 0

    def sent(self, count_bytes: int) -> None:
        """Something that counts went out; without a limit too, for one may be set later."""
        self.outstanding_bytes += count_bytes

    def acknowledged(self, count_bytes: int) -> None:
        """The consumer freed bytes; more than are outstanding are taken as all of them."""
        if self.buffer_bytes:
            self.outstanding_bytes -= min(count_bytes, self.outstanding_bytes)
            self.acked_bytes += count_bytes

    def watch(self, now: float, *, has_moved: bool) -> None:
        """Note since when the window is full without moving."""
        if not self.is_full:
            self.stuck_since = None
        elif self.stuck_since is None or has_moved:
            self.stuck_since = now
