"""A vbucket moves between two nodes on virtual time, and somebody dies after every single frame.

The nodes keep their buckets on disk and lose at their death what was not flushed; frames pass between them one by one.
Each run writes, moves, kills, recovers as a manager does, and checks that every durable document is at the one owner.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dcpstream.wire import Opcode, StreamFlag
from dcpstream_node.testing.simulation import PretendWire, SimulatedNode
from tests.kit.streams import ACTIVE, DEAD, REPLICA

VBID = 1
ATTEMPTS_MAX = 10


class World:
    """Two nodes, and what must not be lost."""

    def __init__(self, path: Path) -> None:
        self.old, self.new = SimulatedNode(path=path / "old", vbuckets=2), SimulatedNode(path=path / "new", vbuckets=2)
        self.new.set_vbucket(VBID, REPLICA)
        self.durable: dict[str, bytes] = {}
        self.frames = 0
        for number in range(6):
            self.write(f"k{number}", is_flushed=False)
            self.durable[f"k{number}"] = b"0"
        self.write("k2")

    def write(self, key: str, *, is_flushed: bool = True) -> None:
        """A document at the old owner; only what is flushed must survive."""
        value = b"%d" % self.frames
        self.old.set_doc(VBID, key, value)
        if is_flushed:
            self.old.flush()
            self.durable[key] = value

    def move(self, *, stop_after: int | None = None) -> bool:
        """One attempt; False if it was stopped after so many frames."""
        link = PretendWire(self.old, self.new)
        link.add_stream(VBID, StreamFlag.TAKEOVER)
        passed = 0
        while stop_after is None or passed < stop_after:
            if not link.step():
                return bool(link.sent("old", Opcode.DCP_STREAM_END))
            passed += 1
            self.frames += 1
        for peer in (link.producer, link.consumer):
            peer.disconnect()
        return False

    def recover(self) -> None:
        """Who is active has everything, or the old owner is made active and the move begins anew."""
        for _ in range(ATTEMPTS_MAX):
            states = (self.old.vbucket(VBID).state, self.new.vbucket(VBID).state)
            assert states != (ACTIVE, ACTIVE), "two owners"
            if states[1] == ACTIVE:
                return
            self.new.set_vbucket(VBID, REPLICA)
            self.old.set_vbucket(VBID, ACTIVE)
            if self.move():
                return
        raise AssertionError("the move never succeeds")

    def check(self) -> None:
        """One owner, which has everything, also if it dies now."""
        self.new.restart(clean=False)
        assert (self.old.vbucket(VBID).state, self.new.vbucket(VBID).state) == (DEAD, ACTIVE)
        found = {key: self.new.admin.call(Opcode.GET, vbid=VBID, key=b"\0" + key.encode()) for key in self.durable}
        assert {key: answer.value for key, answer in found.items()} == self.durable


def frames_of_a_move(path: Path) -> int:
    world = World(path)
    assert world.move()
    world.check()
    return world.frames


@pytest.mark.parametrize(
    ("victim", "every"),
    [
        ("old", 9),
        ("new", 9),
        ("both", 11),
        *(pytest.param(victim, 1, marks=pytest.mark.slow) for victim in ("old", "new", "both")),
    ],
)
def test_a_death_after_a_frame(tmp_path: Path, victim: str, every: int) -> None:
    """After every one in the slow tier; the fast one leaves out the controls at the beginning, and some between."""
    count = frames_of_a_move(tmp_path / "whole")
    assert count > 40
    controls = 2 * 11
    for stop_after in range(1 if every == 1 else controls, count + 1, every):
        world = World(tmp_path / str(stop_after))
        world.move(stop_after=stop_after)
        for node, name in ((world.old, "old"), (world.new, "new")):
            if victim in (name, "both"):
                node.restart(clean=False)
        world.recover()
        world.check()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 150))])
def test_any_history_of_writes_and_deaths(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    world = World(tmp_path)
    for _ in range(chance.randint(1, 5)):
        world.move(stop_after=chance.randint(1, 60))
        for node in (world.old, world.new):
            if chance.random() < 0.6:
                node.restart(clean=chance.random() < 0.3)
        if world.new.vbucket(VBID).state == ACTIVE:
            break
        world.new.set_vbucket(VBID, REPLICA)
        world.old.set_vbucket(VBID, ACTIVE)
        for number in range(chance.randint(0, 4)):
            key = f"{chance.choice('abc')}{number}"
            # A document that is not flushed may be lost, and one that was flushed before must not be overwritten by it.
            world.write(key, is_flushed=True) if chance.random() < 0.7 else world.write("loose", is_flushed=False)
    world.recover()
    world.check()
