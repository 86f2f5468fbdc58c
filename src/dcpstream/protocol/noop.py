"""NOOPs: the liveness probes of a producer, and the time-out of a silent peer.

Plain numbers; `now` is an argument. A NOOP is due one interval after the last one (the first: after the connection
began), whatever else was sent, but not while one is unanswered. With NOOPs enabled, a peer that sends nothing for the
idle time-out is dropped; an unanswered NOOP alone does not drop it.

Source: kv_engine engines/ep/src/dcp/producer.cc (maybeSendNoop, maybeDisconnect), checked against recordings.
"""

from __future__ import annotations

__all__ = ["DEFAULT_IDLE_TIMEOUT_S", "DEFAULT_INTERVAL_S", "FIRST_OPAQUE", "NoopTimer", "opaque_of"]

DEFAULT_INTERVAL_S = 20.0
"""Seconds between NOOPs unless the client sets another interval: the server's dcp_noop_tx_interval."""

MIN_SPACING_S = 1.0
"""Least seconds between two NOOPs, also for an interval of 0: the server checks its connections once a second."""

DEFAULT_IDLE_TIMEOUT_S = 360.0
"""Seconds of silence after which a peer is given up: the server's dcp_idle_timeout."""

FIRST_OPAQUE = 10_000_001
"""First value of the counter for the opaques of NOOPs."""


def opaque_of(counter: int) -> int:
    """The opaque of a counter's value: a server writes the counter in its own byte order, which is little-endian."""
    return int.from_bytes(counter.to_bytes(4, "little"), "big")


class NoopTimer:
    """The NOOPs of one producer connection.

    Attributes:
        is_enabled: off until the client asks for it.
        interval_s: seconds between two NOOPs.
        pending_opaque: the opaque of the unanswered NOOP, or None.
    """

    __slots__ = (
        "_counter",
        "_last_opaque",
        "_last_received",
        "_last_sent",
        "idle_timeout_s",
        "interval_s",
        "is_enabled",
        "pending_opaque",
    )

    def __init__(self, now: float, idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S) -> None:
        self.is_enabled = False
        self.interval_s = DEFAULT_INTERVAL_S
        self.idle_timeout_s = idle_timeout_s
        self.pending_opaque: int | None = None
        self._counter = FIRST_OPAQUE
        self._last_opaque = opaque_of(FIRST_OPAQUE - 1)
        self._last_sent = now
        self._last_received = now

    @property
    def next_timeout(self) -> float | None:
        """The time at which `poll` or `is_dead` may change, or None."""
        if not self.is_enabled:
            return None
        deadline = self._last_received + self.idle_timeout_s
        return deadline if self.pending_opaque is not None else min(deadline, self._due)

    @property
    def _due(self) -> float:
        return self._last_sent + max(self.interval_s, MIN_SPACING_S)

    def received(self, now: float) -> None:
        """The peer sent anything."""
        self._last_received = now

    def poll(self, now: float) -> int | None:
        """The opaque of a NOOP to send now, or None."""
        if not self.is_enabled or self.pending_opaque is not None or now < self._due:
            return None
        opaque = opaque_of(self._counter)
        self._counter = self._counter + 1 & 0xFFFFFFFF
        self._last_sent = now
        self.pending_opaque = self._last_opaque = opaque
        return opaque

    def answered(self, opaque: int) -> bool:
        """Take the answer to a NOOP; False if it does not fit the last NOOP. The same answer may come twice."""
        if opaque != self._last_opaque:
            return False
        self.pending_opaque = None
        return True

    def is_dead(self, now: float) -> bool:
        """Whether the peer has been silent for too long."""
        return self.is_enabled and now >= self._last_received + self.idle_timeout_s
