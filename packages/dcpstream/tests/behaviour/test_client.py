"""Both clients against an embedded node: the same behaviour, blocking and asynchronous."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
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
    FileOffsetStore,
    KvClient,
    OffsetStore,
    RollbackEvent,
    RollbackTo,
    RowsRead,
    SavedOffset,
    SqliteOffsetStore,
    StreamOptions,
    VbucketRange,
)
from dcpstream.client.kv.client import BulkInterrupted
from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.reader.reader import StreamReader
from dcpstream.client.machine.resume import complete, plan_end
from dcpstream.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigError,
    ConnectTimeout,
    OffsetError,
    RollbackRequired,
)
from dcpstream.model import StreamOffset
from dcpstream.runtime.collector import held_collector
from dcpstream.wire import Opcode, encode_request
from lab.tools.patience import patient
from tests.kit.access import LOGIN
from tests.kit.proxy import Proxy

VBUCKETS = 8
OPTIONS = ClientOptions(connect_timeout_s=patient(5.0))


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as running:
        yield running


@pytest.fixture
def kv(node: dcpstream_node.Node) -> Iterator[KvClient]:
    with KvClient(node.connection_string, **LOGIN) as client:
        yield client


class Shell:
    """One way of reading, blocking or asynchronous, with the same face."""

    def __init__(
        self,
        kind: str,
        connection_string: str,
        options: ClientOptions = OPTIONS,
        **login: str,
    ) -> None:
        self.kind = kind
        self.make = lambda: (Client if kind == "blocking" else AsyncClient)(
            connection_string, **LOGIN | login, options=options
        )

    def batches(self, take: Callable[[Any], bool] = lambda _: True, *, ack: bool = False, **options: Any) -> list[Any]:
        """Batches until the stream ends or `take` says no."""
        pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
        if self.kind == "blocking":
            return self._blocking(take, ack, options)
        return asyncio.run(asyncio.wait_for(self._async(take, ack, options), patient(60)))

    def keys(self, **options: Any) -> list[str]:
        return [key for batch in self.batches(**options) for key in batch.record_batch.column("key").to_pylist()]

    def changes(self, **options: Any) -> list[Change]:
        """Single changes until the stream ends."""
        if self.kind == "blocking":
            with self.make() as client:
                assert isinstance(client, Client)
                return list(client.changes(StreamOptions(**options)))

        async def collect() -> list[Change]:
            async with self.make() as client:
                assert isinstance(client, AsyncClient)
                return [change async for change in client.changes(StreamOptions(**options))]

        return asyncio.run(asyncio.wait_for(collect(), patient(60)))

    def _blocking(self, take: Callable[[Any], bool], ack: bool, options: dict[str, Any]) -> list[Any]:
        result = []
        with self.make() as client, contextlib.closing(client.stream(StreamOptions(**options))) as stream:
            for batch in stream:
                result.append(batch)
                if ack:
                    batch.ack()
                if not take(batch):
                    break
        return result

    async def _async(self, take: Callable[[Any], bool], ack: bool, options: dict[str, Any]) -> list[Any]:
        result = []
        async with self.make() as client, contextlib.aclosing(client.stream(StreamOptions(**options))) as stream:
            async for batch in stream:
                result.append(batch)
                if ack:
                    await batch.ack()
                if not take(batch):
                    break
        return result


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shell(kind: str, node: dcpstream_node.Node) -> Shell:
    return Shell(kind, node.connection_string)


def fill(kv: KvClient, count: int, prefix: str = "doc") -> list[str]:
    keys = [f"{prefix} {number}" for number in range(count)]
    kv.set_many((key, f'{{"name": "{key}"}}') for key in keys)
    return keys


def test_everything_up_to_now(shell: Shell, kv: KvClient) -> None:
    keys = fill(kv, 500)
    kv.delete("doc 7")
    batches = shell.batches(end="latest")
    rows = [row for batch in batches for row in batch.record_batch.to_pylist()]
    assert sorted(row["key"] for row in rows) == sorted(keys)
    (deleted,) = [row for row in rows if row["op"] == "deletion"]
    assert (deleted["key"], deleted["_change_type"], deleted["value"]) == ("doc 7", "delete", None)
    other = next(row for row in rows if row["key"] == "doc 8")
    assert other["value"] == b'{"name": "doc 8"}'
    assert (other["scope"], other["collection"], other["_change_type"]) == ("_default", "_default", "insert")
    assert other["vbucket"] == kv.vbucket_of("doc 8")


@pytest.mark.slow
def test_single_changes(shell: Shell, kv: KvClient) -> None:
    keys = fill(kv, 300)
    changes = shell.changes(end="latest")
    assert sorted(change.key.decode() for change in changes) == sorted(keys)
    for vbid in range(VBUCKETS):
        seqnos = [change.seqno for change in changes if change.vbid == vbid]
        assert seqnos == sorted(seqnos)


def test_a_stream_from_now_sees_what_comes(shell: Shell, kv: KvClient) -> None:
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    fill(kv, 50)
    seen: list[str] = []

    def take(batch: Any) -> bool:
        seen.extend(batch.record_batch.column("key").to_pylist())
        return len(seen) < 3

    writer = threading.Thread(
        target=lambda: [step() for step in (lambda: when_streaming(kv), lambda: fill(kv, 3, "later"))]
    )
    writer.start()
    shell.batches(take, start="latest")
    writer.join(patient(20))
    assert sorted(seen) == ["later 0", "later 1", "later 2"]


def when_streaming(kv: KvClient, streams: int = VBUCKETS) -> None:
    """Wait until so many streams are open on the node."""
    deadline = time.monotonic() + patient(20)
    while sum(value == "in-memory" for value in kv.stats("dcp").values()) < streams:
        assert time.monotonic() < deadline, kv.stats("dcp")
        threading.Event().wait(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("store", [FileOffsetStore, SqliteOffsetStore])
def test_acknowledged_positions_are_where_the_next_run_begins(
    shell: Shell, kv: KvClient, tmp_path: Path, store: Callable[[Path], OffsetStore]
) -> None:
    first = fill(kv, 200)
    assert sorted(shell.keys(start=store(tmp_path / "offsets"), end="latest")) == sorted(first), "nothing saved yet"
    shell.batches(ack=True, start=store(tmp_path / "offsets"), end="latest")
    second = fill(kv, 20, "more")
    assert sorted(shell.keys(start=store(tmp_path / "offsets"), end="latest")) == sorted(second)


@pytest.mark.slow
def test_the_last_acknowledgement_covers_all(shell: Shell, kv: KvClient, tmp_path: Path) -> None:
    fill(kv, 200)
    last: list[Any] = []

    def take(batch: Any) -> bool:
        last.append(batch)
        return True

    store = FileOffsetStore(tmp_path / "offsets")
    shell.batches(take, start=store, end="latest", max_batch_rows=5)
    assert len(last) > 10
    done = last[-1].ack()
    if done is not None:
        asyncio.run(done)
    assert shell.keys(start=store, end="latest") == []


def test_a_store_before_a_start(shell: Shell, kv: KvClient, tmp_path: Path) -> None:
    fill(kv, 20)
    store = FileOffsetStore(tmp_path / "offsets")
    shell.batches(ack=True, start="latest", store=store, end="latest")
    assert shell.keys(start="latest", store=store, end="latest") == []


class _StoppedError(Exception):
    """The reader is stopped."""


class StoppingStore(FileOffsetStore):
    """Stops the reader once something is saved: a run that has not seen a row."""

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        super().save(offsets)
        raise _StoppedError


@pytest.mark.parametrize("read", ["batches", "changes"])
def test_a_run_that_begins_now_and_sees_nothing_is_gone_on_from(
    shell: Shell, kv: KvClient, tmp_path: Path, read: str
) -> None:
    if read == "batches":
        pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    fill(kv, 3, "before")
    with pytest.raises(_StoppedError):
        getattr(shell, read)(start="latest", store=StoppingStore(tmp_path / "offsets"), idle_timeout_s=patient(2))
    written = fill(kv, VBUCKETS * 2, "between")
    changes = shell.changes(start="latest", store=FileOffsetStore(tmp_path / "offsets"), end="latest")
    assert sorted(change.key.decode() for change in changes) == sorted(written)


class WritingStore(FileOffsetStore):
    """Has a function called once the first positions are saved: before anything is read."""

    def __init__(self, path: Path, once_saved: Callable[[], object]) -> None:
        super().__init__(path)
        self._once_saved: Callable[[], object] | None = once_saved

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        super().save(offsets)
        once_saved, self._once_saved = self._once_saved, None
        if once_saved is not None:
            once_saved()


@pytest.mark.parametrize("collections", [None, ["_default"]], ids=["everything", "filter"])
@pytest.mark.parametrize("cut", ["none", "at the answer", "at the marker"])
def test_a_run_that_begins_now_skips_nothing_that_comes_before_its_first_marker(
    node: dcpstream_node.Node, shell: Shell, kv: KvClient, tmp_path: Path, cut: str, collections: list[str] | None
) -> None:
    fill(kv, 50)
    written: list[str] = []
    if cut == "at the marker":
        node.inject("close", opcode="DCP_SNAPSHOT_MARKER", count=2, at_byte=0)

    def write() -> None:
        if cut == "at the answer":
            node.inject("close", opcode="DCP_STREAM_REQ", skip=1, count=2)
        written.extend(fill(kv, VBUCKETS * 2, "after"))

    store = WritingStore(tmp_path / "offsets", write)
    found: list[str] = []

    def take(batch: Any) -> bool:
        found.extend(batch.record_batch.column("key").to_pylist())
        return len(found) < VBUCKETS * 2

    shell.batches(take, start="latest", store=store, collections=collections, idle_timeout_s=patient(5))
    assert sorted(found) == sorted(written)
    assert all(fault["hits"] == 2 for fault in node.faults())


def test_a_damaged_store_is_reported_before_anything_is_read(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "offsets").write_text("nonsense")
    with pytest.raises(OffsetError, match="move it away"):
        shell.batches(start=FileOffsetStore(tmp_path / "offsets"))


def test_a_store_of_another_bucket_is_refused(shell: Shell, tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    store.save({VBUCKETS + 3: SavedOffset(StreamOffset(1, 2, 2, 2))})
    with pytest.raises(ConfigError, match="another bucket"):
        shell.batches(start=store)


def test_positions_given_by_the_user(shell: Shell, kv: KvClient) -> None:
    tokens = kv.set_many([("a", "1"), ("a", "2"), ("a", "3")])
    vbid, vbuuid, seqno, _ = tokens[1]
    start = {vbid: StreamOffset(vbuuid, seqno, seqno, seqno)}
    changes = shell.changes(start=start, end={vbid: tokens[2].seqno})
    assert [(change.seqno, change.value) for change in changes] == [(tokens[2].seqno, b"3")]


@pytest.mark.slow
def test_members_share_the_vbuckets(shell: Shell, kv: KvClient) -> None:
    keys = fill(kv, 200)
    shares = [shell.keys(end="latest", members=(member, 3)) for member in range(3)]
    assert sorted(key for share in shares for key in share) == sorted(keys)
    assert all(shares)


@pytest.mark.slow
def test_columns_and_value_format(shell: Shell, kv: KvClient) -> None:
    kv.set("a", "text")
    (row,) = [
        row
        for batch in shell.batches(end="latest", value_format="string", columns=["key", "value", "seqno"])
        for row in batch.record_batch.to_pylist()
    ]
    assert (row["key"], row["value"], row["seqno"]) == ("a", "text", 1)
    assert row["op"] is None
    (row,) = [row for batch in shell.batches(end="latest", columns=["key"]) for row in batch.record_batch.to_pylist()]
    assert (row["key"], row["value"]) == ("a", None)


def test_small_batches(shell: Shell, kv: KvClient) -> None:
    fill(kv, 100)
    batches = shell.batches(end="latest", max_batch_rows=7)
    assert max(batch.record_batch.num_rows for batch in batches) <= 7
    assert sum(batch.record_batch.num_rows for batch in batches) == 100


@pytest.mark.slow
def test_a_small_window_is_enough(kind: str, node: dcpstream_node.Node, kv: KvClient) -> None:
    kv.set_many((f"doc {number}", bytes(50_000)) for number in range(100))
    assert len(Shell(kind, node.connection_string, ClientOptions(buffer_bytes=64 * 1024)).keys(end="latest")) == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"password": "wrong"}, AuthenticationFailed, "user 'Administrator' was refused by 127.0.0.1"),
        ({"username": "nobody"}, AuthenticationFailed, "user 'nobody' was refused"),
        ({"bucket": "nope"}, AccessDenied, "bucket 'nope' was refused by 127.0.0.1"),
    ],
)
def test_a_refused_login_has_a_reason(
    kind: str, node: dcpstream_node.Node, options: dict[str, str], error: type[Exception], text: str
) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=text):
        Shell(kind, node.connection_string, OPTIONS, **options).changes()
    assert time.monotonic() - began < 4


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.slow
def test_nobody_there(kind: str) -> None:
    port = free_port()
    with pytest.raises(ConnectTimeout, match=rf"127\.0\.0\.1:{port}: cannot connect"):
        Shell(kind, f"127.0.0.1:{port}", ClientOptions(connect_timeout_s=0.5)).changes()


@pytest.mark.slow
def test_somebody_who_says_nothing(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ConnectTimeout):
        Shell(kind, f"127.0.0.1:{listener.getsockname()[1]}", ClientOptions(connect_timeout_s=0.5)).changes()


@pytest.mark.slow
def test_the_wrong_port(kind: str, node: dcpstream_node.Node) -> None:
    with pytest.raises(ConnectTimeout, match="is it the data port"):
        Shell(kind, f"127.0.0.1:{node.mgmt_port}", ClientOptions(connect_timeout_s=0.5)).changes()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("start", "yesterday"),
        ("end", "tomorrow"),
        ("on_rollback", "ignore"),
        ("members", (3, 3)),
        ("max_batch_rows", 0),
        ("value_format", "json"),
        ("columns", ["nope"]),
        ("collections", ["nope"]),
    ],
)
def test_options_are_checked(shell: Shell, kv: KvClient, option: str, value: object) -> None:
    kv.set("a", "1")
    options: dict[str, Any] = {"end": "latest", option: value}
    with pytest.raises(ConfigError) as caught:
        shell.batches(**options)
    assert caught.value.option == option


@pytest.fixture
def proxy(node: dcpstream_node.Node) -> Iterator[Proxy]:
    with Proxy(node.port) as running:
        yield running


def test_cuts_at_any_byte_lose_nothing_and_repeat_nothing(kind: str, proxy: Proxy, kv: KvClient) -> None:
    keys = fill(kv, 3000)
    if kind == "blocking":
        # The first connection asks for the map, the others carry the data.
        proxy.cut_after(10**9, 3_000, 700, 40_000, 2_500, 60_000, 90_001)
    else:
        proxy.cut_after(10**9, 10**9, 3_000, 700, 40_000, 2_500, 60_000, 90_001)
    assert sorted(Shell(kind, proxy.connection_string).keys(end="latest")) == sorted(keys)
    assert proxy.connections > 6


@pytest.mark.slow
def test_a_live_stream_survives_a_cut(kind: str, proxy: Proxy, kv: KvClient) -> None:
    fill(kv, 10)
    seen: list[str] = []

    def take(batch: Any) -> bool:
        seen.extend(batch.record_batch.column("key").to_pylist())
        if len(seen) == 10:
            proxy.cut()
            fill(kv, 5, "later")
        return len(seen) < 15

    Shell(kind, proxy.connection_string).batches(take)
    assert sorted(seen[10:]) == [f"later {number}" for number in range(5)]


def toggle(kv: KvClient, vbid: int) -> None:
    """A failover of one vbucket: replica and active again."""
    link = kv._pool.of(vbid)
    for state in (2, 1):
        link.ask(encode_request(Opcode.SET_VBUCKET, vbid=vbid, extras=bytes((state,))))


def test_a_failover_without_loss_is_no_rollback(shell: Shell, kv: KvClient) -> None:
    fill(kv, 40)
    seen: list[str] = []

    def take(batch: Any) -> bool:
        assert batch.rollback is None
        seen.extend(batch.record_batch.column("key").to_pylist())
        if len(seen) == 40:
            for vbid in range(VBUCKETS):
                toggle(kv, vbid)
            fill(kv, 8, "later")
        return len(seen) < 48

    shell.batches(take)
    assert len(seen) == 48


def crashed(tmp_path: Path) -> Generator[dcpstream_node.Node]:
    """A node that lost what was not on disk: "kept" is there, "lost" is not, "new" came instead."""
    node = dcpstream_node.Node(vbuckets=1, path=tmp_path / "data", flush_interval_s=3600, system_scope=False)
    with node, KvClient(node.connection_string, **LOGIN) as kv:
        kv.set_many([("kept", "1"), ("lost", "1")])
        yield node
        kv.close()
        node.crash()
    with node, KvClient(node.connection_string, **LOGIN) as kv:
        kv.set("new", "1")
        yield node


def test_a_rollback_by_policy(kind: str, tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    nodes = crashed(tmp_path)
    with contextlib.closing(nodes):
        node = next(nodes)
        assert Shell(kind, node.connection_string).keys(end="latest") == ["kept", "lost"]
        Shell(kind, node.connection_string).batches(ack=True, start=store, end="latest")
        node = next(nodes)
        shell = Shell(kind, node.connection_string)
        with pytest.raises(RollbackRequired, match="on_rollback='rewind'"):
            shell.batches(start=store, end="latest")
        events: list[RollbackEvent] = []
        assert shell.keys(start=store, end="latest", on_rollback=events.append) == ["new"]
        assert [(event.from_seqno, event.to_seqno) for event in events] == [(2, 0)]
        # Nothing was acknowledged, so it comes again; once it is, it does not.
        shell.batches(ack=True, start=store, end="latest", on_rollback=events.append)
        assert len(events) == 2
        assert shell.keys(start=store, end="latest") == []


def test_a_rollback_as_a_row(kind: str, tmp_path: Path) -> None:
    nodes = crashed(tmp_path)
    with contextlib.closing(nodes):
        node = next(nodes)
        (batch,) = Shell(kind, node.connection_string).batches(end="latest")
        offset = batch.offsets[0]
        node = next(nodes)
        shell = Shell(kind, node.connection_string)
        control, data = shell.batches(start={0: offset}, end="latest", on_rollback="rewind")
        assert control.rollback == RollbackEvent(0, 2, 0, offset.vbuuid, control.offsets[0].vbuuid, control.offsets[0])
        (row,) = control.record_batch.to_pylist()
        assert (row["op"], row["seqno"], row["key"]) == ("rollback", 0, None)
        assert data.record_batch.column("key").to_pylist() == ["new"]
        changes = shell.changes(start={0: offset}, end="latest", on_rollback="rewind")
        assert [change.op for change in changes] == ["rollback", "mutation"]


@pytest.mark.parametrize("end", [2, 1, 0])
def test_a_rollback_of_a_start_at_or_above_the_end(kind: str, end: int, tmp_path: Path) -> None:
    nodes = crashed(tmp_path)
    with contextlib.closing(nodes):
        node = next(nodes)
        *_, last = Shell(kind, node.connection_string).changes(end="latest")
        at = {"start": {0: last.offset}, "end": {0: end}}
        assert Shell(kind, node.connection_string).changes(**at) == []
        node = next(nodes)
        shell = Shell(kind, node.connection_string)
        with pytest.raises(RollbackRequired):
            shell.changes(**at)
        rollback, *rest = shell.changes(**{**at, "end": {0: min(end, 1)}}, on_rollback="rewind")
        assert (rollback.op, rollback.seqno) == ("rollback", 0)
        assert [change.key for change in rest] == ([b"new"] if end else [])


@pytest.fixture
def parts_left(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[Any]:
    """The readers and connections of this test that still exist."""
    left: weakref.WeakSet[Any] = weakref.WeakSet()
    for part in (StreamReader, NodeConnection):

        def begin(self: Any, *args: Any, make: Callable[..., None] = part.__init__, **options: Any) -> None:
            left.add(self)
            make(self, *args, **options)

        monkeypatch.setattr(part, "__init__", begin)
    return left


def kinds_of(parts: Iterable[object]) -> set[str]:
    return {type(part).__name__ for part in parts}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["changes", "keys"])
def test_a_stream_that_ends_leaves_nothing_to_the_collector_of_cycles(
    shell: Shell, kv: KvClient, method: str, parts_left: weakref.WeakSet[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection has a receive buffer of megabytes, and the collector may come much later."""
    fill(kv, 40)
    during: set[str] = set()
    next_event = StreamReader.next_event

    def watched(self: StreamReader) -> Any:
        during.update(kinds_of(parts_left))
        return next_event(self)

    monkeypatch.setattr(StreamReader, "next_event", watched)
    with held_collector():
        assert len(getattr(shell, method)(end="latest")) == 40
        assert during == {"StreamReader", "NodeConnection"}
        assert not list(parts_left)


def test_a_stream_that_is_left_early_leaves_nothing_to_the_collector_of_cycles(
    shell: Shell, kv: KvClient, parts_left: weakref.WeakSet[Any]
) -> None:
    fill(kv, 40)
    with held_collector():
        assert shell.batches(lambda _: False, max_batch_rows=5)
        assert not list(parts_left)


def test_a_stream_that_fails_keeps_no_buffers_of_received_bytes(
    shell: Shell, kv: KvClient, parts_left: weakref.WeakSet[Any]
) -> None:
    """The error refers to the connections through its traceback."""
    fill(kv, 40)
    with held_collector():
        with pytest.raises(RollbackRequired):
            shell.changes(start={0: StreamOffset(12345, 7, 7, 7)}, end="latest")
        connections = [part for part in parts_left if isinstance(part, NodeConnection)]
        assert connections
        assert all(len(connection.get_buffer()) == 1 for connection in connections)


def test_the_loop_goes_on_while_the_user_works(node: dcpstream_node.Node, kv: KvClient) -> None:
    """Between two batches probes are answered and data is taken in, up to the window."""
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    fill(kv, 10)

    async def main() -> list[str]:
        seen: list[str] = []
        async with AsyncClient(node.connection_string, **LOGIN) as client:
            stream: AsyncIterator[Any]
            async with contextlib.aclosing(client.stream()) as stream:
                async for batch in stream:
                    seen += batch.record_batch.column("key").to_pylist()
                    await asyncio.to_thread(fill, kv, 5, f"round {len(seen)}")
                    if len(seen) >= 20:
                        return seen
        return seen

    assert len(asyncio.run(asyncio.wait_for(main(), patient(30)))) >= 20


def test_cluster_questions(node: dcpstream_node.Node, kv: KvClient) -> None:
    fill(kv, 100)
    with BucketReader(node.connection_string, **LOGIN) as cluster:
        assert cluster.map.vbucket_count == VBUCKETS
        assert cluster.manifest().collection_names() == {0: ("_default", "_default")}
        high = cluster.high_seqnos()
        assert sum(high.values()) == 100
        states = cluster.observe([1, 2])
        assert set(states) == {1, 2}
        assert states[1].high_seqno == high[1]
        assert states[1].failover_log == cluster.failover_logs([1])[1]
        positions = {
            1: StreamOffset(states[1].vbuuid, high[1], high[1], high[1]),
            2: StreamOffset(states[2].vbuuid, high[2] + 5, high[2], high[2] + 9),
            3: StreamOffset.ZERO,
        }
        answers = cluster.check_positions(positions)
        assert answers[2] == RollbackTo(high[2])
        assert {type(answers[vbid]).__name__ for vbid in (1, 3)} == {"Accepted"}
        toggle(kv, 1)
        assert cluster.observe([1])[1].vbuuid != states[1].vbuuid


def test_a_vbucket_that_nobody_serves_is_missing(node: dcpstream_node.Node, kv: KvClient) -> None:
    with BucketReader(node.connection_string, **LOGIN, options=ClientOptions(connect_timeout_s=0.5)) as cluster:
        kv._pool.of(1).ask(encode_request(Opcode.SET_VBUCKET, vbid=1, extras=b"\x02"))
        assert set(cluster.observe()) == set(range(VBUCKETS)) - {1}
        assert set(cluster.check_positions({0: StreamOffset.ZERO, 1: StreamOffset.ZERO})) == {0}


def rows_of(cluster: BucketReader, ranges: list[VbucketRange], **options: Any) -> list[tuple[int, int]]:
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    result: list[tuple[int, int]] = []
    for batch in cluster.read_ranges(ranges, StreamOptions(on_rollback="rewind", **options)):
        assert isinstance(batch, RowsRead)
        vbids, seqnos = (batch.rows.column(name).to_pylist() for name in ("vbucket", "seqno"))
        result += zip(vbids, seqnos, strict=True)
    return result


def test_planned_ranges_join_without_gap_or_overlap(node: dcpstream_node.Node, kv: KvClient) -> None:
    fill(kv, 400)
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    with BucketReader(node.connection_string, **LOGIN) as cluster:
        states = cluster.observe()
        starts = dict.fromkeys(range(VBUCKETS), StreamOffset.ZERO)
        seen: list[tuple[int, int]] = []
        while any(starts[vbid].seqno < states[vbid].high_seqno for vbid in starts):
            ends = {vbid: min(starts[vbid].seqno + 13, states[vbid].high_seqno) for vbid in starts}
            ranges = [
                VbucketRange(vbid, complete(starts[vbid], states[vbid]), ends[vbid], (), states[vbid].vbuuid)
                for vbid in starts
            ]
            seen += rows_of(cluster, ranges, columns=["vbucket", "seqno"])
            starts = {part.vbid: plan_end(part.start, part.end_seqno, states[part.vbid].vbuuid) for part in ranges}
        assert sorted(seen) == [
            (vbid, seqno) for vbid in range(VBUCKETS) for seqno in range(1, states[vbid].high_seqno + 1)
        ]


def test_a_reader_that_is_left_in_the_middle_does_not_disturb_the_next(node: dcpstream_node.Node, kv: KvClient) -> None:
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    kv.set_many((f"doc {number}", bytes(10_000)) for number in range(1000))
    with BucketReader(node.connection_string, **LOGIN) as cluster:
        ranges = [VbucketRange(vbid, StreamOffset.ZERO, end) for vbid, end in cluster.high_seqnos().items()]
        left = cluster.read_ranges(ranges)
        next(left)
        assert isinstance(left, Iterator)
        left.close()  # type: ignore[attr-defined]
        assert len(rows_of(cluster, ranges)) == 1000
        assert len(rows_of(cluster, ranges)) == 1000


def test_an_end_that_does_not_come_is_an_error(node: dcpstream_node.Node, kv: KvClient) -> None:
    kv.set("a", "1")
    vbid = kv.vbucket_of("a")
    with BucketReader(node.connection_string, **LOGIN) as cluster, pytest.raises(ConnectTimeout, match="at 1 of 9"):
        rows_of(cluster, [VbucketRange(vbid, StreamOffset.ZERO, 9)], idle_timeout_s=0.3)


def test_kv(node: dcpstream_node.Node, kv: KvClient) -> None:
    token = kv.set("a", "1", flags=7)
    document = kv.get("a")
    assert document is not None
    assert (document.value, document.flags, document.cas) == (b"1", 7, token.cas)
    assert kv.get("b") is None
    assert kv.delete("b") is None
    deleted = kv.delete("a")
    assert deleted is not None
    assert deleted.seqno == token.seqno + 1
    seen = kv.observe_seqno(token.vbid, token.vbuuid)
    assert (seen.vbid, seen.vbuuid, seen.current_seqno) == (token.vbid, token.vbuuid, deleted.seqno)


def test_kv_in_bulk_keeps_the_order_of_a_key(kv: KvClient) -> None:
    items = [(f"doc {number % 50}", str(number)) for number in range(5000)]
    assert len(kv.set_many(items)) == 5000
    values = kv.get_many(f"doc {number}" for number in range(51))
    assert [document and int(document.value) for document in values] == [*range(4950, 5000), None]
    mixed = kv.mutate_many([("x", "1"), ("x", None), ("x", None), ("x", "2")])
    assert [token is None for token in mixed] == [False, False, True, False]


def test_kv_says_what_was_answered_when_the_node_goes(proxy: Proxy) -> None:
    with KvClient(proxy.connection_string, **LOGIN) as through:
        through.set("first", "1")

        def items() -> Iterator[tuple[str, str]]:
            for number in range(10_000):
                if number == 5000:
                    proxy.cut()
                yield f"doc {number}", "1"

        with pytest.raises(BulkInterrupted, match="answered before") as caught:
            through.set_many(items())
        assert 0 < len(caught.value.results) < 10_000
        assert through.get("first") is not None, "the next call connects again"


def test_kv_errors_are_those_of_the_clients(node: dcpstream_node.Node) -> None:
    with pytest.raises(AuthenticationFailed, match="'Administrator'"):
        KvClient(node.connection_string, "Administrator", "wrong", "default").get("a")
    with pytest.raises(ConnectTimeout, match="cannot connect"):
        KvClient(f"127.0.0.1:{free_port()}", **LOGIN).get("a")


@pytest.mark.slow
def test_a_name_with_several_addresses(kind: str, node: dcpstream_node.Node, kv: KvClient) -> None:
    """localhost may be ::1 first, where the node does not listen."""
    fill(kv, 10)
    assert len(Shell(kind, f"localhost:{node.port}").keys(end="latest")) == 10
    with KvClient(f"localhost:{node.port}", **LOGIN) as other:
        assert other.get("doc 1") is not None


def test_a_name_that_is_none(kind: str) -> None:
    with pytest.raises(ConnectTimeout, match=r"nowhere\.invalid"):
        Shell(kind, "nowhere.invalid", ClientOptions(connect_timeout_s=0.5)).changes()


@pytest.mark.slow
def test_cuts_of_single_changes_too(kind: str, proxy: Proxy, kv: KvClient) -> None:
    keys = fill(kv, 2000)
    calm = (10**9,) * (1 if kind == "blocking" else 2)
    proxy.cut_after(*calm, 3_000, 700, 40_000, 2_500, 60_000)
    changes = Shell(kind, proxy.connection_string).changes(end="latest")
    assert sorted(change.key.decode() for change in changes) == sorted(keys)


def test_kv_waits_for_a_vbucket_and_keeps_the_order_of_its_keys(kv: KvClient, node: dcpstream_node.Node) -> None:
    """Requests refused while the vbucket had no active copy are repeated, and so are later ones on its keys."""
    vbid = kv.vbucket_of("moving")
    with KvClient(node.connection_string, **LOGIN) as administrator:

        def items() -> Iterator[tuple[str, str]]:
            for number in range(6000):
                if number == 1500:
                    administrator._pool.of(vbid).ask(encode_request(Opcode.SET_VBUCKET, vbid=vbid, extras=b"\x02"))
                    timer.start()
                yield "moving", str(number)

        def activate() -> None:
            administrator._pool.of(vbid).ask(encode_request(Opcode.SET_VBUCKET, vbid=vbid, extras=b"\x01"))

        timer = threading.Timer(0.1, activate)
        assert len(kv.set_many(items())) == 6000
        timer.join(patient(10))
    document = kv.get("moving")
    assert document is not None
    assert document.value == b"5999"
