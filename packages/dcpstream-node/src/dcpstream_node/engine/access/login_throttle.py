"""Failed logins by address: after a few of them, each further refusal is delayed.

A right password is never delayed, and no user is locked: failed logins from one address do not affect others. A delayed
refusal holds its connection. An address may have a bounded number of delayed refusals; beyond it no further password
from there is checked. So an address can try about ten passwords a second, with any number of connections.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

FREE_FAILURES = 10
"""Failures that are refused at once, because people mistype and clients retry."""
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 3.0
"""Longest wait: client libraries give up on a login after about ten seconds."""
FORGIVEN_AFTER_S = 60.0
"""Time without a failure after which an address is forgiven."""
MAX_WAITING = 32
"""Delayed refusals of one address."""
MAX_ADDRESSES = 10_000
"""Addresses that are remembered; the one with the oldest last failure is forgotten first."""


class _Address:
    """The failed logins of an address."""

    __slots__ = ("failures", "last", "waiting")

    def __init__(self) -> None:
        self.failures = 0
        self.last = 0.0
        self.waiting = 0


class LoginThrottle:
    """The delays of refused logins, by address.

    Attributes:
        wake_at: when `handle_timeout` wants to be called, monotonic seconds; None for never.
    """

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._queue: list[tuple[float, int, Callable[[], None], str]] = []
        self._numbers = count()
        self.wake_at: float | None = None

    def is_full(self, address: str) -> bool:
        """Whether the address has so many delayed refusals that no further password is checked."""
        known = self._addresses.get(address)
        return known is not None and known.waiting >= MAX_WAITING

    def failed(self, address: str, now: float) -> float:
        """Count a failed login; returns the delay of its refusal in seconds."""
        known = self._addresses.get(address)
        if known is None or now > known.last + FORGIVEN_AFTER_S:
            waiting = known.waiting if known is not None else 0
            known = self._addresses[address] = _Address()
            known.waiting = waiting
        self._addresses.move_to_end(address)
        if len(self._addresses) > MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        known.failures += 1
        known.last = now
        over = known.failures - FREE_FAILURES
        if over <= 0:
            return 0.0
        return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(over - 1, 10))

    def wait(self, refuse: Callable[[], None], address: str, until: float) -> None:
        """Call `refuse` at `until`, monotonic seconds; the address has one more refusal waiting until then."""
        heapq.heappush(self._queue, (until, next(self._numbers), refuse, address))
        self.wake_at = self._queue[0][0]
        self.begin_wait(address)

    def begin_wait(self, address: str) -> None:
        """Count a delayed refusal that the caller sends."""
        known = self._addresses.get(address)
        if known is not None:
            known.waiting += 1

    def end_wait(self, address: str) -> None:
        """End a delayed refusal."""
        known = self._addresses.get(address)
        if known is not None:
            known.waiting = max(0, known.waiting - 1)

    def handle_timeout(self, now: float) -> None:
        """Send the refusals that are due."""
        while self._queue and self._queue[0][0] <= now:
            _, _, refuse, address = heapq.heappop(self._queue)
            self.end_wait(address)
            refuse()
        self.wake_at = self._queue[0][0] if self._queue else None
