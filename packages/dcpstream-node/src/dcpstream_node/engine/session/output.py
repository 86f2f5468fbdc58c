"""The answers of one session on their way out, and those that wait until a write is durable.

With `persist=every` an answer to a write waits for the first commit that begins after the answer was made: that commit
holds everything written before. So writes that came in together become durable together, and answers keep their order.
The flusher reports each finished commit.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.bucket import Bucket


class Output:
    """The answers of one session.

    Attributes:
        pieces: answers that can go out.
        nbytes: size of `pieces` and of the answers that are held.
        held_bytes: size of the answers that are held.
        has_written: whether `pieces` answer a write.
    """

    __slots__ = ("_held", "has_written", "held_bytes", "nbytes", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.nbytes = 0
        self.has_written = False
        self.held_bytes = 0
        self._held: deque[tuple[Bucket, int, list[bytes]]] = deque()

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self.pieces.append(data)
        self.nbytes += len(data)

    @property
    def is_held(self) -> bool:
        """Whether answers wait for a commit."""
        return bool(self._held)

    @property
    def awaited(self) -> Bucket | None:
        """The bucket whose commit the oldest held answers wait for."""
        return self._held[0][0] if self._held else None

    def take(self, bucket: Bucket | None) -> list[bytes]:
        """The answers that can go out now; those to writes in a bucket with `persist=every` are held first."""
        if not self._held and not (self.has_written and bucket is not None and bucket.answers_when_durable):
            out = self.pieces
            if out:
                self.pieces = []
                self.nbytes = 0
            return out
        if self.pieces:
            self.hold(bucket)
        return self._release()

    def hold(self, bucket: Bucket | None) -> None:
        """Hold `pieces` until the writes they answer are durable, or behind the answers held already."""
        pieces, self.pieces = self.pieces, []
        if self.has_written and bucket is not None and bucket.answers_when_durable:
            self._held.append((bucket, bucket.commits_begun + 1, pieces))
        else:
            self._held[-1][2].extend(pieces)
        self.has_written = False
        self.held_bytes += sum(map(len, pieces))
        self.nbytes = self.held_bytes

    def _release(self) -> list[bytes]:
        out: list[bytes] = []
        while self._held and self._held[0][0].commits_done >= self._held[0][1]:
            out += self._held.popleft()[2]
        self.held_bytes -= sum(map(len, out))
        self.nbytes = self.held_bytes
        return out

    def drop_held(self) -> None:
        """Forget the answers that are held."""
        self._held.clear()
        self.held_bytes = 0

    def clear(self) -> None:
        """Forget all answers."""
        self.drop_held()
        self.pieces.clear()
        self.nbytes = 0
