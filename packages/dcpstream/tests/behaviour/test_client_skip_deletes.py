"""First loads without the deletions of the time before them: fewer messages, the same documents, and none too many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client import Change, Client, FileOffsetStore, KvClient
from dcpstream.client.machine.values import VbucketRange
from dcpstream.client.settings.options import DcpSettings
from dcpstream.client.stream_options import StreamOptions
from dcpstream.errors import ConfigError
from dcpstream.model import Op, StreamOffset, vbucket_of_key
from tests.kit.access import LOGIN

VBUCKETS = 2
DOCUMENTS = 120
GONE = 30

Served = Callable[[str], AbstractContextManager[dcpstream_node.Node]]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """A node of a release; all that an earlier one wrote comes from disk."""

    def serve(release: str) -> AbstractContextManager[dcpstream_node.Node]:
        return dcpstream_node.Node(vbuckets=VBUCKETS, path=tmp_path / "data", release=release)

    with serve("8.5") as node:
        node.set_collections("default", {"shop": ["orders"]})
        write(node, [key(number) for number in range(DOCUMENTS)])
        write(node, [], [key(number) for number in range(GONE)])
    return serve


def key(number: int, vbid: int = 0) -> str:
    """A key of vbucket 0; vbucket 1 stays empty."""
    return next(
        name for turn in range(1000) if vbucket_of_key((name := f"doc {number} {turn}").encode(), VBUCKETS) == vbid
    )


def write(node: dcpstream_node.Node, keys: list[str], gone: list[str] = [], collection: str = "") -> None:  # noqa: B006
    where: dict[str, Any] = {"collection": collection} if collection else {}
    with KvClient(node.connection_string, **LOGIN, **where) as kv:
        kv.set_many((name, b"x" * 100) for name in keys)
        for name in gone:
            kv.delete(name)


class Table:
    """A consumer that keeps one row for each document."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str | None, str], tuple[int, int]] = {}
        self.deletions = 0

    def take(self, changes: Iterator[Change], most: int | None = None) -> Table:
        for count, change in enumerate(changes, 1):
            name = change.collection, change.key.decode()
            if change.op == Op.ROLLBACK:
                self.rows = {
                    name: at for name, at in self.rows.items() if at[0] != change.vbid or at[1] <= change.seqno
                }
            elif change.op == Op.DELETION:
                self.deletions += 1
                self.rows.pop(name, None)
            elif change.op == Op.MUTATION:
                self.rows[name] = change.vbid, change.seqno
            if count == most:
                break
        return self

    @property
    def keys(self) -> list[str]:
        return sorted(name for _, name in self.rows)


def read(node: dcpstream_node.Node, table: Table, most: int | None = None, **options: Any) -> Table:
    with Client(node.connection_string, **LOGIN) as client:
        changes = client.changes(StreamOptions(**{"end": "latest", "skip_deletes": True, **options}))
        try:
            return table.take(changes, most)
        finally:
            changes.close()


LEFT = sorted(key(number) for number in range(GONE, DOCUMENTS))


@pytest.mark.slow
@pytest.mark.parametrize("collections", [None, ["_default"], ["_default", "shop.orders"]], ids=str)
@pytest.mark.parametrize(("release", "deletions"), [("8.0", GONE), ("8.5", 0)])
def test_a_first_load_has_the_documents_alone(
    served: Served, tmp_path: Path, release: str, deletions: int, collections: list[str] | None
) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    with served(release) as node:
        table = read(node, Table(), store=store, collections=collections)
        assert table.keys == LEFT
        assert table.deletions == deletions
        assert all(saved.offset.seqno >= DOCUMENTS + GONE for vbid, saved in store.load().items() if vbid == 0)
        write(node, [], [LEFT[0]])
        assert read(node, table, store=store, collections=collections).keys == LEFT[1:]
        assert table.deletions == deletions + 1


def test_without_the_option_deletions_come(served: Served) -> None:
    with served("8.5") as node:
        assert read(node, Table(), skip_deletes=False).deletions == GONE
        assert read(node, Table(), history=True).deletions == GONE


@pytest.mark.slow
@pytest.mark.parametrize("most", [20, 50])
def test_a_run_after_one_that_saved_nothing_has_the_deletions_of_its_rows(
    served: Served, tmp_path: Path, most: int
) -> None:
    """The first run was killed after rows that it did not save; the consumer has them."""
    store = FileOffsetStore(tmp_path / "offsets")
    table = Table()

    class Forgetful(FileOffsetStore):
        """Keeps the first record alone, as if the run ended before the next one."""

        def save(self, offsets: Any) -> None:
            if not self.load():
                super().save(offsets)

    with served("8.5") as node:
        read(node, table, most, store=Forgetful(tmp_path / "offsets"))
        given = table.keys
        assert given
        assert not any(saved.offset.seqno for saved in store.load().values())
        write(node, [], given)
        assert not set(read(node, table, store=store).keys) & set(given)
        assert table.keys == sorted(set(LEFT) - set(given))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"collections": ["_default"], "on_rollback": "rewind"}, {"read_stable": True}],
    ids=["in order", "out of order", "stable"],
)
def test_a_first_load_that_is_cut_has_the_deletions_of_its_rows(served: Served, options: dict[str, Any]) -> None:
    with served("8.5") as node:
        assert node.engine is not None
        node.engine.buckets["default"].parameters.oso_backfill = "enabled"
        node.inject("close", opcode="DCP_MUTATION", skip=40, count=1)
        table = Table()
        given: list[str] = []
        with Client(node.connection_string, **LOGIN) as client:
            for change in client.changes(StreamOptions(skip_deletes=True, **options)):
                table.take(iter([change]))
                if change.op == Op.MUTATION and not given:
                    given.append(change.key.decode())
                    write(node, [], given)
                if len(table.keys) == len(LEFT) - 1 and given[0] not in table.keys:
                    break
        assert node.faults()[0]["hits"] == 1
        assert table.keys == sorted(set(LEFT) - set(given))


def test_a_collection_that_is_new_to_the_filter_has_its_deletions(served: Served, tmp_path: Path) -> None:
    """Vbucket 0 has a record; vbucket 1 begins at 0 without one, so that the run begins without deletions."""
    orders = [key(1000 + number) for number in range(20)]
    store = FileOffsetStore(tmp_path / "offsets")
    with served("8.5") as node:
        write(node, orders, collection="shop.orders")
        table = read(node, Table(), store=store, collections=["_default"])
    saved = {0: store.load()[0]}
    (tmp_path / "offsets").unlink()
    store.save(saved)
    both: dict[str, Any] = {"store": store, "collections": ["_default", "shop.orders"]}
    with served("8.5") as node:
        read(node, table, 15, **both)
    (tmp_path / "offsets").unlink()
    store.save(saved)
    given = sorted(set(table.keys) - set(LEFT))
    assert given
    with served("8.5") as node:
        write(node, [], given, collection="shop.orders")
        write(node, [key(1, vbid=1)])
    with served("8.5") as node:
        assert read(node, table, **both).keys == sorted({*LEFT, key(1, vbid=1), *orders} - set(given))


FIRST = VbucketRange(0, StreamOffset.ZERO, 9)


def test_a_record_says_that_rows_may_have_been_given_out() -> None:
    options = StreamOptions(skip_deletes=True)
    assert options.may_skip_deletes([FIRST])
    assert options.may_skip_deletes([FIRST, VbucketRange(1, StreamOffset(5, 3, 3, 3), 9)])
    assert not options.may_skip_deletes([VbucketRange(1, StreamOffset(5, 3, 3, 3), 9)])
    assert not options.may_skip_deletes([FIRST, VbucketRange(1, StreamOffset(5, 0, 0, 0), 9)])
    assert not options.may_skip_deletes([FIRST, VbucketRange(1, StreamOffset.ZERO, 9, given_vbuuid=5)])
    assert not StreamOptions(skip_deletes=True, history=True).may_skip_deletes([FIRST])
    assert not StreamOptions().may_skip_deletes([FIRST])


def test_copies_that_are_exact_have_all_deletions() -> None:
    with pytest.raises(ConfigError, match=r"messages\(\) has no option skip_deletes"):
        StreamOptions(skip_deletes=True).check_for("messages")


def test_the_flag_is_not_among_those_of_every_release() -> None:
    assert DcpSettings("x", skip_deletes=True).open_flags == DcpSettings("x").open_flags
