"""One process at a time holds a lease, on file systems with and without exclusive creation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dcpstream.errors import LeaseRefused
from dcpstream_spark.tables import lease as module
from dcpstream_spark.tables.lease import LEASE_S, RENEW_S, SETTLE_S, WATCH_S, Holder, Lease
from dcpstream_spark.tables.small_files import LocalFiles
from tests.kit.clocks import JumpingClock


class ObjectStore(LocalFiles):
    """Lets two callers make the same file: between the look and the write, others act."""

    is_exclusive = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.between: list[Callable[[], object]] = []

    def create(self, name: str, content: bytes) -> bool:
        if name in self.contents():
            return False
        if self.between:
            self.between.pop()()
        self._directory.mkdir(exist_ok=True)
        self.replace(name, content)
        return True


class World:
    """Leases of one path, with one clock. Who waits lets the time pass, and others act."""

    def __init__(self, path: Path, files: type[LocalFiles] = LocalFiles) -> None:
        self.path = path / "dcp-lease"
        self.clock = JumpingClock()
        self.waits: list[float] = []
        self.meanwhile: list[Callable[[], object]] = []
        self.files = files(self.path)

    def lease(self, machine: str = "here", pid: int = 0, began: str = "1") -> Lease:
        me = replace(Holder.of_this_process(), machine=machine, host=machine, pid=pid or os.getpid(), began=began)
        return Lease(lambda: self.files, "/data/flights", self.clock, wait=self._wait, me=me)

    def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.now += seconds
        if self.meanwhile:
            self.meanwhile.pop()()


def always() -> bool:
    return True


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_second_is_refused_with_a_sentence(world: World) -> None:
    one, other = world.lease("one", 17), world.lease("other")
    one.acquire(always)
    with pytest.raises(
        LeaseRefused, match=r"/data/flights: its tables are kept by process 17 on one, which last .* UTC"
    ):
        other.acquire(always)
    assert one.is_held
    assert not other.is_held
    one.verify()
    one.release()
    other.acquire(always)
    assert [path.name for path in world.path.iterdir()] == ["2"], "numbers never begin again"
    assert world.waits == []


def test_a_lease_that_is_renewed_never_ends(world: World) -> None:
    one, other = world.lease("one"), world.lease("other")
    one.acquire(always)
    for _ in range(20):
        world.clock.now += LEASE_S / 2
        one.renew()
        with pytest.raises(LeaseRefused):
            other.acquire(always)


def test_a_lease_of_another_machine_is_watched_before_it_is_taken(world: World) -> None:
    one, other = world.lease("one"), world.lease("other")
    one.acquire(always)
    world.clock.now += LEASE_S + 1
    world.meanwhile.append(one.renew)
    with pytest.raises(LeaseRefused):
        other.acquire(always)
    assert world.waits == [WATCH_S], "only its clock was wrong"
    world.clock.now += LEASE_S + 1
    other.acquire(always)
    assert world.waits == [WATCH_S] * 2


def test_who_was_suspended_has_lost_it_before_the_next_commit(world: World) -> None:
    one, other = world.lease("one"), world.lease("other")
    one.acquire(always)
    one.verify()
    world.clock.now += LEASE_S + 1
    other.acquire(always)
    with pytest.raises(LeaseRefused, match=r"are now kept by process \d+ on other.*nothing is lost"):
        one.verify()
    assert not one.is_held
    one.release()
    other.renew()
    assert other.is_held


def test_who_was_suspended_and_not_replaced_goes_on(world: World) -> None:
    one = world.lease()
    one.acquire(always)
    world.clock.now += 10 * LEASE_S
    one.verify()
    with pytest.raises(LeaseRefused):
        world.lease("other").acquire(always)


def test_a_process_of_this_machine_that_ended_is_replaced_at_once(world: World) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    machine, began = module._machine(), module._began(child.pid)
    one, other = world.lease(machine, child.pid, began), world.lease(machine)
    one.acquire(always)
    with pytest.raises(LeaseRefused):
        other.acquire(always)
    child.communicate(b"\n")
    other.acquire(always)
    assert world.waits == []


def test_a_later_process_with_the_same_number_is_another_one(world: World) -> None:
    one = world.lease(module._machine(), os.getppid(), "1")
    one.acquire(always)
    world.lease(module._machine()).acquire(always)


def test_a_suspended_process_of_this_machine_is_replaced_when_its_lease_has_ended(world: World) -> None:
    machine = module._machine()
    one, other = world.lease(machine, os.getppid(), module._began(os.getppid())), world.lease(machine)
    one.acquire(always)
    world.clock.now += LEASE_S - 1
    with pytest.raises(LeaseRefused):
        other.acquire(always)
    world.clock.now += 2
    other.acquire(always)
    assert world.waits == [WATCH_S], "its clock may have jumped"


@pytest.mark.parametrize("jump", [-7200, 7200])
def test_a_clock_that_jumps_takes_no_lease_from_a_living_process(world: World, jump: int) -> None:
    machine = module._machine()
    one, other = world.lease(machine, os.getppid(), module._began(os.getppid())), world.lease(machine)
    one.acquire(always)
    world.clock.jump(jump)
    one.verify()
    world.meanwhile.append(one.renew)
    with pytest.raises(LeaseRefused):
        other.acquire(always)
    one.verify()
    assert one.is_held


def test_a_lease_from_the_future_ends_as_well(world: World) -> None:
    """Its holder's clock was ahead, and its machine died."""
    one, other = world.lease("one"), world.lease("other")
    world.clock.jump(7200)
    one.acquire(always)
    world.clock.jump(-7200)
    other.acquire(always)
    assert world.waits == [WATCH_S]


def test_a_pipeline_of_this_process_that_failed_is_replaced_at_once(world: World) -> None:
    is_working = True
    one, other = world.lease(), world.lease()
    one.acquire(lambda: is_working)
    with pytest.raises(LeaseRefused):
        other.acquire(always)
    is_working = False
    other.acquire(always)


def test_two_that_take_an_ended_lease_at_once(world: World) -> None:
    one, two, three = world.lease("one"), world.lease("two"), world.lease("three")
    one.acquire(always)
    world.clock.now += LEASE_S + 1
    world.meanwhile.append(lambda: three.acquire(always))
    with pytest.raises(LeaseRefused, match="on three"):
        two.acquire(always)
    assert three.is_held


@pytest.mark.parametrize("is_first", [True, False])
def test_without_exclusive_creation_the_later_file_decides(tmp_path: Path, is_first: bool) -> None:
    world = World(tmp_path, ObjectStore)
    assert isinstance(world.files, ObjectStore)
    one, other = world.lease("one"), world.lease("other")
    world.path.mkdir()
    # Both have seen that there is no file. The other one writes before this one, and waits while this one writes.
    if is_first:
        world.files.between.append(lambda: world.files.replace("1", other._content()))
        one.acquire(always)
        assert json.loads((world.path / "1").read_bytes())["host"] == "one"
    else:
        world.meanwhile.append(lambda: world.files.replace("1", other._content()))
        with pytest.raises(LeaseRefused, match="on other"):
            one.acquire(always)
    assert world.waits == [SETTLE_S]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"holder": 1}'])
def test_a_file_that_is_not_whole_counts_until_nobody_completes_it(world: World, content: bytes) -> None:
    world.path.mkdir()
    world.files.replace("3", content)
    one = world.lease()
    world.meanwhile.append(lambda: world.files.replace("3", b"{}"))
    with pytest.raises(LeaseRefused, match="another pipeline"):
        one.acquire(always)
    one.acquire(always)
    assert one.is_held


def test_a_file_system_that_fails_costs_no_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.lease()
    one.acquire(always)

    def fail(*_: object) -> None:
        raise OSError("away")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "replace", fail)
        with pytest.raises(OSError, match="away"):
            one.renew()
        world.clock.now += 2 * RENEW_S
        with pytest.raises(OSError, match="away"):
            one.verify()
    one.verify()
    assert one.is_held


def test_the_thread_renews_and_reports_a_loss(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.001)
    one, other = world.lease("one"), world.lease("other")
    one.acquire(always)
    lost: list[LeaseRefused] = []
    is_told = threading.Event()
    world.clock.now += LEASE_S + 1
    other.acquire(always)

    def tell(error: LeaseRefused) -> None:
        lost.append(error)
        is_told.set()

    one.keep(tell)
    assert is_told.wait(60)
    assert "on other" in str(lost[0])


def test_the_thread_releases_what_nobody_needs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.001)
    one = world.lease()
    one.acquire(lambda: False)
    ended = one._ended
    one.keep(lambda _: None)
    assert ended.wait(60)
    assert not one.is_held
    world.lease("other").acquire(always)
