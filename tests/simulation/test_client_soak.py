"""The real client against a real node that crashes, fails over and is cut off: the table is the bucket in the end.

Unlike the model beside it, this runs the whole way over sockets and disk. Timing is the machine's, so a seed repeats
the plan of a run, not every interleaving.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import dcpstream_node
from dcpstream.client import Change, Client, FileOffsetStore, KvClient, StreamOptions
from dcpstream.client.kv.client import BulkInterrupted
from dcpstream.errors import ConnectTimeout
from dcpstream.wire import Opcode, encode_request
from tests.kit.access import LOGIN
from tests.kit.proxy import Proxy

VBUCKETS = 4
KEYS = 40


class Table:
    """Rows by vbucket and seqno, as a table of changes keeps them."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, tuple[bytes, bytes | None]]] = {}
        self.rollbacks = 0

    def take(self, changes: Iterable[Change]) -> None:
        for change in changes:
            rows = self.rows.setdefault(change.vbid, {})
            if change.op == "rollback":
                self.rollbacks += 1
                self.rows[change.vbid] = {seqno: row for seqno, row in rows.items() if seqno <= change.seqno}
            else:
                rows[change.seqno] = (change.key, change.value if change.op == "mutation" else None)

    def documents(self) -> dict[bytes, bytes]:
        newest: dict[bytes, bytes | None] = {}
        for rows in self.rows.values():
            newest.update(row for _, row in sorted(rows.items()))
        return {key: value for key, value in newest.items() if value is not None}


def write(rng: random.Random, kv: KvClient, count: int) -> None:
    items: list[tuple[str, str | None]] = [
        (f"doc {rng.randrange(KEYS)}", None if rng.random() < 0.2 else str(rng.getrandbits(60))) for _ in range(count)
    ]
    with contextlib.suppress(BulkInterrupted):
        kv.mutate_many(items)


def toggle(rng: random.Random, kv: KvClient) -> None:
    vbid = rng.randrange(VBUCKETS)
    link = kv._pool.of(vbid)
    for state in (2, 1):
        link.ask(encode_request(Opcode.SET_VBUCKET, vbid=vbid, extras=bytes((state,))))


def lives(rng: random.Random, path: Path, *, is_stable: bool) -> Iterator[tuple[dcpstream_node.Node, bool]]:
    """The node in several lives, each ended by a crash but the last; whether it is the last."""
    count = rng.randint(2, 4)
    for life in range(count):
        # Sometimes nothing reaches the disk in a life, so that a crash takes all of it.
        interval = rng.choice((0.01, 0.01, 3600.0))
        if is_stable and life == count - 1:
            interval = 0.01
        node = dcpstream_node.Node(vbuckets=VBUCKETS, path=path, flush_interval_s=interval)
        with node:
            yield node, life == count - 1
            if life < count - 1:
                node.crash()


def run(seed: int, directory: Path, *, is_stable: bool = False) -> int:
    """One run; returns how many rollbacks it had."""
    rng = random.Random(seed)
    store = FileOffsetStore(directory / "offsets")
    table = Table()
    for node, is_last in lives(rng, directory / "data", is_stable=is_stable):
        with (
            Proxy(node.port) as proxy,
            KvClient(node.connection_string, **LOGIN) as kv,
            Client(proxy.connection_string, **LOGIN) as client,
        ):
            for _ in range(rng.randint(1, 4)):
                write(rng, kv, rng.randint(1, 200))
                if rng.random() < 0.4:
                    toggle(rng, kv)
                if rng.random() < 0.4:
                    proxy.cut_after(10**9, rng.randint(600, 6000), rng.randint(600, 6000))
                if rng.random() < 0.8 and not is_stable:
                    read(client, store, table)
                elif rng.random() < 0.8:
                    # What the disk does not have yet will not come.
                    with contextlib.suppress(ConnectTimeout):
                        read(client, store, table, is_stable=True, idle_timeout_s=0.5)
            if is_last:
                proxy.cut_after()
                read(client, store, table, is_stable=is_stable)
                keys = [f"doc {number}".encode() for number in range(KEYS)]
                bucket = {
                    key: document.value
                    for key, document in zip(keys, kv.get_many(keys), strict=True)
                    if document is not None
                }
                assert table.documents() == bucket, f"seed {seed}"
    return table.rollbacks


def read(
    client: Client, store: FileOffsetStore, table: Table, *, is_stable: bool = False, idle_timeout_s: float = 30.0
) -> None:
    """Everything up to now; the table and the positions are kept together, as a transaction would."""
    changes = client.changes(
        StreamOptions(
            end="latest", store=store, on_rollback="rewind", idle_timeout_s=idle_timeout_s, read_stable=is_stable
        )
    )
    with contextlib.closing(changes):
        table.take(changes)


def test_the_table_is_the_bucket_in_the_end(tmp_path: Path) -> None:
    seed = secrets.randbits(40)
    print(f"seed {seed}")
    run(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stable_table_is_the_bucket_in_the_end_many_times(tmp_path: Path) -> None:
    first = secrets.randbits(40)
    print(f"from seed {first}")
    for number in range(50):
        directory = tmp_path / str(number)
        directory.mkdir()
        run(first + number, directory, is_stable=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_table_is_the_bucket_in_the_end_many_times(tmp_path: Path) -> None:
    first = secrets.randbits(40)
    print(f"from seed {first}")
    rollbacks = 0
    for number in range(100):
        directory = tmp_path / str(number)
        directory.mkdir()
        rollbacks += run(first + number, directory)
    assert rollbacks > 10, "the runs should have had something to get over"
