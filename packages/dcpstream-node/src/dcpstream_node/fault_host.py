"""Carries faults out on a running node: those of frames go to `Faults`, the others are done here."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import Any

from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream_node.bucket_host import RunningBuckets
from dcpstream_node.dcp.replica import fail_over_to_stale_copy
from dcpstream_node.engine import Bucket, Engine
from dcpstream_node.faults import Fault, FaultyDisk, MovableClock, read_fault
from dcpstream_node.faults.fault import AT_ONCE, OF_REQUESTS, OF_SENT
from dcpstream_node.shell.server import KvServer
from dcpstream_node.store import CompactionOrder

logger = logging.getLogger(__name__)

HANG_AFTER_S = 0.05
"""Until a node hangs, so that the order to do so is answered before."""
PURGE_TIMEOUT_S = 60.0
"""Longest purge that is waited for; it rewrites the files that hold deletions."""


class FaultHost:
    """The faults of a running node; used on its loop.

    Args:
        disk: None for a node whose data is in memory.
    """

    def __init__(
        self, server: KvServer, engine: Engine, buckets: RunningBuckets, clock: MovableClock, disk: FaultyDisk | None
    ) -> None:
        self._server = server
        self._engine = engine
        self._buckets = buckets
        self._clock = clock
        self._disk = disk
        self._faults = server.faults
        self._lasting: dict[int, tuple[Fault, list[asyncio.TimerHandle]]] = {}

    async def inject(self, kind: str, given: Mapping[str, Any]) -> int:
        """Let something go wrong; see `Fault`. Returns the fault's number, 0 if it is over with that.

        Raises: ConfigError: a fault that cannot be.
        """
        fault = read_fault(kind, given)
        logger.info("fault: %s", fault.to_json())
        if kind in AT_ONCE:
            await self._do(fault)
            return 0
        if kind in ("full_disk", "slow_disk") and self._disk is None:
            raise ConfigError("kind", kind, "a fault of a node with a data directory; this one's data is in memory")
        if kind == "forget_manifest":
            self._bucket(fault.bucket)  # complain now
        loop = self._server.loop
        number = self._faults.add(fault, loop.time())
        if kind not in OF_SENT | OF_REQUESTS:
            timers = [] if fault.for_s is None else [loop.call_later(fault.after_s + fault.for_s, self.lift, number)]
            if fault.after_s:
                timers.append(loop.call_later(fault.after_s, self._set, fault, number))
            else:
                self._set(fault, number)
            self._lasting[number] = fault, timers
        return number

    def _set(self, fault: Fault, number: int) -> None:
        self._faults.note_hit(number)
        self._switch(fault, is_on=True)

    def _switch(self, fault: Fault, *, is_on: bool) -> None:
        """Begin or end a fault that lasts and is not about frames."""
        if fault.kind == "stale_map":
            self._engine.freeze_maps(is_on=is_on)
            self._server.schedule_turn()
            return
        if fault.kind == "forget_manifest":
            bucket = self._engine.buckets.get(fault.bucket)
            if bucket is not None:
                bucket.has_forgotten_manifest = is_on
            return
        if fault.kind == "no_map":
            self._engine.hide_maps(is_on=is_on)
            self._server.schedule_turn()
            return
        assert self._disk is not None, "it was looked for"
        if fault.kind == "full_disk":
            self._disk.is_full = is_on
        else:
            self._disk.set_delay(fault.delay_s if is_on else 0.0)

    def lift(self, number: int | None = None) -> None:
        """End a fault, or all of them. One that is not there is left alone."""
        self._faults.lift(number)
        for each in [each for each in self._lasting if number in (None, each)]:
            fault, timers = self._lasting.pop(each)
            for timer in timers:
                timer.cancel()
            self._switch(fault, is_on=False)

    def describe(self) -> list[dict[str, Any]]:
        """The faults that last; see `Faults.describe`."""
        return self._faults.describe()

    # ---------------------------------------------------------------------------------------- what happens at once

    async def _do(self, fault: Fault) -> None:
        if fault.kind == "drop":
            self._server.drop(fault.bucket, fault.connection)
        elif fault.kind == "hang":
            assert fault.for_s is not None, "the kind needs it"
            # Nothing sets the event: the loop, which is all that the node does, stands still.
            self._server.loop.call_later(max(fault.after_s, HANG_AFTER_S), threading.Event().wait, fault.for_s)
        elif fault.kind == "move_clock":
            self._move_clock(fault.seconds)
        elif fault.kind == "purge":
            await self._purge(self._bucket(fault.bucket))
        else:
            assert fault.vbid is not None, "the kind needs it"
            assert fault.seqno is not None, "the kind needs it"
            bucket = self._bucket(fault.bucket)
            if fault.vbid >= bucket.vbucket_count:
                raise ConfigError("vbid", fault.vbid, f"0 to {bucket.vbucket_count - 1}")
            self._server.set_time()
            fail_over_to_stale_copy(self._engine, bucket, fault.vbid, fault.seqno)
            self._server.schedule_turn()

    def _bucket(self, name: str) -> Bucket:
        bucket = self._engine.buckets.get(name)
        if bucket is None:
            raise ConfigError("bucket", name, "a bucket of this node")
        return bucket

    def _move_clock(self, seconds: float) -> None:
        """The loop's clock is the node's, so all that waits for a time until then happens in the next turn."""
        self._clock.move(seconds)
        self._server.loop.time = self._engine.stopwatch = self._clock.monotonic  # type: ignore[method-assign]
        self._server.set_time()
        self._engine.handle_timeout()
        self._server.schedule_turn()

    async def _purge(self, bucket: Bucket) -> None:
        self._server.set_time()
        done: asyncio.Future[None] = self._server.loop.create_future()

        def finish(error: Exception | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        order = CompactionOrder(before_time=self._engine.unix_s + 1, is_full=True)
        if not self._buckets.compactors[bucket.name].request(order, finish):
            raise DcpstreamError(f"bucket {bucket.name} has too many compactions to do; try again later")
        async with asyncio.timeout(PURGE_TIMEOUT_S):
            await done
