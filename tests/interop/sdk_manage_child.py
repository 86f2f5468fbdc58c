"""The management calls of the official Python SDK with a node: buckets, scopes and collections, users.

Run as a process of its own, because a bad answer can crash the SDK. Prints one line per finished part; the last line is
`OK`.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.diagnostics import PingState, ServiceType
from couchbase.durability import DurabilityLevel
from couchbase.exceptions import (
    AuthenticationException,
    BucketAlreadyExistsException,
    BucketDoesNotExistException,
    BucketNotFlushableException,
    CollectionAlreadyExistsException,
    CollectionNotFoundException,
    CouchbaseException,
    DocumentNotFoundException,
    FeatureUnavailableException,
    GroupNotFoundException,
    InvalidArgumentException,
    ScopeAlreadyExistsException,
    ScopeNotFoundException,
    ServiceUnavailableException,
    UserNotFoundException,
)
from couchbase.management.buckets import (
    BucketSettings,
    BucketType,
    CompressionMode,
    ConflictResolutionType,
    CreateBucketSettings,
    EvictionPolicyType,
    StorageBackend,
)
from couchbase.management.collections import CreateCollectionSettings, UpdateCollectionSettings
from couchbase.management.users import Group, Role, User
from couchbase.options import ClusterOptions, ClusterTimeoutOptions, PingOptions
from couchbase.search import TermQuery


def connect(connection_string: str, username: str, password: str) -> Cluster:
    timeouts = ClusterTimeoutOptions(
        connect_timeout=timedelta(seconds=60), bootstrap_timeout=timedelta(seconds=60), kv_timeout=timedelta(seconds=30)
    )
    return Cluster.connect(
        connection_string, ClusterOptions(PasswordAuthenticator(username, password), timeout_options=timeouts)
    )


def expect(kind: type[BaseException] | tuple[type[BaseException], ...], call: object, *arguments: object) -> None:
    try:
        call(*arguments)  # type: ignore[operator]
    except kind:
        return
    raise AssertionError(f"{call} did not raise {kind}")


def buckets(cluster: Cluster) -> None:
    manager = cluster.buckets()
    manager.create_bucket(
        CreateBucketSettings(
            name="shop",
            ram_quota_mb=128,
            num_replicas=0,
            flush_enabled=True,
            bucket_type=BucketType.COUCHBASE,
            eviction_policy=EvictionPolicyType.FULL,
            compression_mode=CompressionMode.ACTIVE,
            conflict_resolution_type=ConflictResolutionType.TIMESTAMP,
            max_expiry=timedelta(hours=1),
            minimum_durability_level=DurabilityLevel.NONE,
            storage_backend=StorageBackend.COUCHSTORE,
            replica_index=False,
        )
    )
    found = manager.get_bucket("shop")
    assert (found.name, found.ram_quota_mb, found.num_replicas, found.flush_enabled) == ("shop", 128, 0, True), found
    assert found.bucket_type == BucketType.COUCHBASE, found
    assert found.eviction_policy == EvictionPolicyType.FULL, found
    assert found.compression_mode == CompressionMode.ACTIVE, found
    assert found.max_expiry == timedelta(hours=1), found
    assert found.storage_backend == StorageBackend.COUCHSTORE, found
    expect(BucketAlreadyExistsException, manager.create_bucket, CreateBucketSettings(name="shop", ram_quota_mb=128))
    expect(InvalidArgumentException, manager.create_bucket, CreateBucketSettings(name="small", ram_quota_mb=1))
    manager.create_bucket(
        CreateBucketSettings(
            name="cache",
            ram_quota_mb=100,
            bucket_type=BucketType.EPHEMERAL,
            eviction_policy=EvictionPolicyType.NOT_RECENTLY_USED,
        )
    )
    assert manager.get_bucket("cache").bucket_type == BucketType.EPHEMERAL
    manager.create_bucket(
        CreateBucketSettings(
            name="changes",
            ram_quota_mb=1024,
            storage_backend=StorageBackend.MAGMA,
            history_retention_duration=timedelta(hours=2),
            history_retention_collection_default=False,
        )
    )
    found = manager.get_bucket("changes")
    assert found.storage_backend == StorageBackend.MAGMA, found
    assert found.history_retention_duration == timedelta(hours=2), found
    assert found.history_retention_collection_default is False, found
    history(cluster)
    manager.update_bucket(BucketSettings(name="shop", ram_quota_mb=256, max_expiry=timedelta(hours=2)))
    assert manager.get_bucket("shop").ram_quota_mb == 256
    assert sorted(item.name for item in manager.get_all_buckets()) == ["cache", "changes", "default", "shop"]
    expect(BucketDoesNotExistException, manager.get_bucket, "none")
    expect(BucketDoesNotExistException, manager.drop_bucket, "none")
    print("buckets")


def history(cluster: Cluster) -> None:
    """The SDK asks for a history only if the bucket's map says that it can have one."""
    manager = cluster.bucket("changes").collections()

    def histories() -> dict[str, bool]:
        (scope,) = (scope for scope in manager.get_all_scopes() if scope.name == "_default")
        return {item.name: bool(item.history) for item in scope.collections}

    manager.create_collection("_default", "kept", CreateCollectionSettings(history=True))
    manager.create_collection("_default", "left", CreateCollectionSettings(history=False))
    assert (histories()["kept"], histories()["left"]) == (True, False), histories()
    manager.update_collection("_default", "kept", UpdateCollectionSettings(history=False))
    manager.update_collection("_default", "left", UpdateCollectionSettings(history=True))
    assert (histories()["kept"], histories()["left"]) == (False, True), histories()


def flush(cluster: Cluster) -> None:
    collection = cluster.bucket("shop").default_collection()
    collection.upsert("k", {})
    cluster.buckets().flush_bucket("shop")
    expect(DocumentNotFoundException, collection.get, "k")
    collection.upsert("k", {"n": 2})
    assert collection.get("k").content_as[dict] == {"n": 2}
    expect(BucketNotFlushableException, cluster.buckets().flush_bucket, "default")
    expect(BucketDoesNotExistException, cluster.buckets().flush_bucket, "none")
    for name in ("shop", "cache", "changes"):
        cluster.buckets().drop_bucket(name)
    assert [item.name for item in cluster.buckets().get_all_buckets()] == ["default"]
    print("flush")


def collections(cluster: Cluster) -> None:
    manager = cluster.bucket("default").collections()
    manager.create_scope("s")
    expect(ScopeAlreadyExistsException, manager.create_scope, "s")
    manager.create_collection("s", "c", CreateCollectionSettings(max_expiry=timedelta(seconds=60)))
    expect(CollectionAlreadyExistsException, manager.create_collection, "s", "c")
    expect(ScopeNotFoundException, manager.create_collection, "none", "c")
    manager.update_collection("s", "c", UpdateCollectionSettings(max_expiry=timedelta(seconds=90)))
    expect(CollectionNotFoundException, manager.update_collection, "s", "none", UpdateCollectionSettings())
    (scope,) = [item for item in manager.get_all_scopes() if item.name == "s"]
    assert [(item.name, item.max_expiry) for item in scope.collections] == [("c", timedelta(seconds=90))], scope
    collection = cluster.bucket("default").scope("s").collection("c")
    collection.upsert("k", {})
    assert collection.get("k").content_as[dict] == {}
    expect(FeatureUnavailableException, manager.create_collection, "s", "h", CreateCollectionSettings(history=True))
    manager.drop_collection("s", "c")
    expect(CollectionNotFoundException, manager.drop_collection, "s", "c")
    manager.drop_scope("s")
    expect(ScopeNotFoundException, manager.drop_scope, "s")
    print("collections")


def users(cluster: Cluster, connection_string: str) -> None:
    manager = cluster.users()
    roles = [Role(name="data_reader", bucket="default"), Role(name="data_writer", bucket="default", scope="_default")]
    manager.upsert_user(User(username="ann", display_name="Ann", password="secret1", roles=roles))
    found = manager.get_user("ann")
    assert found.user.display_name == "Ann", found
    assert {role.name for role in found.user.roles} == {"data_reader", "data_writer"}, found
    assert "ann" in [item.user.username for item in manager.get_all_users()]
    assert "bucket_admin" in [item.role.name for item in manager.get_roles()]
    other = connect(connection_string, "ann", "secret1")
    collection = other.bucket("default").default_collection()
    collection.upsert("k", {})
    assert collection.get("k").content_as[dict] == {}
    other.close()
    manager.drop_user("ann")
    expect(UserNotFoundException, manager.drop_user, "ann")
    expect(UserNotFoundException, manager.get_user, "ann")
    expect(AuthenticationException, connect, connection_string, "ann", "secret1")
    print("users")


def groups(cluster: Cluster, connection_string: str) -> None:
    manager = cluster.users()
    assert manager.get_all_groups() == []
    expect(GroupNotFoundException, manager.get_group, "writers")
    # The SDK knows the server's words for a group that is not there at a look, and not those at a drop.
    expect(CouchbaseException, manager.drop_group, "writers")
    roles = [Role(name="data_reader", bucket="default"), Role(name="data_writer", bucket="default")]
    manager.upsert_group(Group(name="writers", description="they write", roles=roles))
    found = manager.get_group("writers")
    assert (found.name, found.description) == ("writers", "they write"), found
    assert {role.name for role in found.roles} == {"data_reader", "data_writer"}, found
    assert [group.name for group in manager.get_all_groups()] == ["writers"]
    manager.upsert_user(User(username="bob", password="secret1", groups=["writers"], roles=[]))
    bob = manager.get_user("bob")
    assert bob.user.groups == {"writers"}, bob
    assert {item.role.name for item in bob.effective_roles} == {"data_reader", "data_writer"}, bob
    other = connect(connection_string, "bob", "secret1")
    collection = other.bucket("default").default_collection()
    collection.upsert("k", {})
    manager.drop_group("writers")
    assert not manager.get_user("bob").user.groups
    other.close()
    manager.drop_user("bob")
    print("groups")


def missing_services(cluster: Cluster) -> None:
    """Missing services are reported at once, as of a cluster whose nodes have the data service alone."""
    expect(ServiceUnavailableException, lambda: list(cluster.query("select 1")))
    expect(ServiceUnavailableException, lambda: list(cluster.bucket("default").default_scope().query("select 1")))
    expect(ServiceUnavailableException, lambda: list(cluster.analytics_query("select 1")))
    expect(ServiceUnavailableException, lambda: list(cluster.search_query("index", TermQuery("term"))))
    expect(ServiceUnavailableException, lambda: list(cluster.bucket("default").view_query("design", "view")))
    expect(ServiceUnavailableException, cluster.query_indexes().get_all_indexes, "default")
    expect(ServiceUnavailableException, cluster.search_indexes().get_all_indexes)
    expect(ServiceUnavailableException, cluster.eventing_functions().get_all_functions)
    print("missing services")


def ping(cluster: Cluster) -> None:
    result = cluster.ping(PingOptions(service_types=[ServiceType.Management, ServiceType.KeyValue]))
    (answer,) = result.endpoints[ServiceType.Management]
    assert answer.state == PingState.OK, answer
    print("ping")


def main(connection_string: str, password: str) -> None:
    cluster = connect(connection_string, "Administrator", password)
    cluster.bucket("default")
    buckets(cluster)
    flush(cluster)
    collections(cluster)
    users(cluster, connection_string)
    groups(cluster, connection_string)
    missing_services(cluster)
    ping(cluster)
    cluster.close()
    print("OK")


if __name__ == "__main__":
    main(*sys.argv[1:])
