"""A node with the interface of a Testcontainers module for Couchbase, without Docker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import BucketSettings
from dcpstream_node.embedded import Node
from dcpstream_node.testing.nodes import DEFAULT_VBUCKETS, connectable

KV_PORT, MGMT_PORT = 11210, 8091
"""A server's own ports; a container maps them to others."""
MIB = 1024 * 1024
_SERVICES = frozenset({"kv", "data"})


@dataclass(frozen=True, slots=True)
class BucketDefinition:
    """A bucket that the container creates.

    Attributes:
        name: of the bucket.
        quota_mb: its memory, MiB.
        is_flush_enabled: whether a request over HTTP may delete all documents.
        replicas: copies of each vbucket on other nodes. A container is one node and makes none.
    """

    name: str
    quota_mb: int = 100
    is_flush_enabled: bool = False
    replicas: int = 0

    def with_quota(self, quota_mb: int) -> BucketDefinition:
        """This definition with another memory quota, in MiB."""
        return replace(self, quota_mb=quota_mb)

    def with_flush_enabled(self, is_enabled: bool = True) -> BucketDefinition:  # noqa: FBT001, FBT002, RUF100 - as there
        """This definition, with the documents deletable over HTTP or not."""
        return replace(self, is_flush_enabled=is_enabled)

    def with_replicas(self, replicas: int) -> BucketDefinition:
        """This definition with another number of replicas."""
        return replace(self, replicas=replicas)

    def get_name(self) -> str:
        """The bucket's name."""
        return self.name

    def settings(self) -> BucketSettings:
        """The settings that the node creates the bucket with."""
        return BucketSettings(
            ram_quota_bytes=self.quota_mb * MIB, flush_enabled=self.is_flush_enabled, replicas=self.replicas
        )


class CouchbaseContainer:
    """A Couchbase-compatible node that is started and stopped like a container.

        with CouchbaseContainer().with_bucket(BucketDefinition("shop")) as couchbase:
            cluster = Cluster.connect(couchbase.get_connection_string(), ...)

    Args:
        image: ignored; accepted so that tests need no change.
        vbuckets: of each bucket.
        options: other arguments of `dcpstream_node.Node`.

    Raises:
        ConfigError: a service or port is not available.
    """

    def __init__(self, image: str = "", *, vbuckets: int = DEFAULT_VBUCKETS, **options: Any) -> None:
        self._options: dict[str, Any] = {"vbuckets": vbuckets, **options}
        self._buckets: dict[str, BucketDefinition] = {}
        self._node: Node | None = None

    # ------------------------------------------------------------------------------------------------- before the start

    def with_bucket(self, bucket: BucketDefinition | str) -> Self:
        """Create this bucket at the start; call it once for each bucket."""
        self._check_not_started()
        definition = BucketDefinition(bucket) if isinstance(bucket, str) else bucket
        self._buckets[definition.name] = definition
        return self

    def with_credentials(self, username: str, password: str) -> Self:
        """Set the administrator's name and password."""
        self._check_not_started()
        self._options |= {"username": username, "password": password}
        return self

    def with_enabled_services(self, *services: object) -> Self:
        """Accept the KV service.

        Raises:
            ConfigError: any other service.
        """
        for service in services:
            if str(getattr(service, "value", service)).lower() not in _SERVICES:
                raise ConfigError("services", service, "kv: a node has no query, index, search, analytics or eventing")
        return self

    def _check_not_started(self) -> None:
        if self._node is not None:
            raise DcpstreamError("the container runs already: configure it before it is started")

    # -------------------------------------------------------------------------------------------------- start and stop

    def start(self) -> Self:
        """Start the node unless it runs; returns when clients can connect."""
        if self._node is None:
            buckets = self._buckets or {"default": BucketDefinition("default")}
            settings = {name: definition.settings() for name, definition in buckets.items()}
            self._node = Node(tuple(buckets), settings=settings, **self._options).start()
        return self

    def stop(self, **_: object) -> None:
        """Stop the node if it runs; its data is lost."""
        node, self._node = self._node, None
        if node is not None:
            node.stop()

    def __enter__(self) -> Self:
        """Start the node."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the node."""
        self.stop()

    # ---------------------------------------------------------------------------------------------------- while it runs

    @property
    def node(self) -> Node:
        """The running node.

        Raises:
            DcpstreamError: the container does not run.
        """
        if self._node is None:
            raise DcpstreamError("the container does not run: start it first")
        return self._node

    @property
    def is_running(self) -> bool:
        """Whether the node runs."""
        return self._node is not None and self._node.is_running

    @property
    def username(self) -> str:
        """The administrator's name."""
        return self.node.username

    @property
    def password(self) -> str:
        """The administrator's password."""
        return self.node.password

    def get_connection_string(self) -> str:
        """The connection string for clients."""
        return self.node.connection_string

    def get_username(self) -> str:
        """The administrator's name."""
        return self.username

    def get_password(self) -> str:
        """The administrator's password."""
        return self.password

    def get_container_host_ip(self) -> str:
        """The address for clients."""
        return connectable(self.node.host)

    def get_host(self) -> str:
        """The address for clients."""
        return self.get_container_host_ip()

    def get_bootstrap_carrier_direct_port(self) -> int:
        """The KV port."""
        return self.node.port

    def get_bootstrap_http_direct_port(self) -> int:
        """The management port."""
        return self.node.mgmt_port

    def get_exposed_port(self, port: int) -> int:
        """The node's port for a server's own port: 11210 (KV) or 8091 (management).

        Raises:
            ConfigError: any other port.
        """
        if port not in (KV_PORT, MGMT_PORT):
            raise ConfigError("port", port, f"{KV_PORT} or {MGMT_PORT}")
        return self.node.port if port == KV_PORT else self.node.mgmt_port
