"""The collections that are wanted, by name and by id."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.client.machine.reader.selection import EVERYTHING, FixedSelection, Selection, Wanted
from dcpstream.errors import ConfigError
from dcpstream.model import Collection, CollectionName, Manifest, Scope

DEFAULT = Scope(0, "_default", (Collection(0, "_default"), Collection(8, "flights"), Collection(9, "both")))
SHOP = Scope(10, "shop", (Collection(11, "orders"), Collection(12, "returns")))
BOTH = Scope(13, "both", (Collection(14, "x"),))
MANIFEST = Manifest(3, (DEFAULT, SHOP, BOTH))

ORDERS, RETURNS = CollectionName(11, "shop", "orders"), CollectionName(12, "shop", "returns")


def resolved(*names: str, manifest: Manifest = MANIFEST) -> Wanted:
    return Selection(names).resolve(manifest)


def test_no_names_are_everything() -> None:
    assert Selection(None).resolve(MANIFEST) is EVERYTHING
    assert not EVERYTHING.is_nothing


def test_a_bare_name_that_means_two_things_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"both\.\* for the scope or _default\.both for the collection"):
        resolved("both")
    assert set(resolved("both.*").collections or ()) == {14}
    assert set(resolved("_default.both").collections or ()) == {9}


def test_the_name_of_the_default_collection_stays_that_of_the_collection() -> None:
    assert set(resolved("_default").collections or ()) == {0}
    assert set(resolved("_default.*").collections or ()) == {0, 8, 9}


def test_several_scopes_are_their_collections() -> None:
    wanted = resolved("shop.*", "flights")
    assert (set(wanted.collections or ()), wanted.scope_id) == ({8, 11, 12}, None)


def test_a_bare_name_keeps_its_meaning_when_the_manifest_changes() -> None:
    selection = Selection(("shop",))
    selection.resolve(MANIFEST)
    other = Manifest(4, (Scope(0, "_default", (Collection(20, "shop"),)),))
    assert selection.resolve(other) == Wanted({}, None, ("shop",))


def test_a_single_collection_can_be_selected() -> None:
    one: list[Any] = [Selection(("a.b",)), Selection(("b",)), FixedSelection((ORDERS,))]
    more = [Selection(None), Selection(("a.*",)), Selection(("a", "b")), FixedSelection((ORDERS, RETURNS))]
    assert [item.may_be_one_collection for item in (*one, *more)] == [True] * 3 + [False] * 4
