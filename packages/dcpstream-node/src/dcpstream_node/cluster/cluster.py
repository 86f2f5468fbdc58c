"""`Cluster`: several nodes, in this process or in processes of their own, and their orchestrator, as one object."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from dcpstream.errors import ConfigError, DcpstreamError, StoreError
from dcpstream.model import (
    AutoFailover,
    BucketSettings,
    ClusterState,
    ClusterTask,
    Manifest,
    Membership,
    NodeAddress,
    NodeState,
)
from dcpstream.model.cluster import MAX_VBUCKETS
from dcpstream.runtime import SystemClock, SystemRandom, held_collector
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule, release_of
from dcpstream_node.cluster.capture import Capture
from dcpstream_node.cluster.cluster_file import ClusterFile
from dcpstream_node.cluster.machine.failover import FailoverReport, GracefulFailover, fail_over
from dcpstream_node.cluster.machine.layout import Chain
from dcpstream_node.cluster.machine.moves import MoveCancelled
from dcpstream_node.cluster.machine.orchestrator import Orchestrator
from dcpstream_node.cluster.machine.rebalance import Rebalance, is_balanced
from dcpstream_node.cluster.machine.record import new_record, take_record, to_record
from dcpstream_node.cluster.machine.recovery import add_back, rejoin
from dcpstream_node.cluster.machine.restart import resume
from dcpstream_node.cluster.machine.state import BucketState, Member, Recovery
from dcpstream_node.cluster.machine.tasks import Procedure
from dcpstream_node.cluster.machine.watch import Watch
from dcpstream_node.cluster.shell import Shell
from dcpstream_node.directory.directory import FILE_NAME as NODE_FILE
from dcpstream_node.embedded import DEFAULT_PASSWORD, DEFAULT_USERNAME, Node, check_kinds, check_port, check_vbuckets
from dcpstream_node.engine.bucket.manifest import ManifestError
from dcpstream_node.engine.bucket.manifest_editor import ManifestEditor, with_collections
from dcpstream_node.flow import BucketTraffic, Flow, flow_of
from dcpstream_node.shell.listeners import is_loopback, is_unspecified
from dcpstream_node.shell.tls import TlsSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CLUSTER_NODES = 16
"""Nodes of a cluster on one machine; each has a thread and its connections to all others."""
NODE_DIRECTORY = "node-"
"""Before the number of a node, in the name of its directory."""
MAX_REPLICAS = 3
"""As on the server."""
READY_TIMEOUT_S = 60.0
"""Longest wait until a new bucket's copies are fed; it takes a fraction of a second."""
DRAIN_PAUSE_S = 0.005
"""Pause between two looks whether the replicas have everything."""
DRAIN_TIMEOUT_S = 60.0
REBALANCE_TIMEOUT_S = 600.0
FAILOVER_TIMEOUT_S = 60.0
FLOW_TIMEOUT_S = 1.0
"""Longest wait for what nodes tell of themselves, which a page shows every two seconds; it takes milliseconds."""
STOPPED = "Rebalance stopped by user."
FAILED = "{} failed. See logs for detailed reason. You can try again."
"""Why the last rebalance ended early, in the server's words."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The directory and the ports of a node of the cluster.

    Attributes:
        number: the number in the directory's name; none is used twice.
        offset: its ports are the first node's and so many more.
        mgmt_port: the management port that it was added with; 0 for others.
    """

    number: int
    offset: int = 0
    mgmt_port: int = 0


@dataclass(slots=True, eq=False)
class ClusterNode:
    """A node of a cluster.

    Attributes:
        name: as the orchestrator calls it.
        node: the node itself.
        release: its server release.
    """

    name: str
    node: Node
    release: Release

    @property
    def port(self) -> int:
        """The KV port."""
        return self.node.port

    @property
    def mgmt_port(self) -> int:
        """The management port."""
        return self.node.mgmt_port

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self.node.is_running

    @property
    def connection_string(self) -> str:
        """The connection string to this node; the cluster's names all nodes."""
        return self.node.connection_string

    def crash(self) -> None:
        """Stop as if killed; a process of its own is killed (SIGKILL).

        The cluster serves the node's vbuckets again after a failover, or after `Cluster.restart_node`.
        """
        self.node.crash()

    @property
    def is_paused(self) -> bool:
        """Whether its process was paused."""
        return self.node.is_paused

    def pause(self) -> None:
        """Let it hang: its process stops where it is, its connections stay open (SIGSTOP).

        Raises: DcpstreamError: it has no process of its own.
        """
        self.node.pause()

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT). Raises: as `pause`."""
        self.node.resume()

    def __str__(self) -> str:
        """The name, for use in texts."""
        return self.name


class RunningRebalance:
    """A rebalance or a graceful failover that was begun.

    Attributes:
        kind: rebalance or gracefulFailover.
        ejected: names of the nodes that leave with it.
        is_done: whether it is over.
    """

    def __init__(
        self,
        rebalance: Rebalance | GracefulFailover,
        left: concurrent.futures.Future[Any],
        shell: Shell,
        kind: str,
        ejected: Sequence[str] = (),
    ) -> None:
        self._rebalance = rebalance
        self._left = left
        self._shell = shell
        self.kind = kind
        self.ejected = tuple(ejected)

    @property
    def is_done(self) -> bool:
        """Whether it is over: through, cancelled or failed."""
        return self._left.done()

    @property
    def error(self) -> str:
        """Why it ended early; empty while it runs, and if it is through."""
        error = self._left.exception() if self._left.done() else None
        if error is None:
            return ""
        if isinstance(error, MoveCancelled):
            return STOPPED
        return FAILED.format("Rebalance" if self.kind == "rebalance" else "Graceful failover")

    @property
    def progress(self) -> float:
        """The share of the vbuckets to move that are where they shall be, 0 to 1."""
        return 1.0 if self._left.done() and self._left.exception() is None else self._rebalance.progress

    def cancel(self) -> None:
        """Begin no more moves; `wait` returns when those under way are over. The map is consistent then."""
        self._shell.call(self._rebalance.cancel)

    def wait(self, timeout_s: float = REBALANCE_TIMEOUT_S) -> bool:
        """Wait for the end; returns whether everything was moved: False after `cancel`.

        Raises: TimeoutError: it is not over. DcpstreamError: a node failed; the map is consistent.
        """
        try:
            self._left.result(timeout_s)
        except MoveCancelled:
            return False
        return True


class Cluster:
    """Several nodes on this machine that are one cluster.

    Args:
        nodes: how many, 1 to 16.
        replicas: copies of each vbucket in addition to the active one, 0 to 3.
        buckets: names of buckets that are made.
        vbuckets: of each new bucket, 1 to 1024. None: 1,024, or the number that the cluster in `path` was made with.
        settings: of the buckets; the number of replicas is `replicas`.
        port, mgmt_port: of the first node; each further node has the next one. 0: any free ones.
        username, password: the administrator.
        processes: whether each node runs in a process of its own, see `dcpstream_node.Node`.
        path: directory for the data, with a directory for each node; None keeps it in memory. A cluster that was there
            goes on: with its nodes, buckets, users and settings. It must have as many nodes and replicas as are given.
        auto_failover: settings of the automatic failover; None: those of before, or as on a server, after 120 s of
            silence.
        capture: a file that gets every frame that passes between nodes; `dcpstream decode` reads it.
        tls: encrypted ports of every node, too; True makes the certificates, all by one authority, see `TlsSettings`.
            Ports are those of the first node, as with `port`.
        release: the server release of every node, or a list with one for each; nodes that are added later are of the
            last one. Clients see no capability in the map that the oldest node does not have.
        system_scope: whether new buckets have the scope `_system`, if the release of the oldest node has it.
        options: other arguments of every `Node`, but not `alternate_addresses`.

    Attributes:
        nodes: those that are in the cluster or were added to it; one that left is taken out.
        auto_failover: settings of the automatic failover, and how often it acted; `set_auto_failover` changes them.

    Raises:
        ConfigError: an option with an unusable value; at the start, one that does not fit the cluster in `path`.
        StoreError: the data cannot be used, at the start.
    """

    def __init__(
        self,
        nodes: int = 3,
        replicas: int = 1,
        buckets: Sequence[str] = ("default",),
        *,
        vbuckets: int | None = None,
        settings: BucketSettings | None = None,
        port: int = 0,
        mgmt_port: int = 0,
        username: str = DEFAULT_USERNAME,
        password: str = DEFAULT_PASSWORD,
        capture: str | Path | None = None,
        processes: bool = False,
        path: str | Path | None = None,
        auto_failover: AutoFailover | None = None,
        tls: TlsSettings | bool | None = None,
        release: str | Sequence[str] = DEFAULT_RELEASE.name,
        system_scope: bool = True,
        **options: Any,
    ) -> None:
        if not 1 <= nodes <= MAX_CLUSTER_NODES:
            raise ConfigError("nodes", nodes, f"1 to {MAX_CLUSTER_NODES}")
        if not 0 <= replicas <= MAX_REPLICAS:
            raise ConfigError("replicas", replicas, f"0 to {MAX_REPLICAS}")
        for option in ("process", "alternate_addresses"):
            if options.get(option):
                raise ConfigError(option, options[option], "nothing: a cluster cannot have that, only a single node")
        if vbuckets is not None:
            check_vbuckets(vbuckets)
        for option, first in (("port", port), ("mgmt_port", mgmt_port)):
            check_port(option, first)
        self._releases = [release] if isinstance(release, str) else list(release)
        for each in self._releases:
            release_of(each)
        if not self._releases or len(self._releases) > nodes:
            raise ConfigError("release", release, f"a release, or a list of 1 to {nodes}")
        self.replicas = replicas
        self.username = username
        self.password = password
        self._count = nodes
        self._first_ports = port, mgmt_port
        self._next_offset = 0
        self._next_number = 1
        self._places: dict[str, _Place] = {}
        self._ports: dict[int, tuple[int, int, int, int]] = {}
        self._bucket_names = tuple(dict.fromkeys(buckets))
        self._wanted_vbuckets = vbuckets
        self._vbuckets = MAX_VBUCKETS if vbuckets is None else vbuckets
        self._settings = replace(settings or BucketSettings(), replicas=replicas)
        check_kinds(None, tls)
        self._tls = TlsSettings() if tls is True else tls or None
        self._options = options
        self._has_system_scope = system_scope
        self._has_processes = processes
        self._path = Path(path) if path is not None else None
        self._file = ClusterFile(self._path) if self._path is not None else None
        self._capture_path = Path(capture) if capture is not None else None
        self._capture: Capture | None = None
        self._made: dict[str, tuple[BucketSettings, int]] = {}
        self._users: dict[str, Any] | None = None
        self._pool: tuple[str | None, dict[str, int]] = None, {}
        self._changes = threading.RLock()
        self._balance: tuple[object, bool] = None, True
        self._lookers = concurrent.futures.ThreadPoolExecutor(MAX_CLUSTER_NODES, "dcpstream-look")
        self._looks: dict[str, concurrent.futures.Future[dict[str, BucketTraffic]]] = {}
        self._orchestrator: Orchestrator | None = None
        self._shell: Shell | None = None
        self._rebalance: RunningRebalance | None = None
        self.nodes: list[ClusterNode] = []
        self._has_auto_failover = auto_failover is not None
        self.auto_failover = auto_failover or AutoFailover(is_enabled=True)

    # ------------------------------------------------------------------------------------------------------- its life

    def start(self) -> Self:
        """Serve; returns when every bucket's replicas are fed. A cluster that runs already is left alone.

        A cluster that was stopped takes the ports again that it had.

        Raises: ConfigError, StoreError, DcpstreamError: a node could not be started, or the data cannot be used.
        """
        if self._shell is not None:
            return self
        clock, random = SystemClock(), SystemRandom()
        content = self._read()
        with held_collector(), ExitStack() as undo:
            undo.callback(self.stop)
            orchestrator = Orchestrator(
                random, epoch=clock.time_ns() // 1_000_000, cluster_uuid=f"{random.getrandbits(128):032x}"
            )
            self._orchestrator = orchestrator
            if self._capture_path is not None:
                self._capture = orchestrator.capture = Capture(self._capture_path)
            if content is None:
                places = [_Place(self._take_number(), self._take_offset()) for _ in range(self._count)]
                self._write(places, new_record(orchestrator, len(places)))
            else:
                places = self._take(content)
            members = [self._start_node(place) for place in places]
            record = content["record"] if content is not None else new_record(orchestrator, len(members))
            with self._understood():
                take_record(orchestrator, record, members)
            orchestrator.keep = self._keep if self._file is not None else None
            self._shell = Shell(orchestrator, clock).start()
            if orchestrator.buckets:
                self._carry_out(resume)
            for name in dict.fromkeys((*self._made, *self._bucket_names)):
                if name not in orchestrator.buckets:
                    self.create_bucket(name, *self._made.get(name, ()))
            self._shell.begin(Watch(orchestrator, lambda: self.auto_failover, self._note_failover).run)
            undo.pop_all()
        return self

    # ------------------------------------------------------------------------------------------- what a restart needs

    def _read(self) -> dict[str, Any] | None:
        """The content of the cluster's file, if there is one that fits the options.

        Raises: ConfigError: the directory has something else. StoreError: the file cannot be used.
        """
        if self._file is None or self._path is None:
            return None
        content = self._file.read()
        if content is None:
            if self._path.is_dir() and any(self._path.glob(f"{NODE_DIRECTORY}*")):
                lost = f"a directory of a cluster with its file {self._file.path.name}, or one without nodes"
                raise ConfigError("path", str(self._path), lost)
            if (self._path / NODE_FILE).exists():
                raise ConfigError("path", str(self._path), "a directory that does not hold the data of a single node")
            return None
        with self._understood():
            there = {
                "nodes": (self._count, len(content["places"])),
                "replicas": (self.replicas, content["replicas"]),
                "vbuckets": (self._wanted_vbuckets or content["vbuckets"], content["vbuckets"]),
            }
        for option, (given, kept) in there.items():
            if given != kept:
                message = (
                    f"{option}={given}: the cluster in {self._path} has {option}={kept}; give that, or another path"
                )
                raise ConfigError(option, given, str(kept), message=message)
        return content

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Turn errors that come from the file's content into a StoreError."""
        try:
            yield
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            if self._file is None:
                raise
            raise self._file.not_understood(error) from error

    def _take(self, content: Mapping[str, Any]) -> list[_Place]:
        """Go on with what another run kept; returns the places of its nodes."""
        with self._understood():
            places = [_Place(**entry) for entry in content["places"]]
            self._next_number = int(content["next_number"])
            self._next_offset = max(place.offset for place in places) + 1
            self._vbuckets = int(content["vbuckets"])
            self._made = {
                name: (BucketSettings.from_json(entry["settings"]), int(entry["vbuckets"]))
                for name, entry in content["buckets"].items()
            }
            self._users = content["users"]
            name, quotas = content["pool"]
            self._pool = name, dict(quotas)
            if not self._has_auto_failover:
                self.auto_failover = AutoFailover(**content["auto_failover"])
        return places

    def _keep(self) -> None:
        """Save what a restart needs; for the orchestrator's thread. Raises: StoreError: it cannot be saved."""
        orchestrator = self._orchestrator
        if orchestrator is not None:
            self._write([self._places[name] for name in orchestrator.members], to_record(orchestrator))

    def _write(self, places: Sequence[_Place], record: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(
            {
                "replicas": self.replicas,
                "vbuckets": self._vbuckets,
                "places": [asdict(place) for place in places],
                "next_number": self._next_number,
                "record": record,
                "buckets": {
                    name: {"settings": settings.to_json(), "vbuckets": count}
                    for name, (settings, count) in list(self._made.items())
                },
                "users": self._users,
                "pool": self._pool,
                "auto_failover": asdict(self.auto_failover),
            }
        )

    def _save(self) -> None:
        """As `_keep`, from any other thread. Raises: StoreError: it cannot be saved."""
        if self._file is not None and self._shell is not None:
            self._shell.call(self._keep).result(READY_TIMEOUT_S)

    def _take_number(self) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        return number

    def _take_offset(self) -> int:
        offset, self._next_offset = self._next_offset, self._next_offset + 1
        return offset

    def _tls_of(self, place: _Place) -> TlsSettings | None:
        """The TLS settings of a node; the first one has the cluster's authority made."""
        if self._tls is None:
            return None
        if self._tls.certificate is None and self._tls.authority is None:
            from dcpstream_node.shell.certificates import kept_authority

            self._tls = replace(self._tls, authority=kept_authority(self._path).pair)
        *_, port, mgmt_port = self._ports_of(place)
        return replace(self._tls, port=port, mgmt_port=mgmt_port)

    def _ports_of(self, place: _Place) -> tuple[int, int, int, int]:
        """KV port, management port and the encrypted ones that a node shall have; 0: any free one."""
        if place.number in self._ports:
            return self._ports[place.number]
        if place.mgmt_port:
            return 0, place.mgmt_port, 0, 0
        tls = (self._tls.port, self._tls.mgmt_port) if self._tls is not None else (0, 0)
        port, mgmt_port, tls_port, tls_mgmt_port = (
            first + place.offset if first else 0 for first in (*self._first_ports, *tls)
        )
        return port, mgmt_port, tls_port, tls_mgmt_port

    def _start_node(self, place: _Place) -> Member:
        """Start a node with all buckets and users; it serves no vbucket yet."""
        port, mgmt_port, *_ = self._ports_of(place)
        release = release_of(self._releases[min(place.number, len(self._releases)) - 1])
        node = Node(
            (),
            vbuckets=self._vbuckets,
            port=port,
            mgmt_port=mgmt_port,
            username=self.username,
            password=self.password,
            is_member=True,
            process=self._has_processes,
            tls=self._tls_of(place),
            release=release.name,
            path=self._path / f"{NODE_DIRECTORY}{place.number}" if self._path is not None else None,
            **self._options,
        )
        node.manager = self._manage
        node.start()
        dial = "127.0.0.1" if is_unspecified(node.host) else node.host
        host = "" if is_loopback(node.host) or is_unspecified(node.host) else node.host
        name = f"ns_1@{dial}:{node.mgmt_port}"
        address = NodeAddress(host, node.port, node.mgmt_port, node.tls_port, node.mgmt_tls_port)
        self._ports[place.number] = node.port, node.mgmt_port, node.tls_port, node.mgmt_tls_port
        self._places[name] = place
        self.nodes.append(ClusterNode(name, node, release))
        self._agree()
        self._equip(node)
        return Member(name, address, dial, self.username, self.password)

    def _agree(self) -> None:
        """Show clients on every node what the oldest one has."""
        for each in self.nodes:
            if each.is_running:
                each.node.set_compatibility(self._oldest.name)

    @property
    def _oldest(self) -> Release:
        return min((each.release for each in self.nodes), key=lambda release: release.number)

    def _equip(self, node: Node) -> None:
        """Give a node that was just started what is the cluster's, but no vbuckets."""
        if self._users is not None:
            node.take_users(self._users)
        if self._pool != (None, {}):
            node.set_pool(*self._pool)
        there = node.buckets
        for name, (settings, count) in self._made.items():
            if name not in there:
                node.create_bucket(name, settings, count)
        for name in there:
            if name not in self._made:
                node.drop_bucket(name)

    def stop(self) -> None:
        """Stop the orchestrator and all nodes. A cluster that does not run is left alone."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.stop()
        lookers = self._lookers
        self._lookers = concurrent.futures.ThreadPoolExecutor(MAX_CLUSTER_NODES, "dcpstream-look")
        lookers.shutdown(wait=False, cancel_futures=True)
        self._looks.clear()
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.close()
        nodes, self.nodes = self.nodes, []
        with ExitStack() as stack:
            for each in nodes:
                stack.callback(each.node.stop)
        self._orchestrator = None
        self._made.clear()
        self._places.clear()
        self._next_offset, self._next_number = 0, 1

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self._shell is not None

    @property
    def connection_string(self) -> str:
        """The connection string for clients: all nodes that run and are in the map."""
        return "couchbase://" + ",".join(
            each.connection_string.removeprefix("couchbase://") for each in self._nodes_of_the_map()
        )

    @property
    def tls_connection_string(self) -> str:
        """The same for clients over TLS."""
        return "couchbases://" + ",".join(
            each.node.tls_connection_string.removeprefix("couchbases://") for each in self._nodes_of_the_map()
        )

    @property
    def has_tls(self) -> bool:
        """Whether the nodes have encrypted ports."""
        return self._tls is not None

    @property
    def ca_certificate(self) -> str:
        """The authority that clients of the encrypted ports trust, PEM; empty without one of the cluster's own."""
        if self._tls is None or self._tls.authority is None:
            return ""
        return self._tls.authority.certificate

    def client_certificate(self, user: str) -> tuple[str, str]:
        """A certificate with which a user logs in on any node, and its key, both PEM.

        Raises: ConfigError: the cluster has no authority of its own.
        """
        if self._tls is None or self._tls.authority is None:
            raise ConfigError("tls", "no authority", "a cluster that was started, and made its certificates itself")
        from dcpstream_node.shell.certificates import Authority

        pair = Authority(self._tls.authority).client(user)
        return pair.certificate, pair.key

    def _nodes_of_the_map(self) -> list[ClusterNode]:
        orchestrator, _ = self._parts()
        return [each for each in self.nodes if each.is_running and orchestrator.members[each.name].is_active]

    def _parts(self) -> tuple[Orchestrator, Shell]:
        if self._orchestrator is None or self._shell is None:
            raise DcpstreamError("the cluster does not run: start it first")
        return self._orchestrator, self._shell

    def _carry_out(self, make: Callable[[Orchestrator], Procedure[T]], timeout_s: float = READY_TIMEOUT_S) -> T:
        orchestrator, shell = self._parts()
        return shell.begin(lambda: make(orchestrator)).result(timeout_s)

    # -------------------------------------------------------------------------------------- buckets, collections, users

    @property
    def buckets(self) -> list[str]:
        """The names of the buckets."""
        return list(self._made)

    def create_bucket(self, name: str, settings: BucketSettings | None = None, vbuckets: int | None = None) -> None:
        """Make a bucket on all nodes; returns when its replicas are fed.

        Args:
            name: of the bucket.
            settings: None: those given to the cluster. The number of replicas is the bucket's own.
            vbuckets: None: the number given to the cluster.

        Raises: ConfigError: the name is taken. DcpstreamError: a node refused.
        """
        self._parts()
        self._refuse_while_rebalancing("make a bucket")
        chosen, count = settings or self._settings, vbuckets or self._vbuckets
        with held_collector():
            for each in self._running():
                if name not in each.node.buckets:
                    each.node.create_bucket(name, chosen, count)
            before = self._made.get(name)
            self._made[name] = chosen, count
            try:
                self._carry_out(lambda o: o.add_bucket(name, count, chosen.replicas, self._first_manifest()))
            except BaseException:
                if before is None:
                    del self._made[name]
                else:
                    self._made[name] = before
                raise
        self._save()

    def _first_manifest(self) -> Manifest:
        """The scopes and collections of a new bucket; the oldest node decides."""
        has_scope = self._has_system_scope and self._oldest.has(Rule.SYSTEM_SCOPE)
        return Manifest.WITH_SYSTEM_SCOPE if has_scope else Manifest.DEFAULT

    def drop_bucket(self, name: str) -> None:
        """Delete a bucket on all nodes; its connections are closed.

        Raises: ConfigError: there is no such bucket.
        """
        self._state(name)
        self._refuse_while_rebalancing("delete a bucket")
        orchestrator, shell = self._parts()
        shell.call(lambda: orchestrator.remove_bucket(name)).result(READY_TIMEOUT_S)
        del self._made[name]
        self._save()
        for each in self._running():
            each.node.drop_bucket(name)

    def set_collections(self, name: str, scopes: Mapping[str, Mapping[str, int] | Sequence[str]]) -> None:
        """Give a bucket these scopes and collections on all nodes, as `Node.set_collections` does on one.

        Raises: ConfigError: no such bucket, or a name that cannot be.
        """
        bucket, settings = self._state(name), self._made[name][0]
        manifest = with_collections(bucket.manifest, scopes, history=settings.keeps_history)
        self._carry_out(lambda o: o.set_manifest(bucket, manifest))

    def change_bucket(self, name: str, settings: BucketSettings) -> None:
        """Give a bucket other settings, on all nodes. Another number of replicas takes effect by the next rebalance.

        Raises:
            ConfigError: there is no such bucket, or a changed setting is fixed.
        """
        bucket = self._state(name)
        for each in self._running():
            each.node.change_bucket(name, settings)
        bucket.replicas = settings.replicas
        self._made[name] = settings, self._made[name][1]
        self._save()

    def flush_bucket(self, name: str) -> None:
        """Empty a bucket on all nodes; returns when its replicas are fed again.

        Streams end, and resumed ones are rolled back to the beginning; collections stay.

        Raises:
            ConfigError: there is no such bucket. DcpstreamError: a rebalance is under way.
        """
        bucket = self._state(name)
        self._refuse_while_rebalancing("empty a bucket")
        self._carry_out(lambda o: o.stop_feeds(bucket))
        for each in self._running():
            each.node.flush_bucket(name)
        self._carry_out(lambda o: o.feed_all(bucket))

    def add_user(self, name: str, password: str, roles: Iterable[str] = ("admin",), display_name: str = "") -> None:
        """Make a user on all nodes, or change one; see `Node.add_user`."""
        self._change_users("put", name, password, tuple(roles), display_name)

    def remove_user(self, name: str) -> None:
        """Take a user away on all nodes. Raises: ConfigError: there is none."""
        if self._users is None or name not in self._users["users"]:
            raise ConfigError("user", name, "a user of this cluster")
        self._change_users("remove", name)

    def _change_users(self, change: str, *arguments: Any) -> None:
        """Change users and groups on all nodes, and for those that come later."""
        running = self._running()
        for each in running:
            each.node.change_users(change, *arguments)
        self._users = running[0].node.users_data()
        self._save()

    def _edit_collections(self, name: str, change: str, arguments: Sequence[Any]) -> int:
        """Change a bucket's scopes and collections by a method of `ManifestEditor`; returns the manifest's new uid."""
        bucket, settings = self._state(name), self._made[name][0]
        editor = ManifestEditor(bucket.manifest, history=settings.keeps_history and settings.history_default)
        try:
            manifest: Manifest = getattr(editor, change)(*arguments)
        except ManifestError as error:
            raise ConfigError(change, name, str(error)) from error
        self._carry_out(lambda o: o.set_manifest(bucket, manifest))
        return manifest.uid

    def _set_pool(self, name: str | None, quotas_mib: Mapping[str, int]) -> None:
        """Set the cluster's name and memory quotas on all nodes, and for those that come later."""
        self._pool = name or self._pool[0], {**self._pool[1], **quotas_mib}
        for each in self._running():
            each.node.set_pool(name, quotas_mib)
        self._save()

    def _running(self) -> list[ClusterNode]:
        """The nodes that take orders: not those that are down, nor those that hang and were failed over."""
        failed = {each.name for each in self._parts()[0].members.values() if each.is_failed}
        return [each for each in self.nodes if each.is_running and not (each.is_paused and each.name in failed)]

    def _state(self, name: str) -> BucketState:
        orchestrator, _ = self._parts()
        bucket = orchestrator.buckets.get(name)
        if bucket is None:
            raise ConfigError("bucket", name, "a bucket of this cluster")
        return bucket

    # ------------------------------------------------------------------------------------------------ nodes and copies

    def chains(self, bucket: str = "default") -> list[Chain]:
        """Per vbucket the names of the nodes that have it, the active one first; None for a copy that is nowhere.

        Raises: ConfigError: there is no such bucket.
        """
        return list(self._state(bucket).chains)

    def node(self, name: str) -> ClusterNode:
        """The node of that name. Raises: ConfigError: there is none."""
        for each in self.nodes:
            if each.name == name:
                return each
        raise ConfigError("node", name, f"a node of this cluster: {', '.join(each.name for each in self.nodes)}")

    def state(self) -> ClusterState:
        """The nodes with their roles, and what is under way."""
        orchestrator, _ = self._parts()
        healthy = {each.name: each.is_running and not each.is_paused for each in self.nodes}
        nodes = tuple(
            NodeState(
                member.name,
                member.address,
                Membership.FAILED if member.is_failed else Membership.ACTIVE if member.is_active else Membership.ADDED,
                is_healthy=healthy.get(member.name, False),
                recovery=member.recovery or "none",
            )
            for member in list(orchestrator.members.values())
        )
        running = self._rebalance
        task, error = None, ""
        if running is not None and not running.is_done:
            task = ClusterTask(running.kind, running.progress, running.ejected)
        elif running is not None:
            error = running.error
        return ClusterState(nodes, task is None and self._is_balanced(nodes), task, error, self.auto_failover)

    def flow(self) -> Flow:
        """The feeds between nodes and to clients, of the nodes that answer within `FLOW_TIMEOUT_S`."""
        orchestrator, _ = self._parts()
        looks = {}
        for each in list(self.nodes):
            look = self._looks.get(each.name)
            if look is None or look.done():  # a node that hangs is not asked again before it has answered
                look = self._lookers.submit(each.node.traffic)
            looks[each.name] = look
        self._looks = looks  # nodes that have left the cluster are forgotten
        concurrent.futures.wait(looks.values(), FLOW_TIMEOUT_S)
        done = {name: look for name, look in looks.items() if look.done() and not look.cancelled()}
        seen = {name: look.result() for name, look in done.items() if look.exception() is None}
        return flow_of({name: list(bucket.chains) for name, bucket in list(orchestrator.buckets.items())}, seen)

    def _is_balanced(self, nodes: tuple[NodeState, ...]) -> bool:
        """Whether a rebalance would change nothing; computed once for each version of the maps."""
        orchestrator, _ = self._parts()
        buckets = list(orchestrator.buckets.values())
        key = [(each.name, each.rev, each.replicas, len(each.unsettled)) for each in buckets], nodes
        if self._balance[0] != key:
            self._balance = key, is_balanced(orchestrator)
        return self._balance[1]

    def _note_failover(self, nodes: Sequence[str]) -> None:
        self.auto_failover = replace(self.auto_failover, count=self.auto_failover.count + len(nodes))
        try:
            self._keep()
        except StoreError as error:
            logger.error("a restart of the whole cluster would count fewer automatic failovers: %s", error)

    def set_auto_failover(self, settings: AutoFailover) -> None:
        """Change the settings of the automatic failover."""
        self.auto_failover = settings
        self._save()

    def add_node(self, mgmt_port: int = 0) -> ClusterNode:
        """Start one more node with all buckets, collections and users. It gets vbuckets by the next rebalance.

        Args:
            mgmt_port: its management port; 0: the next one, or any free one.

        Raises: ConfigError: there are too many nodes, or the port is taken.
        """
        orchestrator, shell = self._parts()
        if len(self.nodes) >= MAX_CLUSTER_NODES:
            raise ConfigError("nodes", len(self.nodes) + 1, f"at most {MAX_CLUSTER_NODES}")
        place = _Place(self._take_number(), 0 if mgmt_port else self._take_offset(), mgmt_port)
        self._save()  # the directory of a node that could not be started is not used again
        member = self._start_node(place)
        added = self.nodes[-1]

        def join() -> Procedure[None]:
            orchestrator.members[member.name] = member
            yield from orchestrator.remember()
            yield from orchestrator.push_manifests(member.name)

        shell.begin(join).result(READY_TIMEOUT_S)
        return added

    def restart_node(self, node: ClusterNode | str) -> FailoverReport:
        """Start a node again, at its ports and with its data; one that runs is stopped first.

        If the node is in the map its vbuckets are served again when this returns: by the node, or by a replica that has
        more. Buckets in memory are filled again from the replicas. A node that was failed over serves nothing before
        `add_back`.

        Returns: the vbuckets whose replica was promoted, and those that no node has any more.
        Raises: ConfigError: there is no such node, or its port is taken. StoreError: its data cannot be used.
        """
        orchestrator, _ = self._parts()
        found = self.node(str(node))
        found.node.stop()
        found.node.start()
        self._agree()
        self._equip(found.node)
        member = orchestrator.members[found.name]
        if not (member.is_active or member.is_failed):  # it was added, and has no vbuckets yet
            self._carry_out(lambda o: o.push_manifests(found.name))
        if not member.is_active:
            return FailoverReport()
        return self._carry_out(lambda o: rejoin(o, found.name), FAILOVER_TIMEOUT_S)

    def add_back(self, node: ClusterNode | str, recovery: str = Recovery.DELTA) -> None:
        """Let a node that was failed over get copies by the next rebalance.

        Args:
            node: must be up: `restart_node` starts one that is down, `resume` one that hangs.
            recovery: delta: its copies begin where they were, and are rolled back as far as they must be; full: its
                copies are deleted and built again.

        Raises: ConfigError: it was not failed over, or no such recovery. DcpstreamError, TimeoutError: it is not up.
        """
        if recovery not in tuple(Recovery):
            raise ConfigError("recovery", recovery, " or ".join(Recovery))
        found = self.node(str(node))
        self._refuse_while_rebalancing("add a node back")
        self._equip(found.node)
        self._carry_out(lambda o: add_back(o, found.name, Recovery(recovery)))

    def begin_rebalance(self, remove: Iterable[ClusterNode | str] = ()) -> RunningRebalance:
        """Begin to give each node its share of the copies.

        Nodes that were added get their share; those in `remove`, and those that were failed over, leave and are
        stopped.

        Raises: ConfigError: a node to remove is not in the cluster. DcpstreamError: a rebalance is under way.
        """
        orchestrator, shell = self._parts()
        names = [str(each) for each in remove]
        if self._rebalance is not None and not self._rebalance.is_done:
            raise DcpstreamError("a rebalance is under way: wait for its end, or cancel it")
        rebalance = shell.call(lambda: Rebalance(orchestrator, names)).result(READY_TIMEOUT_S)
        left: concurrent.futures.Future[list[str]] = concurrent.futures.Future()
        thread = threading.Thread(
            target=self._finish, args=(shell.begin(rebalance.run), left), name="dcpstream-rebalance", daemon=True
        )
        thread.start()
        self._rebalance = RunningRebalance(rebalance, left, shell, "rebalance", names)
        return self._rebalance

    def stop_rebalance(self) -> None:
        """Cancel the rebalance or graceful failover that is under way, if there is one."""
        if self._rebalance is not None and not self._rebalance.is_done:
            self._rebalance.cancel()

    def _refuse_while_rebalancing(self, what: str) -> None:
        if self._rebalance is not None and not self._rebalance.is_done:
            raise DcpstreamError(f"a rebalance is under way: {what} when it is over, or cancel it")

    def _finish(self, moved: concurrent.futures.Future[list[str]], left: concurrent.futures.Future[list[str]]) -> None:
        """Stop the nodes that left, in a thread of its own: neither the orchestrator nor the caller waits for that."""
        try:
            names = moved.result()
            for name in names:
                gone = self.node(name)
                self.nodes.remove(gone)
                gone.node.stop()
            if names:
                self._agree()
        except BaseException as error:  # noqa: BLE001 - it belongs to who waits for the rebalance
            logger.info("the rebalance ended early: %s", error)
            left.set_exception(error)
        else:
            left.set_result(names)

    def rebalance(self, remove: Iterable[ClusterNode | str] = (), timeout_s: float = REBALANCE_TIMEOUT_S) -> None:
        """As `begin_rebalance`, and wait for the end.

        Raises: as `begin_rebalance` and `RunningRebalance.wait`.
        """
        self.begin_rebalance(remove).wait(timeout_s)

    def fail_over(self, *nodes: ClusterNode | str) -> FailoverReport:
        """Give nodes up at once: their replicas are promoted, with a new branch of history.

        What the replicas lack is lost; clients that have it are rolled back. A rebalance that is under way is
        cancelled. A node that still runs serves nothing any more; the next rebalance stops it.

        Raises: ConfigError: a node is not active, or all are given.
        """
        names = [str(each) for each in nodes]
        return self._carry_out(lambda o: fail_over(o, names), FAILOVER_TIMEOUT_S)

    def fail_over_gracefully(self, *nodes: ClusterNode | str, timeout_s: float = REBALANCE_TIMEOUT_S) -> FailoverReport:
        """Hand over every active copy of nodes, then give them up: nothing is lost, and no client is rolled back.

        Raises: ConfigError: a node is not active, or a vbucket has no replica on a node that stays.
        """
        self.stop_rebalance()
        return self._begin_graceful_failover(nodes).result(timeout_s)

    def begin_graceful_failover(self, *nodes: ClusterNode | str) -> RunningRebalance:
        """The same without waiting.

        Raises: ConfigError: as `fail_over_gracefully`. DcpstreamError: a rebalance is under way.
        """
        self._refuse_while_rebalancing("fail nodes over gracefully")
        self._begin_graceful_failover(nodes)
        assert self._rebalance is not None, "it was begun"
        return self._rebalance

    def _begin_graceful_failover(self, nodes: Sequence[ClusterNode | str]) -> concurrent.futures.Future[FailoverReport]:
        orchestrator, shell = self._parts()
        names = [str(each) for each in nodes]
        failover = shell.call(lambda: GracefulFailover(orchestrator, names)).result(READY_TIMEOUT_S)
        done = shell.begin(failover.run)
        self._rebalance = RunningRebalance(failover, done, shell, "gracefulFailover")
        return done

    def eject(self, node: ClusterNode | str) -> None:
        """Take a node out that holds no copies: one that was added or failed over. It is stopped.

        Raises: ConfigError: there is no such node, or it is active.
        """
        orchestrator, shell = self._parts()
        gone = self.node(str(node))
        if orchestrator.members[gone.name].is_active:
            raise ConfigError("node", gone.name, "a node that is not active; a rebalance removes those that are")

        def leave() -> None:
            orchestrator.forget(gone.name)

        shell.call(leave).result(READY_TIMEOUT_S)
        self._save()
        self.nodes.remove(gone)
        # In a thread of its own: the order may have come over the management port of the node itself.
        threading.Thread(target=gone.node.stop, name="dcpstream-eject", daemon=True).start()

    def wait_until_drained(self, bucket: str = "default", timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Wait until every replica has everything that its active copy had when this was called, or later.

        Raises:
            TimeoutError: a replica stays behind, for example while replication is paused, or a move that failed waits
                for a node that does not answer.
        """
        state = self._state(bucket)

        def wait(o: Orchestrator) -> Procedure[None]:
            end = o.tasks.now + timeout_s
            while not (yield from o.drained(state)):
                if o.tasks.now >= end:
                    why = (
                        f": the moves of {len(state.unsettled)} vbuckets failed and are neither undone nor completed. "
                        "Start the nodes that do not answer, or fail them over"
                        if state.unsettled
                        else ""
                    )
                    raise TimeoutError(f"the replicas of {bucket} were not drained within {timeout_s:g} s{why}")
                yield o.tasks.pause(DRAIN_PAUSE_S)

        self._carry_out(wait, timeout_s + READY_TIMEOUT_S)

    def pause_replication(self) -> None:
        """Hold back everything that feeds replicas: a failover loses what is written from now on.

        Durable writes wait. A rebalance waits, too, and fails when an order to a node took too long.
        """
        orchestrator, shell = self._parts()
        shell.call(lambda: orchestrator.pause(is_on=True)).result(READY_TIMEOUT_S)

    def resume_replication(self) -> None:
        """Feed the replicas again, beginning with what was held back."""
        orchestrator, shell = self._parts()
        shell.call(lambda: orchestrator.pause(is_on=False)).result(READY_TIMEOUT_S)

    # --------------------------------------------------------------------------------------- for the management ports

    def _manage(self, verb: str, arguments: Mapping[str, Any]) -> Any:
        """Carry out what a node's management port was asked for; see `Site.order`. Changes come one after the other.

        Raises: DcpstreamError: it cannot be done.
        """
        if verb in _AT_ONCE:
            return _AT_ONCE[verb](self, **arguments)
        with self._changes:
            return _VERBS[verb](self, **arguments)


def _add_node(cluster: Cluster, host: str, mgmt_port: int) -> str:
    own = cluster.nodes[0].node.host
    if host != own and not (is_loopback(host) and (is_loopback(own) or is_unspecified(own))):
        raise ConfigError("hostname", host, f"the address at which this cluster starts its nodes, {own}")
    try:
        return cluster.add_node(mgmt_port).name
    except ConfigError as error:
        if error.option != "mgmt_port":
            raise
        message = (
            f"port {mgmt_port} is taken, and a cluster starts its nodes itself: one that runs elsewhere has a manager"
            " and data of its own, and cannot be taken in. Give a free port, or 0 for any; or stop what listens there"
        )
        raise ConfigError("hostname", f"{host}:{mgmt_port}", "a free port", message=message) from error


def _begin_graceful_failover(cluster: Cluster, nodes: Sequence[str]) -> bool:
    """Whether it was begun: every vbucket of the nodes has a replica on one that stays."""
    try:
        cluster.begin_graceful_failover(*nodes)
    except ConfigError:
        return False
    return True


def _begin_rebalance(cluster: Cluster, remove: Sequence[str]) -> None:
    cluster.begin_rebalance(remove)


def _fail_over(cluster: Cluster, nodes: Sequence[str]) -> None:
    cluster.fail_over(*nodes)


def _put_user(
    cluster: Cluster, name: str, password: str | None, roles: Sequence[str], display_name: str, groups: Sequence[str]
) -> None:
    cluster._change_users("put", name, password, tuple(roles), display_name, tuple(groups))


def _set_password(cluster: Cluster, name: str, password: str) -> None:
    cluster._change_users("set_password", name, password)
    if name == cluster.username:  # the orchestrator logs in with it
        orchestrator, _ = cluster._parts()
        cluster.password = password
        for member in orchestrator.members.values():
            member.password = password


_AT_ONCE: Mapping[str, Callable[..., Any]] = {
    "state": Cluster.state,
    "flow": Cluster.flow,
    "stop_rebalance": Cluster.stop_rebalance,
    "fail_over": _fail_over,
}
"""Orders that wait for no other: another one may wait for the very node that is to be failed over."""
_VERBS: Mapping[str, Callable[..., Any]] = {
    "add_node": _add_node,
    "rebalance": _begin_rebalance,
    "begin_graceful_failover": _begin_graceful_failover,
    "eject": Cluster.eject,
    "add_back": Cluster.add_back,
    "set_auto_failover": Cluster.set_auto_failover,
    "create_bucket": Cluster.create_bucket,
    "change_bucket": Cluster.change_bucket,
    "drop_bucket": Cluster.drop_bucket,
    "flush_bucket": Cluster.flush_bucket,
    "edit_collections": Cluster._edit_collections,
    "put_user": _put_user,
    "remove_user": lambda cluster, name: cluster._change_users("remove", name),
    "put_group": lambda cluster, name, data: cluster._change_users("put_group", name, data),
    "remove_group": lambda cluster, name: cluster._change_users("remove_group", name),
    "set_password": _set_password,
    "set_pool": Cluster._set_pool,
}
"""Orders of the management ports, carried out one after the other."""
