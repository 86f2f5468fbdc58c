"""A vbucket moves from one node to another, through a manager that joins their connections; nothing is lost.

Nothing: every document that was durable when it was asked for is at the new owner, with its value and CAS, whoever dies
and when; and at no time two nodes serve the vbucket.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dcpstream_node
from dcpstream.wire import Frame, Opcode, Status, StreamFlag
from tests.kit.cluster import Address, Admin, Move

ACTIVE, REPLICA, PENDING, DEAD = 1, 2, 3, 4
VBID = 1
DOCUMENTS = 12
ATTEMPTS_MAX = 10

Documents = dict[bytes, tuple[bytes, int]]


class Owner:
    """A node with a disk that can be killed and started again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._node: dcpstream_node.Node | None = None
        self.start()

    def start(self) -> None:
        # The flusher is slow on purpose: what is durable is so because somebody waited for it.
        self._node = dcpstream_node.Node(vbuckets=4, path=self._path, flush_interval_s=0.02).start()

    def kill(self) -> None:
        assert self._node is not None
        self._node.crash()
        self._node = None

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop()

    @property
    def is_running(self) -> bool:
        return self._node is not None

    @property
    def address(self) -> Address:
        assert self._node is not None
        return Address("127.0.0.1", self._node.port)

    def admin(self) -> Admin:
        return Admin(self.address)


class Pair:
    """An old owner with documents and a new one without."""

    def __init__(self, path: Path) -> None:
        self.old, self.new = Owner(path / "old"), Owner(path / "new")
        self.documents: Documents = {}
        with self.new.admin() as admin:
            admin.set_vbucket(VBID, REPLICA)
        self.write(*(b"k%d" % number for number in range(DOCUMENTS)))
        self.write(b"k3", b"k7")

    def write(self, *keys: bytes) -> None:
        """Documents that are durable at the old owner when this returns."""
        with self.old.admin() as admin:
            for key in keys:
                admin.set(VBID, key, b"value %d of %b" % (len(self.documents), key))
            admin.persist(VBID)
            for key in keys:
                status, value, cas = admin.get(VBID, key)
                assert status == 0
                self.documents[key] = value, cas

    def states(self) -> tuple[int, int]:
        with self.old.admin() as old, self.new.admin() as new:
            return old.state(VBID), new.state(VBID)

    def check(self) -> None:
        """The new owner has everything, and nobody else serves it."""
        assert self.states() == (DEAD, ACTIVE)
        with self.new.admin() as new, self.old.admin() as old:
            assert {key: new.get(VBID, key)[1:] for key in self.documents} == self.documents
            assert old.get(VBID, b"k0")[0] == Status.NOT_MY_VBUCKET
            new.set(VBID, b"afterwards", b"x")

    def recover(self, after: Callable[[str, Frame], None] = lambda *_: None) -> None:
        """Act as a manager after an attempt that failed: start nodes that are gone, then try once more.

        Args:
            after: called after each frame of the new attempts; may kill somebody again.
        """
        for _ in range(ATTEMPTS_MAX):
            for owner in (self.old, self.new):
                if not owner.is_running:
                    owner.start()
            old_state, new_state = self.states()
            assert (old_state, new_state) != (ACTIVE, ACTIVE), "two owners"
            if new_state == ACTIVE:
                assert old_state == DEAD, "the new owner serves while the old one might"
                return
            with self.old.admin() as old, self.new.admin() as new:
                new.set_vbucket(VBID, REPLICA)
                old.set_vbucket(VBID, ACTIVE)
            Move(self.old.address, self.new.address, VBID, after).run()
        raise AssertionError("the move never succeeds")

    def stop(self) -> None:
        self.old.stop()
        self.new.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.stop()


def is_step(sender: str, frame: Frame, wanted: tuple[str, int, bytes | None]) -> bool:
    who, opcode, extras = wanted
    return sender == who and frame.opcode == opcode and extras in (None, frame.extras)


STEPS = {
    "first control": ("new", Opcode.DCP_CONTROL, None),
    "error map asked": ("new", Opcode.GET_ERROR_MAP, None),
    "stream asked": ("new", Opcode.DCP_STREAM_REQ, None),
    "stream accepted": ("old", Opcode.DCP_STREAM_REQ, None),
    "marker": ("old", Opcode.DCP_SNAPSHOT_MARKER, None),
    "first row": ("old", Opcode.DCP_MUTATION, None),
    "marker answered": ("new", Opcode.DCP_SNAPSHOT_MARKER, None),
    "pending asked": ("old", Opcode.DCP_SET_VBUCKET_STATE, b"\3"),
    "pending answered": ("new", Opcode.DCP_SET_VBUCKET_STATE, b""),
    "active asked": ("old", Opcode.DCP_SET_VBUCKET_STATE, b"\1"),
    "end": ("old", Opcode.DCP_STREAM_END, None),
}


def killing(pair: Pair, victim: str, is_time: Callable[[str, Frame], bool]) -> Callable[[str, Frame], None]:
    """A function that kills the victim once, after the frame for which `is_time(sender, frame)`."""
    owner = pair.old if victim == "old" else pair.new

    def after(sender: str, frame: Frame) -> None:
        if owner.is_running and is_time(sender, frame):
            owner.kill()

    return after


@pytest.mark.slow
def test_a_move_without_accidents(pair: Pair) -> None:
    pair.write(b"k0", b"k5")
    with pair.old.admin() as old:
        log = old.peer.succeed(Opcode.GET_FAILOVER_LOG, vbid=VBID).value
    move = Move(pair.old.address, pair.new.address, VBID)
    assert move.run()
    assert move.status == 0
    pair.check()
    with pair.new.admin() as new:
        assert new.peer.succeed(Opcode.GET_FAILOVER_LOG, vbid=VBID).value == log


@pytest.mark.slow
def test_what_is_written_until_the_last_moment_moves_too(pair: Pair) -> None:
    """Writes at every step at which the old owner still takes them."""
    written = []

    def after(sender: str, frame: Frame) -> None:
        if any(is_step(sender, frame, STEPS[name]) for name in ("marker", "marker answered", "pending asked")):
            key = b"late %d" % len(written)
            written.append(key)
            if len(written) <= 10:
                pair.write(key)

    assert Move(pair.old.address, pair.new.address, VBID, after).run()
    assert len(written) > 3
    pair.check()


@pytest.mark.slow
def test_the_new_owner_has_all_of_it_on_disk_when_it_becomes_active(pair: Pair) -> None:
    assert Move(pair.old.address, pair.new.address, VBID).run()
    pair.new.kill()
    pair.new.start()
    pair.check()


@pytest.mark.slow
def test_a_copy_that_was_there_before_is_brought_up_to_date(pair: Pair) -> None:
    move = Move(pair.old.address, pair.new.address, VBID)
    assert move.run(StreamFlag.TO_LATEST)
    pair.write(b"k1", b"new")
    rows = []
    second = Move(
        pair.old.address,
        pair.new.address,
        VBID,
        lambda sender, frame: rows.append(frame) if frame.opcode == Opcode.DCP_MUTATION else None,
    )
    assert second.run()
    assert [frame.key for frame in rows] == [b"\0k1", b"\0new"]
    pair.check()


@pytest.mark.slow
def test_it_moves_back(pair: Pair) -> None:
    assert Move(pair.old.address, pair.new.address, VBID).run()
    pair.check()
    with pair.old.admin() as old:
        old.set_vbucket(VBID, REPLICA)
    assert Move(pair.new.address, pair.old.address, VBID).run()
    assert pair.states() == (ACTIVE, DEAD)
    with pair.old.admin() as old:
        assert {key: old.get(VBID, key)[1:] for key in pair.documents} == pair.documents
        assert old.get(VBID, b"afterwards")[1] == b"x"


@pytest.mark.parametrize(
    ("step", "victim"),
    [
        pytest.param(step, victim, marks=pytest.mark.slow if (number + other) % 2 else ())
        for number, step in enumerate(STEPS)
        for other, victim in enumerate(("old", "new"))
    ],
)
def test_somebody_dies_at_a_step(pair: Pair, victim: str, step: str) -> None:
    after = killing(pair, victim, lambda sender, frame: is_step(sender, frame, STEPS[step]))
    Move(pair.old.address, pair.new.address, VBID, after).run()
    assert not (pair.old.is_running and pair.new.is_running), "nobody died"
    pair.recover()
    pair.check()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 60))])
def test_somebody_dies_again_and_again(pair: Pair, seed: int) -> None:
    """Up to six deaths of either, at any frame, also of attempts to recover; writes in between."""
    chance = random.Random(seed)
    deaths = 0

    def next_death() -> Callable[[str, Frame], None]:
        number, victim, passed = chance.randint(1, 60), chance.choice((pair.old, pair.new)), 0

        def after(sender: str, frame: Frame) -> None:
            nonlocal passed, deaths
            passed += 1
            if passed == number and victim.is_running and deaths < 6:
                deaths += 1
                victim.kill()

        return after

    Move(pair.old.address, pair.new.address, VBID, next_death()).run()
    for _ in range(6):
        if pair.old.is_running and pair.new.is_running and pair.states() == (ACTIVE, REPLICA):
            pair.write(b"again %d" % deaths)
        pair.recover(next_death())
    pair.recover()
    pair.check()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["old", "new"])
def test_somebody_dies_after_any_frame(tmp_path: Path, victim: str) -> None:
    number = 0
    while True:
        number += 1
        pair = Pair(tmp_path / str(number))
        passed = 0

        def is_time(sender: str, frame: Frame) -> bool:
            nonlocal passed
            passed += 1
            return passed == number  # noqa: B023 - called in this turn of the loop only

        try:
            Move(pair.old.address, pair.new.address, VBID, killing(pair, victim, is_time)).run()
            if pair.old.is_running and pair.new.is_running:
                assert number > 2 * 13 + DOCUMENTS
                return
            pair.recover()
            pair.check()
        finally:
            pair.stop()
