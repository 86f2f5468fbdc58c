"""The clients and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dcpstream.model import BucketSettings
from dcpstream.wire.release import DEFAULT_RELEASE, RELEASES, release_number
from dcpstream_node import Cluster, Node
from lab.interop import building, capture, fleet, running
from lab.interop.building import HERE, Say
from lab.interop.running import Outcome


@dataclass(frozen=True, slots=True)
class Client:
    """A client.

    Attributes:
        name: of the client.
        version: of the client.
        prepare: returns the beginning of a command line; raises `building.Missing` if this machine cannot run it.
        directory: working directory of its programs.
    """

    name: str
    version: str
    prepare: Callable[[Say], list[str]]
    directory: Path = HERE


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a client.

    Attributes:
        client: key of `CLIENTS`.
        name: of the test, short.
        what: description for people.
        arguments: of the program, between the result of `prepare` and the node's address.
        on_disk: whether the node keeps its data in files.
        options: of the node, or of the cluster.
        nodes: more than one: the check has a cluster of so many nodes, which come and go while it runs.
        watches: the check whose session is captured and decoded, for tshark.
        release: of the nodes.
    """

    client: str
    name: str
    what: str
    arguments: tuple[str, ...]
    on_disk: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    nodes: int = 1
    watches: str = ""
    release: str = DEFAULT_RELEASE.name

    def command(self, begin: list[str], node: Node | Cluster, authority: Path) -> list[str]:
        """The whole command line; clients of a node with TLS must trust the certificate in the file."""
        login = ["-user", node.username, "-password", node.password]
        if node.has_tls:
            place = ["-connect", node.tls_connection_string, "-ca", str(authority)]
        else:
            place = ["-connect", node.connection_string]
        return [*begin, *self.arguments, *place, *login]

    def sort_out(self, outcome: Outcome) -> None:
        """Take the parts that the release cannot have, and those that its known bugs break, out of the failed ones.

        A part that passes although only later releases have what it uses has failed.
        """
        bugs = {bug.value.id for bug in RELEASES[self.release].bugs}
        for part in list(outcome.failed):
            if self._is_later(part):
                outcome.later.append(part)
            elif BUGS.get(part) in bugs:
                outcome.bugs[part] = BUGS[part]
            else:
                continue
            del outcome.failed[part]
        for part in filter(self._is_later, list(outcome.passed)):
            outcome.passed.remove(part)
            outcome.failed[part] = "it passed, although servers have it only since a later release"

    def _is_later(self, part: str) -> bool:
        since = (release for name, release in SINCE.items() if part.startswith(name))
        return any(release_number(release) > release_number(self.release) for release in since)


CLIENTS = {
    "python": Client("Python SDK", building.python_sdk_version(), building.python_sdk, HERE / "python"),
    "gocbcore": Client("gocbcore", "10.9.3", building.go),
    "java-dcp": Client("java-dcp-client", "0.56.0", building.java),
    "java": Client("Java SDK", "3.9.2", building.java),
    "kafka-connect": Client(
        "Kafka Connect 4.1.0, Couchbase connector", building.connector_version(), building.kafka, HERE / "python"
    ),
    "own": Client("dcpstream", "", building.own, HERE / "python"),
    "tshark": Client("tshark", "", building.tshark),
}

HISTORY = {"settings": BucketSettings(history_retention_s=3600)}
TLS = {"tls": True}

CHECKS = [
    Check("python", "python-kv", "every public key-value call, SCRAM-SHA512", ("kv.py",)),
    Check(
        "python",
        "python-kv-tls",
        "the same on disk with 1,024 vbuckets, TLS, PLAIN",
        ("kv.py", "-plain"),
        on_disk=True,
        options={"vbuckets": 1024, **TLS},
    ),
    Check("python", "python-manage", "log-ins, buckets, scopes and collections", ("manage.py",)),
    Check(
        "python", "python-manage-tls", "the same on disk, TLS", ("manage.py", "-kept", "yes"), on_disk=True, options=TLS
    ),
    Check("gocbcore", "gocbcore-kv", "key-value agent, PLAIN: all groups of calls", ("kv",)),
    Check(
        "gocbcore",
        "gocbcore-kv-tls",
        "the same on disk, TLS, SCRAM-SHA512",
        ("kv", "-auth", "SCRAM-SHA512"),
        on_disk=True,
        options=TLS,
    ),
    Check("gocbcore", "gocbcore-dcp", "DCP agent: every key and value by hash", ("dcp",)),
    Check(
        "gocbcore",
        "gocbcore-dcp-disk",
        "the same on disk with the history of documents, SCRAM-SHA256",
        ("dcp", "-auth", "SCRAM-SHA256", "-history", "-kept"),
        on_disk=True,
        options=HISTORY,
    ),
    Check(
        "gocbcore",
        "gocbcore-dcp-tls",
        "the same on disk, 5,000 documents in three collections, TLS, SCRAM-SHA1",
        ("dcp", "-auth", "SCRAM-SHA1", "-count", "5000", "-kept"),
        on_disk=True,
        options=TLS,
    ),
    Check("java-dcp", "java-dcp", "low level, high level, rollback mitigation, flow control, restarts", ("Feeds",)),
    Check(
        "java-dcp",
        "java-dcp-tls",
        "the same on disk, TLS",
        ("Feeds", "-kept", "yes"),
        on_disk=True,
        options=TLS,
    ),
    Check("java", "java-kv", "key-value calls, managers of collections and buckets", ("Kv",)),
    Check("java", "java-kv-tls", "the same on disk, TLS", ("Kv",), on_disk=True, options=TLS),
    Check(
        "python",
        "python-cluster",
        "durable and plain writes through rebalance, failover and replacement of a node",
        ("kv_moves.py",),
        nodes=3,
    ),
    Check("python", "python-cluster-tls", "the same, TLS", ("kv_moves.py",), options=TLS, nodes=3),
    Check(
        "gocbcore",
        "gocbcore-cluster",
        "key-value and DCP agents through rebalance, failover and replacement of a node",
        ("moves",),
        nodes=3,
    ),
    Check("gocbcore", "gocbcore-cluster-tls", "the same, TLS", ("moves",), options=TLS, nodes=3),
    Check(
        "java",
        "java-cluster",
        "durable and plain writes through rebalance, failover and replacement of a node",
        ("Moves",),
        nodes=3,
    ),
    Check(
        "java-dcp",
        "java-dcp-cluster",
        "follows such writes of the Java SDK, every change once",
        ("Moves", "-follow", "yes"),
        nodes=3,
    ),
    Check(
        "own",
        "own-cluster",
        "writes, reads and changes through rebalance, failover and replacement of a node",
        ("own_moves.py",),
        nodes=3,
    ),
    Check(
        "kafka-connect",
        "kafka-connect",
        "goes on where dcpstream ended, and the other way round (`dcpstream offsets`)",
        ("-vbuckets", "8"),
        options={"vbuckets": 8},
    ),
    Check("tshark", "tshark-python", "decodes a session of the Python SDK", (), watches="python-kv"),
    Check("tshark", "tshark-gocbcore", "decodes a session of gocbcore's DCP agent", (), watches="gocbcore-dcp"),
    Check("tshark", "tshark-java", "decodes a session of java-dcp-client", (), watches="java-dcp"),
]


SINCE = {"range scan": "7.6", "lookup in replicas": "7.6"}
"""The beginning of a part's name → the first release whose servers have what it uses. Before it, the part fails."""

BUGS = {"keys without values": "MB-23898-keys-only"}
"""Part → the bug of servers by which it may fail."""

_PREPARED: dict[str, list[str] | Exception] = {}


def prepare(name: str, say: Say) -> list[str]:
    """The beginning of a client's command line, cached in this process.

    Raises:
        building.Missing: this machine cannot run it. building.BuildError: a program of ours does not compile.
    """
    if name not in _PREPARED:
        try:
            _PREPARED[name] = CLIENTS[name].prepare(say)
        except (building.Missing, building.BuildError) as error:
            # Wait only once for a network that does not answer.
            _PREPARED[name] = error
    found = _PREPARED[name]
    if isinstance(found, Exception):
        raise found
    return found


def judge(check: Check, begin: list[str]) -> Outcome:
    """Run a check against a fresh node, or a fresh cluster.

    Raises:
        building.Missing: the client of the captured session cannot be run here, or capturing is not allowed.
    """
    if check.watches:
        watched = next(item for item in CHECKS if item.name == check.watches)
        its_begin = prepare(watched.client, lambda _: None)
        options = {**watched.options, "release": check.release}

        def drive(node: Node) -> Outcome:
            return _run(watched, its_begin, node, partial(running.order, node))

        return capture.judge(begin, drive, options)
    options = {**check.options, "release": check.release}
    if check.nodes > 1:
        with fleet.served(check.nodes, options) as cluster:
            return _run(check, begin, cluster, partial(fleet.order, cluster))
    with running.served(on_disk=check.on_disk, options=options) as node:
        return _run(check, begin, node, partial(running.order, node))


def _run(check: Check, begin: list[str], node: Node | Cluster, order: Callable[[str], None]) -> Outcome:
    with TemporaryDirectory() as directory:
        authority = Path(directory) / "ca.pem"
        authority.write_text(node.ca_certificate, encoding="utf-8")
        command = check.command(begin, node, authority)
        outcome = running.run(command, order, CLIENTS[check.client].directory)
    check.sort_out(outcome)
    return outcome
