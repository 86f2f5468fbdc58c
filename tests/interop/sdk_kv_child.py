"""The official Python SDK's key-value calls with a node, beyond sdk_child.py; a process of its own.

Prints one line per finished part; the last line is `OK`.
"""

from __future__ import annotations

import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    CasMismatchException,
    DocumentExistsException,
    DocumentLockedException,
    DocumentNotFoundException,
    DocumentNotLockedException,
    DocumentUnretrievableException,
    FeatureUnavailableException,
    InvalidArgumentException,
    ValueFormatException,
)
from couchbase.kv_range_scan import PrefixScan, RangeScan, SamplingScan, ScanTerm
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    GetAndLockOptions,
    GetOptions,
    IncrementOptions,
    ReplaceOptions,
    ScanOptions,
    SignedInt64,
    UnlockOptions,
    UpsertOptions,
)


def connect(connection_string: str, password: str, **options: Any) -> Cluster:
    timeouts = ClusterTimeoutOptions(
        connect_timeout=timedelta(seconds=60), bootstrap_timeout=timedelta(seconds=60), kv_timeout=timedelta(seconds=30)
    )
    auth = PasswordAuthenticator("Administrator", password)
    return Cluster.connect(connection_string, ClusterOptions(auth, timeout_options=timeouts, **options))


def expect(kind: type[BaseException] | tuple[type[BaseException], ...], call: Any, *arguments: Any) -> None:
    try:
        call(*arguments)
    except kind:
        return
    raise AssertionError(f"{call} did not raise {kind}")


def locks(collection: Any) -> None:
    collection.upsert("locked", {"n": 1})
    locked = collection.get_and_lock("locked", timedelta(seconds=15))
    assert locked.content_as[dict] == {"n": 1}
    short = ReplaceOptions(timeout=timedelta(milliseconds=300))
    refused = (DocumentLockedException, Exception)
    expect(refused, collection.replace, "locked", {"n": 2}, short)
    expect(
        refused, collection.get_and_lock, "locked", timedelta(seconds=15),
        GetAndLockOptions(timeout=timedelta(milliseconds=300)),
    )  # fmt: skip
    assert collection.get("locked").cas != locked.cas
    collection.replace("locked", {"n": 2}, ReplaceOptions(cas=locked.cas))
    collection.upsert("locked", {"n": 3})  # the replace has unlocked it
    again = collection.get_and_lock("locked", timedelta(seconds=15))
    collection.unlock("locked", again.cas)
    # A server before 7.6 answers that it is busy, and the SDK tries again until its time-out.
    short_unlock = UnlockOptions(timeout=timedelta(milliseconds=300))
    expect((DocumentNotLockedException, Exception), collection.unlock, "locked", again.cas, short_unlock)
    collection.upsert("locked", {"n": 4})
    collection.get_and_lock("locked", timedelta(seconds=1))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            collection.upsert("locked", {"n": 5}, UpsertOptions(timeout=timedelta(milliseconds=200)))
            break
        except Exception:  # noqa: BLE001 - the SDK tries again until its time-out
            threading.Event().wait(0.05)
    assert collection.get("locked").content_as[dict] == {"n": 5}
    print("locks")


def scans(collection: Any) -> None:
    names = [f"scan-{number:03}" for number in range(200)]
    for number, name in enumerate(names):
        collection.upsert(name, {"n": number})
    found = {item.id: item.content_as[dict] for item in collection.scan(PrefixScan("scan-"))}
    assert found == {name: {"n": number} for number, name in enumerate(names)}
    some = RangeScan(ScanTerm("scan-050"), ScanTerm("scan-060", exclusive=True))
    assert sorted(item.id for item in collection.scan(some, ScanOptions(ids_only=True))) == names[50:60]
    result = collection.scan(some, ScanOptions(concurrency=4, batch_item_limit=1))
    assert sorted(item.id for item in result) == names[50:60]
    for item in collection.scan(some):
        assert item.cas == collection.get(item.id).cas
    sample = [item.id for item in collection.scan(SamplingScan(50, seed=7))]
    assert len(sample) == 50
    assert len(set(sample)) == 50
    whole = [item.id for item in collection.scan(RangeScan(), ScanOptions(ids_only=True))]
    assert set(names) <= set(whole)
    none = list(collection.scan(PrefixScan("nothing-")))
    assert none == []
    expect(InvalidArgumentException, lambda: list(collection.scan(SamplingScan(0))))
    print("range scans")


def no_scans(collection: Any) -> None:
    expect(FeatureUnavailableException, lambda: list(collection.scan(PrefixScan("scan-"))))
    print("no range scans")


def replicas(collection: Any) -> None:
    collection.upsert("any", {"n": 1})
    assert collection.get_any_replica("any").content_as[dict] == {"n": 1}
    assert [item.content_as[dict] for item in collection.get_all_replicas("any")] == [{"n": 1}]
    expect((DocumentUnretrievableException, DocumentNotFoundException), collection.get_any_replica, "none")
    print("replica reads")


def touching(collection: Any) -> None:
    collection.upsert("mortal", {"n": 1})
    assert collection.get("mortal", GetOptions(with_expiry=True)).expiry_time is None
    collection.touch("mortal", timedelta(days=40))
    at = collection.get("mortal", GetOptions(with_expiry=True)).expiry_time
    assert abs((at.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds() - 40 * 86400) < 60
    assert collection.get_and_touch("mortal", timedelta(seconds=1)).content_as[dict] == {"n": 1}
    expect(DocumentNotFoundException, collection.touch, "none", timedelta(hours=1))
    deadline = time.monotonic() + 60
    while collection.exists("mortal").exists and time.monotonic() < deadline:
        threading.Event().wait(0.1)
    expect(DocumentNotFoundException, collection.get, "mortal")
    print("touching")


def durable(collection: Any) -> None:
    for level in (
        DurabilityLevel.MAJORITY,
        DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
        DurabilityLevel.PERSIST_TO_MAJORITY,
    ):
        done = collection.upsert("durable", {"n": str(level)}, UpsertOptions(durability=ServerDurability(level)))
        got = collection.get("durable")
        assert (got.cas, got.content_as[dict]) == (done.cas, {"n": str(level)})
    print("durability")


def many(collection: Any) -> None:
    documents = {f"multi-{number}": {"n": number} for number in range(100)}
    assert collection.upsert_multi(documents).all_ok
    got = collection.get_multi(list(documents))
    assert {key: result.content_as[dict] for key, result in got.results.items()} == documents
    assert all(result.exists for result in collection.exists_multi(list(documents)).results.values())
    expect(DocumentExistsException, collection.insert, "multi-1", {})
    locked = collection.get_and_lock_multi(["multi-1", "multi-2"], timedelta(seconds=10))
    assert locked.all_ok
    unlocked = collection.unlock_multi({key: result.cas for key, result in locked.results.items()})
    assert not any(isinstance(result, Exception) for result in unlocked.values()), unlocked
    assert collection.touch_multi(list(documents), timedelta(hours=1)).all_ok
    assert collection.remove_multi(list(documents)).all_ok
    binary = collection.binary()
    assert binary.increment("n", IncrementOptions(initial=SignedInt64(5))).content == 5
    collection.upsert("text", {"a": 1})
    expect((ValueFormatException, Exception), binary.increment, "text")
    expect(CasMismatchException, collection.replace, "text", {}, ReplaceOptions(cas=1))
    print("many at once")


def main() -> None:
    connection_string, password, release = sys.argv[1:]
    cluster = connect(connection_string, password)
    collection = cluster.bucket("default").default_collection()
    scan = no_scans if release == "7.2" else scans
    for part in (touching, replicas, many, durable, locks, scan):
        part(collection)
    manager = cluster.bucket("default").collections()
    manager.create_scope("s1")
    manager.create_collection("s1", "c1")
    named = cluster.bucket("default").scope("s1").collection("c1")
    scan(named)
    cluster.close()
    compressing = connect(connection_string, password, enable_compression=True)
    collection = compressing.bucket("default").default_collection()
    big = {"text": "x" * 100_000}
    collection.upsert("packed", big)
    assert collection.get("packed").content_as[dict] == big
    compressing.close()
    print("OK", flush=True)


if __name__ == "__main__":
    main()
