from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import dcpstream_node
from dcpstream.cli.app import run
from tests.kit.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[dcpstream_node.Cluster]:
    with dcpstream_node.Cluster(nodes=2, replicas=1, vbuckets=4) as running:
        yield running


class Shell:
    """Calls the command as a user of one node does."""

    def __init__(self, cluster: dcpstream_node.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster = cluster
        self._capsys = capsys
        self.error = ""

    def __call__(self, *words: str, expect: int = 0, ask: int = 0) -> str:
        url = f"http://127.0.0.1:{self._cluster.nodes[ask].mgmt_port}"
        status = run(["cluster", words[0], "--cluster", url, *words[1:]])
        out, self.error = self._capsys.readouterr()
        assert status == expect, self.error
        return out

    def status(self, **options: int) -> Any:
        return json.loads(self("status", "--json", **options))


@pytest.fixture
def shell(cluster: dcpstream_node.Cluster, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(cluster, capsys)


def place(node: Any) -> str:
    return f"127.0.0.1:{node.mgmt_port}"


def test_nodes_come_and_go(cluster: dcpstream_node.Cluster, shell: Shell) -> None:
    first, second = cluster.nodes
    assert shell("status") == f"{place(first)}  active          healthy\n{place(second)}  active          healthy\n"
    name = shell("add-node", "127.0.0.1:0").removeprefix("added ").strip()
    third = cluster.node(name)
    found = shell("status", expect=1)
    assert f"{place(third)}  inactiveAdded   healthy\nnot balanced: a rebalance is needed\n" in found
    assert shell("rebalance") == "done\n"
    assert shell.status()["balanced"]
    # The node that is asked leaves.
    assert shell("remove-node", place(first)) == "done\n"
    assert cluster.nodes == [second, third]
    assert [node["node"] for node in shell.status()["nodes"]] == [place(second), place(third)]
    assert json.loads(shell("rebalance", "--json", "--remove", third.name)) == {"result": "done"}
    assert cluster.nodes == [second]


def test_a_graceful_failover(cluster: dcpstream_node.Cluster, shell: Shell) -> None:
    third = cluster.add_node()
    cluster.rebalance()
    assert shell("failover", place(third)) == "done\n"
    found = shell.status(expect=1)
    assert [node["membership"] for node in found["nodes"]] == ["active", "active", "inactiveFailed"]
    assert not found["balanced"]
    assert shell("recover", place(third)) == f"{third.name} comes back with the next rebalance\n"
    assert "recovery delta" in shell("status", expect=1)
    assert shell("rebalance") == "done\n"
    assert shell.status()["balanced"]


def test_a_graceful_failover_of_several_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    with dcpstream_node.Cluster(nodes=4, replicas=2, vbuckets=4) as cluster:
        several = Shell(cluster, capsys)
        first, second, *others = cluster.nodes
        assert several("failover", place(others[0]), place(others[1])) == "done\n"
        assert {chain[0] for chain in cluster.chains()} == {first.name, second.name}
        found = [node["membership"] for node in several.status(expect=1)["nodes"]]
        assert found == ["active", "active", "inactiveFailed", "inactiveFailed"]


def test_a_hard_failover_of_a_node_that_is_gone(cluster: dcpstream_node.Cluster, shell: Shell) -> None:
    _, second = cluster.nodes
    second.crash()
    assert shell.status(expect=1)["nodes"][1]["status"] == "unhealthy"
    assert shell("failover", "--hard", place(second)) == "failed over\n"
    assert all(chain[0] == cluster.nodes[0].name for chain in cluster.chains())
    assert shell("rebalance") == "done\n"
    assert len(shell.status()["nodes"]) == 1


def test_a_rebalance_is_watched_and_stopped(cluster: dcpstream_node.Cluster, shell: Shell) -> None:
    cluster.add_node()
    cluster.pause_replication()
    assert shell("rebalance", "--no-wait") == "begun\n"
    found = shell.status(expect=1)
    assert (found["task"], found["progress"]) == ("rebalance", 0.0)
    assert "rebalance under way: 0%" in shell("status", expect=1)
    assert "Rebalance running." in refusal(shell, "failover", place(cluster.nodes[1]))
    assert shell("stop-rebalance") == "stopped\n"
    cluster.resume_replication()
    wait_until(lambda: cluster.state().task is None)
    assert "the last one ended early: Rebalance stopped by user." in shell("status", expect=1)
    # One that is waited for says why it ended.
    cluster.pause_replication()
    stopper = threading.Timer(0, lambda: stop(cluster))
    stopper.start()
    assert "Rebalance stopped by user." in refusal(shell, "rebalance")
    stopper.join()


def stop(cluster: dcpstream_node.Cluster) -> None:
    wait_until(lambda: cluster.state().task is not None)
    cluster.stop_rebalance()
    cluster.resume_replication()


def refusal(shell: Shell, *words: str, expect: int = 1) -> str:
    assert shell(*words, expect=expect) == ""
    return shell.error


def test_errors_say_what_to_do(cluster: dcpstream_node.Cluster, shell: Shell) -> None:
    assert "the cluster has no node elsewhere:8091. Its nodes are 127.0.0.1:" in refusal(
        shell, "failover", "elsewhere:8091", expect=2
    )
    assert "check --user and --password" in refusal(shell, "status", "--password", "wrong", expect=4)
    assert "Malformed URL host:port" in refusal(shell, "add-node", "host:port")
    assert "invalid node name" in refusal(shell, "recover", place(cluster.nodes[0]))
    cluster.stop()
    free = "http://127.0.0.1:1"
    assert run(["cluster", "status", "-c", free]) == 3
    assert run(["cluster", "status", "-c", "ftp://127.0.0.1"]) == 2
    assert run(["cluster", "status", "-c", "http://127.0.0.1:x"]) == 2
