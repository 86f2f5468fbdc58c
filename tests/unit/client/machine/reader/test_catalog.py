"""Catalog that were lent out stay as they were."""

from __future__ import annotations

import pytest

from dcpstream.client.machine.reader.catalog import Catalog, Coverage
from dcpstream.errors import ConfigError
from dcpstream.model import Collection, CollectionName, Manifest, Scope, StreamOffset
from dcpstream.wire.system_events import CollectionEvent

MANIFEST = Manifest(3, (Scope(0, "_default", (Collection(0, "_default"), Collection(8, "flights"))),))


def test_what_was_lent_does_not_change() -> None:
    labels = Catalog(None)
    labels.take_manifest(MANIFEST)
    labels.take_branch(1, 0xA)
    names, branches = labels.lend()
    labels.take_branch(1, 0xB)
    labels.take_event(CollectionEvent(0, 4, 0, 9, "fleet"))
    assert (dict(branches), 9 in names) == ({1: 0xA}, False)
    names, branches = labels.lend()
    assert (dict(branches), names[9]) == ({1: 0xB}, ("_default", "fleet"))


def test_without_a_change_the_same_is_lent_again() -> None:
    labels = Catalog(None)
    labels.take_branch(1, 0xA)
    first = labels.lend()
    labels.take_branch(1, 0xA)
    assert all(a is b for a, b in zip(first, labels.lend(), strict=True))


def test_a_new_scope_and_its_collection() -> None:
    labels = Catalog(None)
    labels.take_manifest(MANIFEST)
    labels.take_event(CollectionEvent(3, 4, 11, 0, "inventory"))
    labels.take_event(CollectionEvent(0, 5, 11, 12, "planes"))
    labels.take_event(CollectionEvent(0, 6, 99, 13, "lost"))
    names, _ = labels.lend()
    assert (names[12], names[13]) == (("inventory", "planes"), ("0x63", "lost"))


def test_a_filter_by_name() -> None:
    labels = Catalog(["flights"])
    assert not labels.is_known
    labels.take_manifest(MANIFEST)
    assert list(labels.wanted.collections or ()) == [8]
    with pytest.raises(ConfigError, match=r"_default\.flights"):
        Catalog(["nope"]).take_manifest(MANIFEST)


def test_a_name_that_is_missing_is_no_mistake_of_a_reader_that_had_collections_before() -> None:
    labels = Catalog(["flights", "gone"], is_resumed=True)
    labels.take_manifest(MANIFEST)
    assert (list(labels.wanted.collections or ()), labels.wanted.missing) == ([8], ("gone",))
    assert labels.needs_polling


def test_an_older_manifest_changes_nothing() -> None:
    labels = Catalog(["flights"])
    labels.take_manifest(MANIFEST)
    labels.outdate()
    labels.take_manifest(Manifest(2, ()))
    assert (labels.is_known, list(labels.wanted.collections or ()), labels.manifest_uid) == (True, [8], 3)


def test_the_end_of_what_is_wanted_makes_the_names_out_of_date() -> None:
    labels = Catalog(["flights"])
    labels.take_manifest(MANIFEST)
    labels.take_event(CollectionEvent(1, 4, 0, 0, ""))
    assert labels.is_known
    labels.take_event(CollectionEvent(1, 4, 0, 8, ""))
    assert not labels.is_known


DEFAULT = CollectionName(0, "_default", "_default")
FLIGHTS, GONE = CollectionName(8, "_default", "flights"), CollectionName(7, "_default", "gone")
OLD = CollectionName(6, "_default", "flights")


def position(*collections: CollectionName) -> StreamOffset:
    return StreamOffset(0xA, 9, 9, 9).with_collections(collections)


def coverage(offset: StreamOffset, names: list[str] | None) -> Coverage:
    labels = Catalog(names, is_resumed=True)
    labels.take_manifest(MANIFEST)
    return labels.coverage(offset)


def test_a_reader_of_everything_is_told_by_the_history() -> None:
    assert coverage(StreamOffset(0xA, 9, 9, 9), None) == Coverage((DEFAULT, FLIGHTS))
    assert coverage(position(DEFAULT, FLIGHTS, GONE), None) == Coverage((DEFAULT, FLIGHTS, GONE))


def test_where_the_history_was_purged_the_manifest_tells() -> None:
    labels = Catalog(None)
    labels.take_manifest(MANIFEST)
    told = labels.coverage(position(DEFAULT, FLIGHTS, GONE), is_purged=True)
    assert told == Coverage((DEFAULT, FLIGHTS), dropped=(GONE,))


def test_who_begins_has_all_that_is_wanted_before_it() -> None:
    assert coverage(StreamOffset.ZERO, ["flights"]) == Coverage((FLIGHTS,))
    assert coverage(StreamOffset(0xA, 9, 9, 9), ["flights"]) == Coverage((FLIGHTS,))


def test_what_is_gone_is_told() -> None:
    assert coverage(position(FLIGHTS, GONE), ["flights", "gone"]) == Coverage((FLIGHTS,), dropped=(GONE,))


def test_what_is_new_is_read_from_its_beginning() -> None:
    assert coverage(position(GONE), ["flights", "gone"]) == Coverage((), dropped=(GONE,), fresh=(FLIGHTS,))
    assert coverage(position(FLIGHTS), None) == Coverage((FLIGHTS,), fresh=(DEFAULT,))


def test_what_was_made_anew_is_told_with_its_beginning() -> None:
    assert coverage(position(OLD), ["flights"]) == Coverage((OLD,), fresh=(FLIGHTS,))


def test_what_is_not_wanted_any_more_is_not_told() -> None:
    assert coverage(position(DEFAULT, FLIGHTS), ["flights"]) == Coverage((FLIGHTS,))
