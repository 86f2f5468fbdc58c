"""Administration: the messages of cluster managers and operators, and those of former servers.

Source of all: kv_engine docs/BinaryProtocol.md, daemon/mcbp_validators.cc, include/mcbp/protocol/opcode.h.
"""

from __future__ import annotations

from typing import NamedTuple

from dcpstream.wire.codes import Datatype, Opcode
from dcpstream.wire.fields import i64, u8, u16, u32, u64
from dcpstream.wire.layout import Group, Part, Phase, Request, Response, declare, derive, message, quiet_forms
from dcpstream.wire.status import Status

_BINARY = "kv_engine docs/BinaryProtocol.md"
_VALIDATORS = "kv_engine daemon/mcbp_validators.cc"
_OPCODES = "kv_engine include/mcbp/protocol/opcode.h"

# ----------------------------------------------------------------------------------------------------------- buckets


@message(
    Opcode.CREATE_BUCKET,
    privilege="NodeSupervisor",
    key=Part.REQUIRED,
    rest=Part.REQUIRED,
    cas=Part.OPTIONAL,
    phase=Phase.LOGGED_IN,
    source=_BINARY,
)
class CreateBucket(Request):
    """Create a bucket named by the key; the value is the engine's module, a zero byte, and `name=value;` settings."""


declare(
    Opcode.DELETE_BUCKET,
    "Delete the bucket that the key names; the value may hold settings.",
    CreateBucket,
    rest=Part.OPTIONAL,
)


@message(
    Opcode.PAUSE_BUCKET,
    privilege="NodeSupervisor",
    key=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    since="7.6",
    phase=Phase.LOGGED_IN,
    source=_OPCODES,
)
class PauseBucket(Request):
    """Close the connections of the bucket that the key names, and accept no further ones until it is resumed."""


declare(Opcode.RESUME_BUCKET, "Accept connections to the bucket that the key names again.", PauseBucket)


@message(Opcode.FLUSH, privilege="NodeSupervisor", until="8.0", source=_BINARY)
class Flush(Request):
    """Delete every document of the bucket.

    Attributes:
        delay: u32, seconds; only 0 was ever supported.
    """

    delay: int | None = u32(optional=True)


quiet_forms("answered only if it fails", {Flush: Opcode.FLUSHQ})


@message(
    Opcode.SET_PARAM,
    groups=Group.OF_ENGINE,
    privilege="NodeSupervisor",
    key=Part.REQUIRED,
    rest=Part.REQUIRED,
    cas=Part.OPTIONAL,
    source=_BINARY,
)
class SetParam(Request):
    """Set a parameter of the bucket: its name in the key, the text of its value in the value.

    Attributes:
        group: u32, 1 flush, 2 replication, 3 checkpoint, 4 DCP, 5 vbucket, 6 configuration.
    """

    group: int = u32()


declare(
    Opcode.STOP_PERSISTENCE,
    "Write nothing more to disk.",
    groups=Group.OF_ENGINE_80,
    privilege="NodeSupervisor",
    source=_BINARY,
)


declare(
    Opcode.START_PERSISTENCE,
    "Write to disk again.",
    groups=Group.OF_ENGINE_80,
    privilege="NodeSupervisor",
    source=_BINARY,
)


declare(
    Opcode.ENABLE_TRAFFIC,
    "Answer requests for documents.",
    groups=Group.OF_ENGINE_80,
    privilege="NodeSupervisor",
    source=_BINARY,
)


@message(Opcode.ENABLE_TRAFFIC, statuses=(Status.SUCCESS,), rest=Part.REQUIRED, since="8.0", source=_BINARY)
class EnableTrafficResponse(Response):
    """Requests for documents were answered already; the value of the response says so."""


declare(
    Opcode.DISABLE_TRAFFIC,
    "Answer requests for documents TMPFAIL.",
    groups=Group.OF_ENGINE_80,
    privilege="NodeSupervisor",
    source=_BINARY,
)


# ---------------------------------------------------------------------------------------------------------- vbuckets


@message(
    Opcode.SET_VBUCKET,
    groups=Group.VBUCKET_METADATA | Group.OF_ENGINE,
    privilege="NodeSupervisor",
    rest=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    datatypes=Datatype.JSON,
    source=_BINARY,
)
class SetVbucket(Request):
    """Create a vbucket or change its state; the value may be JSON with the replication topology.

    Attributes:
        state: u8, 1 active, 2 replica, 3 pending, 4 dead.
    """

    state: int = u8()


@message(
    Opcode.SET_VBUCKET,
    groups=Group.VBUCKET_METADATA | Group.OF_ENGINE,
    privilege="NodeSupervisor",
    cas=Part.OPTIONAL,
    source=_BINARY,
)
class SetVbucketWide(Request):
    """An older form of `SetVbucket`.

    Attributes:
        state: u32.
    """

    state: int = u32()


@message(
    Opcode.SET_VBUCKET,
    groups=Group.VBUCKET_METADATA | Group.OF_ENGINE,
    privilege="NodeSupervisor",
    cas=Part.OPTIONAL,
    source=_BINARY,
)
class SetVbucketByValue(Request):
    """The oldest form of `SetVbucket`.

    Attributes:
        state: u32.
    """

    state: int = u32(value=True)


declare(
    Opcode.GET_VBUCKET,
    "Ask for a vbucket's state.",
    groups=Group.OF_ENGINE,
    privilege="",
    key=Part.OPTIONAL,
    source=_BINARY,
)


@message(Opcode.GET_VBUCKET, statuses=(Status.SUCCESS,), source=_BINARY)
class GetVbucketResponse(Response):
    """A vbucket's state.

    Attributes:
        state: u32, 1 active, 2 replica, 3 pending, 4 dead.
    """

    state: int = u32(value=True)


declare(
    Opcode.DEL_VBUCKET,
    "Delete a vbucket; the value may be `async=0` to be answered once it is gone.",
    groups=Group.OF_ENGINE,
    privilege="NodeSupervisor",
    rest=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    source=_BINARY,
)


declare(
    Opcode.CREATE_CHECKPOINT,
    "Close a vbucket's open checkpoint.",
    privilege="NodeSupervisor",
    until="7.6",
    source=_BINARY,
)


declare(
    Opcode.LAST_CLOSED_CHECKPOINT,
    "Ask for the last closed checkpoint of a vbucket.",
    privilege="Read",
    until="7.6",
    source=_BINARY,
)


@message(Opcode.COMPACT_DB, groups=Group.OF_ENGINE, privilege="NodeSupervisor", source=_BINARY)
class CompactDb(Request):
    """Compact a vbucket's files and purge tombstones.

    Attributes:
        purge_before_time: u64, purge tombstones that are older; seconds since 1970.
        purge_before_seqno: u64, purge only tombstones below this seqno; 0 for any.
        drop_deletes: u8, 1 to purge every tombstone.
        padding: u8, 0.
        db_file_id: u16.
        more_padding: u32, 0.
    """

    purge_before_time: int = u64()
    purge_before_seqno: int = u64()
    drop_deletes: int = u8()
    padding: int = u8(default=0)
    db_file_id: int = u16(default=0)
    more_padding: int = u32(default=0)


declare(
    Opcode.EVICT_KEY,
    "Drop a document's value from memory.",
    groups=Group.OF_ENGINE_80,
    privilege="Administrator",
    document_key=True,
    source=_BINARY,
)


@message(Opcode.EVICT_KEY, statuses=(Status.SUCCESS,), rest=Part.REQUIRED, source=_BINARY)
class EvictKeyResponse(Response):
    """The value was dropped; the value of the response is a text."""


# ------------------------------------------------------------------------------------------------------------ server


@message(Opcode.SET_CTRL_TOKEN, privilege="Administrator", cas=Part.OPTIONAL, phase=Phase.LOGGED_IN, source=_BINARY)
class SetCtrlToken(Request):
    """Replace the control token; the CAS is the present one, or 0 for any.

    Attributes:
        token: u64, not 0.
    """

    token: int = u64()


declare(
    Opcode.GET_CTRL_TOKEN,
    "Ask for the control token, which the response has as its CAS.",
    privilege="Administrator",
    phase=Phase.LOGGED_IN,
    source=_BINARY,
)


@message(
    Opcode.SET_CLUSTER_CONFIG,
    privilege="Administrator",
    key=Part.OPTIONAL,
    rest=Part.REQUIRED,
    cas=Part.OPTIONAL,
    datatypes=Datatype.JSON,
    phase=Phase.LOGGED_IN,
    source=_BINARY,
)
class SetClusterConfig(Request):
    """Give a bucket, named by the key, its cluster map, JSON.

    Attributes:
        epoch, revision: i64, the map's version.
    """

    epoch: int = i64()
    revision: int = i64()


@message(Opcode.IOCTL_GET, privilege="Administrator", key=Part.REQUIRED, phase=Phase.LOGGED_IN, source=_BINARY)
class IoctlGet(Request):
    """Ask for a property of the server, named by the key."""


declare(Opcode.IOCTL_SET, "Set a property of the server, named by the key.", IoctlGet, rest=Part.OPTIONAL)


declare(
    Opcode.IFCONFIG,
    "Define, delete or list the server's interfaces, or set up TLS: the key says which.",
    privilege="Administrator",
    key=Part.REQUIRED,
    rest=Part.OPTIONAL,
    datatypes=Datatype.JSON,
    phase=Phase.LOGGED_IN,
    source=_VALIDATORS,
)


@message(Opcode.CONFIG_VALIDATE, privilege="Administrator", rest=Part.REQUIRED, phase=Phase.LOGGED_IN, source=_BINARY)
class ConfigValidate(Request):
    """Check the text of a configuration file."""


@message(Opcode.CONFIG_RELOAD, privilege="Administrator", phase=Phase.LOGGED_IN, source=_BINARY)
class ConfigReload(Request):
    """Read the configuration file again."""


@message(Opcode.AUDIT_PUT, privilege="Administrator", rest=Part.REQUIRED, phase=Phase.LOGGED_IN, source=_BINARY)
class AuditPut(Request):
    """Write an event, JSON, to the audit trail.

    Attributes:
        event_id: u32.
    """

    event_id: int = u32()


declare(Opcode.AUDIT_CONFIG_RELOAD, "Read the configuration of the audit trail again.", ConfigReload)


declare(
    Opcode.SHUTDOWN,
    "Stop the server; the CAS is the control token.",
    privilege="Administrator",
    cas=Part.REQUIRED,
    phase=Phase.LOGGED_IN,
    source=_BINARY,
)


declare(Opcode.SCRUB, "Free the memory of outdated documents.", ConfigReload, until="8.0")


declare(Opcode.ISASL_REFRESH, "Read the users' passwords again.", ConfigReload)


declare(Opcode.SSL_CERTS_REFRESH, "Read the certificates again.", ConfigReload, until="8.0")


declare(Opcode.RBAC_REFRESH, "Read the users' privileges again.", ConfigReload)


declare(Opcode.AUTH_PROVIDER, "Offer to authenticate users for the server.", ConfigReload)


declare(
    Opcode.UPDATE_EXTERNAL_USER_PERMISSIONS,
    "Report the privileges of users that an authentication provider knows, JSON.",
    ConfigValidate,
)


@message(Opcode.GET_CMD_TIMER, privilege="", key=Part.OPTIONAL, phase=Phase.LOGGED_IN, source=_BINARY)
class GetCmdTimer(Request):
    """Ask how long the commands of an opcode took; the key may name a bucket.

    Attributes:
        timed_opcode: u8.
    """

    timed_opcode: int = u8()


declare(
    Opcode.DROP_PRIVILEGE,
    "Give up the privilege that the key names, for this connection.",
    privilege="",
    key=Part.REQUIRED,
    phase=Phase.LOGGED_IN,
    source=_BINARY,
)


@message(Opcode.ADJUST_TIMEOFDAY, groups=Group.ACTS, privilege="", phase=Phase.LOGGED_IN, source=_BINARY)
class AdjustTimeofday(Request):
    """Shift the server's clock; for tests of servers.

    Attributes:
        offset: u64, seconds.
        mode: u8, 0 time of day, 1 uptime.
    """

    offset: int = u64()
    mode: int = u8()


@message(
    Opcode.EWOULDBLOCK_CTL, groups=Group.ACTS, privilege="", key=Part.OPTIONAL, phase=Phase.LOGGED_IN, source=_BINARY
)
class EwouldblockCtl(Request):
    """Have the server's test engine return errors; for tests of servers.

    Attributes:
        mode, argument, injected_error: u32.
    """

    mode: int = u32()
    argument: int = u32()
    injected_error: int = u32()


# ---------------------------------------------------------------------------------------- commands of former servers

OBSOLETE: tuple[Opcode, ...] = (
    *(Opcode(number) for number in range(Opcode.RGET, Opcode.RDECRQ + 1)),
    *(Opcode(number) for number in range(Opcode.TAP_CONNECT, Opcode.TAP_CHECKPOINT_END + 1)),
    Opcode.DEREGISTER_TAP_CLIENT,
    Opcode.RESET_REPLICATION_CHAIN,
    Opcode.SNAPSHOT_VB_STATES,
    Opcode.VBUCKET_BATCH_COUNT,
    Opcode.NOTIFY_VBUCKET_UPDATE,
    Opcode.CHANGE_VB_FILTER,
    Opcode.CHECKPOINT_PERSISTENCE,
    Opcode.SET_DRIFT_COUNTER_STATE,
    Opcode.GET_ADJUSTED_TIME,
)
"""Opcodes whose commands servers have dropped. A server answers them NOT_SUPPORTED, whatever the request's shape."""


for _opcode in OBSOLETE:
    derive(
        "Obsolete" + _opcode.name.title().replace("_", ""),
        _opcode,
        f"{_opcode.name} of former servers: NOT_SUPPORTED.",
        groups=Group.ACTS,  # in those servers
        privilege="",
        any_extras=True,
        key=Part.OPTIONAL,
        rest=Part.OPTIONAL,
        cas=Part.OPTIONAL,
        phase=Phase.LOGGED_IN,
        source=_OPCODES,
    )


# ---------------------------------------------------------------------------------- services of newer servers


class _Foreign(NamedTuple):
    """A command about something that a node here does not have.

    Attributes:
        opcode, since, until: which, and the releases that have it.
        privilege: that the user needs.
        key, value: whether the request has them; a value is JSON.
        refused: the status whatever the request's parts.
    """

    opcode: Opcode
    since: str
    until: str = ""
    privilege: str = "NodeSupervisor"
    key: Part = Part.NONE
    value: Part = Part.NONE
    refused: Status | None = None


_REQUIRED, _OPTIONAL, _REFUSED = Part.REQUIRED, Part.OPTIONAL, Status.NOT_SUPPORTED
_THROTTLE = "BucketThrottleManagement"
_FOREIGN = (
    _Foreign(Opcode.SET_BUCKET_THROTTLE_PROPERTIES, "7.6", "", _THROTTLE, _OPTIONAL, _OPTIONAL, _REFUSED),
    _Foreign(Opcode.SET_NODE_THROTTLE_PROPERTIES, "7.6", "8.5", _THROTTLE, _OPTIONAL, _OPTIONAL, _REFUSED),
    _Foreign(Opcode.SET_ACTIVE_ENCRYPTION_KEYS, "8.0", key=_REQUIRED, value=_REQUIRED),
    _Foreign(Opcode.PRUNE_ENCRYPTION_KEYS, "8.0", key=_REQUIRED, value=_REQUIRED),
    _Foreign(Opcode.GET_FUSION_STORAGE_SNAPSHOT, "8.0", value=_REQUIRED),
    _Foreign(Opcode.RELEASE_FUSION_STORAGE_SNAPSHOT, "8.0", value=_REQUIRED),
    _Foreign(Opcode.MOUNT_FUSION_VBUCKET, "8.0", value=_REQUIRED),
    _Foreign(Opcode.UNMOUNT_FUSION_VBUCKET, "8.0"),
    _Foreign(Opcode.SYNC_FUSION_LOGSTORE, "8.0"),
    _Foreign(Opcode.START_FUSION_UPLOADER, "8.0", value=_REQUIRED),
    _Foreign(Opcode.STOP_FUSION_UPLOADER, "8.0"),
    _Foreign(Opcode.DELETE_FUSION_NAMESPACE, "8.0", value=_REQUIRED),
    _Foreign(Opcode.GET_FUSION_NAMESPACES, "8.0", value=_REQUIRED),
    _Foreign(Opcode.SET_CHRONICLE_AUTH_TOKEN, "8.0", value=_REQUIRED),
    _Foreign(Opcode.PREPARE_SNAPSHOT, "8.0", privilege="Administrator"),
    _Foreign(Opcode.DOWNLOAD_SNAPSHOT, "8.0", privilege="Administrator", value=_REQUIRED),
    _Foreign(Opcode.REGISTER_AUTH_TOKEN, "8.5", "", "", _OPTIONAL, _OPTIONAL, _REFUSED),
    _Foreign(Opcode.CREATE_FUSION_NAMESPACE, "8.5", "", "NodeSupervisor", _OPTIONAL, _OPTIONAL, _REFUSED),
    _Foreign(Opcode.VALIDATE_BUCKET_CONFIG, "8.5", "", "NodeSupervisor", _OPTIONAL, _OPTIONAL, _REFUSED),
)
FOREIGN: tuple[Opcode, ...] = tuple(item.opcode for item in _FOREIGN)
"""Opcodes of commands about encryption at rest, Fusion, file-based rebalance and throttling, which a node here does not
have. It checks their parts, and answers NOT_SUPPORTED."""


for _item in _FOREIGN:  # the shapes are as a recorded 8.0.1 checks them
    declare(
        _item.opcode,
        f"{_item.opcode.name} of newer servers, which a node here does not carry out.",
        privilege=_item.privilege,
        any_extras=_item.refused is not None,
        key=_item.key,
        rest=_item.value,
        cas=Part.OPTIONAL,
        datatypes=Datatype.JSON,
        refused=_item.refused,
        since=_item.since,
        until=_item.until,
        source=_OPCODES,
    )


declare(
    Opcode.RELEASE_SNAPSHOT,
    "Drop a snapshot of a vbucket's files, named by the vbucket or by the UUID in the key.",
    privilege="Administrator",
    key=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    since="8.0",
    source=_OPCODES,
)


declare(
    Opcode.GET_FILE_FRAGMENT,
    "Read a part of a file of the snapshot that the key names; the value says which, JSON.",
    privilege="Administrator",
    key=Part.REQUIRED,
    rest=Part.REQUIRED,
    cas=Part.OPTIONAL,
    datatypes=Datatype.JSON,
    since="8.0",
    source=_OPCODES,
)


@message(
    Opcode.SET_BUCKET_DATA_LIMIT_EXCEEDED,
    privilege=_THROTTLE,
    key=Part.REQUIRED,
    since="7.6",
    phase=Phase.LOGGED_IN,
    source=_OPCODES,
)
class SetBucketDataLimitExceeded(Request):
    """Have writes to the bucket that the key names answered with a status, 0 for none.

    Attributes:
        limit_status: u16.
    """

    limit_status: int = u16()
