"""A small world for the resume rule: one vbucket, its copies, and readers that use the real functions.

The producer side is a model: an active copy, replicas that lag and may be in the middle of a snapshot, failovers to any
of them, unclean restarts. Snapshots are deduplicated as of their end. What it answers to a stream request is decided by
the producer's own function. The readers are `client.machine.resume`, with the network, the planner and the table
around it reduced to what matters: which rows arrive, and when things change in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dcpstream.client.machine import resume
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.tracker import PositionTracker
from dcpstream.dcp.producer.rollback import Accept, Rollback, decide
from dcpstream.model import MAX_SEQNO, FailoverEntry, FailoverLog, StreamOffset, VbucketState
from dcpstream.wire import StreamFlag
from dcpstream.wire.messages.dcp import StreamRequest

KEYS = 4
REPLICAS = 2

Item = tuple[int, int, int]
"""seqno, key, value"""

DELETED = 0
"""The value of a deletion."""


def request(offset: StreamOffset, end_seqno: int, *, flags: int = 0) -> StreamRequest:
    """The request of a stream that begins at this position."""
    start, snapshot_start, snapshot_end = offset.request_bounds()
    return StreamRequest(
        vbid=0, opaque=0, flags=flags, start_seqno=start, end_seqno=max(end_seqno, start), vbuuid=offset.vbuuid,
        snapshot_start=snapshot_start, snapshot_end=snapshot_end,
    )  # fmt: skip


def living(documents: dict[int, int]) -> dict[int, int]:
    """The documents that are not deleted."""
    return {key: value for key, value in documents.items() if value != DELETED}


@dataclass
class Copy:
    """One node's copy of the vbucket."""

    failover_log: FailoverLog
    state: VbucketState
    items: list[Item] = field(default_factory=list)
    high_seqno: int = 0
    snapshot: tuple[int, int] = (0, 0)
    persisted_seqno: int = 0
    memory_start_seqno: int = 1
    purge_seqno: int = 0
    pending: list[Item] = field(default_factory=list)
    is_streaming: bool = False
    horizon: int = 0
    """Below it old versions are gone: no snapshot that begins below it can end below it."""

    def snapshot_ends(self, after: int) -> tuple[int, int]:
        """The first and the last end that a snapshot of what follows `after` may have."""
        return max(after + 1, self.horizon if after < self.horizon else 0), self.high_seqno

    def deduplicated(self, after: int, end: int) -> list[Item]:
        """The rows after a seqno, as of a snapshot's end."""
        newest: dict[int, Item] = {}
        for item in self.items:
            if item[0] <= end:
                newest[item[1]] = item
        return sorted(item for item in newest.values() if item[0] > after)

    def documents(self) -> dict[int, int]:
        return living({key: value for _, key, value in self.items})

    def cut(self, seqno: int) -> None:
        self.items = [item for item in self.items if item[0] <= seqno]
        self.high_seqno = seqno
        self.horizon = min(self.horizon, seqno)
        self.purge_seqno = min(self.purge_seqno, seqno)


class Producer:
    """The vbucket on its nodes, and everything that may happen to it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.next_vbuuid = 1
        self.next_value = 0
        log = FailoverLog.of((self.new_vbuuid(), 0))
        self.copies = [Copy(log, VbucketState.ACTIVE)]
        self.copies += [Copy(log, VbucketState.REPLICA) for _ in range(REPLICAS)]
        self.active = self.copies[0]

    def new_vbuuid(self) -> int:
        self.next_vbuuid += 1
        return self.next_vbuuid

    def write(self, count: int) -> None:
        for _ in range(count):
            self.next_value += 1
            self.active.high_seqno += 1
            self.active.items.append((self.active.high_seqno, self.rng.randrange(KEYS), self.next_value))

    def persist(self) -> None:
        self.active.persisted_seqno = self.active.high_seqno

    def replicate(self, replica: Copy) -> None:
        """Send a replica a part of what it lacks; it may stop in the middle of a snapshot."""
        active, rng = self.active, self.rng
        if not replica.is_streaming:
            self._join(replica)
            replica.is_streaming = True
        if not replica.pending and replica.high_seqno < active.high_seqno:
            start = replica.high_seqno
            replica.snapshot = (start, rng.randint(*active.snapshot_ends(start)))
            replica.pending = active.deduplicated(*replica.snapshot)
        if not replica.pending:
            return
        count = len(replica.pending) if rng.random() < 0.6 else rng.randint(0, len(replica.pending))
        for item in replica.pending[:count]:
            replica.items.append(item)
            replica.high_seqno = item[0]
        replica.horizon = replica.snapshot[1]
        del replica.pending[:count]
        if not replica.pending:
            replica.high_seqno = replica.snapshot[1]

    def _join(self, replica: Copy) -> None:
        """Join a replica to the active: as the consumer of a stream it may be told to go back."""
        start, end = replica.snapshot
        high = replica.high_seqno
        if high in {start, end}:
            start = end = high
        at = StreamOffset(replica.failover_log.newest.vbuuid if high else 0, high, start, end)
        decision = decide(request(at, MAX_SEQNO), self.active)
        if isinstance(decision, Rollback):
            # Snapshots of the replica are not kept here: it begins again, which is always allowed.
            replica.cut(0)
            replica.snapshot = (0, 0)
            replica.failover_log = self.active.failover_log
            return
        assert isinstance(decision, Accept), decision
        replica.failover_log = self.active.failover_log
        if start < high < end:
            # The rest of the snapshot that was broken off, as a snapshot that ends no earlier.
            low, last = self.active.snapshot_ends(high)
            replica.snapshot = (start, self.rng.randint(max(low, end), last))
            replica.pending = self.active.deduplicated(high, replica.snapshot[1])

    def fail_over(self) -> None:
        """A replica becomes active, the old active becomes a replica or is lost."""
        replica = self.rng.choice([copy for copy in self.copies if copy is not self.active])
        old = self.active
        start, end = replica.snapshot
        fork = replica.high_seqno if replica.high_seqno >= end else start
        replica.failover_log = replica.failover_log.pushed(FailoverEntry(self.new_vbuuid(), fork))
        replica.pending = []
        replica.snapshot = (replica.high_seqno, replica.high_seqno)
        replica.persisted_seqno = replica.horizon = replica.high_seqno
        replica.state = VbucketState.ACTIVE
        old.state = VbucketState.REPLICA
        old.snapshot = (old.high_seqno, old.high_seqno)
        self.active = replica
        for copy in self.copies:
            # The streams from the old active are cut; the others ask the new one from where they are.
            copy.pending, copy.is_streaming = [], False

    def crash(self) -> None:
        """The active restarts without what was not persisted."""
        active = self.active
        active.cut(active.persisted_seqno)
        active.failover_log = active.failover_log.pushed(FailoverEntry(self.new_vbuuid(), active.high_seqno))
        for copy in self.copies:
            copy.pending, copy.is_streaming = [], False

    def happen(self) -> None:
        """Something happens."""
        chance = self.rng.random()
        if chance < 0.45:
            self.write(self.rng.randint(1, 6))
        elif chance < 0.75:
            self.replicate(self.rng.choice([copy for copy in self.copies if copy is not self.active]))
        elif chance < 0.85:
            self.persist()
        elif chance < 0.95:
            self.fail_over()
        else:
            self.crash()

    def observe(self) -> BranchState:
        return BranchState(self.active.failover_log.newest.vbuuid, self.active.high_seqno, self.active.failover_log)


@dataclass(frozen=True)
class Rules:
    """The functions under test; a wrong variant replaces one of them."""

    plan_end: Callable[[StreamOffset, int, int, BranchState], StreamOffset] = lambda start, end_seqno, vbuuid, _state: (
        resume.plan_end(start, end_seqno, vbuuid)
    )
    complete: Callable[[StreamOffset, BranchState | None], StreamOffset] = resume.complete
    step_back: Callable[[StreamOffset, int, tuple[StreamOffset, ...]], StreamOffset] = resume.step_back
    remember: Callable[[tuple[StreamOffset, ...], StreamOffset], tuple[StreamOffset, ...]] = resume.remember
    keeps_start: bool = True


class Table:
    """The rows that a reader keeps."""

    def __init__(self) -> None:
        self.rows: dict[int, Item] = {}

    def roll_back(self, seqno: int) -> None:
        self.rows = {at: row for at, row in self.rows.items() if at <= seqno}

    def add(self, rows: list[Item]) -> None:
        self.rows.update({row[0]: row for row in rows})

    def documents(self) -> dict[int, int]:
        return living({key: value for _, (_, key, value) in sorted(self.rows.items())})


class CutError(Exception):
    """A rollback after rows were given out: the batch is replayed."""


def ask(producer: Producer, offset: StreamOffset, end_seqno: int) -> FailoverLog | int:
    """A stream request: the log, or the seqno of the rollback."""
    decision = decide(request(offset, end_seqno, flags=StreamFlag.ACTIVE_ONLY), producer.active)
    if isinstance(decision, Rollback):
        return decision.seqno
    assert isinstance(decision, Accept), (decision, offset)
    return producer.active.failover_log


def stream(producer: Producer, tracker: PositionTracker, end_seqno: int, log: FailoverLog) -> list[Item]:
    """Rows until the end is reached, the connection is cut, or nothing more is there; moves the tracker."""
    rng, active = producer.rng, producer.active
    requested = tracker.offset
    tracker.opened(log)
    rows: list[Item] = []
    first_start: int | None = requested.snapshot_start
    promised = requested.request_bounds()[2]
    while tracker.seqno < min(end_seqno, active.high_seqno):
        begin = tracker.seqno
        low = min(promised, active.high_seqno) if first_start is not None and requested.is_inside_snapshot else 0
        first, last = active.snapshot_ends(begin)
        end = last if rng.random() < 0.5 else rng.randint(max(first, low), last)
        start = begin + rng.randint(0, 1)
        tracker.marker(start if first_start is None else min(first_start, start), end)
        first_start = None
        for item in active.deduplicated(begin, end):
            if rng.random() < 0.03:
                return rows
            if item[0] > end_seqno:
                tracker.snapshots.finish_at(end_seqno)
                return rows
            tracker.item(item[0])
            rows.append(item)
        if tracker.seqno < end and tracker.seqno < end_seqno:
            tracker.item(min(end, end_seqno))  # seqno advanced: the rest was for nobody
        if rng.random() < 0.1:
            return rows
    return rows


@dataclass(frozen=True)
class Recorded:
    """The content of a checkpoint."""

    at: StreamOffset
    earlier: tuple[StreamOffset, ...] = ()


class PlannedReader:
    """Batches whose end is written down before they are read, and read by a task that knows only the plan."""

    def __init__(self, producer: Producer, rules: Rules) -> None:
        self.producer = producer
        self.rules = rules
        self.table = Table()
        self.recorded = Recorded(StreamOffset.ZERO)

    def batch(self, happen: Callable[[], None], limit: int | None) -> bool:
        """Plan, let things happen, read (again if need be), commit; whether there was nothing to do."""
        producer, rules = self.producer, self.rules
        state = producer.observe()
        start = rules.complete(self.recorded.at, state)
        # A planner keeps what it could complete, also if it then finds nothing to read.
        self.recorded = Recorded(start, self.recorded.earlier)
        begin = start
        for _ in range(20):
            answer = ask(producer, begin, begin.seqno)
            if isinstance(answer, FailoverLog):
                break
            begin = rules.step_back(begin, answer, self.recorded.earlier)
        take = max(0, state.high_seqno - begin.seqno)
        if limit is not None:
            take = min(take, limit)
        if not take and begin == start:
            return True
        end_seqno = begin.seqno + take
        end = rules.plan_end(begin, end_seqno, state.vbuuid, state)
        before = tuple(old for old in self.recorded.earlier if old.seqno < begin.seqno)
        earlier = rules.remember(before, begin)
        void_above = begin.seqno if begin != start else None
        for _ in range(50):
            happen()
            try:
                went_back_to, rows = self._task(begin, end_seqno, earlier, state.vbuuid, happen)
                break
            except CutError:
                continue
        else:
            raise AssertionError("a task is replayed for ever")
        for seqno in (void_above, went_back_to):
            if seqno is not None:
                self.table.roll_back(seqno)
        self.table.add(rows)
        self.recorded = Recorded(end, earlier)
        return False

    def _task(
        self,
        start: StreamOffset,
        end_seqno: int,
        earlier: tuple[StreamOffset, ...],
        vbuuid: int,
        happen: Callable[[], None],
    ) -> tuple[int | None, list[Item]]:
        producer, rules = self.producer, self.rules
        offset, rows, went_back_to = start, list[Item](), None
        for _ in range(500):
            if offset.seqno >= end_seqno:
                return went_back_to, rows
            answer = ask(producer, offset, end_seqno)
            if not isinstance(answer, FailoverLog):
                if rows:
                    raise CutError
                if rules.keeps_start and producer.observe().vbuuid != vbuuid:
                    return start.seqno, []
                offset = rules.step_back(offset, answer, earlier)
                went_back_to = offset.seqno
                continue
            end = resume.reachable_end(end_seqno, vbuuid, producer.observe())
            tracker = PositionTracker(offset)
            rows += stream(producer, tracker, end, answer)
            offset = tracker.offset
            if offset.seqno >= end:
                return went_back_to, rows
            happen()
            if producer.active.high_seqno < end_seqno:
                producer.write(1)
        raise AssertionError("a task never ends")


class LiveReader:
    """An endless stream; positions are recorded now and then, and after a rollback it rewinds."""

    def __init__(self, producer: Producer, rules: Rules) -> None:
        self.producer = producer
        self.rules = rules
        self.table = Table()
        self.offset = StreamOffset.ZERO
        self.earlier: tuple[StreamOffset, ...] = ()

    def batch(self, happen: Callable[[], None], limit: int | None) -> bool:
        """Read a little; whether the node accepted the position and had nothing more."""
        producer = self.producer
        happen()
        answer = ask(producer, self.offset, MAX_SEQNO)
        if not isinstance(answer, FailoverLog):
            self.offset = self.rules.step_back(self.offset, answer, self.earlier)
            self.earlier = tuple(old for old in self.earlier if old.seqno < self.offset.seqno)
            self.table.roll_back(self.offset.seqno)
            return False
        tracker = PositionTracker(self.offset)
        self.table.add(stream(producer, tracker, MAX_SEQNO, answer))
        self.offset = tracker.offset
        if producer.rng.random() < 0.5:
            self.earlier = resume.remember(self.earlier, self.offset)
        return self.offset.seqno == producer.active.high_seqno


def run(seed: int, rules: Rules, kind: type[PlannedReader] | type[LiveReader]) -> str | None:
    """One life of a vbucket and its reader; what was lost, or None."""
    rng = random.Random(seed)
    producer = Producer(rng)
    producer.write(rng.randint(1, 10))
    reader = kind(producer, rules)

    def happen() -> None:
        for _ in range(rng.choice((0, 0, 1, 2, 4))):
            producer.happen()

    for _ in range(rng.randint(2, 8)):
        reader.batch(happen, rng.choice((1, 2, 3, 5, None)))
        happen()
    producer.write(rng.randint(0, 2))
    for _ in range(60):
        if reader.batch(lambda: None, None):
            break
    else:
        return f"seed {seed}: the reader never caught up"
    if reader.table.documents() != producer.active.documents():
        return f"seed {seed}: table {reader.table.documents()}, bucket {producer.active.documents()}"
    return None


def _bounds_dropped(start: StreamOffset, end_seqno: int, vbuuid: int, _state: BranchState) -> StreamOffset:
    return StreamOffset(vbuuid, end_seqno, end_seqno, end_seqno) if end_seqno != start.seqno else start


def _taken_at_planning(start: StreamOffset, end_seqno: int, vbuuid: int, state: BranchState) -> StreamOffset:
    end = resume.plan_end(start, end_seqno, vbuuid)
    return end if end.snapshot_end is not None else end.with_snapshot_end(max(end.seqno, state.high_seqno))


def _whoever_serves(offset: StreamOffset, state: BranchState | None) -> StreamOffset:
    if offset.snapshot_end is not None or state is None:
        return offset
    upper = state.failover_log.upper(offset.vbuuid, state.high_seqno)
    return offset if upper is None else offset.with_snapshot_end(max(upper, offset.seqno))


def _r_r_r(refused: StreamOffset, rollback_seqno: int, _earlier: tuple[StreamOffset, ...]) -> StreamOffset:
    seqno = min(rollback_seqno, refused.seqno - 1)
    return StreamOffset(refused.vbuuid, seqno, seqno, seqno) if seqno else StreamOffset.ZERO


RIGHT = Rules()
WRONG = {
    "bounds dropped": replace(RIGHT, plan_end=_bounds_dropped),
    "bounds taken at planning time": replace(RIGHT, plan_end=_taken_at_planning),
    "a high seqno of that vbuuid from whoever serves now": replace(RIGHT, complete=_whoever_serves),
    "a task that goes below its start": replace(RIGHT, keeps_start=False),
    "a recorded position whose snapshot ends before its time": replace(
        RIGHT, remember=lambda earlier, at: resume.remember(earlier, at.with_snapshot_end(at.seqno))
    ),
    "R, R, R after a rollback": replace(RIGHT, step_back=_r_r_r),
}
