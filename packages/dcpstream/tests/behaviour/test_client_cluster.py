"""Clients and what happens to a cluster: copies that lag, purged deletions, maps that change, buckets made again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client import (
    AsyncClient,
    BucketReader,
    Change,
    Client,
    ClientOptions,
    KvClient,
    RollbackTo,
    RowsRead,
    StreamOptions,
    VbucketRange,
)
from dcpstream.client.blocking import loop
from dcpstream.errors import ConfigError, ConnectionLost, ConnectTimeout, HistoryPurged, KeyNotFound, OffsetError
from dcpstream.model import StreamOffset
from dcpstream.wire import Frame, Opcode, encode_request
from lab.tools.patience import patient
from tests.kit.access import LOGIN
from tests.kit.fake_node import FakeNode, config
from tests.kit.messages import accepted, marker, mutation
from tests.kit.waiting import wait_until

NEVER_S = 3600.0


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def changes(
    kind: str, connection_string: str, *, connect_timeout_s: float = patient(5.0), **options: Any
) -> list[Change]:
    if kind == "blocking":
        with Client(connection_string, **LOGIN, options=ClientOptions(connect_timeout_s=connect_timeout_s)) as client:
            return list(client.changes(StreamOptions(**options)))

    async def collect() -> list[Change]:
        async with AsyncClient(
            connection_string, **LOGIN, options=ClientOptions(connect_timeout_s=connect_timeout_s)
        ) as client:
            return [change async for change in client.changes(StreamOptions(**options))]

    return asyncio.run(asyncio.wait_for(collect(), patient(60)))


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=1, system_scope=False) as running:
        yield running


def purge(kv: KvClient, vbid: int = 0) -> None:
    """COMPACT_DB with drop_deletes."""
    extras = struct.pack(">QQB7x", 0, 0, 1)
    kv._pool.any().ask(encode_request(Opcode.COMPACT_DB, vbid=vbid, extras=extras))


def with_purged_deletions(node: dcpstream_node.Node) -> StreamOffset:
    """Documents of which one was deleted and forgotten; the position before that."""
    with KvClient(node.connection_string, **LOGIN) as kv:
        token = kv.set_many((f"doc {number}", "{}") for number in range(5))[-1]
        kv.delete("doc 1")
        kv.set("doc 9", "{}")
        purge(kv)
    return StreamOffset(token.vbuuid, token.seqno, token.seqno, token.seqno)


@pytest.mark.slow
def test_stable_changes_of_a_node_that_persists(kind: str, tmp_path: Path) -> None:
    with (
        dcpstream_node.Node(path=tmp_path, vbuckets=4, system_scope=False) as node,
        KvClient(node.connection_string, **LOGIN) as kv,
    ):
        kv.set_many((f"doc {number}", "{}") for number in range(500))
        found = changes(kind, node.connection_string, end="latest", read_stable=True)
    assert {change.key.decode() for change in found} == {f"doc {number}" for number in range(500)}


@pytest.mark.slow
def test_what_is_not_on_disk_is_not_seen(kind: str, tmp_path: Path) -> None:
    with (
        dcpstream_node.Node(path=tmp_path, vbuckets=1, flush_interval_s=NEVER_S, system_scope=False) as node,
        KvClient(node.connection_string, **LOGIN) as kv,
    ):
        kv.set("doc", "{}")
        assert len(changes(kind, node.connection_string, end="latest")) == 1
        with pytest.raises(ConnectTimeout, match="settling"):
            changes(kind, node.connection_string, end="latest", read_stable=True, idle_timeout_s=0.5)


def test_stable_ranges(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    with (
        dcpstream_node.Node(path=tmp_path, vbuckets=1, system_scope=False) as node,
        KvClient(node.connection_string, **LOGIN) as kv,
        BucketReader(node.connection_string, **LOGIN) as cluster,
    ):
        token = kv.set_many((f"doc {number}", "{}") for number in range(100))[-1]
        ranges = [VbucketRange(0, StreamOffset.ZERO, token.seqno)]
        batches = list(cluster.read_ranges(ranges, StreamOptions(on_rollback="rewind", read_stable=True)))
    assert sum(batch.rows.num_rows for batch in batches if isinstance(batch, RowsRead)) == 100


def test_purged_deletions_fail_by_default(kind: str, node: dcpstream_node.Node) -> None:
    position = with_purged_deletions(node)
    with pytest.raises(HistoryPurged, match="were purged before they were read"):
        changes(kind, node.connection_string, start={0: position}, end="latest")


def test_purged_deletions_can_be_ignored(
    kind: str, node: dcpstream_node.Node, caplog: pytest.LogCaptureFixture
) -> None:
    position = with_purged_deletions(node)
    found = changes(kind, node.connection_string, start={0: position}, end="latest", purge_gap="ignore")
    assert [change.key for change in found] == [b"doc 9"]
    assert "were purged before they were read" in caplog.text


def test_after_purged_deletions_all_comes_again(kind: str, node: dcpstream_node.Node) -> None:
    position = with_purged_deletions(node)
    found = changes(kind, node.connection_string, start={0: position}, end="latest", on_rollback="rewind")
    assert (found[0].op, found[0].seqno) == ("rollback", 0)
    assert {change.key.decode() for change in found[1:]} == {"doc 0", "doc 2", "doc 3", "doc 4", "doc 9"}


def test_reconcile_needs_to_go_back(kind: str, node: dcpstream_node.Node) -> None:
    with pytest.raises(ConfigError, match="purge_gap"):
        changes(kind, node.connection_string, purge_gap="reconcile")


def test_positions_before_purged_deletions(node: dcpstream_node.Node) -> None:
    position = with_purged_deletions(node)
    with BucketReader(node.connection_string, **LOGIN) as cluster:
        assert cluster.check_positions({0: position}) == {0: RollbackTo(0)}
        with pytest.raises(HistoryPurged):
            cluster.check_positions({0: position}, purge_gap="fail")
        assert cluster.check_positions({0: position}, purge_gap="ignore")[0] != RollbackTo(0)
        unknown = StreamOffset(position.vbuuid ^ 1, position.seqno, position.seqno, position.seqno)
        assert cluster.check_positions({0: unknown}, purge_gap="fail") == {0: RollbackTo(0)}


def test_a_seed_that_is_down_and_one_that_never_answers(kind: str, node: dcpstream_node.Node) -> None:
    with KvClient(node.connection_string, **LOGIN) as kv:
        kv.set("doc", "{}")
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as down:
        down.bind(("127.0.0.1", 0))
        hosts = ",".join(f"127.0.0.1:{port}" for port in (down.getsockname()[1], silent.getsockname()[1], node.port))
        assert len(changes(kind, f"couchbase://{hosts}", end="latest")) == 1
        with KvClient(f"couchbase://{hosts}", **LOGIN, options=ClientOptions(connect_timeout_s=2.0)) as kv:
            assert kv.get("doc") is not None


def test_a_bucket_that_is_made_again_ends_its_streams(node: dcpstream_node.Node) -> None:
    with KvClient(node.connection_string, **LOGIN) as kv:
        kv.set("doc", "{}")
    with Client(node.connection_string, **LOGIN) as client:
        stream = client.changes(StreamOptions(idle_timeout_s=30.0))
        assert next(stream).key == b"doc"
        node.drop_bucket("default")
        node.create_bucket("default")
        with pytest.raises((OffsetError, KeyNotFound), match="default"):
            next(stream)


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with dcpstream_node.Node(vbuckets=1, host="::1", system_scope=False) as node:
        with KvClient(node.connection_string, **LOGIN) as kv:
            kv.set("doc", "{}")
        assert len(changes("blocking", node.connection_string, end="latest")) == 1


def test_nobody_there(kind: str) -> None:
    with socket.socket() as down:
        down.bind(("127.0.0.1", 0))
        string = f"couchbase://127.0.0.1:{down.getsockname()[1]}"
        with pytest.raises(ConnectionLost, match="no node gave"):
            changes(kind, string, connect_timeout_s=0.3)


class Probing(FakeNode):
    """A node that notes when its probe is answered."""

    def __init__(self) -> None:
        super().__init__(answer=self._stream)
        self.is_answered = threading.Event()
        self.opaque = 0

    def _stream(self, frame: Frame) -> bytes | None:
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        probe = encode_request(Opcode.DCP_NOOP, opaque=0x10000001)
        return accepted(frame.opaque) + marker(frame.opaque, 0, 1) + mutation(frame.opaque, 1) + probe

    def _answer(self, frame: Frame) -> bytes:
        if frame.is_response and frame.opcode == Opcode.DCP_NOOP:
            assert frame.opaque == 0x10000001
            self.is_answered.set()
        return super()._answer(frame)


def test_probes_are_answered_while_the_user_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is sent only with the next look at the sockets, which the user does not take."""
    monkeypatch.setattr(loop, "BEAT_S", 0.01)
    fake = Probing()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        fake.cluster_map = config(1, ports=(port,))
        served: list[socket.socket] = []

        def serve() -> None:
            while len(served) < 2:  # one for questions, one for the stream
                served.append(listener.accept()[0])
                threading.Thread(target=carry, args=(served[-1],), daemon=True).start()

        def carry(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                while data := connection.recv(65536):
                    connection.sendall(fake.receive(data))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        string = f"couchbase://127.0.0.1:{port}"
        with Client(string, **LOGIN) as client, contextlib.closing(client.changes()) as stream:
            next(stream)
            assert fake.is_answered.wait(patient(10.0))
        thread.join(patient(10.0))


def test_a_read_that_has_no_stream_left_starts_no_thread(
    node: dcpstream_node.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing that a node's probes could end."""
    left: list[loop.KeepAlive] = []
    leave = loop.KeepAlive.leave

    def noted(self: loop.KeepAlive) -> None:
        left.append(self)
        leave(self)

    monkeypatch.setattr(loop.KeepAlive, "leave", noted)
    with KvClient(node.connection_string, **LOGIN) as kv:
        kv.set("k", "v")
    with Client(node.connection_string, **LOGIN) as client:
        assert [change.key for change in client.changes(StreamOptions(end="latest"))] == [b"k"]
        assert not left
        with contextlib.closing(client.changes()) as stream:
            next(stream)
            assert len(left) == 1


def test_a_stream_leaves_no_connection_on_which_nobody_answers_probes(kind: str, node: dcpstream_node.Node) -> None:
    assert node.engine is not None
    sessions = node.engine.buckets["default"].dcp_sessions
    with KvClient(node.connection_string, **LOGIN) as kv:
        kv.set("k", "v")
    if kind == "blocking":
        with Client(node.connection_string, **LOGIN) as client, contextlib.closing(client.changes()) as stream:
            next(stream)
            wait_until(lambda: len(sessions) == 1)
            assert client.cluster.high_seqnos() == {0: 1}, "questions beside a stream"
            assert len(sessions) == 2
            assert [change.key for change in client.changes(StreamOptions(end="latest"))] == [b"k"]
            wait_until(lambda: len(sessions) == 2)  # a short read leaves it open for the next one
        return

    async def one() -> None:
        client = AsyncClient(node.connection_string, **LOGIN)
        async with client, contextlib.aclosing(client.changes()) as stream:
            await anext(stream)
            wait_until(lambda: len(sessions) == 1)

    asyncio.run(one())
