"""Rebuilding the index: in bulk and frame by frame it comes out the same."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dcpstream.errors import CorruptLog
from dcpstream.model import SnapshotRange
from dcpstream.wire import SystemEventId
from dcpstream.wire.messages.dcp import SystemEvent
from dcpstream.wire.stored.block import BlockKind, frame_kinds
from dcpstream_node.store import DiskBucketStore, recovery
from dcpstream_node.store.index import bulk_load
from dcpstream_node.store.index.bulk_load import History
from dcpstream_node.store.index.rows import collection_of
from dcpstream_node.store.items import fields_of, index_key, is_collection_end
from dcpstream_node.store.log import blocks
from dcpstream_node.store.log.segment_file import Segment
from tests.kit.stores import fill, frame_of, key_of, put


def event(vbid: int, seqno: int, kind: SystemEventId, collection: int) -> bytes:
    value = bytes(12) + collection.to_bytes(4, "big")
    return SystemEvent(vbid=vbid, opaque=0, by_seqno=seqno, event=kind, version=0, key=b"c", value=value).encode()


def load_one_by_one(histories: Mapping[int, History], file: Segment, data: bytes, offsets: Sequence[int]) -> None:
    """As `load_blocks`, frame by frame: what the bulk version is compared with."""
    for offset in offsets:
        header = blocks.BlockHeader(*blocks.BLOCK_HEADER.unpack_from(data, offset))
        rows, log = histories[header.vbid]
        table, base = offset + blocks.BLOCK_HEADER.size, offset + header.frames_at
        following = table + blocks.END_BYTES * header.frames
        address = file.address | base
        log.add_pages(
            (rows.end + begin, address + begin, finish - begin, expected)
            for begin, finish, expected in blocks.page_table(data, following, header.pages)
        )
        ends = [0, *(int.from_bytes(data[at : at + 4], "big") for at in range(table, following, 4))]
        for begin, end in pairwise(ends):
            frame = data[base + begin : base + end]
            key = index_key(frame)
            kinds = int(frame_kinds(frame[1], frame[5], key))
            seqno = int.from_bytes(frame[24:32], "big")
            revision, time = fields_of(frame, kinds)
            rows.append(key, seqno, kinds, end - begin, collection_of(key), time, revision)
            if is_collection_end(frame):
                rows.end_collection(collection_of(key), len(rows.seqnos) - 1)


def test_in_bulk_and_one_by_one_the_index_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    with DiskBucketStore(tmp_path, 3, segment_bytes=3000) as store:
        fill(store)
        for _ in range(40):
            for vbucket in store.vbuckets.values():
                for _ in range(chance.randrange(4)):
                    collection = chance.choice([b"\0", b"\x08", b"\x88\x01"])
                    value = chance.choice([None, b"", b"v" * 30])
                    put(
                        vbucket, key_of(chance.randrange(20), collection), value, kind=chance.choice(["", "expiration"])
                    )
                if not chance.randrange(5):
                    seqno = vbucket.high_seqno + 2
                    kind = chance.choice([SystemEventId.CREATE_COLLECTION, SystemEventId.DROP_COLLECTION])
                    vbucket.append(event(vbucket.vbid, seqno, kind, 8), b"", seqno, kinds=BlockKind.SYSTEM_EVENT)
                if not chance.randrange(9):
                    vbucket.rollback(vbucket.high_seqno - 2)
            store.commit()
        store.create_vbucket(2, store.vbuckets[2].state, store.vbuckets[2].failover_log)

    def index() -> list[object]:
        with DiskBucketStore(tmp_path, 3, segment_bytes=3000) as store:
            assert store.was_clean
            return [
                (
                    vbucket.rows.keys, vbucket.rows.seqnos, vbucket.rows.positions, vbucket.rows.successors,
                    vbucket.rows.end, vbucket.rows.item_count, vbucket.rows.collection_high,
                    vbucket.log.page_starts, vbucket.log.page_addresses, vbucket.log.page_sizes,
                    vbucket.log.page_checksums, vbucket.persisted_snapshot,
                )
                for vbucket in store.vbuckets.values()
            ]  # fmt: skip

    in_bulk = index()
    with monkeypatch.context() as patch:
        patch.setattr(bulk_load, "MIN_KEYS_OF_A_LENGTH", 1)
        assert index() == in_bulk
    monkeypatch.setattr(recovery, "load_blocks", load_one_by_one)
    assert index() == in_bulk


@pytest.mark.parametrize("least", [1, 1000])
def test_keys_of_any_length_and_content_come_back(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(bulk_load, "MIN_KEYS_OF_A_LENGTH", least)
    keys = [b"", b"\0", b"\0\0", b"a\0", b"ab", b"", b"\xff" * 246, b"\0" * 246]
    stops = np.cumsum([len(key) for key in keys])
    starts = np.concatenate(([0], stops[:-1]))
    assert bulk_load._keys(b"".join(keys), starts, stops) == keys


@pytest.mark.parametrize("is_in_one_segment", [True, False])
def test_blocks_that_are_whole_but_out_of_order_are_refused(tmp_path: Path, is_in_one_segment: bool) -> None:
    segment_bytes = 10_000 if is_in_one_segment else 100
    with DiskBucketStore(tmp_path, 2, segment_bytes=segment_bytes) as store:
        fill(store)
        put(store.vbuckets[1], key_of("a"), b"")
        for seqno in (1, 2):
            # A fault of ours: the second frame says again that it is the first.
            store.vbuckets[0].append(frame_of(0, key_of("a"), 1, b""), key_of("a"), seqno)
            store.commit()
    with pytest.raises(CorruptLog, match="a seqno above 1 of vbucket 0, found 1"):
        DiskBucketStore(tmp_path, 2)


def test_a_copy_that_was_rolled_back_to_nothing_between_two_snapshots(tmp_path: Path) -> None:
    """A replica receives a snapshot, then another branch from the beginning, and stops without closing."""
    store = DiskBucketStore(tmp_path, 1)
    fill(store)
    copy = store.vbuckets[0]
    for end in (3, 2):
        copy.set_snapshot(SnapshotRange(0, end))
        for number in range(end):
            put(copy, key_of(number), b"1")
        store.commit()
        if end == 3:
            assert copy.rollback(0) == 0
    store.close(clean=False)
    with DiskBucketStore(tmp_path, 1) as again:
        assert again.vbuckets[0].high_seqno == 2
        assert again.vbuckets[0].snapshot == SnapshotRange(0, 2)
