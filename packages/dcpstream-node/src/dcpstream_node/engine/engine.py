"""The node without its sockets: buckets, users, the cluster configuration, and the set of sessions.

Sans-IO: a shell sets the time (`set_time`), hands bytes to sessions, and after each turn sends the output of the
sessions in `ready`. One engine serves one thread.

The engine lies below the sessions: `open_session` makes them, and only types name their class here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dcpstream.dcp.sasl import Outcome, ServerStep
from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import BucketSettings, Manifest, NodeAddress, VbucketMap
from dcpstream.runtime import Random
from dcpstream.wire import Status
from dcpstream.wire.buffers import BufferPool
from dcpstream.wire.release import Release
from dcpstream_node.engine import cluster_config
from dcpstream_node.engine.access.login_throttle import LoginThrottle
from dcpstream_node.engine.access.users import User, Users
from dcpstream_node.engine.bucket.bucket import OPCODES, Bucket
from dcpstream_node.engine.cluster_config import ClusterConfig
from dcpstream_node.engine.limit_log import LOG_LINES_WITH_REASONS, LimitLog
from dcpstream_node.store import BucketStore

if TYPE_CHECKING:
    from dcpstream_node.engine.access.tokens import Issuers
    from dcpstream_node.engine.session.session import Session

logger = logging.getLogger(__name__)

CONTROL_TOKEN = 0xDEADBEEF
"""The control token of a node to which no other was given."""
MAX_CONNECTIONS = 5_000
"""Sessions at a time, each with a receive buffer; the server's default is 65,000, a test node has fewer descriptors."""
MAX_BUCKETS = 30
"""Buckets of a node: the server's advice."""


MAX_OUTPUT_BYTES = 2 * 1024 * 1024
"""Answers that wait beyond which no further request of a session is read: clients that ask more than they read are
slowed down."""


class Counters:
    """Plain integers that count what a node did since it was started; they only grow.

    Attributes:
        ops: requests of sessions without a bucket, by opcode; buckets count their own. A list is the cheapest way to
            count.
        connections, connections_refused: of the KV port; refused are those beyond the limit.
        logins, logins_refused: on the KV port.
        bytes_received, bytes_sent: on the KV port.
    """

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "connections",
        "connections_refused",
        "logins",
        "logins_refused",
        "ops",
    )

    def __init__(self) -> None:
        self.ops = [0] * OPCODES
        self.connections = 0
        self.connections_refused = 0
        self.logins = 0
        self.logins_refused = 0
        self.bytes_received = 0
        self.bytes_sent = 0


class RequestFaults(Protocol):
    """Faults that refuse requests.

    Attributes:
        has_requests: whether there is one.
    """

    has_requests: bool

    def on_request(self, opcode: int, vbid: int, bucket: str, connection: str, now: float) -> Status | None:
        """The status with which a fault refuses a request; None if it is carried out."""
        ...


class NoFaults:
    """No request is refused."""

    has_requests = False

    def on_request(self, opcode: int, vbid: int, bucket: str, connection: str, now: float) -> None:
        """None: the request is carried out."""


class RawConfig(NamedTuple):
    """A cluster map as a manager gave it, which the node does not read.

    Attributes:
        version: (epoch, revision).
        text: JSON.
    """

    version: tuple[int, int]
    text: bytes


class BucketHost(Protocol):
    """Makes and deletes buckets of a running node; both names are checked before."""

    def create(self, name: str, vbucket_count: int) -> None:
        """Make a bucket. Raises: DcpstreamError: it cannot be."""
        ...

    def delete(self, name: str, done: Callable[[], None]) -> None:
        """Delete a bucket with all it holds; `done` is called when its name is free again."""
        ...


class Engine:
    """A node's state and behaviour.

    Args:
        users: the users that may log in.
        config: nodes of the cluster.
        random: for nonces, vbuuids and references in error messages.
        open_session: makes the session of a connection; arguments: the engine, the address of the peer, the address at
            which it reached the node, whether the connection is encrypted.
        dcp_stats: keys and values of a STAT group about DCP connections and its argument, or the status.

    Attributes:
        raw_configs: maps of buckets that had nothing else when they were given; see `config_only`.
        damaged: buckets that exist and cannot be served, with the error.
        now: seconds of the monotonic clock at `set_time`.
        unix_ns: nanoseconds since 1970 at `set_time`.
        ready: sessions that may have something to send.
        buffers: memory for history on its way out; the shell returns what it has sent.
        stopwatch: seconds for measuring how long a request takes; the shell gives one that goes on within a turn.
        bucket_host: makes and deletes buckets on request; None if that is not supported.
        faults: those that refuse requests.
        counters: of the node's work so far.
        config_listeners: called after every change of a configuration, and when a bucket comes or goes.
        logins: delays refusals after failed logins.
        log: for events that clients can cause at any rate.
        output_limit: bytes of answers that wait beyond which a session reads no further request; the shell lowers it
            when memory is short.
        max_connections: sessions at a time.
        has_maps: whether there are cluster configurations; see `hide_maps`.
        control_token: the CAS that requests which change vbuckets may bring; SET_CTRL_TOKEN sets another one.
        is_stepwise: whether `end_turn` is called again until `is_quiet`, so that long work is done in steps.
        plain_needs_tls: whether a password in plain text is only taken over an encrypted connection.
        issuers: those whose tokens log in external users; None for none.
        makes_system_scope: whether a new bucket that gets its vbuckets here gets the scope `_system`, too.
        trusts_own_host: whether one is taken from this machine in any case: a member's manager logs in like that.
    """

    def __init__(
        self,
        users: Users,
        config: ClusterConfig,
        random: Random,
        *,
        open_session: Callable[[Engine, str, str, bool], Session],
        dcp_stats: Callable[[Bucket, str, str], Iterator[tuple[str, str]] | int],
    ) -> None:
        self._open_session = open_session
        self.dcp_stats = dcp_stats
        self.users = users
        self.config = config
        self.random = random
        self.buckets: dict[str, Bucket] = {}
        self.raw_configs: dict[str, RawConfig] = {}
        self.damaged: dict[str, DcpstreamError] = {}
        self.sessions: set[Session] = set()
        self.ready: set[Session] = set()
        self.buffers = BufferPool()
        self.bucket_host: BucketHost | None = None
        self.faults: RequestFaults = NoFaults()
        self.plain_needs_tls = False
        self.issuers: Issuers | None = None
        self.trusts_own_host = False
        self.makes_system_scope = False
        self.is_stepwise = False
        self.control_token = CONTROL_TOKEN
        self.logins = LoginThrottle()
        self.log = LimitLog()
        self.output_limit = MAX_OUTPUT_BYTES
        self.max_connections = MAX_CONNECTIONS
        self.now = 0.0
        self.unix_ns = 0
        self.started = 0.0
        self.counters = Counters()
        self.config_listeners: set[Callable[[], None]] = set()
        self.stopwatch: Callable[[], float] = lambda: self.now
        self._config_cache: dict[str, tuple[tuple[int, int], bytes]] = {}
        self.has_maps = True
        self._frozen: dict[str, tuple[tuple[int, int], bytes]] | None = None

    @property
    def release(self) -> Release:
        """The server release that this node follows."""
        return self.config.release

    @property
    def unix_s(self) -> int:
        """Seconds since 1970."""
        return self.unix_ns // 1_000_000_000

    @property
    def started_s(self) -> int:
        """When the node started, in seconds since 1970, by the clock as it is now."""
        return self.unix_s - int(self.now - self.started)

    def set_time(self, now: float, unix_ns: int) -> None:
        """Set the time, which holds until the next call."""
        self.now = now
        self.unix_ns = unix_ns

    def add_bucket(self, name: str, store: BucketStore, *, is_filled: bool = True, uuid: str = "") -> Bucket:
        """Open a bucket on a store.

        Args:
            is_filled: whether an empty store gets all its vbuckets, active; else it has none until SET_VBUCKET.
            uuid: the identity of a bucket that was made before; a new one gets one by chance.

        Raises:
            ConfigError: there is one of that name, or there are too many.
        """
        if name in self.buckets:
            raise ConfigError("buckets", name, "each name once")
        if len(self.buckets) >= MAX_BUCKETS:
            raise ConfigError("buckets", f"{len(self.buckets) + 1} buckets", f"at most {MAX_BUCKETS}")
        uuid = uuid or f"{self.random.getrandbits(128):032x}"
        bucket = Bucket(name, uuid, store, random=self.random, release=self.release)
        is_new = is_filled and not store.vbuckets
        bucket.open(is_filled=is_filled)
        if is_new and self.makes_system_scope:
            bucket.set_manifest(Manifest.WITH_SYSTEM_SCOPE)
            bucket.catch_up_all()
        bucket.config_rev = 0 if self.config.is_given else self.config.next_rev()
        self.buckets[name] = bucket
        for session in self.sessions_of(name):
            session.select(bucket)
        self._notify_listeners()
        return bucket

    @property
    def config_only(self) -> list[str]:
        """Names of the buckets that have a map and nothing else: others serve them."""
        return [name for name in self.raw_configs if name not in self.buckets]

    def sessions_of(self, name: str) -> list[Session]:
        """The sessions that selected a bucket that has nothing but a map."""
        return [session for session in self.sessions if session.config_only == name]

    def take_raw_config(self, name: str, config: RawConfig) -> None:
        """A manager gave the map of a bucket that is not here."""
        self.raw_configs[name] = config
        for session in self.sessions_of(name):
            session.push_config()

    def drop_config_only(self, name: str) -> None:
        """Forget a bucket that has nothing but a map, and close the connections that use it."""
        del self.raw_configs[name]
        for session in self.sessions_of(name):
            session.close(f"the bucket {name} was deleted")

    def set_manifest(self, bucket: Bucket, manifest: Manifest) -> None:
        """Give a bucket another list of scopes and collections.

        Raises:
            StoreError: it could not be made durable; nothing has changed.
        """
        bucket.set_manifest(manifest)
        if not self.is_stepwise:
            bucket.catch_up_all()
        self.topology_changed(bucket)

    def change_settings(self, bucket: Bucket, settings: BucketSettings) -> None:
        """Give a bucket other settings.

        Raises:
            StoreError: they could not be made durable; nothing has changed.
        """
        bucket.change_settings(settings)
        self.topology_changed(bucket)

    def flush_bucket(self, bucket: Bucket) -> None:
        """Empty a bucket; its DCP streams end, and are rolled back when they resume.

        Raises:
            StoreError: it could not be made durable.
        """
        bucket.flush(self.now)
        self.topology_changed(bucket)

    def remove_bucket(self, name: str) -> Bucket:
        """Remove a bucket and close every connection that uses it. The caller closes its store."""
        bucket = self.buckets.pop(name)
        self.raw_configs.pop(name, None)
        self._config_cache.pop(name, None)
        # Also sessions that selected another bucket since, and wait for a commit of this one.
        for session in bucket.sessions | bucket.holding:
            session.close(f"the bucket {name} was deleted")
        self._notify_listeners()
        return bucket

    def new_session(self, peer: str, local_host: str = "127.0.0.1", *, is_secure: bool = False) -> Session | None:
        """A session for a connection that was made; None if there are too many.

        Args:
            peer: address of the other end, for logs.
            local_host: the address at which it reached the node.
            is_secure: whether nobody on the way can read the connection.
        """
        self.counters.connections += 1
        if len(self.sessions) >= self.max_connections:
            self.counters.connections_refused += 1
            return None
        session = self._open_session(self, peer, local_host, is_secure)
        self.sessions.add(session)
        return session

    def check_token(self, username: str, token: str, peer: str) -> ServerStep:
        """The outcome of a login with a token.

        Args:
            username: given by the client beside the token, or empty.
            peer: address of the client, for the log.
        """
        found = self.token_user(token, peer, username)
        if found is None:
            return ServerStep(Outcome.REFUSED)
        user, expires_at = found
        return ServerStep(Outcome.SUCCESS, username=user.name, expires_at=expires_at, holder=user)

    def token_user(self, token: str, peer: str, username: str = "") -> tuple[User, float] | None:
        """The user that a token logs in, and when that ends, in seconds since 1970; None if it is refused.

        Args: as for `check_token`.
        """
        from dcpstream_node.engine.access.tokens import TokenRefused  # needs an extra, as the issuers do

        assert self.issuers is not None, "without issuers no token is taken"
        try:
            holder = self.issuers.check(token, self.unix_ns / 1e9)
            user = self.users.of_token(holder.username, holder.roles, holder.groups)
            if user is None:
                raise TokenRefused("the node has no external user of its name, and its claims give it no role")
            if username not in ("", user.name):
                raise TokenRefused("it is for another user than the client says")
        except TokenRefused as refusal:
            text = f"{peer}: a token was refused: {refusal}"
            self.log.say("refused tokens", text, self.now, lines=LOG_LINES_WITH_REASONS)
            return None
        return user, holder.expires_at

    def end_turn(self) -> list[Session]:
        """Notify DCP connections of changes; returns the sessions that may have something to send now."""
        for bucket in self.buckets.values():
            if bucket.behind:
                bucket.catch_up_some()
            if bucket.dirty:
                bucket.end_turn(self.now)
        ready = self.ready
        if not ready:
            return []
        self.ready = set()
        return list(ready)

    @property
    def is_quiet(self) -> bool:
        """Whether `end_turn` would find nothing to send, and no DCP connection to notify."""
        # A loop costs half of what `any` and a generator do, and this runs for each request.
        if self.ready:
            return False
        for bucket in self.buckets.values():  # noqa: SIM110
            if bucket.behind or (bucket.dirty and bucket.dcp_sessions):
                return False
        return True

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called, monotonic seconds; DCP connections have time-outs of their own."""
        earliest = self.logins.wake_at
        for bucket in self.buckets.values():
            at = bucket.next_timeout()
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def handle_timeout(self) -> None:
        """End what is past its deadline at the time of `set_time`."""
        for bucket in self.buckets.values():
            bucket.handle_timeout(self.now)
        self.logins.handle_timeout(self.now)

    def persisted(self, bucket_name: str, vbids: Iterable[int]) -> None:
        """The flusher made these vbuckets' writes durable."""
        bucket = self.buckets.get(bucket_name)
        if bucket is not None:
            bucket.persisted(list(vbids))

    def topology_changed(self, bucket: Bucket) -> None:
        """A vbucket came, went or changed its role, or the bucket has other collections or settings.

        The configuration gets a new revision, and is pushed to the clients that asked for that.
        """
        if not self.config.is_given:
            bucket.config_rev = self.config.next_rev()
            for session in bucket.sessions:
                session.push_config()
        self._notify_listeners()

    def given_version(self, bucket: Bucket | None) -> tuple[int, int]:
        """The version of the map that a cluster manager gave last, of a bucket or without one; (0, 0) before."""
        if not self.config.is_given or (bucket is not None and bucket.given_chains is None):
            return 0, 0
        return self._version(bucket)

    def take_map(self, bucket: Bucket | None, given: VbucketMap, this_node: int) -> None:
        """A cluster manager gave the map of a bucket, or the list of nodes; it is pushed to the clients that ask.

        Args:
            bucket: None: the map is the cluster's without a bucket.
            given: not older than the present one.
            this_node: which of its nodes this is.
        """
        config = self.config
        if not config.is_given:
            config.is_given = True
            for each in self.buckets.values():
                each.config_rev = 0  # what this node made of them itself is older than any map that is given
        config.epoch, config.rev = given.epoch, max(given.rev, config.rev)
        config.nodes, config.this_node = list(given.nodes), this_node
        config.cluster_uuid = given.cluster_uuid or config.cluster_uuid
        if bucket is None:
            config.node_rev = given.rev
            used: set[Session] = set().union(*(each.sessions for each in self.buckets.values()))
            notified: set[Session] = {session for session in self.sessions if session not in used}
        else:
            self.raw_configs.pop(bucket.name, None)
            bucket.uuid, bucket.config_rev = given.uuid or bucket.uuid, given.rev
            bucket.given_chains = [list(chain) for chain in given.chains]
            bucket.given_nodes, bucket.given_this_node = list(given.nodes), this_node
            notified = set(bucket.sessions)
        for session in notified:
            session.push_config()
        self._notify_listeners()

    def node_changed(self) -> None:
        """The addresses of the node or the name of its cluster changed: every configuration gets a new revision.

        A map that a cluster manager gave has the manager's revision.
        """
        if self.config.is_given:
            self._notify_listeners()
            return
        self.config.node_rev = self.config.next_rev()
        used: set[Session] = set()
        for bucket in self.buckets.values():
            self.topology_changed(bucket)
            used |= bucket.sessions
        for session in self.sessions:
            if session not in used:
                session.push_config()
        self._notify_listeners()

    def set_pool(self, name: str | None, quotas_mib: Mapping[str, int]) -> None:
        """Set the name of the cluster, unless it is None, and memory quotas of services."""
        self.config.quotas_mib |= quotas_mib
        if name is not None:
            self.config.cluster_name = name
        self.node_changed()

    def _notify_listeners(self) -> None:
        for listener in list(self.config_listeners):
            listener()

    def config_version(self, bucket: Bucket | None) -> tuple[int, int]:
        """(epoch, rev) of a bucket's configuration, or of the node's alone, as clients see it."""
        frozen = self._frozen_for(bucket)
        return self._version(bucket) if frozen is None else frozen[0]

    def _frozen_for(self, bucket: Bucket | None) -> tuple[tuple[int, int], bytes] | None:
        return None if self._frozen is None else self._frozen.get("" if bucket is None else bucket.name)

    def freeze_maps(self, *, is_on: bool) -> None:
        """Show clients the configurations as they are now, whatever changes, until this is called with False."""
        self._frozen = None
        if is_on:
            for bucket in (None, *self.buckets.values()):
                self.config_json(bucket)
            self._frozen = dict(self._config_cache)
            return
        for session in self.sessions:
            session.push_config()
        self._notify_listeners()

    def hide_maps(self, *, is_on: bool) -> None:
        """Have no configuration, like a server that was given none yet, until this is called with False."""
        self.has_maps = not is_on
        if self.has_maps:
            for session in self.sessions:
                session.push_config()

    def _version(self, bucket: Bucket | None) -> tuple[int, int]:
        return self.config.epoch, self.config.node_rev if bucket is None else bucket.config_rev

    def config_json(self, bucket: Bucket | None, host: str = "127.0.0.1") -> bytes:
        """The cluster configuration that a client gets: of a bucket, or of the node alone.

        Args:
            host: the address at which the client reached the node.
        """
        key = "" if bucket is None else bucket.name
        version = self._version(bucket)
        frozen = self._frozen_for(bucket)
        cached = frozen or self._config_cache.get(key)
        if cached is not None and (cached[0] == version or frozen is not None):
            data = cached[1]
        else:
            if bucket is None:
                content = self.config.for_node()
            else:
                facts = cluster_config.BucketFacts(
                    bucket.name,
                    bucket.uuid,
                    bucket.chains(),
                    bucket.manifest.uid,
                    rev=bucket.config_rev,
                    nodes=bucket.given_nodes,
                    this_node=bucket.given_this_node,
                    is_ephemeral=bucket.settings.is_ephemeral,
                    is_magma=bucket.settings.storage_backend == "magma" or bucket.settings.keeps_history,
                )
                content = self.config.for_bucket(facts)
            data = cluster_config.to_bytes(content)
            self._config_cache[key] = version, data
        data = data.replace(cluster_config.HOST_PLACEHOLDER, cluster_config.in_url(host).encode())
        return data.replace(cluster_config.ADDRESS_PLACEHOLDER, cluster_config.plain_host(host).encode())

    def nodes_of(self, bucket: Bucket) -> list[NodeAddress]:
        """The nodes that the numbers in a bucket's map mean."""
        return bucket.given_nodes or self.config.nodes
