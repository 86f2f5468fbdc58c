"""Play a scenario against a server, and compare what passed with a recording or with another server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from dcpstream.errors import ConfigError
from dcpstream.runtime import Clock
from dcpstream_node.judge import recordings
from dcpstream_node.judge.comparison import Comparison, Difference, compare
from dcpstream_node.judge.scenarios import SCENARIOS
from dcpstream_node.judge.scenarios.kit import Run, Scenario, Target
from dcpstream_node.judge.steps import read_steps
from dcpstream_node.judge.transcript import Line, Recorder, Stopped, cut

SCENARIO_TIMEOUT_S = 240.0
"""The longest recording took 100 seconds; a slow disk doubles that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """The transcript of a scenario that was played.

    Attributes:
        lines: the transcript.
        seconds: how long it took.
        stopped: why and where it stopped before its end, if the server was not to blame.
    """

    lines: list[Line]
    seconds: float
    stopped: Stopped | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's result for one scenario.

    Attributes:
        scenario: which.
        comparison: with the recording, or with the other server; up to where the scenario stopped.
        seconds: how long it took.
        stopped: why it stopped before its end; empty if it did not.
        steps_whole: the steps of the whole recording.
        play: what passed.
        attempt: the number of the attempt that this is.
    """

    scenario: Scenario
    comparison: Comparison
    seconds: float
    stopped: str
    steps_whole: int
    play: Play
    attempt: int = 1

    @property
    def result(self) -> str:
        """`differs`, `equal`, `equal so far` if it stopped, or `left out` if it stopped before anything counted."""
        if self.comparison.failures:
            return "differs"
        if not self.stopped:
            return "equal"
        return "equal so far" if self.comparison.steps > self.comparison.setup else "left out"

    @property
    def variations(self) -> list[Difference]:
        """The differences that do not count, each with its reason."""
        return [each for each in self.comparison.differences if each.varies]


def of_release(release: str) -> list[Scenario]:
    """The scenarios that are recorded of a release."""
    return [SCENARIOS[name] for name in recordings.names(release)]


def up_to(release: str) -> list[Scenario]:
    """The scenarios that a server of a release can play with another server: its own and those of releases before."""
    key = recordings.release_key(release)
    return [each for _, each in sorted(SCENARIOS.items()) if recordings.release_key(each.release) <= key]


def choose(available: Sequence[Scenario], names: Iterable[str]) -> list[Scenario]:
    """The scenarios that begin with one of the names; without names all that do no harm.

    Raises: ConfigError: none begins so.
    """
    wanted = tuple(names)
    for name in wanted:
        if not any(each.name.startswith(name) for each in available):
            known = " ".join(each.name.partition("_")[0] for each in available)
            message = f"no scenario of this release begins with {name!r}. There are {known}"
            raise ConfigError("NAME", name, "the beginning of a scenario's name", message=message)
    if not wanted:
        return [each for each in available if not each.ends_servers]
    return [each for each in available if each.name.startswith(wanted)]


def play(scenario: Scenario, target: Target, recorder: Recorder) -> Play:
    """Play a scenario. What goes wrong on the way is written into the transcript: it is the server's."""
    run = Run(target, recorder, scenario.first_vb)
    stopped = None
    start = recorder.clock.monotonic()
    try:
        scenario.play(run)
    except Stopped as stop:
        stopped = stop
    except Exception as error:  # noqa: BLE001 - any failure is the server's or the network's
        recorder.write({"event": "aborted"}, f"{type(error).__name__}: {error}")
    finally:
        run.close()
    return Play(lines=recorder.lines, seconds=recorder.clock.monotonic() - start, stopped=stopped)


def against_recording(
    scenario: Scenario, target: Target, release: str, clock: Clock, timeout_s: float = SCENARIO_TIMEOUT_S
) -> Verdict:
    """Play a scenario, and compare with the real server of a release."""
    recorder = Recorder(scenario.name, timeout_s, release, clock)
    return verdict_of(scenario, recordings.lines(release, scenario.name), play(scenario, target, recorder))


def against_server(
    scenario: Scenario, target: Target, other: Target, release: str, clock: Clock, timeout_s: float = SCENARIO_TIMEOUT_S
) -> Verdict:
    """Play a scenario against two servers at the same time, and compare; the other one is the reference."""
    recorders = [Recorder(scenario.name, timeout_s, release, clock) for _ in range(2)]
    with ThreadPoolExecutor(2, "dcpstream-judge") as pool:
        try:
            plays = [
                pool.submit(play, scenario, where, recorder)
                for where, recorder in zip((target, other), recorders, strict=True)
            ]
            mine, reference = (each.result() for each in plays)
        except BaseException:
            for recorder in recorders:
                recorder.expire()
            raise
    if reference.stopped is not None:
        mine = _stop_at(mine, reference.stopped)
    return verdict_of(scenario, reference.lines, mine)


def _stop_at(mine: Play, stop: Stopped) -> Play:
    """The play up to where the other server stopped, if that was earlier."""
    if mine.stopped is not None and len(_cut_at(mine.lines, mine.stopped)) < len(_cut_at(mine.lines, stop)):
        return mine
    return replace(mine, stopped=Stopped(f"the other server: {stop}", stop.connection, stop.requests))


def _cut_at(lines: list[Line], stop: Stopped) -> list[Line]:
    return cut(lines, stop.connection, stop.requests)


def verdict_of(scenario: Scenario, reference: list[Line], played: Play) -> Verdict:
    """The verdict on what passed, by the lines of the reference; both are cut where the play stopped."""
    whole = read_steps(scenario.name, reference)
    mine, stop = played.lines, played.stopped
    if stop is not None:
        reference, mine = _cut_at(reference, stop), _cut_at(mine, stop)
    return Verdict(
        scenario=scenario,
        comparison=compare(read_steps(scenario.name, reference), read_steps(scenario.name, mine)),
        seconds=played.seconds,
        stopped="" if stop is None else str(stop),
        steps_whole=sum(len(steps) for steps in whole.steps.values()),
        play=played,
    )
