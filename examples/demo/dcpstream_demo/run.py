"""A run of the demo, from the flights to the verdict: load, stream, kill, drain, compare, draw.

The order of the kills is not left to chance. The query is killed while it works on a batch. The node is killed when the
tables hold changes that the node has not yet written to its disk: only then is there something to roll back. The stage
looks that up (committed offsets in the checkpoint, persisted seqnos of the node) while the loader holds. If the node's
disk was faster, the stage tries again a few changes later.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dcpstream.errors import DcpstreamError
from dcpstream_demo import picture, report
from dcpstream_demo.bucket import Access, LoaderBucket, read_documents
from dcpstream_demo.display import Display
from dcpstream_demo.flights import Flight, change_count, changes, final_state, find_file, read_flights
from dcpstream_demo.loader import Loader, LoaderState
from dcpstream_demo.processes import Children, NodeProcess, QueryProcess
from dcpstream_demo.settings import BUCKET, STALL_TIMEOUT_S, Settings
from dcpstream_demo.verdict import Result, judge
from dcpstream_demo.watch import CheckpointWatch, Committed, History, NodeSeqnos, NodeWatch, Sample, ahead_of

LOOK_INTERVAL_S = 0.2
"""Pause between two observations; each costs two requests to the node and a directory listing."""

WAITING_SAID_S = 30.0
"""After so long without progress, and again after each further such time, the demo says what it waits for."""

NODE_KILLS_MAX = 6
"""Attempts to kill the node at the right moment."""

ROLLBACKS_PRINTED = 3
"""Rollbacks printed per batch; all are counted, and all are in the table `changes`."""


OTHER_WORK_S = 35.0
"""Starts of Spark, the catching up after kills, the comparison and the picture, on two quiet cores."""

PLAN = (
    "The lives of flights are written to a node; a Spark query keeps two tables of them.",
    "At the end bucket and tables are compared, key by key, and drawn.",
    "On the way the query, and then the node, are killed (-9) and started again.",
)
"""First lines of a run; the last one only if it kills."""


class Stalled(DcpstreamError):
    """A phase makes no more progress."""


class Wait:
    """A wait for one thing, which ends without it only if nothing moves.

    Args:
        what: is waited for.
        now_s: the time.
    """

    def __init__(self, what: str, now_s: float) -> None:
        self._what = what
        self._state: object = None
        self._moved_at_s = self._said_at_s = now_s

    def look(self, state: object, now_s: float) -> str:
        """The text to show after another look; empty if none.

        Args:
            state: what differs from the last look's if something has moved.
            now_s: the time.

        Raises:
            Stalled: nothing has moved for `STALL_TIMEOUT_S`.
        """
        if state != self._state:
            self._state = state
            self._moved_at_s = self._said_at_s = now_s
        still_s = now_s - self._moved_at_s
        if still_s > STALL_TIMEOUT_S:
            raise Stalled(f"waited {STALL_TIMEOUT_S:.0f} s for {self._what}")
        if now_s - self._said_at_s < WAITING_SAID_S:
            return ""
        self._said_at_s = now_s
        return f"still waiting for {self._what}: nothing has moved for {still_s:.0f} s"


@dataclass(slots=True)
class _Tally:
    """Sums over the events of the query."""

    rows: int = 0
    batches: int = 0
    rollbacks: int = 0
    query_failures: int = 0


def kill_points(total: int, chance: random.Random) -> list[int]:
    """After how many changes the loader holds: once for the query's kill, then for each attempt at the node's."""
    first = chance.uniform(0.22, 0.32)
    second = chance.uniform(0.45, 0.55)
    shares = [first, *(second + 0.06 * attempt for attempt in range(NODE_KILLS_MAX))]
    points: list[int] = []
    for share in shares:
        point = int(share * total)
        if point > (points[-1] if points else 0):
            points.append(point)
    return points


class Stage:
    """The processes and the loader while changes flow.

    Args:
        settings, display, children: see `dcpstream_demo.run.Run`.
        flights: whose changes are played.
        hold_at: from `kill_points`; empty for a run without kills.

    Attributes:
        node: the node's process, which outlives the stage: the comparison reads from it.
        history: all observations.
    """

    def __init__(
        self, settings: Settings, display: Display, children: Children, flights: list[Flight], hold_at: list[int]
    ) -> None:
        self.history = History()
        self.node = NodeProcess(settings, children, secrets.token_urlsafe(12))
        self._settings = settings
        self._display = display
        self._children = children
        self._total = change_count(flights)
        self._tally = _Tally()
        self._query: QueryProcess | None = None
        self._watch: NodeWatch | None = None
        self._checkpoint = CheckpointWatch(settings.tables / "checkpoint", BUCKET)
        self._loader = Loader(
            lambda: LoaderBucket(self.node.access),
            changes(flights),
            changes_per_s=float(settings.rate) or None,
            hold_at=hold_at,
        )
        self._attempts_left = max(0, len(hold_at) - 1)
        self._seen: dict[int, NodeSeqnos] = {}
        self._committed = Committed()

    # ------------------------------------------------------------------------------------------------------- phases

    def open(self) -> None:
        """Start node, query and loader."""
        display = self._display
        took = self.node.start()
        display.say(
            f"node up in {took:.2f} s: {self._settings.vbuckets} vbuckets on disk, "
            f"a commit every {self._settings.flush_interval_s:g} s"
        )
        self._watch = NodeWatch(self.node.access)
        self._query = QueryProcess(self._settings, self._children, self.node.access)
        self._query.start()
        display.say("starting Spark and the streaming query (about ten seconds)")
        self._until(self._query.is_started.is_set, "the query to start")
        self._loader.start()
        display.say("loader started")

    def kill_query(self) -> None:
        """Kill -9 the query in the middle of a batch, and start it again from its checkpoint."""
        assert self._query is not None
        self._until_held(1)
        self._until(
            lambda: self._committed.batch_id >= 0 and (self._committed.is_batch_open or self._has_caught_up()),
            "the query to work on a batch",
        )
        is_held = self._committed.is_batch_open
        if not is_held:
            # The query finished its batch between two observations: give it more to do.
            before = self._loader.written
            self._loader.release()
            self._until(
                lambda: self._committed.is_batch_open or (self._loader.written > before and self._has_caught_up()),
                "the query to work on a batch",
            )
        middle = f"in the middle of batch {self._committed.batch_id + 1}" if self._committed.is_batch_open else "idle"
        self._query.kill()
        self._mark(f"kill -9 the query, {middle}")
        self._query.start()
        if is_held:
            self._loader.release()

    def kill_node(self) -> None:
        """Kill -9 the node while the tables hold what its disk does not, until that has happened once."""
        assert self._query is not None
        self._until(self._query.is_started.is_set, "the query to start again")
        for attempt in range(self._attempts_left):
            self._until_held(2 + attempt)
            if self._loader.state is LoaderState.DONE:
                break
            self._until(lambda: bool(self._ahead_of_disk()) or self._is_level(), "something to lose")
            if self._kill_node_now():
                self._loader.hold_no_more()
                self._loader.release()
                return
            self._loader.release()
        self._display.say("the node's disk was quicker every time: nothing was rolled back", style="bold red")

    def drain(self) -> None:
        """Wait until all is written, persisted, and in the tables; then stop the query."""
        assert self._query is not None
        self._until(lambda: self._loader.state is LoaderState.DONE, "the loader to finish")
        self._display.say(
            f"loader done: {self._loader.written:,} changes written, {self._loader.written_again:,} of them again, "
            f"{self._loader.reconnects} reconnects; all persisted"
        )
        self._until(self._is_drained, "the tables to catch up")
        tally = self._tally
        self._query.stop()
        self._take_events()
        self._display.say(
            f"drained: {tally.batches} batches, {tally.rows:,} rows delivered, {tally.rollbacks} rollbacks, "
            f"{tally.query_failures} failures of the query that it recovered from"
        )
        lags = [lag for _, lag in self.history.lags_s()]
        seconds = self.history.samples[-1].at_s - self.history.samples[0].at_s if lags else 0.0
        if lags and seconds > 0:
            self._display.say(
                f"{self._total / seconds:,.0f} changes/s from first to last, "
                f"lag median {sorted(lags)[len(lags) // 2]:.1f} s, largest {max(lags):.1f} s (restarts included)"
            )

    def close(self) -> None:
        """Stop the loader and the observations; `Children` ends the processes."""
        self._loader.stop()
        if self._watch is not None:
            self._watch.close()

    # ------------------------------------------------------------------------------------------------------ details

    def _kill_node_now(self) -> bool:
        """One attempt; returns whether the tables hold changes that the node lost."""
        assert self._watch is not None
        ahead = self._ahead_of_disk()
        if not ahead:
            self._display.say("the disk has all that the tables have; going on a little")
            return False
        branches = {vbid: seqnos.vbuuid for vbid, seqnos in self._seen.items()}
        self.node.kill()
        self._mark("kill -9 the node")
        self._display.say(
            f"the tables held {sum(ahead.values()):,} changes of {len(ahead)} vbuckets that were not on the node's disk"
        )
        took = self.node.start()
        survived = self._watch.survived(branches)
        void = ahead_of(self._checkpoint.look(), survived)
        self._display.say(
            f"node up again in {took:.2f} s; "
            f"{sum(void.values()):,} seqnos of {len(void)} vbuckets in the tables are void"
        )
        return bool(void)

    def _until_held(self, times: int) -> None:
        """Wait until the loader holds for the nth time, or has nothing more to write."""
        self._until(
            lambda: self._loader.holds >= times or self._loader.state is LoaderState.DONE,
            "the loader to get so far",
        )

    def _ahead_of_disk(self) -> dict[int, int]:
        return ahead_of(self._committed, {vbid: seqnos.persisted for vbid, seqnos in self._seen.items()})

    def _has_caught_up(self) -> bool:
        """Whether everything that the node has is in the tables."""
        return bool(self._seen) and all(
            vbid in self._committed.positions and self._committed.positions[vbid].seqno >= seqnos.current
            for vbid, seqnos in self._seen.items()
            if seqnos.current
        )

    def _is_level(self) -> bool:
        """Whether everything that the node has is on its disk and in the tables."""
        return self._has_caught_up() and all(item.persisted == item.current for item in self._seen.values())

    def _is_drained(self) -> bool:
        assert self._watch is not None
        if self._committed.is_batch_open or self._committed.total < sum(item.current for item in self._seen.values()):
            return False
        return self._committed.has_all_of(self._seen, self._watch.failover_logs())

    def _until(self, is_reached: Callable[[], bool], what: str) -> None:
        """Observe until `is_reached`; raise Stalled if nothing moves for too long."""
        wait = Wait(what, time.monotonic())
        while True:
            self._look()
            if is_reached():
                return
            state = (self._loader.written, self._loader.written_again, self._committed, self._tally.rows)
            try:
                text = wait.look(state, time.monotonic())
            except Stalled as error:
                raise Stalled(f"{error}; see the logs in {self._settings.directory}") from None
            if text:
                self._display.say(text)
            time.sleep(LOOK_INTERVAL_S)

    def _look(self) -> None:
        """Observe everything once, and show it."""
        assert self._watch is not None
        assert self._query is not None
        self._loader.check()
        self.node.check()
        self._take_events()
        if not self._query.is_running:
            if not self._query.is_started.is_set():
                raise self._query.failure("did not start")
            self._display.say("the query's process has ended; starting it again", style="yellow")
            self._query.start()
        seen = self._watch.look()
        if seen is not None:
            self._seen = seen
        self._committed = self._checkpoint.look()
        high = sum(item.current for item in seen.values()) if seen is not None else None
        if self._loader.state is LoaderState.WAITING:
            return
        self.history.add(Sample(self._display.elapsed_s, self._loader.written, high, self._committed.total))
        self._display.bar("written", self._loader.written, self._total, self._loader.state.value)
        if high:
            behind = max(0, high - self._committed.total)
            self._display.bar("in the tables", min(high, self._committed.total), high, f"{behind:,} behind")

    def _mark(self, what: str) -> None:
        self.history.mark(self._display.elapsed_s, what.partition(",")[0])
        self._display.say(what, style="bold red")

    def _take_events(self) -> None:
        assert self._query is not None
        for event in self._query.events():
            self._show(event)

    def _show(self, event: dict[str, Any]) -> None:
        if event["event"] == "batch":
            self._tally.batches += 1
            self._tally.rows += event["rows"]
            if event["is_recovered"]:
                self._display.say(f"batch {event['batch_id']} stood in one table only; finished")
            self._show_rollbacks(event)
        elif event["event"] == "failed":
            self._tally.query_failures += 1
            self._display.say(f"the query failed and starts again: {event['error']}", style="yellow")
        elif event["event"] == "session":
            self._display.say(f"Spark {event['spark']} up in {event['seconds']:.1f} s")

    def _show_rollbacks(self, event: dict[str, Any]) -> None:
        found = event["rollbacks"]
        if not found:
            return
        self._tally.rollbacks += len(found)
        void = sum(max(0, item["from_seqno"] - item["to_seqno"]) for item in found)
        self.history.mark(self._display.elapsed_s, f"{len(found)} rollbacks")
        self._display.say(
            f"ROLLBACK of {len(found)} vbuckets in batch {event['batch_id']}: {void:,} seqnos taken back, read again",
            style="bold magenta",
        )
        for item in found[:ROLLBACKS_PRINTED]:
            self._display.line(
                f"{'':11}vbucket {item['vbucket']}: from seqno {item['from_seqno']:,} back to {item['to_seqno']:,}, "
                f"branch {int(item['old_vbuuid']):012x} → {int(item['new_vbuuid']):012x}"
            )
        if len(found) > ROLLBACKS_PRINTED:
            self._display.line(f"{'':11}… and {len(found) - ROLLBACKS_PRINTED} more")


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        settings: of the run.
        display: shows the progress.
        children: the processes; the caller ends them.
    """

    settings: Settings
    display: Display
    children: Children

    def play(self) -> Result:
        """Load, stream, kill, drain, compare, draw."""
        settings = self.settings
        settings.prepare()
        for line in PLAN if settings.kills else PLAN[:2]:
            self.display.line(line)
        flights = self._read_flights()
        hold_at: list[int] = []
        if settings.kills:
            hold_at = kill_points(change_count(flights), random.Random(settings.seed))
        stage = Stage(settings, self.display, self.children, flights, hold_at)
        try:
            with self.display.bars():
                stage.open()
                if settings.kills:
                    stage.kill_query()
                    stage.kill_node()
                stage.drain()
        finally:
            stage.close()
        result = self._judge(flights, stage.node.access)
        stage.node.kill()
        self._draw(result, stage.history)
        return result

    def _read_flights(self) -> list[Flight]:
        path = self.settings.flights or find_file()
        flights = read_flights(path, self.settings.rows)
        changes = change_count(flights)
        self.display.say(f"{len(flights):,} flights read, {changes:,} changes in their lives")
        if self.settings.rate:
            seconds = changes / self.settings.rate + OTHER_WORK_S
            self.display.line(f"On two quiet cores this takes about {seconds / 60:.1f} minutes.")
        return flights

    def _judge(self, flights: list[Flight], access: Access) -> Result:
        keys = [flight.key for flight in flights]
        with self.display.bars():
            bucket = read_documents(access, keys, lambda count: self.display.bar("read the bucket", count, len(keys)))
            result = judge(final_state(flights), bucket, self.settings.tables, self.display.bar)
        for line in result.lines():
            self.display.line(line)
        return result

    def _draw(self, result: Result, history: History) -> None:
        carriers = picture.carrier_rows(result.documents.values())
        title = f"dcpstream demo: {result.verdict.removeprefix('verdict: ')}"
        path = picture.draw(self.settings.picture, history, carriers, title)
        self.display.say(f"picture: {path}")
        self.display.say(f"report: {report.write(self.settings.report, result, history, carriers, path)}")
