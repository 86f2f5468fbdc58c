"""The connections of a `KvClient`, one per node, and the cluster map that assigns vbuckets to them."""

from __future__ import annotations

import ssl

from dcpstream.client.kv.connection import KvConnection
from dcpstream.client.machine.connection.handshake import Handshake
from dcpstream.client.machine.nodes.cluster_map import parse_config
from dcpstream.client.machine.nodes.nodes import MAX_SEEDS_TRIED
from dcpstream.client.machine.nodes.releases import Releases
from dcpstream.client.machine.nodes.retry import FINAL_ERRORS, is_bucket_refusal, is_config_only, refused_by_all
from dcpstream.client.settings.options import Access
from dcpstream.client.settings.srv import resolve_seeds
from dcpstream.client.transport import make_context
from dcpstream.errors import ConnectionLost, ConnectTimeout, DcpstreamError, RemoteProtocolError, StatusError
from dcpstream.model import NodeAddress, VbucketMap
from dcpstream.runtime import Clock, Random, SystemClock, SystemRandom
from dcpstream.wire.messages.kv import GetClusterConfig

MIN_CONNECT_S = 0.1
"""Seconds for connecting that even the last of many seeds gets."""


class KvPool:
    """The connections; each is made when it is needed.

    Args:
        given: addresses, login, TLS and options.
        is_unordered: whether nodes may answer out of order. A durable write then does not hold up the others.

    Attributes:
        releases: of the nodes that were reached.
    """

    def __init__(self, given: Access, *, is_unordered: bool = False) -> None:
        self._given = given
        self._connect_timeout_s = given.options.connect_timeout_s
        self._is_unordered = is_unordered
        self._seeds: tuple[NodeAddress, ...] = ()
        self._context: ssl.SSLContext | None = None
        self._clock: Clock = SystemClock()
        self._random: Random = SystemRandom()
        self.releases = Releases()
        self._map: VbucketMap | None = None
        self._connections: dict[str, KvConnection] = {}

    @property
    def map(self) -> VbucketMap:
        """The cluster map."""
        if self._map is None:
            self._connect_any()
        assert self._map is not None
        return self._map

    def any(self) -> KvConnection:
        """The connection that was made first, or one to any node that answers."""
        return next((one for one in self._connections.values() if not one.is_closed), None) or self._connect_any()

    def close(self) -> None:
        """Close all; a second time does nothing."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def forget(self, connection: KvConnection) -> None:
        """Close a connection that failed; the next use makes a new one."""
        connection.close()
        if self._connections.get(str(connection.address)) is connection:
            del self._connections[str(connection.address)]

    def take_map(self, text: bytes, origin: NodeAddress) -> bool:
        """Take a node's cluster map; whether it is newer than the known one."""
        if not text:
            return False
        try:
            found = parse_config(
                text, origin, self._given.parsed.network, self._seeds, is_secure=self._given.tls is not None
            )
        except RemoteProtocolError:
            return False
        if self._map is None or found.version > self._map.version:
            self._map = found
            return True
        return False

    def of(self, vbid: int) -> KvConnection:
        """The connection to the node that serves a vbucket."""
        address = self.map.active_node(vbid)
        if address is None:
            # No node has it now: any node will say so, and the operation is repeated later.
            return self.any()
        connection = self._connections.get(str(address))
        if connection is not None and not connection.is_closed:
            return connection
        try:
            return self._connect(address)
        except FINAL_ERRORS:
            raise
        except ConnectionLost:
            # The map may be out of date, and the node gone for good: another node may have a newer map.
            if not self._finds_newer_map(address):
                raise
        found = self.map.active_node(vbid)
        return self._connect_any() if found is None else self._connections.get(str(found)) or self._connect(found)

    def _finds_newer_map(self, gone: NodeAddress) -> bool:
        """Ask the other nodes for their map; whether one has a newer one."""
        version = self.map.version
        for address in list(dict.fromkeys((*self.map.nodes, *self._seeds)))[:MAX_SEEDS_TRIED]:
            if str(address) == str(gone):
                continue
            try:
                connection = self._connections.get(str(address)) or self._connect(address)
                self.take_map(connection.ask(GetClusterConfig.pack()).value, address)
                if self.map.version > version:
                    return True
            except FINAL_ERRORS:
                raise
            except ConnectionLost:
                lost = self._connections.get(str(address))
                if lost is not None:
                    self.forget(lost)
        return False

    def _connect_any(self) -> KvConnection:
        if not self._seeds:
            self._seeds = resolve_seeds(self._given.parsed)
        errors: list[DcpstreamError] = []
        candidates = self._candidates()
        deadline = self._clock.monotonic() + self._connect_timeout_s
        while len(errors) < len(candidates):
            # A node that does not answer at all must leave time for the others.
            left = max(deadline - self._clock.monotonic(), 0.0) / (len(candidates) - len(errors))
            try:
                return self._connect(candidates[len(errors)], max(left, MIN_CONNECT_S))
            except (ConnectionLost, StatusError) as error:
                if is_config_only(error):
                    candidates = self._candidates()  # the node gave the map, which names others
                elif isinstance(error, FINAL_ERRORS) and not is_bucket_refusal(error):
                    raise
                errors.append(error)
        refusals = [error for error in errors if is_bucket_refusal(error)]
        if len(refusals) == len(errors):
            raise refused_by_all(refusals)
        raise ConnectTimeout(
            f"no node could be used: {'; '.join(map(str, errors))}. Is it running, and is this its data port?"
        )

    def _candidates(self) -> list[NodeAddress]:
        """The seeds, then the nodes of the map."""
        known = self._map.nodes if self._map is not None else ()
        return list(dict.fromkeys((*self._seeds, *known)))[:MAX_SEEDS_TRIED]

    def _connect(self, address: NodeAddress, timeout_s: float | None = None) -> KvConnection:
        if self._given.tls is not None and self._context is None:
            self._context = make_context(self._given.tls)
        connection = KvConnection(
            address, timeout_s or self._connect_timeout_s, self._clock, self._given.tls, self._context
        )
        handshake = Handshake(
            self._given.login,
            address,
            self._random.getrandbits(192).to_bytes(24, "big"),
            is_unordered=self._is_unordered,
        )
        try:
            connection.shake_hands(handshake)
        except BaseException as error:
            connection.close()
            if is_config_only(error):
                self.take_map(handshake.config, address)
            if self._map is not None and is_bucket_refusal(error):
                # The bucket was there before: the node listens already, and its bucket is not ready yet.
                raise ConnectionLost(str(error), cause=error) from error
            raise
        self._connections[str(address)] = connection
        self.releases.found(str(address), connection.release)
        self.take_map(handshake.config, address)
        return connection
