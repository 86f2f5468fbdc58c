"""The asyncio client: the same streams as those of the blocking client, as asynchronous iterators.

The machines are the same; this module only waits, and `sockets` holds the event loop's transports.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dcpstream.client.aio.sockets import AsyncSockets
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.nodes.questions import Observer, Questions, map_question
from dcpstream.client.machine.reader.changes import Change, ChangeConverter
from dcpstream.client.machine.reader.messages import MessageConverter
from dcpstream.client.machine.reader.output_queue import Converter
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.values import R, ReaderOutput, RollbackEvent, VbucketEvent
from dcpstream.client.positions import Positions
from dcpstream.client.settings.client_options import CLIENT_DEFAULTS, ClientOptions
from dcpstream.client.settings.connection_string import ConnectionString
from dcpstream.client.settings.options import access
from dcpstream.client.settings.secrets import Secret
from dcpstream.client.settings.srv import resolve_seeds
from dcpstream.client.spans import traced_async
from dcpstream.client.stream_options import DEFAULTS, StreamOptions
from dcpstream.client.streaming import KnownBucket, Messages, StreamRun
from dcpstream.model import StreamOffset, VbucketMap
from dcpstream.runtime import SystemClock, SystemRandom

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class AsyncBatch:
    """Rows of a stream; as `dcpstream.client.Batch`, with `ack` to be awaited."""

    record_batch: pa.RecordBatch
    offsets: Mapping[int, StreamOffset]
    rollback: RollbackEvent | None
    _positions: Positions
    _number: int
    events: tuple[VbucketEvent, ...] = ()

    async def ack(self) -> None:
        """Save the positions after this batch and all before it, in another thread: the user has processed them."""
        await asyncio.to_thread(self._positions.acknowledge, self._number)


class AsyncClient:
    """A bucket's changes, for asyncio; arguments and streams are those of `dcpstream.Client`.

    While the user works on a batch, the event loop goes on answering the nodes' probes, within the flow-control window.
    To leave a stream before its end, close it: `async with contextlib.aclosing(client.stream(…)) as stream`.
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
        given = access(connection_string, username, password, bucket, options)
        self._unresolved: ConnectionString | None = given.parsed
        self._options = given.connect_options()
        self._patience_s = options.patience_s
        self._clock = SystemClock()
        self._random = SystemRandom()
        self._was_reached = False

    async def map(self) -> VbucketMap:
        """The cluster map, asked now."""
        return (await self._observe(()))[0]

    async def observe(self, vbids: Sequence[int] | None = None) -> dict[int, BranchState]:
        """Branch and high seqno of vbuckets, each as one observation; unknown ones are missing."""
        found, states = await self._observe(vbids if vbids is not None else ())
        if vbids is None:
            _, states = await self._observe(range(found.vbucket_count))
        return states

    async def stream(self, options: StreamOptions = DEFAULTS) -> AsyncGenerator[AsyncBatch, None]:
        """The changes as Arrow batches; see `Client.stream`."""
        options.check_for("stream")
        run = await self._begin(options, options.arrow_converter())
        if beginnings := run.beginnings():
            await asyncio.to_thread(run.positions.write, beginnings)
        async with contextlib.aclosing(self._outputs(run)) as outputs:
            async for output in outputs:
                if records := run.due(output):
                    await asyncio.to_thread(run.positions.write, records)
                batch = run.batch(AsyncBatch, output, self._clock.time_ns())
                if batch is not None:
                    yield batch

    async def changes(self, options: StreamOptions = DEFAULTS) -> AsyncGenerator[Change, None]:
        """The changes one by one; see `Client.changes`."""
        options.check_for("changes")
        run = await self._begin(options, ChangeConverter())
        if beginnings := run.beginnings():
            await asyncio.to_thread(run.positions.write, beginnings)
        async with contextlib.aclosing(self._outputs(run)) as outputs:
            async for output in outputs:
                if records := run.due(output):
                    await asyncio.to_thread(run.positions.write, records)
                portion = run.portion(output)
                try:
                    for change in portion.changes():
                        yield change
                    portion.complete()
                finally:
                    if options.offset_store is not None:
                        await asyncio.to_thread(run.positions.save, portion.processed())

    async def messages(
        self, options: StreamOptions = DEFAULTS, *, is_over: Callable[[], bool] | None = None
    ) -> AsyncGenerator[Messages, None]:
        """The changes as the messages that the nodes sent; see `Client.messages`."""
        options.check_for("messages")
        run = await self._begin(replace(options, on_rollback="rewind"), MessageConverter())
        async with contextlib.aclosing(self._outputs(run, is_over)) as outputs:
            async for output in outputs:
                yield Messages(output, run.reader.failover_logs)

    async def close(self) -> None:
        """Streams close their connections when they end; there are no others."""

    async def __aenter__(self) -> AsyncClient:
        """The client itself."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    async def _begin(self, options: StreamOptions, converter: Converter[R]) -> StreamRun[R]:
        store = options.offset_store
        saved = await asyncio.to_thread(store.load) if store is not None else {}
        found, _ = await self._observe(())
        own = options.own_vbuckets(found.vbucket_count)
        observed = (await self._observe(own))[1] if options.needs_observation else {}
        known, now = KnownBucket(found, saved, observed), self._clock.monotonic()
        return StreamRun(options, converter, known, self._options, self._patience_s, self._random, now)

    def _outputs(
        self, run: StreamRun[R], is_over: Callable[[], bool] | None = None
    ) -> AsyncGenerator[ReaderOutput[R], None]:
        return traced_async(self._driven(run, is_over), run.nodes, self._clock)

    async def _driven(
        self, run: StreamRun[R], is_over: Callable[[], bool] | None
    ) -> AsyncGenerator[ReaderOutput[R], None]:
        reader, now = run.reader, self._clock.monotonic
        sockets = AsyncSockets(reader, run.nodes, self._clock)
        try:
            while True:
                output = reader.next_event()
                if output is not None:
                    yield output
                    if not isinstance(output, RollbackEvent):
                        reader.record(output.offsets)
                        reader.resumed(now())
                elif reader.is_done or (is_over is not None and is_over()):
                    return
                else:
                    reader.step(now())
                    await sockets.turn()
        finally:
            await sockets.close()
            reader.close()

    async def _observe(self, vbids: Sequence[int]) -> tuple[VbucketMap, dict[int, BranchState]]:
        """The map, and the branches of some vbuckets."""
        if self._unresolved is not None:
            seeds = await asyncio.to_thread(resolve_seeds, self._unresolved)
            self._options = replace(self._options, seeds=seeds)
            self._unresolved = None
        nodes = Nodes(self._options.for_questions, self._random, was_reached=self._was_reached)
        machine = Questions([map_question()], nodes, self._random, self._deadline())
        sockets = AsyncSockets(machine, nodes, self._clock)
        try:
            await self._ask(machine, sockets)
            if nodes.map is None:
                raise machine.no_answer("the cluster map")
            self._was_reached = True
            states: dict[int, BranchState] = {}
            for questions in Observer().rounds(vbids, nodes.map, states) if vbids else ():
                sockets.machine = machine = Questions(questions, nodes, self._random, self._deadline())
                await self._ask(machine, sockets)
            return nodes.map, states
        finally:
            await sockets.close()

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._options.connect_timeout_s

    async def _ask(self, machine: Questions, sockets: AsyncSockets) -> None:
        while (limit_s := machine.proceed(self._clock.monotonic())) is not None:
            await sockets.turn(limit_s)
