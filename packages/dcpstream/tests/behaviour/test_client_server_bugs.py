"""The client beside the known bugs of servers: kinds of reads, of nodes of each release with its bugs on.

The same reads of a Couchbase server, from a bucket of your own for that purpose, whose documents are deleted first. It
needs the scope `shop` with the collections `orders` and `returns`:

    SERVER=couchbase://host BUCKET=test DCPSTREAM_USERNAME=… DCPSTREAM_PASSWORD=… python -m pytest -n 0 THIS_FILE
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from dcpstream.client import KvClient
from dcpstream.errors import HistoryPurged
from dcpstream.model import Op
from dcpstream.wire.release import RELEASES
from dcpstream.wire.server_bugs import ServerBug
from tests.behaviour.test_client_purge import is_on_disk
from tests.kit.server_bug_reads import (
    COUNT,
    ORDERS,
    RETURNS,
    Bucket,
    documents,
    fill,
    node_of,
    read_before_a_durable_write,
    read_keys_alone,
    read_out_of_order,
    resume_before_nothing,
    resume_inside_a_snapshot,
    served,
)
from tests.kit.waiting import wait_until


def read_everything(bucket: Bucket) -> None:
    assert bucket.read() == bucket.wanted[ORDERS] | bucket.wanted[RETURNS]


def read_after_a_purge(bucket: Bucket) -> None:
    node = node_of(bucket)
    bucket.read(COUNT // 2)
    bucket.delete(ORDERS, list(bucket.wanted[ORDERS]))
    bucket.write(ORDERS, documents("last", 2))
    with KvClient(bucket.server, **bucket.login) as kv:
        wait_until(lambda: is_on_disk(kv.stats("vbucket-seqno 0")))
    node.inject("purge", bucket=bucket.name)
    with pytest.raises(HistoryPurged):
        bucket.read()
    assert bucket.read(on_rollback="rewind") == bucket.wanted[ORDERS] | bucket.wanted[RETURNS]
    assert bucket.ops[0] == Op.ROLLBACK


def read_a_dropped_collection(bucket: Bucket) -> None:
    node = node_of(bucket)
    bucket.read(collections=["shop"])
    node.set_collections(bucket.name, {"shop": ["returns"]})
    bucket.read(collections=["shop"])
    assert Op.COLLECTION_DROPPED in bucket.ops


def read_a_collection(bucket: Bucket) -> None:
    assert bucket.read(collections=[RETURNS]) == bucket.wanted[RETURNS]


CELLS: tuple[Callable[[Bucket], None], ...] = (
    read_everything,
    resume_inside_a_snapshot,
    resume_before_nothing,
    read_after_a_purge,
    read_a_dropped_collection,
    read_a_collection,
    read_keys_alone,
    read_before_a_durable_write,
    read_out_of_order,
)


SERVER = os.environ.get("SERVER", "")


@pytest.fixture(scope="module", params=[SERVER] if SERVER else RELEASES)
def buckets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bucket]]:
    """For each kind of read a bucket: of one node with the bugs of a release, or the one of the user's server."""
    names = [cell.__name__ for cell in CELLS]
    if SERVER:
        yield dict(zip(names, of_the_server(len(names)), strict=True))
        return
    release = request.param
    # Those that are rare in a server, too, and at 7.6 those of some of its versions.
    bugs = [bug.id for bug in ServerBug if bug in RELEASES[release].bugs or (bug.is_rare or release == "7.6")]
    path = tmp_path_factory.mktemp("node") / "data"
    with served(names, path, release=release, bugs=bugs) as found:
        yield found


def of_the_server(count: int) -> list[Bucket]:
    """The bucket of the user's server so many times, for readers of their own."""
    login = {
        "username": os.environ.get("DCPSTREAM_USERNAME", "Administrator"),
        "password": os.environ.get("DCPSTREAM_PASSWORD", "password"),
    }
    found = [Bucket(SERVER, os.environ.get("BUCKET", "default"), login) for _ in range(count)]
    for collection in (ORDERS, RETURNS):
        old = Bucket(SERVER, found[0].name, login)
        old.wanted[collection] = dict(old.read(collections=[collection]))
        old.delete(collection, list(old.found))
    fill(found[0])
    for bucket in found:
        bucket.wanted = found[0].wanted
    return found


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
def test_the_client_reads_the_right_documents(buckets: dict[str, Bucket], cell: Callable[[Bucket], None]) -> None:
    cell(buckets[cell.__name__])
