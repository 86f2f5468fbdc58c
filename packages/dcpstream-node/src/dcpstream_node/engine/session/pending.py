"""The one request of a session that was read and is not answered yet.

Later requests stay unread until it is answered, so answers come in the order of the requests. The answer comes in one
of two ways: something that the request waits for happens (`wait`), or the answer has many packets, which are made as
the client reads them (`stream`).

Source: kv_engine daemon/cookie.cc (would_block), daemon/connection.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from dcpstream.wire import Frame


class PendingRequest:
    """The request that waits, if any.

    Attributes:
        frame: the request; None if no request waits.
        steps: each step sends some packets of a long answer; None if there is no such answer.
        has_more_steps: a long answer used up its time slice and goes on in the next turn.
    """

    __slots__ = ("_resume", "frame", "has_more_steps", "steps")

    def __init__(self) -> None:
        self.frame: Frame | None = None
        self.steps: Generator[None, None, None] | None = None
        self.has_more_steps = False
        self._resume: Callable[..., None] | None = None

    def wait(self, frame: Frame, resume: Callable[..., None]) -> None:
        """Let the request wait for an event; `resume` takes the outcome."""
        self.frame, self._resume = frame, resume

    def stream(self, frame: Frame, steps: Generator[None, None, None]) -> None:
        """Answer the request with many packets."""
        self.frame, self.steps = frame, steps

    def finish(self) -> Callable[..., None] | None:
        """End the wait; returns the function that takes the outcome."""
        resume, self._resume = self._resume, None
        self.frame = None
        return resume

    def end_stream(self) -> Frame | None:
        """End the long answer; returns its request."""
        frame, self.frame, self.steps = self.frame, None, None
        return frame

    def drop(self) -> None:
        """The connection is gone: answer nothing more. The request still counts as waiting."""
        steps, self.steps = self.steps, None
        if steps is not None:
            steps.close()
        self._resume = None
