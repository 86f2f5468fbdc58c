"""A small model of the resume of a first snapshot: the world of `purge_world` without frames, for very many lives.

The reader is `PositionTracker` and `next_step.checked`. The producer's own function decides about requests. Around them
everything happens that can: copies compact, lose changes, fail over and move, between any two steps, and the reader is
killed between any two rows, after which it goes on from a position that it recorded.

`FAULTS` names the parts of the rule that can be left out, one at a time.
"""

from __future__ import annotations

import random
from collections import Counter

from dcpstream.client.machine.reader import next_step
from dcpstream.client.machine.reader.read_rules import ReadRules
from dcpstream.client.machine.reader.vbucket import Given, Vbucket
from dcpstream.client.machine.resume import spaced, step_back
from dcpstream.client.machine.rollback_policy import RollbackPolicy
from dcpstream.client.machine.tracker import PositionTracker, Run
from dcpstream.client.machine.values import VbucketRange
from dcpstream.dcp.producer.rollback import Accept, Rollback, decide
from dcpstream.model import MAX_SEQNO, FailoverEntry, StreamOffset
from dcpstream.wire import StreamFlag
from tests.kit.purge_world import PurgingProducer
from tests.kit.resume_world import Copy, Table, request

LATER_LIMIT = "the limit is that of the snapshot that was resumed"
ANY_LIMIT = "a limit from a snapshot with several versions"
NO_COMPARISON = "no comparison"
OTHER_VBUCKET = "the purge seqno of another vbucket"
ASKED_BEFORE = "asked before the snapshot"
MAYBE_DEAD = "not asked whether the stream lives"
NO_BOUNDS = "the bounds dropped in the guarded request"
FROM_MEMORY = "a position with a limit read on from memory"
SECOND_SNAPSHOT = "the guarded stream read beyond its first snapshot"

FAULTS = (
    LATER_LIMIT,
    ANY_LIMIT,
    NO_COMPARISON,
    OTHER_VBUCKET,
    ASKED_BEFORE,
    MAYBE_DEAD,
    NO_BOUNDS,
    FROM_MEMORY,
    SECOND_SNAPSHOT,
)

RULES = ReadRules(policy=RollbackPolicy.REWIND, collections=None, patience_s=1.0)


class Reader:
    """A reader of one vbucket, over its lives.

    Args:
        rng: decides everything.
        has_v22: whether markers of snapshots from disk have the purge seqno.
        fault: one of `FAULTS`, or "".
        counts: gets what happened.
    """

    def __init__(self, rng: random.Random, *, has_v22: bool, fault: str, counts: Counter[str]) -> None:
        self.rng = rng
        self.has_v22 = has_v22
        self.fault = fault
        self.counts = counts
        self.producer, self.other = PurgingProducer(rng), PurgingProducer(rng)
        self.table = Table()
        self.at = self.recorded = StreamOffset.ZERO
        self.earlier: tuple[StreamOffset, ...] = ()
        self.is_calm = False
        self._moves = 0
        for producer in (self.producer, self.other):
            producer.write(rng.randint(5, 40))
            producer.persist()
            if rng.random() < 0.5:
                producer.compact()

    def happen(self, chance: float) -> None:
        """Something happens, perhaps."""
        if not self.is_calm and self.rng.random() < chance:
            self.producer.happen()
            if self.rng.random() < 0.2:
                self.other.happen()

    def stir(self) -> None:
        """What matters to a guarded stream happens, perhaps."""
        if self.is_calm or self.rng.random() < 0.6:
            return
        self.producer.stir()

    def record(self, at: StreamOffset) -> None:
        self.recorded = at
        self.earlier = spaced((old for old in self.earlier if old.seqno < at.seqno), at)

    def kill(self) -> None:
        """The reader begins again at the recorded position; it keeps its rows, unless it begins at 0."""
        self.at = self.recorded
        if not self.at.seqno:
            self.table.roll_back(0)

    def go_back(self, rollback_seqno: int) -> None:
        self.at = step_back(self.at, rollback_seqno, self.earlier)
        self.table.roll_back(self.at.seqno)
        self.earlier = tuple(old for old in self.earlier if old.seqno < self.at.seqno)
        self.recorded = self.at

    def read(self) -> bool:
        """One stream; whether everything was read."""
        copy = self.producer.active
        decision = decide(request(self.at, MAX_SEQNO, flags=StreamFlag.ACTIVE_ONLY), copy)
        if isinstance(decision, Accept):
            self._stream(copy, is_guarded=False)
            return self.at.seqno == self.producer.active.high_seqno
        assert isinstance(decision, Rollback)
        if decision.seqno or self.at.purge_limit is None or not self._guarded():
            self.go_back(decision.seqno)
        return False

    def _guarded(self) -> bool:
        """One guarded stream; False if it shows that the reader must go back."""
        self.stir()
        at, known_before = self.at, self._purge_seqno()
        if self.fault == NO_BOUNDS:
            at = StreamOffset(at.vbuuid, at.seqno, at.seqno, at.seqno)
        flags = StreamFlag.ACTIVE_ONLY | StreamFlag.IGNORE_PURGED_TOMBSTONES
        self.stir()
        copy = self.producer.active
        if isinstance(decide(request(at, MAX_SEQNO, flags=flags), copy), Rollback):
            return False
        return self._stream(copy, is_guarded=True, known_before=known_before)

    def _purge_seqno(self) -> int:
        return (self.other if self.fault == OTHER_VBUCKET else self.producer).active.purge_seqno

    def _stream(self, copy: Copy, *, is_guarded: bool, known_before: int = 0) -> bool:
        """Read a stream that was accepted, until it ends, is cut or has nothing more."""
        rng, branch = self.rng, copy.failover_log.newest
        self._moves = self.producer.moves
        tracker = PositionTracker(self.at)
        tracker.opened(copy.failover_log)
        if branch.vbuuid != self.at.vbuuid:
            self.table.roll_back(self.at.seqno)  # rows above it may be void; the client says so
        asked, is_first = self.at, True
        while True:
            if is_guarded:
                self.stir()
            else:
                self.happen(0.1)
            begin = tracker.seqno
            if not self._lives(copy, branch) or begin >= copy.high_seqno:
                break
            if begin and begin < copy.purge_seqno and not is_guarded:
                break
            if is_guarded and not is_first and self.fault != SECOND_SNAPSHOT:
                break
            first, last = copy.snapshot_ends(begin)
            if is_first and asked.is_inside_snapshot:
                first = max(first, min(asked.request_bounds()[2], copy.high_seqno))
            end = last if rng.random() < 0.5 else rng.randint(first, last)
            is_from_disk = begin < copy.purge_seqno or rng.random() < 0.7
            if not is_guarded and tracker.offset.purge_limit is not None and self.fault != FROM_MEMORY:
                is_from_disk = True  # it is asked for so
            rows = copy.deduplicated(begin, end)
            if not is_from_disk:
                rows = [item for item in copy.items if begin < item[0] <= end]
            purge_seqno = copy.purge_seqno
            if is_guarded and is_first:
                if not is_from_disk:
                    return False
                checked = self._check(copy, branch, known_before, purge_seqno)
                if checked is not None:
                    return checked
            start = begin + rng.randint(0, 1)
            tracker.marker(
                min(start, asked.snapshot_start) if is_first else start,
                end,
                is_unique=is_from_disk or self.fault == ANY_LIMIT,
            )
            if is_from_disk and self.fault == LATER_LIMIT:
                tracker._purge_limit = end
            if begin and self.fault == FROM_MEMORY:
                tracker._purge_limit = asked.purge_limit
            is_first = False
            for row in rows:
                if not self.is_calm and rng.random() < 0.08:
                    self._leave(tracker)
                    return True
                tracker.item(row[0])
                self.table.add([row])
                if rng.random() < 0.2:
                    self.record(tracker.offset)
            if tracker.seqno < end:
                tracker.item(end)
        self._leave(tracker)
        return True

    def _check(self, copy: Copy, branch: FailoverEntry, known_before: int, purge_seqno: int) -> bool | None:
        """Whether a guarded stream is to be left, and if so whether the position may be asked for again."""
        found: int | None
        if self.has_v22 and not self.fault:
            found = purge_seqno
        else:
            self.stir()
            found = self._purge_seqno()
            self.stir()
            if not self._lives(copy, branch) and self.fault != MAYBE_DEAD:
                self.counts["ended"] += 1
                return True
        if self.fault == ASKED_BEFORE:
            found = known_before
        vbucket = Vbucket(VbucketRange(0, self.at, MAX_SEQNO), self.at, (), Given(Run.standing(0, self.at)))
        if isinstance(next_step.checked(vbucket, found, RULES), next_step.Confirm) or self.fault == NO_COMPARISON:
            self.counts["resumed"] += 1
            return None
        self.counts["refused"] += 1
        return False

    def _lives(self, copy: Copy, branch: FailoverEntry) -> bool:
        active = self.producer.active
        return active is copy and copy.failover_log.newest == branch and self.producer.moves == self._moves

    def _leave(self, tracker: PositionTracker) -> None:
        self.at = tracker.offset
        if self.rng.random() < 0.5:
            self.record(self.at)
        if not self.is_calm and self.rng.random() < 0.5:
            self.kill()


def run(seed: int, *, has_v22: bool = False, fault: str = "", counts: Counter[str] | None = None) -> str | None:
    """One life of a vbucket and its reader; what was lost or stayed, or None."""
    rng = random.Random(seed)
    reader = Reader(rng, has_v22=has_v22, fault=fault, counts=Counter() if counts is None else counts)
    for _ in range(rng.randint(1, 8)):
        reader.read()
        for _ in range(rng.choice((0, 1, 3, 6))):
            reader.happen(1.0)
    reader.is_calm = True
    for _ in range(60):
        if reader.read():
            break
    else:
        return f"seed {seed}: the reader never caught up"
    found, expected = reader.table.documents(), reader.producer.active.documents()
    return None if found == expected else f"seed {seed}: reader {found}, bucket {expected}"
