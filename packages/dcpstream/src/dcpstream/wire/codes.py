"""The protocol's numbers: magics, opcodes, datatypes, flags, features, reasons.

Names are the specification's. A number without a name survives decoding as a number: use `as_code`.

Source: kv_engine include/mcbp/protocol/{opcode,feature,datatype,magic}.h, include/memcached/dcp_stream_id.h.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import TypeVar

_E = TypeVar("_E", bound=IntEnum)
_F = TypeVar("_F", bound=type[IntFlag])


def as_code(kind: type[_E], number: int) -> _E | int:
    """The member of `kind` with that number, or the number itself if there is none."""
    try:
        return kind(number)
    except ValueError:
        return number


def plain_masks(kind: _F) -> _F:
    """Class decorator: `number & flag` is a plain number, computed as one.

    Flags of messages are tested for every stream and document. An IntFlag takes 0.5 µs for the operation, because it
    makes a flag of the result; an int takes a tenth of that. `flag & flag` is a flag as before.
    """
    kind.__rand__ = int.__rand__  # type: ignore[assignment, misc]
    return kind


def code_name(kind: type[IntEnum], number: int) -> str:
    """The member's name, else the number in hexadecimal."""
    code = as_code(kind, number)
    return code.name if isinstance(code, IntEnum) else f"0x{number:02x}"


class Magic(IntEnum):
    """First byte of a frame."""

    REQUEST = 0x80
    RESPONSE = 0x81
    FLEX_REQUEST = 0x08
    FLEX_RESPONSE = 0x18
    SERVER_REQUEST = 0x82
    SERVER_RESPONSE = 0x83


class Opcode(IntEnum):
    """Second byte of a frame with a client's magic. Those that servers no longer support are listed too."""

    GET = 0x00
    SET = 0x01
    ADD = 0x02
    REPLACE = 0x03
    DELETE = 0x04
    INCREMENT = 0x05
    DECREMENT = 0x06
    QUIT = 0x07
    FLUSH = 0x08
    GETQ = 0x09
    NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    GETKQ = 0x0D
    APPEND = 0x0E
    PREPEND = 0x0F
    STAT = 0x10
    SETQ = 0x11
    ADDQ = 0x12
    REPLACEQ = 0x13
    DELETEQ = 0x14
    INCREMENTQ = 0x15
    DECREMENTQ = 0x16
    QUITQ = 0x17
    FLUSHQ = 0x18
    APPENDQ = 0x19
    PREPENDQ = 0x1A
    VERBOSITY = 0x1B
    TOUCH = 0x1C
    GAT = 0x1D
    GATQ = 0x1E
    HELLO = 0x1F
    SASL_LIST_MECHS = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    IOCTL_GET = 0x23
    IOCTL_SET = 0x24
    CONFIG_VALIDATE = 0x25
    CONFIG_RELOAD = 0x26
    AUDIT_PUT = 0x27
    AUDIT_CONFIG_RELOAD = 0x28
    SHUTDOWN = 0x29
    SET_BUCKET_THROTTLE_PROPERTIES = 0x2A
    SET_BUCKET_DATA_LIMIT_EXCEEDED = 0x2B
    SET_NODE_THROTTLE_PROPERTIES = 0x2C
    SET_ACTIVE_ENCRYPTION_KEYS = 0x2D
    PRUNE_ENCRYPTION_KEYS = 0x2E
    REGISTER_AUTH_TOKEN = 0x2F
    RGET = 0x30
    RSET = 0x31
    RSETQ = 0x32
    RAPPEND = 0x33
    RAPPENDQ = 0x34
    RPREPEND = 0x35
    RPREPENDQ = 0x36
    RDELETE = 0x37
    RDELETEQ = 0x38
    RINCR = 0x39
    RINCRQ = 0x3A
    RDECR = 0x3B
    RDECRQ = 0x3C
    SET_VBUCKET = 0x3D
    GET_VBUCKET = 0x3E
    DEL_VBUCKET = 0x3F
    TAP_CONNECT = 0x40
    TAP_MUTATION = 0x41
    TAP_DELETE = 0x42
    TAP_FLUSH = 0x43
    TAP_OPAQUE = 0x44
    TAP_VBUCKET_SET = 0x45
    TAP_CHECKPOINT_START = 0x46
    TAP_CHECKPOINT_END = 0x47
    GET_ALL_VB_SEQNOS = 0x48
    GET_EX = 0x49
    GET_EX_REPLICA = 0x4A
    MUTATE_WITH_META = 0x4B
    DCP_OPEN = 0x50
    DCP_ADD_STREAM = 0x51
    DCP_CLOSE_STREAM = 0x52
    DCP_STREAM_REQ = 0x53
    DCP_GET_FAILOVER_LOG = 0x54
    DCP_STREAM_END = 0x55
    DCP_SNAPSHOT_MARKER = 0x56
    DCP_MUTATION = 0x57
    DCP_DELETION = 0x58
    DCP_EXPIRATION = 0x59
    DCP_FLUSH = 0x5A
    DCP_SET_VBUCKET_STATE = 0x5B
    DCP_NOOP = 0x5C
    DCP_BUFFER_ACK = 0x5D
    DCP_CONTROL = 0x5E
    DCP_SYSTEM_EVENT = 0x5F
    DCP_PREPARE = 0x60
    DCP_SEQNO_ACKNOWLEDGED = 0x61
    DCP_COMMIT = 0x62
    DCP_ABORT = 0x63
    DCP_SEQNO_ADVANCED = 0x64
    DCP_OSO_SNAPSHOT = 0x65
    DCP_CACHE_TRANSFER = 0x66
    DCP_CACHE_TRANSFER_END = 0x67
    GET_FUSION_STORAGE_SNAPSHOT = 0x70
    RELEASE_FUSION_STORAGE_SNAPSHOT = 0x71
    MOUNT_FUSION_VBUCKET = 0x72
    UNMOUNT_FUSION_VBUCKET = 0x73
    SYNC_FUSION_LOGSTORE = 0x74
    START_FUSION_UPLOADER = 0x75
    STOP_FUSION_UPLOADER = 0x76
    DELETE_FUSION_NAMESPACE = 0x77
    GET_FUSION_NAMESPACES = 0x78
    CREATE_FUSION_NAMESPACE = 0x79
    STOP_PERSISTENCE = 0x80
    START_PERSISTENCE = 0x81
    SET_PARAM = 0x82
    GET_REPLICA = 0x83
    SET_CHRONICLE_AUTH_TOKEN = 0x84
    CREATE_BUCKET = 0x85
    DELETE_BUCKET = 0x86
    LIST_BUCKETS = 0x87
    SELECT_BUCKET = 0x89
    PAUSE_BUCKET = 0x8A
    RESUME_BUCKET = 0x8B
    VALIDATE_BUCKET_CONFIG = 0x8C
    OBSERVE_SEQNO = 0x91
    OBSERVE = 0x92
    EVICT_KEY = 0x93
    GET_LOCKED = 0x94
    UNLOCK = 0x95
    GET_FAILOVER_LOG = 0x96
    LAST_CLOSED_CHECKPOINT = 0x97
    DEREGISTER_TAP_CLIENT = 0x9E
    RESET_REPLICATION_CHAIN = 0x9F
    GET_META = 0xA0
    GETQ_META = 0xA1
    SET_WITH_META = 0xA2
    SETQ_WITH_META = 0xA3
    ADD_WITH_META = 0xA4
    ADDQ_WITH_META = 0xA5
    SNAPSHOT_VB_STATES = 0xA6
    VBUCKET_BATCH_COUNT = 0xA7
    DELETE_WITH_META = 0xA8
    DELETEQ_WITH_META = 0xA9
    CREATE_CHECKPOINT = 0xAA
    NOTIFY_VBUCKET_UPDATE = 0xAC
    ENABLE_TRAFFIC = 0xAD
    DISABLE_TRAFFIC = 0xAE
    IFCONFIG = 0xAF
    CHANGE_VB_FILTER = 0xB0
    CHECKPOINT_PERSISTENCE = 0xB1
    RETURN_META = 0xB2
    COMPACT_DB = 0xB3
    SET_CLUSTER_CONFIG = 0xB4
    GET_CLUSTER_CONFIG = 0xB5
    GET_RANDOM_KEY = 0xB6
    SEQNO_PERSISTENCE = 0xB7
    GET_KEYS = 0xB8
    SET_COLLECTIONS = 0xB9
    GET_COLLECTIONS_MANIFEST = 0xBA
    GET_COLLECTION_ID = 0xBB
    GET_SCOPE_ID = 0xBC
    SET_DRIFT_COUNTER_STATE = 0xC1
    GET_ADJUSTED_TIME = 0xC2
    SUBDOC_GET = 0xC5
    SUBDOC_EXISTS = 0xC6
    SUBDOC_DICT_ADD = 0xC7
    SUBDOC_DICT_UPSERT = 0xC8
    SUBDOC_DELETE = 0xC9
    SUBDOC_REPLACE = 0xCA
    SUBDOC_ARRAY_PUSH_LAST = 0xCB
    SUBDOC_ARRAY_PUSH_FIRST = 0xCC
    SUBDOC_ARRAY_INSERT = 0xCD
    SUBDOC_ARRAY_ADD_UNIQUE = 0xCE
    SUBDOC_COUNTER = 0xCF
    SUBDOC_MULTI_LOOKUP = 0xD0
    SUBDOC_MULTI_MUTATION = 0xD1
    SUBDOC_GET_COUNT = 0xD2
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0xD3
    RANGE_SCAN_CREATE = 0xDA
    RANGE_SCAN_CONTINUE = 0xDB
    RANGE_SCAN_CANCEL = 0xDC
    PREPARE_SNAPSHOT = 0xE0
    RELEASE_SNAPSHOT = 0xE1
    DOWNLOAD_SNAPSHOT = 0xE2
    GET_FILE_FRAGMENT = 0xE3
    SCRUB = 0xF0
    ISASL_REFRESH = 0xF1
    SSL_CERTS_REFRESH = 0xF2
    GET_CMD_TIMER = 0xF3
    SET_CTRL_TOKEN = 0xF4
    GET_CTRL_TOKEN = 0xF5
    UPDATE_EXTERNAL_USER_PERMISSIONS = 0xF6
    RBAC_REFRESH = 0xF7
    AUTH_PROVIDER = 0xF8
    DROP_PRIVILEGE = 0xFB
    ADJUST_TIMEOFDAY = 0xFC
    EWOULDBLOCK_CTL = 0xFD
    GET_ERROR_MAP = 0xFE


@plain_masks
class Datatype(IntFlag):
    """The format of the value: a set of bits."""

    RAW = 0
    JSON = 1
    SNAPPY = 2
    XATTR = 4


class Feature(IntEnum):
    """The features of HELLO."""

    DATATYPE = 0x01
    TLS = 0x02
    TCP_NODELAY = 0x03
    MUTATION_SEQNO = 0x04
    TCP_DELAY = 0x05
    XATTR = 0x06
    XERROR = 0x07
    SELECT_BUCKET = 0x08
    SNAPPY = 0x0A
    JSON = 0x0B
    DUPLEX = 0x0C
    CLUSTERMAP_NOTIFICATION = 0x0D
    UNORDERED_EXECUTION = 0x0E
    TRACING = 0x0F
    ALT_REQUEST = 0x10
    SYNC_REPLICATION = 0x11
    COLLECTIONS = 0x12
    SNAPPY_EVERYWHERE = 0x13
    PRESERVE_TTL = 0x14
    VATTR = 0x15
    POINT_IN_TIME_RECOVERY = 0x16
    SUBDOC_CREATE_AS_DELETED = 0x17
    SUBDOC_DOCUMENT_MACROS = 0x18
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0x19
    REPORT_UNITS = 0x1A
    NON_BLOCKING_THROTTLING = 0x1B
    SUBDOC_REPLICA_READ = 0x1C
    CLUSTER_CONFIG_KNOWN_VERSION = 0x1D
    DEDUPE_NOT_MY_VBUCKET = 0x1E
    CLUSTERMAP_NOTIFICATION_BRIEF = 0x1F
    SUBDOC_SEVERAL_XATTR_KEYS = 0x20
    SUBDOC_BINARY_XATTR = 0x21
    RANGE_SCAN_XATTR = 0x22
    SUBDOC_REPLICA_READ_DELETED = 0x23
    RANDOM_KEY_XATTR = 0x24
    MUTATE_WITH_META = 0x25
    DCP_SKIP_DELETES_IN_BACKFILL = 0x26


@plain_masks
class OpenFlag(IntFlag):
    """Flags of DCP_OPEN."""

    PRODUCER = 0x001
    INVALID_NOTIFIER = 0x002
    INCLUDE_XATTRS = 0x004
    NO_VALUE = 0x008
    UNUSED = 0x010
    INCLUDE_DELETE_TIMES = 0x020
    NO_VALUE_WITH_UNDERLYING_DATATYPE = 0x040
    INVALID_PITR = 0x080
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_BACKFILL = 0x200


@plain_masks
class StreamFlag(IntFlag):
    """Flags of DCP_ADD_STREAM and DCP_STREAM_REQ."""

    TAKEOVER = 0x001
    DISK_ONLY = 0x002
    TO_LATEST = 0x004
    NO_VALUE = 0x008
    ACTIVE_ONLY = 0x010
    STRICT_VBUUID = 0x020
    FROM_LATEST = 0x040
    IGNORE_PURGED_TOMBSTONES = 0x080
    CACHE_TRANSFER = 0x100


@plain_masks
class MarkerFlag(IntFlag):
    """Flags of DCP_SNAPSHOT_MARKER."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08
    HISTORY = 0x10
    MAY_DUPLICATE = 0x20


class StreamEndReason(IntEnum):
    """The reasons of DCP_STREAM_END."""

    OK = 0
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    TOO_SLOW = 4
    BACKFILL_FAILED = 5
    ROLLBACK = 6
    FILTER_EMPTY = 7
    LOST_PRIVILEGES = 8


class SystemEventId(IntEnum):
    """The events of DCP_SYSTEM_EVENT."""

    CREATE_COLLECTION = 0
    DROP_COLLECTION = 1
    CREATE_SCOPE = 3
    DROP_SCOPE = 4
    MODIFY_COLLECTION = 5


class FrameInfoId(IntEnum):
    """Ids of the elements in a request's framing extras."""

    BARRIER = 0
    DURABILITY = 1
    DCP_STREAM_ID = 2
    TRACING_CONTEXT = 3
    IMPERSONATE_USER = 4
    PRESERVE_TTL = 5
    IMPERSONATE_PRIVILEGE = 6
    IMPERSONATE_TOKEN = 7
