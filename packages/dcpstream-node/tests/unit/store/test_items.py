"""Reading items from stored frames."""

from __future__ import annotations

from dcpstream.wire import SystemEventId
from dcpstream.wire.messages.dcp import SystemEvent
from dcpstream.wire.system_events import events_of_scope
from dcpstream_node.store import index_key
from dcpstream_node.store.index.rows import collection_of
from dcpstream_node.store.items import modify_key

ID = (8).to_bytes(4, "big")


def event(kind: SystemEventId, value: bytes) -> bytes:
    return SystemEvent(
        vbid=0, opaque=0, by_seqno=1, event=kind, version=0, key=b"name", value=bytes(8) + value
    ).encode()


def test_events_about_one_thing_share_a_key() -> None:
    made = event(SystemEventId.CREATE_COLLECTION, bytes(4) + ID)
    dropped = event(SystemEventId.DROP_COLLECTION, bytes(4) + ID)
    scope = event(SystemEventId.CREATE_SCOPE, ID)
    assert index_key(made) == index_key(dropped) == b"\x01_collection\0\0\0\x08"
    assert index_key(event(SystemEventId.MODIFY_COLLECTION, bytes(4) + ID)) == modify_key(8) != index_key(made)
    assert collection_of(modify_key(8)) == 8
    assert index_key(scope) == index_key(event(SystemEventId.DROP_SCOPE, ID)) == b"\x01_scope\0\0\0\x08"
    assert (collection_of(index_key(made)), collection_of(index_key(scope))) == (8, events_of_scope(8))
