"""Plant bugs, one at a time, and count those that rounds find: `python -m lab.chaos.mutants [--only part]`.

A bug is code that is added to the end of a module in a copy of `packages`: it replaces a function by one that is wrong
in one way. Each is a mistake that was made, or nearly made, in this project or another. The kinds of trouble of a bug's
rounds are chosen so that the bug has an effect in some of them; the checker does not know about it. A bug that does not
fit the code any more is an error, not a bug that was found.

The last line is `mutants: <n> of <m> caught`; exit status 0 if all are.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lab.chaos.host import ROOT, Host, RemoteHost
from lab.chaos.plain import PlainHost
from lab.chaos.rounds import CANNOT_GO_ON, play
from lab.chaos.scenario import WORLD, Draw, draw
from lab.layout import PACKAGES, python_path, source_of

ROUNDS = 12
"""Rounds of a mutant at most; most are found in the first or second."""
CAUGHT = 3
"""Exit status of a process that plays a mutant's rounds and finds a difference."""

_LOSSES = {"failover": 5, "restart": 3}
_DROPS = {"drop": 1, "recreate": 1}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug.

    Attributes:
        name: what is wrong.
        module: the module that gets the code.
        code: added to its end.
        sinks, world, spark: what the rounds draw from.
        seed: of the first round. It chooses the trouble, no more, and is one after which the trouble that the bug needs
            comes soon.
        typed_share: of its rounds.
    """

    name: str
    module: str
    code: str
    sinks: tuple[str, ...]
    world: dict[str, int] = field(default_factory=lambda: dict(WORLD))
    spark: dict[str, int] = field(default_factory=lambda: {"nothing": 1})
    seed: int = 1
    typed_share: float = 0.0

    @property
    def needs_spark(self) -> bool:
        """Whether the loop that plays Spark's part does not show it."""
        return "delta" in self.sinks

    @property
    def choice(self) -> Draw:
        """The choices that its rounds are drawn from."""
        return Draw(
            sinks=self.sinks,
            world=tuple(self.world.items()),
            spark=tuple(self.spark.items()),
            typed_share=self.typed_share,
        )


MUTANTS = (
    Mutant(
        "the control row of a rollback is skipped",
        "dcpstream_spark.source.reading",
        """
_true_rollback_batch = rollback_batch

def rollback_batch(*arguments, **named):
    return _true_rollback_batch(*arguments, **named).slice(0, 0)
""",
        ("parquet",),
        _LOSSES,
    ),
    Mutant(
        "the control row of a rollback names the position that was refused",
        "dcpstream_spark.source.reading",
        """
from dataclasses import replace as _replace
_true_rollback_batch = rollback_batch

def rollback_batch(event, *arguments, **named):
    return _true_rollback_batch(_replace(event, to_seqno=event.from_seqno), *arguments, **named)
""",
        ("delta-rs",),
        _LOSSES,
    ),
    Mutant(
        "positions are sent without the bounds of their snapshot",
        "dcpstream.model.position",
        """
StreamOffset.request_bounds = lambda self: (self.seqno, self.seqno, self.seqno)
""",
        ("parquet",),
        _LOSSES,
    ),
    Mutant(
        "after a rollback to R the reader goes on at (R, R, R)",
        "dcpstream.client.machine.resume",
        """
def step_back(refused, rollback_seqno, earlier):
    seqno = min(rollback_seqno, refused.seqno - 1)
    return StreamOffset(refused.vbuuid, seqno, seqno, seqno) if seqno else StreamOffset.ZERO
""",
        ("parquet",),
        _LOSSES,
    ),
    Mutant(
        "a plan ends below its start",
        "dcpstream_spark.source.planner",
        """
_true_plan_end_offset = plan_end_offset

def plan_end_offset(start, *arguments, **named):
    end = _true_plan_end_offset(start, *arguments, **named)
    moved = {vbid: entry for vbid, entry in end.vbuckets.items()
             if vbid in start.vbuckets and start.vbuckets[vbid].at.seqno > 2
             and entry.at.seqno > start.vbuckets[vbid].at.seqno and entry.rewound is None}
    if end is start or not moved:
        return end
    vbid, entry = next(iter(moved.items()))
    low = start.vbuckets[vbid].at.seqno - 1
    at = StreamOffset(entry.at.vbuuid, low, low, None, entry.at.manifest_uid, entry.at.collections)
    return replace(end, vbuckets={**end.vbuckets, vbid: replace(entry, at=at)})
""",
        ("parquet",),
        {"purge": 1},
    ),
    Mutant(
        "a batch forgets a vbucket",
        "dcpstream_spark.source.planner",
        """
_true_planned_ranges = planned_ranges

def planned_ranges(*arguments, **named):
    ranges = _true_planned_ranges(*arguments, **named)
    return ranges[:-1] if len(ranges) > 3 else ranges
""",
        ("delta-rs",),
        {"purge": 1},
    ),
    Mutant(
        "the start of the first batch is lost",
        "dcpstream_spark.source.offsets",
        """
SourceOffset.based_on = lambda self, start: replace(
    self, base={vbid: entry.at for vbid, entry in self.vbuckets.items()})
""",
        ("delta-rs",),
        {"purge": 1},
    ),
    Mutant(
        "values are passed on as text",
        "dcpstream_spark.source.schema",
        """
_true_batch = Layout.batch

def _batch(self, *arguments, **named):
    batch = _true_batch(self, *arguments, **named)
    texts = [None if value is None else value.decode("utf-8", "backslashreplace").encode()
             for value in batch.column("value").to_pylist()]
    at = batch.schema.get_field_index("value")
    columns = list(batch.columns)
    columns[at] = pa.array(texts, batch.schema.field(at).type)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

Layout.batch = _batch
""",
        ("parquet",),
        {"purge": 1},
    ),
    Mutant(
        "the source does not report that a collection was dropped",
        "dcpstream_spark.source.reading",
        """
_true_events_batch = events_batch

def events_batch(*arguments, **named):
    return _true_events_batch(*arguments, **named).slice(0, 0)
""",
        ("parquet",),
        _DROPS,
    ),
    Mutant(
        "a fold ignores that a collection was dropped",
        "dcpstream_spark.tables.fold_sql",
        """
_IS_EMPTYING = "false"
""",
        ("delta-rs",),
        _DROPS,
    ),
    Mutant(
        "a fold takes the oldest row of a document, not that of the highest seqno",
        "dcpstream_spark.tables.fold_sql",
        """
_true_common = FoldQuery._common
FoldQuery._common = lambda self, **named: _true_common(self, **named).replace("ORDER BY seqno DESC", "ORDER BY seqno")
""",
        ("delta-rs",),
        {"purge": 1},
    ),
    Mutant(
        "a fold forgets the deletions of the tail",
        "dcpstream_spark.tables.fold_sql",
        """
_true_common = FoldQuery._common
FoldQuery._common = lambda self, **named: _true_common(self, **named).replace(
    "AS d WHERE NOT EXISTS", "AS d WHERE d._change_type <> 'delete' AND NOT EXISTS")
""",
        ("delta-rs",),
        {"purge": 1},
    ),
    Mutant(
        "documents that a rollback touched are not restored",
        "dcpstream_spark.tables.fold_sql",
        """
FoldQuery._candidates = lambda self: f\"\"\"
    valid AS (SELECT * FROM {self.changes} WHERE {self._tail}),
    candidates AS (SELECT *, false AS {IS_RESTORED} FROM valid WHERE {_IS_DATA}),
    touched AS (SELECT scope, collection, key FROM valid WHERE false)
\"\"\"
""",
        ("delta-rs",),
        _LOSSES,
    ),
    Mutant(
        "void rows stay in changes",
        "dcpstream_spark.tables.delta_rs",
        """
DeltaRsEngine.take_back = lambda self, rollbacks, before_batch: None
""",
        ("delta-rs",),
        _LOSSES,
    ),
    Mutant(
        "the batches that changes holds are not looked up",
        "dcpstream_spark.tables.delta_rs",
        """
from dcpstream_spark import Pipeline as _Pipeline
DeltaRsEngine.last_batch = lambda self, app: None
_Pipeline._require_next = lambda self, held, batch_id: None
""",
        ("delta-rs",),
        {"purge": 1},
    ),
    Mutant(
        "live shows the documents of the tail beside their older versions",
        "dcpstream_spark.tables.fold_sql",
        """
_true_kept = FoldQuery.kept
FoldQuery.kept = lambda self, columns: _true_kept(self, columns).replace(
    "FROM effective AS e", "FROM (SELECT * FROM effective WHERE false) AS e")
""",
        ("delta-rs",),
        {"purge": 1},
    ),
    Mutant(
        "Spark's fold takes rows that a rollback has made void",
        "dcpstream_spark.tables.fold_sql",
        """
FoldQuery._candidates = lambda self: f\"\"\"
    valid AS (SELECT * FROM {self.changes} WHERE {self._tail}),
    candidates AS (SELECT *, false AS {IS_RESTORED} FROM valid WHERE {_IS_DATA}),
    touched AS (SELECT scope, collection, key FROM valid WHERE false)
\"\"\"
""",
        ("delta",),
        _LOSSES,
    ),
    Mutant(
        "Spark's fold ignores that a collection was dropped",
        "dcpstream_spark.tables.fold_sql",
        """
_IS_EMPTYING = "false"
""",
        ("delta",),
        _DROPS,
    ),
    Mutant(
        "Spark's fold takes the oldest row of a document",
        "dcpstream_spark.tables.fold_sql",
        """
_true_common = FoldQuery._common
FoldQuery._common = lambda self, **named: _true_common(self, **named).replace("ORDER BY seqno DESC", "ORDER BY seqno")
""",
        ("delta",),
        {"purge": 1},
    ),
    Mutant(
        "Spark's merge lets the lower seqno win",
        "dcpstream_spark.tables.fold_sql",
        """
_true_merge = FoldQuery.merge
FoldQuery.merge = lambda self, source: _true_merge(self, source).replace("s.seqno > t.seqno", "s.seqno < t.seqno")
""",
        ("delta",),
        {"purge": 1},
    ),
    Mutant(
        "Spark's live shows the documents of the tail with their older versions",
        "dcpstream_spark.tables.fold_sql",
        """
_true_kept = FoldQuery.kept
FoldQuery.kept = lambda self, columns: _true_kept(self, columns).replace(
    "FROM effective AS e", "FROM (SELECT * FROM effective WHERE false) AS e")
""",
        ("delta",),
        {"purge": 1},
        seed=78,
    ),
    Mutant(
        "Spark does not delete void rows from changes",
        "dcpstream_spark.tables.spark_sql",
        """
SparkSqlEngine.take_back = lambda self, rollbacks, before_batch: None
""",
        ("delta",),
        _LOSSES,
    ),
    Mutant(
        "Spark does not count the rollbacks of a batch",
        "dcpstream_spark.tables.spark_sql",
        """
_true_summary = _summary

def _summary(batch_id, found):
    return _true_summary(batch_id, {**found, "rollbacks": []})
""",
        ("delta",),
        _LOSSES,
    ),
    Mutant(
        "Spark's commits carry no number, and the batches that changes holds are not looked up",
        "dcpstream_spark.tables.spark_sql",
        """
from dcpstream_spark import Pipeline as _Pipeline
from dcpstream_spark.tables.table_formats import DeltaFormat as _DeltaFormat
SparkSqlEngine.last_batch = lambda self, app: None
_Pipeline._require_next = lambda self, held, batch_id: None
_DeltaFormat.append = lambda self, table, rows, app, batch_id: (
    rows.write.format("delta").mode("append").save(table.path))
""",
        ("delta",),
        {"purge": 1},
        seed=7,
    ),
    Mutant(
        "a new schema leaves the typed columns of older rows null",
        "dcpstream_spark.tables.delta_rs",
        """
_true_retype = DeltaRsEngine.retype

def _retype(self, upto, *, from_changes):
    kind = type(self._types)
    true = kind.with_columns
    kind.with_columns = lambda types, rows, documents: true(
        types, rows, pa.chunked_array([pa.nulls(len(documents), documents.type)]))
    try:
        _true_retype(self, upto, from_changes=from_changes)
    finally:
        kind.with_columns = true

DeltaRsEngine.retype = _retype
""",
        ("delta-rs",),
        {"purge": 1},
        typed_share=1.0,
    ),
    Mutant(
        "a document that does not fit leaves its older state in current",
        "dcpstream_spark.tables.delta_rs",
        """
_true_effect_with_types = effect_with_types

def effect_with_types(source, types):
    typed, count = _true_effect_with_types(source, types)
    if types.mode != "DROPMALFORMED":
        return typed, count
    is_gone = pc.and_(typed.column("_is_removed"), pc.invert(source.column("_is_removed")))
    return typed.filter(pc.invert(is_gone)), count
""",
        ("delta-rs",),
        {"purge": 1},
        typed_share=1.0,
    ),
    Mutant(
        "documents that do not fit are no rejects if they are no objects",
        "dcpstream_spark.tables.delta_rs",
        """
_true_rejects = DeltaRsEngine.rejects

def _rejects(self):
    found = _true_rejects(self)
    return found.filter(pc.not_equal(found.column("reason"), "no JSON object"))

DeltaRsEngine.rejects = _rejects
""",
        ("delta-rs",),
        {"purge": 1},
        typed_share=1.0,
    ),
    Mutant(
        "a rollback does not wait for the fold that runs",
        "dcpstream_spark.tables.folding",
        """
Folder.settle = Folder._raise_failure
""",
        ("delta-rs",),
        _LOSSES,
        seed=37,
    ),
    Mutant(
        "the error of a fold in the background is lost",
        "dcpstream_spark.tables.folding",
        """
from dcpstream_spark.tables.engine import FoldReport as _FoldReport
_true_given = Folder._given

def _given(self, job, what):
    def quiet():
        try:
            return job()
        except Exception:
            return _FoldReport(upto=0, documents=0, removed=0, restored=0, current_rows=0)
    return _true_given(self, quiet, what)

Folder._given = _given
""",
        ("delta-rs",),
        {"add_node": 1},
        seed=15,
    ),
    Mutant(
        "a fold counts batches as folded that were appended while it ran",
        "dcpstream_spark.tables.folding",
        """
_true_folded = Folder._folded

def _folded(self, held, rollbacks):
    report = _true_folded(self, held, rollbacks)
    with self._lock:
        held.folded, held.tail_rows = held.last, 0
    return report

Folder._folded = _folded
""",
        ("delta-rs",),
        {"purge": 1},
    ),
)
"""All of them."""


class Misfit(Exception):
    """A bug that does not fit the code any more."""


def plant(mutant: Mutant, root: Path) -> None:
    """Add the bug to a copy of `packages` in `root`.

    Raises:
        Misfit: the module is not there, or cannot be imported with the bug.
    """
    path = source_of(mutant.module.replace(".", "/") + ".py", root)
    if not path.exists():
        raise Misfit(f"{mutant.name}: there is no {mutant.module}")
    path.write_text(path.read_text(encoding="utf-8") + mutant.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", f"import {mutant.module}"],
        env={**os.environ, "PYTHONPATH": python_path(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Misfit(f"{mutant.name}: {done.stderr.strip().splitlines()[-1]}")


def is_caught(mutant: Mutant, rounds: int, *, with_spark: bool) -> bool:
    """Play rounds with the bug, in a process of their own, until one differs."""
    with tempfile.TemporaryDirectory(prefix="dcpstream-chaos-") as folder:
        root = Path(folder)
        shutil.copytree(ROOT / "packages", root / "packages", ignore=shutil.ignore_patterns("__pycache__", "tests"))
        try:
            plant(mutant, root)
        except Misfit as error:
            print(f"DOES NOT FIT: {error}", flush=True)
            return False
        path = os.pathsep.join((python_path(root, ROOT), os.environ.get("PYTHONPATH", "")))
        command = [sys.executable, "-m", "lab.chaos.mutants", "--play", mutant.name, "--rounds", str(rounds)]
        if with_spark:
            command.append("--spark")
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
        return done.returncode == CAUGHT


def differs(mutant: Mutant, host: Host, rounds: int) -> bool:
    """Whether one of the mutant's rounds finds a difference."""
    begin = time.monotonic()
    for number in range(rounds):
        result = play(draw(mutant.seed + number, mutant.choice), host)
        # A round that cannot go on says nothing about the judge.
        found = [text for text in result.differences if not text.startswith(CANNOT_GO_ON)]
        if found:
            print(f"caught in round {number + 1}, {time.monotonic() - begin:.0f} s: {mutant.name}", flush=True)
            print(f"    {found[0][:300]}", flush=True)
            return True
        if result.differences:
            print(f"    round {number + 1}: {result.differences[0][-300:]}", flush=True)
    print(f"SURVIVED {rounds} rounds: {mutant.name}", flush=True)
    return False


def main() -> int:
    """Plant each, report."""
    parser = argparse.ArgumentParser(prog="lab.chaos.mutants", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each mutant at most")
    parser.add_argument("--only", default="", help="mutants whose name has this part")
    parser.add_argument("--plain", action="store_true", help="only those that need no Spark")
    parser.add_argument("--spark", action="store_true", help="all of them with real Spark")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--play", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in PACKAGES.values():
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    if arguments.play:
        (mutant,) = (mutant for mutant in MUTANTS if mutant.name == arguments.play)
        return CAUGHT if _play(mutant, arguments.rounds, with_spark=arguments.spark) else 0
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.name]
    chosen = [mutant for mutant in chosen if not arguments.plain or not mutant.needs_spark]
    with ThreadPoolExecutor(arguments.jobs) as jobs:
        caught = sum(
            jobs.map(
                lambda mutant: is_caught(mutant, arguments.rounds, with_spark=arguments.spark or mutant.needs_spark),
                chosen,
            )
        )
    print(f"mutants: {caught} of {len(chosen)} caught")
    return 0 if caught == len(chosen) else 1


def _play(mutant: Mutant, rounds: int, *, with_spark: bool) -> bool:
    if not with_spark:
        return differs(mutant, PlainHost(), rounds)
    with tempfile.TemporaryDirectory(prefix="dcpstream-chaos-") as folder:
        host = RemoteHost(Path(folder) / "spark.log")
        try:
            return differs(mutant, host, rounds)
        finally:
            host.close()


if __name__ == "__main__":
    sys.exit(main())
