"""A vbucket with stale replicas, and the source's planner and reader on it, for random tests.

The producer's side keeps whole histories; the reader's side sees deduplicated snapshots, as the protocol has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from dcpstream.client.machine.resume import BranchState, reachable_end, step_back
from dcpstream.client.machine.values import Accepted, RollbackTo, RowsRead, VbucketRange
from dcpstream.client.stream_options import StreamOptions
from dcpstream.errors import RollbackRequired
from dcpstream.model import FailoverLog, Manifest, StreamOffset

Row = tuple[int, str, int | None]
"""(seqno, key, value), value None for a deletion."""


def collapsed(rows: list[Row]) -> dict[str, int]:
    """State of the vbucket: newest version per key."""
    state = {key: value for _, key, value in sorted(rows, key=lambda row: row[0])}
    return {key: value for key, value in state.items() if value is not None}


@dataclass
class Copy:
    """One node's copy: its log, newest first, and the rows it holds.

    Deletions up to `purge_seqno` are no longer sent.
    """

    log: list[tuple[int, int]]
    rows: list[Row] = field(default_factory=list)
    snapshot: tuple[int, int] = (0, 0)
    purge_seqno: int = 0

    @property
    def high(self) -> int:
        return self.rows[-1][0] if self.rows else 0

    def answer(self, at: StreamOffset) -> int | None:
        """None if the position is accepted, else R. Steps 7 to 13 of the server's decision."""
        start, snapshot_start, snapshot_end = at.request_bounds()
        if start == 0:
            return None
        if start < self.purge_seqno:
            return 0
        upper = FailoverLog.of(*self.log).upper(at.vbuuid, self.high)
        if upper is None:
            return 0
        if start == snapshot_start:
            snapshot_end = start
        if snapshot_end <= upper:
            return None
        if start == snapshot_end:
            snapshot_start = start
        return min(upper, snapshot_start)

    def snapshot_after(self, seqno: int, until: int) -> list[Row]:
        """Deduplicated rows after `seqno`, as one snapshot that ends at `until`."""
        newest = {row[1]: row for row in self.rows if row[0] <= until}
        return sorted(row for row in newest.values() if row[0] > seqno)

    def sent_after(self, seqno: int) -> list[Row]:
        """The rows that a stream from `seqno` sends."""
        rows = self.snapshot_after(seqno, self.high)
        return [row for row in rows if row[2] is not None or row[0] > self.purge_seqno]

    def state(self) -> BranchState:
        return BranchState(self.log[0][0], self.high, FailoverLog.of(*self.log))


class FakeCluster:
    """A cluster of copies that answers the coordinator's requests."""

    def __init__(self, vbuckets: int = 1) -> None:
        self.active = [Copy([(1000 + vbid, 0)]) for vbid in range(vbuckets)]
        self.replicas: list[list[Copy]] = [[] for _ in range(vbuckets)]
        self.next_vbuuid = 2000
        self.seqnos_written = 0
        self.questions: list[str] = []
        self.row_bytes = 1

    # -- what happens to the bucket

    def write(self, vbid: int, key: str, value: int | None) -> None:
        copy = self.active[vbid]
        copy.rows.append((copy.high + 1, key, value))
        self.seqnos_written += 1

    def add_replica(self, vbid: int, seqno: int, snapshot_start: int) -> None:
        """A replica that stopped at `seqno`, in the middle of a snapshot that began at `snapshot_start`."""
        copy = self.active[vbid]
        seqno = min(seqno, copy.high)
        snapshot_start = min(snapshot_start, seqno)
        kept = [row for row in copy.rows if row[0] <= snapshot_start]
        kept += [row for row in copy.snapshot_after(snapshot_start, copy.high) if row[0] <= seqno]
        high = kept[-1][0] if kept else 0
        is_whole = high == copy.high or snapshot_start >= high
        self.replicas[vbid].append(Copy(list(copy.log), kept, (high if is_whole else snapshot_start, high)))

    def fail_over(self, vbid: int) -> None:
        """The oldest replica becomes active; the others stay, as stale as they are."""
        if not self.replicas[vbid]:
            return
        copy = self.replicas[vbid].pop(0)
        fork = copy.snapshot[0]
        copy.log = [(self.next_vbuuid, fork), *(entry for entry in copy.log if entry[1] <= fork)]
        self.next_vbuuid += 1
        self.active[vbid] = copy

    def purge(self, vbid: int, seqno: int) -> None:
        """The active copy drops its deletions up to `seqno`, never its last row."""
        copy = self.active[vbid]
        newest = copy.snapshot_after(0, copy.high)[:-1]
        dropped = [row[0] for row in newest if row[2] is None and row[0] <= seqno]
        copy.purge_seqno = max(copy.purge_seqno, *dropped, 0)

    # -- the interface of Cluster

    @property
    def map(self) -> Any:
        return SimpleNamespace(
            version=(1, 1),
            uuid="",
            vbucket_count=len(self.active),
            active_node=lambda vbid: f"node{vbid % 2}",
            nodes=("node0", "node1"),
        )

    def high_seqnos(self) -> dict[int, int]:
        self.questions.append("high_seqnos")
        return {vbid: copy.high for vbid, copy in enumerate(self.active)}

    def observe(self, vbids: Any = None, *, high_seqnos: Any = None) -> dict[int, BranchState]:
        self.questions.append("observe")
        return {vbid: copy.state() for vbid, copy in enumerate(self.active) if vbids is None or vbid in set(vbids)}

    def check_positions(self, positions: Any, *, purge_gap: Any = None) -> dict[int, Accepted | RollbackTo]:
        self.questions.append("check_positions")
        answers: dict[int, Accepted | RollbackTo] = {}
        for vbid, at in positions.items():
            refused = self.active[vbid].answer(at)
            accepted = Accepted(FailoverLog.of(*self.active[vbid].log))
            answers[vbid] = accepted if refused is None else RollbackTo(refused)
        return answers

    def manifest(self, least_uid: int = 0) -> Manifest:
        return Manifest.DEFAULT

    def read_ranges(self, ranges: Any, options: StreamOptions, **_: Any) -> Iterator[RowsRead[pa.RecordBatch]]:
        """Rows for a sample, each of `row_bytes`."""
        self.questions.append("read_ranges")
        for one in ranges:
            count = one.end_seqno - one.start.seqno
            rows = pa.array([b"x" * self.row_bytes] * count, pa.binary(self.row_bytes))
            yield RowsRead(pa.record_batch([rows], names=["value"]), {})

    def close(self) -> None:
        self.questions.append("close")


def read_range(
    cluster: FakeCluster, planned: VbucketRange, *, to_zero: bool, note: Callable[[int, int], None] | None = None
) -> tuple[int | None, list[Row]]:
    """The result of a task: (the seqno of its control row or None, rows).

    Args:
        cluster: what it reads.
        planned: the range.
        to_zero: whether a rollback begins the vbucket anew.
        note: called with vbucket and start when the task goes below a start that it should keep.
    """
    copy = cluster.active[planned.vbid]
    at = planned.start
    to_seqno = None
    while (refused := copy.answer(at)) is not None:
        if planned.keeps_start and copy.log[0][0] != planned.planned_vbuuid:
            return planned.start.seqno, []
        at = step_back(at, refused, planned.earlier)
        to_seqno = at.seqno
    if planned.keeps_start and note is not None and to_seqno is not None:
        note(planned.vbid, planned.start.seqno)
    if to_seqno is None and planned.given_vbuuid not in {0, copy.log[0][0]}:
        # Accepted, but on another branch than that of an attempt before.
        at = StreamOffset.ZERO if to_zero else at
        to_seqno = at.seqno
    end = reachable_end(planned.end_seqno, planned.planned_vbuuid, copy.state())
    if end > copy.high:
        raise RollbackRequired(planned.vbid, copy.high, "the task would wait for ever")
    return to_seqno, [row for row in copy.sent_after(at.seqno) if row[0] <= end]


class Sink:
    """The rows that a user keeps of each vbucket; control rows remove the void ones.

    Args:
        is_transactional: whether nothing of an attempt that fails is kept.
    """

    def __init__(self, vbuckets: int = 1, *, is_transactional: bool = True) -> None:
        self.is_transactional = is_transactional
        self.rows: dict[int, list[Row]] = {vbid: [] for vbid in range(vbuckets)}

    def apply(self, vbid: int, to_seqno: int | None, rows: list[Row]) -> None:
        if to_seqno is not None:
            self.rows[vbid] = [row for row in self.rows[vbid] if row[0] <= to_seqno]
        if not self.is_transactional:
            self.rows[vbid] = [row for row in self.rows[vbid] if row not in rows]
        self.rows[vbid] += rows


class MemoryNotes:
    """The notes of tasks, without files."""

    def __init__(self) -> None:
        self.starts: dict[int, int] = {}

    def went_below(self, vbid: int, seqno: int) -> None:
        self.starts[vbid] = max(seqno, self.starts.get(vbid, 0))

    def starts_left(self) -> dict[int, int]:
        return dict(self.starts)
