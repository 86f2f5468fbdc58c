"""Liveness of a connection: NOOPs, the time that a peer may be silent, and the time that it may take to answer.

Plain numbers; `now` is an argument, seconds of a monotonic clock.

- A producer sends NOOPs (`NoopTimer`). One is due an interval after the last one (the first: after the connection
  began), whatever else was sent, but not while one is unanswered. An unanswered NOOP alone does not drop the peer.
- Every end gives up a peer that is silent for too long (`Silence`). A node, producer or consumer, waits for the idle
  time-out, if the connection has NOOPs. A client waits for two NOOP intervals and a grace.
- A client gives up a node that leaves a request unanswered (`PendingRequests`).

Source: kv_engine engines/ep/src/dcp/producer.cc (maybeSendNoop, maybeDisconnect), checked against recordings.
"""

from __future__ import annotations

from collections import OrderedDict

DEFAULT_INTERVAL_S = 20.0
"""Seconds between NOOPs unless the client sets another interval: the server's dcp_noop_tx_interval."""

MIN_SPACING_S = 1.0
"""Least seconds between two NOOPs, also for an interval of 0: the server checks its connections once a second."""

DEFAULT_IDLE_TIMEOUT_S = 360.0
"""Seconds of silence after which a node gives its peer up: the server's dcp_idle_timeout."""

SILENCE_GRACE_S = 10.0
"""Seconds beyond two NOOP intervals before a silent node counts as dead to a client."""

ANSWER_TIMEOUT_S = 60.0
"""Seconds a node may take to answer a request. A stream request may wait for a vbucket that is warming up."""

FIRST_OPAQUE = 10_000_001
"""First value of the counter for the opaques of NOOPs."""


def opaque_of(counter: int) -> int:
    """The opaque of a counter's value: a server writes the counter in its own byte order, which is little-endian."""
    return int.from_bytes(counter.to_bytes(4, "little"), "big")


def earliest(*times: float | None) -> float | None:
    """The first of some times, of which None never comes."""
    return min((at for at in times if at is not None), default=None)


def silence_limit_s(noop_interval_s: float) -> float:
    """Seconds that a node may be silent to its client: it sends a NOOP every interval, and one may be late."""
    return 2 * noop_interval_s + SILENCE_GRACE_S


class Silence:
    """The time since the peer sent something.

    Attributes:
        limit_s: seconds after which the peer is given up.
    """

    __slots__ = ("_last_received", "limit_s")

    def __init__(self, now: float, limit_s: float) -> None:
        self.limit_s = limit_s
        self._last_received = now

    @property
    def deadline(self) -> float:
        """The time at which the peer is given up, if nothing comes until then."""
        return self._last_received + self.limit_s

    def received(self, now: float) -> None:
        """The peer sent something."""
        self._last_received = now

    def is_over(self, now: float) -> bool:
        """Whether the peer has been silent for too long."""
        return now >= self._last_received + self.limit_s


class PendingRequests:
    """The requests of a client that are not answered yet, oldest first."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        # A dict has to step over all that were answered to find the oldest one.
        self._asked: OrderedDict[int, tuple[int, float]] = OrderedDict()

    @property
    def deadline(self) -> float | None:
        """The time at which the oldest one is overdue; None if there is none."""
        for _, asked_at in self._asked.values():
            return asked_at + ANSWER_TIMEOUT_S
        return None

    def sent(self, opaque: int, opcode: int, now: float) -> None:
        """A request was sent."""
        self._asked[opaque] = opcode, now

    def answered(self, opaque: int) -> int | None:
        """The opcode of the request that is answered with this opaque; None if there is no such request."""
        asked = self._asked.pop(opaque, None)
        return None if asked is None else asked[0]

    def overdue(self, now: float) -> int | None:
        """The opcode of the oldest request, if its answer is overdue."""
        for opcode, asked_at in self._asked.values():
            return opcode if now >= asked_at + ANSWER_TIMEOUT_S else None
        return None


class NoopTimer:
    """The NOOPs of one producer connection.

    Attributes:
        is_enabled: off until the client asks for it.
        interval_s: seconds between two NOOPs.
        pending_opaque: the opaque of the unanswered NOOP, or None.
        silence: of the client; it counts while NOOPs are enabled.
    """

    __slots__ = (
        "_counter",
        "_last_opaque",
        "_last_sent",
        "interval_s",
        "is_enabled",
        "pending_opaque",
        "silence",
    )

    def __init__(self, now: float, idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S) -> None:
        self.is_enabled = False
        self.interval_s = DEFAULT_INTERVAL_S
        self.silence = Silence(now, idle_timeout_s)
        self.pending_opaque: int | None = None
        self._counter = FIRST_OPAQUE
        self._last_opaque = opaque_of(FIRST_OPAQUE - 1)
        self._last_sent = now

    @property
    def next_timeout(self) -> float | None:
        """The time at which `poll` or `is_dead` may change, or None."""
        if not self.is_enabled:
            return None
        deadline = self.silence.deadline
        return deadline if self.pending_opaque is not None else min(deadline, self._due)

    @property
    def _due(self) -> float:
        return self._last_sent + max(self.interval_s, MIN_SPACING_S)

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
        return self.is_enabled and self.silence.is_over(now)
