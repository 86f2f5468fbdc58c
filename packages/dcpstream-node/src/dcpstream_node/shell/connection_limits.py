"""Limits on the connections of the KV port: a memory budget for all of them together, and times for each.

Memory: only the transports know the size of waiting answers, so the sizes are added up after every `RECOUNT_BYTES` that
slow clients got. Above half of the budget each connection gets less; above the budget, the connection that holds the
most is dropped.

Time: connections are checked about once a second, so a limit may be exceeded by a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dcpstream.runtime import Clock
from dcpstream_node.engine.engine import MAX_OUTPUT_BYTES

if TYPE_CHECKING:
    from dcpstream_node.engine import Engine
    from dcpstream_node.engine.limit_log import LimitLog
    from dcpstream_node.shell.connection import KvProtocol
    from dcpstream_node.shell.limits import Limits

RECOUNT_BYTES = 1024 * 1024
"""Bytes written to slow clients after which the waiting answers are added up again."""
SHORT_OUTPUT_BYTES = 64 * 1024
"""Size of one connection's answers above which no further request is read, while memory is short."""
MIN_BYTES_PER_S = 1024
"""Least growth of an unfinished frame; the slowest modems were faster."""


class MemoryBudget:
    """The memory that all connections hold together.

    Args:
        engine: its `output_limit` is lowered while memory is short; its clock has the time.

    Attributes:
        held_bytes: size of unfinished requests.
        waiting_bytes: size of waiting answers, at the last recount.
        is_short: whether more than a half of the budget is used.
    """

    def __init__(self, engine: Engine, limits: Limits, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._log = engine.log
        self._budget = limits.buffered_bytes
        self._protocols: set[KvProtocol] = set()
        self._slow: set[KvProtocol] = set()
        self._narrowed: set[KvProtocol] = set()
        self._uncounted = 0
        self.held_bytes = 0
        self.waiting_bytes = 0
        self.is_short = False

    def add(self, protocol: KvProtocol) -> None:
        """A connection was made."""
        self._protocols.add(protocol)

    def hold(self, nbytes: int) -> None:
        """The unfinished requests grew by `nbytes`, or shrank."""
        self.held_bytes += nbytes
        if nbytes > 0 and self.held_bytes + self.waiting_bytes > self._budget // 2:
            self.recount()

    def wait(self, protocol: KvProtocol, nbytes: int) -> None:
        """A connection got `nbytes` to send, and not all of them could be sent."""
        self._slow.add(protocol)
        if self.is_short and protocol not in self._narrowed:
            self._narrowed.add(protocol)
            protocol.limit_writing(True)
        self._uncounted += nbytes
        if self._uncounted >= RECOUNT_BYTES:
            self.recount()

    def forget(self, protocol: KvProtocol) -> None:
        """A connection is gone."""
        self._protocols.discard(protocol)
        self._slow.discard(protocol)
        self._narrowed.discard(protocol)

    def recount(self) -> None:
        """Add up the waiting answers, and enforce the budget."""
        self._uncounted = 0
        sizes = {protocol: protocol.waiting_bytes for protocol in self._slow}
        self._slow = {protocol for protocol, size in sizes.items() if size}
        self.waiting_bytes = sum(sizes.values())
        used = self.held_bytes + self.waiting_bytes
        self._set_short(used > self._budget // 2)
        if used > self._budget:
            self._drop(used - self._budget, sizes)

    def _set_short(self, is_short: bool) -> None:
        if is_short:
            for protocol in self._slow - self._narrowed:
                self._narrowed.add(protocol)
                protocol.limit_writing(True)
        elif self.is_short:
            narrowed, self._narrowed = self._narrowed, set()
            for protocol in narrowed:
                protocol.limit_writing(False)
        self.is_short = is_short
        self._engine.output_limit = SHORT_OUTPUT_BYTES if is_short else MAX_OUTPUT_BYTES

    def _drop(self, excess: int, sizes: dict[KvProtocol, int]) -> None:
        """Drop connections, those that hold the most first, until enough is free."""
        held = {protocol: sizes.get(protocol, 0) + protocol.held_bytes for protocol in self._protocols}
        for protocol in sorted(held, key=held.__getitem__, reverse=True):
            if excess <= 0 or not held[protocol]:
                break
            excess -= held[protocol]
            peer = protocol.session.peer if protocol.session is not None else "client"
            what = f"dropped, it holds {held[protocol]} bytes of what all may hold"
            self._log.reached("buffered_bytes", peer, what, self._clock.monotonic())
            if protocol.session is not None:
                protocol.session.close("memory is short")
            protocol.abort()


class _Seen:
    """The last observed state of a connection, and since when it holds."""

    __slots__ = ("active_at", "frame_at", "frame_received", "received", "since", "taken", "taken_at")

    def __init__(self, now: float) -> None:
        self.since = self.active_at = self.taken_at = now
        self.frame_at: float | None = None
        self.frame_received = 0
        self.received = 0
        self.taken = 0


class TimeLimits:
    """Closes connections that do not log in, trickle, stall or idle.

    Args:
        closed: called after a connection was closed.
    """

    def __init__(self, limits: Limits, log: LimitLog, clock: Clock, closed: Callable[[], None]) -> None:
        self._limits = limits
        self._log = log
        self._clock = clock
        self._closed = closed
        self._seen: dict[KvProtocol, _Seen] = {}

    def add(self, protocol: KvProtocol) -> None:
        """A connection was made."""
        self._seen[protocol] = _Seen(self._clock.monotonic())

    def forget(self, protocol: KvProtocol) -> None:
        """A connection is gone."""
        self._seen.pop(protocol, None)

    def sweep(self) -> None:
        """Check all connections."""
        now = self._clock.monotonic()
        limits = self._limits
        for protocol, seen in list(self._seen.items()):
            session = protocol.session
            if session is None or session.is_closing:
                continue
            if protocol.received != seen.received:
                seen.received, seen.active_at = protocol.received, now
            if session.identity.user is not None:
                seen.since = now  # a new login gets the whole time
            if session.identity.user is None and limits.login_s and now - seen.since > limits.login_s:
                self._close(protocol, "login_s", f"closed, it has not logged in within {limits.login_s:g} s")
            elif limits.frame_s and self._trickles(protocol, seen, now):
                self._close(protocol, "frame_s", "closed, a request comes in too slowly")
            elif self._is_stalled(protocol, seen, now):
                name = "stalled_s" if session.dcp is None else "stalled_dcp_s"
                self._close(protocol, name, f"dropped, it does not take {protocol.waiting_bytes} bytes of answers")
                protocol.abort()
            elif limits.idle_s and now - seen.active_at > limits.idle_s and self._may_not_idle(protocol):
                self._close(protocol, "idle_s", f"closed, nothing came for {limits.idle_s:g} s")

    def _trickles(self, protocol: KvProtocol, seen: _Seen, now: float) -> bool:
        if not protocol.is_unfinished:
            seen.frame_at = None
            return False
        if seen.frame_at is None:
            seen.frame_at, seen.frame_received = now, protocol.received
            return False
        time = now - seen.frame_at
        if time < self._limits.frame_s:
            return False
        came = protocol.received - seen.frame_received
        seen.frame_at, seen.frame_received = now, protocol.received
        return came < time * MIN_BYTES_PER_S

    def _is_stalled(self, protocol: KvProtocol, seen: _Seen, now: float) -> bool:
        session = protocol.session
        limit = self._limits.stalled_s if session is None or session.dcp is None else self._limits.stalled_dcp_s
        waiting = protocol.waiting_bytes
        taken = protocol.sent - waiting
        if not waiting or taken != seen.taken:
            seen.taken, seen.taken_at = taken, now
        return bool(limit) and now - seen.taken_at > limit

    def _may_not_idle(self, protocol: KvProtocol) -> bool:
        session = protocol.session
        if session is None or session.dcp is not None or session.is_waiting:
            return False
        return not session.identity.may("IdleConnection")

    def _close(self, protocol: KvProtocol, limit: str, what: str) -> None:
        session = protocol.session
        assert session is not None, "only connections with a session are checked"
        self._log.reached(limit, session.peer, what, self._clock.monotonic())
        session.close(what)
        self._closed()
