"""The management port as administrators and client libraries use it: buckets, the map, what is refused."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError, StoreError
from dcpstream.model import BucketSettings
from dcpstream_node import Node
from dcpstream_node.store.metadata import Metadata, VbucketMetadata
from tests.kit.cases import each_case
from tests.kit.rest import ask
from tests.kit.waiting import TIMEOUT_S

BUCKETS = "/pools/default/buckets"
SMALL = {"name": "shop", "ramQuotaMB": "100"}


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vbuckets=4, system_scope=False) as made:
        yield made


def client(node: Node, bucket: str) -> KvClient:
    return KvClient(node.connection_string, node.username, node.password, bucket)


# -------------------------------------------------------------------------------------------------------------- buckets


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_bucket_lives_and_dies(tmp_path: Path, is_on_disk: bool) -> None:
    with Node(vbuckets=4, path=tmp_path if is_on_disk else None, system_scope=False) as node:
        made = ask(node, "POST", BUCKETS, SMALL | {"flushEnabled": "1", "replicaNumber": "0"})
        assert (made.status, made.body, made.headers["location"]) == (202, b"", f"{BUCKETS}/shop")
        assert [bucket["name"] for bucket in ask(node, "GET", BUCKETS).json] == ["default", "shop"]
        with client(node, "shop") as kv:
            kv.set("k", b"{}")
        assert ask(node, "GET", f"{BUCKETS}/shop").json["basicStats"]["itemCount"] == 1
        assert ask(node, "POST", f"{BUCKETS}/shop/controller/doFlush").status == 200
        assert ask(node, "GET", f"{BUCKETS}/shop/").json["basicStats"]["itemCount"] == 0
        assert ask(node, "DELETE", f"{BUCKETS}/shop").status == 200
        assert ask(node, "DELETE", f"{BUCKETS}/shop").status == 404
        assert not (tmp_path / "shop").exists()
        assert ask(node, "POST", BUCKETS, SMALL).status == 202, "the name is free again"


def test_what_a_bucket_reports(node: Node) -> None:
    form = SMALL | {
        "ramQuotaMB": "1024",
        "storageBackend": "magma",
        "replicaNumber": "2",
        "evictionPolicy": "fullEviction",
        "compressionMode": "active",
        "conflictResolutionType": "lww",
        "maxTTL": "60",
        "durabilityMinLevel": "majorityAndPersistActive",
        "historyRetentionSeconds": "3600",
        "historyRetentionCollectionDefault": "false",
        "threadsNumber": "8",
        "numVBuckets": "8",
    }
    assert ask(node, "POST", BUCKETS, form).status == 202
    found = ask(node, "GET", f"{BUCKETS}/shop").json
    expected = {
        "name": "shop",
        "bucketType": "membase",
        "storageBackend": "magma",
        "replicaNumber": 2,
        "evictionPolicy": "fullEviction",
        "compressionMode": "active",
        "conflictResolutionType": "lww",
        "maxTTL": 60,
        "durabilityMinLevel": "majorityAndPersistActive",
        "historyRetentionSeconds": 3600,
        "historyRetentionBytes": 0,
        "historyRetentionCollectionDefault": False,
        "flushEnabled": False,
        "quota": {"ram": 1 << 30, "rawRAM": 1 << 30},
        "numVBuckets": 8,
    }
    assert {name: found[name] for name in expected} == expected
    assert "flush" not in found["controllers"]
    assert len(found["vBucketServerMap"]["vBucketMap"]) == 8
    assert found["vBucketServerMap"]["vBucketMap"][0] == [0, -1, -1]
    assert found["nodes"][0]["status"] == "healthy"
    assert found["nodes"][0]["hostname"] == f"127.0.0.1:{node.mgmt_port}"


def test_an_ephemeral_bucket(node: Node) -> None:
    form = SMALL | {"bucketType": "ephemeral", "evictionPolicy": "nruEviction"}
    assert ask(node, "POST", BUCKETS, form).status == 202
    found = ask(node, "GET", f"{BUCKETS}/shop").json
    assert (found["bucketType"], found["evictionPolicy"]) == ("ephemeral", "nruEviction")
    assert "couchapi" not in found["bucketCapabilities"]


@pytest.mark.parametrize(
    ("form", "field", "why"),
    [
        ({}, "name", "needs to be specified"),
        ({"name": ""}, "name", "cannot be empty"),
        ({"name": "a/b"}, "name", "can only contain"),
        ({"name": ".a"}, "name", "start with dot"),
        ({"name": "a" * 101}, "name", "cannot exceed"),
        ({"name": "DEFAULT"}, "name", "already exists"),
        ({"name": "b"}, "ramQuota", "must be specified"),
        ({"ramQuotaMB": "many"}, "ramQuota", "positive integer"),
        ({"ramQuotaMB": "99"}, "ramQuota", "cannot be less than 100 MiB"),
        ({"ramQuotaMB": "100", "storageBackend": "magma"}, "ramQuota", "at least 1024 MiB"),
        ({"bucketType": "memcached"}, "bucketType", "no longer supported"),
        ({"bucketType": "other"}, "bucketType", "invalid bucket type"),
        ({"replicaNumber": "4"}, "replicaNumber", "larger than 3"),
        ({"replicaNumber": "-1"}, "replicaNumber", "non-negative"),
        ({"evictionPolicy": "noEviction"}, "evictionPolicy", "for couchbase buckets"),
        ({"bucketType": "ephemeral", "evictionPolicy": "valueOnly"}, "evictionPolicy", "for ephemeral buckets"),
        ({"bucketType": "ephemeral", "durabilityMinLevel": "persistToMajority"}, "durabilityMinLevel", "ephemeral"),
        ({"durabilityMinLevel": "all"}, "durabilityMinLevel", "must be one of"),
        ({"flushEnabled": "yes"}, "flushEnabled", "can only be 1 or 0"),
        ({"compressionMode": "zip"}, "compressionMode", "can be set to"),
        ({"conflictResolutionType": "custom"}, "conflictResolutionType", "developer preview"),
        ({"maxTTL": str(2**31)}, "maxTTL", "between 0 and"),
        ({"historyRetentionSeconds": "1"}, "historyRetentionSeconds", "Magma"),
        (
            {"storageBackend": "magma", "ramQuotaMB": "1024", "historyRetentionBytes": "5"},
            "historyRetentionBytes",
            "2147",
        ),
        ({"numVBuckets": "1025"}, "numVBuckets", "between 1 and 1024"),
    ],
)
def test_what_a_bucket_cannot_be(node: Node, form: dict[str, str], field: str, why: str) -> None:
    base = {} if "name" in form or not form else SMALL
    found = ask(node, "POST", BUCKETS, base | form)
    assert found.status == 400
    assert why in found.json["errors"][field]
    assert "ramSummary" in found.json["summaries"]
    assert len(ask(node, "GET", BUCKETS).json) == 1


def test_all_that_is_wrong_is_reported_at_once(node: Node) -> None:
    found = ask(node, "POST", BUCKETS, {"name": "", "ramQuotaMB": "1", "flushEnabled": "2"})
    assert set(found.json["errors"]) == {"name", "ramQuota", "flushEnabled"}


def test_looking_does_not_make(node: Node) -> None:
    found = ask(node, "POST", f"{BUCKETS}?just_validate=1", SMALL)
    assert (found.status, found.json["errors"]) == (200, {})
    assert len(ask(node, "GET", BUCKETS).json) == 1


def test_settings_change_and_what_is_not_named_stays(node: Node) -> None:
    ask(node, "POST", BUCKETS, SMALL | {"maxTTL": "60", "replicaNumber": "0"})
    assert ask(node, "POST", f"{BUCKETS}/shop", {"flushEnabled": "1", "replicaNumber": "1"}).status == 200
    found = ask(node, "GET", f"{BUCKETS}/shop").json
    assert (found["maxTTL"], found["replicaNumber"], "flush" in found["controllers"]) == (60, 1, True)
    for form in ({"bucketType": "ephemeral"}, {"conflictResolutionType": "lww"}, {"numVBuckets": "2"}):
        assert ask(node, "POST", f"{BUCKETS}/shop", form).status == 400
    assert ask(node, "POST", f"{BUCKETS}/none", {"flushEnabled": "1"}).status == 404


@pytest.mark.parametrize("kind", [{}, {"bucketType": "ephemeral"}, {"storageBackend": "magma", "ramQuotaMB": "1024"}])
def test_what_was_reported_can_be_sent_back(node: Node, kind: dict[str, str]) -> None:
    """As client libraries do it, to change one setting."""
    ask(node, "POST", BUCKETS, SMALL | kind)
    told = ask(node, "GET", f"{BUCKETS}/shop").json
    names = (
        "bucketType storageBackend evictionPolicy replicaNumber compressionMode conflictResolutionType maxTTL "
        "numVBuckets durabilityMinLevel historyRetentionSeconds historyRetentionBytes historyRetentionCollectionDefault"
    )
    form = {
        name: json.dumps(told[name]) if isinstance(told[name], bool) else str(told[name])
        for name in names.split()
        if name in told
    }
    form |= {"ramQuotaMB": str(told["quota"]["rawRAM"] >> 20), "flushEnabled": "1"}
    found = ask(node, "POST", f"{BUCKETS}/shop", form)
    assert (found.status, found.body) == (200, b"")
    assert "flush" in ask(node, "GET", f"{BUCKETS}/shop").json["controllers"]


def test_a_bucket_is_emptied_only_if_that_is_allowed(node: Node) -> None:
    with client(node, "default") as kv:
        kv.set("k", b"{}")
    found = ask(node, "POST", f"{BUCKETS}/default/controller/doFlush")
    assert (found.status, found.json) == (400, {"_": "Flush is disabled for the bucket"})
    assert ask(node, "GET", f"{BUCKETS}/default").json["basicStats"]["itemCount"] == 1
    assert ask(node, "POST", f"{BUCKETS}/none/controller/doFlush").status == 404
    node.flush_bucket("default")
    assert ask(node, "GET", f"{BUCKETS}/default").json["basicStats"]["itemCount"] == 0


def test_a_bucket_that_cannot_be_emptied_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, refused = Metadata.put, []

    def fails_once(self: Metadata, values: dict[str, str], vbuckets: Iterable[VbucketMetadata] = ()) -> None:
        lines = list(vbuckets)
        if lines and not refused:
            refused.append(lines)
            raise StoreError("no space left")
        put(self, values, lines)

    with Node(vbuckets=4, path=tmp_path, settings=BucketSettings(flush_enabled=True), system_scope=False) as node:
        with client(node, "default") as kv:
            kv.set("k", b"{}")
        node.stop()
        node.start()
        uuid = ask(node, "GET", f"{BUCKETS}/default").json["uuid"]
        monkeypatch.setattr(Metadata, "put", fails_once)
        assert ask(node, "POST", f"{BUCKETS}/default/controller/doFlush").status == 500
        found = ask(node, "GET", f"{BUCKETS}/default").json
        assert (found["basicStats"]["itemCount"], found["uuid"]) == (1, uuid)
        with client(node, "default") as kv:
            assert kv.get("k").value == b"{}"
            kv.set("k2", b"{}")
        assert ask(node, "POST", f"{BUCKETS}/default/controller/doFlush").status == 200
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        assert ask(node, "GET", f"{BUCKETS}/default").json["basicStats"]["itemCount"] == 0


def test_compaction_gives_back_what_an_emptied_bucket_had(tmp_path: Path) -> None:
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        with client(node, "default") as kv:
            kv.set_many([(f"k{number}", b"x" * 10_000) for number in range(300)])
        node.stop()
        node.start()
        assert ask(node, "GET", f"{BUCKETS}/default").json["basicStats"]["diskUsed"] > 3_000_000
        node.flush_bucket("default")
        assert ask(node, "POST", f"{BUCKETS}/default/controller/compactBucket").status == 200
        deadline = time.monotonic() + TIMEOUT_S
        while ask(node, "GET", f"{BUCKETS}/default").json["basicStats"]["diskUsed"] > 1_000_000:
            assert time.monotonic() < deadline, "it never ends"
        assert b'kv_ep_compactions_total{bucket="default"} ' in ask(node, "GET", "/metrics").body


def test_compaction_is_asked_for(node: Node) -> None:
    for name in ("compactBucket", "compactDatabases", "cancelBucketCompaction"):
        assert ask(node, "POST", f"{BUCKETS}/default/controller/{name}").status == 200
        assert ask(node, "POST", f"{BUCKETS}/none/controller/{name}").status == 404


# ---------------------------------------------------------------------------------------------------- a data directory


def test_all_buckets_of_the_directory_come_back(tmp_path: Path) -> None:
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        ask(node, "POST", BUCKETS, SMALL | {"numVBuckets": "2", "maxTTL": "0", "replicaNumber": "0"})
        ask(node, "POST", BUCKETS, SMALL | {"name": "cache", "bucketType": "ephemeral", "maxTTL": "9"})
        ask(node, "POST", f"{BUCKETS}/cache/scopes", {"name": "s"})
        for name in ("shop", "cache"):
            with client(node, name) as kv:
                kv.set("k", b"{}")
        before = {bucket["name"]: bucket for bucket in ask(node, "GET", BUCKETS).json}
        pools = ask(node, "GET", "/pools").json
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        after = {bucket["name"]: bucket for bucket in ask(node, "GET", BUCKETS).json}
        assert ask(node, "GET", "/pools").json["uuid"] == pools["uuid"]
        assert ask(node, "GET", f"{BUCKETS}/cache/scopes").json["scopes"][1]["name"] == "s"
        assert ask(node, "DELETE", f"{BUCKETS}/cache").status == 200
    assert {name: bucket["uuid"] for name, bucket in after.items()} == {
        name: bucket["uuid"] for name, bucket in before.items()
    }
    assert {name: bucket["basicStats"]["itemCount"] for name, bucket in after.items()} == {
        "default": 0,
        "shop": 1,
        "cache": 0,
    }
    assert (after["shop"]["numVBuckets"], after["cache"]["maxTTL"]) == (2, 9)
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        assert [bucket["name"] for bucket in ask(node, "GET", BUCKETS).json] == ["default", "shop"]


def test_what_is_on_disk_stays_on_disk(tmp_path: Path) -> None:
    """Whatever kind the settings say that new buckets are of."""
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node, client(node, "default") as kv:
        kv.set("k", b"{}")
    with Node(
        ("default", "cache"), vbuckets=4, path=tmp_path, settings=BucketSettings(is_ephemeral=True), system_scope=False
    ) as node:
        assert not node.engine.buckets["default"].settings.is_ephemeral
        assert node.engine.buckets["cache"].settings.is_ephemeral
        with client(node, "default") as kv:
            assert kv.get("k").value == b"{}"
    with Node(("default", "cache"), vbuckets=4, path=tmp_path, system_scope=False) as node:
        assert node.engine.buckets["cache"].settings.is_ephemeral


def test_stores_are_found_without_the_file(tmp_path: Path) -> None:
    with Node(("default", "shop"), vbuckets=4, path=tmp_path, system_scope=False) as node, client(node, "shop") as kv:
        kv.set("k", b"{}")
    (tmp_path / ".node.json").unlink()
    (tmp_path / "no bucket").mkdir()
    (tmp_path / "nothing").mkdir()
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node, client(node, "shop") as kv:
        assert kv.get("k").value == b"{}"
        assert set(node.engine.buckets) == {"default", "shop"}
    shutil.rmtree(tmp_path / "shop")
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        assert set(node.engine.buckets) == {"default"}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 2}', '{"format": 1, "cluster_uuid": "x", "buckets": {"../x": {}}}']
)
def test_a_file_that_cannot_be_understood_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / ".node.json").write_text(text)
    with pytest.raises((StoreError, ConfigError)):
        Node(vbuckets=4, path=tmp_path, system_scope=False).start()


# ----------------------------------------------------------------------------------------------------- in this process


def test_settings_and_collections_from_code(tmp_path: Path) -> None:
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        node.change_bucket("default", BucketSettings(max_ttl=5))
        with pytest.raises(ConfigError, match="is_ephemeral"):
            node.change_bucket("default", BucketSettings(is_ephemeral=True))
        node.set_collections("default", {"shop": ["orders", "carts"], "logs": {"day": 86_400}})
        first = ask(node, "GET", f"{BUCKETS}/default/scopes").json
        node.set_collections("default", {"shop": ["orders"]})
        with pytest.raises(ConfigError, match="scopes"):
            node.set_collections("default", {"_mine": []})
        for order in (node.flush_bucket, lambda name: node.set_collections(name, {})):
            with pytest.raises(ConfigError, match="nosuch"):
                order("nosuch")
    with Node(vbuckets=4, path=tmp_path, system_scope=False) as node:
        assert ask(node, "GET", f"{BUCKETS}/default").json["maxTTL"] == 5
        second = ask(node, "GET", f"{BUCKETS}/default/scopes").json
    names = [
        {scope["name"]: [item["name"] for item in scope["collections"]] for scope in found["scopes"]}
        for found in (first, second)
    ]
    assert names == [
        {"_default": ["_default"], "shop": ["orders", "carts"], "logs": ["day"]},
        {"_default": ["_default"], "shop": ["orders"]},
    ]
    assert first["scopes"][2]["collections"][0]["maxTTL"] == 86_400
    assert second["scopes"][1]["collections"][0]["uid"] == first["scopes"][1]["collections"][0]["uid"]


# ------------------------------------------------------------------------------------------------------------ the whole


def test_what_is_not_there(node: Node) -> None:
    assert ask(node, "GET", "/nosuch").status == 404
    assert ask(node, "GET", "/nosuch").body == b"Requested resource not found.\r\n"
    refused = ask(node, "PUT", BUCKETS)
    assert (refused.status, refused.body) == (405, b"Method Not Allowed")
    assert "POST" in refused.headers["allow"]
    assert ask(node, "GET", "/nosuch", user="").status == 401
    assert ask(node, "GET", "/pools", password="wrong").headers["www-authenticate"].startswith("Basic")


def test_head_is_get_without_a_body(node: Node) -> None:
    for path in ("/pools", "/pools/default/", f"{BUCKETS}/default", "/pools/default/bs/default", "/ui"):
        found = ask(node, "HEAD", path)
        assert (found.status, found.body) == (200, b"")
    root = ask(node, "HEAD", "/")
    assert (root.status, root.body, root.headers["location"]) == (302, b"", "/ui")


def test_a_body_has_a_limit(node: Node) -> None:
    assert ask(node, "PUT", f"{BUCKETS}/default/scopes", body=b"[" * (3 << 20)).status == 413


def test_pages_about_the_cluster(node: Node) -> None:
    pool = ask(node, "GET", "/pools/default").json
    assert pool["nodes"][0]["services"] == ["kv"]
    assert pool["bucketNames"][0]["bucketName"] == "default"
    assert ask(node, "GET", "/pools/nodes").json["nodes"][0]["thisNode"]
    assert ask(node, "GET", "/pools/default/terseClusterInfo").json["clusterCompatVersion"] == "8.0"
    (status,) = ask(node, "GET", "/pools/default/nodeStatuses").json.values()
    assert status["status"] == "healthy"
    assert ask(node, "GET", "/pools/default/serverGroups").json["groups"][0]["nodes"]
    assert ask(node, "GET", "/pools/default/tasks").json[0]["status"] == "notRunning"
    assert ask(node, "GET", "/versions", user="").json["implementationVersion"].startswith("8.0")
    asked = ask(node, "POST", "/pools/default/checkPermissions", body="cluster!write,cluster.bucket[b]!read")
    assert asked.json == {"cluster!write": True, "cluster.bucket[b]!read": True}


def test_the_host_is_the_one_that_was_asked(node: Node) -> None:
    connection = http.client.HTTPConnection("localhost", node.mgmt_port, timeout=TIMEOUT_S)
    connection.putrequest("GET", "/pools/default/b/default", skip_host=True)
    connection.putheader("Host", f"db.example:{node.mgmt_port}")
    connection.putheader("Authorization", "Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==")
    connection.endheaders()
    found = json.loads(connection.getresponse().read())
    connection.close()
    assert found["vBucketServerMap"]["serverList"] == [f"db.example:{node.port}"]
    assert found["nodes"][0]["hostname"] == f"db.example:{node.mgmt_port}"


def test_other_networks_are_reported() -> None:
    external = {"external": {"hostname": "db.example", "kv": 31210, "mgmt": 38091}}
    with Node(vbuckets=1, alternate_addresses=external, system_scope=False) as node:
        (entry,) = ask(node, "GET", "/pools/default/nodeServices").json["nodesExt"]
    assert entry["hostname"] == "127.0.0.1"
    assert entry["alternateAddresses"] == {
        "external": {"hostname": "db.example", "ports": {"kv": 31210, "mgmt": 38091}}
    }


@pytest.mark.parametrize(
    "path", ["/pools/default/bs/shop", "/pools/default/bucketsStreaming/shop", "/poolsStreaming/default"]
)
def test_a_stream_shows_at_once_what_changed(node: Node, path: str) -> None:
    node.create_bucket("shop")
    connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=5)
    connection.request("GET", path, headers={"Authorization": "Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA=="})
    answer = connection.getresponse()
    first = _next(answer)
    node.create_bucket("other")
    node.set_collections("shop", {"s": []})
    if path.startswith("/poolsStreaming"):
        found = first
        while len(found["bucketNames"]) < 3:
            found = _next(answer)
    else:
        second = _next(answer)
        assert (second["collectionsManifestUid"], first["collectionsManifestUid"]) == ("1", "0")
        assert second["rev"] > first["rev"]
        node.drop_bucket("shop")
        assert answer.read() == b"", "the stream ends with the bucket"
    connection.close()


def _next(answer: http.client.HTTPResponse) -> dict:
    data = b""
    while not data.endswith(b"\n\n\n\n"):
        piece = answer.read(1)
        assert piece, "the stream ended"
        data += piece
    return json.loads(data)


# ------------------------------------------------------------------------------------------------------- the cluster


def test_the_clusters_name_and_quotas_can_be_set() -> None:
    settings = BucketSettings(ram_quota_bytes=200 * 1024 * 1024)
    with Node(vbuckets=2, release="7.6", settings=settings, system_scope=False) as node:
        before = ask(node, "GET", "/pools/default/nodeServices").json
        form = {"clusterName": "tests & more", "memoryQuota": "512", "indexMemoryQuota": "300"}
        assert ask(node, "POST", "/pools/default", form).status == 200
        found = ask(node, "GET", "/pools/default").json
        assert (found["clusterName"], found["memoryQuota"], found["indexMemoryQuota"]) == ("tests & more", 512, 300)
        assert found["storageTotals"]["ram"]["quotaTotal"] == 512 * 1024 * 1024
        after = ask(node, "GET", "/pools/default/nodeServices").json
        assert after["clusterName"] == "tests & more"
        assert (after["revEpoch"], after["rev"]) > (before["revEpoch"], before["rev"]), "clients take what is newer"
        bucket = ask(node, "GET", "/pools/default/b/default").json
        assert bucket["clusterName"] == "tests & more"
        assert ask(node, "POST", "/pools/default", {"clusterName": ""}).status == 200
        assert ask(node, "GET", "/pools/default").json["clusterName"] == ""
        assert ask(node, "GET", "/pools/default").json["memoryQuota"] == 512, "what is not given stays"


def test_buckets_fit_into_the_quota_that_was_set() -> None:
    with Node(vbuckets=2, settings=BucketSettings(ram_quota_bytes=200 * 1024 * 1024), system_scope=False) as node:
        assert ask(node, "POST", "/pools/default", {"memoryQuota": "256"}).status == 200
        form = {"name": "more", "ramQuotaMB": "100"}
        found = ask(node, "POST", "/pools/default/buckets", form)
        assert found.status == 400
        assert "too large to be provisioned" in found.json["errors"]["ramQuota"]
        assert ask(node, "POST", "/pools/default/buckets/default", {"ramQuotaMB": "300"}).status == 400
        assert ask(node, "POST", "/pools/default/buckets/default", {"ramQuotaMB": "150"}).status == 200
        assert ask(node, "POST", "/pools/default/buckets", form).status == 202
        found = ask(node, "POST", "/pools/default", {"memoryQuota": "255"})
        assert "cannot be less than 256MB" in found.json["errors"]["memoryQuota"]


@pytest.mark.parametrize(
    ("form", "field", "why"),
    [
        ({}, "_", "form parameters"),
        ({"fly": "1"}, "fly", "Unsupported"),
        ({"memoryQuota": "many"}, "memoryQuota", "integer"),
        ({"memoryQuota": "-1"}, "memoryQuota", "integer"),
        ({"memoryQuota": "9" * 5000}, "memoryQuota", "integer"),
        ({"memoryQuota": "1"}, "memoryQuota", "cannot be less than"),
        ({"memoryQuota": "1000000000"}, "_", "exceeds the maximum"),
        ({"cbasMemoryQuota": "1000"}, "cbasMemoryQuota", "cannot be less than 1024MB"),
        ({"clusterName": "x" * 257}, "clusterName", "256"),
    ],
)
def test_settings_of_the_cluster_that_cannot_be(node: Node, form: dict[str, str], field: str, why: str) -> None:
    before = ask(node, "GET", "/pools/default").json
    found = ask(node, "POST", "/pools/default", form)
    assert found.status == 400
    assert why in found.json["errors"][field]
    after = ask(node, "GET", "/pools/default").json
    for name in ("clusterName", "memoryQuota"):
        assert after[name] == before[name]


@each_case("release", ["7.2", "7.6"])
def test_what_a_node_reports_is_of_one_release(release: str) -> None:
    with Node(vbuckets=2, release=release, system_scope=False) as node:
        form = {"name": "magma", "storageBackend": "magma", "ramQuotaMB": "1024"}
        assert ask(node, "POST", BUCKETS, form).status == 202
        maps = {name: ask(node, "GET", f"/pools/default/b/{name}").json for name in ("default", "magma")}
        maps["node"] = ask(node, "GET", "/pools/default/nodeServices").json
        groups = {group["name"] for group in ask(node, "GET", "/pools/default/serverGroups").json["groups"]}
        is_76 = release == "7.6"
        for found in maps.values():
            assert ("clusterName" in found, "clusterUUID" in found) == (is_76, is_76)
            (entry,) = found["nodesExt"]
            assert ("serverGroup" in entry) is is_76
            assert not is_76 or {entry["serverGroup"]} == groups
        assert "nonDedupedHistory" in maps["magma"]["bucketCapabilities"]
        assert "nonDedupedHistory" not in maps["default"]["bucketCapabilities"]
        versions = [ask(node, "GET", path).json["implementationVersion"] for path in ("/pools", "/versions")]
        (this,) = ask(node, "GET", "/pools/default").json["nodes"]
        assert {version[:4] for version in (*versions, this["version"])} == {f"{release}."}
        terse = ask(node, "GET", "/pools/default/terseClusterInfo").json
        assert terse["clusterCompatVersion"] == release
        assert this["clusterCompatibility"] == (7 << 16) + int(release[2:])
        assert ask(node, "GET", "/ui").body.decode().count(f"Couchbase Server {release}") == 1


def test_the_clusters_settings_are_there_after_a_restart(tmp_path: Path) -> None:
    settings = BucketSettings(ram_quota_bytes=200 * 1024 * 1024)
    with Node(vbuckets=2, path=tmp_path, settings=settings, system_scope=False) as node:
        assert ask(node, "POST", "/pools/default", {"clusterName": "kept", "memoryQuota": "300"}).status == 200
    with Node(vbuckets=2, path=tmp_path, settings=settings, system_scope=False) as node:
        found = ask(node, "GET", "/pools/default").json
        assert (found["clusterName"], found["memoryQuota"]) == ("kept", 300)
        assert ask(node, "POST", BUCKETS, {"name": "more", "ramQuotaMB": "101"}).status == 400


@pytest.mark.parametrize(
    "cluster", [{"name": 5}, {"quotas_mib": {"memoryQuota": "300"}}, {"quotas_mib": {"memoryQuota": -1}}, []]
)
def test_settings_of_the_cluster_that_nobody_wrote_are_reported(tmp_path: Path, cluster: object) -> None:
    content = {"format": 1, "cluster_uuid": "c", "buckets": {}, "cluster": cluster}
    (tmp_path / ".node.json").write_text(json.dumps(content))
    with pytest.raises(StoreError, match="cannot be understood"):
        Node(vbuckets=2, path=tmp_path, system_scope=False).start()
