"""DCP messages: opening and steering connections and streams, and the changes that streams carry.

Source of all: kv_engine docs/dcp/documentation/commands/, include/mcbp/codec/dcp_*.h, include/mcbp/protocol/; limits as
in daemon/mcbp_validators.cc.
"""

from __future__ import annotations

from dcpstream.model import FailoverLog
from dcpstream.wire.codes import Datatype, Feature, Opcode
from dcpstream.wire.fields import u8, u16, u32, u64
from dcpstream.wire.layout import Answers, Group, Part, Request, Response, Side, message
from dcpstream.wire.status import Status
from dcpstream.wire.values import decode_failover_log

_DOCS = "kv_engine docs/dcp/documentation/commands/"
_ANY = int(Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR)
_BOTH = Side.PRODUCER | Side.CONSUMER

_GONE = frozenset((Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH))
_TOLERATED = Answers(_GONE, before_v7=frozenset((Status.KEY_ENOENT, Status.KEY_EEXISTS)))
"""The answer says that the stream is gone, and not that the message was refused."""
_AWAITED = Answers(are_awaited=True)


@message(
    Opcode.DCP_OPEN,
    privilege="",
    answers=_TOLERATED,
    key=Part.REQUIRED,
    rest=Part.OPTIONAL,
    datatypes=_ANY,
    cas=Part.OPTIONAL,
    since="3.0",
    source=_DOCS + "open-connection.md",
)
class Open(Request):
    """Make this connection a DCP connection.

    Attributes:
        reserved: u32, ignored.
        flags: u32, see `OpenFlag`.
        key: the connection's name; a newer connection with the same name takes over.
        value: empty, or JSON with `consumer_name`.
    """

    reserved: int = u32(default=0)
    flags: int = u32()


@message(
    Opcode.DCP_ADD_STREAM,
    groups=Group.FROM_DESTINATION,
    privilege="DcpProducer",
    answers=_TOLERATED,
    sent_by=Side.PRODUCER,
    since="3.0",
    source=_DOCS + "add-stream.md",
)
class AddStream(Request):
    """Ask a consumer to request a vbucket's stream from its producer. Answered once the stream exists, or refused.

    Attributes:
        flags: u32, see `StreamFlag`; passed on in the consumer's STREAM_REQ.
    """

    flags: int = u32()


@message(Opcode.DCP_ADD_STREAM, statuses=(Status.SUCCESS,), since="3.0", source=_DOCS + "add-stream.md")
class AddStreamResponse(Response):
    """The consumer's stream exists.

    Attributes:
        stream_opaque: u32, the opaque that the vbucket's messages carry.
    """

    stream_opaque: int = u32()


@message(
    Opcode.DCP_CLOSE_STREAM,
    groups=Group.FROM_SOURCE | Group.FROM_DESTINATION,
    privilege="DcpProducer",
    answers=_TOLERATED,
    sent_by=_BOTH,
    since="3.0",
    source=_DOCS + "close-stream.md",
)
class CloseStream(Request):
    """Close a vbucket's stream, on a producer or on a consumer. Always answered.

    With the control `send_stream_end_on_client_close_stream` a producer sends a STREAM_END after its answer.
    """


@message(
    Opcode.DCP_STREAM_REQ,
    groups=Group.FROM_DESTINATION,
    privilege="DcpProducer",
    answers=_TOLERATED,
    rest=Part.OPTIONAL,
    sent_by=Side.CONSUMER,
    rest_needs=Feature.COLLECTIONS,
    since="3.0",
    source=_DOCS + "stream-request.md",
)
class StreamRequest(Request):
    """Request a vbucket's history after `start_seqno` from a producer. Always answered.

    Attributes:
        flags: u32, see `StreamFlag`.
        reserved: u32.
        start_seqno: u64, the last seqno that the consumer has received.
        end_seqno: u64, 2^64-1 for a stream that never ends.
        vbuuid: u64, branch of `start_seqno`; 0 if there is none.
        snapshot_start, snapshot_end: u64, bounds of the snapshot that covers `start_seqno`.
        value: empty, or JSON: collections, scope, sid, uid, purge_seqno.
    """

    flags: int = u32(default=0)
    reserved: int = u32(default=0)
    start_seqno: int = u64()
    end_seqno: int = u64()
    vbuuid: int = u64()
    snapshot_start: int = u64()
    snapshot_end: int = u64()


@message(
    Opcode.DCP_STREAM_REQ,
    groups=Group.VBUCKET_METADATA,
    statuses=(Status.SUCCESS,),
    rest=Part.OPTIONAL,
    since="3.0",
    source=_DOCS + "stream-request.md",
)
class StreamResponse(Response):
    """The stream is accepted; the value is the vbucket's failover log."""

    @property
    def failover_log(self) -> FailoverLog:
        """The log in the value.

        Raises:
            FieldError: empty or of a wrong length.
        """
        return decode_failover_log(self.value)


@message(Opcode.DCP_STREAM_REQ, statuses=(Status.ROLLBACK,), since="3.0", source=_DOCS + "stream-request.md")
class RollbackResponse(Response):
    """The consumer must drop everything above `rollback_seqno` (u64) and request the stream again."""

    rollback_seqno: int = u64(value=True)


@message(
    Opcode.DCP_GET_FAILOVER_LOG,
    privilege="DcpProducer",
    answers=_TOLERATED,
    sent_by=Side.CONSUMER,
    since="3.0",
    source=_DOCS + "failover-log.md",
)
class GetFailoverLog(Request):
    """Request a vbucket's failover log. Always answered."""


@message(
    Opcode.DCP_GET_FAILOVER_LOG,
    statuses=(Status.SUCCESS,),
    rest=Part.REQUIRED,
    since="3.0",
    source=_DOCS + "failover-log.md",
)
class FailoverLogResponse(Response):
    """A vbucket's failover log in the value, newest branch first."""

    @property
    def failover_log(self) -> FailoverLog:
        """The log in the value."""
        return decode_failover_log(self.value)


@message(
    Opcode.DCP_STREAM_END,
    groups=Group.FROM_SOURCE,
    answers=_TOLERATED._replace(tolerated=_GONE | {Status.KEY_ENOENT}),
    privilege="DcpConsumer",
    flow_controlled=True,
    since="3.0",
    source=_DOCS + "stream-end.md",
)
class StreamEnd(Request):
    """End a stream. Never answered.

    Attributes:
        reason: u32, see `StreamEndReason`; unknown codes stay numbers.
    """

    reason: int = u32()


@message(
    Opcode.DCP_SNAPSHOT_MARKER,
    answers=_AWAITED,
    privilege="DcpConsumer",
    flow_controlled=True,
    since="3.0",
    source=_DOCS + "snapshot-marker.md",
)
class SnapshotMarker(Request):
    """Announce a snapshot, version 1: the messages that follow are consistent once `end_seqno` is reached.

    Attributes:
        start_seqno, end_seqno: u64, the snapshot's bounds.
        flags: u32, see `MarkerFlag`.
    """

    start_seqno: int = u64()
    end_seqno: int = u64()
    flags: int = u32()


@message(
    Opcode.DCP_SNAPSHOT_MARKER,
    answers=_AWAITED,
    privilege="DcpConsumer",
    flow_controlled=True,
    since="6.5",
    source=_DOCS + "snapshot-marker.md",
)
class SnapshotMarkerV2(Request):
    """Announce a snapshot, version 2.0: bounds in the value, with the seqnos that sync replication needs.

    Attributes:
        version: u8, 0.
        start_seqno, end_seqno: u64.
        flags: u32.
        max_visible_seqno: u64, highest seqno that is not an open prepare.
        high_completed_seqno: u64, highest prepare that was committed or aborted.
    """

    version: int = u8(fixed=0)
    start_seqno: int = u64(value=True)
    end_seqno: int = u64(value=True)
    flags: int = u32(value=True)
    max_visible_seqno: int = u64(value=True)
    high_completed_seqno: int = u64(value=True)


@message(Opcode.DCP_SNAPSHOT_MARKER, since="7.0", refused=Status.EINVAL)
class SnapshotMarkerV21(SnapshotMarkerV2):
    """Announce a snapshot, version 2.1: 2.0 with a time. Servers removed it again.

    Attributes:
        version: u8, 1.
        timestamp: u64.
    """

    version: int = u8(fixed=1)
    timestamp: int = u64(value=True)


@message(Opcode.DCP_SNAPSHOT_MARKER, since="7.2")
class SnapshotMarkerV22(SnapshotMarkerV2):
    """Announce a snapshot, version 2.2: 2.0 with the purge seqno. A 7.2 takes it, and an 8.0 sends it.

    Attributes:
        version: u8, 2.
        purge_seqno: u64, deletions up to it may be missing.
        high_prepared_seqno: u64.
    """

    version: int = u8(fixed=2)
    purge_seqno: int = u64(value=True)
    high_prepared_seqno: int = u64(value=True)


@message(Opcode.DCP_SNAPSHOT_MARKER, statuses=(Status.SUCCESS,), since="3.0", source=_DOCS + "snapshot-marker.md")
class SnapshotMarkerResponse(Response):
    """The whole snapshot was received; sent if the marker has `MarkerFlag.ACK`."""


@message(
    Opcode.DCP_FLUSH, privilege="", sent_by=_BOTH, refused=Status.NOT_SUPPORTED, since="3.0", source=_DOCS + "flush.md"
)
class DcpFlush(Request):
    """Reserved; servers answer NOT_SUPPORTED."""


@message(
    Opcode.DCP_SET_VBUCKET_STATE,
    needs_answer=True,
    answers=_AWAITED,
    privilege="DcpConsumer",
    groups=Group.VBUCKET_METADATA,
    flow_controlled=True,
    since="3.0",
    source=_DOCS + "set-vbucket-state.md",
)
class SetVbucketState(Request):
    """Takeover: set the consumer's vbucket to `state` (u8). Always answered."""

    state: int = u8()


@message(
    Opcode.DCP_NOOP,
    answers=_TOLERATED._replace(tolerated=_GONE - {Status.SUCCESS}),
    privilege="",
    sent_by=Side.PRODUCER,
    since="3.0",
    source=_DOCS + "no-op.md",
)
class DcpNoop(Request):
    """Check that the peer is alive. Always answered with the same opaque."""


@message(Opcode.DCP_NOOP, statuses=(Status.SUCCESS,), since="3.0", source=_DOCS + "no-op.md")
class DcpNoopResponse(Response):
    """The peer is alive."""


@message(
    Opcode.DCP_BUFFER_ACK,
    needs_answer=False,
    privilege="",
    answers=_TOLERATED,
    sent_by=Side.CONSUMER,
    since="3.0",
    source=_DOCS + "buffer-ack.md",
)
class BufferAck(Request):
    """Return `freed_bytes` (u32) of flow-control credit. Not answered unless refused."""

    freed_bytes: int = u32()


@message(
    Opcode.DCP_CONTROL,
    groups=Group.QUESTION,
    privilege="",
    answers=_TOLERATED,
    key=Part.REQUIRED,
    rest=Part.REQUIRED,
    sent_by=Side.CONSUMER,
    since="3.0",
    source=_DOCS + "control.md",
)
class Control(Request):
    """Set a parameter of the connection: name in the key, text in the value. Always answered."""


@message(
    Opcode.DCP_SEQNO_ADVANCED,
    seqno="by_seqno",
    privilege="",
    flow_controlled=True,
    refused=Status.UNKNOWN_COMMAND,
    since="7.0",
    source=_DOCS + "seqno-advanced.md",
)
class SeqnoAdvanced(Request):
    """Move the stream's position to `by_seqno` (u64) without an item."""

    by_seqno: int = u64()


@message(
    Opcode.DCP_OSO_SNAPSHOT,
    privilege="",
    flow_controlled=True,
    refused=Status.UNKNOWN_COMMAND,
    since="7.0",
    source=_DOCS + "oso-snapshot.md",
)
class OsoSnapshot(Request):
    """Begin (`flags`, u32: 1) or end (2) an out-of-order snapshot."""

    flags: int = u32()


@message(
    Opcode.DCP_CACHE_TRANSFER,
    answers=_TOLERATED._replace(tolerated=_GONE | {Status.ENOMEM}),
    privilege="DcpConsumer",
    rest=Part.REQUIRED,
    flow_controlled=True,
    since="8.5",
    source=_DOCS + "cache-transfer.md",
)
class CacheTransfer(Request):
    """Send cached documents in the value (see `dcpstream.wire.cached_items`). The stream's position does not move."""


@message(
    Opcode.DCP_CACHE_TRANSFER_END,
    privilege="DcpConsumer",
    answers=_TOLERATED,
    flow_controlled=True,
    since="8.5",
    source=_DOCS + "cache-transfer-end.md",
)
class CacheTransferEnd(Request):
    """End the transfer of cached documents."""


@message(
    Opcode.DCP_MUTATION,
    seqno="by_seqno",
    privilege="DcpConsumer",
    answers=_TOLERATED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    datatypes=_ANY,
    document_key=True,
    since="3.0",
    source=_DOCS + "mutation.md",
)
class Mutation(Request):
    """A document was written.

    Attributes:
        by_seqno: u64, the change's place in the vbucket's history.
        rev_seqno: u64, the number of changes of the document.
        flags: u32, the writer's.
        expiration: u32, seconds since 1970, 0 for never.
        lock_time: u32, 0.
        nmeta: u16, 0.
        nru: u8, the document's use counter.
        key: with collection prefix on a connection with collections.
        value: the document, xattr section first if the datatype says so.
    """

    by_seqno: int = u64()
    rev_seqno: int = u64()
    flags: int = u32(default=0)
    expiration: int = u32(default=0)
    lock_time: int = u32(default=0)
    nmeta: int = u16(default=0)
    nru: int = u8(default=0)


@message(
    Opcode.DCP_DELETION,
    seqno="by_seqno",
    privilege="DcpConsumer",
    answers=_TOLERATED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    without=Feature.COLLECTIONS,
    datatypes=_ANY,
    document_key=True,
    since="3.0",
    source=_DOCS + "deletion.md",
)
class Deletion(Request):
    """A document was deleted (version 1). `nmeta` is a u16, 0."""

    by_seqno: int = u64()
    rev_seqno: int = u64()
    nmeta: int = u16(default=0)


@message(
    Opcode.DCP_DELETION,
    seqno="by_seqno",
    privilege="DcpConsumer",
    answers=_TOLERATED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    datatypes=_ANY,
    document_key=True,
    since="5.5",
    source=_DOCS + "deletion.md",
)
class DeletionV2(Request):
    """A document was deleted, at `delete_time` (u32, seconds since 1970)."""

    by_seqno: int = u64()
    rev_seqno: int = u64()
    delete_time: int = u32()
    unused: int = u8(default=0)


@message(
    Opcode.DCP_EXPIRATION,
    seqno="by_seqno",
    privilege="DcpConsumer",
    answers=_TOLERATED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    datatypes=_ANY,
    document_key=True,
    since="6.5",
    source=_DOCS + "expiration.md",
)
class Expiration(Request):
    """A document expired, at `delete_time` (u32, seconds since 1970)."""

    by_seqno: int = u64()
    rev_seqno: int = u64()
    delete_time: int = u32()


@message(
    Opcode.DCP_SYSTEM_EVENT,
    seqno="by_seqno",
    privilege="DcpConsumer",
    answers=_TOLERATED,
    key=Part.OPTIONAL,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    since="7.0",
    source=_DOCS + "system_event.md",
)
class SystemEvent(Request):
    """Scopes or collections changed.

    Attributes:
        by_seqno: u64.
        event: u32, see `SystemEventId`.
        version: u8, layout of the value.
        key: the name, where there is one; never with a collection prefix.
        value: ids, as `version` says.
    """

    by_seqno: int = u64()
    event: int = u32()
    version: int = u8(default=0)


@message(
    Opcode.DCP_PREPARE,
    groups=Group.UNDECIDED,
    seqno="by_seqno",
    privilege="DcpConsumer",
    answers=_TOLERATED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    datatypes=_ANY,
    document_key=True,
    since="6.5",
    source=_DOCS + "prepare.md",
)
class Prepare(Request):
    """A durable write that is neither committed nor aborted yet.

    Attributes:
        deleted: u8, 1 if it is a deletion; servers take every number but 0 as 1.
        level: u8, 1 majority, 2 majority and persist on the active, 3 persist to majority.
    """

    by_seqno: int = u64()
    rev_seqno: int = u64()
    flags: int = u32(default=0)
    expiration: int = u32(default=0)
    lock_time: int = u32(default=0)
    nru: int = u8(default=0)
    deleted: int = u8(default=0)
    level: int = u8()


@message(
    Opcode.DCP_SEQNO_ACKNOWLEDGED,
    groups=Group.ACTS,
    needs_answer=False,
    privilege="DcpProducer",
    sent_by=Side.CONSUMER,
    since="6.5",
    source=_DOCS + "seqno-acknowledged.md",
)
class SeqnoAcknowledged(Request):
    """The replica has prepared everything up to `prepared_seqno` (u64)."""

    prepared_seqno: int = u64()


@message(
    Opcode.DCP_COMMIT,
    answers=_TOLERATED._replace(before_v7=frozenset((Status.KEY_EEXISTS,))),
    seqno="commit_seqno",
    privilege="DcpConsumer",
    flow_controlled=True,
    document_key=True,
    since="6.5",
    source=_DOCS + "commit.md",
)
class Commit(Request):
    """The prepare at `prepared_seqno` (u64) is committed; `commit_seqno` (u64) is the change's own seqno."""

    prepared_seqno: int = u64()
    commit_seqno: int = u64()


@message(
    Opcode.DCP_ABORT,
    groups=Group.UNDECIDED,
    answers=_TOLERATED._replace(before_v7=frozenset((Status.KEY_EEXISTS,))),
    seqno="abort_seqno",
    privilege="DcpConsumer",
    flow_controlled=True,
    document_key=True,
    since="6.5",
    source=_DOCS + "abort.md",
)
class Abort(Request):
    """The prepare at `prepared_seqno` (u64) is aborted; `abort_seqno` (u64) is the change's own seqno."""

    prepared_seqno: int = u64()
    abort_seqno: int = u64()


DATA_EXTRAS_BYTES: dict[int, tuple[int, ...]] = {
    Mutation.layout.opcode: Mutation.layout.extras_lengths,
    Deletion.layout.opcode: Deletion.layout.extras_lengths + DeletionV2.layout.extras_lengths,
    Expiration.layout.opcode: Expiration.layout.extras_lengths,
}
"""By opcode: the lengths that the extras of a document's change can have."""
