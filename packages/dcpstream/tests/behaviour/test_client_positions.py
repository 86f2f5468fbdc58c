"""Consumers that go further than what they acknowledged, and a node that then loses those changes.

The consumer here keeps each row that it was given, by its seqno, and does what a rollback says: it takes back all rows
above the seqno that is told. Whatever happens, its documents are those of the bucket in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client import AsyncClient, Change, Client, FileOffsetStore, KvClient, RollbackEvent, StreamOptions
from dcpstream.errors import RollbackRequired
from dcpstream.model import StreamOffset
from tests.kit.access import LOGIN

KEPT = 12_000
LOST = 15_000
"""Together less than one receive, and more than two batches of the default size."""


class Table:
    """Rows of one vbucket by seqno."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self.told: list[RollbackEvent] = []

    def take(self, batch: Any) -> None:
        if batch.rollback is not None:
            self.roll_back(batch.rollback.to_seqno)
            self.told.append(batch.rollback)
        else:
            rows = batch.record_batch
            self.rows.update(zip(rows.column("seqno").to_pylist(), rows.column("key").to_pylist(), strict=True))

    def take_change(self, change: Change) -> None:
        if change.op == "rollback":
            self.roll_back(change.seqno)
        else:
            self.rows[change.seqno] = change.key.decode()

    def roll_back(self, seqno: int) -> None:
        self.rows = {at: key for at, key in self.rows.items() if at <= seqno}

    def keys(self) -> set[str]:
        return set(self.rows.values())


class World:
    """A node with changes that are on disk, and others that it loses."""

    def __init__(self, path: Path) -> None:
        self.node = dcpstream_node.Node(vbuckets=1, path=path / "data", flush_interval_s=3600, system_scope=False)
        with self.node:
            self._write("kept", KEPT)

    def _write(self, prefix: str, count: int) -> None:
        with KvClient(self.node.connection_string, **LOGIN) as kv:
            kv.set_many((f"{prefix} {number}", "1") for number in range(count))

    @contextlib.contextmanager
    def before(self) -> Iterator[str]:
        """The node with changes that it loses in the end."""
        with self.node:
            self._write("lost", LOST)
            yield self.node.connection_string
            self.node.crash()

    @contextlib.contextmanager
    def after(self) -> Iterator[str]:
        """The node without them."""
        with self.node:
            self._write("new", 5)
            yield self.node.connection_string

    @property
    def keys(self) -> set[str]:
        """The documents of the bucket then."""
        return {f"kept {number}" for number in range(KEPT)} | {f"new {number}" for number in range(5)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> FileOffsetStore:
    return FileOffsetStore(tmp_path / "positions")


def read_batches(kind: str, connection: str, table: Table, acknowledged: int, **options: Any) -> list[int]:
    """Take all batches and acknowledge the first few; returns the rows of each."""
    pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    sizes: list[int] = []

    def take(batch: Any) -> bool:
        table.take(batch)
        sizes.append(batch.record_batch.num_rows)
        return len(sizes) <= acknowledged

    async def run() -> None:
        async with (
            AsyncClient(connection, **LOGIN) as client,
            contextlib.aclosing(client.stream(StreamOptions(end="latest", **options))) as stream,
        ):
            async for batch in stream:
                if take(batch):
                    await batch.ack()

    if kind == "asyncio":
        asyncio.run(asyncio.wait_for(run(), 60))
        return sizes
    with Client(connection, **LOGIN) as client:
        for batch in client.stream(StreamOptions(end="latest", **options)):
            if take(batch):
                batch.ack()
    return sizes


def read_changes(kind: str, connection: str, table: Table, stop_after: int | None = None, **options: Any) -> None:
    """Take changes one by one; stop after so many."""

    async def run() -> None:
        async with (
            AsyncClient(connection, **LOGIN) as client,
            contextlib.aclosing(client.changes(StreamOptions(end="latest", **options))) as changes,
        ):
            async for change in changes:
                table.take_change(change)
                if len(table.rows) == stop_after:
                    return

    if kind == "asyncio":
        asyncio.run(asyncio.wait_for(run(), 60))
        return
    with (
        Client(connection, **LOGIN) as client,
        contextlib.closing(client.changes(StreamOptions(end="latest", **options))) as changes,
    ):
        for change in changes:
            table.take_change(change)
            if len(table.rows) == stop_after:
                return


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize("options", [{}, {"max_batch_rows": 100}], ids=["default", "small batches"])
def test_an_earlier_piece_of_a_receive_is_acknowledged(
    kind: str, options: dict[str, Any], world: World, store: FileOffsetStore
) -> None:
    table = Table()
    with world.node:
        read_batches(kind, world.node.connection_string, table, 999, store=store)
    end = store.load()[0].offset
    assert (end.seqno, end.snapshot_end) == (KEPT, KEPT)
    with world.before() as connection:
        sizes = read_batches(kind, connection, table, 1, store=store, **options)
    assert len(sizes) > 1
    saved = store.load()[0]
    assert saved.offset.seqno == KEPT + sizes[0], "exactly what the acknowledged piece covers"
    assert saved.offset.snapshot_end == KEPT + LOST
    with world.after() as connection:
        with pytest.raises(RollbackRequired, match="roll back"):
            read_batches(kind, connection, table, 0, store=store)
        read_batches(kind, connection, table, 999, store=store, on_rollback="rewind")
    assert table.keys() == world.keys
    assert [(told.from_seqno, told.to_seqno) for told in table.told] == [(saved.offset.seqno, 0)]


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_position_that_the_node_accepts_although_what_came_after_it_is_lost(
    kind: str, world: World, store: FileOffsetStore
) -> None:
    table = Table()
    with world.node:
        read_batches(kind, world.node.connection_string, table, 999, store=store)
    with world.before() as connection:
        assert sum(read_batches(kind, connection, table, 0, store=store)) == LOST
    saved = store.load()[0].offset
    assert saved.seqno == KEPT
    with world.after() as connection:
        with pytest.raises(RollbackRequired, match=f"another branch.*on_rollback='rewind'.*above seqno {KEPT}"):
            read_batches(kind, connection, table, 0, store=store)
        read_batches(kind, connection, table, 999, store=store, on_rollback="rewind")
        assert table.keys() == world.keys
        (told,) = table.told
        assert (told.from_seqno, told.to_seqno, told.old_vbuuid) == (KEPT, KEPT, saved.vbuuid)
        assert told.new_vbuuid == told.resumed_at.vbuuid != saved.vbuuid
        # The position is on the new branch now: nothing is told again.
        assert read_batches(kind, connection, table, 999, store=store) == []


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_nothing_was_acknowledged_before_the_changes_are_lost(kind: str, world: World, store: FileOffsetStore) -> None:
    table = Table()
    with world.before() as connection:
        read_batches(kind, connection, table, 0, store=store)
    with world.after() as connection:
        read_batches(kind, connection, table, 99, store=store, on_rollback="rewind")
    assert table.keys() == world.keys
    assert [(told.from_seqno, told.to_seqno) for told in table.told] == [(0, 0)]


@pytest.mark.parametrize(
    ("kind", "stop_after"),
    [
        pytest.param(kind, stop_after, marks=pytest.mark.slow if (kind, number % 2) == ("asyncio", 0) else ())
        for kind in ("blocking", "asyncio")
        for number, stop_after in enumerate((1, 2, KEPT - 1, KEPT + 1, KEPT + LOST - 1))
    ],
)
def test_single_changes_up_to_any_row(kind: str, stop_after: int, world: World, store: FileOffsetStore) -> None:
    table = Table()
    with world.before() as connection:
        read_changes(kind, connection, table, stop_after, store=store)
        assert store.load()[0].offset.seqno == stop_after - 1, "the last one was not followed by a request for more"
    with world.after() as connection:
        read_changes(kind, connection, table, store=store, on_rollback="rewind")
    assert table.keys() == world.keys


def test_an_error_in_the_users_hands_saves_what_was_dealt_with(world: World, store: FileOffsetStore) -> None:
    with world.before() as connection, Client(connection, **LOGIN) as client:
        changes = client.changes(StreamOptions(end="latest", store=store))
        for number in range(1, 8):
            assert next(changes).seqno == number
        with pytest.raises(ZeroDivisionError):
            changes.throw(ZeroDivisionError())
        assert store.load()[0].offset.seqno == 6


@pytest.mark.slow
def test_users_who_keep_positions_themselves(world: World) -> None:
    table = Table()
    with world.before() as connection:
        read_changes("blocking", connection, table, 500)
        with Client(connection, **LOGIN) as client, contextlib.closing(client.changes()) as changes:
            position = next(change.offset for change in changes if change.seqno == 300)
    assert (position.seqno, position.snapshot_start) == (300, 0)
    with world.after() as connection:
        read_changes("blocking", connection, table, start={0: position}, on_rollback="rewind")
    assert table.keys() == world.keys


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_users_who_keep_one_version_of_each_document_start_over(
    kind: str, world: World, store: FileOffsetStore
) -> None:
    with world.before() as connection:
        read_batches(kind, connection, Table(), 1, store=store)
    table = Table()
    with world.after() as connection:
        read_batches(kind, connection, table, 99, store=store, on_rollback="rewind", rewind_to="zero")
    assert table.keys() == world.keys
    assert [told.to_seqno for told in table.told] == [0]


@pytest.mark.slow
def test_a_fresh_start_reports_nothing(world: World, store: FileOffsetStore) -> None:
    with world.before():
        pass
    with world.after() as connection:
        table = Table()
        read_changes("blocking", connection, table, store=store)
        assert table.keys() == world.keys
        read_changes("blocking", connection, Table(), start={0: StreamOffset.ZERO})
