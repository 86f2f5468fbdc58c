"""The answers of one session on their way out, and those that wait until a write is durable.

With `persist=every` an answer to a write waits for the first commit that begins after the answer was made: that commit
holds everything written before. So writes that came in together become durable together, and answers keep their order.
The flusher reports each finished commit.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.bucket import Bucket


class Held(NamedTuple):
    """Answers that wait until the commit with this number of a bucket is through."""

    bucket: Bucket
    commit: int
    pieces: list[bytes]


class Output:
    """The answers of one session.

    Attributes:
        pieces: answers that can go out, if they need not be held.
        nbytes: size of `pieces` and of the answers that are held.
        held: the answers that are held, oldest first.
        held_bytes: their size.
        has_written: whether `pieces` answer a write.
    """

    __slots__ = ("has_written", "held", "held_bytes", "nbytes", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.nbytes = 0
        self.has_written = False
        self.held_bytes = 0
        self.held: deque[Held] = deque()

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self.pieces.append(data)
        self.nbytes += len(data)

    def take_durable(self, bucket: Bucket | None) -> list[bytes]:
        """The answers that can go out now, if some are held or `pieces` answer writes with `persist=every`."""
        if self.pieces:
            self.hold(bucket)
        return self._release()

    def hold(self, bucket: Bucket | None) -> None:
        """Hold `pieces` until the writes they answer are durable, or behind the answers held already."""
        pieces, self.pieces = self.pieces, []
        if self.has_written and bucket is not None and bucket.answers_when_durable:
            self.held.append(Held(bucket, bucket.commits_begun + 1, pieces))
        else:
            self.held[-1].pieces.extend(pieces)
        self.has_written = False
        self.held_bytes += sum(map(len, pieces))
        self.nbytes = self.held_bytes

    def _release(self) -> list[bytes]:
        out: list[bytes] = []
        while self.held and self.held[0].bucket.commits_done >= self.held[0].commit:
            out += self.held.popleft().pieces
        self.held_bytes -= sum(map(len, out))
        self.nbytes = self.held_bytes
        return out

    def drop_held(self) -> None:
        """Forget the answers that are held."""
        self.held.clear()
        self.held_bytes = 0

    def clear(self) -> None:
        """Forget all answers."""
        self.drop_held()
        self.pieces.clear()
        self.nbytes = 0
