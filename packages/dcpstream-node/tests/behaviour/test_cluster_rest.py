"""A cluster over the management ports of its nodes, as operators and their tools use them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client.kv.client import KvClient
from dcpstream.errors import AuthenticationFailed, StatusError
from dcpstream.model import AutoFailover, Membership
from dcpstream_node import Cluster
from dcpstream_node.cluster import ClusterNode
from tests.kit.rest import Answer, ask
from tests.kit.waiting import TIMEOUT_S, wait_until

VBUCKETS = 8
BUCKETS = "/pools/default/buckets"
KEYS = [f"k{number}" for number in range(40)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=VBUCKETS, system_scope=False) as running:
        yield running


def get(node: ClusterNode, path: str) -> Any:
    answer = ask(node.node, "GET", path)
    assert answer.status == 200, answer
    return answer.json


def post(node: ClusterNode, path: str, form: dict[str, str] | str, **options: Any) -> Answer:
    return ask(node.node, "POST", path, form, **options)


def names(cluster: Cluster) -> str:
    return ",".join(node.name for node in cluster.nodes)


def roles(node: ClusterNode) -> dict[str, tuple[str, str]]:
    """Node → its membership and status, as a node tells them."""
    return {item["otpNode"]: (item["clusterMembership"], item["status"]) for item in get(node, "/pools/nodes")["nodes"]}


def wait_for_rebalance(node: ClusterNode) -> dict[str, Any]:
    def task() -> dict[str, Any]:
        (found,) = [item for item in get(node, "/pools/default/tasks") if item["type"] == "rebalance"]
        return dict(found)

    wait_until(lambda: task()["status"] == "notRunning", "the rebalance did not end")
    return task()


def client(node: ClusterNode, bucket: str = "default", user: str = "Administrator") -> KvClient:
    password = "password" if user == "Administrator" else "secret-word"
    return KvClient(node.connection_string, user, password, bucket)


# ----------------------------------------------------------------------------------------------- nodes that come and go


def test_every_node_lists_all(cluster: Cluster):
    first, second = cluster.nodes
    for node in cluster.nodes:
        pool = get(node, "/pools/default")
        assert [item["otpNode"] for item in pool["nodes"]] == [first.name, second.name]
        assert [item["otpNode"] for item in pool["nodes"] if item.get("thisNode")] == [node.name]
        assert (pool["balanced"], pool["rebalanceStatus"]) == (True, "none")
        assert get(node, "/nodes/self")["otpNode"] == node.name
        assert get(node, "/nodes/self")["hostname"] == f"127.0.0.1:{node.mgmt_port}"
        assert get(node, "/pools/default/rebalanceProgress") == {"status": "none"}
        assert len(get(node, f"{BUCKETS}/default")["nodes"]) == 2
        statuses = get(node, "/pools/default/nodeStatuses")
        assert {item["otpNode"] for item in statuses.values()} == {first.name, second.name}
        assert get(node, "/pools/default/terseClusterInfo")["orchestrator"] == first.name


@pytest.mark.slow
def test_a_node_is_added_and_gets_its_share(cluster: Cluster):
    first, second = cluster.nodes
    with client(first) as kv:
        kv.set_many([(key, "{}") for key in KEYS])
    added = post(second, "/controller/addNode", {"hostname": "127.0.0.1:0", "user": "Administrator", "password": "x"})
    assert added.status == 200, added
    name = added.json["otpNode"]
    assert roles(first) == {
        first.name: ("active", "healthy"),
        second.name: ("active", "healthy"),
        name: ("inactiveAdded", "healthy"),
    }
    pool = get(first, "/pools/default")
    assert not pool["balanced"]
    assert get(cluster.node(name), "/nodes/self")["clusterMembership"] == "inactiveAdded"
    begun = post(first, "/controller/rebalance", {"knownNodes": names(cluster), "ejectedNodes": ""})
    assert (begun.status, begun.body) == (200, b"")
    task = wait_for_rebalance(second)
    assert task == {"type": "rebalance", "status": "notRunning", "statusIsStale": False, "masterRequestTimedOut": False}
    assert set(roles(second).values()) == {("active", "healthy")}
    assert get(second, "/pools/default")["balanced"]
    assert set(Counter(chain[0] for chain in cluster.chains()).values()) == {2, 3}
    with client(cluster.node(name)) as kv:
        assert None not in kv.get_many(KEYS)
    # And one leaves.
    leaving = post(first, "/controller/rebalance", {"knownNodes": names(cluster), "ejectedNodes": second.name})
    assert leaving.status == 200
    wait_for_rebalance(first)
    assert set(roles(first)) == {first.name, name}
    with client(first) as kv:
        assert None not in kv.get_many(KEYS)


def test_a_rebalance_shows_its_progress_and_can_be_stopped(cluster: Cluster):
    first, second = cluster.nodes
    cluster.add_node()
    cluster.pause_replication()  # no move gets further than its backfill
    assert post(first, "/controller/rebalance", {"knownNodes": names(cluster)}).status == 200
    assert post(first, "/controller/rebalance", {"knownNodes": names(cluster)}).status == 200, "it runs already"
    wait_until(lambda: len(get(first, "/pools/default/rebalanceProgress")) == 4)
    progress = get(second, "/pools/default/rebalanceProgress")
    assert progress.pop("status") == "running"
    assert {name: item["progress"] for name, item in progress.items()} == dict.fromkeys(progress, 0.0)
    (task,) = get(second, "/pools/default/tasks")
    assert (task["status"], task["subtype"], task["progress"]) == ("running", "rebalance", 0.0)
    assert set(task["perNode"]) == set(progress) == {node.name for node in cluster.nodes}
    pool = get(second, "/pools/default")
    assert (pool["balanced"], pool["rebalanceStatus"]) == (False, "running")
    refusals = [
        post(first, BUCKETS, {"name": "other", "ramQuotaMB": "100"}),
        ask(first.node, "DELETE", f"{BUCKETS}/default"),
    ]
    assert {(item.status, item.json["_"].partition(" during")[0]) for item in refusals} == {
        (503, "Cannot create buckets"),
        (503, "Cannot delete buckets"),
    }
    refused = post(first, "/controller/startGracefulFailover", {"otpNode": second.name})
    assert (refused.status, refused.body) == (503, b"Rebalance running.")
    assert post(second, "/controller/stopRebalance", {}).status == 200
    cluster.resume_replication()
    assert wait_for_rebalance(second)["errorMessage"] == "Rebalance stopped by user."
    assert get(first, "/pools/default/rebalanceProgress")["errorMessage"] == "Rebalance stopped by user."


def test_a_node_is_failed_over_and_ejected(cluster: Cluster):
    first, second = cluster.nodes
    third = cluster.add_node()
    cluster.rebalance()
    third.crash()
    assert roles(first)[third.name] == ("active", "unhealthy")
    assert post(second, "/controller/failOver", {"otpNode": third.name}).status == 200
    assert roles(first)[third.name] == ("inactiveFailed", "unhealthy")
    assert not get(first, "/pools/default")["balanced"]
    again = post(second, "/controller/failOver", {"otpNode": third.name})
    assert (again.status, again.body) == (400, b"Inactive server given.")
    assert all(chain[0] in (first.name, second.name) for chain in cluster.chains())
    assert post(first, "/controller/ejectNode", {"otpNode": third.name}).status == 200
    assert set(roles(second)) == {first.name, second.name}
    last = post(first, "/controller/failOver", f"otpNode={first.name}&otpNode={second.name}")
    assert (last.status, last.body) == (400, b"Last active node cannot be failed over.")


def test_several_nodes_are_failed_over_gracefully():
    with Cluster(3, 2, vbuckets=4, system_scope=False) as cluster:
        first, second, third = cluster.nodes
        form = f"otpNode={second.name}&otpNode={third.name}"
        assert post(first, "/controller/startGracefulFailover", form).status == 200
        wait_for_rebalance(first)
        wait_until(lambda: {roles(first)[each.name][0] for each in (second, third)} == {"inactiveFailed"})
        assert {chain[0] for chain in cluster.chains()} == {first.name}


def test_a_node_is_failed_over_gracefully(cluster: Cluster):
    first, second = cluster.nodes
    assert post(first, "/controller/startGracefulFailover", {"otpNode": second.name}).status == 200
    wait_for_rebalance(first)
    wait_until(lambda: roles(first)[second.name][0] == "inactiveFailed")
    assert {chain[0] for chain in cluster.chains()} == {first.name}
    cluster.create_bucket("single", vbuckets=1)
    last = post(first, "/controller/startGracefulFailover", {"otpNode": first.name})
    assert (last.status, last.body) == (400, b"Last active node cannot be failed over.")


@pytest.mark.slow
@pytest.mark.parametrize("recovery", ["delta", "full"])
def test_a_node_comes_back(cluster: Cluster, recovery: str):
    first, second = cluster.nodes
    assert post(first, "/controller/failOver", {"otpNode": second.name}).status == 200
    form = {"otpNode": second.name, "recoveryType": recovery}
    made = post(first, "/controller/setRecoveryType", form)
    assert (made.status, made.json) == (200, [])
    (found,) = [node for node in get(first, "/pools/nodes")["nodes"] if node["otpNode"] == second.name]
    assert (found["clusterMembership"], found["recoveryType"]) == ("inactiveAdded", recovery)
    assert post(first, "/controller/rebalance", {"knownNodes": names(cluster)}).status == 200
    assert "errorMessage" not in wait_for_rebalance(first)
    assert roles(first)[second.name] == ("active", "healthy")
    assert get(first, "/pools/default")["balanced"]
    assert post(first, "/controller/setRecoveryType", form).status == 400, "it is back"


def test_a_node_that_is_down_does_not_come_back(cluster: Cluster):
    first, second = cluster.nodes
    second.crash()
    assert post(first, "/controller/failOver", {"otpNode": second.name}).status == 200
    refused = post(first, "/controller/reAddNode", {"otpNode": second.name})
    assert refused.status == 503
    assert roles(first)[second.name] == ("inactiveFailed", "unhealthy")


def test_without_replicas_there_is_no_graceful_failover():
    with Cluster(nodes=2, replicas=0, vbuckets=2, system_scope=False) as cluster:
        refused = post(cluster.nodes[0], "/controller/startGracefulFailover", {"otpNode": cluster.nodes[1].name})
        assert (refused.status, refused.body) == (
            400,
            b"Failover cannot be done gracefully (would lose vbuckets).",
        )


def test_an_added_node_is_ejected_over_its_own_port(cluster: Cluster):
    added = cluster.add_node()
    assert post(added, "/controller/ejectNode", {"otpNode": added.name}).status == 200
    wait_until(lambda: not added.is_running)
    assert [node.name for node in cluster.state().nodes] == [node.name for node in cluster.nodes]
    assert len(cluster.nodes) == 2


PORTS = "The port number must be greater than 1023 and less than 65536."
UNKNOWN = "Got unknown parameters: ['x']"
NO_SERVICE = "At least one service has to be selected"
LOGIN = {"user": "Administrator", "password": "password"}


@pytest.mark.parametrize(
    ("path", "form", "status", "said"),
    [
        ("addNode", {}, 400, ["user is missing", "password is missing", "Hostname is required."]),
        ("addNode", LOGIN | {"hostname": "h:100"}, 400, [PORTS]),
        ("addNode", LOGIN | {"hostname": "ftp://h:6000"}, 400, ["Unsupported protocol ftp"]),
        ("addNode", LOGIN | {"hostname": "host:port"}, 400, ["Malformed URL host:port"]),
        ("addNode", LOGIN | {"hostname": "http://[5:0]:8091/"}, 400, ["Malformed URL http://[5:0]:8091/"]),
        ("addNode", LOGIN | {"hostname": "[::1", "x": "1"}, 400, ["Malformed URL [::1", UNKNOWN]),
        ("addNode", LOGIN | {"hostname": "127.0.0.1:0", "services": "kv,n1ql"}, 400, ["Unknown services: ['n1ql']"]),
        ("addNode", LOGIN | {"hostname": "127.0.0.1:0", "services": ""}, 400, [NO_SERVICE]),
        ("rebalance", {}, 400, {"empty_known_nodes": 1}),
        ("rebalance", {"knownNodes": "ns_1@a"}, 400, {"mismatch": 1}),
        ("rebalance", {"knownNodes": "ALL", "ejectedNodes": "ns_1@a"}, 400, {"mismatch": 1}),
        ("rebalance", {"knownNodes": "ALL", "ejectedNodes": "ALL"}, 400, "No active nodes left"),
        ("failOver", {}, 400, "No server specified."),
        ("failOver", {"otpNode": "ns_1@a"}, 400, "Unknown server given: ['ns_1@a']"),
        ("startGracefulFailover", {"otpNode": "nobody"}, 400, "Unknown server given: ['nobody']"),
        ("ejectNode", {}, 400, "Bad Request\n"),
        ("ejectNode", {"otpNode": "ns_1@a"}, 400, "Server does not exist.\n"),
        ("ejectNode", {"otpNode": "FIRST"}, 400, "Cannot remove active server.\n"),
        (
            "setRecoveryType",
            {"otpNode": "FIRST", "recoveryType": "x"},
            400,
            {
                "recoveryType": "recovery type must be either 'delta' or 'full'",
                "otpNode": "invalid node name or node can't be used for delta recovery",
            },
        ),
    ],
)  # fmt: skip
def test_answers_are_the_server_s(path: str, form: dict[str, str], status: int, said: object, shared: Cluster):
    first = shared.nodes[0]
    given = {name: {"ALL": names(shared), "FIRST": first.name}.get(text, text) for name, text in form.items()}
    answer = post(first, f"/controller/{path}", given)
    found: object = answer.body.decode() if isinstance(said, str) else answer.json
    if isinstance(said, list):
        assert isinstance(found, list)
        found, said = sorted(found), sorted(said)
    assert (answer.status, found) == (status, said)


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """For tests that change nothing."""
    with Cluster(nodes=2, vbuckets=1, auto_failover=AutoFailover(), system_scope=False) as running:
        yield running


def test_a_port_that_is_taken_is_refused(shared: Cluster):
    taken = post(shared.nodes[0], "/controller/addNode", LOGIN | {"hostname": f"127.0.0.1:{shared.nodes[1].mgmt_port}"})
    assert taken.status == 400
    assert taken.json[0].startswith("Prepare join failed. port ")
    assert "a cluster starts its nodes itself" in taken.json[0]
    elsewhere = post(shared.nodes[0], "/controller/addNode", LOGIN | {"hostname": "db.example:8091"})
    assert "the address at which this cluster starts its nodes" in elsewhere.json[0]
    assert len(shared.nodes) == 2


def test_only_administrators_change_the_cluster(shared: Cluster):
    shared.add_user("reader", "secret-word", ["ro_admin"])
    for node in shared.nodes:
        for path in ("rebalance", "failOver", "addNode", "stopRebalance", "ejectNode"):
            refused = post(node, f"/controller/{path}", {}, user="reader", password="secret-word")
            assert refused.status == 403, path


def test_a_node_that_is_alone_is_a_cluster_of_one():
    with dcpstream_node.Node(vbuckets=1, system_scope=False) as node:
        found = ask(node, "GET", "/nodes/self").json
        name = found["otpNode"]
        assert (name, found["clusterMembership"]) == ("ns_1@127.0.0.1", "active")
        assert ask(node, "POST", "/controller/rebalance", {"knownNodes": name}).status == 200
        assert ask(node, "POST", "/controller/stopRebalance", {}).status == 200
        last = ask(node, "POST", "/controller/failOver", {"otpNode": name})
        assert (last.status, last.body) == (400, b"Last active node cannot be failed over.")
        alone = ask(node, "POST", "/controller/addNode", LOGIN | {"hostname": "127.0.0.1:0"})
        assert alone.status == 400
        assert "dcpstream node --nodes" in alone.json[0]
        assert ask(node, "POST", "/settings/autoFailover", {"enabled": "true", "timeout": "30"}).status == 200
        assert ask(node, "GET", "/settings/autoFailover").json["timeout"] == 30


def test_the_automatic_failover_is_the_cluster_s(shared: Cluster):
    first, second = shared.nodes
    assert get(first, "/settings/autoFailover") == {
        "enabled": False,
        "timeout": 120,
        "count": 0,
        "failoverOnDataDiskIssues": {"enabled": False, "timePeriod": 120},
        "maxCount": 1,
        "canAbortRebalance": False,
    }
    wrong = post(first, "/settings/autoFailover", {"enabled": "true"})
    assert (wrong.status, wrong.body) == (
        400,
        b'The value of "timeout" must be a positive integer in a range from 1 to 3600\n',
    )
    for form in ({}, {"enabled": "yes"}, {"enabled": "true", "timeout": "9", "maxCount": "0"}):
        assert post(first, "/settings/autoFailover", form).status == 400, form
    form = {"enabled": "true", "timeout": "30", "maxCount": "2", "canAbortRebalance": "true"}
    assert post(first, "/settings/autoFailover?just_validate=1", form).json == {"errors": None}
    assert not get(second, "/settings/autoFailover")["enabled"]
    assert post(first, "/settings/autoFailover", form).status == 200
    found = get(second, "/settings/autoFailover")
    assert (found["enabled"], found["timeout"], found["maxCount"], found["canAbortRebalance"]) == (True, 30, 2, True)
    assert shared.auto_failover.timeout_s == 30
    assert post(second, "/settings/autoFailover", {"enabled": "false"}).status == 200
    assert not shared.auto_failover.is_enabled
    assert post(second, "/settings/autoFailover/resetCount", {}).status == 200


# ------------------------------------------------------------------------------------------ changes reach every member


def test_a_bucket_made_on_one_node_is_on_all(cluster: Cluster):
    first, second = cluster.nodes
    form = {"name": "shop", "ramQuotaMB": "100", "flushEnabled": "1", "numVBuckets": "4"}
    assert post(first, BUCKETS, form).status == 202
    assert cluster.buckets == ["default", "shop"]
    with client(second, "shop") as kv:
        kv.set_many([(key, "{}") for key in KEYS])
    cluster.wait_until_drained("shop")
    assert all(None not in chain for chain in cluster.chains("shop"))
    # Settings.
    assert post(second, f"{BUCKETS}/shop", {"maxTTL": "60", "replicaNumber": "0"}).status == 200
    for node in (*cluster.nodes, cluster.add_node()):
        found = get(node, f"{BUCKETS}/shop")
        assert (found["maxTTL"], found["replicaNumber"]) == (60, 0), node
    assert not get(first, "/pools/default")["balanced"], "there are copies too many"
    cluster.rebalance()
    assert all(len(chain) == 1 for chain in cluster.chains("shop"))
    assert all(len(chain) == 2 for chain in cluster.chains())
    # It goes.
    assert ask(second.node, "DELETE", f"{BUCKETS}/shop").status == 200
    assert cluster.buckets == ["default"]
    for node in cluster.nodes:
        assert [item["name"] for item in get(node, BUCKETS)] == ["default"]


def test_a_bucket_is_emptied_on_all_nodes(cluster: Cluster):
    first, second = cluster.nodes
    refused = post(first, f"{BUCKETS}/default/controller/doFlush", {})
    assert (refused.status, refused.json) == (400, {"_": "Flush is disabled for the bucket"})
    assert post(first, f"{BUCKETS}/default", {"flushEnabled": "1"}).status == 200
    with client(first) as kv:
        kv.set_many([(key, "{}") for key in KEYS])
        cluster.wait_until_drained()
        assert post(second, f"{BUCKETS}/default/controller/doFlush", {}).status == 200
        assert kv.get_many(KEYS) == [None] * len(KEYS)
        for node in cluster.nodes:
            assert get(node, f"{BUCKETS}/default")["basicStats"]["itemCount"] == 0
        kv.set_many([(key, "{}") for key in KEYS[:20]])
    cluster.wait_until_drained()
    first.crash()
    report = cluster.fail_over(first)
    assert report.lost == {"default": []}
    with client(second) as kv:
        found = kv.get_many(KEYS)
    assert [item is not None for item in found] == [True] * 20 + [False] * 20, "the replicas were fed again"


def test_scopes_and_collections_made_on_one_node_are_on_all(cluster: Cluster):
    first, second = cluster.nodes
    scopes = f"{BUCKETS}/default/scopes"
    assert post(first, scopes, {"name": "shop"}).json == {"uid": "1"}
    made = post(second, f"{scopes}/shop/collections", {"name": "orders", "maxTTL": "9"})
    assert made.json == {"uid": "2"}
    taken = post(first, f"{scopes}/shop/collections", {"name": "orders"})
    assert taken.status == 400
    assert taken.json == {"errors": {"_": 'Collection with name "orders" in scope "shop" already exists'}}
    assert ask(first.node, "DELETE", f"{scopes}/none").status == 404
    added = cluster.add_node()
    manifests = {json.dumps(get(node, scopes), sort_keys=True) for node in (first, second, added)}
    assert len(manifests) == 1
    assert '"orders"' in manifests.pop()
    assert ask(second.node, "DELETE", f"{scopes}/shop").json == {"uid": "3"}
    assert [scope["name"] for scope in get(first, scopes)["scopes"]] == ["_default"]
    content = json.dumps({"scopes": [{"name": "inventory", "collections": [{"name": "airline"}]}]})
    assert ask(first.node, "PUT", scopes, body=content).status == 200
    assert "inventory" in [scope["name"] for scope in get(second, scopes)["scopes"]]
    assert ask(first.node, "PUT", scopes, body='{"scopes": 1}').status == 400


def test_users_and_groups_made_on_one_node_are_on_all(cluster: Cluster):
    first, second = cluster.nodes
    users, groups = "/settings/rbac/users/local", "/settings/rbac/groups"
    assert ask(first.node, "PUT", f"{groups}/readers", {"roles": "data_reader[default]"}).status == 200
    form = {"password": "secret-word", "roles": "data_writer[default]", "groups": "readers"}
    assert ask(second.node, "PUT", f"{users}/ann", form).status == 200
    added = cluster.add_node()
    for node in (first, second, added):
        assert {role["role"] for role in get(node, f"{users}/ann")["roles"]} == {"data_reader", "data_writer"}
    cluster.rebalance()
    with client(added, user="ann") as kv:
        kv.set("k", "{}")
    assert ask(first.node, "PUT", f"{users}/ann", {"roles": "data_reader[default]"}).status == 200, "no new password"
    with client(second, user="ann") as kv, pytest.raises(StatusError):
        kv.set("k", "{}")
    changed = post(second, "/controller/changePassword", {"password": "other-word"}, user="ann", password="secret-word")
    assert changed.status == 200
    for node in (first, second, added):
        with pytest.raises(AuthenticationFailed), client(node, user="ann") as kv:
            kv.get("k")
    assert ask(added.node, "DELETE", f"{users}/ann").status == 200
    assert ask(added.node, "DELETE", f"{groups}/readers").status == 200
    for node in (first, second):
        assert ask(node.node, "GET", f"{users}/ann").status == 404
        assert get(node, groups) == []


def test_the_administrator_s_new_password_holds_for_the_manager_too(cluster: Cluster):
    first, second = cluster.nodes
    assert post(first, "/controller/changePassword", {"password": "another"}).status == 200
    added = cluster.add_node()
    cluster.rebalance()
    for node in (second, added):
        assert ask(node.node, "GET", "/pools/default", password="another").status == 200
        assert ask(node.node, "GET", "/pools/default").status == 401


def test_settings_of_the_cluster_reach_all(cluster: Cluster):
    first, second = cluster.nodes
    epoch = get(first, "/pools/default/nodeServices")["revEpoch"]
    revisions = [get(node, "/pools/default/nodeServices")["rev"] for node in cluster.nodes]
    assert post(first, "/pools/default", {"clusterName": "trial", "memoryQuota": "2500"}).status == 200
    for node in (first, second, cluster.add_node()):
        found = get(node, "/pools/default")
        assert (found["clusterName"], found["memoryQuota"]) == ("trial", 2500)
    found = [get(node, "/pools/default/nodeServices") for node in (first, second)]
    assert [item["revEpoch"] for item in found] == [epoch, epoch]
    assert [item["rev"] for item in found] == revisions, "only the manager makes versions of the map"


def test_a_cluster_stops_although_an_order_is_under_way():
    """The page that waits for the manager does not hold its node up."""
    with Cluster(nodes=2, vbuckets=1, system_scope=False) as cluster:
        cluster.pause_replication()  # no replica of a new bucket is fed
        node = cluster.nodes[0]

        def make() -> None:
            with suppress(OSError, HTTPException):
                post(node, BUCKETS, {"name": "shop", "ramQuotaMB": "100", "numVBuckets": "1"})

        asking = threading.Thread(target=make, daemon=True)
        asking.start()
        wait_until(lambda: "shop" in node.node.buckets)
        cluster.stop()
        asking.join(TIMEOUT_S)
        assert not asking.is_alive()


def test_a_failover_waits_for_no_other_order():
    with Cluster(nodes=3, vbuckets=1, system_scope=False) as cluster:
        cluster.pause_replication()  # no replica of a new bucket is fed
        first, second, third = cluster.nodes
        answers: list[int] = []

        def make() -> None:
            form = {"name": "shop", "ramQuotaMB": "100", "numVBuckets": "1"}
            answers.append(post(first, BUCKETS, form).status)

        asking = threading.Thread(target=make, daemon=True)
        asking.start()
        wait_until(lambda: all("shop" in each.node.buckets for each in cluster.nodes))
        third.crash()
        assert post(second, "/controller/failOver", {"otpNode": third.name}).status == 200
        assert answers == [], "the other order is still under way"
        assert roles(first)[third.name] == ("inactiveFailed", "unhealthy")
        cluster.resume_replication()
        asking.join(TIMEOUT_S)
        assert len(answers) == 1, "it ended"


def test_the_state_in_python(cluster: Cluster):
    state = cluster.state()
    assert [(node.name, node.membership, node.is_healthy) for node in state.nodes] == [
        (node.name, Membership.ACTIVE, True) for node in cluster.nodes
    ]
    assert state.is_balanced
    assert state.task is None
