"""Nodes and buckets that live as long as a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings
from dcpstream_node.embedded import Node
from dcpstream_node.testing.nodes import FreshBucket, add_collections, fresh_bucket, running_node


def names(node: Node, bucket: str) -> set[str]:
    """The collections that are not the system's."""
    assert node.engine is not None
    found = node.engine.buckets[bucket].manifest.collections()
    return {f"{scope.name}.{collection.name}" for scope, collection in found if not scope.is_system}


def seqno_of_first(bucket: FreshBucket) -> int:
    with KvClient(bucket.connection_string, bucket.username, bucket.password, bucket.name) as kv:
        assert kv.get("k") is None
        return kv.set("k", b"{}").seqno


def test_each_fresh_bucket_is_empty_and_goes_at_the_end() -> None:
    with running_node(vbuckets=1) as node:
        assert node.engine is not None
        seen = set()
        for _ in range(3):
            with fresh_bucket(node, settings=BucketSettings(flush_enabled=True)) as bucket:
                assert seqno_of_first(bucket) == 4, "after the events of the scope _system"
                assert node.engine.buckets[bucket.name].settings.flush_enabled
                seen.add(str(bucket))
            assert list(node.engine.buckets) == ["default"]
        assert len(seen) == 3


def test_a_bucket_or_node_that_a_test_ended_is_no_error() -> None:
    with running_node(vbuckets=1) as node:
        with fresh_bucket(node, name="mine") as bucket:
            node.drop_bucket("mine")
        with fresh_bucket(node) as bucket:
            node.stop()
        assert bucket.node is node


def test_collections_are_made_with_their_scopes() -> None:
    with running_node(vbuckets=1, buckets=["a", "b"], collections=["shop.orders", "shop.orders"]) as node:
        assert names(node, "a") == names(node, "b") == {"_default._default", "shop.orders"}
        with fresh_bucket(node, collections=["shop.returns", "_default.x"]) as bucket:
            assert names(node, bucket.name) == {"_default._default", "_default.x", "shop.returns"}
            bucket.add_collections("shop.returns", "shop.orders")
            assert "shop.orders" in names(node, bucket.name)
        for wrong in ("orders", ".orders", "shop."):
            with pytest.raises(ConfigError, match=r"scope\.collection"):
                add_collections(node, "a", [wrong])


def test_data_on_disk_goes_with_the_node(tmp_path: Path) -> None:
    with running_node(vbuckets=1, on_disk=True) as node:
        path = node._path
        assert path is not None
        assert (path / "default").is_dir()
    assert not path.exists()
    with running_node(vbuckets=1, path=tmp_path) as node:
        pass
    assert (tmp_path / "default").is_dir()
