"""Buckets of a node in this process, made and deleted while it runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import BucketSettings
from dcpstream.wire import FrameInfoId, Opcode, Status
from dcpstream.wire.keys import encode_frame_info
from dcpstream_node import Node
from tests.kit.peer import SocketPeer


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


def test_what_cannot_be_is_refused_with_the_reason() -> None:
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


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_node_without_replicas_takes_durable_writes(tmp_path, is_on_disk: bool, level: int) -> None:
    """Also in a bucket that was made later; where replicas are wanted there are none, so nothing can be sure."""
    with Node(vbuckets=1, path=tmp_path if is_on_disk else None) as node, SocketPeer(node.port).open() as peer:
        node.create_bucket("later")
        node.create_bucket("wanting", BucketSettings(replicas=1))
        framing = encode_frame_info(FrameInfoId.DURABILITY, bytes((level,)))
        expected = {"default": Status.SUCCESS, "later": Status.SUCCESS, "wanting": Status.DURABILITY_IMPOSSIBLE}
        assert (
            peer.call(Opcode.HELLO, value=b"".join(bytes((0, code)) for code in (0x07, 0x10, 0x11, 0x12))).status == 0
        )
        for bucket, status in expected.items():
            assert peer.call(Opcode.SELECT_BUCKET, key=bucket.encode()).status == Status.SUCCESS
            answer = peer.call(Opcode.SET, framing=framing, extras=bytes(8), key=b"\0k", value=b"{}")
            assert answer.status == status, bucket
            assert peer.get("k").status == (Status.KEY_ENOENT if status else Status.SUCCESS)
