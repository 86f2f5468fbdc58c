"""Liveness: when a producer asks "are you there?", and when it gives up.

Plain numbers; `now` is an argument. A NOOP is due one interval after the last one (after the connection began for the
first), whatever else was sent, and never while one is unanswered. With NOOPs enabled a peer that sends nothing at all
for the idle time-out is dropped; an unanswered NOOP alone drops nobody.

Source: kv_engine engines/ep/src/dcp/producer.cc (maybeSendNoop, maybeDisconnect), checked against recordings.
"""

from __future__ import annotations

__all__ = ["DEFAULT_IDLE_TIMEOUT_S", "DEFAULT_INTERVAL_S", "FIRST_OPAQUE", "NoopTimer"]

DEFAULT_INTERVAL_S = 20.0
"""Seconds between NOOPs until the client says otherwise: the server's dcp_noop_tx_interval."""

MIN_SPACING_S = 1.0
"""Shortest distance of two NOOPs, also for an interval of 0: the server looks at its connections once a second."""

DEFAULT_IDLE_TIMEOUT_S = 360.0
"""Silence after which a peer is given up: the server's dcp_idle_timeout."""

FIRST_OPAQUE = 10_000_001
"""The counter that gives the NOOPs their opaques. A server puts it into the header in its own byte order, which on its
machines is little-endian; the opaques here are as they stand in the header, read as big-endian."""


def _in_header(number: int) -> int:
    return int.from_bytes(number.to_bytes(4, "little"), "big")


class NoopTimer:
    """The NOOPs of one producer connection.

    Attributes:
        is_enabled: off until the client asks for it.
        interval_s: seconds between two NOOPs.
        pending_opaque: the NOOP that is not answered yet, or None.
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
        self._last_opaque = _in_header(FIRST_OPAQUE - 1)
        self._last_sent = now
        self._last_received = now

    @property
    def next_timeout(self) -> float | None:
        """When `poll` or `is_dead` may have something to say, or None."""
        if not self.is_enabled:
            return None
        deadline = self._last_received + self.idle_timeout_s
        return deadline if self.pending_opaque is not None else min(deadline, self._due)

    @property
    def _due(self) -> float:
        return self._last_sent + max(self.interval_s, MIN_SPACING_S)

    def received(self, now: float) -> None:
        """The peer sent something, no matter what."""
        self._last_received = now

    def poll(self, now: float) -> int | None:
        """The opaque of a NOOP to send now, or None."""
        if not self.is_enabled or self.pending_opaque is not None or now < self._due:
            return None
        opaque = _in_header(self._counter)
        self._counter = self._counter + 1 & 0xFFFFFFFF
        self._last_sent = now
        self.pending_opaque = self._last_opaque = opaque
        return opaque

    def answered(self, opaque: int) -> bool:
        """Take a NOOP's answer; False if it is not that of the last one. It may come twice."""
        if opaque != self._last_opaque:
            return False
        self.pending_opaque = None
        return True

    def is_dead(self, now: float) -> bool:
        """Whether the peer has been silent for too long."""
        return self.is_enabled and now >= self._last_received + self.idle_timeout_s
