"""A log with a bounded rate for events that any client can cause, with or without a login.

Such a line is short, it quotes nothing that was sent, and each kind of line has a rate: what is above it is counted and
the count is logged. Errors are described by their type and place, since messages of parsers quote their input.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass

logger = logging.getLogger(__name__)

LOG_PAUSE_S = 10.0
"""The period of the limits, which keep clients from filling the disk with log lines."""
LOG_LINES_WITH_REASONS = 10
"""Lines in a period about closed connections and refusals with a reference, which differ from each other."""
DESCRIBED_CALLS = 6
"""Calls in the description of an error: enough to find the fault, and one line."""


@dataclass(slots=True)
class _Said:
    """The lines logged about one kind of event.

    Attributes:
        since: when the present period began.
        lines: logged in it.
        held_back: events that were counted instead.
        level: of the lines.
    """

    since: float
    lines: int = 0
    held_back: int = 0
    level: int = logging.WARNING


class LimitLog:
    """Logs some events of each kind in a period, then only their count."""

    def __init__(self) -> None:
        self._said: dict[str, _Said] = {}

    def reached(self, limit: str, peer: str, what: str, now: float) -> None:
        """Log that a limit was reached.

        Args:
            limit: its name.
            peer: address of the client.
            what: the consequence.
            now: seconds of the monotonic clock.
        """
        self.say(f"limit {limit}", f"{peer}: {what}: limit {limit}", now)

    def say(self, kind: str, text: str, now: float, *, level: int = logging.WARNING, lines: int = 1) -> None:
        """Log a line, or count it if its kind has had its lines of this period.

        Args:
            kind: of a fixed set; events of a kind are counted together.
            text: the line; of a request it holds numbers at most, never bytes that were sent.
            now: seconds of the monotonic clock.
            lines: how many of this kind are logged in `LOG_PAUSE_S`.
        """
        said = self._said.get(kind)
        more = ""
        if said is None or now >= said.since + LOG_PAUSE_S:
            if said is not None and said.held_back:
                more = f" ({said.held_back} more since the last line)"
            said = self._said[kind] = _Said(now, level=level)
        if said.lines >= lines:
            said.held_back += 1
            return
        said.lines += 1
        logger.log(level, "%s%s", text, more)

    def sweep(self, now: float) -> None:
        """Log the counts of the periods that are over, also if no further event comes."""
        for kind, said in list(self._said.items()):
            if now >= said.since + LOG_PAUSE_S:
                self._log_rest(kind, said)

    def close(self) -> None:
        """Log the counts that are left."""
        for kind, said in list(self._said.items()):
            self._log_rest(kind, said)

    def _log_rest(self, kind: str, said: _Said) -> None:
        del self._said[kind]
        if said.held_back:
            logger.log(said.level, "%s: %d more since the last line", kind, said.held_back)


def described(error: BaseException) -> str:
    """An error's type and where it was raised, innermost first.

    The message is left out, because messages of parsers quote what they were given.
    """
    calls = traceback.extract_tb(error.__traceback__)[: -DESCRIBED_CALLS - 1 : -1]
    places = [f"{call.name} ({call.filename.rpartition('/')[2]}:{call.lineno})" for call in calls]
    return " < ".join([f"{type(error).__name__} in {places[0]}", *places[1:]]) if places else type(error).__name__
