"""Reading items from stored frames."""

from __future__ import annotations

from dcpstream.wire import SystemEventId
from dcpstream.wire.messages.dcp import SystemEvent
from dcpstream.wire.stored.block import Version, encode_stored_deletion, encode_stored_mutation
from dcpstream.wire.system_events import events_of_scope
from dcpstream_node.store import index_key
from dcpstream_node.store.index.rows import collection_of
from dcpstream_node.store.items import modify_key, read_item, read_meta

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


def test_a_frame_is_read_in_the_middle_of_a_buffer() -> None:
    first = encode_stored_mutation(Version(b"\0a", b"v", 2, datatype=1, flags=4, time=5), vbid=1, by_seqno=1, cas=3)
    second = encode_stored_deletion(Version(b"\0b", b"x", 7, datatype=4, time=9), vbid=1, by_seqno=6, cas=8)
    data = bytearray(first + second + first)
    assert index_key(second) == b"\0b"
    assert read_meta(data) == (3, 2, 1, 4, 5, 1, False, 0)
    assert read_meta(data, len(first)) == (8, 7, 6, 0, 0, 4, True, 9)
    item = read_item(data, len(first))
    assert (item.key, item.value, item.datatype, item.is_deleted, item.delete_time) == (b"\0b", b"x", 4, True, 9)
    item = read_item(data)
    assert (item.key, item.value, item.flags, item.expiration, item.cas) == (b"\0a", b"v", 4, 5, 3)
