"""The loader: writes changes to a bucket over the KV protocol, and loses none when the node is killed.

Theory of operation: the node answers a write when it holds it in memory, with a token (vbucket, branch, seqno). The
loader keeps the change until the node reports that seqno as persisted. When the connection breaks, the loader waits for
the node and asks, for each vbucket, which part of the branch it wrote to has survived. It writes the lost changes again
in their old order, and then goes on. A change may be written twice; the final state is the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from typing import Protocol

from dcpstream.errors import AuthenticationFailed, ConnectionLost, StatusError
from dcpstream_demo.flights import Change
from dcpstream_demo.settings import STALL_TIMEOUT_S

WINDOW = 512
"""Changes that are sent before their answers are awaited: enough to hide the round trip."""

MAX_UNPERSISTED = 1_000_000
"""Changes that may wait for persistence (a few 100 MB); at that many the loader waits for the node's disk."""

CONFIRM_INTERVAL_S = 1.0
"""Interval of the questions what the node has persisted."""

_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Token:
    """The position of a write in the bucket's history."""

    vbid: int
    vbuuid: int
    seqno: int


class Bucket(Protocol):
    """A connection to a bucket, as far as the loader needs it. Every call may raise ConnectionLost."""

    def write(self, changes: Sequence[Change]) -> Sequence[Token]:
        """Write all, in order for each key; their tokens in the same order."""
        ...

    def persisted(self, branches: Sequence[tuple[int, int]]) -> Sequence[int]:
        """The last seqno on disk of each (vbid, vbuuid); after a restart, the last one that has survived."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@dataclass(frozen=True, slots=True)
class _Kept:
    """A change that is not known to be persisted; `order` counts the writes."""

    order: int
    token: Token
    change: Change


class _Stopped(Exception):
    """`stop` was called."""


class LoaderState(Enum):
    """The present activity of the loader."""

    WAITING = "waiting"
    WRITING = "writing"
    HOLDING = "holding"
    RECONNECTING = "reconnecting"
    REPAIRING = "writing again"
    DONE = "done"


class Loader:
    """The loader, in a thread of its own.

    Args:
        connect: makes a connection; raises ConnectionLost while the node is away.
        changes: what to write, in order.
        changes_per_s: pace, None for as fast as it goes.
        hold_at: after so many changes it holds until `release` is called; rising.

    Attributes:
        written, written_again: changes that were answered, for the first time and after a loss.
        reconnects: connections after the first.
        holds: how often it has reached a point where it holds.
        state: what it does at the moment.
    """

    def __init__(
        self,
        connect: Callable[[], Bucket],
        changes: Iterable[Change],
        *,
        changes_per_s: float | None = None,
        hold_at: Sequence[int] = (),
        reconnect_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        self.written = 0
        self.written_again = 0
        self.reconnects = 0
        self.holds = 0
        self.state = LoaderState.WAITING
        self._connect = connect
        self._changes: Iterator[Change] = iter(changes)
        self._pace = changes_per_s
        self._hold_at = deque(hold_at)
        self._reconnect_timeout_s = reconnect_timeout_s
        self._bucket: Bucket | None = None
        self._kept: dict[int, deque[_Kept]] = {}
        self._order = 0
        self._confirmed_at = 0.0
        self._stop = threading.Event()
        self._moved = threading.Condition()
        self._released = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)

    @property
    def unpersisted(self) -> int:
        """Changes that are written, but not yet reported as persisted."""
        return sum(len(kept) for kept in list(self._kept.values()))

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, even if not everything is written."""
        self._stop.set()
        with self._moved:
            self._moved.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def release(self) -> None:
        """Go on beyond the point where the loader holds."""
        with self._moved:
            self._released += 1
            self._moved.notify_all()

    def hold_no_more(self) -> None:
        """Forget the other points where the loader would hold."""
        with self._moved:
            self._hold_at.clear()

    def check(self) -> None:
        """Raise the error that ended the loader, if there was one."""
        if self._error is not None:
            raise self._error

    def wait_for(self, states: frozenset[LoaderState], timeout_s: float) -> bool:
        """Wait until the loader is in one of these states (or has failed)."""
        with self._moved:
            return self._moved.wait_for(lambda: self.state in states or self._error is not None, timeout_s)

    def _run(self) -> None:
        try:
            self._play()
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            with self._moved:
                self._error = error
                self._moved.notify_all()
        finally:
            if self._bucket is not None:
                self._bucket.close()

    def _play(self) -> None:
        self._bucket = self._connect()
        started, base = time.monotonic(), 0
        while True:
            with self._moved:
                hold_at = self._hold_at[0] if self._hold_at else None
            room = WINDOW if hold_at is None else min(WINDOW, hold_at - self.written)
            window = list(islice(self._changes, max(0, room)))
            if not window and room > 0:
                break
            self._set(LoaderState.WRITING)
            self._persistently(partial(self._write, window))
            self.written += len(window)
            self._confirm()
            if hold_at is not None and self.written >= hold_at:
                self._hold()
                started, base = time.monotonic(), self.written
            elif self._pace is not None:
                ahead_s = (self.written - base) / self._pace - (time.monotonic() - started)
                if ahead_s > 0:
                    self._pause(ahead_s)
        # Nothing that was written can be lost any more once all of it is persisted.
        while self.unpersisted:
            self._confirm(0.0)
            if self.unpersisted:
                self._pause(_RETRY_S)
        self._set(LoaderState.DONE)

    def _hold(self) -> None:
        """Wait for `release`; if the node goes away and comes back meanwhile, repair what it lost."""
        with self._moved:
            self.holds += 1
            if self._hold_at:
                self._hold_at.popleft()
        while True:
            self._set(LoaderState.HOLDING)
            with self._moved:
                self._moved.wait_for(lambda: self._released > 0 or self._stop.is_set(), _RETRY_S)
                if self._released > 0:
                    self._released -= 1
                    return
            self._check_stop()
            self._confirm()

    def _confirm(self, interval_s: float = CONFIRM_INTERVAL_S) -> None:
        """Forget persisted changes if the last question is `interval_s` old; repeat while too many are kept."""
        while True:
            if time.monotonic() - self._confirmed_at >= interval_s:
                self._confirmed_at = time.monotonic()
                self._persistently(self._forget_persisted)
            if self.unpersisted < MAX_UNPERSISTED:
                return
            self._pause(_RETRY_S)

    def _persistently(self, call: Callable[[Bucket], None]) -> None:
        """Call until it succeeds: after a lost connection, connect again, repair and call again.

        Raises:
            ConnectionLost, StatusError: the node is away for too long, or refuses with a status that cannot be retried.
        """
        deadline = 0.0
        needs_repair = False
        while True:
            self._check_stop()
            try:
                if self._bucket is None:
                    self._set(LoaderState.RECONNECTING)
                    self._bucket = self._connect()
                    self.reconnects += 1
                if needs_repair:
                    self._repair(self._bucket)
                    needs_repair = False
                call(self._bucket)
            except (ConnectionLost, StatusError) as error:
                if isinstance(error, AuthenticationFailed) or (
                    isinstance(error, StatusError) and not error.is_retryable
                ):
                    raise
                deadline = deadline or time.monotonic() + self._reconnect_timeout_s
                if time.monotonic() > deadline:
                    raise
                if self._bucket is not None:
                    self._bucket.close()
                    self._bucket = None
                needs_repair = True
                self._pause(_RETRY_S)
                continue
            return

    def _write(self, window: Sequence[Change], bucket: Bucket) -> None:
        if not window:
            return
        for token, change in zip(bucket.write(window), window, strict=True):
            self._order += 1
            self._kept.setdefault(token.vbid, deque()).append(_Kept(self._order, token, change))

    def _repair(self, bucket: Bucket) -> None:
        """Write the changes that have not survived once more, in their old order."""
        self._forget_persisted(bucket)
        self._set(LoaderState.REPAIRING)
        for vbid, kept in self._kept.items():
            self._kept[vbid] = deque(sorted(kept, key=lambda entry: entry.order))
        lost = sorted((entry for kept in self._kept.values() for entry in kept), key=lambda entry: entry.order)
        for first in range(0, len(lost), WINDOW):
            self._check_stop()
            window = lost[first : first + WINDOW]
            tokens = bucket.write([entry.change for entry in window])
            for entry, token in zip(window, tokens, strict=True):
                # Removed only now: changes without an answer are needed if the node is killed once more.
                kept = self._kept[entry.token.vbid]
                oldest = kept.popleft()
                assert oldest is entry
                kept.append(_Kept(entry.order, token, entry.change))
            self.written_again += len(window)

    def _forget_persisted(self, bucket: Bucket) -> None:
        branches = sorted({(vbid, entry.token.vbuuid) for vbid, kept in self._kept.items() for entry in kept})
        persisted = dict(zip(branches, bucket.persisted(branches), strict=True))
        for vbid, kept in self._kept.items():
            self._kept[vbid] = deque(entry for entry in kept if entry.token.seqno > persisted[vbid, entry.token.vbuuid])

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)
        self._check_stop()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _set(self, state: LoaderState) -> None:
        with self._moved:
            if state is not self.state:
                self.state = state
                self._moved.notify_all()
