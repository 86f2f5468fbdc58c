"""The blocking client: streams of changes as Arrow batches or as single changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dcpstream.client.blocking.bucket_reader import BucketReader
from dcpstream.client.blocking.loop import drive
from dcpstream.client.blocking.sockets import Sockets
from dcpstream.client.machine.reader.batches import ValueFormat
from dcpstream.client.machine.reader.changes import Change
from dcpstream.client.machine.reader.messages import MessageRun
from dcpstream.client.machine.rollback_policy import OnPurgeGap, RewindTo
from dcpstream.client.machine.values import ManifestEvent, ReaderOutput, RollbackEvent
from dcpstream.client.offsets import OffsetStore
from dcpstream.client.positions import Positions
from dcpstream.client.settings.options import (
    BUFFER_BYTES,
    CONNECT_TIMEOUT_S,
    MAX_BATCH_ROWS,
    PATIENCE_S,
    check_buffer_bytes,
)
from dcpstream.client.settings.tls import TlsOptions
from dcpstream.client.spans import traced
from dcpstream.client.streaming import End, OnRollback, Start, StreamOptions, StreamRun
from dcpstream.model import FailoverLog, StreamOffset
from dcpstream.runtime import SystemClock, SystemRandom

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of a stream.

    Attributes:
        record_batch: rows with the columns of CHANGE_SCHEMA.
        offsets: vbucket → exact position after the last row of this batch, for those that moved.
        rollback: set on a batch of one control row: what this vbucket's earlier rows above `rollback.to_seqno` said
            is void, also rows that an earlier run gave out and that were not acknowledged. The valid ones come again.
        events: set on a batch of control rows about scopes and collections: what they say, row by row.
    """

    record_batch: pa.RecordBatch
    offsets: Mapping[int, StreamOffset]
    rollback: RollbackEvent | None
    _positions: Positions
    _number: int
    events: tuple[ManifestEvent, ...] = ()

    def ack(self) -> None:
        """Save the positions after this batch and all before it: the user has processed them."""
        self._positions.acknowledge(self._number)


@dataclass(frozen=True, slots=True)
class Messages:
    """What one receive brought, for users of `Client.messages`.

    Attributes:
        output: messages, a rollback, or events of scopes and collections.
        failover_logs: vbucket → the log that its last stream was opened with; goes on to change.
    """

    output: ReaderOutput[tuple[MessageRun, ...]]
    failover_logs: Mapping[int, FailoverLog]


class Client:
    """A bucket's changes, blocking.

    Nothing is asked of the cluster before the first use. One client may have several streams; each has its own
    connections. Not safe for use by several threads at once.

    Args:
        connection_string: `couchbase[s]://host[:port][,host…][?network=…]` or `host[:port]`.
        username, password: of a user with the right to read the bucket by DCP; empty with a client certificate.
        bucket: its name.
        tls: certificates, for `couchbases://`.
        sasl_mechanism: the only one to log in with ("PLAIN" over TLS, "SCRAM-SHA512", …); None for the strongest.
        network: "default", "external", …: which of the nodes' addresses to use; None as in the connection string.
        connect_timeout_s: limit for connecting to a cluster that does not answer. A bucket that does not exist is an
            error at once, because the usual cause is a wrong name.
        patience_s: how long a node may stay away while a stream runs, or listen without having its bucket, refuse a
            vbucket, end its stream at once, or tell an older version of the bucket's collections than is known.
        buffer_bytes: flow-control window of each connection: the bound of memory.
        name: what the connections are called in the node's statistics.

    Raises:
        ConfigError: an option is not allowed.
    """

    def __init__(
        self,
        connection_string: str,
        *,
        username: str = "",
        password: str = "",
        bucket: str,
        tls: TlsOptions | None = None,
        sasl_mechanism: str | None = None,
        network: str | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        buffer_bytes: int = BUFFER_BYTES,
        name: str = "dcpstream",
    ) -> None:
        self.cluster = BucketReader(
            connection_string,
            username=username,
            password=password,
            bucket=bucket,
            tls=tls,
            sasl_mechanism=sasl_mechanism,
            network=network,
            connect_timeout_s=connect_timeout_s,
            name=name,
        )
        self._patience_s = patience_s
        self._buffer_bytes = check_buffer_bytes(buffer_bytes)
        self._name = name
        self._clock = SystemClock()

    def stream(
        self,
        *,
        start: Start = "earliest",
        end: End = None,
        store: OffsetStore | None = None,
        collections: Sequence[str] | None = None,
        value_format: ValueFormat = "binary",
        columns: Sequence[str] | None = None,
        on_rollback: OnRollback = "fail",
        rewind_to: RewindTo = "recorded",
        members: tuple[int, int] = (0, 1),
        max_batch_rows: int = MAX_BATCH_ROWS,
        read_stable: bool = False,
        purge_gap: OnPurgeGap | None = None,
        idle_timeout_s: float | None = None,
    ) -> Generator[Batch, None, None]:
        """The changes as Arrow batches.

        Taking the next batch acknowledges the one before to the node, so a slow user slows the node down and memory
        stays bounded. Between two batches a thread answers the nodes' probes, for up to an hour. The stream is resumed
        after a lost connection, a moved vbucket or a node's restart. The log has failed retries, one line in ten
        seconds for each node.

        Scopes and collections that are created, dropped, flushed or modified come as batches of control rows with
        `Batch.events`, in their place among the rows of each vbucket. After such an event (but one of a modification)
        the collection's rows of that vbucket at or below the event's seqno are gone.

        The first rows of a single collection may come in any order if `on_rollback` is not "fail". `Batch.offsets`
        stand still until all of them are there; if the stream is cut before, a rollback is
        reported and they come again.

        Args:
            start: "earliest", "latest", positions, or an OffsetStore: what it has, the rest from the beginning.
            end: None for ever, "latest" for the high seqnos of now, or {vbucket: seqno}; a vbucket that is not named
                is not read then. A start at or above the end has no rows, but a rollback of it is reported.
            store: where `ack` saves positions, and where saved ones are taken from before `start` is looked at. Before
                the first rows of a vbucket are given out, the position where they begin is saved; with the start
                "latest" those of all vbuckets, before anything is read, so that a later run skips nothing.
            collections: "scope.collection"; "scope.*", or a scope's bare name, for the scope with collections that
                are created later; a bare name for a collection of the scope _default (a name that is both is refused,
                but "_default" is the default collection). None for all. A saved position knows which collections it
                covers: one that was dropped meanwhile is reported, one that is new to the filter is read from its
                beginning.
            value_format: "binary" or "string".
            columns: names of CHANGE_SCHEMA to fill, None for all.
            on_rollback: "fail" raises RollbackRequired; "rewind" goes back and yields a control row; a function is
                called with the RollbackEvent and then the stream goes back without one; the position gone back to is
                saved when a later batch is acknowledged. A rollback is also reported if the node accepts a saved
                position on another branch of history: rows above it that were not acknowledged may be void.
            rewind_to: how far a rollback goes back: "recorded" to a saved position that is still valid,
                "zero" to the beginning of the vbucket. A consumer that keeps one version of each document needs
                "zero": the older versions that void ones have replaced do not come again.
            members: (i, n): read only the vbuckets of member i (from 0) of n.
            max_batch_rows: rows of a batch at most.
            read_stable: hold changes back until the active node and all replicas have them on disk: what a failover
                can lose is never seen. Costs their latency, and waits while a replica of the map is away.
            purge_gap: what to do if deletions after the position were purged before they were read: "fail" raises
                HistoryPurged, "ignore" reads on with a warning, "reconcile" begins the vbucket anew, as a rollback to
                0. None: "fail" if `on_rollback` is "fail", else "reconcile".
            idle_timeout_s: seconds without progress after which it raises; None to wait for ever. A stream that is
                only opened again is no progress.

        Raises:
            ConfigError: an option is not allowed, or pyarrow is missing.
            RemoteProtocolError, WireError: a node sends what the protocol does not allow, on five connections.
            RollbackRequired: history was rolled back, and `on_rollback` is "fail".
            HistoryPurged: see `purge_gap`.
            OffsetError: the bucket was deleted and created again.
            AuthenticationFailed, ConnectTimeout, StatusError: the cluster does not let us in, or a node stays away.
        """
        options = StreamOptions(
            start=start,
            end=end,
            store=store,
            collections=collections,
            value_format=value_format,
            columns=columns,
            on_rollback=on_rollback,
            rewind_to=rewind_to,
            members=members,
            max_batch_rows=max_batch_rows,
            arrow=True,
            read_stable=read_stable,
            purge_gap=purge_gap,
        )
        options.converter()  # complains now rather than at the first batch
        return self._batches(options, idle_timeout_s)

    def changes(
        self,
        *,
        start: Start = "earliest",
        end: End = None,
        store: OffsetStore | None = None,
        collections: Sequence[str] | None = None,
        on_rollback: OnRollback = "fail",
        rewind_to: RewindTo = "recorded",
        members: tuple[int, int] = (0, 1),
        read_stable: bool = False,
        purge_gap: OnPurgeGap | None = None,
        idle_timeout_s: float | None = None,
        keys_only: bool = False,
    ) -> Generator[Change, None, None]:
        """The changes one by one; needs no extra.

        Options are those of `stream`. A change counts as dealt with when the next one is asked for. Positions are saved
        to the store after each portion that was received together, and when the stream ends, is closed or fails: then
        exactly up to the last change that was dealt with. `change.offset` is the position after a change, for those who
        keep positions themselves: `start={change.vbid: change.offset}`.

        Args:
            keys_only: whether the nodes leave the documents out, which saves most of the bytes; `change.value` is then
                empty.
        """
        options = StreamOptions(
            start=start,
            end=end,
            store=store,
            collections=collections,
            on_rollback=on_rollback,
            rewind_to=rewind_to,
            members=members,
            arrow=False,
            read_stable=read_stable,
            purge_gap=purge_gap,
            columns=("key",) if keys_only else None,
        )
        return self._changes(options, idle_timeout_s)

    def messages(
        self,
        *,
        start: Start = "earliest",
        end: End = None,
        store: OffsetStore | None = None,
        collections: Sequence[str] | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> Generator[Messages, None, None]:
        """The changes as the messages that the nodes sent, for copies that must be exact.

        Options are those of `stream`. A rollback comes as an item of its own. Asking for the next item means that the
        user has kept the one before: a rollback can go back to its positions. Nothing is saved to the store.

        Args:
            is_over: asked at least once in a second; once it is true, what has arrived is given out, and the stream
                ends.
        """
        options = StreamOptions(
            start=start,
            end=end,
            store=store,
            collections=collections,
            on_rollback="rewind",
            members=(0, 1),
            arrow=False,
            frames=True,
        )
        run = self._begin(options, None)
        for output in self._outputs(run, is_over):
            yield Messages(output, run.reader.failover_logs)

    def close(self) -> None:
        """Close the connections for questions; streams close theirs when they end."""
        self.cluster.close()

    def __enter__(self) -> Client:
        """The client itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    def _batches(self, options: StreamOptions, idle_timeout_s: float | None) -> Generator[Batch, None, None]:
        run = self._begin(options, idle_timeout_s)
        run.positions.write(run.beginnings())
        for output in self._outputs(run):
            run.positions.write(run.due(output))
            batch = run.batch(Batch, output, self._clock.time_ns())
            if batch is not None:
                yield batch

    def _changes(self, options: StreamOptions, idle_timeout_s: float | None) -> Generator[Change, None, None]:
        run = self._begin(options, idle_timeout_s)
        run.positions.write(run.beginnings())
        for output in self._outputs(run):
            run.positions.write(run.due(output))
            portion = run.portion(output)
            try:
                yield from portion
            finally:
                run.positions.save(portion.processed())

    def _begin(self, options: StreamOptions, idle_timeout_s: float | None) -> StreamRun:
        cluster = self.cluster
        store = options.offset_store
        saved = store.load() if store is not None else {}
        own = options.own_vbuckets(cluster.map.vbucket_count)
        observed = cluster.observe(own) if options.needs_observation else {}
        found = cluster.map
        if options.end is None:
            cluster.rest()  # the stream may last for days
        return StreamRun(
            options,
            found,
            saved,
            observed,
            cluster.connect_options,
            name=self._name,
            buffer_bytes=self._buffer_bytes,
            idle_timeout_s=idle_timeout_s,
            patience_s=self._patience_s,
            random=SystemRandom(),
            now=self._clock.monotonic(),
        )

    def _outputs(
        self, run: StreamRun, is_over: Callable[[], bool] | None = None
    ) -> Generator[ReaderOutput[Any], None, None]:
        return traced(self._driven(run, is_over), self.cluster.connect_options, self._clock)

    def _driven(self, run: StreamRun, is_over: Callable[[], bool] | None) -> Generator[ReaderOutput[Any], None, None]:
        sockets = Sockets(run.nodes.options.tls)
        try:
            # Closed before the sockets are: while an output is with the user, another thread works on them.
            outputs = drive(run.reader, run.nodes, sockets, self._clock, keeps_records=True, is_over=is_over)
            with contextlib.closing(outputs):
                yield from outputs
        finally:
            sockets.close()
