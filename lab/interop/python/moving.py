"""Writes that go on while the nodes of a cluster come, are killed and are replaced. Knows no client."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from common import Part, order

KEYS = 60
"""Documents of each kind, durable and plain; they are written in turn."""
PATIENCE_S = 60.0
"""Longest time in which no write succeeds, and longest wait for all documents to be written again."""
PAUSE_S = 0.01
"""Pause before a write that failed is repeated."""


class Load:
    """One thread that writes a durable document and a plain one in turn, and reads the plain one.

    Args:
        put: writes a number under a key, durably or not; returns when it is acknowledged.
        get: the number under a key; None if there is none.
        retried: errors after which an application repeats a call.
        impossible: the error of a durable write whose vbucket has too few copies, as after a failover without a second
            replica; the write has not happened.

    Attributes:
        acknowledged: durable key → number of its last acknowledged write.
        rounds: how often a durable document was written, or could not be.
        refused: durable writes that could not be.
    """

    def __init__(
        self,
        put: Callable[[str, int, bool], object],
        get: Callable[[str], int | None],
        retried: tuple[type[Exception], ...],
        impossible: type[Exception],
    ) -> None:
        self._put = put
        self._get = get
        self._retried = retried
        self._impossible = impossible
        self.acknowledged: dict[str, int] = {}
        self.rounds = self.refused = 0
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def parts(self) -> list[Part]:
        """The parts of the program that are tried."""
        return [
            ("writes and reads while a node is added", lambda: self._during("grow")),
            ("writes and reads while a node is killed and failed over", lambda: self._during("kill")),
            ("writes and reads while the killed node is replaced", lambda: self._during("grow")),
            ("every acknowledged durable write is there", self._compare),
        ]

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._is_over.is_set():
                    return
                durable, plain = f"durable:{number % KEYS}", f"plain:{number % KEYS}"
                try:
                    self._try(lambda key=durable, value=number: self._put(key, value, True))
                    self.acknowledged[durable] = number
                except self._impossible:
                    self.refused += 1
                self._try(lambda key=plain, value=number: self._put(key, value, False))
                found = self._try(lambda key=plain: self._get(key))
                assert found is None or found <= number, f"{plain} is {found}, and {number} was written last"
                self.rounds = number + 1
        except BaseException as error:
            self._error = error
            raise

    def _try(self, call: Callable[[], object]) -> object:
        """Repeat a call as an application does."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except self._retried:
                if time.monotonic() >= end:
                    raise
                time.sleep(PAUSE_S)

    def _until(self, rounds: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while self.rounds < rounds:
            if self._error is not None:
                raise self._error
            assert time.monotonic() < end, f"{self.rounds} writes, {rounds} were expected"
            time.sleep(PAUSE_S)

    def _during(self, action: str) -> None:
        """Every document is written before an action and after it; meanwhile no call fails for good."""
        if not self._thread.is_alive():
            self._thread.start()
        self._until(KEYS)
        order(action)
        self._until(self.rounds + 1)  # the one that was under way may have begun before
        refused = self.refused
        self._until(self.rounds + KEYS)
        if action != "kill":
            assert self.refused == refused, "a durable write is impossible, and every vbucket has its replica"

    def stop(self) -> None:
        """End the writes."""
        self._is_over.set()
        self._thread.join(PATIENCE_S)
        if self._error is not None:
            raise self._error

    def _compare(self) -> None:
        self.stop()
        assert len(self.acknowledged) == KEYS, f"{len(self.acknowledged)} durable documents"
        for key, number in self.acknowledged.items():
            found = self._try(lambda key=key: self._get(key))
            assert isinstance(found, int), f"{key} is not there, acknowledged was {number}"
            assert found >= number, f"{key} is {found}, acknowledged was {number}"
