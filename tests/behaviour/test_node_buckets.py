"""Buckets of a node in this process, made and deleted while it runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dcpstream.client.kv import KvClient
from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import BucketSettings
from dcpstream.node import Node


def client(node: Node, bucket: str) -> KvClient:
    return KvClient(node.connection_string, node.username, node.password, bucket)


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_bucket_is_made_filled_and_deleted(tmp_path, is_on_disk: bool) -> None:
    path = tmp_path / "data" if is_on_disk else None
    with Node(vbuckets=4, path=path) as node:
        node.create_bucket("shop", BucketSettings(max_ttl=60))
        assert node.engine is not None
        assert node.engine.buckets["shop"].settings.max_ttl == 60
        with client(node, "shop") as kv:
            kv.set("k", b"{}")
            assert kv.get("k").value == b"{}"
        assert not is_on_disk or (tmp_path / "data" / "shop").is_dir()
        node.drop_bucket("shop")
        assert not (tmp_path / "data" / "shop").exists()
        node.create_bucket("shop", vbuckets=2)
        assert node.engine.buckets["shop"].item_count() == 0
        assert node.engine.buckets["shop"].vbucket_count == 2


def test_what_cannot_be_is_told() -> None:
    with Node(vbuckets=1) as node:
        for name in ("default", "../x", ""):
            with pytest.raises(ConfigError, match="bucket"):
                node.create_bucket(name)
        with pytest.raises(ConfigError, match="vbuckets"):
            node.create_bucket("new", vbuckets=0)
        with pytest.raises(ConfigError, match="nosuch"):
            node.drop_bucket("nosuch")
    for order in (node.create_bucket, node.drop_bucket):
        with pytest.raises(DcpstreamError, match="does not run"):
            order("default")


def test_orders_may_come_from_several_threads() -> None:
    names = [f"b{number}" for number in range(16)]
    with Node(vbuckets=8) as node, ThreadPoolExecutor(4) as pool:
        list(pool.map(node.create_bucket, names))
        assert node.engine is not None
        assert set(names) < set(node.engine.buckets)
        list(pool.map(node.drop_bucket, names))
        assert list(node.engine.buckets) == ["default"]
