"""Manifests."""

from __future__ import annotations

import pytest

from dcpstream.errors import ConfigError
from dcpstream.model import Collection, Manifest, Scope

MANIFEST = Manifest(
    0x1F, (Scope(0, "_default", (Collection(0, "_default"),)), Scope(8, "shop", (Collection(0xA, "orders", 60),)))
)


def test_names() -> None:
    assert MANIFEST.collection_names() == {0: ("_default", "_default"), 10: ("shop", "orders")}
    assert MANIFEST.resolve("shop.orders").collection_id == 10
    assert MANIFEST.resolve("_default").collection_id == 0
    with pytest.raises(ConfigError, match=r"shop\.orders"):
        MANIFEST.resolve("shop.nothing")
