"""Collections and scopes that come and go under a running query, and an option `collections` that changes.

The reader is driven without Spark. What it gives out is applied by the documented rules alone and compared with what
the test itself wrote.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError
from dcpstream.model import Op
from tests.kit.spark import Stream

VBUCKETS = 4

Place = tuple[str, str]
"""(scope, collection)."""


def place_of(path: str) -> Place:
    scope, collection = path.split(".")
    return scope, collection


class Catalog:
    """A node whose collections the test makes and drops, with the documents that it should hold."""

    def __init__(self, node: dcpstream_node.Node) -> None:
        self.node = node
        self.documents: dict[Place, dict[str, str]] = {("_default", "_default"): {}}

    def have(self, *paths: str) -> None:
        """From now on the bucket has these collections, beside the default one; others are dropped."""
        places = {("_default", "_default"), *(place_of(path) for path in paths)}
        scopes: dict[str, list[str]] = {}
        for scope, collection in sorted(places):
            scopes.setdefault(scope, []).append(collection)
        self.node.set_collections("default", scopes)
        self.documents = {place: self.documents.get(place, {}) for place in sorted(places)}

    def set(self, path: str, **values: str) -> None:
        scope, collection = path.split(".")
        with self._kv(path) as kv:
            kv.set_many((key, value.encode()) for key, value in values.items())
        self.documents[scope, collection].update(values)

    def fill(self, path: str, count: int, value: str = "1", prefix: str = "") -> None:
        self.set(path, **{f"{prefix}{number}": value for number in range(count)})

    def delete(self, path: str, *keys: str) -> None:
        with self._kv(path) as kv:
            kv.delete_many(keys)
        for key in keys:
            del self.documents[place_of(path)][key]

    def _kv(self, path: str) -> KvClient:
        return KvClient(
            self.node.connection_string,
            username="Administrator",
            password="password",
            bucket="default",
            collection=path,
        )


class Table:
    """The rows of all batches, and the documents that follow from them by the rules of the control rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.batches = 0

    def append(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["op"] == Op.ROLLBACK:
                self.rows = [
                    (batch, old)
                    for batch, old in self.rows
                    if old["vbucket"] != row["vbucket"] or old["seqno"] <= row["seqno"]
                ]
            else:
                self.rows.append((self.batches, row))
        self.batches += 1

    def effective(self) -> list[dict[str, Any]]:
        """The rows of documents that no control row has ended."""
        ends: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
        for batch, row in self.rows:
            if Op(row["op"]).empties_collection:
                place = (row["scope"], row["collection"], row["vbucket"])
                ends.setdefault(place, []).append((batch, row["seqno"]))
        return [
            row
            for batch, row in self.rows
            if row["key"] is not None
            and not any(
                until >= batch and seqno >= row["seqno"]
                for until, seqno in ends.get((row["scope"], row["collection"], row["vbucket"]), ())
            )
        ]

    def documents(self) -> dict[Place, dict[str, str]]:
        """The documents of the newest effective rows; no effective row may be there twice."""
        rows = self.effective()
        assert len({(row["vbucket"], row["seqno"]) for row in rows}) == len(rows), "a row was delivered twice"
        found: dict[Place, dict[str, str]] = {}
        for row in sorted(rows, key=lambda row: row["seqno"]):
            place = found.setdefault((row["scope"], row["collection"]), {})
            place.pop(row["key"], None)
            if row["_change_type"] != "delete":
                place[row["key"]] = row["value"].decode()
        return {place: documents for place, documents in found.items() if documents}

    def ops(self) -> Counter[str]:
        return Counter(row["op"] for _, row in self.rows)


def drain(stream: Stream, table: Table) -> None:
    """Follow the stream until nothing is new."""
    while (end := stream.plan()) != stream.at:
        table.append(stream.read(end))
        stream.at = end


def filled(documents: dict[Place, dict[str, str]], *paths: str) -> dict[Place, dict[str, str]]:
    """The documents of some collections, of all for none; without empty collections."""
    wanted = {place_of(path) for path in paths} or documents.keys()
    return {place: values for place, values in documents.items() if values and place in wanted}


@pytest.fixture
def bucket() -> Iterator[Catalog]:
    with dcpstream_node.Node(vbuckets=VBUCKETS, system_scope=False) as node:
        yield Catalog(node)


pytestmark = pytest.mark.usefixtures("closes_connections")


@pytest.mark.parametrize("names", [{}, {"collections": "shop.a,shop.b"}, {"collections": "shop.*"}])
def test_a_dropped_collection_ends_and_the_others_go_on(bucket: Catalog, names: dict[str, str]) -> None:
    bucket.have("shop.a", "shop.b")
    bucket.fill("shop.a", 5)
    bucket.fill("shop.b", 10)
    stream, table = Stream(bucket.node, **names), Table()
    drain(stream, table)
    assert len(table.effective()) == 15
    bucket.have("shop.b")
    drain(stream, table)
    assert len(table.effective()) == 10
    bucket.fill("shop.b", 3, prefix="more")
    bucket.have("shop.a", "shop.b")
    bucket.set("shop.a", new="1")
    drain(stream, table)
    assert table.documents() == filled(bucket.documents)
    assert len(table.documents()["shop", "a"]) == 1
    assert table.ops()["collection_dropped"] >= VBUCKETS


def test_dropped_and_created_again_between_two_batches(bucket: Catalog) -> None:
    bucket.have("shop.a", "shop.b")
    bucket.fill("shop.a", 5)
    stream, table = Stream(bucket.node, collections="shop.a,shop.b"), Table()
    drain(stream, table)
    bucket.have("shop.b")
    bucket.have("shop.a", "shop.b")
    bucket.set("shop.a", new="1")
    drain(stream, table)
    assert table.documents() == {("shop", "a"): {"new": "1"}}


def test_the_only_collection_is_dropped_and_created_again(bucket: Catalog) -> None:
    bucket.have("shop.a")
    bucket.fill("shop.a", 5)
    stream, table = Stream(bucket.node, collections="shop.a"), Table()
    drain(stream, table)
    bucket.have()
    bucket.fill("_default._default", 5)
    drain(stream, table)
    assert table.documents() == {}
    bucket.have("shop.a")
    bucket.set("shop.a", new="1")
    drain(stream, table)
    assert table.documents() == {("shop", "a"): {"new": "1"}}


def test_dropped_between_planning_and_reading(bucket: Catalog) -> None:
    bucket.have("shop.a", "shop.b")
    bucket.fill("shop.b", 10)
    stream, table = Stream(bucket.node, collections="shop.a,shop.b"), Table()
    drain(stream, table)
    bucket.fill("shop.a", 5)
    end = stream.plan()
    bucket.have("shop.b")
    table.append(stream.read(end))
    stream.at = end
    drain(stream, table)
    assert table.documents() == filled(bucket.documents)


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("shop.a", "shop.a,shop.b", ["shop.a", "shop.b"]),
        ("shop.a", "shop.*", ["shop.a", "shop.b"]),
        ("shop.a,shop.b", "shop.b", ["shop.b"]),
        ("shop.a", "shop.b", ["shop.b"]),
        (None, "shop.a", ["shop.a"]),
        ("shop.a", None, ["shop.a", "shop.b", "_default._default"]),
    ],
)
@pytest.mark.parametrize("limit", [pytest.param("1000", marks=pytest.mark.slow), "3"])
def test_the_option_changes_on_a_checkpoint(
    bucket: Catalog, before: str | None, after: str | None, wanted: list[str], limit: str
) -> None:
    bucket.have("shop.a", "shop.b")
    for path in ("shop.a", "shop.b", "_default._default"):
        bucket.fill(path, 12)
    options = {"maxOffsetsPerTrigger": limit}
    stream, table = Stream(bucket.node, **options, **({"collections": before} if before else {})), Table()
    drain(stream, table)
    bucket.set("shop.b", **{"0": "2", "new": "2"})
    changed = Stream(bucket.node, **options, **({"collections": after} if after else {}))
    changed.at = stream.at
    drain(changed, table)
    bucket.set("shop.a", **{"1": "3", "newer": "3"})
    drain(changed, table)
    assert table.documents() == filled(bucket.documents, *wanted)
    assert (table.ops()["collection_excluded"] > 0) == (len(wanted) == 1)


def test_a_collection_that_left_and_came_back_is_whole(bucket: Catalog) -> None:
    bucket.have("shop.a", "shop.b")
    bucket.fill("shop.a", 12)
    bucket.fill("shop.b", 12)
    at, table = None, Table()
    for names in ("shop.a,shop.b", "shop.b", "shop.a,shop.b"):
        stream = Stream(bucket.node, collections=names)
        stream.at = at or stream.at
        drain(stream, table)
        bucket.set("shop.b", last=names)
        at = stream.at
    drain(stream, table)
    assert table.documents() == filled(bucket.documents)
    assert len(table.documents()["shop", "a"]) == 12


def test_a_new_name_that_the_bucket_does_not_have_is_refused(bucket: Catalog) -> None:
    bucket.have("shop.a")
    bucket.fill("shop.a", 5)
    stream = Stream(bucket.node, collections="shop.a")
    drain(stream, Table())
    changed = Stream(bucket.node, collections="shop.a,shop.typo")
    changed.at = stream.at
    with pytest.raises(ConfigError, match=r"shop\.typo"):
        changed.plan()


def test_a_failed_attempt_of_the_batch_that_follows_a_change_is_read_again(bucket: Catalog) -> None:
    bucket.have("shop.a", "shop.b")
    bucket.fill("shop.a", 12)
    bucket.fill("shop.b", 12)
    stream, table = Stream(bucket.node, collections="shop.a"), Table()
    drain(stream, table)
    changed = Stream(bucket.node, collections="shop.a,shop.b")
    changed.at = stream.at
    end = changed.plan()
    first = changed.read(end)
    again = Stream(bucket.node, collections="shop.a,shop.b")
    again.at = stream.at
    second = again.read(end)
    assert sorted(row["key"] for row in first if row["key"]) == sorted(row["key"] for row in second if row["key"])
    table.append(second)
    again.at = end
    drain(again, table)
    assert table.documents() == filled(bucket.documents)


@pytest.mark.parametrize("after", ["shop.a,shop.b", None])
def test_what_a_new_collection_lost_to_a_newer_version_comes_back_with_a_rollback(after: str | None) -> None:
    """The old version of a document was superseded when its collection was added, and that change is then lost."""
    options = {"onRollback": "rewindAndMark"}
    with dcpstream_node.Node(vbuckets=1, system_scope=False) as node:
        bucket = Catalog(node)
        bucket.have("shop.a", "shop.b")
        bucket.set("shop.b", document="old")
        bucket.set("shop.a", other="1")
        stream, table = Stream(node, collections="shop.a", **options), Table()
        drain(stream, table)
        kept, kept_seqno = copy.deepcopy(bucket.documents), node._bucket("default").vbuckets[0].high_seqno
        changed = Stream(node, **options, **({"collections": after} if after else {}))
        changed.at = stream.at
        end = changed.plan()
        bucket.set("shop.b", document="lost")
        table.append(changed.read(end))
        changed.at = end
        assert table.documents() == {("shop", "a"): {"other": "1"}}, "the old version was superseded"
        changed.plan()  # completes the bounds of the position
        node.inject("stale_failover", bucket="default", vbid=0, seqno=kept_seqno)
        bucket.documents = kept
        bucket.set("shop.a", newer="1")
        changed.reader._coordinator._observed_all = None
        drain(changed, table)
        assert table.documents() == filled(bucket.documents)


PATHS = ("shop.a", "shop.b", "other.c")
CHOICES: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (None, ("_default._default", *PATHS)),
    ("shop.a", ("shop.a",)),
    ("shop.a,shop.b", ("shop.a", "shop.b")),
    ("shop.*", ("shop.a", "shop.b")),
    ("other.c,shop.*", PATHS),
    ("_default,shop.b", ("_default._default", "shop.b")),
)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60))])
def test_anything_may_happen_to_collections(bucket: Catalog, seed: int) -> None:
    """Random drops, creations, writes, restarts, replays and changes of the option; compared when drained."""
    chance = random.Random(seed)
    bucket.have(*PATHS)
    choice, wanted = chance.choice(CHOICES)
    limit = chance.choice(["2", "20", "1000"])

    def another(at: dict[str, Any] | None) -> Stream:
        found = Stream(bucket.node, maxOffsetsPerTrigger=limit, **({"collections": choice} if choice else {}))
        found.at = at or found.at
        return found

    for path in ("_default._default", *PATHS):
        bucket.fill(path, 2)
    stream, table = another(None), Table()
    drain(stream, table)
    table_at = stream.at
    for _ in range(40):
        match chance.choice(
            ["write", "write", "write", "delete", "step", "step", "replay", "have", "option", "restart"]
        ):
            case "write":
                path = ".".join(chance.choice(list(bucket.documents)))
                names = (f"{chance.choice('abcdefgh')}{n}" for n in range(chance.randint(1, 4)))
                bucket.set(path, **{name: str(chance.random()) for name in names})
            case "delete":
                place = chance.choice(list(bucket.documents))
                if bucket.documents[place]:
                    bucket.delete(".".join(place), chance.choice(list(bucket.documents[place])))
            case "have":
                bucket.have(*chance.sample(PATHS, chance.randint(1, 3)))
            case "step":
                end = stream.plan()
                table.append(stream.read(end))
                table_at = stream.at = end
            case "replay":
                end = stream.plan()
                stream.read(end)
                stream = another(table_at)
                table.append(stream.read(end))
                table_at = stream.at = end
            case "restart":
                stream = another(table_at)
            case "option" if table_at.get("vbuckets"):
                living = {".".join(place) for place in bucket.documents}
                able = [one for one in CHOICES if set(one[1]) <= living]
                if able:
                    choice, wanted = chance.choice(able)
                    stream = another(table_at)
                    end = stream.plan()  # else a name may be gone before it was ever looked up
                    table.append(stream.read(end))
                    table_at = stream.at = end
    drain(stream, table)
    assert table.documents() == filled(bucket.documents, *wanted)
