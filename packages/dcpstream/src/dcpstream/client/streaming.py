"""One run of a stream, for both clients: where each vbucket begins, and the user's batches, changes or messages.

No I/O: the clients ask the cluster, wait for sockets, load and save. A client makes a `StreamRun`, drives its reader,
and makes a batch (`StreamRun.batch`), single changes (`Portion`) or `Messages` of each output of the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import length_hint
from typing import TYPE_CHECKING, Any, Generic, TypeVar, assert_never

from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.reader.batches import events_batch, rollback_batch
from dcpstream.client.machine.reader.changes import Change, event_change, positions_after, rollback_change
from dcpstream.client.machine.reader.messages import MessageRun
from dcpstream.client.machine.reader.output_queue import Converter
from dcpstream.client.machine.reader.reader import StreamReader
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.values import CollectionEvents, R, ReaderOutput, RollbackEvent, RowsRead
from dcpstream.client.offsets import SavedOffset
from dcpstream.client.positions import Positions
from dcpstream.client.settings.options import ConnectOptions
from dcpstream.client.stream_options import OnRollback, StreamOptions
from dcpstream.model import FailoverLog, StreamOffset, VbucketMap
from dcpstream.runtime import Random

if TYPE_CHECKING:
    import pyarrow as pa

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Messages:
    """One output of the reader, for users of `Client.messages`.

    Attributes:
        output: messages, a rollback, or events of scopes and collections.
        failover_logs: vbucket → the log that its last stream was opened with; goes on to change.
    """

    output: ReaderOutput[tuple[MessageRun, ...]]
    failover_logs: Mapping[int, FailoverLog]


@dataclass(frozen=True, slots=True)
class KnownBucket:
    """The state of a bucket before a stream begins.

    Attributes:
        map: the cluster map.
        saved: the records of the offset store.
        observed: branches and high seqnos, if `StreamOptions.needs_observation`.
    """

    map: VbucketMap
    saved: Mapping[int, SavedOffset]
    observed: Mapping[int, BranchState]


class StreamRun(Generic[R]):
    """One run of a stream: its reader, its connections, and its positions.

    Args:
        options: of the stream.
        converter: makes the user's rows.
        known: the state of the bucket.
        connect_options: of connections.
        patience_s: how long a node may stay away; see `ReadRules`.
        random: for nonces and pauses.
        now: seconds of a monotonic clock.

    Raises:
        ConfigError: see `StreamOptions.ranges`.
    """

    def __init__(
        self,
        options: StreamOptions,
        converter: Converter[R],
        known: KnownBucket,
        connect_options: ConnectOptions,
        patience_s: float,
        random: Random,
        now: float,
    ) -> None:
        self._options = options
        ranges = options.ranges(known.map.vbucket_count, known.saved, known.observed)
        settings = connect_options.settings.for_columns(
            ("key",) if options.keys_only else options.columns,
            out_of_order=not converter.keeps_frames and options.may_come_out_of_order(ranges),
            history=options.history,
            skip_deletes=options.may_skip_deletes(ranges),
        )
        form = replace(connect_options, frames=converter.keeps_frames, settings=settings)
        self.nodes = Nodes(form, random)
        self.nodes.map = known.map
        self.reader = StreamReader(ranges, self.nodes, random, converter, options.rules(patience_s), now)
        self.positions = Positions(ranges, options.offset_store, known.saved)
        self.positions.branches = self.reader.branches

    def beginnings(self) -> dict[int, SavedOffset]:
        """The records to save before the first delivery: the next run would find another "latest"."""
        return self.positions.beginnings() if self._options.start == "latest" else {}

    def due(self, output: ReaderOutput[Any]) -> dict[int, SavedOffset]:
        """The records to save before the output is given to the user; see `Positions.due`."""
        return self.positions.due(output.offsets, output if isinstance(output, RollbackEvent) else None)

    def batch(self, make: Callable[..., B], output: ReaderOutput[pa.RecordBatch], time_ns: int) -> B | None:
        """The output as a batch; None if the user's function has taken the rollback.

        Args:
            make: the class of the batch: (rows, offsets, rollback, positions, number, events).
            output: the output of the reader.
            time_ns: now, for control rows.
        """
        options = self._options
        form, columns, positions = options.value_format, options.columns, self.positions
        offsets = output.offsets
        number = positions.give(offsets)
        match output:
            case RowsRead(rows):
                return make(rows, offsets, None, positions, number, ())
            case CollectionEvents(events):
                return make(events_batch(events, form, columns, time_ns), offsets, None, positions, number, events)
            case RollbackEvent():
                if callable(options.on_rollback):
                    options.on_rollback(output)
                    return None
                return make(rollback_batch(output, form, columns, time_ns), offsets, output, positions, number, ())
            case _:
                assert_never(output)

    def portion(self, output: ReaderOutput[tuple[Change, ...]]) -> Portion:
        """The output as single changes."""
        return Portion(output, self._options.on_rollback)


class Portion:
    """The single changes of one output, and how many of them the user has processed.

    Asking for the next change means that the user has processed the one before.
    """

    def __init__(self, output: ReaderOutput[tuple[Change, ...]], on_rollback: OnRollback) -> None:
        self._output = output
        self._on_rollback = on_rollback
        self._changes: tuple[Change, ...] = ()
        self._left: Iterator[Change] = iter(())
        self._is_complete = False

    def changes(self) -> Iterator[Change]:
        """The changes, once; a function of the user takes a rollback instead. Call `complete` after the last one.

        It is the iterator of a tuple, which knows how many are left: a generator would cost as much as half a change.
        """
        match self._output:
            case RowsRead(rows):
                self._changes = rows
            case CollectionEvents(events):
                self._changes = tuple(event_change(event) for event in events)
            case RollbackEvent() as rollback:
                if callable(self._on_rollback):
                    self._on_rollback(rollback)
                else:
                    self._changes = (rollback_change(rollback),)
            case _:
                assert_never(self._output)
        self._left = iter(self._changes)
        return self._left

    def complete(self) -> None:
        """The user has processed all of them."""
        self._is_complete = True

    def processed(self) -> Mapping[int, StreamOffset]:
        """The positions after the changes that the user has processed; empty if there are none."""
        if self._is_complete:
            return self._output.offsets
        given = len(self._changes) - length_hint(self._left)
        done = () if isinstance(self._output, RollbackEvent) else self._changes[: max(0, given - 1)]
        return positions_after(done)
