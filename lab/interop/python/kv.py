"""The official Python SDK: every public key-value call against a node."""

from __future__ import annotations

import argparse
import os
import threading
import time
from datetime import timedelta
from typing import Any

import couchbase.subdocument as sd
from common import SHORT, Part, begin, connect, refused
from couchbase.durability import (
    ClientDurability,
    DurabilityLevel,
    PersistTo,
    PersistToExtended,
    ReplicateTo,
    ServerDurability,
)
from couchbase.exceptions import (
    AmbiguousTimeoutException,
    CasMismatchException,
    CollectionNotFoundException,
    CouchbaseException,
    DeltaInvalidException,
    DocumentExistsException,
    DocumentLockedException,
    DocumentNotFoundException,
    DocumentNotLockedException,
    DocumentUnretrievableException,
    DurabilityImpossibleException,
    InvalidArgumentException,
    InvalidValueException,
    PathExistsException,
    PathMismatchException,
    PathNotFoundException,
    TemporaryFailException,
    TimeoutException,
    UnAmbiguousTimeoutException,
)
from couchbase.kv_range_scan import PrefixScan, RangeScan, SamplingScan, ScanTerm
from couchbase.mutation_state import MutationState
from couchbase.options import (
    AppendOptions,
    DecrementOptions,
    DeltaValue,
    GetOptions,
    IncrementOptions,
    InsertOptions,
    LookupInOptions,
    MutateInOptions,
    PrependOptions,
    RemoveOptions,
    ReplaceOptions,
    ScanOptions,
    SignedInt64,
    TouchOptions,
    UnlockOptions,
    UpsertOptions,
)
from couchbase.subdocument import StoreSemantics
from couchbase.transcoder import LegacyTranscoder, RawBinaryTranscoder, RawJSONTranscoder, RawStringTranscoder

MANY = 1000
DEADLINE_S = 10.0
TIMEOUTS = (TimeoutException, AmbiguousTimeoutException, UnAmbiguousTimeoutException)


class Judge:
    """Every public call of a collection."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.cluster = connect(options)
        self.bucket = self.cluster.bucket(options.bucket)
        self.default = self.bucket.default_collection()
        self.named = self.bucket.scope("shop").collection("orders")

    def parts(self) -> list[Part]:
        """All parts, on the default collection and on a named one."""
        both: list[Part] = []
        for label, collection in (("", self.default), (" (named collection)", self.named)):
            self_of = Calls(self.cluster, self.bucket, collection)
            names = [name for name in vars(Calls) if not name.startswith("_")]
            both += [(f"{name.replace('_', ' ')}{label}", getattr(self_of, name)) for name in names]
        return [*both, ("unknown collections", self.unknown), ("diagnostics and ping", self.diagnostics)]

    def unknown(self) -> None:
        """The SDK repeats a call on a missing collection until the time limit."""
        nobody = self.bucket.scope("shop").collection("nosuch")
        refused((CollectionNotFoundException, *TIMEOUTS), lambda: nobody.get("k", GetOptions(timeout=SHORT)))

    def diagnostics(self) -> None:
        """The SDK's reports on its connections."""
        assert self.bucket.ping().endpoints
        assert self.cluster.ping().endpoints
        assert self.cluster.diagnostics().endpoints


class Calls:
    """One collection; each public method is a part."""

    def __init__(self, cluster: Any, bucket: Any, collection: Any) -> None:
        self._cluster, self._bucket, self._c = cluster, bucket, collection

    def upsert_and_get(self) -> None:
        value = {"name": "Ærø", "n": 1, "list": [1, 2.5, None, True], "deep": {"a": {"b": "c"}}}
        stored = self._c.upsert("doc", value)
        got = self._c.get("doc")
        assert got.content_as[dict] == value
        assert got.cas == stored.cas
        token = stored.mutation_token()
        assert token is not None
        assert token.as_dict()["sequence_number"] > 0

    def insert(self) -> None:
        self._c.insert("inserted", [1])
        refused(DocumentExistsException, self._c.insert, "inserted", {})

    def replace(self) -> None:
        first = self._c.upsert("replaced", 1)
        refused(CasMismatchException, self._c.replace, "replaced", 2, ReplaceOptions(cas=first.cas + 1))
        assert self._c.replace("replaced", 3, ReplaceOptions(cas=first.cas)).cas != first.cas
        refused(DocumentNotFoundException, self._c.replace, "nosuch", {})

    def remove(self) -> None:
        first = self._c.upsert("removed", 1)
        refused(CasMismatchException, self._c.remove, "removed", RemoveOptions(cas=first.cas + 1))
        assert self._c.remove("removed", RemoveOptions(cas=first.cas)).cas != first.cas
        refused(DocumentNotFoundException, self._c.remove, "removed")
        refused(DocumentNotFoundException, self._c.get, "removed")

    def exists(self) -> None:
        self._c.upsert("there", 1)
        assert self._c.exists("there").exists
        self._c.remove("there")
        assert not self._c.exists("there").exists
        assert not self._c.exists("nosuch").exists

    def touch_and_get_and_touch(self) -> None:
        self._c.upsert("touched", {"a": 1})
        self._c.touch("touched", timedelta(hours=2), TouchOptions())
        before = self._c.get("touched", GetOptions(with_expiry=True)).expiry_time.timestamp()
        assert 7000 < before - time.time() < 7300
        assert self._c.get_and_touch("touched", timedelta(hours=4)).content_as[dict] == {"a": 1}
        after = self._c.get("touched", GetOptions(with_expiry=True)).expiry_time.timestamp()
        assert 14000 < after - time.time() < 14500
        refused(DocumentNotFoundException, self._c.touch, "nosuch", timedelta(hours=1))

    def expiry(self) -> None:
        self._c.upsert("mortal", {}, UpsertOptions(expiry=timedelta(seconds=1)))
        end = time.monotonic() + DEADLINE_S
        while self._c.exists("mortal").exists:
            assert time.monotonic() < end, "it did not expire"
            threading.Event().wait(0.05)
        refused(DocumentNotFoundException, self._c.get, "mortal")

    def preserve_expiry(self) -> None:
        self._c.upsert("kept", 1, UpsertOptions(expiry=timedelta(hours=1)))
        self._c.upsert("kept", 2, UpsertOptions(preserve_expiry=True))
        self._c.replace("kept", 3, ReplaceOptions(preserve_expiry=True))
        assert self._c.get("kept", GetOptions(with_expiry=True)).expiry_time is not None
        self._c.upsert("kept", 4)
        assert self._c.get("kept", GetOptions(with_expiry=True)).expiry_time is None

    def get_and_lock_and_unlock(self) -> None:
        self._c.upsert("locked", 1)
        locked = self._c.get_and_lock("locked", timedelta(seconds=20))
        assert locked.content_as[int] == 1
        refused((DocumentLockedException, *TIMEOUTS), lambda: self._c.upsert("locked", 2, UpsertOptions(timeout=SHORT)))
        refused((DocumentLockedException, TemporaryFailException, CasMismatchException, *TIMEOUTS),
                lambda: self._c.unlock("locked", locked.cas + 1, UnlockOptions(timeout=SHORT)))  # fmt: skip
        self._c.unlock("locked", locked.cas)
        self._c.upsert("locked", 3)
        refused((DocumentNotLockedException, TemporaryFailException, *TIMEOUTS),
                lambda: self._c.unlock("locked", locked.cas, UnlockOptions(timeout=SHORT)))  # fmt: skip
        again = self._c.get_and_lock("locked", timedelta(seconds=20))
        self._c.replace("locked", 4, ReplaceOptions(cas=again.cas))
        self._c.upsert("locked", 5)

    def projections(self) -> None:
        self._c.upsert("projected", {"a": {"b": 1, "c": 2}, "d": [1, 2], "e": 3})
        got = self._c.get("projected", GetOptions(project=["a.b", "e"]))
        assert got.content_as[dict] == {"a": {"b": 1}, "e": 3}

    def replicas(self) -> None:
        self._c.upsert("copied", {"a": 1})
        got = self._c.get_any_replica("copied")
        assert got.content_as[dict] == {"a": 1}
        assert not got.is_replica
        assert [item.content_as[dict] for item in self._c.get_all_replicas("copied")] == [{"a": 1}]
        refused((DocumentUnretrievableException, DocumentNotFoundException), self._c.get_any_replica, "nosuch")

    def counters(self) -> None:
        binary = self._c.binary()
        assert binary.increment("counter", IncrementOptions(initial=SignedInt64(10))).content == 10
        assert binary.increment("counter", IncrementOptions(delta=DeltaValue(5))).content == 15
        assert binary.decrement("counter", DecrementOptions(delta=DeltaValue(3))).content == 12
        assert binary.decrement("counter", DecrementOptions(delta=DeltaValue(100))).content == 0
        refused(DocumentNotFoundException, binary.increment, "nosuch", IncrementOptions(initial=SignedInt64(-1)))
        self._c.upsert("text", "words")
        refused((DeltaInvalidException, CouchbaseException), binary.increment, "text")

    def append_and_prepend(self) -> None:
        raw = RawBinaryTranscoder()
        stored = self._c.upsert("joined", b"middle", UpsertOptions(transcoder=raw))
        binary = self._c.binary()
        refused(CasMismatchException, binary.append, "joined", b"x", AppendOptions(cas=stored.cas + 1))
        binary.append("joined", b"-end", AppendOptions(cas=stored.cas))
        binary.prepend("joined", b"start-", PrependOptions())
        assert self._c.get("joined", GetOptions(transcoder=raw)).content_as[bytes] == b"start-middle-end"

    def transcoders(self) -> None:
        for transcoder, value in (
            (RawBinaryTranscoder(), b"\0\xff\1binary"), (RawStringTranscoder(), "a string, Ærø"),
            (RawJSONTranscoder(), b'{"raw": true}'), (LegacyTranscoder(), {"legacy": [1]}),
        ):  # fmt: skip
            self._c.upsert("coded", value, UpsertOptions(transcoder=transcoder))
            got = self._c.get("coded", GetOptions(transcoder=transcoder)).value
            assert got == value, (got, value)

    def lookup_in(self) -> None:
        self._c.upsert("looked", {"a": {"b": [10, 20, {"c": "x"}]}, "n": 5})
        got = self._c.lookup_in(
            "looked",
            [sd.get("a.b[2].c"), sd.get("a.b[-1]"), sd.exists("n"), sd.exists("m"), sd.count("a.b"), sd.get("m")],
        )
        assert got.content_as[str](0) == "x"
        assert got.content_as[dict](1) == {"c": "x"}
        assert (got.exists(2), got.exists(3)) == (True, False)
        assert got.content_as[int](4) == 3
        refused(PathNotFoundException, lambda: got.content_as[int](5))
        refused(DocumentNotFoundException, self._c.lookup_in, "nosuch", [sd.get("a")])

    def mutate_in(self) -> None:
        self._c.upsert("changed", {"list": [1], "n": 5, "old": 1})
        done = self._c.mutate_in(
            "changed",
            [
                sd.upsert("x.y", "new", create_parents=True), sd.insert("added", True), sd.replace("added", False),
                sd.array_append("list", 2, 3), sd.array_prepend("list", 0), sd.array_insert("list[1]", "in"),
                sd.array_addunique("list", 9), sd.increment("n", 4), sd.decrement("n", 11), sd.remove("old"),
            ],
        )  # fmt: skip
        assert done.content_as[int](7) == 9
        assert done.content_as[int](8) == -2
        expected = {"list": [0, "in", 1, 2, 3, 9], "n": -2, "x": {"y": "new"}, "added": False}
        assert self._c.get("changed").content_as[dict] == expected

    def mutate_in_errors(self) -> None:
        stored = self._c.upsert("wrong", {"a": 1, "list": [1]})
        refused(PathExistsException, self._c.mutate_in, "wrong", [sd.insert("a", 2)])
        refused(PathNotFoundException, self._c.mutate_in, "wrong", [sd.replace("b", 2)])
        refused(PathMismatchException, self._c.mutate_in, "wrong", [sd.upsert("a.b", 2)])
        refused(PathExistsException, self._c.mutate_in, "wrong", [sd.array_addunique("list", 1)])
        refused(
            CasMismatchException, self._c.mutate_in, "wrong", [sd.upsert("c", 2)], MutateInOptions(cas=stored.cas + 1)
        )
        refused((InvalidArgumentException, InvalidValueException), self._c.mutate_in, "wrong", [])
        assert self._c.get("wrong").cas == stored.cas

    def mutate_in_store_semantics(self) -> None:
        made = MutateInOptions(store_semantics=StoreSemantics.INSERT)
        self._c.mutate_in("made", [sd.upsert("a", 1)], made)
        refused(DocumentExistsException, self._c.mutate_in, "made", [sd.upsert("a", 2)], made)
        self._c.mutate_in("made too", [sd.upsert("a", 1)], MutateInOptions(store_semantics=StoreSemantics.UPSERT))
        refused(DocumentNotFoundException, self._c.mutate_in, "nosuch", [sd.upsert("a", 1)])
        lasting = MutateInOptions(expiry=timedelta(hours=1))
        self._c.mutate_in("made", [sd.upsert("b", 1)], lasting)
        assert self._c.get("made", GetOptions(with_expiry=True)).expiry_time is not None

    def extended_attributes(self) -> None:
        self._c.upsert("attributes", {"body": 1})
        self._c.mutate_in("attributes", [sd.upsert("mine.a", 1, xattr=True, create_parents=True), sd.upsert("body", 2)])
        got = self._c.lookup_in("attributes", [sd.get("mine.a", xattr=True), sd.get("body")])
        assert (got.content_as[int](0), got.content_as[int](1)) == (1, 2)

    def macros_and_virtual_attributes(self) -> None:
        self._c.upsert("macros", {})
        self._c.mutate_in("macros", [
            sd.upsert("m.cas", sd.MutationMacro.cas(), xattr=True, create_parents=True),
            sd.upsert("m.seqno", sd.MutationMacro.seq_no(), xattr=True, create_parents=True),
            sd.upsert("m.crc", sd.MutationMacro.value_crc32c(), xattr=True, create_parents=True),
        ])  # fmt: skip
        got = self._c.lookup_in("macros", [
            sd.get("m.cas", xattr=True), sd.get("m.seqno", xattr=True), sd.get("m.crc", xattr=True),
            sd.get(sd.LookupInMacro.document(), xattr=True), sd.get(sd.LookupInMacro.cas(), xattr=True),
        ])  # fmt: skip
        assert got.content_as[str](0).startswith("0x")
        assert got.content_as[str](1).startswith("0x")
        assert got.content_as[str](2).startswith("0x")
        assert got.content_as[dict](3)["deleted"] is False
        assert int(got.content_as[str](4), 16) == got.cas

    def lookup_in_replicas(self) -> None:
        self._c.upsert("looked", {"a": 1})
        assert self._c.lookup_in_any_replica("looked", [sd.get("a")]).content_as[int](0) == 1
        assert len(list(self._c.lookup_in_all_replicas("looked", [sd.get("a")]))) == 1

    def durability(self) -> None:
        for level in DurabilityLevel:
            durable = ServerDurability(level)
            self._c.upsert("durable", 1, UpsertOptions(durability=durable))
            self._c.replace("durable", 2, ReplaceOptions(durability=durable))
            self._c.mutate_in("durable map", [sd.upsert("a", 1)],
                              MutateInOptions(durability=durable, store_semantics=StoreSemantics.UPSERT))  # fmt: skip
            self._c.remove("durable", RemoveOptions(durability=durable))
            self._c.insert("durable", 3, InsertOptions(durability=durable))
        assert self._c.get("durable").content_as[int] == 3

    def observed_durability_without_replicas(self) -> None:
        persisted = ClientDurability(ReplicateTo.NONE, PersistToExtended.ACTIVE)
        self._c.upsert("observed", 1, UpsertOptions(durability=persisted))
        copied = ClientDurability(ReplicateTo.ONE, PersistTo.NONE)
        refused(DurabilityImpossibleException, self._c.upsert, "observed", 1, UpsertOptions(durability=copied))

    def large_values(self) -> None:
        big = {"text": "x" * 3_000_000, "noise": list(range(20_000))}
        self._c.upsert("big", big)
        assert self._c.get("big").content_as[dict] == big
        self._c.remove("big")
        too_big = os.urandom(20 * 1024 * 1024 + 1)
        refused(CouchbaseException, self._c.upsert, "huge", too_big, UpsertOptions(transcoder=RawBinaryTranscoder()))

    def multi_operations(self) -> None:
        documents = {f"multi:{number}": {"n": number} for number in range(MANY)}
        assert self._c.upsert_multi(documents).all_ok
        got = self._c.get_multi(list(documents))
        assert {key: item.content_as[dict] for key, item in got.results.items()} == documents
        assert self._c.exists_multi(list(documents)[:10]).all_ok
        assert self._c.touch_multi(list(documents)[:10], timedelta(hours=1)).all_ok
        assert self._c.remove_multi(list(documents)).all_ok
        missing = self._c.get_multi(["multi:1"])
        assert not missing.all_ok

    def range_scan(self) -> None:
        stored = [self._c.upsert(f"scan:{number:03}", {"n": number}) for number in range(60)]
        sure = ScanOptions(consistent_with=MutationState(*stored))
        found = {item.id: item.content_as[dict] for item in self._c.scan(PrefixScan("scan:"), sure)}
        assert found == {f"scan:{number:03}": {"n": number} for number in range(60)}
        between = RangeScan(start=ScanTerm("scan:010"), end=ScanTerm("scan:020", exclusive=True))
        assert {item.id for item in self._c.scan(between, sure)} == {f"scan:{number:03}" for number in range(10, 20)}
        only = ScanOptions(ids_only=True, consistent_with=MutationState(*stored))
        assert len(list(self._c.scan(PrefixScan("scan:"), only))) == 60
        assert len(list(self._c.scan(SamplingScan(20, seed=1)))) == 20

    def data_structures(self) -> None:
        items = self._c.couchbase_list("list")
        items.append("a")
        items.prepend("b")
        assert (items.size(), items.get_at(0)) == (2, "b")
        mapping = self._c.couchbase_map("map")
        mapping.add("k", 1)
        assert mapping.get("k") == 1
        unique = self._c.couchbase_set("set")
        unique.add("x")
        unique.add("x")
        assert unique.size() == 1
        queue = self._c.couchbase_queue("queue")
        queue.push("first")
        queue.push("second")
        assert queue.pop() == "first"

    def lookup_in_tombstones(self) -> None:
        self._c.upsert("dead", {})
        self._c.mutate_in("dead", [sd.upsert("_sys", 1, xattr=True)])
        self._c.remove("dead")
        got = self._c.lookup_in("dead", [sd.get("_sys", xattr=True)], LookupInOptions(access_deleted=True))
        assert got.content_as[int](0) == 1


if __name__ == "__main__":
    begin(lambda options: Judge(options).parts())
