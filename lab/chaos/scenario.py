"""A round, drawn from its seed: what happens to the cluster and to the query, and when.

A round is a list of phases. In each the world first changes, then a query runs on the same checkpoint as before, and
while it runs more trouble comes: once so many batches have been planned (their ends are logged, their rows perhaps not
read yet) or are done.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from lab.chaos.host import SINKS

VBUCKETS = (16, 16, 32, 64)
NODES = (2, 3, 3)
KEYS = 60
"""Keys of a collection: few enough that snapshots hold several writes of most of them."""
COLLECTIONS = (("_default", "_default"), ("shop", "orders"), ("shop", "users"))
KINDS = ("json", "json", "json", "binary", "delete", "delete", "xattr")
BATCH_SEQNOS = (25, 40, 60, 90)
DELTA_BATCH_FACTOR = 2
"""Factor for batches of the engine delta: each of them takes seconds."""
DEATHS = ("append before", "append after", "fold before", "fold after", "take_back before", "take_back after")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens.

    Attributes:
        what: see `rounds.Round.happen`.
        amount: of writes, or how full replicas become.
        after: how many more batches come before it; 0 happens before the query runs.
        is_planned: whether it comes when the last of them is planned, not when it is done.
    """

    what: str
    amount: float = 0
    after: int = 0
    is_planned: bool = False

    def __str__(self) -> str:
        """Short."""
        when = "" if not self.after else f"@{self.after}{'planned' if self.is_planned else 'done'}"
        return f"{self.what}{f' {self.amount:g}' if self.amount else ''}{when}"


@dataclass(frozen=True, slots=True)
class Phase:
    """A run of the query.

    Attributes:
        events: in order; those before the run first.
        until: "available": the run ends by itself; "stopped": it is stopped after its last event.
        die_at, die_nth: a death while tables are written, see `host.Order`.
        replays: whether Spark forgets afterwards that the last batch was done.
    """

    events: tuple[Event, ...]
    until: str
    die_at: str = ""
    die_nth: int = 1
    replays: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A round.

    Attributes:
        seed: it was drawn from.
        sink: see `host.SINKS`.
        has_executors: whether Spark runs tasks in processes of their own, which can be killed.
        vbuckets, nodes: of the cluster.
        batch_seqnos: limit of a micro-batch.
        rewinds_to_zero: of a Parquet sink: the option rewindTo is "zero".
        fold_rows: rows of `changes` after which `current` is folded.
        fold_pause_s: seconds that a fold in the background takes longer, as if the tables were large.
        schemas: of the typed columns of `current`, phase by phase; the last one holds from then on. Empty: none.
        mode: of documents that do not fit.
        phases: in order; the last one has no trouble.
    """

    seed: int
    sink: str
    has_executors: bool
    vbuckets: int
    nodes: int
    batch_seqnos: int
    rewinds_to_zero: bool
    fold_rows: int
    fold_pause_s: float = 0.0
    schemas: tuple[str, ...] = ()
    mode: str = "PERMISSIVE"
    phases: tuple[Phase, ...] = field(default_factory=tuple)

    def lines(self) -> list[str]:
        """The round for people."""
        head = ", ".join(
            (
                f"{self.sink}{' with executors' if self.has_executors else ''}",
                f"{self.nodes} nodes",
                f"{self.vbuckets} vbuckets",
                f"{self.batch_seqnos} seqnos a batch",
                *(("rewinds to zero",) if self.rewinds_to_zero else ()),
                f"folds at {self.fold_rows} rows{f' for {self.fold_pause_s:g} s' if self.fold_pause_s else ''}",
                *((f"columns {' -> '.join(self.schemas)} {self.mode}",) if self.schemas else ()),
            )
        )
        return [
            head,
            *(
                f"{phase.until}: {', '.join(map(str, phase.events))}"
                f"{f', dies at {phase.die_nth} {phase.die_at}' if phase.die_at else ''}"
                f"{', replays' if phase.replays else ''}"
                for phase in self.phases
            ),
        ]


WORLD = {
    "failover": 5,
    "restart": 3,
    "drop": 2,
    "recreate": 2,
    "purge": 1,
    "add_node": 1,
    "flush": 1,
}
"""Trouble of the cluster, with weights."""

SPARK = {"kill_worker": 6, "nothing": 10}
DRIVER = {"kill_driver": 1}
"""Costs a new JVM each time. A query that dies while it writes tables (`DEATHS`) costs little, and comes more often."""
EXECUTORS = {"kill_executor": 4, "kill_worker": 2, "nothing": 3}
"""Trouble of Spark, with weights: always, where the driver can be killed, and in rounds with executors."""

SCHEMAS = (
    ("n BIGINT, text STRING",),
    ("n BIGINT", "n BIGINT", "n BIGINT, text STRING"),
    ("n INT, text STRING", "n INT, text STRING", "n BIGINT, text STRING"),
    ("text STRING", "n INT, text STRING", "n BIGINT, text STRING"),
)
"""Typed columns, phase by phase: as they are, with a new field, with a wider type, with both."""
MODES = ("PERMISSIVE", "PERMISSIVE", "DROPMALFORMED")
TYPED_SHARE = 0.4
"""Share of the rounds with tables that have typed columns."""

FOLD_PAUSES_S = (0.0, 0.0, 0.4)

SINK_WEIGHTS = {"delta-rs": 3, "delta": 1, "parquet": 2}
"""Shares of the rounds. A round with the engine delta takes several times as long."""
EXECUTORS_SHARE = 0.08
"""Share of the rounds that have executors, where there can be some: they take several times as long, too."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The choices to draw a scenario from.

    Attributes:
        sinks: to choose from, by their weights.
        world, spark: kinds of trouble, with weights.
        executors_share: of the rounds.
        typed_share: of the rounds with tables.
        phases: with trouble, from and to.
    """

    sinks: tuple[str, ...] = SINKS
    world: tuple[tuple[str, int], ...] = tuple(WORLD.items())
    spark: tuple[tuple[str, int], ...] = tuple(SPARK.items())
    executors_share: float = 0.0
    typed_share: float = TYPED_SHARE
    phases: tuple[int, int] = (2, 3)


def draw(seed: int, choice: Draw | None = None) -> Scenario:
    """The round of a seed."""
    choice = choice or Draw()
    dice = random.Random(seed)
    (sink,) = dice.choices(choice.sinks, [SINK_WEIGHTS[sink] for sink in choice.sinks])
    has_executors = dice.random() < choice.executors_share
    if has_executors:
        choice = replace(choice, spark=tuple(EXECUTORS.items()))
    phases = [_first_phase(dice, sink)]
    phases += [_phase(dice, choice, sink) for _ in range(dice.randint(*choice.phases))]
    # Of its own, so that the rest of a round does not depend on it.
    type_dice = random.Random(f"{seed} types")
    is_typed = sink != "parquet" and type_dice.random() < choice.typed_share
    phases.append(Phase((Event("write", dice.choice((0, 40))),), "available"))
    scenario = Scenario(
        seed=seed,
        sink=sink,
        has_executors=has_executors,
        vbuckets=dice.choice(VBUCKETS),
        nodes=dice.choice(NODES),
        batch_seqnos=dice.choice(BATCH_SEQNOS) * (DELTA_BATCH_FACTOR if sink == "delta" else 1),
        rewinds_to_zero=dice.random() < 0.3,
        fold_rows=dice.choice((1, 60, 150)),
        schemas=type_dice.choice(SCHEMAS) if is_typed else (),
        mode=type_dice.choice(MODES),
        fold_pause_s=type_dice.choice(FOLD_PAUSES_S),
        phases=tuple(phases),
    )
    # A fold of each batch that takes longer than a batch: then rollbacks and deaths come while one runs.
    return replace(scenario, fold_rows=1) if scenario.fold_pause_s else scenario


def _first_phase(dice: random.Random, sink: str) -> Phase:
    """Documents, and replicas with a part of them. The query reads some or all, and may die in its first batch."""
    events = [Event("write", dice.randint(60, 160)), Event("copy", dice.choice((0.3, 1.0)))]
    events += [Event("write", dice.randint(40, 120)), Event("persist" if dice.random() < 0.5 else "copy", 0.5)]
    die_at = dice.choice(DEATHS) if sink != "parquet" and dice.random() < 0.25 else ""
    if dice.random() < 0.5:
        return Phase(tuple(events), "available", die_at)
    return Phase((*events, Event("write", 40, after=dice.randint(1, 3))), "stopped", die_at)


def _phase(dice: random.Random, choice: Draw, sink: str) -> Phase:
    world = [name for name, _ in choice.world]
    weights = [weight for _, weight in choice.world]
    spark = [name for name, _ in choice.spark]
    spark_weights = [weight for _, weight in choice.spark]
    before = [Event("write", dice.randint(20, 120))]
    if dice.random() < 0.5:
        before.append(Event(dice.choices(world, weights)[0]))
    if dice.random() < 0.6:
        before.append(Event("copy", dice.choice((0.0, 0.5, 1.0))))
    if dice.random() < 0.3:
        before.append(Event("persist"))
    before.append(Event("write", dice.randint(20, 120)))
    during: list[Event] = []
    for _ in range(dice.randint(0, 2)):
        what = dice.choices(world, weights)[0]
        during.append(Event(what, after=dice.randint(1, 3), is_planned=dice.random() < 0.5))
        during.append(Event("write", dice.randint(10, 80), after=dice.choice((0, 1)) or 0))
    trouble = dice.choices(spark, spark_weights)[0]
    if trouble != "nothing":
        during.append(Event(trouble, after=dice.randint(1, 2), is_planned=True))
    until = dice.choice(("available", "stopped"))
    if until == "stopped" and not any(event.after for event in during):
        during.append(Event("write", dice.randint(10, 40), after=dice.randint(1, 3)))
    dies = sink != "parquet" and dice.random() < 0.4
    return Phase(
        (*before, *during),
        until,
        dice.choice(DEATHS) if dies else "",
        dice.randint(1, 3),
        replays=dice.random() < 0.25,
    )
