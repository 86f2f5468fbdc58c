"""Tables of transitions: for each machine that has states, which state follows on which event.

Theory of operation. A machine declares two enums, its states and its events, and one table. It changes its state in one
place, and nowhere else:

    self.state = STREAM.after(self.state, event)

The table lists every legal pair of state and event. Any other pair is refused: an event that the peer causes raises
RemoteProtocolError, an event that our caller causes raises LocalProtocolError. A state from which no event leads to
another state is final.

The value of a state is its name in statistics and messages. The value of an event is a short phrase, which messages and
the diagrams of the documentation show. `lab/tools/state_diagrams.py` draws each table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Generic, TypeVar

from dcpstream.errors import LocalProtocolError, ProtocolError, RemoteProtocolError


class Symbol(Enum):
    """A state or an event of a machine that changes often: hashed by identity, as the hash of an Enum costs more."""

    __hash__ = object.__hash__


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Transitions(Generic[S, E]):
    """The states of one kind of machine.

    Args:
        name: the machine, for messages. "{}" stands for the subject: "producer stream of vb {}".
        start: the state of a new machine.
        table: state → event → next state, with a row for each state.
        peer_events: the events that the peer causes.

    Attributes:
        name, start: as given.
        rows: the table, read-only.
        final: the states that no event leaves.
    """

    __slots__ = ("_peer_events", "_rows", "final", "name", "rows", "start")

    def __init__(self, name: str, start: S, table: Mapping[S, Mapping[E, S]], peer_events: Iterable[E] = ()) -> None:
        missing = [state.name for state in type(start) if state not in table]
        assert not missing, f"{name}: no row for {', '.join(missing)}"
        self.name = name
        self.start = start
        self._rows = {state: dict(row) for state, row in table.items()}
        self._peer_events = frozenset(peer_events)
        self.rows: Mapping[S, Mapping[E, S]] = MappingProxyType(
            {state: MappingProxyType(row) for state, row in self._rows.items()}
        )
        self.final = frozenset(
            state for state, row in self._rows.items() if all(after is state for after in row.values())
        )

    def after(self, state: S, event: E, subject: object = "") -> S:
        """The state that follows.

        Args:
            state: the machine's state now.
            event: what happens.
            subject: which machine, for the message: a vbucket's number, an address.

        Raises:
            RemoteProtocolError: the peer caused an event that is not legal in this state.
            LocalProtocolError: the caller did.
        """
        try:
            return self._rows[state][event]
        except KeyError:
            raise self._refusal(state, event, subject) from None

    def is_legal(self, state: S, event: E) -> bool:
        """Whether the event may happen in this state."""
        return event in self._rows[state]

    def __iter__(self) -> Iterator[tuple[S, E, S]]:
        """Every legal (state, event, next state), in the order of the table."""
        for state, row in self._rows.items():
            for event, after in row.items():
                yield state, event, after

    def _refusal(self, state: S, event: E, subject: object) -> ProtocolError:
        kind = RemoteProtocolError if event in self._peer_events else LocalProtocolError
        message = f"{self.name.format(subject)}: not legal in this state"
        return kind(message, state=str(state.value), event=str(event.value))
