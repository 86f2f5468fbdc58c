"""Recorded history into a bucket of this node: the same seqnos, CAS and branches as those of the source.

The vbuckets are active all the while. A branch that begins ends the streams of a vbucket, as a failover does, so that
its readers learn of it. A seqno without a message (another collection's, a prepare's) is kept by an abort of a document
that never was: streams without durable writes get SEQNO_ADVANCED for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.dcp.bucket import Change
from dcpstream.dcp.consumer.messages import Dialect, read_change
from dcpstream.dcp.refusals import Refusal
from dcpstream.errors import DcpstreamError
from dcpstream.model import FailoverLog, Manifest, VbucketState
from dcpstream.wire import Datatype, Frame, Opcode, Status, decode_frame
from dcpstream.wire.messages.dcp import RollbackResponse, SeqnoAdvanced, StreamRequest
from dcpstream.wire.stored.block import frame_kinds
from dcpstream.wire.stored.durable import encode_stored_abort
from dcpstream.wire.system_events import read_event
from dcpstream.wire.values import decode_failover_log
from dcpstream_node.dcp.replica import Replicas
from dcpstream_node.engine.bucket.manifest import with_event

if TYPE_CHECKING:
    from dcpstream_node.engine import Bucket, Engine
    from dcpstream_node.engine.bucket.vbucket import VBucket

NOBODY = b"\0_dcpstream:not recorded"
"""The document whose aborts keep seqnos without a message; in the default collection."""

_DIALECT = Dialect(
    has_collections=True, has_delete_times=True, datatypes=int(Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR)
)


class Playback:
    """Takes the frames of a recording into a bucket.

    Args:
        bucket: empty, with all its vbuckets active.
        engine: of the node.
    """

    def __init__(self, bucket: Bucket, engine: Engine) -> None:
        self._bucket = bucket
        self._engine = engine
        self._replicas = Replicas(bucket, engine)

    def begin(self, manifest: Manifest, uuid: str) -> None:
        """Have the scopes and collections, and the identity, of the source."""
        self._bucket.adopt_manifest(manifest)
        if uuid:
            self._bucket.uuid = uuid
        self._engine.topology_changed(self._bucket)

    def take(self, data: bytes) -> None:
        """Take whole frames, in their order.

        Raises:
            DcpstreamError: a row does not follow: another client wrote into the bucket, or the recording is of another
                number of vbuckets.
            WireError: bytes that are no frame of a recording.
        """
        at = 0
        while at < len(data):
            frame = decode_frame(data, at)
            at += frame.size
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        vbucket = self._bucket.vbucket(frame.opaque)
        if vbucket is None:
            raise DcpstreamError(f"the recording has vbucket {frame.opaque}, which the bucket has not")
        opcode = frame.opcode
        if opcode == Opcode.DCP_STREAM_REQ:
            self._stream_request(vbucket, frame)
        elif opcode == Opcode.DCP_SEQNO_ADVANCED:
            self._advance(vbucket, SeqnoAdvanced.unpack(frame)[0])
        elif opcode == Opcode.DCP_SYSTEM_EVENT:
            self._append(vbucket, _event_in(frame))
            self._bucket.adopt_manifest(
                with_event(self._bucket.manifest, read_event(frame.extras, frame.key, frame.value))
            )
        elif opcode != Opcode.DCP_SNAPSHOT_MARKER:
            self._append(vbucket, read_change(frame, _DIALECT, self._engine.unix_s))

    def _append(self, vbucket: VBucket, change: Change | Refusal) -> None:
        if isinstance(change, Refusal):
            raise DcpstreamError(f"vbucket {vbucket.vbid}: a message of the recording is refused: {change}")
        if change.seqno <= vbucket.high_seqno:
            raise DcpstreamError(
                f"vbucket {vbucket.vbid}: seqno {change.seqno} of the recording does not follow {vbucket.high_seqno}. "
                "Nobody else may write into the bucket while a recording is played"
            )
        self._replicas.store(vbucket, change)

    def _advance(self, vbucket: VBucket, seqno: int) -> None:
        frame = encode_stored_abort(vbid=vbucket.vbid, key=NOBODY, by_seqno=seqno, prepared_seqno=seqno - 1)
        self._append(vbucket, Change(frame, NOBODY, seqno, kinds=int(frame_kinds(Opcode.DCP_ABORT, 0, NOBODY))))

    def _stream_request(self, vbucket: VBucket, frame: Frame) -> None:
        if frame.is_request:
            start = StreamRequest.decode(frame).start_seqno
            if start > vbucket.high_seqno:
                # What lies below was not recorded: a reader that was there must not go on as if nothing had happened.
                self._replicas.learn_purge_seqno(vbucket, start)
                self._advance(vbucket, start)
        elif frame.status == Status.ROLLBACK:
            seqno = RollbackResponse.unpack(frame)[0]
            if seqno < vbucket.high_seqno:
                self._replicas.roll_back(vbucket, seqno)
        else:
            self._adopt(vbucket, decode_failover_log(frame.value))

    def _adopt(self, vbucket: VBucket, log: FailoverLog) -> None:
        if vbucket.failover_log == log:
            return
        has_readers = vbucket.high_seqno > 0 and vbucket.state is VbucketState.ACTIVE
        vbucket.close_checkpoint()
        self._replicas.adopt_failover_log(vbucket, log)
        if has_readers:
            self._bucket.notify_state_changed(vbucket.vbid, self._engine.now)


def _event_in(frame: Frame) -> Change:
    """A system event, which a recording has in stored form but for the opaque."""
    seqno = int.from_bytes(frame.extras[:8], "big")
    frame.opaque = 0
    kinds = int(frame_kinds(Opcode.DCP_SYSTEM_EVENT, 0, frame.key))
    return Change(frame.encode(), frame.key, seqno, frame.cas, 0, kinds)
