"""The official Python SDK: log-ins, buckets, scopes and collections."""

from __future__ import annotations

import argparse
import threading
import time
from datetime import timedelta

from common import Part, begin, connect, order, refused
from couchbase.exceptions import (
    AuthenticationException,
    BucketAlreadyExistsException,
    BucketDoesNotExistException,
    BucketNotFlushableException,
    BucketNotFoundException,
    CollectionAlreadyExistsException,
    CollectionNotFoundException,
    DocumentNotFoundException,
    InvalidArgumentException,
    RequestCanceledException,
    ScopeAlreadyExistsException,
    ScopeNotFoundException,
    TimeoutException,
)
from couchbase.management.buckets import BucketSettings, BucketType, CreateBucketSettings
from couchbase.management.collections import CreateCollectionSettings
from couchbase.options import GetOptions

DEADLINE_S = 30.0


class Judge:
    """Management calls."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.cluster = connect(options)
        self.bucket = self.cluster.bucket(options.bucket)
        self.buckets = self.cluster.buckets()
        self.collections = self.bucket.collections()

    def parts(self) -> list[Part]:
        """All parts."""
        return [
            ("list buckets", self.listed),
            ("create, change and drop a bucket", self.created),
            ("ephemeral bucket", self.ephemeral),
            ("flush a bucket", self.flushed),
            ("list scopes and collections", self.manifest),
            ("create and drop a scope", self.scopes),
            ("create and drop a collection, which loses its documents", self.dropped),
            ("longest life in a collection", self.longest_life),
            ("wrong names", self.names),
            ("a password that is wrong", self.wrong_password),
            ("a bucket that is not there", self.no_bucket),
            ("the node is restarted", self.restarted),
        ]

    def listed(self) -> None:
        assert self.options.bucket in [item.name for item in self.buckets.get_all_buckets()]
        found = self.buckets.get_bucket(self.options.bucket)
        assert found.name == self.options.bucket
        assert found.ram_quota_mb > 0
        refused(BucketDoesNotExistException, self.buckets.get_bucket, "nosuch")

    def created(self) -> None:
        settings = CreateBucketSettings(name="made", ram_quota_mb=128, flush_enabled=True, num_replicas=0)
        self.buckets.create_bucket(settings)
        refused(BucketAlreadyExistsException, self.buckets.create_bucket, settings)
        found = self._eventually("made")
        assert (found.ram_quota_mb, bool(found.flush_enabled)) == (128, True), found
        collection = self.cluster.bucket("made").default_collection()
        collection.upsert("k", 1)
        assert collection.get("k").content_as[int] == 1
        self.buckets.update_bucket(BucketSettings(name="made", ram_quota_mb=256, flush_enabled=False))
        found = self.buckets.get_bucket("made")
        assert (found.ram_quota_mb, bool(found.flush_enabled)) == (256, False), found
        self.buckets.drop_bucket("made")
        refused(BucketDoesNotExistException, self.buckets.get_bucket, "made")
        refused(BucketDoesNotExistException, self.buckets.drop_bucket, "made")

    def ephemeral(self) -> None:
        self.buckets.create_bucket(
            CreateBucketSettings(name="passing", ram_quota_mb=128, bucket_type=BucketType.EPHEMERAL, num_replicas=0)
        )
        assert self._eventually("passing").bucket_type == BucketType.EPHEMERAL
        self.cluster.bucket("passing").default_collection().upsert("k", 1)
        self.buckets.drop_bucket("passing")

    def flushed(self) -> None:
        self.buckets.create_bucket(
            CreateBucketSettings(name="emptied", ram_quota_mb=128, flush_enabled=True, num_replicas=0)
        )
        self._eventually("emptied")
        collection = self.cluster.bucket("emptied").default_collection()
        collection.upsert("k", 1)
        self.buckets.flush_bucket("emptied")
        refused(DocumentNotFoundException, collection.get, "k", GetOptions(timeout=timedelta(seconds=5)))
        collection.upsert("k", 2)
        assert collection.get("k").content_as[int] == 2
        self.buckets.drop_bucket("emptied")
        self.buckets.create_bucket(
            CreateBucketSettings(name="full", ram_quota_mb=128, flush_enabled=False, num_replicas=0)
        )
        self._eventually("full")
        refused(BucketNotFlushableException, self.buckets.flush_bucket, "full")
        self.buckets.drop_bucket("full")

    def _eventually(self, name: str) -> BucketSettings:
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self.buckets.get_bucket(name)
            except BucketDoesNotExistException:
                assert time.monotonic() < end
                threading.Event().wait(0.05)

    def _names(self) -> dict[str, set[str]]:
        return {scope.name: {item.name for item in scope.collections} for scope in self.collections.get_all_scopes()}

    def manifest(self) -> None:
        found = self._names()
        assert "_default" in found["_default"]
        assert found["shop"] == {"orders", "returns"}

    def scopes(self) -> None:
        self.collections.create_scope("s1")
        refused(ScopeAlreadyExistsException, self.collections.create_scope, "s1")
        assert self._names()["s1"] == set()
        self.collections.drop_scope("s1")
        assert "s1" not in self._names()
        refused(ScopeNotFoundException, self.collections.drop_scope, "s1")

    def dropped(self) -> None:
        self.collections.create_scope("s2")
        self.collections.create_collection("s2", "c1")
        refused(CollectionAlreadyExistsException, self.collections.create_collection, "s2", "c1")
        refused(ScopeNotFoundException, self.collections.create_collection, "nosuch", "c1")
        named = self.bucket.scope("s2").collection("c1")
        named.upsert("k", {"a": 1})
        assert named.get("k").content_as[dict] == {"a": 1}
        refused(DocumentNotFoundException, self.bucket.default_collection().get, "k")
        self.collections.drop_collection("s2", "c1")
        refused(CollectionNotFoundException, self.collections.drop_collection, "s2", "c1")
        refused(CollectionNotFoundException, named.get, "k", GetOptions(timeout=timedelta(seconds=2)))
        self.collections.create_collection("s2", "c1")
        again = self.bucket.scope("s2").collection("c1")
        refused(DocumentNotFoundException, again.get, "k")
        self.collections.drop_scope("s2")

    def longest_life(self) -> None:
        self.collections.create_collection(
            "shop", "mortal", CreateCollectionSettings(max_expiry=timedelta(seconds=600))
        )
        found = {item.name: item for scope in self.collections.get_all_scopes() for item in scope.collections}
        assert found["mortal"].max_expiry == timedelta(seconds=600), found["mortal"].max_expiry
        mortal = self.bucket.scope("shop").collection("mortal")
        mortal.upsert("k", 1)
        left = mortal.get("k", GetOptions(with_expiry=True)).expiry_time.timestamp() - time.time()
        assert 500 < left < 610, left
        self.collections.drop_collection("shop", "mortal")

    def names(self) -> None:
        for name in ("_x", "a/b", "x" * 252):
            refused((InvalidArgumentException,), self.collections.create_scope, name)

    def wrong_password(self) -> None:
        refused(AuthenticationException, lambda: connect(self.options, password="wrong"))
        refused(AuthenticationException, lambda: connect(self.options, user="nobody"))

    def no_bucket(self) -> None:
        refused(BucketNotFoundException, self.cluster.bucket, "nosuch")

    def restarted(self) -> None:
        """The SDK reconnects to the restarted node by itself; documents survive if the node keeps them on disk."""
        collection = self.bucket.default_collection()
        collection.upsert("before", 1)
        order("restart")
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                collection.upsert("after", 2)
                break
            except (TimeoutException, RequestCanceledException):
                assert time.monotonic() < end, "the SDK did not find the node again"
        assert collection.get("after").content_as[int] == 2
        assert collection.exists("before").exists == (self.options.kept == "yes")


if __name__ == "__main__":
    begin(lambda options: Judge(options).parts())
