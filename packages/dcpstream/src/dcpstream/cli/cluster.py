"""`dcpstream cluster`: operate a cluster over its management port, ours or a Couchbase server's.

Only REST calls that both have are used, so the commands work with either.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import click

from dcpstream.cli.exits import FAILED, OK
from dcpstream.cli.management import Management, management_options
from dcpstream.cli.output import report
from dcpstream.errors import ConfigError, DcpstreamError

REFRESH_S = 0.25
"""Pause between two looks at a rebalance if the cluster names none."""
BAR_LENGTH = 100
"""The bar counts percent."""


class Cluster(Management):
    """A cluster, as the management port of one of its nodes shows it."""

    def ask(self, hostname: str) -> None:
        """Ask another node from now on: the one that is asked is about to leave. TLS goes on with the same node.

        Args:
            hostname: HOST:PORT, as the cluster names it.
        """
        host, _, port = hostname.rpartition(":")
        if self._scheme == "http" and port.isdigit():
            self._host, self._port = host.strip("[]"), int(port)

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes, as /pools/default describes them."""
        return list(self.get("/pools/default")["nodes"])

    def task(self) -> dict[str, Any]:
        """The rebalance in the list of tasks, running or not."""
        found = [task for task in self.get("/pools/default/tasks") if task.get("type") == "rebalance"]
        return dict(found[0]) if found else {"status": "notRunning"}


def _found(nodes: Sequence[Mapping[str, Any]], wanted: str) -> str:
    """The `otpNode` of a node that the user names by HOST:PORT, or by that name itself.

    Raises: ConfigError: there is none, or more than one.
    """
    names = [
        str(node["otpNode"])
        for node in nodes
        if wanted in (node["otpNode"], node["hostname"], str(node["hostname"]).rpartition(":")[0])
    ]
    if len(names) != 1:
        there = ", ".join(str(node["hostname"]) for node in nodes)
        message = f"the cluster has no node {wanted}. Its nodes are {there}"
        raise ConfigError("NODE", wanted, there, message=message)
    return names[0]


_WAIT = click.option("--no-wait", is_flag=True, help="Return when it was begun; `status` shows how far it is.")


@click.group("cluster")
def cluster_command() -> None:
    """Operate a cluster over its management port, ours or a Couchbase server's.

    NODE is HOST:PORT as `status` prints it, or the node's `otpNode`.
    """


@cluster_command.command("status")
@management_options(Cluster)
def status_command(cluster: Cluster, as_json: bool) -> int:
    """Print the nodes with their roles, and what is under way.

    Exit statuses: 0 all is well, 1 a node is not active or not healthy, or a rebalance is needed or under way.
    """
    pool, task = cluster.get("/pools/default"), cluster.task()
    nodes = [
        {"node": node["hostname"], "otp_node": node["otpNode"], "membership": node["clusterMembership"]}
        | {"status": node["status"], "recovery": node.get("recoveryType", "none"), "services": node["services"]}
        for node in pool["nodes"]
    ]
    progress = task.get("progress", 0.0) / 100 if task["status"] == "running" else None
    is_well = bool(pool["balanced"]) and progress is None
    is_well &= all((node["membership"], node["status"]) == ("active", "healthy") for node in nodes)
    if as_json:
        content = {
            "nodes": nodes,
            "balanced": pool["balanced"],
            "task": task.get("subtype") if progress is not None else None,
        }
        content |= {"progress": progress, "error": task.get("errorMessage")}
        click.echo(json.dumps(content, indent=2))
        return OK if is_well else FAILED
    width = max(len(str(node["node"])) for node in nodes)
    for node in nodes:
        recovery = f"  recovery {node['recovery']}" if node["recovery"] != "none" else ""
        click.echo(f"{node['node']:<{width}}  {node['membership']:<14}  {node['status']}{recovery}")
    if progress is not None:
        click.echo(f"{task.get('subtype', 'rebalance')} under way: {progress:.0%}")
    elif not pool["balanced"]:
        click.echo("not balanced: a rebalance is needed")
    if task.get("errorMessage"):
        click.echo(f"the last one ended early: {task['errorMessage']}")
    return OK if is_well else FAILED


@cluster_command.command("add-node")
@click.argument("node", metavar="HOST:PORT")
@management_options(Cluster)
@click.option("--node-user", help="Administrator of the node that is added.  [default: --user]")
@click.option("--node-password", help="Their password.  [default: --password]")
def add_command(
    node: str,
    cluster: Cluster,
    as_json: bool,
    node_user: str | None,
    node_password: str | None,
) -> None:
    """Add a node; it gets vbuckets by the next `rebalance`.

    HOST:PORT is its management port. A cluster of ours starts the node there: the port must be free, and 0 is any.
    """
    form = {
        "hostname": node,
        "services": "kv",
        "user": node_user or cluster.username,
        "password": node_password or cluster.password,
    }
    added = json.loads(cluster.post("/controller/addNode", form))["otpNode"]
    click.echo(json.dumps({"otp_node": added}) if as_json else f"added {added}")


@cluster_command.command("rebalance")
@management_options(Cluster)
@click.option("--remove", "removed", metavar="NODE", multiple=True, help="A node that leaves; may be repeated.")
@_WAIT
def rebalance_command(
    cluster: Cluster,
    as_json: bool,
    removed: tuple[str, ...],
    no_wait: bool,
) -> int:
    """Give every node its share of the vbuckets; nodes that were failed over leave.

    Exit statuses: 0 done, 1 it ended early: the cluster says why, and the next one goes on from there.
    """
    return _rebalance(cluster, removed, as_json=as_json, waits=not no_wait)


@cluster_command.command("remove-node")
@click.argument("nodes", metavar="NODE…", nargs=-1, required=True)
@management_options(Cluster)
@_WAIT
def remove_command(
    nodes: tuple[str, ...],
    cluster: Cluster,
    as_json: bool,
    no_wait: bool,
) -> int:
    """Move everything away from nodes, and remove them: a `rebalance --remove`."""
    return _rebalance(cluster, nodes, as_json=as_json, waits=not no_wait)


def _rebalance(cluster: Cluster, removed: Sequence[str], *, as_json: bool, waits: bool) -> int:
    nodes = cluster.nodes()
    ejected = [_found(nodes, each) for each in removed]
    # The node that was asked may leave.
    this = next((node for node in nodes if node.get("thisNode")), None)
    if this is not None and this["otpNode"] in ejected:
        staying = [node for node in nodes if node["otpNode"] not in ejected and node["clusterMembership"] == "active"]
        for node in staying[:1]:
            cluster.ask(str(node["hostname"]))
    form = {"knownNodes": ",".join(str(node["otpNode"]) for node in nodes), "ejectedNodes": ",".join(ejected)}
    cluster.post("/controller/rebalance", form)
    return _wait(cluster, "rebalance", as_json=as_json) if waits else report("begun", as_json=as_json)


@cluster_command.command("stop-rebalance")
@management_options(Cluster)
def stop_command(cluster: Cluster, as_json: bool) -> int:
    """Stop a rebalance or a graceful failover. What was moved stays moved; the map is whole."""
    cluster.post("/controller/stopRebalance", {})
    return report("stopped", as_json=as_json)


@cluster_command.command("failover")
@click.argument("nodes", metavar="NODE…", nargs=-1, required=True)
@management_options(Cluster)
@click.option("--hard", is_flag=True, help="Give nodes up at once: what only they have is lost.")
@_WAIT
def failover_command(
    nodes: tuple[str, ...],
    cluster: Cluster,
    as_json: bool,
    hard: bool,
    no_wait: bool,
) -> int:
    """Give nodes up: their replicas are promoted. The next `rebalance` removes them.

    Without --hard the nodes' vbuckets are handed over first, and nothing is lost: the nodes must run, and each of their
    vbuckets needs a replica on a node that stays.
    """
    known = cluster.nodes()
    form = [("otpNode", _found(known, node)) for node in nodes]
    if hard:
        cluster.post("/controller/failOver", form)
        return report("failed over", as_json=as_json)
    cluster.post("/controller/startGracefulFailover", form)
    return _wait(cluster, "failover", as_json=as_json) if not no_wait else report("begun", as_json=as_json)


@cluster_command.command("recover")
@click.argument("node", metavar="NODE")
@management_options(Cluster)
@click.option(
    "--type",
    "recovery",
    type=click.Choice(["delta", "full"]),
    default="delta",
    show_default=True,
    help="Whether the node's data is used again (delta) or deleted (full).",
)
def recover_command(node: str, cluster: Cluster, as_json: bool, recovery: str) -> int:
    """Have a node that was failed over come back with the next `rebalance`."""
    name = _found(cluster.nodes(), node)
    cluster.post("/controller/setRecoveryType", {"otpNode": name, "recoveryType": recovery})
    return report(f"{name} comes back with the next rebalance", as_json=as_json)


def _wait(cluster: Cluster, what: str, *, as_json: bool) -> int:
    """Show a bar until the task is over; returns the exit status."""
    pausing = threading.Event()
    with click.progressbar(length=BAR_LENGTH, label=what, file=sys.stderr, hidden=as_json) as bar:
        while (task := cluster.task())["status"] == "running":
            bar.update(int(task.get("progress", 0.0)) - bar.pos)
            pausing.wait(float(task.get("recommendedRefreshPeriod", REFRESH_S)))
        error = task.get("errorMessage")
        if not error:
            bar.update(BAR_LENGTH - bar.pos)
    if error:
        raise DcpstreamError(str(error))
    return report("done", as_json=as_json)
