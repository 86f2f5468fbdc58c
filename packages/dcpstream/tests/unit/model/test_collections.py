"""Manifests."""

from __future__ import annotations

import pytest

from dcpstream.errors import ConfigError
from dcpstream.model import Collection, Manifest, Scope
from tests.kit.cases import each_case

MANIFEST = Manifest(
    0x1F, (Scope(0, "_default", (Collection(0, "_default"),)), Scope(8, "shop", (Collection(0xA, "orders", 60),)))
)


def test_the_default_manifest_is_what_servers_send() -> None:
    assert Manifest.DEFAULT.to_json() == {
        "uid": "0",
        "scopes": [{"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}],
    }


def test_json_round_trip() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert MANIFEST.to_json()["uid"] == "1f"


def test_names() -> None:
    assert MANIFEST.collection_names() == {0: ("_default", "_default"), 10: ("shop", "orders")}
    assert MANIFEST.resolve("shop.orders").collection_id == 10
    assert MANIFEST.resolve("_default").collection_id == 0
    with pytest.raises(ConfigError, match=r"shop\.orders"):
        MANIFEST.resolve("shop.nothing")


@each_case("data", [{}, {"uid": "zz", "scopes": []}, {"uid": "0", "scopes": [{}]}, {"uid": 5}])
def test_what_is_not_a_manifest_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"manifest|invalid literal"):
        Manifest.from_json(data)
