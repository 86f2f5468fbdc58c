"""Blocking shell: a cluster's positions and bounded reads, over plain sockets.

`Cluster` is what a planner and its workers need: observations of branches, checks of positions, and reads of planned
ranges. It is not safe for use by several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal

from dcpstream.client.ranges import Accepted, ReadBatch, RollbackEvent, RollbackTo, VbucketRange
from dcpstream.client.resume import BranchState
from dcpstream.model import FailoverLog, Manifest, StreamOffset, VbucketMap

CONNECT_TIMEOUT_S = 10.0
"""How long connecting to any node, with authentication and bucket, may take before ConnectTimeout."""

IDLE_TIMEOUT_S = 60.0
"""How long a bounded read may wait without any progress before it raises."""

BUFFER_BYTES = 4 * 1024 * 1024
"""Flow-control window of a connection in bytes: what the node may send before it is consumed, so the bound of memory,
and of what is read in vain when a range ends inside a snapshot."""

MAX_BATCH_ROWS = 10_000
"""Rows of a batch at most: what Spark takes best."""


class Cluster:
    """A bucket of a cluster, for bounded reads and for questions about positions.

    Connects when first used, to the nodes that are needed, and keeps the connections until `close()`; a broken one
    is made again.

    Args:
        connection_string: `couchbase://host[:port][,host…][?network=…]` or `host[:port]`.
        username, password: of a user with the right to read the bucket by DCP.
        bucket: its name.
        connect_timeout_s: limit for connecting; also for each question.
        collections: names to read ("scope.collection" or "collection"), None for all.
        name: what the connections are called in the node's statistics; a unique part is appended.

    Raises:
        ConfigError: an option is not allowed.
        AuthenticationFailed: the node refuses user or password (when first used).
        ConnectTimeout: no seed answers in time; the message lists what was tried (when first used).
    """

    def __init__(
        self,
        connection_string: str,
        *,
        username: str,
        password: str,
        bucket: str,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        collections: Sequence[str] | None = None,
        name: str = "dcpstream",
    ) -> None:
        raise NotImplementedError

    @property
    def map(self) -> VbucketMap:
        """The newest cluster map that is known."""
        raise NotImplementedError

    def manifest(self) -> Manifest:
        """The bucket's scopes and collections, asked now."""
        raise NotImplementedError

    def high_seqnos(self) -> dict[int, int]:
        """Vbucket → high seqno on its active node. A vbucket that no reachable node has active is missing."""
        raise NotImplementedError

    def failover_logs(self, vbids: Iterable[int] | None = None) -> dict[int, FailoverLog]:
        """Vbucket → failover log of its active node; all vbuckets if None. Unknown ones are missing."""
        raise NotImplementedError

    def observe(self, vbids: Iterable[int] | None = None) -> dict[int, BranchState]:
        """Branch and high seqno of vbuckets, each as one observation: log, high seqno, log again.

        A vbucket whose node is not known, or whose branch changed meanwhile, is missing.
        """
        raise NotImplementedError

    def check_positions(self, positions: Mapping[int, StreamOffset]) -> dict[int, Accepted | RollbackTo]:
        """What the nodes say to positions, by streams of length zero, which send nothing.

        A vbucket that no reachable node has active is missing.
        """
        raise NotImplementedError

    def read_ranges(
        self,
        ranges: Sequence[VbucketRange],
        *,
        value_format: Literal["binary", "string"] = "binary",
        columns: Sequence[str] | None = None,
        collections: Sequence[str] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        max_batch_rows: int = MAX_BATCH_ROWS,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> Iterator[ReadBatch | RollbackEvent]:
        """Read ranges of several vbuckets and finish when each is done.

        A vbucket is done when its end was reached (a row, a system event or an advanced seqno at or above it, or the
        node's "end of stream"); a cut connection, a moved vbucket or any other end of the stream is resumed. If its
        start is refused, the reader goes back along the recorded positions and yields a RollbackEvent before the
        first row; the control row of a table is `dcpstream.columnar.rollback_row`. If the branch on which the end was
        planned has ended below that end, the vbucket is done at the high seqno of the new branch.

        Args:
            ranges: at most one per vbucket; a range whose start is at its end is done at once.
            columns: names of CHANGE_SCHEMA to build, None for all; the others are filled with null.
            collections: as in the constructor; None = those of the constructor.
            buffer_bytes: flow-control window of each connection; memory is bounded by it.
            max_batch_rows: rows of a RecordBatch at most.
            idle_timeout_s: give up after so long without any progress.

        Raises:
            RollbackRequired: rows of a vbucket were yielded, and then its history was rolled back. Plan anew.
            ConnectTimeout, ConnectionLost: a node stays away for `idle_timeout_s`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close all connections; a second time does nothing."""

    def __enter__(self) -> Cluster:
        """The cluster itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
