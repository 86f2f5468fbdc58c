"""A reader whose collections come and go, on a clock turned by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest

from dcpstream.client.machine.rollback_policy import RollbackPolicy
from dcpstream.client.machine.values import ManifestEvent, RollbackEvent, VbucketRange
from dcpstream.errors import StreamEnded, UnknownCollection
from dcpstream.model import MAX_SEQNO, Collection, CollectionName, FailoverLog, Manifest, Op, Scope, StreamOffset
from dcpstream.wire import Frame, Opcode, Status, encode_request
from tests.kit.client_machines import World, at, history, refused
from tests.kit.messages import accepted, marker, mutation, rollback, stream_end

FLIGHTS, FLEET = CollectionName(8, "_default", "flights"), CollectionName(9, "_default", "fleet")
NAMES = ["_default.flights", "_default.fleet"]


def manifest(uid: int, **collections: int) -> Manifest:
    found = tuple(Collection(number, name) for name, number in collections.items())
    return Manifest(uid, (Scope(0, "_default", (Collection(0, "_default"), *found)),))


def event(opaque: int, seqno: int, event_id: int, collection_id: int, name: str = "", *, uid: int = 1) -> bytes:
    return encode_request(
        Opcode.DCP_SYSTEM_EVENT,
        opaque=opaque,
        extras=struct.pack(">QIB", seqno, event_id, 0),
        key=name.encode(),
        value=struct.pack(">QII", uid, 0, collection_id),
    )


class Bucket:
    """A bucket's manifest, and what its node answers to each request by the ids of the filter."""

    def __init__(self, first: Manifest, answer: Callable[[Frame, list[str], int], bytes]) -> None:
        self.manifest = first
        self.asked: list[tuple[list[str], int, int]] = []
        self._answer = answer

    def __call__(self, frame: Frame, _: int) -> bytes:
        ids = json.loads(frame.value).get("collections", []) if frame.value else []
        _, _, start, end = struct.unpack(">IIQQ", frame.extras[:24])
        self.asked.append((ids, start, end))
        living = {item.collection_id for item in self.manifest.named_collections()}
        if {int(number, 16) for number in ids} - living:
            return refused(frame, Status.UNKNOWN_COLLECTION)
        return self._answer(frame, ids, start)


def world(bucket: Bucket, start: StreamOffset, end: int = MAX_SEQNO, **options: object) -> World:
    return World(
        [VbucketRange(0, start, end, end_vbuuid=0xA)],
        bucket,
        collections=NAMES,
        manifest=lambda: bucket.manifest,
        high_seqnos={0: 9},
        **options,  # type: ignore[arg-type]
    )


def events(found: World) -> list[tuple[Op, str, int]]:
    return [(item.op, item.collection, item.seqno) for item in found.out if isinstance(item, ManifestEvent)]


def test_a_refused_collection_is_left_out_and_reported() -> None:
    bucket = Bucket(manifest(1, flights=8, fleet=9), lambda frame, ids, start: history(frame, 3))
    found = world(bucket, at(0).ZERO)
    found.run(lambda: found.seqnos() == [1, 2, 3])
    bucket.manifest = manifest(2, flights=8)
    found.cut(next(iter(found.links)))
    found.run(lambda: len(bucket.asked) == 3)
    assert [ids for ids, _, _ in bucket.asked] == [["8", "9"], ["8", "9"], ["8"]]
    found.run(lambda: bool(events(found)))
    assert events(found) == [(Op.COLLECTION_DROPPED, "fleet", 9)]
    assert found.offsets[0].collections == (FLIGHTS,)


def test_a_node_that_never_knows_the_collection_is_given_up() -> None:
    bucket = Bucket(
        manifest(1, flights=8, fleet=9), lambda frame, ids, start: refused(frame, Status.UNKNOWN_COLLECTION)
    )
    with pytest.raises(UnknownCollection):
        world(bucket, StreamOffset.ZERO).run()


def test_an_endless_stream_waits_a_while_and_then_says_that_nothing_is_left() -> None:
    def answer(frame: Frame, ids: list[str], start: int) -> bytes:
        bucket.manifest = manifest(2)
        head = accepted(frame.opaque) + marker(frame.opaque, 0, 2)
        return head + event(frame.opaque, 1, 1, 8) + event(frame.opaque, 2, 1, 9) + stream_end(frame.opaque, 7)

    bucket = Bucket(manifest(1, flights=8, fleet=9), answer)
    found = world(bucket, StreamOffset.ZERO)
    with pytest.raises(StreamEnded, match=r"_default\.flights, _default\.fleet"):
        found.run()
    assert events(found) == [(Op.COLLECTION_DROPPED, "flights", 1), (Op.COLLECTION_DROPPED, "fleet", 2)]
    assert 10 <= found.now < 15


def test_what_is_made_again_meanwhile_is_read() -> None:
    def answer(frame: Frame, ids: list[str], start: int) -> bytes:
        if ids == ["8", "9"]:
            bucket.manifest = manifest(2)
            head = accepted(frame.opaque) + marker(frame.opaque, 0, 2)
            return head + event(frame.opaque, 1, 1, 8) + event(frame.opaque, 2, 1, 9) + stream_end(frame.opaque, 7)
        if struct.unpack_from(">Q", frame.extras, 16)[0] == 2:  # up to where the reader stands
            return accepted(frame.opaque) + stream_end(frame.opaque)
        row = mutation(frame.opaque, 4).replace(b"\0k", b"\x0ak")
        head = accepted(frame.opaque) + marker(frame.opaque, 3, 4)
        return head + event(frame.opaque, 3, 0, 10, "fleet") + row

    bucket = Bucket(manifest(1, flights=8, fleet=9), answer)
    found = world(bucket, StreamOffset.ZERO)
    found.run(lambda: found.now > 3)
    bucket.manifest = manifest(3, fleet=10)
    found.run(lambda: 4 in found.seqnos())
    assert events(found)[-1] == (Op.COLLECTION_CREATED, "fleet", 3)


def test_a_refused_catch_up_restarts_the_vbucket() -> None:
    def answer(frame: Frame, ids: list[str], start: int) -> bytes:
        end = struct.unpack_from(">Q", frame.extras, 16)[0]
        log = FailoverLog.of((0xA, 0))
        if ids == ["8", "9"] and end == 6:
            return accepted(frame.opaque, log) + stream_end(frame.opaque)
        if ids == ["9"]:
            if start:
                return rollback(frame.opaque, 0)
            return accepted(frame.opaque) + marker(frame.opaque, 0, 6) + mutation(frame.opaque, 2)
        return history(frame, 8)

    bucket = Bucket(manifest(2, flights=8, fleet=9), answer)
    found = world(bucket, at(6).with_collections([FLIGHTS]), 8, policy=RollbackPolicy.REWIND)
    found.run(lambda: found.seqnos() == [2])
    found.cut(next(iter(found.links)))
    found.run()
    back = next(item for item in found.out if isinstance(item, RollbackEvent))
    assert (back.from_seqno, back.to_seqno) == (6, 0)
    assert found.seqnos() == [2, 1, 2, 3, 4, 5, 6, 7, 8]
