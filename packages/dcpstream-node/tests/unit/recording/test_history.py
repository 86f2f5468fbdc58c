"""The positions of a recording's vbuckets after its frames."""

from __future__ import annotations

import pytest

from dcpstream.client.machine.values import ManifestEvent
from dcpstream.errors import FrameError
from dcpstream.model import FailoverLog, Op, StreamOffset
from dcpstream.wire import Frame, Opcode, decode_frame
from dcpstream.wire.stored.block import Version, encode_stored_mutation
from dcpstream.wire.system_events import CollectionEvent, read_event
from dcpstream_node.recording import history
from dcpstream_node.recording.history import Histories
from tests.kit.cases import each_case

LOG = FailoverLog.of((7, 40), (5, 0))


def row(vbid: int, seqno: int, key: bytes = b"\0k") -> bytes:
    frame = decode_frame(encode_stored_mutation(Version(key, b"{}", 1), vbid=vbid, by_seqno=seqno, cas=9))
    return history.message(frame, has_collections=True)


def test_a_rollback_goes_back_to_where_the_recorder_went_on() -> None:
    found = Histories()
    found.take(history.opened(0, StreamOffset.ZERO, LOG))
    for start in range(0, 50, 10):
        found.take(history.marker(0, start, start + 10) + row(0, start + 5) + row(0, start + 10))
    one = found.vbuckets[0]
    assert [old.seqno for old in one.earlier][:2] == [40, 30]
    assert all(old.seqno == old.snapshot_end for old in one.earlier)
    newer = FailoverLog.of((8, 20), (5, 0))
    found.take(history.rolled_back(0, 20) + history.opened(0, StreamOffset(5, 20, 10, 20), newer))
    assert one.offset == StreamOffset(8, 20, 10, 20)
    assert one.log == newer
    assert max((old.seqno for old in one.earlier), default=0) < 20
    found.take(history.marker(0, 20, 30) + row(0, 30))
    assert one.offset == StreamOffset(8, 30, 20, 30)


def test_a_start_in_the_middle_of_a_snapshot_keeps_its_bounds() -> None:
    found = Histories()
    found.take(history.opened(2, StreamOffset(5, 12, 10, 20), LOG))
    assert found.vbuckets[2].offset == StreamOffset(7, 12, 10, 20)
    assert found.vbuckets[2].start == StreamOffset(5, 12, 10, 20)


@each_case("missing", range(1, len(row(3, 41))))
def test_a_block_that_ends_inside_a_frame_is_an_error(missing: int) -> None:
    data = history.opened(3, StreamOffset.ZERO, LOG) + row(3, 41)
    with pytest.raises(FrameError):
        Histories().take(data[:-missing])


def event(op: Op, **fields: object) -> tuple[Frame, object]:
    """An event's frame, and the event that is read from it."""
    given = {"scope": "shop", "collection": "orders", "scope_id": 8, "collection_id": 9, "max_ttl": None} | fields
    at = StreamOffset(7, 4, 4, 4)
    made = ManifestEvent(op=op, vbid=2, vbuuid=7, seqno=4, manifest_uid=3, offset=at, **given)  # type: ignore[arg-type]
    frame = decode_frame(history.system_event(made))
    return frame, read_event(frame.extras, frame.key, frame.value)


def test_events_are_recorded_in_stored_form() -> None:
    frame, found = event(Op.COLLECTION_CREATED, max_ttl=60)
    assert (frame.opcode, frame.opaque) == (Opcode.DCP_SYSTEM_EVENT, 2)
    assert found == CollectionEvent(0, 3, 8, 9, "orders", 60)
    assert event(Op.COLLECTION_DROPPED)[1] == CollectionEvent(1, 3, 8, 9)
    assert event(Op.SCOPE_CREATED, collection="", collection_id=None)[1] == CollectionEvent(3, 3, 8, 0, "shop")
    assert event(Op.SCOPE_DROPPED, collection="", collection_id=None)[1] == CollectionEvent(4, 3, 8)
    histories = Histories()
    histories.take(frame.encode())
    assert (histories.vbuckets[2].seqno, histories.vbuckets[2].manifest_uid) == (4, 3)
