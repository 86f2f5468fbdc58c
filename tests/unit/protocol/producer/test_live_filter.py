"""A filter that follows the events of a stream's own history."""

from __future__ import annotations

from dcpstream.model import Collection, Manifest, Scope
from dcpstream.protocol.producer.live_filter import LiveFilter
from dcpstream.protocol.producer.stream_filter import StreamFilter
from dcpstream.wire import CollectionEvent, SystemEventId, events_of_scope

BEGIN, END = SystemEventId.CREATE_COLLECTION, SystemEventId.DROP_COLLECTION
SCOPE_9 = Scope(9, "s", (Collection(8, "a"),))
MANIFEST = Manifest(1, (Scope(0, "_default", (Collection(0, "_default"),)), SCOPE_9))


def of_scope() -> LiveFilter:
    return LiveFilter(StreamFilter(frozenset((8,)), scope_id=9), MANIFEST)


def test_a_stream_of_everything_never_ends() -> None:
    everything = LiveFilter(StreamFilter(), MANIFEST)
    everything.coming([CollectionEvent(BEGIN, 2, 9, 10, "b")])
    everything.passed([CollectionEvent(END, 2, 9, 8), CollectionEvent(SystemEventId.DROP_SCOPE, 3, 9)])
    assert everything.collection_ids is None
    assert everything.numbers(MANIFEST) is None
    assert not everything.is_over


def test_collections_end_one_by_one() -> None:
    two = LiveFilter(StreamFilter(frozenset((8, 10))), MANIFEST)
    two.coming([CollectionEvent(BEGIN, 2, 9, 11, "c")])
    assert two.collection_ids == {8, 10}, "a named collection brings no other"
    two.passed([CollectionEvent(END, 2, 9, 8), CollectionEvent(END, 2, 9, 11)])
    assert not two.is_over
    two.passed([CollectionEvent(SystemEventId.DROP_SCOPE, 2, 9)])
    assert not two.is_over
    two.passed([CollectionEvent(END, 3, 9, 10)])
    assert two.is_over
    assert two.numbers(MANIFEST) == {8, 10}


def test_a_scope_grows_and_outlives_its_collections() -> None:
    scope = of_scope()
    scope.coming([CollectionEvent(BEGIN, 2, 9, 10, "b"), CollectionEvent(BEGIN, 2, 0, 11, "other")])
    assert scope.collection_ids == {8, 10}
    scope.passed([CollectionEvent(END, 3, 9, 8), CollectionEvent(END, 3, 9, 10)])
    scope.passed([CollectionEvent(SystemEventId.DROP_SCOPE, 4, 12), CollectionEvent(END, 4, 9, 13)])
    assert not scope.is_over
    scope.passed([CollectionEvent(SystemEventId.DROP_SCOPE, 5, 9)])
    assert scope.is_over


def test_a_scope_is_looked_for_under_what_the_bucket_knows_by_now() -> None:
    scope = of_scope()
    assert scope.numbers(MANIFEST) == {8, events_of_scope(9)}
    later = Manifest(2, (Scope(9, "s", (Collection(20, "new"),)), Scope(10, "t", (Collection(21, "other"),))))
    assert scope.numbers(later) == {8, 20, events_of_scope(9)}
    assert scope.collection_ids == {8, 20}, "what is gone from the manifest may still be in the history"
