"""The bucket's collections as a reader knows them."""

from __future__ import annotations

import pytest

from dcpstream.client.machine.reader.catalog import Catalog, Coverage, SharedMapping
from dcpstream.errors import ConfigError
from dcpstream.model import Collection, CollectionName, Manifest, Scope, StreamOffset
from dcpstream.wire.system_events import CollectionEvent

MANIFEST = Manifest(3, (Scope(0, "_default", (Collection(0, "_default"), Collection(8, "flights"))),))


def test_what_was_given_does_not_change() -> None:
    catalog, branches = Catalog(None), SharedMapping[int]()
    catalog.take_manifest(MANIFEST)
    branches.update({1: 0xA})
    shared_names, shared_branches = catalog.names.share(), branches.share()
    branches.update({1: 0xB})
    catalog.take_event(CollectionEvent(0, 4, 0, 9, "fleet"))
    assert (dict(shared_branches), 9 in shared_names) == ({1: 0xA}, False)
    assert (dict(branches.share()), catalog.names.share()[9]) == ({1: 0xB}, ("_default", "fleet"))


def test_without_a_change_the_same_is_given_again() -> None:
    branches = SharedMapping[int]()
    branches.update({1: 0xA})
    first = branches.share()
    branches.update({1: 0xA})
    assert branches.share() is first


def test_a_new_scope_and_its_collection() -> None:
    catalog = Catalog(None)
    catalog.take_manifest(MANIFEST)
    catalog.take_event(CollectionEvent(3, 4, 11, 0, "inventory"))
    catalog.take_event(CollectionEvent(0, 5, 11, 12, "planes"))
    catalog.take_event(CollectionEvent(0, 6, 99, 13, "lost"))
    names = catalog.names.share()
    assert (names[12], names[13]) == (("inventory", "planes"), ("0x63", "lost"))


def test_a_filter_by_name() -> None:
    catalog = Catalog(["flights"])
    assert not catalog.is_known
    catalog.take_manifest(MANIFEST)
    assert list(catalog.wanted.collections or ()) == [8]
    with pytest.raises(ConfigError, match=r"_default\.flights"):
        Catalog(["nope"]).take_manifest(MANIFEST)


def test_a_name_that_is_missing_is_no_mistake_of_a_reader_that_had_collections_before() -> None:
    catalog = Catalog(["flights", "gone"], is_resumed=True)
    catalog.take_manifest(MANIFEST)
    assert (list(catalog.wanted.collections or ()), catalog.wanted.missing) == ([8], ("gone",))
    assert catalog.needs_polling


def test_an_older_manifest_changes_nothing() -> None:
    catalog = Catalog(["flights"])
    catalog.take_manifest(MANIFEST)
    catalog.outdate()
    catalog.take_manifest(Manifest(2, ()))
    assert (catalog.is_known, list(catalog.wanted.collections or ()), catalog.manifest_uid) == (False, [8], 3)
    catalog.take_manifest(MANIFEST)
    assert catalog.is_known


def test_the_end_of_what_is_wanted_makes_the_names_out_of_date() -> None:
    catalog = Catalog(["flights"])
    catalog.take_manifest(MANIFEST)
    catalog.take_event(CollectionEvent(1, 4, 0, 0, ""))
    assert catalog.is_known
    catalog.take_event(CollectionEvent(1, 4, 0, 8, ""))
    assert not catalog.is_known


DEFAULT = CollectionName(0, "_default", "_default")
FLIGHTS, GONE = CollectionName(8, "_default", "flights"), CollectionName(7, "_default", "gone")
OLD = CollectionName(6, "_default", "flights")


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


def test_who_begins_has_all_that_is_wanted_before_it() -> None:
    assert coverage(StreamOffset.ZERO, ["flights"]) == Coverage((FLIGHTS,))
    assert coverage(StreamOffset(0xA, 9, 9, 9), ["flights"]) == Coverage((FLIGHTS,))


def test_what_is_gone_is_reported() -> None:
    assert coverage(position(FLIGHTS, GONE), ["flights", "gone"]) == Coverage((FLIGHTS,), dropped=(GONE,))


def test_what_is_new_is_read_from_its_beginning() -> None:
    assert coverage(position(GONE), ["flights", "gone"]) == Coverage((), dropped=(GONE,), fresh=(FLIGHTS,))
    assert coverage(position(FLIGHTS), None) == Coverage((FLIGHTS,), fresh=(DEFAULT,))


def test_what_was_recreated_is_reported_with_its_beginning() -> None:
    assert coverage(position(OLD), ["flights"]) == Coverage((OLD,), fresh=(FLIGHTS,))


def test_what_is_not_wanted_any_more_is_not_reported() -> None:
    assert coverage(position(DEFAULT, FLIGHTS), ["flights"]) == Coverage((FLIGHTS,))
