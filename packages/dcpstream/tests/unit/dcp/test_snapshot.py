"""The snapshots of a stream: one set of rules, and each difference between a reader and a replica by its name."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dcpstream.dcp.snapshot import READER, REPLICA, ReceivedSnapshots, Receiver, SnapshotFault
from dcpstream.model import MAX_SEQNO
from tests.kit.cases import each_case

SEQNOS = st.integers(0, 14)
MESSAGES = st.lists(
    st.one_of(
        st.tuples(st.just("marker"), SEQNOS, st.integers(0, 6)),
        st.tuples(st.just("items"), SEQNOS, st.integers(0, 2)),
        st.tuples(st.just("oso"), st.booleans(), st.just(0)),
    ),
    max_size=30,
)


def received(receiver: Receiver, seqno: int = 0, start: int = 0, end: int = 0) -> ReceivedSnapshots:
    snapshots = ReceivedSnapshots(receiver, seqno, (start, end))
    snapshots.opened()
    return snapshots


def fault(violation: object) -> SnapshotFault | None:
    return violation.fault if violation is not None else None  # type: ignore[attr-defined]


@given(messages=MESSAGES, receiver=st.sampled_from([READER, REPLICA]), place=st.tuples(SEQNOS, SEQNOS, SEQNOS))
def test_whatever_comes_only_what_fits_is_taken(
    messages: list[tuple[str, int, int]], receiver: Receiver, place: tuple[int, int, int]
) -> None:
    start, seqno, end = sorted(place)
    snapshots = received(receiver, seqno, start, end)
    bounds, promised, unordered = None, end if start < seqno < end and receiver.keeps_requested_end else 0, None
    for kind, first, more in messages:
        before = snapshots.seqno
        if kind == "marker":
            last = first + more
            if snapshots.marker(first, last) is None:
                assert unordered is None
                assert last >= before
                bounds = first, last
        elif kind == "oso":
            if snapshots.out_of_order(is_start=bool(first)) is None:
                assert (unordered is None) is bool(first)
                if unordered is not None:
                    assert snapshots.seqno == unordered
                    assert snapshots.is_complete
                    bounds, promised = None, 0
                unordered = before if first else None
        elif snapshots.items(first, first + more) is None:
            if unordered is not None:
                unordered = max(unordered, first + more)
                assert snapshots.seqno == before
            else:
                assert bounds is not None
                assert snapshots.seqno == first + more > before < first
                assert min(bounds[0], start if promised else MAX_SEQNO) <= first
                assert first + more <= max(bounds[1], promised)
                promised = promised if first + more < promised else 0
        else:
            assert snapshots.seqno == before
        is_pending = unordered is not None or (bounds is not None and snapshots.seqno < bounds[1])
        assert (snapshots.pending_end is not None) is is_pending
        assert not (snapshots.is_whole and is_pending and unordered is None)


def end_of(snapshots: ReceivedSnapshots) -> int | None:
    return snapshots.announced[1] if snapshots.announced is not None else None


@given(messages=MESSAGES)
def test_without_the_named_differences_a_replica_takes_what_a_reader_takes(
    messages: list[tuple[str, int, int]],
) -> None:
    same = replace(REPLICA, may_overlap=False, begins_at_position=True, keeps_requested_end=True)
    reader, replica = received(READER), received(same)
    for kind, first, more in messages:
        for each in (reader, replica):
            if kind == "marker":
                each.marker(first, first + more)
            elif kind == "oso":
                each.out_of_order(is_start=bool(first))
            else:
                each.items(first, first + more)
        # Two markers without an item between: a replica's bounds are those of the first one already, so only a reader
        # counts the second one from its position on. No item can come below the position in either case.
        assert (reader.seqno, end_of(reader), reader.pending_end) == (
            replica.seqno,
            end_of(replica),
            replica.pending_end,
        )


@each_case(("receiver", "bounds"), [(READER, (0, 0)), (REPLICA, (1, 5))])
def test_only_a_replica_records_the_bounds_of_a_marker_at_once(receiver: Receiver, bounds: tuple[int, int]) -> None:
    snapshots = received(receiver)
    snapshots.marker(1, 5)
    assert snapshots.bounds == bounds
    snapshots.items(2, 2)
    assert snapshots.bounds == (1, 5)


def test_a_continued_snapshot_keeps_its_start_and_takes_no_item_below_its_marker() -> None:
    snapshots = received(REPLICA)
    snapshots.marker(1, 3)
    snapshots.items(1, 2)
    snapshots.begin(5, 8, is_continued=True)
    assert snapshots.bounds == (1, 8)
    assert fault(snapshots.item_violation(4, 4)) is SnapshotFault.OUTSIDE
    assert snapshots.items(5, 8) is None
    assert snapshots.is_whole
