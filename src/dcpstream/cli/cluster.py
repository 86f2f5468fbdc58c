"""`dcpstream cluster`: operate a cluster over its management port, ours or a Couchbase server's.

Only REST calls that both have are used, so the commands work with either.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import click

from dcpstream.cli.connection_options import LOGIN_OPTIONS
from dcpstream.cli.exits import FAILED, OK
from dcpstream.errors import AuthenticationFailed, ConfigError, ConnectionLost, DcpstreamError, TlsError

DEFAULT_CLUSTER = "http://127.0.0.1:8091"
REQUEST_TIMEOUT_S = 90.0
"""Longest wait for one answer: a hard failover is answered when it is through."""
REFRESH_S = 0.25
"""Pause between two looks at a rebalance if the cluster names none."""
BAR_LENGTH = 100
"""The bar counts percent."""
_OK = range(200, 300)
_REFUSED = (401, 403)

_F = TypeVar("_F", bound=Callable[..., Any])


class Cluster:
    """A cluster, as one of its management ports tells of it.

    Args:
        url: `http://HOST:PORT` or `https://HOST:PORT`.
        username, password: of an administrator.
        ca_file: PEM file of the authority that signed the certificate; None: those of the system.

    Raises: ConfigError: it is no such URL.
    """

    def __init__(self, url: str, username: str, password: str, ca_file: str | None = None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            self._scheme, self._host = parts.scheme, parts.hostname or ""
            self._port = parts.port or (18091 if parts.scheme == "https" else 8091)
        except ValueError:
            self._host = self._scheme = ""
        if self._scheme not in ("http", "https") or not self._host:
            raise ConfigError("--cluster", url, "http://HOST:PORT or https://HOST:PORT, the management port of a node")
        self._ca_file = ca_file
        login = base64.b64encode(f"{username}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}"}

    @property
    def url(self) -> str:
        """The management port that is asked."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._port}"

    def ask(self, hostname: str) -> None:
        """Ask another node from now on: the one that is asked is about to leave. TLS goes on with the same node.

        Args:
            hostname: HOST:PORT, as the cluster names it.
        """
        host, _, port = hostname.rpartition(":")
        if self._scheme == "http" and port.isdigit():
            self._host, self._port = host.strip("[]"), int(port)

    def get(self, path: str) -> Any:
        """The JSON of a page. Raises: as `post`."""
        return json.loads(self._request("GET", path, None))

    def post(self, path: str, form: Mapping[str, str] | Sequence[tuple[str, str]]) -> bytes:
        """Send a form.

        Raises:
            ConnectionLost: the node cannot be reached. AuthenticationFailed: it refuses the user.
            DcpstreamError: it refuses the request; the message has its words.
        """
        return self._request("POST", path, urlencode(form))

    def _request(self, method: str, path: str, body: str | None) -> bytes:
        if self._scheme == "https":
            try:
                context = ssl.create_default_context(cafile=self._ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    "--cacert",
                    self._ca_file,
                    "a PEM file of certificates",
                    message=f"--cacert: {self._ca_file} cannot be read: {error.strerror or error}. Give a PEM file",
                ) from error
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=REQUEST_TIMEOUT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_TIMEOUT_S)
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except ssl.SSLError as error:
            raise _tls_error(self.url, error) from error
        except (OSError, http.client.HTTPException) as error:
            raise _unreached(self.url, error) from error
        finally:
            connection.close()
        if answer.status in _REFUSED:
            raise AuthenticationFailed(
                f"{self.url} refuses {method} {path} ({answer.status}): check --user and --password, and the roles"
            )
        if answer.status not in _OK:
            raise DcpstreamError(f"{self.url} refused {method} {path} ({answer.status}): {_said(content)}")
        return content

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes, as /pools/default describes them."""
        return list(self.get("/pools/default")["nodes"])

    def task(self) -> dict[str, Any]:
        """The rebalance in the list of tasks, running or not."""
        found = [task for task in self.get("/pools/default/tasks") if task.get("type") == "rebalance"]
        return dict(found[0]) if found else {"status": "notRunning"}


def _tls_error(url: str, error: ssl.SSLError) -> TlsError:
    """The error for a TLS handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = (error.verify_message or str(error)).rstrip(".")
        text = f"the certificate of {url} is not trusted: {why}. Give the certificate of its authority with --cacert"
    else:
        text = f"{url} does not speak TLS: is this the port with TLS (18091)? Without TLS the URL begins with http://"
    return TlsError(text, cause=error)


def _unreached(url: str, error: OSError | http.client.HTTPException) -> ConnectionLost:
    """The error for a port that does not answer, or not in HTTP."""
    if isinstance(error, http.client.HTTPException):
        secured = "" if url.startswith("https") else ", or is it the one with TLS (https://HOST:18091)"
        text = f"{url} does not answer in HTTP: is this the management port (8091){secured}?"
    else:
        text = (
            f"{url} cannot be reached: {error.strerror or error}. Is the node running, and is this its management port?"
        )
    return ConnectionLost(text, cause=error)


def _said(content: bytes) -> str:
    """The error in an answer, in the words of the server."""
    text = content.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if isinstance(found, list):
        return "; ".join(map(str, found))
    if not isinstance(found, dict):
        return text
    if "mismatch" in found:
        return "the nodes of the cluster have changed meanwhile; try again"
    errors = found.get("errors", found)
    return "; ".join(f"{name}: {why}" if name != "_" else str(why) for name, why in errors.items())


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


def _options(command: _F) -> _F:
    """Where the cluster is and who asks; the command gets `cluster` and `as_json`."""
    for option in reversed(
        (
            click.option(
                "-c",
                "--cluster",
                "url",
                default=DEFAULT_CLUSTER,
                show_default=True,
                help="Management port of any node.",
            ),
            *LOGIN_OPTIONS,
            click.option("--cacert", help="PEM file of the authority of an https:// cluster.  [default: the system's]"),
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        )
    ):
        command = option(command)
    return command


_WAIT = click.option("--no-wait", is_flag=True, help="Return when it was begun; `status` shows how far it is.")


@click.group("cluster")
def cluster_command() -> None:
    """Operate a cluster over its management port, ours or a Couchbase server's.

    NODE is HOST:PORT as `status` prints it, or the node's `otpNode`.
    """


@cluster_command.command("status")
@_options
def status_command(url: str, username: str, password: str, cacert: str | None, as_json: bool) -> int:
    """Print the nodes with their roles, and what is under way.

    Exit statuses: 0 all is well, 1 a node is not active or not healthy, or a rebalance is needed or under way.
    """
    cluster = Cluster(url, username, password, cacert)
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
@_options
@click.option("--node-user", help="Administrator of the node that is added.  [default: --user]")
@click.option("--node-password", help="Their password.  [default: --password]")
def add_command(
    node: str,
    url: str,
    username: str,
    password: str,
    cacert: str | None,
    as_json: bool,
    node_user: str | None,
    node_password: str | None,
) -> None:
    """Add a node; it gets vbuckets by the next `rebalance`.

    HOST:PORT is its management port. A cluster of ours starts the node there, and port 0 is any free one.
    """
    cluster = Cluster(url, username, password, cacert)
    form = {"hostname": node, "services": "kv", "user": node_user or username, "password": node_password or password}
    added = json.loads(cluster.post("/controller/addNode", form))["otpNode"]
    click.echo(json.dumps({"otp_node": added}) if as_json else f"added {added}")


@cluster_command.command("rebalance")
@_options
@click.option("--remove", "removed", metavar="NODE", multiple=True, help="A node that leaves; may be repeated.")
@_WAIT
def rebalance_command(
    url: str,
    username: str,
    password: str,
    cacert: str | None,
    as_json: bool,
    removed: tuple[str, ...],
    no_wait: bool,
) -> int:
    """Give every node its share of the vbuckets; nodes that were failed over leave.

    Exit statuses: 0 done, 1 it ended early: the cluster says why, and the next one goes on from there.
    """
    return _rebalance(Cluster(url, username, password, cacert), removed, as_json=as_json, waits=not no_wait)


@cluster_command.command("remove-node")
@click.argument("nodes", metavar="NODE…", nargs=-1, required=True)
@_options
@_WAIT
def remove_command(
    nodes: tuple[str, ...],
    url: str,
    username: str,
    password: str,
    cacert: str | None,
    as_json: bool,
    no_wait: bool,
) -> int:
    """Move everything away from nodes, and remove them: a `rebalance --remove`."""
    return _rebalance(Cluster(url, username, password, cacert), nodes, as_json=as_json, waits=not no_wait)


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
    return _wait(cluster, "rebalance", as_json=as_json) if waits else _tell("begun", as_json=as_json)


@cluster_command.command("stop-rebalance")
@_options
def stop_command(url: str, username: str, password: str, cacert: str | None, as_json: bool) -> int:
    """Stop a rebalance or a graceful failover. What was moved stays moved; the map is whole."""
    cluster = Cluster(url, username, password, cacert)
    cluster.post("/controller/stopRebalance", {})
    return _tell("stopped", as_json=as_json)


@cluster_command.command("failover")
@click.argument("nodes", metavar="NODE…", nargs=-1, required=True)
@_options
@click.option("--hard", is_flag=True, help="Give nodes up at once: what only they have is lost.")
@_WAIT
def failover_command(
    nodes: tuple[str, ...],
    url: str,
    username: str,
    password: str,
    cacert: str | None,
    as_json: bool,
    hard: bool,
    no_wait: bool,
) -> int:
    """Give nodes up: their replicas are promoted. The next `rebalance` removes them.

    Without --hard a node's vbuckets are handed over first, and nothing is lost; one node at a time, and it must run.
    """
    cluster = Cluster(url, username, password, cacert)
    known = cluster.nodes()
    form = [("otpNode", _found(known, node)) for node in nodes]
    if hard:
        cluster.post("/controller/failOver", form)
        return _tell("failed over", as_json=as_json)
    cluster.post("/controller/startGracefulFailover", form)
    return _wait(cluster, "failover", as_json=as_json) if not no_wait else _tell("begun", as_json=as_json)


@cluster_command.command("recover")
@click.argument("node", metavar="NODE")
@_options
@click.option(
    "--type",
    "recovery",
    type=click.Choice(["delta", "full"]),
    default="delta",
    show_default=True,
    help="Whether the node's data is used again (delta) or deleted (full).",
)
def recover_command(
    node: str, url: str, username: str, password: str, cacert: str | None, as_json: bool, recovery: str
) -> int:
    """Have a node that was failed over come back with the next `rebalance`."""
    cluster = Cluster(url, username, password, cacert)
    name = _found(cluster.nodes(), node)
    cluster.post("/controller/setRecoveryType", {"otpNode": name, "recoveryType": recovery})
    return _tell(f"{name} comes back with the next rebalance", as_json=as_json)


def _tell(text: str, *, as_json: bool) -> int:
    click.echo(json.dumps({"result": text}) if as_json else text)
    return OK


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
    return _tell("done", as_json=as_json)
