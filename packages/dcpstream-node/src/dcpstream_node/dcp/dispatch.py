"""Dispatch of DCP frames: DCP_OPEN, the machine of a session, the privileges of each request.

A session gives every frame with a DCP opcode to `handle_dcp`. Once DCP_OPEN succeeded, the session's `dcp` is the
producer or consumer machine, which gets all further frames; this module keeps no state of its own.

Source: kv_engine daemon/protocol/mcbp/dcp_open_executor.cc, engines/ep/src/dcp/dcpconnmap.cc (names).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from dcpstream.dcp.consumer.connection import ConsumerConnection, check_add_stream
from dcpstream.dcp.opening import Opening, OpenRequest, read_open
from dcpstream.dcp.producer.connection import ProducerConnection, ProducerHost
from dcpstream.dcp.producer.privilege import Access
from dcpstream.dcp.refusals import Refusal, answer, check_shape, refuse
from dcpstream.wire import Feature, Frame, Opcode, OpenFlag, Status
from dcpstream.wire.messages import DCP_OPCODES, REQUESTS
from dcpstream.wire.release import RELEASES, Rule
from dcpstream_node.dcp.replica import Replicas, Takeovers
from dcpstream_node.engine.access.permission import LOOKUP, has, in_system_collection

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.bucket import Bucket
    from dcpstream_node.engine.session.session import Session

__all__ = ["handle_dcp"]

CLUSTER_MANAGER = "@ns_server"
"""The user whose streams may begin even if memory is short."""

_NOT_OPEN = Refusal(Status.EINVAL, "The command can only be sent on a DCP connection")
_BAD_DATATYPE = Refusal(Status.EINVAL, "Request datatype invalid")
_WARMING_UP = Refusal(Status.TMPFAIL, "The bucket is still being loaded")
_UNORDERED = Refusal(Status.NOT_SUPPORTED, "DCP on connections with unordered execution is not supported")
_NEEDS_COLLECTIONS = Refusal(Status.EINVAL, "SkipDeletesInInitialBackfill requires collections")
_UNKNOWN = Refusal(Status.UNKNOWN_COMMAND)
_UNDECLARED = Refusal(Status.EACCESS, "Authorization failure: no privilege is declared for this request")
_PRIVILEGES: Mapping[str, Mapping[int, str | None]] = MappingProxyType(
    {
        name: {
            layout.opcode: layout.privilege
            for layout in REQUESTS
            if layout.opcode in DCP_OPCODES and release.knows(layout.since)
        }
        for name, release in RELEASES.items()
    }
)
"""Release by name → the opcode of each request that it knows → the privilege that the user needs at either end."""

_STREAM = "DcpStream"


def handle_dcp(session: Session, frame: Frame, now: float) -> None:
    """Answer a frame with a DCP opcode; the session is logged in and has a bucket."""
    dcp, is_request = session.dcp, frame.is_request
    privileges = _PRIVILEGES[session.engine.release.name]
    if is_request and frame.opcode not in privileges:
        session.output.add(refuse(frame, _UNKNOWN))
        return
    if is_request and frame.datatype & ~session.datatypes:
        session.output.add(refuse(frame, _fault(session, frame) or _BAD_DATATYPE))
        return
    if dcp is not None:
        if not (is_request and _is_kept_from(session, frame, privileges[frame.opcode])):
            dcp.handle(frame, now)
    elif frame.opcode == Opcode.DCP_OPEN:
        _open(session, frame, now)
    else:
        session.output.add(refuse(frame, _fault(session, frame) or _NOT_OPEN))


def _fault(session: Session, frame: Frame) -> Refusal | None:
    return check_shape(frame, release=session.engine.release, has_collections=session.has_collections)


def _is_kept_from(session: Session, frame: Frame, privilege: str | None) -> bool:
    """Whether a request on an open connection, which needs a privilege, is refused before its machine sees it."""
    if privilege is None:
        session.output.add(refuse(frame, _UNDECLARED))
        return True
    if not session.identity.may(privilege) and _fault(session, frame) is None:
        session.refuse(frame, Status.EACCESS, f"Authorization failure: this needs the {privilege} privilege")
        return True
    # The server looks for a stream into the vbucket before it looks which end this is; a consumer does so itself.
    is_streamed = (
        frame.opcode == Opcode.DCP_ADD_STREAM
        and isinstance(session.dcp, ProducerConnection)
        and check_add_stream(frame, session.engine.release) is None
        and session.bucket is not None
        and session.bucket.is_streamed_into(frame.vbid)
    )
    if is_streamed:
        session.respond(frame, Status.KEY_EEXISTS)
    return is_streamed


def _open(session: Session, frame: Frame, now: float) -> None:
    request = read_open(frame, session.engine.release, has_collections=session.has_collections)
    if isinstance(request, Refusal):
        session.output.add(refuse(frame, request))
        return
    if Feature.UNORDERED_EXECUTION in session.features:
        session.output.add(refuse(frame, _UNORDERED))
        return
    if request.flags & OpenFlag.SKIP_DELETES_IN_BACKFILL and not session.has_collections:
        session.output.add(refuse(frame, _NEEDS_COLLECTIONS))
        return
    privilege = "DcpProducer" if request.is_producer else "DcpConsumer"
    if not session.identity.may(privilege):
        context = f"Authorization failure: can't execute DCP_OPEN operation without the {privilege} privilege"
        session.refuse_with_reference(frame, Status.EACCESS, context, context)
        return
    if request.drops:
        session.close("DCP_OPEN of a consumer with an empty JSON object")
        return
    bucket = session.bucket
    assert bucket is not None, "a session without a bucket does not come here"
    if not request.is_producer and not bucket.is_warm:
        session.output.add(refuse(frame, _WARMING_UP))
        return
    name = request.name.decode("utf-8", "backslashreplace")
    older = bucket.dcp_sessions.get(name)
    if older is not None and older is not session:
        older.close(f"a newer connection took over its name {name!r}")
    session.dcp = _machine(request, name, session, bucket, now)
    session.enable_json()
    bucket.dcp_sessions[name] = session
    if not request.is_producer:
        bucket.share_buffers()
    session.output.add(answer(frame))


def _machine(
    request: OpenRequest, name: str, session: Session, bucket: Bucket, now: float
) -> ProducerConnection | ConsumerConnection:
    opening = Opening(name, request.flags, session.features, request.consumer_name)
    if request.is_producer:
        host = ProducerHost(
            takeovers=Takeovers(bucket, session.engine),
            access=_UserAccess(session, bucket),
            buffers=session.engine.buffers,
        )
        producer = ProducerConnection(
            opening,
            bucket,
            now,
            bucket.parameters.producer,
            release=session.engine.release,
            host=host,
            cluster_map=session.config_to_send,
        )
        producer.is_internal = session.identity.user is not None and session.identity.user.name == CLUSTER_MANAGER
        return producer
    return ConsumerConnection(
        opening,
        Replicas(bucket, session.engine),
        now,
        release=session.engine.release,
        idle_timeout_s=bucket.parameters.producer.idle_timeout_s,
        cluster_map=session.config_to_send,
    )


class _UserAccess:
    """The access of a session's user to the history of a bucket."""

    def __init__(self, session: Session, bucket: Bucket) -> None:
        self._session = session
        self._bucket = bucket

    def basis(self) -> object:
        """The user's rights, and the names of the collections."""
        identity = self._session.identity
        return identity.user, identity.user and identity.user.version, identity.dropped, self._bucket.manifest

    def sees_system(self) -> bool:
        """Whether the user may look up system collections in the whole bucket; before 7.6 there are none."""
        session = self._session
        has_system = session.engine.release.has(Rule.SYSTEM_COLLECTIONS)
        return not has_system or LOOKUP in session.identity.rights_at(self._bucket.name)

    def at(self, scope_id: int | None, collection_id: int | None) -> Access:
        """The access to the whole bucket, to a scope, or to a collection."""
        identity, bucket = self._session.identity, self._bucket
        user = identity.user
        assert user is not None, "DCP_OPEN comes after the login"
        if scope_id is None and collection_id is None:
            return Access.GRANTED if _STREAM in identity.rights_at(bucket.name) else Access.DENIED
        scope, name, is_system = "", "", False
        for found in bucket.manifest.scopes:
            if collection_id is None and found.scope_id == scope_id:
                scope, is_system = found.name, found.is_system
            for item in found.collections if collection_id is not None else ():
                if item.collection_id == collection_id:
                    scope, name, is_system = found.name, item.name, item.is_system
        is_system = is_system and self._session.engine.release.has(Rule.SYSTEM_COLLECTIONS)
        needed = in_system_collection(_STREAM) if is_system else _STREAM
        if has(identity.rights_at(bucket.name, scope, name), needed):
            return Access.GRANTED
        return Access.DENIED if user.knows(bucket.name, scope, name) else Access.INVISIBLE
