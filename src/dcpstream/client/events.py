"""What a session tells: streams that open, end or are refused, rows, answers, other cluster maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcpstream.client.resume import PositionTracker
from dcpstream.client.rows import Rows, Slice
from dcpstream.model import FailoverLog, StreamOffset
from dcpstream.wire import Frame


@dataclass(slots=True, eq=False)
class Stream:
    """One stream of the connection.

    Attributes:
        opaque: u32 of its request.
        vbid: the vbucket.
        end_seqno: where to stop; MAX_SEQNO = never.
        tracker: where its reader stands.
        log: the failover log of the node's answer, once it is open.
    """

    opaque: int
    vbid: int
    end_seqno: int
    tracker: PositionTracker
    log: FailoverLog | None = None


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The node accepted the position: `offset`, now on the newest branch of `log`."""

    stream: Stream
    log: FailoverLog
    offset: StreamOffset


@dataclass(frozen=True, slots=True)
class StreamRefused:
    """The node refused the request.

    Attributes:
        status: its status; for ROLLBACK `rollback_seqno` is set.
        value: the answer's value (a cluster map for NOT_MY_VBUCKET).
    """

    stream: Stream
    status: int
    rollback_seqno: int | None = None
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamDone:
    """The stream's end was reached; it is closed."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """STREAM_END: the node will send nothing more; `reason` says why."""

    stream: Stream
    reason: int


@dataclass(frozen=True, slots=True)
class RowsReceived:
    """Rows for the user.

    Attributes:
        rows: all rows of one receive.
        keep: the slices of them that count, ascending.
        offsets: vbucket → position after these rows, for every stream that moved.
        flow_bytes: what to hand to `consumed` when the user is through with them.
        parts: (vbucket, first row, row after the last), ascending: whose the rows of `keep` are.
    """

    rows: Rows
    keep: Sequence[Slice]
    offsets: dict[int, StreamOffset]
    flow_bytes: int
    parts: Sequence[tuple[int, int, int]] = ()


@dataclass(frozen=True, slots=True)
class CollectionEvent:
    """A system event: the manifest changed; for a new collection with what it says."""

    vbid: int
    event: int
    manifest_uid: int
    scope_id: int
    collection_id: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to `request`."""

    opaque: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class ConfigPushed:
    """The node says by itself that there is another cluster map.

    Attributes:
        bucket: whose.
        version: (epoch, rev) of it; None if the node did not say.
        config: the map's JSON; empty if it has to be asked for.
    """

    bucket: str
    version: tuple[int, int] | None
    config: bytes


Event = (
    ConfigPushed | StreamOpened | StreamRefused | StreamDone | StreamStopped | RowsReceived | CollectionEvent | Answer
)
