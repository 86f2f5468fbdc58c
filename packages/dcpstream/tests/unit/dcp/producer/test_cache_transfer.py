"""The transfer of cached documents where tests/conformance do not reach: reads that wait, and reads that fail."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.errors import CorruptLog
from dcpstream.wire import Opcode, OpenFlag, StreamFlag
from dcpstream.wire.cached_items import cached_items
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.release import RELEASES
from tests.kit.lists import UUID, ListSource, ListVBucket, frame_of, frames_in
from tests.kit.streams import end, read


def begun(vbucket: ListVBucket) -> ProducerConnection:
    """A connection with a stream of the cached documents alone; its answer was taken."""
    opening = Opening("client", int(OpenFlag.PRODUCER), frozenset())
    machine = ProducerConnection(opening, ListSource(vbucket), 0.0, release=RELEASES["8.5"])
    high = vbucket.high_seqno
    flags = int(StreamFlag.CACHE_TRANSFER)
    fields: dict[str, Any] = {"extras": StreamRequest.layout.extras.pack(flags, 0, high, high, UUID, high, high)}
    machine.handle(frame_of(Opcode.DCP_STREAM_REQ, **fields), 0.0)
    return machine


def filled() -> ListVBucket:
    vbucket = ListVBucket()
    for number in range(3):
        vbucket.set(b"k%d" % number)
    return vbucket


def test_a_transfer_waits_while_its_documents_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    vbucket = filled()
    stored, waits = vbucket.read, [True, True]
    monkeypatch.setattr(vbucket, "read", lambda *at, **more: None if waits and waits.pop() else stored(*at, **more))
    machine = begun(vbucket)
    found = []
    for _ in range(4):
        found += frames_in(machine.data_to_send(1 << 20, 0.0))
        machine.vbucket_changed(0, 0.0)
    (batch,) = [frame for frame in found if frame.opcode == Opcode.DCP_CACHE_TRANSFER]
    assert [item.seqno for item in cached_items(batch.value)] == [1, 2, 3]
    assert read(found[-1:]) == [end()]


def test_documents_that_cannot_be_read_end_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    vbucket = filled()

    def broken(*args: object, **kwargs: object) -> None:
        raise CorruptLog("segment", 7, "crc 1", "crc 2")

    monkeypatch.setattr(vbucket, "read", broken)
    assert [frame.opcode for frame in frames_in(begun(vbucket).data_to_send(1 << 20, 0.0))][-1] == Opcode.DCP_STREAM_END
