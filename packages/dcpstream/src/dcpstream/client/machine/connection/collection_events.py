"""System events in one vbucket's stream: the events for the user, and the collections that the position covers then.

An event that ends a collection holds no name, so a position keeps the names of the collections that it covers.
"""

from __future__ import annotations

from dcpstream.client.machine.connection.events import Stream
from dcpstream.client.machine.values import ManifestEvent
from dcpstream.errors import FieldError
from dcpstream.model import CollectionName, Op
from dcpstream.wire import Frame, SystemEventId
from dcpstream.wire.messages.dcp import SystemEvent
from dcpstream.wire.system_events import (
    EVENT_VALUE_BYTES,
    VERSION_FLATBUFFERS,
    CollectionEvent,
    read_event,
    read_flatbuffer,
)

_OPS = {
    SystemEventId.CREATE_COLLECTION: Op.COLLECTION_CREATED,
    SystemEventId.DROP_COLLECTION: Op.COLLECTION_DROPPED,
    SystemEventId.CREATE_SCOPE: Op.SCOPE_CREATED,
    SystemEventId.DROP_SCOPE: Op.SCOPE_DROPPED,
    SystemEventId.MODIFY_COLLECTION: Op.COLLECTION_MODIFIED,
}


def event_in(frame: Frame) -> CollectionEvent | None:
    """The event of a message; None for an event that this client does not know.

    Raises:
        FieldError: its extras or its value have another layout than its version says.
    """
    message = SystemEvent.decode(frame)
    if message.event not in _OPS:
        return None
    if message.version == VERSION_FLATBUFFERS:
        return read_flatbuffer(message.event, frame.value)
    lengths = EVENT_VALUE_BYTES.get(SystemEventId(message.event))
    if message.version > VERSION_FLATBUFFERS or lengths is None:
        return None
    if len(frame.value) < lengths[0]:
        raise FieldError(f"a system event {message.event} with a value of {len(frame.value)} bytes, not {lengths[0]}")
    return read_event(frame.extras, frame.key, frame.value)


def follow(stream: Stream, event: CollectionEvent, seqno: int) -> list[ManifestEvent]:
    """Take an event that the stream's position has just moved over.

    Returns:
        The events for the user, in this order: usually one. None for a collection whose end was reported before. Two if
        a collection begins that has the name of another one that the position covers, and if one ends whose rows may
        have either of two names.
    """
    tracker, names = stream.tracker, stream.names
    if names is None:
        return []
    names.take_event(event)
    op = _OPS[SystemEventId(event.event)]
    scope = names.scope_of(event)
    covered = tracker.collections
    reports: list[ManifestEvent] = []
    name = CollectionName(event.collection_id, scope, event.name)
    if op is Op.COLLECTION_DROPPED:
        known = {item.collection_id: item for item in covered or ()}
        if stream.is_filtered and covered is not None and event.collection_id not in known:
            return []
        if event.collection_id in known:
            name = known[event.collection_id]
        else:
            name, *others = names.ended_names(event, is_resumed=stream.is_resumed)
            reports += [_report(stream, op, event, seqno, other) for other in others]
        if covered is not None:
            tracker.cover(item for item in covered if item.collection_id != event.collection_id)
    elif op is Op.COLLECTION_CREATED:
        if event.flush_uid:
            op = Op.COLLECTION_FLUSHED
        replaced = [
            item for item in covered or () if item[1:] == name[1:] and item.collection_id != event.collection_id
        ]
        reports += [_report(stream, Op.COLLECTION_DROPPED, event, seqno, item) for item in replaced]
        if covered is not None:
            tracker.cover({*covered, name}.difference(replaced))
    elif op is Op.COLLECTION_MODIFIED:
        name = names.collection_of(event)
    reports.append(_report(stream, op, event, seqno, name))
    return reports


def _report(stream: Stream, op: Op, event: CollectionEvent, seqno: int, name: CollectionName) -> ManifestEvent:
    is_of_scope = event.is_of_scope
    says_ttl = op in {Op.COLLECTION_CREATED, Op.COLLECTION_FLUSHED, Op.COLLECTION_MODIFIED}
    return ManifestEvent(
        op=op,
        vbid=stream.vbid,
        vbuuid=stream.tracker.vbuuid,
        seqno=seqno,
        scope=name.scope,
        collection="" if is_of_scope else name.collection,
        scope_id=event.scope_id,
        collection_id=None if is_of_scope else name.collection_id,
        manifest_uid=event.manifest_uid,
        offset=stream.tracker.offset,
        max_ttl=event.max_ttl if says_ttl else None,
    )
