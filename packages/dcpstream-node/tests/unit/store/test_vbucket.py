"""Facts about documents that the index has without their frames: revisions, expirations, delete times."""

from __future__ import annotations

import pytest

from dcpstream.model import FailoverLog, VbucketState
from dcpstream.wire.stored.block import BlockKind, Version, encode_stored_deletion, encode_stored_mutation
from dcpstream_node.store import MemoryBucketStore, VBucketLog, vbucket
from dcpstream_node.store.compact.purge import purge
from dcpstream_node.store.index import queries
from dcpstream_node.store.vbucket import Brief

LOG = FailoverLog.of((0xA, 0))
LARGE = 2**40


def put(log: VBucketLog, name: str, expiration: int, rev: int = 1) -> bytes:
    key, seqno = b"\0" + name.encode(), log.high_seqno + 1
    frame = encode_stored_mutation(Version(key, b"v", rev, flags=7, time=expiration), vbid=0, by_seqno=seqno, cas=seqno)
    log.append(frame, key, seqno)
    return key


def delete(log: VBucketLog, name: str, time: int, rev: int) -> bytes:
    key, seqno = b"\0" + name.encode(), log.high_seqno + 1
    frame = encode_stored_deletion(Version(key, b"", rev, time=time), vbid=0, by_seqno=seqno, cas=seqno)
    log.append(frame, key, seqno, kinds=BlockKind.DELETION)
    return key


def fill_in(log: VBucketLog) -> None:
    put(log, "a", 100, rev=5)
    put(log, "b", 0)
    put(log, "c", 50)
    put(log, "c", 200, rev=LARGE)
    put(log, "d", 101)
    delete(log, "e", 60, rev=9)
    many = [b"\0many%d" % number for number in range(70)]
    first = log.high_seqno + 1
    frames = [
        encode_stored_mutation(
            Version(key, b"", LARGE if seqno == first else seqno, flags=7, time=99), vbid=0, by_seqno=seqno, cas=1
        )
        for seqno, key in enumerate(many, first)
    ]
    log.append_many(frames, many, range(first, first + 70))


def check(log: VBucketLog) -> None:
    many = [b"\0many%d" % number for number in range(70)]
    assert log.expired(98, 100) == []
    assert log.expired(99, 100) == many
    assert log.expired(100, 1000) == [b"\0a", *many]
    assert log.expired(100, 3) == [b"\0a", *many[:2]]
    assert log.expired(2**32 - 1, 1000) == [b"\0a", b"\0c", b"\0d", *many]
    assert log.brief(b"\0nobody") is None
    assert log.brief(b"\0a") == Brief(0, 5, 100)
    assert log.brief(b"\0c") == Brief(0, LARGE, 200), "a revision that the index has no room for is read"
    assert log.brief(b"\0e") == Brief(int(BlockKind.DELETION), 9, 60)
    assert log.brief(many[0]) == Brief(0, LARGE, 99), "also of many at once"
    assert log.brief(many[-1]) == Brief(0, 76, 99)
    assert log.max_deleted_rev == 9


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "SELECT_ROWS", 7)
    monkeypatch.setattr(vbucket, "STEP_ROWS", 4)


@pytest.mark.usefixtures("_small_steps")
def test_in_memory() -> None:
    log = MemoryBucketStore(1).create_vbucket(0, VbucketState.ACTIVE, LOG)
    fill_in(log)
    check(log)


@pytest.mark.usefixtures("_small_steps")
def test_deletions_are_purged_by_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryBucketStore(1).create_vbucket(0, VbucketState.ACTIVE, LOG)
    keys = [delete(log, f"k{number}", 10 + number % 3, rev=1) for number in range(40)]
    put(log, "last", 0)
    stale = log.rows.stale_bytes
    assert purge(log, 2**64 - 1, 12) == 27
    assert log.purge_seqno == 40
    assert [key for key in keys if log.get(key) is not None] == keys[2::3]
    assert log.rows.stale_bytes > stale
