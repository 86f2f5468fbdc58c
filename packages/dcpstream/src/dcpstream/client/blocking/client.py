"""The blocking client: streams of changes as Arrow batches or as single changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dcpstream.client.blocking.bucket_reader import BucketReader
from dcpstream.client.blocking.loop import drive
from dcpstream.client.blocking.sockets import Sockets
from dcpstream.client.machine.reader.batches import ArrowConverter
from dcpstream.client.machine.reader.changes import Change, ChangeConverter
from dcpstream.client.machine.reader.messages import MessageConverter
from dcpstream.client.machine.reader.output_queue import Converter
from dcpstream.client.machine.values import R, ReaderOutput, RollbackEvent, VbucketEvent
from dcpstream.client.positions import Positions
from dcpstream.client.settings.client_options import CLIENT_DEFAULTS, ClientOptions
from dcpstream.client.settings.secrets import Secret
from dcpstream.client.spans import traced
from dcpstream.client.stream_options import DEFAULTS, StreamOptions
from dcpstream.client.streaming import KnownBucket, Messages, StreamRun
from dcpstream.model import StreamOffset
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
    events: tuple[VbucketEvent, ...] = ()

    def ack(self) -> None:
        """Save the positions after this batch and all before it: the user has processed them."""
        self._positions.acknowledge(self._number)


class Client:
    """A bucket's changes, blocking.

    Nothing is asked of the cluster before the first use. One client may have several streams; each has its own
    connections. Not safe for use by several threads at once.

    Args:
        connection_string: `couchbase[s]://host[:port][,host…][?network=…]` or `host[:port]`.
        username: of a user with the right to read the bucket by DCP; empty with a client certificate or a
            token.
        password: of the user. A function, such as a `SecretFile`, is called for each login, so that the password may
            change while a stream runs; it returns at once, because it runs between messages.
        bucket: its name.
        options: of the client.

    Raises:
        ConfigError: an option is not allowed.
    """

    def __init__(
        self,
        connection_string: str,
        *,
        username: str = "",
        password: Secret = "",
        bucket: str,
        options: ClientOptions = CLIENT_DEFAULTS,
    ) -> None:
        self.cluster = BucketReader(
            connection_string, username=username, password=password, bucket=bucket, options=options
        )
        self._patience_s = options.patience_s
        self._clock = SystemClock()

    def stream(self, options: StreamOptions = DEFAULTS) -> Generator[Batch, None, None]:
        """The changes as Arrow batches.

        Taking the next batch acknowledges the one before to the node, so a slow user slows the node down and memory
        stays bounded. Between two batches a thread answers the nodes' probes, for up to an hour. The stream is resumed
        after a lost connection, a moved vbucket or a node's restart. The log has failed retries, one line in ten
        seconds for each node.

        Scopes and collections that are created, dropped, flushed or modified come as batches of control rows with
        `Batch.events`, in their place among the rows of each vbucket. After such an event (but one of a modification)
        the collection's rows of that vbucket at or below the event's seqno are gone.

        The first rows of a single collection may come in any order if `on_rollback` is not "fail". `Batch.offsets`
        stand still until all of them are there; if the stream is cut before, a rollback is reported, and they come
        again.

        Args:
            options: of the stream.

        Raises:
            ConfigError: an option is not allowed, or pyarrow is missing.
            RemoteProtocolError, WireError: a node sends what the protocol does not allow, on five connections.
            RollbackRequired: history was rolled back, and `on_rollback` is "fail".
            HistoryPurged: see `StreamOptions`.
            OffsetError: the bucket was deleted and created again.
            AuthenticationFailed, ConnectTimeout, StatusError: the cluster does not let us in, or a node stays away.
        """
        options.check_for("stream")
        return self._batches(options, options.arrow_converter())

    def changes(self, options: StreamOptions = DEFAULTS) -> Generator[Change, None, None]:
        """The changes one by one; needs no extra.

        A change counts as dealt with when the next one is asked for. Positions are saved to the store after each
        portion that was received together, and when the stream ends, is closed or fails: then exactly up to the last
        change that was dealt with. `change.offset` is the position after a change, for those who keep positions
        themselves: `StreamOptions(start={change.vbid: change.offset})`.

        Raises: as `stream`.
        """
        options.check_for("changes")
        return self._changes(options)

    def messages(
        self, options: StreamOptions = DEFAULTS, *, is_over: Callable[[], bool] | None = None
    ) -> Generator[Messages, None, None]:
        """The changes as the messages that the nodes sent, for copies that must be exact.

        A rollback comes as an output of its own. Asking for the next output means that the user has kept the one
        before: a rollback can go back to its positions. Nothing is saved to the store.

        Args:
            options: of the stream.
            is_over: asked at least once in a second; once it is true, what has arrived is given out, and the stream
                ends.

        Raises: as `stream`.
        """
        options.check_for("messages")
        return self._messages(options, is_over)

    def close(self) -> None:
        """Close the connections for questions; streams close theirs when they end."""
        self.cluster.close()

    def __enter__(self) -> Client:
        """The client itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    def _batches(self, options: StreamOptions, converter: ArrowConverter) -> Generator[Batch, None, None]:
        run = self._begin(options, converter)
        run.positions.write(run.beginnings())
        for output in self._outputs(run):
            run.positions.write(run.due(output))
            batch = run.batch(Batch, output, self._clock.time_ns())
            if batch is not None:
                yield batch

    def _changes(self, options: StreamOptions) -> Generator[Change, None, None]:
        run = self._begin(options, ChangeConverter())
        run.positions.write(run.beginnings())
        for output in self._outputs(run):
            run.positions.write(run.due(output))
            portion = run.portion(output)
            try:
                yield from portion.changes()
                portion.complete()
            finally:
                run.positions.save(portion.processed())

    def _messages(self, options: StreamOptions, is_over: Callable[[], bool] | None) -> Generator[Messages, None, None]:
        run = self._begin(replace(options, on_rollback="rewind"), MessageConverter())
        for output in self._outputs(run, is_over):
            yield Messages(output, run.reader.failover_logs)

    def _begin(self, options: StreamOptions, converter: Converter[R]) -> StreamRun[R]:
        cluster = self.cluster
        store = options.offset_store
        saved = store.load() if store is not None else {}
        own = options.own_vbuckets(cluster.map.vbucket_count)
        observed = cluster.observe(own) if options.needs_observation else {}
        known = KnownBucket(cluster.map, saved, observed)
        if options.end is None:
            cluster.rest()  # the stream may last for days
        now = self._clock.monotonic()
        return StreamRun(options, converter, known, cluster.connect_options, self._patience_s, SystemRandom(), now)

    def _outputs(
        self, run: StreamRun[R], is_over: Callable[[], bool] | None = None
    ) -> Generator[ReaderOutput[R], None, None]:
        return traced(self._driven(run, is_over), run.nodes, self._clock)

    def _driven(self, run: StreamRun[R], is_over: Callable[[], bool] | None) -> Generator[ReaderOutput[R], None, None]:
        sockets = Sockets(run.nodes.options.tls)
        try:
            # Closed before the sockets are: while an output is with the user, another thread works on them.
            outputs = drive(run.reader, run.nodes, sockets, self._clock, keeps_records=True, is_over=is_over)
            with contextlib.closing(outputs):
                yield from outputs
        finally:
            sockets.close()
