"""The asyncio client: the same streams as the blocking one, as asynchronous iterators.

The machines are the same; here is only the waiting (and in `asyncio_hub` the event loop's transports).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dcpstream.client.aio.sockets import AsyncSockets
from dcpstream.client.machine.connection.events import EventGroup
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.nodes.questions import Question, Questions, high_seqnos_of, logs_of, states_of
from dcpstream.client.machine.reader.batches import ValueFormat
from dcpstream.client.machine.reader.changes import Change, positions_after
from dcpstream.client.machine.reader.reader import StreamReader
from dcpstream.client.machine.reader.side_requests import ACTIVE_STATE
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.rollback_policy import OnPurgeGap, RewindTo
from dcpstream.client.machine.values import ManifestEvent, RollbackEvent
from dcpstream.client.offsets import OffsetStore
from dcpstream.client.settings.connection_string import ConnectionString
from dcpstream.client.settings.options import (
    BUFFER_BYTES,
    CONNECT_TIMEOUT_S,
    MAX_BATCH_ROWS,
    PATIENCE_S,
    access,
    check_buffer_bytes,
    dcp_settings,
)
from dcpstream.client.settings.srv import resolve_seeds
from dcpstream.client.settings.tls import TlsOptions
from dcpstream.client.streaming import (
    End,
    OnRollback,
    Positions,
    Start,
    StreamOptions,
    manifest_batch,
    rollback_batch,
    rollback_change,
)
from dcpstream.client.transport import MAX_WAIT_S
from dcpstream.errors import ConnectTimeout
from dcpstream.model import StreamOffset, VbucketMap
from dcpstream.runtime import SystemClock, SystemRandom
from dcpstream.wire import Opcode

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
    events: tuple[ManifestEvent, ...] = ()

    async def ack(self) -> None:
        """This batch and all before it are dealt with: save the positions after them (in a thread of its own)."""
        await asyncio.to_thread(self._positions.acknowledge, self._number)


class AsyncClient:
    """A bucket's changes, for asyncio; arguments and streams are those of `dcpstream.Client`.

    While the user works on a batch, the event loop goes on answering the nodes' probes, within the flow-control window.
    Who leaves a stream before its end closes it: `async with contextlib.aclosing(client.stream(…)) as stream`.
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
        given = access(
            connection_string,
            username=username,
            password=password,
            bucket=bucket,
            tls=tls,
            sasl_mechanism=sasl_mechanism,
            network=network,
        )
        self._unresolved: ConnectionString | None = given.parsed
        self._options = given.connect_options(connect_timeout_s, name)
        self._patience_s = patience_s
        self._buffer_bytes = check_buffer_bytes(buffer_bytes)
        self._name = name
        self._clock = SystemClock()
        self._random = SystemRandom()
        self._was_reached = False

    async def map(self) -> VbucketMap:
        """The cluster map, asked now."""
        return (await self._observe(None))[0]

    async def observe(self, vbids: Sequence[int] | None = None) -> dict[int, BranchState]:
        """Branch and high seqno of vbuckets, each as one observation; unknown ones are missing."""
        found, states = await self._observe(vbids if vbids is not None else ())
        if vbids is None:
            _, states = await self._observe(range(found.vbucket_count))
        return states

    async def stream(
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
    ) -> AsyncGenerator[AsyncBatch, None]:
        """The changes as Arrow batches; see `Client.stream`."""
        options = StreamOptions(
            start=start,
            end=end,
            store=store,
            collections=None if collections is None else tuple(collections),
            value_format=value_format,
            columns=None if columns is None else tuple(columns),
            on_rollback=on_rollback,
            rewind_to=rewind_to,
            members=members,
            max_batch_rows=max_batch_rows,
            arrow=True,
            read_stable=read_stable,
            purge_gap=purge_gap,
        )
        events = self._run(options, idle_timeout_s)
        try:
            async for thing, offsets, rollback, positions in events:
                if records := positions.due(offsets, rollback):
                    await asyncio.to_thread(positions.write, records)
                number = positions.give(offsets)
                if isinstance(thing, EventGroup):
                    rows = manifest_batch(thing.events, options, self._clock.time_ns())
                    yield AsyncBatch(rows, offsets, None, positions, number, thing.events)
                elif rollback is None:
                    yield AsyncBatch(thing, offsets, None, positions, number)
                elif callable(options.on_rollback):
                    options.on_rollback(rollback)
                else:
                    row = rollback_batch(rollback, options, self._clock.time_ns())
                    yield AsyncBatch(row, offsets, rollback, positions, number)
        finally:
            await events.aclose()

    async def changes(
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
    ) -> AsyncGenerator[Change, None]:
        """The changes one by one; see `Client.changes`."""
        options = StreamOptions(
            start=start,
            end=end,
            store=store,
            collections=None if collections is None else tuple(collections),
            value_format="binary",
            columns=None,
            on_rollback=on_rollback,
            rewind_to=rewind_to,
            members=members,
            max_batch_rows=MAX_BATCH_ROWS,
            arrow=False,
            read_stable=read_stable,
            purge_gap=purge_gap,
        )
        events = self._run(options, idle_timeout_s)
        try:
            async for thing, offsets, rollback, positions in events:
                if records := positions.due(offsets, rollback):
                    await asyncio.to_thread(positions.write, records)
                done = 0
                try:
                    if rollback is None:
                        for change in thing:
                            yield change
                            done += 1
                    elif callable(options.on_rollback):
                        options.on_rollback(rollback)
                    else:
                        yield rollback_change(rollback)
                except BaseException:
                    # Left in the middle: what was followed by a request for more is dealt with, the last one is not.
                    if done:
                        await asyncio.to_thread(positions.save, positions_after(thing[:done]))
                    raise
                await asyncio.to_thread(positions.save, offsets)
        finally:
            await events.aclose()

    async def close(self) -> None:
        """Streams close their connections when they end; there are no others."""

    async def __aenter__(self) -> AsyncClient:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    async def _run(
        self, options: StreamOptions, idle_timeout_s: float | None
    ) -> AsyncGenerator[tuple[Any, Mapping[int, StreamOffset], RollbackEvent | None, Positions], None]:
        store = options.offset_store
        saved = await asyncio.to_thread(store.load) if store is not None else {}
        found, _ = await self._observe(())
        own = options.own_vbuckets(found.vbucket_count)
        observed = (await self._observe(own))[1] if options.needs_observation else {}
        ranges = options.ranges(found.vbucket_count, saved, observed)
        positions = Positions(ranges, store, saved)
        settings = dcp_settings(
            self._name, self._buffer_bytes, options.columns, out_of_order=options.may_come_out_of_order(ranges)
        )
        nodes = Nodes(replace(self._options, arrow=options.arrow, settings=settings), self._random)
        nodes.map = found
        reader = StreamReader(
            ranges,
            nodes,
            self._random,
            options.converter(),
            policy=options.policy,
            collections=options.collections,
            idle_timeout_s=idle_timeout_s,
            patience_s=self._patience_s,
            now=self._clock.monotonic(),
            purge_gap=options.on_purge_gap,
            is_stable=options.read_stable,
            to_zero=options.rewind_to == "zero",
        )
        positions.branches = reader.branches
        hub = AsyncSockets(reader, nodes, self._clock)
        try:
            while True:
                event = reader.next_event()
                if isinstance(event, RollbackEvent):
                    yield None, {event.vbid: event.resumed_at}, event, positions
                elif isinstance(event, EventGroup):
                    yield options.told(event), event.offsets, None, positions
                    reader.record(event.offsets)
                    reader.resumed(self._clock.monotonic())
                elif event is not None:
                    thing, offsets = event
                    yield thing, offsets, None, positions
                    reader.record(offsets)
                    reader.resumed(self._clock.monotonic())
                elif reader.is_done:
                    return
                else:
                    reader.step(self._clock.monotonic())
                    await hub.turn()
        finally:
            await hub.close()

    async def _observe(self, vbids: Sequence[int] | None) -> tuple[VbucketMap, dict[int, BranchState]]:
        """The map, and the branches of some vbuckets: log, high seqno, log again."""
        if self._unresolved is not None:
            seeds = await asyncio.to_thread(resolve_seeds, self._unresolved)
            self._options = replace(self._options, seeds=seeds)
            self._unresolved = None
        nodes = Nodes(self._options, self._random, was_reached=self._was_reached)
        machine = Questions([Question(Opcode.NOOP)], nodes, self._random)
        hub = AsyncSockets(machine, nodes, self._clock)
        try:
            await self._ask(machine, nodes, hub)
            assert nodes.map is not None
            self._was_reached = True
            if not vbids:
                return nodes.map, {}
            before = [Question(Opcode.DCP_GET_FAILOVER_LOG, vbid) for vbid in vbids]
            highs = [
                Question(Opcode.GET_ALL_VB_SEQNOS, node=node, extras=ACTIVE_STATE)
                for node in nodes.map.vbuckets_by_node()
            ]
            after = [Question(Opcode.DCP_GET_FAILOVER_LOG, vbid) for vbid in vbids]
            for questions in (before, highs, after):
                machine = Questions(questions, nodes, self._random)
                hub.machine = machine
                await self._ask(machine, nodes, hub)
                if not logs_of(before):
                    break
            return nodes.map, states_of(logs_of(before), high_seqnos_of(highs, nodes.map.vbucket_count), logs_of(after))
        finally:
            await hub.close()

    async def _ask(self, machine: Questions, nodes: Nodes, hub: AsyncSockets) -> None:
        deadline = self._clock.monotonic() + self._options.connect_timeout_s
        while not machine.is_done:
            now = self._clock.monotonic()
            machine.step(now)
            machine.check()
            if now >= deadline:
                break
            await hub.turn(min(MAX_WAIT_S, deadline - now))
            machine.check()
        if nodes.map is None:
            raise ConnectTimeout(
                f"no node gave the cluster map within {self._options.connect_timeout_s:g} s. Tried {nodes.tried()}. "
                "Is the node running, and is this its data port?"
            )
