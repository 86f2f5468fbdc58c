"""Commits of one bucket under many writers: one at a time, and every write gets its answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from dcpstream.errors import StoreError
from dcpstream.model import BucketSettings, Persist
from dcpstream.wire import Feature, FrameInfoId, FrameReader, Opcode, encode_request
from dcpstream.wire.keys import encode_frame_info
from dcpstream_node.engine import Engine, Session
from dcpstream_node.shell.server import KvServer
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.tasks import flusher as flushers
from dcpstream_node.tasks.flusher import LAZY_INTERVAL_S, RETRY_S, Flusher
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.engine import Talker, engine_of

INTERVAL_S = 0.05
LEVEL_PERSIST = 2
"""The durability level of a write that is answered when this node has it on disk."""
WRITERS, WINDOW, WRITES = 5, 8, 120
EVERY_TENTH = 10


class Timer:
    """A call at a time of a `HandLoop`."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandLoop:
    """The parts of an event loop that a flusher uses, and a thread pool whose one thread works when the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.ready: deque[Callable[[], None]] = deque()
        self.jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + delay, call))
        return self.timers[-1]

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
        self.ready.append(lambda: call(*arguments))

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, job))
        return future

    def run_job(self) -> None:
        """Let the thread do its next job, and the loop hear of its end."""
        future, job = self.jobs.popleft()
        try:
            future.set_result(job())
        except StoreError as error:
            future.set_exception(error)
        while self.ready:
            self.ready.popleft()()

    def pass_time(self) -> None:
        """Go on to the next timer."""
        waiting = [timer for timer in self.timers if not timer.is_cancelled]
        assert waiting, "nothing will ever happen again"
        timer = min(waiting, key=lambda timer: timer.at)
        self.timers.remove(timer)
        self.now = max(self.now, timer.at)
        timer.call()


class Turns:
    """A server whose turn lets every session that was woken send its answers and read on, as sockets do."""

    def __init__(self, loop: HandLoop, engine: Engine) -> None:
        self.loop = loop
        self.engine = engine
        self.writers: dict[Session, Writer] = {}

    def shorten_turns(self) -> None: ...

    def set_time(self) -> None: ...

    def turn(self) -> None:
        for session in self.engine.end_turn():
            self.writers[session].step()


class Writer:
    """A client that keeps a window of SETs under way; each tenth is durable."""

    def __init__(self, engine: Engine, number: int) -> None:
        self.session = Talker(engine, features=(*USUAL_FEATURES, Feature.SYNC_REPLICATION)).session
        self.answers: list[int] = []
        self._number = number
        self._sent = 0
        self._unread = b""
        self._reader = FrameReader()

    def _request(self) -> bytes:
        framing = b""
        if self._sent % EVERY_TENTH == 0:
            framing = encode_frame_info(FrameInfoId.DURABILITY, bytes([LEVEL_PERSIST]))
        key = b"\0%d-%d" % (self._number, self._sent)
        return encode_request(Opcode.SET, key=key, value=b"v", extras=bytes(8), opaque=self._sent, framing=framing)

    def step(self) -> None:
        """Read the answers that are there, and send as many requests as the window has room for."""
        while True:
            while self._sent < WRITES and self._sent - len(self.answers) < WINDOW:
                self._unread += self._request()
                self._sent += 1
            read = self.session.receive(self._unread)
            self._unread = self._unread[read.used :]
            for piece in (*read.output, *self.session.send(1 << 20).output):
                self._reader.receive_data(piece)
            frames = list(self._reader.frames())
            assert all(frame.status == 0 for frame in frames)
            self.answers += [frame.opaque for frame in frames]
            if not frames:
                return


class World:
    """A bucket on disk, its flusher, and clients; the test is the loop and the thread."""

    def __init__(self, path: Path, persist: Persist, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = HandLoop()
        monkeypatch.setattr(flushers, "ThreadPoolExecutor", lambda **_: self.loop)
        self.store = DiskBucketStore(path, 4, BucketSettings(persist=persist))
        self.engine = engine_of(self.store)
        self.bucket = self.engine.buckets["default"]
        self.bucket.lead_alone()
        self.turns = Turns(self.loop, self.engine)
        self.writers = [Writer(self.engine, number) for number in range(WRITERS)]
        self.turns.writers = {writer.session: writer for writer in self.writers}
        Flusher(cast("KvServer", self.turns), self.engine, self.bucket, INTERVAL_S).start()

    def go_on(self) -> None:
        """Let the next thing happen; no second commit is begun while one is under way."""
        assert len(self.loop.jobs) <= 1
        assert self.bucket.commits_begun - self.bucket.commits_done == len(self.loop.jobs)
        if self.loop.jobs:
            self.loop.run_job()
        else:
            self.loop.pass_time()


@pytest.fixture
def world_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Persist], World]]:
    made: list[World] = []

    def make(persist: Persist) -> World:
        made.append(World(tmp_path, persist, monkeypatch))
        return made[0]

    yield make
    made[0].store.close(clean=False)


@pytest.mark.parametrize("persist", Persist)
def test_many_writers_are_answered_with_one_commit_at_a_time(
    world_of: Callable[[Persist], World], persist: Persist
) -> None:
    world = world_of(persist)
    for writer in world.writers:
        writer.step()
    while not all(len(writer.answers) == WRITES for writer in world.writers):
        world.go_on()
    assert all(writer.answers == list(range(WRITES)) for writer in world.writers)
    # A writer waits for at most two commits for each window: the one that is under way, and the next.
    assert world.bucket.commits_done <= 2 * WRITES
    assert world.loop.now < LAZY_INTERVAL_S / 2


def test_a_durable_write_waits_for_no_interval(world_of: Callable[[Persist], World]) -> None:
    world = world_of(Persist.NONE)
    world.writers[0].step()
    assert not world.writers[0].answers
    world.loop.run_job()
    assert world.writers[0].answers
    assert world.loop.now == 0


@pytest.mark.parametrize("persist", Persist)
def test_a_disk_that_fails_is_tried_at_intervals_however_many_clients_wait(
    world_of: Callable[[Persist], World], monkeypatch: pytest.MonkeyPatch, persist: Persist
) -> None:
    world = world_of(persist)

    def fail() -> None:
        raise StoreError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "commit", fail)
        for writer in world.writers:
            writer.step()
        if not world.loop.jobs:
            world.loop.pass_time()
        began = world.loop.now
        for tries in range(1, 5):
            world.loop.run_job()
            assert not world.loop.jobs
            world.bucket.commit_soon()
            assert not world.loop.jobs
            world.loop.pass_time()
            assert world.loop.now == pytest.approx(began + tries * RETRY_S)
    world.loop.run_job()  # it was begun while the disk failed
    world.loop.pass_time()
    world.loop.run_job()
    assert not world.store.is_failing
