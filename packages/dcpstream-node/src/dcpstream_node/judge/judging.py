"""A judge: one server, the user's wishes, and the verdicts on scenarios, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dcpstream.errors import ConfigError
from dcpstream.runtime import Clock, SystemClock
from dcpstream.wire.codes import Opcode, code_name
from dcpstream.wire.effects import changes
from dcpstream_node.judge import recordings
from dcpstream_node.judge.playing import (
    SCENARIO_TIMEOUT_S,
    Verdict,
    against_recording,
    against_server,
    choose,
    of_release,
    up_to,
)
from dcpstream_node.judge.scenarios.kit import Scenario, Target
from dcpstream_node.judge.server import Server, clear_manifest, common_release, look, release_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of a judge.

    Attributes:
        release: of the recordings, or of the scenarios if two servers are compared; None: by what the server says.
        read_only: nothing is changed; a scenario stops at the first request that would.
        destroy_documents: the bucket may have documents, which scenarios may delete.
        timeout_s: longest time for one scenario.
        attempts: how often a scenario that differs is played at most. A busy machine is late with some answers, and
            what a server does otherwise comes every time; the attempt with the fewest differences counts.
    """

    release: str | None = None
    read_only: bool = False
    destroy_documents: bool = False
    timeout_s: float = SCENARIO_TIMEOUT_S
    attempts: int = 1


class Judge:
    """Judges a server by the recordings of its release, or by another server.

    Args:
        target: the server. Its bucket may be empty: then it is the only one that the user sees.
        against: the other server; None: the recordings.
        wishes: see there.
        clock: for deadlines.

    Attributes:
        server, other: what the servers say of themselves.
        release: see `Wishes`; the one that was chosen.
        scenarios: those that the servers can be asked for, in order.

    Raises:
        ConnectionLost: a server cannot be reached. AuthenticationFailed: it refuses user or bucket.
        ConfigError: a bucket is not fit for this, or there are no recordings of the release.
    """

    def __init__(
        self, target: Target, *, against: Target | None = None, wishes: Wishes = Wishes(), clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._timeout_s, self._attempts = wishes.timeout_s, wishes.attempts
        self.server = self._look(target, wishes)
        self.other = None if against is None else self._look(against, wishes)
        known = recordings.releases()
        if wishes.release is not None and wishes.release not in known:
            raise ConfigError("--release", wishes.release, " or ".join(known))
        if self.other is None:
            self.release = wishes.release or release_for(self.server, known)
            self.scenarios: Sequence[Scenario] = of_release(self.release)
        else:
            self.release = wishes.release or common_release(self.server, self.other)
            self.scenarios = up_to(self.release)

    def _look(self, target: Target, wishes: Wishes) -> Server:
        if wishes.read_only:
            target = replace(target, endpoint=replace(target.endpoint, forbids=_forbidden))
        server = look(target, self._clock)
        if not wishes.read_only:
            server.check_scratch(destroy_documents=wishes.destroy_documents)
            clear_manifest(server, self._clock, destroy_collections=wishes.destroy_documents)
        return server

    def choose(self, *names: str) -> list[Scenario]:
        """The scenarios whose names begin with one of these; without any, all. Raises: ConfigError: none does."""
        return choose(self.scenarios, names)

    def judge(self, scenario: Scenario) -> Verdict:
        """Play a scenario, and say how the server did."""
        best = self._play(scenario)
        for attempt in range(2, self._attempts + 1):
            if best.result != "differs":
                break
            again = replace(self._play(scenario), attempt=attempt)
            if len(again.comparison.failures) < len(best.comparison.failures):
                best = again
        return best

    def _play(self, scenario: Scenario) -> Verdict:
        if self.other is None:
            return against_recording(scenario, self.server.target, self.release, self._clock, self._timeout_s)
        targets = self.server.target, self.other.target
        return against_server(scenario, *targets, self.release, self._clock, self._timeout_s)


def _forbidden(opcode: int) -> str:
    """Why a read-only judge does not send a request, or nothing."""
    return f"{code_name(Opcode, opcode)} may change the server" if changes(opcode) else ""
