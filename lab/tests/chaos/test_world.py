"""The world of the chaos suite keeps a true history of the bucket through all of its trouble."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lab.chaos.history import Name
from lab.chaos.kv import vbucket_of
from lab.chaos.world import DEFAULT, World

VBUCKETS = 8


@pytest.mark.parametrize("seed", [1, 2])
def test_every_document_is_a_write_of_the_history(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    world = World(tmp_path, 2, VBUCKETS, dice)

    def write(count: int) -> None:
        places = [DEFAULT, *world.collections]
        kinds = ["json", "binary", "delete", "xattr"]
        names: list[tuple[Name, str]] = [
            ((*dice.choice(places), f"k{dice.randrange(20)}"), dice.choice(kinds)) for _ in range(count)
        ]
        world.write(names)

    def check() -> None:
        documents = world.documents()
        assert documents
        for name, document in documents.items():
            own = world.history.writes(vbucket_of(name[2].encode(), VBUCKETS)).values()
            values = {one.value for one in own if one.name == name and not one.is_xattr}
            assert document.value in values

    try:
        world.create_collection("shop", "orders")
        write(80)
        world.copy(fullness=1.0)
        write(80)
        world.copy(fullness=0.0)
        for trouble in (world.fail_over, world.add_node, world.persist, world.restart, world.purge, world.flush):
            trouble()
            write(40)
            check()
        world.drop_collection("shop", "orders")
        check()
        assert not any(scope == "shop" for scope, _, _ in world.documents())
        world.create_collection("shop", "orders")
        write(60)
        check()
    finally:
        world.close()


def test_a_restart_loses_what_was_not_durable(tmp_path: Path) -> None:
    world = World(tmp_path, 1, VBUCKETS, random.Random(1))
    try:
        name = (*DEFAULT, "a")
        world.write([(name, "json")])
        world.persist()
        before = world.documents()
        world.write([(name, "json"), ((*DEFAULT, "b"), "json")])
        world.restart()
        assert world.documents() == before
        assert sum(len(world.history.writes(vbid)) for vbid in range(VBUCKETS)) == 1
    finally:
        world.close()
