"""The one request of a session that was read and is not answered yet.

Later requests stay unread until it is answered, so answers come in the order of the requests. The answer comes in one
of two ways: something that the request waits for happens (`wait`), or the answer has many packets, which are made as
the client reads them (`stream`).

Source: kv_engine daemon/cookie.cc (would_block), daemon/connection.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
        self.steps: Iterator[None] | None = None
        self.has_more_steps = False
        self._resume: Callable[..., None] | None = None

    def wait(self, frame: Frame, resume: Callable[..., None]) -> None:
        """The request waits for an event, whose outcome `resume` takes."""
        self.frame, self._resume = frame, resume

    def stream(self, frame: Frame, steps: Iterator[None]) -> None:
        """The request gets an answer of many packets."""
        self.frame, self.steps = frame, steps

    def finish(self) -> Callable[..., None] | None:
        """The request waits no more; returns what takes the outcome."""
        resume, self._resume = self._resume, None
        self.frame = None
        return resume

    def end_stream(self) -> Frame | None:
        """The long answer is over; returns its request."""
        frame, self.frame, self.steps = self.frame, None, None
        return frame

    def drop(self) -> None:
        """The connection is gone: nothing more is answered. The request still counts as waiting."""
        steps, self.steps = self.steps, None
        close = getattr(steps, "close", None)
        if close is not None:
            close()
        self._resume = None
