"""Labels that were lent out stay as they were."""

from __future__ import annotations

import pytest

from dcpstream.client.events import CollectionEvent
from dcpstream.client.labels import Labels
from dcpstream.errors import ConfigError
from dcpstream.model import Collection, Manifest, Scope

MANIFEST = Manifest(3, (Scope(0, "_default", (Collection(0, "_default"), Collection(8, "flights"))),))


def test_what_was_lent_does_not_change() -> None:
    labels = Labels(None)
    labels.take_manifest(MANIFEST)
    labels.take_branch(1, 0xA)
    names, branches = labels.lend()
    labels.take_branch(1, 0xB)
    labels.take_event(CollectionEvent(1, 0, 4, 0, 9, "fleet"))
    assert (dict(branches), 9 in names) == ({1: 0xA}, False)
    names, branches = labels.lend()
    assert (dict(branches), names[9]) == ({1: 0xB}, ("_default", "fleet"))


def test_without_a_change_the_same_is_lent_again() -> None:
    labels = Labels(None)
    labels.take_branch(1, 0xA)
    first = labels.lend()
    labels.take_branch(1, 0xA)
    assert all(a is b for a, b in zip(first, labels.lend(), strict=True))


def test_a_new_scope_and_its_collection() -> None:
    labels = Labels(None)
    labels.take_manifest(MANIFEST)
    labels.take_event(CollectionEvent(1, 3, 4, 11, None, "inventory"))
    labels.take_event(CollectionEvent(1, 0, 5, 11, 12, "planes"))
    labels.take_event(CollectionEvent(1, 0, 6, 99, 13, "lost"))
    names, _ = labels.lend()
    assert (names[12], names[13]) == (("inventory", "planes"), ("0x63", "lost"))


def test_a_filter_by_name() -> None:
    labels = Labels(["flights"])
    assert not labels.is_known
    labels.take_manifest(MANIFEST)
    assert labels.collection_ids == [8]
    with pytest.raises(ConfigError, match=r"_default\.flights"):
        Labels(["nope"]).take_manifest(MANIFEST)
