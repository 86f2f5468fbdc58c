"""Answers that wait until what they tell of is durable: `persist=every`.

A session hands its output here instead of sending it. Each piece of output waits for the first commit that begins
after it was made, which holds everything that was written before; so what came in together becomes durable together,
and answers keep their order. Knows nothing of time: the flusher says which commit is through.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dcpstream.node.engine.bucket.bucket import Bucket


class HeldAnswers:
    """The answers of one session that wait for commits.

    Attributes:
        size: their bytes; the session stops reading requests when they are too many.
    """

    __slots__ = ("_queue", "size")

    def __init__(self) -> None:
        self._queue: deque[tuple[Bucket, int, list[bytes]]] = deque()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._queue)

    def hold(self, bucket: Bucket, pieces: list[bytes]) -> None:
        """Keep answers until the bucket's next commit is through."""
        self._queue.append((bucket, bucket.commits_begun + 1, pieces))
        self.size += sum(map(len, pieces))

    def follow(self, pieces: list[bytes]) -> None:
        """Keep answers that tell of no write behind those that wait; there are some."""
        self._queue[-1][2].extend(pieces)
        self.size += sum(map(len, pieces))

    @property
    def awaited(self) -> Bucket | None:
        """The bucket whose commit the first of them wait for."""
        return self._queue[0][0] if self._queue else None

    def release(self) -> list[bytes]:
        """The answers whose commits are through, in their order."""
        out: list[bytes] = []
        queue = self._queue
        while queue and queue[0][0].commits_done >= queue[0][1]:
            out += queue.popleft()[2]
        self.size -= sum(map(len, out))
        return out

    def drop(self) -> None:
        """Forget them: the connection is gone, or what they tell of is not true."""
        self._queue.clear()
        self.size = 0
