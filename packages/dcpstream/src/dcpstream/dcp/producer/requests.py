"""The STREAM_REQs of a producer: accepted as a stream with its form of messages, rolled back, or refused.

The checks are made in the server's order: flags, state of the connection, filter, the user's privileges, the vbucket's
history. `dcpstream.dcp.producer.rollback` decides about the history.

Source: kv_engine engines/ep/src/dcp/producer.cc (streamRequest); answers and drops as in recordings of a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dcpstream.dcp.bucket import HistorySource
from dcpstream.dcp.controls import ProducerSettings
from dcpstream.dcp.producer.next_step import StreamTerms
from dcpstream.dcp.producer.privilege import StandingAccess, StreamAccess, everything, refusal_of
from dcpstream.dcp.producer.rollback import Accept, Refuse, Rollback, StreamFacts, StreamFields, decide
from dcpstream.dcp.producer.stream import ProducerStream
from dcpstream.dcp.producer.stream_filter import StreamFilter, read_filter, refusal_on_connection, without_system
from dcpstream.dcp.refusals import Refusal, check_stream_flags
from dcpstream.wire import Frame, OpenFlag, Status, StreamFlag
from dcpstream.wire.buffers import BufferPool
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.release import Rule
from dcpstream.wire.server_bugs import ServerBug
from dcpstream.wire.stored.form import StreamForm


class StreamMaker:
    """The maker of one connection's streams.

    Args:
        settings: the values of the client's controls, which may still change.
        source: the bucket.
        has_collections: HELLO granted collections.
        has_takeovers: vbuckets may be handed over.
        streams_max: streams of the connection.
        access: what the user may stream.
        buffers: memory that the streams copy blocks to.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        source: HistorySource,
        *,
        has_collections: bool,
        has_takeovers: bool,
        streams_max: int,
        access: StreamAccess,
        buffers: BufferPool | None,
    ) -> None:
        self._settings = settings
        self._source = source
        self.has_collections = has_collections
        self._has_takeovers = has_takeovers
        self._streams_max = streams_max
        self._access = access
        self._buffers = buffers

    def make(
        self,
        frame: Frame,
        streams: Mapping[int | None, ProducerStream],
        *,
        stream_count: int,
        is_internal: bool,
        discard: Callable[[ProducerStream], None],
    ) -> ProducerStream | Rollback | Refusal:
        """Handle a STREAM_REQ whose shape was checked.

        Args:
            streams: the streams of its vbucket by stream id.
            discard: removes an ended stream of the same id, whose STREAM_END is then never sent. It is called as soon
                as only the vbucket's history can still refuse the request.
            stream_count: the number of streams of all vbuckets.
            is_internal: a shortage of memory does not matter.
        """
        request = StreamFields(*StreamRequest.unpack(frame))
        bad_flags = check_stream_flags(request.flags, self._settings.release)
        if bad_flags is not None:
            return bad_flags
        settings, source = self._settings, self._source
        view = source.vbucket(frame.vbid)
        refusal, wanted = self._wanted(frame)
        existing, ids = streams.get(wanted.stream_id), wanted.collection_ids
        facts = StreamFacts(
            is_noop_missing=not settings.noop_enabled
            and (self.has_collections or bool(settings.open_flags & OpenFlag.INCLUDE_XATTRS)),
            filter_refusal=None if refusal is None else refusal.status,
            has_stream=existing is not None and not existing.is_dead,
            filter_high_seqno=None if ids is None or view is None else view.high_seqno_of(ids),
            purge_seqno_known=wanted.purge_seqno,
            drops_end_above_high=self.has_collections
            and not settings.is_everything_visible
            and not settings.release.has_bug(ServerBug.END_ABOVE_HIGH),
            latest_is_of_filter=settings.release.has(Rule.LATEST_OF_COLLECTIONS),
            is_short_of_memory=source.is_short_of_memory and not is_internal,
            is_receiving_initial_snapshot=view is not None and view.is_receiving_initial_snapshot,
            is_point_in_time=bool(settings.open_flags & OpenFlag.INVALID_PITR),
        )
        decision = decide(request, view, facts)
        if existing is not None and (not isinstance(decision, Refuse) or decision.is_late):
            discard(existing)
        if isinstance(decision, Refuse):
            is_filter_fault = refusal is not None and decision.status is refusal.status
            return refusal if refusal is not None and is_filter_fault else Refusal(decision.status)
        if isinstance(decision, Rollback):
            return decision
        if stream_count >= self._streams_max:
            return Refusal(Status.ENOMEM, f"a connection has at most {self._streams_max} streams")
        if request.flags & StreamFlag.TAKEOVER and not self._has_takeovers:
            return Refusal(Status.NOT_SUPPORTED, "vbuckets are not handed over here")
        assert view is not None, "a missing vbucket was refused"
        terms = StreamTerms(
            view,
            source,
            frame.opaque,
            request.flags,
            decision,
            wanted,
            self._form(wanted),
            # Controls that come later hold for later streams.
            replace(settings, out_of_order=self._out_of_order(frame.vbid, decision, wanted)),
            view.purge_seqno,
            None if self._access is everything else StandingAccess(wanted, self._access),
        )
        return ProducerStream(terms, buffers=self._buffers)

    def _out_of_order(self, vbid: int, accepted: Accept, wanted: StreamFilter) -> str:
        """The control for out-of-order snapshots, as it counts for a stream."""
        asked, ids = self._settings.out_of_order, wanted.collection_ids
        is_of_few = ids is not None and 0 < len(ids) <= self._source.out_of_order_collections_max
        if not asked or accepted.start_seqno or not is_of_few or ids is None:
            return ""
        return asked if self._source.chooses_out_of_order(vbid, ids) else ""

    def _wanted(self, frame: Frame) -> tuple[Refusal | None, StreamFilter]:
        """(None, filter of the request), or (refusal, empty filter)."""
        manifest = self._source.manifest
        wanted = read_filter(
            frame.value, manifest, has_collections=self.has_collections, release=self._settings.release
        )
        if isinstance(wanted, Refusal):
            return wanted, StreamFilter()
        if self.has_collections and not self._access.sees_system():
            wanted = without_system(wanted, manifest)
        refusal = refusal_of(wanted, self._access, manifest.uid) or refusal_on_connection(
            wanted,
            has_collections=self.has_collections,
            has_stream_ids=self._settings.stream_ids,
            has_sync_writes=self._settings.sync_writes,
            release=self._settings.release,
        )
        return refusal, wanted if refusal is None else StreamFilter()

    def _form(self, wanted: StreamFilter) -> StreamForm:
        """The form of a stream's messages, fixed when the stream begins."""
        flags, settings = self._settings.open_flags, self._settings
        keeps_datatype = bool(flags & OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE)
        has_delete_times = bool(flags & OpenFlag.INCLUDE_DELETE_TIMES)
        snappy = "none"
        if settings.has_snappy:
            snappy = "active" if self._source.compresses_values else "passive"
        return StreamForm(
            collections=self.has_collections,
            xattrs=bool(flags & OpenFlag.INCLUDE_XATTRS),
            delete_times=has_delete_times,
            expiry_opcode=settings.expiry_opcode and has_delete_times,
            no_value=keeps_datatype or bool(flags & OpenFlag.NO_VALUE),
            keep_datatype=keeps_datatype,
            snappy="force" if settings.force_value_compression else snappy,
            stream_id=wanted.stream_id,
            collection_ids=wanted.collection_ids,
            scope_id=wanted.scope_id,
            hides_system=wanted.hides_system,
            flatbuffer_events=settings.flatbuffers_system_events,
            user_xattrs_on_delete=settings.deleted_user_xattrs,
            hifi_counter=settings.hifi_mfu,
        )
