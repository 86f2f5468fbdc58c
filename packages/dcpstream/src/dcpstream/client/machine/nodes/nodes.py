"""The connections to a bucket's nodes: which are needed, which are ready, when to try again, and the newest map.

Sans-IO: the shell opens a socket for each connection of `to_connect()`, closes those of `to_disconnect()`, moves the
bytes, and calls `lost()` when a socket fails.

Failed nodes are tried again as `retry` says. A refused bucket is final only if it was never reached and every seed
refuses it. A server that starts listens before it has its buckets, so a bucket that was reached before is awaited like
a node that is away. A node that has only the bucket's map (CONFIG_ONLY) gives the map, and is left for those it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import Answer, ConfigPushed, Event, RowsReceived
from dcpstream.client.machine.nodes.cluster_map import parse_config
from dcpstream.client.machine.nodes.releases import Releases
from dcpstream.client.machine.nodes.retry import (
    FINAL_ERRORS,
    PROTOCOL_PAUSE_S,
    STABLE_S,
    Backoff,
    Faults,
    RetryLog,
    is_bucket_refusal,
    is_config_only,
    is_fault,
    pause_s,
    refused_by_all,
)
from dcpstream.client.settings.options import ConnectOptions
from dcpstream.client.settings.tls import closed_at_once
from dcpstream.errors import (
    BucketReset,
    ConnectionLost,
    ConnectTimeout,
    DcpstreamError,
    RemoteProtocolError,
    StatusError,
)
from dcpstream.model import NodeAddress, VbucketMap
from dcpstream.runtime import Random
from dcpstream.wire.messages.kv import GetClusterConfig

NEXT_SEED_S = 0.5
"""Seconds after which the next seed is tried while one has not answered."""

CONFIG_POLL_S = 2.5
"""Seconds between two requests for the map while no node pushes it; as in the SDKs."""

MAX_SEEDS_TRIED = 64
"""Addresses that are tried in turn to find a map; more would make the error unreadable."""


def _is_another_bucket(old: VbucketMap, new: VbucketMap) -> bool:
    """Whether a newer map is of another bucket of the same name, in the same cluster.

    Servers before 7.6.4 do not name the cluster. Their maps are compared by the bucket's uuid alone.
    """
    return bool(old.uuid and new.uuid) and old.uuid != new.uuid and old.cluster_uuid == new.cluster_uuid


def _another_bucket(bucket: str, old_uuid: str, uuid: str) -> BucketReset:
    return BucketReset(
        f"bucket {bucket!r} was deleted and created again (its uuid was {old_uuid} and is {uuid}): positions in it are "
        "void. Start again from the beginning."
    )


class Nodes:
    """Connections by node.

    Args:
        options: how to connect.
        random: for nonces, names and pauses.
        was_reached: whether the bucket was reached before, by other connections: then it is awaited.

    Attributes:
        releases: of the nodes that were reached.
    """

    def __init__(self, options: ConnectOptions, random: Random, *, was_reached: bool = False) -> None:
        self.options = options
        self.map: VbucketMap | None = None
        self._expected_uuid = ""
        self._was_reached = was_reached
        self._faults = Faults()
        self.retry_log = RetryLog()
        self.releases = Releases()
        self._random = random
        self._connections: dict[str, NodeConnection] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._to_connect: list[NodeConnection] = []
        self._to_disconnect: list[NodeConnection] = []
        self._config_requests: dict[NodeConnection, int] = {}
        self._ready_since: dict[NodeConnection, float] = {}
        self._next_seed = 0
        self._next_seed_at = 0.0
        self._next_poll_at = 0.0

    @property
    def was_reached(self) -> bool:
        """Whether the bucket was ever reached: a node that does not have it now is then a node that starts."""
        return self._was_reached or self.map is not None

    @property
    def connections(self) -> list[NodeConnection]:
        """All connections that are being made or are ready."""
        return list(self._connections.values())

    def has(self, connection: NodeConnection) -> bool:
        """Whether a connection has not been given up."""
        return self._connections.get(str(connection.address)) is connection

    def to_connect(self) -> list[NodeConnection]:
        """New connections that need a socket; each is returned once."""
        result, self._to_connect = self._to_connect, []
        return result

    def to_disconnect(self) -> list[NodeConnection]:
        """Connections that were given up; each is returned once."""
        result, self._to_disconnect = self._to_disconnect, []
        return result

    def ready(self, address: NodeAddress, now: float) -> NodeConnection | None:
        """The connection to a node if it can be used now; otherwise one is made."""
        found = self._connections.get(str(address))
        if found is None:
            self._connect(address, now)
            return None
        return found if found.is_ready else None

    def any_ready(self) -> NodeConnection | None:
        """Some connection that can be used now."""
        return next((connection for connection in self._connections.values() if connection.is_ready), None)

    def find_map(self, now: float, *, refresh: bool = False) -> VbucketMap | None:
        """The map; without one, or with `refresh`, asks a node for it."""
        if self.map is not None and not refresh:
            return self.map
        connection = self.any_ready()
        if connection is not None:
            self._ask_for_map(connection, now)
            if now >= self._next_seed_at:
                # The node that is asked may have left the cluster, and know no more than the map of that moment.
                self._try_next_seed(now, is_named=True)
        elif not self._connections or now >= self._next_seed_at:
            self._try_next_seed(now)
        return self.map

    def _try_next_seed(self, now: float, other_than: str = "", *, is_named: bool = False) -> None:
        """Connect to a node that has no connection; with `is_named`, only to one that the map names."""
        known = list(self.map.nodes) if self.map is not None else []
        candidates = (known if is_named else [*self.options.seeds, *known])[:MAX_SEEDS_TRIED]
        self._next_seed_at = now + NEXT_SEED_S
        for _ in range(len(candidates)):
            address = candidates[self._next_seed % len(candidates)]
            self._next_seed += 1
            if str(address) not in {other_than, *self._connections} and self._connect(address, now):
                break

    def received(self, connection: NodeConnection, now: float) -> None:
        """Bytes were read into a connection's buffer.

        Raises:
            DcpstreamError: final; see `lost`.
        """
        was_ready = connection.is_ready
        try:
            try:
                connection.process(now)
            except StatusError as error:
                if is_config_only(error):
                    self._take_map_of(connection)
                raise
            if connection.is_ready and not was_ready:
                self._ready_since[connection] = now
                self.releases.found(str(connection.address), connection.release)
                self._next_poll_at = max(self._next_poll_at, now + CONFIG_POLL_S)
                self._take_map_of(connection)
        except DcpstreamError as error:
            self.lost(connection, error, now)

    def _take_map_of(self, connection: NodeConnection) -> None:
        """Take the map that came with a handshake."""
        had_map = self.map is not None
        self.update_map(connection.config, connection.address)
        if not had_map:
            self._forget_other_seeds(connection)

    def _forget_other_seeds(self, answered: NodeConnection) -> None:
        """Give up attempts at other seeds than the one that answered, unless the map names them."""
        assert self.map is not None
        named = {str(node) for node in self.map.nodes}
        for name, connection in list(self._connections.items()):
            if connection is not answered and not connection.is_ready and name not in named:
                self.drop(connection)

    def events(self, connection: NodeConnection, now: float) -> Iterator[Event]:
        """A connection's events, except those about the map.

        Raises:
            BucketReset: the bucket was deleted and created again.
        """
        for event in connection.events():
            if isinstance(event, ConfigPushed):
                if event.bucket == self.options.login.bucket:
                    self._pushed(connection, event, now)
            elif isinstance(event, Answer) and self._config_requests.get(connection) == event.opaque:
                del self._config_requests[connection]
                self.update_map(event.frame.value, connection.address)
            else:
                yield event

    def _pushed(self, connection: NodeConnection, event: ConfigPushed, now: float) -> None:
        if event.config:
            self.update_map(event.config, connection.address)
        elif self.map is None or event.version is None or event.version > self.map.version:
            self._ask_for_map(connection, now)

    def _ask_for_map(self, connection: NodeConnection, now: float) -> None:
        if connection not in self._config_requests and connection.session is not None:
            self._config_requests[connection] = connection.session.request(GetClusterConfig(), now)

    def update_map(self, text: bytes, origin: NodeAddress) -> None:
        """Take a map if it is newer than the known one; an unreadable one is ignored if a map is known.

        Raises:
            BucketReset: the bucket was deleted and created again.
            TlsError, ConfigError: the map has no addresses for this kind of connection.
        """
        if not text:
            return
        try:
            found = parse_config(
                text, origin, self.options.network, self.options.seeds, is_secure=self.options.tls is not None
            )
        except RemoteProtocolError:
            if self.map is None:
                raise
            return
        known = self.map
        if known is None or found.version > known.version:
            if known is not None and _is_another_bucket(known, found):
                raise _another_bucket(known.bucket, known.uuid, found.uuid)
            self._take_map(found)
        elif found.cluster_uuid != known.cluster_uuid or (not found.cluster_uuid and found.uuid != known.uuid):
            # A node that began again counts its versions from the start. Positions are then judged by their branches.
            self._take_map(found)

    def expect(self, uuid: str) -> None:
        """From now on the bucket must have this uuid; empty for any. A map of another bucket is forgotten."""
        self._expected_uuid = uuid
        if uuid and self.map is not None and self.map.uuid and self.map.uuid != uuid:
            self.map = None

    def _take_map(self, found: VbucketMap) -> None:
        if self._expected_uuid and found.uuid and found.uuid != self._expected_uuid:
            raise _another_bucket(found.bucket, self._expected_uuid, found.uuid)
        self.map = found

    def lost(self, connection: NodeConnection, error: BaseException, now: float) -> None:
        """A connection failed, or could not be made.

        Raises:
            DcpstreamError: the reason, if trying again cannot help.
        """
        if self._connections.get(str(connection.address)) is not connection:
            return
        since = self._ready_since.get(connection)
        if since is not None and now - since >= STABLE_S:
            self.worked(connection)
        self.drop(connection)
        is_refusal = is_bucket_refusal(error)
        if isinstance(error, FINAL_ERRORS) and not is_refusal:
            raise error
        if type(error) is ConnectionLost and not connection.has_received:
            error = closed_at_once(error, is_secured=self.options.tls is not None)
        name = str(connection.address)
        pause = 0.0
        # Other bytes during the handshake come from another program at that port: the node is away.
        is_broken = is_fault(error) and connection.is_ready
        if is_broken:
            self._faults.add(name, error, now)
            pause = pause_s(self._faults.count(name), self._random, PROTOCOL_PAUSE_S)
        backoff = self._backoffs.setdefault(name, Backoff(self._random))
        backoff.failed(now, error, pause)
        self._check_seeds()
        # A node that was there may restart, so its first failure says nothing. One that never was may not exist.
        if is_broken or is_refusal or backoff.failures > 1 or not self.was_reached:
            failures = max(backoff.failures, self._faults.count(name))
            self.retry_log.retrying(name, error, failures, backoff.retry_at - now, now)
        if self.map is not None and self.any_ready() is None:
            # No node is left that would report a failover of the lost one.
            self._try_next_seed(now, other_than=name)

    def _check_seeds(self) -> None:
        """Give up if the bucket was never reached, and each seed refused it when it was asked last.

        Raises:
            AccessDenied, KeyNotFound: that is so.
        """
        if self.was_reached:
            return
        names = dict.fromkeys(str(seed) for seed in self.options.seeds[:MAX_SEEDS_TRIED])
        answers = [self._backoffs[name].last_error for name in names if name in self._backoffs]
        refusals = [answer for answer in answers if answer is not None and is_bucket_refusal(answer)]
        if len(refusals) == len(names):
            raise refused_by_all(refusals)

    def worked(self, connection: NodeConnection) -> None:
        """A connection served its purpose: the next failure counts as the first."""
        self._backoffs.pop(str(connection.address), None)

    def progressed(self, connection: NodeConnection, received: RowsReceived) -> None:
        """A reader got further by these rows."""
        self.worked(connection)
        name = str(connection.address)
        if self._faults.count(name):
            is_complete = any(offset.seqno == offset.snapshot_end for offset in received.offsets.values())
            self._faults.progressed(name, sum(stop - first for first, stop in received.keep), is_complete=is_complete)

    def drop(self, connection: NodeConnection) -> None:
        """Close a connection and forget it."""
        self._ready_since.pop(connection, None)
        self._config_requests.pop(connection, None)
        if self._connections.get(str(connection.address)) is connection:
            del self._connections[str(connection.address)]
        self._to_disconnect.append(connection)

    def next_timeout(self) -> float:
        """The latest time to call `handle_timeout`; infinity if there is nothing to wait for."""
        due = min((connection.next_timeout() for connection in self._connections.values()), default=float("inf"))
        if self.map is None:
            if self._connections:
                return min(due, self._next_seed_at)
            seeds = (self._backoffs.get(str(seed)) for seed in self.options.seeds)
            return min((backoff.retry_at for backoff in seeds if backoff is not None), default=due)
        return min(due, self._next_poll_at) if self._polled() is not None else due

    def retry_at(self, address: NodeAddress) -> float:
        """The time before which `ready` does not try a failed node again; 0 if it may now."""
        backoff = self._backoffs.get(str(address))
        return backoff.retry_at if backoff is not None and str(address) not in self._connections else 0.0

    def handle_timeout(self, now: float) -> list[NodeConnection]:
        """Check the clocks of all connections; returns those that were given up."""
        given_up = []
        for connection in self.connections:
            try:
                connection.handle_timeout(now)
            except DcpstreamError as error:
                given_up.append(connection)
                self.lost(connection, error, now)
        polled = self._polled()
        if polled is not None and now >= self._next_poll_at:
            self._next_poll_at = now + CONFIG_POLL_S
            self._ask_for_map(polled, now)
        return given_up

    def _polled(self) -> NodeConnection | None:
        """The connection on which the map is polled, if no node pushes it."""
        ready = [connection for connection in self._connections.values() if connection.is_ready]
        return None if any(connection.takes_pushes for connection in ready) else next(iter(ready), None)

    def complaint(
        self, now: float, patience_s: float, needed: Collection[str] | None = None
    ) -> ConnectTimeout | RemoteProtocolError | None:
        """The error to raise if a node that is needed has failed for longer than the patience, else None.

        Also for a node that has broken the protocol too often, however long that took.
        """
        verdict = self.verdict(needed)
        if verdict is not None:
            return verdict
        hopeless = [
            (name, backoff)
            for name, backoff in self._backoffs.items()
            if backoff.failures > 1
            and now - backoff.since >= patience_s
            and (needed is None or name in needed)
            and not self._is_ready(name)
        ]
        if not hopeless:
            return None
        tried = "; ".join(f"{name}: {backoff.last_error} ({backoff.failures} attempts)" for name, backoff in hopeless)
        return ConnectTimeout(
            f"no connection for {patience_s:g} s: {tried}. Is the node running, and is this its data port?",
            cause=hopeless[0][1].last_error,
        )

    def verdict(self, needed: Collection[str] | None = None) -> RemoteProtocolError | None:
        """The error to raise if a node that is needed has broken the protocol too often, else None.

        Args:
            needed: names of nodes; None while there is no map: then all seeds must have broken the protocol.
        """
        if needed is not None:
            return self._faults.verdict(needed)
        if self.map is not None:
            return None
        verdicts = [self._faults.verdict((str(seed),)) for seed in self.options.seeds]
        return verdicts[0] if verdicts and all(verdict is not None for verdict in verdicts) else None

    def _is_ready(self, name: str) -> bool:
        return name in self._connections and self._connections[name].is_ready

    def tried(self) -> str:
        """The nodes that were tried, with the result of each, for messages."""
        parts = [f"{name}: {backoff.last_error}" for name, backoff in self._backoffs.items()]
        parts += [
            f"{name}: no answer yet"
            for name, found in self._connections.items()
            if not found.is_ready and name not in self._backoffs
        ]
        return "; ".join(parts) or "nothing"

    def _connect(self, address: NodeAddress, now: float) -> bool:
        name = str(address)
        backoff = self._backoffs.get(name)
        if backoff is not None and now < backoff.retry_at:
            return False
        options = self.options
        nonce = self._random.getrandbits(192).to_bytes(24, "big")
        unique = replace(options.settings, name=f"{options.settings.name}:{nonce[:8].hex()}")
        connection = NodeConnection(
            address,
            options.login,
            unique,
            nonce,
            now,
            connect_timeout_s=options.connect_timeout_s,
            frames=options.frames,
        )
        self._connections[name] = connection
        self._to_connect.append(connection)
        return True
