"""One seed: a cluster, its trouble, and the judges' verdict.

A seed draws the size of the cluster, what its clients do, and a few operations: rebalances, failovers, and faults at
any moment of them. At the end everything is healed, a rebalance gives every vbucket its copies again, and the judges
compare. The same seed does the same, exchange by exchange.

Only one failure at a time is promised to be survived, so an operation that gives a node up is followed by a rebalance
before the next one begins.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dcpstream.errors import DcpstreamError
from dcpstream.model import Manifest
from dcpstream_node.cluster.machine.failover import fail_over, fail_over_gracefully
from dcpstream_node.cluster.machine.layout import Chain
from dcpstream_node.cluster.machine.rebalance import Rebalance
from dcpstream_node.cluster.machine.recovery import add_back, rejoin
from dcpstream_node.cluster.machine.state import Recovery
from dcpstream_node.cluster.machine.tasks import Outcome, Procedure
from dcpstream_node.testing.simulation.disk import Trouble
from lab.simulation.cluster import MAIN, SimulatedCluster
from lab.simulation.judges import Judge, TableJudge, Violation
from lab.simulation.lines import ALWAYS as FIRST
from lab.simulation.lines import NEVER as LATE
from lab.simulation.reader import SimulatedReader
from lab.simulation.steps import NAMES, Step, Steps
from lab.simulation.trace import Trace
from lab.simulation.workload import Workload

ATTEMPTS_MAX = 12
"""Rebalances until one ends well, after everything is healed."""
PATIENCE_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Time that a client gets to catch up at the end: longer than all its pauses together."""
OPERATION_S = 200.0
"""Longest operation, in virtual time: longer than all time-outs of the orchestrator after each other."""
STALL_S_MAX = 20.0
"""Longest time in which a connection passes nothing, although both ends are well."""
WINDOWS = (150, 400, 64 * 1024)
SMALL_WINDOWS = (60, 150)
"""With these a reader gets a small snapshot in several parts."""
FIRST_COLLECTION = 8
"""The id of the first collection of a bucket; each later one has the next."""
MEMORY = Path("/dev/shm")
"""Folder of files in memory, on Linux: a node's writes matter, not whether the machine's disk has them."""
SECOND_SHARE = 0.1
"""Share with a second bucket, of the seeds that aim at something else."""
LAG_S = 5.0
"""Time that a copy lags in a broken move: longer than all that is done to the move takes."""
NEVER = 1 << 60
"""An exchange that does not come."""


@dataclass(slots=True)
class Report:
    """The result of a seed.

    Attributes:
        failure: the broken promise, or the error; empty if there is none.
        trace: what happened, if it was asked for.
        counts: the number of operations of each kind.
    """

    seed: int
    failure: str = ""
    trace: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def play(seed: int, *, is_traced: bool = False) -> Report:
    """Play one seed."""
    with (
        TemporaryDirectory(prefix="dcpstream-sim-", dir=MEMORY if MEMORY.is_dir() else None) as directory,
        _one_collection(),
    ):
        return _play(seed, Path(directory), is_traced=is_traced)


@contextmanager
def _one_collection() -> Iterator[None]:
    """Collect the garbage of a seed at once, at its end: all of it is young then, and that costs least."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if was_enabled:
            gc.enable()


def _play(seed: int, directory: Path, *, is_traced: bool) -> Report:
    report = Report(seed)
    scenario = None
    try:
        scenario = Scenario(seed, report.trace if is_traced else None, directory=directory)
        scenario.play()
    except Violation as error:
        report.failure = str(error)
    except Exception as error:  # noqa: BLE001 - any error of the code under test is a finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        report.failure = f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}:{last.lineno})"
    if scenario is not None:
        report.counts = scenario.counts()
    return report


class Side:
    """A bucket with its judge, writers and reader.

    Args:
        cluster: that has the bucket; `begins` is called when it is there.
        name: of the bucket.
    """

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self.judge = Judge(cluster, name)
        self._collections = count(FIRST_COLLECTION)
        self.table: TableJudge
        self.reader: SimulatedReader
        self.workload: Workload

    def begin(self, windows: Sequence[int] = WINDOWS) -> None:
        """The bucket is there: draw how it is read, with one of these flow-control windows."""
        chance = self._cluster.chance
        self.table = TableJudge("reader", self.judge.histories)
        self.reader = SimulatedReader(
            self._cluster,
            self.table,
            bucket=self.name,
            buffer_bytes=chance.choice(windows),
            ack_share=chance.choice((0.1, 0.5, 1.0)),
        )
        self.workload = Workload(self._cluster, self.judge, self.name)

    def next_collection(self) -> int:
        """The id of another collection."""
        return next(self._collections)

    @property
    def has_caught_up(self) -> bool:
        """Whether the reader has everything."""
        newest = self.judge.histories.newest
        return all(self.table.documents(vbid) == branch.documents(branch.high) for vbid, branch in newest.items())

    @property
    def is_lost(self) -> bool:
        """Whether the reader knows no node of the cluster any more; then it needs a new address, as in any cluster.

        The same holds for one that reads from a node which was given up while it hung, and serves on.
        """
        cluster, run = self._cluster, self.reader.run
        assert run is not None, "it was begun"
        known = {cluster.name_at(node.kv_port) for node in (run.nodes.map.nodes if run.nodes.map else ())}
        talks_to = {cluster.name_at(each.address.kv_port) for each in run.nodes.connections}
        members = {member.name for member in cluster.orchestrator.known_members()}
        return known.isdisjoint(members) or not talks_to.isdisjoint(cluster.silent)

    def serves(self, node: str) -> list[int]:
        """The vbuckets that a node serves."""
        judge = self.judge
        return [vbid for vbid in range(self._cluster.sizes[self.name]) if judge.histories.serving(vbid) == node]

    def leave(self) -> None:
        """The bucket is to be deleted."""
        self.reader.leave()
        self.judge.leave()

    def finish(self) -> None:
        """The cluster has come to rest, and the reader has read everything."""
        self.judge.finish()
        self.table.finish()


class Scenario:
    """The life of one cluster.

    Args:
        seed: draws everything.
        lines: get a line of text about each step; None: nobody reads them.
        directory: for nodes that keep their data on disk, which those of some seeds do.
    """

    def __init__(self, seed: int, lines: list[str] | None = None, *, directory: Path) -> None:
        self._kinds: list[Callable[[], None]] = [
            self._rebalance_in,
            self._rebalance_out,
            self._swap,
            self._write_only,
            self._fail_over_crashed,
            self._fail_over_stale,
            self._fail_over_within_snapshot,
            self._fail_over_alive,
            self._fail_over_gracefully,
            self._add_back,
            self._fail_over_hung,
            self._fail_over_uneven,
            self._fail_over_torn,
            self._fail_over_within_snapshot,
            self._interrupt_takeover,
            self._break_move,
            self._lag_in_takeover,
            self._lose_deletion,
            self._lose_new_chain,
            self._lose_old_chain,
            self._lose_answer,
            self._fail_over_within_snapshot,
            self._crash_in_rebalance,
            self._cancel_rebalance,
            self._lose_power,
            self._change_buckets,
            self._change_collections,
            self._fail_disk,
            self._lose_map,
        ]
        self._seed = seed
        needs_three = self._kinds[seed % len(self._kinds)] in {self._fail_over_uneven, self._lag_in_takeover}
        cluster = self.cluster = SimulatedCluster(0, seed=seed, begins=False)
        chance = self._chance = cluster.chance
        kind = self._kinds[seed % len(self._kinds)]
        self._has_disks = kind in {self._lose_power, self._fail_disk}
        has_more = kind == self._change_buckets or (not self._has_disks and chance.random() < SECOND_SHARE)
        nodes = 3 if needs_three else chance.choice((2, 3, 3))
        cluster = self.cluster = SimulatedCluster(
            nodes,
            vbuckets=1 if has_more else chance.choice((1, 1, 2, 2, 3)),
            replicas=2 if needs_three else chance.choice((1, nodes - 1)),
            seed=seed,
            split_share=chance.choice((0.0, 0.0, 0.1, 0.4)),
            directory=directory if self._has_disks else None,
            begins=False,
        )
        chance = self._chance = cluster.chance
        self.trace = Trace(cluster, lines)
        self._main = Side(cluster, MAIN)
        cluster.begin()
        self._main.begin(SMALL_WINDOWS if kind == self._fail_over_within_snapshot else WINDOWS)
        self._others: list[Side] = []
        self._made = 0
        self._fault_share = 0.0
        if has_more:
            self._add_bucket()
        self._write_share = chance.choice((0.01, 0.03))
        self._durable_share = chance.choice((0.0, 0.01))
        self._fault_share = chance.choice((0.0, 0.002, 0.01))
        self._begin_at = NEVER
        self._cuts_left = NEVER
        self._cut_orders_at = NEVER, ""
        self._done: dict[str, int] = {}
        cluster.after_pass = self._meanwhile

    def counts(self) -> dict[str, int]:
        """The number of operations of each kind."""
        found = {
            "exchanges": self.cluster.passed,
            "writes": sum(side.workload.written for side in self._sides),
            "durable writes": sum(side.workload.acknowledged for side in self._sides),
            "durable writes without outcome": sum(side.workload.uncertain for side in self._sides),
            "snapshots compared": sum(side.table.compared for side in self._sides),
            "rollbacks of readers": sum(side.table.rollbacks for side in self._sides),
            "dropped collections reported to readers": sum(side.table.dropped for side in self._sides),
            "writes and syncs that a disk refused": sum(
                node.disk.refused for node in self.cluster.nodes.values() if node.disk is not None
            ),
            "readers begun": sum(side.reader.runs for side in self._sides),
        }
        return found | self._done

    @property
    def _sides(self) -> list[Side]:
        return [self._main, *self._others]

    @property
    def judge(self) -> Judge:
        """The judge of the bucket at which faults aim."""
        return self._main.judge

    @property
    def reader(self) -> SimulatedReader:
        """The reader of the same bucket."""
        return self._main.reader

    @property
    def workload(self) -> Workload:
        """The workload of the same bucket."""
        return self._main.workload

    def play(self) -> None:
        """Everything from the first write to the last comparison."""
        cluster, chance = self.cluster, self._chance
        if chance.random() < 0.3:
            self._set_collections(self._main, [self._main.next_collection()])
        for _ in range(chance.randrange(12)):
            self.workload.write()
        self._begin_readers()
        if chance.random() < 0.5:
            cluster.settle(0.5)
        for number in range(chance.choice((1, 1, 1, 2))):
            self._operate(number)
        self._heal()
        cluster.after_pass = self._look
        self._repair()
        self._begin_readers()
        for seconds in PATIENCE_S:
            cluster.settle(seconds)
            if all(side.has_caught_up for side in self._sides):
                break
            for side in self._sides:
                if side.is_lost:
                    self._count("reader that knew no node")
                    side.reader.kill()
            self._begin_readers()
        for side in self._sides:
            side.finish()

    def _set_collections(self, side: Side, ids: list[int]) -> bool:
        """Give a bucket these collections and the default one; returns whether every node has them."""
        bucket = self.cluster.orchestrator.buckets[side.name]
        named = [{"name": f"c{number:x}", "uid": f"{number:x}"} for number in ids]
        manifest = Manifest.from_json(
            {
                "uid": f"{bucket.manifest.uid + 1:x}",
                "scopes": [{"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}, *named]}],
            }
        )
        side.workload.dropped += [number for number in side.workload.collections if number not in ids]
        side.workload.collections = ids
        self.trace.note(f"collections of {side.name}: {ids}")
        return self._try(self.cluster.orchestrator.set_manifest(bucket, manifest))

    def _change_collections(self) -> None:
        """Collections are dropped and made under load, while copies follow, and the cluster changes at once after."""
        cluster, chance = self.cluster, self._chance
        for _ in range(chance.randrange(1, 4)):
            for side in self._sides:
                ids = side.workload.collections
                kept = [number for number in ids if chance.random() < 0.4]
                new = [] if kept and chance.random() < 0.5 else [side.next_collection()]
                for _ in range(chance.randrange(2, 8)):
                    side.workload.write()
                side.workload.write_durably()
                if chance.random() < 0.5:
                    self._go_on(chance.randrange(60))
                self._set_collections(side, kept + new)
                for _ in range(chance.randrange(2, 8)):
                    side.workload.write()
            self._go_on(chance.randrange(100))
        draw = chance.random()
        if draw < 0.4:
            self._give_up(chance.choice(self._active()), is_crashed=True)
            self._repair()
        elif draw < 0.8:
            _, outcome = self._begin_rebalance()
            for side in self._sides:
                self._go_on(chance.randrange(150), outcome)
                self._set_collections(side, [side.next_collection()])
            self._await(outcome)
        else:
            cluster.settle(0.1)

    # ------------------------------------------------------------------------------------------------------ all along

    def _meanwhile(self) -> None:
        """After each exchange: clients write, connections fail."""
        chance = self._chance
        draw = chance.random()
        if draw < self._write_share:
            self.workload.write()
        elif draw < self._write_share + self._durable_share:
            self.workload.write_durably()
        elif draw > 1 - self._fault_share:
            self._fail_something()
        if self._others:
            self._write_elsewhere()
        self._look()
        if self.reader.run is None and self._begin_at <= self.cluster.passed:
            self._begin_readers()
        if self._cut_orders_at[0] <= self.cluster.passed:
            node = self._cut_orders_at[1]
            self._cut_orders_at = NEVER, ""
            if node in self.cluster.orchestrator.members:
                self.trace.note(f"orders to {node} are cut")
                self.cluster.disconnect(self.cluster.orchestrator.orders(node, self.cluster.bucket.name))

    def _write_elsewhere(self) -> None:
        """Write to another bucket than the one at which faults aim."""
        draw = self._chance.random()
        if draw < self._write_share:
            self._chance.choice(self._others).workload.write()
        elif draw < self._write_share + self._durable_share:
            self._chance.choice(self._others).workload.write_durably()

    def _look(self) -> None:
        """Take the answers to durable writes."""
        for side in self._sides:
            side.workload.look()

    def _begin_readers(self) -> None:
        """Begin the readers that are down."""
        for side in self._sides:
            if side.reader.run is None:
                self._begin_at = NEVER
                self.trace.note(f"the reader of {side.name} begins")
                side.reader.begin()

    def _fail_something(self) -> None:
        cluster, chance = self.cluster, self._chance
        kind = chance.choice(("cut", "cut", "stall", "reader"))
        self._count(kind)
        if kind == "reader" and self.reader.run is not None:
            self.trace.note("the reader dies")
            self.reader.kill()
            self._begin_at = cluster.passed + chance.randrange(300)
        elif kind == "cut" and cluster.lines.all and self._cuts_left:
            self._cuts_left -= 1
            line = chance.choice(cluster.lines.all)
            self.trace.note(f"{line.name}-{line.node} is cut")
            cluster.lines.cut(line)
        elif kind == "stall" and cluster.lines.all and self._cuts_left > 1:
            line = chance.choice(cluster.lines.all)
            cluster.stall(line, chance.randrange(1, 400), chance.choice((0.1, 3.0, STALL_S_MAX)))

    def _count(self, what: str) -> None:
        self._done[what] = self._done.get(what, 0) + 1

    def _heal(self) -> None:
        """No fault goes on."""
        for node in self.cluster.nodes.values():
            if node.disk is not None:
                node.disk.trouble = None
        self.cluster.end_stalls()
        for name in sorted(self.cluster.hung):
            self.cluster.wake(name)
        self.cluster.orchestrator.pause(is_on=False)

    # ------------------------------------------------------------------------------------------------------- operations

    def _operate(self, number: int) -> None:
        """One operation, with what may happen to it. The first operations of successive seeds take turns."""
        cluster, chance = self.cluster, self._chance
        kind = self._kinds[self._seed % len(self._kinds)] if not number else chance.choice(self._kinds)
        name = kind.__name__.strip("_").replace("_", " ")
        self.trace.note(f"== {name}")
        self._count(name)
        kind()
        self.trace.note(f"== {name} is over: {cluster.bucket.chains}")

    def _join(self) -> str:
        """A node comes, and gets the collections; returns its name."""
        name = self.cluster.add_node()
        for _ in range(ATTEMPTS_MAX):
            if self._try(self.cluster.orchestrator.push_manifests(name)):
                break
        return name

    def _active(self) -> list[str]:
        return [member.name for member in self.cluster.orchestrator.known_members()]

    def _try(self, procedure: Procedure[Any]) -> bool:
        """Carry out a procedure that may fail as the orchestrator's procedures do."""
        return self._await(self.cluster.orchestrator.tasks.start(procedure))

    def _await(self, outcome: Outcome[Any]) -> bool:
        start = self.cluster.now
        self.cluster.until(lambda: outcome.is_done or self.cluster.now > start + OPERATION_S)
        if not outcome.is_done:
            raise Violation(f"an operation ends: this one has not after {OPERATION_S:g} s")
        if outcome.error is None:
            return True
        if not isinstance(outcome.error, DcpstreamError | TimeoutError):
            raise outcome.error
        self.trace.note(f"it failed: {type(outcome.error).__name__}: {outcome.error}")
        return False

    def _repair(self) -> None:
        """Rebalances until every vbucket has its copies, without further faults."""
        cluster = self.cluster
        fault_share, self._fault_share = self._fault_share, 0.0
        self._heal()
        for name in [name for name, member in cluster.orchestrator.members.items() if not member.is_failed]:
            if name not in cluster.nodes:
                self._try(fail_over(cluster.orchestrator, [name]))
        while len(self._active()) < cluster.bucket.replicas + 1:
            cluster.orchestrator.members[self._join()].is_active = True
        for _ in range(ATTEMPTS_MAX):
            if self._try(Rebalance(cluster.orchestrator).run()):
                break
        else:
            raise Violation(f"a rebalance ends well: {ATTEMPTS_MAX} in a row failed, without any fault")
        cluster.settle(0.5)
        self._fault_share = fault_share

    def _add_bucket(self) -> None:
        """Another bucket is made."""
        cluster = self.cluster
        name, self._made = f"more{self._made}", self._made + 1
        self.trace.note(f"bucket {name} is made")
        cluster.sizes[name] = 1
        side = Side(cluster, name)
        fault_share, self._fault_share = self._fault_share, 0.0
        cluster.add_bucket(name, 1)
        self._fault_share = fault_share
        side.begin()
        self._others.append(side)

    def _change_buckets(self) -> None:
        """Buckets are emptied, deleted and made under load, and the cluster changes at once after that."""
        cluster, chance = self.cluster, self._chance
        for _ in range(chance.randrange(1, 4)):
            kind = chance.choice(("make", "empty", "empty", "delete"))
            if kind == "make" and len(self._others) < 2:
                self._add_bucket()
            elif self._others and not cluster.hung and len(self._active()) == len(cluster.nodes):
                side = chance.choice(self._others)
                self._count(f"{kind} bucket")
                self._look()
                if kind == "delete":
                    self.trace.note(f"bucket {side.name} is deleted")
                    side.leave()
                    self._others.remove(side)
                    cluster.drop_bucket(side.name)
                else:
                    self.trace.note(f"bucket {side.name} is emptied")
                    self._try(cluster.flush_bucket(side.name, side.judge.emptied))
            for side in self._others:
                for _ in range(4):
                    side.workload.write()
                side.workload.write_durably()
            self._begin_readers()
            self._go_on(chance.randrange(150))
        if chance.random() < 0.5:
            self._give_up(chance.choice(self._active()), is_crashed=True)
            self._repair()
        else:
            _, outcome = self._begin_rebalance()
            self._await(outcome)

    def _write_only(self) -> None:
        self._go_on(self._chance.randrange(100))
        for _ in range(5):
            self.workload.write()
            self.workload.write_durably()
        self.cluster.settle(0.2)

    def _rebalance_in(self) -> None:
        self._join()
        self._try(Rebalance(self.cluster.orchestrator).run())

    def _rebalance_out(self) -> None:
        """A node leaves; perhaps it is failed over when all its vbuckets have moved, while it is removed."""
        if len(self._active()) < 3:
            self._join()
        gone = self._chance.choice(self._active())
        rebalance = Rebalance(self.cluster.orchestrator, [gone])
        outcome = self.cluster.orchestrator.tasks.start(rebalance.run())
        if self._chance.random() < 0.3:
            self.cluster.until(lambda: outcome.is_done or 0 < rebalance.moves == rebalance.moved)
            self._fail_over_slowly(gone)
        self._await(outcome)

    def _fail_over_slowly(self, node: str) -> None:
        """Fail a node over that carries out late what was passed to its copies, so that the failover takes a moment."""
        cluster, o = self.cluster, self.cluster.orchestrator
        if node in self._active():
            self.trace.note(f"{node} is failed over while it leaves")
            orders = [cluster.line_of(o.orders(node, bucket)) for bucket in (*o.buckets, "")]
            for line in cluster.lines.of_node(node):
                if line.name == "orchestrator" and line not in orders:
                    cluster.stall(line, self._chance.randrange(100, 400), 1.0)
            self._try(fail_over(o, [node]))

    def _swap(self) -> None:
        gone = self._chance.choice(self._active())
        self._join()
        self._try(Rebalance(self.cluster.orchestrator, [gone]).run())

    def _cancel_rebalance(self) -> None:
        cluster = self.cluster
        self._join()
        rebalance = Rebalance(cluster.orchestrator, [self._chance.choice(self._active())])
        outcome = cluster.orchestrator.tasks.start(rebalance.run())
        limit = cluster.passed + self._chance.randrange(1, 300)
        cluster.until(lambda: outcome.is_done or cluster.passed >= limit)
        rebalance.cancel()
        self._await(outcome)

    def _crash_in_rebalance(self) -> None:
        cluster = self.cluster
        self._join()
        victims = self._active()
        outcome = cluster.orchestrator.tasks.start(Rebalance(cluster.orchestrator).run())
        limit = cluster.passed + self._chance.randrange(1, 300)
        cluster.until(lambda: outcome.is_done or cluster.passed >= limit)
        self._give_up(self._chance.choice(victims), is_crashed=self._chance.random() < 0.7)
        self._await(outcome)
        self._repair()

    def _give_up(self, victim: str, *, is_crashed: bool) -> None:
        """Fail a node over that is dead, hangs, or runs."""
        cluster = self.cluster
        if len(self._active()) < 2 or victim not in self._active():
            return
        if is_crashed:
            self.trace.note(f"{victim} dies")
            cluster.crash(victim)
        # A node that cannot be reached serves on; one that can be reached after a lost connection must not.
        self._cuts_left = 1
        cluster.end_stalls()
        o = cluster.orchestrator
        if not is_crashed and self._chance.random() < 0.5:
            self._cuts_left = 0
            self._cut_orders_at = cluster.passed + self._chance.randrange(12), victim
        self._try(fail_over(o, [victim]))
        self._cut_orders_at = NEVER, ""
        self._cuts_left = NEVER
        if not is_crashed and victim in cluster.nodes and victim not in cluster.silent:
            serving = [(side.name, vbid) for side in self._sides for vbid in side.serves(victim)]
            if serving:
                raise Violation(f"a node that was given up serves nothing: {victim} serves {serving}")

    def _fail_over_crashed(self) -> None:
        self._give_up(self._chance.choice(self._active()), is_crashed=True)
        self._repair()

    def _fail_over_alive(self) -> None:
        self._give_up(self._chance.choice(self._active()), is_crashed=False)
        self._repair()

    def _fail_over_stale(self) -> None:
        """The replicas lag when the active copy dies: what clients have read is rolled back."""
        cluster = self.cluster
        cluster.orchestrator.pause(is_on=True)
        for _ in range(self._chance.randrange(1, 10)):
            self.workload.write()
        self._go_on(self._chance.randrange(100))
        if self.reader.run is not None:
            cluster.settle(0.01)
        victim = self._chance.choice(self._active())
        self.trace.note(f"{victim} dies")
        cluster.crash(victim)
        self._give_up(victim, is_crashed=False)
        self._repair()  # the replicas follow again

    def _add_back(self) -> None:
        """A node that was failed over while it ran comes back, with what it has or empty."""
        victim = self._chance.choice(self._active())
        self._give_up(victim, is_crashed=False)
        self._recover(victim)
        self._repair()

    def _recover(self, node: str) -> None:
        o = self.cluster.orchestrator
        if node in o.members and o.members[node].is_failed:
            kind = self._chance.choice((Recovery.DELTA, Recovery.FULL))
            self.trace.note(f"{node} is added back: {kind}")
            if self._try(add_back(o, node, kind)):
                self.cluster.silent.discard(node)
                self.cluster.touched(node)

    def _fail_over_hung(self) -> None:
        """A node hangs in the middle of a rebalance, is failed over, goes on, and perhaps comes back."""
        cluster = self.cluster
        self._join()
        victim = self._chance.choice(self._active())
        outcome = cluster.orchestrator.tasks.start(Rebalance(cluster.orchestrator).run())
        limit = cluster.passed + self._chance.randrange(1, 300)
        cluster.until(lambda: outcome.is_done or cluster.passed >= limit)
        if len(self._active()) < 2 or victim not in self._active():
            return
        self.trace.note(f"{victim} hangs")
        cluster.hang(victim)
        cluster.settle(self._chance.choice((0.01, 1.0, 15.0)))
        # It does not know that it was given up, and serves on when it goes on.
        cluster.silent.add(victim)
        cluster.touched(victim)
        self._give_up(victim, is_crashed=False)
        self._await(outcome)
        self.trace.note(f"{victim} goes on")
        cluster.wake(victim)
        cluster.settle(0.1)
        if self._chance.random() < 0.5:
            self._recover(victim)
        self._repair()

    def _fail_over_within_snapshot(self) -> None:
        """The reader stands in the middle of a snapshot, of which the replicas have a part, when the active copy dies.

        What it lacks was superseded by the rest of the snapshot, which is lost.
        """
        cluster, chance = self.cluster, self._chance
        chain = self._chain()
        vbid = cluster.bucket.chains.index(chain)
        self.reader.kill()
        self._begin_at = NEVER
        for is_held in (False, True):
            cluster.orchestrator.pause(is_on=is_held)
            for _ in range(chance.randrange(2, 10)):
                self.workload.write(vbid if chance.random() < 0.8 else None)
            cluster.settle(0.2)
        self._begin_readers()
        reader = self.reader
        end = cluster.now + 1.0
        cluster.until(lambda: bool(reader.within) or cluster.now >= end)
        self._go_on(chance.randrange(4))
        if chance.random() < 0.7:
            self.reader.kill()
            self._begin_at = NEVER
        self._give_up(str(chain[0]) if chance.random() < 0.8 else chance.choice(self._active()), is_crashed=True)
        self._begin_readers()
        self._go_on(60)
        self._repair()
        self._begin_readers()

    def _go_on(self, exchanges: int, outcome: Outcome[Any] | None = None) -> None:
        """Let so many exchanges pass, or a second, or what is under way come to its end."""
        cluster = self.cluster
        limit, end = cluster.passed + exchanges, cluster.now + 1.0
        cluster.until(
            lambda: cluster.passed >= limit or cluster.now >= end or (outcome is not None and outcome.is_done)
        )

    def _write_much(self, vbid: int) -> None:
        """A few writes of one vbucket at once, of which most are durable."""
        for _ in range(self._chance.randrange(1, 4)):
            self.workload.write_durably(vbid)
            if self._chance.random() < 0.5:
                self.workload.write(vbid)

    def _fail_over_uneven(self) -> None:
        """One copy lags when an active copy dies; another one has what was acknowledged."""
        cluster, chance = self.cluster, self._chance
        chain = self._chain()
        replicas = [node for node in chain[1:] if node is not None]
        if replicas:
            cluster.lag(chance.choice(replicas), NEVER, 1.0)
            self._write_much(cluster.bucket.chains.index(chain))
            self._go_on(chance.randrange(50, 200))
        self._give_up(str(chain[0]), is_crashed=True)
        self._repair()

    def _fail_over_torn(self) -> None:
        """A copy has a part of a snapshot, in which documents were superseded, when its active copy dies."""
        chain = self._chain()
        self._tear(chain)
        self._give_up(str(chain[0]), is_crashed=True)
        self._repair()

    def _tear(self, chain: Chain) -> None:
        """Let the replicas have a part of a snapshot, and no more."""
        cluster, chance = self.cluster, self._chance
        vbid = cluster.bucket.chains.index(chain)
        replicas = [node for node in chain[1:] if node is not None]
        for node in replicas:
            cluster.split(node)
            cluster.hold(node, is_on=True)
        for _ in range(chance.randrange(4, 12)):
            self.workload.write(vbid)
        if chance.random() < 0.5:
            self.workload.write_durably(vbid)
        for node in replicas:
            cluster.hold(node, is_on=False)
        limit = cluster.passed + 200
        cluster.until(
            lambda: (
                cluster.passed >= limit
                or chain[0] not in cluster.nodes
                or any(cluster.is_torn(node, vbid) for node in replicas)
            )
        )
        for node in replicas:
            cluster.lose_feeding(node)

    def _lose_map(self) -> None:
        """The connection is lost over which a new node is to get its first map, while clients hear of the node."""
        cluster = self.cluster
        self._join()
        outcome = cluster.orchestrator.tasks.start(Rebalance(cluster.orchestrator).run())
        step = self._wait_for("the map is sent", outcome, number=1)
        if step is not None:
            self.trace.note(f"orchestrator-{step.line.node} is cut")
            cluster.lines.cut(step.line)
        self._await(outcome)
        self._repair()

    def _chain(self) -> Chain:
        """The copies of some vbucket."""
        return self._chance.choice([chain for chain in self.cluster.bucket.chains if chain[0] is not None])

    def _begin_rebalance(self, *, has_takeover: bool = False) -> tuple[Rebalance, Outcome[Any]]:
        """A node comes, and perhaps one goes; if there are enough, one may just go.

        Args:
            has_takeover: whether the one that goes has an active copy.
        """
        cluster, chance = self.cluster, self._chance
        remove: list[str] = []
        if len(self._active()) < 3 or chance.random() < 0.7:
            self._join()
        if has_takeover:
            remove = [str(self._chain()[0])]
        elif chance.random() < 0.7:
            remove = [chance.choice(self._active())]
        rebalance = Rebalance(cluster.orchestrator, remove)
        return rebalance, cluster.orchestrator.tasks.start(rebalance.run())

    def _wait_for(self, name: str, outcome: Outcome[Any], number: int | None = None) -> Step | None:
        """Go on to a step of a rebalance, the first or the second of its name; None if it was over before."""
        cluster = self.cluster
        steps = Steps(cluster, name, number or self._chance.choice((1, 1, 2)))
        cluster.until(lambda: outcome.is_done or steps.found is not None)
        cluster.lines.left = None
        if steps.found is not None:
            self.trace.note(f"{name}: vbucket {steps.found.vbid}, {steps.found.line.node} {steps.found.chains or ''}")
        return steps.found

    def _lag(self, nodes: Iterable[str | None], exchanges: int, seconds: float, *, is_sent: bool | None = None) -> None:
        """One of these nodes is fed later; see `SimulatedCluster.lag`."""
        choice = [node for node in nodes if node is not None]
        if choice:
            node = self._chance.choice(choice)
            self.trace.note(f"the copies of {node} lag")
            is_sent = self._chance.random() < 0.5 if is_sent is None else is_sent
            self.cluster.lag(node, exchanges, seconds, is_sent=is_sent)

    def _interrupt_takeover(self) -> None:
        """The source is lost while its last word flies to the copy that takes over; it arrives at once, or late."""
        cluster, chance = self.cluster, self._chance
        _, outcome = self._begin_rebalance(has_takeover=True)
        step = self._wait_for(chance.choice(("a takeover ends", "a takeover ends", "a takeover goes on")), outcome)
        source = None if step is None else cluster.bucket.chains[step.vbid][0]
        if step is not None and source is not None:
            line = step.line
            line.speed = FIRST if chance.random() < 0.4 else LATE
            cluster.disconnect(cluster.orchestrator.replicator(cluster.bucket.name, source, line.node).producer)
            limit = cluster.passed + chance.randrange(400)
            cluster.until(
                lambda: outcome.is_done or cluster.passed >= limit or self.judge.histories.serving(step.vbid) == source
            )
            line.speed = FIRST
        self._await(outcome)
        self._repair()

    def _lag_in_takeover(self) -> None:
        """The end of its stream reaches a replica late, when a new active copy is to feed it already."""
        cluster = self.cluster
        _, outcome = self._begin_rebalance(has_takeover=True)
        step = self._wait_for("a takeover is ordered", outcome)
        if step is not None:
            for node in cluster.bucket.chains[step.vbid][1:]:
                if node is not None and node != step.line.node:
                    cluster.lag(node, 150, 2.0, is_sent=True)
        self._await(outcome)
        self._repair()

    def _lose_deletion(self) -> None:
        """The connection is lost over which a copy that moved away is to be deleted."""
        cluster = self.cluster
        self._join()
        outcome = cluster.orchestrator.tasks.start(Rebalance(cluster.orchestrator).run())
        step = self._wait_for("a copy is deleted", outcome)
        if step is not None:
            cluster.lines.cut(step.line)
        self._await(outcome)
        self._repair()

    def _lose_new_chain(self) -> None:
        """A new copy lags when the old chain is asked no more, and the active copy dies after the move."""
        cluster, chance = self.cluster, self._chance
        for vbid in range(cluster.vbuckets):
            self._write_much(vbid)
        self._go_on(60)
        _, outcome = self._begin_rebalance()
        cluster.trickling = set(cluster.nodes)
        step = self._wait_for("both chains decide", outcome)
        cluster.trickling.clear()
        if step is None:
            self._await(outcome)
            return
        old, wanted = step.chains
        if chance.random() < 0.5:
            cluster.stall(step.line, chance.randrange(5, 60), 1.0)
        self._lag([node for node in wanted[1:] if node not in old], NEVER, LAG_S, is_sent=False)
        self._write_much(step.vbid)
        bucket, vbid = cluster.bucket, step.vbid
        cluster.until(lambda: outcome.is_done or (vbid not in bucket.moving and bucket.chains[vbid] == tuple(wanted)))
        now = cluster.bucket.chains[step.vbid][0]
        if now is not None:
            self._give_up(now, is_crashed=True)
        self._await(outcome)
        self._repair()

    def _lose_old_chain(self) -> None:
        """An old copy lags while both chains decide, and the source dies: the move is undone without it."""
        chance = self._chance
        _, outcome = self._begin_rebalance()
        step = self._wait_for("both chains decide", outcome)
        if step is not None:
            old, wanted = step.chains
            self._lag(old[1:], NEVER, LAG_S)
            self._lag([node for node in wanted if node not in old], 60, LAG_S)
            self._write_much(step.vbid)
            self._go_on(chance.randrange(20, 100), outcome)
            if old[0] is not None:
                self._give_up(old[0], is_crashed=True)
        self._await(outcome)
        self._repair()

    def _lose_answer(self) -> None:
        """The new chain decides, but the orchestrator does not hear of it; then the active copy dies.

        A copy of the old chain lags: it lacks what the new chain has acknowledged.
        """
        cluster, chance = self.cluster, self._chance
        _, outcome = self._begin_rebalance()
        step = self._wait_for("the new chain decides", outcome)
        if step is not None:
            (chain,), vbid, line = step.chains, step.vbid, step.line
            self._lag([node for node in self._active() if node not in chain], NEVER, LAG_S)
            cluster.until(lambda: outcome.is_done or not line.flying)
            line.is_stalled = True
            self._write_much(vbid)
            self._go_on(60, outcome)
            cluster.lines.cut(line)
            is_now = cluster.bucket.chains[vbid]
            limit = cluster.passed + 150
            cluster.until(lambda: outcome.is_done or cluster.passed >= limit or cluster.bucket.chains[vbid] != is_now)
            self._go_on(chance.randrange(40), outcome)
            if chain[0] is not None and chance.random() < 0.8:
                self._give_up(chain[0], is_crashed=True)
        self._await(outcome)
        self._repair()

    def _break_move(self) -> None:
        """Writes, lags and a loss at a chosen step of a rebalance."""
        cluster, chance = self.cluster, self._chance
        rebalance, outcome = self._begin_rebalance()
        before = list(cluster.bucket.chains)
        step = self._wait_for(chance.choice(NAMES), outcome)
        if step is None:
            self._await(outcome)
            return
        vbid = step.vbid if step.name != "the map is sent" else chance.randrange(cluster.vbuckets)
        if chance.random() < 0.5:
            cluster.stall(step.line, chance.randrange(5, 100), 1.0)
        if chance.random() < 0.6:
            self._lag(before[vbid] if chance.random() < 0.5 else self._active(), chance.choice((30, 200, NEVER)), 2.0)
        self._write_much(vbid)
        self._go_on(chance.choice((0, 5, 20, 60)), outcome)
        self._write_much(vbid)
        self._go_on(chance.choice((0, 10, 40)), outcome)
        kind = chance.choice(("cut", "cut", "cancel", "crash", "crash later"))
        if kind == "cut":
            lines = [line for line in cluster.lines.all if line.name == "orchestrator"]
            for line in [step.line, *chance.sample(lines, min(len(lines), chance.randrange(4)))]:
                self.trace.note(f"{line.name}-{line.node} is cut")
                cluster.lines.cut(line)
        elif kind == "cancel":
            rebalance.cancel()
        if kind != "crash":
            self._await(outcome)
        if kind.startswith("crash") or chance.random() < 0.5:
            victim = before[vbid][0] if chance.random() < 0.4 else cluster.bucket.chains[vbid][0]
            if victim is not None:
                self._give_up(victim, is_crashed=True)
        self._await(outcome)
        self._repair()

    def _lose_power(self) -> None:
        """A node loses its power and starts again, with what is on its disk; in memory it just dies.

        Perhaps its replicas have a part of a snapshot then.
        """
        cluster, chance = self.cluster, self._chance
        victim = chance.choice(self._active())
        vbid = chance.randrange(cluster.vbuckets)
        if chance.random() < 0.5:
            chain = self._chain()
            victim, vbid = str(chain[0]), cluster.bucket.chains.index(chain)
            self._tear(chain)
        else:
            self._write_much(vbid)
            self._go_on(chance.randrange(60))
        self._lose_power_of(victim)

    def _lose_power_of(self, victim: str) -> None:
        cluster = self.cluster
        if not self._has_disks:
            self._give_up(victim, is_crashed=True)
        elif victim in cluster.nodes:
            self.trace.note(f"{victim} loses its power, and starts again")
            self.judge.histories.forget_node(victim)
            self.judge.recovering.add(victim)
            cluster.lose_power(victim)
            cluster.trickling = set(cluster.nodes) if self._chance.random() < 0.5 else set()
            is_back = self._try(rejoin(cluster.orchestrator, victim))
            cluster.trickling.clear()
            if not is_back:
                self._give_up(victim, is_crashed=True)
        self._repair()
        self.judge.recovering.clear()

    def _fail_disk(self) -> None:
        """No sync of a node succeeds for a time, or its disk is full; perhaps it loses its power meanwhile."""
        cluster, chance = self.cluster, self._chance
        victims = [name for name in self._active() if chance.random() < 0.6]
        trouble = chance.choice((Trouble.SYNC, Trouble.FULL))
        self._go_on(chance.randrange(60))
        for name in victims:
            disk = cluster.nodes[name].disk if name in cluster.nodes else None
            if disk is not None:
                self.trace.note(f"the disk of {name} refuses: {trouble.name}")
                disk.trouble = trouble
        for _ in range(chance.randrange(1, 4)):
            self._write_much(chance.randrange(cluster.vbuckets))
            self._go_on(chance.randrange(60))
        if chance.random() < 0.6:
            self._lose_power_of(chance.choice(victims or self._active()))
        self._heal()
        cluster.settle(0.5)
        self._repair()

    def _fail_over_gracefully(self) -> None:
        active = self._active()
        if len(active) > 1:
            procedure = fail_over_gracefully(
                self.cluster.orchestrator, [self._chance.choice(active)], lambda: False, lambda *_: None
            )
            self._try(procedure)
        self._repair()
