"""The official Python SDK's calls for parts of documents; run as a process of its own.

Prints one line per finished part; the last line is `OK`.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from couchbase import subdocument as sd
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.collection import Collection
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    CasMismatchException,
    DocumentExistsException,
    DocumentNotFoundException,
    InvalidValueException,
    PathExistsException,
    PathMismatchException,
    PathNotFoundException,
    TransactionFailed,
)
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    GetOptions,
    LookupInOptions,
    MutateInOptions,
    TransactionOptions,
)
from couchbase.transactions import AttemptContext


def connect(connection_string: str, password: str) -> Cluster:
    """A cluster of one node, with time-outs for a slow machine."""
    timeouts = ClusterTimeoutOptions(
        connect_timeout=timedelta(seconds=60), bootstrap_timeout=timedelta(seconds=60), kv_timeout=timedelta(seconds=30)
    )
    authenticator = PasswordAuthenticator("Administrator", password)
    return Cluster.connect(connection_string, ClusterOptions(authenticator, timeout_options=timeouts))


def expect(kind: type[BaseException], call: Any, *arguments: Any) -> None:
    """Fail unless a call raises this."""
    try:
        call(*arguments)
    except kind:
        return
    raise AssertionError(f"{call} did not raise {kind.__name__}")


def lookups(collection: Collection) -> None:
    value = {"name": "Ærø", "list": [1, {"x": None}, "z"], "n": {"m": True}}
    cas = collection.upsert("doc", value).cas
    found = collection.lookup_in(
        "doc",
        [sd.get("name"), sd.exists("n.m"), sd.exists("no"), sd.count("list"), sd.get("list[-1]"), sd.get_full(),
         sd.get("list[1].x"), sd.get("no.path")],
    )  # fmt: skip
    assert found.cas == cas
    assert found.content_as[str](0) == "Ærø"
    assert found.exists(1)
    assert not found.exists(2)
    assert found.content_as[int](3) == 3
    assert found.content_as[str](4) == "z"
    assert found.content_as[dict](5) == value
    assert found.content_as[lambda item: item](6) is None
    expect(PathNotFoundException, found.content_as[str].__call__, 7)
    expect(DocumentNotFoundException, collection.lookup_in, "none", [sd.get("a")])
    mismatch = collection.lookup_in("doc", [sd.get("name.x")])
    expect(PathMismatchException, mismatch.content_as[str].__call__, 0)


def mutations(collection: Collection) -> None:
    collection.upsert("doc", {"n": 1, "list": [2], "gone": 0})
    done = collection.mutate_in(
        "doc",
        [
            sd.insert("new", {"a": [1]}),
            sd.upsert("deep.er.est", "é", create_parents=True),
            sd.replace("n", 5),
            sd.remove("gone"),
            sd.array_append("list", 3, 4),
            sd.array_prepend("list", 0, 1),
            sd.array_insert("list[2]", "i"),
            sd.array_addunique("list", "u"),
            sd.array_append("made", 1, create_parents=True),
            sd.counter("count", 5, create_parents=True),
            sd.decrement("count", 2),
            sd.increment("n", 10),
        ],
    )
    assert done.mutation_token() is not None
    assert done.content_as[int](9) == 5
    assert done.content_as[int](10) == 3
    assert done.content_as[int](11) == 15
    assert collection.get("doc").content_as[dict] == {
        "n": 15, "list": [0, 1, "i", 2, 3, 4, "u"], "new": {"a": [1]}, "deep": {"er": {"est": "é"}}, "made": [1],
        "count": 3,
    }  # fmt: skip
    expect(PathExistsException, collection.mutate_in, "doc", [sd.insert("n", 1)])
    expect(PathExistsException, collection.mutate_in, "doc", [sd.array_addunique("list", "u")])
    expect(PathNotFoundException, collection.mutate_in, "doc", [sd.replace("no", 1)])
    expect(PathMismatchException, collection.mutate_in, "doc", [sd.array_append("n", 1)])
    expect(InvalidValueException, collection.mutate_in, "doc", [sd.counter("n", 1 << 62)] * 3)
    expect(CasMismatchException, collection.mutate_in, "doc", [sd.upsert("n", 1)], MutateInOptions(cas=done.cas + 1))


def semantics(collection: Collection) -> None:
    expect(DocumentNotFoundException, collection.mutate_in, "fresh", [sd.upsert("a", 1)])
    upsert = MutateInOptions(store_semantics=sd.StoreSemantics.UPSERT)
    insert = MutateInOptions(store_semantics=sd.StoreSemantics.INSERT)
    collection.mutate_in("fresh", [sd.upsert("a", 1)], upsert)
    collection.mutate_in("fresh", [sd.upsert("b", 2)], upsert)
    assert collection.get("fresh").content_as[dict] == {"a": 1, "b": 2}
    expect(DocumentExistsException, collection.mutate_in, "fresh", [sd.upsert("a", 1)], insert)
    collection.mutate_in("inserted", [sd.array_append("", 1, 2)], insert)
    assert collection.get("inserted").content_as[list] == [1, 2]


def attributes(collection: Collection) -> None:
    collection.upsert("attr", {"body": 1})
    collection.mutate_in(
        "attr",
        [
            sd.upsert("meta.owner", "me", xattr=True, create_parents=True),
            sd.upsert("meta.cas", sd.MutationMacro.cas(), xattr=True),
            sd.upsert("meta.seqno", sd.MutationMacro.seq_no(), xattr=True),
            sd.upsert("meta.crc", sd.MutationMacro.value_crc32c(), xattr=True),
            sd.counter("meta.count", 2, xattr=True),
            sd.upsert("body", 2),
        ],
    )
    found = collection.lookup_in(
        "attr",
        [sd.get("meta.owner", xattr=True), sd.get("meta", xattr=True), sd.get("$document", xattr=True),
         sd.get("$document.exptime", xattr=True), sd.get("$XTOC", xattr=True), sd.exists("none", xattr=True),
         sd.get("body")],
    )  # fmt: skip
    document = found.content_as[dict](2)
    meta = found.content_as[dict](1)
    assert found.content_as[str](0) == "me"
    assert bytes.fromhex(meta["cas"][2:]) == found.cas.to_bytes(8, "little")
    assert meta["seqno"] == document["seqno"]
    assert meta["crc"] == document["value_crc32c"]
    assert meta["count"] == 2
    assert document["CAS"] == f"0x{found.cas:016x}"
    assert document["datatype"] == ["json", "xattr"]
    assert found.content_as[int](3) == 0
    assert found.content_as[list](4) == ["meta"]
    assert not found.exists(5)
    assert found.content_as[int](6) == 2
    collection.mutate_in("attr", [sd.remove("meta", xattr=True)])
    assert collection.lookup_in("attr", [sd.get("$XTOC", xattr=True)]).content_as[list](0) == []


def deleted(collection: Collection) -> None:
    collection.upsert("tomb", {})
    collection.mutate_in("tomb", [sd.upsert("_sys", {"a": 1}, xattr=True), sd.upsert("user", 1, xattr=True)])
    collection.remove("tomb")
    expect(DocumentNotFoundException, collection.lookup_in, "tomb", [sd.get("_sys", xattr=True)])
    options = LookupInOptions(access_deleted=True)
    found = collection.lookup_in("tomb", [sd.get("_sys", xattr=True), sd.exists("user", xattr=True)], options)
    assert found.content_as[dict](0) == {"a": 1}
    assert not found.exists(1)


def lives(collection: Collection) -> None:
    collection.upsert("ttl", {"a": 1})
    collection.mutate_in("ttl", [sd.upsert("a", 2)], MutateInOptions(expiry=timedelta(hours=1)))
    first = collection.get("ttl", GetOptions(with_expiry=True)).expiryTime
    assert first is not None
    collection.mutate_in("ttl", [sd.upsert("a", 3)], MutateInOptions(preserve_expiry=True))
    kept = collection.get("ttl", GetOptions(with_expiry=True))
    assert kept.expiryTime == first
    assert kept.content_as[dict] == {"a": 3}
    collection.mutate_in("ttl", [sd.upsert("a", 4)])
    assert collection.get("ttl", GetOptions(with_expiry=True)).expiryTime is None


def projections(collection: Collection) -> None:
    collection.upsert("wide", {f"f{number}": number for number in range(30)} | {"o": {"p": [1, 2], "q": 3}})
    got = collection.get("wide", GetOptions(project=["f3", "o.p"])).content_as[dict]
    assert got == {"f3": 3, "o": {"p": [1, 2]}}
    many = collection.get("wide", GetOptions(project=[f"f{number}" for number in range(20)], with_expiry=True))
    assert many.content_as[dict] == {f"f{number}": number for number in range(20)}


def transactions(cluster: Cluster, collection: Collection) -> None:
    """Staged inserts are tombstones with attributes, which are revived; the rest is macros and attributes."""
    collection.upsert("t-old", {"n": 1})
    collection.upsert("t-gone", {"n": 1})

    def write(attempt: AttemptContext) -> None:
        attempt.insert(collection, "t-new", {"n": 2})
        attempt.replace(attempt.get(collection, "t-old"), {"n": 3})
        attempt.remove(attempt.get(collection, "t-gone"))

    cluster.transactions.run(write, TransactionOptions(durability=ServerDurability(DurabilityLevel.NONE)))
    assert collection.get("t-new").content_as[dict] == {"n": 2}
    assert collection.get("t-old").content_as[dict] == {"n": 3}
    expect(DocumentNotFoundException, collection.get, "t-gone")
    names = collection.lookup_in("t-new", [sd.get("$XTOC", xattr=True)]).content_as[list](0)
    assert names == []

    def give_up(attempt: AttemptContext) -> None:
        attempt.insert(collection, "t-never", {"n": 2})
        attempt.replace(attempt.get(collection, "t-old"), {"n": 4})
        raise ValueError("no")

    expect(TransactionFailed, cluster.transactions.run, give_up)
    assert collection.get("t-old").content_as[dict] == {"n": 3}
    expect(DocumentNotFoundException, collection.get, "t-never")


def main() -> None:
    cluster: Cluster = connect(sys.argv[1], sys.argv[2])
    collection = cluster.bucket("default").default_collection()
    for part in (lookups, mutations, semantics, attributes, deleted, lives, projections):
        part(collection)
        print(part.__name__, flush=True)
    transactions(cluster, collection)
    print("transactions", flush=True)
    cluster.close()
    print("OK", flush=True)


if __name__ == "__main__":
    main()
