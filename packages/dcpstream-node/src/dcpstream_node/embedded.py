"""A node in this process, as a thread with an event loop of its own, or in a child process; a context manager."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from dcpstream.dcp.sasl import DEFAULT_ITERATIONS, MAX_ITERATIONS
from dcpstream.errors import ConfigError, DcpstreamError, StoreError, StoreInUse, StoreMismatch
from dcpstream.model import BucketSettings, Manifest, NodeAddress
from dcpstream.model.cluster import MAX_VBUCKETS
from dcpstream.runtime import SystemRandom
from dcpstream.wire.release import DEFAULT_RELEASE, Rule, release_of
from dcpstream_node.bucket_host import RunningBuckets
from dcpstream_node.dcp.dispatch import handle_dcp
from dcpstream_node.dcp.playback import Playback
from dcpstream_node.dcp.stats import dcp_stats
from dcpstream_node.directory.directory import DataDirectory, check_bucket_name
from dcpstream_node.directory.user_file import UserFile
from dcpstream_node.engine import Bucket, ClusterConfig, Engine, Users, new_engine
from dcpstream_node.engine.access.groups import Group
from dcpstream_node.engine.bucket.manifest_editor import with_collections
from dcpstream_node.engine.cluster_config import in_url, read_alternates
from dcpstream_node.fault_host import FaultHost
from dcpstream_node.faults import Faults, FaultyDisk, MovableClock
from dcpstream_node.flow import BucketTraffic, traffic_of
from dcpstream_node.shell.limits import Limits
from dcpstream_node.shell.listeners import is_loopback, is_unspecified, listen
from dcpstream_node.shell.server import KvServer, handler_of
from dcpstream_node.shell.tls import Tls, TlsSettings
from dcpstream_node.store import SEGMENT_BYTES

if TYPE_CHECKING:
    from dcpstream_node.engine.access.tokens import Issuers
    from dcpstream_node.process import NodeProcess

logger = logging.getLogger(__name__)

DEFAULT_USERNAME = "Administrator"
DEFAULT_PASSWORD = "password"
DEFAULT_FLUSH_INTERVAL_S = 0.05
"""Pause between commits to disk: a crash loses at most the writes of one pause; each costs a sync."""

P = ParamSpec("P")
T = TypeVar("T")

PLAIN_POLICIES = ("always", "tls")
"""The values of `plain`."""

START_TIMEOUT_S = 60.0
"""Longest wait for the store to be opened; 1 M documents take about a second."""
STOP_TIMEOUT_S = 30.0
ORDER_TIMEOUT_S = 60.0
"""Longest wait for an order: deleting the files of a large bucket takes some seconds."""


def _in_its_process(method: Callable[Concatenate[Node, P], T]) -> Callable[Concatenate[Node, P], T]:
    """Have a method carried out in the node's own process, if it has one. Arguments and result are pickled."""

    @wraps(method)
    def carry_out(self: Node, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._process is None:
            return method(self, *args, **kwargs)
        result: T = self._process.call(method.__name__, *args, **kwargs)
        return result

    return carry_out


class _Serving(NamedTuple):
    """The parts of a node that runs."""

    engine: Engine
    buckets: RunningBuckets
    faults: FaultHost


def _on_its_loop(method: Callable[Concatenate[Node, P], T]) -> Callable[Concatenate[Node, P], T]:
    """Have a method carried out on the node's loop between two turns; in the node's own process, if it has one."""

    @_in_its_process
    @wraps(method)
    def carry_out(self: Node, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def act() -> T:
            return method(self, *args, **kwargs)

        return self._order(act)

    return carry_out


class Node:
    """An embedded Couchbase-compatible node.

    Args:
        buckets: names of buckets, made if they are missing; other buckets in the directory are opened, too. A member of
            a cluster needs none.
        vbuckets: number of vbuckets of each bucket, 1 to 1024. None: 1,024, or the number that a bucket on disk has.
        path: directory for the data; None keeps it in memory.
        host: address to listen on.
        port: KV port, 0 for any free one.
        mgmt_port: management port, 0 for any free one.
        username: the administrator's name.
        password: the administrator's password.
        users: more users, `{name: {"password": …, "roles": ["data_reader[travel:inventory]", …]}}`.
        flush_interval_s: pause between commits to disk.
        settings: of all new buckets, or by name; a bucket on disk keeps its own.
        alternate_addresses: addresses of the node in other networks,
            `{network: {"hostname": …, "kv": port, "mgmt": port}}`; missing ports are the node's own. Clients choose by
            the network `external`, or by the address in their connection string.
        tls: open encrypted ports, too; True makes a certificate, see `TlsSettings`.
        plain: when passwords in plain text are accepted: always, or over encrypted connections only (tls). None: always
            if the node listens on loopback.
        jwt: issuers whose tokens log in external users over TLS, in the form of the server's /settings/jwt; see
            `dcpstream_node.engine.access.tokens.Issuers`. Needs a release of 8.0 or later.
        limits: the limits of clients.
        password_iterations: rounds of PBKDF2 for passwords; more rounds make attacks on stolen hashes, and each login,
            slower.
        segment_bytes: size at which a bucket's next file begins; for tests that need many files.
        release: the server release that clients see: 7.2, 7.6, 8.0 or 8.5. The node has what that release has, and
            refuses the additions of later ones.
        system_scope: whether new buckets have the scope `_system` if the release has it, as the buckets of a cluster
            do. A key-value engine makes none by itself.
        server_bugs: names of known bugs of servers that the node has, such as "MB-73354"; [] for none. None: those of
            the server version that it stands for. docs/reference/server-bugs.md lists them.
        is_member: whether a cluster manager gives the node its vbuckets and its map, as `dcpstream_node.Cluster` does;
            new buckets begin without vbuckets.
        process: whether the node runs in a process of its own, a child of this one. A client of this process that
            holds the interpreter's lock while it waits needs that; so does `pause`. Users that were added while the
            node ran are kept over a stop by a node with a `path` only.
        development: whether documents can be changed over the management port, and so on the status page.

    Attributes:
        port, mgmt_port: the ports that it listens on, once started.
        tls_port, mgmt_tls_port: the encrypted ports; 0 without TLS.
        ca_certificate: the authority that clients of the encrypted ports trust, PEM; empty before the start, and with a
            given certificate.
        engine: the node's state, once started; None if the node is in a process of its own.
        manager: the manager of the node's cluster, which its management port asks: a function of a verb and arguments,
            set before the start; None without a cluster.

    Raises:
        ConfigError: an option with an unusable value, or a port that is taken, when started.
        StoreError: the data directory cannot be used, when started.
    """

    def __init__(
        self,
        buckets: Sequence[str] = ("default",),
        vbuckets: int | None = None,
        path: str | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        mgmt_port: int = 0,
        username: str = DEFAULT_USERNAME,
        password: str = DEFAULT_PASSWORD,
        users: Mapping[str, Any] | None = None,
        flush_interval_s: float = DEFAULT_FLUSH_INTERVAL_S,
        settings: BucketSettings | Mapping[str, BucketSettings] | None = None,
        alternate_addresses: Mapping[str, Any] | None = None,
        tls: TlsSettings | bool | None = None,
        plain: str | None = None,
        jwt: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        password_iterations: int = DEFAULT_ITERATIONS,
        segment_bytes: int = SEGMENT_BYTES,
        release: str = DEFAULT_RELEASE.name,
        system_scope: bool = True,
        server_bugs: Sequence[str] | None = None,
        is_member: bool = False,
        process: bool = False,
        development: bool = False,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "process")}
        if isinstance(buckets, str) or not (buckets or is_member) or not all(buckets):
            raise ConfigError("buckets", buckets, "a list of at least one name")
        for name in buckets:
            check_bucket_name(name)
        check_kinds(settings, tls, limits)
        if vbuckets is not None:
            check_vbuckets(vbuckets)
        if not flush_interval_s > 0:
            raise ConfigError("flush_interval_s", flush_interval_s, "seconds above 0")
        for option, value in (("port", port), ("mgmt_port", mgmt_port)):
            check_port(option, value)
        if not is_loopback(host) and password == DEFAULT_PASSWORD:
            raise ConfigError(
                "password",
                "the default",
                "a password of your own",
                message=f"a node that listens on {host} can be reached by others, and its password is the default one. "
                "Choose a password (on the command line: DCPSTREAM_PASSWORD or --password-file)",
            )
        self._bucket_names = tuple(dict.fromkeys(buckets))
        self._keeps_counts = vbuckets is None
        self._vbuckets = MAX_VBUCKETS if vbuckets is None else vbuckets
        self._path = Path(path) if path is not None else None
        if plain not in (None, *PLAIN_POLICIES):
            raise ConfigError("plain", plain, " or ".join(PLAIN_POLICIES))
        self._tls_settings = TlsSettings() if tls is True else tls or None
        self._tls: Tls | None = None
        self._limits = limits or Limits()
        self._plain_needs_tls = plain == "tls" or (plain is None and not is_loopback(host))
        self._wanted_ports = port, mgmt_port
        self.host = host
        self.port = 0
        self.mgmt_port = 0
        self.tls_port = 0
        self.mgmt_tls_port = 0
        self.username = username
        self.password = password
        self._flush_interval_s = flush_interval_s
        self._segment_bytes = segment_bytes
        self._is_member = is_member
        self._is_development = development
        self._release = release_of(release, server_bugs)
        self._has_system_scope = system_scope and self._release.has(Rule.SYSTEM_SCOPE)
        self._issuers = self._read_issuers(jwt)
        self._settings = settings if settings is not None else BucketSettings()
        self._alternates = read_alternates(alternate_addresses)
        self._users = self._first_users(password_iterations, users)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._is_crashing = False
        self._is_ready = threading.Event()
        self._error: BaseException | None = None
        self.engine: Engine | None = None
        self.manager: Callable[..., Any] | None = None
        self._given = given
        self._has_process = process
        self._process: NodeProcess | None = None
        self._server: KvServer | None = None
        self._buckets: RunningBuckets | None = None
        self._fault_host: FaultHost | None = None
        self._clock = MovableClock()

    def _first_users(self, iterations: int, users: Mapping[str, Any] | None) -> Users:
        if not DEFAULT_ITERATIONS <= iterations <= MAX_ITERATIONS:
            allowed = f"{DEFAULT_ITERATIONS} to {MAX_ITERATIONS}"
            raise ConfigError("password_iterations", iterations, allowed)
        made = Users(SystemRandom(), iterations)
        made.add(self.username, self.password)
        if users is not None:
            made.add_from_json(users)
        return made

    def _read_issuers(self, jwt: Mapping[str, Any] | None) -> Issuers | None:
        if jwt is None:
            return None
        if not self._release.has(Rule.TAKES_TOKENS):
            message = f"jwt: release {self._release.name} takes no tokens. Give release='8.0', or leave jwt out"
            raise ConfigError("jwt", "***", "with release 8.0 or later", message=message)
        if self._tls_settings is None:
            raise ConfigError("jwt", "***", "with TLS", message="jwt: tokens are taken over TLS alone. Give tls, too")
        from dcpstream_node.engine.access.tokens import Issuers

        return Issuers(jwt)

    # ------------------------------------------------------------------------------------------------- from outside

    @property
    def connection_string(self) -> str:
        """The connection string for clients."""
        return f"couchbase://{in_url(self.host)}:{self.port}"

    @property
    def ca_certificate(self) -> str:
        """The authority that clients of the encrypted ports trust, PEM."""
        if self._process is not None:
            return str(self._process.facts["ca_certificate"])
        return self._tls.ca_certificate if self._tls is not None else ""

    @_in_its_process
    def client_certificate(self, user: str) -> tuple[str, str]:
        """A certificate with which a user logs in, and its key, both PEM; signed by the node's own authority.

        Raises:
            ConfigError: the node does not run, or has no authority of its own.
        """
        if self._tls is None or self._tls.authority is None:
            raise ConfigError("tls", "no authority", "a running node whose certificate was made by itself")
        pair = self._tls.authority.client(user)
        return pair.certificate, pair.key

    @property
    def has_tls(self) -> bool:
        """Whether it has encrypted ports."""
        return self._tls_settings is not None

    @property
    def tls_connection_string(self) -> str:
        """The connection string for clients over TLS."""
        return f"couchbases://{in_url(self.host)}:{self.tls_port}"

    @property
    def is_running(self) -> bool:
        """Whether the node serves, or is paused."""
        if self._process is not None:
            return self._process.is_alive
        return self._thread is not None and self._thread.is_alive() and self._is_ready.is_set()

    def start(self) -> Self:
        """Serve; returns when the ports answer. A node that runs already is left alone.

        A node that was stopped takes the ports again that it had.

        Raises:
            ConfigError: a port is taken. StoreError: the data cannot be used.
        """
        if self._has_process:
            self._start_process()
            return self
        if self._thread is not None:
            return self
        self._is_ready.clear()
        self._error = None
        self._is_crashing = False
        self._thread = threading.Thread(target=self._run, name="dcpstream-node", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(START_TIMEOUT_S):
            raise DcpstreamError(f"the node was not up within {START_TIMEOUT_S:.0f} s")
        error = self._take_error()
        if error is not None:
            self._thread.join()
            self._thread = None
            raise error
        return self

    def _start_process(self) -> None:
        from dcpstream_node.process import NodeProcess

        if self._process is not None:
            if self._process.is_alive:
                return
            self._process.kill()  # it has ended; this lets go of its descriptor
        port, mgmt_port = self._wanted_ports
        kept = {"port": port, "mgmt_port": mgmt_port, "tls": self._tls_settings}
        process = NodeProcess(self._given | kept, self.manager)
        for name in ("port", "mgmt_port", "tls_port", "mgmt_tls_port"):
            setattr(self, name, process.facts[name])
        self._process = process
        self._keep_ports()

    def _keep_ports(self) -> None:
        """From now on a start takes these ports."""
        self._wanted_ports = self.port, self.mgmt_port
        if self._tls_settings is not None:
            self._tls_settings = replace(self._tls_settings, port=self.tls_port, mgmt_port=self.mgmt_tls_port)

    @property
    def pid(self) -> int:
        """The id of the process that the node runs in: this one, or its own."""
        return os.getpid() if self._process is None else self._process.pid

    def stop(self) -> None:
        """Stop serving, after a last commit. A node that does not run is left alone."""
        process, self._process = self._process, None
        if process is not None and process.is_alive:
            process.stop()
        elif process is not None:
            process.kill()
        self._end()

    def crash(self) -> None:
        """Stop as if killed: writes without a commit are lost. For tests.

        A process of its own is killed (SIGKILL).
        """
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        self._is_crashing = True
        self._end()

    @property
    def is_paused(self) -> bool:
        """Whether the node's process was paused."""
        return self._process is not None and self._process.is_paused

    def pause(self) -> None:
        """Let the node's process hang: it stops where it is, and its connections stay open (SIGSTOP). For tests.

        Raises: DcpstreamError: the node does not run in a process of its own.
        """
        self._own_process().pause()

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT). Raises: as `pause`."""
        self._own_process().resume()

    def _own_process(self) -> NodeProcess:
        if self._process is None:
            raise DcpstreamError("only a running node in a process of its own can be paused: Node(process=True)")
        return self._process

    def _end(self) -> None:
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        stopping = self._stopping
        if stopping is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stopping.set)
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            raise DcpstreamError(f"the node did not stop within {STOP_TIMEOUT_S:.0f} s")
        self._thread = None
        self._loop = None
        error = self._take_error()
        if error is not None:
            raise error

    def _take_error(self) -> BaseException | None:
        """The error that ended the thread; returned once."""
        error, self._error = self._error, None
        return error

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    # ------------------------------------------------------------------------------- changes while the node runs
    # Each of these methods may be called from any thread but the node's own, where it would wait for itself. The node's
    # loop does the work between two turns; the method returns when it is done.

    @property
    def buckets(self) -> list[str]:
        """The names of the buckets that it serves; none before the start."""
        if self._process is not None:
            return list(self._process.call("buckets"))
        return [] if self.engine is None or not self.is_running else list(self.engine.buckets)

    def _settings_of(self, name: str) -> BucketSettings:
        if isinstance(self._settings, BucketSettings):
            return self._settings
        return self._settings.get(name) or BucketSettings()

    @_in_its_process
    def create_bucket(self, name: str, settings: BucketSettings | None = None, vbuckets: int | None = None) -> None:
        """Make a bucket, with all its vbuckets, while the node runs.

        Args:
            name: of the bucket.
            settings: None: those given to the node for that name.
            vbuckets: None: the number given to the node.

        Raises:
            ConfigError: the name is invalid or taken, or there are too many buckets.
            DcpstreamError: the node does not run. StoreError: the bucket's directory cannot be used.
        """
        count = self._vbuckets if vbuckets is None else vbuckets
        check_vbuckets(count)
        check_kinds(settings)
        chosen = self._settings_of(name) if settings is None else settings

        async def create() -> None:
            buckets = self._serving.buckets
            await buckets.gone(name)
            buckets.create(name, count, chosen, is_filled=True)

        self._order(create)

    @_in_its_process
    def drop_bucket(self, name: str) -> None:
        """Delete a bucket and all it holds; its connections are closed.

        Raises:
            ConfigError: there is no such bucket. DcpstreamError: the node does not run.
        """
        self._order(lambda: self._serving.buckets.drop(self._bucket(name).name))

    @_in_its_process
    def flush_bucket(self, name: str) -> None:
        """Empty a bucket, whether or not its settings allow that over HTTP.

        Its streams end, and resumed ones are rolled back to the beginning; collections stay.

        Raises:
            ConfigError: there is no such bucket. DcpstreamError: the node does not run.
            StoreError: it could not be made durable.
        """
        self._order(lambda: self._serving.buckets.flush(self._bucket(name).name))

    @_on_its_loop
    def change_bucket(self, name: str, settings: BucketSettings) -> None:
        """Give a bucket other settings, durably.

        Raises:
            ConfigError: there is no such bucket, or a changed setting is fixed.
            DcpstreamError: the node does not run. StoreError: it could not be made durable.
        """
        bucket = self._bucket(name)
        for field in ("is_ephemeral", "conflict_resolution"):
            if getattr(settings, field) != getattr(bucket.settings, field):
                raise ConfigError(field, getattr(settings, field), "what it was made with; it cannot be changed")
        self._serving.engine.change_settings(bucket, settings)

    @_on_its_loop
    def set_collections(self, name: str, scopes: Mapping[str, Mapping[str, int] | Sequence[str]]) -> None:
        """Give a bucket these scopes and collections; others are dropped with their documents.

        Remaining collections keep their ids; `_default` scope and collection always stay.

        Args:
            name: of the bucket.
            scopes: scope → its collections: names, or `{name: longest life of a document in seconds, 0 for any}`.

        Raises:
            ConfigError: no such bucket, or a name that cannot be. DcpstreamError: the node does not run.
        """
        bucket = self._bucket(name)
        manifest = with_collections(bucket.manifest, scopes, history=bucket.settings.keeps_history)
        self._serving.engine.set_manifest(bucket, manifest)

    @_on_its_loop
    def begin_playback(self, name: str, manifest: Manifest, uuid: str = "") -> None:
        """Make an empty bucket ready for `play`.

        Args:
            name: of the bucket.
            manifest: scopes and collections of the source, with their ids.
            uuid: the identity of the source's bucket, so that its readers can go on here; empty for one of its own.

        Raises:
            ConfigError: no such bucket, or one that has documents. DcpstreamError: the node does not run.
        """
        bucket, engine = self._bucket(name), self._serving.engine
        if not bucket.is_empty:
            raise ConfigError("bucket", name, "an empty one: a recording is played into nothing else")
        if bucket.manifest.uid:  # the scopes that it has come with the recording
            bucket.adopt_manifest(Manifest.DEFAULT)
            bucket.flush(engine.now)
        Playback(bucket, engine).begin(manifest, uuid)

    @_on_its_loop
    def play(self, name: str, frames: bytes) -> None:
        """Take recorded history into a bucket, with its seqnos, CAS and failover logs.

        Args:
            name: of the bucket.
            frames: those of a recording, in their order; see `dcpstream_node.recording.history`.

        Raises:
            ConfigError: no such bucket.
            DcpstreamError: a row does not follow the bucket's, or the node does not run.
        """
        Playback(self._bucket(name), self._serving.engine).take(frames)

    @_on_its_loop
    def add_user(self, name: str, password: str, roles: Iterable[str] = ("admin",), display_name: str = "") -> None:
        """Make a user, or change one.

        Args:
            name: as it logs in.
            password: from the next login on.
            roles: all that the user has from now on, as the server writes them: `data_reader[travel:inventory]`.
            display_name: for people.

        Raises:
            ConfigError: a name, password or role that cannot be. DcpstreamError: the node does not run.
        """
        self._users.put(name, password, roles, display_name)

    @_on_its_loop
    def remove_user(self, name: str) -> None:
        """Take a user away, also on connections that are open.

        Raises:
            ConfigError: there is none, or the node was started with it. DcpstreamError: the node does not run.
        """
        if not self._users.remove(name):
            raise ConfigError("user", name, "a user of this node")

    @_on_its_loop
    def change_users(self, change: str, *arguments: Any) -> None:
        """Carry out a change of users or groups that was made on another member of the cluster.

        Args:
            change: put, remove, set_password, put_group or remove_group, as in `Users`; put_group takes name and JSON.

        Raises:
            ConfigError: it cannot be. DcpstreamError: the node does not run.
        """
        if change == "put_group":
            name, data = arguments
            self._users.put_group(Group.from_json(name, data))
        else:
            getattr(self._users, change)(*arguments)

    @_in_its_process
    def users_data(self) -> dict[str, Any]:
        """The users and groups made while it ran, for `take_users` of another member: salted hashes, no password."""
        return self._users.to_json()

    @_on_its_loop
    def take_users(self, data: Mapping[str, Any]) -> None:
        """Have the users and groups of another member, and no others but those that the node was started with.

        Raises:
            ConfigError: it is not what `users_data` gives. DcpstreamError: the node does not run.
        """
        self._users.replace(data)

    @_on_its_loop
    def set_pool(self, name: str | None, quotas_mib: Mapping[str, int]) -> None:
        """Set the name of the cluster, unless it is None, and memory quotas of services, as POST /pools/default does.

        Raises: DcpstreamError: the node does not run.
        """
        self._serving.engine.set_pool(name, quotas_mib)

    @_on_its_loop
    def set_compatibility(self, release: str) -> None:
        """Show clients in the cluster map only what a release has that the cluster's oldest node is of.

        Raises: DcpstreamError: the node does not run.
        """
        self._serving.engine.config.compatible = release_of(release)

    @_in_its_process
    def inject(self, kind: str, /, **fields: Any) -> int:
        """Let something go wrong, for tests of what talks to the node; the page "Inject faults" has an example of each.

        Args:
            kind: what goes wrong: one of `dcpstream_node.faults.KINDS`, which describes each.
            fields: when and how; see `dcpstream_node.faults.Fault`.

        Returns: the number of the fault for `lift`; 0 if it is over with that.

        Raises:
            ConfigError: a fault that cannot be. DcpstreamError: the node does not run.
        """
        return self._order(lambda: self._serving.faults.inject(kind, fields))

    @_on_its_loop
    def lift(self, number: int | None = None) -> None:
        """End a fault, or all of them. One that is not there is left alone.

        Raises: DcpstreamError: the node does not run.
        """
        self._serving.faults.lift(number)

    @_on_its_loop
    def faults(self) -> list[dict[str, Any]]:
        """The faults that last: their fields, `id`, and `hits`, how often they acted.

        Raises: DcpstreamError: the node does not run.
        """
        return list(self._serving.faults.describe())

    @_on_its_loop
    def traffic(self) -> dict[str, BucketTraffic]:
        """The newest seqnos and the DCP connections of each bucket.

        Raises: DcpstreamError: the node does not run.
        """
        return traffic_of(self._serving.engine)

    def _bucket(self, name: str) -> Bucket:
        bucket = self.engine.buckets.get(name) if self.engine is not None else None
        if bucket is None:
            raise ConfigError("bucket", name, "a bucket of this node")
        return bucket

    def _order(self, what: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop, server = self._loop, self._server
        if not self.is_running or loop is None or server is None:
            raise DcpstreamError("the node does not run: start it first")

        async def turn() -> T:
            server.set_time()
            try:
                return await what()
            finally:
                server.schedule_turn()

        return asyncio.run_coroutine_threadsafe(turn(), loop).result(ORDER_TIMEOUT_S)

    @property
    def _serving(self) -> _Serving:
        assert self.engine is not None
        assert self._buckets is not None
        assert self._fault_host is not None
        return _Serving(self.engine, self._buckets, self._fault_host)

    # --------------------------------------------------------------------------------------------------- its thread

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self.serve())
        except BaseException as error:  # noqa: BLE001 - `start` or `stop` raises it
            self._error = error
        finally:
            self._is_ready.set()

    async def serve(self) -> None:
        """Serve on this loop until `stop` (from any thread) or cancellation."""
        from dcpstream_node.rest import Management

        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        with ExitStack() as cleanup:
            listeners = [
                cleanup.enter_context(listen(self.host, port, option))
                for port, option in zip(self._wanted_ports, ("port", "mgmt_port"), strict=True)
            ]
            self.port, self.mgmt_port = (listener.getsockname()[1] for listener in listeners)
            disk = None if self._path is None else FaultyDisk()
            directory = DataDirectory(self._path, SystemRandom(), self._segment_bytes, disk)
            cleanup.callback(directory.close)
            tls_listeners: list[socket.socket | None] = [None, None]
            if self._tls_settings is not None:
                self._tls = Tls.open(self._tls_settings, self.host, self._path)
                wanted = self._tls_settings.port, self._tls_settings.mgmt_port
                encrypted = [
                    cleanup.enter_context(listen(self.host, port, option))
                    for port, option in zip(wanted, ("tls port", "tls mgmt_port"), strict=True)
                ]
                self.tls_port, self.mgmt_tls_port = (listener.getsockname()[1] for listener in encrypted)
                tls_listeners = [*encrypted]
            elif not is_loopback(self.host):
                logger.warning("listening on %s without TLS: documents and passwords over HTTP can be read", self.host)
            self._keep_ports()
            kept_users = UserFile(self._users, self._path)
            self._users.changed = kept_users.keep
            clock = self._clock = MovableClock()
            engine = self._open(directory)
            engine.plain_needs_tls = self._plain_needs_tls
            engine.issuers = self._issuers
            engine.trusts_own_host = self._is_member
            if self._loop.get_exception_handler() is None:
                self._loop.set_exception_handler(handler_of(engine.log))
                cleanup.callback(self._loop.set_exception_handler, None)
            server = KvServer(engine, clock, self._limits, self._tls, Faults())
            buckets = RunningBuckets(
                server, engine, directory, self._flush_interval_s, self._vbuckets, is_member=self._is_member
            )
            management = Management(
                engine, buckets, server.schedule_turn, self._limits, self.manager, is_development=self._is_development
            )
            self._server, self._buckets = server, buckets
            self._fault_host = management.faults = FaultHost(server, engine, buckets, clock, disk)
            try:
                await server.start(listeners[0], tls_listeners[0])
                await management.start(listeners[1])
                if tls_listeners[1] is not None:
                    await management.start(tls_listeners[1], self._tls)
                buckets.start()
                logger.info("serving on %s:%d, management on port %d", self.host, self.port, self.mgmt_port)
                self._is_ready.set()
                await self._stopping.wait()
            finally:
                await management.stop()
                await server.stop()
                await buckets.stop(clean=not self._is_crashing)
                logger.info("stopped")

    def _open(self, directory: DataDirectory) -> Engine:
        """The engine with its buckets; after an error, the opened ones are closed."""
        clock, random = self._clock, SystemRandom()
        host = "" if is_loopback(self.host) or is_unspecified(self.host) else self.host
        node = NodeAddress(host, self.port, self.mgmt_port, self.tls_port, self.mgmt_tls_port)
        config = ClusterConfig(
            [node],
            cluster_uuid=directory.cluster_uuid,
            alternates=self._alternates,
            release=self._release,
        )
        config.take_settings(directory.cluster)
        # Each start is an epoch of its own, so that clients take this configuration for newer than the last run's.
        # A member has no configuration of its own, so that its cluster's is newer in any case.
        config.epoch = 1 if self._is_member else clock.time_ns() // 1_000_000
        engine = new_engine(self._users, config, random, handle_dcp, dcp_stats)
        engine.set_time(clock.monotonic(), clock.time_ns())
        engine.started = engine.now
        engine.makes_system_scope = self._has_system_scope
        with ExitStack() as opened:
            wanted = dict.fromkeys(self._bucket_names, self._vbuckets)
            found = {
                name: known.vbuckets
                for name, known in directory.known.items()
                if name not in wanted or self._keeps_counts
            }
            for name, vbuckets in (wanted | found).items():
                try:
                    store = directory.open(name, vbuckets, self._settings_of(name))
                except (StoreInUse, StoreMismatch):
                    raise  # the files are sound
                except StoreError as error:
                    # The others are served; without any, the start fails.
                    engine.damaged[name] = error
                    if directory.holds(name):  # else it can be made when the disk works again
                        directory.damaged.add(name)
                    logger.error("bucket %s is not served: %s", name, error)
                    continue
                opened.callback(store.close, clean=False)
                uuid = directory.uuid_of(name)
                bucket = engine.add_bucket(name, store, is_filled=not self._is_member, uuid=uuid)
                if self._is_member:
                    bucket.stand_down()
            if engine.damaged and not engine.buckets:
                raise next(iter(engine.damaged.values()))
            opened.pop_all()
        self.engine = engine
        return engine


def ready_content(nodes: Sequence[Node], pid: int) -> str:
    """The content of a ready file: the ports and the process; of several nodes the first one's, and all in a list."""
    ports = [
        {"kv": node.port, "mgmt": node.mgmt_port}
        | ({"kv_tls": node.tls_port, "mgmt_tls": node.mgmt_tls_port} if node.tls_port else {})
        for node in nodes
    ]
    return json.dumps(ports[0] | {"pid": pid} | ({"nodes": ports} if len(ports) > 1 else {}))


def check_kinds(settings: object, tls: object = None, limits: object = None) -> None:
    """Refuse settings, TLS settings and limits of another type. Raises: ConfigError."""
    found = settings.values() if isinstance(settings, Mapping) else () if settings is None else (settings,)
    if not all(isinstance(item, BucketSettings) for item in found):
        raise ConfigError("settings", settings, "BucketSettings(…)")
    if not isinstance(tls, TlsSettings | bool | None):
        raise ConfigError("tls", tls, "True, or TlsSettings(…)")
    if not isinstance(limits, Limits | None):
        raise ConfigError("limits", limits, "Limits(…)")


def check_vbuckets(count: object) -> None:
    """Refuse an invalid number of vbuckets. Raises: ConfigError."""
    if not isinstance(count, int) or not 1 <= count <= MAX_VBUCKETS:
        raise ConfigError("vbuckets", count, f"1 to {MAX_VBUCKETS}")


def check_port(option: str, port: object) -> None:
    """Refuse an invalid port. Raises: ConfigError."""
    if not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise ConfigError(option, port, "0 to 65535")
