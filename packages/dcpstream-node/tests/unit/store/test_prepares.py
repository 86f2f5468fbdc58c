"""Prepares in a vbucket's history: under index keys of their own, hidden from counts and visible seqnos."""

from __future__ import annotations

from dcpstream.model import FailoverLog, VbucketState
from dcpstream.wire.stored.block import BlockKind, Version, encode_stored_mutation
from dcpstream.wire.stored.durable import encode_stored_abort, encode_stored_prepare, read_prepare
from dcpstream_node.store import MemoryBucketStore

LOG = FailoverLog.of((0xA, 0))


def put(vbucket, key: bytes, seqno: int) -> None:
    frame = encode_stored_mutation(Version(key, b"v", 1), vbid=0, by_seqno=seqno, cas=seqno)
    vbucket.append(frame, key, seqno)


def prepare(vbucket, key: bytes, seqno: int) -> None:
    frame = encode_stored_prepare(Version(key, b"p", 1), vbid=0, by_seqno=seqno, cas=seqno, level=1)
    vbucket.append(frame, key, seqno, kinds=BlockKind.PREPARE)


def abort(vbucket, key: bytes, seqno: int, prepared: int) -> None:
    frame = encode_stored_abort(vbid=0, key=key, by_seqno=seqno, prepared_seqno=prepared)
    vbucket.append(frame, key, seqno, kinds=BlockKind.PREPARE)


def filled(store):
    """put a 1, prepare a 2, put b 3, prepare b 4, abort b 5."""
    vbucket = store.create_vbucket(0, VbucketState.ACTIVE, LOG)
    put(vbucket, b"\0a", 1)
    prepare(vbucket, b"\0a", 2)
    put(vbucket, b"\0b", 3)
    prepare(vbucket, b"\0b", 4)
    abort(vbucket, b"\0b", 5, 4)
    return vbucket


def check(vbucket) -> None:
    assert vbucket.has_prepares
    assert vbucket.get(b"\0a").seqno == 1
    assert vbucket.item_count == 2
    assert [read_prepare(frame).seqno for frame in vbucket.prepares()] == [2, 5]
    found = vbucket.prepare(b"\0b")
    assert found is not None
    assert read_prepare(found).is_abort
    assert vbucket.prepare(b"\0c") is None
    assert [vbucket.visible_seqno(seqno) for seqno in range(6)] == [0, 1, 1, 3, 3, 3]
    assert [vbucket.first_seqno_after(seqno, is_prepare=True) for seqno in range(6)] == [2, 2, 4, 4, 5, None]
    assert [vbucket.first_seqno_after(seqno, is_prepare=False) for seqno in range(4)] == [1, 3, 3, None]
    assert vbucket.high_seqno_of((0,)) == 3
    assert list(vbucket.read(0, 5).seqnos) == [1, 2, 3, 5]
    assert list(vbucket.read(0, 4).seqnos) == [1, 2, 3, 4]


def test_in_memory() -> None:
    check(filled(MemoryBucketStore(1)))


def test_a_rollback_brings_a_prepare_back() -> None:
    vbucket = filled(MemoryBucketStore(1))
    vbucket.rollback(4)
    found = vbucket.prepare(b"\0b")
    assert found is not None
    assert read_prepare(found).seqno == 4
    vbucket.rollback(1)
    assert not vbucket.has_prepares
    assert vbucket.prepares() == []
    assert vbucket.visible_seqno(9) == 1
