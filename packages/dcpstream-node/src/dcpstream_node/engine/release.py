"""The server release that a node follows: all differences between 7.2 and 7.6.

A node follows 7.2 unless `compat_version` says otherwise, because the recordings of a real server that check this
project are of that release. Everything that shows the release to a client reads it here: VERSION, HELLO, the fields
and capabilities of the answer to GET_CLUSTER_CONFIG, the error map, and the management port. A request that was
declared for a later release (`since`) is answered UNKNOWN_COMMAND. A 7.2 node refuses a feature of 7.6 as the real one
does.

Source: kv_engine 7.2.7 and 7.6.4: include/mcbp/protocol/feature.h, opcode.h, status.h, etc/couchbase/kv/error_maps,
daemon/protocol/mcbp/hello_packet_executor.cc, cluster_config_executor.cc, daemon/cookie.cc (sendNotMyVBucket).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dcpstream.errors import ConfigError
from dcpstream.wire import Feature, Status
from dcpstream.wire.layout import release_number
from dcpstream.wire.values import snappy_available

DEFAULT_VERSION = "7.2"
"""`compat_version` where nothing is said."""

_FEATURES_72 = frozenset(
    {
        Feature.TCP_NODELAY,
        Feature.TCP_DELAY,
        Feature.MUTATION_SEQNO,
        Feature.XATTR,
        Feature.XERROR,
        Feature.SELECT_BUCKET,
        Feature.JSON,
        Feature.DUPLEX,
        Feature.CLUSTERMAP_NOTIFICATION,
        Feature.UNORDERED_EXECUTION,
        Feature.TRACING,
        Feature.ALT_REQUEST,
        Feature.SYNC_REPLICATION,
        Feature.COLLECTIONS,
        Feature.PRESERVE_TTL,
        Feature.VATTR,
        Feature.POINT_IN_TIME_RECOVERY,
        Feature.SUBDOC_CREATE_AS_DELETED,
        Feature.SUBDOC_DOCUMENT_MACROS,
        Feature.SUBDOC_REPLACE_BODY_WITH_XATTR,
    }
    | ({Feature.SNAPPY} if snappy_available else set())
)
_FEATURES_76 = _FEATURES_72 | {
    Feature.SUBDOC_REPLICA_READ,
    Feature.CLUSTER_CONFIG_KNOWN_VERSION,
    Feature.DEDUPE_NOT_MY_VBUCKET,
    Feature.CLUSTERMAP_NOTIFICATION_BRIEF,
    Feature.SUBDOC_SEVERAL_XATTR_KEYS,
    Feature.SUBDOC_BINARY_XATTR,
    Feature.RANGE_SCAN_XATTR,
    Feature.SUBDOC_REPLICA_READ_DELETED,
    Feature.RANDOM_KEY_XATTR,
}

_CAPABILITIES_72 = (
    "collections",
    "durableWrite",
    "tombstonedUserXAttrs",
    "couchapi",
    "subdoc.ReplaceBodyWithXattr",
    "subdoc.DocumentMacroSupport",
    "subdoc.ReviveDocument",
    "dcp.IgnorePurgedTombstones",
    "preserveExpiry",
    "dcp",
    "cbhello",
    "touch",
    "cccp",
    "nodesExt",
    "xattr",
)
_CAPABILITIES_76 = (
    *_CAPABILITIES_72,
    "subdoc.ReplicaRead",
    "subdoc.BinaryXattr",
    "subdoc.AccessDeleted",
    "rangeScan",
)

_STATUSES_76 = frozenset(
    (
        Status.WOULD_THROTTLE,
        Status.NOT_LOCKED,
        Status.RANGE_SCAN_CANCELLED,
        Status.RANGE_SCAN_MORE,
        Status.RANGE_SCAN_COMPLETE,
        Status.VBUUID_NOT_EQUAL,
        Status.SUBDOC_FIELD_NOT_BINARY_VALUE,
    )
)
"""Statuses that came with 7.6."""


@dataclass(frozen=True, slots=True)
class Release:
    """A server release as clients see it.

    Attributes:
        name: as `compat_version` names it.
        version: what VERSION and the management port say. The build number is 0000, because no build is followed.
        compatibility: `clusterCompatibility`, major and minor version as one number.
        features: what HELLO grants, and only what is really done. Unordered execution allows answers in order; sync
            replication means that durable writes are understood; point-in-time recovery is granted by the server long
            after it came to mean nothing.
        capabilities: what clients may use on a bucket that is kept on disk. `couchapi` only keeps JVM clients from
            taking it for an ephemeral one.
        unknown_statuses: statuses that came later, which are in no error map.
        error_map_revision: counts changes of the error map's content.
        is_76: whether it is 7.6 or newer, for rules that hold in one place only.
        names_cluster: whether cluster maps have `clusterName` and `clusterUUID`.
        names_server_groups: whether the nodes of a cluster map have `serverGroup`.
    """

    name: str
    version: str
    compatibility: int
    features: frozenset[Feature]
    capabilities: tuple[str, ...]
    unknown_statuses: frozenset[int]
    error_map_revision: int
    is_76: bool
    names_cluster: bool
    names_server_groups: bool

    def knows(self, since: str) -> bool:
        """Whether it has a message or a control that came with some release; see `Layout.since`."""
        return release_number(since) <= release_number(self.name)

    def bucket_capabilities(self, *, is_ephemeral: bool, is_magma: bool) -> list[str]:
        """The capabilities of a bucket of that kind."""
        found = [name for name in self.capabilities if not (is_ephemeral and name == "couchapi")]
        if is_magma and not is_ephemeral:
            found.append("nonDedupedHistory")
        return found


RELEASES: Mapping[str, Release] = MappingProxyType(
    {
        "7.2": Release(
            name="7.2",
            version="7.2.7-0000-enterprise",
            compatibility=7 * 65536 + 2,
            features=_FEATURES_72,
            capabilities=_CAPABILITIES_72,
            unknown_statuses=_STATUSES_76,
            error_map_revision=1,
            is_76=False,
            names_cluster=False,
            names_server_groups=False,
        ),
        "7.6": Release(
            name="7.6",
            version="7.6.4-0000-enterprise",
            compatibility=7 * 65536 + 6,
            features=_FEATURES_76,
            capabilities=_CAPABILITIES_76,
            unknown_statuses=frozenset(),
            error_map_revision=5,
            is_76=True,
            names_cluster=True,
            names_server_groups=True,
        ),
    }
)
"""The releases that a node can be, by name."""


def release_of(compat_version: object) -> Release:
    """The release of that name.

    Raises:
        ConfigError: a node cannot be that.
    """
    found = RELEASES.get(compat_version) if isinstance(compat_version, str) else None
    if found is None:
        raise ConfigError("compat_version", compat_version, " or ".join(RELEASES))
    return found
