"""Procedures that wait, without threads and without asyncio: generators that yield what they wait for.

Theory of operation. An `Outcome` is a value or an error that comes later. A procedure is a generator: it yields one
outcome and gets its value, or it yields a list of outcomes and gets the list of their values when all are there. An
error is raised at the `yield`. `Tasks` resumes the procedures whose outcomes are there; the task of a procedure is
itself an outcome, so procedures wait for each other. Time is an argument of the shell, so a simulation controls it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from itertools import count
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Procedure = Generator[Any, Any, T]
"""A generator that waits: it yields outcomes or lists of outcomes, and returns a value."""


class Outcome(Generic[T]):
    """A value or an error that comes later, once.

    Attributes:
        is_done: whether it is there.
        error: why there is no value; None while it is not there, and after a success.
    """

    __slots__ = ("_callbacks", "_value", "error", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.error: Exception | None = None
        self._value: Any = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def value(self) -> T:
        """The value. Raises: the error that came in its place."""
        assert self.is_done, "the caller waits first"
        if self.error is not None:
            raise self.error
        value: T = self._value
        return value

    def succeed(self, value: T) -> None:
        """It is there; if it was there before, nothing changes."""
        self._end(value, None)

    def fail(self, error: Exception) -> None:
        """There will be no value; if it was there before, nothing changes."""
        self._end(None, error)

    def _end(self, value: Any, error: Exception | None) -> None:
        if self.is_done:
            return
        self.is_done, self._value, self.error = True, value, error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when it is there, at once if it is."""
        if self.is_done:
            callback()
        else:
            self._callbacks.append(callback)

    def quietly(self) -> Outcome[T | None]:
        """The same, with None in place of an error."""
        found: Outcome[T | None] = Outcome()
        self.then(lambda: found.succeed(None if self.error is not None else self._value))
        return found

    @classmethod
    def of(cls, value: T) -> Outcome[T]:
        """One that is there."""
        found: Outcome[T] = cls()
        found.succeed(value)
        return found

    @classmethod
    def failed(cls, error: Exception) -> Outcome[T]:
        """One that failed."""
        found: Outcome[T] = cls()
        found.fail(error)
        return found


class Tasks:
    """Runs procedures.

    Attributes:
        now: seconds of the monotonic clock, set by the shell.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._ready: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Outcome[None]]] = []
        self._numbers = count()

    def start(self, procedure: Procedure[T]) -> Outcome[T]:
        """Begin a procedure with the next `run`; returns its outcome."""
        outcome: Outcome[T] = Outcome()
        self._ready.append(lambda: self._step(procedure, outcome, None, None))
        return outcome

    def pause(self, seconds: float) -> Outcome[None]:
        """There after this time."""
        outcome: Outcome[None] = Outcome()
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), outcome))
        return outcome

    def within(self, outcome: Outcome[T], seconds: float, what: str) -> Outcome[T]:
        """The same outcome, or a TimeoutError after this time."""
        found: Outcome[T] = Outcome()
        timer = self.pause(seconds)

        def take() -> None:
            if outcome.error is not None:
                found.fail(outcome.error)
            else:
                found.succeed(outcome.value)
            timer.succeed(None)  # it changes nothing any more, and nobody is woken for it

        outcome.then(take)
        timer.then(lambda: found.fail(TimeoutError(f"{what} took more than {seconds:g} s")))
        return found

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called, monotonic seconds."""
        while self._timers and self._timers[0][2].is_done:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def handle_timeout(self) -> None:
        """End the pauses that are over at `now`."""
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2].succeed(None)

    def run(self) -> None:
        """Resume every procedure that can go on, until none can."""
        while self._ready:
            self._ready.popleft()()

    def _step(self, procedure: Procedure[T], outcome: Outcome[T], value: object, error: Exception | None) -> None:
        try:
            wanted = procedure.send(value) if error is None else procedure.throw(error)
        except StopIteration as end:
            outcome.succeed(end.value)
            return
        except Exception as failure:  # noqa: BLE001 - it belongs to who waits for the procedure
            outcome.fail(failure)
            return
        several: list[Outcome[Any]] = wanted if isinstance(wanted, list) else [wanted]
        missing = len(several)

        def resume() -> None:
            failure = next((each.error for each in several if each.error is not None), None)
            result: object = None
            if failure is None:
                result = [each.value for each in several] if isinstance(wanted, list) else wanted.value
            self._step(procedure, outcome, result, failure)

        def one_more() -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                self._ready.append(resume)

        if not several:
            self._ready.append(resume)
        for each in several:
            each.then(one_more)
