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
from tests.kit.messages import LOG, accepted, marker, mutation, rollback, seqno_advanced, stream_end

FLIGHTS, FLEET = CollectionName(8, "_default", "flights"), CollectionName(9, "_default", "fleet")
NAMES = ["_default.flights", "_default.fleet"]


def manifest(uid: int, **collections: int) -> Manifest:
    found = tuple(Collection(number, name) for name, number in collections.items())
    return Manifest(uid, (Scope(0, "_default", (Collection(0, "_default"), *found)),))


def event(
    opaque: int, seqno: int, event_id: int, collection_id: int, name: str = "", *, uid: int = 1, vbid: int = 0
) -> bytes:
    return encode_request(
        Opcode.DCP_SYSTEM_EVENT,
        vbid=vbid,
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


def test_a_reader_of_the_whole_bucket_goes_on_when_a_new_collection_is_dropped_before_it_is_read() -> None:
    def answer(frame: Frame, ids: list[str], start: int) -> bytes:
        if struct.unpack_from(">Q", frame.extras, 16)[0] == 6:  # the position is accepted
            bucket.manifest = manifest(3, flights=8)
            return accepted(frame.opaque) + stream_end(frame.opaque)
        rows = mutation(frame.opaque, 7) + mutation(frame.opaque, 8)
        return accepted(frame.opaque) + marker(frame.opaque, 7, 8) + rows

    bucket = Bucket(manifest(2, flights=8, fleet=9), answer)
    covered = [CollectionName(0, "_default", "_default"), FLIGHTS]
    ranges = [VbucketRange(0, at(6).with_collections(covered), 8, end_vbuuid=0xA)]
    found = World(ranges, bucket, manifest=lambda: bucket.manifest, high_seqnos={0: 9})
    found.run()
    assert found.seqnos() == [7, 8]
    assert [ids for ids, _, _ in bucket.asked] == [[], ["9"], []]


def test_a_collection_that_ended_in_one_vbucket_has_its_name_in_another() -> None:
    def answer(frame: Frame, _ids: list[str], _start: int) -> bytes:
        head = accepted(frame.opaque, LOG) + marker(frame.opaque, 0, 3, vbid=frame.vbid)
        rows = event(frame.opaque, 1, 0, 9, "fleet", vbid=1) + mutation(frame.opaque, 2, vbid=1, collection_id=9)
        return head + (rows if frame.vbid else b"") + event(frame.opaque, 3, 1, 9, vbid=frame.vbid)

    bucket = Bucket(manifest(2, flights=8), answer)
    ranges = [VbucketRange(vbid, StreamOffset.ZERO, 3, end_vbuuid=0xA) for vbid in (0, 1)]
    found = World(ranges, bucket, manifest=lambda: bucket.manifest, high_seqnos={0: 3, 1: 3})
    found.run()
    assert found.collections == ["_default.fleet"]
    assert events(found) == [
        (Op.COLLECTION_DROPPED, "0x9", 3), (Op.COLLECTION_CREATED, "fleet", 1), (Op.COLLECTION_DROPPED, "fleet", 3),
    ]  # fmt: skip


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


def test_a_new_collection_is_read_up_to_the_position_and_a_cut_goes_on_there() -> None:
    cuts = iter((True, False))

    def answer(frame: Frame, ids: list[str], start: int) -> bytes:
        end = struct.unpack_from(">Q", frame.extras, 16)[0]
        if ids == ["8", "9"] and end == 6:
            return accepted(frame.opaque) + stream_end(frame.opaque)  # the position is accepted
        if ids == ["9"]:
            rows = b"".join(mutation(frame.opaque, seqno) for seqno in (2, 4) if seqno > start)
            head = accepted(frame.opaque) + marker(frame.opaque, start, 6)
            if next(cuts):
                return head + rows[: len(rows) // 2]
            return head + rows + seqno_advanced(frame.opaque, 6)
        return (
            accepted(frame.opaque) + marker(frame.opaque, 7, 8) + mutation(frame.opaque, 7) + mutation(frame.opaque, 8)
        )

    bucket = Bucket(manifest(2, flights=8, fleet=9), answer)
    found = world(bucket, at(6).with_collections([FLIGHTS]), 8)
    found.run(lambda: found.seqnos() == [2])
    assert found.offsets[0].seqno == 6, "the position stays where it is"
    assert found.offsets[0].collections == (FLIGHTS,)
    found.cut(next(iter(found.links)))
    found.run()
    assert found.seqnos() == [2, 4, 7, 8]
    assert [(ids, start) for ids, start, _ in bucket.asked] == [
        (["8", "9"], 6),
        (["9"], 0),
        (["8", "9"], 6),
        (["9"], 2),
        (["8", "9"], 6),
    ]
    assert found.offsets[0].collections == (FLIGHTS, FLEET)


def test_the_position_after_catching_up_has_the_snapshot_of_what_was_read() -> None:
    """Rows that the new collection lacks at the position were superseded up to 9: if those are lost, only 0 helps."""

    def answer(frame: Frame, ids: list[str], start: int) -> bytes:
        end = struct.unpack_from(">Q", frame.extras, 16)[0]
        if ids == ["8", "9"]:
            return accepted(frame.opaque) + (stream_end(frame.opaque) if end == 6 else b"")
        rows = mutation(frame.opaque, 2) + mutation(frame.opaque, 9)
        return accepted(frame.opaque) + marker(frame.opaque, start, 9) + rows

    bucket = Bucket(manifest(2, flights=8, fleet=9), answer)
    found = world(bucket, at(6).with_collections([FLIGHTS]), 20)
    found.run(lambda: found.offsets[0].collections == (FLIGHTS, FLEET) if 0 in found.offsets else False)
    assert found.seqnos() == [2]
    after = found.offsets[0]
    assert (after.seqno, after.snapshot_start, after.snapshot_end) == (6, 0, 9)


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


def test_a_range_without_rows_reports_what_is_gone() -> None:
    bucket = Bucket(manifest(2, flights=8), lambda frame, ids, start: b"")
    found = world(bucket, at(6).with_collections([FLIGHTS, FLEET]), 6)
    found.run()
    assert events(found) == [(Op.COLLECTION_DROPPED, "fleet", 9)]
    assert bucket.asked == []


def test_a_filter_that_the_node_calls_empty_is_not_asked_for_again() -> None:
    bucket = Bucket(
        manifest(1, flights=8, fleet=9), lambda frame, ids, start: accepted(frame.opaque) + stream_end(frame.opaque, 7)
    )
    found = world(bucket, StreamOffset.ZERO, 5)
    found.run()
    assert len(bucket.asked) == 1
