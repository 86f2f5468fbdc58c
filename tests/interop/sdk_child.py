"""What the official Python SDK does with a node; run as a process of its own, because a bad answer can crash the SDK.

Prints one line per finished part; the last line is `OK`.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.exceptions import (
    AuthenticationException,
    BucketNotFoundException,
    CasMismatchException,
    CollectionNotFoundException,
    DocumentExistsException,
    DocumentNotFoundException,
    ScopeAlreadyExistsException,
    ScopeNotFoundException,
)
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    GetOptions,
    IncrementOptions,
    RemoveOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertOptions,
)


def connect(connection_string: str, password: str, *, is_plain: bool = False) -> Cluster:
    make = PasswordAuthenticator.ldap_compatible if is_plain else PasswordAuthenticator
    timeouts = ClusterTimeoutOptions(
        connect_timeout=timedelta(seconds=10), bootstrap_timeout=timedelta(seconds=10), kv_timeout=timedelta(seconds=5)
    )
    return Cluster.connect(connection_string, ClusterOptions(make("Administrator", password), timeout_options=timeouts))


def expect(kind: type[BaseException], call: object, *arguments: object) -> None:
    try:
        call(*arguments)  # type: ignore[operator]
    except kind:
        return
    raise AssertionError(f"{call} did not raise {kind.__name__}")


def documents(collection: object) -> None:
    value = {"name": "Ærø", "n": 1, "list": [1, 2.5, None, True]}
    first = collection.upsert("doc", value)
    assert first.mutation_token() is not None
    got = collection.get("doc")
    assert got.content_as[dict] == value
    assert got.cas == first.cas
    expect(DocumentExistsException, collection.insert, "doc", {})
    collection.insert("other", [1])
    expect(CasMismatchException, collection.replace, "doc", {}, ReplaceOptions(cas=first.cas + 1))
    second = collection.replace("doc", {"n": 2}, ReplaceOptions(cas=first.cas))
    assert second.cas > first.cas
    expect(CasMismatchException, collection.remove, "doc", RemoveOptions(cas=first.cas))
    assert collection.exists("doc").exists
    collection.remove("doc")
    assert not collection.exists("doc").exists
    expect(DocumentNotFoundException, collection.get, "doc")
    expect(DocumentNotFoundException, collection.remove, "doc")
    expect(DocumentNotFoundException, collection.replace, "doc", {})
    print("documents")


def large_values(collection: object) -> None:
    big = {"text": "x" * 300_000, "noise": list(range(2000))}
    collection.upsert("big", big)
    assert collection.get("big").content_as[dict] == big
    for number in range(300):
        collection.upsert(f"k{number}", {"n": number})
    for number in range(300):
        assert collection.get(f"k{number}").content_as[dict] == {"n": number}
    print("large values and many keys")


def expiry(collection: object) -> None:
    collection.upsert("mortal", {"a": 1}, UpsertOptions(expiry=timedelta(seconds=1)))
    collection.upsert("kept", {"a": 1}, UpsertOptions(expiry=timedelta(hours=1)))
    collection.upsert("kept", {"a": 2}, UpsertOptions(preserve_expiry=True))
    collection.touch("kept", timedelta(hours=2))
    assert collection.get_and_touch("kept", timedelta(hours=2)).content_as[dict] == {"a": 2}
    for _ in range(100):
        try:
            collection.get("mortal", GetOptions(timeout=timedelta(milliseconds=500)))
        except DocumentNotFoundException:
            break
        collection.upsert("busy", {})
        wait()
    else:
        raise AssertionError("the document did not expire")
    print("expiry")


def wait() -> None:
    import threading

    threading.Event().wait(0.05)


def counters_and_bytes(collection: object) -> None:
    binary = collection.binary()
    assert binary.increment("counter", IncrementOptions(initial=SignedInt64(10))).content == 10
    assert binary.increment("counter").content == 11
    assert binary.decrement("counter").content == 10
    from couchbase.transcoder import RawBinaryTranscoder

    raw = UpsertOptions(transcoder=RawBinaryTranscoder())
    collection.upsert("raw", b"\x00\xffmiddle", raw)
    binary.append("raw", b"-end")
    binary.prepend("raw", b"start-")
    got = collection.get("raw", GetOptions(transcoder=RawBinaryTranscoder()))
    assert got.content_as[bytes] == b"start-\x00\xffmiddle-end"
    print("counters and bytes")


def collections(bucket: object) -> None:
    manager = bucket.collections()
    assert [scope.name for scope in manager.get_all_scopes()] == ["_default"]
    manager.create_scope("s1")
    manager.create_collection("s1", "c1")
    found = {scope.name: [item.name for item in scope.collections] for scope in manager.get_all_scopes()}
    assert found == {"_default": ["_default"], "s1": ["c1"]}
    named = bucket.scope("s1").collection("c1")
    named.upsert("k", {"a": 1})
    assert named.get("k").content_as[dict] == {"a": 1}
    expect(DocumentNotFoundException, bucket.default_collection().get, "k")
    manager.drop_collection("s1", "c1")
    expect(CollectionNotFoundException, named.get, "k")
    expect(ScopeAlreadyExistsException, manager.create_scope, "s1")
    expect(ScopeNotFoundException, manager.drop_scope, "none")
    manager.drop_scope("s1")
    print("collections")


def main() -> None:
    connection_string, password = sys.argv[1:]
    cluster = connect(connection_string, password)
    bucket = cluster.bucket("default")
    collection = bucket.default_collection()
    documents(collection)
    large_values(collection)
    expiry(collection)
    counters_and_bytes(collection)
    assert bucket.ping().endpoints
    assert [settings.name for settings in cluster.buckets().get_all_buckets()] == ["default"]
    print("management")
    collections(bucket)
    expect(BucketNotFoundException, cluster.bucket, "nosuch")
    cluster.close()
    plain = connect(connection_string, password, is_plain=True)
    plain.bucket("default").default_collection().get("k1")
    plain.close()
    print("plain login")
    expect(AuthenticationException, connect, connection_string, "wrong")
    print("OK", flush=True)


if __name__ == "__main__":
    main()
