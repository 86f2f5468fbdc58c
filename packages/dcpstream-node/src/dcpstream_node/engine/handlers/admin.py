"""Administration: buckets, bucket parameters, persistence, traffic, tokens, and the commands of former servers.

The node checks each of these requests as a 7.2 server does, so malformed and forbidden requests get the server's
answer. A command that has nothing to work on here is then answered NOT_SUPPORTED; no command is accepted and ignored.

Source: kv_engine docs/BinaryProtocol.md, daemon/mcbp_validators.cc, daemon/mcbp_privileges.cc, daemon/session_cas.cc,
daemon/ioctl.cc, engines/ep/src/ep_vb.cc (evictKey), include/mcbp/protocol/opcode.h.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from dcpstream.errors import DcpstreamError
from dcpstream.model import VbucketMap
from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.messages import admin
from dcpstream.wire.release import Rule
from dcpstream.wire.shape import Fault
from dcpstream_node.engine.access.roles import KNOWN_PRIVILEGES
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.bucket.parameters import (
    CONFIG,
    FLUSH,
    REPLICATION,
    VBUCKET,
    is_name_of,
    set_parameter,
)
from dcpstream_node.engine.bucket.vbucket import MAX_TRUSTED_CAS
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.engine import MAX_BUCKETS, RawConfig
from dcpstream_node.engine.handlers.login import version_fault
from dcpstream_node.engine.handlers.resolve import active_place, at_place, holds_token

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.session.session import Session

ENGINE_MODULE: Final = b"ep.so"
_TRAFFIC_TWICE: Final = b"Data traffic to persistence engine was already enabled"
_BUCKET_TYPE: Final = "Couchbase"
_CONFIG_ONLY_TYPE: Final = "ClusterConfigOnly"
_BUCKET_TYPES: Final = ("", _BUCKET_TYPE, _CONFIG_ONLY_TYPE, "Memcached", "No Bucket")
NO_ENGINE_MODULE: Final = b"nobucket.so"
MAX_VBUCKETS: Final = 1024
MAX_CAS_DIGITS: Final = 20


def refuse(session: Session, frame: Frame) -> None:
    """Administration of a server: NOT_SUPPORTED, as there is nothing here that the command could work on."""
    session.refuse(frame, Status.NOT_SUPPORTED)


# ----------------------------------------------------------------------------------------------------------- buckets


def create_bucket(session: Session, frame: Frame) -> None:
    """CREATE_BUCKET: the value is the name of the engine's module, a zero, and `name=value;…`.

    `max_vbuckets` is the only setting that has an effect. The bucket begins without a vbucket.
    """
    engine = session.engine
    module, _, settings = frame.value.partition(b"\0")
    name = frame.key.decode("utf-8", "replace")
    known = dict(item.split(b"=", 1) for item in settings.split(b";") if b"=" in item)
    count = known.get(b"max_vbuckets", b"%d" % MAX_VBUCKETS)
    if engine.bucket_host is None:
        session.respond(frame, Status.NOT_SUPPORTED)
    elif module == NO_ENGINE_MODULE:
        session.refuse(frame, Status.NOT_SUPPORTED, "The internal bucket type nobucket.so can't be created")
    elif module == ENGINE_MODULE and name in engine.buckets:
        session.respond(frame, Status.KEY_EEXISTS)
    elif module != ENGINE_MODULE:
        session.refuse(frame, Status.EINVAL, "Unknown bucket type")
    elif not count.isdigit() or not 1 <= int(count) <= MAX_VBUCKETS:
        session.respond(frame, Status.NOT_STORED)  # as a server answers settings with which no bucket can be made
    else:
        try:
            engine.bucket_host.create(name, int(count))
        except DcpstreamError as error:
            session.refuse(frame, Status.EINVAL, str(error))
        else:
            session.respond(frame)


def delete_bucket(session: Session, frame: Frame) -> None:
    """DELETE_BUCKET: closes the bucket's connections, removes it with its contents, and answers when that is done."""
    engine = session.engine
    name = frame.key.decode("utf-8", "replace")
    wanted_type = _wanted_type(frame.value) if engine.release.has(Rule.DELETE_BUCKET_TAKES_JSON) else ""
    if wanted_type is None:
        session.respond(frame, Status.EINVAL)
    elif engine.bucket_host is None:
        session.respond(frame, Status.NOT_SUPPORTED)
    elif name not in engine.buckets and name not in engine.raw_configs:
        session.respond(frame, Status.KEY_ENOENT)
    elif wanted_type not in ("", _BUCKET_TYPE if name in engine.buckets else _CONFIG_ONLY_TYPE):
        session.respond(frame, Status.KEY_EEXISTS)
    elif name not in engine.buckets:
        engine.drop_config_only(name)
        session.respond(frame)
    else:
        is_user = session.bucket is engine.buckets[name]  # then this connection is closed, too
        if not is_user:
            session.wait(frame, lambda status: session.respond(frame, status))
        engine.bucket_host.delete(name, session.resume)
        if is_user:
            session.respond(frame)


def _wanted_type(value: bytes) -> str | None:
    """The type that a DELETE_BUCKET names, "" for any; None if the value is not what a server takes."""
    if not value:
        return ""
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("force", False), bool):
        return None
    kind = content.get("type", "")
    return kind if kind in _BUCKET_TYPES else None


def pause_bucket(session: Session, frame: Frame) -> None:
    """PAUSE_BUCKET: close the connections of a bucket, and accept no others."""
    engine, name = session.engine, frame.key.decode("utf-8", "replace")
    bucket = engine.buckets.get(name)
    if not name:
        session.respond(frame, Status.EINVAL)
    elif bucket is None:
        session.respond(frame, Status.NOT_SUPPORTED if name in engine.raw_configs else Status.KEY_ENOENT)
    elif bucket.is_paused:
        session.respond(frame, Status.BUCKET_PAUSED)
    else:
        bucket.is_paused = True
        session.respond(frame)
        for each in bucket.sessions | bucket.holding:
            each.close(f"the bucket {name} was paused")


def resume_bucket(session: Session, frame: Frame) -> None:
    """RESUME_BUCKET: accept connections to a bucket again."""
    engine, name = session.engine, frame.key.decode("utf-8", "replace")
    bucket = engine.buckets.get(name)
    if bucket is not None and bucket.is_paused:
        bucket.is_paused = False
        session.respond(frame)
    else:
        is_there = not name or bucket is not None or name in engine.raw_configs
        session.respond(frame, Status.KEY_EEXISTS if is_there else Status.KEY_ENOENT)


def _check_flush(_session: Session, frame: Frame) -> Fault | None:
    return Fault(Status.NOT_SUPPORTED, "Delayed flush no longer supported") if any(frame.extras) else None


def flush(session: Session, frame: Frame) -> None:
    """FLUSH, FLUSHQ: NOT_SUPPORTED; use the management port to empty a bucket."""
    session.respond(frame, Status.NOT_SUPPORTED)


def control_traffic(session: Session, frame: Frame) -> None:
    """ENABLE_TRAFFIC, DISABLE_TRAFFIC: whether requests for documents are answered."""
    bucket = session.selected
    had_traffic, bucket.takes_traffic = bucket.takes_traffic, frame.opcode == Opcode.ENABLE_TRAFFIC
    bucket.update_sessions()
    has_text = had_traffic and bucket.takes_traffic and session.engine.release.has(Rule.TRAFFIC_TWICE_HAS_TEXT)
    session.respond(frame, value=_TRAFFIC_TWICE if has_text else b"")


def control_persistence(session: Session, frame: Frame) -> None:
    """STOP_PERSISTENCE, START_PERSISTENCE: whether the bucket writes to disk."""
    session.selected.is_persisting = frame.opcode == Opcode.START_PERSISTENCE
    session.respond(frame)


# -------------------------------------------------------------------------------------------------------- parameters


def _check_param(session: Session, frame: Frame) -> Fault | None:
    if frame.cas and session.engine.release.has(Rule.SET_VBUCKET_WITHOUT_CAS):
        return Fault(Status.EINVAL, "Request CAS must not be set")
    return None


def set_param(session: Session, frame: Frame) -> None:
    """SET_PARAM: change a parameter of a group; parameters that are unknown or have no effect here are refused."""
    (group,) = admin.SetParam.unpack(frame)
    release = session.engine.release
    if not FLUSH <= group <= (CONFIG if release.has(Rule.PARAMETERS_OF_CONFIGURATION) else VBUCKET):
        if release.has(Rule.BAD_PARAMETER_GROUP_CLOSES):
            session.close(f"there is no group {group} of parameters")
        else:
            session.refuse(frame, Status.EINVAL, "Invalid param type specified")
        return
    if group == REPLICATION and release.has(Rule.NO_REPLICATION_PARAMETERS):
        session.respond(frame, Status.KEY_ENOENT)
        return
    if not holds_token(session, frame):
        return
    name, text = frame.key.decode(errors="replace"), frame.value.decode(errors="replace")
    if not is_name_of(release, group, name):
        session.refuse(frame, Status.KEY_ENOENT, "Unknown config param")
        return
    if (group, name) == (VBUCKET, "max_cas"):
        _set_max_cas(session, frame, text)
        return
    try:
        why = set_parameter(session.selected, group, name, text)
    except DcpstreamError as error:
        why = str(error)
    if why is None:
        session.respond(frame, cas=frame.cas)
    else:
        session.refuse(frame, Status.EINVAL, why)


def _set_max_cas(session: Session, frame: Frame, text: str) -> None:
    """Set the highest CAS of a vbucket: the vbucket's next CAS is above it."""
    vbucket = session.selected.vbucket(frame.vbid)
    digits = text.lstrip("0")
    if not text.isascii() or not text.isdecimal() or len(digits) > MAX_CAS_DIGITS or int(digits or "0") >= 1 << 64:
        session.refuse(frame, Status.EINVAL, "Value out of range.")
    elif vbucket is None:
        session.refuse(frame, Status.NOT_MY_VBUCKET, "Not my vbucket")
    else:
        vbucket.max_cas = min(max(1, int(digits or "0")), MAX_TRUSTED_CAS)  # 0 would mean that it is not known
        session.respond(frame, cas=frame.cas)


# ---------------------------------------------------------------------------------------------- a server's operators


def no_such_property(session: Session, frame: Frame) -> None:
    """IOCTL: EINVAL for every name, as this node has no properties."""
    session.refuse(frame, Status.EINVAL)


def evict(session: Session, frame: Frame, vbucket: VBucket, key: bytes) -> None:
    """EVICT_KEY: answered as the server does, without effect."""
    meta = documents.live_meta(vbucket, key, session.engine.unix_ns)
    has_texts = session.engine.release.has(Rule.EVICTION_HAS_TEXTS)
    if meta is None or meta.is_deleted:
        status = Status.TMPFAIL if session.is_degraded else Status.KEY_ENOENT
        session.refuse(frame, status, "Not found." if has_texts else None)
    elif meta.seqno > vbucket.persisted_seqno:
        session.refuse(frame, Status.KEY_EEXISTS, "Can't eject: Dirty object." if has_texts else None)
    else:
        session.respond(frame, value=b"Ejected.")


def get_token(session: Session, frame: Frame) -> None:
    """GET_CTRL_TOKEN: the CAS that commands which change vbuckets may name."""
    session.respond(frame, cas=session.engine.control_token)


def set_token(session: Session, frame: Frame) -> None:
    """SET_CTRL_TOKEN: replace the token; the request's CAS is the old token, or 0 for any."""
    engine = session.engine
    if frame.cas in (0, engine.control_token):
        (engine.control_token,) = admin.SetCtrlToken.unpack(frame)
        session.respond(frame, cas=engine.control_token)
    else:
        session.respond(frame, Status.KEY_EEXISTS, cas=engine.control_token)


def _check_token(_session: Session, frame: Frame) -> Fault | None:
    return None if any(frame.extras) else Fault(Status.EINVAL, "New CAS must be set")


def _check_map(session: Session, frame: Frame) -> Fault | None:
    return version_fault(*admin.SetClusterConfig.unpack(frame), release=session.engine.release)


def set_cluster_config(session: Session, frame: Frame) -> None:
    """SET_CLUSTER_CONFIG: the map of the bucket that the key names, or of the cluster without a bucket.

    From then on the node gives clients this map, and no longer one of its own. The map of a bucket that is not here is
    given as it came, whatever it says, and whichever version there was before.
    """
    engine, name = session.engine, frame.key.decode("utf-8", "replace")
    bucket = engine.buckets.get(name)
    if name and bucket is None:
        if not engine.release.has(Rule.CONFIG_ONLY_BUCKETS):
            session.respond(frame, Status.KEY_ENOENT)
        elif name not in engine.raw_configs and len(engine.raw_configs) >= MAX_BUCKETS:
            session.refuse(frame, Status.ENOMEM, f"at most {MAX_BUCKETS} buckets that have nothing but a map")
        else:
            engine.take_raw_config(name, RawConfig(admin.SetClusterConfig.unpack(frame), frame.value))
            session.respond(frame)
        return
    try:
        content = json.loads(frame.value)
        # Without a name of its own a node is reached at the address that the client dialled.
        given = VbucketMap.from_json(content, "")
        this_node = next(number for number, entry in enumerate(content["nodesExt"]) if entry.get("thisNode"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration):
        session.refuse(frame, Status.EINVAL, "Not a cluster map with a nodesExt that says thisNode once")
        return
    version = given.epoch, given.rev
    if version != admin.SetClusterConfig.unpack(frame) or this_node >= len(given.nodes):
        session.refuse(frame, Status.EINVAL, "The map has another version than the request, or lacks this node")
    elif bucket is not None and len(given.chains) != bucket.vbucket_count:
        session.refuse(frame, Status.EINVAL, f"The bucket has {bucket.vbucket_count} vbuckets")
    elif version < engine.given_version(bucket):
        session.refuse(frame, Status.KEY_EEXISTS, "A newer map is there")
    else:
        engine.take_map(bucket, given, this_node)
        session.respond(frame)


def no_such_snapshot(session: Session, frame: Frame) -> None:
    """RELEASE_SNAPSHOT, GET_FILE_FRAGMENT: KEY_ENOENT, as no snapshot of files was ever prepared."""
    session.respond(frame, Status.KEY_ENOENT)


def drop_privilege(session: Session, frame: Frame) -> None:
    """DROP_PRIVILEGE: the connection gives up a privilege, until its next login."""
    name = frame.key.decode(errors="replace")
    if name not in KNOWN_PRIVILEGES:
        session.refuse(frame, Status.KEY_ENOENT)
        return
    session.identity.dropped |= {name}
    session.update_rights()
    session.respond(frame)


def _check_interface(_session: Session, frame: Frame) -> Fault | None:
    if frame.key not in (b"define", b"delete", b"list", b"tls"):
        what = 'Key must be "define", "delete", "list", "tls"' if frame.value else "Request must include value"
        return Fault(Status.EINVAL, what)
    if frame.key == b"list" and frame.value:
        return Fault(Status.EINVAL, "Request must not include value")
    if frame.key in (b"define", b"delete") and not frame.value:
        return Fault(Status.EINVAL, "Request must include value")
    return None


def _only_in_tests(_session: Session, _frame: Frame) -> Fault | None:
    return Fault(Status.NOT_SUPPORTED, "Only available for unit tests")


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(Opcode.CREATE_BUCKET, create_bucket)
    table.add(Opcode.DELETE_BUCKET, delete_bucket)
    table.add(Opcode.PAUSE_BUCKET, pause_bucket)
    table.add(Opcode.RESUME_BUCKET, resume_bucket)
    table.add(Opcode.FLUSH, flush, check=_check_flush)
    table.add((Opcode.ENABLE_TRAFFIC, Opcode.DISABLE_TRAFFIC), control_traffic)
    table.add((Opcode.STOP_PERSISTENCE, Opcode.START_PERSISTENCE), control_persistence)
    table.add(Opcode.SET_PARAM, set_param, check=_check_param)
    table.add((Opcode.IOCTL_GET, Opcode.IOCTL_SET), no_such_property)
    table.add(
        (
            *(Opcode.CONFIG_VALIDATE, Opcode.CONFIG_RELOAD, Opcode.AUDIT_PUT, Opcode.AUDIT_CONFIG_RELOAD),
            *(Opcode.SHUTDOWN, Opcode.SCRUB, Opcode.ISASL_REFRESH, Opcode.SSL_CERTS_REFRESH, Opcode.RBAC_REFRESH),
            *(Opcode.AUTH_PROVIDER, Opcode.UPDATE_EXTERNAL_USER_PERMISSIONS),
        ),
        refuse,
    )
    table.add(Opcode.IFCONFIG, refuse, check=_check_interface)
    table.add(Opcode.SET_CLUSTER_CONFIG, set_cluster_config, check=_check_map)
    table.add(Opcode.GET_CTRL_TOKEN, get_token)
    table.add(Opcode.SET_CTRL_TOKEN, set_token, check=_check_token)
    table.add(Opcode.EVICT_KEY, at_place(active_place, evict))
    table.add(Opcode.LAST_CLOSED_CHECKPOINT, refuse)
    table.add(Opcode.DROP_PRIVILEGE, drop_privilege)
    table.add(Opcode.GET_CMD_TIMER, refuse)
    table.add((Opcode.ADJUST_TIMEOFDAY, Opcode.EWOULDBLOCK_CTL), refuse, check=_only_in_tests)
    table.add(admin.OBSOLETE, refuse)
    table.add(admin.FOREIGN, refuse)
    table.add(Opcode.RELEASE_SNAPSHOT, no_such_snapshot)
    table.add(Opcode.GET_FILE_FRAGMENT, no_such_snapshot)
    table.add(Opcode.SET_BUCKET_DATA_LIMIT_EXCEEDED, refuse)
