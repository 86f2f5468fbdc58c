"""The nodes' probes are answered while the user of a blocking stream does something else.

A blocking reader runs only while its user asks for the next batch. Who works on one for minutes would let NOOPs go
unanswered, and the node would close the connection. So a thread looks after the sockets from time to time: it takes
what has come (no more than the flow-control window, as nothing is acknowledged meanwhile) and answers probes.

Only one of the two, user or thread, works on the reader at a time: the user holds a lock but for the time in which a
batch is in its hands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

BEAT_S = 5.0
"""Seconds between two looks at the sockets: a quarter of the NOOP interval, and a node waits for two intervals."""

BEATS_MAX = 720
"""Looks while the user is away: for an hour. After that the stream counts as forgotten: the nodes close the
connections, which frees what they keep for it, and it is resumed if the user comes back after all."""


class Heart:
    """Calls `beat` while the user is away.

    Args:
        beat: looks after the sockets; must not wait.
        beat_s: seconds between two calls.
    """

    def __init__(self, beat: Callable[[], None], beat_s: float | None = None) -> None:
        self._beat = beat
        self._beat_s = BEAT_S if beat_s is None else beat_s
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._beats_left = 0
        self._error: BaseException | None = None
        self._lock.acquire()

    def leave(self) -> None:
        """The user goes away."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dcpstream-heart", daemon=True)
            self._thread.start()
        self._beats_left = BEATS_MAX
        self._lock.release()

    def enter(self) -> None:
        """The user is back; waits for a call that is under way.

        Raises:
            BaseException: what `beat` raised, if it did.
        """
        self._lock.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """No more calls; the user is here."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.wait(self._beat_s):
            if not self._lock.acquire(blocking=False):
                continue
            try:
                if self._beats_left > 0 and self._error is None:
                    self._beats_left -= 1
                    self._beat()
            except BaseException as error:  # noqa: BLE001 - it belongs to the user's thread
                self._error = error
            finally:
                self._lock.release()
