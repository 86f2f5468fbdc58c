"""Four streams of a real server through the client's machine: all documents, and complete positions."""

from __future__ import annotations

import random
from zlib import crc32

from dcpstream.client.machine.connection.events import RowsReceived, StreamOpened, StreamStopped
from dcpstream.client.machine.reader.changes import ChangeConverter
from dcpstream.model import MAX_SEQNO, StreamOffset
from dcpstream.wire import Feature
from tests.kit.cases import each_case
from tests.kit.client_machines import ready_connection
from tests.kit.fake_node import GRANTED, FakeNode
from tests.kit.recorded import STREAMS, expected_crcs, stream_bytes

FIRST_OPAQUE = 0x1000
VBUCKETS = 1024
NAMES = {0: ("_default", "_default")}


@each_case("frames", [False, True])
@each_case("name", STREAMS)
def test_a_recorded_stream(name: str, frames: bool) -> None:
    granted = [code for code in GRANTED if name != "legacy" or code != Feature.COLLECTIONS]
    connection, _ = ready_connection(FakeNode(granted=granted), frames=frames)
    session = connection.session
    assert session is not None
    # The recorder numbered its requests so.
    session._next_opaque = FIRST_OPAQUE
    for vbid in range(VBUCKETS):
        session.open_stream(vbid, StreamOffset.ZERO, MAX_SEQNO, 0.0)
    streams = session.streams
    data = stream_bytes(name)
    chance = random.Random(name)
    events: list[object] = []
    at = 0
    while at < len(data):
        size = chance.choice((1, 100, 5_000, 100_000))
        connection.receive_data(data[at : at + size], 0.0)
        events += connection.events()
        at += size
    assert sum(isinstance(event, StreamOpened) for event in events) == VBUCKETS
    # The recorder asked for streams to the latest seqno.
    assert [event.reason for event in events if isinstance(event, StreamStopped)] == [0] * VBUCKETS
    assert all(stream.tracker.snapshots.is_complete for stream in streams)
    assert all(stream.log is not None and stream.tracker.vbuuid == stream.log.newest.vbuuid for stream in streams)
    received = [event for event in events if isinstance(event, RowsReceived)]
    rows = sum(stop - first for event in received for first, stop in event.keep)
    assert rows == 6_734 + 790
    if name != "keyonly":
        check_documents(received, session.has_collections)


def check_documents(received: list[RowsReceived], has_collections: bool) -> None:
    """The last change of each key is the document that the server gave afterwards."""
    documents: dict[bytes, bytes | None] = {}
    for event in received:
        (output,) = ChangeConverter().convert(event, has_collections, NAMES, {})
        for change in output.rows:
            documents[change.key] = None if change.op != "mutation" else change.value
    for key, crc in expected_crcs().items():
        value = documents[key if isinstance(key, bytes) else key.encode()]
        assert (None if value is None else crc32(value)) == crc
