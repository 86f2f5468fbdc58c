"""The server releases that users run, and everything in which they differ: one table.

`RELEASES` holds the releases by name. What a release has follows from rows, each with the release that brought it
(`since`), the first release that no longer has it (`until`), and the source of the fact:

- `FEATURES`: features of HELLO. `CAPABILITIES`: of buckets, in the cluster map. `STATUSES`: statuses of answers.
- `OPEN_FLAGS`, `STREAM_FLAGS`: flags of DCP_OPEN, and of STREAM_REQ and ADD_STREAM.
- `Rule`: every other difference, one sentence each. Code that behaves by release asks `Release.has` for a rule.
- `ServerBug` (`dcpstream.wire.server_bugs`): what the server does wrong. Code asks `Release.has_bug`.

Requests have `since` and `until` in their declarations (`dcpstream.wire.messages`), and controls in
`dcpstream.dcp.controls`. A node derives the shapes of requests, its commands, HELLO, the error map and the cluster map
from these, and the reference page docs/reference/releases.md is made of them.

Sources: "7.2" and "8.0.1" are servers that were recorded. Nothing of 7.6 and 8.5 was recorded: their facts are from the
files of kv_engine that are named, 8.5 from its development branch of August 2026.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from dcpstream.errors import ConfigError
from dcpstream.wire.codes import Feature, OpenFlag, StreamFlag
from dcpstream.wire.server_bugs import ServerBug
from dcpstream.wire.status import Status

RECORDED_72 = "7.2 recorded"
RECORDED_80 = "8.0.1 recorded"
FEATURE_H = "kv_engine include/mcbp/protocol/feature.h"
STATUS_H = "kv_engine include/mcbp/protocol/status.h"
STREAM_FLAGS_H = "kv_engine include/mcbp/protocol/dcp_add_stream_flags.h"
OPEN_MD = "kv_engine docs/dcp/documentation/commands/open-connection.md"
MAP_H = "ns_server apps/ns_server/src/ns_bucket.erl, bucket_info_cache.erl"


def release_number(name: str) -> tuple[int, int]:
    """(major, minor) version of a release, as `since` names it; "" is before all others.

    Raises:
        ValueError: the name is not that of a release.
    """
    if not name:
        return 0, 0
    major, _, minor = name.partition(".")
    return int(major), int(minor)


class Row(NamedTuple):
    """One fact of the table.

    Attributes:
        source: who says so: a recorded server, or a file.
        since: the release that brought it, as "7.6"; "" for one before all that matter.
        until: the first release that no longer has it; "" if all later ones have it.
    """

    source: str
    since: str = ""
    until: str = ""


ASKED_80 = "8.0.1 and 7.2.9 asked with the rules' tests"
SINCE_76 = Row(RECORDED_80, since="7.6")
SINCE_80 = Row(RECORDED_80, since="8.0")

FEATURES: Mapping[Feature, Row] = MappingProxyType(
    {
        Feature.TCP_NODELAY: Row(RECORDED_72),
        Feature.MUTATION_SEQNO: Row(RECORDED_72),
        Feature.TCP_DELAY: Row(RECORDED_72, until="8.0"),
        Feature.XATTR: Row(RECORDED_72),
        Feature.XERROR: Row(RECORDED_72),
        Feature.SELECT_BUCKET: Row(RECORDED_72),
        Feature.SNAPPY: Row(RECORDED_72),
        Feature.JSON: Row(RECORDED_72),
        Feature.DUPLEX: Row(RECORDED_72),
        Feature.CLUSTERMAP_NOTIFICATION: Row(RECORDED_72),
        Feature.UNORDERED_EXECUTION: Row(RECORDED_72),
        Feature.TRACING: Row(RECORDED_72),
        Feature.ALT_REQUEST: Row(RECORDED_72),
        Feature.SYNC_REPLICATION: Row(RECORDED_72),
        Feature.COLLECTIONS: Row(RECORDED_72),
        Feature.SNAPPY_EVERYWHERE: SINCE_76,
        Feature.PRESERVE_TTL: Row(RECORDED_72),
        Feature.VATTR: Row(RECORDED_72),
        Feature.POINT_IN_TIME_RECOVERY: Row(RECORDED_72, until="8.0"),
        Feature.SUBDOC_CREATE_AS_DELETED: Row(RECORDED_72),
        Feature.SUBDOC_DOCUMENT_MACROS: Row(RECORDED_72),
        Feature.SUBDOC_REPLACE_BODY_WITH_XATTR: Row(RECORDED_72),
        Feature.NON_BLOCKING_THROTTLING: SINCE_76,
        Feature.SUBDOC_REPLICA_READ: SINCE_76,
        Feature.CLUSTER_CONFIG_KNOWN_VERSION: SINCE_76,
        Feature.DEDUPE_NOT_MY_VBUCKET: Row(FEATURE_H, since="7.6"),
        Feature.CLUSTERMAP_NOTIFICATION_BRIEF: Row(FEATURE_H, since="7.6"),
        Feature.SUBDOC_SEVERAL_XATTR_KEYS: SINCE_76,
        Feature.SUBDOC_BINARY_XATTR: Row(FEATURE_H, since="7.6"),
        Feature.RANGE_SCAN_XATTR: Row(FEATURE_H, since="8.0"),
        Feature.SUBDOC_REPLICA_READ_DELETED: Row(FEATURE_H, since="8.0"),
        Feature.RANDOM_KEY_XATTR: Row(FEATURE_H, since="8.0"),
        Feature.MUTATE_WITH_META: Row(FEATURE_H, since="8.5"),
        Feature.DCP_SKIP_DELETES_IN_BACKFILL: Row(FEATURE_H, since="8.5"),
    }
)
"""Feature → when HELLO grants it. A node grants only what it really does. Unordered execution allows answers in order;
sync replication means that durable writes are understood; point-in-time recovery is granted by the server long after it
came to mean nothing."""

CAPABILITIES: Mapping[str, Row] = MappingProxyType(
    {
        "collections": Row(MAP_H),
        "durableWrite": Row(MAP_H),
        "tombstonedUserXAttrs": Row(MAP_H),
        "couchapi": Row(MAP_H),
        "subdoc.ReplaceBodyWithXattr": Row(MAP_H),
        "subdoc.DocumentMacroSupport": Row(MAP_H),
        "subdoc.ReviveDocument": Row(MAP_H),
        "dcp.IgnorePurgedTombstones": Row(MAP_H),
        "preserveExpiry": Row(MAP_H, since="7.6"),
        "dcp": Row(MAP_H),
        "cbhello": Row(MAP_H),
        "touch": Row(MAP_H),
        "cccp": Row(MAP_H),
        "nodesExt": Row(MAP_H),
        "xattr": Row(MAP_H),
        "subdoc.ReplicaRead": Row(MAP_H, since="7.6"),
        "rangeScan": Row(MAP_H, since="7.6"),
        "querySystemCollection": Row(MAP_H, since="7.6"),
        "mobileSystemCollection": Row(MAP_H, since="7.6"),
        "xdcrCheckpointing": Row(MAP_H, since="7.6"),
        "subdoc.BinaryXattr": Row(MAP_H, since="8.0"),
        "subdoc.AccessDeleted": Row(MAP_H, since="8.0"),
    }
)
"""Capability of a bucket on disk, in the order of the cluster map. `couchapi` only keeps JVM clients from taking the
bucket for an ephemeral one."""

STATUSES: Mapping[Status, Row] = MappingProxyType(
    {
        Status.WOULD_THROTTLE: Row(STATUS_H, since="7.6"),
        Status.CONFIG_ONLY: Row(STATUS_H, since="7.6"),
        Status.NOT_LOCKED: SINCE_76,
        Status.CAS_VALUE_INVALID: SINCE_80,
        Status.ENCRYPTION_KEY_NOT_AVAILABLE: Row(STATUS_H, since="8.0"),
        Status.CHECKSUM_MISMATCH: Row(STATUS_H, since="8.0"),
        Status.BUCKET_PAUSED: SINCE_76,
        Status.CANCELLED: Row(STATUS_H, since="7.6"),
        Status.RANGE_SCAN_CANCELLED: Row(STATUS_H, since="7.6"),
        Status.RANGE_SCAN_MORE: Row(STATUS_H, since="7.6"),
        Status.RANGE_SCAN_COMPLETE: Row(STATUS_H, since="7.6"),
        Status.VBUUID_NOT_EQUAL: Row(STATUS_H, since="7.6"),
        Status.SUBDOC_FIELD_NOT_BINARY_VALUE: Row(STATUS_H, since="7.6"),
    }
)
"""Statuses that not every release has. The error map of a release has no others."""

OPEN_FLAGS: Mapping[OpenFlag, Row] = MappingProxyType(
    {
        OpenFlag.PRODUCER: Row(RECORDED_72),
        OpenFlag.INCLUDE_XATTRS: Row(RECORDED_72),
        OpenFlag.NO_VALUE: Row(RECORDED_72),
        OpenFlag.INCLUDE_DELETE_TIMES: Row(RECORDED_72),
        OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE: Row(RECORDED_72),
        OpenFlag.INVALID_PITR: Row(RECORDED_72, until="8.0"),
        OpenFlag.INCLUDE_DELETED_USER_XATTRS: Row(RECORDED_72),
        OpenFlag.SKIP_DELETES_IN_BACKFILL: Row(OPEN_MD, since="8.5"),
    }
)
"""Flag of DCP_OPEN → when it is accepted."""

STREAM_FLAGS: Mapping[StreamFlag, Row] = MappingProxyType(
    {
        StreamFlag.TAKEOVER: Row(RECORDED_72),
        StreamFlag.DISK_ONLY: Row(RECORDED_72),
        StreamFlag.TO_LATEST: Row(RECORDED_72),
        StreamFlag.ACTIVE_ONLY: Row(RECORDED_72),
        StreamFlag.STRICT_VBUUID: Row(RECORDED_72),
        StreamFlag.FROM_LATEST: Row(STREAM_FLAGS_H + "; 8.0.1 recorded", since="7.6"),
        StreamFlag.IGNORE_PURGED_TOMBSTONES: Row(RECORDED_72),
        StreamFlag.CACHE_TRANSFER: Row(STREAM_FLAGS_H, since="8.5"),
    }
)
"""Flag of STREAM_REQ and ADD_STREAM → when it is accepted."""


class Rule(Enum):
    """A difference in behaviour.

    Attributes:
        text: the rule, as a sentence.
        row: when it holds, and who says so.
    """

    def __init__(self, text: str, row: Row) -> None:
        self.text = text
        self.row = row

    MAP_NAMES_CLUSTER = "Cluster maps have clusterName and clusterUUID.", Row(MAP_H, since="7.6")
    MAP_NAMES_SERVER_GROUPS = "The nodes of a cluster map have serverGroup.", Row(MAP_H, since="7.6")
    MAP_NAMES_NODES = "The nodes of a cluster map have nodeUUID.", Row(MAP_H, since="8.0")
    KEY_STATS_NAME_DATATYPE = "STAT key has key_datatype.", SINCE_76
    NOT_LOCKED = ("UNLOCK of a document that is not locked is answered NOT_LOCKED; before, TMPFAIL.", SINCE_76)
    WITH_META_RETURNS_STORED_CAS = (
        "SET_WITH_META returns the CAS that the document got; before, the one of the request.",
        SINCE_76,
    )
    DEL_VBUCKET_CHECKS_NUMBER = (
        "DEL_VBUCKET of a number that the bucket cannot have is answered; before, it closes the connection.",
        SINCE_76,
    )
    CONFIG_ONLY_BUCKETS = (
        "SET_CLUSTER_CONFIG of a missing bucket makes one that has nothing but this map; before, KEY_ENOENT.",
        SINCE_76,
    )
    MAP_DATATYPE_IS_NEGOTIATED = (
        "NOT_MY_VBUCKET has the JSON datatype only for clients that negotiated it; before, always.",
        SINCE_76,
    )
    LOGIN_KEEPS_BUCKET = (
        "A further login keeps the bucket that the connection selected, if the new user may use it.",
        SINCE_76,
    )
    SUBDOC_SEVERAL_XATTRS = ("A sub-document request may name several extended attributes.", SINCE_76)
    SUBDOC_DOC_FLAGS = (
        "Sub-document requests take the document flag 0x20 (replica), user flags, and the path flag 0x20 (binary).",
        SINCE_76,
    )
    SUBDOC_UNSIGNED_DELTAS = (
        "A delta of a sub-document counter may need 64 bits; before, it counts as a negative number.",
        SINCE_76,
    )
    SUBDOC_DROPS_SHORT_NAMES = (
        "An extended attribute whose name is one character long can be deleted; before, ENOMEM.",
        SINCE_76,
    )
    TAKES_TOKENS = (
        "Over TLS, SASL has OAUTHBEARER if an issuer is configured; AUTH_STALE answers requests of an expired token.",
        Row("kv_engine cbsasl/server.cc, daemon/connection.cc; 8.0.1 asked", since="8.0"),
    )
    COLLECTION_TTL_CHANGES = (
        "SET_COLLECTIONS may change a collection's maxTTL; before, CANNOT_APPLY_COLLECTIONS_MANIFEST.",
        Row(ASKED_80, since="7.6"),
    )
    REFUSES_NAMED_TWICE = (
        "A STREAM_REQ that names a collection twice closes the connection; before, once is as good as twice.",
        Row(ASKED_80, since="8.0"),
    )
    SCOPE_STREAMS_HAVE_SYNC_WRITES = (
        "A stream of one scope may have durable writes; before, NOT_SUPPORTED. One of some collections may not.",
        Row(ASKED_80, since="8.0"),
    )
    NAMES_BAD_FLAGS = ("The refusal of flags of DCP_OPEN and of streams names the wrong ones.", SINCE_80)
    NAMES_MECHANISMS = ("The refusal of a SASL mechanism names those that are offered.", SINCE_80)
    NODELAY_MAY_BE_ASKED_TWICE = ("HELLO may ask for TCP_NODELAY and TCP_DELAY together; before, EINVAL.", SINCE_80)
    NOOP_INTERVAL_IS_FRACTION = (
        "The control set_noop_interval takes a decimal number of seconds from 0.1 on; before, a whole number.",
        SINCE_76,
    )
    BUFFER_SIZE_IS_U32 = ("The control connection_buffer_size takes at most 32 bits; before, 64.", SINCE_80)
    REPLICAS_SHARE_QUOTA = (
        "The buffers of a bucket's replicas share 5 % of its quota, and follow its changes; before, each has 50 MiB.",
        Row("kv_engine engines/ep/src/dcp/flow-control-manager.cc; 8.0.1 recorded", since="7.6"),
    )
    REPLICA_ASKS_FOR_BUFFER_LAST = (
        "A replica asks for its buffer size after all other controls; before, first.",
        SINCE_80,
    )
    REPLICA_ASKS_ONE_BY_ONE = (
        "A replica waits for the answer to each control; before, it does not wait for those about NOOPs and the like.",
        Row(ASKED_80, since="7.6"),
    )
    REPLICA_WANTS_SHORT_NOOP_INTERVAL = (
        "A replica asks for NOOPs each 0.1 s, at last each 1 s; without that, and without GET_ERROR_MAP, it closes.",
        Row("kv_engine engines/ep/src/dcp/consumer.cc; 8.0.1 recorded", since="7.6"),
    )
    PURGE_SEQNO_IN_REQUEST = (
        "The value of STREAM_REQ may have purge_seqno; the vbucket's own excuses a start below it from a rollback.",
        SINCE_80,
    )
    REPLICA_READ_WITHOUT_KEY = ("GET_REPLICA is answered without the key; before, with it.", SINCE_80)
    TRAFFIC_TWICE_HAS_TEXT = ("ENABLE_TRAFFIC of a bucket that takes traffic is answered with a text.", SINCE_80)
    STATS_OF_80 = (
        "STAT dcp, dcpagg, checkpoint, vbucket-details and diskinfo count more, and dcp-vbtakeover has other words.",
        Row(RECORDED_80 + "; " + ASKED_80, since="8.0"),
    )
    DELETE_BUCKET_TAKES_JSON = (
        "The value of DELETE_BUCKET is JSON with force and type; before, force=true or force=false.",
        SINCE_80,
    )
    CHECKPOINTS_AGE = (
        "A write to a checkpoint that is five seconds old begins a new one.",
        Row(RECORDED_72 + "; 8.0.1: chk_period is gone", until="8.0"),
    )
    EVENTS_BEGIN_CHECKPOINTS = (
        "An event about a collection begins a checkpoint; later, only the second one about it in a checkpoint.",
        Row(RECORDED_72 + "; 8.0.1 recorded", until="8.0"),
    )
    EVENTS_IN_REVERSE = (
        "Collections that come with one manifest begin in the reverse of its order; later, scope by scope.",
        Row(RECORDED_72 + "; 8.0.1 recorded", until="8.0"),
    )
    SYSTEM_COLLECTIONS = (
        "Names that begin with _ are the system's: hidden without SystemCollectionLookup, read-only without …Mutation.",
        SINCE_76,
    )
    SYSTEM_SCOPE = (
        "A new bucket has the scope _system (8) with the collections _mobile (8) and _query (9), in manifest 1.",
        Row("ns_server apps/ns_server/src/collections.erl", since="7.6"),
    )
    METERED_COLLECTIONS = (
        "A manifest says of each collection whether it is metered, and events in flatbuffers do.",
        SINCE_76,
    )
    FLUSHED_COLLECTIONS = (
        "flush_uid in a manifest empties a collection: a hexadecimal text, at most the manifest's uid.",
        SINCE_80,
    )
    UNFINISHED_SNAPSHOT_CLOSES = (
        "A replica closes on a marker in the snapshot under way, unless from disk with history and the same end.",
        Row(RECORDED_80 + "; " + ASKED_80, since="8.0"),
    )
    LONG_FRAMES_BEFORE_LOGIN = (
        "A frame before the login may have 16 KiB; before, 1 KiB.",
        Row(ASKED_80, since="8.0"),
    )
    UNKNOWN_COLLECTION_FIRST = (
        "Requests for unknown collections are UNKNOWN_COLLECTION; before, EACCESS if the user lacks the privilege.",
        Row(ASKED_80, since="8.0"),
    )
    VISIBLE_SEQNO_IS_CHECKED = (
        "A replica closes on a marker whose max visible seqno is above its end; before, it does not look.",
        Row(ASKED_80, since="8.0"),
    )
    UNKNOWN_REASON_CLOSES = (
        "A replica closes on STREAM_END with a reason above 8; a recorded 7.2 has not done so within 0.8 s.",
        SINCE_76,
    )
    SET_VBUCKET_CLOSES = (
        "SET_VBUCKET with a value that is not JSON, or with a topology of a copy, closes; before, EINVAL.",
        SINCE_80,
    )
    SUBDOC_SORTS_XATTRS = (
        "A sub-document request that names an extended attribute stores all by name; before, new ones come last.",
        Row(ASKED_80, since="8.0"),
    )
    RANDOM_KEY_DENIES_UNKNOWN = (
        "GET_RANDOM_KEY of an unknown collection is EACCESS; before, UNKNOWN_COLLECTION.",
        SINCE_80,
    )
    SUBDOC_DENIES_ALOUD = (
        "A sub-document request for a system attribute is EACCESS without XERROR, too; before, it closes.",
        SINCE_80,
    )
    FORCED_META_REACHES_COPIES = (
        "SET_WITH_META with the option 0x01 is taken by replica and pending vbuckets, too; later, by active ones only.",
        Row("kv_engine engines/ep/src/ep_engine.cc (MB-67207)", until="8.0"),
    )
    WITH_META_LOOKS_FOR_JSON = (
        "SET_WITH_META and RETURN_META look whether the document is JSON; before, for clients without that datatype.",
        SINCE_76,
    )
    WITH_META_NAMES_BAD_CAS = (
        "SET_WITH_META with a CAS of 0 or of all ones is answered CAS_VALUE_INVALID; before, KEY_EEXISTS.",
        SINCE_80,
    )
    SUBDOC_READS_LOCKED = ("Sub-document lookups read a locked document; before, LOCKED or TMPFAIL.", SINCE_80)
    SET_VBUCKET_WITHOUT_CAS = (
        "SET_VBUCKET and SET_PARAM with a CAS, and older forms of the first, are EINVAL; before, it is a token.",
        SINCE_80,
    )
    DEGRADED_NAMES_VBUCKETS = (
        "Without traffic most requests for another node's vbucket are NOT_MY_VBUCKET; before, TMPFAIL.",
        Row(ASKED_80, since="8.0"),
    )
    PRUNED_DELETIONS_HEED_LOCKS = (
        "DELETE_WITH_META of a document with system attributes looks at lock and CAS; before, it does not.",
        Row(ASKED_80, since="8.0"),
    )
    EVICTION_HAS_TEXTS = ("The refusals of EVICT_KEY have texts.", Row(ASKED_80, since="8.0"))
    MAP_VERSION_HAS_ONE_TEXT = (
        "A wrong epoch of a cluster map is refused with the text for a wrong revision; before, with its own.",
        Row(ASKED_80, since="8.0"),
    )
    NO_BUCKET_IS_SELDOM = (
        "Without a bucket, further requests (GET_REPLICA, EVICT_KEY, …) are NOT_SUPPORTED; before, NO_BUCKET.",
        Row(ASKED_80, since="8.0"),
    )
    NUMBERS_BY_STRTOULL = (
        "Counters and STAT read numbers as C's strtoull: a minus sign, a blank as 0; later, digits only.",
        Row("kv_engine utilities/util.cc; " + ASKED_80, until="7.6"),
    )
    BAD_PARAMETER_GROUP_CLOSES = (
        "SET_PARAM of a group that is not there closes the connection; later, EINVAL.",
        Row("kv_engine daemon/mcbp_validators.cc; " + ASKED_80, until="8.5"),
    )
    PARAMETERS_OF_CONFIGURATION = (
        "SET_PARAM has the group 6, with all parameters.",
        Row("kv_engine include/memcached/protocol_binary.h", since="8.5"),
    )
    NO_REPLICATION_PARAMETERS = (
        "SET_PARAM of the group 2 is KEY_ENOENT without a text; before, the group has names.",
        Row(ASKED_80, since="8.0"),
    )
    SYSTEM_XATTRS_ARE_CHECKED = (
        "A request with more than 1 MiB of system attributes is XATTR_EINVAL; before, SET_WITH_META says EINVAL.",
        Row("kv_engine xattr/utils.cc; " + ASKED_80, since="7.6"),
    )
    LATEST_OF_COLLECTIONS = (
        "The flag 0x04 of a filtered stream ends it at its collections' high seqno; before, at the vbucket's.",
        Row("kv_engine engines/ep/src/dcp/producer.cc; " + ASKED_80, since="8.0"),
    )
    OBSERVE_NAMES_NO_COLLECTION = (
        "OBSERVE of an unknown collection is answered without a text; before, with the manifest's uid.",
        Row(ASKED_80, since="8.0"),
    )
    NO_TRACE_CONTEXT = ("The framing extras may not hold a trace context (id 3): UNKNOWN_FRAME_INFO.", SINCE_80)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Release:
    """A server release as its peers see it.

    Attributes:
        name: major and minor version, as "8.0".
        version: what VERSION and the management port say. The build number is 0000, because no build is followed.
        error_map_revision: counts changes of the error map's content.
        compatibility: `clusterCompatibility`, major and minor version as one number.
        features: what HELLO grants.
        unknown_statuses: statuses that are not the release's, which its error map does not have.
        open_flags, stream_flags: all flags that it accepts.
        rules: the rules that hold.
        bugs: the bugs of the server version; those that are rare in a server are not among them.
    """

    name: str
    version: str
    error_map_revision: int
    number: tuple[int, int] = field(init=False)
    compatibility: int = field(init=False)
    features: frozenset[Feature] = field(init=False)
    capabilities: tuple[str, ...] = field(init=False)
    unknown_statuses: frozenset[Status] = field(init=False)
    open_flags: int = field(init=False)
    stream_flags: int = field(init=False)
    rules: frozenset[Rule] = field(init=False)
    bugs: frozenset[ServerBug] = field(init=False)

    def __post_init__(self) -> None:
        """Take what the table has for it."""
        major, minor = number = release_number(self.name)
        object.__setattr__(self, "number", number)
        derived = {
            "compatibility": major << 16 | minor,
            "features": frozenset(feature for feature, row in FEATURES.items() if self.knows(row.since, row.until)),
            "capabilities": tuple(name for name, row in CAPABILITIES.items() if self.knows(row.since, row.until)),
            "unknown_statuses": frozenset(
                status for status, row in STATUSES.items() if not self.knows(row.since, row.until)
            ),
            "open_flags": sum(flag for flag, row in OPEN_FLAGS.items() if self.knows(row.since, row.until)),
            "stream_flags": sum(flag for flag, row in STREAM_FLAGS.items() if self.knows(row.since, row.until)),
            "rules": frozenset(rule for rule in Rule if self.knows(rule.row.since, rule.row.until)),
            "bugs": frozenset(bug for bug in ServerBug if self.name in bug.releases and not bug.is_rare),
        }
        for name, content in derived.items():
            object.__setattr__(self, name, content)

    def knows(self, since: str, until: str = "") -> bool:
        """Whether it has what came with one release and went with another; see `Row`."""
        return release_number(since) <= self.number and (not until or self.number < release_number(until))

    def has(self, rule: Rule) -> bool:
        """Whether a rule holds. Where that is asked for every document, keep the answer."""
        return rule in self.rules

    def has_bug(self, bug: ServerBug) -> bool:
        """Whether a node of this release has a bug of servers."""
        return bug in self.bugs

    def with_bugs(self, names: Sequence[str]) -> Release:
        """The same release with these bugs of servers in the place of its own.

        Raises:
            ConfigError: one of the names is not that of a bug, or they are one text.
        """
        known = {bug.id: bug for bug in ServerBug}
        unknown = names if isinstance(names, str) else ", ".join(name for name in names if name not in known)
        if unknown:
            raise ConfigError("server_bugs", unknown, f"a list of these names, or an empty one: {', '.join(known)}")
        changed = copy.copy(self)
        object.__setattr__(changed, "bugs", frozenset(known[name] for name in names))
        return changed


RELEASES: Mapping[str, Release] = MappingProxyType(
    {
        release.name: release
        for release in (
            Release(name="7.2", version="7.2.7-0000-enterprise", error_map_revision=1),
            Release(name="7.6", version="7.6.4-0000-enterprise", error_map_revision=5),
            Release(name="8.0", version="8.0.1-0000-enterprise", error_map_revision=6),
            Release(name="8.5", version="8.5.0-0000-enterprise", error_map_revision=9),
        )
    }
)
"""The releases that a node can be, by name, oldest first."""

NEWEST = RELEASES["8.5"]

DEFAULT_RELEASE = RELEASES["8.0"]
"""The release of a node where nothing else is said."""


def release_of(name: object, server_bugs: Sequence[str] | None = None) -> Release:
    """The release of that name.

    Args:
        server_bugs: names of known bugs of servers that it has in the place of its own; None: its own.

    Raises:
        ConfigError: a node cannot be that.
    """
    found = RELEASES.get(name) if isinstance(name, str) else None
    if found is None:
        raise ConfigError("release", name, " or ".join(RELEASES))
    return found if server_bugs is None else found.with_bugs(server_bugs)
