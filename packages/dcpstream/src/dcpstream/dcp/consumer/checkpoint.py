"""The durable writes of the checkpoint that a copy receives from memory.

A checkpoint of the source comes in one or more snapshots from memory, the first of which has the checkpoint flag. It
never holds both a commit and another version of a document, nor two of its prepares and aborts. A server drops a
connection that brings such a checkpoint ("duplicate item"), and so does this node. Two plain versions are legal: the
later one takes the place of the earlier one.

Source: kv_engine engines/ep/src/checkpoint.cc (queueDirty, canDedup), checkpoint_manager.cc.
"""

from __future__ import annotations

from dcpstream.errors import RemoteProtocolError

KEYS_MAX = 100_000
"""Keys that are remembered of one checkpoint. The source keeps a checkpoint for seconds, so only a faulty one has more.
The copy then forgets them and begins to collect keys again."""


class ReceivedCheckpoint:
    """One checkpoint, message by message.

    Args:
        vbid: the vbucket, for errors.
        start_seqno: everything below it came in earlier checkpoints.
    """

    __slots__ = ("_committed", "_prepared", "_start_seqno", "_vbid")

    def __init__(self, vbid: int, start_seqno: int) -> None:
        self._vbid = vbid
        self._start_seqno = start_seqno
        self._committed: set[bytes] = set()
        self._prepared: set[bytes] = set()

    def plain_write(self, key: bytes, seqno: int) -> None:
        """A mutation, deletion or expiration.

        Raises:
            RemoteProtocolError: the checkpoint has a commit of the document.
        """
        if key in self._committed:
            self._refuse(seqno)

    def commit(self, key: bytes, seqno: int, version_seqno: int) -> None:
        """A commit.

        Args:
            version_seqno: of the document's present version; 0 if there is none.

        Raises:
            RemoteProtocolError: the checkpoint has another version of the document.
        """
        if version_seqno >= self._start_seqno:
            self._refuse(seqno)
        self._add(self._committed, key)

    def prepare_or_abort(self, key: bytes, seqno: int) -> None:
        """A prepare, or an abort.

        Raises:
            RemoteProtocolError: the checkpoint has another prepare or abort of the document.
        """
        if key in self._prepared:
            self._refuse(seqno)
        self._add(self._prepared, key)

    def _add(self, keys: set[bytes], key: bytes) -> None:
        keys.add(key)
        if len(keys) > KEYS_MAX:
            keys.clear()

    def _refuse(self, seqno: int) -> None:
        raise RemoteProtocolError(
            f"vb {self._vbid}: the checkpoint from seqno {self._start_seqno} has a durable write and another "
            f"version of the same document, at {seqno}; its source must begin a checkpoint there"
        )
