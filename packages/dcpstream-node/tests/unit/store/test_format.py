"""The store's files keep their format: a golden store, written by an earlier version, opens and is written again alike.

`tests/data/stores/format-2.tar.gz` holds the directories `clean` and `crash`, which `write_store` wrote with the last
version before the rooms of this package, with the salt `SALT` in all segments.
"""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from dcpstream.model import FailoverEntry, FailoverLog, SnapshotRange, VbucketState
from dcpstream.wire.codes import SystemEventId
from dcpstream.wire.messages.dcp import SystemEvent
from dcpstream.wire.stored.block import (
    BlockKind,
    Version,
    encode_stored_deletion,
    encode_stored_expiration,
    encode_stored_mutation,
)
from dcpstream.wire.stored.durable import encode_stored_abort, encode_stored_prepare, read_prepare
from dcpstream_node.store import CompactionOrder, DiskBucketStore, VBucketLog, finish
from dcpstream_node.store.closed.check import check_store

GOLDEN = Path(__file__).parents[5] / "tests" / "data" / "stores" / "format-2.tar.gz"
SALT = 0x0123456789ABCDEF
MODES = pytest.mark.parametrize("mode", ["clean", "crash"])


class FixedSalt:
    def getrandbits(self, count: int) -> int:
        assert count == 64
        return SALT


def put(vbucket: VBucketLog, key: bytes, value: bytes, *, flags: int = 0, expiration: int = 0) -> None:
    seqno = vbucket.high_seqno + 1
    frame = encode_stored_mutation(
        Version(key, value, 1, flags=flags, time=expiration), vbid=vbucket.vbid, by_seqno=seqno, cas=seqno << 16
    )
    vbucket.append(frame, key, seqno, kinds=0 if key[:1] == b"\0" else BlockKind.NAMED_COLLECTION)


def write_store(target: Path, mode: str) -> None:
    """A small store with every kind of frame, a received snapshot, a rollback and rewritten segments."""
    store = DiskBucketStore(target, 4, segment_bytes=2000, random=FixedSalt())
    log = FailoverLog.of((0xA, 0))
    a = store.create_vbucket(0, VbucketState.ACTIVE, log)
    two_branches = FailoverLog((FailoverEntry(0xC, 3), FailoverEntry(0xB, 0)))
    b = store.create_vbucket(1, VbucketState.REPLICA, two_branches)
    c = store.create_vbucket(2, VbucketState.ACTIVE, log)
    for number in range(40):
        put(a, b"\0doc%d" % (number % 8), b"value %d" % number, flags=number, expiration=1_900_000_000 + number)
    store.commit()
    deletion = encode_stored_deletion(
        Version(b"\0doc1", b"", 2**40, flags=5, time=1_700_000_000), vbid=0, by_seqno=41, cas=41
    )
    a.append(deletion, b"\0doc1", 41, kinds=BlockKind.DELETION)
    expiration = encode_stored_expiration(Version(b"\0doc2", b"", 7, time=1_700_000_001), vbid=0, by_seqno=42, cas=42)
    a.append(expiration, b"\0doc2", 42, kinds=BlockKind.EXPIRATION)
    value = bytes(8) + (0).to_bytes(4, "big") + (8).to_bytes(4, "big")
    event = SystemEvent(
        vbid=0, opaque=0, by_seqno=43, event=SystemEventId.CREATE_COLLECTION, version=0, key=b"shop", value=value
    )
    a.append(event.encode(), b"", 43, kinds=BlockKind.SYSTEM_EVENT)
    put(a, b"\x08in shop", b"{}")
    prepare = encode_stored_prepare(Version(b"\0durable", b"x", 1), vbid=0, by_seqno=45, cas=9, level=2)
    a.append(prepare, b"", 45, kinds=BlockKind.PREPARE)
    abort = encode_stored_abort(vbid=0, key=b"\0durable", by_seqno=46, prepared_seqno=45)
    a.append(abort, b"", 46, kinds=BlockKind.PREPARE)
    store.commit()
    b.set_snapshot(SnapshotRange(0, 3))
    for number in range(3):
        put(b, b"\0copy%d" % number, b"c")
    b.set_snapshot(SnapshotRange(3, 9))
    for number in range(4):
        put(b, b"\0copy%d" % number, b"d")
    store.commit()
    for number in range(5):
        put(c, b"\0back%d" % number, b"x" * 300)
    store.commit()
    c.rollback(2)
    put(c, b"\0new branch", b"y")
    store.commit()
    store.compact(CompactionOrder(is_full=True))
    put(a, b"\0last", b"end")
    store.close(clean=mode == "clean")


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path / "golden", filter="data")
    return tmp_path / "golden"


def metadata_of(directory: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(directory / "meta.sqlite")) as connection:
        tables = ("store", "vbuckets")
        return [row for table in tables for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1")]


@MODES
def test_a_store_of_an_earlier_version_opens(golden: Path, mode: str) -> None:
    assert check_store(golden / mode).is_sound
    with DiskBucketStore(golden / mode, 4) as store:
        assert store.was_clean is (mode == "clean")
        assert store.cut_bytes == 0
        a, b, c = (store.vbuckets[vbid] for vbid in (0, 1, 2))
        has_last = mode == "clean"  # the last write was not committed before the crash
        assert (a.high_seqno, a.item_count, a.max_deleted_rev) == (46 + has_last, 7 + has_last, 2**40)
        item = a.get(b"\0doc3")
        assert item is not None
        assert (item.value, item.flags, item.expiration, item.cas) == (b"value 35", 35, 1_900_000_035, 36 << 16)
        deleted = a.get(b"\0doc1")
        assert deleted is not None
        assert (deleted.is_deleted, deleted.flags, deleted.delete_time, deleted.rev_seqno) == (
            True, 5, 1_700_000_000, 2**40,
        )  # fmt: skip
        assert finish(a.walk_collections()) == {0: 6 + has_last, 8: 1}
        abort = a.prepare(b"\0durable")
        assert abort is not None
        assert read_prepare(abort)[4:6] == (46, 45)
        assert (b.state, [entry.vbuuid for entry in b.failover_log]) == (VbucketState.REPLICA, [0xC, 0xB])
        assert (b.persisted_snapshot, b.branch_seqno) == (SnapshotRange(3, 9), 3)
        assert (c.high_seqno, sorted(c.keys_between(b"\0", b"\xff"))) == (
            3, [b"\0back0", b"\0back1", b"\0new branch"],
        )  # fmt: skip


@MODES
def test_the_same_history_makes_the_same_files(golden: Path, tmp_path: Path, mode: str) -> None:
    written = tmp_path / "written"
    write_store(written, mode)
    names = sorted(path.name for path in (golden / mode).glob("segment-*"))
    assert names == sorted(path.name for path in written.glob("segment-*"))
    for name in names:
        assert (written / name).read_bytes() == (golden / mode / name).read_bytes()
    assert metadata_of(written) == metadata_of(golden / mode)
