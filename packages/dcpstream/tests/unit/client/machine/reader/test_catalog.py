"""The bucket's collections as a reader knows them."""

from __future__ import annotations

from dcpstream.client.machine.reader.catalog import Catalog, Coverage, SharedMapping
from dcpstream.model import Collection, CollectionName, Manifest, Scope, StreamOffset
from dcpstream.wire.system_events import CollectionEvent

MANIFEST = Manifest(3, (Scope(0, "_default", (Collection(0, "_default"), Collection(8, "flights"))),))


def test_without_a_change_the_same_is_given_again() -> None:
    branches = SharedMapping[int]()
    branches.put(1, 0xA)
    first = branches.share()
    branches.put(1, 0xA)
    assert branches.share() is first


def test_a_new_scope_and_its_collection() -> None:
    catalog = Catalog(None)
    catalog.take_manifest(MANIFEST)
    catalog.take_event(CollectionEvent(3, 4, 11, 0, "inventory"))
    catalog.take_event(CollectionEvent(0, 5, 11, 12, "planes"))
    catalog.take_event(CollectionEvent(0, 6, 99, 13, "lost"))
    names = catalog.names.share()
    assert (names[12], names[13]) == (("inventory", "planes"), ("0x63", "lost"))


BEGINNING, END = CollectionEvent(0, 4, 0, 9, "users"), CollectionEvent(1, 5, 0, 9)
BY_ID = CollectionName(9, "", "0x9")
USERS = CollectionName(9, "_default", "users")


def test_a_beginning_in_one_vbucket_names_what_ended_in_another_before() -> None:
    catalog = Catalog(None)
    catalog.take_manifest(MANIFEST)
    catalog.take_event(END)
    assert catalog.ended_names(END, is_resumed=True) == [BY_ID]
    catalog.take_event(BEGINNING)
    names = catalog.names_of([9])
    assert names is not None
    assert names[9] == ("_default", "users")
    assert catalog.ended_names(END, is_resumed=False) == [USERS]


def test_an_end_is_reported_under_each_name_that_rows_may_have() -> None:
    catalog = Catalog(None)
    catalog.take_manifest(MANIFEST)
    assert catalog.names_of([9]) is None
    catalog.take_event(END)
    names = catalog.names_of([9])
    assert names is not None
    assert names[9] == ("", "0x9")
    catalog.take_event(BEGINNING)
    assert catalog.names.share()[9] == ("_default", "users")
    assert catalog.ended_names(END, is_resumed=False) == [USERS, BY_ID]


def test_a_position_names_what_had_an_id() -> None:
    catalog = Catalog(None)
    catalog.take_manifest(MANIFEST)
    catalog.take_event(END)
    catalog.names_of([9])
    assert catalog.ended_names(END, is_resumed=True) == [BY_ID]
    catalog.learn([USERS])
    assert catalog.ended_names(END, is_resumed=True) == [USERS, BY_ID]


def test_an_older_manifest_changes_nothing() -> None:
    catalog = Catalog(["flights"])
    catalog.take_manifest(MANIFEST)
    catalog.outdate()
    catalog.take_manifest(Manifest(2, ()))
    assert (catalog.is_known, list(catalog.wanted.collections or ()), catalog.manifest_uid) == (False, [8], 3)
    catalog.take_manifest(MANIFEST)
    assert catalog.is_known


DEFAULT = CollectionName(0, "_default", "_default")
FLIGHTS, GONE = CollectionName(8, "_default", "flights"), CollectionName(7, "_default", "gone")


def position(*collections: CollectionName) -> StreamOffset:
    return StreamOffset(0xA, 9, 9, 9).with_collections(collections)


def coverage(offset: StreamOffset, names: list[str] | None) -> Coverage:
    catalog = Catalog(names, is_resumed=True)
    catalog.take_manifest(MANIFEST)
    return catalog.coverage(offset)


def test_a_reader_of_everything_gets_the_events_of_the_history() -> None:
    assert coverage(StreamOffset(0xA, 9, 9, 9), None) == Coverage((DEFAULT, FLIGHTS))
    assert coverage(position(DEFAULT, FLIGHTS, GONE), None) == Coverage((DEFAULT, FLIGHTS, GONE))


def test_where_the_history_was_purged_the_manifest_decides() -> None:
    catalog = Catalog(None)
    catalog.take_manifest(MANIFEST)
    told = catalog.coverage(position(DEFAULT, FLIGHTS, GONE), is_purged=True)
    assert told == Coverage((DEFAULT, FLIGHTS), dropped=(GONE,))


def test_what_is_new_is_read_from_its_beginning() -> None:
    assert coverage(position(GONE), ["flights", "gone"]) == Coverage((), dropped=(GONE,), fresh=(FLIGHTS,))
    assert coverage(position(FLIGHTS), None) == Coverage((FLIGHTS,), fresh=(DEFAULT,))


def test_what_is_not_wanted_any_more_is_not_reported() -> None:
    assert coverage(position(DEFAULT, FLIGHTS), ["flights"]) == Coverage((FLIGHTS,))
