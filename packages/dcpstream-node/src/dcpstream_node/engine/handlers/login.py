"""Setup of a session: HELLO, SASL, SELECT_BUCKET, the cluster map, the error map and the version.

Source: kv_engine docs/BinaryProtocol.md, docs/sasl.md, docs/ErrorMap.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.dcp.sasl import Outcome, ServerStep
from dcpstream.wire import Datatype, Feature, Frame, Opcode, Status
from dcpstream.wire.messages import kv
from dcpstream.wire.release import Release, Rule
from dcpstream.wire.shape import Fault
from dcpstream.wire.values import snappy_available
from dcpstream_node.engine.access.users import User
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.error_map import error_map

if TYPE_CHECKING:
    from dcpstream_node.engine.session.session import Session

NO_BUCKET_NAME = b"@no bucket@"
"""The name in a SELECT_BUCKET that leaves the bucket."""

MAX_AGENT_CHARACTERS = 200
"""Characters of a client's name that are kept for logs and stats."""

_FIRST_REVISION, _NO_EPOCH = 1, -1

_NEEDS = (
    (Feature.CLUSTERMAP_NOTIFICATION, {Feature.DUPLEX}, "Clustermap change notification needs Duplex"),
    (Feature.CLUSTERMAP_NOTIFICATION_BRIEF, {Feature.DUPLEX}, "ClustermapChangeNotificationBrief needs Duplex"),
    (Feature.VATTR, {Feature.XATTR}, "VAttr needs XATTR"),
    (Feature.SUBDOC_DOCUMENT_MACROS, {Feature.XATTR}, "SubdocDocumentMacroSupport needs XATTR"),
    (Feature.RANGE_SCAN_XATTR, {Feature.XATTR}, "RangeScanIncludeXattr needs XATTR"),
    (
        Feature.RANDOM_KEY_XATTR,
        {Feature.XATTR, Feature.JSON, Feature.SNAPPY_EVERYWHERE},
        "GetRandomKeyIncludeXattr needs XATTR, JSON and SnappyEverywhere",
    ),
)
"""A feature, those that must be asked for with it, and the text that refuses it alone."""


def hello(session: Session, frame: Frame) -> None:
    """HELLO: switch off every feature, then switch on those that the client asks for and the node supports."""
    if len(frame.value) % 2:
        session.refuse(frame, Status.EINVAL, "Request value must be of even length")
        return
    asked = {feature.code for feature in kv.FeatureCode.iter_unpack(frame.value)}
    may_be_both = session.engine.release.has(Rule.NODELAY_MAY_BE_ASKED_TWICE)
    if not may_be_both and Feature.TCP_NODELAY in asked and Feature.TCP_DELAY in asked:
        session.refuse(frame, Status.EINVAL, "TCPNODELAY cannot co-exist with TCPDELAY")
        return
    asked &= session.engine.release.features
    if not snappy_available:
        asked -= {Feature.SNAPPY, Feature.SNAPPY_EVERYWHERE}
    for feature, needed, text in _NEEDS:
        if feature in asked and not needed <= asked:
            session.refuse(frame, Status.EINVAL, text)
            return
    if Feature.CLUSTERMAP_NOTIFICATION_BRIEF in asked:
        asked.discard(Feature.CLUSTERMAP_NOTIFICATION)
    if session.dcp is not None:
        asked.discard(Feature.UNORDERED_EXECUTION)
    granted = frozenset(int(code) for code in asked)
    session.agent = frame.key.decode(errors="replace")[:MAX_AGENT_CHARACTERS]
    session.negotiated(granted)
    if isinstance(session.dcp, ProducerConnection):
        session.dcp.negotiated(granted)
    session.reply(frame, kv.HelloResponse, value=kv.encode_features(sorted(granted)))


def sasl_list_mechs(session: Session, frame: Frame) -> None:
    """SASL_LIST_MECHS: the names of the mechanisms, separated by blanks, strongest first."""
    if session.dcp is not None or session.identity.is_certified:
        session.respond(frame, Status.NOT_SUPPORTED)
    else:
        session.respond(frame, value=" ".join(session.login.offered).encode())


def sasl_auth(session: Session, frame: Frame) -> None:
    """SASL_AUTH: begin a login; an earlier login of the session ends. The mechanism may be in small letters."""
    if session.dcp is not None or session.identity.is_certified:
        session.respond(frame, Status.NOT_SUPPORTED)
        return
    mechanism = frame.key.upper()
    if mechanism.decode(errors="replace") not in session.login.offered:
        name = frame.key.decode(errors="replace")
        reason = f'Requested mechanism "{name}" is not supported'
        if session.engine.release.has(Rule.NAMES_MECHANISMS):
            reason = f"Unsupported mechanism. Must be one of: {' '.join(session.login.offered)}"
        session.refuse(frame, Status.AUTH_ERROR, reason)
        return
    session.logged_out()
    if _is_kept_out(session):
        return
    _answer(session, frame, session.login.start(mechanism, frame.value))


def sasl_step(session: Session, frame: Frame) -> None:
    """SASL_STEP: continue a login."""
    if session.dcp is not None or session.identity.is_certified:
        session.respond(frame, Status.NOT_SUPPORTED)
    elif not _is_kept_out(session):
        _answer(session, frame, session.login.step(frame.key.upper(), frame.value))


def _answer(session: Session, frame: Frame, step: ServerStep) -> None:
    if step.outcome is Outcome.CONTINUE:
        session.respond(frame, Status.AUTH_CONTINUE, value=step.data)
    elif step.outcome is Outcome.SUCCESS:
        user = step.holder if isinstance(step.holder, User) else session.engine.users.find(step.username or "")
        assert user is not None, "the login found the user"
        session.engine.counters.logins += 1
        session.logged_in(user, step.expires_at)
        session.respond(frame, value=step.data)
    elif step.outcome is Outcome.MALFORMED:
        session.respond(frame, Status.EINVAL)
    else:
        _refuse(session, frame)


def _address(session: Session) -> str:
    return session.peer.rpartition(":")[0]


def _is_kept_out(session: Session) -> bool:
    """Close the connection if too many refused logins from its address wait; False if not."""
    is_full = session.engine.logins.is_full(_address(session))
    if is_full:
        session.close("too many failed logins from its address wait")
    return is_full


def _refuse(session: Session, frame: Frame) -> None:
    """Answer AUTH_ERROR, with a delay after many refused logins from the same address."""
    logins, now = session.engine.logins, session.engine.now
    session.engine.counters.logins_refused += 1
    address = _address(session)
    delay = logins.failed(address, now)

    def refuse(_status: int = Status.SUCCESS) -> None:
        session.refuse_with_reference(frame, Status.AUTH_ERROR, "login refused: unknown user, wrong password or token")

    if delay:
        session.wait(frame, refuse)
        logins.wait(session.resume, address, now + delay)
    else:
        refuse()


def select_bucket(session: Session, frame: Frame) -> None:
    """SELECT_BUCKET: choose the bucket of later requests."""
    if session.dcp is not None:
        session.refuse(frame, Status.NOT_SUPPORTED, "DCP connections cannot change bucket")
        return
    if frame.key == NO_BUCKET_NAME:
        session.select(None)
        session.respond(frame)
        return
    user = session.identity.user
    assert user is not None, "the command needs a login"
    name = frame.key.decode(errors="replace")
    bucket = session.engine.buckets.get(name)
    if name in session.engine.damaged and user.may_use(name):
        session.refuse(
            frame, Status.TMPFAIL, "The bucket's files are damaged or cannot be used; the node's log says more"
        )
        return
    if name in session.engine.config_only and user.may_use(name):
        session.select_config(name)
        session.respond(frame)
        return
    if bucket is None or bucket.is_paused:
        # The server checks rights first. Internal users have rights on every bucket, even on missing ones, so
        # they get KEY_ENOENT; other users get EACCESS. Client libraries give up at once on EACCESS, but retry until
        # their timeout on KEY_ENOENT, because the bucket may be about to be created.
        if user.name.startswith("@"):
            session.respond(frame, Status.KEY_ENOENT)
        else:
            session.refuse(frame, Status.EACCESS)
        return
    if not user.may_use(bucket.name):
        session.refuse(frame, Status.EACCESS)
        return
    session.select(bucket)
    session.respond(frame)


def list_buckets(session: Session, frame: Frame) -> None:
    """LIST_BUCKETS: the names of the buckets that the user may select, separated by blanks."""
    user = session.identity.user
    engine = session.engine
    there = [name for name, bucket in engine.buckets.items() if not bucket.is_paused] + engine.config_only
    names = [name for name in there if user is not None and user.may_use(name)]
    session.respond(frame, value=" ".join(names).encode())


def get_cluster_config(session: Session, frame: Frame) -> None:
    """GET_CLUSTER_CONFIG: the map of the selected bucket or of the node; empty if the client's is as new."""
    if not session.has_config:
        session.respond(frame, Status.KEY_ENOENT)
        return
    known = kv.GetClusterConfigNewer.unpack(frame) if frame.extras else None
    if known is not None and known >= session.config_version:
        session.config_sent = session.config_version
        session.config_known = max(session.config_known, known)
        session.respond(frame)
    else:
        session.respond(frame, datatype=Datatype.JSON if session.is_json else 0, value=session.config_json())


def _check_config(session: Session, frame: Frame) -> Fault | None:
    if not frame.extras:
        return None
    return version_fault(*kv.GetClusterConfigNewer.unpack(frame), release=session.engine.release)


def version_fault(epoch: int, revision: int, *, release: Release) -> Fault | None:
    """The fault of a cluster configuration's version in a request, or None."""
    if revision < _FIRST_REVISION:
        return Fault(Status.EINVAL, "Revision number must not be less than 1")
    if epoch < _FIRST_REVISION and epoch != _NO_EPOCH:
        if release.has(Rule.MAP_VERSION_HAS_ONE_TEXT):
            return Fault(Status.EINVAL, "Revision number must not be less than 1")
        return Fault(Status.EINVAL, "Epoch must not be less than 1 (or -1)")
    return None


def _check_error_map(_session: Session, frame: Frame) -> Fault | None:
    if frame.vbid:
        return Fault(Status.EINVAL, "Request vbucket id must be 0")
    wanted = kv.GetErrorMap.layout.value_bytes
    return None if len(frame.value) == wanted else Fault(Status.EINVAL, f"Request value must be of length {wanted}")


def get_error_map(session: Session, frame: Frame) -> None:
    """GET_ERROR_MAP: the error map of the given version or an older one."""
    (asked,) = kv.GetErrorMap.unpack(frame)
    content = error_map(asked, session.engine.release)
    if content is None:
        session.respond(frame, Status.KEY_ENOENT)
    else:
        session.respond(frame, datatype=Datatype.JSON if session.is_json else 0, value=content)


def version(session: Session, frame: Frame) -> None:
    """VERSION: the version of the server release whose protocol this node follows."""
    session.respond(frame, value=session.engine.release.version.encode())


def accept(session: Session, frame: Frame) -> None:
    """NOOP and VERBOSITY: nothing to do."""
    session.respond(frame)


def leave(session: Session, frame: Frame) -> None:
    """QUIT and QUITQ: close the connection; QUIT is answered before."""
    if frame.opcode == Opcode.QUIT:
        session.respond(frame)
    session.close("QUIT")


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(Opcode.HELLO, hello)
    table.add(Opcode.SASL_LIST_MECHS, sasl_list_mechs)
    table.add(Opcode.SASL_AUTH, sasl_auth)
    table.add(Opcode.SASL_STEP, sasl_step)
    table.add(Opcode.GET_ERROR_MAP, get_error_map, check=_check_error_map)
    table.add(Opcode.SELECT_BUCKET, select_bucket)
    table.add(Opcode.LIST_BUCKETS, list_buckets)
    table.add(Opcode.GET_CLUSTER_CONFIG, get_cluster_config, check=_check_config)
    table.add(Opcode.VERSION, version)
    table.add(Opcode.NOOP, accept)
    table.add(Opcode.VERBOSITY, accept)
    table.add(Opcode.QUIT, leave)
