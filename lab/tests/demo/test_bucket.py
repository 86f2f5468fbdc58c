from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream.errors import ConnectionLost
from dcpstream_demo.bucket import Access, LoaderBucket, read_documents
from dcpstream_demo.flights import Change
from dcpstream_demo.watch import NodeWatch
from dcpstream_node.embedded import Node

NEVER_S = 3600.0


def access(node: Node) -> Access:
    return Access(node.connection_string, "Administrator", "password", "default")


def test_writes_have_tokens_in_order_and_are_not_persisted_before_the_flush(tmp_path: Path) -> None:
    with Node(vbuckets=1, system_scope=False, path=tmp_path, flush_interval_s=NEVER_S) as node:
        bucket = LoaderBucket(access(node))
        tokens = bucket.write([Change(b"a", b"1"), Change(b"b", b"2"), Change(b"a", None)])
        assert [token.seqno for token in tokens] == [1, 2, 3]
        assert bucket.persisted([(0, tokens[0].vbuuid)]) == [0]
        bucket.close()


def test_what_survives_a_crash_is_asked_by_the_branch_that_was_written(tmp_path: Path) -> None:
    node = Node(vbuckets=2, system_scope=False, path=tmp_path, flush_interval_s=NEVER_S).start()
    bucket = LoaderBucket(access(node))
    tokens = bucket.write([Change(b"key-%d" % number, b"{}") for number in range(40)])
    bucket.close()
    node.stop()  # a clean stop writes everything
    node = Node(vbuckets=2, system_scope=False, path=tmp_path, flush_interval_s=NEVER_S, port=node.port).start()
    bucket = LoaderBucket(access(node))
    lost = bucket.write([Change(b"key-%d" % number, b"{}") for number in range(40, 60)])
    node.crash()
    bucket.close()
    with pytest.raises(ConnectionLost):
        LoaderBucket(access(node))
    with Node(vbuckets=2, system_scope=False, path=tmp_path, flush_interval_s=NEVER_S, port=node.port) as node:
        bucket = LoaderBucket(access(node))
        branches = sorted({(token.vbid, token.vbuuid) for token in lost})
        kept = [max(token.seqno for token in tokens if token.vbid == vbid) for vbid, _ in branches]
        assert list(bucket.persisted(branches)) == kept
        assert list(bucket.persisted([*branches, (0, 12345)])) == [*kept, 0], "of an unknown branch nothing is left"
        bucket.close()
        watch = NodeWatch(access(node))
        assert watch.survived(dict(branches)) == dict(zip([vbid for vbid, _ in branches], kept, strict=True))
        watch.close()


def test_deleting_what_is_gone_still_gives_a_token() -> None:
    with Node(vbuckets=1, system_scope=False) as node:
        bucket = LoaderBucket(access(node))
        (token,) = bucket.write([Change(b"never-there", None)])
        assert token.seqno == 2
        assert token.vbuuid
        bucket.close()
        assert read_documents(access(node), [b"never-there"]) == {}


def test_documents_are_read_by_key_with_progress() -> None:
    with Node(vbuckets=4, system_scope=False) as node:
        bucket = LoaderBucket(access(node))
        bucket.write([Change(b"key-%d" % number, b"%d" % number) for number in range(50)])
        bucket.close()
        seen: list[int] = []
        documents = read_documents(access(node), [b"key-%d" % number for number in range(60)], seen.append)
        assert documents == {b"key-%d" % number: b"%d" % number for number in range(50)}
        assert seen == [60]


def test_watch_sees_seqnos_and_a_node_that_is_away(tmp_path: Path) -> None:
    node = Node(vbuckets=2, system_scope=False, path=tmp_path, flush_interval_s=NEVER_S).start()
    bucket = LoaderBucket(access(node))
    bucket.write([Change(b"key-%d" % number, b"{}") for number in range(10)])
    bucket.close()
    watch = NodeWatch(access(node))
    seen = watch.look()
    assert seen is not None
    assert sum(item.current for item in seen.values()) == 10
    assert sum(item.persisted for item in seen.values()) == 0
    node.crash()
    assert watch.look() is None
    with Node(vbuckets=2, system_scope=False, path=tmp_path, port=node.port) as node:
        again = watch.look()
        assert again is not None
        assert all(again[vbid].vbuuid != seen[vbid].vbuuid for vbid in seen)
    watch.close()
