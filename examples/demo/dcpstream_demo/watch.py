"""Observations from outside: the node's seqnos, the query's committed offsets, and the lag between both."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dcpstream.client.blocking.bucket_reader import BucketReader
from dcpstream.client.kv.client import ObservedSeqno
from dcpstream.errors import ConnectionLost
from dcpstream.model import FailoverLog, StreamOffset
from dcpstream_demo.bucket import Access
from dcpstream_spark.source.offsets import SourceOffset


@dataclass(frozen=True, slots=True)
class NodeSeqnos:
    """A vbucket at the node: its branch, its persisted seqno and its high seqno."""

    vbuuid: int
    persisted: int
    current: int


class NodeWatch:
    """Asks a node for its seqnos, across kills and restarts."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client = access.connect()
        self._branches: dict[int, int] = {}

    def look(self) -> dict[int, NodeSeqnos] | None:
        """Vbucket → seqnos; None while the node is away."""
        try:
            if not self._branches:
                self._branches = {vbid: log.newest.vbuuid for vbid, log in self.failover_logs().items()}
            found = {item.vbid: item for item in self._observe(self._branches)}
        except ConnectionLost:
            self._client.close()
            return None
        self._branches = {vbid: item.vbuuid for vbid, item in found.items()}
        return {
            vbid: NodeSeqnos(item.vbuuid, item.persisted_seqno, item.current_seqno)
            for vbid, item in sorted(found.items())
        }

    def survived(self, branches: Mapping[int, int]) -> dict[int, int]:
        """The last seqno of each vbucket's branch that the node still has after a restart.

        Raises:
            ConnectionLost: the node is away.
        """
        self._client.close()  # it is connected to the process that was killed
        return {
            item.vbid: item.old_high_seqno if item.old_vbuuid else item.current_seqno
            for item in self._observe(branches)
        }

    def failover_logs(self) -> dict[int, FailoverLog]:
        """Vbucket → its branches."""
        access = self._access
        with BucketReader(
            access.connection_string, username=access.username, password=access.password, bucket=access.bucket
        ) as cluster:
            return cluster.failover_logs()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _observe(self, branches: Mapping[int, int]) -> list[ObservedSeqno]:
        return self._client.observe_seqnos(sorted(branches.items()))


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed progress of a streaming query.

    Attributes:
        batch_id: the last committed batch, -1 before the first.
        is_batch_open: a later batch is planned, and not committed yet.
        positions: vbucket → where the committed batch ended; empty before the first.
    """

    batch_id: int = -1
    is_batch_open: bool = False
    positions: Mapping[int, StreamOffset] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Sum of the seqnos."""
        return sum(position.seqno for position in self.positions.values())

    def has_all_of(self, node: Mapping[int, NodeSeqnos], logs: Mapping[int, FailoverLog]) -> bool:
        """Whether nothing is left to read: every vbucket stands at the node's seqno, on history that the node knows.

        A seqno alone says nothing: after a rollback the void history may have been longer than the new one is.
        """
        for vbid, seqnos in node.items():
            position = self.positions.get(vbid)
            if position is None or vbid not in logs:
                return False
            upper = logs[vbid].upper(position.vbuuid, seqnos.current) if position.seqno else 0
            if upper is None or upper < position.seqno or position.seqno < seqnos.current:
                return False
        return not self.is_batch_open


class CheckpointWatch:
    """Reads a query's checkpoint directory, which is correct even if the query was killed."""

    def __init__(self, directory: Path, bucket: str) -> None:
        self._directory = directory
        self._bucket = bucket
        self._known = Committed()

    def look(self) -> Committed:
        """The committed progress now."""
        committed = _largest_number(self._directory / "commits")
        planned = _largest_number(self._directory / "offsets")
        positions = self._known.positions
        if committed != self._known.batch_id:
            positions = self._positions(committed)
        self._known = Committed(committed, planned > committed, positions)
        return self._known

    def _positions(self, batch_id: int) -> Mapping[int, StreamOffset]:
        # The file: a version, the query's settings, then one line for each source.
        lines = (self._directory / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
        offset = SourceOffset.from_json(json.loads(lines[2]), bucket=self._bucket)
        return {vbid: entry.at for vbid, entry in offset.vbuckets.items()}


def _largest_number(directory: Path) -> int:
    try:
        return max((int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal()), default=-1)
    except OSError:
        return -1


def ahead_of(committed: Committed, kept: Mapping[int, int]) -> dict[int, int]:
    """Seqnos by which the tables are ahead of what the node has kept, by vbucket.

    Args:
        committed: positions of the tables.
        kept: the last seqno of each vbucket that the node has kept, or would keep if it were killed.
    """
    return {
        vbid: position.seqno - kept[vbid]
        for vbid, position in committed.positions.items()
        if vbid in kept and position.seqno > kept[vbid]
    }


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation of everything.

    Attributes:
        at_s: seconds since the demo began.
        written: changes that the loader wrote; those written again are not counted twice.
        high: sum of the node's seqnos, or None while it is away.
        in_tables: sum of the committed seqnos.
    """

    at_s: float
    written: int
    high: int | None
    in_tables: int


class History:
    """All samples, for rates, lag and the picture."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.events: list[tuple[float, str]] = []

    def add(self, sample: Sample) -> None:
        """Append a sample; times rise."""
        self.samples.append(sample)

    def mark(self, at_s: float, what: str) -> None:
        """Add an event that the picture shows as a line."""
        self.events.append((at_s, what))

    def lags_s(self) -> list[tuple[float, float]]:
        """(time, lag) pairs: how long ago the node was where the tables are now; 0 when they are level."""
        result = []
        times: list[float] = []
        highs: list[int] = []
        for sample in self.samples:
            if sample.high is not None:
                # After a rollback the node's seqnos begin lower again: what was higher before is void.
                while highs and highs[-1] > sample.high:
                    highs.pop()
                    times.pop()
                if not highs or sample.high > highs[-1]:
                    highs.append(sample.high)
                    times.append(sample.at_s)
            if not highs:
                continue
            index = bisect_right(highs, sample.in_tables)
            # The first change that is not in the tables was there at the next higher point at the latest.
            result.append((sample.at_s, 0.0 if index >= len(highs) else sample.at_s - times[index]))
        return result

    def rates(self, window_s: float = 2.0) -> list[tuple[float, float, float]]:
        """(time, written per second, into the tables per second), over windows of about `window_s`."""
        result = []
        first = 0
        for index, sample in enumerate(self.samples):
            while sample.at_s - self.samples[first].at_s > window_s and first < index - 1:
                first += 1
            seconds = sample.at_s - self.samples[first].at_s
            if seconds > 0:
                old = self.samples[first]
                moved = max(0, sample.in_tables - old.in_tables)
                result.append((sample.at_s, (sample.written - old.written) / seconds, moved / seconds))
        return result
