"""A round notices how a run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.chaos.plain import PlainHost
from lab.chaos.rounds import Round
from lab.chaos.scenario import Event, Phase, Scenario


class OneDriver(PlainHost):
    """Its driver can be killed when no query runs in it."""

    def kill(self) -> None:
        assert not self.state()[0]
        self._error = ""


READ = Phase((Event("write", 60), Event("copy", 1.0)), "available")
REST = Phase((Event("write", 10),), "available")


def played(path: Path, *phases: Phase, schemas: tuple[str, ...] = ()) -> Round:
    scenario = Scenario(
        seed=1,
        sink="delta-rs",
        has_executors=False,
        vbuckets=16,
        nodes=2,
        batch_seqnos=40,
        rewinds_to_zero=False,
        fold_rows=150,
        schemas=schemas,
        phases=phases,
    )
    one = Round(scenario, OneDriver(), path, lambda line: None)
    try:
        one.play()
    finally:
        one.close()
    assert not one.result.differences, "\n".join(one.result.events)
    return one


@pytest.mark.timeout(120)
def test_a_death_while_an_event_is_awaited_is_a_death(tmp_path: Path) -> None:
    """The run dies when `changes` has the rollback and the rows that it makes void; the next run completes the batch.

    The tables are not judged in between.
    """
    later = Event("kill_driver", after=9, is_planned=True)
    dying = Phase((Event("failover"), Event("write", 20), later), "available", "append after", 1, replays=True)
    one = played(tmp_path, READ, dying, REST)
    assert one.result.ends == 1
    assert sum("the run ended: Died: after append" in line for line in one.result.events) == 1
    assert any("is forgotten" in line for line in one.result.events)


@pytest.mark.timeout(120)
def test_a_batch_that_is_planned_keeps_the_ones_before(tmp_path: Path) -> None:
    one = played(tmp_path, READ)
    planned = tmp_path / "sink" / "checkpoint" / "offsets"
    newest = max(int(file.name) for file in planned.iterdir())
    (planned / str(newest + 1)).touch()
    one.forget_last_batch()
    assert (tmp_path / "sink" / "checkpoint" / "commits" / str(newest)).exists()
    (planned / str(newest + 1)).unlink()
    one.forget_last_batch()
    assert not (tmp_path / "sink" / "checkpoint" / "commits" / str(newest)).exists()


@pytest.mark.timeout(120)
def test_typed_columns_and_rejects_are_checked(tmp_path: Path) -> None:
    """Also a test of the tables: delta-rs gives strings as views, which Arrow does not compare with strings."""
    one = played(tmp_path, READ, REST, schemas=("n INT, text STRING", "n BIGINT, text STRING"))
    assert one.result.rows
