"""The states of a vbucket's stream: every pair of state and event, and the transitions that readers make."""

from __future__ import annotations

import itertools

import pytest

from dcpstream.client.machine.reader import vbucket
from dcpstream.client.machine.reader.vbucket import TRANSITIONS, Event, Given, State, Vbucket
from dcpstream.client.machine.tracker import Run
from dcpstream.client.machine.values import VbucketRange
from dcpstream.dcp.transitions import Transitions
from dcpstream.errors import LocalProtocolError, RemoteProtocolError
from dcpstream.model import StreamOffset
from tests.kit import consumer_world
from tests.kit.cases import each_case

PEER_EVENTS = {
    *(Event.ACCEPTED, Event.ACCEPTED_PURGED, Event.CONFIRMED),
    *(Event.REFUSED, Event.ROLLED_BACK, Event.SUSPECTED),
}


def a_vbucket(state: State) -> Vbucket:
    given = Given(Run.standing(7, StreamOffset.ZERO))
    return Vbucket(VbucketRange(7, StreamOffset.ZERO, 9), StreamOffset.ZERO, (), given, state=state)


@each_case(("state", "event"), [*itertools.product(State, Event)])
def test_every_state_and_event(state: State, event: Event) -> None:
    one = a_vbucket(state)
    if TRANSITIONS.is_legal(state, event):
        one.happen(event)
        assert one.state is TRANSITIONS.rows[state][event]
        return
    kind = RemoteProtocolError if event in PEER_EVENTS else LocalProtocolError
    with pytest.raises(kind, match="stream of vbucket 7"):
        one.happen(event)
    assert one.state is state


def test_a_vbucket_that_loses_its_stream_waits_until_it_is_due() -> None:
    one = a_vbucket(State.OPEN)
    one.drop_stream(Event.INTERRUPTED, 2.5, 2.0)
    assert (one.state, one.attempts.due, one.attempts.stuck_since) == (State.WAITING, 2.5, 2.0)
    one.drop_stream(Event.POSTPONED, 3.5, 3.0)
    assert (one.attempts.due, one.attempts.stuck_since) == (3.5, 2.0), "stuck since the first interruption"


@pytest.mark.slow
def test_readers_make_only_transitions_of_the_table_and_most_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vbucket that is left while it opens or waits, a catch-up, a probe and a lost plan need other worlds."""
    made = set()
    after = Transitions.after

    def recording(table, state, event, subject=""):
        next_state = after(table, state, event, subject)
        if table is vbucket.TRANSITIONS:
            made.add((state, event, next_state))
        return next_state

    monkeypatch.setattr(Transitions, "after", recording)
    monkeypatch.setattr(consumer_world.World, "refused_share", 0.03)
    for seed in range(60):
        consumer_world.run(seed, "changes", reads_stable=seed % 2 == 0)
    rare = {(State.OPENING, Event.LEFT), (State.WAITING, Event.LEFT)}
    rare |= {(State.OPEN, Event.CAUGHT_UP), (State.OPEN, Event.GIVEN_UP)}
    rare |= {(state, event) for state in (State.SUSPECT, State.PROBING, State.CONFIRMING) for event in Event}
    rare |= {(State.OPENING, Event.SUSPECTED)}
    missing = {(state, event) for state, event, _ in set(TRANSITIONS) - made} - rare
    assert missing <= {(State.SETTLING, Event.LEFT), (State.WAITING, Event.NOTHING_WANTED)}, missing
