"""One round: a scenario played on a cluster and on Spark, and everything checked at its end."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pyarrow as pa

from lab.chaos import tables
from lab.chaos.checker import Row, check_changes, check_kept, compare, documents_of, state_of
from lab.chaos.history import Name
from lab.chaos.host import Host, Lost, Order, executors, python_workers, quick_folder
from lab.chaos.kv import Document
from lab.chaos.scenario import COLLECTIONS, KEYS, KINDS, Event, Phase, Scenario
from lab.chaos.typed import check_columns, check_rejects, fitting
from lab.chaos.world import DEFAULT, World
from lab.tools.patience import patient

POLL_S = 0.01
RUN_TIMEOUT_S = patient(30.0)
"""The longest a run may take, and the longest wait for a batch."""
IDLE_S = 2.0
"""A query that follows and has planned no batch for so long has nothing to do."""
MAX_STARTS = 6
"""Starts of a run that trouble ends; each trouble of a phase ends it once at most."""


CANNOT_GO_ON = "the round cannot go on"
"""Begins a difference that says nothing about the tables."""


class Hang(Exception):
    """A run does not come to its end."""


@dataclass
class Result:
    """The outcome of a round.

    Attributes:
        differences: what is wrong, as sentences.
        events: what happened, in order.
        rollbacks, batches, rows, ends: numbers of control rows, batches, rows, and runs that trouble has ended.
        seconds: how long it took.
        parts: seconds by what they were spent on.
        happened: how often each kind of trouble came.
    """

    differences: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    rollbacks: int = 0
    batches: int = 0
    rows: int = 0
    ends: int = 0
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the time of the body to a part."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.parts[part] = self.parts.get(part, 0.0) + time.monotonic() - begin


class Round:
    """A round that is being played.

    Args:
        scenario: what to play.
        host: Spark.
        path: an empty directory.
        report: gets each event when it happens.
    """

    def __init__(self, scenario: Scenario, host: Host, path: Path, report: Callable[[str], None]) -> None:
        self._scenario = scenario
        self._host = host
        self._report = report
        self._path = path
        self._begin = time.monotonic()
        self._dice = random.Random(scenario.seed + 1)
        self._world = World(path / "nodes", scenario.nodes, scenario.vbuckets, self._dice)
        self._sink = path / "sink"
        self._sink.mkdir()
        self._kept: list[Row] = []
        self._may_end = False
        self._phase = scenario.phases[0]
        self.result = Result()

    def close(self) -> None:
        """Stop the cluster."""
        self._world.close()

    # ------------------------------------------------------------------------------------------------------- playing

    def play(self) -> Result:
        """Play everything; returns the outcome."""
        try:
            for scope, collection in COLLECTIONS[1:]:
                self._world.create_collection(scope, collection)
            for phase in self._scenario.phases:
                self._play(phase)
                if self.result.differences:
                    break
                with self.result.timed("checks"):
                    self._check(is_drained=phase is self._scenario.phases[-1])
                if self.result.differences:
                    break
                if phase.replays:
                    self.forget_last_batch()
        except (Hang, Lost) as error:
            self.result.differences.append(f"{error}\n{self._host.stacks()}")
            self._host.kill()
        except Exception as error:  # noqa: BLE001 - the next round may show more
            trace = "".join(traceback.format_exception(error))
            self.result.differences.append(f"{CANNOT_GO_ON}: {trace[-4000:]}")
            self._leave()
        else:
            self._leave()
        self.result.seconds = time.monotonic() - self._begin
        return self.result

    def _leave(self) -> None:
        """The next round finds a host that runs nothing."""
        try:
            self._host.stop()
        except Lost:
            self._host.kill()
        except Exception as error:  # noqa: BLE001 - the query may have failed
            self._note(f"stopping failed: {_last_line(str(error))}")

    def _order(self, phase: Phase) -> Order:
        scenario = self._scenario
        options = {
            "connectionString": self._world.connection_string,
            "username": "Administrator",
            "password": "password",
            "bucket": "default",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(scenario.batch_seqnos),
            "onRollback": "rewindAndMark",
            "valueFormat": "binary",
            "numPartitions": "2",
            "onBucketReset": "rebuild",
        }
        if scenario.sink == "parquet":
            options["checkpointLocation"] = str(self._sink / "checkpoint")
            options["rewindTo"] = "zero" if scenario.rewinds_to_zero else "recorded"
        return Order(
            scenario.sink,
            str(self._sink),
            options,
            phase.until,
            phase.die_at,
            phase.die_nth,
            scenario.fold_rows,
            scenario.fold_pause_s,
            self._schema(phase),
            scenario.mode,
        )

    def _schema(self, phase: Phase) -> str:
        """The schema of the typed columns in a phase."""
        schemas = self._scenario.schemas
        return schemas[min(self._scenario.phases.index(phase), len(schemas) - 1)] if schemas else ""

    def _play(self, phase: Phase) -> None:
        self._phase = phase
        events = list(phase.events)
        while events and not events[0].after:
            self.happen(events.pop(0))
        self._note(f"run until {phase.until}")
        self._may_end = bool(phase.die_at)
        order = self._order(phase)
        for _ in range(MAX_STARTS):
            with self.result.timed("starts"):
                self._host.start(order)
            error = self._follow(phase, events)
            if not error:
                if self._host.has_died():
                    self.result.differences.append(f"the error of a death {order.die_at} was lost")
                return
            self.result.ends += 1
            self.result.happened["death in a write"] += "Died: " in error
            self._note(f"the run ended: {_last_line(error)}")
            if not self._may_end:
                self.result.differences.append(f"the query ended without a reason: {error[-1500:]}")
                return
            self._may_end = False
            with self.result.timed("checks"):
                self._check_live()
            order = replace(self._order(phase), die_at="")
        self.result.differences.append(f"the query did not end well in {MAX_STARTS} runs")

    def _follow(self, phase: Phase, events: list[Event]) -> str:
        """See a run to its end, and carry out the events that come meanwhile.

        Returns: the error that ended the run, or an empty text. Then the events that are left come in the next run.
        """
        while events:
            with self.result.timed("runs"):
                is_time = not events[0].after or self._await(events[0])
            if not is_time:
                error = self._host.state()[1]
                if error:
                    return error
                # The run has ended before: what was to come while it ran comes now.
                self.happen(events.pop(0))
                continue
            event = events.pop(0)
            self._may_end = self._may_end or event.what.startswith("kill")
            self.happen(event)
            if event.what == "kill_driver":
                return "the driver was killed"
        if phase.until == "stopped":
            try:
                with self.result.timed("stops"):
                    self._host.stop()
            except Exception as error:
                if isinstance(error, Lost):
                    raise
                # Stopping completes the tables, which may be the moment to die.
                return str(error)
        with self.result.timed("runs"):
            return self._end()

    def _end(self) -> str:
        """Wait until the run has ended; returns its error or an empty text."""
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while True:
            is_active, error = self._host.state()
            if not is_active:
                return error
            if time.monotonic() > deadline:
                raise Hang(f"the query did not end within {RUN_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)

    def _await(self, event: Event) -> bool:
        """Wait for the batches before an event, or until there is nothing to do; False if the run ends before."""
        kind = "offsets" if event.is_planned else "commits"
        wanted = self._newest(kind) + event.after
        deadline, idle_from = time.monotonic() + RUN_TIMEOUT_S, time.monotonic() + IDLE_S
        while self._newest(kind) < wanted:
            if not self._host.state()[0]:
                return False
            if self._newest("offsets") == self._newest("commits") and time.monotonic() > idle_from:
                return True
            if time.monotonic() > deadline:
                raise Hang(f"no batch within {RUN_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        return True

    def _newest(self, kind: str) -> int:
        """The newest batch that is planned (offsets) or done (commits), -1 for none."""
        path = self._sink / "checkpoint" / kind
        try:
            return max((int(file.name) for file in path.iterdir() if file.name.isdecimal()), default=-1)
        except FileNotFoundError:
            return -1

    def forget_last_batch(self) -> None:
        """Have Spark repeat the last batch: it forgets that it was done."""
        newest = self._newest("commits")
        if newest < 0 or newest < self._newest("offsets"):
            # Spark plans a batch only when it has logged that the one before is done.
            return
        self.result.happened["replay"] += 1
        self._note(f"batch {newest} is forgotten")
        for name in (f"{newest}", f".{newest}.crc"):
            (self._sink / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    # --------------------------------------------------------------------------------------------------------- events

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._begin:6.2f} s  {text}"
        self.result.events.append(line)
        self._report(line)

    def happen(self, event: Event) -> None:
        """Carry out an event."""
        with self.result.timed("trouble" if event.what != "kill_driver" else "new drivers"):
            done = self._happen(event)
        self.result.happened[event.what] += 1
        self._note(f"{event}{f': {done}' if done else ''}")

    def _happen(self, event: Event) -> str:
        world = self._world
        done = ""
        if event.what == "write":
            done = f"{self._write(int(event.amount))} writes"
        elif event.what == "copy":
            world.copy(fullness=event.amount)
        elif event.what == "persist":
            world.persist()
        elif event.what == "failover":
            done = world.fail_over()
        elif event.what == "restart":
            done = world.restart()
        elif event.what == "purge":
            world.purge()
        elif event.what == "flush":
            world.flush()
        elif event.what == "add_node":
            world.add_node()
        elif event.what in {"drop", "recreate"}:
            done = self._drop(is_made_again=event.what == "recreate")
        elif event.what == "kill_worker":
            done = self._kill(python_workers(self._host))
        elif event.what == "kill_executor":
            done = self._kill(executors(self._host))
        elif event.what == "kill_driver":
            self._host.kill()
        else:
            raise ValueError(event.what)
        return done

    def _write(self, count: int) -> int:
        places = [DEFAULT, *self._world.collections]
        names = []
        for _ in range(count):
            place = self._dice.choice(places)
            names.append(((*place, f"key{self._dice.randrange(KEYS)}"), self._dice.choice(KINDS)))
        return self._world.write(names)

    def _drop(self, *, is_made_again: bool) -> str:
        there = sorted(self._world.collections)
        if not there:
            scope, collection = COLLECTIONS[1]
            self._world.create_collection(scope, collection)
            return f"nothing to drop; {scope}.{collection} created"
        scope, collection = self._dice.choice(there)
        self._world.drop_collection(scope, collection)
        if is_made_again:
            self._world.create_collection(scope, collection)
        return f"{scope}.{collection}"

    def _kill(self, processes: list[psutil.Process]) -> str:
        if not processes:
            return "none there"
        process = self._dice.choice(processes)
        with contextlib.suppress(psutil.Error):
            process.kill()
        return f"one of {len(processes)}"

    # -------------------------------------------------------------------------------------------------------- checking

    def _check(self, *, is_drained: bool) -> None:
        world, found = self._world, self.result.differences
        bucket = world.documents() if is_drained else None
        if self._newest("offsets") < 0 and self._scenario.sink == "parquet":
            return
        if self._scenario.sink == "parquet":
            rows = tables.rows_of_files(self._sink / "files")
            found += check_changes("files", rows, world.history, bucket, done=None)
        else:
            rows = tables.rows_of_changes(self._table("changes"))
            found += check_changes("changes", rows, world.history, bucket, done=self._newest("commits"))
            found += check_kept("changes", self._kept, rows)
            self._kept = rows
            expected = state_of(rows) if bucket is None else bucket
            self._check_documents("live", self._host.table(self._order(self._phase), "live"), expected)
            if bucket is not None:
                self._check_documents("current", self._table("current"), bucket)
            if schema := self._schema(self._phase):
                rejects = tables.documents(self._host.table(self._order(self._phase), "rejects"))
                found += check_rejects(rejects, expected, schema)
        if is_drained:
            if self._newest("offsets") != self._newest("commits"):
                found.append(f"batch {self._newest('offsets')} is planned and not done at the end of the last run")
            self.result.rollbacks = sum(row.op == "rollback" for row in rows)
            self.result.rows = len(rows)
            self.result.batches = self._newest("commits") + 1

    def _check_live(self) -> None:
        """Between a death and the next start the newest batches may be in `changes` alone: `live` shows them, too."""
        if self._scenario.sink != "parquet" and self._newest("commits") >= 0:
            rows = tables.rows_of_changes(self._table("changes"))
            live = self._host.table(self._order(self._phase), "live")
            self._check_documents("live after a death", live, state_of(rows))

    def _check_documents(self, title: str, table: pa.Table, state: Mapping[Name, Document]) -> None:
        """Compare a table of documents with those that must be there."""
        rows = tables.documents(table)
        found, problems = documents_of(title, rows)
        if schema := self._schema(self._phase):
            state = fitting(state, schema, self._scenario.mode)
            problems += check_columns(title, rows, schema)
        self.result.differences += problems + compare(title, found, state)

    def _table(self, name: str) -> pa.Table:
        if self._scenario.sink == "delta-rs":
            return tables.read_delta(self._sink / name)
        return self._host.table(self._order(self._phase), name)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else ""


def play(scenario: Scenario, host: Host, report: Callable[[str], None] = lambda line: None) -> Result:
    """Play a round in a directory of its own; `report` gets each event when it happens."""
    with tempfile.TemporaryDirectory(prefix="dcpstream-chaos-", dir=quick_folder()) as path:
        played = Round(scenario, host, Path(path), report)
        try:
            return played.play()
        finally:
            played.close()
