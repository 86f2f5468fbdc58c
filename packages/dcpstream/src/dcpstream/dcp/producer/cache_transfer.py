"""The transfer of cached documents, with which a stream with the flag CACHE_TRANSFER begins (8.5).

It sends the documents that the producer has in memory, up to the seqno at which the stream starts: a consumer that got
the files of a vbucket in another way fills its memory so. The messages have no snapshot and move no position. Here all
documents count as in memory, and they come by seqno; each order is allowed. A document that has expired and is not yet
deleted is sent.

Source: kv_engine docs/dcp/documentation/cache-transfer.md; nothing of 8.5 was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcpstream.dcp.bucket import HistorySource, VBucketView
from dcpstream.wire import HEADER, HEADER_BYTES, Opcode
from dcpstream.wire.cached_items import CachedItem, encode_cached_item
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.messages.dcp import Mutation
from dcpstream.wire.stored.form import COARSE_COUNTER, EXACT_COUNTER

BATCH_BYTES = 256 * 1024
"""Bytes of stored history that are read for one message: as much as a stream reads in one step elsewhere."""


@dataclass(frozen=True, slots=True)
class CacheTransferWish:
    """The member `cts` of a stream request.

    Attributes:
        free_memory: bytes that the consumer has for the documents; 0 if it does not say, which sets no limit.
        all_keys: whether keys go on to come without values once that is used up; otherwise the transfer ends.
    """

    free_memory: int = 0
    all_keys: bool = False


NO_WISH = CacheTransferWish()
"""That of a request without `cts`."""


class CachedDocuments:
    """The documents of one transfer.

    Args:
        wish: the consumer's.
        view: the vbucket.
        source: its bucket; documents of collections that it no longer has are not sent.
        end_seqno: the last seqno whose document is sent.
        collection_ids: only these collections; None for all.
    """

    def __init__(
        self,
        wish: CacheTransferWish,
        view: VBucketView,
        source: HistorySource,
        end_seqno: int,
        collection_ids: frozenset[int] | None,
    ) -> None:
        self._view = view
        self._source = source
        self._end_seqno = end_seqno
        self._collection_ids = collection_ids
        self._read_seqno = 0
        self._has_budget = wish.free_memory > 0
        self._budget = wish.free_memory
        self._all_keys = wish.all_keys
        self.is_over = end_seqno == 0

    def stop(self) -> None:
        """The consumer has no memory for more."""
        self.is_over = True

    def next_batch(self, max_bytes: int) -> bytes | None:
        """The records of the next message.

        Args:
            max_bytes: a soft limit.

        Returns: nothing if none of the documents that were read are sent; None while they are fetched.

        Raises:
            StoreError: the history cannot be read.
        """
        room = max(1, min(max_bytes, BATCH_BYTES))
        # As of now: a document that has changed meanwhile has another seqno.
        block = self._view.read(self._read_seqno, self._end_seqno, snapshot_end=self._view.high_seqno, max_bytes=room)
        if block is None:
            return None
        if not block.count:
            self.is_over = True
            return b""
        living = {item.collection_id for _, item in self._source.manifest.collections()}
        records = []
        data = memoryview(block.data)
        ends = [*block.starts[1:], block.size]
        for start, end in zip(block.starts, ends, strict=True):
            item = _document_in(data[start:end])
            if item is None or not self._is_wanted(item, living):
                continue
            if self._has_budget and self._budget <= 0:
                if not self._all_keys:
                    self.is_over = True
                    break
                item = item._replace(value=b"")
            record = encode_cached_item(item)
            self._budget -= len(record)
            records.append(record)
        self._read_seqno = int(block.seqnos[-1])
        return b"".join(records)

    def _is_wanted(self, item: CachedItem, living: set[int]) -> bool:
        collection_id, _ = leb128_decode(item.key)
        return collection_id in living and (self._collection_ids is None or collection_id in self._collection_ids)


def _document_in(frame: memoryview) -> CachedItem | None:
    """The document of a stored message; None if it is of another kind."""
    _, opcode, key_length, extras_length, datatype, _, _, _, cas = HEADER.unpack_from(frame)
    if opcode != Opcode.DCP_MUTATION:
        return None
    key_at = HEADER_BYTES + extras_length
    seqno, rev_seqno, flags, expiration, _, _, counter = Mutation.layout.extras.unpack_from(frame, HEADER_BYTES)
    key, value = bytes(frame[key_at : key_at + key_length]), bytes(frame[key_at + key_length :])
    hint = EXACT_COUNTER if counter == COARSE_COUNTER else counter
    return CachedItem(key, value, cas, seqno, rev_seqno, flags, expiration, datatype, hint)
