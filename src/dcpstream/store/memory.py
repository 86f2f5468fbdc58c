"""A bucket store that keeps everything in memory and loses it at the end."""

from __future__ import annotations

from dcpstream.store.base import BucketStore
from dcpstream.store.bytelog import Buffer, Piece
from dcpstream.store.vbucket import VBucketLog


class MemoryBucketStore(BucketStore):
    """Histories in memory: what is appended counts as persisted at once (as in the server's ephemeral buckets).

    Frames lie in buffers of about 1 MiB each. They grow with every write, also with overwrites of the same key.

    Args:
        vbucket_count: how many vbuckets the bucket has; none exists until `create_vbucket`.
    """

    def commit(self) -> list[tuple[int, int]]:
        """Nothing to do."""
        return []

    def close(self, clean: bool = True) -> None:
        """Forget everything."""
        self.vbuckets.clear()

    def delete_vbucket(self, vbid: int) -> None:
        """Forget a vbucket and all it holds."""
        self._drop(vbid)

    def read_pieces(self, pieces: list[Piece], *, by_key: bool = False) -> list[Buffer]:
        """The pieces as they are: there are no files."""
        return [piece for piece in pieces if not isinstance(piece, tuple)]

    def metadata_changed(self, vbucket: VBucketLog) -> None:
        """Nothing to do."""

    def roll_back(self, vbucket: VBucketLog, seqno: int) -> None:
        """Truncate the vbucket."""
        vbucket.truncate(seqno)

    def _next_incarnation(self, vbid: int) -> int:
        return 0

    def _drop(self, vbid: int) -> None:
        self.vbuckets.pop(vbid, None)
